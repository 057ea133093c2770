//! Feeding this engine: a model larger than memory, its weights read by crate `feed`.

use std::sync::Arc;

use capture::{BatchToken, hook::Observer};
use feed::{Feeder, Props, Shares, Stats, hook, usage::Meter};
use ggml::{OpNumbers, TickRules};
use trace::format::Phase;

use crate::{EngineError, context::Context, hooks, model::Model, recording::Recording};

pub struct Feeding {
    feeder: Feeder,
    ops: OpNumbers,
    rules: TickRules,
}

impl Feeding {
    /// The model must be alive as long as this.
    pub fn new(props: Props) -> Feeding {
        Feeding {
            feeder: Feeder::new(props),
            ops: hooks::ops(),
            rules: TickRules::today(hooks::fusion()),
        }
    }

    /// Believes `meter` about what is used, instead of the kernel.
    pub fn measured_by(mut self, meter: Arc<dyn Meter>) -> Feeding {
        self.feeder = self.feeder.measured_by(meter);
        self
    }

    /// Computes a batch, its weights fed.
    pub fn decode(
        &mut self,
        context: &mut Context<'_>,
        batch: &[BatchToken],
        wants_logits: &dyn Fn(usize) -> bool,
    ) -> Result<(), EngineError> {
        self.taking_part(|feeding| {
            hooks::with(&mut [feeding], || context.decode(batch, wants_logits))
        })
    }

    /// The same, recorded.
    pub fn decode_recorded(
        &mut self,
        recording: &mut Recording,
        model: &Model,
        context: &mut Context<'_>,
        phase: Phase,
        batch: &[BatchToken],
        wants_logits: &dyn Fn(usize) -> bool,
    ) -> Result<(), EngineError> {
        self.taking_part(|feeding| {
            recording.decode(model, context, phase, batch, wants_logits, &mut [feeding])
        })
    }

    fn taking_part(
        &mut self,
        compute: impl FnOnce(&mut dyn Observer) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let mut feeding = hook::Feeding {
            feeder: &mut self.feeder,
            ops: &self.ops,
            rules: self.rules,
            turn: feed::Turn::Only,
            error: None,
        };
        let result = compute(&mut feeding);
        // Why llama.cpp did not compute is not what llama.cpp says.
        match feeding.error {
            Some(error) => Err(error.into()),
            None => result,
        }
    }

    pub fn stats(&self) -> &Stats {
        &self.feeder.stats
    }

    /// Who got what memory, once the first graph was seen.
    pub fn shares(&self) -> Option<Shares> {
        self.feeder.memory().map(|memory| memory.shares)
    }

    pub fn take_notes(&mut self) -> Vec<String> {
        self.feeder.take_notes()
    }

    /// Evaluation, layer and expert of each choice (with `keeps_routing`).
    pub fn routing(&self) -> &[(u32, u32, u32)] {
        self.feeder.routing()
    }
}
