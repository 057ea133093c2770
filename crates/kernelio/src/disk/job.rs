//! Reading a file around and around: what is asked for next, what a completion
//! means, and when to stop. The readers below only carry requests to the kernel.

use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use support::direct::Alignment;
use support::random::Random;

use super::{Method, Setting, pread, ring};
use crate::error::CeilingError;
use crate::rate::{Meter, Rates};
use crate::target::Target;

/// A file and a method that works on it.
pub(crate) struct Job<'a> {
    target: &'a Target,
    method: Method,
    /// Open for direct reads; `None` for reads through the page cache.
    direct: Option<(File, Alignment)>,
    next_offset: u64,
}

/// How far one run goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Span {
    Time(Duration),
    Bytes(u64),
}

/// Where the next block lies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Order {
    /// Behind the last one.
    OneByOne,
    /// Anywhere.
    Scattered(Random),
}

/// What one run found.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub rates: Rates,
    pub bytes_read: u64,
    pub elapsed: Duration,
}

/// Why a reader gave up.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The kernel answered a read with an error.
    Read { request: Request, cause: io::Error },
    /// The file ends before it should.
    Shrunk { file_offset: u64 },
    /// Nothing could be asked: the ring, a thread or memory is missing.
    Setup(SetupFailure),
}

#[derive(Debug)]
pub(crate) enum SetupFailure {
    Ring(io::Error),
    Other(CeilingError),
}

/// What every reader needs to know.
pub(crate) struct ReadProps<'a> {
    pub file: &'a File,
    pub setting: Setting,
    /// Of addresses.
    pub memory_alignment_bytes: u32,
    /// Of offsets and lengths; 1 through the page cache.
    pub offset_alignment_bytes: u32,
}

/// A block, and how much of it is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    offset: u64,
    /// Up to the end of the file: the last block is shorter.
    length_bytes: u32,
    done_bytes: u32,
}

/// What a completion means for its request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Complete {
        bytes: u32,
    },
    /// A short read: ask for the rest.
    Continue,
    Shrunk {
        file_offset: u64,
    },
}

impl Request {
    /// Where in the file to read.
    pub fn file_offset(&self) -> u64 {
        self.offset + u64::from(self.done_bytes)
    }

    /// How much to ask for: with O_DIRECT a full unit even at the end of the file.
    pub fn ask_bytes(&self, alignment_bytes: u32) -> u32 {
        (self.length_bytes - self.done_bytes).next_multiple_of(alignment_bytes)
    }

    /// Where in the request's block of memory the bytes go.
    pub fn done_bytes(&self) -> usize {
        self.done_bytes as usize
    }

    /// Whether this is the first read of a round.
    pub fn begins_round(&self) -> bool {
        self.file_offset() == 0
    }

    /// The part of the file that the request covers.
    pub fn range(&self) -> (u64, u32) {
        (self.offset, self.length_bytes)
    }

    /// The kernel returned so many bytes.
    pub fn advance(&mut self, returned_bytes: u32, alignment_bytes: u32) -> Step {
        if returned_bytes >= self.length_bytes - self.done_bytes {
            return Step::Complete {
                bytes: self.length_bytes,
            };
        }
        // The rest must start at an aligned offset again, so what is left over
        // is read twice.
        let whole = returned_bytes / alignment_bytes * alignment_bytes;
        if whole == 0 {
            return Step::Shrunk {
                file_offset: self.file_offset() + u64::from(returned_bytes),
            };
        }
        self.done_bytes += whole;
        Step::Continue
    }
}

/// What is next, and what has been done; one for all readers of a run.
pub(crate) struct Ledger {
    file_bytes: u64,
    block_bytes: u32,
    next_offset: u64,
    /// Of the offsets of scattered blocks.
    alignment_bytes: u64,
    order: Order,
    span: Span,
    asked_bytes: u64,
    meter: Meter,
}

impl Ledger {
    /// The next block; `None` when the run is over. The clock starts with the
    /// first: what readers prepare before it, memory above all, is not reading.
    pub fn next(&mut self, now: Instant) -> Option<Request> {
        if self.asked_bytes == 0 {
            self.meter.restart(now);
        }
        let left = match self.span {
            Span::Time(time) if self.meter.has_counted_for(time, now) => return None,
            Span::Time(_) => u64::MAX,
            Span::Bytes(bytes) => bytes - self.asked_bytes,
        };
        if let Order::Scattered(random) = &mut self.order {
            let last = self.file_bytes.saturating_sub(u64::from(self.block_bytes));
            let offset = random.below(last + 1);
            self.next_offset = offset / self.alignment_bytes * self.alignment_bytes;
        }
        let length = (self.file_bytes - self.next_offset)
            .min(u64::from(self.block_bytes))
            .min(left);
        if length == 0 {
            return None;
        }
        let request = Request {
            offset: self.next_offset,
            length_bytes: length as u32,
            done_bytes: 0,
        };
        self.asked_bytes += length;
        self.next_offset += length;
        if self.next_offset == self.file_bytes {
            self.next_offset = 0;
        }
        Some(request)
    }

    pub fn complete(&mut self, bytes: u32, now: Instant) {
        self.meter.add(u64::from(bytes), now);
    }
}

impl<'a> Job<'a> {
    /// Opens the file for a method and reads one block, because some file systems
    /// accept O_DIRECT and refuse the read.
    pub fn probe(target: &'a Target, method: Method) -> Result<Job<'a>, CeilingError> {
        let unavailable = |why: String| CeilingError::Unavailable {
            path: target.path.clone(),
            method,
            why,
        };
        let direct = match (method, target.direct) {
            (Method::PreadBuffered, _) => None,
            (_, None) => return Err(unavailable("the file system has no O_DIRECT".to_owned())),
            (_, Some(alignment)) => match target.open_direct() {
                Ok(file) => Some((file, alignment)),
                Err(cause) if is_refusal(&cause) => {
                    let cause = rundir::error::reason(&cause);
                    return Err(unavailable(format!("opening with O_DIRECT: {cause}")));
                }
                Err(cause) => {
                    return Err(CeilingError::Open {
                        path: target.path.clone(),
                        doing: "cannot be opened with O_DIRECT",
                        cause,
                    });
                }
            },
        };
        let mut job = Job {
            target,
            method,
            direct,
            next_offset: 0,
        };
        let setting = job.fitting(Setting {
            block_bytes: 4096,
            depth: 1,
        });
        let bytes = target.size_bytes.min(u64::from(setting.block_bytes));
        match job.run(setting, Span::Bytes(bytes), Duration::from_secs(1)) {
            Ok(_) => {
                job.rewind();
                Ok(job)
            }
            Err(CeilingError::Read { cause, .. }) if is_refusal(&cause) => {
                let cause = rundir::error::reason(&cause);
                Err(unavailable(format!("the first read: {cause}")))
            }
            Err(error) => Err(error),
        }
    }

    pub fn method(&self) -> Method {
        self.method
    }

    pub fn file_bytes(&self) -> u64 {
        self.target.size_bytes
    }

    pub fn direct_alignment_bytes(&self) -> Option<u32> {
        Some(self.direct.as_ref()?.1.offset_bytes)
    }

    /// The setting with its block size rounded up to what direct reads ask for.
    pub fn fitting(&self, setting: Setting) -> Setting {
        let alignment = self.direct_alignment_bytes().unwrap_or(1);
        Setting {
            block_bytes: setting.block_bytes.next_multiple_of(alignment),
            ..setting
        }
    }

    /// The next run starts at the first byte.
    pub fn rewind(&mut self) {
        self.next_offset = 0;
    }

    /// Reads on from where the last run stopped.
    pub fn run(
        &mut self,
        setting: Setting,
        span: Span,
        slice: Duration,
    ) -> Result<Outcome, CeilingError> {
        self.run_in(Order::OneByOne, setting, span, slice)
    }

    pub fn run_in(
        &mut self,
        order: Order,
        setting: Setting,
        span: Span,
        slice: Duration,
    ) -> Result<Outcome, CeilingError> {
        let (file, alignment) = match &self.direct {
            Some((file, alignment)) => (file, *alignment),
            None => (
                &self.target.file,
                Alignment {
                    memory_bytes: 1,
                    offset_bytes: 1,
                },
            ),
        };
        let props = ReadProps {
            file,
            setting,
            memory_alignment_bytes: alignment.memory_bytes,
            offset_alignment_bytes: alignment.offset_bytes,
        };
        let unit = u64::from(alignment.offset_bytes);
        let mut ledger = Ledger {
            file_bytes: self.target.size_bytes,
            block_bytes: setting.block_bytes,
            // A run over a number of bytes may have stopped inside a unit.
            next_offset: self.next_offset / unit * unit,
            alignment_bytes: unit,
            order,
            span,
            asked_bytes: 0,
            meter: Meter::start(Instant::now(), slice, setting.depth),
        };
        let result = match self.method {
            Method::IoUringDirect => ring::read(&props, &mut ledger),
            Method::PreadDirect => pread::read(&props, &mut ledger, pread::Cache::Bypassed),
            Method::PreadBuffered => pread::read(&props, &mut ledger, pread::Cache::Dropped),
        };
        result.map_err(|failure| self.error(failure, alignment.offset_bytes))?;
        self.next_offset = ledger.next_offset;
        Ok(Outcome {
            bytes_read: ledger.meter.total_bytes(),
            elapsed: ledger.meter.elapsed(),
            rates: ledger.meter.rates(),
        })
    }

    fn error(&self, failure: Failure, alignment_bytes: u32) -> CeilingError {
        let path = self.target.path.clone();
        match failure {
            Failure::Read { request, cause } => CeilingError::Read {
                path,
                file_offset: request.file_offset(),
                length_bytes: u64::from(request.ask_bytes(alignment_bytes)),
                method: self.method,
                cause,
            },
            Failure::Shrunk { file_offset } => CeilingError::Shrunk {
                path,
                file_offset,
                file_bytes: self.target.size_bytes,
            },
            Failure::Setup(SetupFailure::Ring(cause)) => CeilingError::Unavailable {
                path,
                method: self.method,
                why: format!("io_uring: {}", rundir::error::reason(&cause)),
            },
            Failure::Setup(SetupFailure::Other(error)) => error,
        }
    }
}

/// Whether an error says "not this way" rather than "not this data".
fn is_refusal(cause: &io::Error) -> bool {
    matches!(
        cause.raw_os_error(),
        Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS | libc::EPERM)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(file_bytes: u64, block_bytes: u32, span: Span) -> Ledger {
        Ledger {
            file_bytes,
            block_bytes,
            next_offset: 0,
            alignment_bytes: 512,
            order: Order::OneByOne,
            span,
            asked_bytes: 0,
            meter: Meter::start(Instant::now(), Duration::from_secs(1), 1),
        }
    }

    #[test]
    fn blocks_cover_the_file_once_a_round() {
        for (file_bytes, block_bytes) in [(1, 4096), (4095, 4096), (4096, 4096), (10_001, 4096)] {
            let mut ledger = ledger(file_bytes, block_bytes, Span::Bytes(3 * file_bytes));
            let mut expect = 0;
            while let Some(request) = ledger.next(Instant::now()) {
                assert_eq!(request.file_offset(), expect % file_bytes);
                assert!(request.ask_bytes(512) <= block_bytes);
                assert_eq!(request.ask_bytes(512) % 512, 0);
                expect += u64::from(request.length_bytes);
            }
            assert_eq!(expect, 3 * file_bytes);
        }
    }

    #[test]
    fn scattered_blocks_are_aligned_and_inside_of_the_file() {
        for file_bytes in [1, 4095, 100_000] {
            let mut ledger = ledger(file_bytes, 4096, Span::Bytes(50 * file_bytes.min(4096)));
            ledger.order = Order::Scattered(Random(1));
            let mut offsets = std::collections::BTreeSet::new();
            while let Some(request) = ledger.next(Instant::now()) {
                assert_eq!(request.file_offset() % 512, 0);
                let (offset, length) = request.range();
                assert!(offset + u64::from(length) <= file_bytes);
                offsets.insert(offset);
            }
            assert_eq!(offsets.len() > 10, file_bytes > 4096);
        }
    }

    #[test]
    fn short_reads_go_on_at_an_aligned_offset() {
        let mut request = ledger(10_000, 8192, Span::Bytes(10_000))
            .next(Instant::now())
            .unwrap();
        assert_eq!(request.advance(1000, 512), Step::Continue);
        assert_eq!((request.file_offset(), request.ask_bytes(512)), (512, 7680));
        assert_eq!(request.advance(7680, 512), Step::Complete { bytes: 8192 });
    }

    #[test]
    fn the_last_block_ends_with_the_file_even_if_the_file_has_grown() {
        let mut ledger = ledger(5000, 4096, Span::Bytes(5000));
        ledger.next(Instant::now()).unwrap();
        let mut request = ledger.next(Instant::now()).unwrap();
        assert_eq!(request.ask_bytes(4096), 4096);
        assert_eq!(request.advance(4096, 4096), Step::Complete { bytes: 904 });
    }

    #[test]
    fn an_early_end_is_named_with_its_offset() {
        let mut request = ledger(10_000, 8192, Span::Bytes(10_000))
            .next(Instant::now())
            .unwrap();
        assert_eq!(request.advance(4096, 4096), Step::Continue);
        assert_eq!(
            request.advance(100, 4096),
            Step::Shrunk { file_offset: 4196 }
        );
    }

    #[test]
    fn a_file_that_shrinks_while_it_is_read_is_an_error_with_every_method() {
        let folder = tempfile::tempdir().unwrap();
        for method in Method::ALL {
            let path = folder.path().join("model");
            std::fs::write(&path, vec![1u8; 300_000]).unwrap();
            let target = Target::open(&path).unwrap();
            let mut job = match Job::probe(&target, method) {
                Ok(job) => job,
                Err(CeilingError::Unavailable { .. }) => continue,
                Err(error) => panic!("{error}"),
            };
            let writer = File::options().write(true).open(&path).unwrap();
            writer.set_len(100_000).unwrap();
            let setting = Setting {
                block_bytes: 65_536,
                depth: 3,
            };
            let error = job
                .run(setting, Span::Bytes(600_000), Duration::from_secs(1))
                .unwrap_err();
            // Several reads are in flight: any of those past the end may be first.
            match error {
                CeilingError::Shrunk {
                    file_offset,
                    file_bytes,
                    ..
                } => assert!(file_offset >= 100_000 && file_bytes == 300_000),
                other => panic!("{method}: {other}"),
            }
        }
    }
}
