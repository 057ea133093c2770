//! The last-level caches, as `/sys` tells them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Sizes of the caches in front of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LastLevel {
    /// One of them.
    pub one_bytes: u64,
    /// All of them: a machine may have one for each group of cores.
    pub all_bytes: u64,
}

/// `None` where the machine does not tell, as in some virtual machines.
pub(super) fn last_level() -> Option<LastLevel> {
    last_level_in(Path::new("/"))
}

fn last_level_in(root: &Path) -> Option<LastLevel> {
    let cpus = fs::read_dir(root.join("sys/devices/system/cpu")).ok()?;
    // By level and by the cores that share it, so that each is counted once.
    let mut caches: BTreeMap<(u32, String), u64> = BTreeMap::new();
    for cpu in cpus.flatten() {
        let Ok(indexes) = fs::read_dir(cpu.path().join("cache")) else {
            continue;
        };
        for index in indexes.flatten() {
            if let Some((level, shared_by, bytes)) = read_cache(&index.path()) {
                caches.insert((level, shared_by), bytes);
            }
        }
    }
    let last = caches.keys().next_back()?.0;
    let sizes = || {
        caches
            .range((last, String::new())..)
            .map(|(_, bytes)| *bytes)
    };
    Some(LastLevel {
        one_bytes: sizes().max()?,
        all_bytes: sizes().sum(),
    })
}

fn read_cache(index: &Path) -> Option<(u32, String, u64)> {
    let line = |name| Some(fs::read_to_string(index.join(name)).ok()?.trim().to_owned());
    let level = line("level")?.parse().ok()?;
    Some((level, line("shared_cpu_list")?, size_bytes(&line("size")?)?))
}

/// `32768K`, and on some kernels `32M`.
fn size_bytes(text: &str) -> Option<u64> {
    let (number, unit) = match text.split_at_checked(text.len().checked_sub(1)?)? {
        (number, "K") => (number, 1 << 10),
        (number, "M") => (number, 1 << 20),
        _ => (text, 1),
    };
    // Emulators have been seen to tell of caches of no size.
    let bytes = number.parse::<u64>().ok()?.checked_mul(unit)?;
    (bytes > 0 && bytes < 1 << 40).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_unit() {
        let check = |text, expect| assert_eq!(size_bytes(text), expect, "{text}");
        check("32768K", Some(32 << 20));
        check("32M", Some(32 << 20));
        check("65536", Some(65_536));
        check("0K", None);
        check("", None);
        check("K", None);
        check("lots", None);
        check("18446744073709551615K", None);
    }

    #[test]
    fn each_cache_counts_once_however_many_cores_share_it() {
        let root = tempfile::tempdir().unwrap();
        let put = |cpu: u32, index: u32, level: &str, shared: &str, size: &str| {
            let folder = root.path().join(format!(
                "sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
            ));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("level"), level).unwrap();
            fs::write(folder.join("shared_cpu_list"), shared).unwrap();
            fs::write(folder.join("size"), size).unwrap();
        };
        for cpu in 0..4 {
            put(cpu, 0, "1\n", &format!("{cpu}\n"), "32K\n");
            let pair = if cpu < 2 { "0-1\n" } else { "2-3\n" };
            put(cpu, 3, "3\n", pair, "16384K\n");
        }
        let expect = LastLevel {
            one_bytes: 16 << 20,
            all_bytes: 32 << 20,
        };
        assert_eq!(last_level_in(root.path()), Some(expect));
    }

    #[test]
    fn a_machine_that_tells_nothing_is_no_error() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(last_level_in(root.path()), None);
    }
}
