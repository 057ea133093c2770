//! Which memory cgroup we are in, where a new one can be made, and if nowhere, what to do.
//!
//! | where | a new group is made in |
//! |---|---|
//! | version 1 | our own group |
//! | version 2, at the top of the tree | our own group: the top alone may have both processes and children |
//! | version 2, below it | the group above ours, beside us |
//! | both (hybrid) | where `/proc/self/cgroup` has the memory controller: version 1 if it is listed there |
//!
//! With version 2 the controller must be on for children (`cgroup.subtree_control`). Where it
//! is not, we switch it on if we may: as root without systemd nobody else does.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rundir::limits::memory_group_in;

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
    /// Where new groups are made.
    pub parent: PathBuf,
}

/// What is in the way, in the order of the table of fixes ([`missing`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// No cgroup accounts for memory.
    NoController,
    /// Nobody has given us a group with the memory controller, or we may not use it.
    NotOurs,
    /// The top of what a container sees: it has processes, so it can have no children, and
    /// what is above cannot be seen.
    TopOfContainer,
    /// Mounted read-only, as containers have it.
    ReadOnly,
}

/// Who could fix it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Means {
    pub is_root: bool,
    /// The machine was booted with it: that systemd-run is installed says nothing.
    pub has_systemd: bool,
}

impl Home {
    pub fn find() -> Result<Home, KernelError> {
        Home::find_in(Path::new("/"), |folder| {
            // This stays: it limits nobody, and whoever has made a group there since would
            // lose its limit.
            let _ = super::write(&folder.join("cgroup.subtree_control"), "+memory");
        })
    }

    /// With `/proc` and `/sys` below `root`; `enable` tries to switch the controller on for
    /// the children of a group.
    fn find_in(root: &Path, enable: impl Fn(&Path)) -> Result<Home, KernelError> {
        let means = Means::of(root);
        let Some(group) = memory_group_in(root) else {
            let why = "no mounted cgroup accounts for memory".to_owned();
            return Err(missing(Obstacle::NoController, why, means));
        };
        let own = group.folders[0].clone();
        if group.version == 1 {
            return Ok(Home {
                version: Version::One,
                parent: own.clone(),
                own,
            });
        }
        // A group with processes has no children that are limited, but for the top one.
        let mut candidates = group.folders.iter().take(2);
        match candidates.find(|folder| gives_memory(folder, &enable)) {
            Some(parent) => Ok(Home {
                version: Version::Two,
                parent: parent.clone(),
                own,
            }),
            None => {
                let (obstacle, why) = obstacle_of_version_two(&group.folders);
                Err(missing(obstacle, why, means))
            }
        }
    }

    /// A new group beside ours must not have more than ours has.
    pub fn within(&self, limit_bytes: u64) -> u64 {
        if self.own == self.parent {
            return limit_bytes;
        }
        let own = fs::read_to_string(self.own.join("memory.max")).unwrap_or_default();
        limit(own.trim()).map_or(limit_bytes, |own| own.min(limit_bytes))
    }

    /// Why a group could not be made in `parent`, or not be used.
    pub fn refused(&self, error: KernelError) -> KernelError {
        let obstacle = match &error {
            KernelError::Io { cause, .. } if cause.kind() == io::ErrorKind::ReadOnlyFilesystem => {
                Obstacle::ReadOnly
            }
            _ => Obstacle::NotOurs,
        };
        missing(obstacle, error.to_string(), Means::of(Path::new("/")))
    }
}

impl Means {
    fn of(root: &Path) -> Means {
        // SAFETY: has no arguments.
        let user = unsafe { libc::geteuid() };
        Means {
            is_root: user == 0,
            // As sd_booted(3) does.
            has_systemd: root.join("run/systemd/system").is_dir(),
        }
    }
}

/// A number, or `max`.
pub(super) fn limit(text: &str) -> Option<u64> {
    match text {
        "max" => Some(u64::MAX),
        _ => text.parse().ok(),
    }
}

/// Whether groups in this one have the memory controller; switched on where we may.
fn gives_memory(folder: &Path, enable: impl Fn(&Path)) -> bool {
    const CHILDREN: &str = "cgroup.subtree_control";
    if !names_memory(folder, CHILDREN) && names_memory(folder, "cgroup.controllers") {
        enable(folder);
    }
    names_memory(folder, CHILDREN)
}

fn names_memory(folder: &Path, file: &str) -> bool {
    fs::read_to_string(folder.join(file))
        .is_ok_and(|text| text.split_ascii_whitespace().any(|name| name == "memory"))
}

fn obstacle_of_version_two(folders: &[PathBuf]) -> (Obstacle, String) {
    let own = &folders[0];
    let top = folders.last().unwrap_or(own);
    // The real top has no such file.
    let is_real_top = !top.join("cgroup.type").exists();
    let shown = own.display();
    if !names_memory(own, "cgroup.controllers") {
        let obstacle = match is_real_top && !names_memory(top, "cgroup.controllers") {
            true => Obstacle::NoController,
            false => Obstacle::NotOurs,
        };
        let why = format!("the memory controller is not enabled for our cgroup, {shown}");
        return (obstacle, why);
    }
    if folders.len() == 1 && !is_real_top {
        let why = format!("{shown} is the top of what this container sees, and has processes");
        return (Obstacle::TopOfContainer, why);
    }
    let parent = folders.get(1).unwrap_or(own).display();
    let why = format!("the memory controller is off below {parent}, and we may not enable it");
    (Obstacle::NotOurs, why)
}

/// The command that fixes it.
fn missing(obstacle: Obstacle, why: String, means: Means) -> KernelError {
    let fix = match (obstacle, means.has_systemd, means.is_root) {
        (Obstacle::NoController, ..) => {
            "boot with `cgroup_enable=memory`, or use a container with its own limit"
        }
        (Obstacle::TopOfContainer | Obstacle::ReadOnly, ..) => {
            "give the container its own limit (`docker run --memory 4G`) and leave --memory out,              or start it with `--privileged --cgroupns=host`"
        }
        (Obstacle::NotOurs, true, true) => {
            "run it inside of `systemd-run --scope -p Delegate=yes bash`"
        }
        (Obstacle::NotOurs, true, false) => {
            "run it inside of `systemd-run --user --scope -p Delegate=yes bash`, or with sudo"
        }
        (Obstacle::NotOurs, false, true) => {
            "give the container its own limit (`docker run --memory 4G`) and leave --memory out"
        }
        (Obstacle::NotOurs, false, false) => "run with sudo",
    };
    KernelError::Missing(Missing {
        what: "a memory limit".to_owned(),
        why,
        fix: fix.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSION_1: &str = "\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
    const VERSION_2: &str =
        "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
    const ON: (&str, &str) = ("cgroup.subtree_control", "cpu memory\n");
    const OFF: (&str, &str) = ("cgroup.subtree_control", "cpu\n");
    const HAS: (&str, &str) = ("cgroup.controllers", "cpu memory\n");
    const HAS_NOT: (&str, &str) = ("cgroup.controllers", "cpu\n");
    /// No file of the kernel.
    const CLOSED: (&str, &str) = ("closed", "");
    const BELOW: (&str, &str) = ("cgroup.type", "domain\n");

    /// A machine in a folder.
    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new(groups: &str, mounts: &str) -> Machine {
            let machine = Machine(tempfile::tempdir().unwrap());
            machine.file("proc/self/cgroup", groups);
            machine.file("proc/self/mountinfo", mounts);
            machine
        }

        fn file(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn group(self, folder: &str, files: &[(&str, &str)]) -> Machine {
            fs::create_dir_all(self.0.path().join(folder)).unwrap();
            for (name, text) in files {
                self.file(&format!("{folder}/{name}"), text);
            }
            self
        }

        /// Where nothing can be switched on.
        fn closed_group(self, folder: &str, files: &[(&str, &str)]) -> Machine {
            self.group(folder, files).group(folder, &[OFF, CLOSED])
        }

        fn find(&self) -> Result<Home, KernelError> {
            Home::find_in(self.0.path(), |folder| {
                if !folder.join(CLOSED.0).exists() {
                    fs::write(folder.join(ON.0), ON.1).unwrap();
                }
            })
        }

        fn found(&self) -> (Version, String, String) {
            let home = self.find().unwrap();
            let shown = |path: &Path| {
                let below = path.strip_prefix(self.0.path()).unwrap();
                below.to_str().unwrap().to_owned()
            };
            (home.version, shown(&home.own), shown(&home.parent))
        }

        fn why(&self) -> String {
            match self.find() {
                Err(KernelError::Missing(missing)) => missing.why,
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn version_one_has_children_in_our_own_group() {
        let own = "sys/fs/cgroup/memory/user/x";
        let machine =
            Machine::new("9:cpuset:/\n4:memory:/user/x\n0::/\n", VERSION_1).group(own, &[]);
        assert_eq!(machine.found(), (Version::One, own.into(), own.into()));
        // In a container a part of the tree is mounted.
        let own = "sys/fs/cgroup/memory";
        let mounts = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let machine = Machine::new("4:memory:/docker/abc\n", mounts).group(own, &[]);
        assert_eq!(machine.found(), (Version::One, own.into(), own.into()));
    }

    #[test]
    fn in_a_hybrid_the_controller_decides() {
        let top = "sys/fs/cgroup/unified";
        let machine = Machine::new("9:cpuset:/\n0::/\n", VERSION_1).group(top, &[HAS, ON]);
        assert_eq!(machine.found(), (Version::Two, top.into(), top.into()));
        let machine = Machine::new("4:memory:/\n0::/\n", VERSION_1)
            .group(top, &[HAS_NOT, OFF])
            .group("sys/fs/cgroup/memory", &[]);
        assert_eq!(machine.found().0, Version::One);
    }

    /// What `doctor` got wrong: it looked in our own group only.
    #[test]
    fn version_two_has_them_beside_us_where_our_group_has_processes() {
        let (above, own) = ("sys/fs/cgroup/a.slice", "sys/fs/cgroup/a.slice/b.scope");
        let machine = Machine::new("0::/a.slice/b.scope\n", VERSION_2)
            .group(above, &[HAS, ON, BELOW])
            .closed_group(own, &[HAS, BELOW]);
        assert_eq!(machine.found(), (Version::Two, own.into(), above.into()));
    }

    #[test]
    fn root_without_systemd_switches_the_controller_on() {
        let top = "sys/fs/cgroup";
        let machine = Machine::new("0::/\n", VERSION_2).group(top, &[HAS, OFF]);
        assert_eq!(machine.found(), (Version::Two, top.into(), top.into()));
        // The same from a group that something else has put us into.
        let own = "sys/fs/cgroup/sshd";
        let machine = Machine::new("0::/sshd\n", VERSION_2)
            .group(top, &[HAS, OFF])
            .closed_group(own, &[HAS_NOT, BELOW]);
        assert_eq!(machine.found(), (Version::Two, own.into(), top.into()));
    }

    #[test]
    fn what_is_in_the_way_is_said() {
        let check = |machine: &Machine, expect: &str| {
            let why = machine.why();
            assert!(why.contains(expect), "{why}");
        };
        check(&Machine::new("", VERSION_1), "no mounted cgroup");
        check(&Machine::new("0::/\n", ""), "no mounted cgroup");
        check(
            &Machine::new("4:memory:/\n", VERSION_2),
            "no mounted cgroup",
        );
        // Not delegated to us.
        let (above, own) = ("sys/fs/cgroup/a.slice", "sys/fs/cgroup/a.slice/b.scope");
        let machine = Machine::new("0::/a.slice/b.scope\n", VERSION_2)
            .closed_group(above, &[HAS, BELOW])
            .closed_group(own, &[HAS_NOT, BELOW]);
        check(&machine, "is not enabled for our cgroup");
        let machine = Machine::new("0::/a.slice/b.scope\n", VERSION_2)
            .closed_group(above, &[HAS, BELOW])
            .closed_group(own, &[HAS, BELOW]);
        check(&machine, "off below");
        let machine =
            Machine::new("0::/\n", VERSION_2).closed_group("sys/fs/cgroup", &[HAS, BELOW]);
        check(&machine, "top of what this container sees");
        // A kernel without the controller, or with it switched off at boot.
        let machine = Machine::new("0::/\n", VERSION_2).closed_group("sys/fs/cgroup", &[HAS_NOT]);
        check(&machine, "is not enabled for our cgroup");
    }

    #[test]
    fn the_fix_is_one_that_this_machine_has() {
        let check = |obstacle, is_root, has_systemd, expect: &str| {
            let means = Means {
                is_root,
                has_systemd,
            };
            let error = missing(obstacle, "why".to_owned(), means).to_string();
            assert!(error.contains(expect), "{error}");
        };
        check(Obstacle::NotOurs, false, true, "systemd-run --user --scope");
        check(Obstacle::NotOurs, true, true, "systemd-run --scope");
        check(Obstacle::NotOurs, false, false, "run with sudo");
        check(Obstacle::ReadOnly, true, false, "docker run --memory");
        check(Obstacle::TopOfContainer, true, false, "--cgroupns=host");
        check(Obstacle::NoController, true, true, "cgroup_enable=memory");
    }

    #[test]
    fn a_group_beside_ours_has_no_more_than_ours() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("own");
        fs::create_dir(&own).unwrap();
        let home = Home {
            version: Version::Two,
            own: own.clone(),
            parent: folder.path().to_owned(),
        };
        assert_eq!(home.within(100), 100);
        fs::write(own.join("memory.max"), "70\n").unwrap();
        assert_eq!((home.within(100), home.within(50)), (70, 50));
    }
}
