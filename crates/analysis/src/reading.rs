//! A run, read once: every fact about it, and the sequence of its weights.

use reader::{Seen, SeenCopy, Stream, Tensors, Visitor};

use crate::{
    error::AnalysisError,
    facts::{self, Facts, Model, Options},
    pass::Pass,
    sequence::{Sequence, SequenceBuilder},
};

/// To be shown a log by [`reader::Log::walk`].
#[derive(Debug)]
pub struct Reading {
    pass: Pass,
    facts: facts::Accumulator,
    sequence: SequenceBuilder,
}

impl Reading {
    pub fn new(options: Options) -> Reading {
        Reading {
            pass: Pass::default(),
            facts: facts::Accumulator::new(options),
            sequence: SequenceBuilder::default(),
        }
    }

    /// `tensors` are those of the run, `model` may be empty.
    pub fn finish(self, tensors: &Tensors, model: &Model) -> (Facts, Sequence) {
        let facts = self.facts.finish(&self.pass.units, tensors, model);
        (facts, self.sequence.finish(self.pass.units))
    }
}

impl Visitor for Reading {
    type Error = AnalysisError;

    fn evaluation(&mut self, seen: &Seen) -> Result<(), AnalysisError> {
        let view = self.pass.push(seen);
        self.facts.push(&view);
        self.sequence.push(&view)
    }

    fn copy(&mut self, copy: &SeenCopy) -> Result<(), AnalysisError> {
        self.facts.copy(copy);
        Ok(())
    }

    fn stream_ends(&mut self, stream: &Stream) -> Result<(), AnalysisError> {
        self.facts.end_stream(&self.pass, stream);
        self.pass.end_stream();
        Ok(())
    }
}
