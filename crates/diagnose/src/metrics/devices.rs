//! Numbers of runs in which devices compute: what their time is made of, what is copied, and
//! what would better lie on them.

use analysis::actions::{Action, Grounds, Topic, actions};
use rules::Unit;

use super::Of;
use crate::stack::{KERNELS, PARTS};

const DEVICE_QUERY: &str = "SELECT device, count(*) AS evaluations, sum(device_end_nanos - device_begin_nanos) AS nanos FROM evals \
     WHERE phase = '{phase}' GROUP BY device";
const KERNELS_QUERY: &str = "SELECT k.eval, sum(k.exclusive_nanos) AS ran, max(k.end_nanos) - min(k.begin_nanos) AS span, \
     count(*) AS kernels FROM kernels k JOIN evals e ON e.eval = k.eval WHERE k.end_nanos IS NOT NULL AND e.phase = '{phase}' \
     GROUP BY k.eval";
const COPIES_QUERY: &str = "SELECT way, tensor_name, count(*) AS calls, sum(bytes) AS bytes FROM copies GROUP BY 1, 2 ORDER BY bytes DESC";
const PROCESSOR_QUERY: &str = "SELECT device, sum(weight_bytes) AS weights, sum(kv_bytes) AS kv, sum(end_nanos - begin_nanos) AS nanos \
     FROM evals WHERE phase = '{phase}' GROUP BY device";

impl Of<'_> {
    pub(super) fn devices(&mut self) {
        let has_devices = self.time.device.is_some();
        self.metrics
            .flag("has_devices", has_devices, Some(DEVICE_QUERY));
        let Some(device) = self.time.device.clone() else {
            return;
        };
        let all = self.stack.nanos.max(1) as f64;
        let share = |nanos: u64| nanos as f64 / all;
        let computing = device.computing();
        self.put("stack.device", Unit::Share, share(computing), DEVICE_QUERY);
        let passes = self.inputs.facts.devices.of_phase(&self.stack.name);
        if let Some(passes) = passes.map(|passes| passes.passes).filter(|&n| n > 0) {
            let splits = device.evaluations as f64 / passes as f64;
            self.put("device.splits", Unit::Count, splits, DEVICE_QUERY);
        }
        if device.measured > 0 {
            let name = format!("stack.{KERNELS}");
            self.put(&name, Unit::Share, share(device.kernels), KERNELS_QUERY);
            let gaps = device.gaps as f64 / (device.kernels + device.gaps).max(1) as f64;
            self.put("device.gaps", Unit::Share, gaps, KERNELS_QUERY);
            let kernels = device.kernels_each as f64;
            self.put("device.kernels", Unit::Count, kernels, KERNELS_QUERY);
        }
        if let Some(nanos) = self.mean_kernel_nanos() {
            self.put(
                "device.mean_kernel_nanos",
                Unit::Nanos,
                nanos,
                KERNELS_QUERY,
            );
        }
        let parts = PARTS.iter().filter(|(name, _)| *name != "host");
        let processor: f64 = parts.filter_map(|(name, _)| self.stack.share(name)).sum();
        self.put("stack.processor", Unit::Share, processor, PROCESSOR_QUERY);
        let tokens = self.stack.tokens.max(1) as f64;
        let read = self.time.bytes as f64 / tokens;
        self.put(
            "processor.bytes_per_token",
            Unit::Bytes,
            read,
            PROCESSOR_QUERY,
        );
        let calls = device.copy_calls as f64 / tokens;
        self.put("copies.calls_per_token", Unit::Count, calls, COPIES_QUERY);
        let copied = device
            .to_device_bytes
            .saturating_add(device.from_device_bytes);
        let copied = copied as f64 / tokens;
        self.put("copies.bytes_per_token", Unit::Bytes, copied, COPIES_QUERY);
        if let Some(flag) = self.offload().and_then(|action| action.llama_cpp) {
            let source = "tensorscope report RUN: actions";
            self.metrics.text("offload.flag", &flag, Some(source));
        }
    }

    /// Of this phase, of all devices.
    fn mean_kernel_nanos(&self) -> Option<f64> {
        let devices = self.inputs.facts.devices.devices.iter();
        let phases = devices.filter_map(|device| device.phase(&self.stack.name));
        let (kernels, nanos) = phases.fold((0, 0u64), |(kernels, nanos), phase| {
            (
                kernels + phase.kernels,
                nanos.saturating_add(phase.kernel_nanos),
            )
        });
        (kernels > 0).then(|| nanos as f64 / kernels as f64)
    }

    /// What the report would put on a device, where it has room.
    fn offload(&self) -> Option<Action> {
        let grounds = Grounds {
            facts: self.inputs.facts,
            opportunities: None,
            underneath: None,
            setup: self.inputs.setup,
        };
        let mut found = actions(&grounds).into_iter();
        found.find(|action| action.topic == Topic::Offload)
    }
}
