//! What the kernel tells everybody: how many faults, how many bytes, without when
//! and where. What is left when nothing more is allowed, and what the recordings
//! are checked against.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::devices::SECTOR_BYTES;
use crate::error::{KernelError, Missing};

/// Totals of a process and all its threads, gone ones included, and of the children
/// that it has waited for: the kernel adds the bytes of those by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    pub major_faults: u64,
    pub minor_faults: u64,
    /// What the process has caused to be read from disks; `None` where another
    /// user's process is not told about.
    pub read_bytes: Option<u64>,
    pub written_bytes: Option<u64>,
}

impl Counters {
    /// Of a process that exists, be it one that has ended and was not waited for.
    pub fn of(pid: u32) -> Result<Counters, KernelError> {
        Counters::in_folder(Path::new(&format!("/proc/{pid}")))
    }

    pub fn of_this_process() -> Result<Counters, KernelError> {
        Counters::in_folder(Path::new("/proc/self"))
    }

    /// Of all children of this process that were waited for.
    pub fn of_waited_children() -> Counters {
        // SAFETY: `rusage` is made of integers, for which zero is a value.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: `usage` lives through the call, which cannot fail with it.
        unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage) };
        Counters::from(&usage)
    }

    /// Waits until a child has ended, without collecting it: its counters are final
    /// then, and `wait` still works.
    pub fn at_end_of(pid: u32) -> Result<Counters, KernelError> {
        loop {
            // SAFETY: `siginfo_t` is made of integers, for which zero is a value.
            let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
            // SAFETY: as above.
            let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
            // The call itself, for the function of the C library leaves out `usage`.
            // SAFETY: `info` and `usage` live through the call; the others are numbers.
            let result = unsafe {
                libc::syscall(
                    libc::SYS_waitid,
                    libc::P_PID,
                    pid as libc::id_t,
                    &raw mut info,
                    libc::WEXITED | libc::WNOWAIT,
                    &raw mut usage,
                )
            };
            let cause = io::Error::last_os_error();
            match result {
                0 => {
                    let mut counters = Counters::of(pid)?;
                    let used = Counters::from(&usage);
                    // What has ended belongs to root, who alone is told its bytes.
                    counters.read_bytes = counters.read_bytes.or(used.read_bytes);
                    counters.written_bytes = counters.written_bytes.or(used.written_bytes);
                    return Ok(counters);
                }
                _ if cause.kind() == io::ErrorKind::Interrupted => {}
                _ => return Err(KernelError::system("cannot wait for the program")(cause)),
            }
        }
    }

    /// What has been added since `earlier`.
    pub fn since(&self, earlier: &Counters) -> Counters {
        let less = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?));
        Counters {
            major_faults: self.major_faults.saturating_sub(earlier.major_faults),
            minor_faults: self.minor_faults.saturating_sub(earlier.minor_faults),
            read_bytes: less(self.read_bytes, earlier.read_bytes),
            written_bytes: less(self.written_bytes, earlier.written_bytes),
        }
    }

    fn in_folder(folder: &Path) -> Result<Counters, KernelError> {
        let path = folder.join("stat");
        // The name of a program need not be UTF-8.
        let stat = fs::read(&path).map_err(KernelError::io(&path, "cannot read"))?;
        let (minor_faults, major_faults) =
            parse_stat(&String::from_utf8_lossy(&stat)).ok_or_else(|| KernelError::Unsuitable {
                path,
                what: "numbers in an unknown form".to_owned(),
            })?;
        let io = fs::read_to_string(folder.join("io")).unwrap_or_default();
        Ok(Counters {
            major_faults,
            minor_faults,
            read_bytes: parse_io(&io, "read_bytes:"),
            written_bytes: parse_io(&io, "write_bytes:"),
        })
    }
}

impl From<&libc::rusage> for Counters {
    fn from(usage: &libc::rusage) -> Counters {
        let number = |value: libc::c_long| u64::try_from(value).unwrap_or(0);
        Counters {
            major_faults: number(usage.ru_majflt),
            minor_faults: number(usage.ru_minflt),
            read_bytes: Some(number(usage.ru_inblock) * SECTOR_BYTES),
            written_bytes: Some(number(usage.ru_oublock) * SECTOR_BYTES),
        }
    }
}

/// What of page faults, block requests and stacks cannot be recorded here, and the command
/// that allows it. Empty for root on most machines.
pub fn missing() -> Vec<Missing> {
    let probes = [
        crate::faults::probe(),
        crate::block::probe(),
        crate::cpu::probe(),
    ];
    probes.into_iter().flatten().collect()
}

/// Minor and major faults, those of children waited for included. The name is in parentheses and may have any character,
/// so what follows the last one is counted.
fn parse_stat(text: &str) -> Option<(u64, u64)> {
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(7);
    let mut number = || fields.next()?.parse::<u64>().ok();
    let (minor, children_minor) = (number()?, number()?);
    let (major, children_major) = (number()?, number()?);
    Some((minor + children_minor, major + children_major))
}

fn parse_io(text: &str, name: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_behind_any_name() {
        let check = |text, expect| assert_eq!(parse_stat(text), expect, "{text}");
        check("7 (cat) S 1 7 7 0 -1 4194304 99 0 12 0 1 2", Some((99, 12)));
        check("7 (a) b (c) S 1 7 7 0 -1 41 5 2 6 1 1", Some((7, 7)));
        check("7 (cat) S 1 7", None);
        check("", None);
        let io = "rchar: 1\nread_bytes: 8192\nwrite_bytes: 3\ncancelled_write_bytes: 9\n";
        assert_eq!(parse_io(io, "read_bytes:"), Some(8192));
        assert_eq!(parse_io(io, "write_bytes:"), Some(3));
        assert_eq!(parse_io("", "read_bytes:"), None);
    }

    #[test]
    fn faults_of_this_process_grow() {
        let before = Counters::of_this_process().unwrap();
        let touched = vec![1u8; 4 << 20];
        let after = Counters::of_this_process().unwrap().since(&before);
        assert!(touched[touched.len() / 2] == 1 && after.minor_faults > 0);
    }

    #[test]
    fn a_child_that_has_ended_still_counts() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let counters = Counters::at_end_of(child.id()).unwrap();
        assert!(counters.minor_faults > 0);
        assert!(child.wait().unwrap().success());
        assert!(Counters::of(u32::MAX).is_err());
    }
}
