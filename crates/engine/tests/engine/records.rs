//! What is recorded is what was executed.

use std::collections::BTreeMap;

use engine::{
    context::{Context, ContextProps, FlashAttention},
    generate::generate,
    model::{Model, Repack},
    recording::Recording,
};
use gguf::{GgmlType, write::Split};
use synth::Recipe;
use trace::{
    expand::for_each_access,
    format::Phase,
    read::Evaluation,
    template::{CaptureKind, Direction, TensorKind},
};

use crate::{
    children::in_own_process,
    fixtures::{
        Plain, Recorded, Run, alone, greedy, load, prompt, read_back, record, shipped, tiny, write,
    },
    oracle::EXECUTED,
};

#[test]
fn every_executed_node_is_a_step_in_the_order_of_execution() {
    let _alone = alone();
    for name in ["shakespeare-dense.gguf", "shakespeare-moe.gguf"] {
        let model = load(&shipped(name));
        for flash_attention in [FlashAttention::On, FlashAttention::Off] {
            let props = ContextProps {
                threads: 2,
                flash_attention,
                ..ContextProps::default()
            };
            EXECUTED.take();
            let run = record(&model, props, &greedy(vec![prompt(&model, 17)], 5));
            assert!(run.steps() > 100);
            run.assert_executed(&EXECUTED.take(), &format!("{name} {flash_attention:?}"));
        }
    }
}

#[test]
fn output_is_bit_identical_with_recording_on_and_off() {
    let _alone = alone();
    for name in ["shakespeare-dense.gguf", "shakespeare-moe.gguf"] {
        let model = load(&shipped(name));
        let what = greedy(vec![prompt(&model, 17)], 24);
        let props = ContextProps {
            threads: 2,
            ..ContextProps::default()
        };
        let mut context = Context::new(&model, props.clone()).unwrap();
        let plain = generate(&model, &mut context, &what, &mut Plain).unwrap();
        let run = record(&model, props, &what);
        assert_eq!(plain.tokens, run.generated.tokens);
        let bits = |logits: &[Vec<f32>]| {
            logits
                .iter()
                .flatten()
                .map(|l| l.to_bits())
                .collect::<Vec<_>>()
        };
        assert!(!plain.final_logits[0].is_empty());
        assert_eq!(bits(&plain.final_logits), bits(&run.generated.final_logits));
    }
}

#[test]
fn tokens_positions_and_sequences_are_those_of_the_batch() {
    let _alone = alone();
    let model = load(&shipped("shakespeare-moe.gguf"));
    let prompts = vec![prompt(&model, 9), prompt(&model, 5)];
    let props = ContextProps {
        threads: 2,
        sequences: 2,
        ..ContextProps::default()
    };
    let run = record(&model, props, &greedy(prompts.clone(), 4));
    let first = &run.evaluations[0];
    let template = &run.reader.definitions.templates[first.template as usize];
    let expected: Vec<i64> = prompts.iter().flatten().map(|&t| i64::from(t)).collect();
    assert_eq!(first.phase, Phase::Prompt);
    assert_eq!(first.first_of(template, CaptureKind::Tokens), expected);
    let positions: Vec<i64> = (0..9).chain(0..5).collect();
    assert_eq!(first.first_of(template, CaptureKind::Positions), positions);
    assert_eq!(
        first.sequences,
        [[0; 9].as_slice(), &[0; 5].map(|_| 1)].concat()
    );
    let second = &run.evaluations[1];
    assert_eq!(second.phase, Phase::Generate);
    assert_eq!(second.sequences, [0, 1]);
    let text = &run.reader.definitions.tokens[&(run.generated.tokens[0][0] as u32)];
    assert!(!text.is_empty());
}

#[test]
fn rows_written_and_read_are_those_of_tokens_and_positions() {
    let _alone = alone();
    for name in ["shakespeare-dense.gguf", "shakespeare-moe.gguf"] {
        let model = load(&shipped(name));
        for (flash_attention, threads) in [(FlashAttention::On, 2), (FlashAttention::Off, 1)] {
            let label = format!("{name} {flash_attention:?}");
            let props = ContextProps {
                threads,
                flash_attention,
                micro_batch: 64,
                ..ContextProps::default()
            };
            // Past 256 tokens: the cache is read in steps of 256 cells.
            let run = record(&model, props, &greedy(vec![prompt(&model, 249)], 16));
            let mut next = 0;
            let mut extents = Vec::new();
            for evaluation in &run.evaluations {
                let tokens = evaluation.first_of(run.template(evaluation), CaptureKind::Tokens);
                let positions: Vec<u64> = (next..next + tokens.len() as u64).collect();
                next += tokens.len() as u64;
                let seen = Rows::of(&run, evaluation);
                let wanted: Vec<u64> = tokens.iter().map(|&t| t as u64).collect();
                assert_eq!(seen.embedding, wanted, "{label}: rows of the embedding");
                assert_eq!(seen.keys_written.len(), seen.layers, "{label}");
                assert_eq!(seen.values_written.len(), seen.layers, "{label}");
                for cells in seen
                    .keys_written
                    .values()
                    .chain(seen.values_written.values())
                {
                    assert_eq!(cells, &positions, "{label}: cells written");
                }
                let extent = seen.cells_read.iter().copied().max().unwrap();
                assert!(
                    seen.cells_read.iter().all(|&cells| cells == extent),
                    "{label}: {:?}",
                    seen.cells_read
                );
                assert!(
                    extent >= next,
                    "{label}: {extent} cells read at position {next}"
                );
                extents.push(extent);
            }
            println!("{label}: cells read {extents:?}");
            assert!(extents.is_sorted(), "{label}");
            assert!(extents.last() > extents.first(), "{label}");
        }
    }
}

/// What an evaluation touches of embedding and cache, in rows and cells.
#[derive(Default)]
struct Rows {
    embedding: Vec<u64>,
    layers: usize,
    /// By layer.
    keys_written: BTreeMap<u32, Vec<u64>>,
    values_written: BTreeMap<u32, Vec<u64>>,
    /// Of each read of a cache, the cells.
    cells_read: Vec<u64>,
}

impl Rows {
    fn of(run: &Run, evaluation: &Evaluation) -> Rows {
        const F16_BYTES: u64 = 2;
        let definitions = &run.reader.definitions;
        let template = run.template(evaluation);
        let mut rows = Rows::default();
        for step in 0..template.steps.len() {
            let layer = template.steps[step].layer;
            for_each_access(template, evaluation, step, |access| {
                let tensor = &definitions.tensors[access.def.tensor as usize];
                let name = definitions.name(tensor.name);
                let is_write = access.def.direction == Direction::Write;
                let op = definitions.text(template.steps[step].op);
                // ne[0] numbers a cell, ne[1] cells: the K cache and, with flash
                // attention, the V cache. Without it V is stored transposed.
                let cell_bytes = tensor.ne[0] * F16_BYTES;
                let cells = tensor.ne[1];
                if name == "token_embd.weight" && op == "GET_ROWS" {
                    let row_bytes = tensor.size_bytes / tensor.ne[1];
                    assert_eq!(
                        (access.region.offset % row_bytes, access.region.run_bytes),
                        (0, row_bytes)
                    );
                    rows.embedding.push(access.region.offset / row_bytes);
                } else if name.starts_with("cache_k") && is_write {
                    assert_eq!(access.region.run_bytes, cell_bytes);
                    rows.keys_written
                        .entry(layer.unwrap())
                        .or_default()
                        .push(access.region.offset / cell_bytes);
                } else if name.starts_with("cache_v") && is_write {
                    let written = rows.values_written.entry(layer.unwrap()).or_default();
                    if access.region.run_bytes == cell_bytes && access.region.dims.is_empty() {
                        written.push(access.region.offset / cell_bytes);
                    } else {
                        // One number in each of ne[0] rows of `cells` numbers.
                        access.region.for_each_run(|offset, bytes| {
                            assert_eq!(bytes % F16_BYTES, 0);
                            let first = offset / F16_BYTES % cells;
                            written.extend((0..bytes / F16_BYTES).map(|i| first + i));
                        });
                        written.sort_unstable();
                        written.dedup();
                    }
                } else if name.starts_with("cache_k") {
                    let end = access.region.end().unwrap();
                    rows.cells_read.push(end.div_ceil(cell_bytes));
                    rows.layers += 1;
                }
            });
        }
        rows
    }
}

#[test]
fn sequences_of_different_lengths_write_cells_of_their_own() {
    let _alone = alone();
    let model = load(&shipped("shakespeare-dense.gguf"));
    let props = ContextProps {
        threads: 2,
        sequences: 2,
        micro_batch: 8,
        ..ContextProps::default()
    };
    let run = record(
        &model,
        props,
        &greedy(vec![prompt(&model, 19), prompt(&model, 6)], 7),
    );
    let mut cells = Vec::new();
    let mut tokens_of = [0, 0];
    for evaluation in &run.evaluations {
        assert_eq!(evaluation.flags, 0);
        cells.extend_from_slice(&Rows::of(&run, evaluation).keys_written[&0]);
        for &sequence in &evaluation.sequences {
            tokens_of[sequence as usize] += 1;
        }
    }
    // The last token of each is generated, but not computed.
    assert_eq!(tokens_of, [19 + 6, 6 + 6]);
    cells.sort_unstable();
    assert_eq!(cells, (0..19 + 6 + 6 + 6).collect::<Vec<u64>>());
}

#[test]
fn two_contexts_in_turn_are_recorded_in_one_log() {
    let _alone = alone();
    let model = load(&shipped("shakespeare-moe.gguf"));
    let what = [
        greedy(vec![prompt(&model, 17)], 6),
        greedy(vec![prompt(&model, 5)], 6),
    ];
    let props = [
        ContextProps {
            threads: 2,
            flash_attention: FlashAttention::On,
            ..ContextProps::default()
        },
        ContextProps {
            threads: 1,
            flash_attention: FlashAttention::Off,
            ..ContextProps::default()
        },
    ];
    let expected: Vec<_> = (0..2)
        .map(|i| record(&model, props[i].clone(), &what[i]).generated)
        .collect();

    let directory = tempfile::tempdir().unwrap();
    let recording =
        Recording::start(&model, directory.path(), Box::new(|e| panic!("{e}"))).unwrap();
    let mut recorded = Recorded {
        model: &model,
        recording,
        phase: Phase::Prompt,
    };
    let mut contexts = props.map(|props| Context::new(&model, props).unwrap());
    EXECUTED.take();
    for round in 0..3 {
        for (i, context) in contexts.iter_mut().enumerate() {
            context.clear();
            let generated = generate(&model, context, &what[i], &mut recorded).unwrap();
            assert_eq!(generated, expected[i], "round {round}, context {i}");
        }
    }
    let executed = EXECUTED.take();
    let log_bytes = recorded.recording.log_bytes();
    let status = recorded.recording.finish().unwrap();
    assert_eq!((status.evals_lost, status.tick_mismatches), (0, 0));
    let run = read_back(
        directory,
        expected[0].clone(),
        log_bytes,
        status.evals_committed,
    );
    assert_eq!(run.evaluations.len(), 3 * 2 * 6);
    run.assert_executed(&executed, "two contexts");
    let numbers: Vec<u64> = run.evaluations.iter().map(|e| e.context).collect();
    for (i, chunk) in numbers.chunks(6).enumerate() {
        let expected = contexts[i % 2].number();
        assert!(
            chunk.iter().all(|&number| number == expected),
            "round and context {i}"
        );
    }
    assert_ne!(contexts[0].number(), contexts[1].number());
    // A prompt and a token of each context, however often they come.
    assert_eq!(run.reader.definitions.templates.len(), 4);
}

#[test]
fn two_threads_record_two_contexts_at_once() {
    let _alone = alone();
    let model = load(&shipped("shakespeare-dense.gguf"));
    let what = greedy(vec![prompt(&model, 17)], 8);
    let props = ContextProps {
        threads: 1,
        ..ContextProps::default()
    };
    let expected = record(&model, props.clone(), &what).generated;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let model = load(&shipped("shakespeare-dense.gguf"));
                EXECUTED.take();
                let run = record(&model, props.clone(), &what);
                run.assert_executed(&EXECUTED.take(), "a thread of two");
                assert_eq!(run.generated, expected);
            });
        }
    });
}

#[test]
fn without_fusion_every_norm_is_a_step_of_its_own() {
    // ggml reads the variable once.
    let variables = [("GGML_CPU_DISABLE_FUSION", "1")];
    let test = "records::without_fusion_every_norm_is_a_step_of_its_own";
    in_own_process(test, &variables, || {
        let model = load(&shipped("shakespeare-dense.gguf"));
        EXECUTED.take();
        let run = record(
            &model,
            ContextProps::default(),
            &greedy(vec![prompt(&model, 5)], 4),
        );
        run.assert_executed(&EXECUTED.take(), "no fusion");
        let ops: Vec<String> = run
            .template(&run.evaluations[0])
            .steps
            .iter()
            .map(|s| run.reader.definitions.text(s.op))
            .collect();
        assert!(
            ops.iter().any(|op| op == "RMS_NORM") && !ops.iter().any(|op| op == "RMS_NORM+MUL")
        );
        assert!(run.evaluations.iter().all(|e| e.flags == 0));
    });
}

#[test]
fn repacked_weights_say_where_they_are() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    for preset in ["llama-3-8b", "mixtral-8x7b"] {
        let recipe = Recipe {
            ggml_type: Some(GgmlType::Q4_0),
            ..tiny(preset)
        };
        let model =
            Model::load(&write(&recipe, directory.path(), Split::Whole), Repack::On).unwrap();
        EXECUTED.take();
        let run = record(
            &model,
            ContextProps::default(),
            &greedy(vec![prompt(&model, 17)], 4),
        );
        run.assert_executed(&EXECUTED.take(), preset);
        let definitions = &run.reader.definitions;
        let mut buffers: BTreeMap<String, u64> = BTreeMap::new();
        for tensor in definitions
            .tensors
            .iter()
            .filter(|t| t.kind == TensorKind::Weight)
        {
            assert!(tensor.place.is_some(), "{}", definitions.name(tensor.name));
            *buffers
                .entry(definitions.text(tensor.buffer_type))
                .or_default() += 1;
        }
        println!("{preset}: weights by buffer: {buffers:?}");
        assert!(run.evaluations.iter().all(|e| e.flags == 0));
        assert!(buffers.contains_key("CPU_Mapped"));
    }
}
