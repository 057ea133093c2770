//! `tensorscope estimate`: memory, speed and batch of a model that nobody has run here, or has.

mod disk;
mod machine;
mod measured;
mod memory;
mod subject;
mod text;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::bail;
use bench::machine::Measure;
use estimate::{
    Machine, Machines, NumberType, Shape, attention, batch,
    fit::{self, Fit},
    kv,
    machines::Kind,
    precision::{self, Comparison},
    roofline::{self, Pass, PassTime, Types},
    search::{self, Cluster, Found},
    speculation::{self, Draft, Speculation},
    training::{Job, Numbers, Trained},
};
use gguf::GgmlType;
use serde::Serialize;
use serde_json::{Value, json};
use terminal::{runs::open_run, text::size};

use self::{memory::Memory, subject::Subject};
use crate::engine_args::{When, cache_type};

/// Say what a model will take and give, before anything is downloaded or rented
///
/// Memory is what llama.cpp itself says that it would allocate, by device: it is asked with the
/// model's header, and no weight is read (a preset or a config.json needs no file). Speed is the
/// sum of llama.cpp's kernels where they were measured: on this machine some seconds for a model
/// whose shapes are new, which are kept, and on an H200. For other machines it is a roofline. All
/// times are intervals, with what bounds them.
///
/// Of a run, the times of its evaluations are used.
///
/// Further questions: --latency for the best batch, --versus for two weight types side by
/// side, --draft for speculation, --attention for the bytes that attention moves, --shapes
/// for dimensions that do not fill the hardware's units, --train for a cluster.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tensorscope estimate model.gguf -c 8192
  tensorscope estimate --like llama-3-8b --type q4_K -c 8192 --parallel 4 --memory 6G
  tensorscope estimate --like llama-2-7b --machine 'H100 SXM' --type f16 --latency 50ms
  tensorscope estimate config.json --type bf16 --machine H200 --versus q8_0
  tensorscope estimate --like llama-3-8b --machine 'A100 SXM 80GB' --draft 5:0.8
  tensorscope estimate --like mixtral-8x7b --type q4_K --machine 'RTX 4090' --gpu-layers 20
  tensorscope estimate RUN --versus OTHER-RUN        # measured, side by side
  tensorscope estimate --like llama-2-7b --machine 'H100 SXM' --train 64
  tensorscope estimate --list-machines")]
pub struct Args {
    /// Model file, a config.json of Hugging Face, or a run, whose measured times are used
    #[arg(value_name = "MODEL|CONFIG|RUN", required_unless_present_any = ["like", "list_machines"])]
    source: Option<PathBuf>,

    /// The shape of a published model (see `tensorscope synth --list`)
    #[arg(long, value_name = "PRESET", conflicts_with = "source")]
    like: Option<String>,

    /// Type of the weights of a preset or config.json, e.g. f16, q8_0, q4_K [default: q8_0]
    #[arg(long = "type", value_name = "TYPE")]
    weights: Option<String>,

    /// Context size in tokens, all sequences together
    #[arg(short, long = "ctx-size", value_name = "N", default_value_t = 4096,
          value_parser = clap::value_parser!(u32).range(1..))]
    context: u32,

    /// Sequences side by side
    #[arg(long, alias = "np", value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=256))]
    parallel: u32,

    /// Tokens of the prompt, for the time to the first token [default: half the context of a
    /// sequence]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    prompt_tokens: Option<u32>,

    /// Max tokens of one graph evaluation
    #[arg(long = "ubatch-size", alias = "ubatch", value_name = "N", default_value_t = 512,
          value_parser = clap::value_parser!(u32).range(1..))]
    micro_batch: u32,

    /// Type of the K cache
    #[arg(long = "cache-type-k", value_name = "TYPE", default_value = "f16", value_parser = cache_type)]
    key_type: GgmlType,

    /// Type of the V cache (other than f16 and f32 it needs flash attention)
    #[arg(long = "cache-type-v", value_name = "TYPE", default_value = "f16", value_parser = cache_type)]
    value_type: GgmlType,

    /// Flash attention
    #[arg(long = "flash-attn", value_name = "WHEN", default_value = "auto")]
    flash_attention: When,

    /// Layers on the GPU, the output being one more [default: all, of a machine that is a GPU]
    #[arg(long, alias = "ngl", alias = "n-gpu-layers", value_name = "N")]
    gpu_layers: Option<u32>,

    /// GPUs of that kind, over which layers are spread evenly
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    gpus: u32,

    /// Tokens of a block, for a KV cache in pages
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    page_tokens: u64,

    /// Tokens that all sequences begin with, which pages keep once
    #[arg(long, value_name = "N", default_value_t = 0)]
    shared_prefix: u64,

    /// Bytes per second of the disk, for a model that does not fit: 2.1G [default: measured]
    #[arg(long, value_name = "RATE", value_parser = size)]
    disk: Option<u64>,

    /// Threads [default: all cores]
    #[arg(short, long, value_name = "N")]
    threads: Option<u16>,

    /// Memory that there is: 6G [default: the machine's]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Option<u64>,

    /// A machine of the table (see --list-machines), or `this`
    #[arg(long, value_name = "NAME", default_value = "this")]
    machine: String,

    /// A file that adds machines to the table, or replaces some (docs/estimate.md)
    #[arg(long, value_name = "FILE")]
    machines: Option<PathBuf>,

    /// Print the table of machines
    #[arg(long)]
    list_machines: bool,

    /// Measure this machine again instead of using what was kept
    #[arg(long)]
    measure: bool,

    /// Longest time between two tokens of a sequence, for the best batch: 50ms
    #[arg(long, value_name = "TIME", value_parser = terminal::text::duration)]
    latency: Option<std::time::Duration>,

    /// The same model with weights of another type beside it; or, beside a run, another run
    #[arg(long, value_name = "TYPE|RUN")]
    versus: Option<String>,

    /// Speculation: tokens of a draft, and the share of them that is accepted
    #[arg(long, value_name = "N:SHARE", value_parser = draft)]
    draft: Option<(u64, f64)>,

    /// The model that drafts: a file, or a preset; without it drafts cost nothing
    #[arg(long, value_name = "MODEL|PRESET", requires = "draft")]
    draft_model: Option<String>,

    /// Programs that share the machine: what up to so many would give
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=batch::MAX_REPLICAS))]
    replicas: u64,

    /// Time in which a program leaves the machine idle between two steps, for --replicas: 2ms
    /// [default: of a run, what it was]
    #[arg(long, value_name = "TIME", value_parser = terminal::text::duration)]
    idle: Option<std::time::Duration>,

    /// Bytes that standard and block-wise attention move, for a prompt of that context
    #[arg(long)]
    attention: bool,

    /// Dimensions that do not fill the machine's units, and what padding costs
    #[arg(long)]
    shapes: bool,

    /// Training on this many GPUs of the machine: the cheapest layouts that fit
    #[arg(long, value_name = "GPUS", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    train: Option<u64>,

    /// Sequences of one step of training, of --ctx-size tokens each
    #[arg(long, value_name = "N", default_value_t = 512, requires = "train")]
    global_batch: u64,

    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Everything that was asked for.
#[derive(Serialize)]
struct Estimate {
    model: Described,
    machine: Machine,
    memory: Memory,
    kv: kv::KvSize,
    /// The same with caches of other types.
    kv_types: Vec<KvType>,
    /// In pages instead of one piece a sequence, each half full.
    kv_paged: kv::Occupancy,
    kv_contiguous: kv::Occupancy,
    prompt: PassTime,
    token: PassTime,
    batch: batch::Advice,
    /// What the disk gives, where memory is too small.
    #[serde(skip_serializing_if = "Option::is_none")]
    disk: Option<disk::Disk>,
    /// What a run's evaluations took.
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<measured::Measured>,
    /// What two runs' evaluations took, side by side.
    #[serde(skip_serializing_if = "Option::is_none")]
    measured_versus: Option<Vec<measured::Pair>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    versus: Option<Comparison>,
    #[serde(skip_serializing_if = "Option::is_none")]
    draft: Option<Speculation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attention: Option<Attention>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shapes: Option<Vec<Fit>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    train: Option<Found>,
}

impl Estimate {
    /// Everything, and the numbers that scripts ask for most under names of their own.
    fn as_json(&self) -> serde_json::Result<Value> {
        let mut value = serde_json::to_value(self)?;
        value["speed"] = json!({
            "prompt_tokens_per_second": self.prompt.tokens_per_second,
            "tokens_per_second": self.token.tokens_per_second,
        });
        value["bound_by"] = json!(self.token.bound);
        let names = [
            ("weights_bytes", "weight_bytes"),
            ("kv_bytes", "context_bytes"),
            ("total_bytes", "bytes"),
        ];
        for (name, of) in names {
            let bytes = value["memory"][of].clone();
            value["memory"][name] = bytes;
        }
        Ok(value)
    }
}

#[derive(Serialize)]
struct Described {
    name: String,
    architecture: String,
    parameters: u64,
    active_parameters: u64,
    weight_bytes: u64,
}

/// A cache of one type.
#[derive(Serialize)]
struct KvType {
    #[serde(rename = "type")]
    ty: &'static str,
    bytes_per_token: u64,
    bytes_per_sequence: u64,
    /// Sequences for which there is memory beside weights and buffers.
    max_sequences: u64,
}

#[derive(Serialize)]
struct Attention {
    tokens: u64,
    sram_bytes: u64,
    standard: attention::Moved,
    block_wise: attention::Moved,
    /// From how many tokens on block-wise moves less.
    crossover_tokens: Option<u64>,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let table = machine::table(args.machines.as_deref())?;
    if args.list_machines {
        match args.json {
            true => terminal::print(&serde_json::to_string_pretty(&table)?)?,
            false => terminal::print(&text::machines(&table))?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    let answer = answer(&args, &table)?;
    match args.json {
        true => terminal::print(&serde_json::to_string_pretty(&answer.as_json()?)?)?,
        false => terminal::print(&text::page(&answer, &args))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// What can be refused before anything is read or measured.
fn check(args: &Args) -> anyhow::Result<()> {
    /// llama.cpp takes 50 bytes of ours for each token of a context, without a model too: one
    /// digit too many must not take the machine's memory.
    const MAX_CONTEXT: u32 = 1 << 24;
    if args.context < args.parallel {
        bail!(
            "--ctx-size: {} tokens are fewer than {} sequences, which share them",
            args.context,
            args.parallel
        );
    }
    if args.context > MAX_CONTEXT {
        bail!(
            "--ctx-size: {} is too long; at most {MAX_CONTEXT} tokens can be asked about",
            args.context
        );
    }
    if args.disk == Some(0) {
        bail!("--disk: a disk that reads nothing gives no tokens");
    }
    if args.shared_prefix > u64::from(args.context / args.parallel) {
        bail!(
            "--shared-prefix: {} tokens are more than a sequence has",
            args.shared_prefix
        );
    }
    Ok(())
}

fn answer(args: &Args, table: &Machines) -> anyhow::Result<Estimate> {
    check(args)?;
    let subject = &Subject::of(args)?;
    let measure = match args.measure {
        true => Measure::Again,
        false => Measure::Once,
    };
    let wanted = subject.wanted(args)?;
    let machine = machine::find(table, &args.machine, args.threads, &wanted, measure)?;
    let efficiency = machine::efficiency(&machine);
    let Subject { shape, types, .. } = subject;
    let (shape, types) = (shape, *types);
    let sequences = u64::from(args.parallel);
    let per_sequence = (u64::from(args.context) / sequences).max(1);
    let prompt_tokens = args
        .prompt_tokens
        .map_or((per_sequence / 2).max(1), u64::from);
    let budget_bytes = args.memory.unwrap_or(machine.memory_bytes());
    let memory = Memory::new(args, subject, &machine, budget_bytes)?;
    let half = per_sequence.div_ceil(2).max(args.shared_prefix);
    let lengths = match args.shared_prefix {
        0 => kv::Sequence::new(half),
        prefix => kv::Sequence::sharing(half, 0, prefix),
    };
    let lengths = vec![lengths; sequences as usize];
    let placed = |placing| kv::occupancy(shape, types.kv, &lengths, placing);
    let time = |pass| roofline::time(shape, pass, types, &machine, efficiency);
    let mut question = batch::Question::new(shape, types, &machine, per_sequence);
    question.efficiency = efficiency;
    question.budget_bytes = budget_bytes;
    question.other_bytes = memory.compute_bytes;
    question.max_latency_seconds = args.latency.map(|latency| latency.as_secs_f64());
    question.measured = subject.measured.as_ref().map(|measured| measured.table());
    let measured_idle = subject.measured.as_ref().and_then(|run| run.idle_seconds);
    let idle_seconds = args.idle.map(|idle| idle.as_secs_f64()).or(measured_idle);
    question.replicas = batch::Replication {
        max_replicas: args.replicas,
        idle_seconds: idle_seconds.unwrap_or(0.0),
        // Mapped weights are in memory once, whoever reads them.
        shared_weights: machine.kind != Kind::Gpu,
    };
    let other_run = args
        .versus
        .as_deref()
        .filter(|name| Path::new(name).is_dir());
    let measured_versus = match (&subject.measured, other_run) {
        (_, None) => None,
        (None, Some(_)) => {
            bail!("--versus: a run is compared with a run; give one instead of the model")
        }
        (Some(mine), Some(path)) => {
            let other = measured::of(&open_run(Path::new(path))?)?;
            Some(measured::pairs(mine, &other))
        }
    };
    let versus = args.versus.as_deref().filter(|_| other_run.is_none());
    let versus = versus.map(|name| {
        let other = Types::of(NumberType::from_name(name)?, types.kv);
        let batches = [1, 2, 4, 8, 16, 32, 64, 128, 256];
        precision::compare(
            shape,
            types,
            other,
            &machine,
            efficiency,
            per_sequence,
            &batches,
        )
    });
    let drafter = args
        .draft_model
        .as_deref()
        .map(subject::drafter)
        .transpose()?;
    let drafted = args.draft.map(|(tokens, acceptance)| {
        let question = speculation::Question {
            target: shape,
            types,
            draft: match &drafter {
                Some(shape) => Draft::Model(shape, Types::stored(types.kv)),
                None => Draft::Seconds(0.0),
            },
            acceptance,
            batch: sequences,
            context_tokens: per_sequence,
            machine: &machine,
            efficiency,
        };
        question.at(tokens)
    });
    let attention = match args.attention {
        true => attention_io(shape, &machine, per_sequence)?,
        false => None,
    };
    let shapes = args
        .shapes
        .then(|| fit::fits(shape, &machine, types.compute))
        .transpose()?;
    let train = args
        .train
        .map(|gpus| -> anyhow::Result<Found> {
            let model = Trained::from_shape(shape)?;
            let job = Job {
                sequence_tokens: per_sequence,
                global_batch: args.global_batch,
                numbers: Numbers::MIXED_ADAM,
            };
            /// A network card of 400 Gbit/s for each GPU, as in the vendors' own servers.
            const NETWORK_BYTES_PER_SECOND: f64 = 50e9;
            let cluster = Cluster::new(&machine, gpus, NETWORK_BYTES_PER_SECOND);
            Ok(search::search(&model, &job, &cluster, 3)?)
        })
        .transpose()?;
    let micro_batch = u64::from(args.micro_batch);
    let prompt = (prompt_tokens, micro_batch);
    let prompt = roofline::prompt_time(shape, prompt, types, &machine, efficiency)?;
    let mut token = time(Pass::decode(sequences, per_sequence))?;
    if args.gpu_layers.is_some() && machine.kind == Kind::Gpu {
        // The other layers are computed here.
        let host = machine::find(table, "this", args.threads, &wanted, measure)?;
        let efficiency = machine::efficiency(&host);
        let pass = Pass::decode(sequences, per_sequence);
        let on_host = roofline::time(shape, pass, types, &host, efficiency)?;
        token = roofline::split(token, &on_host, memory.offloaded_share())?;
    }
    Ok(Estimate {
        model: Described {
            name: shape.name.clone().unwrap_or_else(|| subject.name.clone()),
            architecture: shape.architecture.clone(),
            parameters: shape.parameters,
            active_parameters: shape.active_parameters,
            weight_bytes: shape.weight_bytes(types.weights)?,
        },
        kv: kv::at_context(shape, types.kv, per_sequence)?,
        kv_types: kv_types(shape, per_sequence, &memory)?,
        kv_paged: placed(kv::Placing::Paged {
            block_tokens: args.page_tokens,
        })?,
        kv_contiguous: placed(kv::Placing::Contiguous {
            max_context_tokens: per_sequence,
        })?,
        prompt,
        disk: disk::of(args, subject, &memory, &machine, &token)?,
        token,
        batch: batch::advise(&question)?,
        measured: subject.measured.clone(),
        measured_versus,
        versus: versus.transpose()?,
        draft: drafted.transpose()?,
        attention,
        shapes,
        train,
        memory,
        machine,
    })
}

/// What caches of several types take.
fn kv_types(shape: &Shape, tokens: u64, memory: &Memory) -> anyhow::Result<Vec<KvType>> {
    let room = memory
        .budget_bytes
        .saturating_sub(memory.beside_cache_bytes());
    ["f16", "q8_0", "fp8", "q4_0"]
        .into_iter()
        .map(|name| {
            let size = kv::at_context(shape, NumberType::from_name(name)?, tokens)?;
            Ok(KvType {
                ty: size.ty,
                bytes_per_token: size.bytes_per_token,
                bytes_per_sequence: size.bytes,
                max_sequences: room / size.bytes.max(1),
            })
        })
        .collect()
}

/// `None` for a model without attention.
fn attention_io(
    shape: &Shape,
    machine: &Machine,
    tokens: u64,
) -> anyhow::Result<Option<Attention>> {
    /// Fast memory of one unit, where the table does not say: that of an A100.
    const USUAL_SRAM_BYTES: f64 = 192.0 * 1024.0;
    let lengths = shape.layers.iter();
    let mut lengths = lengths.filter_map(|layer| Some(layer.attention.as_ref()?.key_length));
    let Some(head_length) = lengths.next() else {
        return Ok(None);
    };
    let sram = machine.sram_bytes_per_unit.as_ref();
    let sram_bytes = sram.map_or(USUAL_SRAM_BYTES, |figure| figure.value) as u64;
    let question = attention::Attention {
        heads: shape.max_heads(),
        tokens,
        head_length,
        element_bytes: 2,
        backward: false,
    };
    let blocks = attention::Blocks::for_sram(sram_bytes, head_length, 2)?;
    let (loops, separate) = (attention::Loops::AS_PRINTED, attention::Separate::default());
    Ok(Some(Attention {
        tokens,
        sram_bytes,
        standard: question.standard(separate)?,
        block_wise: question.blockwise(blocks, loops)?,
        crossover_tokens: question.crossover_tokens(blocks, loops, separate)?,
    }))
}

fn draft(text: &str) -> Result<(u64, f64), String> {
    let wrong = || format!("`{text}` is not a draft; write for instance 5:0.8");
    let (tokens, share) = text.split_once(':').ok_or_else(wrong)?;
    let tokens = tokens.parse().ok().filter(|n| (1..=64).contains(n));
    let share = share.parse().ok().filter(|s| (0.0..=1.0).contains(s));
    tokens.zip(share).ok_or_else(wrong)
}
