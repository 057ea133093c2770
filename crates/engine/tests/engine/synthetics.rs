//! llama.cpp runs everything that `synth` writes, and what is recorded meanwhile
//! is what was executed, from where it lies in the file.

use std::{collections::BTreeSet, ffi::CStr, path::Path};

use engine::{
    context::{ContextProps, FlashAttention},
    hooks,
    model::Model,
};
use gguf::{GgmlType, write::Split};
use synth::{PRESETS, Recipe, TYPES};
use trace::{
    expand::for_each_access,
    template::{CaptureKind, TensorKind},
};

use crate::{
    fixtures::{Run, alone, greedy, load, prompt, record, tiny, write},
    oracle::EXECUTED,
};

const TOKENS: usize = 8;

#[test]
fn every_preset_decodes_and_is_recorded_exactly() {
    let directory = tempfile::tempdir().unwrap();
    for preset in PRESETS {
        check(
            preset.name,
            &tiny(preset.name),
            directory.path(),
            Split::Whole,
        );
    }
}

#[test]
fn every_type_decodes_and_is_recorded_exactly() {
    let directory = tempfile::tempdir().unwrap();
    for preset in ["llama-3-8b", "mixtral-8x7b", "gpt-oss-20b"] {
        for &ggml_type in TYPES {
            let recipe = Recipe {
                ggml_type: Some(ggml_type),
                ..tiny(preset)
            };
            check(
                &format!("{preset} {}", ggml_type.name()),
                &recipe,
                directory.path(),
                Split::Whole,
            );
        }
    }
}

#[test]
fn split_sets_decode_and_are_recorded_exactly() {
    for preset in ["llama-3.2-1b", "qwen3-30b-a3b", "deepseek-v2-lite"] {
        for split in [Split::Tensors(5), Split::Bytes(1_000_000)] {
            let directory = tempfile::tempdir().unwrap();
            check(
                &format!("{preset} {split:?}"),
                &tiny(preset),
                directory.path(),
                split,
            );
        }
    }
}

#[test]
fn the_table_knows_every_op_of_the_linked_library() {
    let api = hooks::api();
    let name_of = |op| {
        // SAFETY: all numbers below the count have a name, a static string.
        let name = unsafe { CStr::from_ptr((api.ggml_op_name)(op)) };
        name.to_string_lossy().into_owned()
    };
    let of_library: Vec<String> = (0..llama_cpp_sys_2::GGML_OP_COUNT).map(name_of).collect();
    assert!(of_library.len() > 90);
    assert_eq!(ggml::ops::known_ops().collect::<Vec<_>>(), of_library);
}

#[test]
fn every_cache_type_decodes_and_is_recorded_exactly() {
    let directory = tempfile::tempdir().unwrap();
    let model = load(&write(&tiny("llama-3-8b"), directory.path(), Split::Whole));
    for (key_type, value_type, flash_attention) in [
        (GgmlType::F32, GgmlType::F32, FlashAttention::Off),
        (GgmlType::BF16, GgmlType::F16, FlashAttention::On),
        (GgmlType::Q8_0, GgmlType::Q8_0, FlashAttention::On),
        (GgmlType::Q4_0, GgmlType::F16, FlashAttention::Off),
    ] {
        let label = format!("cache of {} and {}", key_type.name(), value_type.name());
        let props = ContextProps {
            key_type,
            value_type,
            flash_attention,
            ..ContextProps::default()
        };
        check_run(&label, &model, props);
    }
}

fn check(label: &str, recipe: &Recipe, directory: &Path, split: Split) {
    let model = load(&write(recipe, directory, split));
    check_run(
        label,
        &model,
        ContextProps {
            threads: 2,
            ..ContextProps::default()
        },
    );
}

fn check_run(label: &str, model: &Model, props: ContextProps) {
    let _alone = alone();
    EXECUTED.take();
    let run = record(model, props, &greedy(vec![prompt(model, 5)], TOKENS));
    run.assert_executed(&EXECUTED.take(), label);

    let tokens = &run.generated.tokens[0];
    assert_eq!(tokens.len(), TOKENS, "{label}");
    assert!(
        tokens.iter().any(|t| t != &tokens[0]),
        "{label}: tokens do not vary: {tokens:?}"
    );
    let logits = &run.generated.final_logits[0];
    assert!(
        !logits.is_empty() && logits.iter().all(|l| l.is_finite()),
        "{label}: logits"
    );
    assert!(
        logits.iter().any(|l| l != &logits[0]),
        "{label}: all logits are equal"
    );

    assert_eq!(run.evaluations.len(), TOKENS, "{label}");
    let mut next_position = 0;
    let layers = model.gguf.hyper().layer_count as u32;
    for evaluation in &run.evaluations {
        let template = run.template(evaluation);
        assert_eq!(evaluation.flags, 0, "{label} {}", evaluation.number);
        assert_eq!(
            evaluation.ticks as usize,
            template.steps.len(),
            "{label} {}",
            evaluation.number
        );
        assert!(
            template.steps.iter().all(|s| s.op_is_known),
            "{label} {}",
            evaluation.number
        );
        let seen: BTreeSet<u32> = template.steps.iter().filter_map(|s| s.layer).collect();
        assert_eq!(
            seen,
            (0..layers).collect(),
            "{label}: layers of {}",
            evaluation.number
        );
        // A graph without attention has no positions.
        for &position in evaluation.first_of(template, CaptureKind::Positions) {
            assert_eq!(position, next_position, "{label} {}", evaluation.number);
            next_position += 1;
        }
        let times = &evaluation.step_nanos;
        assert!(
            times.is_sorted() && evaluation.begin_nanos <= times[0],
            "{label} {}",
            evaluation.number
        );
        assert!(
            times[times.len() - 1] <= evaluation.end_nanos,
            "{label} {}",
            evaluation.number
        );
        for step in 0..template.steps.len() {
            for_each_access(template, evaluation, step, |access| {
                let tensor = &run.reader.definitions.tensors[access.def.tensor as usize];
                let end = access.region.end().unwrap();
                assert!(
                    end <= tensor.size_bytes,
                    "{label}: step {step} ends at {end} of {tensor:?}"
                );
            });
        }
    }
    let weights = check_addresses(label, model, &run);
    let steps = run.steps();
    println!("{label}: {TOKENS} evaluations, {steps} steps, {weights} weights, tokens {tokens:?}");
}

/// Every weight of the log lies where the mapping has the bytes of its place in
/// the file. The answer is their number.
fn check_addresses(label: &str, model: &Model, run: &Run) -> usize {
    let maps = support::proc::own_maps().unwrap();
    let definitions = &run.reader.definitions;
    let mut seen = BTreeSet::new();
    for tensor in &definitions.tensors {
        let name = definitions.name(tensor.name);
        assert_eq!(
            tensor.kind == TensorKind::Weight,
            tensor.place.is_some(),
            "{label} {name}"
        );
        let Some(place) = tensor.place else { continue };
        assert_eq!(
            definitions.text(tensor.buffer_type),
            "CPU_Mapped",
            "{label} {name}"
        );
        let in_file = model
            .gguf
            .tensors()
            .iter()
            .find(|t| *t.name == *name)
            .unwrap();
        assert_eq!(tensor.size_bytes, in_file.size_bytes, "{label} {name}");
        let path = std::fs::canonicalize(&model.gguf.files()[place.file as usize].path).unwrap();
        let found = support::proc::mappings(&maps).any(|mapping| {
            mapping.path == path.as_os_str().as_encoded_bytes()
                && mapping.addresses().contains(&tensor.address)
                && tensor.address - mapping.start + mapping.file_offset == place.file_offset
                && tensor.address + tensor.size_bytes <= mapping.end
        });
        assert!(
            found,
            "{label} {name}: no mapping has file offset {} at its address",
            place.file_offset
        );
        seen.insert(name);
    }
    // Tensors that no graph uses (none so far) would not be in the log.
    assert_eq!(seen.len(), model.gguf.tensors().len(), "{label}");
    seen.len()
}
