//! Whether the process that recorded is still there.
//!
//! A number alone does not tell: it may have been given to another process, or
//! the run may have been copied from another machine. So a process counts as
//! the recorder only if it still has the run's status file mapped, or if it
//! started exactly when the metadata says on the same boot.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::metadata::Process;

/// Whether process `pid` has `status_path` mapped, which the recorder does from
/// its start to its end.
pub(crate) fn has_mapped(pid: u32, status_path: &Path) -> bool {
    let maps = match fs::read(format!("/proc/{pid}/maps")) {
        Ok(maps) => maps,
        // Somebody else's process: it is alive, and more cannot be known.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => return true,
        Err(_) => return false,
    };
    // By path or by inode: overlay file systems show other inodes in `maps`,
    // and a run that was renamed while it was recorded has another path.
    let path = fs::canonicalize(status_path).ok();
    let path = path.as_deref().and_then(Path::to_str);
    let inode = fs::metadata(status_path).map(|m| m.ino()).ok();
    String::from_utf8_lossy(&maps)
        .lines()
        .filter_map(Mapping::parse)
        .any(|m| path == Some(m.path) || (m.path.ends_with("/status") && inode == Some(m.inode)))
}

/// The running program, as [`is_alive`] recognises it.
pub(crate) fn current() -> Process {
    Process {
        pid: std::process::id(),
        started_ticks: started_ticks("self").unwrap_or(0),
    }
}

/// Whether the process that is meant, and not a later one of its number, lives.
pub(crate) fn is_alive(process: &Process) -> bool {
    started_ticks(&process.pid.to_string()) == Some(process.started_ticks)
}

/// A line of `/proc/PID/maps` that has a file.
struct Mapping<'a> {
    inode: u64,
    path: &'a str,
}

impl Mapping<'_> {
    /// `7f..-7f.. rw-s 00000000 08:01 131  /run/log/status`
    fn parse(line: &str) -> Option<Mapping<'_>> {
        let slash = line.find('/')?;
        let inode = line[..slash].split_ascii_whitespace().nth(4)?;
        Some(Mapping {
            inode: inode.parse().ok()?,
            path: &line[slash..],
        })
    }
}

/// Field 22 of `/proc/PID/stat`: clock ticks from boot to the process's start.
/// `None` for a process that is gone or a zombie.
fn started_ticks(pid: &str) -> Option<u64> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // The program's name, in parentheses, may contain anything.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    match fields.next()? {
        "Z" | "X" => None,
        _ => fields.nth(18)?.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_alive_and_another_start_is_another_process() {
        let here = current();
        assert!(here.started_ticks > 0);
        assert!(is_alive(&here));
        assert!(!is_alive(&Process {
            started_ticks: here.started_ticks + 1,
            ..here
        }));
        assert!(!is_alive(&Process {
            pid: u32::MAX,
            ..here
        }));
    }

    #[test]
    fn a_zombie_is_not_alive() {
        let mut child = std::process::Command::new("/bin/true").spawn().unwrap();
        let pid = child.id().to_string();
        // It becomes a zombie on its own and stays one until it is waited for.
        while started_ticks(&pid).is_some() {
            std::thread::yield_now();
        }
        assert!(Path::new("/proc").join(&pid).exists());
        assert!(!has_mapped(child.id(), Path::new("/bin/true")));
        child.wait().unwrap();
    }

    #[test]
    fn mappings_with_spaces_in_their_path_are_found() {
        let line = "7f3a00000000-7f3a00001000 rw-s 00000000 08:01 1310 \
                    /home/a b/log/status";
        let mapping = Mapping::parse(line).unwrap();
        assert_eq!(
            (mapping.inode, mapping.path),
            (1310, "/home/a b/log/status")
        );
        assert!(Mapping::parse("7ffd-7ffe rw-p 00000000 00:00 0 [stack]").is_none());
    }
}
