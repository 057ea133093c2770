//! Whether the process that recorded is still there.
//!
//! A number alone does not tell: it may have been given to another process, or
//! the run may have been copied from another machine. So a process counts as
//! the recorder only if it still has the run's status file mapped, or if it
//! started exactly when the metadata says on the same boot.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use support::proc;

use crate::metadata::Process;

/// Whether process `pid` has `status_path` mapped, which the recorder does from
/// its start to its end.
pub(crate) fn has_mapped(pid: u32, status_path: &Path) -> bool {
    let maps = match proc::maps(pid) {
        Ok(maps) => maps,
        // Somebody else's process: it is alive, and more cannot be known.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => return true,
        Err(_) => return false,
    };
    // By path or by inode: overlay file systems show other inodes in `maps`,
    // and a run that was renamed while it was recorded has another path.
    let path = fs::canonicalize(status_path).ok();
    let path = path.as_ref().map(|path| path.as_os_str().as_bytes());
    let inode = fs::metadata(status_path).map(|m| m.ino()).ok();
    proc::mappings(&maps)
        .any(|m| path == Some(m.path) || (m.path.ends_with(b"/status") && inode == Some(m.inode)))
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
}
