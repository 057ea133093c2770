//! The presets as wholes: the published sizes, determinism, splits.
//! (That llama.cpp runs them is shown where the engine is.)

use std::ops::ControlFlow;
use std::path::Path;

use gguf::GgmlType;
use gguf::write::{Existing, Split};
use synth::{PRESETS, Recipe, Size, SynthError, TYPES};

#[test]
fn parameters_are_the_published_ones() {
    let check = |preset: &str, published: u64| {
        let model = Recipe::new(preset).unwrap().model().unwrap();
        assert_eq!(model.parameters(), published, "{preset}");
    };
    check("llama-2-7b", 6_738_415_616);
    check("llama-3-8b", 8_030_261_248);
    // with the 32 frequency factors that the converter adds
    check("llama-3.2-1b", 1_235_814_400 + 32);
    check("qwen3-0.6b", 596_049_920);
    check("gemma-2-2b", 2_614_341_888);
    check("gemma-3-1b", 999_885_952);
    check("phi-3-mini", 3_821_079_552);
    check("mixtral-8x7b", 46_702_792_704);
    check("qwen3-30b-a3b", 30_532_122_624);
    check("qwen1.5-moe-a2.7b", 14_315_784_192);
    check("gpt-oss-20b", 20_914_757_184);
    check("deepseek-v2-lite", 15_706_484_224);
    check("mamba-130m", 129_135_360);
}

#[test]
fn tiny_models_are_small_and_read_back_as_planned() {
    let dir = tempfile::tempdir().unwrap();
    for preset in PRESETS {
        let model = tiny(preset.name).model().unwrap();
        let path = dir.path().join(format!("{}.gguf", preset.name));
        let layout = model.layout(&path, Split::Whole).unwrap();
        assert!(
            layout.size_bytes() < 5_000_000,
            "{}: {} bytes",
            preset.name,
            layout.size_bytes()
        );
        let mut told_bytes = 0;
        let progress = |bytes| {
            told_bytes += bytes;
            ControlFlow::Continue(())
        };
        model.write(&layout, Existing::Refuse, progress).unwrap();
        let data_bytes: u64 = layout
            .tensors()
            .iter()
            .map(|t| t.size_bytes().unwrap())
            .sum();
        assert_eq!(told_bytes, data_bytes);

        let read = gguf::Model::open(&path).unwrap();
        assert_eq!(read.len_bytes(), layout.size_bytes());
        assert_eq!(
            read.metadata().str("general.architecture"),
            Some(model.shape.arch.name())
        );
        let got: Vec<_> = read
            .tensors()
            .iter()
            .map(|t| (&*t.name, t.shape(), t.ty))
            .collect();
        let want: Vec<_> = layout
            .tensors()
            .iter()
            .map(|t| (t.name.as_str(), t.dims.as_slice(), t.ggml_type))
            .collect();
        assert_eq!(got, want, "{}", preset.name);
    }
}

#[test]
fn every_type_fits_every_preset_or_falls_back() {
    for preset in PRESETS {
        for &ggml_type in TYPES {
            for size in [Size::Tiny, Size::Published] {
                let recipe = Recipe {
                    size,
                    ggml_type: Some(ggml_type),
                    ..tiny(preset.name)
                };
                let model = recipe.model().unwrap();
                model.layout(Path::new("x.gguf"), Split::Whole).unwrap();
            }
        }
    }
}

#[test]
fn rows_of_no_whole_blocks_fall_back_as_llama_quantize_does() {
    let check = |preset: &str, wanted, row_elements, expect| {
        let model = Recipe {
            ggml_type: Some(wanted),
            ..Recipe::new(preset).unwrap()
        };
        let fallbacks = model.model().unwrap().fallbacks();
        let found = fallbacks.iter().find(|f| f.row_elements == row_elements);
        assert_eq!(
            found.map(|f| f.used),
            Some(expect),
            "{preset} {row_elements}"
        );
    };
    check("gemma-3-1b", GgmlType::Q4_K, 1152, GgmlType::Q5_0);
    check("gemma-3-1b", GgmlType::Q5_K, 1152, GgmlType::Q5_1);
    check("gemma-3-1b", GgmlType::Q6_K, 1152, GgmlType::Q8_0);
    check("gemma-3-1b", GgmlType::Q2_K, 1152, GgmlType::Q4_0);
    check("gpt-oss-20b", GgmlType::IQ4_XS, 2880, GgmlType::IQ4_NL);
    check("mamba-130m", GgmlType::Q8_0, 48, GgmlType::F16);
    let plain = Recipe {
        ggml_type: Some(GgmlType::Q4_K),
        ..Recipe::new("llama-2-7b").unwrap()
    };
    assert_eq!(plain.model().unwrap().fallbacks(), []);
}

#[test]
fn small_tensors_stay_f32_and_gpt_oss_experts_are_mxfp4() {
    let model = tiny("gpt-oss-20b").model().unwrap();
    let type_of = |name: &str| {
        let found = model.tensors.iter().find(|t| t.spec.name == name);
        found.unwrap_or_else(|| panic!("no {name}")).spec.ggml_type
    };
    assert_eq!(type_of("blk.0.ffn_up_exps.weight"), GgmlType::MXFP4);
    assert_eq!(type_of("blk.0.attn_q.weight"), GgmlType::Q8_0);
    for name in [
        "blk.0.attn_sinks.weight",
        "blk.0.attn_q.bias",
        "blk.0.ffn_gate_inp.weight",
        "blk.0.ffn_up_exps.bias",
        "blk.0.post_attention_norm.weight",
        "output_norm.weight",
    ] {
        assert_eq!(type_of(name), GgmlType::F32, "{name}");
    }
}

#[test]
fn the_seed_decides_every_byte() {
    let bytes = |seed| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gguf");
        let model = Recipe {
            seed,
            ..tiny("qwen3-30b-a3b")
        }
        .model()
        .unwrap();
        let layout = model.layout(&path, Split::Whole).unwrap();
        model
            .write(&layout, Existing::Refuse, |_| ControlFlow::Continue(()))
            .unwrap();
        std::fs::read(path).unwrap()
    };
    let first = bytes(1);
    assert_eq!(first, bytes(1));
    assert_ne!(first, bytes(2));
}

#[test]
fn a_split_set_holds_the_same_weights() {
    let dir = tempfile::tempdir().unwrap();
    let model = tiny("mixtral-8x7b").model().unwrap();
    let mut data = vec![];
    for (name, split) in [
        ("whole", Split::Whole),
        ("count", Split::Tensors(5)),
        ("size", Split::Bytes(1_000_000)),
    ] {
        let layout = model
            .layout(&dir.path().join(format!("{name}.gguf")), split)
            .unwrap();
        assert_eq!(layout.files().len() > 1, split != Split::Whole);
        model
            .write(&layout, Existing::Refuse, |_| ControlFlow::Continue(()))
            .unwrap();
        let read = gguf::Model::open(&layout.files()[0].path).unwrap();
        let files: Vec<Vec<u8>> = read
            .files()
            .iter()
            .map(|file| std::fs::read(&file.path).unwrap())
            .collect();
        let weights: Vec<(String, Vec<u8>)> = read
            .tensors()
            .iter()
            .map(|t| {
                let bytes = &files[t.file as usize][t.file_offset as usize..t.file_end() as usize];
                (t.name.to_string(), bytes.to_vec())
            })
            .collect();
        data.push(weights);
    }
    assert_eq!(data[0], data[1]);
    assert_eq!(data[0], data[2]);
}

#[test]
fn stopping_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let model = tiny("llama-2-7b").model().unwrap();
    let layout = model
        .layout(&dir.path().join("m.gguf"), Split::Tensors(9))
        .unwrap();
    let mut pieces = 0;
    let stopped = model.write(&layout, Existing::Refuse, |_| {
        pieces += 1;
        if pieces == 20 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    assert!(
        matches!(stopped, Err(SynthError::Interrupted)),
        "{stopped:?}"
    );
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn shrinking_changes_what_it_says() {
    let recipe = Recipe {
        layers: Some(3),
        experts: Some(5),
        vocab: Some(400),
        ..Recipe::new("qwen3-30b-a3b").unwrap()
    };
    let shape = recipe.model().unwrap().shape;
    let experts = shape.experts.unwrap();
    assert_eq!(
        (shape.layers, shape.vocab, experts.count, experts.used),
        (3, 400, 5, 5)
    );
    let check = |recipe: Recipe, expect: &str| {
        let message = recipe.model().unwrap_err().to_string();
        assert!(message.contains(expect), "{message}");
    };
    check(
        Recipe {
            layers: Some(0),
            ..recipe.clone()
        },
        "--layers must be between 1 and 512",
    );
    check(
        Recipe {
            vocab: Some(100),
            ..recipe.clone()
        },
        "--vocab must be between 354",
    );
    check(
        Recipe {
            experts: Some(0),
            ..recipe.clone()
        },
        "--experts must be between 1",
    );
    check(
        Recipe {
            experts_used: Some(6),
            ..recipe.clone()
        },
        "between 1 and 5, not 6",
    );
    check(
        Recipe {
            ggml_type: Some(GgmlType::IQ1_S),
            ..recipe.clone()
        },
        "iq1_s cannot be made",
    );
    check(
        Recipe {
            experts: Some(2),
            ..tiny("llama-2-7b")
        },
        "has no experts",
    );
}

fn tiny(preset: &str) -> Recipe {
    Recipe {
        size: Size::Tiny,
        ..Recipe::new(preset).unwrap()
    }
}
