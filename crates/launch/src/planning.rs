//! From a model or a run to a plan: what `plan`, `run` and `bench feed` share.

use std::path::Path;
use std::time::Duration;

use anyhow::bail;
use gguf::GgmlType;
use indicatif::HumanBytes;
use kernelio::CeilingError;
use kernelio::disk::{self, DiskCeiling, DiskOptions, MethodChoice, Setting, SettingChoice, Stop};
use kernelio::memory::MemoryCeiling;
pub use plan::Policies;
use plan::{
    Machine, Policy, RoutingSequence, Spread, Strategies, TokenSpan, Use, Varies, Wanted, Weight,
    choose::{choose, least_bytes},
};
use planfile::Plan;
use rundir::Run;

use crate::glance::Glance;

/// Bytes of one read, and reads in flight (docs/feeding.md).
pub const BLOCK_BYTES: u32 = plan::choose::READ_BYTES as u32;
pub const DEPTH: u32 = plan::choose::DEPTH;
/// Tokens that a plan is made for, in the context and in one graph, unless told otherwise.
pub const CONTEXT_TOKENS: u32 = 2048;
pub const MICRO_BATCH_TOKENS: u32 = 512;
/// Program, threads and buffers besides those that are counted.
pub const PROGRAM_BYTES: u64 = 48 << 20;
/// Bytes of weights that a core computes with in a second, when nobody measured.
const BYTES_PER_CORE_SECOND: f64 = 10e9;
/// How far that is off, by types of weights and processors.
const GUESS_VARIES: Spread = Spread {
    low: 0.7,
    high: 1.6,
};

/// Of the disk's speed alone, the least that it gave while all cores computed: 2.6 of 3.3 GB/s
/// (docs/feeding.md).
const MIN_WHILE_COMPUTING: f64 = 0.8;

/// Bytes per second of a disk that cannot be measured, and how far that may be off.
pub const USUAL_DISK: f64 = 2e9;
const USUAL_DISK_VARIES: Spread = Spread {
    low: 0.25,
    high: 4.0,
};

/// What a plan is made from.
pub struct Question<'a> {
    pub model: &'a gguf::Model,
    /// In the order of their use.
    pub weights: Vec<Weight>,
    pub budget_bytes: u64,
    /// Of the budget, what is not for weights.
    pub other_bytes: u64,
    pub strategies: Strategies,
    pub machine: Machine,
    pub routing: Option<&'a RoutingSequence>,
    /// The best by simulation, when nobody says.
    pub policy: Option<Policy>,
    /// Which tokens are predicted. Without it, those that come when slots are full.
    pub tokens: Option<TokenSpan>,
}

pub struct Answer {
    pub plan: Plan,
    pub why_not: Option<String>,
    /// Hit rates of all policies with the plan's slots, on the run's routing.
    pub policies: Option<Policies>,
}

impl Question<'_> {
    pub fn answer(&self) -> Answer {
        let weights_bytes = weights_bytes(self.budget_bytes, self.other_bytes);
        let question = plan::Question {
            weights: &self.weights,
            weights_bytes,
            strategies: self.strategies,
            machine: self.machine,
            routing: self.routing,
            policy: self.policy,
            tokens: self.tokens,
        };
        let answer = question.answer();
        let assumed = (&answer.machine, answer.outlook);
        let (wanted, choice) = (&answer.wanted, &answer.choice);
        let mut plan = Plan::new(self.model, &self.weights, wanted, choice, assumed);
        plan.memory.budget_bytes = self.budget_bytes;
        // The margin is memory that is not for weights.
        plan.memory.other_bytes = self.budget_bytes - weights_bytes;
        if let Some(experts) = &mut plan.experts {
            experts.policy = answer.policy;
        }
        Answer {
            why_not: answer.why_not,
            policies: answer.policies,
            plan,
        }
    }
}

impl Question<'_> {
    /// See [`least_budget`].
    pub fn least_budget(&self) -> Option<u64> {
        least_budget(&self.weights, self.strategies, self.other_bytes)
    }
}

/// The least memory with which every weight is kept, streamed or cached, so that none is left to
/// the page cache. `None` where no memory will do.
pub fn least_budget(weights: &[Weight], strategies: Strategies, other_bytes: u64) -> Option<u64> {
    let all: u64 = weights.iter().map(|weight| weight.bytes).sum();
    // Supersets of direct reads are larger than weights, of the smallest by much.
    let max_bytes = all.saturating_add(all / 8);
    let least = least_bytes(max_bytes, |weights_bytes| {
        let choice = choose(weights, &Wanted::new(weights_bytes, strategies));
        let is_looked_up = |&i: &usize| weights[i].usage == Use::Rows;
        choice.mapped.iter().all(is_looked_up)
    });
    Some(beside_weights_bytes(other_bytes) + least?)
}

/// Of the memory for a whole program, what is for weights.
pub fn weights_bytes(budget_bytes: u64, other_bytes: u64) -> u64 {
    budget_bytes.saturating_sub(beside_weights_bytes(other_bytes))
}

/// What a budget must have before anything of it is for weights.
pub fn beside_weights_bytes(other_bytes: u64) -> u64 {
    other_bytes + feed::MARGIN_BYTES
}

/// Seconds to compute a token of a model that nobody has run: by bytes and cores.
pub fn guessed_compute_seconds(model: &gguf::Model, threads: usize) -> f64 {
    let question = gguf::Question {
        batch: 1,
        ..gguf::Question::default()
    };
    let bytes = gguf::Summary::new(model, &question).bytes_read_per_token;
    bytes as f64 / (BYTES_PER_CORE_SECOND * threads.max(1) as f64)
}

/// The machine with the time to compute that is guessed for a model, and how far that may be off.
pub fn guessing_compute(machine: Machine, model: &gguf::Model, threads: usize) -> Machine {
    Machine {
        compute_seconds_per_token: Some(guessed_compute_seconds(model, threads)),
        varies: Varies {
            compute: GUESS_VARIES,
            ..machine.varies
        },
        ..machine
    }
}

/// Memory that a run needs besides weights: the KV cache, buffers and the program.
pub fn other_bytes(model: &gguf::Model, kv_type: GgmlType, context: u64, batch: u64) -> u64 {
    Other::new(model, kv_type, context, batch).bytes()
}

fn summary_of(model: &gguf::Model, kv_type: GgmlType, context: u64) -> gguf::Summary {
    let question = gguf::Question {
        context_tokens: Some(context),
        kv_type,
        batch: 1,
    };
    gguf::Summary::new(model, &question)
}

/// How much more the KV cache takes where windows have as many cells as the context.
pub fn whole_windows_bytes(model: &gguf::Model, kv_type: GgmlType, context: u64) -> u64 {
    let cache = summary_of(model, kv_type, context).kv_cache;
    let narrow = cache.llama_cpp_bytes_at_context;
    cache.whole_windows_bytes_at_context.saturating_sub(narrow)
}

/// About what llama.cpp reserves to compute so many tokens: logits and some activations of
/// each.
pub fn buffer_bytes(vocabulary: u64, embedding_length: u64, tokens: u64) -> u64 {
    let row = vocabulary.saturating_add(embedding_length.saturating_mul(16));
    row.saturating_mul(tokens).saturating_mul(4)
}

/// Memory that a run needs besides weights, part by part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Other {
    pub cache_bytes: u64,
    pub buffer_bytes: u64,
}

impl Other {
    /// With this many tokens of context, and of one graph.
    pub fn new(model: &gguf::Model, kv_type: GgmlType, context: u64, batch: u64) -> Other {
        let summary = summary_of(model, kv_type, context);
        let vocabulary = summary.vocabulary.unwrap_or(0);
        Other {
            cache_bytes: summary.kv_cache.llama_cpp_bytes_at_context,
            buffer_bytes: buffer_bytes(vocabulary, summary.embedding_length, batch),
        }
    }

    pub fn bytes(&self) -> u64 {
        PROGRAM_BYTES
            .saturating_add(self.cache_bytes)
            .saturating_add(self.buffer_bytes)
    }
}

/// A prompt that is computed in graphs of so many tokens is still fast where the disk is
/// what is waited for.
const SMALL_BATCH_TOKENS: u64 = 32;
/// Savings below this are not worth a word.
const MIN_SAVING_BYTES: u64 = 4 << 20;

/// What would leave more memory for weights than `budget_bytes` did: flags, and the memory that
/// is enough for all of them, as far as that is known. A program that asks for more than was
/// thought leaves too little of a budget that should have been enough.
pub fn advice(savings: &[String], least_budget: Option<u64>, budget_bytes: u64) -> String {
    let memory = match least_budget.filter(|&least| least > budget_bytes) {
        Some(bytes) => format!("--memory {}M", bytes.div_ceil(1 << 20)),
        None => "more --memory".to_owned(),
    };
    match savings {
        [] => memory,
        savings => format!("{}, or {memory}", savings.join(", ")),
    }
}

/// Flags of llama.cpp that take less memory than `context` and `batch` tokens do, with what
/// they free; `needed` is the least context that will do.
pub fn savings(model: &gguf::Model, (context, needed): (u64, u64), batch: u64) -> Vec<String> {
    let of = |kv_type, context, batch| Other::new(model, kv_type, context, batch).bytes();
    let now = of(GgmlType::F16, context, batch);
    let (fewer, shorter) = (SMALL_BATCH_TOKENS.min(batch), needed.min(context));
    let changes = [
        (
            format!("--ubatch-size {fewer}"),
            of(GgmlType::F16, context, fewer),
        ),
        (
            format!("--ctx-size {shorter}"),
            of(GgmlType::F16, shorter, batch),
        ),
        (
            "--cache-type-k q8_0 --cache-type-v q8_0".to_owned(),
            of(GgmlType::Q8_0, context, batch),
        ),
    ];
    let frees = |(flag, then): (String, u64)| {
        let saved = now.saturating_sub(then);
        (saved >= MIN_SAVING_BYTES).then(|| format!("{flag} frees about {}", HumanBytes(saved)))
    };
    changes.into_iter().filter_map(frees).collect()
}

/// Refuses a context that cannot fit: llama.cpp would be killed for lack of memory,
/// or abort, instead of saying so. The estimate is a lower bound (keys of the layers
/// that see the whole context, and the table of cells), so that nothing is refused
/// that would work.
pub fn check_cache(model: &gguf::Model, key_type: GgmlType, context: usize) -> anyhow::Result<()> {
    const CELL_BYTES: u64 = 48;
    let hyper = model.hyper();
    let layers = u32::try_from(hyper.layer_count).unwrap_or(u32::MAX);
    let key_bytes: u64 = (0..layers)
        .filter(|&layer| hyper.window(layer).is_none())
        .filter_map(|layer| {
            key_type.row_bytes(
                hyper
                    .head_count_kv(layer)
                    .saturating_mul(hyper.key_length(layer)),
            )
        })
        .fold(0, u64::saturating_add);
    let least_bytes = (context as u64).saturating_mul(key_bytes.saturating_add(CELL_BYTES));
    let machine = rundir::machine::describe(None);
    let memory_bytes = machine
        .memory_bytes
        .unwrap_or(u64::MAX)
        .saturating_add(machine.swap_bytes.unwrap_or(0));
    if least_bytes > memory_bytes {
        bail!(
            "a context of {context} tokens needs more than {} of memory, and this machine has {}; \
             use a smaller one (--ctx-size, or fewer tokens)",
            HumanBytes(least_bytes),
            HumanBytes(memory_bytes)
        );
    }
    Ok(())
}

/// The machine that `bench ceilings` measured: its disk while nothing computed, which is the most
/// that a run can have of it.
pub fn machine_of(disk: &DiskCeiling, memory: &MemoryCeiling) -> Machine {
    let rate = disk.bytes_per_second as f64;
    let low = disk.rates.lowest_bytes_per_second as f64 * MIN_WHILE_COMPUTING;
    let high = disk.rates.highest_bytes_per_second as f64;
    let machine = Machine {
        memory_bytes_per_second: Some(memory.bytes_per_second as f64),
        ..Machine::new(rate)
    };
    machine.varying(Varies {
        disk: Spread::around(rate, low, high),
        ..Varies::default()
    })
}

/// What the kernel reads ahead of a page fault in the model: of a run, where it was recorded.
pub fn read_ahead_bytes(run: Option<&Run>, file: Option<&Path>) -> Option<u64> {
    let described = match run {
        Some(run) => run.metadata()?.machine.model_disk.clone(),
        None => rundir::machine::describe(file).model_disk,
    };
    described?.read_ahead_bytes
}

/// The machine that this runs on, while so many threads compute; `None` where its disk cannot be
/// measured.
pub fn machine_here(file: &Path, threads: usize, weights: &[Weight]) -> Option<Machine> {
    let glance = Glance::once(file, threads, weights).ok()?;
    Some(glance.machine())
}

/// What is assumed of a machine whose disk cannot be measured.
pub fn usual_machine() -> Machine {
    Machine::new(USUAL_DISK).varying(Varies {
        disk: USUAL_DISK_VARIES,
        ..Varies::default()
    })
}

/// The disk's speed while all cores compute, by a glance.
pub fn disk_rate(file: &Path) -> Option<f64> {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let glance = Glance::once(file, threads, &[]).ok()?;
    Some(glance.disk_bytes_per_second)
}

/// The disk's speed, as it is fed from, in bytes per second: all that it gave in this time.
pub fn disk_rate_during(file: &Path, time: Duration) -> Result<f64, CeilingError> {
    let options = DiskOptions {
        method: MethodChoice::Best,
        setting: SettingChoice::Fixed(Setting {
            block_bytes: BLOCK_BYTES,
            depth: DEPTH,
        }),
        stop: Stop::After(time),
    };
    let measured = disk::measure(file, options, &mut |_| {})?;
    let seconds = measured.elapsed_nanos as f64 / 1e9;
    Ok(measured.bytes_read as f64 / seconds.max(1e-9))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_told_to_give_less_than_was_too_little() {
        let mib = 1 << 20;
        assert_eq!(advice(&[], Some(400 * mib), 260 * mib), "--memory 400M");
        assert_eq!(advice(&[], Some(181 * mib), 192 * mib), "more --memory");
        let savings = ["--ubatch-size 32 frees about 9 MiB".to_owned()];
        let said = advice(&savings, None, 0);
        assert_eq!(said, format!("{}, or more --memory", savings[0]));
    }
}
