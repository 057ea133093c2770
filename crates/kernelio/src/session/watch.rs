//! The thread that samples which pages of the model are in memory.
//!
//! It looks every few milliseconds how many tokens there are, and samples all files
//! when their number has crossed the next multiple. A file that is discovered on the
//! way is sampled at once. The samples of the end are taken when the final files are
//! known, by whoever finishes (`rewrite`).

use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use trace::clock::now_nanos;

use super::{RESIDENCY, TokenCount};
use crate::discovery::Known;
use crate::error::{KernelError, Missing};
use crate::kernel_log::residency::{ResidencyWriter, Sample};
use crate::residency::ResidencyError;
use crate::sampler::Sampler;

/// Between two looks at the number of tokens, and at discovered files.
const PAUSE: Duration = Duration::from_millis(5);
/// Between two looks at what a program has mapped: its kernel lists that under a lock
/// which the program needs for its own mappings.
const MAPS_PAUSE: Duration = Duration::from_millis(100);

/// Samples until it is finished or dropped.
#[derive(Debug)]
pub(super) struct Watch {
    /// Closing it ends the thread.
    stop: Sender<()>,
    thread: JoinHandle<Result<Watched, KernelError>>,
}

/// What came of it.
#[derive(Debug)]
pub(super) struct Watched {
    pub missing: Vec<Missing>,
}

impl Watch {
    /// Makes the log, takes the samples of the begin, and starts the thread. `look_at`
    /// is a process whose mappings are looked at for files that may be models.
    pub fn start(
        known: &Known,
        look_at: Option<u32>,
        log: &Path,
        every: u64,
        tokens: &TokenCount,
        missing: &mut Vec<Missing>,
    ) -> Result<Watch, KernelError> {
        let mut watcher = Watcher {
            known: known.clone(),
            writer: ResidencyWriter::create(log)?,
            samplers: Vec::new(),
            every,
            next: 0,
            tokens: TokenCount::clone(tokens),
            missing: Vec::new(),
        };
        watcher.look()?;
        watcher.next = next_multiple(watcher.count(), every);
        missing.append(&mut watcher.missing);
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("residency".to_owned())
            .spawn(move || {
                let mut looked = Instant::now();
                while stopped.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
                    if let (Some(pid), Known::Found(discovery)) = (look_at, &watcher.known)
                        && looked.elapsed() >= MAPS_PAUSE
                    {
                        discovery.look_at(pid);
                        looked = Instant::now();
                    }
                    watcher.look()?;
                }
                Ok(Watched {
                    missing: watcher.missing,
                })
            })
            .map_err(KernelError::system("cannot start a thread"))?;
        Ok(Watch { stop, thread })
    }

    pub fn finish(self) -> Result<Watched, KernelError> {
        drop(self.stop);
        self.thread.join().map_err(|_| KernelError::System {
            doing: "the sampler of pages in memory",
            cause: std::io::Error::other("died"),
        })?
    }
}

struct Watcher {
    known: Known,
    writer: ResidencyWriter,
    /// By the number of the file; `None` where the kernel does not tell.
    samplers: Vec<Option<Sampler>>,
    every: u64,
    next: u64,
    tokens: TokenCount,
    missing: Vec<Missing>,
}

impl Watcher {
    fn count(&self) -> u64 {
        (self.tokens)()
    }

    /// Samples new files, and all when it is time.
    fn look(&mut self) -> Result<(), KernelError> {
        let old = self.samplers.len();
        if self.known.len() > old {
            let files = self.known.files();
            for (_, file) in files.iter().skip(old) {
                let sampler = told(Sampler::open(&file.path), &mut self.missing);
                self.samplers.push(sampler);
            }
        }
        let count = self.count();
        let is_time = self.every > 0 && count >= self.next && self.next > 0;
        if is_time {
            self.next = next_multiple(count, self.every);
        }
        let from = if is_time { 0 } else { old };
        for (number, slot) in self.samplers.iter_mut().enumerate().skip(from) {
            let Some(sampler) = slot else {
                continue;
            };
            let nanos = now_nanos();
            let Some(residency) = told(sampler.sample(), &mut self.missing) else {
                *slot = None;
                continue;
            };
            self.writer.push(&Sample {
                nanos,
                token: count,
                file: number as u32,
                residency,
            })?;
        }
        Ok(())
    }
}

/// The first multiple behind `count`; 0 when there is none.
fn next_multiple(count: u64, every: u64) -> u64 {
    match every {
        0 => 0,
        every => (count / every).saturating_add(1).saturating_mul(every),
    }
}

/// The value, or one more missing thing.
pub(super) fn told<T>(result: Result<T, ResidencyError>, missing: &mut Vec<Missing>) -> Option<T> {
    result
        .map_err(|error| {
            missing.push(Missing {
                what: RESIDENCY.to_owned(),
                fix: match &error {
                    ResidencyError::NotAllowed { .. } => "record as the owner of the file",
                    _ => "the rest is recorded",
                }
                .to_owned(),
                why: error.to_string(),
            });
        })
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multiples_follow_the_count() {
        let check = |count, every, expect| assert_eq!(next_multiple(count, every), expect);
        check(0, 4, 4);
        check(3, 4, 4);
        check(4, 4, 8);
        check(9, 4, 12);
        check(9, 0, 0);
        check(u64::MAX, 2, u64::MAX);
    }
}
