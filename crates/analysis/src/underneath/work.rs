//! What the run was doing: evaluations and their nodes, in time.

use std::collections::HashMap;

use reader::kernel::{Moment, Timeline};
use trace::format::Phase;

use super::intervals::Union;
use crate::traffic::PHASES;

/// Nodes of one op in one layer and phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeKind {
    pub phase: Phase,
    pub op: String,
    pub layer: Option<u32>,
}

/// One evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvaluationSpan {
    pub eval: u64,
    pub phase: Phase,
    pub tokens: u64,
    pub begin_nanos: u64,
    pub end_nanos: u64,
}

/// All evaluations of a run with their nodes.
#[derive(Clone, Debug, Default)]
pub struct Work {
    evaluations: Vec<(EvaluationSpan, std::ops::Range<usize>)>,
    by_eval: HashMap<u64, usize>,
    kinds: Vec<NodeKind>,
    /// End and kind of each step; 0 where no tick was seen.
    steps: Vec<(u64, u32)>,
}

impl Work {
    pub fn of(timeline: &Timeline) -> Work {
        let mut work = Work::default();
        let mut known: HashMap<(u32, usize), Vec<u32>> = HashMap::new();
        for span in timeline.spans() {
            let key = (span.template, span.phase as usize);
            let kinds = known
                .entry(key)
                .or_insert_with(|| work.kinds_of(timeline, span));
            let ends = timeline.step_ends(span);
            let steps = ends.iter().copied().zip(kinds.iter().copied());
            let about = EvaluationSpan {
                eval: span.eval,
                phase: span.phase,
                tokens: u64::from(span.tokens),
                begin_nanos: span.begin_nanos,
                end_nanos: span.end_nanos,
            };
            work.push_steps(about, steps);
        }
        work
    }

    fn kinds_of(&mut self, timeline: &Timeline, span: &reader::kernel::timeline::Span) -> Vec<u32> {
        let kinds = timeline.graph(span).iter().map(|step| NodeKind {
            phase: span.phase,
            op: step.op.to_string(),
            layer: step.layer,
        });
        kinds.map(|kind| self.intern(kind)).collect()
    }

    fn intern(&mut self, kind: NodeKind) -> u32 {
        let known = self.kinds.iter().position(|known| *known == kind);
        known.unwrap_or_else(|| {
            self.kinds.push(kind);
            self.kinds.len() - 1
        }) as u32
    }

    /// Takes in an evaluation, with op, layer and end of each of its steps.
    pub fn push<'a>(
        &mut self,
        span: EvaluationSpan,
        steps: impl IntoIterator<Item = (&'a str, Option<u32>, u64)>,
    ) {
        let steps: Vec<(u64, u32)> = steps
            .into_iter()
            .map(|(op, layer, end)| {
                let kind = NodeKind {
                    phase: span.phase,
                    op: op.to_owned(),
                    layer,
                };
                (end, self.intern(kind))
            })
            .collect();
        self.push_steps(span, steps);
    }

    fn push_steps(&mut self, span: EvaluationSpan, steps: impl IntoIterator<Item = (u64, u32)>) {
        let first = self.steps.len();
        self.steps.extend(steps);
        self.by_eval.insert(span.eval, self.evaluations.len());
        self.evaluations.push((span, first..self.steps.len()));
    }

    pub fn evaluations(&self) -> impl Iterator<Item = &EvaluationSpan> + Clone {
        self.evaluations.iter().map(|(span, _)| span)
    }

    pub fn kinds(&self) -> &[NodeKind] {
        &self.kinds
    }

    /// Calls with kind, begin and end of every node that was executed.
    pub fn for_each_node(&self, mut call: impl FnMut(usize, u64, u64)) {
        for (span, steps) in &self.evaluations {
            let mut begin = span.begin_nanos;
            for &(end, kind) in self.steps[steps.clone()].iter().filter(|step| step.0 != 0) {
                call(kind as usize, begin, end);
                begin = end.max(begin);
            }
        }
    }

    /// Index into [`Work::kinds`] of a node.
    pub fn kind_at(&self, moment: Moment) -> Option<usize> {
        let (_, steps) = &self.evaluations[*self.by_eval.get(&moment.eval)?];
        let step = steps.start.checked_add(moment.step as usize)?;
        let step = Some(step).filter(|step| steps.contains(step))?;
        Some(self.steps[step].1 as usize)
    }

    pub fn phase_at(&self, moment: Moment) -> Option<Phase> {
        let index = *self.by_eval.get(&moment.eval)?;
        Some(self.evaluations[index].0.phase)
    }

    /// When evaluations of each of [`PHASES`] were going on, and their tokens.
    pub fn phases(&self) -> [(Union, u64); 3] {
        PHASES.map(|phase| {
            let spans = self.evaluations().filter(|span| span.phase == phase);
            let tokens = spans.clone().map(|span| span.tokens).sum();
            let times = spans.map(|span| (span.begin_nanos, span.end_nanos));
            (Union::of(times), tokens)
        })
    }

    /// Index into [`PHASES`], or their number outside of evaluations.
    pub(super) fn slot(&self, at: Option<Moment>) -> usize {
        let phase = at.and_then(|moment| self.phase_at(moment));
        phase.map_or(PHASES.len(), |phase| phase as usize)
    }
}

/// Name of a slot, see [`Work::slot`].
pub(super) fn slot_name(slot: usize) -> &'static str {
    PHASES.get(slot).map_or("none", |phase| phase.name())
}
