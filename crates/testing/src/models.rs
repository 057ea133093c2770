//! Small model files: made here of zeros, and the trained ones that are shipped.

use std::io::Write;
use std::path::{Path, PathBuf};

use gguf::write::{Existing, Layout, MetadataBuilder, Split, TensorSpec};
use gguf::{GgmlType, Model};

/// A file of `models/`.
pub fn shipped(name: &str) -> PathBuf {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
    std::fs::canonicalize(models.join(name)).unwrap()
}

type Tensors<'a> = &'a [(&'a str, &'a [u64])];

/// A model of f32 tensors of zeros, with numbers as metadata under `test.`.
pub fn model(metadata: &[(&str, u32)], tensors: Tensors) -> Model {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let mut builder = MetadataBuilder::new();
    builder.set("general.architecture", "test");
    for &(key, value) in metadata {
        builder.set(&format!("test.{key}"), value);
    }
    let tensors = tensors
        .iter()
        .map(|&(name, dims)| TensorSpec {
            name: name.to_owned(),
            dims: dims.to_vec(),
            ggml_type: GgmlType::F32,
        })
        .collect();
    let layout = Layout::new(&path, &builder, tensors, Split::Whole).unwrap();
    layout
        .write(Existing::Refuse, |index, sink| {
            let bytes = layout.tensors()[index].size_bytes().unwrap();
            sink.write_all(&vec![0; bytes as usize])
        })
        .unwrap();
    Model::open(&path).unwrap()
}

/// Two layers, with tensors out of order.
pub fn dense() -> Model {
    model(
        &[("block_count", 2)],
        &[
            ("output.weight", &[32, 64]),
            ("token_embd.weight", &[32, 64]),
            ("rope_freqs.weight", &[16]),
            ("blk.1.ffn_down.weight", &[32, 32]),
            ("blk.1.attn_norm.weight", &[32]),
            ("blk.0.novelty.weight", &[32]),
            ("blk.0.ffn_down.weight", &[64, 32]),
            ("blk.0.ffn_gate.weight", &[32, 64]),
            ("blk.0.ffn_up.weight", &[32, 64]),
            ("blk.0.ffn_norm.weight", &[32]),
            ("blk.0.attn_k.weight", &[32, 32]),
            ("blk.0.attn_norm.weight", &[32]),
            ("blk.0.attn_output.weight", &[32, 32]),
            ("blk.0.attn_q.weight", &[32, 32]),
            ("blk.0.attn_q.bias", &[32]),
            ("blk.0.attn_v.weight", &[32, 32]),
            ("output_norm.weight", &[32]),
        ],
    )
}

/// One layer with experts, one for further tokens.
pub fn moe() -> Model {
    model(
        &[
            ("block_count", 2),
            ("nextn_predict_layers", 1),
            ("expert_count", 8),
            ("expert_used_count", 2),
        ],
        &[
            ("token_embd.weight", &[32, 64]),
            ("output.weight", &[32, 64]),
            ("blk.0.ffn_up_shexp.weight", &[32, 16]),
            ("blk.0.ffn_down_exps.weight", &[16, 32, 8]),
            ("blk.0.ffn_down_exps.bias", &[32, 8]),
            ("blk.0.ffn_gate_exps.weight", &[32, 16, 8]),
            ("blk.0.ffn_up_exps.weight", &[32, 16, 8]),
            ("blk.0.ffn_up_chexps.weight", &[32, 16, 4]),
            ("blk.0.ffn_gate_inp.weight", &[32, 8]),
            ("blk.0.attn_q.weight", &[32, 32]),
            ("blk.1.attn_q.weight", &[32, 32]),
            ("blk.1.nextn.eh_proj.weight", &[64, 32]),
        ],
    )
}
