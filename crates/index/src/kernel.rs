//! What the kernel did underneath: page faults, disk reads, resident pages.
//!
//! Only runs that were recorded with `--faults`, `--io` or `--residency` have the
//! logs. They are read at the first question about them ([`RunIndex::kernel`]), and
//! again when a live run has grown, so that other runs and other questions pay
//! nothing. A fault or a read is then a few numbers: its time, its place in the map
//! space, the tensor and expert of that byte, and the node that was running.
//!
//! Tensors come from `reader::kernel::Owners` and moments from the evaluations of the
//! index, by the rules of `reader::kernel::Timeline`: the log is not read a second time.
//!
//! How the filter applies: layer, component and expert are those of the byte; phase,
//! tokens and op those of the node that was running. What lies in no tensor has
//! layer `none`, and what happened between evaluations passes only where none of
//! phase, tokens and op is chosen.

mod disk;
mod pages;
mod raster;

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use kernelio::{
    KernelError,
    files::Place,
    kernel_log::{
        self, Reader, Record,
        faults::{Fault, FaultKind},
        io::{Io, Operation},
    },
};
use reader::kernel::{Owner, Owners};
use rundir::Run;

use crate::{RunIndex, answers::KernelInfo, filter::Filter, select::Selector};

pub use pages::Samples;

/// How to get the data, for whoever misses them.
pub const HOW: &str = "record it with `tensorscope record --faults --io --residency`";

/// Pages are the unit of faults on every machine that we know.
const PAGE_BYTES: u64 = 4096;
/// No tensor, expert, evaluation or place.
const NONE: u32 = u32::MAX;
const NOWHERE: u64 = u64::MAX;
/// Evaluations of other streams that may have begun since.
const MAX_OPEN: usize = 64;

/// Why there is no answer about the kernel; variants by what the asker can do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KernelQueryError {
    /// Record anew.
    #[error("the run has no {what}; {HOW}")]
    Absent { what: &'static str },
    /// Nothing: the log is damaged.
    #[error("{0}")]
    Unreadable(String),
}

/// Something that happened, at a byte and a moment.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    /// Of the monotonic clock.
    pub nanos: u64,
    /// In the map space; [`NOWHERE`] outside the model's files.
    offset: u64,
    /// Index of its owner's tensor, and expert; or [`NONE`].
    tensor: u32,
    expert: u32,
    /// Place of the evaluation in [`RunIndex::evals`], and step; or [`NONE`].
    eval: u32,
    step: u32,
}

#[derive(Clone, Copy, Debug)]
pub struct FaultMark {
    pub mark: Mark,
    pub kind: FaultKind,
}

/// The part of a request that lies in one tensor.
#[derive(Clone, Copy, Debug)]
pub struct ReadMark {
    pub mark: Mark,
    /// When it was completed; as issued, where that was not seen.
    pub end_nanos: u64,
    pub bytes: u64,
    /// Index into [`Reads::request_bytes`].
    pub request: u32,
}

/// The logs of a run, compact. Faults and reads are by their time.
pub struct Kernel {
    pub owners: Owners,
    faults: Option<Vec<FaultMark>>,
    reads: Option<Reads>,
    samples: Option<Samples>,
}

#[derive(Default)]
struct Reads {
    marks: Vec<ReadMark>,
    request_bytes: Vec<u32>,
}

/// The logs as they were read last, with the version of the index by which they
/// were joined.
#[derive(Default)]
pub struct Loaded(Mutex<Option<(u64, Found)>>);

type Found = Result<Arc<Kernel>, KernelQueryError>;

/// Which logs there are: three looks into a folder.
pub fn logs_of(run: &Run) -> KernelInfo {
    let log = run.log_directory();
    let has = |name| log.join(name).exists();
    KernelInfo {
        faults: has(kernel_log::FAULTS),
        io: has(kernel_log::IO),
        residency: has(kernel_log::RESIDENCY),
    }
}

impl Kernel {
    pub fn faults(&self) -> Result<&[FaultMark], KernelQueryError> {
        let faults = self.faults.as_deref();
        faults.ok_or(KernelQueryError::Absent {
            what: "page faults",
        })
    }

    pub fn reads(&self) -> Result<&[ReadMark], KernelQueryError> {
        let reads = self.reads.as_ref().map(|reads| reads.marks.as_slice());
        reads.ok_or(KernelQueryError::Absent { what: "disk reads" })
    }

    pub fn samples(&self) -> Result<&Samples, KernelQueryError> {
        let samples = self.samples.as_ref();
        samples.ok_or(KernelQueryError::Absent {
            what: "samples of resident pages",
        })
    }
}

impl RunIndex {
    /// The logs, read by the first who asks while the others wait.
    pub(crate) fn kernel(&self) -> Found {
        if self.kernel_logs == KernelInfo::default() {
            return Err(KernelQueryError::Absent {
                what: "page faults, disk reads and resident pages",
            });
        }
        // Nothing inside the lock leaves it half done.
        let mut loaded = self.loaded.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((version, kernel)) = &*loaded
            && *version == self.version
        {
            return kernel.clone();
        }
        let kernel = self.read_kernel().map(Arc::new);
        *loaded = Some((self.version, kernel.clone()));
        kernel
    }

    fn read_kernel(&self) -> Result<Kernel, KernelQueryError> {
        let unreadable =
            |error: &dyn std::fmt::Display| KernelQueryError::Unreadable(error.to_string());
        let run = Run::open(&self.path).map_err(|e| unreadable(&e))?;
        let log = run.log_directory();
        let owners = Owners::of_run(&run);
        let faults = self.read_faults(&log.join(kernel_log::FAULTS), &owners);
        let faults = faults.map_err(|e| unreadable(&e))?;
        let reads = self.read_reads(&log.join(kernel_log::IO), &owners);
        let samples = Samples::read(&log.join(kernel_log::RESIDENCY));
        Ok(Kernel {
            owners,
            faults,
            reads: reads.map_err(|e| unreadable(&e))?,
            samples: samples.map_err(|e| unreadable(&e))?,
        })
    }

    fn read_faults(
        &self,
        path: &Path,
        owners: &Owners,
    ) -> Result<Option<Vec<FaultMark>>, KernelError> {
        let mut marks = Vec::new();
        let is_there = each(path, |fault: Fault| {
            let owner = fault
                .place
                .and_then(|place| owners.find_in_page(place, PAGE_BYTES));
            marks.push(FaultMark {
                mark: self.mark(fault.nanos, fault.place, owner),
                kind: fault.kind,
            });
        })?;
        marks.sort_by_key(|fault| fault.mark.nanos);
        Ok(is_there.then_some(marks))
    }

    fn read_reads(&self, path: &Path, owners: &Owners) -> Result<Option<Reads>, KernelError> {
        let mut reads = Reads::default();
        let mut requests: HashMap<u64, u32> = HashMap::new();
        let is_there = each(path, |io: Io| {
            if io.rwbs.operation() != Operation::Read {
                return;
            }
            let request = *requests.entry(io.request).or_insert_with(|| {
                reads.request_bytes.push(io.request_bytes);
                reads.request_bytes.len() as u32 - 1
            });
            let end_nanos = io.completed_nanos.unwrap_or(0).max(io.issued_nanos);
            let mut push = |mark, bytes| {
                reads.marks.push(ReadMark {
                    mark,
                    end_nanos,
                    bytes,
                    request,
                });
            };
            let bytes = u64::from(io.piece_bytes);
            let Some(place) = io.place else {
                push(self.mark(io.issued_nanos, None, None), bytes);
                return;
            };
            for piece in owners.split(place, bytes) {
                let file_offset = piece.file_offset;
                let here = Place {
                    file_offset,
                    ..place
                };
                push(
                    self.mark(io.issued_nanos, Some(here), piece.owner),
                    piece.bytes,
                );
            }
        })?;
        reads.marks.sort_by_key(|read| read.mark.nanos);
        Ok(is_there.then_some(reads))
    }

    fn mark(&self, nanos: u64, place: Option<Place>, owner: Option<Owner>) -> Mark {
        let (eval, step) = self.running_at(nanos).unwrap_or((NONE, NONE));
        let offset = place.and_then(|place| {
            let file = self.catalog.files.get(place.file as usize)?;
            let is_inside = place.file_offset < file.size_bytes;
            is_inside.then(|| file.begin.saturating_add(place.file_offset))
        });
        Mark {
            nanos,
            offset: offset.unwrap_or(NOWHERE),
            tensor: owner.map_or(NONE, |o| o.tensor),
            expert: owner.and_then(|o| o.expert).unwrap_or(NONE),
            eval,
            step,
        }
    }

    /// Place of the evaluation that was going on, of several the one that began
    /// last, and the step that was running; on a device none, as far as the processor goes.
    fn running_at(&self, nanos: u64) -> Option<(u32, u32)> {
        let begun = self.evals_between(nanos, nanos.saturating_add(1));
        let mut open = begun.iter().rev().take(MAX_OPEN);
        let at = *open.find(|&&at| nanos <= self.evals[at as usize].end)?;
        let eval = &self.evals[at as usize];
        let graph = &self.graphs[eval.graph as usize];
        let steps = graph.steps.len();
        if graph.is_on_device() {
            return Some((at, NONE));
        }
        let step = if eval.is_regular() {
            let ends = self.data.ends(eval, steps);
            ends.partition_point(|&end| eval.begin + u64::from(end) < nanos)
        } else {
            // A step without a tick has 0.
            let ends = &self.data.ragged(eval).nanos;
            ends.partition_point(|&end| end != 0 && end < nanos)
        };
        Some((at, step.min(steps.saturating_sub(1)) as u32))
    }
}

/// Calls `take` with each record; whether the file is there at all.
fn each<R: Record>(path: &Path, mut take: impl FnMut(R)) -> Result<bool, KernelError> {
    if !path.exists() {
        return Ok(false);
    }
    for record in Reader::<R>::open(path)? {
        take(record?);
    }
    Ok(true)
}

/// A filter, made ready for marks.
pub struct MarkSelector<'i> {
    index: &'i RunIndex,
    selector: Selector,
    /// By tensor of the owners.
    tensors: Vec<bool>,
    keeps_unowned: bool,
    asks_for_moment: bool,
}

impl<'i> MarkSelector<'i> {
    pub fn new(index: &'i RunIndex, kernel: &Kernel, filter: &Filter) -> MarkSelector<'i> {
        let keeps_layer = |layer| filter.layers.as_ref().is_none_or(|l| l.contains(&layer));
        let keeps_component = |name: &str| {
            let wanted = filter.components.as_ref();
            wanted.is_none_or(|names| names.iter().any(|n| n == name))
        };
        let tensors = kernel.owners.tensors().iter();
        MarkSelector {
            index,
            selector: Selector::new(index, filter),
            tensors: tensors
                .map(|t| keeps_layer(t.layer) && keeps_component(t.component))
                .collect(),
            keeps_unowned: keeps_layer(None)
                && filter.components.is_none()
                && filter.experts.is_none(),
            asks_for_moment: filter.phases.is_some()
                || filter.tokens.is_some()
                || filter.ops.is_some(),
        }
    }

    pub fn keeps(&self, mark: &Mark) -> bool {
        let keeps_byte = match self.tensors.get(mark.tensor as usize) {
            Some(&keeps) => keeps && self.keeps_expert(mark.expert),
            None => self.keeps_unowned,
        };
        keeps_byte && (!self.asks_for_moment || self.keeps_moment(mark))
    }

    pub fn keeps_tensor(&self, tensor: usize) -> bool {
        self.tensors[tensor]
    }

    /// Whether bytes of this expert, or of none, are kept.
    pub fn keeps_expert(&self, expert: u32) -> bool {
        match &self.selector.experts {
            None => true,
            Some(keeps) => keeps.get(expert as usize).is_some_and(|&k| k),
        }
    }

    fn keeps_moment(&self, mark: &Mark) -> bool {
        let Some(eval) = self.index.evals.get(mark.eval as usize) else {
            return false;
        };
        let steps = &self.index.graphs[eval.graph as usize].steps;
        let step = steps.get(mark.step as usize);
        let keeps_step = match step {
            Some(step) => self.selector.keeps_op(step.op),
            // While a device computes no step runs here.
            None => self.selector.keeps_all_ops(),
        };
        self.selector.keeps_eval(eval) && keeps_step
    }
}
