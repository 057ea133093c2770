//! What would better lie on a device: layers, experts, the KV cache.
//!
//! Only where the run shows what it costs (the processor's time in a token) and that there is
//! room (what the run is seen to use of the device's memory).

use super::{Action, Grounds, Topic};
use crate::{
    devices::{DeviceFacts, HostPart},
    findings::text::{bytes, count, time},
};

/// Of what is free, for buffers that nobody has seen, the driver, and other programs.
const RESERVE: f64 = 0.1;
/// A share of a token's time from which the processor's part is worth a sentence.
const NOTABLE_HOST: f64 = 0.05;

impl Grounds<'_> {
    pub(super) fn offload(&self) -> Vec<Action> {
        let results = &self.facts.devices;
        // With several, whose room it is depends on how a model is split.
        let [device] = &results.devices[..] else {
            return Vec::new();
        };
        let Some(free) = device.free_bytes() else {
            return Vec::new();
        };
        let room = (free as f64 * (1.0 - RESERVE)) as u64;
        let Some(host_nanos) = self.host_nanos(device) else {
            return Vec::new();
        };
        let host = &results.host;
        let found = [
            layers(device, host, room, host_nanos),
            experts(device, host, room, host_nanos),
            kv(device, host, room),
        ];
        found.into_iter().flatten().collect()
    }

    /// Of the processor, per generated token; `None` if it hardly computes, or the device's
    /// time, which it is held against, was not measured.
    fn host_nanos(&self, device: &DeviceFacts) -> Option<HostTime> {
        let tokens = self.facts.devices.of_phase("generate")?.tokens;
        let generate = device.phase("generate")?;
        if generate.timed_evaluations < generate.evaluations || tokens == 0 {
            return None;
        }
        let rows = self.facts.traffic.devices.iter();
        let host: u64 = rows
            .filter(|row| row.device == "CPU" && row.phase == "generate")
            .map(|row| row.nanos)
            .sum();
        let time = HostTime {
            host: host as f64 / tokens as f64,
            device: generate.nanos as f64 / tokens as f64,
        };
        (time.share() >= NOTABLE_HOST).then_some(time)
    }
}

/// Of a generated token.
#[derive(Clone, Copy)]
struct HostTime {
    host: f64,
    device: f64,
}

impl HostTime {
    fn share(&self) -> f64 {
        self.host / (self.host + self.device)
    }

    fn words(&self, device: &DeviceFacts) -> String {
        format!(
            "the processor computed for {} of a generated token, {} for {}",
            time(self.host),
            device.device,
            time(self.device)
        )
    }
}

fn layers(device: &DeviceFacts, host: &HostPart, room: u64, times: HostTime) -> Option<Action> {
    let each = host.host_layer_bytes.checked_div(host.host_layers)?;
    let more = room.checked_div(each)?.min(host.host_layers);
    if more == 0 {
        return None;
    }
    let on_device = host.layers - host.host_layers;
    let flag = match more == host.host_layers {
        true => "-ngl 99".to_owned(),
        // The output counts as a layer, and goes to a device first or last.
        false => format!(
            "-ngl {}",
            on_device + u64::from(host.is_output_on_device) + more
        ),
    };
    Some(Action {
        topic: Topic::Offload,
        text: format!(
            "more layers on {}: {} of {} are the processor's; {}; {} of its memory is not used by this run, room for {} of \
             {} each",
            device.device,
            host.host_layers,
            count(host.layers, "layer"),
            times.words(device),
            bytes(device.free_bytes().unwrap_or(0)),
            match more == host.host_layers {
                true => "all of these layers".to_owned(),
                false => count(more, "more layer"),
            },
            bytes(each)
        ),
        llama_cpp: Some(flag),
        tensorscope: None,
        gain: None,
        evidence: "facts.devices.host".into(),
    })
}

fn experts(device: &DeviceFacts, host: &HostPart, room: u64, times: HostTime) -> Option<Action> {
    let each = host.expert_bytes.checked_div(host.expert_layers)?;
    let more = room.checked_div(each)?.min(host.expert_layers);
    if more == 0 {
        return None;
    }
    let flag = match more == host.expert_layers {
        true => "without --cpu-moe, --n-cpu-moe and -ot".to_owned(),
        false => format!("--n-cpu-moe {}", host.expert_layers - more),
    };
    Some(Action {
        topic: Topic::Offload,
        text: format!(
            "more experts on {}: those of {} lie in the host's memory ({}); {}; there is room for those of {}",
            device.device,
            count(host.expert_layers, "layer"),
            bytes(host.expert_bytes),
            times.words(device),
            match more == host.expert_layers {
                true => "all of them".to_owned(),
                false => count(more, "layer"),
            }
        ),
        llama_cpp: Some(flag),
        tensorscope: None,
        gain: None,
        evidence: "facts.devices.host".into(),
    })
}

fn kv(device: &DeviceFacts, host: &HostPart, room: u64) -> Option<Action> {
    if host.kv_bytes == 0 || host.kv_bytes > room {
        return None;
    }
    Some(Action {
        topic: Topic::Offload,
        text: format!(
            "the KV cache on {}: {} of it lie in the host's memory while the weights of their layers lie on {0}, and {} of \
             its memory is not used by this run",
            device.device,
            bytes(host.kv_bytes),
            bytes(device.free_bytes().unwrap_or(0)),
        ),
        llama_cpp: Some("without --no-kv-offload (-nkvo)".into()),
        tensorscope: None,
        gain: None,
        evidence: "facts.devices.host".into(),
    })
}
