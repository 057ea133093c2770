//! Page faults: how many, whose, and how long they waited for the disk.

use std::collections::{BTreeMap, HashMap};

use kernelio::kernel_log::faults::FaultKind;
use reader::kernel::{JoinedFault, JoinedIo};
use serde::{Deserialize, Serialize};

use crate::cache_trace::PAGE_BYTES;

use super::{
    ModelFiles,
    intervals::Union,
    reread::is_model_read,
    work::{Work, slot_name},
};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FaultResults {
    /// Anywhere: stacks, heaps and libraries, too.
    pub all: FaultCounts,
    /// At a byte of the model's files; all that follows is about these.
    pub model: FaultCounts,
    pub with_tensor: FaultCounts,
    /// Of the faults in the model's files.
    pub with_tensor_share: f64,
    /// The others, by what they are.
    pub without_tensor: Vec<WithoutTensor>,
    /// `none` is outside of evaluations.
    pub by_phase: Vec<PhaseFaults>,
    /// Absent without block requests.
    pub waits: Option<FaultWaits>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultCounts {
    pub major: u64,
    pub minor: u64,
}

impl FaultCounts {
    pub fn sum(&self) -> u64 {
        self.major + self.minor
    }

    pub(super) fn add(&mut self, kind: FaultKind) {
        match kind {
            FaultKind::Major => self.major += 1,
            FaultKind::Minor => self.minor += 1,
        }
    }
}

/// Faults in the model's files at no tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WithoutTensor {
    /// `header`, `padding`, `end` (behind the last tensor), `unknown_file` (gone, or
    /// no model any more).
    pub what: String,
    pub file: u32,
    pub major: u64,
    pub minor: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseFaults {
    pub phase: String,
    pub major: u64,
    pub minor: u64,
}

/// Faults in the model's files that read, or waited for a read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FaultWaits {
    /// How many of them.
    pub major: u64,
    pub minor: u64,
    /// Major faults of which no read was seen.
    pub unseen: u64,
    /// Time of all threads together; waits of one thread do not overlap.
    pub thread_nanos: u64,
    /// Time in which at least one thread waited.
    pub nanos: u64,
    /// Threads that waited.
    pub threads: u64,
    pub mean_nanos: u64,
}

/// A minor fault that is over this soon after its page was read has waited for it.
const WOKEN_WITHIN_NANOS: u64 = 100_000;

/// The wait of one fault: its place in the list, from and to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    pub fault: usize,
    pub begin_nanos: u64,
    pub end_nanos: u64,
}

/// Everything but `waits`; and the counts of each tensor.
pub fn faults(
    faults: &[JoinedFault],
    work: &Work,
    model: &ModelFiles,
) -> (FaultResults, Vec<FaultCounts>) {
    let mut results = FaultResults::default();
    let mut of_tensor = vec![FaultCounts::default(); model.tensors.len()];
    let mut others: BTreeMap<(&str, u32), FaultCounts> = BTreeMap::new();
    let mut by_slot = [FaultCounts::default(); 4];
    for joined in faults {
        let kind = joined.fault.kind;
        results.all.add(kind);
        let Some(place) = joined.fault.place else {
            continue;
        };
        results.model.add(kind);
        by_slot[work.slot(joined.at)].add(kind);
        let owner = joined.owner.map(|owner| owner.tensor as usize);
        match owner.and_then(|tensor| of_tensor.get_mut(tensor)) {
            Some(counts) => {
                counts.add(kind);
                results.with_tensor.add(kind);
            }
            None => {
                let what = model.between_tensors(place.file, place.file_offset);
                others.entry((what, place.file)).or_default().add(kind);
            }
        }
    }
    let all = results.model.sum();
    results.with_tensor_share = match all {
        0 => 1.0,
        all => results.with_tensor.sum() as f64 / all as f64,
    };
    results.without_tensor = others
        .into_iter()
        .map(|((what, file), counts)| WithoutTensor {
            what: what.to_owned(),
            file,
            major: counts.major,
            minor: counts.minor,
        })
        .collect();
    let rows = by_slot.into_iter().enumerate();
    results.by_phase = rows
        .filter(|(_, counts)| counts.sum() > 0)
        .map(|(slot, counts)| PhaseFaults {
            phase: slot_name(slot).to_owned(),
            major: counts.major,
            minor: counts.minor,
        })
        .collect();
    (results, of_tensor)
}

/// Where each fault in the model's files spent its time, as far as its reads were seen.
///
/// The kernel reports a fault when it is over, so that a thread was in it up to then,
/// and at the earliest since its own fault before. It was in it already when
/// 1. the thread issued its first read since (only known if minor faults are
///    recorded, which read ahead, too), or
/// 2. the read of the page was issued that it waited for: a major fault always, a
///    minor one if it is over right after that read was. (Kernels that lock single
///    mappings count a wait for a page that is being read as minor.)
pub fn waits(faults: &[JoinedFault], parts: &[JoinedIo], model: &ModelFiles) -> Vec<Wait> {
    const NONE: u32 = u32::MAX;
    let has_minor = faults
        .iter()
        .any(|joined| joined.fault.place.is_some() && joined.fault.kind == FaultKind::Minor);
    let pages_of = |bytes: &u64| vec![NONE; bytes.div_ceil(PAGE_BYTES) as usize];
    // The last read of each page, up to the fault at hand.
    let mut last: Vec<Vec<u32>> = model.file_bytes.iter().map(pages_of).collect();
    let mut next_part = 0;
    // Of each thread its fault before, and its first read since.
    let mut threads: HashMap<u32, (u64, Option<u64>)> = HashMap::new();
    let mut waits = Vec::new();
    for (number, joined) in faults.iter().enumerate() {
        let fault = &joined.fault;
        while let Some(part) = parts.get(next_part) {
            if part.io.issued_nanos > fault.nanos {
                break;
            }
            if is_model_read(part) {
                let thread = threads.entry(part.io.tid).or_default();
                thread.1.get_or_insert(part.io.issued_nanos);
                mark(&mut last, part, next_part as u32);
            }
            next_part += 1;
        }
        let (before, own_read) = threads
            .insert(fault.tid, (fault.nanos, None))
            .unwrap_or_default();
        let Some(place) = fault.place else {
            continue;
        };
        let pages = last.get(place.file as usize);
        let page = pages.and_then(|pages| pages.get((place.file_offset / PAGE_BYTES) as usize));
        let read = page.and_then(|part| parts.get(*part as usize));
        let waited_for = read.filter(|read| match (fault.kind, read.io.completed_nanos) {
            (FaultKind::Major, completed) => completed.is_none_or(|at| at > before),
            (FaultKind::Minor, Some(at)) => {
                let after = fault.nanos.checked_sub(at);
                at > before && after.is_some_and(|nanos| nanos < WOKEN_WITHIN_NANOS)
            }
            (FaultKind::Minor, None) => false,
        });
        let since = [
            own_read.filter(|_| has_minor),
            waited_for.map(|read| read.io.issued_nanos),
        ];
        let Some(since) = since.into_iter().flatten().min() else {
            continue;
        };
        waits.push(Wait {
            fault: number,
            begin_nanos: since.clamp(before.min(fault.nanos), fault.nanos),
            end_nanos: fault.nanos,
        });
    }
    waits
}

/// Notes that the pages of a part were read by it last.
fn mark(last: &mut [Vec<u32>], part: &JoinedIo, number: u32) {
    let file = part.io.place.map_or(0, |place| place.file as usize);
    if let Some(pages) = last.get_mut(file) {
        let first = (part.file_offset / PAGE_BYTES) as usize;
        let end = (part.file_offset + part.bytes).div_ceil(PAGE_BYTES) as usize;
        let end = end.min(pages.len());
        pages[first.min(end)..end].fill(number);
    }
}

pub fn sum_of_waits(faults: &[JoinedFault], waits: &[Wait]) -> FaultWaits {
    let mut sum = FaultWaits::default();
    let mut threads = std::collections::BTreeSet::new();
    for wait in waits {
        let fault = &faults[wait.fault].fault;
        match fault.kind {
            FaultKind::Major => sum.major += 1,
            FaultKind::Minor => sum.minor += 1,
        }
        sum.thread_nanos += wait.end_nanos - wait.begin_nanos;
        threads.insert(fault.tid);
    }
    let major = faults.iter().map(|joined| &joined.fault);
    let major = major.filter(|fault| fault.kind == FaultKind::Major && fault.place.is_some());
    sum.unseen = major.count() as u64 - sum.major;
    let times = waits.iter().map(|wait| (wait.begin_nanos, wait.end_nanos));
    sum.nanos = Union::of(times).nanos();
    sum.threads = threads.len() as u64;
    sum.mean_nanos = sum
        .thread_nanos
        .checked_div(waits.len() as u64)
        .unwrap_or(0);
    sum
}
