//! From a model or a run to a plan: what `plan`, `run` and `bench feed` share.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use analysis::{
    experts_cache::{ExpertCaches, Hits, PolicyHits, RoutingSequence},
    sequence::Sequence,
};
use anyhow::bail;
use gguf::GgmlType;
use indicatif::HumanBytes;
use kernelio::CeilingError;
use kernelio::disk::{self, DiskOptions, MethodChoice, Setting, SettingChoice, Stop};
use plan::{Choice, Machine, Policy, Strategies, Wanted, Weight, choose_for, predict, why_not};
use planfile::Plan;

/// Bytes of one read, and reads in flight (docs/feeding.md).
pub const BLOCK_BYTES: u32 = 1 << 20;
pub const DEPTH: u32 = 32;
/// What direct reads are aligned to at most.
const ALIGNMENT_BYTES: u64 = 4096;
/// Program, threads and buffers besides those that are counted.
const PROGRAM_BYTES: u64 = 48 << 20;
/// Bytes of weights that a core computes with in a second, when nobody measured.
const BYTES_PER_CORE_SECOND: f64 = 10e9;
/// Of the disk's speed alone, what it gives while all cores compute: 2.5 to 3.0 of 3.3 GB/s
/// (docs/feeding.md).
pub const WHILE_COMPUTING: f64 = 0.9;
/// Long enough to tell a hard disk from an SSD.
const GLANCE: Duration = Duration::from_millis(150);

/// Bytes per second of a disk that cannot be measured.
pub const USUAL_DISK: f64 = 2e9;

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
}

pub struct Answer {
    pub plan: Plan,
    pub why_not: Option<String>,
    /// Hit rates of all policies with the plan's slots, on the run's routing.
    pub policies: Option<Policies>,
}

/// Shares of expert uses that hit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policies {
    pub lru: f64,
    pub lfu: f64,
    pub lfu_aged: f64,
    pub belady: f64,
}

impl Policies {
    pub fn of(hits: &PolicyHits, uses: Hits) -> Policies {
        Policies {
            lru: hits.lru.rate(uses),
            lfu: hits.lfu.rate(uses),
            lfu_aged: hits.lfu_aged.rate(uses),
            belady: hits.belady.rate(uses),
        }
    }

    pub fn rate(&self, policy: Policy) -> f64 {
        match policy {
            Policy::Lru => self.lru,
            Policy::Lfu => self.lfu,
            Policy::LfuAged => self.lfu_aged,
        }
    }

    /// The best that needs no knowledge of the future; LRU among equals.
    pub fn best(&self) -> Policy {
        let mut best = Policy::Lru;
        for policy in Policy::ALL {
            if self.rate(policy) > self.rate(best) {
                best = policy;
            }
        }
        best
    }
}

impl Question<'_> {
    pub fn answer(&self) -> Answer {
        let weights_bytes = self
            .budget_bytes
            .saturating_sub(self.other_bytes)
            .saturating_sub(feed::MARGIN_BYTES);
        let wanted = Wanted {
            weights_bytes,
            strategies: self.strategies,
            read_bytes: u64::from(BLOCK_BYTES),
            depth: DEPTH,
            alignment_bytes: ALIGNMENT_BYTES,
        };
        let machine = Machine {
            weights_bytes: Some(weights_bytes),
            ..self.machine
        };
        let choice = choose_for(&self.weights, &wanted, &machine);
        let policies = self.policies(&choice);
        let policy = self
            .policy
            .or(policies.map(|policies| policies.best()))
            .unwrap_or_default();
        let hit_rate = policies.map(|policies| policies.rate(policy));
        let assumed = (&machine, hit_rate);
        let mut plan = Plan::new(self.model, &self.weights, &wanted, &choice, assumed);
        plan.memory.budget_bytes = self.budget_bytes;
        // The margin is memory that is not for weights.
        plan.memory.other_bytes = self.budget_bytes - weights_bytes;
        if let Some(experts) = &mut plan.experts {
            experts.policy = policy;
        }
        let predicted = predict(&self.weights, &choice, &machine, hit_rate);
        Answer {
            why_not: why_not(&self.weights, &choice, &machine, &predicted)
                .map(|reason| format!("it will not help, because {reason}")),
            policies,
            plan,
        }
    }

    fn policies(&self, choice: &Choice) -> Option<Policies> {
        let memory = choice.experts?;
        let routing = self.routing?;
        // Layers that share a pool are simulated by nobody.
        if (memory.pools as usize) < routing.layers.len() {
            return None;
        }
        let caches = ExpertCaches::of(routing, Some(&[memory.slots]))?;
        let point = caches.points.first()?;
        Some(Policies::of(&point.per_layer, caches.uses))
    }
}

/// The weights of a model in the order in which a run used them.
pub fn in_order_of(sequence: &Sequence, mut weights: Vec<Weight>) -> Vec<Weight> {
    let mut first_use: HashMap<&str, usize> = HashMap::new();
    let token = sequence.evals.iter().find(|eval| eval.is_generate());
    if let Some(token) = token.or(sequence.evals.first()) {
        for (at, &piece) in sequence.accesses_of(token).iter().enumerate() {
            let unit = &sequence.units[sequence.pieces[piece as usize].unit as usize];
            first_use.entry(unit.name.as_str()).or_insert(at);
        }
    }
    weights.sort_by_key(|weight| first_use.get(weight.name.as_str()).copied().unwrap_or(0));
    weights
}

/// Seconds that a token takes with its weights in memory: of the run's tokens, one of
/// the fastest.
pub fn compute_seconds(sequence: &Sequence) -> Option<f64> {
    let mut seconds: Vec<f64> = sequence
        .evals
        .iter()
        .filter(|eval| eval.is_generate() && eval.tokens > 0)
        .map(|eval| (eval.end_nanos - eval.begin_nanos) as f64 / 1e9 / f64::from(eval.tokens))
        .collect();
    seconds.sort_by(f64::total_cmp);
    seconds.get(seconds.len() / 4).copied()
}

/// The same for a model that nobody has run: by bytes and cores.
pub fn guessed_compute_seconds(model: &gguf::Model, threads: usize) -> f64 {
    let question = gguf::Question {
        batch: 1,
        ..gguf::Question::default()
    };
    let bytes = gguf::Summary::new(model, &question).bytes_read_per_token;
    bytes as f64 / (BYTES_PER_CORE_SECOND * threads.max(1) as f64)
}

/// Memory that a run needs besides weights: the KV cache, buffers and the program.
pub fn other_bytes(model: &gguf::Model, kv_type: GgmlType, context: u64, batch: u64) -> u64 {
    let question = gguf::Question {
        context_tokens: Some(context),
        kv_type,
        batch: 1,
    };
    let summary = gguf::Summary::new(model, &question);
    let row = summary.vocabulary.unwrap_or(0) + 16 * summary.embedding_length;
    summary.kv_cache.llama_cpp_bytes_at_context + batch * row * 4 + PROGRAM_BYTES
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

/// The disk's speed while computing, by a glance.
pub fn disk_rate(file: &Path) -> Option<f64> {
    Some(disk_rate_during(file, GLANCE).ok()? * WHILE_COMPUTING)
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
