//! What other settings would make of a pass, from llama.cpp's kernels as they were measured on
//! this machine: more processors, more tokens at once, repacked weights.
//! Gains are predicted from it.

use analysis::roofline::classes::ClassRow;
use kernelio::compute::ComputeCeiling;
use rules::{Metric, Unit, Value};

use super::Of;

const MEASURED: &str = "tensorscope bench ceilings";
/// More tokens at once take as long each.
const MAX_BATCH: f64 = 512.0;

impl Of<'_> {
    /// After threads, processors and the model's types are known.
    pub(super) fn products(&mut self) {
        // A pass is the processor's alone.
        let compute = self.inputs.ceilings.compute.as_ref();
        let Some(compute) = compute.filter(|_| self.time.device.is_none()) else {
            return;
        };
        let number = |name: &str| self.number(name);
        let (Some(threads), Some(processors)) = (number("threads"), number("processors")) else {
            return;
        };
        let all = number("processors.online").unwrap_or(processors);
        let at_once = number("tokens_per_evaluation").unwrap_or(1.0).max(1.0);
        let running = threads.min(processors);
        let more = threads.max(processors).min(all).max(running);
        let largest = number("tokens").unwrap_or(1.0).min(MAX_BATCH).max(at_once);
        let pass = |threads: f64, tokens: f64| self.pass_nanos(compute, threads, tokens);
        let now = pass(running, at_once);
        let times = |of: Option<f64>, with: Option<f64>| Some(of? / with?);
        let found = [
            ("pass.more_processors", times(now, pass(more, at_once))),
            ("products.repacked", self.repacked(compute, running)),
        ];
        let predicted = [
            ("pass.predicted_nanos", pass(more, at_once)),
            (
                "pass.larger_batch_nanos",
                pass(running, largest).map(|nanos| nanos / largest),
            ),
        ];
        let ceiling = compute.flops_with_threads(all as usize);
        for (name, times) in found {
            if let Some(times) = times {
                self.put(name, Unit::Times, times, MEASURED);
            }
        }
        for (name, nanos) in predicted {
            if let Some(nanos) = nanos {
                self.put(name, Unit::Nanos, nanos, MEASURED);
            }
        }
        if let Some(flops) = ceiling {
            self.put("compute.ceiling", Unit::FlopsPerSecond, flops, MEASURED);
        }
    }

    fn number(&self, name: &str) -> Option<f64> {
        self.metrics.get(name).and_then(Metric::as_number)
    }

    fn text(&self, name: &str) -> Option<&str> {
        match &self.metrics.get(name)?.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Classes of this phase that multiply with weights.
    fn multiplying(&self) -> impl Iterator<Item = &ClassRow> {
        let classes = self.inputs.facts.classes.iter();
        classes.filter(|row| {
            row.phase == self.stack.name && row.op.starts_with("MUL_MAT") && row.weight_bytes > 0
        })
    }

    /// One evaluation with so many threads and tokens: its products at the speed that was
    /// measured, its cache at that of memory, and threads that meet after each node. `None`
    /// where most of the products are of a type that was not measured.
    fn pass_nanos(&self, compute: &ComputeCeiling, threads: f64, tokens: f64) -> Option<f64> {
        let evaluations = self.stack.evaluations.max(1) as f64;
        let own = self.number("tokens_per_evaluation")?.max(1.0);
        let (mut nanos, mut known, mut all) = (0.0, 0.0, 0.0);
        for row in self.multiplying() {
            // Of an expert, its part of the tokens.
            let share = match row.op.as_str() {
                "MUL_MAT_ID" => self.expert_share(),
                _ => 1.0,
            };
            let at_once = (tokens * share).round().max(1.0) as usize;
            let (Some(ty), Some(flops)) = (row.weight_type.as_deref(), row.flops) else {
                continue;
            };
            let flops = flops as f64 / evaluations * tokens / own;
            all += flops;
            let rate = compute.product_with_tokens(ty, at_once, threads.max(1.0) as usize);
            if let Some(rate) = rate {
                known += flops;
                nanos += flops * 1e9 / rate;
            }
        }
        if known < all * 0.5 || known == 0.0 {
            return None;
        }
        let cached = self.number("kv.bytes_per_token")? * tokens;
        let memory = self.inputs.ceilings.memory_all.unwrap_or(u64::MAX) as f64;
        let nodes = self.number("nanos_per_evaluation")? / self.number("nanos_per_node")?;
        let node = compute.node_with_threads(threads.max(1.0) as usize)?;
        Some(nanos * all / known + cached * 1e9 / memory + nodes * node)
    }

    fn expert_share(&self) -> f64 {
        let model = self.inputs.metadata.and_then(|m| m.model.as_ref());
        let of = model.map(|model| &model.hyperparameters);
        of.map_or(1.0, |of| {
            of.n_expert_used as f64 / of.n_expert.max(1) as f64
        })
    }

    fn repacked(&self, compute: &ComputeCeiling, threads: f64) -> Option<f64> {
        let ty = self.text("weights.type")?;
        let tokens = self.number("tokens_per_evaluation")?.round().max(1.0) as usize;
        let threads = threads.max(1.0) as usize;
        let plain = compute.product_with_tokens(ty, tokens, threads)?;
        Some(compute.repacked_with_tokens(ty, tokens, threads)? / plain)
    }
}
