//! `tensorscope bench ceilings`: what the hardware allows.
//!
//! Disk, memory and arithmetic are measured by crate `kernelio`; here llama.cpp's own matrix
//! products are added, which reach less of the arithmetic than there is.

use std::{
    collections::BTreeMap, fmt::Write as _, num::NonZeroUsize, path::PathBuf, process::ExitCode,
    time::Duration,
};

use engine::kernels::{Kernels, Matrix};
use gguf::GgmlType;
use kernelio::{
    Ceilings,
    compute::{ComputeCeiling, KernelCeiling},
    memory::MemoryOptions,
};
use terminal::{progress, signals};

/// What the hardware allows: reads of the model's disk and of memory, arithmetic, and
/// llama.cpp's products with weights of the model's types
///
/// The disk is read with O_DIRECT through io_uring at the block size and depth that a short
/// sweep finds best; memory with one thread and more, each in a buffer of its own. Takes about
/// ten seconds and writes nothing to the model.
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
/// One, which memory decides, and so many that arithmetic does.
const TOKENS: [usize; 2] = [1, 256];
/// Of each type, number of threads and number of tokens.
const KERNEL_TIME: Duration = Duration::from_millis(100);
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
    if let Err(error) = add_kernels(compute, &types_of(args), threads) {
        eprintln!("tensorscope: llama.cpp's kernels were not measured: {error:#}");
    }
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
fn types_of(args: &Args) -> Vec<GgmlType> {
    let Ok(model) = gguf::Model::open(&args.model) else {
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

fn add_kernels(
    compute: &mut ComputeCeiling,
    types: &[GgmlType],
    threads: NonZeroUsize,
) -> anyhow::Result<()> {
    let budget_bytes = MemoryOptions::for_this_machine().budget_bytes;
    let mut counts = vec![1, threads.get()];
    counts.dedup();
    let steps = (counts.len() * types.len()) as u64;
    let bar = progress::bar(steps, "measuring llama.cpp's kernels", "kernels");
    for threads in counts {
        let kernels = Kernels::new(threads, KERNEL_TIME, budget_bytes)?;
        for &ty in types {
            if signals::stop_asked() {
                return Ok(());
            }
            let matrix = Matrix {
                ty,
                columns: COLUMNS,
                rows: ROWS,
            };
            // Nothing for a type that llama.cpp has no product of.
            let timings = kernels.product(matrix, &TOKENS).unwrap_or_default();
            compute
                .kernels
                .extend(timings.into_iter().map(|(tokens, timing)| KernelCeiling {
                    weight_type: ty.name().to_owned(),
                    tokens,
                    threads,
                    // A product and a sum for each weight and token; of the fastest round, because
                    // a delay makes longer and nothing makes shorter.
                    flops_per_second: (2.0 * tokens as f64 / timing.best) as u64,
                }));
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
        for part in &compute.kernels {
            let _ = write!(
                text,
                "\nkernels {} GFLOP/s  (llama.cpp, {} weights, {} at once, {})",
                giga(part.flops_per_second),
                part.weight_type,
                support::text::count(part.tokens as u64, "token"),
                support::text::count(part.threads as u64, "thread"),
            );
        }
    }
    for refused in &measured.disk.refused {
        let _ = write!(text, "\nnot used: {}: {}", refused.method, refused.why);
    }
    for caveat in &measured.disk.caveats {
        let _ = write!(text, "\nnote: {}", caveat.text());
    }
    text
}
