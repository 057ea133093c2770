//! Every page fault of a program: when, where, and which byte of the model that was.
//!
//! 1. For each cpu one event counts major faults and one, where asked for, minor
//!    ones; both write a sample for every single fault into the ring of that cpu.
//! 2. The first of them also reports what the program maps, so that an address
//!    becomes a file and an offset (`spaces`). Mappings that exist already are
//!    read from `/proc` once.
//! 3. A thread of ours empties the rings (`perf::pump`) into
//!    `log/faults`.
//!
//! Threads and processes that the program starts are included; so is our own reader
//! thread where this process is recorded, unless it is started first, which is why
//! it is. Other threads of ours that are none of the program's business are started
//! before [`FaultRecorder::start`], too.
//!
//! What the kernel does not report: the end of a mapping, until something else is
//! mapped there, and `mremap`; and faults of system calls that pin memory (O_DIRECT
//! into pages never touched), which `/proc/PID/stat` counts, but which happen at no
//! instruction of the program.

mod spaces;

use std::io;
use std::os::fd::RawFd;
use std::path::Path;

use serde::{Deserialize, Serialize};
use support::proc;

use crate::devices::Device;
use crate::discovery::{FileMapping, Known};
use crate::error::{KernelError, Missing};
use crate::kernel_log::Writer;
use crate::kernel_log::faults::{Fault, FaultKind};
use crate::perf::events::Events;
use crate::perf::pump::{Sink, Timed};
use crate::perf::reader::RingReader;
use crate::perf::ring::{Cursor, Record, Ring};
use crate::perf::{self, Attributes, Event, flag, record, sample};
use spaces::{Mapped, Spaces};

/// Whether page faults of this process can be counted, and if not why.
pub fn can_be_counted() -> io::Result<()> {
    let attributes = Attributes {
        kind: perf::SOFTWARE,
        config: perf::PAGE_FAULTS,
        ..Attributes::default()
    };
    Event::open(attributes, 0, None).map(drop)
}

pub use crate::perf::events::Target;

/// The name of the thread that reads the events, and whose faults are not recorded.
pub const READER: &str = "faults";

/// Minor faults can be a million a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MinorFaults {
    LeftOut,
    Recorded,
}

/// What was recorded, and what the kernel counted meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultSummary {
    /// In the log.
    pub major: u64,
    pub minor: u64,
    /// Of those, faults at a byte of a registered file.
    pub in_files: u64,
    /// The others: at memory, programs, libraries, or a mapping that is not known.
    pub elsewhere: u64,
    /// Counted by the kernel apart from the samples. Fewer in the log means that
    /// `lost` were lost.
    pub kernel_major: u64,
    pub kernel_minor: u64,
    /// Of the thread that reads the events, which are not recorded: it would feed
    /// itself.
    pub reader_major: u64,
    /// Records that the kernel had no room for.
    pub lost: u64,
}

/// Kinds of events, by their place in the list that is opened.
const MAJOR: usize = 0;
const MINOR: usize = 1;

/// Records until it is finished or dropped.
#[derive(Debug)]
pub struct FaultRecorder {
    events: Events,
    reader: RingReader<FaultSink>,
    missing: Vec<Missing>,
}

impl FaultRecorder {
    /// Makes the log, which must not exist, and starts.
    pub fn start(
        target: Target,
        files: impl Into<Known>,
        log: &Path,
        minor: MinorFaults,
    ) -> Result<FaultRecorder, KernelError> {
        let known = files.into();
        let reader = RingReader::start(READER)?;
        let mut scope = None;
        let kinds = kinds(minor);
        let events = Events::open(target, reader.tid(), &kinds, |attributes, tid, cpu| {
            let (event, less) = open_in_scope(attributes, tid, cpu)?;
            scope = less.or(scope.take());
            Ok(event)
        })?;
        let mut sink = FaultSink {
            rings: events.map_rings()?,
            descriptors: events.descriptors(),
            parser: Parser {
                known,
                major_ids: events.ids(MAJOR)?,
            },
            spaces: Spaces::default(),
            // Not before, so that no log is left where nothing can be recorded.
            writer: Writer::create(log)?,
            summary: FaultSummary::default(),
        };
        if target == Target::ThisProcess {
            events.enable()?;
            // After enabling, so that a mapping is in one of the two at least.
            let pid = std::process::id();
            let maps = proc::own_maps()
                .map_err(KernelError::io(Path::new("/proc/self/maps"), "cannot read"))?;
            sink.spaces.read_maps(pid, &maps, &sink.parser.known);
        }
        reader.begin(sink);
        Ok(FaultRecorder {
            events,
            reader,
            missing: scope.into_iter().collect(),
        })
    }

    /// What could not be recorded although the rest can.
    pub fn missing(&self) -> &[Missing] {
        &self.missing
    }

    /// Stops, and waits until everything is in the log.
    pub fn finish(self) -> Result<FaultSummary, KernelError> {
        self.events.disable()?;
        let ended = self.reader.finish()?;
        Ok(FaultSummary {
            reader_major: ended.major_faults,
            kernel_major: self.events.count(MAJOR)?,
            kernel_minor: self.events.count(MINOR)?,
            ..ended.sink.summary
        })
    }
}

/// Whether page faults can be recorded here, and what of them cannot.
pub fn probe() -> Option<Missing> {
    let cpu = *perf::online_cpus().unwrap_or_default().first()?;
    // SAFETY: only asks for a number.
    let tid = unsafe { libc::gettid() } as u32;
    let attributes = Attributes {
        flags: flag::DISABLED,
        ..attributes(perf::PAGE_FAULTS_MAJ)
    };
    open_in_scope(attributes, tid, cpu).map_or_else(Some, |(_, missing)| missing)
}

/// What is opened. What is mapped is reported on the cpu where it happens.
fn kinds(minor: MinorFaults) -> Vec<Attributes> {
    let mut major = attributes(perf::PAGE_FAULTS_MAJ);
    major.flags |= flag::MMAP
        | flag::MMAP2
        | flag::MMAP_DATA
        | flag::TASK
        | flag::COMM
        | flag::COMM_EXEC
        | flag::SAMPLE_ID_ALL;
    let mut kinds = vec![major];
    if minor == MinorFaults::Recorded {
        let mut minor = attributes(perf::PAGE_FAULTS_MIN);
        minor.flags |= flag::SAMPLE_ID_ALL;
        kinds.push(minor);
    }
    kinds
}

fn attributes(config: u64) -> Attributes {
    Attributes {
        kind: perf::SOFTWARE,
        config,
        sample_period: 1,
        sample_type: sample::IDENTIFIER
            | sample::IP
            | sample::TID
            | sample::TIME
            | sample::ADDR
            | sample::CPU,
        flags: flag::INHERIT | flag::USE_CLOCKID | flag::WATERMARK,
        clock: libc::CLOCK_MONOTONIC,
        ..Attributes::default()
    }
}

fn open_in_scope(
    attributes: Attributes,
    tid: u32,
    cpu: u32,
) -> Result<(Event, Option<Missing>), Missing> {
    perf::open_in_scope(
        attributes,
        tid,
        cpu,
        "page faults",
        "page faults inside of system calls",
    )
}

#[derive(Clone, Copy)]
enum Item {
    Fault(Fault),
    Mapped { pid: u32, mapped: Mapped },
    Forked { parent: u32, child: u32 },
    Exec { pid: u32 },
}

#[derive(Debug)]
struct FaultSink {
    rings: Vec<Ring>,
    descriptors: Vec<RawFd>,
    parser: Parser,
    spaces: Spaces,
    writer: Writer<Fault>,
    summary: FaultSummary,
}

/// From records to items.
#[derive(Debug)]
struct Parser {
    known: Known,
    major_ids: Vec<u64>,
}

impl Parser {
    fn parse(&self, record: Record<'_>) -> Option<Timed<Item>> {
        let mut body = Cursor(record.body);
        match record.kind {
            record::SAMPLE => {
                let (id, instruction) = (body.u64(), body.u64());
                let (pid, tid) = (body.u32(), body.u32());
                let (nanos, address) = (body.u64(), body.u64());
                let cpu = body.u32() as u16;
                let kind = match self.major_ids.binary_search(&id).is_ok() {
                    true => FaultKind::Major,
                    false => FaultKind::Minor,
                };
                let fault = Fault {
                    nanos,
                    address,
                    instruction,
                    pid,
                    tid,
                    cpu,
                    kind,
                    place: None,
                };
                let item = Item::Fault(fault);
                Some(Timed { nanos, item })
            }
            record::MMAP2 => {
                let (pid, _tid) = (body.u32(), body.u32());
                let (start, length, file_offset) = (body.u64(), body.u64(), body.u64());
                let device = Device {
                    major: body.u32(),
                    minor: body.u32(),
                };
                let (inode, _generation) = (body.u64(), body.u64());
                let (protection, _flags) = (body.u32(), body.u32());
                let (path, nanos) = text_and_time(body)?;
                let file = FileMapping {
                    device,
                    inode,
                    path,
                    protection,
                };
                let mapped = Mapped {
                    start,
                    end: start.saturating_add(length),
                    file_offset,
                    file: self.known.find(&file),
                };
                let item = Item::Mapped { pid, mapped };
                Some(Timed { nanos, item })
            }
            record::FORK => {
                let (child, parent) = (body.u32(), body.u32());
                let (_tid, _parent_tid) = (body.u32(), body.u32());
                let item = Item::Forked { parent, child };
                let nanos = body.u64();
                (child != parent).then_some(Timed { nanos, item })
            }
            record::COMM if record.misc & record::MISC_COMM_EXEC != 0 => {
                let (pid, _tid) = (body.u32(), body.u32());
                let (_name, nanos) = text_and_time(body)?;
                let item = Item::Exec { pid };
                Some(Timed { nanos, item })
            }
            _ => None,
        }
    }
}

impl Sink for FaultSink {
    type Item = Item;

    fn descriptors(&self) -> Vec<RawFd> {
        self.descriptors.clone()
    }

    fn drain(&mut self, items: &mut Vec<Timed<Item>>) -> Result<(), KernelError> {
        for ring in &mut self.rings {
            ring.drain(|record| match record.kind {
                record::LOST => {
                    let mut body = Cursor(record.body);
                    let _id = body.u64();
                    self.summary.lost += body.u64();
                }
                _ => items.extend(self.parser.parse(record)),
            });
        }
        Ok(())
    }

    fn take(&mut self, timed: Timed<Item>) -> Result<(), KernelError> {
        match timed.item {
            Item::Fault(mut fault) => {
                fault.place = self.spaces.find(fault.pid, fault.address);
                match fault.kind {
                    FaultKind::Major => self.summary.major += 1,
                    FaultKind::Minor => self.summary.minor += 1,
                }
                match fault.place {
                    Some(_) => self.summary.in_files += 1,
                    None => self.summary.elsewhere += 1,
                }
                return self.writer.push(&fault);
            }
            Item::Mapped { pid, mapped } => self.spaces.map(pid, mapped),
            Item::Forked { parent, child } => self.spaces.fork(parent, child),
            Item::Exec { pid } => self.spaces.exec(pid),
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), KernelError> {
        self.writer.flush()
    }
}

/// A text that is filled up with zeros to a multiple of 8, and behind it what
/// `SAMPLE_ID_ALL` adds: thread, time, cpu, identifier.
fn text_and_time(body: Cursor<'_>) -> Option<(&[u8], u64)> {
    let text = body.0.split(|byte| *byte == 0).next()?;
    let added = body.0.get(body.0.len().checked_sub(32)?..)?;
    let mut added = Cursor(added);
    let _thread = added.u64();
    Some((text, added.u64()))
}
