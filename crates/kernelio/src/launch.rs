//! Starts a program and holds it back until it is being watched.
//!
//! 1. The child, forked and not yet running the program, tells its number through a
//!    pipe and waits at another.
//! 2. A thread of ours receives the number and prepares: opens events for it.
//! 3. The thread lets the child go, or tells it to give up when preparing failed.
//! 4. The child runs the program.
//!
//! The thread is needed because [`Command::spawn`] itself waits for step 4. It is
//! spawned on the caller's thread, whose death it may be tied to.

use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::KernelError;

const GO: u8 = 1;

/// Spawns `command`; `prepare` runs before its program does, with the number of its
/// process, in another thread. When it fails, so does this, and the program never
/// runs.
pub fn spawn_held<T: Send>(
    command: &mut Command,
    prepare: impl FnOnce(u32) -> Result<T, KernelError> + Send,
) -> Result<(Child, T), KernelError> {
    let pipe = || io::pipe().map_err(KernelError::system("cannot make a pipe"));
    let (mut pid_reader, pid_writer) = pipe()?;
    let (go_reader, mut go_writer) = pipe()?;
    let (pid_end, go_end) = (pid_writer.as_raw_fd(), go_reader.as_raw_fd());
    // A child has copies of all ends: it closes those of the parent, or else it
    // would wait for itself.
    let parent_ends = [pid_reader.as_raw_fd(), go_writer.as_raw_fd()];
    let is_over = Arc::new(AtomicBool::new(false));
    let is_over_in_child = Arc::clone(&is_over);
    // SAFETY: the closure calls only close, getpid, write and read, which are safe
    // after fork. The descriptors are open during the `spawn` below; at a later one
    // of the same command the closure does nothing.
    unsafe {
        command.pre_exec(move || match is_over_in_child.load(Ordering::Relaxed) {
            false => wait_for_go(parent_ends, pid_end, go_end),
            true => Ok(()),
        });
    }
    std::thread::scope(|scope| {
        let preparing = std::thread::Builder::new()
            .name("launch".to_owned())
            .spawn_scoped(scope, move || {
                prepared(&mut pid_reader, &mut go_writer, prepare)
            })
            .map_err(KernelError::system("cannot start a thread"))?;
        let spawned = command.spawn();
        is_over.store(true, Ordering::Relaxed);
        // Without a child, this is what ends the thread.
        drop((pid_writer, go_reader));
        let prepared = preparing.join().map_err(|_| KernelError::System {
            doing: "preparing to record a program",
            cause: io::Error::other("died"),
        })?;
        let failed = |cause| KernelError::Io {
            path: command.get_program().into(),
            doing: "cannot be run",
            cause,
        };
        match (prepared, spawned) {
            (Some(Err(error)), Ok(mut child)) => {
                // The child has given up and only has to be collected.
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
            (Some(Err(error)), Err(_)) => Err(error),
            (Some(Ok(value)), Ok(child)) => Ok((child, value)),
            (_, Err(cause)) => Err(failed(cause)),
            (None, Ok(mut child)) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(failed(io::Error::other("it ended before it was watched")))
            }
        }
    })
}

/// The thread; `None` when there is no child.
fn prepared<T>(
    pid_reader: &mut PipeReader,
    go_writer: &mut PipeWriter,
    prepare: impl FnOnce(u32) -> Result<T, KernelError>,
) -> Option<Result<T, KernelError>> {
    let mut pid = [0; 4];
    pid_reader.read_exact(&mut pid).ok()?;
    let result = prepare(u32::from_ne_bytes(pid));
    let answer = if result.is_ok() { GO } else { 0 };
    // A child that is gone needs no answer.
    let _ = go_writer.write_all(&[answer]);
    Some(result)
}

/// In the child.
fn wait_for_go(
    parent_ends: [libc::c_int; 2],
    pid_end: libc::c_int,
    go_end: libc::c_int,
) -> io::Result<()> {
    for end in parent_ends {
        // SAFETY: our own copy, which nothing in the child uses.
        unsafe { libc::close(end) };
    }
    let pid = std::process::id().to_ne_bytes();
    // SAFETY: four bytes of an array of four.
    if unsafe { libc::write(pid_end, pid.as_ptr().cast(), pid.len()) } != 4 {
        return Err(io::Error::last_os_error());
    }
    let mut answer = 0u8;
    loop {
        // SAFETY: one byte into a byte.
        match unsafe { libc::read(go_end, (&raw mut answer).cast(), 1) } {
            1 if answer == GO => return Ok(()),
            0 | 1 => return Err(io::Error::from_raw_os_error(libc::ECANCELED)),
            _ => {
                let cause = io::Error::last_os_error();
                if cause.kind() != io::ErrorKind::Interrupted {
                    return Err(cause);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    #[test]
    fn the_program_runs_after_it_was_prepared_for() {
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("mark");
        let mut command = Command::new("cat");
        command.arg(&mark).stdout(Stdio::piped());
        let (child, pid) = spawn_held(&mut command, |pid| {
            std::fs::write(&mark, "before").unwrap();
            Ok(pid)
        })
        .unwrap();
        assert_eq!(child.id(), pid);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.stdout, b"before");
    }

    #[test]
    fn without_preparation_the_program_never_runs() {
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("mark");
        let result = spawn_held(Command::new("touch").arg(&mark), |_| -> Result<(), _> {
            Err(KernelError::Line {
                line: 1,
                what: "no".to_owned(),
            })
        });
        assert_eq!(result.unwrap_err().to_string(), "line 1: no");
        assert!(!mark.exists());
    }

    #[test]
    fn a_program_that_does_not_exist_is_named() {
        let result = spawn_held(&mut Command::new("/no/such/program"), |_| Ok(()));
        let text = result.unwrap_err().to_string();
        assert!(
            text.starts_with("/no/such/program: cannot be run: "),
            "{text}"
        );
    }
}
