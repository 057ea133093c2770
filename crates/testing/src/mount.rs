//! A small disk to fill.

use std::{path::PathBuf, process::Command};

/// A small file system of its own, where this process may mount one.
pub struct Mount(pub PathBuf);

impl Mount {
    pub fn new(path: PathBuf, options: &str) -> Option<Mount> {
        std::fs::create_dir(&path).unwrap();
        let mut command = Command::new("mount");
        command
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(&path);
        let mounted = command.output().is_ok_and(|output| output.status.success());
        if !mounted {
            println!("skipped: this process may not mount a tmpfs");
        }
        mounted.then_some(Mount(path))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
