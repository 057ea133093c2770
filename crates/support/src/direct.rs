//! Reads past the page cache: what they must be aligned to, and the calls of the kernel.
//!
//! Who reads decides what a short or failed read means.

use std::{
    fmt,
    fs::File,
    io,
    os::fd::{AsRawFd, RawFd},
    str::FromStr,
};

use io_uring::{IoUring, opcode, squeue, types};
use serde::{Deserialize, Serialize};

/// What direct reads are aligned to where the kernel does not say (before Linux
/// 6.1, and on file systems that do not answer): the page size of nearly all
/// machines, and a multiple of every common sector size.
pub const USUAL_ALIGNMENT_BYTES: u32 = 4096;

/// Ways to read a file, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// O_DIRECT through io_uring: one thread, many reads in flight.
    IoUringDirect,
    /// O_DIRECT with pread, a thread for each read in flight.
    PreadDirect,
    /// Through the page cache, which is told to forget what was read.
    PreadBuffered,
}

impl Method {
    pub const ALL: [Method; 3] = [
        Method::IoUringDirect,
        Method::PreadDirect,
        Method::PreadBuffered,
    ];

    /// As people type it.
    pub fn name(self) -> &'static str {
        match self {
            Method::IoUringDirect => "uring",
            Method::PreadDirect => "pread",
            Method::PreadBuffered => "cached",
        }
    }
}

impl FromStr for Method {
    type Err = String;

    fn from_str(text: &str) -> Result<Method, String> {
        let found = Method::ALL.into_iter().find(|method| method.name() == text);
        found.ok_or_else(|| format!("`{text}` is no way to read: uring, pread, cached"))
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Method::IoUringDirect => "io_uring with O_DIRECT",
            Method::PreadDirect => "pread with O_DIRECT",
            Method::PreadBuffered => "pread through the page cache",
        })
    }
}

/// What the addresses and the offsets of direct reads must be multiples of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment {
    pub memory_bytes: u32,
    pub offset_bytes: u32,
}

impl Alignment {
    /// `None` where the kernel says that direct reads of the file are impossible.
    pub fn of(file: &File) -> Option<Alignment> {
        // SAFETY: `statx` is made of integers, for which zero is a value.
        let mut answer: libc::statx = unsafe { std::mem::zeroed() };
        // SAFETY: the path is a C string, `answer` lives through the call, and the
        // descriptor is open.
        let result = unsafe {
            libc::statx(
                file.as_raw_fd(),
                c"".as_ptr(),
                libc::AT_EMPTY_PATH,
                libc::STATX_DIOALIGN,
                &mut answer,
            )
        };
        if result != 0 || answer.stx_mask & libc::STATX_DIOALIGN == 0 {
            return Some(Alignment {
                memory_bytes: USUAL_ALIGNMENT_BYTES,
                offset_bytes: USUAL_ALIGNMENT_BYTES,
            });
        }
        Alignment::from_answer(answer.stx_dio_mem_align, answer.stx_dio_offset_align)
    }

    /// Zeros mean that the file cannot be read directly (statx(2)).
    fn from_answer(memory_bytes: u32, offset_bytes: u32) -> Option<Alignment> {
        let is_usable = memory_bytes.is_power_of_two() && offset_bytes.is_power_of_two();
        is_usable.then_some(Alignment {
            memory_bytes,
            offset_bytes,
        })
    }

    /// What suits both.
    pub fn max_bytes(self) -> u32 {
        self.memory_bytes.max(self.offset_bytes)
    }
}

/// One call of the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// Comes back with the result.
    pub slot: u32,
    pub fd: RawFd,
    pub offset: u64,
    pub address: usize,
    pub bytes: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    ForOne,
    No,
}

/// When the kernel begins with the read that is queued next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    AtOnce,
    /// When this one has ended, well or badly, if both are sent together.
    Afterwards,
}

/// Reads through io_uring.
pub struct Ring {
    ring: IoUring,
}

impl Ring {
    /// For so many reads in flight.
    pub fn new(depth: u32) -> io::Result<Ring> {
        let entries = depth.clamp(8, 1024).next_power_of_two();
        let ring = IoUring::builder()
            .setup_cqsize(entries * 4)
            .build(entries)?;
        Ok(Ring { ring })
    }

    /// Queues a read; `send` or `reap` sends it.
    ///
    /// # Safety
    /// The descriptor is open and the place nobody else's until the slot comes back from
    /// `reap`.
    pub unsafe fn push(&mut self, read: Read, next: Next) -> io::Result<()> {
        let flags = match next {
            Next::AtOnce => squeue::Flags::empty(),
            // Also when this one fails: each has a result of its own.
            Next::Afterwards => squeue::Flags::IO_HARDLINK,
        };
        let entry = opcode::Read::new(types::Fd(read.fd), read.address as *mut u8, read.bytes)
            .offset(read.offset)
            .build()
            .flags(flags)
            .user_data(u64::from(read.slot));
        // SAFETY: the caller keeps place and descriptor.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            // Full: what is queued goes first.
            self.send(0)?;
        }
        Ok(())
    }

    /// Sends what is queued and waits for so many to be done.
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

    /// Slots and results of what is done: bytes, or an error's number below zero. May be
    /// nothing even after waiting, when a signal came.
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

/// The same by pread, with the result of a completion.
///
/// # Safety
/// The descriptor is open and the place nobody else's during the call.
pub unsafe fn pread(read: &Read) -> i32 {
    // SAFETY: the caller keeps place and descriptor. Offsets fit because file sizes do.
    let got = unsafe {
        libc::pread64(
            read.fd,
            read.address as *mut libc::c_void,
            read.bytes as usize,
            read.offset as libc::off64_t,
        )
    };
    match got {
        0.. => got as i32,
        _ => -io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EIO),
    }
}

/// Tells the kernel to forget a part of a file; a length of 0 means to its end. It keeps
/// pages that are dirty or mapped.
pub fn forget(fd: RawFd, offset: u64, bytes: u32) {
    // SAFETY: advice on a descriptor; no memory is involved.
    unsafe {
        libc::posix_fadvise64(
            fd,
            offset as libc::off64_t,
            libc::off64_t::from(bytes),
            libc::POSIX_FADV_DONTNEED,
        );
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn the_kernel_says_what_direct_reads_ask_for() {
        let check = |memory, offset, expect: Option<(u32, u32)>| {
            let found = Alignment::from_answer(memory, offset);
            assert_eq!(found.map(|a| (a.memory_bytes, a.offset_bytes)), expect);
        };
        check(0, 0, None);
        check(512, 0, None);
        check(4, 512, Some((4, 512)));
        check(512, 65_536, Some((512, 65_536)));
        check(3, 512, None);
    }

    #[test]
    fn both_ways_give_the_bytes_and_say_where_the_file_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let content: Vec<u8> = (0..10_000u32).map(|i| (i * 31 + i / 251) as u8).collect();
        std::fs::write(&path, &content).unwrap();
        let file = File::open(&path).unwrap();
        const BLOCK: usize = 1000;
        let mut memory = vec![0u8; 12 * BLOCK];
        let base = memory.as_mut_ptr() as usize;
        let read = |slot: u32| Read {
            slot,
            fd: file.as_raw_fd(),
            offset: u64::from(slot) * BLOCK as u64,
            address: base + slot as usize * BLOCK,
            bytes: BLOCK as u32,
        };
        let expect: BTreeMap<u32, i32> = (0..12)
            .map(|slot| (slot, if slot < 10 { BLOCK as i32 } else { 0 }))
            .collect();
        // SAFETY: each slot has a block of its own, which outlives the calls.
        let by_pread = (0..12).map(|slot| (slot, unsafe { pread(&read(slot)) }));
        assert_eq!(by_pread.collect::<BTreeMap<_, _>>(), expect);
        assert_eq!(memory[..content.len()], content);
        let Ok(mut ring) = Ring::new(4) else {
            println!("skipped: no io_uring");
            return;
        };
        memory.fill(0);
        for slot in 0..12 {
            // SAFETY: as above, and all are waited for below.
            unsafe { ring.push(read(slot), Next::AtOnce) }.unwrap();
        }
        let mut done = Vec::new();
        while done.len() < 12 {
            ring.reap(Waiting::ForOne, &mut done).unwrap();
        }
        assert_eq!(done.into_iter().collect::<BTreeMap<_, _>>(), expect);
        assert_eq!(memory[..content.len()], content);
    }
}
