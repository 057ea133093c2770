//! What the run was doing: evaluations and their nodes, in time.

use std::collections::HashMap;

use reader::kernel::{Moment, Timeline, timeline::Span};
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

/// All evaluations of a run, and the kinds of their nodes.
#[derive(Debug, Default)]
pub struct Work {
    timeline: Timeline,
    /// Places in [`Timeline::spans`].
    by_eval: HashMap<u64, usize>,
    kinds: Vec<NodeKind>,
    /// Kind of each step, by graph and phase.
    of_graph: HashMap<(u32, Phase), Vec<usize>>,
}

impl Work {
    pub fn of(timeline: Timeline) -> Work {
        let mut work = Work::default();
        for (at, span) in timeline.spans().iter().enumerate() {
            work.by_eval.insert(span.eval, at);
            let kinds = &mut work.kinds;
            let of_graph = work.of_graph.entry((span.template, span.phase));
            of_graph.or_insert_with(|| {
                let steps = timeline.graph(span).iter().map(|step| NodeKind {
                    phase: span.phase,
                    op: step.op.to_string(),
                    layer: step.layer,
                });
                steps.map(|kind| intern(kinds, kind)).collect()
            });
        }
        Work { timeline, ..work }
    }

    pub fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    pub fn evaluations(&self) -> &[Span] {
        self.timeline.spans()
    }

    pub fn kinds(&self) -> &[NodeKind] {
        &self.kinds
    }

    /// Calls with kind, begin and end of every node that was executed.
    pub fn for_each_node(&self, mut call: impl FnMut(usize, u64, u64)) {
        for span in self.evaluations() {
            let mut begin = span.begin_nanos;
            let kinds = &self.of_graph[&(span.template, span.phase)];
            let steps = self.timeline.step_ends(span).iter().zip(kinds);
            for (&end, &kind) in steps.filter(|(end, _)| **end != 0) {
                call(kind, begin, end);
                begin = end.max(begin);
            }
        }
    }

    /// Index into [`Work::kinds`] of a node.
    pub fn kind_at(&self, moment: Moment) -> Option<usize> {
        let span = self.span_at(moment)?;
        let kinds = &self.of_graph[&(span.template, span.phase)];
        kinds.get(moment.step? as usize).copied()
    }

    pub fn phase_at(&self, moment: Moment) -> Option<Phase> {
        Some(self.span_at(moment)?.phase)
    }

    fn span_at(&self, moment: Moment) -> Option<&Span> {
        Some(&self.evaluations()[*self.by_eval.get(&moment.eval)?])
    }

    /// When evaluations of each of [`PHASES`] were going on, and their tokens.
    pub fn phases(&self) -> [(Union, u64); 3] {
        PHASES.map(|phase| {
            let spans = self.evaluations().iter();
            let spans = spans.filter(|span| span.phase == phase);
            let tokens = spans.clone().map(|span| u64::from(span.tokens)).sum();
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

fn intern(kinds: &mut Vec<NodeKind>, kind: NodeKind) -> usize {
    let known = kinds.iter().position(|known| *known == kind);
    known.unwrap_or_else(|| {
        kinds.push(kind);
        kinds.len() - 1
    })
}

/// Name of a slot, see [`Work::slot`].
pub(super) fn slot_name(slot: usize) -> &'static str {
    PHASES.get(slot).map_or("none", |phase| phase.name())
}
