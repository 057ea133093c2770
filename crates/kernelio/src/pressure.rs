//! Runs a program, or this one, in less memory than it wants: a memory cgroup of
//! either version, made for it and removed whatever happens.
//!
//! 1. The group `tensorscope-PID` is made inside of our own group (version 1), or
//!    where version 2 allows it (`find.rs`): a limit that somebody else has set for us
//!    stays in force. [`probe`] says whether and where that works.
//! 2. Whatever is to be limited enters: a child before its program starts
//!    ([`MemoryLimit::confine`]), or this process ([`MemoryLimit::enter`]).
//! 3. Dropping it moves us back and removes the group. When we are killed, a
//!    guardian does, as soon as the group is empty (`leftover.rs`).
//!
//! Swap is off in the group: what does not fit is taken from the page cache, which
//! is the pressure that is wanted, and a program whose own memory does not fit is
//! killed by the kernel ([`Usage::oom_kills`]).

mod find;

use std::fs;
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::error::KernelError;
use crate::leftover::Leftover;
use crate::residency::{Residency, ResidencyError};
use find::{Home, Version};

/// More than we take while we try.
const TRIED_BYTES: u64 = 1 << 30;

/// A group with a limit.
#[derive(Debug)]
pub struct MemoryLimit {
    home: Home,
    group: Leftover,
    limit_bytes: u64,
    has_entered: bool,
}

/// What the group has used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// As the kernel has it, which rounds to pages.
    pub limit_bytes: u64,
    pub now_bytes: u64,
    /// The most at any time; `None` before Linux 5.19 with version 2.
    pub peak_bytes: Option<u64>,
    /// How often the limit was hit and pages had to be given up.
    pub times_at_limit: u64,
    /// Processes that the kernel has killed because nothing could be given up.
    pub oom_kills: u64,
}

/// Where memory can be limited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Of cgroups: 1 or 2.
    pub version: u32,
    /// New groups are made inside of it.
    pub parent: PathBuf,
}

/// Whether and where memory can be limited: tries it. For a moment this process is in a
/// group of its own.
pub fn probe() -> Result<Place, KernelError> {
    let mut limit = MemoryLimit::new(TRIED_BYTES)?;
    limit.enter().map_err(|error| limit.home.refused(error))?;
    Ok(Place {
        version: match limit.home.version {
            Version::One => 1,
            Version::Two => 2,
        },
        parent: limit.home.parent.clone(),
    })
}

impl MemoryLimit {
    pub fn new(limit_bytes: u64) -> Result<MemoryLimit, KernelError> {
        let home = Home::find()?;
        let group = Leftover::folder(&home.parent).map_err(|error| home.refused(error))?;
        let limit = MemoryLimit {
            home,
            group,
            limit_bytes,
            has_entered: false,
        };
        limit.set().map_err(|error| limit.home.refused(error))?;
        Ok(limit)
    }

    /// Makes the program of `command` start inside of the group.
    pub fn confine(&self, command: &mut Command) -> Result<(), KernelError> {
        let path = self.group.path().join("cgroup.procs");
        let file = fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .map_err(KernelError::io(&path, "cannot open"))?;
        // SAFETY: between fork and exec only `write` is called. The closure owns the
        // descriptor, which is closed on exec.
        unsafe {
            command.pre_exec(move || {
                // 0 is whoever writes.
                // SAFETY: one byte of a string of one.
                match libc::write(file.as_raw_fd(), c"0".as_ptr().cast(), 1) {
                    1 => Ok(()),
                    _ => Err(io::Error::last_os_error()),
                }
            });
        }
        Ok(())
    }

    /// Moves this process with all its threads into the group, until this is dropped.
    /// Memory that it has already stays charged to where it was.
    pub fn enter(&mut self) -> Result<(), KernelError> {
        write(&self.group.path().join("cgroup.procs"), "0")?;
        self.has_entered = true;
        Ok(())
    }

    pub fn group(&self) -> &Path {
        self.group.path()
    }

    pub fn usage(&self) -> Result<Usage, KernelError> {
        let path = |name: &str| self.group.path().join(name);
        Ok(match self.home.version {
            Version::One => Usage {
                limit_bytes: number(&path("memory.limit_in_bytes"))?,
                now_bytes: number(&path("memory.usage_in_bytes"))?,
                peak_bytes: Some(number(&path("memory.max_usage_in_bytes"))?),
                times_at_limit: number(&path("memory.failcnt"))?,
                oom_kills: named(&path("memory.oom_control"), "oom_kill")?,
            },
            Version::Two => Usage {
                limit_bytes: number(&path("memory.max"))?,
                now_bytes: number(&path("memory.current"))?,
                peak_bytes: number(&path("memory.peak")).ok(),
                times_at_limit: named(&path("memory.events"), "max")?,
                oom_kills: named(&path("memory.events"), "oom_kill")?,
            },
        })
    }

    fn set(&self) -> Result<(), KernelError> {
        let text = self.home.within(self.limit_bytes).to_string();
        let path = |name: &str| self.group.path().join(name);
        match self.home.version {
            Version::One => {
                write(&path("memory.limit_in_bytes"), &text)?;
                // Not by a limit of memory with swap: hitting that is not counted.
                let _ = write(&path("memory.swappiness"), "0");
            }
            Version::Two => {
                write(&path("memory.max"), &text)?;
                let _ = write(&path("memory.swap.max"), "0");
            }
        }
        Ok(())
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        if self.has_entered {
            // When this fails the guardian removes the group after our end.
            let _ = write(&self.home.own.join("cgroup.procs"), "0");
        }
        // Somebody may be inside and stay for a while.
        self.group.remove(has_processes);
    }
}

/// What [`drop_cache`] has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    pub before_bytes: u64,
    /// What stayed: pages that a process has mapped and touched, or is reading.
    pub left_bytes: u64,
}

/// Makes the kernel forget the pages of a file, so that it is read from the disk.
pub fn drop_cache(path: &Path) -> Result<Dropped, KernelError> {
    let resident = || match Residency::of(path) {
        Ok(residency) => Ok(residency.resident_bytes(0..u64::MAX)),
        Err(error @ (ResidencyError::NotAllowed { .. } | ResidencyError::NotAFile { .. })) => {
            Err(KernelError::Unsuitable {
                path: path.to_owned(),
                what: error.to_string(),
            })
        }
        Err(ResidencyError::Io { path, doing, cause }) => {
            Err(KernelError::Io { path, doing, cause })
        }
    };
    let before_bytes = resident()?;
    let file = fs::File::open(path).map_err(KernelError::io(path, "cannot open"))?;
    // Pages not written yet cannot be dropped.
    file.sync_all()
        .map_err(KernelError::io(path, "cannot write out"))?;
    // SAFETY: advice on an open descriptor.
    let result = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    if result != 0 {
        let cause = io::Error::from_raw_os_error(result);
        return Err(KernelError::io(path, "cannot drop its pages")(cause));
    }
    Ok(Dropped {
        before_bytes,
        left_bytes: resident()?,
    })
}

fn has_processes(group: &Path) -> bool {
    fs::read_to_string(group.join("cgroup.procs")).is_ok_and(|text| !text.trim().is_empty())
}

fn write(path: &Path, text: &str) -> Result<(), KernelError> {
    // A file that is not there stays so: the kernel has those that there are.
    let open = fs::OpenOptions::new().write(true).truncate(true).open(path);
    open.and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(KernelError::io(path, "cannot write"))
}

fn number(path: &Path) -> Result<u64, KernelError> {
    let text = fs::read_to_string(path).map_err(KernelError::io(path, "cannot read"))?;
    find::limit(text.trim()).ok_or_else(|| unknown(path))
}

/// The number behind a name: `oom_kill 3`.
fn named(path: &Path, name: &str) -> Result<u64, KernelError> {
    let text = fs::read_to_string(path).map_err(KernelError::io(path, "cannot read"))?;
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
        .ok_or_else(|| unknown(path))
}

fn unknown(path: &Path) -> KernelError {
    KernelError::Unsuitable {
        path: path.to_owned(),
        what: "numbers in an unknown form".to_owned(),
    }
}
