//! Working set: the distinct bytes of weights that a stretch of the run touches.
//!
//! For windows of 1, 8, 64 and 512 evaluations that follow each other, and from
//! the begin of the run. Rows of an embedding count row by row.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    pass::View,
    sequence::{Extent, Piece},
    timeline::Timeline,
    units::Units,
};

pub const DEFAULT_WINDOWS: [u64; 4] = [1, 8, 64, 512];

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkingSetResults {
    pub windows: Vec<WindowResults>,
    /// Distinct bytes since the begin.
    pub cumulative: Timeline<CumulativePoint>,
    pub distinct_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WindowResults {
    /// Length of the windows.
    pub evaluations: u64,
    /// How many are complete; the next three are about these.
    pub complete: u64,
    pub mean_bytes: f64,
    pub min_bytes: u64,
    pub max_bytes: u64,
    /// The last one may be incomplete.
    pub timeline: Timeline<WindowPoint>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowPoint {
    pub first_eval: u64,
    pub evaluations: u64,
    pub tokens: u64,
    pub distinct_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CumulativePoint {
    pub eval: u64,
    pub tokens: u64,
    pub distinct_bytes: u64,
}

#[derive(Debug)]
pub struct Accumulator {
    windows: Vec<Window>,
    whole_run: Touched,
    cumulative: Timeline<CumulativePoint>,
}

impl Accumulator {
    pub fn new(window_evaluations: &[u64]) -> Accumulator {
        let windows = window_evaluations.iter().filter(|&&n| n > 0);
        Accumulator {
            windows: windows.map(|&n| Window::new(n)).collect(),
            whole_run: Touched::default(),
            cumulative: Timeline::default(),
        }
    }

    pub fn push(&mut self, view: &View) {
        self.whole_run.add(view);
        self.cumulative.push(|| CumulativePoint {
            eval: view.seen.eval,
            tokens: view.seen.first_token + view.seen.tokens(),
            distinct_bytes: self.whole_run.distinct_bytes,
        });
        for window in &mut self.windows {
            window.push(view);
        }
    }

    pub fn finish(self) -> WorkingSetResults {
        WorkingSetResults {
            windows: self.windows.into_iter().map(Window::finish).collect(),
            cumulative: self.cumulative,
            distinct_bytes: self.whole_run.distinct_bytes,
        }
    }
}

#[derive(Debug, Default)]
struct Window {
    length: u64,
    touched: Touched,
    first_eval: u64,
    evaluations: u64,
    tokens: u64,
    complete: u64,
    sum_bytes: u64,
    min_bytes: u64,
    max_bytes: u64,
    timeline: Timeline<WindowPoint>,
}

impl Window {
    fn new(length: u64) -> Window {
        Window {
            length,
            min_bytes: u64::MAX,
            ..Window::default()
        }
    }

    fn push(&mut self, view: &View) {
        if self.evaluations == 0 {
            self.first_eval = view.seen.eval;
        }
        self.touched.add(view);
        self.evaluations += 1;
        self.tokens += view.seen.tokens();
        if self.evaluations == self.length {
            let bytes = self.touched.distinct_bytes;
            self.complete += 1;
            self.sum_bytes += bytes;
            self.min_bytes = self.min_bytes.min(bytes);
            self.max_bytes = self.max_bytes.max(bytes);
            self.close();
        }
    }

    fn close(&mut self) {
        let point = WindowPoint {
            first_eval: self.first_eval,
            evaluations: self.evaluations,
            tokens: self.tokens,
            distinct_bytes: self.touched.distinct_bytes,
        };
        self.timeline.push(|| point);
        self.touched.forget();
        self.evaluations = 0;
        self.tokens = 0;
    }

    fn finish(mut self) -> WindowResults {
        if self.evaluations > 0 {
            self.close();
        }
        WindowResults {
            evaluations: self.length,
            complete: self.complete,
            mean_bytes: self.sum_bytes as f64 / self.complete.max(1) as f64,
            min_bytes: if self.complete > 0 { self.min_bytes } else { 0 },
            max_bytes: self.max_bytes,
            timeline: self.timeline,
        }
    }
}

/// What was touched since the last [`Touched::forget`].
#[derive(Debug)]
struct Touched {
    /// A stamp of this value is of now, one less of a unit touched in part; anything smaller
    /// is forgotten.
    epoch: u32,
    unit_epoch: Vec<u32>,
    /// By template: its fixed accesses are all in here.
    template_epoch: Vec<u32>,
    /// Units touched in part.
    parts: BTreeMap<u32, Ranges>,
    distinct_bytes: u64,
}

impl Default for Touched {
    fn default() -> Touched {
        Touched {
            epoch: 2,
            unit_epoch: Vec::new(),
            template_epoch: Vec::new(),
            parts: BTreeMap::new(),
            distinct_bytes: 0,
        }
    }
}

impl Touched {
    fn add(&mut self, view: &View) {
        let number = view.seen.template as usize;
        if self.template_epoch.len() <= number {
            self.template_epoch.resize(number + 1, 0);
        }
        self.unit_epoch.resize(view.units.units.len(), 0);
        if view.is_whole && self.template_epoch[number] == self.epoch {
            view.varying()
                .for_each(|piece| self.touch(view.units, piece));
            return;
        }
        view.weights()
            .for_each(|piece| self.touch(view.units, piece));
        if view.is_whole {
            self.template_epoch[number] = self.epoch;
        }
    }

    fn touch(&mut self, units: &Units, piece: &Piece) {
        let stamp = &mut self.unit_epoch[piece.unit as usize];
        if *stamp == self.epoch {
            return;
        }
        if piece.extent == Extent::Whole {
            let has_parts = std::mem::replace(stamp, self.epoch) == self.epoch - 1;
            let parts = has_parts.then(|| self.parts.remove(&piece.unit));
            let before = parts.flatten().map_or(0, |parts| parts.bytes);
            self.distinct_bytes += piece.bytes - before;
            return;
        }
        *stamp = self.epoch - 1;
        let parts = self.parts.entry(piece.unit).or_default();
        for run in units.runs_of(piece) {
            self.distinct_bytes += parts.insert(run.offset, run.offset + run.bytes);
        }
    }

    fn forget(&mut self) {
        self.epoch += 2;
        self.parts.clear();
        self.distinct_bytes = 0;
    }
}

/// A set of bytes as ranges that do not touch each other.
#[derive(Debug, Default)]
struct Ranges {
    /// Begin to end.
    ranges: BTreeMap<u64, u64>,
    bytes: u64,
}

impl Ranges {
    /// Bytes that were not in it.
    fn insert(&mut self, begin: u64, end: u64) -> u64 {
        let before = self.bytes;
        let (mut begin, mut end) = (begin, end);
        if let Some((&first, &last)) = self.ranges.range(..=begin).next_back()
            && last >= begin
        {
            if last >= end {
                return 0;
            }
            begin = first;
        }
        while let Some((&first, &last)) = self.ranges.range(begin..=end).next() {
            end = end.max(last);
            self.bytes -= last - first;
            self.ranges.remove(&first);
        }
        self.ranges.insert(begin, end);
        self.bytes += end - begin;
        self.bytes - before
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    proptest! {
        #[test]
        fn ranges_count_each_byte_once(inserted in vec((0u64..100, 1u64..30), 0..40)) {
            let (mut ranges, mut naive) = (Ranges::default(), std::collections::BTreeSet::new());
            for (begin, bytes) in inserted {
                let before = naive.len();
                naive.extend(begin..begin + bytes);
                prop_assert_eq!(ranges.insert(begin, begin + bytes), (naive.len() - before) as u64);
            }
            prop_assert_eq!(ranges.bytes, naive.len() as u64);
        }
    }
}
