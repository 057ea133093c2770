//! Which memory cgroup we are in, and where a new one can be made.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{KernelError, Missing};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    One,
    Two,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Home {
    pub version: Version,
    /// The folder of our own group.
    pub own: PathBuf,
    /// Where new groups are made: the same, or with version 2, where a group with
    /// processes has no children, the one above.
    pub parent: PathBuf,
}

impl Home {
    pub fn find() -> Result<Home, KernelError> {
        let read = |path: &str| {
            fs::read_to_string(path).map_err(KernelError::io(Path::new(path), "cannot read"))
        };
        let groups = read("/proc/self/cgroup")?;
        let mounts = read("/proc/self/mountinfo")?;
        let none = |why: &str| {
            KernelError::Missing(Missing {
                what: "a memory limit".to_owned(),
                why: why.to_owned(),
                fix: "boot with `cgroup_enable=memory`, or use a container with its own limit"
                    .to_owned(),
            })
        };
        let Some((version, own)) = own_group(&groups, &mounts) else {
            return Err(none("no memory cgroup is mounted"));
        };
        let parent = match version {
            Version::One => own.clone(),
            Version::Two => parent_of_version_two(&own)
                .ok_or_else(|| none("the memory controller is not enabled for our cgroup"))?,
        };
        Ok(Home {
            version,
            own,
            parent,
        })
    }

    /// A new group beside ours must not have more than ours has.
    pub fn within(&self, limit_bytes: u64) -> u64 {
        if self.own == self.parent {
            return limit_bytes;
        }
        let own = fs::read_to_string(self.own.join("memory.max")).unwrap_or_default();
        limit(own.trim()).map_or(limit_bytes, |own| own.min(limit_bytes))
    }
}

/// A number, or `max`.
pub(super) fn limit(text: &str) -> Option<u64> {
    match text {
        "max" => Some(u64::MAX),
        _ => text.parse().ok(),
    }
}

/// From `/proc/self/cgroup` (`4:memory:/path`, `0::/path`) and
/// `/proc/self/mountinfo`. Version 1 has the controller where it is mounted at all.
fn own_group(groups: &str, mounts: &str) -> Option<(Version, PathBuf)> {
    let mut unified = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        if controllers.split(',').any(|name| name == "memory") {
            let own = folder(mounts, path, |kind, options| {
                kind == "cgroup" && options.split(',').any(|option| option == "memory")
            })?;
            return Some((Version::One, own));
        }
        if controllers.is_empty() {
            unified = folder(mounts, path, |kind, _| kind == "cgroup2");
        }
    }
    unified.map(|own| (Version::Two, own))
}

/// The folder of a group: mounts are
/// `36 31 0:33 ROOT POINT OPTIONS [TAGS] - KIND SOURCE SUPER_OPTIONS`.
fn folder(mounts: &str, group: &str, is_wanted: impl Fn(&str, &str) -> bool) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (mount, system) = line.split_once(" - ")?;
        let mut system = system.split(' ');
        let (kind, _source, options) = (system.next()?, system.next()?, system.next()?);
        if !is_wanted(kind, options) {
            return None;
        }
        let mut mount = mount.split(' ').skip(3);
        let (root, point) = (mount.next()?, mount.next()?);
        // In a container only a part of the tree is mounted.
        let below = match root {
            "/" => group,
            _ => group.strip_prefix(root).unwrap_or("/"),
        };
        Some(Path::new(point).join(below.trim_start_matches('/')))
    })
}

fn parent_of_version_two(own: &Path) -> Option<PathBuf> {
    let has_memory = |folder: &Path, file: &str| {
        fs::read_to_string(folder.join(file))
            .is_ok_and(|text| text.split_ascii_whitespace().any(|name| name == "memory"))
    };
    // At the top, and in a group without processes, children can be given it. This stays:
    // it limits nobody, and whoever has made a group there since would lose its limit.
    if !has_memory(own, "cgroup.subtree_control") && has_memory(own, "cgroup.controllers") {
        let _ = fs::write(own.join("cgroup.subtree_control"), "+memory");
    }
    let above = own.parent();
    [Some(own), above]
        .into_iter()
        .flatten()
        .find(|folder| has_memory(folder, "cgroup.subtree_control"))
        .map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    #[test]
    fn our_group_is_found_in_either_version() {
        let check = |groups: &str, mounts: &str, expect: Option<(Version, &str)>| {
            let found = own_group(groups, mounts);
            assert_eq!(found, expect.map(|(v, path)| (v, path.into())), "{groups}");
        };
        check(
            "9:cpuset:/\n4:memory:/user/x\n0::/\n",
            MOUNTS,
            Some((Version::One, "/sys/fs/cgroup/memory/user/x")),
        );
        check(
            "0::/user.slice/a.scope\n",
            "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n",
            Some((Version::Two, "/sys/fs/cgroup/user.slice/a.scope")),
        );
        check(
            "4:memory:/docker/abc\n",
            "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
            Some((Version::One, "/sys/fs/cgroup/memory/")),
        );
        check("", MOUNTS, None);
        check("0::/\n", "", None);
    }

    #[test]
    fn version_two_groups_are_made_where_the_controller_is() {
        let root = tempfile::tempdir().unwrap();
        let own = root.path().join("a.scope");
        fs::create_dir(&own).unwrap();
        fs::write(own.join("cgroup.controllers"), "cpu memory\n").unwrap();
        fs::write(own.join("cgroup.subtree_control"), "memory\n").unwrap();
        assert_eq!(parent_of_version_two(&own), Some(own.clone()));
        // As where the kernel refuses: the setting does not take.
        fs::remove_file(own.join("cgroup.subtree_control")).unwrap();
        fs::create_dir(own.join("cgroup.subtree_control")).unwrap();
        assert_eq!(parent_of_version_two(&own), None);
        fs::write(root.path().join("cgroup.subtree_control"), "memory\n").unwrap();
        assert_eq!(parent_of_version_two(&own), Some(root.path().to_owned()));
        let home = Home {
            version: Version::Two,
            own: own.clone(),
            parent: root.path().to_owned(),
        };
        assert_eq!(home.within(100), 100);
        fs::write(own.join("memory.max"), "70\n").unwrap();
        assert_eq!((home.within(100), home.within(50)), (70, 50));
    }
}
