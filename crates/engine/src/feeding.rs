//! Feeding this engine: a model larger than memory, its weights read by crate `feed`.

use std::ffi::{c_int, c_void};

use capture::{
    BatchToken, RawPlan,
    hook::{ComputeFn, PlanLayout},
};
use feed::{FeedError, Feeder, Props, Shares, Stats};
use ggml::{Graph, OpNumbers, TickRules};

use crate::{EngineError, context::Context, hooks};

pub struct Feeding {
    feeder: Feeder,
    ops: OpNumbers,
    rules: TickRules,
    error: Option<FeedError>,
}

impl Feeding {
    /// The model must be alive as long as this.
    pub fn new(props: Props) -> Feeding {
        Feeding {
            feeder: Feeder::new(props),
            ops: hooks::ops(),
            rules: TickRules::today(hooks::fusion()),
            error: None,
        }
    }

    /// Computes a batch, its weights fed.
    pub fn decode(
        &mut self,
        context: &mut Context<'_>,
        batch: &[BatchToken],
        wants_logits: &dyn Fn(usize) -> bool,
    ) -> Result<(), EngineError> {
        let result = hooks::with_feeding(self, || context.decode(batch, wants_logits));
        // Why llama.cpp did not compute is not what llama.cpp says.
        match self.error.take() {
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

    /// # Safety
    /// As `ggml_graph_compute`, which `real` is.
    pub(crate) unsafe fn compute(
        &mut self,
        graph: *mut c_void,
        plan: *mut RawPlan,
        real: ComputeFn,
    ) -> c_int {
        // SAFETY: a live graph (caller).
        let Some(view) = (unsafe { Graph::from_ptr(graph) }) else {
            // SAFETY: the call that llama.cpp made.
            return unsafe { real(graph, plan) };
        };
        let library = feed::hook::Library {
            ops: &self.ops,
            rules: self.rules,
            plan: PlanLayout::Today,
        };
        // SAFETY: the call that llama.cpp made; the linked version's layouts.
        let (status, error) =
            unsafe { feed::hook::compute(&mut self.feeder, view, graph, plan, &library, real) };
        if error.is_some() {
            self.error = error;
        }
        status
    }
}
