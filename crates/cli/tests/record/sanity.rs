//! Four sanity checks, and a few more, on both models.

use std::collections::{BTreeMap, BTreeSet};

use rundir::{Condition, metadata::RunStatus};
use trace::{
    expand::{count_accesses, for_each_access, for_each_route},
    format::Phase,
    template::TensorKind,
};

use crate::fixture::*;

const PROMPT: &str = "To be, or not to be";
const TOKENS: usize = 12;

fn sample(model: &std::path::Path) -> (String, String, Trace) {
    let folder = tempfile::tempdir().unwrap();
    let (output, trace) = recorded(
        folder.path(),
        model,
        &["-p", PROMPT, "-n", "12", "--ignore-eos"],
    );
    (stdout(&output), stderr(&output), trace)
}

#[test]
fn text_is_on_stdout_and_one_closing_line_on_stderr() {
    let (text, talk, trace) = sample(&dense());
    let generated: Vec<u8> = trace.evaluations[1..]
        .iter()
        .flat_map(|e| trace.text_of(e))
        .collect();
    let generated = String::from_utf8(generated).unwrap();
    // The last token was printed, and never evaluated.
    assert!(
        text.starts_with(&generated) && text.len() > generated.len(),
        "{text:?} {generated:?}"
    );
    assert_eq!(talk.lines().count(), 1, "{talk}");
    let metadata = trace.run.metadata().unwrap();
    let statistics = metadata.statistics.as_ref().unwrap();
    assert!(talk.starts_with("tensorscope: "), "{talk}");
    let prompt_tokens = statistics.prompt_tokens;
    assert!(
        talk.contains(&format!(
            "{prompt_tokens} prompt and {TOKENS} generated tokens, "
        )),
        "{talk}"
    );
    assert!(
        talk.contains(" accesses, 0 lost, ") && talk.trim_end().ends_with(" of log, in RUN-0"),
        "{talk}"
    );
}

#[test]
fn metadata_says_what_was_run_and_with_what_result() {
    let folder = tempfile::tempdir().unwrap();
    let (_, trace) = recorded(
        folder.path(),
        &moe(),
        &["-p", PROMPT, "-n", "12", "--ignore-eos"],
    );
    let metadata = trace.run.metadata().unwrap();
    assert_eq!(trace.run.condition(), &Condition::Complete);
    assert_eq!(trace.run.warning(), None);
    assert_eq!(metadata.status, RunStatus::Complete);
    assert_eq!(metadata.prompts, [PROMPT]);
    assert!(metadata.command_line.iter().any(|arg| arg == PROMPT));
    let model = metadata.model.as_ref().unwrap();
    assert!(model.files[0].path.ends_with("shakespeare-moe.gguf"));
    assert_eq!(model.hyperparameters.n_expert, 8);
    let settings = metadata.settings.as_ref().unwrap();
    assert_eq!(
        (settings.threads, settings.generate_tokens, settings.repack),
        (1, Some(12), false)
    );
    assert!(metadata.versions.llama_cpp.is_some() && metadata.versions.ggml.is_some());
    assert!(metadata.machine.memory_bytes.is_some() && metadata.finished_utc.is_some());
    let (statistics, sum) = (metadata.statistics.as_ref().unwrap(), &trace.summary);
    assert_eq!(
        (
            statistics.evaluations,
            statistics.steps,
            statistics.accesses,
            statistics.templates
        ),
        (sum.evaluations, sum.steps, sum.accesses, sum.templates)
    );
    assert_eq!(
        (
            statistics.lost_evaluations,
            statistics.lost_accesses,
            statistics.tick_mismatches
        ),
        (0, 0, 0)
    );
    assert!(
        statistics.unknown_ops.is_empty(),
        "{:?}",
        statistics.unknown_ops
    );
    assert_eq!(statistics.log_bytes, trace.run.log_bytes());
    assert_eq!(
        trace.run.tensor_names().unwrap().len() as u64,
        model.tensors
    );
}

#[test]
fn access_count_is_that_of_the_expanded_log_and_plausible() {
    for model in [dense(), moe()] {
        let (_, _, trace) = sample(&model);
        let expanded: u64 = trace
            .evaluations
            .iter()
            .map(|e| count_accesses(trace.template(e), e))
            .sum();
        assert_eq!(expanded, trace.summary.accesses);
        assert!(trace.is_closed() && trace.partial.is_empty());
        // Layers × ops per layer × evaluations, each op reading one to three tensors
        // and writing one.
        let layers = trace
            .run
            .metadata()
            .unwrap()
            .model
            .as_ref()
            .unwrap()
            .hyperparameters
            .n_layer;
        let evaluations = trace.summary.evaluations;
        assert_eq!(evaluations as usize, TOKENS);
        let least = layers * 12 * 2 * evaluations;
        assert!((least..least * 8).contains(&expanded), "{expanded} {least}");
        assert!((trace.summary.steps * 2..trace.summary.steps * 5).contains(&expanded));
    }
}

#[test]
fn tokens_progress_position_by_position() {
    for model in [dense(), moe()] {
        let (_, _, trace) = sample(&model);
        let positions: Vec<i64> = trace
            .evaluations
            .iter()
            .flat_map(|e| trace.positions(e))
            .copied()
            .collect();
        assert_eq!(positions, (0..positions.len() as i64).collect::<Vec<_>>());
        let (first, rest) = trace.evaluations.split_first().unwrap();
        assert_eq!(first.phase, Phase::Prompt);
        assert!(
            rest.iter()
                .all(|e| e.phase == Phase::Generate && trace.tokens(e).len() == 1)
        );
        assert!(
            trace
                .evaluations
                .iter()
                .all(|e| e.sequences.iter().all(|&s| s == 0))
        );
        // The prompt's tokens spell the prompt (a space may be put before it).
        let prompt = String::from_utf8(trace.text_of(first)).unwrap();
        assert!(prompt.ends_with(PROMPT), "{prompt:?}");
        // Time does not run backwards.
        assert!(
            trace
                .evaluations
                .windows(2)
                .all(|w| w[0].end_nanos <= w[1].begin_nanos)
        );
        for e in &trace.evaluations {
            assert!(e.step_nanos.is_sorted() && e.step_nanos[0] >= e.begin_nanos);
            assert!(*e.step_nanos.last().unwrap() <= e.end_nanos);
        }
    }
}

#[test]
fn every_evaluation_visits_every_layer_and_every_step_ticks() {
    for model in [dense(), moe()] {
        let (_, _, trace) = sample(&model);
        let layers = trace
            .run
            .metadata()
            .unwrap()
            .model
            .as_ref()
            .unwrap()
            .hyperparameters
            .n_layer as u32;
        for evaluation in &trace.evaluations {
            let template = trace.template(evaluation);
            let seen: BTreeSet<u32> = template
                .steps
                .iter()
                .filter_map(|step| step.layer)
                .collect();
            assert_eq!(seen, (0..layers).collect());
            assert_eq!(
                (evaluation.ticks as usize, evaluation.flags),
                (template.steps.len(), 0)
            );
            assert!((0..template.steps.len()).all(|step| evaluation.was_executed(step)));
        }
    }
}

#[test]
fn every_weight_access_lies_inside_its_tensor_in_the_file() {
    for model in [dense(), moe()] {
        let (_, _, trace) = sample(&model);
        let places = structure(&model);
        let (mut checked, mut seen) = (0, BTreeSet::new());
        for evaluation in &trace.evaluations {
            let template = trace.template(evaluation);
            for step in 0..template.steps.len() {
                for_each_access(template, evaluation, step, |access| {
                    let tensor = &trace.reader.definitions.tensors[access.def.tensor as usize];
                    let name = trace.reader.definitions.tensor_name(access.def.tensor);
                    let (first, end) = (access.region.offset, access.region.end().unwrap());
                    assert!(first < end && end <= tensor.size_bytes, "{name}");
                    if tensor.kind != TensorKind::Weight {
                        assert_eq!(tensor.place, None, "{name}");
                        return;
                    }
                    let place = tensor.place.unwrap();
                    let &(file_offset, size_bytes) = &places[&name];
                    assert_eq!((place.file, place.file_offset), (0, file_offset), "{name}");
                    assert!(
                        place.file_offset + end <= file_offset + size_bytes,
                        "{name}"
                    );
                    checked += 1;
                    seen.insert(name);
                });
            }
        }
        assert!(checked > 500);
        // Every tensor of these models is used; no other is.
        assert_eq!(seen, places.into_keys().collect());
    }
}

/// File offset and size of each tensor, as `inspect --csv` says.
fn structure(model: &std::path::Path) -> BTreeMap<String, (u64, u64)> {
    let output = tensorscope(std::path::Path::new("."))
        .arg("inspect")
        .arg(model)
        .arg("--csv")
        .output()
        .unwrap();
    let mut reader = csv::Reader::from_reader(output.stdout.as_slice());
    let columns = reader.headers().unwrap().clone();
    let column = |name: &str| columns.iter().position(|c| c == name).unwrap();
    let (name, offset, size) = (
        column("tensor_name"),
        column("file_offset"),
        column("size_bytes"),
    );
    let mut places: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for row in reader.records() {
        let row = row.unwrap();
        let (offset, size): (u64, u64) = (row[offset].parse().unwrap(), row[size].parse().unwrap());
        // Slices of a tensor follow each other and add up to it.
        let place = places.entry(row[name].to_owned()).or_insert((offset, 0));
        assert_eq!(place.0 + place.1, offset);
        place.1 += size;
    }
    places
}

#[test]
fn routing_names_every_token_and_rank_with_weights_that_sum_to_one() {
    let (_, _, trace) = sample(&moe());
    let hyper = &trace
        .run
        .metadata()
        .unwrap()
        .model
        .as_ref()
        .unwrap()
        .hyperparameters;
    let mut routes = 0;
    for evaluation in &trace.evaluations {
        let tokens = trace.tokens(evaluation).len() as u64;
        let mut by_token: BTreeMap<(u32, u32), (BTreeSet<u32>, f32, u64)> = BTreeMap::new();
        for_each_route(trace.template(evaluation), evaluation, |route| {
            assert!(
                u64::from(route.expert) < hyper.n_expert
                    && u64::from(route.rank) < hyper.n_expert_used
            );
            let sum = by_token.entry((route.layer, route.token)).or_default();
            assert!(
                sum.0.insert(route.expert),
                "an expert is chosen once for a token"
            );
            sum.1 += route.weight.unwrap();
            sum.2 += 1;
            routes += 1;
        });
        // The last layer computes only the tokens whose logits are wanted.
        let last = hyper.n_layer as u32 - 1;
        for layer in 0..=last {
            let expect = if layer == last { 1 } else { tokens };
            assert_eq!(
                by_token.keys().filter(|(l, _)| *l == layer).count() as u64,
                expect,
                "layer {layer}"
            );
        }
        for (key, (_, weight, count)) in by_token {
            assert_eq!(count, hyper.n_expert_used);
            assert!((weight - 1.0).abs() < 1e-3, "{key:?} {weight}");
        }
    }
    assert_eq!(routes, trace.summary.routes);
}
