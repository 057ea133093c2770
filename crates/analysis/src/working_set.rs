//! Working set: the distinct bytes of weights that a stretch of the run touches.
//!
//! For windows of 1, 8, 64 and 512 evaluations that follow each other, and from
//! the begin of the run. Rows of an embedding count row by row. A slice of an
//! expert tensor and the tensor as a whole are different things here; llama.cpp
//! does not use both.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    pass::{Touch, View},
    timeline::Timeline,
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
    tokens: u64,
}

impl Accumulator {
    pub fn new(window_evaluations: &[u64]) -> Accumulator {
        let windows = window_evaluations.iter().filter(|&&n| n > 0);
        Accumulator {
            windows: windows.map(|&n| Window::new(n)).collect(),
            whole_run: Touched::default(),
            cumulative: Timeline::default(),
            tokens: 0,
        }
    }

    pub fn push(&mut self, view: &View) {
        self.whole_run.add(view);
        self.tokens += view.tokens.len() as u64;
        let point = CumulativePoint {
            eval: view.evaluation.number,
            tokens: self.tokens,
            distinct_bytes: self.whole_run.distinct_bytes,
        };
        self.cumulative.push(|| point);
        for window in &mut self.windows {
            window.push(view);
        }
    }

    /// The next stream numbers its templates anew.
    pub fn end_stream(&mut self) {
        for touched in self.windows.iter_mut().map(|w| &mut w.touched) {
            touched.template_epoch.clear();
        }
        self.whole_run.template_epoch.clear();
    }

    pub fn finish(self) -> WorkingSetResults {
        WorkingSetResults {
            windows: self.windows.into_iter().map(Window::finish).collect(),
            cumulative: self.cumulative,
            distinct_bytes: self.whole_run.distinct_bytes,
        }
    }
}

#[derive(Debug)]
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
            touched: Touched::default(),
            first_eval: 0,
            evaluations: 0,
            tokens: 0,
            complete: 0,
            sum_bytes: 0,
            min_bytes: u64::MAX,
            max_bytes: 0,
            timeline: Timeline::default(),
        }
    }

    fn push(&mut self, view: &View) {
        if self.evaluations == 0 {
            self.first_eval = view.evaluation.number;
        }
        self.touched.add(view);
        self.evaluations += 1;
        self.tokens += view.tokens.len() as u64;
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
    /// A stamp of this value is of now; anything less is forgotten.
    epoch: u32,
    /// By unit: touched as a whole.
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
            epoch: 1,
            unit_epoch: Vec::new(),
            template_epoch: Vec::new(),
            parts: BTreeMap::new(),
            distinct_bytes: 0,
        }
    }
}

impl Touched {
    fn add(&mut self, view: &View) {
        let number = view.template_number as usize;
        if self.template_epoch.len() <= number {
            self.template_epoch.resize(number + 1, 0);
        }
        self.unit_epoch.resize(view.catalog.units.len(), 0);
        if view.is_whole && self.template_epoch[number] == self.epoch {
            for touch in view.varying_touches() {
                self.touch(view, &touch);
            }
            return;
        }
        view.for_each_weight(|touch| self.touch(view, &touch));
        if view.is_whole {
            self.template_epoch[number] = self.epoch;
        }
    }

    fn touch(&mut self, view: &View, touch: &Touch) {
        let stamp = &mut self.unit_epoch[touch.unit as usize];
        if *stamp == self.epoch {
            return;
        }
        let unit = &view.catalog.units[touch.unit as usize];
        if touch.bytes >= unit.size_bytes {
            *stamp = self.epoch;
            let before = self.parts.remove(&touch.unit).map_or(0, |r| r.bytes);
            self.distinct_bytes += unit.size_bytes.max(touch.bytes).saturating_sub(before);
            return;
        }
        let parts = self.parts.entry(touch.unit).or_default();
        match touch.region {
            None => self.distinct_bytes += parts.insert(touch.begin, touch.end),
            Some(region) => region.for_each_run(|begin, bytes| {
                self.distinct_bytes += parts.insert(begin, begin + bytes);
            }),
        }
    }

    fn forget(&mut self) {
        self.epoch += 1;
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
