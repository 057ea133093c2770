//! What the bytes mean: slices, heads, lookup, sums.

use std::path::Path;

use gguf::heads::{Boundary, HeadLayout, HeadRange};
use gguf::{GgmlType, HeadRows, Model, Owner, Question, Summary};
use testing::gguf_bytes::{Builder, dense, mixed, moe};

fn read(builder: &Builder) -> Model {
    Model::from_bytes(Path::new("m.gguf"), &builder.build()).unwrap()
}

fn heads(model: &Model, name: &str) -> Vec<HeadRange> {
    let tensor = model.tensor(name).unwrap();
    HeadLayout::of(tensor, model.hyper()).map_or(Vec::new(), |l| l.ranges(tensor).collect())
}

fn models() -> Vec<Model> {
    vec![
        read(&dense(GgmlType::Q8_0)),
        read(&dense(GgmlType::Q4_K)),
        read(&moe()),
        read(&mixed()),
    ]
}

#[test]
fn rows_of_a_tensor_add_up_to_it_without_gaps() {
    for model in models() {
        let mut rows = model.rows(HeadRows::Without).peekable();
        for tensor in model.tensors() {
            let mut next = tensor.file_offset;
            while let Some(row) = rows.next_if(|r| r.tensor.name == tensor.name) {
                assert_eq!(row.file_offset, next, "{}", tensor.name);
                next += row.size_bytes;
            }
            assert_eq!(next, tensor.file_end(), "{}", tensor.name);
        }
        assert!(rows.next().is_none());
    }
}

#[test]
fn experts_are_slices_of_merged_weights_and_biases() {
    let model = read(&moe());
    let check = |name: &str, count: u64, slice_bytes: u64| {
        let slices = model.tensor(name).unwrap().expert_slices().unwrap();
        assert_eq!(
            (slices.count, slices.slice_bytes),
            (count, slice_bytes),
            "{name}"
        );
    };
    check("blk.0.ffn_gate_exps.weight", 4, 32 * 2 * 17);
    check("blk.0.ffn_gate_exps.bias", 4, 32 * 4);
    check("blk.1.ffn_down_exps.bias", 4, 64 * 4);
    assert_eq!(
        model
            .tensor("blk.0.ffn_gate_inp.weight")
            .unwrap()
            .expert_slices(),
        None
    );
    let model = read(&mixed());
    assert_eq!(
        model
            .tensor("blk.1.ffn_gate.1.weight")
            .unwrap()
            .single_expert(),
        Some(1)
    );
}

#[test]
fn heads_of_q_k_v_are_runs_of_rows() {
    let model = read(&dense(GgmlType::Q8_0));
    let row_bytes = 256 / 32 * 34;
    for (name, count) in [("attn_q", 4), ("attn_k", 2), ("attn_v", 2)] {
        let name = format!("blk.1.{name}.weight");
        let ranges = heads(&model, &name);
        let tensor = model.tensor(&name).unwrap();
        assert_eq!(ranges.len(), count, "{name}");
        for (head, range) in ranges.iter().enumerate() {
            assert_eq!(
                range.file_offset,
                tensor.file_offset + head as u64 * 64 * row_bytes
            );
            assert_eq!((range.run_bytes, range.run_count), (64 * row_bytes, 1));
            assert_eq!(range.boundary, Boundary::Exact);
        }
    }
    let bias = heads(&model, "blk.0.attn_q.bias");
    assert_eq!(
        bias.iter().map(HeadRange::size_bytes).collect::<Vec<_>>(),
        [256; 4]
    );
}

#[test]
fn heads_of_the_output_are_columns_that_may_share_blocks() {
    let model = read(&dense(GgmlType::Q8_0));
    let ranges = heads(&model, "blk.0.attn_output.weight");
    let start = model
        .tensor("blk.0.attn_output.weight")
        .unwrap()
        .file_offset;
    assert_eq!(ranges[3].file_offset, start + 3 * 2 * 34);
    assert_eq!(
        (
            ranges[3].run_bytes,
            ranges[3].stride_bytes,
            ranges[3].run_count
        ),
        (2 * 34, 8 * 34, 256)
    );
    assert_eq!(ranges[3].boundary, Boundary::Exact);

    // A q4_K block holds 256 elements, which is all four heads of 64.
    let model = read(&dense(GgmlType::Q4_K));
    for range in heads(&model, "blk.0.attn_output.weight") {
        assert_eq!(range.boundary, Boundary::SharesBlocks);
        assert_eq!(range.run_bytes, 144);
    }
}

#[test]
fn per_layer_head_counts_latent_and_merged_attention_have_heads() {
    let model = read(&moe());
    assert_eq!(heads(&model, "blk.0.attn_k.weight").len(), 2);
    assert_eq!(heads(&model, "blk.1.attn_k.weight").len(), 1);
    assert_eq!(heads(&model, "blk.1.attn_sinks.weight").len(), 4);
    // 16 elements a head in blocks of 32: neighbours share.
    assert_eq!(
        heads(&model, "blk.0.attn_output.weight")[1].boundary,
        Boundary::SharesBlocks
    );

    let model = read(&mixed());
    assert_eq!(heads(&model, "blk.0.attn_q_b.weight").len(), 2);
    assert_eq!(heads(&model, "blk.0.attn_k_b.weight").len(), 2);
    let merged = heads(&model, "blk.1.attn_qkv.weight");
    let of: Vec<(&str, u64)> = merged.iter().map(|r| (r.of, r.run_bytes)).collect();
    let row_bytes = 2 * 34;
    assert_eq!(
        of,
        [
            ("q", 48 * row_bytes),
            ("q", 48 * row_bytes),
            ("k", 48 * row_bytes),
            ("v", 32 * row_bytes)
        ]
    );
    assert_eq!(heads(&model, "blk.1.attn_qkv.bias").len(), 4);
    // 100 rows are not 2 x 48 + 48 + 32: say nothing rather than something wrong.
    assert_eq!(heads(&model, "blk.2.attn_qkv.weight"), []);
    assert_eq!(heads(&model, "blk.0.attn_kv_a_mqa.weight"), []);
}

#[test]
fn lookup_agrees_with_a_naive_scan_of_every_byte() {
    for model in models() {
        let file = &model.files()[0];
        for offset in 0..file.len_bytes {
            let owner = model.lookup(0, offset).unwrap();
            let expect = model
                .tensors()
                .iter()
                .find(|t| (t.file_offset..t.file_end()).contains(&offset));
            match (owner, expect) {
                (Owner::Tensor(byte), Some(tensor)) => {
                    assert_eq!(byte.tensor.name, tensor.name);
                    assert_eq!(byte.offset_in_tensor, offset - tensor.file_offset);
                    if offset % 7 == 0 {
                        check_expert_and_heads(&model, &byte, offset);
                    }
                }
                (Owner::Preamble, None) => assert!(offset < 24),
                (Owner::Metadata { key }, None) => {
                    let entry = model.metadata().entry(key).unwrap();
                    assert!(entry.entry_offset <= offset && offset < file.infos_offset);
                    let nearer = model.metadata().entries().iter();
                    assert!(
                        !nearer
                            .map(|e| e.entry_offset)
                            .any(|o| o > entry.entry_offset && o <= offset)
                    );
                }
                (Owner::TensorInfo { tensor }, None) => {
                    let info_bytes =
                        8 + tensor.name.len() as u64 + 4 + 8 * u64::from(tensor.n_dims) + 12;
                    assert!(
                        (tensor.info_offset..tensor.info_offset + info_bytes).contains(&offset)
                    );
                }
                (Owner::Padding { after, before }, None) => {
                    assert!(offset >= file.infos_end);
                    assert!(after.is_none_or(|t| t.file_end() <= offset));
                    assert!(before.is_none_or(|t| t.file_offset > offset));
                }
                (owner, expect) => panic!("byte {offset}: {owner:?}, expected {expect:?}"),
            }
        }
        assert!(model.lookup(0, file.len_bytes).is_none());
        assert!(model.lookup(1, 0).is_none());
    }
}

fn check_expert_and_heads(model: &Model, byte: &gguf::lookup::OwnedByte<'_>, offset: u64) {
    let tensor = byte.tensor;
    let row = tensor
        .rows()
        .find(|r| (r.file_offset..r.file_offset + r.size_bytes).contains(&offset))
        .unwrap();
    assert_eq!(byte.expert, row.expert);
    let holds = |range: &HeadRange| {
        (0..range.run_count).any(|run| {
            let start = range.file_offset + run * range.stride_bytes;
            (start..start + range.run_bytes).contains(&offset)
        })
    };
    let naive: Vec<(&str, u64)> = heads(model, &tensor.name)
        .iter()
        .filter(|range| holds(range))
        .map(|range| (range.of, range.head))
        .collect();
    let found: Vec<(&str, u64)> = byte.heads.map_or(Vec::new(), |h| {
        (h.first..=h.last).map(|head| (h.of, head)).collect()
    });
    assert_eq!(found, naive, "{} byte {offset}", tensor.name);
}

#[test]
fn a_token_reads_all_of_a_dense_model_but_the_embedding() {
    let tied = read(&dense(GgmlType::Q8_0));
    let summary = Summary::new(&tied, &Question::default());
    assert!(summary.tied_embeddings);
    assert_eq!(summary.bytes_read_per_token, summary.tensor_bytes);
    assert_eq!(summary.active_parameters, summary.parameters);

    let untied = read(&dense(GgmlType::Q8_0).tensor("output.weight", GgmlType::F16, &[256, 100]));
    let summary = Summary::new(&untied, &Question::default());
    assert!(!summary.tied_embeddings);
    let row_bytes = 256 / 32 * 34;
    assert_eq!(
        summary.bytes_read_per_token,
        summary.tensor_bytes - 99 * row_bytes
    );
}

#[test]
fn a_token_reads_only_its_experts() {
    let model = read(&moe());
    let summary = Summary::new(&model, &Question::default());
    let experts: u64 = model
        .tensors()
        .iter()
        .filter(|t| t.expert_slices().is_some())
        .map(|t| t.size_bytes)
        .sum();
    let embedding = model.tensor("token_embd.weight").unwrap();
    assert_eq!(
        summary.bytes_read_per_token,
        summary.tensor_bytes - experts / 2 - embedding.size_bytes + embedding.row_bytes()
    );
    // A batch of 2 with 2 of 4 experts each: 1 - (1/2)^2 of them on average.
    let two = Summary::new(
        &model,
        &Question {
            batch: 2,
            ..Question::default()
        },
    );
    let expect = (summary.bytes_read_per_token + experts / 4 + embedding.row_bytes()) as f64;
    assert!((two.decode[1].weight_bytes - expect).abs() < 1e-6);
}

#[test]
fn the_kv_cache_follows_heads_windows_and_type() {
    let check = |builder: &Builder, context, kv_type, per_token: u64, at_context: u64| {
        let question = Question {
            context_tokens: Some(context),
            kv_type,
            batch: 1,
        };
        let summary = Summary::new(&read(builder), &question);
        let kv = summary.kv_cache;
        assert_eq!(
            (kv.bytes_per_token, kv.bytes_at_context),
            (per_token, at_context)
        );
    };
    // 2 layers x (K + V) x 2 heads x 64.
    check(&dense(GgmlType::Q8_0), 100, GgmlType::F16, 1024, 102_400);
    check(
        &dense(GgmlType::Q8_0),
        100,
        GgmlType::Q8_0,
        2 * 2 * 4 * 34,
        54_400,
    );
    // Layer 0: 2 heads in a window of 128; layer 1: 1 head, all tokens.
    check(&moe(), 1000, GgmlType::F16, 128 + 64, 128 * 128 + 64 * 1000);
    // Latent attention caches K alone; layer 1 has a window but no length;
    // layer 2 is recurrent, layer 3 predicts further tokens.
    check(&mixed(), 10, GgmlType::F16, 2 * 96, 10 * 2 * 96);
}

#[test]
fn arithmetic_intensity_counts_flops_and_bytes() {
    let builder = Builder::default()
        .str("general.architecture", "llama")
        .u32("llama.embedding_length", 64)
        .u32("llama.attention.head_count", 1)
        .tensor("token_embd.weight", GgmlType::F16, &[64, 10])
        .tensor("blk.0.attn_k.weight", GgmlType::F16, &[64, 64])
        .tensor("blk.0.attn_norm.weight", GgmlType::F32, &[64])
        .tensor("output.weight", GgmlType::F16, &[64, 10]);
    let question = Question {
        context_tokens: Some(3),
        kv_type: GgmlType::F16,
        batch: 4,
    };
    let summary = Summary::new(&read(&builder), &question);
    let flops = 2.0 * (64.0 * 64.0 + 640.0) + 4.0 * 64.0 * 3.0;
    let weights = |rows: f64| rows * 128.0 + 8192.0 + 256.0 + 1280.0;
    let kv = 3.0 * 256.0;
    let check = |index: usize, batch: f64| {
        let decode = &summary.decode[index];
        assert_eq!(
            (decode.flops, decode.weight_bytes),
            (flops * batch, weights(batch))
        );
        assert_eq!(decode.kv_bytes, kv * batch);
        assert_eq!(
            decode.flop_per_byte,
            flops * batch / (weights(batch) + kv * batch)
        );
    };
    check(0, 1.0);
    check(1, 4.0);
}

#[test]
fn shapes_that_fit_badly_are_said_with_their_number() {
    let misfits = |builder: &Builder| -> Vec<String> {
        let question = Question {
            kv_type: GgmlType::Q8_0,
            ..Question::default()
        };
        let summary = Summary::new(&read(builder), &question);
        summary.misfits.iter().map(ToString::to_string).collect()
    };
    assert_eq!(
        misfits(&dense(GgmlType::Q4_K)),
        [
            "vocabulary is 100, no multiple of 64 (36 over): the last tile of the output matrix is partly empty",
            "head columns of blk.0.attn_output.weight (q4_K) is 64, no multiple of 256 (64 over): neighbouring heads share quantisation blocks, so no head can be read alone",
        ]
    );
    let moe = misfits(&moe());
    assert!(
        moe.iter()
            .any(|m| m.starts_with("embedding length is 64, no multiple of 256")),
        "{moe:?}"
    );
    assert!(
        moe.iter()
            .any(|m| m.starts_with("head length for a q8_0 cache is 16, no multiple of 32")),
        "{moe:?}"
    );
}

#[test]
fn the_structure_map_is_csv_with_the_promised_columns() {
    let model = read(&moe());
    let mut bytes = Vec::new();
    model
        .write_structure_csv(HeadRows::With, &mut bytes)
        .unwrap();
    let mut reader = csv::Reader::from_reader(bytes.as_slice());
    let columns: Vec<String> = reader
        .headers()
        .unwrap()
        .iter()
        .map(str::to_owned)
        .collect();
    assert_eq!(columns, gguf::structure::COLUMNS);
    let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
    assert_eq!(rows.len(), model.rows(HeadRows::With).count());
    let slice = rows
        .iter()
        .find(|r| &r[0] == "blk.1.ffn_down_exps.weight" && &r[8] == "3")
        .unwrap();
    assert_eq!(&slice[10], "32x64");
    assert_eq!((&slice[5], &slice[6], &slice[7]), ("1", "expert", "down"));
    let head = rows
        .iter()
        .find(|r| &r[0] == "blk.0.attn_q.weight" && &r[13] == "2")
        .unwrap();
    assert_eq!((&head[12], &head[17]), ("q", "exact"));
}
