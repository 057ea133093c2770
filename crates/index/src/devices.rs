//! What devices did, kept: when each computed its evaluations, its kernels where they were
//! timed, and copies between memories.
//!
//! Kernels are named by what launched them, once for all evaluations that launched the same.
//! Of more timed kernels than [`MAX_KERNELS`] only their sums are kept, which is said.

use std::{collections::HashMap, sync::Arc};

use reader::{Seen, SeenCopy, Times};
use trace::device::Way;

use crate::catalog::{Catalog, Numbered};

/// Marks an evaluation of the processor.
pub const NO_DEVICE: u32 = u32::MAX;
/// Timed kernels that are kept: 128 MB.
const MAX_KERNELS: usize = 1 << 24;
/// Of a hostile log.
const MAX_COPIES: usize = 1 << 24;
/// A kernel inside a graph of the card's own that has no times.
const NO_TIME: (u32, u32) = (u32::MAX, 0);

/// When a device computed an evaluation.
#[derive(Clone, Copy, Debug)]
pub struct OnDevice {
    /// When it began and ended; `None` if nobody measured it.
    pub nanos: Option<(u64, u64)>,
    pub kernels: Option<TimedKernels>,
}

/// The kernels of an evaluation that were timed.
#[derive(Clone, Copy, Debug)]
pub struct TimedKernels {
    pub count: u32,
    /// From the begin of the first to the end of the last.
    pub span: (u64, u64),
    /// While at least one ran.
    pub ran_nanos: u64,
    /// Where each is, if that is kept: what launched them, and their place.
    listed: Option<(u32, u32, u32)>,
}

impl TimedKernels {
    /// None ran, between the first and the last.
    pub fn gap_nanos(&self) -> u64 {
        (self.span.1 - self.span.0).saturating_sub(self.ran_nanos)
    }

    pub fn are_listed(&self) -> bool {
        self.listed.is_some()
    }
}

/// A kernel as it ran.
#[derive(Clone, Copy, Debug)]
pub struct Ran<'a> {
    pub step: Option<u32>,
    pub name: &'a str,
    pub begin: u64,
    pub end: u64,
}

#[derive(Clone, Debug)]
pub struct KeptCopy {
    /// Of the call that asked for it.
    pub begin: u64,
    pub end: u64,
    pub bytes: u64,
    /// Its stream, and the number there of the evaluation that follows it.
    pub stream: u32,
    pub in_stream: u64,
    /// Number among [`OnDevices::ways`].
    pub way: u32,
    /// In the catalogue.
    pub tensor: u32,
    pub is_async: bool,
}

#[derive(Debug, Default)]
pub struct OnDevices {
    evals: Vec<OnDevice>,
    /// From the begin of the evaluation, in the order of launches.
    kernels: Vec<(u32, u32)>,
    /// Step and name of each kernel that is launched, by launches.
    launches: Vec<Vec<(Option<u32>, u32)>>,
    /// By stream, and number there.
    known_launches: HashMap<(u32, u32), u32>,
    names: Numbered<Arc<str>>,
    /// Ascending by their begin.
    pub copies: Vec<KeptCopy>,
    /// The latest end up to each of them.
    pub latest: Vec<u64>,
    /// Device and way of copies.
    pub ways: Numbered<(Arc<str>, Way)>,
    /// Evaluations whose kernels were too many to keep.
    pub unlisted: u64,
}

impl OnDevices {
    /// Number of what is known of an evaluation; [`NO_DEVICE`] for the processor's.
    pub fn push(&mut self, seen: &Seen) -> u32 {
        if !seen.is_on_device() {
            return NO_DEVICE;
        }
        let kernels = seen
            .kernel_times()
            .and_then(|times| self.timed(seen, &times));
        self.evals.push(OnDevice {
            nanos: seen.device_nanos(),
            kernels,
        });
        self.evals.len() as u32 - 1
    }

    fn timed(&mut self, seen: &Seen, times: &[Times]) -> Option<TimedKernels> {
        let measured = || times.iter().filter(|times| times.is_measured());
        let begin = measured().map(|times| times.begin_nanos).min()?;
        let end = measured().map(|times| times.end_nanos).max()?.max(begin);
        let ran = measured().fold(0, |n: u64, times| n.saturating_add(times.nanos));
        let listed = self.list(seen, times);
        self.unlisted += u64::from(listed.is_none());
        Some(TimedKernels {
            count: measured().count() as u32,
            span: (begin, end),
            ran_nanos: ran,
            listed,
        })
    }

    fn list(&mut self, seen: &Seen, times: &[Times]) -> Option<(u32, u32, u32)> {
        if self.kernels.len() + times.len() > MAX_KERNELS {
            return None;
        }
        let from_begin = |nanos: u64| {
            let nanos = nanos.checked_sub(seen.evaluation.begin_nanos)?;
            u32::try_from(nanos).ok()
        };
        let first = self.kernels.len();
        for times in times {
            let place = match times.is_measured() {
                true => from_begin(times.begin_nanos).zip(from_begin(times.end_nanos)),
                false => Some(NO_TIME),
            };
            let Some(place) = place else {
                self.kernels.truncate(first);
                return None;
            };
            self.kernels.push(place);
        }
        Some((self.launches_of(seen), first as u32, times.len() as u32))
    }

    fn launches_of(&mut self, seen: &Seen) -> u32 {
        let number = seen.evaluation.device.as_ref().and_then(|on| on.launches);
        let key = (seen.stream, number.unwrap_or(u32::MAX));
        let (launches, names) = (&mut self.launches, &mut self.names);
        *self.known_launches.entry(key).or_insert_with(|| {
            let kernels = seen.kernels.iter();
            let named = kernels.map(|kernel| (kernel.step, names.number(kernel.name.clone())));
            launches.push(named.collect());
            launches.len() as u32 - 1
        })
    }

    pub fn copy(&mut self, seen: &SeenCopy, catalog: &Catalog) {
        let tensor = catalog.numbers.get(seen.tensor.first as usize);
        let Some(&tensor) = tensor.filter(|_| self.copies.len() < MAX_COPIES) else {
            return;
        };
        self.copies.push(KeptCopy {
            begin: seen.copy.begin_nanos,
            end: seen.copy.end_nanos.max(seen.copy.begin_nanos),
            bytes: seen.copy.bytes,
            stream: seen.stream,
            in_stream: seen.copy.evaluation,
            way: self.ways.number((seen.device.name.clone(), seen.copy.way)),
            tensor,
            is_async: seen.copy.is_async,
        });
    }

    /// Everything that there is so far was pushed.
    pub fn put_in_order(&mut self) {
        self.copies.sort_by_key(|copy| copy.begin);
        let mut latest = 0;
        let ends = self.copies.iter().map(|copy| {
            latest = copy.end.max(latest);
            latest
        });
        self.latest = ends.collect();
    }

    /// Something besides the processor computed.
    pub fn is_used(&self) -> bool {
        !self.evals.is_empty()
    }

    pub fn of(&self, number: u32) -> Option<&OnDevice> {
        self.evals.get(number as usize)
    }

    /// Kernels with times of an evaluation that began at `begin`, in the order of their
    /// launches.
    pub fn ran(&self, kernels: &TimedKernels, begin: u64) -> impl Iterator<Item = Ran<'_>> {
        let (launches, first, count) = kernels.listed.unwrap_or_default();
        let places = &self.kernels[first as usize..(first + count) as usize];
        let named = self.launches.get(launches as usize);
        let named = named.map_or(&[][..], Vec::as_slice);
        let both = places.iter().zip(named);
        both.filter(|(place, _)| **place != NO_TIME)
            .map(move |(&(from, to), &(step, name))| Ran {
                step,
                name: &self.names.all[name as usize],
                begin: begin + u64::from(from),
                end: begin + u64::from(to.max(from)),
            })
    }
}
