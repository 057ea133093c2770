//! What llama.cpp says that a model would take, of a header without weights, is what it takes.

use engine::{
    context::{Context, ContextProps, FlashAttention},
    memory::{self, BufferMemory},
    model::Model,
};
use gguf::{GgmlType, write::Split};
use synth::PRESETS;

use crate::fixtures::{alone, load, tiny, write};

fn sum(list: &[BufferMemory]) -> [u64; 3] {
    let of = |bytes: fn(&BufferMemory) -> u64| list.iter().map(bytes).sum();
    [
        of(|b| b.model_bytes),
        of(|b| b.context_bytes),
        of(|b| b.compute_bytes),
    ]
}

#[test]
fn a_header_is_enough_to_know_what_llama_cpp_takes() {
    let directory = tempfile::tempdir().unwrap();
    let mut configurations = 0;
    let mut worst: f64 = 0.0;
    let mut errors: Vec<f64> = Vec::new();
    for preset in PRESETS {
        let _alone = alone();
        let recipe = tiny(preset.name);
        let full = load(&write(&recipe, directory.path(), Split::Whole));
        let header = directory
            .path()
            .join(format!("{}-header.gguf", preset.name));
        let model = recipe.model().unwrap();
        model
            .layout(&header, Split::Whole)
            .unwrap()
            .write_headers()
            .unwrap();
        let header = Model::load_header(&header).unwrap();
        for (context, sequences) in [(256, 1), (1024, 1), (3000, 4)] {
            for micro_batch in [32, 512] {
                for (cache_type, flash_attention) in [
                    (GgmlType::F16, FlashAttention::Off),
                    (GgmlType::F16, FlashAttention::On),
                    (GgmlType::Q8_0, FlashAttention::On),
                    (GgmlType::F32, FlashAttention::Off),
                    (GgmlType::Q4_0, FlashAttention::On),
                    (GgmlType::BF16, FlashAttention::On),
                    (GgmlType::F32, FlashAttention::On),
                ] {
                    let props = ContextProps {
                        threads: 2,
                        context,
                        sequences,
                        micro_batch,
                        key_type: cache_type,
                        value_type: cache_type,
                        flash_attention,
                        ..ContextProps::default()
                    };
                    let label = format!("{} {props:?}", preset.name);
                    let Ok(real) = Context::new(&full, props.clone()) else {
                        continue;
                    };
                    let [_, context_bytes, compute_bytes] = sum(&real.memory());
                    drop(real);
                    let estimated = Context::new(&header, props).unwrap();
                    let [_, said_context, said_compute] = sum(&estimated.memory());
                    let (real, said) = (
                        (context_bytes + compute_bytes) as f64,
                        (said_context + said_compute) as f64,
                    );
                    let error = (said / real - 1.0).abs();
                    assert!(error <= 0.01, "{label}: {said} instead of {real}");
                    worst = worst.max(error);
                    errors.push(error);
                    configurations += 1;
                }
            }
        }
    }
    errors.sort_by(f64::total_cmp);
    let median = errors[errors.len() / 2];
    println!("{configurations} configurations, median error {median:.5}, worst {worst:.5}");
    assert!(configurations >= 500, "{configurations}");
    assert!(median <= 0.001, "{median}");
}

#[test]
fn nothing_is_read_of_a_model_that_is_only_asked() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("large.gguf");
    let model = synth::Recipe::new("llama-2-7b").unwrap().model().unwrap();
    let layout = model.layout(&path, Split::Whole).unwrap();
    layout.write_headers().unwrap();
    let _alone = alone();
    let props = ContextProps {
        context: 2048,
        ..ContextProps::default()
    };
    let list = memory::of(&path, props).unwrap();
    let [model_bytes, context_bytes, compute_bytes] = sum(&list);
    let tensors: u64 = gguf::Model::open(&path)
        .unwrap()
        .tensors()
        .iter()
        .map(|t| t.size_bytes)
        .sum();
    assert!(
        model_bytes.abs_diff(tensors) <= tensors / 1000,
        "{model_bytes} {tensors}"
    );
    // 512 KiB a token, which is Llama 2 7B's.
    assert_eq!(context_bytes, (2048 * 512) << 10);
    assert!(compute_bytes > 0);
}
