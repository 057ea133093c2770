//! The thread that empties the rings of one recording.
//!
//! It is started before the events are opened: a thread that is started later would inherit
//! them, and be recorded while it records.

use std::io::{self, PipeReader, PipeWriter};
use std::sync::mpsc;
use std::thread::JoinHandle;

use super::pump::{self, Sink};
use crate::error::KernelError;

#[derive(Debug)]
pub(crate) struct RingReader<S> {
    tid: u32,
    hand_over: mpsc::Sender<S>,
    /// Closing it ends the thread.
    stop: PipeWriter,
    thread: JoinHandle<Result<Option<Ended<S>>, KernelError>>,
}

/// What a thread has left.
#[derive(Debug)]
pub(crate) struct Ended<S> {
    pub sink: S,
    /// Of the thread itself.
    pub major_faults: u64,
}

impl<S: Sink + Send + 'static> RingReader<S> {
    pub fn start(name: &str) -> Result<RingReader<S>, KernelError> {
        let (stopped, stop) = io::pipe().map_err(KernelError::system("cannot make a pipe"))?;
        let (hello, greeted) = mpsc::channel();
        let (hand_over, work) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || read(&stopped, &hello, &work))
            .map_err(KernelError::system("cannot start a thread"))?;
        Ok(RingReader {
            tid: greeted.recv().unwrap_or(0),
            hand_over,
            stop,
            thread,
        })
    }

    /// Of the thread.
    pub fn tid(&self) -> u32 {
        self.tid
    }

    /// From now on the rings are emptied.
    pub fn begin(&self, sink: S) {
        // Fails only when the thread has died, which `finish` reports.
        let _ = self.hand_over.send(sink);
    }

    /// Waits until the rings are empty; to be called when nothing writes to them any more.
    pub fn finish(self) -> Result<Ended<S>, KernelError> {
        drop(self.stop);
        drop(self.hand_over);
        let died = || KernelError::System {
            doing: "the thread that reads events",
            cause: io::Error::other("died"),
        };
        let ended = self.thread.join().map_err(|_| died())?;
        ended?.ok_or_else(died)
    }
}

fn read<S: Sink>(
    stop: &PipeReader,
    hello: &mpsc::Sender<u32>,
    work: &mpsc::Receiver<S>,
) -> Result<Option<Ended<S>>, KernelError> {
    // SAFETY: only asks for a number.
    let _ = hello.send(unsafe { libc::gettid() } as u32);
    // None comes when opening the events failed, which the starter reports.
    let Ok(mut sink) = work.recv() else {
        return Ok(None);
    };
    let before = own_major_faults();
    pump::run(stop, &mut sink)?;
    let major_faults = own_major_faults().saturating_sub(before);
    Ok(Some(Ended { sink, major_faults }))
}

/// Of this thread.
fn own_major_faults() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: fills the struct, for which zero is valid.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    u64::try_from(usage.ru_majflt).unwrap_or(0)
}
