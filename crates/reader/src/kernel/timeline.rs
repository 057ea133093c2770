//! Which node was running at a moment.
//!
//! A step runs from the tick of the step before it (or the beginning of the
//! evaluation) to its own. Between evaluations nothing runs. An evaluation on a device goes on
//! from the call that asked for it until the device has ended, as far as that was measured;
//! meanwhile none of its steps runs on the processor.

use std::path::Path;

use trace::{format::Phase, read::ReadError};

use crate::{
    log::{Log, Stream, Visitor},
    prepared::PreparedStep,
    seen::Seen,
};

/// A node, as the tables count: evaluations through all streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    pub eval: u64,
    /// `None` on a device: what the processor did then belongs to no step.
    pub step: Option<u32>,
}

/// One evaluation.
#[derive(Clone, Debug)]
pub struct Span {
    pub eval: u64,
    pub phase: Phase,
    /// Number of its graph in the run.
    pub template: u32,
    /// Tokens of the batch.
    pub tokens: u32,
    pub begin_nanos: u64,
    pub end_nanos: u64,
    /// Where its steps begin in the list of all.
    first_step: usize,
    /// None on a device.
    steps: usize,
}

#[derive(Debug, Default)]
pub struct Timeline {
    /// By their beginning.
    spans: Vec<Span>,
    step_nanos: Vec<u64>,
    /// Of each graph of the run.
    graphs: Vec<Vec<PreparedStep>>,
}

impl Visitor for Timeline {
    type Error = ReadError;

    fn evaluation(&mut self, seen: &Seen) -> Result<(), ReadError> {
        let evaluation = seen.evaluation;
        let (begin_nanos, end_nanos) = seen.window();
        let ends = match seen.is_on_device() {
            true => &[],
            false => evaluation.step_nanos.as_slice(),
        };
        self.spans.push(Span {
            eval: seen.eval,
            phase: evaluation.phase,
            template: seen.template,
            tokens: seen.tokens() as u32,
            begin_nanos,
            end_nanos,
            first_step: self.step_nanos.len(),
            steps: ends.len(),
        });
        self.step_nanos.extend(ends);
        Ok(())
    }

    fn stream_ends(&mut self, stream: &Stream) -> Result<(), ReadError> {
        // One that cannot be has no evaluations here.
        let steps = |template: &Result<crate::Prepared, String>| match template {
            Ok(prepared) => prepared.steps.clone(),
            Err(_) => Vec::new(),
        };
        self.graphs.extend(stream.templates.iter().map(steps));
        Ok(())
    }
}

impl Timeline {
    pub fn read(log_directory: &Path) -> Result<Timeline, ReadError> {
        let mut timeline = Timeline::default();
        Log::new(log_directory).walk(&mut timeline)?;
        timeline.spans.sort_by_key(|span| span.begin_nanos);
        Ok(timeline)
    }

    /// All evaluations, by their beginning.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// When each step of an evaluation ended; of one on a device nothing.
    pub fn step_ends(&self, span: &Span) -> &[u64] {
        &self.step_nanos[span.first_step..span.first_step + span.steps]
    }

    /// The steps of an evaluation's graph.
    pub fn graph(&self, span: &Span) -> &[PreparedStep] {
        &self.graphs[span.template as usize]
    }

    /// The evaluation that was going on; of several at the same time, the one that
    /// began last.
    pub fn span_at(&self, nanos: u64) -> Option<&Span> {
        let behind = self.spans.partition_point(|span| span.begin_nanos <= nanos);
        // Evaluations of other streams may have begun since; few are open at a time.
        let open = self.spans[..behind].iter().rev().take(64);
        open.into_iter().find(|span| nanos <= span.end_nanos)
    }

    pub fn at(&self, nanos: u64) -> Option<Moment> {
        let span = self.span_at(nanos)?;
        let ends = self.step_ends(span);
        // A step without a tick has 0; those are at the end, of an evaluation that
        // was cut off.
        let step = ends.partition_point(|&end| end != 0 && end < nanos);
        let last = ends.len().checked_sub(1);
        Some(Moment {
            eval: span.eval,
            step: last.and_then(|last| u32::try_from(step.min(last)).ok()),
        })
    }

    /// Index of the span in [`Timeline::spans`] of an evaluation.
    pub fn find(&self, eval: u64) -> Option<&Span> {
        self.spans.iter().find(|span| span.eval == eval)
    }
}
