//! What the threads of a program do on the processors: samples of their stacks, when they
//! run and when not, events that the processors count, and how busy the machine is.
//!
//! 1. For each thread and cpu one event samples the stack some 99 times a second of the
//!    time that the thread runs, and reports each time that it begins or ceases to run.
//! 2. A thread of ours empties the rings, finds out who called whom (`programs`) and writes
//!    `log/cpu` and `log/stacks`. Names are looked up at once: files may be gone later.
//! 3. Another one asks a few times a second how busy the machine is (`machine`), for
//!    `log/machine`.
//!
//! Events of the processor (cycles, misses) are sampled as well, where it counts them and
//! the kernel lets us: each sample stands for so many events, of whatever ran then.

mod code;
mod kernel_symbols;
mod machine;
mod programs;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{KernelError, Missing};
use crate::kernel_log::cpu::{Counter, CpuEvent, What};
use crate::kernel_log::stacks::{Function, StackWriter};
use crate::kernel_log::{self, Writer};
use crate::perf::events::{Events, Target};
use crate::perf::pump::{Sink, Timed};
use crate::perf::reader::RingReader;
use crate::perf::ring::{Cursor, Record, Ring};
use crate::perf::{self, Attributes, Event, flag, hardware, record, sample};
use kernel_symbols::KernelSymbols;
use machine::MachineWatch;
use programs::{Programs, Registers};

/// Samples a second, of the time that a thread runs. No round number, or what a program
/// does every 10 ms would be sampled always or never.
pub const SAMPLES_PER_SECOND: u64 = 99;
/// Copied of a stack with each sample. A record has at most 64 KiB.
const STACK_BYTES: u32 = 48 << 10;
/// The name of the thread that reads the events.
pub const READER: &str = "stacks";
/// The name of the thread that looks at the machine.
pub const MACHINE_READER: &str = "machine";
/// A return address from here on is the kernel's; marks between are larger still.
const KERNEL_BEGINS: u64 = 1 << 63;
const FIRST_MARK: u64 = u64::MAX - 4095;

#[cfg(target_arch = "x86_64")]
mod registers {
    /// BP, SP, IP, in the order of their bits.
    pub const MASK: u64 = 1 << 6 | 1 << 7 | 1 << 8;
}
#[cfg(target_arch = "aarch64")]
mod registers {
    /// X29 (the frame), LR, SP, PC.
    pub const MASK: u64 = 1 << 29 | 1 << 30 | 1 << 31 | 1 << 32;
}

/// What was recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CpuSummary {
    pub samples: u64,
    /// Each time that a thread began or ceased to run.
    pub switches: u64,
    pub samples_per_second: u64,
    /// Names of the events of processors that were counted.
    pub counters: Vec<String>,
    /// Records that the kernel had no room for.
    pub lost: u64,
}

/// Records until it is finished or dropped.
#[derive(Debug)]
pub struct CpuRecorder {
    events: Events,
    reader: RingReader<CpuSink>,
    machine: MachineWatch,
    counters: Vec<Counter>,
    missing: Vec<Missing>,
}

impl CpuRecorder {
    /// Makes the logs, which must not exist, in a folder, and starts.
    pub fn start(target: Target, log_directory: &Path) -> Result<CpuRecorder, KernelError> {
        let log = |name: &str| log_directory.join(name);
        let reader = RingReader::start(READER)?;
        // Before the events are opened, which a thread started later would inherit.
        let pid = match target {
            Target::ThisProcess => std::process::id(),
            Target::Child(pid) => pid,
        };
        // What takes long once is done before, not while the program computes.
        let kernel = KernelSymbols::read();
        let mut programs = Programs::default();
        if target == Target::ThisProcess {
            programs.prepare(pid);
        }
        let (counters, missing_counters) = countable();
        let mut kinds = vec![samples()];
        kinds.extend(counters.iter().map(|counter| counted(*counter)));
        let mut scope = None;
        let events = Events::open(target, reader.tid(), &kinds, |attributes, tid, cpu| {
            let (event, less) = open_in_scope(attributes, tid, cpu)?;
            scope = less.or(scope.take());
            Ok(event)
        })?;
        let mut counter_ids = Vec::new();
        for (kind, counter) in (1..).zip(&counters) {
            counter_ids.extend(events.ids(kind)?.into_iter().map(|id| (id, *counter)));
        }
        counter_ids.sort_unstable_by_key(|(id, _)| *id);
        let sink = CpuSink {
            rings: events.map_rings()?,
            descriptors: events.descriptors(),
            counter_ids,
            programs,
            kernel,
            functions: HashMap::new(),
            calls: Vec::new(),
            stacks: StackWriter::create(&log(kernel_log::STACKS))?,
            writer: Writer::create(&log(kernel_log::CPU))?,
            summary: CpuSummary::default(),
            failed: None,
        };
        let machine = MachineWatch::start(pid, &log(kernel_log::MACHINE))?;
        if target == Target::ThisProcess {
            events.enable()?;
        }
        reader.begin(sink);
        Ok(CpuRecorder {
            events,
            reader,
            machine,
            counters,
            missing: scope.into_iter().chain(missing_counters).collect(),
        })
    }

    /// What could not be recorded although the rest can.
    pub fn missing(&self) -> &[Missing] {
        &self.missing
    }

    /// Stops, and waits until everything is in the logs.
    pub fn finish(self) -> Result<CpuSummary, KernelError> {
        self.events.disable()?;
        let ended = self.reader.finish()?;
        self.machine.finish()?;
        let names = self.counters.iter().map(|counter| counter.name());
        Ok(CpuSummary {
            samples_per_second: SAMPLES_PER_SECOND,
            counters: names.map(str::to_owned).collect(),
            ..ended.sink.summary
        })
    }
}

/// Whether stacks can be sampled here, and what cannot.
pub fn probe() -> Option<Missing> {
    let cpu = *perf::online_cpus().unwrap_or_default().first()?;
    // SAFETY: only asks for a number.
    let tid = unsafe { libc::gettid() } as u32;
    let attributes = Attributes {
        flags: samples().flags | flag::DISABLED,
        ..samples()
    };
    open_in_scope(attributes, tid, cpu).map_or_else(Some, |(_, missing)| missing)
}

/// Stacks, when threads run, and what is mapped.
fn samples() -> Attributes {
    Attributes {
        kind: perf::SOFTWARE,
        config: perf::CPU_CLOCK,
        sample_period: SAMPLES_PER_SECOND,
        sample_type: SAMPLE_ID
            | sample::PERIOD
            | sample::CALLCHAIN
            | sample::REGS_USER
            | sample::STACK_USER,
        flags: FLAGS
            | flag::SAMPLE_ID_ALL
            | flag::CONTEXT_SWITCH
            | flag::MMAP
            | flag::MMAP2
            | flag::TASK
            | flag::COMM
            | flag::COMM_EXEC
            | flag::EXCLUDE_CALLCHAIN_USER,
        sample_regs_user: registers::MASK,
        sample_stack_user: STACK_BYTES,
        clock: libc::CLOCK_MONOTONIC,
        ..Attributes::default()
    }
}

/// What every record of ours begins or ends with.
const SAMPLE_ID: u64 = sample::IDENTIFIER | sample::TID | sample::TIME | sample::CPU;
const FLAGS: u64 = flag::INHERIT | flag::FREQUENCY | flag::USE_CLOCKID | flag::WATERMARK;

fn counted(counter: Counter) -> Attributes {
    let (kind, config) = match counter {
        Counter::Cycles => (perf::HARDWARE, hardware::CYCLES),
        Counter::Instructions => (perf::HARDWARE, hardware::INSTRUCTIONS),
        Counter::CacheMisses => (perf::HARDWARE, hardware::CACHE_MISSES),
        Counter::StalledCycles => (perf::HARDWARE, hardware::STALLED_CYCLES_BACKEND),
        Counter::TranslationMisses => (perf::HARDWARE_CACHE, hardware::DTLB_READ_MISSES),
    };
    Attributes {
        kind,
        config,
        sample_period: SAMPLES_PER_SECOND,
        sample_type: SAMPLE_ID | sample::PERIOD,
        flags: FLAGS | flag::SAMPLE_ID_ALL,
        clock: libc::CLOCK_MONOTONIC,
        ..Attributes::default()
    }
}

/// Which events this processor counts, and what is missing when it is none.
fn countable() -> (Vec<Counter>, Option<Missing>) {
    let mut refused = None;
    let can_be = |counter: &Counter| match Event::open(counted(*counter), 0, None) {
        Ok(_) => true,
        Err(cause) => {
            refused = Some(cause);
            false
        }
    };
    let counters: Vec<Counter> = Counter::ALL.into_iter().filter(can_be).collect();
    let missing = refused
        .filter(|_| counters.is_empty())
        .map(|cause| Missing {
            what: "cycles, instructions and cache misses".to_owned(),
            why: match cause.raw_os_error() {
                Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV) => {
                    "this processor, or the virtual machine, does not count them".to_owned()
                }
                _ => rundir::error::reason(&cause),
            },
            fix: "the rest is recorded".to_owned(),
        });
    (counters, missing)
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
        "stacks of threads",
        "stacks inside of system calls",
    )
}

#[derive(Debug)]
struct CpuSink {
    rings: Vec<Ring>,
    descriptors: Vec<RawFd>,
    counter_ids: Vec<(u64, Counter)>,
    programs: Programs,
    kernel: KernelSymbols,
    /// Of addresses that were looked up before; of the kernel as of process 0.
    functions: HashMap<(u32, u64), u32>,
    /// Of the sample at hand.
    calls: Vec<u64>,
    stacks: StackWriter,
    writer: Writer<CpuEvent>,
    summary: CpuSummary,
    failed: Option<KernelError>,
}

impl Sink for CpuSink {
    type Item = CpuEvent;

    fn descriptors(&self) -> Vec<RawFd> {
        self.descriptors.clone()
    }

    fn drain(&mut self, items: &mut Vec<Timed<CpuEvent>>) -> Result<(), KernelError> {
        let mut rings = std::mem::take(&mut self.rings);
        for ring in &mut rings {
            ring.drain(|record| {
                let taken = self.record(record);
                items.extend(taken.map(|item| Timed {
                    nanos: item.nanos,
                    item,
                }));
            });
        }
        self.rings = rings;
        self.failed.take().map_or(Ok(()), Err)
    }

    fn take(&mut self, timed: Timed<CpuEvent>) -> Result<(), KernelError> {
        match timed.item.what {
            What::Sample { .. } => self.summary.samples += 1,
            What::On | What::Waits | What::Preempted => self.summary.switches += 1,
            What::Counted { .. } => {}
        }
        self.writer.push(&timed.item)
    }

    fn flush(&mut self) -> Result<(), KernelError> {
        // First what events refer to.
        self.stacks.flush()?;
        self.writer.flush()
    }
}

impl CpuSink {
    fn record(&mut self, record: Record<'_>) -> Option<CpuEvent> {
        let mut body = Cursor(record.body);
        match record.kind {
            record::SAMPLE => {
                let id = body.u64();
                let (pid, tid) = (body.u32(), body.u32());
                let nanos = body.u64();
                let cpu = body.u32() as u16;
                let _reserved = body.u32();
                let period = body.u64();
                let found = self.counter_ids.binary_search_by_key(&id, |(id, _)| *id);
                let what = match found {
                    Ok(at) => What::Counted {
                        counter: self.counter_ids[at].1,
                        events: period,
                    },
                    Err(_) => self.sample(pid, period, body),
                };
                Some(CpuEvent {
                    nanos,
                    pid,
                    tid,
                    cpu,
                    what,
                })
            }
            record::SWITCH => {
                let (pid, tid) = (body.u32(), body.u32());
                let nanos = body.u64();
                let cpu = body.u32() as u16;
                let is = |bit: u16| record.misc & bit != 0;
                let what = match is(record::MISC_SWITCH_OUT) {
                    false => What::On,
                    true if is(record::MISC_SWITCH_OUT_PREEMPT) => What::Preempted,
                    true => What::Waits,
                };
                Some(CpuEvent {
                    nanos,
                    pid,
                    tid,
                    cpu,
                    what,
                })
            }
            record::MMAP2 => {
                self.mapped(body);
                None
            }
            record::COMM if record.misc & record::MISC_COMM_EXEC != 0 => {
                let pid = body.u32();
                self.programs.exec(pid);
                self.forget(pid);
                None
            }
            record::LOST => {
                let _id = body.u64();
                self.summary.lost += body.u64();
                None
            }
            _ => None,
        }
    }

    fn mapped(&mut self, mut body: Cursor<'_>) {
        let (pid, _tid) = (body.u32(), body.u32());
        let (start, length, file_offset) = (body.u64(), body.u64(), body.u64());
        let (_device, _inode, _generation) = (body.u64(), body.u64(), body.u64());
        let (protection, _flags) = (body.u32(), body.u32());
        if protection & libc::PROT_EXEC as u32 == 0 {
            return;
        }
        let path = body.0.split(|byte| *byte == 0).next().unwrap_or_default();
        let path = Path::new(OsStr::from_bytes(path));
        let end = start.saturating_add(length);
        self.programs.map(pid, start, end, file_offset, path);
        self.forget(pid);
    }

    /// Addresses of a process mean something else from now on.
    fn forget(&mut self, pid: u32) {
        self.functions.retain(|(of, _), _| *of != pid);
    }

    /// Behind the period: the kernel's calls, registers, stack.
    fn sample(&mut self, pid: u32, nanos: u64, mut body: Cursor<'_>) -> What {
        self.calls.clear();
        for _ in 0..body.u64().min(1024) {
            let address = body.u64();
            if (KERNEL_BEGINS..FIRST_MARK).contains(&address) {
                self.calls.push(address);
            }
        }
        let in_kernel = self.calls.len();
        // Zero: a thread of the kernel, which has no registers of a program.
        if body.u64() != 0 {
            let registers = read_registers(&mut body);
            let copied = body.u64();
            let stack = body.take(usize::try_from(copied).unwrap_or(usize::MAX));
            let used = usize::try_from(body.u64()).unwrap_or(0).min(stack.len());
            let stack = &stack[..used];
            let mut calls = std::mem::take(&mut self.calls);
            self.programs.unwind(pid, registers, stack, &mut calls);
            self.calls = calls;
        }
        let stack = self.stack(pid, in_kernel).unwrap_or_else(|error| {
            self.failed = Some(error);
            0
        });
        What::Sample {
            stack,
            nanos,
            is_in_kernel: in_kernel > 0,
        }
    }

    /// The number of the stack at hand.
    fn stack(&mut self, pid: u32, in_kernel: usize) -> Result<u32, KernelError> {
        let mut stack = 0;
        for at in (0..self.calls.len()).rev() {
            let address = self.calls[at];
            let function = match at < in_kernel {
                true => self.function(0, address)?,
                false => self.function(pid, address)?,
            };
            stack = self.stacks.stack(stack, function)?;
        }
        Ok(stack)
    }

    fn function(&mut self, pid: u32, address: u64) -> Result<u32, KernelError> {
        if let Some(number) = self.functions.get(&(pid, address)) {
            return Ok(*number);
        }
        let function = match pid {
            0 => {
                let name = self.kernel.function(address).unwrap_or("[kernel]");
                Function {
                    name: name.to_owned(),
                    module: "[kernel]".to_owned(),
                }
            }
            _ => self.programs.function(pid, address),
        };
        let number = self.stacks.function(function)?;
        self.functions.insert((pid, address), number);
        Ok(number)
    }
}

/// In the order of the bits of [`registers::MASK`].
fn read_registers(body: &mut Cursor<'_>) -> Registers {
    let mut next = || body.u64();
    #[cfg(target_arch = "aarch64")]
    {
        let (frame, link, stack, instruction) = (next(), next(), next(), next());
        Registers {
            instruction,
            stack,
            frame,
            link,
        }
    }
    #[cfg(not(target_arch = "aarch64"))]
    {
        let (frame, stack, instruction) = (next(), next(), next());
        Registers {
            instruction,
            stack,
            frame,
            link: 0,
        }
    }
}
