//! Where the time of each phase went, in parts that add up.
//!
//! Every moment of an evaluation is the time of all its threads. What each of them did is
//! known from `record --cpu`: when it ran, and by samples whether it computed, waited in a
//! loop for the others, or was in the kernel. Who waits for others is put down to what these
//! do: while one of them does not run, that is why; while one waits for the disk, that is.
//! Of all threads the mean is taken, so that the parts are shares of the phase's time.
//!
//! How long a thread ran is known exactly, by its switches; samples only say what it did
//! meanwhile. So they are taken as shares of that time. Where they stand for much less of it
//! (more than two samples, and more than a tenth, are missing), the rest is not explained.
//!
//! Where devices compute, the time in which one does is a part of its own, and so are the copies
//! and the calls that hand work to a device outside of it ([`DeviceTime`]); all of the above is
//! then said of the times in which the processor computes nodes and no device does.
//!
//! Without that record an evaluation is waiting for the disk (where faults and requests were
//! recorded, or weights were fed) and computing.

mod bytes;
mod devices;
mod functions;

use std::collections::{BTreeMap, HashMap};

use kernelio::kernel_log::machine::MachineSample;
use reader::kernel::{Activity, Cpu, Timeline};
use serde::{Deserialize, Serialize};
use trace::format::Phase;

use crate::{traffic::PHASES, underneath::intervals::Union};

pub use bytes::Bytes;
pub use devices::DeviceTime;
pub use functions::FunctionTime;

/// A pause between evaluations that is longer is nobody's work: a server waits for requests.
const IDLE_NANOS: u64 = 1_000_000_000;
/// Two years: times that cannot be, of a damaged log.
const MAX_NANOS: u64 = 1 << 56;
/// A thread that was in evaluations for less of their time does not compute.
const MIN_THREAD_SHARE: f64 = 0.02;
/// Samples that a thread may lack without anything having been missed: one at each end; and
/// the share of its time, where it is switched so often that the kernel samples less.
const MAX_UNSEEN_SAMPLES: f64 = 2.0;
const MAX_UNSEEN_SHARE: f64 = 0.1;

/// What the stack is made from.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    pub timeline: &'a Timeline,
    pub bytes: &'a Bytes,
    /// When some thread waited for a page that was read; `None` where that was not recorded.
    pub disk: Option<&'a Union>,
    /// While a read of the model was outstanding. Who sleeps then, in a run that nobody feeds,
    /// waits for it: also for a page that another thread's fault reads, or for a lock on it.
    pub reads: Option<&'a Union>,
    pub cpu: Option<&'a Cpu>,
    /// Bytes a second that memory gives to the threads of the run.
    pub memory_ceiling: Option<u64>,
}

/// The time of one phase. Parts that are not known are `None`; those that are add up to
/// `nanos`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PhaseTime {
    pub phase: String,
    pub evaluations: u64,
    pub tokens: u64,
    /// From the beginning of its evaluations to the beginning of the next one.
    pub nanos: u64,
    /// Pauses in which nobody asked for anything; not in `nanos`.
    pub idle_nanos: u64,
    /// Weights and KV cache that the processor read.
    pub bytes: u64,
    /// Computing for as long as memory takes to give these bytes; with `below_wall` all of
    /// computing. `None` where memory's speed is not known; then all is `below_wall`.
    pub at_wall: Option<u64>,
    pub below_wall: u64,
    pub disk: Option<u64>,
    /// Of `disk`: weights that were fed, and came late.
    #[serde(default)]
    pub fed: u64,
    pub other_threads: Option<u64>,
    /// Of `other_threads`: because one thread had more to compute than the others.
    #[serde(default)]
    pub imbalance: Option<u64>,
    pub not_running: Option<u64>,
    /// Of `not_running`: a quota kept the program from running; the hypervisor gave its
    /// processors to others. `None` where the machine does not tell.
    #[serde(default)]
    pub throttled: Option<u64>,
    #[serde(default)]
    pub stolen: Option<u64>,
    /// Between evaluations: sampling, and the program's own code.
    pub host: u64,
    pub unexplained: Option<u64>,
    /// How busy the machine was meanwhile; all zero where nobody looked.
    #[serde(default)]
    pub machine: Usage,
    /// What threads did between evaluations, and in which system calls they were, by falling
    /// time; by samples.
    #[serde(default)]
    pub host_functions: Vec<FunctionTime>,
    #[serde(default)]
    pub system_calls: Vec<FunctionTime>,
    /// Of the samples in evaluations, those in a function without a name: whether it computed or
    /// waited for other threads is not known.
    #[serde(default)]
    pub unnamed_share: f64,
    /// What `not_running` and `other_threads` are made of.
    pub threads: Option<ThreadTimes>,
    /// Where devices compute; the parts above are of the rest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceTime>,
}

impl PhaseTime {
    /// What is known, as people call it; adds up to `nanos`.
    pub fn parts(&self) -> Vec<(&'static str, u64)> {
        let computing = match self.at_wall {
            Some(_) => "computing, slower than memory",
            None => "computing",
        };
        let parts = [
            ("computing, as fast as memory is", self.at_wall),
            (computing, Some(self.below_wall)),
            ("waiting for the disk", self.disk),
            ("waiting for other threads", self.other_threads),
            ("not running", self.not_running),
            ("between evaluations", Some(self.host)),
            ("not explained", self.unexplained),
        ];
        let of_device = self.device.as_ref().map(DeviceTime::parts);
        let parts = of_device.into_iter().flatten().chain(parts);
        let known = |(name, nanos): (&'static str, Option<u64>)| Some((name, nanos?));
        parts.filter_map(known).collect()
    }
}

/// Sums over all threads that compute, within evaluations.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ThreadTimes {
    pub threads: u64,
    /// Of all of them together.
    pub nanos: u64,
    pub computing: u64,
    pub waiting: u64,
    pub kernel: u64,
    /// Did not run: the processor was taken away, or they waited asleep.
    pub preempted: u64,
    pub asleep: u64,
    pub preemptions: u64,
    pub sleeps: u64,
    pub migrations: u64,
    pub samples: u64,
    /// Of the one that computed most, over the mean: 1 when all have as much to do.
    pub imbalance: f64,
}

/// What the machine counted while a phase was computed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Time of processors: of the program, and of everybody else.
    pub own_nanos: Option<u64>,
    pub others_nanos: Option<u64>,
    pub stolen_nanos: Option<u64>,
    /// That its threads were ready to run and did not.
    pub queued_nanos: Option<u64>,
    pub throttled_nanos: Option<u64>,
    pub swapped_in_bytes: Option<u64>,
    pub mean_hertz: Option<u64>,
    pub processors: Option<u64>,
}

/// Of all phases that the run has.
pub fn stacks(inputs: &Inputs) -> Vec<PhaseTime> {
    let of = |phase: &Phase| inputs.phase(*phase);
    PHASES.iter().filter_map(of).collect()
}

impl Inputs<'_> {
    fn phase(&self, phase: Phase) -> Option<PhaseTime> {
        let spans = self.timeline.spans();
        let mut time = PhaseTime {
            phase: phase.name().to_owned(),
            ..PhaseTime::default()
        };
        let (mut windows, mut pauses) = (Vec::new(), Vec::new());
        for (at, span) in spans.iter().enumerate() {
            if span.phase != phase {
                continue;
            }
            time.evaluations += 1;
            time.tokens += u64::from(span.tokens);
            windows.push((span.begin_nanos, span.end_nanos));
            // Evaluations of several contexts may overlap: then nothing lies between.
            let next = spans.get(at + 1).map(|next| next.begin_nanos);
            let pause = next.map_or(0, |next| next.saturating_sub(span.end_nanos));
            match pause > IDLE_NANOS {
                true => time.idle_nanos = time.idle_nanos.saturating_add(pause),
                false => {
                    time.host += pause;
                    pauses.push((span.end_nanos, span.end_nanos.saturating_add(pause)));
                }
            }
        }
        let windows = Union::of(windows);
        let inside = windows.nanos();
        if !(1..MAX_NANOS).contains(&inside) {
            return None;
        }
        time.nanos = inside + time.host;
        let (windows, inside) = match self.bytes.devices.of(phase, &windows, pauses) {
            Some((device, processor)) => {
                let inside = processor.nanos();
                let known = inside.saturating_add(device.nanos());
                time.host = time.nanos.saturating_sub(known);
                time.device = Some(device);
                (processor, inside)
            }
            None => (windows, inside),
        };
        let (bytes, fed) = self.bytes.by_phase.get(&phase).copied().unwrap_or_default();
        time.bytes = bytes;
        let computing = match self.cpu {
            Some(cpu) => self.by_threads(cpu, &windows, fed, &mut time),
            None => {
                let faults = self.disk.map(|disk| windows.common(disk));
                let waited = faults.unwrap_or(0).saturating_add(fed).min(inside);
                time.disk = (self.disk.is_some() || fed > 0).then_some(waited);
                time.fed = fed.min(waited);
                inside - waited
            }
        };
        // A measured ceiling may be a little too low: then all of it is at the wall.
        time.at_wall = self.memory_ceiling.map(|ceiling| {
            let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(ceiling.max(1));
            u64::try_from(nanos).unwrap_or(u64::MAX).min(computing)
        });
        time.below_wall = computing - time.at_wall.unwrap_or(0);
        Some(time)
    }

    /// Fills in what threads did; the time that they computed, as a part of the phase's.
    fn by_threads(&self, cpu: &Cpu, windows: &Union, fed: u64, time: &mut PhaseTime) -> u64 {
        let inside = windows.nanos();
        time.machine = Usage::within(&cpu.machine, windows);
        let named = PHASES.iter().find(|phase| phase.name() == time.phase);
        let found = named.map(|phase| functions::functions(cpu, self.timeline, *phase));
        let found = found.unwrap_or_default();
        (time.host_functions, time.system_calls) = (found.between, found.calls);
        time.unnamed_share = found.unnamed_share;
        let threads = Threads::of(cpu, windows, self.timeline, &time.phase);
        let count = threads.list.len() as u64;
        if count == 0 {
            // Too short for a sample.
            time.unexplained = Some(inside);
            return 0;
        }
        // Reads are always outstanding while weights are streamed ahead of their use.
        let reads = self.reads.filter(|_| fed == 0);
        let all = threads.sum(cpu, self.disk, reads, windows);
        // Shares of the time of all threads become times of the phase; rounding goes to
        // computing.
        let part = |nanos: u64| (nanos as f64 / count as f64) as u64;
        let fed = fed.min(part(all.for_others));
        let (disk, preempted) = (part(all.disk) + fed, part(all.not_running));
        let others = part(all.for_others) - fed;
        let unexplained = part(all.unseen);
        let computing = inside.saturating_sub(disk + preempted + others + unexplained);
        // A thread whose processor the hypervisor took away seems to compute.
        let stolen = time
            .machine
            .stolen_of_own()
            .map(|nanos| part(nanos).min(computing));
        let throttled = time.machine.throttled_for(inside, all.not_running);
        time.disk = Some(disk);
        time.fed = fed;
        time.not_running = Some(preempted + stolen.unwrap_or(0));
        time.throttled = throttled.map(|nanos| part(nanos).min(preempted));
        time.stolen = stolen;
        time.other_threads = Some(others);
        time.imbalance = Some(part(all.imbalance).min(others));
        time.unexplained = Some(unexplained);
        time.threads = Some(all.times);
        computing - stolen.unwrap_or(0)
    }
}

impl Usage {
    /// Between two looks at the machine everything is taken to have gone evenly.
    fn within(samples: &[MachineSample], windows: &Union) -> Usage {
        let sum = |of: &dyn Fn(&MachineSample) -> Option<u64>| -> Option<u64> {
            let known = samples.iter().filter_map(|s| Some((s.nanos, of(s)?)));
            let known: Vec<(u64, u64)> = known.collect();
            if known.len() < 2 {
                return None;
            }
            let parts = windows.parts();
            let parts = parts.map(|(begin, end)| value_at(&known, end) - value_at(&known, begin));
            Some(parts.sum::<f64>().max(0.0) as u64)
        };
        let own_nanos = sum(&|s| s.own_nanos);
        let busy = sum(&|s| s.busy_nanos);
        let hertz: Vec<u64> = samples.iter().filter_map(|s| s.hertz).collect();
        Usage {
            own_nanos,
            others_nanos: busy
                .zip(own_nanos)
                .map(|(busy, own)| busy.saturating_sub(own)),
            stolen_nanos: sum(&|s| s.stolen_nanos),
            queued_nanos: sum(&|s| s.queued_nanos),
            throttled_nanos: sum(&|s| s.throttled_nanos),
            swapped_in_bytes: sum(&|s| s.swapped_in_bytes),
            mean_hertz: hertz.iter().sum::<u64>().checked_div(hertz.len() as u64),
            processors: samples.iter().filter_map(|s| s.processors).min(),
        }
    }

    /// Time of the program's threads, of the `not_running` that they did not run, that a quota
    /// took. The kernel's own count is by processor and leaves some out; but who does not run
    /// while processors are idle was not kept from it by other programs.
    fn throttled_for(&self, inside: u64, not_running: u64) -> Option<u64> {
        let counted = self.throttled_nanos?;
        if counted == 0 {
            return Some(0);
        }
        let all = self.processors?.saturating_mul(inside);
        let busy = self.own_nanos?.saturating_add(self.others_nanos?);
        Some(counted.max(all.saturating_sub(busy).min(not_running)))
    }

    /// Time of the program's threads that the hypervisor took: as much as it had of all.
    fn stolen_of_own(&self) -> Option<u64> {
        let (stolen, own) = (self.stolen_nanos?, self.own_nanos? as f64);
        let busy = own + self.others_nanos? as f64;
        Some((stolen as f64 * own / busy.max(1.0)) as u64)
    }
}

/// A count that grows, at a moment; before the first and behind the last it stands still.
fn value_at(known: &[(u64, u64)], nanos: u64) -> f64 {
    let behind = known.partition_point(|(at, _)| *at <= nanos);
    match (behind.checked_sub(1).map(|at| known[at]), known.get(behind)) {
        (Some((from, low)), Some(&(to, high))) => {
            let share = (nanos - from) as f64 / (to - from).max(1) as f64;
            low as f64 + share * (high as f64 - low as f64)
        }
        (Some((_, value)), None) | (None, Some(&(_, value))) => value as f64,
        (None, None) => 0.0,
    }
}

/// Threads that compute, with their samples and with the times in which they do not run.
struct Threads<'a> {
    list: BTreeMap<u32, Thread<'a>>,
}

#[derive(Default)]
struct Thread<'a> {
    samples: Vec<&'a reader::kernel::CpuSample>,
    preempted: Union,
    asleep: Union,
    preemptions: u64,
    sleeps: u64,
    migrations: u64,
}

/// Of all threads, within evaluations.
#[derive(Default)]
struct Sum {
    times: ThreadTimes,
    disk: u64,
    not_running: u64,
    for_others: u64,
    /// That the others waited because one had more to compute.
    imbalance: u64,
    /// Ran, and was not sampled.
    unseen: u64,
}

impl<'a> Threads<'a> {
    fn of(cpu: &'a Cpu, windows: &Union, timeline: &Timeline, phase: &str) -> Threads<'a> {
        let mut list: BTreeMap<u32, Thread> = BTreeMap::new();
        let is_inside = |nanos: u64| {
            let span = timeline.span_at(nanos);
            span.is_some_and(|span| span.phase.name() == phase)
                // While a device computes, threads wait for it.
                && windows.within(nanos.saturating_sub(1), nanos.saturating_add(1)) > 0
        };
        for sample in &cpu.samples {
            if is_inside(sample.nanos) {
                list.entry(sample.tid).or_default().samples.push(sample);
            }
        }
        let least = windows.nanos() as f64 * MIN_THREAD_SHARE;
        list.retain(|_, thread| {
            let sampled: u64 = thread.samples.iter().map(|s| s.sampled_nanos).sum();
            sampled as f64 >= least
        });
        let mut off: HashMap<u32, [Vec<(u64, u64)>; 2]> = HashMap::new();
        for one in &cpu.off {
            let Some(thread) = list.get_mut(&one.tid) else {
                continue;
            };
            let end = one.end_nanos.unwrap_or(u64::MAX);
            let lists = off.entry(one.tid).or_default();
            lists[usize::from(one.is_preempted)].push((one.begin_nanos, end));
            if is_inside(one.begin_nanos) {
                match one.is_preempted {
                    true => thread.preemptions += 1,
                    false => thread.sleeps += 1,
                }
                let is_elsewhere = one.next_cpu.is_some_and(|next| next != one.cpu);
                thread.migrations += u64::from(is_elsewhere);
            }
        }
        for (tid, [asleep, preempted]) in off {
            if let Some(thread) = list.get_mut(&tid) {
                thread.asleep = Union::of(asleep);
                thread.preempted = Union::of(preempted);
            }
        }
        Threads { list }
    }

    fn sum(&self, cpu: &Cpu, disk: Option<&Union>, reads: Option<&Union>, windows: &Union) -> Sum {
        let inside = windows.nanos();
        let mut sum = Sum::default();
        let mut computed = Vec::new();
        let faults = self.faults(cpu);
        for (tid, thread) in &self.list {
            let preempted = windows.common(&thread.preempted);
            let asleep = windows.common(&thread.asleep);
            sum.not_running += preempted;
            self.put_sleep_down(
                *tid,
                thread,
                [reads.or(disk), Some(&faults)],
                windows,
                &mut sum,
            );
            let runs = inside.saturating_sub(preempted + asleep);
            let sampled: u64 = thread.samples.iter().map(|s| s.sampled_nanos).sum();
            let each = sampled as f64 / thread.samples.len().max(1) as f64;
            let unseen = runs.saturating_sub(sampled);
            let tolerated = (each * MAX_UNSEEN_SAMPLES).max(runs as f64 * MAX_UNSEEN_SHARE);
            let unseen = match unseen as f64 <= tolerated {
                true => 0,
                false => unseen,
            };
            // A sample more or less at the ends is no other time than was run.
            let scale = (runs - unseen) as f64 / sampled.max(1) as f64;
            let scaled = |nanos: u64| (nanos as f64 * scale) as u64;
            let mut seen = [0; 3];
            let mut waiting_for = [0; 3];
            for sample in &thread.samples {
                let activity = cpu.activity(sample);
                let nanos = scaled(sample.sampled_nanos);
                seen[activity as usize] += nanos;
                if activity == Activity::Waiting {
                    waiting_for[self.why(*tid, sample.nanos, [disk, Some(&faults)]) as usize] +=
                        nanos;
                } else if activity == Activity::Kernel && is_in_fault(cpu, sample.stack) {
                    sum.disk += nanos;
                }
            }
            sum.not_running += waiting_for[Why::NotRunning as usize];
            sum.disk += waiting_for[Why::Disk as usize];
            sum.for_others += waiting_for[Why::Others as usize];
            sum.unseen += unseen;
            let times = &mut sum.times;
            times.computing += seen[Activity::Computing as usize];
            times.waiting += seen[Activity::Waiting as usize];
            times.kernel += seen[Activity::Kernel as usize];
            times.preempted += preempted;
            times.asleep += asleep;
            times.preemptions += thread.preemptions;
            times.sleeps += thread.sleeps;
            times.migrations += thread.migrations;
            times.samples += thread.samples.len() as u64;
            computed.push(seen[Activity::Computing as usize]);
        }
        sum.times.threads = self.list.len() as u64;
        sum.times.nanos = inside.saturating_mul(sum.times.threads);
        let most = computed.iter().copied().max().unwrap_or(0) as f64;
        let mean = computed.iter().sum::<u64>() as f64 / computed.len().max(1) as f64;
        sum.times.imbalance = most / mean.max(1.0);
        sum.imbalance = computed.iter().map(|own| most as u64 - own).sum();
        sum
    }

    /// When some thread was in a page fault and ran: looking for pages, reclaiming others. Who
    /// waits for it then waits for the page.
    fn faults(&self, cpu: &Cpu) -> Union {
        let samples = self.list.values().flat_map(|thread| &thread.samples);
        let samples = samples.filter(|sample| is_in_fault(cpu, sample.stack));
        Union::of(samples.map(|s| (s.nanos.saturating_sub(s.sampled_nanos), s.nanos)))
    }

    /// Sleep of a thread: for the disk, for one that does not run, or for the others. `disk`:
    /// while a read of the model was outstanding, or some thread waited for one.
    fn put_sleep_down(
        &self,
        tid: u32,
        thread: &Thread,
        disk: [Option<&Union>; 2],
        windows: &Union,
        sum: &mut Sum,
    ) {
        for (begin, end) in thread.asleep.parts() {
            let all = windows.within(begin, end);
            let on_disk = disk
                .into_iter()
                .flatten()
                .map(|disk| disk.within(begin, end));
            let on_disk = on_disk.max().unwrap_or(0).min(all);
            let preempted = self.list.iter().filter(|(other, _)| **other != tid);
            let preempted = preempted.map(|(_, other)| other.preempted.within(begin, end));
            let preempted = preempted.max().unwrap_or(0).min(all - on_disk);
            sum.disk += on_disk;
            sum.not_running += preempted;
            sum.for_others += all - on_disk - preempted;
        }
    }

    /// What the other threads do while one waits for them.
    fn why(&self, tid: u32, nanos: u64, disk: [Option<&Union>; 2]) -> Why {
        let others = || self.list.iter().filter(|(other, _)| **other != tid);
        if disk.into_iter().flatten().any(|disk| disk.covers(nanos)) {
            Why::Disk
        } else if others().any(|(_, other)| other.preempted.covers(nanos)) {
            Why::NotRunning
        } else {
            Why::Others
        }
    }
}

/// Why a thread waits for others.
#[derive(Clone, Copy)]
enum Why {
    Others = 0,
    NotRunning = 1,
    Disk = 2,
}

/// The kernel's way into a page fault; their names are its own.
fn is_in_fault(cpu: &Cpu, stack: u32) -> bool {
    let calls = cpu.calls(stack);
    calls
        .iter()
        .any(|call| call.module == "[kernel]" && call.name.contains("_fault"))
}
