//! `tensorscope plan`: what to keep, what to stream, what to cache, and what that gives.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use analysis::{
    experts_cache::routing_of,
    weights::{compute_seconds, weights_of},
};
use anyhow::{anyhow, bail};
use gguf::GgmlType;
use indicatif::HumanBytes;
use launch::{
    budget::Memory,
    glance::Glance,
    planning::{self, Answer, Other, Question},
};
use plan::{Machine, Policy, Speed, Strategies, Use, Weight};
use planfile::{Assumed, Plan};
use rundir::Run;
use terminal::{create_new, runs::open_run, text::size};

use crate::analyse::{read_ceilings, sequence_of};

/// Plan how to run a model larger than memory, and predict what that gives
///
/// Says what to keep in memory, what to read for each token in which order through how
/// large a ring, and how many slots each layer's experts get; the tokens per second and
/// the bytes per token that follow, those of llama.cpp alone, and what the hardware
/// allows. When it will not help it says why.
///
/// From a run it takes the order of use, the time to compute a token and the routing, on
/// which the policies of the experts' cache are simulated. From a model alone these are
/// estimates: good for dense models; a mixture's experts are taken to be used evenly.
///
/// The plan is a JSON file to read, edit and give to `tensorscope run --plan`
/// (docs/feeding.md). Nothing is run; for half a second the disk is read while all threads are
/// busy, to know what it gives then and how far that varies, unless --disk or --ceilings says it.
/// Speeds are those with full caches, with the interval in which they may lie.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tensorscope plan RUN --memory 4G
  tensorscope plan model.gguf --memory 50% -o my.plan
  tensorscope run --plan my.plan -m model.gguf -p 'Once upon a time'
  tensorscope plan RUN --memory 6G --ceilings ceilings.json --json | jq .predicted")]
pub struct Args {
    /// Run directory, or model file
    #[arg(value_name = "RUN|MODEL")]
    source: PathBuf,

    /// Memory for the whole program: 4G, 1500M, or 50% of the model
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    memory: Memory,

    /// Which strategies may be used: pin, stream, experts; or all
    #[arg(long, value_name = "LIST", default_value = "all")]
    strategy: Strategies,

    /// Which expert makes room for another: lru, lfu, lfu_aged [default: the best on the
    /// run's routing]
    #[arg(long, value_name = "POLICY")]
    policy: Option<Policy>,

    /// Context size in tokens, which decides on the KV cache
    #[arg(short, long = "ctx-size", value_name = "N", default_value_t = planning::CONTEXT_TOKENS)]
    context: u32,

    /// Max tokens of one graph evaluation, which decides on buffers
    #[arg(long = "ubatch-size", value_name = "N", default_value_t = planning::MICRO_BATCH_TOKENS)]
    micro_batch: u32,

    /// Bytes per second of the disk: 2.1G [default: measured]
    #[arg(long, value_name = "RATE", value_parser = size, conflicts_with = "ceilings")]
    disk: Option<u64>,

    /// What `bench ceilings -o` measured
    #[arg(long, value_name = "FILE")]
    ceilings: Option<PathBuf>,

    /// Seconds that computing a token takes with all weights in memory [default: of the
    /// run's tokens a fast one; of a model, by its bytes]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_hyphen_values = true)]
    compute: Option<f64>,

    /// Threads, for the estimate [default: all cores]
    #[arg(short, long, value_name = "N")]
    threads: Option<u16>,

    /// Write the plan to a file; it must not exist
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Print the plan itself
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let run = match args.source.is_dir() {
        true => Some(open_run(&args.source)?),
        false => None,
    };
    let model = match &run {
        None => gguf::Model::open(&args.source)?,
        Some(run) => model_of(run)?,
    };
    let sequence = run.as_ref().map(sequence_of).transpose()?;
    let routing = sequence.as_ref().map(routing_of);
    let threads = threads_of(&args);
    let measured = sequence.as_ref().and_then(compute_seconds);
    let weights = match &sequence {
        Some(sequence) => weights_of(sequence, Some(&model)),
        None => plan::weights_of(&model),
    };
    let first = &model.files()[0].path;
    let ahead = planning::read_ahead_bytes(run.as_ref(), Some(first));
    let machine = machine(&args, first, threads, &weights)?.reading_ahead(ahead, &weights);
    let machine = match args.compute.or(measured) {
        Some(seconds) => Machine {
            compute_seconds_per_token: Some(seconds),
            ..machine
        },
        None => planning::guessing_compute(machine, &model, threads),
    };
    let question = Question {
        budget_bytes: args.memory.of(model.len_bytes())?,
        other_bytes: planning::other_bytes(
            &model,
            GgmlType::F16,
            u64::from(args.context),
            u64::from(args.micro_batch.min(args.context)),
        ),
        strategies: args.strategy,
        machine,
        routing: routing.as_ref().filter(|routing| !routing.uses.is_empty()),
        policy: args.policy,
        tokens: None,
        model: &model,
        weights,
    };
    let mut answer = question.answer();
    notes(&mut answer, &args, &question, run.as_ref(), measured);
    let json = answer.plan.to_json();
    if let Some(path) = &args.output {
        let mut file = create_new(path)?;
        std::io::Write::write_all(&mut file, json.as_bytes())
            .map_err(|error| anyhow!("{}: cannot write: {}", path.display(), error.kind()))?;
    }
    match args.json {
        true => terminal::print(&json)?,
        false => terminal::print(&page(&answer, &question))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn threads_of(args: &Args) -> usize {
    args.threads.map_or_else(
        || std::thread::available_parallelism().map_or(1, |n| n.get()),
        usize::from,
    )
}

/// The model that a run was recorded with, if it is still there.
pub fn model_of(run: &Run) -> anyhow::Result<gguf::Model> {
    let described = run.metadata().and_then(|metadata| metadata.model.as_ref());
    let file = described.and_then(|model| model.files.first());
    let (Some(described), Some(file)) = (described, file) else {
        bail!("the run does not say which model it is of; give the model file instead");
    };
    let model = gguf::Model::open(Path::new(&file.path))?;
    if model.len_bytes() != described.size_bytes {
        bail!(
            "{}: is not the model of the run any more (its size differs)",
            file.path
        );
    }
    Ok(model)
}

fn machine(
    args: &Args,
    file: &Path,
    threads: usize,
    weights: &[Weight],
) -> anyhow::Result<Machine> {
    if let Some(rate) = args.disk {
        if rate == 0 {
            bail!("--disk: a disk that reads nothing needs no plan");
        }
        return Ok(Machine::new(rate as f64));
    }
    if let Some(path) = &args.ceilings {
        let measured = read_ceilings(path)?;
        return Ok(planning::machine_of(&measured.disk, &measured.memory));
    }
    planning::machine_here(file, threads, weights).ok_or_else(|| {
        anyhow!("the disk's speed cannot be measured; say it, for instance --disk 2G")
    })
}

fn notes(
    answer: &mut Answer,
    args: &Args,
    question: &Question<'_>,
    run: Option<&Run>,
    measured: Option<f64>,
) {
    let mut notes = Vec::new();
    let why_not = answer.why_not.as_ref();
    notes.extend(why_not.map(|reason| format!("it will not help, because {reason}")));
    notes.extend(too_little(answer, args, question));
    if args.compute.is_none() && measured.is_none() {
        notes.push(
            "the time to compute a token is an estimate by bytes and cores; record a run, or say \
             it with --compute"
                .to_owned(),
        );
    }
    let limit = run
        .and_then(Run::metadata)
        .and_then(|metadata| metadata.underneath.as_ref()?.memory_limit_bytes);
    if limit.is_some() && args.compute.is_none() {
        notes.push(
            "the run was recorded under memory pressure, so computing seems slower than it is"
                .to_owned(),
        );
    }
    let is_measured = args.disk.is_none() && args.ceilings.is_none();
    if is_measured && is_virtual_disk(question, threads_of(args)) {
        notes.push(
            "the disk is that of a virtual machine: it may be slower once it was busy for a while, \
             which the interval allows for"
                .to_owned(),
        );
    }
    if !is_measured && answer.plan.experts.is_some() {
        notes.push(format!(
            "the wait for a router's experts was not measured: {} ms besides their bytes are taken",
            question.machine.read_latency_seconds * 1e3
        ));
    }
    if answer.plan.experts.is_some() && answer.policies.is_none() {
        let note = match question.routing {
            None => "experts are taken to be used evenly; record a run for their real use",
            Some(_) => {
                "the run's routing is not of these layers: experts are taken to be used evenly"
            }
        };
        notes.push(note.to_owned());
    }
    answer.plan.notes = notes;
}

/// By the glance that was taken for the machine.
fn is_virtual_disk(question: &Question<'_>, threads: usize) -> bool {
    let file = &question.model.files()[0].path;
    Glance::once(file, threads, &question.weights).is_ok_and(|glance| glance.is_virtual_disk)
}

/// Why nothing is fed, and what to change, where memory is what lacks.
fn too_little(answer: &Answer, args: &Args, question: &Question<'_>) -> Option<String> {
    let plan = &answer.plan;
    if !(plan.pin.is_empty() && plan.stream.is_empty() && plan.sliced.is_empty())
        && plan.memory.weights_bytes > plan.predicted.weight_bytes / 50
    {
        return None;
    }
    let (context, batch) = (u64::from(args.context), u64::from(args.micro_batch));
    let other = Other::new(question.model, GgmlType::F16, context, batch.min(context));
    // Short, but enough for a question and its answer.
    const SHORT_CONTEXT: u64 = 512;
    Some(format!(
        "{} are not enough: the KV cache of {} tokens takes {}, buffers for {} tokens {}, the \
         program about {}, and {} are kept free. To change that: {}",
        HumanBytes(question.budget_bytes),
        args.context,
        HumanBytes(other.cache_bytes),
        batch.min(context),
        HumanBytes(other.buffer_bytes),
        HumanBytes(planning::PROGRAM_BYTES),
        HumanBytes(feed::MARGIN_BYTES),
        planning::advice(
            &planning::savings(question.model, (context, SHORT_CONTEXT), batch.min(context)),
            question.least_budget(),
            question.budget_bytes
        )
    ))
}

fn page(answer: &Answer, question: &Question<'_>) -> String {
    let Plan {
        memory,
        ring,
        predicted,
        assumed,
        ..
    } = &answer.plan;
    let plan = &answer.plan;
    let bytes_of = |names: &[String]| -> u64 {
        let is_in = |w: &&plan::Weight| w.usage != Use::Rows && names.contains(&w.name);
        question.weights.iter().filter(is_in).map(|w| w.bytes).sum()
    };
    let mut out = String::new();
    let mut line = |title: &str, text: String| {
        let _ = writeln!(out, "{title:<10} {text}");
    };
    line(
        "model",
        format!(
            "{}, {} of weights",
            plan.made_for.model,
            HumanBytes(predicted.weight_bytes)
        ),
    );
    line(
        "memory",
        format!(
            "{}: {} for weights, {} for caches, buffers and the program",
            HumanBytes(memory.budget_bytes),
            HumanBytes(memory.weights_bytes),
            HumanBytes(memory.other_bytes)
        ),
    );
    line(
        "keep",
        format!(
            "{} in {} weights",
            HumanBytes(bytes_of(&plan.pin)),
            plan.pin.len()
        ),
    );
    if !plan.stream.is_empty() {
        line(
            "stream",
            format!(
                "{} in {} weights, through a ring of {}: reads of {}, {} in flight",
                HumanBytes(bytes_of(&plan.stream)),
                plan.stream.len(),
                HumanBytes(ring.bytes),
                HumanBytes(ring.read_bytes),
                ring.depth
            ),
        );
    }
    if let Some(experts) = &plan.experts {
        line(
            "experts",
            format!(
                "{} of {} read slice by slice, into {} pools of {} slots ({}), {}",
                HumanBytes(bytes_of(&plan.sliced)),
                HumanBytes(predicted.weight_bytes),
                experts.pools,
                experts.slots,
                HumanBytes(experts.bytes),
                experts.policy
            ),
        );
    }
    if let Some(policies) = &answer.policies {
        let percent = |rate: f64| format!("{:.1} %", rate * 100.0);
        line(
            "hit rates",
            format!(
                "on the run's routing: lru {}, lfu {}, lfu_aged {}; with knowledge of the future \
                 (Belady) {}",
                percent(policies.lru),
                percent(policies.lfu),
                percent(policies.lfu_aged),
                percent(policies.belady)
            ),
        );
    }
    let mapped = bytes_of(&plan.mapped);
    if mapped > 0 {
        line("leave", format!("{} to the page cache", HumanBytes(mapped)));
    }
    let rate = |rate: Option<f64>| rate.map_or("?".into(), |rate| format!("{rate:.2} tokens/s"));
    let speed = |speed: Option<Speed>| match speed {
        Some(Speed { usual, low, high }) if low < high => {
            format!("{usual:.2} tokens/s ({low:.2} to {high:.2})")
        }
        speed => rate(speed.map(|speed| speed.usual)),
    };
    let compute = assumed
        .compute_seconds_per_token
        .map_or(String::new(), |s| format!(", {s:.3} s to compute a token"));
    line(
        "assumed",
        format!(
            "disk {:.2} GB/s{}{compute}",
            assumed.disk_bytes_per_second / 1e9,
            disk_interval(assumed)
        ),
    );
    line(
        "predicted",
        format!(
            "{}, {} read per token; the hardware allows {}",
            speed(predicted.speed()),
            HumanBytes(predicted.bytes_read_per_token),
            rate(predicted.ceiling_tokens_per_second)
        ),
    );
    line(
        "without",
        format!(
            "{}, {} read per token (llama.cpp alone, in as much memory)",
            speed(predicted.stock.speed()),
            HumanBytes(predicted.stock.bytes_read_per_token)
        ),
    );
    for note in &plan.notes {
        line("note", note.clone());
    }
    out
}

/// Where it varies.
fn disk_interval(assumed: &Assumed) -> String {
    let ends = assumed
        .disk_bytes_per_second_low
        .zip(assumed.disk_bytes_per_second_high);
    ends.filter(|(low, high)| low < high)
        .map_or(String::new(), |(low, high)| {
            format!(" ({:.2} to {:.2})", low / 1e9, high / 1e9)
        })
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('s').parse() {
        Ok(seconds) if (1e-6..1e6).contains(&seconds) => Ok(seconds),
        _ => Err(format!(
            "`{text}` is not a valid time; write for instance 0.25"
        )),
    }
}
