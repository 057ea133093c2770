//! Empties the rings of all cpus, whatever they are, and hands out what they hold in the order of time.
//!
//! A mapping made on one cpu decides what a fault on another means, and a request
//! issued on one is completed on another, so the order matters. In each round
//! everything is taken out of the rings; what is older than the start of the round,
//! less a margin for records being written just then, is complete on all cpus and is
//! handed out; the rest waits for the next round.

use std::io::{self, PipeReader};
use std::os::fd::{AsRawFd as _, RawFd};
use std::time::Duration;

use trace::clock::now_nanos;

use super::Event;
use super::ring::Ring;
use crate::error::KernelError;

/// Between taking the time of a record and publishing it the kernel does not sleep,
/// but the host of a virtual machine may take the cpu away.
const MARGIN_NANOS: u64 = 20_000_000;

/// How old records get before they are in the log, when the rings do not fill.
const PAUSE: Duration = Duration::from_millis(100);

/// Ring sizes tried, largest first: without privileges the kernel locks at most
/// `perf_event_mlock_kb` a cpu.
const RING_BYTES: [usize; 6] = [4 << 20, 2 << 20, 1 << 20, 512 << 10, 256 << 10, 64 << 10];

/// Memory for the rings of all cpus together, as long as each has [`MIN_RING_BYTES`]:
/// that holds 9000 faults, of which half may come before the reader is woken.
const ALL_RINGS_BYTES: usize = 64 << 20;
const MIN_RING_BYTES: usize = 512 << 10;

/// Rings, and what becomes of their records.
pub(crate) trait Sink {
    type Item: Copy;
    /// What wakes the pump before the pause is over.
    fn descriptors(&self) -> Vec<RawFd>;
    /// Appends all that is in the rings. The kernel waits for the room, so this must
    /// be quick.
    fn drain(&mut self, items: &mut Vec<Timed<Self::Item>>) -> Result<(), KernelError>;
    /// In the order of time.
    fn take(&mut self, item: Timed<Self::Item>) -> Result<(), KernelError>;
    /// At the end of a round.
    fn flush(&mut self) -> Result<(), KernelError>;
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Timed<T> {
    pub nanos: u64,
    pub item: T,
}

/// The largest ring that the kernel allows, one of `rings`.
pub(crate) fn map_ring(event: &Event, rings: usize) -> io::Result<Ring> {
    let most = (ALL_RINGS_BYTES / rings.max(1)).max(MIN_RING_BYTES);
    let mut refused = None;
    for bytes in RING_BYTES.into_iter().filter(|bytes| *bytes <= most) {
        match Ring::map(event, bytes) {
            Ok(ring) => return Ok(ring),
            Err(cause) => refused = Some(cause),
        }
    }
    Err(refused.unwrap_or_else(|| io::ErrorKind::InvalidInput.into()))
}

/// Runs until the other end of `stop` is closed.
pub(crate) fn run<S: Sink>(stop: &PipeReader, sink: &mut S) -> Result<(), KernelError> {
    let mut polled: Vec<libc::pollfd> = sink
        .descriptors()
        .into_iter()
        .chain([stop.as_raw_fd()])
        .map(|fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        })
        .collect();
    let mut pending = Vec::new();
    loop {
        wait(&mut polled).map_err(KernelError::system("cannot wait for events"))?;
        let is_last = polled.last().is_some_and(|stop| stop.revents != 0);
        let begin_nanos = now_nanos();
        sink.drain(&mut pending)?;
        // Each ring is nearly in order, so this merges rather than sorts.
        pending.sort_by_key(|timed: &Timed<S::Item>| timed.nanos);
        let settled = match is_last {
            true => pending.len(),
            false => {
                let until = begin_nanos.saturating_sub(MARGIN_NANOS);
                pending.partition_point(|timed| timed.nanos <= until)
            }
        };
        for timed in pending.drain(..settled) {
            sink.take(timed)?;
        }
        sink.flush()?;
        if is_last {
            return Ok(());
        }
    }
}

fn wait(polled: &mut [libc::pollfd]) -> io::Result<()> {
    let count = polled.len() as libc::nfds_t;
    let millis = PAUSE.as_millis() as libc::c_int;
    // SAFETY: the pointer and the count are those of one slice.
    if unsafe { libc::poll(polled.as_mut_ptr(), count, millis) } < 0 {
        let cause = io::Error::last_os_error();
        if cause.kind() != io::ErrorKind::Interrupted {
            return Err(cause);
        }
        for one in polled.iter_mut() {
            one.revents = 0;
        }
    }
    let Some((_, events)) = polled.split_last_mut() else {
        return Ok(());
    };
    for event in events {
        // The task has ended: its event would wake us for ever. What the ring still
        // holds is read with the others.
        if event.revents & (libc::POLLHUP | libc::POLLERR) != 0 {
            event.fd = -1;
        }
    }
    Ok(())
}
