//! The estimate for people.

use std::fmt::Write as _;

use estimate::{
    Machines, batch,
    roofline::{Bound, PassTime, Seconds},
};
use indicatif::HumanBytes;
use terminal::text::grouped;

use super::{Args, Estimate, disk::Disk};
use crate::report::new_table;

pub fn page(estimate: &Estimate, args: &Args) -> String {
    let mut out = String::new();
    let mut line = |title: &str, text: String| {
        let _ = writeln!(out, "{title:<10} {text}");
    };
    let Estimate {
        model,
        machine,
        memory,
        ..
    } = estimate;
    let active = match model.active_parameters == model.parameters {
        true => String::new(),
        false => format!(" ({} a token)", grouped(model.active_parameters)),
    };
    line(
        "model",
        format!(
            "{} ({}), {} parameters{active}, {} of weights",
            model.name,
            model.architecture,
            grouped(model.parameters),
            HumanBytes(model.weight_bytes)
        ),
    );
    let peak = machine
        .flops_per_second
        .iter()
        .map(|(ty, figure)| format!("{:.1} TFLOP/s {}", figure.value / 1e12, ty.name()));
    let peak: Vec<String> = peak.collect();
    line(
        "machine",
        format!(
            "{}: {} of memory at {:.1} GB/s, {}",
            machine.name,
            HumanBytes(machine.memory_bytes()),
            machine.memory_bytes_per_second.value / 1e9,
            peak.join(", ")
        ),
    );
    line(
        "memory",
        format!(
            "{}: weights {}, KV cache {} ({} tokens), buffers {} (by {})",
            HumanBytes(memory.bytes),
            HumanBytes(memory.weight_bytes),
            HumanBytes(memory.context_bytes),
            args.context,
            HumanBytes(memory.compute_bytes),
            memory.asked
        ),
    );
    if memory.devices.iter().any(|device| device.is_gpu()) {
        for device in &memory.devices {
            let name = match device.is_gpu() {
                true => device.name.clone(),
                false => "host".to_owned(),
            };
            line(
                "  on",
                format!(
                    "{name}: {} (weights {}, KV cache {}, buffers {})",
                    HumanBytes(device.bytes()),
                    HumanBytes(device.weight_bytes),
                    HumanBytes(device.context_bytes),
                    HumanBytes(device.compute_bytes)
                ),
            );
        }
    }
    let (taken, budget) = (memory.budgeted_bytes, memory.budget_bytes);
    let verdict = match memory.fits {
        true => format!(
            "yes, in {}, with {} to spare",
            HumanBytes(budget),
            HumanBytes(budget - taken)
        ),
        false => format!(
            "no: {} more than {}",
            HumanBytes(taken - budget),
            HumanBytes(budget)
        ),
    };
    line("fits", verdict);
    for way in &memory.ways {
        line(
            "  with",
            format!("{}: {} ({})", way.change, HumanBytes(way.bytes), way.costs),
        );
    }
    line(
        "KV",
        format!(
            "{} a token of one sequence; half full, {} of {} are unused in one piece a sequence, {} of {} in blocks of {}{}",
            HumanBytes(estimate.kv.bytes_per_token),
            HumanBytes(estimate.kv_contiguous.waste_bytes),
            HumanBytes(estimate.kv_contiguous.reserved_bytes),
            HumanBytes(estimate.kv_paged.waste_bytes),
            HumanBytes(estimate.kv_paged.reserved_bytes),
            args.page_tokens,
            match estimate.kv_paged.shared_bytes {
                0 => String::new(),
                bytes => format!(
                    ", where {} are kept once instead of often",
                    HumanBytes(bytes)
                ),
            }
        ),
    );
    let types = estimate.kv_types.iter();
    let types = types.map(|of| {
        let (token, most) = (HumanBytes(of.bytes_per_token), of.max_sequences);
        format!("{} {token} ({most} sequences)", of.ty)
    });
    let types: Vec<String> = types.collect();
    line("  types", types.join(", "));
    line("prompt", pass(&estimate.prompt, "to the first token"));
    line("token", pass(&estimate.token, "a token"));
    match &estimate.disk {
        Some(disk) => line("disk", from_disk(disk)),
        None if !memory.fits => line("note", "these speeds are for one that fits".to_owned()),
        None => {}
    }
    if let Some(measured) = &estimate.measured {
        let batches = measured.batches.iter();
        let batches = batches.map(|of| {
            format!(
                "{:.1} ms a step of {} ({} evaluations)",
                of.seconds * 1e3,
                of.batch,
                of.evaluations
            )
        });
        let batches: Vec<String> = batches.collect();
        line(
            "measured",
            format!("{}: {}", measured.run, batches.join(", ")),
        );
    }
    if let Some(draft) = &estimate.draft {
        line(
            "draft",
            format!(
                "{:.2} tokens a pass, {:.2} times as fast{}",
                draft.tokens_per_pass,
                draft.speed_up,
                match &args.draft_model {
                    Some(name) => format!(" with drafts of {name}"),
                    None => " where drafting costs nothing".to_owned(),
                }
            ),
        );
    }
    if let Some(attention) = &estimate.attention {
        let from = attention.crossover_tokens.map_or_else(
            || "never".to_owned(),
            |tokens| format!("from {tokens} tokens on"),
        );
        line(
            "attention",
            format!(
                "of {} tokens, a layer: {} moved by standard attention, {} block by block in {} of fast memory; less {from}",
                attention.tokens,
                HumanBytes(attention.standard.bytes as u64),
                HumanBytes(attention.block_wise.bytes as u64),
                HumanBytes(attention.sram_bytes)
            ),
        );
    }
    if args.attention && estimate.attention.is_none() {
        line("attention", "the model has none".to_owned());
    }
    out.push_str(&batches(&estimate.batch, args));
    out.push_str(&further(estimate));
    out
}

fn from_disk(disk: &Disk) -> String {
    let speed = |tokens: Option<f64>| {
        tokens.map_or("unknown".to_owned(), |tokens| {
            format!("{tokens:.2} tokens/s")
        })
    };
    let predicted = &disk.predicted;
    format!(
        "{} a token to read at {:.2} GB/s ({}): {} with `tensorscope run --memory`, {} with llama.cpp alone",
        HumanBytes(predicted.bytes_read_per_token),
        disk.bytes_per_second / 1e9,
        disk.source,
        speed(predicted.tokens_per_second),
        speed(predicted.stock.tokens_per_second)
    )
}

fn pass(time: &PassTime, of: &str) -> String {
    let bound = match time.bound {
        Bound::Memory => "reading memory",
        Bound::Compute => "computing",
        Bound::Kernels => "kernels that reach neither memory's speed nor the processor's",
    };
    format!(
        "{} {of}, {:.1} tokens/s, bound by {bound} ({:.1} FLOP a byte, the machine turns at {:.1})",
        seconds(&time.seconds),
        time.tokens_per_second,
        time.flop_per_byte,
        time.ridge_flop_per_byte
    )
}

fn seconds(seconds: &Seconds) -> String {
    let (unit, factor) = match seconds.likely < 10.0 {
        true => ("ms", 1e3),
        false => ("s", 1.0),
    };
    format!(
        "{:.1} {unit} ({:.1} to {:.1})",
        seconds.likely * factor,
        seconds.best * factor,
        seconds.worst * factor
    )
}

fn batches(advice: &batch::Advice, args: &Args) -> String {
    let mut table = new_table(&["batch", "ms a token", "tokens/s", "memory", "fits"], 1);
    let shown = |point: &&batch::Point| point.batch.is_power_of_two() && point.batch <= 256;
    for point in advice.points.iter().filter(shown) {
        table.add_row([
            point.batch.to_string(),
            format!("{:.1}", point.seconds.likely * 1e3),
            format!("{:.1}", point.tokens_per_second),
            HumanBytes(point.memory_bytes).to_string(),
            if point.fits { "yes" } else { "no" }.to_owned(),
        ]);
    }
    let mut out = format!("\nBatches\n{table}\n");
    let knee = advice.knee_batch.map_or_else(
        || "throughput grows with every batch that fits".to_owned(),
        |batch| format!("beyond a batch of {batch} throughput hardly grows"),
    );
    let _ = match advice.max_batch_that_fits {
        0 => writeln!(out, "{knee}; none fits"),
        most => writeln!(out, "{knee}; at most {most} fit"),
    };
    let replicas = advice.replicas.iter().filter(|of| of.replicas > 1);
    for of in replicas {
        let _ = writeln!(
            out,
            "{} replicas with batches of {}: {:.1} tokens/s, {:.2} times one, in {}",
            of.replicas,
            of.batch,
            of.tokens_per_second,
            of.gain,
            HumanBytes(of.memory_bytes)
        );
    }
    if let (Some(best), Some(latency)) = (&advice.best, args.latency) {
        let _ = writeln!(
            out,
            "best within {} ms: a batch of {}, {:.1} tokens/s",
            latency.as_millis(),
            best.batch,
            best.tokens_per_second
        );
    }
    out
}

fn further(estimate: &Estimate) -> String {
    let mut out = String::new();
    if let Some(versus) = &estimate.versus {
        let mut table = new_table(&["batch", "ms", "ms, other type", "times as fast"], 1);
        for row in &versus.rows {
            table.add_row([
                row.batch.to_string(),
                format!("{:.2}", row.first_seconds * 1e3),
                format!("{:.2}", row.second_seconds * 1e3),
                format!("{:.2}", row.ratio),
            ]);
        }
        let turns = |batch: Option<u64>| {
            batch.map_or("at no batch".to_owned(), |b| {
                format!("from a batch of {b} on")
            })
        };
        let _ = writeln!(
            out,
            "\nTwo types\n{table}\nweights: {} and {}; compute-bound {}, and {}",
            HumanBytes(versus.first.weight_bytes),
            HumanBytes(versus.second.weight_bytes),
            turns(versus.first.turning_batch),
            turns(versus.second.turning_batch)
        );
    }
    if let Some(pairs) = &estimate.measured_versus {
        let mut table = new_table(&["batch", "ms", "ms, other run", "times as fast"], 1);
        for pair in pairs {
            table.add_row([
                pair.batch.to_string(),
                format!("{:.2}", pair.first_seconds * 1e3),
                format!("{:.2}", pair.second_seconds * 1e3),
                format!("{:.2}", pair.ratio),
            ]);
        }
        let _ = match pairs.is_empty() {
            true => writeln!(out, "\nTwo runs\nno batch is in both"),
            false => writeln!(out, "\nTwo runs, measured\n{table}"),
        };
    }
    if let Some(shapes) = &estimate.shapes {
        let mut table = new_table(&["dimension", "is", "unit wants", "padding %", "source"], 1);
        for fit in shapes.iter().filter(|fit| !fit.fits) {
            table.add_row([
                fit.dimension.to_owned(),
                fit.number.to_string(),
                format!("a multiple of {}", fit.multiple_of),
                format!("{:.2}", fit.padding_percent),
                fit.source.clone(),
            ]);
        }
        match shapes.iter().all(|fit| fit.fits) {
            true => out.push_str("\nShapes\nevery dimension fills the units of the machine\n"),
            false => {
                let _ = writeln!(out, "\nShapes\n{table}");
            }
        }
    }
    if let Some(found) = &estimate.train {
        let mut table = new_table(
            &[
                "tensor",
                "pipeline",
                "data",
                "zero",
                "recompute",
                "micro-batch",
                "memory",
                "bubble %",
                "tokens/s",
            ],
            5,
        );
        for timed in &found.best {
            let layout = &timed.outcome.layout;
            table.add_row([
                layout.tensor.to_string(),
                layout.pipeline.to_string(),
                layout.data.to_string(),
                format!("{:?}", layout.zero).to_lowercase(),
                format!("{:?}", layout.recompute).to_lowercase(),
                layout.micro_batch.to_string(),
                HumanBytes(timed.outcome.memory.bytes as u64).to_string(),
                format!("{:.1}", timed.outcome.bubble * 100.0),
                format!("{:.0}", timed.tokens_per_second),
            ]);
        }
        let _ = writeln!(
            out,
            "\nTraining\n{table}\n{} of {} layouts fit",
            grouped(found.fitting),
            grouped(found.examined)
        );
        if let Some(smallest) = found.smallest.as_ref().filter(|_| found.best.is_empty()) {
            let _ = writeln!(
                out,
                "none fits: the smallest takes {} on a GPU",
                HumanBytes(smallest.outcome.memory.bytes as u64)
            );
        }
    }
    out
}

pub fn machines(table: &Machines) -> String {
    let mut rows = new_table(&["machine", "memory", "GB/s", "TFLOP/s", "source"], 1);
    for machine in &table.machines {
        let flops = machine.flops_per_second.iter();
        let flops: Vec<String> = flops
            .map(|(ty, figure)| format!("{} {:.0}", ty.name(), figure.value / 1e12))
            .collect();
        rows.add_row([
            machine.name.clone(),
            HumanBytes(machine.memory_bytes()).to_string(),
            format!("{:.0}", machine.memory_bytes_per_second.value / 1e9),
            flops.join(", "),
            machine.memory_bytes_per_second.source.name.clone(),
        ]);
    }
    rows.to_string()
}
