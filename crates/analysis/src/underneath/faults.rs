//! Page faults: how many, whose, and how long they waited for the disk.

use std::collections::{BTreeMap, HashMap};

use ::underneath::{JoinedFault, JoinedIo};
use kernelio::kernel_log::faults::FaultKind;
use serde::{Deserialize, Serialize};

use super::{
    ModelFiles, PAGE_BYTES,
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

/// Major faults and the reads that ended them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FaultWaits {
    /// Major faults in the model's files whose read was seen to be waited for.
    pub seen: u64,
    /// The others: another's read that was done, or none seen.
    pub unseen: u64,
    /// Time of all threads together; waits of one thread do not overlap.
    pub thread_nanos: u64,
    /// Time in which at least one thread waited.
    pub nanos: u64,
    /// Threads with such a fault.
    pub threads: u64,
    pub mean_nanos: u64,
}

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

/// The wait of each major fault in the model's files, as far as its read was seen.
///
/// The kernel reports a fault when it is over. So the read is the last one of the
/// page that was issued by then, and the thread waited from its issue, or from the
/// thread's own fault before, until its completion.
pub fn waits(faults: &[JoinedFault], parts: &[JoinedIo], model: &ModelFiles) -> Vec<Wait> {
    const NONE: u32 = u32::MAX;
    let pages_of = |bytes: &u64| vec![NONE; bytes.div_ceil(PAGE_BYTES) as usize];
    // The last read of each page, up to the fault at hand.
    let mut last: Vec<Vec<u32>> = model.file_bytes.iter().map(pages_of).collect();
    let mut next_part = 0;
    // Until when each thread is known to have run or waited.
    let mut busy_until: HashMap<u32, u64> = HashMap::new();
    let mut waits = Vec::new();
    for (number, joined) in faults.iter().enumerate() {
        let fault = &joined.fault;
        while let Some(part) = parts.get(next_part) {
            if part.io.issued_nanos > fault.nanos {
                break;
            }
            let pages = part.io.place.filter(|_| is_model_read(part));
            if let Some(pages) = pages.and_then(|place| last.get_mut(place.file as usize)) {
                let first = (part.file_offset / PAGE_BYTES) as usize;
                let end = (part.file_offset + part.bytes).div_ceil(PAGE_BYTES) as usize;
                let end = end.min(pages.len());
                if let Some(pages) = pages.get_mut(first.min(end)..end) {
                    pages.fill(next_part as u32);
                }
            }
            next_part += 1;
        }
        let known = busy_until.entry(fault.tid).or_insert(0);
        let place = fault.place.filter(|_| fault.kind == FaultKind::Major);
        let read = place.and_then(|place| {
            let pages = last.get(place.file as usize)?;
            let part = *pages.get((place.file_offset / PAGE_BYTES) as usize)?;
            parts.get(part as usize)
        });
        if let Some((part, completed)) =
            read.and_then(|part| Some((part, part.io.completed_nanos?)))
        {
            // Reported while its read was still under way: it waits from now on.
            let from = match completed <= fault.nanos {
                true => part.io.issued_nanos,
                false => fault.nanos,
            };
            let begin_nanos = from.max(*known);
            if begin_nanos < completed {
                waits.push(Wait {
                    fault: number,
                    begin_nanos,
                    end_nanos: completed,
                });
                *known = completed;
            }
        }
        *known = (*known).max(fault.nanos);
    }
    waits
}

pub fn sum_of_waits(faults: &[JoinedFault], waits: &[Wait]) -> FaultWaits {
    let is_major = |joined: &&JoinedFault| {
        joined.fault.kind == FaultKind::Major && joined.fault.place.is_some()
    };
    let major = faults.iter().filter(is_major).count() as u64;
    let seen = waits.len() as u64;
    let thread_nanos = waits.iter().map(|w| w.end_nanos - w.begin_nanos).sum();
    let times = waits.iter().map(|wait| (wait.begin_nanos, wait.end_nanos));
    let threads: std::collections::BTreeSet<u32> = faults
        .iter()
        .filter(is_major)
        .map(|joined| joined.fault.tid)
        .collect();
    FaultWaits {
        seen,
        unseen: major - seen,
        thread_nanos,
        nanos: Union::of(times).nanos(),
        threads: threads.len() as u64,
        mean_nanos: thread_nanos.checked_div(seen).unwrap_or(0),
    }
}
