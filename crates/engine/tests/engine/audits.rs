//! Audits against the MMU: on each model of a covering set, the pages that the
//! trace claims are the pages that were touched.
//!
//! The cases cover, not multiply: prompt, sequences, micro-batch, split and flash
//! attention meet each other in every pair of values that makes sense, and most
//! models and types meet each of those values.

use std::path::{Path, PathBuf};

use audit::pages::PAGE_BYTES;
use engine::{
    audit::{Grain, touch, watch},
    context::{ContextProps, FlashAttention},
};
use gguf::{GgmlType, write::Split};
use reader::audit::{Files, Findings, compare};
use synth::{
    Recipe,
    shape::{Experts, Mla, Ssm},
};

use crate::fixtures::{alone, greedy, load, prompt, resized, shipped, write};

use FlashAttention::{Off, On};
use GgmlType as T;

const GENERATED: usize = 3;
/// Larger than any prompt: a prompt is one evaluation.
const ONE: usize = 512;

struct Case {
    model: &'static str,
    ggml_type: Option<GgmlType>,
    split: Split,
    prompt: usize,
    sequences: usize,
    micro_batch: usize,
    flash_attention: FlashAttention,
}

const fn case(
    model: &'static str,
    ggml_type: Option<GgmlType>,
    split: Split,
    prompt: usize,
    sequences: usize,
    micro_batch: usize,
    flash_attention: FlashAttention,
) -> Case {
    Case {
        model,
        ggml_type,
        split,
        prompt,
        sequences,
        micro_batch,
        flash_attention,
    }
}

const W: Split = Split::Whole;
const S: Split = Split::Tensors(7);
const DENSE: &str = "shakespeare-dense";
const MOE: &str = "shakespeare-moe";
const LLAMA: &str = "llama-3-8b";
const TIED: &str = "llama-3.2-1b";
const GEMMA: &str = "gemma-3-1b";
const GEMMA2: &str = "gemma-2-2b";
const QWEN3: &str = "qwen3-0.6b";
const PHI: &str = "phi-3-mini";
const MIXTRAL: &str = "mixtral-8x7b";
const QWEN: &str = "qwen3-30b-a3b";
const QWEN2: &str = "qwen1.5-moe-a2.7b";
const GPT_OSS: &str = "gpt-oss-20b";
const DEEPSEEK: &str = "deepseek-v2-lite";
const MAMBA: &str = "mamba-130m";

#[rustfmt::skip]
const CASES: &[Case] = &[
    //   model     type           split prompt seqs ubatch flash
    case(DENSE,    None,          W,      1,   1,   ONE,   On),
    case(DENSE,    None,          W,     17,   2,   ONE,   Off),
    case(DENSE,    None,          W,    300,   1,   64,    On),
    case(MOE,      None,          W,      1,   2,   ONE,   Off),
    case(MOE,      None,          W,     17,   1,   8,     On),
    case(MOE,      None,          W,    300,   1,   ONE,   Off),
    case(LLAMA,    Some(T::F32),  W,     17,   1,   ONE,   Off),
    case(LLAMA,    Some(T::F16),  W,      1,   1,   ONE,   On),
    case(LLAMA,    Some(T::Q8_0), S,    300,   2,   128,   On),
    case(LLAMA,    Some(T::Q4_0), W,     17,   2,   8,     Off),
    case(LLAMA,    Some(T::Q4_K), W,    300,   1,   ONE,   Off),
    case(LLAMA,    Some(T::Q6_K), S,      1,   2,   ONE,   On),
    case(LLAMA,    Some(T::BF16), W,    300,   1,   100,   On),
    case(LLAMA,    Some(T::MXFP4),W,     17,   1,   ONE,   On),
    case(LLAMA,    Some(T::MXFP4),S,    300,   2,   64,    Off),
    case(TIED,     Some(T::Q8_0), W,      1,   1,   ONE,   Off),
    case(TIED,     Some(T::F16),  S,     17,   2,   8,     On),
    case(TIED,     Some(T::Q4_K), W,    300,   1,   64,    On),
    case(TIED,     Some(T::Q4_0), S,    300,   2,   ONE,   Off),
    case(GEMMA,    Some(T::Q8_0), W,    300,   1,   64,    On),
    case(GEMMA,    Some(T::Q4_0), W,     17,   2,   ONE,   Off),
    case(GEMMA,    Some(T::Q6_K), S,      1,   1,   ONE,   On),
    case(GEMMA2,   Some(T::Q8_0), W,     17,   1,   8,     Off),
    case(QWEN3,    Some(T::Q5_K), W,     17,   1,   ONE,   On),
    case(PHI,      Some(T::Q4_K), S,     17,   1,   8,     On),
    case(PHI,      Some(T::BF16), W,    300,   2,   ONE,   Off),
    case(MIXTRAL,  Some(T::Q4_0), S,    300,   1,   64,    On),
    case(MIXTRAL,  Some(T::Q4_K), W,      1,   2,   ONE,   Off),
    case(QWEN,     Some(T::Q8_0), W,      1,   1,   ONE,   On),
    case(QWEN,     Some(T::Q4_K), S,     17,   2,   8,     Off),
    case(QWEN,     Some(T::F16),  W,    300,   1,   64,    Off),
    case(QWEN,     Some(T::Q6_K), W,     17,   1,   ONE,   On),
    case(QWEN2,    Some(T::Q8_0), W,     17,   2,   ONE,   On),
    case(GPT_OSS,  None,          W,      1,   1,   ONE,   Off),
    case(GPT_OSS,  None,          S,    300,   2,   64,    On),
    case(GPT_OSS,  Some(T::Q8_0), W,     17,   1,   8,     Off),
    case(GPT_OSS,  Some(T::F16),  W,     17,   2,   ONE,   On),
    case(DEEPSEEK, Some(T::Q8_0), W,    300,   1,   64,    On),
    case(DEEPSEEK, Some(T::Q4_0), S,      1,   2,   ONE,   Off),
    case(DEEPSEEK, Some(T::Q6_K), W,     17,   1,   8,     Off),
    case(MAMBA,    Some(T::Q8_0), W,     17,   2,   8,     On),
    case(MAMBA,    Some(T::F16),  W,    300,   1,   ONE,   Off),
];

#[test]
fn each_evaluation_claims_the_pages_that_the_mmu_saw() {
    for case in CASES {
        audit(case, Grain::Evaluation, 2);
    }
}

#[test]
fn each_node_claims_the_pages_that_the_mmu_saw() {
    #[rustfmt::skip]
    let cases = [
        case(DENSE,    None,          W,  17, 1, ONE, Off),
        case(MOE,      None,          W,  17, 2, 8,   On),
        case(TIED,     Some(T::Q4_K), S,   5, 1, ONE, On),
        case(GEMMA,    Some(T::Q8_0), W,  17, 1, ONE, Off),
        case(QWEN,     Some(T::Q4_0), W,   5, 2, ONE, Off),
        case(GPT_OSS,  None,          W,  17, 1, ONE, On),
        case(DEEPSEEK, Some(T::Q8_0), S,  17, 1, 8,   Off),
        case(MAMBA,    Some(T::F16),  W,  17, 1, 8,   On),
    ];
    for case in &cases {
        audit(case, Grain::Node, 1);
    }
}

#[test]
fn pages_that_another_prompt_touched_are_told_apart() {
    let _alone = alone();
    let files = tempfile::tempdir().unwrap();
    let model = load(&make(&case(MOE, None, W, 1, 1, ONE, On), files.path()));
    let run = |prompt: Vec<i32>| {
        let logs = tempfile::tempdir().unwrap();
        let what = greedy(vec![prompt], GENERATED);
        let touched = touch(
            &model,
            ContextProps::default(),
            &what,
            Grain::Evaluation,
            logs.path(),
            &mut |_| {},
        )
        .unwrap();
        (logs, touched)
    };
    let (logs, touched) = run(vec![1, 310, 320]);
    let (_, touched_by_other) = run(vec![1, 340, 351]);
    let own = compare(
        &Files::of_model(&model.gguf),
        logs.path(),
        &[(0, touched)].into(),
    )
    .unwrap();
    assert_eq!((own.total.recall(), own.total.precision()), (1.0, 1.0));
    assert_eq!(own.discrepancies, []);
    let other = compare(
        &Files::of_model(&model.gguf),
        logs.path(),
        &[(0, touched_by_other)].into(),
    )
    .unwrap();
    println!(
        "own {:?}, other {:?}, {} discrepancies",
        own.total,
        other.total,
        other.discrepancies.len()
    );
    assert!(
        other.total.recall() < 0.99 && other.total.precision() < 0.99,
        "{:?}",
        other.total
    );
    let missed = other
        .discrepancies
        .iter()
        .filter(|d| d.claimed_by.is_empty())
        .count() as u64;
    assert_eq!(missed, other.total.touched - other.total.both);
    assert!(
        other
            .discrepancies
            .iter()
            .any(|d| d.tensors.iter().any(|t| t.contains("exps")))
    );
}

#[test]
fn the_watch_sees_every_page_that_is_read_and_no_other() {
    let _alone = alone();
    let files = tempfile::tempdir().unwrap();
    let path = make(&case(DENSE, None, W, 1, 1, ONE, On), files.path());
    let model = load(&path);
    let maps = support::proc::own_maps().unwrap();
    let path = std::fs::canonicalize(&path).unwrap();
    let mapping = support::proc::mappings(&maps)
        .find(|mapping| mapping.path == path.to_str().unwrap().as_bytes())
        .unwrap();
    let start = mapping.start as usize;
    let first_page = mapping.file_offset / PAGE_BYTES;
    let mut watch = watch(&model).unwrap();
    let read = |page: u64| {
        // SAFETY: inside the model's mapping, which has more than 300 pages.
        unsafe { ((start + (page * PAGE_BYTES) as usize + 77) as *const u8).read_volatile() }
    };
    for pages in [vec![], vec![0], vec![3, 4, 5, 64, 299]] {
        watch.take_away();
        for &page in &pages {
            read(page);
        }
        let seen: Vec<u64> = watch.give_back().iter().collect();
        assert_eq!(
            seen,
            pages
                .iter()
                .map(|page| first_page + page)
                .collect::<Vec<_>>()
        );
    }
    watch.take_away();
    read(10);
    assert_eq!(watch.take_away_again(), [first_page + 10]);
    read(10);
    read(11);
    assert_eq!(watch.take_away_again(), [first_page + 10, first_page + 11]);
}

fn audit(case: &Case, grain: Grain, threads: usize) {
    let _alone = alone();
    // A file of its own: the audit watches every mapping of the model's file in
    // this process, and other tests map the shipped ones.
    let files = tempfile::tempdir().unwrap();
    let path = make(case, files.path());
    let model = load(&path);
    let logs = tempfile::tempdir().unwrap();
    let props = ContextProps {
        threads,
        context: 1024,
        micro_batch: case.micro_batch,
        sequences: case.sequences,
        flash_attention: case.flash_attention,
        ..ContextProps::default()
    };
    // Sequences of different lengths and tokens.
    let prompts = (0..case.sequences)
        .map(|s| {
            prompt(&model, (case.prompt - s * case.prompt / 3).max(1))
                .into_iter()
                .rev()
                .collect()
        })
        .collect();
    let touched = touch(
        &model,
        props,
        &greedy(prompts, GENERATED),
        grain,
        logs.path(),
        &mut |_| {},
    )
    .unwrap();
    let evaluations = touched.len();
    let findings = compare(
        &Files::of_model(&model.gguf),
        logs.path(),
        &[(0, touched)].into(),
    )
    .unwrap();
    let label = format!(
        "{} {} {:?} prompt {} x{} ubatch {} flash {:?} {grain:?}",
        case.model,
        case.ggml_type.map_or("as published", |t| t.name()),
        case.split,
        case.prompt,
        case.sequences,
        case.micro_batch,
        case.flash_attention,
    );
    report(&label, &findings, model.gguf.len_bytes());
    assert_eq!(findings.flawed_evaluations, 0, "{label}");
    assert_eq!(findings.evaluations as usize, evaluations, "{label}");
    assert!(findings.evaluations as usize >= GENERATED, "{label}");
    for (number, tally) in findings.by_evaluation.iter().enumerate() {
        assert!(tally.touched > 0, "{label}: evaluation {number}");
        assert_eq!(
            tally.both, tally.touched,
            "{label}: recall of evaluation {number}"
        );
        assert!(
            tally.precision() >= 0.999,
            "{label}: precision of evaluation {number}: {tally:?}"
        );
    }
}

fn report(label: &str, findings: &Findings, file_bytes: u64) {
    let worst = findings
        .by_evaluation
        .iter()
        .map(|t| t.precision())
        .fold(1.0, f64::min);
    println!(
        "{label}: {} MB, {} evaluations, {} pages touched, recall {:.4} %, precision {:.4} % (worst {:.4} %)",
        file_bytes >> 20,
        findings.evaluations,
        findings.total.touched,
        findings.total.recall() * 100.0,
        findings.total.precision() * 100.0,
        worst * 100.0,
    );
    for discrepancy in findings.discrepancies.iter().take(5) {
        println!("  {discrepancy:?}");
    }
}

/// The model of a case, in `directory`.
fn make(case: &Case, directory: &Path) -> PathBuf {
    if [DENSE, MOE].contains(&case.model) {
        let path = directory.join("model.gguf");
        std::fs::copy(shipped(&format!("{}.gguf", case.model)), &path).unwrap();
        return path;
    }
    write(
        &Recipe {
            ggml_type: case.ggml_type,
            ..larger(case.model)
        },
        directory,
        case.split,
    )
}

/// Wide enough that few pages are shared by tensors, so that precision means
/// something; small enough to audit dozens.
fn larger(preset: &str) -> Recipe {
    resized(preset, |shape| {
        shape.vocab = 2048;
        shape.layers = 2;
        shape.embd = 512;
        shape.ff = 1536;
        match preset {
            GEMMA => {
                // The sixth layer is the first that is not local.
                (shape.layers, shape.embd, shape.ff) = (6, 576, 1024);
                (shape.heads, shape.kv_heads, shape.head_dim) = (4, 1, 128);
            }
            MAMBA => {
                shape.ff = 0;
                shape.layers = 3;
                shape.ssm = Some(Ssm {
                    conv: 4,
                    inner: 1024,
                    state: 16,
                    dt_rank: 32,
                });
            }
            DEEPSEEK => {
                (shape.layers, shape.ff) = (3, 1344);
                (shape.heads, shape.kv_heads, shape.head_dim) = (4, 4, 96);
                shape.mla = Some(Mla {
                    kv_rank: 256,
                    rope_dim: 32,
                    nope_dim: 64,
                    value_dim: 64,
                });
                shape.experts = Some(Experts {
                    count: 16,
                    used: 6,
                    ff: 256,
                    shared_ff: 512,
                    leading_dense: 1,
                });
            }
            _ => {
                (shape.heads, shape.kv_heads, shape.head_dim) = (8, 2, 64);
            }
        }
        match preset {
            PHI | QWEN2 => shape.kv_heads = shape.heads,
            GPT_OSS => (shape.embd, shape.ff) = (576, 576),
            _ => {}
        }
        if let Some(experts) = &mut shape.experts {
            match preset {
                MIXTRAL => (experts.count, experts.ff, shape.ff) = (8, 768, 768),
                QWEN => (experts.count, experts.used, experts.ff) = (32, 8, 256),
                QWEN2 => (experts.count, experts.ff, experts.shared_ff) = (12, 256, 512),
                GPT_OSS => (experts.count, experts.ff) = (16, 576),
                _ => {}
            }
        }
    })
}
