//! Each rule on a run that calls for it, and on its neighbours that do not.

use super::*;
use crate::{
    opportunities::{Help, StrategyOutlook, Verdict},
    traffic::{PerToken, PhaseSum, TimeRow, TrafficRow},
    underneath::verdict::PhaseVerdict,
};

const MIB: u64 = 1 << 20;

/// A run that nothing is wrong with: 100 MiB of weights and 1 MiB of KV cache a token, ten
/// tokens of a prompt in one batch, a hundred generated one by one, no slower than those.
struct Case {
    facts: Facts,
    opportunities: Opportunities,
    underneath: UnderneathResults,
    setup: Setup,
}

fn phase(name: &str, tokens: u64, evaluations: u64, nanos_per_token: u64) -> PhaseSum {
    PhaseSum {
        phase: name.to_owned(),
        tokens,
        evaluations,
        nanos: tokens * nanos_per_token,
        ..PhaseSum::default()
    }
}

fn time_of(component: &str, op: &str, nanos: u64) -> TimeRow {
    TimeRow {
        phase: "generate".into(),
        component: component.into(),
        op: op.into(),
        layer: None,
        executions: 1,
        nanos,
    }
}

fn per_token(phase: &str, kind: &str, bytes_per_token: u64) -> PerToken {
    PerToken {
        phase: phase.into(),
        kind: kind.into(),
        direction: "read".into(),
        bytes: 0,
        bytes_per_token: bytes_per_token as f64,
    }
}

fn read(component: &str, bytes: u64) -> TrafficRow {
    TrafficRow {
        phase: "generate".into(),
        kind: "weight".into(),
        component: component.into(),
        role: None,
        op: "MUL_MAT".into(),
        layer: None,
        direction: "read".into(),
        accesses: 1,
        bytes,
    }
}

fn outlook(
    program_bytes: u64,
    budget_bytes: u64,
    fit: Fit,
    best: Option<Strategy>,
) -> BudgetOutlook {
    let of = |strategy, bytes: u64, help| StrategyOutlook {
        strategy,
        disk_bytes_per_token: Some(bytes),
        routed_bytes_per_token: 0,
        nanos_per_token: None,
        tokens_per_second: None,
        tokens_per_second_low: None,
        tokens_per_second_high: None,
        speedup: None,
        verdict: Verdict {
            help,
            reason: String::new(),
        },
    };
    BudgetOutlook {
        program_bytes: Some(program_bytes),
        budget_bytes,
        fit,
        least_disk_bytes_per_token: 0,
        strategies: vec![
            of(Strategy::PageCache, 100 * MIB, Help::Baseline),
            of(Strategy::PinAndStream, 40 * MIB, Help::Helps),
        ],
        best,
    }
}

impl Case {
    fn new() -> Case {
        let mut facts = Facts::default();
        facts.traffic.phases = vec![
            phase("prompt", 10, 1, 1_000_000),
            phase("generate", 100, 100, 1_000_000),
        ];
        facts.traffic.rows = vec![read("ffn", 9000 * MIB), read("output", 1000 * MIB)];
        facts.traffic.times = vec![
            time_of("ffn", "MUL_MAT", 90_000_000),
            time_of("kv_cache", "FLASH_ATTN_EXT", 10_000_000),
        ];
        facts.traffic.per_token = vec![
            per_token("prompt", "weight", 10 * MIB),
            per_token("generate", "weight", 100 * MIB),
            per_token("generate", "kv_cache", MIB),
        ];
        let pins = Some(Strategy::PinAndStream);
        Case {
            facts,
            opportunities: Opportunities {
                generated_tokens: 100,
                footprint_bytes: 100 * MIB,
                expert_bytes: 0,
                used_bytes_per_token: 100 * MIB,
                beside_weights_bytes: Some(200 * MIB),
                least_program_bytes: None,
                machine: None,
                budgets_are_given: false,
                budgets: vec![
                    outlook(250 * MIB, 50 * MIB, Fit::Some, pins),
                    outlook(300 * MIB, 100 * MIB, Fit::All, None),
                ],
            },
            underneath: UnderneathResults::default(),
            setup: Setup {
                model: "m.gguf".into(),
                model_bytes: 100 * MIB,
                threads: Some(2),
                processors: Some(4),
                batch_tokens: Some(512),
                kv_types: Some(["f16".into(), "f16".into()]),
                head_elements: Some([64, 64]),
                output_head: Some(OutputHead {
                    ggml_type: GgmlType::Q8_0,
                    row_elements: 512,
                    size_bytes: 10 * MIB,
                    is_tied: true,
                }),
                memory_bytes: Some(1000 * MIB),
                ..Setup::default()
            },
        }
    }

    fn with(change: impl FnOnce(&mut Case)) -> Case {
        let mut case = Case::new();
        change(&mut case);
        case
    }

    fn actions(&self) -> Vec<Action> {
        actions(&Grounds {
            facts: &self.facts,
            opportunities: Some(&self.opportunities),
            underneath: Some(&self.underneath),
            setup: &self.setup,
        })
    }

    fn topics(&self) -> Vec<Topic> {
        self.actions().iter().map(|action| action.topic).collect()
    }

    /// The only one there is.
    fn only(&self, topic: Topic) -> Action {
        let actions = self.actions();
        assert_eq!(self.topics(), [topic], "{actions:?}");
        actions.into_iter().next().unwrap()
    }

    fn faults(&mut self, major: u64, io_share: f64) {
        self.underneath.verdicts = vec![PhaseVerdict {
            phase: "generate".into(),
            major_faults: Some(major),
            io_share: Some(io_share),
            ..PhaseVerdict::default()
        }];
    }
}

#[test]
fn a_run_that_nothing_is_wrong_with_is_told_where_its_time_goes() {
    let said = Case::new().only(Topic::Nothing);
    // 100 tokens of 100 MiB in 90 ms of nodes.
    assert_eq!(
        said.text,
        "no setting to change: 90.0 % of a generated token's time is computing with weights, read at 116.5 GB/s; the \
         remedy is fewer bytes: a smaller quantisation, or more tokens a pass"
    );
    assert_eq!((said.llama_cpp, said.tensorscope), (None, None));
    let said = Case::with(|case| {
        case.faults(0, 0.0);
        case.setup.memory_ceiling = Some(200_000_000_000);
    });
    let text = said.only(Topic::Nothing).text;
    assert!(
        text.contains("everything was in memory, and 90.0 %"),
        "{text}"
    );
    assert!(
        text.contains("116.5 GB/s of the 200.0 GB/s that memory gives"),
        "{text}"
    );
}

#[test]
fn an_empty_run_gets_no_advice() {
    let case = Case::with(|case| case.facts = Facts::default());
    assert_eq!(case.actions(), []);
}

#[test]
fn memory_that_somebody_asks_about_gets_the_command_that_uses_it() {
    let case = Case::with(|case| case.opportunities.budgets_are_given = true);
    let said = case.only(Topic::Memory);
    assert_eq!(
        said.text,
        "with 250.0 MiB of memory: pinning weights and streaming the rest reads 40.0 MiB from disk per token \
         instead of 100.0 MiB"
    );
    let command = "tensorscope run -m m.gguf -p PROMPT --memory 250M";
    assert_eq!(said.tensorscope.as_deref(), Some(command));
    let gain = said.gain.unwrap();
    assert_eq!(
        (gain.now, gain.then),
        (100.0 * MIB as f64, 40.0 * MIB as f64)
    );
    // A program of somebody else is run in its own way.
    let case = Case::with(|case| {
        case.opportunities.budgets_are_given = true;
        case.setup.is_program = true;
    });
    let command = case.only(Topic::Memory).tensorscope.unwrap();
    assert_eq!(command, "tensorscope run --memory 250M -- PROGRAM");
    // Fed already.
    let case = Case::with(|case| {
        case.opportunities.budgets_are_given = true;
        case.facts.sources = vec![Default::default()];
    });
    assert_eq!(case.topics(), [Topic::Nothing]);
}

#[test]
fn too_little_memory_is_told_the_least_that_helps() {
    let case = Case::with(|case| {
        case.opportunities.budgets_are_given = true;
        case.opportunities.least_program_bytes = Some(220 * MIB);
        case.opportunities.budgets = vec![
            outlook(50 * MIB, 0, Fit::No, None),
            outlook(90 * MIB, 0, Fit::No, None),
        ];
    });
    let said = case.only(Topic::Memory);
    assert_eq!(
        said.text,
        "give it more than 90.0 MiB: the program needs 200.0 MiB beside the weights; from 220.0 MiB on something is gained"
    );
    assert!(
        said.tensorscope
            .unwrap()
            .ends_with("--memory 220M --strategy pin")
    );
}

#[test]
fn a_run_in_too_little_memory_is_to_be_fed_and_one_with_room_is_not() {
    let case = Case::with(|case| case.setup.memory_bytes = Some(260 * MIB));
    let said = case.only(Topic::Memory);
    assert!(said.tensorscope.unwrap().ends_with("--memory 250M"));
    let case = Case::with(|case| case.setup.memory_bytes = None);
    assert_eq!(case.topics(), [Topic::Nothing]);
    // Less than any budget that helps.
    let case = Case::with(|case| case.setup.memory_bytes = Some(210 * MIB));
    assert_eq!(case.topics(), [Topic::Nothing]);
}

#[test]
fn faults_of_weights_that_fit_want_them_loaded_first() {
    let said = Case::with(|case| case.faults(1200, 0.4)).only(Topic::Residency);
    assert!(said.text.contains("1,200 major faults"), "{}", said.text);
    assert!(said.text.contains("40.0 % of the time"), "{}", said.text);
    assert!(said.llama_cpp.unwrap().contains("--load-mode none"));
    // Hardly any, or where there is no room: loading them would not keep them.
    let case = Case::with(|case| case.faults(3, 0.01));
    assert_eq!(case.topics(), [Topic::Nothing]);
    let case = Case::with(|case| {
        case.faults(1200, 0.4);
        case.setup.memory_bytes = Some(260 * MIB);
    });
    assert_eq!(case.topics(), [Topic::Memory]);
}

#[test]
fn a_large_output_head_wants_a_smaller_type() {
    let large = |case: &mut Case| {
        case.facts.traffic.rows = vec![read("ffn", 6000 * MIB), read("output", 4000 * MIB)];
    };
    let said = Case::with(large).only(Topic::OutputHead);
    assert!(
        said.text.contains("is 40.0 % of the weight bytes"),
        "{}",
        said.text
    );
    // q6_K has 210 bytes where q8_0 has 272.
    assert!(
        said.text
            .contains("reads 90.9 MiB of weights instead of 100.0 MiB"),
        "{}",
        said.text
    );
    let command = "llama-quantize --token-embedding-type q6_K ORIGINAL.gguf SMALLER.gguf TYPE";
    assert_eq!(said.llama_cpp.as_deref(), Some(command));
    let head = |change: fn(&mut OutputHead)| {
        Case::with(|case| {
            large(case);
            change(case.setup.output_head.as_mut().unwrap());
        })
    };
    // Rows that are no whole blocks of q6_K.
    let said = head(|head| head.row_elements = 576).only(Topic::OutputHead);
    assert!(
        said.llama_cpp
            .unwrap()
            .contains("--token-embedding-type q5_1")
    );
    let said = head(|head| head.is_tied = false).only(Topic::OutputHead);
    assert!(
        said.llama_cpp
            .unwrap()
            .contains("--output-tensor-type q6_K")
    );
    // One that is small already.
    assert_eq!(
        head(|head| head.ggml_type = GgmlType::Q4_K).topics(),
        [Topic::Nothing]
    );
}

#[test]
fn a_kv_cache_that_is_much_of_a_token_wants_a_smaller_type() {
    let long = |case: &mut Case| {
        case.facts.traffic.per_token[2] = per_token("generate", "kv_cache", 25 * MIB);
    };
    let said = Case::with(long).only(Topic::KvCache);
    assert!(
        said.text
            .contains("20.0 % of what a generated token reads (25.0 MiB of 125.0 MiB)")
    );
    // 34 bytes for 64.
    assert!(
        said.text.contains("as q8_0 it is 13.3 MiB"),
        "{}",
        said.text
    );
    assert_eq!(said.llama_cpp.as_deref(), Some("-ctk q8_0 -ctv q8_0"));
    let change = |change: fn(&mut Setup)| {
        Case::with(|case| {
            long(case);
            change(&mut case.setup);
        })
    };
    // Quantised already; heads that are no whole blocks; a program whose types nobody knows.
    let q8 = |setup: &mut Setup| setup.kv_types = Some(["q8_0".into(), "q8_0".into()]);
    assert_eq!(change(q8).topics(), [Topic::Nothing]);
    let odd = change(|setup| setup.head_elements = Some([80, 80]));
    assert_eq!(odd.topics(), [Topic::Nothing]);
    assert_eq!(
        change(|setup| setup.kv_types = None).topics(),
        [Topic::Nothing]
    );
}

#[test]
fn tokens_that_are_faster_in_a_batch_want_drafts() {
    let slow = |tokens, evaluations| {
        Case::with(|case| {
            case.facts.traffic.phases[1] = phase("generate", tokens, evaluations, 3_000_000);
        })
    };
    let said = slow(100, 100).only(Topic::Drafting);
    assert!(said.text.contains(
        "a token alone took 3.0 ms, one of the prompt's batch of 10 took 1.0 ms, 3.0 times"
    ));
    assert!(said.llama_cpp.unwrap().contains("--spec-type ngram-simple"));
    // Drafted, or several sequences, already.
    assert_eq!(slow(150, 100).topics(), [Topic::Nothing]);
    // A prompt of one token proves nothing.
    let case = Case::with(|case| {
        case.facts.traffic.phases = vec![
            phase("prompt", 1, 1, 100_000),
            phase("generate", 100, 100, 3_000_000),
        ];
    });
    assert_eq!(case.topics(), [Topic::Nothing]);
}

#[test]
fn attention_without_flash_attention_wants_it() {
    let case = Case::with(|case| {
        case.facts.traffic.times[1] = time_of("kv_cache", "MUL_MAT", 10_000_000);
    });
    let said = case.only(Topic::FlashAttention);
    assert!(
        said.text.contains("took 10.0 % of the time"),
        "{}",
        said.text
    );
    assert_eq!(said.llama_cpp.as_deref(), Some("-fa on"));
    // A model without a KV cache (recurrent) has no attention to speed up.
    let case = Case::with(|case| {
        case.facts.traffic.times.pop();
    });
    assert_eq!(case.topics(), [Topic::Nothing]);
}

#[test]
fn a_prompt_that_small_batches_cut_wants_larger_ones() {
    let prompt = |tokens, evaluations| {
        Case::with(|case| {
            case.setup.batch_tokens = Some(32);
            case.facts.traffic.phases[0] = phase("prompt", tokens, evaluations, 1_000_000);
        })
    };
    let said = prompt(640, 20).only(Topic::PromptBatch);
    assert!(
        said.text
            .contains("its 640 tokens were computed in 20 evaluations of at most 32")
    );
    assert!(
        said.text
            .contains("in 2 of 512 a token of it reads 1.0 MiB of weights instead of 10.0 MiB")
    );
    assert_eq!(said.llama_cpp.as_deref(), Some("-b 2048 -ub 512"));
    // Twenty short prompts, each whole; and a prompt that fits.
    assert_eq!(prompt(100, 20).topics(), [Topic::Nothing]);
    assert_eq!(prompt(30, 1).topics(), [Topic::Nothing]);
}

#[test]
fn threads_are_named_only_where_their_number_is_surely_wrong() {
    let threads = |threads, processors| {
        Case::with(|case| {
            case.setup.threads = Some(threads);
            case.setup.processors = Some(processors);
        })
    };
    let said = threads(1, 8).only(Topic::Threads);
    assert_eq!(
        said.text,
        "more threads: 1 thread computed, and there are 8 processors"
    );
    assert_eq!(said.llama_cpp.as_deref(), Some("-t 8"));
    let said = threads(16, 8).only(Topic::Threads);
    assert!(
        said.text.starts_with("fewer threads: 16 threads"),
        "{}",
        said.text
    );
    // One for each core of two processors.
    assert_eq!(threads(4, 8).topics(), [Topic::Nothing]);
    assert_eq!(threads(8, 8).topics(), [Topic::Nothing]);
    assert_eq!(threads(0, 8).topics(), [Topic::Nothing]);
}
