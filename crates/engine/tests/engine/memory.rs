//! What llama.cpp says that a model would take, of a header without weights, is what it takes.

use engine::{
    absent::AbsentGpu,
    context::{Context, ContextProps, FlashAttention, Windows},
    memory::{self, BufferMemory, Offload},
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
        let header = Model::load_header(&header, &Offload::default()).unwrap();
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

/// What llama.cpp took on a real GPU, as its `llama_get_memory_breakdown` said there.
const ON_AN_H200: &str = include_str!("../data/h200-memory.csv");

#[test]
fn gpus_that_are_not_here_take_what_a_real_one_took() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let gpus = vec![AbsentGpu {
        memory_bytes: 141 << 30,
    }];
    let mut loaded: Option<(String, Model)> = None;
    let (mut exact, mut errors) = (0, Vec::new());
    let lines = ON_AN_H200.lines().skip_while(|line| line.starts_with('#'));
    for line in lines.skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        let number = |at: usize| fields[at].parse::<u64>().unwrap();
        let key = fields[..4].join(" ");
        if loaded.as_ref().is_none_or(|(known, _)| *known != key) {
            let mut recipe = synth::Recipe::new(fields[0]).unwrap();
            recipe.ggml_type = Some(synth::type_by_name(fields[1]).unwrap());
            recipe.layers = Some(number(2)).filter(|layers| *layers > 0);
            let path = directory.path().join(format!("{key}.gguf"));
            let model = recipe.model().unwrap();
            let layout = model.layout(&path, Split::Whole).unwrap();
            layout.write_headers().unwrap();
            let offload = Offload {
                gpus: gpus.clone(),
                layers: Some(number(3) as u32),
            };
            loaded = Some((key, Model::load_header(&path, &offload).unwrap()));
        }
        let (_, model) = loaded.as_ref().unwrap();
        let cache = GgmlType::from_name(fields[7]).unwrap();
        let props = ContextProps {
            context: number(4) as usize,
            sequences: number(5) as usize,
            micro_batch: number(6) as usize,
            key_type: cache,
            value_type: cache,
            // As llama.cpp's library has it by itself.
            windows: Windows::Whole,
            ..ContextProps::default()
        };
        let list = Context::new(model, props).unwrap().memory();
        let (gpu, host): (Vec<_>, Vec<_>) =
            list.into_iter().partition(|memory| memory.name == "GPU0");
        let expected: Vec<u64> = (8..14).map(number).collect();
        let found = [sum(&gpu), sum(&host)].concat();
        exact += usize::from(found == expected);
        for range in [0..3, 3..6] {
            let total = |list: &[u64]| list[range.clone()].iter().sum::<u64>() as f64;
            let expected = total(&expected);
            errors.push((total(&found) - expected).abs() / expected.max(1.0));
        }
    }
    errors.sort_by(f64::total_cmp);
    let worst = errors[errors.len() - 1];
    println!(
        "{exact} of {} configurations to the byte, worst {:.2} %",
        errors.len() / 2,
        worst * 100.0
    );
    assert_eq!(errors.len() / 2, 288);
    assert!(exact >= 200 && worst < 0.03, "{exact} exact, worst {worst}");
}
