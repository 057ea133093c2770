//! Reads with pread, a thread for each read in flight: for kernels and containers
//! without io_uring, and for file systems without O_DIRECT.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use support::direct::{Read, forget, pread};

use super::job::{Failure, Ledger, ReadProps, Request, SetupFailure, Step};
use crate::buffer::AlignedBuffer;
use crate::error::CeilingError;

/// What becomes of the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cache {
    /// The file is open with O_DIRECT.
    Bypassed,
    /// The kernel is told to forget the file before each round, and each block
    /// after it was read.
    Dropped,
}

pub(crate) fn read(
    props: &ReadProps<'_>,
    ledger: &mut Ledger,
    cache: Cache,
) -> Result<(), Failure> {
    let threads = props.setting.depth as usize;
    let shared = Mutex::new(Shared {
        ledger,
        failure: None,
    });
    thread::scope(|scope| {
        for number in 0..threads {
            let work = || {
                if let Err(failure) = read_blocks(props, &shared, cache) {
                    lock(&shared).fail(failure);
                }
            };
            if let Err(cause) = thread::Builder::new().spawn_scoped(scope, work) {
                let error = CeilingError::Thread {
                    number: number + 1,
                    threads,
                    cause,
                };
                lock(&shared).fail(Failure::Setup(SetupFailure::Other(error)));
                break;
            }
        }
    });
    match lock(&shared).failure.take() {
        Some(failure) => Err(failure),
        None => Ok(()),
    }
}

struct Shared<'a> {
    ledger: &'a mut Ledger,
    /// The first one; it stops all threads.
    failure: Option<Failure>,
}

impl Shared<'_> {
    fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }

    fn next(&mut self, now: Instant) -> Option<Request> {
        match self.failure {
            Some(_) => None,
            None => self.ledger.next(now),
        }
    }
}

/// A thread that panicked leaves counters behind, nothing half-done.
fn lock<'a, 'b>(shared: &'a Mutex<Shared<'b>>) -> MutexGuard<'a, Shared<'b>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read_blocks(
    props: &ReadProps<'_>,
    shared: &Mutex<Shared<'_>>,
    cache: Cache,
) -> Result<(), Failure> {
    let mut memory = AlignedBuffer::new(
        "reads in flight",
        props.setting.block_bytes as usize,
        props.memory_alignment_bytes as usize,
    )
    .map_err(|error| Failure::Setup(SetupFailure::Other(error)))?;
    let mut next = lock(shared).next(Instant::now());
    while let Some(request) = next {
        if cache == Cache::Dropped && request.begins_round() {
            forget(props.file.as_raw_fd(), 0, 0);
        }
        let bytes = read_block(props, request, &mut memory)?;
        let now = Instant::now();
        if cache == Cache::Dropped {
            let (offset, length) = request.range();
            forget(props.file.as_raw_fd(), offset, length);
        }
        let mut shared = lock(shared);
        shared.ledger.complete(bytes, now);
        next = shared.next(now);
    }
    Ok(())
}

fn read_block(
    props: &ReadProps<'_>,
    mut request: Request,
    memory: &mut AlignedBuffer,
) -> Result<u32, Failure> {
    loop {
        let length = request.ask_bytes(props.offset_alignment_bytes);
        let read = Read {
            slot: 0,
            fd: props.file.as_raw_fd(),
            offset: request.file_offset(),
            address: memory.place(request.done_bytes(), length as usize) as usize,
            bytes: length,
        };
        // SAFETY: the place is good for `length` bytes, which nobody else uses, and
        // the file is open.
        let returned = unsafe { pread(&read) };
        let Ok(returned) = u32::try_from(returned) else {
            let cause = io::Error::from_raw_os_error(-returned);
            if cause.kind() == io::ErrorKind::Interrupted {
                continue;
            }
            return Err(Failure::Read { request, cause });
        };
        match request.advance(returned, props.offset_alignment_bytes) {
            Step::Complete { bytes } => return Ok(bytes),
            Step::Continue => {}
            Step::Shrunk { file_offset } => return Err(Failure::Shrunk { file_offset }),
        }
    }
}
