//! The control group that a process is in, of either version.
//!
//! Inside a container the ancestors of a group may be invisible; then what is seen as the
//! top is taken.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// The control group by which a controller limits a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlGroup {
    /// 1 or 2.
    pub version: u32,
    /// As `/proc/PID/cgroup` names it.
    pub path: String,
    /// Its folder, then those of its ancestors as far as they are mounted; never empty.
    pub folders: Vec<PathBuf>,
}

/// Finds that group, with `/proc` and `/sys` below `root`.
pub fn memory_group_in(root: &Path) -> Option<ControlGroup> {
    control_group_in(root, "self", "memory")
}

/// The group of a process (its number, or `self`) that a controller limits it by.
pub fn control_group_in(root: &Path, process: &str, controller: &str) -> Option<ControlGroup> {
    let folder = root.join("proc").join(process);
    let groups = fs::read_to_string(folder.join("cgroup")).ok()?;
    let mounts = fs::read_to_string(folder.join("mountinfo")).ok()?;
    // Where both versions are mounted, a controller belongs to the first if it is
    // listed there at all.
    let version_1 = groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let is_it = parts.next()?.split(',').any(|c| c == controller);
        is_it.then(|| parts.next())?
    });
    let (version, path, folders) = match version_1 {
        Some(path) => {
            let folders = group_folders(root, &mounts, path, |fs_type, options| {
                fs_type == "cgroup" && options.split(',').any(|o| o == controller)
            });
            (1, path, folders?)
        }
        None => {
            let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
            let folders = group_folders(root, &mounts, path, |fs_type, _| fs_type == "cgroup2");
            (2, path, folders?)
        }
    };
    Some(ControlGroup {
        version,
        path: path.to_owned(),
        folders,
    })
}

/// The folder of a group and those of its ancestors, as far as they are mounted.
fn group_folders(
    root: &Path,
    mounts: &str,
    group: &str,
    is_wanted: impl Fn(&str, &str) -> bool,
) -> Option<Vec<PathBuf>> {
    let (mount_root, mount_point) = mounts.lines().find_map(|line| {
        let (mount, rest) = line.split_once(" - ")?;
        let mut rest = rest.split(' ');
        let (fs_type, options) = (rest.next()?, rest.nth(1)?);
        let mut mount = mount.split(' ').skip(3);
        let place = (mount.next()?, mount.next()?);
        is_wanted(fs_type, options).then_some(place)
    })?;
    let top = root.join(mount_point.trim_start_matches('/'));
    // A container may see a part of the tree only; then what it sees as the top
    // is the nearest folder that can be read.
    let below = Path::new(group)
        .strip_prefix(mount_root)
        .unwrap_or(Path::new(""));
    let mut folder = top.join(below.to_str()?.trim_start_matches('/'));
    // `/../x`: outside of what this namespace sees.
    if below.components().any(|part| part == Component::ParentDir) || !folder.is_dir() {
        folder.clone_from(&top);
    }
    let mut folders = Vec::new();
    loop {
        folders.push(folder.clone());
        if folder == top || !folder.pop() || !folder.starts_with(&top) {
            return Some(folders);
        }
    }
}
