//! How much of the memory that a budget is for is used, as the kernel counts it.
//!
//! Where this process is in a memory cgroup whose limit is no more than the budget, the group
//! decides: what it is charged for, but for pages of files, which the kernel takes back when
//! somebody needs the room. Several processes may share it. Elsewhere the memory of this
//! process counts.
//!
//! Pages of the program's own files (code, libraries) count as used: taken back, they would
//! be read again at once. Another model that the program has mapped, such as the one that drafts
//! for the one that is fed, counts as used as a whole, touched or not: each token reads all of
//! it, and what of it had no room would be read from the disk each time.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use support::cgroup::memory_group_in;
use support::proc::kilobytes_of;

use crate::files::{Mapping, is_gguf, mappings};
use crate::memory::page_bytes;

/// Models are looked for again when so much more or less is mapped than before.
const REMAPPED_BYTES: u64 = 4 << 20;

/// What is used at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// Of the budget, and not to be had back from the kernel.
    pub used_bytes: u64,
    pub glance: Glance,
}

/// What a single number of `/proc` says, cheap enough to be asked for all the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Glance {
    /// Private memory of this process that is there.
    pub private_bytes: u64,
    /// Private memory that it has asked for, whether it was touched or not.
    pub asked_bytes: u64,
    /// All addresses of it, files included.
    pub mapped_bytes: u64,
}

/// Who knows what is used.
pub trait Meter: Send + Sync {
    /// `resident_bytes` of it are those that weights were read into, in places of `own_bytes`.
    fn level(&self, resident_bytes: u64, own_bytes: u64) -> Level;

    fn glance(&self, own_bytes: u64) -> Glance;

    /// Less than the budget, if somebody else has set a limit.
    fn limit_bytes(&self) -> Option<u64> {
        None
    }
}

/// The kernel's own numbers.
pub struct Kernel {
    group: Option<Group>,
    budget_bytes: u64,
    statm: Option<File>,
    /// Of files that are mapped and are no models.
    program_bytes: u64,
    model_files: Vec<ModelFileId>,
    beside: Mutex<Beside>,
}

/// Models beside the one that is fed.
#[derive(Clone, Copy, Debug, Default)]
struct Beside {
    /// All that was mapped when they were looked for.
    mapped_bytes: u64,
    models_bytes: u64,
}

struct Group {
    usage: File,
    stat: File,
    /// Fields of `stat` with the bytes of pages of files.
    of_files: [&'static str; 2],
    limit_bytes: u64,
}

impl Kernel {
    /// `model_files` are device and inode of those that weights come from.
    pub fn new(budget_bytes: u64, model_files: &[ModelFileId]) -> Kernel {
        let smaps = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        let beside = models_beside(&mappings().unwrap_or_default(), model_files, is_gguf);
        let all: Vec<ModelFileId> = model_files
            .iter()
            .copied()
            .chain(beside.iter().map(|(id, _)| *id))
            .collect();
        Kernel {
            group: Group::find(Path::new("/"), budget_bytes),
            budget_bytes,
            statm: File::open("/proc/self/statm").ok(),
            program_bytes: program_bytes(&smaps, &all),
            model_files: model_files.to_vec(),
            beside: Mutex::default(),
        }
    }

    /// Bytes of models beside the one that is fed. Models that would take most of the budget are
    /// left to the page cache.
    fn beside_bytes(&self, mapped_bytes: u64) -> u64 {
        let mut beside = self.beside.lock().unwrap_or_else(PoisonError::into_inner);
        if mapped_bytes.abs_diff(beside.mapped_bytes) >= REMAPPED_BYTES {
            let found = models_beside(&mappings().unwrap_or_default(), &self.model_files, is_gguf);
            *beside = Beside {
                mapped_bytes,
                models_bytes: found.iter().map(|(_, bytes)| bytes).sum(),
            };
        }
        match beside.models_bytes <= self.budget_bytes / 2 {
            true => beside.models_bytes,
            false => 0,
        }
    }
}

impl Meter for Kernel {
    fn level(&self, _: u64, own_bytes: u64) -> Level {
        let program_bytes = self.program_bytes;
        let glance = self.glance(own_bytes);
        let beside_bytes = self.beside_bytes(glance.mapped_bytes);
        let charged = self.group.as_ref().and_then(Group::charged);
        let used_bytes = match charged {
            // Pages that another process has read first are charged to that.
            Some((kept, of_files)) => kept + of_files.min(program_bytes),
            None => glance.private_bytes + program_bytes + page_table_bytes(),
        };
        Level {
            used_bytes: used_bytes + beside_bytes,
            glance,
        }
    }

    fn glance(&self, _: u64) -> Glance {
        let mut text = [0; 128];
        let length = self
            .statm
            .as_ref()
            .and_then(|statm| statm.read_at(&mut text, 0).ok());
        let text = str::from_utf8(&text[..length.unwrap_or(0)]).unwrap_or_default();
        glance_of(text, page_bytes() as u64)
    }

    fn limit_bytes(&self) -> Option<u64> {
        self.group.as_ref().map(|group| group.limit_bytes)
    }
}

impl Group {
    fn find(root: &Path, budget_bytes: u64) -> Option<Group> {
        let group = memory_group_in(root)?;
        let folder = &group.folders[0];
        let (limit, usage, of_files) = match group.version {
            1 => (
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                ["total_active_file", "total_inactive_file"],
            ),
            _ => (
                "memory.max",
                "memory.current",
                ["active_file", "inactive_file"],
            ),
        };
        let limit_bytes = number(&fs::read_to_string(folder.join(limit)).ok()?)?;
        let open = |name: &str| File::open(folder.join(name)).ok();
        (limit_bytes <= budget_bytes).then_some(Group {
            usage: open(usage)?,
            stat: open("memory.stat")?,
            of_files,
            limit_bytes,
        })
    }

    /// Bytes that stay, and bytes of files.
    fn charged(&self) -> Option<(u64, u64)> {
        let mut text = [0; 8192];
        let length = self.usage.read_at(&mut text, 0).ok()?;
        let usage = number(str::from_utf8(&text[..length]).ok()?)?;
        let length = self.stat.read_at(&mut text, 0).ok()?;
        let stat = str::from_utf8(&text[..length]).ok()?;
        let of_files = self.of_files.iter().filter_map(|name| named(stat, name));
        let of_files = of_files.sum::<u64>().min(usage);
        Some((usage - of_files, of_files))
    }
}

fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// The number behind a name: `active_file 4096`.
fn named(stat: &str, name: &str) -> Option<u64> {
    let mut lines = stat.lines();
    lines.find_map(|line| number(line.strip_prefix(name)?.strip_prefix(' ')?))
}

/// Of `/proc/self/statm`: size, resident, shared, text, 0, data, 0, in pages.
fn glance_of(statm: &str, page_bytes: u64) -> Glance {
    let mut pages = statm.split_ascii_whitespace().map_while(number);
    let mut next = |skipped: usize| pages.nth(skipped).unwrap_or(0) * page_bytes;
    let (mapped_bytes, resident, shared, asked_bytes) = (next(0), next(0), next(0), next(2));
    Glance {
        private_bytes: resident.saturating_sub(shared),
        asked_bytes,
        mapped_bytes,
    }
}

fn page_table_bytes() -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    kilobytes_of(&text, "VmPTE").unwrap_or(0)
}

/// Which file a mapping is of, as `/proc/self/maps` has it.
pub type ModelFileId = ((u32, u32), u64);

/// Pages of mapped files that are there and are of no model, by `/proc/self/smaps`.
fn program_bytes(smaps: &str, model_files: &[ModelFileId]) -> u64 {
    let mut is_program = false;
    let mut bytes = 0;
    for line in smaps.lines() {
        // The line of a mapping, or a field of the one above.
        if let Some(mapping) = support::proc::mappings(line.as_bytes()).next() {
            let id = (mapping.device, mapping.inode);
            is_program = mapping.is_of_file() && !model_files.contains(&id);
        } else if is_program && line.starts_with("Rss:") {
            bytes += kilobytes_of(line, "Rss").unwrap_or(0);
        }
    }
    bytes
}

/// Mappings of other models than the one that is fed, and their bytes, whichever of their pages
/// are there.
fn models_beside(
    mappings: &[Mapping],
    fed: &[ModelFileId],
    is_model: impl Fn(&Path) -> bool,
) -> Vec<(ModelFileId, u64)> {
    let id_of = |mapping: &Mapping| (mapping.device, mapping.inode);
    let others = mappings.iter().filter(|m| !fed.contains(&id_of(m)));
    let beside = others.filter(|mapping| is_model(&mapping.path));
    beside
        .map(|m| (id_of(m), (m.end - m.start) as u64))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_decides_where_it_has_no_more_than_the_budget() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/self/cgroup", "0::/job\n");
        write(
            "proc/self/mountinfo",
            "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        );
        write("sys/fs/cgroup/job/memory.max", "1000\n");
        write("sys/fs/cgroup/job/memory.current", "900\n");
        let stat = "anon 300\nactive_file 100\ninactive_file 50\nactive_file_x 7\n";
        write("sys/fs/cgroup/job/memory.stat", stat);
        let group = Group::find(root.path(), 1000).unwrap();
        assert_eq!(group.charged(), Some((750, 150)));
        assert_eq!(group.limit_bytes, 1000);
        assert!(Group::find(root.path(), 999).is_none());
        write("sys/fs/cgroup/job/memory.max", "max\n");
        assert!(Group::find(root.path(), u64::MAX).is_none());
    }

    #[test]
    fn private_memory_is_what_is_there_and_not_shared() {
        let glance = glance_of("5000 300 100 20 0 4000 0\n", 4096);
        assert_eq!(glance.private_bytes, 200 * 4096);
        assert_eq!(glance.asked_bytes, 4000 * 4096);
        assert_eq!(glance_of("", 4096), Glance::default());
        let kernel = Kernel::new(0, &[]);
        assert!(kernel.level(0, 0).used_bytes > kernel.glance(0).private_bytes / 2);
    }

    #[test]
    fn the_model_s_pages_are_not_the_program_s() {
        let smaps = "7f00-7f01 r-xp 00000000 fe:00 7 /usr/lib/libc.so.6\nSize: 8 kB\nRss: 4 kB\n\
                     7f02-7f03 r--s 00000000 fe:00 9 /m.gguf\nRss: 400 kB\n\
                     7f04-7f05 rw-p 00000000 00:00 0 \nRss: 70 kB\nVmFlags: rd\n\
                     7f06-7f07 r--p 00000000 fe:00 8 /usr/lib/x.so\nRss: 2 kB\n";
        assert_eq!(program_bytes(smaps, &[((0xfe, 0), 9)]), 6 << 10);
    }

    #[test]
    fn another_model_counts_as_a_whole_and_other_files_do_not() {
        let mapping = |inode, start, end, path: &str| Mapping {
            start,
            end,
            file_offset: 0,
            device: (0xfe, 0),
            inode,
            path: path.into(),
        };
        let maps = [
            mapping(9, 0, 9_000, "/target.gguf"),
            mapping(10, 10_000, 10_400, "/draft.gguf"),
            mapping(11, 20_000, 29_000, "/locale-archive"),
        ];
        let is_model = |path: &Path| path.extension().is_some_and(|e| e == "gguf");
        let found = models_beside(&maps, &[((0xfe, 0), 9)], is_model);
        assert_eq!(found, [(((0xfe, 0), 10), 400)]);
    }
}
