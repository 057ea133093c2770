//! The estimate for people.

use std::fmt::Write as _;

use estimate::{
    Machines, batch,
    roofline::{Bound, PassTime, Seconds},
};
use indicatif::HumanBytes;
use terminal::text::grouped;

use super::{Args, Estimate};
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
    let verdict = match memory.fits {
        true => format!(
            "yes, in {}, with {} to spare",
            HumanBytes(memory.budget_bytes),
            HumanBytes(memory.budget_bytes - memory.bytes)
        ),
        false => format!(
            "no: {} more than {}",
            HumanBytes(memory.bytes - memory.budget_bytes),
            HumanBytes(memory.budget_bytes)
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
            "{} a token of one sequence; half full, {} of {} are unused in one piece a sequence, {} of {} in blocks of 16",
            HumanBytes(estimate.kv.bytes_per_token),
            HumanBytes(estimate.kv_contiguous.waste_bytes),
            HumanBytes(estimate.kv_contiguous.reserved_bytes),
            HumanBytes(estimate.kv_paged.waste_bytes),
            HumanBytes(estimate.kv_paged.reserved_bytes)
        ),
    );
    line("prompt", pass(&estimate.prompt, "to the first token"));
    line("token", pass(&estimate.token, "a token"));
    if !memory.fits {
        line(
            "note",
            "speeds are for a model that is in memory; `tensorscope plan` says what the disk gives"
                .to_owned(),
        );
    }
    if let Some(draft) = &estimate.draft {
        line(
            "draft",
            format!(
                "{:.2} tokens a pass, {:.2} times as fast where drafting costs nothing",
                draft.tokens_per_pass, draft.speed_up
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
    out.push_str(&batches(&estimate.batch, args));
    out.push_str(&further(estimate));
    out
}

fn pass(time: &PassTime, of: &str) -> String {
    let bound = match time.bound {
        Bound::Memory => "reading memory",
        Bound::Compute => "computing",
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
    let ms = |seconds: f64| seconds * 1e3;
    format!(
        "{:.1} ms ({:.1} to {:.1})",
        ms(seconds.likely),
        ms(seconds.best),
        ms(seconds.worst)
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
