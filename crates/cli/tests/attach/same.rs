//! Engine and agent record the same: one llama.cpp, one model, one prompt.

use std::{fmt::Write, path::Path};

use trace::expand::{for_each_access, for_each_route};

use crate::fixture::*;

const TOKENS: &str = "6";
const PROMPT: &str = "To be, or not to be";

/// Everything that a trace says but times and addresses, a line for each access.
pub fn lines(trace: &Trace) -> Vec<String> {
    let stream = trace.stream();
    let definitions = &stream.definitions;
    let mut lines = Vec::new();
    for (number, evaluation) in stream.evaluations.iter().enumerate() {
        let template = stream.template(evaluation);
        lines.push(format!(
            "evaluation {number}: {:?}, {} threads, flags {}, {} steps, {} nodes, tokens {:?} of sequences {:?}",
            evaluation.phase,
            evaluation.threads,
            evaluation.flags,
            template.steps.len(),
            template.nodes,
            stream.tokens(evaluation),
            evaluation.sequences,
        ));
        for (capture, values) in template.captures.iter().zip(&evaluation.captures) {
            lines.push(format!("evaluation {number}: {capture:?}: {values:?}"));
        }
        for (at, step) in template.steps.iter().enumerate() {
            let op = definitions.text(step.op);
            let name = definitions.name(step.name);
            let before = format!(
                "evaluation {number}, step {at}: {op} {name} of {} nodes, layer {:?}, executed {}",
                step.fused_nodes,
                step.layer,
                evaluation.was_executed(at)
            );
            for_each_access(template, evaluation, at, |access| {
                let tensor = &definitions.tensors[access.def.tensor as usize];
                let mut line = before.clone();
                let _ = write!(
                    line,
                    ": {:?} {:?} {} ({:?}, type {}, {:?}, {} bytes, {}, {:?}) at {:?}, expert {:?}, element {:?}",
                    access.def.direction,
                    access.def.operand,
                    definitions.tensor_name(access.def.tensor),
                    tensor.kind,
                    tensor.ggml_type,
                    tensor.ne,
                    tensor.size_bytes,
                    definitions.text(tensor.buffer_type),
                    tensor.place,
                    access.region,
                    access.expert,
                    access.element,
                );
                lines.push(line);
            });
        }
        for_each_route(template, evaluation, |route| {
            lines.push(format!("evaluation {number}: {route:?}"));
        });
    }
    lines
}

/// The first line that differs, with where it stands.
pub fn first_difference(ours: &[String], theirs: &[String]) -> Option<String> {
    let longest = ours.len().max(theirs.len());
    let at = (0..longest).find(|&at| ours.get(at) != theirs.get(at))?;
    let shown = |lines: &[String]| {
        lines
            .get(at)
            .map_or("nothing more".to_owned(), String::clone)
    };
    Some(format!(
        "line {at} of {} and {}:\n  engine: {}\n  agent:  {}",
        ours.len(),
        theirs.len(),
        shown(ours),
        shown(theirs)
    ))
}

fn engine(folder: &Path, model: &Path, prompts: &[&str], run: &str) -> Trace {
    let mut command = tensorscope(folder);
    command.args(["record", "--no-tables", "-t", "2", "-n", TOKENS, "-o", run]);
    command.arg("-m").arg(model);
    command.args(prompts.iter().flat_map(|prompt| ["-p", prompt]));
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    Trace::complete(&folder.join(run))
}

fn agent(folder: &Path, model: &Path, prompts: &[&str], run: &str) -> Trace {
    let flags = ["--no-repack", "-o", run];
    let args = ["-t", "2", "-n", TOKENS];
    let output = record_generate(folder, &flags, &args, model, prompts)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let trace = Trace::complete(&folder.join(run));
    // What was evaluated is what it printed, but for the last token of each sequence.
    if prompts.len() == 1 {
        let (stream, text) = (trace.stream(), stdout(&output));
        let evaluated = stream.evaluations[1..]
            .iter()
            .flat_map(|e| stream.tokens(e));
        let evaluated: Vec<i64> = evaluated.copied().collect();
        assert!(
            printed(&text).starts_with(&evaluated),
            "{text} {evaluated:?}"
        );
    }
    trace
}

fn check(folder: &Path, model: &Path, prompts: &[&str]) {
    let ours = lines(&engine(folder, model, prompts, "engine"));
    let theirs = lines(&agent(folder, model, prompts, "agent"));
    assert!(ours.len() > 500, "only {} lines", ours.len());
    if let Some(difference) = first_difference(&ours, &theirs) {
        panic!("{}, {prompts:?}: {difference}", model.display());
    }
}

fn check_shape(shape: &str) {
    let folder = tempfile::tempdir().unwrap();
    let model = synth(folder.path(), shape);
    check(folder.path(), &model, &["hello world"]);
}

#[test]
fn the_same_is_recorded_of_a_dense_model() {
    let folder = tempfile::tempdir().unwrap();
    check(folder.path(), &dense(), &[PROMPT]);
}

#[test]
fn the_same_is_recorded_of_experts() {
    let folder = tempfile::tempdir().unwrap();
    check(folder.path(), &moe(), &[PROMPT]);
}

#[test]
fn the_same_is_recorded_of_two_prompts_at_once() {
    for model in [dense(), moe()] {
        let folder = tempfile::tempdir().unwrap();
        check(folder.path(), &model, &[PROMPT, "Now is the winter"]);
    }
}

#[test]
fn the_same_is_recorded_of_many_small_experts() {
    check_shape("--like qwen3-30b-a3b");
}

#[test]
fn the_same_is_recorded_of_experts_with_biases_and_attention_sinks() {
    check_shape("--like gpt-oss-20b");
}

#[test]
fn the_same_is_recorded_of_latent_attention() {
    check_shape("--like deepseek-v2-lite");
}

#[test]
fn the_same_is_recorded_of_windowed_layers() {
    check_shape("--like gemma-3-1b");
}

#[test]
fn the_same_is_recorded_of_a_state_space_model() {
    check_shape("--like mamba-130m");
}

#[test]
fn the_same_is_recorded_of_a_type_that_would_be_repacked() {
    check_shape("--like llama-3.2-1b --type q4_0");
}

#[test]
fn the_same_is_recorded_of_a_split_model() {
    check_shape("--like mixtral-8x7b --split 20");
}

/// A check that cannot fail checks nothing.
#[test]
fn another_prompt_is_seen_as_a_difference() {
    let folder = tempfile::tempdir().unwrap();
    let ours = lines(&engine(folder.path(), &dense(), &[PROMPT], "engine"));
    let other = "To be, or not to me";
    let theirs = lines(&agent(folder.path(), &dense(), &[other], "agent"));
    let difference = first_difference(&ours, &theirs).expect("another prompt");
    assert!(difference.starts_with("line 0 of "), "{difference}");
    // And so is a single access, wherever it is missing.
    let at = ours.len() / 2;
    let mut less = ours.clone();
    less.remove(at);
    assert!(first_difference(&ours, &less).is_some_and(|d| d.starts_with("line ")));
    less.truncate(at);
    assert!(first_difference(&ours, &less).is_some_and(|d| d.contains("nothing more")));
    assert_eq!(first_difference(&ours, &ours), None);
}
