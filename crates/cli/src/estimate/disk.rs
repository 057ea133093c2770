//! What the disk gives where a model does not fit in memory, by `plan`'s own prediction.

use std::path::Path;

use estimate::{Machine, machines::Kind, roofline::PassTime};
use launch::planning::{self, PROGRAM_BYTES};
use plan::{Strategies, predict::Predicted};
use serde::Serialize;

use super::{Args, Subject, memory::Memory};

#[derive(Serialize)]
pub struct Disk {
    pub bytes_per_second: f64,
    /// `given`, `measured` or `assumed`.
    pub source: &'static str,
    /// Fed by `tensorscope run --memory`: with llama.cpp alone it is `stock`.
    #[serde(flatten)]
    pub predicted: Predicted,
}

/// `None` where the model fits, where there is no file to plan with, and for GPUs, whose
/// weights do not come from a disk for each token.
pub fn of(
    args: &Args,
    subject: &Subject,
    memory: &Memory,
    machine: &Machine,
    token: &PassTime,
) -> anyhow::Result<Option<Disk>> {
    let Some(file) = &subject.file else {
        return Ok(None);
    };
    if memory.fits || machine.kind == Kind::Gpu {
        return Ok(None);
    }
    let model = gguf::Model::open(file.path())?;
    let weights = plan::weights_of(&model);
    let (bytes_per_second, source) = rate(args, subject);
    let other_bytes = PROGRAM_BYTES + memory.context_bytes + memory.compute_bytes;
    let ahead = planning::read_ahead_bytes(None, Some(file.path()));
    let question = plan::Question {
        weights: &weights,
        weights_bytes: planning::weights_bytes(memory.budget_bytes, other_bytes),
        strategies: Strategies::ALL,
        machine: plan::Machine {
            compute_seconds_per_token: Some(token.seconds.likely),
            ..plan::Machine::new(bytes_per_second).reading_ahead(ahead, &weights)
        },
        routing: None,
        policy: None,
        tokens: None,
    };
    Ok(Some(Disk {
        bytes_per_second,
        source,
        predicted: question.answer().predicted.rounded(),
    }))
}

/// Of the disk that the model is on, or this program where there is no model yet.
fn rate(args: &Args, subject: &Subject) -> (f64, &'static str) {
    if let Some(rate) = args.disk {
        return (rate as f64, "given");
    }
    let assumed = (planning::USUAL_DISK, "assumed");
    if args.machine != "this" {
        return assumed;
    }
    let program = std::env::current_exe().ok();
    let file = subject.file.as_ref().filter(|file| !file.is_a_hole());
    let file = file.map(|file| file.path()).or(program.as_deref());
    let rate = |file: &Path| planning::disk_rate(file);
    file.and_then(rate)
        .map_or(assumed, |rate| (rate, "measured"))
}
