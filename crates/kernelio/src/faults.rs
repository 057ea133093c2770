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

use std::fs;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::mpsc;
use std::thread::JoinHandle;

use serde::{Deserialize, Serialize};
use support::proc;

use crate::devices::Device;
use crate::discovery::{FileMapping, Known};
use crate::error::{KernelError, Missing};
use crate::kernel_log::Writer;
use crate::kernel_log::faults::{Fault, FaultKind};
use crate::perf::pump::{self, Sink, Timed};
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

/// Whose faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// All threads that this process has now, and what they start.
    ThisProcess,
    /// A child between fork and exec, from its exec on: see
    /// [`launch::spawn_held`](crate::launch::spawn_held).
    Child(u32),
}

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

/// Records until it is finished or dropped.
#[derive(Debug)]
pub struct FaultRecorder {
    events: Events,
    /// Closing it ends the reader.
    stop: PipeWriter,
    reader: JoinHandle<Result<FaultSummary, KernelError>>,
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
        let (stop_reader, stop) = io::pipe().map_err(KernelError::system("cannot make a pipe"))?;
        let (hello, greeted) = mpsc::channel();
        let (hand_over, work) = mpsc::channel();
        let reader = std::thread::Builder::new()
            .name(READER.to_owned())
            .spawn(move || read(&stop_reader, &hello, &work))
            .map_err(KernelError::system("cannot start a thread"))?;
        // Until the events are open: a thread started later would inherit them.
        let reader_tid = greeted.recv().unwrap_or(0);
        let (events, scope) = Events::open(target, reader_tid, minor)?;
        let mut sink = FaultSink {
            rings: events.map_rings()?,
            descriptors: events.owners().iter().map(Event::descriptor).collect(),
            parser: Parser {
                known,
                major_ids: events.major_ids.clone(),
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
        // Fails only when the reader has died, which `finish` reports.
        let _ = hand_over.send(sink);
        Ok(FaultRecorder {
            events,
            stop,
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
        for event in self.events.all() {
            event
                .disable()
                .map_err(KernelError::system("cannot stop counting page faults"))?;
        }
        drop(self.stop);
        let summary = self.reader.join().map_err(|_| KernelError::System {
            doing: "the reader of page faults",
            cause: io::Error::other("died"),
        })?;
        let mut summary = summary?;
        let count = |events: &[Event]| -> Result<u64, KernelError> {
            let counts: io::Result<Vec<u64>> = events.iter().map(Event::count).collect();
            Ok(counts
                .map_err(KernelError::system(
                    "cannot read how many page faults there were",
                ))?
                .iter()
                .sum())
        };
        summary.kernel_major = count(&self.events.major)?;
        summary.kernel_minor = count(&self.events.minor)?;
        Ok(summary)
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

/// The events of one recording.
#[derive(Debug)]
struct Events {
    /// For each task, one for each cpu.
    major: Vec<Event>,
    minor: Vec<Event>,
    /// Sorted: there is one for each thread and cpu, and each fault is looked up.
    major_ids: Vec<u64>,
    cpus: usize,
}

impl Events {
    fn open(
        target: Target,
        except_tid: u32,
        minor: MinorFaults,
    ) -> Result<(Events, Option<Missing>), KernelError> {
        let cpus = perf::online_cpus().map_err(KernelError::system("cannot list the cpus"))?;
        let (tids, start_flags) = match target {
            Target::Child(pid) => (vec![pid], flag::DISABLED | flag::ENABLE_ON_EXEC),
            Target::ThisProcess => (own_threads(except_tid)?, flag::DISABLED),
        };
        // What is mapped is reported on the cpu where it happens.
        let sideband = flag::MMAP
            | flag::MMAP2
            | flag::MMAP_DATA
            | flag::TASK
            | flag::COMM
            | flag::COMM_EXEC
            | flag::SAMPLE_ID_ALL;
        let mut events = Events {
            major: Vec::new(),
            minor: Vec::new(),
            major_ids: Vec::new(),
            cpus: cpus.len(),
        };
        let mut missing = None;
        for tid in tids {
            for cpu in &cpus {
                let mut major = attributes(perf::PAGE_FAULTS_MAJ);
                major.flags |= start_flags | sideband;
                let (event, less) = match open_in_scope(major, tid, *cpu) {
                    Ok(opened) => opened,
                    // A thread may end between the list and here.
                    Err(_) if target == Target::ThisProcess && !is_thread(tid) => break,
                    Err(missing) => return Err(KernelError::Missing(missing)),
                };
                let failed = || KernelError::system("cannot set up page fault events");
                events.major_ids.push(event.id().map_err(failed())?);
                events.major.push(event);
                if minor == MinorFaults::Recorded {
                    let mut minor = attributes(perf::PAGE_FAULTS_MIN);
                    minor.flags |= start_flags | flag::SAMPLE_ID_ALL;
                    let (event, _) =
                        open_in_scope(minor, tid, *cpu).map_err(KernelError::Missing)?;
                    events.minor.push(event);
                }
                missing = less.or(missing);
            }
        }
        events.major_ids.sort_unstable();
        Ok((events, missing))
    }

    fn all(&self) -> impl Iterator<Item = &Event> {
        self.major.iter().chain(&self.minor)
    }

    /// One event for each cpu, whose ring the others of that cpu write into, too.
    fn owners(&self) -> &[Event] {
        &self.major[..self.cpus.min(self.major.len())]
    }

    fn map_rings(&self) -> Result<Vec<Ring>, KernelError> {
        let failed = || KernelError::system("cannot map memory for page fault events");
        let owners = self.owners();
        let others = self.major[owners.len()..].iter().enumerate();
        let map = |event| pump::map_ring(event, owners.len());
        let rings: io::Result<Vec<Ring>> = owners.iter().map(map).collect();
        let rings = rings.map_err(failed())?;
        for (number, event) in others.chain(self.minor.iter().enumerate()) {
            event
                .send_to(&owners[number % owners.len()])
                .map_err(failed())?;
        }
        Ok(rings)
    }

    fn enable(&self) -> Result<(), KernelError> {
        for event in self.all() {
            event
                .enable()
                .map_err(KernelError::system("cannot start counting page faults"))?;
        }
        Ok(())
    }
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

/// With the faults inside of system calls, or without where those are not allowed.
fn open_in_scope(
    mut attributes: Attributes,
    tid: u32,
    cpu: u32,
) -> Result<(Event, Option<Missing>), Missing> {
    let whole = match Event::open(attributes, tid, Some(cpu)) {
        Ok(event) => return Ok((event, None)),
        Err(cause) => cause,
    };
    attributes.flags |= flag::EXCLUDE_KERNEL;
    let level = perf::paranoid_level();
    let fix = "allow it with `sudo sysctl kernel.perf_event_paranoid=1`, or run with sudo";
    match Event::open(attributes, tid, Some(cpu)) {
        Ok(event) => Ok((
            event,
            Some(Missing {
                what: "page faults inside of system calls".to_owned(),
                why: format!("kernel.perf_event_paranoid is {}", level.unwrap_or(2)),
                fix: fix.to_owned(),
            }),
        )),
        Err(_) => Err(Missing {
            what: "page faults".to_owned(),
            why: match (whole.raw_os_error(), level) {
                (Some(libc::EMFILE), _) => "too many files are open".to_owned(),
                (_, Some(level)) => format!(
                    "{}, and kernel.perf_event_paranoid is {level}",
                    rundir::error::reason(&whole)
                ),
                (_, None) => "this kernel has no perf events".to_owned(),
            },
            fix: match whole.raw_os_error() {
                Some(libc::EMFILE) => "raise the limit with `ulimit -n 65536`".to_owned(),
                _ => fix.to_owned(),
            },
        }),
    }
}

fn own_threads(except_tid: u32) -> Result<Vec<u32>, KernelError> {
    let folder = Path::new("/proc/self/task");
    let entries = fs::read_dir(folder).map_err(KernelError::io(folder, "cannot list"))?;
    let tids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    Ok(tids.filter(|tid| *tid != except_tid).collect())
}

fn is_thread(tid: u32) -> bool {
    Path::new(&format!("/proc/self/task/{tid}")).exists()
}

/// The reader thread.
fn read(
    stop: &PipeReader,
    hello: &mpsc::Sender<u32>,
    work: &mpsc::Receiver<FaultSink>,
) -> Result<FaultSummary, KernelError> {
    // SAFETY: only asks for a number.
    let _ = hello.send(unsafe { libc::gettid() } as u32);
    // None comes when opening the events failed, which the starter reports.
    let Ok(mut sink) = work.recv() else {
        return Ok(FaultSummary::default());
    };
    let before = own_major_faults();
    pump::run(stop, &mut sink)?;
    sink.summary.reader_major = own_major_faults().saturating_sub(before);
    Ok(sink.summary)
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

#[derive(Clone, Copy)]
enum Item {
    Fault(Fault),
    Mapped { pid: u32, mapped: Mapped },
    Forked { parent: u32, child: u32 },
    Exec { pid: u32 },
}

struct FaultSink {
    rings: Vec<Ring>,
    descriptors: Vec<RawFd>,
    parser: Parser,
    spaces: Spaces,
    writer: Writer<Fault>,
    summary: FaultSummary,
}

/// From records to items.
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
