//! Folders of the kernel that must not outlive us: memory cgroups and instances of
//! tracefs. They are named `tensorscope-PID`, and a process removes each after our
//! end, however we ended.
//!
//! 1. [`Leftover::make`] removes the folders of processes that are gone, makes a new
//!    one, and forks its guardian.
//! 2. [`Leftover::remove`] (or dropping it) removes the folder and ends the guardian.
//! 3. When we are killed, the guardian removes the folder as soon as nobody uses it.
//!    When both are killed, the next [`Leftover::make`] does.
//!
//! The guardian holds the reading end of a pipe, whose other end we hold: when we
//! are gone, even by SIGKILL, the kernel closes ours. It is a fork of this process,
//! because a program of its own would have to be found and shipped; it is made early,
//! when there is little memory to share, and calls only what is allowed after a fork
//! of a process with threads.

use std::ffi::CString;
use std::fs;
use std::io::{self, PipeWriter};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::KernelError;

const PREFIX: &str = "tensorscope-";

/// A folder that has just lost its last user may be busy for a moment.
const REMOVAL_TRIES: u32 = 100;
const REMOVAL_PAUSE: Duration = Duration::from_millis(5);
/// Between two tries of the guardian.
const PAUSE_NANOS: libc::c_long = 50_000_000;

/// A folder that is removed whatever happens.
#[derive(Debug)]
pub(crate) struct Leftover {
    folder: PathBuf,
    guardian: Option<Guardian>,
}

impl Leftover {
    /// A new folder in `parent`; several of one process are numbered.
    pub fn make(parent: &Path) -> Result<Leftover, KernelError> {
        remove_stale(parent);
        let pid = std::process::id();
        let mut number = 1;
        let folder = loop {
            let folder = match number {
                1 => parent.join(format!("{PREFIX}{pid}")),
                _ => parent.join(format!("{PREFIX}{pid}-{number}")),
            };
            match fs::create_dir(&folder) {
                Ok(()) => break folder,
                Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists && number < 1000 => {
                    number += 1;
                }
                Err(cause) => return Err(KernelError::io(&folder, "cannot create")(cause)),
            }
        };
        // From here on dropping removes the folder.
        let mut leftover = Leftover {
            folder,
            guardian: None,
        };
        leftover.guardian = Some(Guardian::fork(&leftover.folder)?);
        Ok(leftover)
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Removes the folder, or leaves that to the guardian where `is_in_use` says
    /// that it will take a while.
    pub fn remove(&mut self, is_in_use: impl Fn(&Path) -> bool) {
        let Some(guardian) = self.guardian.take() else {
            return;
        };
        let mut is_removed = false;
        for _ in 0..REMOVAL_TRIES {
            is_removed = match fs::remove_dir(&self.folder) {
                Ok(()) => true,
                Err(cause) => cause.kind() == io::ErrorKind::NotFound,
            };
            if is_removed || is_in_use(&self.folder) {
                break;
            }
            std::thread::sleep(REMOVAL_PAUSE);
        }
        guardian.dismiss(is_removed);
    }
}

impl Drop for Leftover {
    fn drop(&mut self) {
        if self.guardian.is_none() {
            // Already removed, or there was no guardian to begin with.
            let _ = fs::remove_dir(&self.folder);
        }
        self.remove(|_| false);
    }
}

/// Folders that killed processes have left; one that is still in use stays.
fn remove_stale(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        let maker = entry.file_name().to_str().and_then(maker);
        if maker.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The process that has made a folder of this name.
fn maker(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok()
}

#[derive(Debug)]
struct Guardian {
    pid: libc::pid_t,
    /// Closing it is the signal.
    _pipe: PipeWriter,
}

impl Guardian {
    fn fork(folder: &Path) -> Result<Guardian, KernelError> {
        let failed = || KernelError::system("cannot start a guardian");
        let path = CString::new(folder.as_os_str().as_bytes())
            .map_err(io::Error::other)
            .map_err(failed())?;
        let (reader, writer) = io::pipe().map_err(failed())?;
        let end = reader.as_raw_fd();
        // SAFETY: the child calls only functions that are safe after fork, and never
        // returns.
        match unsafe { libc::fork() } {
            0 => watch(&path, end),
            pid if pid > 0 => Ok(Guardian { pid, _pipe: writer }),
            _ => Err(failed()(io::Error::last_os_error())),
        }
    }

    /// Lets it go; waits for it where it has nothing left to do.
    fn dismiss(self, is_removed: bool) {
        let Guardian { pid, _pipe: pipe } = self;
        drop(pipe);
        if is_removed {
            // SAFETY: waits for our own child, and asks for no status.
            unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
        }
    }
}

/// The life of the guardian. No allocation, no lock, no panic: another thread may
/// have held any lock at the fork.
fn watch(path: &CString, end: libc::c_int) -> ! {
    // SAFETY: all of these are system calls with numbers, or with pointers to values
    // that live here.
    unsafe {
        // Signals meant for our process group are not meant for the guardian, and it
        // must not hold files, pipes or terminals open.
        libc::setsid();
        libc::prctl(libc::PR_SET_NAME, c"ts-guardian".as_ptr());
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::sigprocmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
        libc::dup2(end, 0);
        if libc::syscall(libc::SYS_close_range, 1, libc::c_uint::MAX, 0) != 0 {
            // Before Linux 5.9. Our copy of the writing end must go, or else it would
            // keep us waiting for ourselves.
            for descriptor in 1..4096 {
                libc::close(descriptor);
            }
        }
        let mut byte = 0u8;
        // Nobody writes: this returns 0 at the end, or an error, which ends it, too.
        while libc::read(0, (&raw mut byte).cast(), 1) > 0 {}
        let pause = libc::timespec {
            tv_sec: 0,
            tv_nsec: PAUSE_NANOS,
        };
        while libc::rmdir(path.as_ptr()) != 0 && *libc::__errno_location() == libc::EBUSY {
            libc::nanosleep(&pause, std::ptr::null_mut());
        }
        libc::_exit(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_tell_who_has_made_them() {
        assert_eq!(maker("tensorscope-12"), Some(12));
        assert_eq!(maker("tensorscope-12-3"), Some(12));
        assert_eq!(maker("tensorscope-x"), None);
        assert_eq!(maker("other-12"), None);
    }

    #[test]
    fn folders_of_the_dead_are_removed_and_those_of_the_living_stay() {
        let parent = tempfile::tempdir().unwrap();
        // Beyond what the kernel numbers processes by.
        let stale = parent.path().join("tensorscope-4194999");
        let alive = parent.path().join("tensorscope-1");
        fs::create_dir(&stale).unwrap();
        fs::create_dir(&alive).unwrap();
        let first = Leftover::make(parent.path()).unwrap();
        let second = Leftover::make(parent.path()).unwrap();
        assert!(!stale.exists() && alive.exists());
        assert_ne!(first.folder(), second.folder());
        let folders = [first.folder().to_owned(), second.folder().to_owned()];
        drop((first, second));
        assert!(!folders[0].exists() && !folders[1].exists());
    }
}
