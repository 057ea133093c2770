//! Every flag has the effect it promises, as the trace shows.

use std::{io::Write, process::Stdio};

use trace::format::Phase;

use crate::fixture::*;

#[test]
fn prompt_comes_from_the_flag_a_file_or_standard_input() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("prompt.txt"), "My lord, ").unwrap();
    let (by_flag, trace) = recorded(folder.path(), &dense(), &["-p", "My lord, ", "-n", "6"]);
    assert!(trace.text_of(&trace.evaluations[0]).ends_with(b"My lord, "));
    let (by_file, _) = recorded(folder.path(), &dense(), &["-f", "prompt.txt", "-n", "6"]);
    let mut child = start(
        record_command(
            folder.path(),
            &dense(),
            &["-f", "-", "-n", "6", "-o", "STDIN"],
        )
        .stdin(Stdio::piped()),
    );
    child.stdin.take().unwrap().write_all(b"My lord, ").unwrap();
    let by_stdin = child.wait_with_output().unwrap();
    assert_eq!(by_stdin.status.code(), Some(0), "{}", stderr(&by_stdin));
    assert!(by_flag.stdout.len() > 6);
    assert_eq!(stdout(&by_flag), stdout(&by_file));
    assert_eq!(stdout(&by_flag), stdout(&by_stdin));
}

#[test]
fn several_prompts_are_computed_side_by_side() {
    let folder = tempfile::tempdir().unwrap();
    let (output, trace) = recorded(
        folder.path(),
        &moe(),
        &["-p", "To be", "-p", "Now is the", "-n", "4", "--ignore-eos"],
    );
    let lines = stdout(&output);
    assert!(
        lines.starts_with("[0] ") && lines.contains("\n[1] "),
        "{lines}"
    );
    assert_eq!(trace.evaluations.len(), 4);
    assert_eq!(
        trace.run.metadata().unwrap().prompts,
        ["To be", "Now is the"]
    );
    assert_eq!(
        trace.evaluations[0]
            .sequences
            .iter()
            .filter(|&&s| s == 1)
            .count(),
        trace
            .positions(&trace.evaluations[0])
            .iter()
            .rev()
            .take_while(|&&p| p > 0)
            .count()
            + 1
    );
    for evaluation in &trace.evaluations[1..] {
        assert_eq!(evaluation.sequences, [0, 1]);
    }
    // One prompt repeated: all sequences get the same greedy tokens.
    let (output, trace) = recorded(
        folder.path(),
        &dense(),
        &["-p", "To be", "--parallel", "3", "-n", "3", "--ignore-eos"],
    );
    assert!(
        trace.evaluations[1..]
            .iter()
            .all(|e| e.sequences == [0, 1, 2])
    );
    assert!(
        trace.evaluations[1..]
            .iter()
            .all(|e| trace.tokens(e).windows(2).all(|w| w[0] == w[1]))
    );
    assert_eq!(
        trace
            .run
            .metadata()
            .unwrap()
            .settings
            .as_ref()
            .unwrap()
            .parallel,
        3
    );
    let alone = recorded(
        folder.path(),
        &dense(),
        &["-p", "To be", "-n", "3", "--ignore-eos"],
    )
    .0;
    assert!(stdout(&output).starts_with(&format!("[0] {}", stdout(&alone))));
}

#[test]
fn sampling_is_reproducible_by_its_seed() {
    let folder = tempfile::tempdir().unwrap();
    let sampled = |seed: &str| {
        let args = [
            "-p",
            "My lord",
            "-n",
            "16",
            "--temp",
            "0.9",
            "--seed",
            seed,
            "--ignore-eos",
        ];
        let (output, trace) = recorded(folder.path(), &dense(), &args);
        let sampling = serde_json::to_value(&trace.run.metadata().unwrap().sampling).unwrap();
        assert_eq!(
            (sampling["method"].as_str(), sampling["seed"].to_string()),
            (Some("random"), seed.to_owned())
        );
        stdout(&output)
    };
    let first = sampled("7");
    assert_eq!(first, sampled("7"));
    assert_ne!(first, sampled("8"));
}

#[test]
fn micro_batches_are_evaluations_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let prompt = "What say you now, my noble lord of Gloucester? ".repeat(3);
    let args = [
        "-p",
        &prompt,
        "-b",
        "32",
        "--ubatch-size",
        "16",
        "-n",
        "2",
        "--ignore-eos",
    ];
    let (output, trace) = recorded(folder.path(), &moe(), &args);
    let prompts: Vec<usize> = trace
        .evaluations
        .iter()
        .filter(|e| e.phase == Phase::Prompt)
        .map(|e| trace.tokens(e).len())
        .collect();
    assert!(
        prompts.len() > 3 && prompts[..prompts.len() - 1].iter().all(|&n| n == 16),
        "{prompts:?}"
    );
    assert_eq!(trace.evaluations.len(), prompts.len() + 1);
    let positions: Vec<i64> = trace
        .evaluations
        .iter()
        .flat_map(|e| trace.positions(e))
        .copied()
        .collect();
    assert_eq!(positions, (0..positions.len() as i64).collect::<Vec<_>>());
    assert_eq!(trace.summary.flagged, 0);
    assert_eq!(stderr(&output).lines().count(), 1);
}

#[test]
fn attention_and_cache_types_show_in_the_trace() {
    let folder = tempfile::tempdir().unwrap();
    let cache_types = |trace: &Trace| {
        let of = |prefix: &str| {
            let tensors = &trace.reader.definitions.tensors;
            let named = |n: &usize| {
                trace
                    .reader
                    .definitions
                    .tensor_name(*n as u32)
                    .starts_with(prefix)
            };
            let number = (0..tensors.len()).find(named).unwrap();
            gguf::GgmlType::from_u32(tensors[number].ggml_type)
                .unwrap()
                .name()
        };
        (of("cache_k_l"), of("cache_v_l"))
    };
    let check = |args: &[&str], flash: bool, types: (&str, &str)| {
        let (_, trace) = recorded(
            folder.path(),
            &dense(),
            &[&["-p", "To be", "-n", "3"], args].concat(),
        );
        assert_eq!(
            trace.ops().iter().any(|op| op == "FLASH_ATTN_EXT"),
            flash,
            "{args:?}"
        );
        assert_eq!(
            trace.ops().iter().any(|op| op == "SOFT_MAX"),
            !flash,
            "{args:?}"
        );
        assert_eq!(cache_types(&trace), types, "{args:?}");
        assert_eq!(trace.summary.flagged, 0);
    };
    check(&["--flash-attn", "on"], true, ("f16", "f16"));
    check(&["--flash-attn", "off"], false, ("f16", "f16"));
    check(
        &[
            "--flash-attn",
            "off",
            "--cache-type-k",
            "f32",
            "--cache-type-v",
            "f32",
        ],
        false,
        ("f32", "f32"),
    );
    check(
        &[
            "--flash-attn",
            "on",
            "--cache-type-k",
            "q8_0",
            "--cache-type-v",
            "q4_0",
        ],
        true,
        ("q8_0", "q4_0"),
    );
}

#[test]
fn repacked_weights_say_so_and_others_stay_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let model = synth(folder.path(), "--like llama-3.2-1b --type q4_0");
    let (_, mapped) = recorded(folder.path(), &model, &["-p", "hello", "-n", "2"]);
    assert_eq!(
        mapped.summary.by_buffer_type.keys().collect::<Vec<_>>(),
        ["CPU_Mapped"]
    );
    let (_, repacked) = recorded(
        folder.path(),
        &model,
        &["-p", "hello", "-n", "2", "--repack"],
    );
    assert!(
        repacked
            .run
            .metadata()
            .unwrap()
            .settings
            .as_ref()
            .unwrap()
            .repack
    );
    // Which layouts there are depends on the processor; x86 with AVX2 has one for q4_0.
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") {
        let buffer_types: Vec<&String> = repacked.summary.by_buffer_type.keys().collect();
        assert!(
            buffer_types
                .iter()
                .any(|b| *b == "CPU_REPACK" || *b == "AMX"),
            "{buffer_types:?}"
        );
    }
}

#[test]
fn nothing_to_generate_evaluates_the_prompt_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (output, trace) = recorded(folder.path(), &dense(), &["-p", "To be", "-n", "0"]);
    assert_eq!(stdout(&output).trim_end(), "");
    assert_eq!(trace.evaluations.len(), 1);
    assert!(stderr(&output).contains("and 0 generated tokens"));
}
