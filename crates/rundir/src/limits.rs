//! What the recording process was allowed to use: resource limits and the
//! memory limit of its control group.
//!
//! A control group is limited by its ancestors too, so the smallest limit on the
//! way up is the one that counts. Inside a container the ancestors may be
//! invisible; then the limit is that of what can be seen.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use support::cgroup::{ControlGroup, control_group_in, memory_group_in};

use crate::machine::read_line;

/// Limits in force when the run started. `None` where one could not be read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// Memory that may be locked (RLIMIT_MEMLOCK, soft).
    pub memlock_bytes: Option<Limit>,
    /// Address space (RLIMIT_AS, soft).
    pub address_space_bytes: Option<Limit>,
    /// Size of a file that may be written (RLIMIT_FSIZE, soft).
    pub file_size_bytes: Option<Limit>,
    /// The control group that accounts for memory, if there is one.
    pub cgroup: Option<CgroupMemory>,
}

/// A number of bytes, or the text `unlimited`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "LimitText", into = "LimitText")]
pub enum Limit {
    Bytes(u64),
    Unlimited,
}

/// Memory as a control group limits it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CgroupMemory {
    /// 1 or 2.
    pub version: u32,
    /// As `/proc/PID/cgroup` names it.
    pub path: String,
    /// `memory.max`, or `memory.limit_in_bytes` of version 1.
    pub limit_bytes: Limit,
    /// `memory.high`, above which the kernel reclaims; version 2 only.
    pub high_bytes: Option<Limit>,
}

/// Describes the limits of this process.
pub fn describe() -> Limits {
    describe_in(Path::new("/"))
}

/// As [`describe`], with `/proc` and `/sys` below another root.
pub fn describe_in(root: &Path) -> Limits {
    let table = fs::read_to_string(root.join("proc/self/limits")).unwrap_or_default();
    Limits {
        memlock_bytes: soft_limit(&table, "Max locked memory"),
        address_space_bytes: soft_limit(&table, "Max address space"),
        file_size_bytes: soft_limit(&table, "Max file size"),
        cgroup: cgroup_memory(root),
    }
}

/// How a [`Limit`] looks in JSON.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum LimitText {
    Bytes(u64),
    Word(String),
}

impl From<LimitText> for Limit {
    fn from(text: LimitText) -> Limit {
        match text {
            LimitText::Bytes(bytes) => Limit::Bytes(bytes),
            LimitText::Word(_) => Limit::Unlimited,
        }
    }
}

impl From<Limit> for LimitText {
    fn from(limit: Limit) -> LimitText {
        match limit {
            Limit::Bytes(bytes) => LimitText::Bytes(bytes),
            Limit::Unlimited => LimitText::Word("unlimited".to_owned()),
        }
    }
}

impl Limit {
    fn parse(text: &str) -> Option<Limit> {
        match text {
            "unlimited" | "max" => Some(Limit::Unlimited),
            number => number.parse().ok().map(Limit::Bytes),
        }
    }

    /// The one that is reached first.
    fn tighter(self, other: Limit) -> Limit {
        match (self, other) {
            (Limit::Bytes(a), Limit::Bytes(b)) => Limit::Bytes(a.min(b)),
            (Limit::Unlimited, limit) | (limit, Limit::Unlimited) => limit,
        }
    }
}

fn soft_limit(table: &str, name: &str) -> Option<Limit> {
    let row = table.lines().find_map(|line| line.strip_prefix(name))?;
    Limit::parse(row.split_ascii_whitespace().next()?)
}

fn cgroup_memory(root: &Path) -> Option<CgroupMemory> {
    let ControlGroup {
        version,
        path,
        folders,
    } = memory_group_in(root)?;
    Some(match version {
        1 => CgroupMemory {
            version,
            path,
            limit_bytes: tightest(&folders, "memory.limit_in_bytes")?,
            high_bytes: None,
        },
        _ => CgroupMemory {
            version,
            path,
            // The root group has no `memory.max`: nothing limits it.
            limit_bytes: tightest(&folders, "memory.max").unwrap_or(Limit::Unlimited),
            high_bytes: tightest(&folders, "memory.high"),
        },
    })
}

fn tightest(folders: &[PathBuf], file: &str) -> Option<Limit> {
    /// Version 1 writes "no limit" as the largest number of whole pages.
    const NO_LIMIT_BYTES: u64 = i64::MAX as u64 - (1 << 16);
    folders
        .iter()
        .filter_map(|folder| Limit::parse(&read_line(&folder.join(file))?))
        .map(|limit| match limit {
            Limit::Bytes(bytes) if bytes >= NO_LIMIT_BYTES => Limit::Unlimited,
            limit => limit,
        })
        .reduce(Limit::tighter)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root_with(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    const MOUNT_2: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn resource_limits_are_read_from_their_table() {
        let root = root_with(&[(
            "proc/self/limits",
            "Limit                     Soft Limit           Hard Limit           Units     \n\
             Max file size             unlimited            unlimited            bytes     \n\
             Max locked memory         8388608              16777216             bytes     \n\
             Max address space         unlimited            unlimited            bytes     \n",
        )]);
        let limits = describe_in(root.path());
        assert_eq!(limits.memlock_bytes, Some(Limit::Bytes(8_388_608)));
        assert_eq!(limits.address_space_bytes, Some(Limit::Unlimited));
        assert_eq!(limits.file_size_bytes, Some(Limit::Unlimited));
        assert_eq!(limits.cgroup, None);
    }

    #[test]
    fn the_tightest_ancestor_limits_a_group() {
        let root = root_with(&[
            ("proc/self/cgroup", "0::/a.slice/b.scope\n"),
            ("proc/self/mountinfo", MOUNT_2),
            ("sys/fs/cgroup/a.slice/memory.max", "4096\n"),
            ("sys/fs/cgroup/a.slice/memory.high", "max\n"),
            ("sys/fs/cgroup/a.slice/b.scope/memory.max", "max\n"),
            ("sys/fs/cgroup/a.slice/b.scope/memory.high", "2048\n"),
        ]);
        let expected = CgroupMemory {
            version: 2,
            path: "/a.slice/b.scope".to_owned(),
            limit_bytes: Limit::Bytes(4096),
            high_bytes: Some(Limit::Bytes(2048)),
        };
        assert_eq!(describe_in(root.path()).cgroup, Some(expected));
    }

    #[test]
    fn a_container_reads_what_it_sees() {
        // The group's path is that of the host, of which the mount shows a part.
        let root = root_with(&[
            ("proc/self/cgroup", "0::/docker/abc/inner\n"),
            (
                "proc/self/mountinfo",
                "30 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
            ),
            ("sys/fs/cgroup/memory.max", "1000\n"),
            ("sys/fs/cgroup/inner/memory.max", "2000\n"),
        ]);
        let cgroup = describe_in(root.path()).cgroup.unwrap();
        assert_eq!(cgroup.limit_bytes, Limit::Bytes(1000));
        let outside = root_with(&[
            ("proc/self/cgroup", "0::/../elsewhere\n"),
            (
                "proc/self/mountinfo",
                "30 23 0:26 /x /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
            ),
            ("sys/fs/cgroup/memory.max", "1000\n"),
        ]);
        let cgroup = describe_in(outside.path()).cgroup.unwrap();
        assert_eq!(cgroup.limit_bytes, Limit::Bytes(1000));
    }

    #[test]
    fn version_1_is_understood_with_its_way_to_say_unlimited() {
        let check = |value: &str, expect| {
            let root = root_with(&[
                ("proc/self/cgroup", "5:cpu,memory:/job\n0::/\n"),
                (
                    "proc/self/mountinfo",
                    "31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,cpu,memory\n",
                ),
                (
                    "sys/fs/cgroup/memory/memory.limit_in_bytes",
                    "9223372036854771712\n",
                ),
                ("sys/fs/cgroup/memory/job/memory.limit_in_bytes", value),
            ]);
            let cgroup = describe_in(root.path()).cgroup.unwrap();
            assert_eq!((cgroup.version, cgroup.limit_bytes), (1, expect));
        };
        check("1048576\n", Limit::Bytes(1_048_576));
        check("9223372036854771712\n", Limit::Unlimited);
    }

    #[test]
    fn a_group_that_cannot_be_seen_is_what_is_seen_as_the_top() {
        for group in ["/../elsewhere", "/not/mounted/here"] {
            let root = root_with(&[
                ("proc/self/cgroup", &format!("0::{group}\n")),
                ("proc/self/mountinfo", MOUNT_2),
                ("sys/fs/cgroup/cgroup.procs", ""),
            ]);
            let found = memory_group_in(root.path()).unwrap();
            assert_eq!(
                found.folders,
                [root.path().join("sys/fs/cgroup")],
                "{group}"
            );
        }
    }

    #[test]
    fn limits_survive_json() {
        let limits = Limits {
            memlock_bytes: Some(Limit::Bytes(u64::MAX)),
            address_space_bytes: Some(Limit::Unlimited),
            file_size_bytes: None,
            cgroup: None,
        };
        let text = serde_json::to_string(&limits).unwrap();
        assert!(
            text.contains(r#""address_space_bytes":"unlimited""#),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<Limits>(&text).unwrap(), limits);
    }
}
