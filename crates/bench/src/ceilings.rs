//! `tensorscope bench ceilings`: what the hardware allows.
//!
//! Disk, memory and arithmetic are measured by crate `kernelio`; here llama.cpp's own matrix
//! products are added, which reach less of the arithmetic than there is, and graphics cards
//! ([`card`]).

mod card;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use engine::kernels::{Kernels, Matrix, Timing};
use gguf::GgmlType;
use kernelio::{
    Ceilings,
    card::{CardCeiling, Unit},
    compute::{ComputeCeiling, KernelCeiling, NodeCeiling},
    memory::MemoryOptions,
};
use terminal::{progress, signals};

/// What the hardware allows: reads of the model's disk and of memory, arithmetic, and
/// llama.cpp's products with weights of the model's types
///
/// The disk is read with O_DIRECT through io_uring at the block size and depth that a short
/// sweep finds best; memory with one thread and more, each in a buffer of its own. Takes about
/// ten seconds and writes nothing to the model. NVIDIA cards, where there are any, are measured
/// through their driver, in about five seconds each.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tensorscope bench ceilings -m model.gguf
  tensorscope bench ceilings -m model.gguf -o ceilings.json && tensorscope report RUN --ceilings ceilings.json")]
pub struct Args {
    /// Model file, or any large file on the same disk
    #[arg(short, long, value_name = "FILE")]
    model: PathBuf,

    /// Threads that read memory and compute [default: all cores]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,

    /// Write the result as JSON to a file, for `report --ceilings`; it must not exist
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// A matrix as large as those of small models, which caches do not hold.
const COLUMNS: u64 = 2048;
const ROWS: u64 = 2048;
/// From one, which memory decides, to so many that arithmetic does.
const TOKENS: [usize; 5] = [1, 4, 16, 64, 256];
/// Those of a prompt: weights are repacked for them.
const MANY_TOKENS: [usize; 3] = [16, 64, 256];
/// Of each type, number of threads and number of tokens.
const KERNEL_TIME: Duration = Duration::from_millis(60);
/// Of a model with more types, those with most bytes.
const MAX_TYPES: usize = 4;
/// Where the file is no model.
const USUAL_TYPES: [GgmlType; 4] = [
    GgmlType::F16,
    GgmlType::Q8_0,
    GgmlType::Q4_0,
    GgmlType::Q4_K,
];

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    // Before the measurement: a bad path must not cost ten seconds.
    let file = match &args.output {
        None => None,
        Some(path) => Some(terminal::create_new(path)?),
    };
    let all = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let threads = args.threads.and_then(|n| NonZeroUsize::new(n.into()));
    let threads = threads.unwrap_or(all);
    let bar = progress::bar(1000, "measuring", "permille");
    let measured = kernelio::measure(&args.model, threads, &mut |progress| {
        bar.set_position(u64::from(progress.done_permille));
    });
    bar.finish_and_clear();
    let mut measured = match measured {
        Ok(measured) => measured,
        Err(error) => {
            // An empty file would be in the way of the next try.
            if let Some(path) = &args.output {
                let _ = std::fs::remove_file(path);
            }
            return Err(error.into());
        }
    };
    let compute = measured.compute.get_or_insert_default();
    // What does not need llama.cpp is worth keeping without it.
    let question = Question {
        types: types_of(&args.model),
        threads: BTreeSet::from([1, threads.get()]),
        repacked_with: None,
    };
    if let Err(error) = add_kernels(compute, &question) {
        eprintln!("tensorscope: llama.cpp's kernels were not measured: {error:#}");
    }
    measured.cards = card::measure_all();
    let json = serde_json::to_string_pretty(&measured)?;
    if let Some(mut file) = file {
        std::io::Write::write_all(&mut file, json.as_bytes())?;
    }
    match args.json {
        true => terminal::print(&json)?,
        false => terminal::print(&text(&measured))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Types of the model's matrices, those with most bytes first.
pub fn types_of(path: &Path) -> Vec<GgmlType> {
    let Ok(model) = gguf::Model::open(path) else {
        return USUAL_TYPES.to_vec();
    };
    let mut bytes: BTreeMap<GgmlType, u64> = BTreeMap::new();
    for tensor in model.tensors().iter().filter(|tensor| tensor.n_dims > 1) {
        *bytes.entry(tensor.ty).or_default() += tensor.size_bytes;
    }
    let mut types: Vec<(GgmlType, u64)> = bytes.into_iter().collect();
    types.sort_by_key(|&(_, bytes)| std::cmp::Reverse(bytes));
    let types = types.into_iter().map(|(ty, _)| ty);
    types.take(MAX_TYPES).collect()
}

/// What is measured of llama.cpp's kernels.
#[derive(Clone, Debug, Default)]
pub struct Question {
    pub types: Vec<GgmlType>,
    pub threads: BTreeSet<usize>,
    /// With this number of them also of repacked weights.
    pub repacked_with: Option<usize>,
}

/// Measures llama.cpp's kernels, in some seconds.
pub fn add_kernels(compute: &mut ComputeCeiling, question: &Question) -> anyhow::Result<()> {
    let budget_bytes = MemoryOptions::for_this_machine().budget_bytes;
    let steps = (question.threads.len() * question.types.len()) as u64;
    let bar = progress::bar(steps, "measuring llama.cpp's kernels", "kernels");
    for &threads in &question.threads {
        let kernels = Kernels::new(threads, KERNEL_TIME, budget_bytes)?;
        compute.nodes.push(NodeCeiling {
            threads,
            nanos: kernels.node().median * 1e9,
        });
        for &ty in &question.types {
            if signals::stop_asked() {
                return Ok(());
            }
            let matrix = Matrix {
                ty,
                columns: COLUMNS,
                rows: ROWS,
            };
            let ceiling = |is_repacked: bool| {
                move |(tokens, timing): (usize, Timing)| KernelCeiling {
                    weight_type: ty.name().to_owned(),
                    tokens,
                    threads,
                    // A product and a sum for each weight and token; of the fastest round, because
                    // a delay makes longer and nothing makes shorter.
                    flops_per_second: (2.0 * tokens as f64 / timing.best) as u64,
                    is_repacked,
                }
            };
            // Nothing for a type that llama.cpp has no product of.
            let plain = kernels.product(matrix, &TOKENS).unwrap_or_default();
            compute
                .kernels
                .extend(plain.into_iter().map(ceiling(false)));
            if question.repacked_with == Some(threads) {
                let repacked = kernels.repacked_product(matrix, &MANY_TOKENS);
                let repacked = repacked.unwrap_or_default().into_iter();
                compute.kernels.extend(repacked.map(ceiling(true)));
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    compute.kernels_of = engine::versions().kernels.map(str::to_owned);
    Ok(())
}

fn text(measured: &Ceilings) -> String {
    let giga = |rate: u64| format!("{:.2}", rate as f64 / 1e9);
    let memory = &measured.memory;
    let mut text = format!(
        "disk    {} GB/s  ({}, {} KiB x {})\nmemory  {} GB/s  ({} threads; one alone {} GB/s)",
        giga(measured.disk.bytes_per_second),
        measured.disk.method,
        measured.disk.setting.block_bytes / 1024,
        measured.disk.setting.depth,
        giga(memory.bytes_per_second),
        memory.all_threads.threads,
        giga(memory.one_thread.bytes_per_second),
    );
    for part in &memory.between {
        let rate = giga(part.bytes_per_second);
        let _ = write!(text, "\n        {rate} GB/s  ({} threads)", part.threads);
    }
    if let Some(compute) = &measured.compute {
        for part in &compute.registers {
            let _ = write!(
                text,
                "\ncompute {} GFLOP/s  (f32 in registers, {}, {})",
                giga(part.flops_per_second),
                part.instructions.name(),
                support::text::count(part.threads as u64, "thread"),
            );
        }
        // A line for each type and number of threads, by tokens.
        let is_same = |a: &KernelCeiling, b: &KernelCeiling| {
            (&a.weight_type, a.threads) == (&b.weight_type, b.threads)
        };
        for parts in compute.kernels.chunk_by(is_same) {
            let joined = |of: &dyn Fn(&KernelCeiling) -> String| {
                let texts: Vec<String> = parts.iter().map(of).collect();
                texts.join(", ")
            };
            let _ = write!(
                text,
                "\nkernels {} GFLOP/s  (llama.cpp, {} weights, {}: {} tokens at once)",
                joined(&|part| giga(part.flops_per_second)),
                parts[0].weight_type,
                support::text::count(parts[0].threads as u64, "thread"),
                joined(&|part| part.tokens.to_string()),
            );
        }
    }
    for card in &measured.cards {
        text += &card_text(card);
    }
    for refused in &measured.disk.refused {
        let _ = write!(text, "\nnot used: {}: {}", refused.method, refused.why);
    }
    for caveat in &measured.disk.caveats {
        let _ = write!(text, "\nnote: {}", caveat.text());
    }
    text
}

fn card_text(card: &CardCeiling) -> String {
    let mut text = format!(
        "\ncard    {}  ({}, {:.1} GB, driver for CUDA {})",
        card.name,
        card.device,
        card.memory_bytes as f64 / 1e9,
        card.driver_version,
    );
    for value in &card.values {
        let (scale, unit) = match value.what.unit() {
            Unit::Bytes => (1e9, "GB/s"),
            Unit::Operations => (1e12, "TFLOP/s"),
        };
        let shown = |rate: u64| format!("{:.2}", rate as f64 / scale);
        let _ = write!(
            text,
            "\n        {} {unit}  ({}; middle half {} to {})",
            shown(value.per_second),
            value.what.words(),
            shown(value.lower_quartile),
            shown(value.upper_quartile),
        );
    }
    text
}
