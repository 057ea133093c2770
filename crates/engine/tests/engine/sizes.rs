//! What a log weighs, and what recording takes of memory.

use engine::{
    context::{Context, ContextProps, FlashAttention},
    generate::generate,
    model::Model,
    recording::Recording,
};
use gguf::write::Split;
use synth::Recipe;
use trace::{expand::for_each_route, format::Phase, read::StreamReader};

use crate::{
    children::in_own_process,
    fixtures::{Recorded, alone, greedy, load, prompt, record, shipped, tiny, write},
    oracle::EXECUTED,
};

const BYTES_PER_NODE: u64 = 24;
const BYTES_PER_EXPERT: u64 = 8;

#[test]
fn a_decode_stays_within_the_bytes_per_node() {
    check_size(
        "shakespeare-dense",
        &load(&shipped("shakespeare-dense.gguf")),
    );
    check_size("shakespeare-moe", &load(&shipped("shakespeare-moe.gguf")));
    for (preset, layers) in [
        ("llama-2-7b", 16),
        ("qwen3-30b-a3b", 3),
        ("gpt-oss-20b", 4),
        ("gemma-3-1b", 6),
        ("deepseek-v2-lite", 3),
        ("mamba-130m", 4),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let recipe = Recipe {
            layers: Some(layers),
            ..tiny(preset)
        };
        check_size(
            preset,
            &load(&write(&recipe, directory.path(), Split::Whole)),
        );
    }
}

fn check_size(label: &str, model: &Model) {
    let _alone = alone();
    for flash_attention in [FlashAttention::On, FlashAttention::Off] {
        let props = ContextProps {
            threads: 2,
            flash_attention,
            ..ContextProps::default()
        };
        let run = record(model, props, &greedy(vec![prompt(model, 5)], 64));
        let mut experts = 0;
        for evaluation in &run.evaluations {
            for_each_route(run.template(evaluation), evaluation, |_| experts += 1);
        }
        let files: u64 = std::fs::read_dir(run.directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().metadata().unwrap().len())
            .sum();
        let steps = run.steps();
        let for_nodes = files.saturating_sub(experts * BYTES_PER_EXPERT);
        println!(
            "{label}, flash {flash_attention:?}: {} evaluations, {} templates, {steps} nodes, {experts} experts, \
             {files} bytes on disk ({} of records): {:.2} a node",
            run.evaluations.len(),
            run.reader.definitions.templates.len(),
            run.log_bytes,
            for_nodes as f64 / steps as f64,
        );
        assert!(
            for_nodes <= steps * BYTES_PER_NODE,
            "{label} {flash_attention:?}"
        );
    }
}

#[test]
fn memory_of_the_recorder_is_flat() {
    in_own_process("sizes::memory_of_the_recorder_is_flat", &[], || {
        const ROUND: usize = 50;
        const TOKENS: usize = 2000;
        const MEGABYTE: i64 = 1 << 20;
        let model = load(&shipped("shakespeare-dense.gguf"));
        let directory = tempfile::tempdir().unwrap();
        let recording =
            Recording::start(&model, directory.path(), Box::new(|e| panic!("{e}"))).unwrap();
        let mut context = Context::new(
            &model,
            ContextProps {
                threads: 1,
                ..ContextProps::default()
            },
        )
        .unwrap();
        let mut recorded = Recorded {
            model: &model,
            recording,
            phase: Phase::Prompt,
        };
        let mut early = None;
        for tokens in (ROUND..=TOKENS).step_by(ROUND) {
            context.clear();
            generate(
                &model,
                &mut context,
                &greedy(vec![prompt(&model, 3)], ROUND),
                &mut recorded,
            )
            .unwrap();
            // The oracle's list of nodes is not the recorder's memory.
            EXECUTED.take();
            if tokens == 200 {
                early = Some(Resident::now());
            }
        }
        let (early, late) = (early.unwrap(), Resident::now());
        let log_bytes = recorded.recording.log_bytes();
        println!(
            "after 200 tokens: {early:?}\nafter {TOKENS} tokens: {late:?}, log {log_bytes} bytes"
        );
        assert!(late.anon_bytes - early.anon_bytes < 16 * MEGABYTE);
        assert!(late.file_bytes - early.file_bytes < 16 * MEGABYTE);
        assert_eq!(recorded.recording.finish().unwrap().evals_lost, 0);
        // The log itself is all there.
        let mut reader = StreamReader::open(directory.path(), 0).unwrap();
        let evaluations = std::iter::from_fn(|| reader.next_event().unwrap()).count();
        assert_eq!(evaluations, TOKENS);
    });
}

/// Memory of this process: its own (and what it shares through no file), and
/// pages of mapped files (the model, the segments of the log).
#[derive(Debug)]
struct Resident {
    anon_bytes: i64,
    file_bytes: i64,
}

impl Resident {
    fn now() -> Resident {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let of = |field: &str| {
            let line = status.lines().find(|line| line.starts_with(field)).unwrap();
            line.split_whitespace()
                .nth(1)
                .unwrap()
                .parse::<i64>()
                .unwrap()
                << 10
        };
        Resident {
            anon_bytes: of("RssAnon:") + of("RssShmem:"),
            file_bytes: of("RssFile:"),
        }
    }
}

#[test]
fn a_graph_rebuilt_every_token_is_still_one_template() {
    // llama.cpp reads the variable once.
    let variables = [("LLAMA_GRAPH_REUSE_DISABLE", "1")];
    in_own_process(
        "sizes::a_graph_rebuilt_every_token_is_still_one_template",
        &variables,
        || {
            for name in ["shakespeare-dense.gguf", "shakespeare-moe.gguf"] {
                let model = load(&shipped(name));
                let run = record(
                    &model,
                    ContextProps::default(),
                    &greedy(vec![prompt(&model, 5)], 40),
                );
                let templates = run.reader.definitions.templates.len();
                println!(
                    "{name}: {} evaluations, {templates} templates",
                    run.evaluations.len()
                );
                assert_eq!(run.evaluations.len(), 40);
                // The prompt's, and that of a token.
                assert_eq!(templates, 2);
                assert!(run.evaluations.iter().all(|e| e.flags == 0));
            }
        },
    );
}
