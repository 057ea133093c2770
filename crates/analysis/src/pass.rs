//! One pass over the evaluations of a run, shared by everything about facts.
//!
//! Evaluations of one template differ only in their times and in what index
//! arrays name. So each template becomes a [`Layout`] once: its fixed accesses as
//! constants, and the few that vary. Per evaluation
//! 1. the times are added up by step, and executions counted ([`Counts`]);
//! 2. the varying accesses are resolved into [`Touch`]es;
//! 3. what depends on order (runs, windows, predictions) looks at the weights
//!    only, through [`View::for_each_weight`].
//!
//! At the end of a stream the counts multiply the constants. Memory is that of
//! the templates, however many evaluations there are.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use trace::{
    expand::for_each_access,
    format::Phase,
    read::{Definitions, Evaluation},
    region::{IndexOrder, Strided},
    template::Template,
};

use crate::{
    catalog::Catalog,
    error::AnalysisError,
    layout::{Layout, NO_UNIT, Slot, Varying},
};

/// Phases of a run, as an index.
pub const PHASES: [Phase; 3] = [Phase::Unknown, Phase::Prompt, Phase::Generate];

pub fn phase_index(phase: Phase) -> usize {
    match phase {
        Phase::Unknown => 0,
        Phase::Prompt => 1,
        Phase::Generate => 2,
    }
}

/// Accesses and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    pub accesses: u64,
    pub bytes: u64,
}

impl Traffic {
    pub fn add(&mut self, accesses: u64, bytes: u64) {
        // A damaged log may hold any number; a sum of such is no reason to stop.
        self.accesses = self.accesses.saturating_add(accesses);
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// How often and how long each step of a template ran, in one phase.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Evaluations whose every step was executed.
    pub whole: u64,
    /// Executions of each step in the other evaluations; empty if none.
    pub extra: Vec<u64>,
    pub nanos: Vec<u64>,
}

impl Counts {
    pub fn executions(&self, step: u32) -> u64 {
        self.whole + self.extra.get(step as usize).copied().unwrap_or(0)
    }
}

/// One access to a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch<'a> {
    pub unit: u32,
    pub bytes: u64,
    /// Within the tensor.
    pub begin: u64,
    pub end: u64,
    /// Its bytes, where there are gaps between `begin` and `end`.
    pub region: Option<&'a Strided>,
}

/// A [`Touch`] with the number of its region, [`NO_REGION`] where it has none.
#[derive(Clone, Copy, Debug)]
struct Stored {
    unit: u32,
    region: u32,
    bytes: u64,
    begin: u64,
    end: u64,
}

const NO_REGION: u32 = u32::MAX;

/// The varying accesses of one evaluation.
#[derive(Debug, Default)]
pub struct Scratch {
    touches: Vec<Stored>,
    regions: Vec<Strided>,
    /// Touches and traffic of each varying access of the layout.
    ranges: Vec<Range<u32>>,
    pub traffic: Vec<Traffic>,
    bits: Vec<u64>,
}

/// One evaluation, ready to be looked at.
pub struct View<'a> {
    pub definitions: &'a Definitions,
    pub evaluation: &'a Evaluation,
    pub template: &'a Template,
    pub template_number: u32,
    pub layout: &'a Layout,
    pub catalog: &'a Catalog,
    pub scratch: &'a Scratch,
    pub tokens: &'a [i64],
    /// Every step was executed.
    pub is_whole: bool,
}

impl View<'_> {
    /// Accesses to weights in execution order.
    pub fn for_each_weight<'s>(&'s self, mut f: impl FnMut(Touch<'s>)) {
        for slot in &self.layout.slots {
            match *slot {
                Slot::Fixed(at) => {
                    let fixed = &self.layout.fixed[at as usize];
                    if self.is_whole || self.evaluation.was_executed(fixed.step as usize) {
                        f(Touch {
                            unit: fixed.unit,
                            bytes: fixed.bytes,
                            begin: fixed.begin,
                            end: fixed.end,
                            region: fixed.region.as_deref(),
                        });
                    }
                }
                Slot::Varying(at) => {
                    let range = &self.scratch.ranges[at as usize];
                    let touches = &self.scratch.touches[range.start as usize..range.end as usize];
                    touches
                        .iter()
                        .for_each(|stored| f(self.scratch.touch_of(stored)));
                }
            }
        }
    }

    /// Accesses to weights that an index array decided.
    pub fn varying_touches(&self) -> impl Iterator<Item = Touch<'_>> {
        self.scratch
            .touches
            .iter()
            .map(|stored| self.scratch.touch_of(stored))
    }
}

/// Layouts and counts of the templates of one stream, and the catalogue of all.
#[derive(Debug, Default)]
pub struct Pass {
    pub catalog: Catalog,
    layouts: Vec<Option<Box<Layout>>>,
    counts: Vec<[Option<Box<Counts>>; 3]>,
    scratch: Scratch,
}

impl Pass {
    /// Counts an evaluation and calls `f` with what it touched.
    pub fn push(
        &mut self,
        definitions: &Definitions,
        evaluation: &Evaluation,
        f: impl FnOnce(&View),
    ) -> Result<(), AnalysisError> {
        let number = evaluation.template as usize;
        let undefined = AnalysisError::UndefinedTemplate {
            evaluation: evaluation.number,
            template: evaluation.template,
        };
        let template = definitions.templates.get(number).ok_or(undefined)?;
        if self.layouts.len() <= number {
            self.layouts.resize_with(number + 1, || None);
            self.counts.resize_with(number + 1, Default::default);
        }
        let catalog = &mut self.catalog;
        let layout = self.layouts[number]
            .get_or_insert_with(|| Box::new(Layout::new(definitions, template, catalog)));
        let counts =
            self.counts[number][phase_index(evaluation.phase)].get_or_insert_with(Default::default);
        let is_whole = count(counts, template.steps.len(), evaluation);
        self.scratch.resolve(layout, evaluation, is_whole);
        let tokens = layout
            .tokens_capture
            .and_then(|capture| evaluation.captures.get(capture))
            .map_or(&[][..], Vec::as_slice);
        f(&View {
            definitions,
            evaluation,
            template,
            template_number: evaluation.template,
            layout,
            catalog: &self.catalog,
            scratch: &self.scratch,
            tokens,
            is_whole,
        });
        Ok(())
    }

    /// Forgets the templates of a stream, whose numbers the next one uses anew;
    /// calls `f` for each template and phase that was executed.
    pub fn end_stream(&mut self, mut f: impl FnMut(&Catalog, &Layout, usize, &Counts)) {
        for (layout, counts) in self.layouts.drain(..).zip(self.counts.drain(..)) {
            let Some(layout) = layout else { continue };
            for (phase, counts) in counts.iter().enumerate() {
                if let Some(counts) = counts {
                    f(&self.catalog, &layout, phase, counts);
                }
            }
        }
    }
}

/// Adds an evaluation's times; whether it ran to its end.
fn count(counts: &mut Counts, steps: usize, evaluation: &Evaluation) -> bool {
    counts.nanos.resize(steps, 0);
    let mut begin = evaluation.begin_nanos;
    let mut is_whole = evaluation.step_nanos.len() >= steps;
    for (sum, &end) in counts.nanos.iter_mut().zip(&evaluation.step_nanos) {
        // A step without a tick was not executed; its neighbour's time is its own.
        if end == 0 {
            is_whole = false;
            continue;
        }
        *sum = sum.saturating_add(end.saturating_sub(begin));
        begin = end;
    }
    if is_whole {
        counts.whole += 1;
    } else {
        counts.extra.resize(steps, 0);
        for (step, executions) in counts.extra.iter_mut().enumerate() {
            *executions += u64::from(evaluation.was_executed(step));
        }
    }
    is_whole
}

impl Scratch {
    fn touch_of(&self, stored: &Stored) -> Touch<'_> {
        Touch {
            unit: stored.unit,
            bytes: stored.bytes,
            begin: stored.begin,
            end: stored.end,
            region: self.regions.get(stored.region as usize),
        }
    }

    fn resolve(&mut self, layout: &Layout, evaluation: &Evaluation, is_whole: bool) {
        self.touches.clear();
        self.regions.clear();
        self.ranges.clear();
        self.traffic.clear();
        for varying in &layout.varying {
            let first = self.touches.len() as u32;
            let executed = is_whole || evaluation.was_executed(varying.step as usize);
            let traffic = if executed {
                self.resolve_one(varying, evaluation)
            } else {
                Traffic::default()
            };
            self.ranges.push(first..self.touches.len() as u32);
            self.traffic.push(traffic);
        }
    }

    fn resolve_one(&mut self, varying: &Varying, evaluation: &Evaluation) -> Traffic {
        let mut sum = Traffic::default();
        if let Some(template) = &varying.alone {
            // The captures keep their numbers in a template of one access.
            for_each_access(template, evaluation, 0, |access| {
                let bytes = access.region.bytes();
                sum.add(1, bytes);
                if varying.unit != NO_UNIT {
                    let slice = access.expert.filter(|_| varying.is_sliced).unwrap_or(0);
                    let begin = access.region.offset;
                    let end = access.region.end().unwrap_or(u64::MAX);
                    let has_gaps = end - begin != bytes;
                    self.touches.push(Stored {
                        unit: varying.unit + slice,
                        region: if has_gaps {
                            self.regions.len() as u32
                        } else {
                            NO_REGION
                        },
                        bytes,
                        begin,
                        end,
                    });
                    if has_gaps {
                        self.regions.push(access.region);
                    }
                }
            });
            return sum;
        }
        let indexed = &varying.indexed;
        let values = evaluation
            .captures
            .get(indexed.capture as usize)
            .map_or(&[][..], Vec::as_slice);
        if indexed.order == IndexOrder::DistinctAscending {
            // At most `MAX_EXPERTS` bits; see `Varying::new`.
            self.bits.clear();
            self.bits.resize((indexed.bound as usize).div_ceil(64), 0);
            for &value in values {
                if let Ok(value) = u64::try_from(value)
                    && value < indexed.bound
                {
                    self.bits[(value / 64) as usize] |= 1 << (value % 64);
                }
            }
            for word in 0..self.bits.len() {
                let mut bits = self.bits[word];
                while bits != 0 {
                    let value = word as u64 * 64 + u64::from(bits.trailing_zeros());
                    bits &= bits - 1;
                    sum.add(1, varying.unit_bytes);
                    self.touch(varying, value);
                }
            }
            return sum;
        }
        for &value in values.iter().take(indexed.count[0] as usize) {
            if let Ok(value) = u64::try_from(value)
                && value < indexed.bound
            {
                sum.add(1, varying.unit_bytes);
                self.touch(varying, value);
            }
        }
        sum
    }

    fn touch(&mut self, varying: &Varying, value: u64) {
        if varying.unit != NO_UNIT {
            let begin = varying.first_byte + value * varying.indexed.stride;
            self.touches.push(Stored {
                unit: varying.unit + if varying.is_sliced { value as u32 } else { 0 },
                region: NO_REGION,
                bytes: varying.unit_bytes,
                begin,
                end: begin + varying.span_bytes,
            });
        }
    }
}
