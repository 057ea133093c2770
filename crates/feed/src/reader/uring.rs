//! Reads through io_uring.

use std::io;

use io_uring::{IoUring, opcode, types};

use super::{RawRead, Waiting};

pub struct Uring {
    ring: IoUring,
}

impl Uring {
    pub fn new(depth: u32) -> io::Result<Uring> {
        let entries = depth.clamp(8, 1024).next_power_of_two();
        let ring = IoUring::builder()
            .setup_cqsize(entries * 4)
            .build(entries)?;
        Ok(Uring { ring })
    }

    /// # Safety
    /// The place is nobody else's until the slot comes back from `reap`.
    pub unsafe fn push(&mut self, read: RawRead) -> io::Result<()> {
        let entry = opcode::Read::new(types::Fd(read.fd), read.address as *mut u8, read.bytes)
            .offset(read.offset)
            .build()
            .user_data(u64::from(read.slot));
        // SAFETY: the place is the read's alone (caller), and the descriptor is open
        // as long as the files, which outlive the reader.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            // Full: what is queued goes first.
            self.send(0)?;
        }
        Ok(())
    }

    pub fn send(&mut self, at_least: usize) -> io::Result<()> {
        match self.ring.submit_and_wait(at_least) {
            Ok(_) => Ok(()),
            // A signal, or completions to be reaped first: the caller comes again.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)
                ) =>
            {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    pub fn reap(&mut self, waiting: Waiting, done: &mut Vec<(u32, i32)>) -> io::Result<()> {
        let has_queued = !self.ring.submission().is_empty();
        let has_done = !self.ring.completion().is_empty();
        match waiting {
            Waiting::ForOne if !has_done => self.send(1)?,
            _ if has_queued => self.send(0)?,
            _ => {}
        }
        let completed = self.ring.completion();
        done.extend(completed.map(|entry| (entry.user_data() as u32, entry.result())));
        Ok(())
    }
}
