//! What bounds each phase: compute, memory bandwidth, page faults or disk.
//!
//! The rule, in this order, for a phase of the run:
//! 1. With a read of the model outstanding for at least half of its time, the disk
//!    side bounds it. It is the *disk* if it reads at 60 % of its ceiling or more;
//!    without a known ceiling, if on average more than 1.5 requests are outstanding.
//!    Else it is *page faults*: reads wait for each other, the disk could do more.
//!    (That a thread is in a fault is no condition: with far read-ahead threads also
//!    wait for pages, locks and reclaim outside of any fault that is reported. A
//!    gpt-oss of 12 GB in half its memory had reads outstanding for 70 % and a thread
//!    in a fault for 18 % of the time, and was 24 times slower than without a limit.)
//! 2. With faults that take half of its threads' time (waits seen, and a microsecond
//!    for each minor fault), it is *page faults*.
//! 3. With weights and KV cache read at 60 % of memory's ceiling or more, it is
//!    *memory bandwidth*.
//! 4. Else it is *compute*; without a ceiling of memory it may as well be its
//!    bandwidth, and the verdict says so.
//!
//! Without block requests steps 1 and 2 rest on the kernel's totals alone, which
//! are of the whole process, and there is a verdict only where they suffice.

use kernelio::kernel_log::faults::FaultKind;
use reader::kernel::JoinedFault;
use serde::{Deserialize, Serialize};

use super::{
    Rows,
    faults::{FaultCounts, Wait},
    intervals::Union,
    requests::{Request, rate},
};
use crate::findings::text::{bytes, count, percent, time};
use crate::traffic::PHASES;

/// Share of a phase's time that makes something its bound.
pub const BOUND_SHARE: f64 = 0.5;
/// Share of a ceiling that counts as reaching it.
pub const CEILING_SHARE: f64 = 0.6;
/// Requests outstanding on average that keep a disk busy.
pub const BUSY_DEPTH: f64 = 1.5;
/// What a fault costs whose page is in memory.
pub const MINOR_FAULT_NANOS: u64 = 1000;
/// What a fault costs at least whose page must be read: for totals without times.
pub const MAJOR_FAULT_NANOS: u64 = 50_000;

/// What the hardware allows, in bytes per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speeds {
    pub disk: u64,
    pub memory: u64,
}

/// The kernel's own totals of the process over the run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    pub major_faults: Option<u64>,
    pub minor_faults: Option<u64>,
    pub read_bytes: Option<u64>,
    pub memory_limit_bytes: Option<u64>,
    /// What could not be recorded, why, and what allows it.
    pub missing: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    Compute,
    MemoryBandwidth,
    PageFaults,
    Disk,
}

impl Bound {
    pub fn name(self) -> &'static str {
        match self {
            Bound::Compute => "compute",
            Bound::MemoryBandwidth => "memory bandwidth",
            Bound::PageFaults => "page faults",
            Bound::Disk => "disk",
        }
    }
}

/// The verdict on one phase, and the numbers it rests on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PhaseVerdict {
    pub phase: String,
    pub tokens: u64,
    /// In which evaluations of the phase were going on.
    pub nanos: u64,
    /// `None` when too little was recorded to say.
    pub verdict: Option<Bound>,
    /// What it may be as well, because a number is missing.
    pub or: Option<Bound>,
    pub why: String,
    /// With a read of the model outstanding.
    pub io_nanos: Option<u64>,
    pub io_share: Option<f64>,
    /// Reads of the model that were issued in the phase.
    pub disk_bytes: Option<u64>,
    /// Over the time with reads outstanding.
    pub disk_bytes_per_second: Option<u64>,
    pub disk_ceiling: Option<u64>,
    /// Reads outstanding on average, while any is.
    pub mean_depth: Option<f64>,
    /// Weights and KV cache read, over the phase's time.
    pub touched_bytes: u64,
    pub touched_bytes_per_second: u64,
    pub memory_ceiling: Option<u64>,
    /// In the model's files.
    pub major_faults: Option<u64>,
    pub minor_faults: Option<u64>,
    /// In faults that read or waited for a read: all threads together.
    pub wait_nanos: Option<u64>,
    /// With at least one thread in such a fault.
    pub stall_nanos: Option<u64>,
    pub stall_share: Option<f64>,
    /// Threads with a fault in the model's files.
    pub fault_threads: Option<u64>,
    /// Waits and minor faults over the phase's time of these threads.
    pub fault_share: Option<f64>,
}

/// What verdicts are made from.
pub struct Evidence<'a> {
    pub rows: &'a Rows<'a>,
    pub requests: &'a [Request],
    pub outstanding: &'a Union,
    pub waits: &'a [Wait],
}

/// Of each phase that took time.
pub fn verdicts(evidence: &Evidence) -> Vec<PhaseVerdict> {
    let phases = evidence.rows.work.phases();
    let all_nanos: u64 = phases.iter().map(|(times, _)| times.nanos()).sum();
    let list = phases.iter().enumerate();
    let list = list.filter(|(_, (times, _))| times.nanos() > 0);
    list.map(|(phase, (times, tokens))| {
        let mut verdict = measured(evidence, phase, times, *tokens);
        judge(&mut verdict, evidence.rows, all_nanos);
        verdict
    })
    .collect()
}

/// The numbers without the verdict.
fn measured(evidence: &Evidence, phase: usize, times: &Union, tokens: u64) -> PhaseVerdict {
    let rows = evidence.rows;
    let nanos = times.nanos();
    let name = PHASES[phase].name();
    let touched_bytes = rows.traffic.rows.iter().filter(|row| {
        let is_memory = row.kind == "weight" || row.kind == "kv_cache";
        row.phase == name && row.direction == "read" && is_memory
    });
    let touched_bytes = touched_bytes.map(|row| row.bytes).sum();
    let mut verdict = PhaseVerdict {
        phase: name.to_owned(),
        tokens,
        nanos,
        touched_bytes,
        touched_bytes_per_second: rate(touched_bytes, nanos).unwrap_or(0),
        disk_ceiling: rows.speeds.map(|speeds| speeds.disk),
        memory_ceiling: rows.speeds.map(|speeds| speeds.memory),
        ..PhaseVerdict::default()
    };
    let is_here = |at| {
        let found = rows.work.phase_at(at);
        found.is_some_and(|found| found as usize == phase)
    };
    if rows.io.is_some() {
        let reads = evidence.requests.iter().filter(|r| r.is_model_read());
        let io_nanos = times.common(evidence.outstanding);
        let issued = reads.clone().filter(|read| read.at.is_some_and(is_here));
        let disk_bytes = issued.map(|read| read.model_bytes).sum();
        let in_flight: u64 = reads
            .filter_map(Request::interval)
            .map(|(issued, completed)| times.within(issued, completed))
            .sum();
        verdict.io_nanos = Some(io_nanos);
        verdict.io_share = Some(io_nanos as f64 / nanos.max(1) as f64);
        verdict.disk_bytes = Some(disk_bytes);
        verdict.disk_bytes_per_second = rate(disk_bytes, io_nanos);
        verdict.mean_depth = (io_nanos > 0).then(|| in_flight as f64 / io_nanos as f64);
    }
    if let Some(faults) = rows.faults {
        let mut counts = FaultCounts::default();
        let mut threads = std::collections::BTreeSet::new();
        let is_ours =
            |joined: &JoinedFault| joined.fault.place.is_some() && joined.at.is_some_and(is_here);
        for joined in faults.iter().filter(|joined| is_ours(joined)) {
            counts.add(joined.fault.kind);
            threads.insert(joined.fault.tid);
        }
        let waits = evidence.waits.iter();
        let waits: Vec<&Wait> = waits.filter(|w| is_ours(&faults[w.fault])).collect();
        let wait_nanos: u64 = waits.iter().map(|w| w.end_nanos - w.begin_nanos).sum();
        let stall = Union::of(waits.iter().map(|w| (w.begin_nanos, w.end_nanos)));
        let stall_nanos = times.common(&stall);
        let is_minor = |wait: &&&Wait| faults[wait.fault].fault.kind == FaultKind::Minor;
        let other_minor = counts.minor - waits.iter().filter(is_minor).count() as u64;
        let cost = wait_nanos + other_minor * MINOR_FAULT_NANOS;
        let thread_nanos = nanos.saturating_mul((threads.len() as u64).max(1));
        verdict.major_faults = Some(counts.major);
        verdict.minor_faults = Some(counts.minor);
        verdict.wait_nanos = rows.io.map(|_| wait_nanos);
        verdict.stall_nanos = rows.io.map(|_| stall_nanos);
        verdict.stall_share = rows.io.map(|_| stall_nanos as f64 / nanos.max(1) as f64);
        verdict.fault_threads = Some(threads.len() as u64);
        verdict.fault_share = Some(cost as f64 / thread_nanos.max(1) as f64);
    }
    verdict
}

fn judge(verdict: &mut PhaseVerdict, rows: &Rows, all_nanos: u64) {
    let (bound, why) = match verdict.io_share {
        Some(share) if share >= BOUND_SHARE => disk_or_faults(verdict, share),
        Some(share) => memory_or_compute(verdict, &io_text(verdict, share)),
        None => by_totals(verdict, rows, all_nanos),
    };
    verdict.verdict = bound;
    verdict.why = why;
    if bound == Some(Bound::Compute) && verdict.memory_ceiling.is_none() {
        verdict.or = Some(Bound::MemoryBandwidth);
    }
}

fn io_text(verdict: &PhaseVerdict, share: f64) -> String {
    let mut text = format!(
        "reads of the model were outstanding for {} of {}",
        percent(share),
        time(verdict.nanos as f64)
    );
    if let Some(stall) = verdict.stall_share {
        text += &format!(
            ", and a thread was in a fault that reads for {}",
            percent(stall)
        );
    }
    text
}

fn disk_or_faults(verdict: &PhaseVerdict, share: f64) -> (Option<Bound>, String) {
    let speed = verdict.disk_bytes_per_second.unwrap_or(0);
    let depth = verdict.mean_depth.unwrap_or(0.0);
    let mut why = format!(
        "{}; they came at {}/s, {depth:.1} at a time",
        io_text(verdict, share),
        bytes(speed)
    );
    let is_busy = match verdict.disk_ceiling {
        Some(ceiling) => {
            let of_ceiling = speed as f64 / ceiling.max(1) as f64;
            why += &format!(
                "; that is {} of what the disk can do ({}/s)",
                percent(of_ceiling),
                bytes(ceiling)
            );
            of_ceiling >= CEILING_SHARE
        }
        None => {
            why += "; what the disk can do is not known (`bench ceilings`, `report --ceilings`)";
            depth > BUSY_DEPTH
        }
    };
    if let (Some(major), Some(minor)) = (verdict.major_faults, verdict.minor_faults) {
        why += &format!(
            "; {} and {}",
            count(major, "major fault"),
            count(minor, "minor fault")
        );
    }
    let bound = match is_busy {
        true => Bound::Disk,
        false => Bound::PageFaults,
    };
    (Some(bound), why)
}

/// When the disk is not what it waits for; `before` says why not.
fn memory_or_compute(verdict: &PhaseVerdict, before: &str) -> (Option<Bound>, String) {
    let faults = verdict.major_faults.zip(verdict.minor_faults);
    if let (Some(share), Some((major, minor))) = (verdict.fault_share, faults)
        && share >= BOUND_SHARE
    {
        let why = format!(
            "{before}; {} and {} take {} of the time of {}",
            count(major, "major fault"),
            count(minor, "minor fault"),
            percent(share.min(1.0)),
            count(verdict.fault_threads.unwrap_or(1), "thread")
        );
        return (Some(Bound::PageFaults), why);
    }
    let speed = verdict.touched_bytes_per_second;
    let touched = format!(
        "{before}; weights and KV cache are read at {}/s",
        bytes(speed)
    );
    match verdict.memory_ceiling {
        Some(ceiling) => {
            let of_ceiling = speed as f64 / ceiling.max(1) as f64;
            let why = format!(
                "{touched}, {} of what memory can do ({}/s)",
                percent(of_ceiling),
                bytes(ceiling)
            );
            let bound = match of_ceiling >= CEILING_SHARE {
                true => Bound::MemoryBandwidth,
                false => Bound::Compute,
            };
            (Some(bound), why)
        }
        None => {
            let why = format!(
                "{touched}; what memory can do is not known (`bench ceilings`, `report --ceilings`)"
            );
            (Some(Bound::Compute), why)
        }
    }
}

/// Without block requests: what the totals of the process allow to say.
fn by_totals(verdict: &PhaseVerdict, rows: &Rows, all_nanos: u64) -> (Option<Bound>, String) {
    let counters = rows.counters.cloned().unwrap_or_default();
    // Faults of the phase where they were recorded, else the process's.
    let (major, nanos, whose) = match verdict.major_faults {
        Some(major) => (Some(major), verdict.nanos, "of the phase"),
        None => (counters.major_faults, all_nanos, "of the process"),
    };
    let threads = verdict.fault_threads.unwrap_or(1).max(1);
    let least = major.map(|major| {
        let cost = major.saturating_mul(MAJOR_FAULT_NANOS) / threads;
        cost as f64 / nanos.max(1) as f64
    });
    let no_io = "block requests were not recorded (`record --io`)";
    match (major, least, counters.read_bytes) {
        (Some(0), _, read) if read.is_none_or(|bytes| bytes == 0) => memory_or_compute(
            verdict,
            &format!("{no_io}, but no fault {whose} had to read"),
        ),
        (Some(major), Some(share), read) => {
            let mut why = format!("{no_io}; {} {whose}", count(major, "major fault"));
            if let Some(read) = read {
                why += &format!(", {} read by the process", bytes(read));
            }
            let bound = (share >= BOUND_SHARE).then_some(Bound::PageFaults);
            if bound.is_some() {
                why += &format!(
                    "; at {} each, as a fast disk takes, that is more than half of the time",
                    time(MAJOR_FAULT_NANOS as f64)
                );
            }
            (bound, why)
        }
        _ => (None, format!("{no_io}, nor the process's faults")),
    }
}

/// What was not recorded, and how to record it.
pub fn missing(rows: &Rows) -> Vec<String> {
    let mut list = rows
        .counters
        .map_or_else(Vec::new, |counters| counters.missing.clone());
    let mut say = |is_there: bool, what: &str| {
        if !is_there {
            list.push(what.to_owned());
        }
    };
    say(
        rows.faults.is_some(),
        "page faults were not recorded: `record --faults`",
    );
    say(
        rows.io.is_some(),
        "block requests were not recorded: `record --io`",
    );
    say(
        rows.samples.is_some(),
        "resident pages were not recorded: `record --residency`",
    );
    say(
        rows.speeds.is_some(),
        "speeds of disk and memory are not known: `bench ceilings -m MODEL -o FILE`, then `report --ceilings FILE`",
    );
    list
}
