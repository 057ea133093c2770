//! The caches of this machine, as the kernel describes them.

use std::path::Path;

use serde::{Deserialize, Serialize};

/// One level: `sets` of `ways` lines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Level {
    pub name: String,
    pub bytes: u64,
    pub ways: u64,
    pub line_bytes: u64,
}

impl Level {
    pub fn new(name: &str, bytes: u64, ways: u64, line_bytes: u64) -> Level {
        Level {
            name: name.to_owned(),
            bytes,
            ways,
            line_bytes,
        }
    }

    pub fn sets(&self) -> u64 {
        (self.bytes / (self.ways * self.line_bytes)).max(1)
    }

    /// As large, but any line may lie anywhere: it has no conflicts.
    pub fn without_sets(&self) -> Level {
        Level {
            ways: self.bytes / self.line_bytes,
            ..self.clone()
        }
    }

    /// `bytes,ways,line`, as cachegrind wants it.
    pub fn for_cachegrind(&self) -> String {
        format!("{},{},{}", self.bytes, self.ways, self.line_bytes)
    }
}

/// Those that hold data, the smallest first.
pub fn here() -> Vec<Level> {
    let mut levels = read(Path::new("/sys/devices/system/cpu/cpu0/cache"));
    levels.sort_by_key(|level| level.bytes);
    levels
}

/// What a machine without such files is taken for.
pub fn usual() -> Vec<Level> {
    vec![
        Level::new("L1", 32 << 10, 8, 64),
        Level::new("L2", 1 << 20, 8, 64),
        Level::new("L3", 32 << 20, 16, 64),
    ]
}

fn read(folder: &Path) -> Vec<Level> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let levels = entries.filter_map(|entry| {
        let read = |name: &str| {
            let text = std::fs::read_to_string(entry.path().join(name)).ok()?;
            Some(text.trim().to_owned())
        };
        let number = |name: &str| read(name)?.parse::<u64>().ok().filter(|&n| n > 0);
        let kind = read("type")?;
        (kind == "Data" || kind == "Unified").then_some(())?;
        Some(Level {
            name: format!("L{}", number("level")?),
            bytes: bytes(&read("size")?)?,
            ways: number("ways_of_associativity")?,
            line_bytes: number("coherency_line_size")?,
        })
    });
    levels.collect()
}

/// "32K" or "4M".
fn bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(['K', 'M', 'G']);
    let unit = match &text[digits.len()..] {
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => 1,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_read_as_the_kernel_writes_them() {
        let folder = std::env::temp_dir().join(format!("lab-levels-{}", std::process::id()));
        for (name, level, kind, size) in [
            ("index0", "1", "Data", "32K"),
            ("index1", "1", "Instruction", "32K"),
            ("index2", "2", "Unified", "1024K"),
        ] {
            let at = folder.join(name);
            std::fs::create_dir_all(&at).unwrap();
            let files = [
                ("level", level),
                ("type", kind),
                ("size", size),
                ("ways_of_associativity", "8"),
                ("coherency_line_size", "64"),
            ];
            for (file, text) in files {
                std::fs::write(at.join(file), format!("{text}\n")).unwrap();
            }
        }
        let mut levels = read(&folder);
        levels.sort_by_key(|level| level.bytes);
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(levels, usual()[..2]);
        assert_eq!(levels[0].sets(), 64);
        assert_eq!(levels[0].without_sets().sets(), 1);
        assert_eq!(levels[1].for_cachegrind(), "1048576,8,64");
    }
}
