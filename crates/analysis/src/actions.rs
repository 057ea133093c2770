//! What to do about a run: the few settings and commands that its numbers call for.
//!
//! Each rule looks at measured facts, and says nothing where they do not carry it: an action has
//! the number it rests on, and the flags to type. Where no rule has anything to say, one sentence
//! says where the time goes. `docs/analysis.md` has the conditions.
//!
//! Flags are those of the llama.cpp that is built in (its `common/arg.cpp`), with the older
//! spelling where that was another. Memory is judged by crate `plan`, through [`Opportunities`].

mod offload;
#[cfg(test)]
mod tests;

use gguf::GgmlType;
use serde::{Deserialize, Serialize};

use crate::{
    facts::Facts,
    findings::text::{bytes, count, percent, share, time},
    opportunities::{BudgetOutlook, Fit, Opportunities, Strategy},
    underneath::UnderneathResults,
};

/// A share of a token's bytes or time from which a remedy is worth a sentence.
const NOTABLE_KV: f64 = 0.1;
const NOTABLE_HEAD: f64 = 0.2;
const NOTABLE_FAULTS: f64 = 0.05;
/// So many times as fast must a token be in a batch for drafting to be named.
const NOTABLE_BATCH: f64 = 1.5;
/// llama.cpp's own, beyond which a prompt's weights are amortised.
const USUAL_MICRO_BATCH: u32 = 512;
/// Budgets that are spoken about; the table has all.
const MAX_BUDGETS: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Topic {
    Memory,
    Residency,
    OutputHead,
    KvCache,
    Drafting,
    FlashAttention,
    PromptBatch,
    Threads,
    /// What lies and is computed on which device.
    Offload,
    /// No setting would help: where the time goes.
    Nothing,
}

/// Something to do, with what it rests on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Action {
    pub topic: Topic,
    /// One sentence: what, and the measured numbers that call for it.
    pub text: String,
    /// Flags of llama.cpp's programs, or a command of its own.
    pub llama_cpp: Option<String>,
    /// A command of ours.
    pub tensorscope: Option<String>,
    /// What changes, where that can be computed.
    pub gain: Option<Gain>,
    /// Path of the numbers in the results (`report --json`).
    pub evidence: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gain {
    /// `disk_bytes_per_token`, `memory_bytes_per_token`, `nanos_per_token`.
    pub of: String,
    pub now: f64,
    pub then: f64,
}

/// How the run was made, as far as that is known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Setup {
    /// As a shell takes it; `MODEL` where it is not known.
    pub model: String,
    pub model_bytes: u64,
    /// A program of somebody else computed, whose settings are not known.
    pub is_program: bool,
    pub threads: Option<u32>,
    pub processors: Option<u32>,
    /// Most tokens of one evaluation: the smaller of batch and micro-batch.
    pub batch_tokens: Option<u32>,
    pub kv_types: Option<[String; 2]>,
    /// Elements of a head of K and of V.
    pub head_elements: Option<[u64; 2]>,
    pub output_head: Option<OutputHead>,
    /// That the run could have used: the limit it was under, or what the machine had free.
    pub memory_bytes: Option<u64>,
    pub memory_ceiling: Option<u64>,
}

/// The matrix that makes a token's probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputHead {
    pub ggml_type: GgmlType,
    pub row_elements: u64,
    pub size_bytes: u64,
    /// It is the token embedding as well.
    pub is_tied: bool,
}

/// What the rules look at.
#[derive(Clone, Copy)]
pub struct Grounds<'a> {
    pub facts: &'a Facts,
    pub opportunities: Option<&'a Opportunities>,
    pub underneath: Option<&'a UnderneathResults>,
    pub setup: &'a Setup,
}

/// What applies, the most important first.
pub fn actions(grounds: &Grounds) -> Vec<Action> {
    let mut list = grounds.memory();
    list.extend(grounds.residency());
    list.extend(grounds.offload());
    list.extend(grounds.output_head());
    list.extend(grounds.kv_cache());
    list.extend(grounds.drafting());
    list.extend(grounds.flash_attention());
    list.extend(grounds.prompt_batch());
    list.extend(grounds.threads());
    // Its sums need the time of every node.
    if list.is_empty() && grounds.facts.devices.is_empty() {
        list.extend(grounds.nothing());
    }
    list
}

impl Grounds<'_> {
    fn memory(&self) -> Vec<Action> {
        let Some(opportunities) = self.opportunities.filter(|_| !self.is_fed()) else {
            return Vec::new();
        };
        let budgets = &opportunities.budgets;
        if !opportunities.budgets_are_given {
            // Only a run that had too little memory needs another way of using it.
            let has = self.setup.memory_bytes.filter(|_| !self.has_room());
            let fits =
                |o: &&BudgetOutlook| o.program_bytes.zip(has).is_some_and(|(p, has)| p <= has);
            let most = budgets.iter().rfind(fits);
            return most.and_then(|o| self.within(o)).into_iter().collect();
        }
        let mut list: Vec<Action> = budgets.iter().filter_map(|o| self.within(o)).collect();
        list.truncate(MAX_BUDGETS);
        let too_little = budgets.iter().filter(|o| o.fit == Fit::No);
        let too_little = too_little.filter_map(|o| o.program_bytes).max();
        if let Some((given, beside)) = too_little.zip(opportunities.beside_weights_bytes) {
            list.extend(opportunities.least_program_bytes.map(|least| Action {
                topic: Topic::Memory,
                text: format!(
                    "give it more than {}: the program needs {} beside the weights; from {} on something is gained",
                    bytes(given),
                    bytes(beside),
                    bytes(least)
                ),
                llama_cpp: None,
                tensorscope: Some(self.run_with(least, Some("--strategy pin"))),
                gain: None,
                evidence: "caches.opportunities.least_program_bytes".into(),
            }));
        }
        list
    }

    /// `tensorscope run` in a budget where it helps.
    fn within(&self, outlook: &BudgetOutlook) -> Option<Action> {
        let best = outlook.of(outlook.best?)?;
        let stock = outlook.of(Strategy::PageCache)?;
        let (ours, theirs) = (best.disk_bytes_per_token?, stock.disk_bytes_per_token?);
        let program = outlook.program_bytes?;
        let speed = match (best.tokens_per_second, stock.tokens_per_second) {
            (Some(ours), Some(theirs)) => {
                format!(", {ours:.1} tokens/s at most instead of {theirs:.1}")
            }
            _ => String::new(),
        };
        Some(Action {
            topic: Topic::Memory,
            text: format!(
                "with {} of memory: {} reads {} from disk per token instead of {}{speed}",
                bytes(program),
                best.strategy.words(),
                bytes(ours),
                bytes(theirs)
            ),
            llama_cpp: None,
            tensorscope: Some(self.run_with(program, outlook.strategy_flag())),
            gain: Some(Gain {
                of: "disk_bytes_per_token".into(),
                now: theirs as f64,
                then: ours as f64,
            }),
            evidence: "caches.opportunities.budgets".into(),
        })
    }

    fn residency(&self) -> Option<Action> {
        let mut verdicts = self.underneath?.verdicts.iter();
        let verdict = verdicts.find(|verdict| verdict.phase == "generate")?;
        let faults = verdict.major_faults.filter(|&faults| faults > 0)?;
        let waited = verdict.io_share.or(verdict.fault_share)?;
        if !self.has_room() || self.is_fed() || waited < NOTABLE_FAULTS {
            return None;
        }
        Some(Action {
            topic: Topic::Residency,
            text: format!(
                "load the weights first: all of them fit into memory, and yet {} while generating waited for the disk \
                 for {} of the time",
                count(faults, "major fault"),
                percent(waited)
            ),
            llama_cpp: Some(
                "--load-mode none, or --load-mode mmap+mlock (older versions: --no-mmap, --mlock)"
                    .into(),
            ),
            tensorscope: None,
            gain: None,
            evidence: "underneath.verdicts".into(),
        })
    }

    fn output_head(&self) -> Option<Action> {
        if !self.facts.devices.experts.are_all() {
            return None;
        }
        let head = self.setup.output_head?;
        let rows = head.size_bytes / head.ggml_type.row_bytes(head.row_elements)?.max(1);
        let smaller = smaller_head(&head)?;
        let then = rows * smaller.row_bytes(head.row_elements)?;
        let [read, all] = [Some("output"), None].map(|part| self.weight_bytes_per_token(part));
        if read < all * NOTABLE_HEAD || all == 0.0 {
            return None;
        }
        let saved = read * (1.0 - share(then, head.size_bytes));
        let (flag, tied) = match head.is_tied {
            true => ("--token-embedding-type", " (tied to the embedding)"),
            false => ("--output-tensor-type", ""),
        };
        Some(Action {
            topic: Topic::OutputHead,
            text: format!(
                "a smaller output head: it{tied} is {} of the weight bytes that a generated token reads, {} as {}; as {} \
                 a token reads {} of weights instead of {}, and the output changes slightly",
                percent(read / all),
                bytes(head.size_bytes),
                head.ggml_type.name(),
                smaller.name(),
                bytes((all - saved).round() as u64),
                bytes(all.round() as u64)
            ),
            llama_cpp: Some(format!(
                "llama-quantize {flag} {} ORIGINAL.gguf SMALLER.gguf TYPE",
                smaller.name()
            )),
            tensorscope: None,
            gain: Some(Gain {
                of: "memory_bytes_per_token".into(),
                now: all,
                then: all - saved,
            }),
            evidence: "facts.traffic.rows".into(),
        })
    }

    fn kv_cache(&self) -> Option<Action> {
        if !self.facts.devices.experts.are_all() {
            return None;
        }
        let kinds = self.setup.kv_types.as_ref()?;
        let heads = self.setup.head_elements?;
        let q8 = GgmlType::from_name("q8_0")?;
        let kv = self.bytes_per_token("generate", "kv_cache");
        let all = kv + self.bytes_per_token("generate", "weight");
        // Bytes of a head of K and of V, as they are and as they would be.
        let mut sizes = [0, 0];
        for (kind, elements) in kinds.iter().zip(heads) {
            sizes[0] += GgmlType::from_name(kind)?.row_bytes(elements)?;
            sizes[1] += q8.row_bytes(elements)?;
        }
        if kv <= 0.0 || kv < all * NOTABLE_KV || sizes[1] as f64 > sizes[0] as f64 * 0.9 {
            return None;
        }
        let then = kv * share(sizes[1], sizes[0]);
        let (flash, ours) = match self.has_flash_attention() {
            true => ("", ""),
            // llama.cpp quantises V only with it.
            false => (" -fa on", " --flash-attn on"),
        };
        Some(Action {
            topic: Topic::KvCache,
            text: format!(
                "a smaller KV cache: it is {} of what a generated token reads ({} of {}); as q8_0 it is {}, and the output changes \
                 slightly",
                percent(kv / all),
                bytes(kv.round() as u64),
                bytes(all.round() as u64),
                bytes(then.round() as u64)
            ),
            llama_cpp: Some(format!("-ctk q8_0 -ctv q8_0{flash}")),
            tensorscope: self
                .record_with(&format!("--cache-type-k q8_0 --cache-type-v q8_0{ours}")),
            gain: Some(Gain {
                of: "memory_bytes_per_token".into(),
                now: all,
                then: all - kv + then,
            }),
            evidence: "facts.traffic.per_token".into(),
        })
    }

    fn drafting(&self) -> Option<Action> {
        let [prompt, generate] = ["prompt", "generate"].map(|p| self.facts.traffic.phase(p));
        let (prompt, generate) = (prompt?, generate?);
        let is_batch = prompt.tokens >= 4 * prompt.evaluations;
        let is_alone = generate.tokens == generate.evaluations;
        if !is_batch || !is_alone || prompt.nanos == 0 {
            return None;
        }
        let each = |sum: &crate::traffic::PhaseSum| sum.nanos as f64 / sum.tokens.max(1) as f64;
        let (in_batch, alone) = (each(prompt), each(generate));
        if alone < in_batch * NOTABLE_BATCH {
            return None;
        }
        Some(Action {
            topic: Topic::Drafting,
            text: format!(
                "more tokens a pass: a token alone took {}, one of the prompt's batch of {:.0} took {}, {:.1} times as fast; \
                 drafted tokens, or several requests at once, share the pass over the weights",
                time(alone),
                share(prompt.tokens, prompt.evaluations),
                time(in_batch),
                alone / in_batch
            ),
            llama_cpp: Some(
                "--model-draft SMALL.gguf, or --spec-type ngram-simple without one; for a server -np 4".into(),
            ),
            tensorscope: self.record_with("--parallel 4"),
            gain: Some(Gain {
                of: "nanos_per_token".into(),
                now: alone,
                then: in_batch,
            }),
            evidence: "facts.traffic.phases".into(),
        })
    }

    fn flash_attention(&self) -> Option<Action> {
        let times = &self.facts.traffic.times;
        let by = |keep: &dyn Fn(&str, &str) -> bool| -> u64 {
            let kept = times.iter().filter(|t| keep(&t.op, &t.component));
            kept.map(|t| t.nanos).sum()
        };
        let products = by(&|op, component| component == "kv_cache" && op.starts_with("MUL_MAT"));
        if products == 0 || self.has_flash_attention() {
            return None;
        }
        let text = match self.facts.devices.is_empty() {
            true => format!(
                "flash attention: it was off, and products with the KV cache took {} of the time; it makes one operation \
                 of them and of what lies between them",
                percent(share(products, by(&|_, _| true)))
            ),
            // Of devices only some nodes were timed: a share of all would be none.
            false => "flash attention: it was off; it makes one operation of the products with the KV cache and of what \
                 lies between them"
                .to_owned(),
        };
        Some(Action {
            topic: Topic::FlashAttention,
            text,
            llama_cpp: Some("-fa on".into()),
            tensorscope: self.record_with("--flash-attn on"),
            gain: None,
            evidence: "facts.traffic.times".into(),
        })
    }

    fn prompt_batch(&self) -> Option<Action> {
        let limit = self.setup.batch_tokens.filter(|&n| n < USUAL_MICRO_BATCH)?;
        let prompt = self.facts.traffic.phase("prompt")?;
        // Short prompts, one after the other, are not cut by the limit.
        let is_cut =
            prompt.evaluations > 1 && prompt.tokens * 2 > prompt.evaluations * u64::from(limit);
        let fewer = prompt.tokens.div_ceil(USUAL_MICRO_BATCH.into());
        let per_token = self.bytes_per_token("prompt", "weight");
        if !is_cut || fewer * 2 > prompt.evaluations || per_token == 0.0 {
            return None;
        }
        let then = per_token * share(fewer, prompt.evaluations);
        Some(Action {
            topic: Topic::PromptBatch,
            text: format!(
                "larger batches for the prompt: its {} were computed in {} of at most {limit}, each of which reads the \
                 weights again; in {fewer} of {USUAL_MICRO_BATCH} a token of it reads {} of weights instead of {}",
                count(prompt.tokens, "token"),
                count(prompt.evaluations, "evaluation"),
                bytes(then.round() as u64),
                bytes(per_token.round() as u64)
            ),
            llama_cpp: Some(format!("-b 2048 -ub {USUAL_MICRO_BATCH}")),
            tensorscope: self.record_with(&format!(
                "--batch-size 2048 --ubatch-size {USUAL_MICRO_BATCH}"
            )),
            gain: Some(Gain {
                of: "memory_bytes_per_token".into(),
                now: per_token,
                then,
            }),
            evidence: "facts.traffic.phases".into(),
        })
    }

    /// Processors may be two to a core: half of them is a choice that one may make.
    fn threads(&self) -> Option<Action> {
        let (threads, processors) = (self.setup.threads?, self.setup.processors?);
        if threads == 0 || (threads * 2 >= processors && threads <= processors) {
            return None;
        }
        Some(Action {
            topic: Topic::Threads,
            text: format!(
                "{} threads: {} computed, and there are {}",
                if threads > processors {
                    "fewer"
                } else {
                    "more"
                },
                count(threads.into(), "thread"),
                count(processors.into(), "processor")
            ),
            llama_cpp: Some(format!("-t {processors}")),
            tensorscope: self.record_with(&format!("-t {processors}")),
            gain: None,
            evidence: "metadata.settings.threads".into(),
        })
    }

    /// Where the time of a token goes, when nothing is wrong with the settings.
    fn nothing(&self) -> Option<Action> {
        let times = self.facts.traffic.times.iter();
        let times = times.filter(|t| t.phase == "generate");
        let is_weight = |component: &str| !matches!(component, "kv_cache" | "activation" | "input");
        let all: u64 = times.clone().map(|t| t.nanos).sum();
        let nanos: u64 = times
            .filter(|t| is_weight(&t.component))
            .map(|t| t.nanos)
            .sum();
        let tokens = self.facts.traffic.phase("generate")?.tokens;
        let read = self.weight_bytes_per_token(None) * tokens as f64;
        if nanos == 0 || read == 0.0 {
            return None;
        }
        let rate = read / nanos as f64;
        let mut verdicts = self.underneath.iter().flat_map(|u| &u.verdicts);
        let generate = verdicts.find(|verdict| verdict.phase == "generate");
        let resident = match generate.and_then(|verdict| verdict.major_faults) {
            Some(0) => "everything was in memory, and ",
            _ => "",
        };
        let ceiling = match self.setup.memory_ceiling {
            Some(ceiling) => format!(" of the {:.1} GB/s that memory gives", ceiling as f64 / 1e9),
            None => String::new(),
        };
        Some(Action {
            topic: Topic::Nothing,
            text: format!(
                "no setting to change: {resident}{} of a generated token's time is computing with weights, read at {rate:.1} \
                 GB/s{ceiling}; the remedy is fewer bytes: a smaller quantisation, or more tokens a pass",
                percent(share(nanos, all))
            ),
            llama_cpp: None,
            tensorscope: None,
            gain: None,
            evidence: "facts.traffic.times".into(),
        })
    }

    fn is_fed(&self) -> bool {
        !self.facts.sources.is_empty()
    }

    /// Whether the run had memory for all weights and itself; where that is not known, it is
    /// taken to have had.
    fn has_room(&self) -> bool {
        let beside = self.opportunities.and_then(|o| o.beside_weights_bytes);
        let needs = beside.map(|beside| beside + self.setup.model_bytes);
        needs
            .zip(self.setup.memory_bytes)
            .is_none_or(|(needs, has)| needs <= has)
    }

    fn has_flash_attention(&self) -> bool {
        let mut times = self.facts.traffic.times.iter();
        times.any(|t| t.op.contains("FLASH_ATTN"))
    }

    fn bytes_per_token(&self, phase: &str, kind: &str) -> f64 {
        let rows = self.facts.traffic.per_token.iter();
        let rows = rows.filter(|r| r.phase == phase && r.kind == kind && r.direction == "read");
        rows.map(|r| r.bytes_per_token).sum()
    }

    /// Of generated tokens, of one component or of all.
    fn weight_bytes_per_token(&self, component: Option<&str>) -> f64 {
        let rows = self.facts.traffic.rows.iter();
        let rows =
            rows.filter(|r| r.phase == "generate" && r.kind == "weight" && r.direction == "read");
        let rows = rows.filter(|r| component.is_none_or(|c| r.component == c));
        let tokens = self.facts.traffic.phase("generate").map_or(0, |p| p.tokens);
        share(rows.map(|r| r.bytes).sum(), tokens)
    }

    fn run_with(&self, program_bytes: u64, strategy: Option<&str>) -> String {
        let model = match self.setup.is_program {
            true => String::new(),
            false => format!(" -m {} -p PROMPT", self.setup.model),
        };
        let strategy = strategy.map_or(String::new(), |flag| format!(" {flag}"));
        let program = if self.setup.is_program {
            " -- PROGRAM"
        } else {
            ""
        };
        let memory = size_flag(program_bytes);
        format!("tensorscope run{model} --memory {memory}{strategy}{program}")
    }

    /// To measure it; of another program the flags are its own.
    fn record_with(&self, flags: &str) -> Option<String> {
        let model = &self.setup.model;
        (!self.setup.is_program).then(|| format!("tensorscope record -m {model} -p PROMPT {flags}"))
    }
}

/// The next smaller type that hardly changes the output, where rows have whole blocks of it.
fn smaller_head(head: &OutputHead) -> Option<GgmlType> {
    let names: &[&str] = match head.ggml_type.name() {
        "f32" | "f16" | "bf16" => &["q8_0"],
        "q8_0" => &["q6_K", "q5_1"],
        _ => &[],
    };
    let types = names.iter().filter_map(|name| GgmlType::from_name(name));
    types
        .into_iter()
        .find(|ty| head.row_elements.is_multiple_of(ty.block_elements()))
}

/// As `--memory` takes it, rounded up to a mebibyte.
fn size_flag(bytes: u64) -> String {
    match bytes {
        whole if whole > 0 && whole.is_multiple_of(1 << 30) => format!("{}G", whole >> 30),
        bytes => format!("{}M", bytes.div_ceil(1 << 20)),
    }
}
