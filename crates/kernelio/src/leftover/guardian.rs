//! The process that undoes a change when we are killed.
//!
//! It holds the reading end of a pipe, whose other end we hold: when we are gone, even by
//! SIGKILL, the kernel closes ours. It is a fork of this process, because a program of its
//! own would have to be found and shipped; it is made early, when there is little memory to
//! share. It has a session of its own, so that what kills our process group spares it.
//!
//! Everything here calls only what is allowed after a fork of a process with threads: no
//! allocation, no lock, no panic.

use std::ffi::{CStr, CString};
use std::io::{self, PipeWriter, Read as _};
use std::os::fd::AsRawFd as _;

use crate::error::KernelError;

/// Between two tries, at first and at most: who is in a group may stay for hours.
const PAUSE_NANOS: libc::c_long = 20_000_000;
const MAX_PAUSE_NANOS: libc::c_long = 500_000_000;
/// Files that somebody goes on making are left.
const TREE_TRIES: u32 = 100;
const TREE_DEPTH: u32 = 16;
/// Longest note, and longest value of a setting.
const NOTE_BYTES: usize = 4096;
const VALUE_BYTES: usize = 256;

/// What it is to do. The numbers are descriptors of notes.
pub(super) enum Undo {
    RemoveFolder(CString),
    RemoveTree(CString),
    PutBack(CString, libc::c_int),
    Unmount(CString, libc::c_int),
}

#[derive(Debug)]
pub(super) struct Guardian {
    pid: libc::pid_t,
    /// Closing it is the signal.
    _pipe: PipeWriter,
}

impl Guardian {
    /// Returns when it is on its guard: one that still is of our process group would be
    /// killed with it. `note`: paths of the note and of its folder, which are removed
    /// afterwards.
    pub fn fork(undo: Undo, note: Option<[CString; 2]>) -> Result<Guardian, KernelError> {
        let failed = || KernelError::system("cannot start a guardian");
        let (reader, writer) = io::pipe().map_err(failed())?;
        let (mut is_ready, ready) = io::pipe().map_err(failed())?;
        let ends = [reader.as_raw_fd(), ready.as_raw_fd()];
        // SAFETY: the child calls only functions that are safe after fork, and never
        // returns.
        let guardian = match unsafe { libc::fork() } {
            0 => watch(&undo, note.as_ref(), ends),
            pid if pid > 0 => Guardian { pid, _pipe: writer },
            _ => return Err(failed()(io::Error::last_os_error())),
        };
        drop(ready);
        match is_ready.read_exact(&mut [0]) {
            Ok(()) => Ok(guardian),
            // Somebody has killed it.
            Err(cause) => {
                guardian.dismiss(true);
                Err(failed()(cause))
            }
        }
    }

    /// Lets it go; waits for it where it has nothing left to do.
    pub fn dismiss(self, is_undone: bool) {
        let Guardian { pid, _pipe: pipe } = self;
        drop(pipe);
        if is_undone {
            // SAFETY: waits for our own child, and asks for no status.
            unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
        }
    }
}

/// The life of the guardian.
fn watch(undo: &Undo, note: Option<&[CString; 2]>, [end, ready]: [libc::c_int; 2]) -> ! {
    /// Where it keeps the note.
    const NOTE: libc::c_int = 1;
    // SAFETY: all of these are system calls with numbers, or with pointers to values
    // that live here.
    unsafe {
        // Signals meant for our process group are not meant for the guardian, and it
        // must not hold files, pipes, terminals or folders open.
        libc::setsid();
        libc::chdir(c"/".as_ptr());
        libc::prctl(libc::PR_SET_NAME, c"ts-guardian".as_ptr());
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::sigprocmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
        libc::dup2(end, 0);
        let first = match undo {
            Undo::PutBack(_, descriptor) | Undo::Unmount(_, descriptor) => {
                // Our copy keeps the note's lock until we are done.
                libc::dup2(*descriptor, NOTE);
                NOTE + 1
            }
            Undo::RemoveFolder(_) | Undo::RemoveTree(_) => NOTE,
        };
        libc::write(ready, c"r".as_ptr().cast(), 1);
        if libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) != 0 {
            // Before Linux 5.9. Our copy of the writing end must go, or else it would
            // keep us waiting for ourselves.
            for descriptor in first..4096 {
                libc::close(descriptor);
            }
        }
        let mut byte = 0u8;
        // Nobody writes: this returns 0 at the end, or an error, which ends it, too.
        while libc::read(0, (&raw mut byte).cast(), 1) > 0 {}
        if note.is_none() || libc::lseek(NOTE, 0, libc::SEEK_END) > 0 {
            retry(|tries| match undo {
                Undo::RemoveFolder(path) => {
                    libc::rmdir(path.as_ptr()) == 0 || errno() != libc::EBUSY
                }
                Undo::RemoveTree(path) => {
                    remove_tree(libc::AT_FDCWD, path, TREE_DEPTH) || tries > TREE_TRIES
                }
                Undo::PutBack(file, _) => put_back(file, NOTE),
                Undo::Unmount(place, _) => unmount(place),
            });
            if let Some([file, folder]) = note {
                libc::ftruncate(NOTE, 0);
                libc::unlink(file.as_ptr());
                libc::rmdir(folder.as_ptr());
            }
        }
        libc::_exit(0)
    }
}

/// Until it says that it is done.
fn retry(mut is_done: impl FnMut(u32) -> bool) {
    let (mut tries, mut pause) = (0, PAUSE_NANOS);
    while !is_done(tries) {
        let time = libc::timespec {
            tv_sec: 0,
            tv_nsec: pause,
        };
        // SAFETY: a pointer to a value that lives here.
        unsafe { libc::nanosleep(&time, std::ptr::null_mut()) };
        tries = tries.saturating_add(1);
        pause = (pause + pause / 8).min(MAX_PAUSE_NANOS);
    }
}

fn errno() -> libc::c_int {
    // SAFETY: the address of this thread's number, always valid.
    unsafe { *libc::__errno_location() }
}

/// Writes into `file` what the note says was found, if the file still has the value that we
/// have set. False where it must be tried again.
pub(super) fn put_back(file: &CStr, note: libc::c_int) -> bool {
    let mut text = [0u8; NOTE_BYTES];
    let mut now = [0u8; VALUE_BYTES];
    // SAFETY: system calls on descriptors that are open here, with buffers that live here
    // and their lengths.
    unsafe {
        let Ok(count) = usize::try_from(libc::pread(note, text.as_mut_ptr().cast(), NOTE_BYTES, 0))
        else {
            return true;
        };
        let mut lines = text[..count].split(|&byte| byte == b'\n').skip(1);
        let (Some(ours), Some(found)) = (lines.next(), lines.next()) else {
            return true;
        };
        let descriptor = libc::open(file.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        if descriptor < 0 {
            // The disk is gone, and its settings with it.
            return true;
        }
        let count = libc::read(descriptor, now.as_mut_ptr().cast(), VALUE_BYTES);
        let count = usize::try_from(count).unwrap_or(0);
        let is_ours = now[..count].trim_ascii() == ours && !ours.is_empty();
        let mut is_written = true;
        if is_ours {
            // Only a plain file, as tests have, must and can be cut; the kernel's cannot.
            libc::ftruncate(descriptor, 0);
            let written = libc::pwrite(descriptor, found.as_ptr().cast(), found.len(), 0);
            is_written = written >= 0 || errno() != libc::EINTR;
        }
        libc::close(descriptor);
        is_written
    }
}

/// Unmounts a tracefs that nobody uses. False where somebody does.
pub(super) fn unmount(place: &CStr) -> bool {
    const INSTANCES: &[u8] = b"/instances\0";
    let mut path = [0u8; VALUE_BYTES];
    let name = place.to_bytes();
    let Some(room) = path.get_mut(..name.len() + INSTANCES.len()) else {
        return true;
    };
    room[..name.len()].copy_from_slice(name);
    room[name.len()..].copy_from_slice(INSTANCES);
    // SAFETY: strings that end with a zero, and a struct to fill for which zero is valid.
    unsafe {
        let mut about: libc::stat = std::mem::zeroed();
        // A trace would go on where nobody could remove it any more.
        if libc::stat(path.as_ptr().cast(), &mut about) == 0 && about.st_nlink > 2 {
            return false;
        }
        libc::umount2(place.as_ptr(), libc::UMOUNT_NOFOLLOW) == 0 || errno() != libc::EBUSY
    }
}

/// Removes a file, or a folder with all that is in it; whether it is gone.
fn remove_tree(folder: libc::c_int, name: &CStr, depth: u32) -> bool {
    const RECORD_HEADER_BYTES: usize = 19;
    // SAFETY: system calls with strings that end with a zero, and a buffer that lives here
    // with its length; the kernel's records lie within it, and their names end with a zero.
    unsafe {
        if libc::unlinkat(folder, name.as_ptr(), 0) == 0 || errno() == libc::ENOENT {
            return true;
        }
        if depth == 0 {
            return false;
        }
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let inside = libc::openat(folder, name.as_ptr(), flags);
        if inside < 0 {
            return errno() == libc::ENOENT;
        }
        let mut records = [0u8; 2048];
        let (address, length) = (records.as_mut_ptr(), records.len());
        loop {
            let count = libc::syscall(libc::SYS_getdents64, inside, address, length);
            let Some(read) = usize::try_from(count).ok().filter(|&count| count > 0) else {
                break;
            };
            let mut at = 0;
            while at + RECORD_HEADER_BYTES < read {
                let bytes = u16::from_ne_bytes([records[at + 16], records[at + 17]]);
                let end = (at + usize::from(bytes)).min(read);
                let entry = &records[at + RECORD_HEADER_BYTES..end];
                if let Ok(entry) = CStr::from_bytes_until_nul(entry)
                    && entry != c"."
                    && entry != c".."
                {
                    remove_tree(inside, entry, depth - 1);
                }
                at = end;
            }
        }
        libc::close(inside);
        libc::unlinkat(folder, name.as_ptr(), libc::AT_REMOVEDIR) == 0 || errno() == libc::ENOENT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// What kills our process group must spare it, from the moment that we rely on it.
    #[test]
    fn a_guardian_that_was_forked_is_on_its_guard() {
        let folder = tempfile::tempdir().unwrap();
        for _ in 0..50 {
            let path = super::super::c_string(&folder.path().join("nothing")).unwrap();
            let guardian = Guardian::fork(Undo::RemoveFolder(path), None).unwrap();
            // SAFETY: asks about a child that was not waited for.
            assert_eq!(unsafe { libc::getsid(guardian.pid) }, guardian.pid);
            guardian.dismiss(true);
        }
    }

    #[test]
    fn a_tree_goes_and_what_its_links_point_to_stays() {
        let parent = tempfile::tempdir().unwrap();
        let (tree, other) = (parent.path().join("tree"), parent.path().join("other"));
        fs::create_dir_all(tree.join("a/b")).unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(other.join("file"), "x").unwrap();
        for number in 0..300 {
            fs::write(tree.join(format!("a/b/a-file-with-number-{number}")), "x").unwrap();
        }
        std::os::unix::fs::symlink(&other, tree.join("link")).unwrap();
        let name = super::super::c_string(&tree).unwrap();
        // Removing entries while they are listed may skip some.
        let is_gone = (0..10).any(|_| remove_tree(libc::AT_FDCWD, &name, TREE_DEPTH));
        assert!(is_gone && !tree.exists() && other.join("file").exists());
    }
}
