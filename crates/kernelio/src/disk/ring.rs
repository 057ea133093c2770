//! Reads through io_uring: one thread, `depth` reads in flight.
//!
//! 1. Each of `depth` slots has a block of memory of its own.
//! 2. A completion ends its request, or asks for the rest of a short read; a slot
//!    that is free takes the next request.
//! 3. At the end, or after a failure, everything in flight is waited for before
//!    the memory is given back: until then the kernel may write to it.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::time::Instant;

use support::direct::{Next, Read, Ring, Waiting};

use super::job::{Failure, Ledger, ReadProps, Request, SetupFailure, Step};
use crate::buffer::AlignedBuffer;

/// Times that one request is asked again after EINTR or EAGAIN.
const MAX_RETRIES: u32 = 100;

pub(crate) fn read(props: &ReadProps<'_>, ledger: &mut Ledger) -> Result<(), Failure> {
    let mut reader = Reader::new(props)?;
    for slot in 0..props.setting.depth as usize {
        let Some(request) = ledger.next(Instant::now()) else {
            break;
        };
        reader.submit(slot, request)?;
    }
    let mut done = Vec::new();
    while reader.in_flight > 0 {
        reader.wait(&mut done).map_err(ring_failure)?;
        for (slot, result) in done.drain(..) {
            let slot = slot as usize;
            let mut request = reader.slots[slot].request;
            let now = Instant::now();
            let Ok(bytes) = u32::try_from(result) else {
                reader.retry(slot, io::Error::from_raw_os_error(-result))?;
                continue;
            };
            let step = request.advance(bytes, props.offset_alignment_bytes);
            let next = match step {
                Step::Complete { bytes } => {
                    ledger.complete(bytes, now);
                    reader.slots[slot].retries = 0;
                    ledger.next(now)
                }
                Step::Continue => Some(request),
                Step::Shrunk { file_offset } => return Err(Failure::Shrunk { file_offset }),
            };
            if let Some(request) = next {
                reader.submit(slot, request)?;
            }
        }
    }
    Ok(())
}

fn ring_failure(cause: io::Error) -> Failure {
    Failure::Setup(SetupFailure::Ring(cause))
}

struct Reader<'a> {
    props: &'a ReadProps<'a>,
    ring: Ring,
    /// Given back by `drop`, once nothing is in flight.
    memory: ManuallyDrop<AlignedBuffer>,
    slots: Vec<Slot>,
    in_flight: u32,
}

struct Slot {
    request: Request,
    retries: u32,
}

impl<'a> Reader<'a> {
    fn new(props: &'a ReadProps<'a>) -> Result<Reader<'a>, Failure> {
        let setting = props.setting;
        let ring = Ring::new(setting.depth).map_err(ring_failure)?;
        let memory = AlignedBuffer::new(
            "reads in flight",
            setting.in_flight_bytes() as usize,
            props.memory_alignment_bytes as usize,
        )
        .map_err(|error| Failure::Setup(SetupFailure::Other(error)))?;
        Ok(Reader {
            props,
            ring,
            memory: ManuallyDrop::new(memory),
            slots: Vec::with_capacity(setting.depth as usize),
            in_flight: 0,
        })
    }

    /// Queues a read; `wait` sends it.
    fn submit(&mut self, slot: usize, request: Request) -> Result<(), Failure> {
        match self.slots.get_mut(slot) {
            Some(known) => known.request = request,
            None => self.slots.push(Slot {
                request,
                retries: 0,
            }),
        }
        let block_bytes = self.props.setting.block_bytes as usize;
        let length = request.ask_bytes(self.props.offset_alignment_bytes);
        assert!(request.done_bytes() + length as usize <= block_bytes);
        let place = self
            .memory
            .place(slot * block_bytes + request.done_bytes(), length as usize);
        let read = Read {
            slot: slot as u32,
            fd: self.props.file.as_raw_fd(),
            offset: request.file_offset(),
            address: place as usize,
            bytes: length,
        };
        // SAFETY: the file is open as long as the props, which outlives `self`; the
        // memory belongs to this slot alone, which has no other read in flight,
        // and `drop` gives it back only when nothing is in flight.
        unsafe { self.ring.push(read, Next::AtOnce) }.map_err(ring_failure)?;
        self.in_flight += 1;
        Ok(())
    }

    /// Sends what is queued, and adds what has come back.
    fn wait(&mut self, done: &mut Vec<(u32, i32)>) -> io::Result<()> {
        let before = done.len();
        self.ring.reap(Waiting::ForOne, done)?;
        self.in_flight -= (done.len() - before) as u32;
        Ok(())
    }

    /// Asks again after an error that says to; passes any other on.
    fn retry(&mut self, slot: usize, cause: io::Error) -> Result<(), Failure> {
        let Slot { request, retries } = &mut self.slots[slot];
        let request = *request;
        *retries += 1;
        let may_retry = matches!(cause.raw_os_error(), Some(libc::EINTR | libc::EAGAIN));
        if may_retry && *retries <= MAX_RETRIES {
            return self.submit(slot, request);
        }
        Err(Failure::Read { request, cause })
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        while self.in_flight > 0 {
            let mut done = Vec::new();
            if self.wait(&mut done).is_err() {
                // Whether the kernel still writes to the memory cannot be known:
                // it is never given back.
                return;
            }
        }
        // SAFETY: dropped once, here, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
    }
}
