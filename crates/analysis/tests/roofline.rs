//! What nodes compute, against counts by hand and by crate `estimate`.

mod facts_support;
mod roofline_support;

use analysis::{
    facts::{Facts, Model, Options},
    findings,
    roofline::{
        Bound, Roofline,
        cards::{self, Work},
        classes::ClassRow,
    },
};
use estimate::{
    NumberType, Shape,
    roofline::{Pass, Types, work},
};
use facts_support::{facts, random_run};
use gguf::GgmlType;
use kernelio::{
    Ceilings,
    card::{CardCeiling, CardRate, Quantity},
    compute::{ComputeCeiling, Instructions, KernelCeiling, RegisterCeiling},
    disk::{DiskCeiling, Method, Setting},
    memory::{MemoryCeiling, Residence, ThreadsCeiling},
    rate::Rates,
};
use proptest::prelude::*;
use roofline_support::{Graph, STEP_NANOS};
use testing::models::shipped;
use trace::{format::Phase, template::TensorKind};

const F32: GgmlType = GgmlType::F32;

/// The class of an op, of which there must be one.
fn class<'a>(facts: &'a Facts, op: &str, phase: &str) -> &'a ClassRow {
    let mut found = (facts.classes.iter()).filter(|row| row.op == op && row.phase == phase);
    let row = found.next().unwrap();
    assert!(found.next().is_none(), "{op} is in two classes");
    row
}

fn flops(facts: &Facts, op: &str) -> u64 {
    class(facts, op, "generate").flops.unwrap()
}

/// Two tokens through one of everything that a dense layer has; counted by hand.
#[test]
fn a_dense_layer_computes_what_it_does_by_hand() {
    let mut graph = Graph::new(2);
    let input = graph.activation([64, 2, 1, 1]);
    let norm = graph.weight("blk.0.attn_norm.weight", F32, [64, 1, 1, 1]);
    let normed = graph.step("RMS_NORM+MUL", &[&input, &norm], [64, 2, 1, 1]);
    let wq = graph.weight("blk.0.attn_q.weight", GgmlType::Q4_0, [64, 128, 1, 1]);
    let q = graph.step("MUL_MAT", &[&wq, &normed], [128, 2, 1, 1]);
    let positions = graph.tensor("inp_pos", TensorKind::Input, GgmlType::I32, [2, 1, 1, 1]);
    graph.step("ROPE", &[&q, &positions], [32, 4, 2, 1]);
    // Four heads of 32 share two of the cache, 256 cells of which are looked at.
    let cache = |graph: &mut Graph, name| {
        graph.tensor(name, TensorKind::KvCache, GgmlType::F16, [64, 256, 1, 1])
    };
    let (keys, values) = (
        cache(&mut graph, "cache_k_l0"),
        cache(&mut graph, "cache_v_l0"),
    );
    graph.step("FLASH_ATTN_EXT", &[&q, &keys, &values], [32, 4, 2, 1]);
    graph.step("SOFT_MAX", &[&q], [128, 2, 1, 1]);
    graph.step("GLU", &[&q, &q], [96, 2, 1, 1]);
    graph.step("ADD", &[&input, &normed], [64, 2, 1, 1]);
    graph.step("SUM_ROWS", &[&input], [1, 2, 1, 1]);
    let embedding = graph.weight("token_embd.weight", F32, [64, 32, 1, 1]);
    graph.step("GET_ROWS", &[&embedding], [64, 2, 1, 1]);
    graph.step("RWKV_WKV6", &[&input], [64, 2, 1, 1]);
    let facts = graph.facts(9, &[Phase::Generate]);

    assert_eq!(flops(&facts, "RMS_NORM+MUL"), 4 * 64 * 2);
    assert_eq!(flops(&facts, "MUL_MAT"), 2 * 64 * 128 * 2);
    assert_eq!(flops(&facts, "ROPE"), 3 * 128 * 2);
    // The tokens at 9 and 10 see 10 and 11 cells; of each 32 numbers of a key and of a value,
    // by each of four heads.
    assert_eq!(
        flops(&facts, "FLASH_ATTN_EXT"),
        2 * 4 * (32 + 32) * (10 + 11)
    );
    assert_eq!(flops(&facts, "SOFT_MAX"), 5 * 128 * 2);
    assert_eq!(flops(&facts, "GLU"), 5 * 96 * 2);
    assert_eq!(flops(&facts, "ADD"), 64 * 2);
    assert_eq!(flops(&facts, "SUM_ROWS"), 64 * 2);
    assert_eq!(flops(&facts, "GET_ROWS"), 0);
    assert_eq!(class(&facts, "RWKV_WKV6", "generate").flops, None);

    let product = class(&facts, "MUL_MAT", "generate");
    assert_eq!(product.name(), "MUL_MAT q4_0 attention");
    assert_eq!((product.batch_from, product.batch_to), (2, 2));
    assert_eq!((product.threads, product.executions), (2, 1));
    assert_eq!(product.nanos, STEP_NANOS);
    assert_eq!(product.weight_bytes, 64 * 128 / 32 * 18);
    assert_eq!(product.other_bytes, (64 + 128) * 2 * 4);
    let attention = class(&facts, "FLASH_ATTN_EXT", "generate");
    assert_eq!(attention.name(), "FLASH_ATTN_EXT f16 kv_cache");
    assert_eq!(attention.kv_bytes, 2 * 64 * 256 * 2);
}

/// Attention without FLASH_ATTN_EXT computes all cells that it looks at.
#[test]
fn products_over_the_cache_count_every_cell() {
    let mut graph = Graph::new(3);
    let q = graph.activation([32, 3, 4, 1]);
    let keys = graph.tensor(
        "cache_k_l0",
        TensorKind::KvCache,
        GgmlType::F16,
        [64, 256, 1, 1],
    );
    graph.step("MUL_MAT", &[&keys, &q], [256, 3, 4, 1]);
    let facts = graph.facts(0, &[Phase::Generate]);
    assert_eq!(flops(&facts, "MUL_MAT"), 2 * 32 * 256 * 3 * 4);
}

#[test]
fn a_mixture_computes_for_each_token_and_each_expert_that_it_chose() {
    let (tokens, used) = (5, 2);
    let mut graph = Graph::new(tokens);
    let input = graph.activation([32, 1, tokens, 1]);
    let ids = graph.tensor(
        "ids",
        TensorKind::Activation,
        GgmlType::I32,
        [used, tokens, 1, 1],
    );
    let up = graph.weight("blk.0.ffn_up_exps.weight", GgmlType::Q8_0, [32, 48, 8, 1]);
    let chosen = graph.chosen(&up, used);
    graph.step(
        "MUL_MAT_ID",
        &[&chosen, &input, &ids],
        [48, used, tokens, 1],
    );
    let facts = graph.facts(0, &[Phase::Prompt, Phase::Prompt]);
    let row = class(&facts, "MUL_MAT_ID", "prompt");
    assert_eq!(row.name(), "MUL_MAT_ID q8_0 expert");
    assert_eq!(row.flops, Some(2 * 2 * 32 * 48 * used * tokens));
    // Three of the experts are chosen, each read once for all its tokens.
    assert_eq!(row.weight_bytes, 2 * 3 * 32 * 48 / 32 * 34);
    assert_eq!(row.executions, 2);
}

#[test]
fn phases_and_batches_are_classes_of_their_own() {
    let mut graph = Graph::new(1);
    let input = graph.activation([32, 1, 1, 1]);
    let weight = graph.weight("blk.0.ffn_up.weight", F32, [32, 16, 1, 1]);
    graph.step("MUL_MAT", &[&weight, &input], [16, 1, 1, 1]);
    let facts = graph.facts(0, &[Phase::Prompt, Phase::Generate, Phase::Generate]);
    assert_eq!(class(&facts, "MUL_MAT", "prompt").executions, 1);
    assert_eq!(class(&facts, "MUL_MAT", "generate").executions, 2);
    assert_eq!(flops(&facts, "MUL_MAT"), 2 * 2 * 32 * 16);
}

/// A token of a shipped model: all its products and its attention, in llama.cpp's shapes.
fn decode(model: &gguf::Model, context: u64) -> Facts {
    let shape = Shape::from_model(model).unwrap();
    let mut graph = Graph::new(1);
    let hidden = shape.hidden;
    let input = graph.activation([hidden, 1, 1, 1]);
    let product = |graph: &mut Graph, name: &str| {
        let tensor = model.tensor(name)?;
        let weight = graph.weight(name, tensor.ty, tensor.ne);
        let of = graph.activation([tensor.ne[0], 1, 1, 1]);
        Some(graph.step("MUL_MAT", &[&weight, &of], [tensor.ne[1], 1, 1, 1]))
    };
    for (number, layer) in shape.layers.iter().enumerate() {
        let norm = graph.weight("blk.0.attn_norm.weight", F32, [hidden, 1, 1, 1]);
        for _ in 0..2 {
            graph.step("RMS_NORM+MUL", &[&input, &norm], [hidden, 1, 1, 1]);
            graph.step("ADD", &[&input, &input], [hidden, 1, 1, 1]);
        }
        let name = |role: &str| format!("blk.{number}.{role}.weight");
        let q = product(&mut graph, &name("attn_q")).unwrap();
        for role in ["attn_k", "attn_v", "attn_output"] {
            product(&mut graph, &name(role)).unwrap();
        }
        for role in ["ffn_gate", "ffn_up", "ffn_down", "ffn_gate_inp"] {
            product(&mut graph, &name(role));
        }
        for role in ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"] {
            let (Some(tensor), Some(experts)) = (model.tensor(&name(role)), layer.experts) else {
                continue;
            };
            let used = experts.used;
            let weight = graph.weight(&name(role), tensor.ty, tensor.ne);
            let of = graph.activation([tensor.ne[0], 1, 1, 1]);
            let ids = graph.tensor(
                "ids",
                TensorKind::Activation,
                GgmlType::I32,
                [used, 1, 1, 1],
            );
            let chosen = graph.chosen(&weight, used);
            graph.step(
                "MUL_MAT_ID",
                &[&chosen, &of, &ids],
                [tensor.ne[1], used, 1, 1],
            );
        }
        let attention = layer.attention.unwrap();
        let cells = (context + 1).next_multiple_of(256);
        let mut cache = |length: u64| {
            let ne = [length * attention.kv_heads, cells, 1, 1];
            graph.tensor("cache", TensorKind::KvCache, GgmlType::F16, ne)
        };
        let (keys, values) = (cache(attention.key_length), cache(attention.value_length));
        let ne = [attention.value_length, attention.heads, 1, 1];
        graph.step("FLASH_ATTN_EXT", &[&q, &keys, &values], ne);
    }
    let output = ["output.weight", "token_embd.weight"];
    let output = output.iter().find(|name| model.tensor(name).is_some());
    product(&mut graph, output.unwrap()).unwrap();
    graph.facts(context, &[Phase::Generate])
}

#[test]
fn a_token_computes_what_the_estimate_says() {
    for (name, context) in [
        ("shakespeare-dense.gguf", 0),
        ("shakespeare-dense.gguf", 700),
        ("shakespeare-moe.gguf", 300),
    ] {
        let model = gguf::Model::open(&shipped(name)).unwrap();
        let shape = Shape::from_model(&model).unwrap();
        let types = Types::stored(NumberType::from_name("f16").unwrap());
        let works = work(&shape, Pass::decode(1, context), types).unwrap();
        let expect: f64 = works.iter().map(|work| work.flops).sum();
        let facts = decode(&model, context);
        let all: u64 = facts.classes.iter().filter_map(|row| row.flops).sum();
        let small = ["RMS_NORM+MUL", "ADD"].map(|op| flops(&facts, op));
        let products = all - small.iter().sum::<u64>();
        assert_eq!(products as f64, expect, "{name} at {context}");
        // Small operations are in none of the estimate's counts.
        assert!(
            (all as f64 / expect - 1.0).abs() < 0.01,
            "{name}: {all} {expect}"
        );
    }
}

fn against(rows: &[ClassRow], ceilings: &Ceilings) -> Roofline {
    Roofline::of(rows, &ceilings.memory, ceilings.compute.as_ref())
}

/// Two threads read 20 GB/s and compute 100 GFLOP/s; with q4_0 weights 50.
fn ceilings() -> Ceilings {
    let rates = |rate: u64| Rates::of(vec![rate]).unwrap();
    let threads = |threads, bytes_per_second| ThreadsCeiling {
        threads,
        bytes_per_second,
        rates: rates(bytes_per_second),
        buffer_bytes: 1 << 30,
        residence: Residence::Memory,
        on_cpu_permille: 1000,
    };
    let register = |threads, flops_per_second| RegisterCeiling {
        instructions: Instructions::Avx2,
        threads,
        flops_per_second,
    };
    let kernel = |threads, flops_per_second| KernelCeiling {
        weight_type: "q4_0".to_owned(),
        tokens: 256,
        threads,
        flops_per_second,
        is_repacked: false,
    };
    Ceilings {
        disk: DiskCeiling {
            bytes_per_second: 1_000_000_000,
            rates: rates(1_000_000_000),
            method: Method::IoUringDirect,
            setting: Setting {
                block_bytes: 1 << 20,
                depth: 32,
            },
            alignment_bytes: Some(512),
            path: "model".into(),
            file_bytes: 1,
            device: None,
            bytes_read: 1,
            elapsed_nanos: 1,
            refused: vec![],
            sweep: vec![],
            caveats: vec![],
        },
        memory: MemoryCeiling {
            bytes_per_second: 20_000_000_000,
            one_thread: threads(1, 12_000_000_000),
            all_threads: threads(2, 20_000_000_000),
            between: vec![],
            last_level_cache_bytes: None,
        },
        compute: Some(ComputeCeiling {
            registers: vec![register(1, 50_000_000_000), register(2, 100_000_000_000)],
            kernels: vec![kernel(1, 25_000_000_000), kernel(2, 50_000_000_000)],
            ..ComputeCeiling::default()
        }),
        cards: vec![],
        cpu_threads: 2,
        when: "2026-01-01T00:00:00Z".to_owned(),
    }
}

fn row(flops: u64, weight_bytes: u64, nanos: u64) -> ClassRow {
    ClassRow {
        phase: "generate".to_owned(),
        op: "MUL_MAT".to_owned(),
        weight_type: Some("q4_0".to_owned()),
        component: "ffn".to_owned(),
        threads: 2,
        batch_from: 1,
        batch_to: 1,
        executions: 1,
        nanos,
        flops: Some(flops),
        weight_bytes,
        ..ClassRow::default()
    }
}

#[test]
fn the_slower_of_reading_and_computing_is_the_bound() {
    // A second in which 5 GB are read and 10 G operations computed.
    let rows = [
        row(10_000_000_000, 5_000_000_000, 1_000_000_000),
        // Half a second in which 1 GB is read and 20 G operations computed.
        row(20_000_000_000, 1_000_000_000, 500_000_000),
    ];
    let roofline = against(&rows, &ceilings());
    let [first, second] = &roofline.points[..] else {
        panic!("{roofline:?}");
    };
    assert_eq!((first.bound, first.share_of_ceiling), (Bound::Memory, 0.25));
    assert_eq!(first.bytes_per_second, 5e9);
    assert_eq!(first.intensity, Some(2.0));
    assert_eq!(first.share_of_phase, 1.0 / 1.5);
    assert_eq!(
        (second.bound, second.share_of_ceiling),
        (Bound::Compute, 0.8)
    );
    assert_eq!(second.flops_per_second, Some(40e9));
    assert_eq!(roofline.memory_of(2), Some(20e9));
    assert_eq!(roofline.compute[0].weight_type.as_deref(), Some("q4_0"));

    let json = serde_json::to_string(&roofline).unwrap();
    assert_eq!(serde_json::from_str::<Roofline>(&json).unwrap(), roofline);
}

#[test]
fn a_sentence_says_how_much_of_what_can_be_read_was() {
    let rows = [row(10_000_000_000, 6_800_000_000, 1_000_000_000)];
    let said = findings::roofline(&against(&rows, &ceilings()));
    assert_eq!(
        said[0].text,
        "generate: MUL_MAT with q4_0 weights, 100.0 % of the time in nodes, ran at 34.0 % of what 2 threads can read (6.8 of 20.0 GB/s)"
    );
    let rows = [row(20_000_000_000, 1_000_000_000, 500_000_000)];
    let said = findings::roofline(&against(&rows, &ceilings()));
    assert!(
        said[0].text.ends_with("ran at 80.0 % of what llama.cpp's q4_0 kernels reach with 2 threads (40.0 of 50.0 GFLOP/s)"),
        "{}",
        said[0].text
    );
    // From a cache: faster than memory is.
    let rows = [row(1_000, 40_000_000_000, 1_000_000_000)];
    let said = findings::roofline(&against(&rows, &ceilings()));
    assert!(
        said[0]
            .text
            .ends_with("(40.0 of 20.0 GB/s; some of it came from a cache)")
    );
}

#[test]
fn what_touches_next_to_nothing_has_no_sentence() {
    let norm = ClassRow {
        op: "RMS_NORM+MUL".to_owned(),
        weight_type: Some("f32".to_owned()),
        ..row(1_000, 10_000, 900_000_000)
    };
    let rows = [row(10_000_000, 5_000_000_000, 1_000_000_000), norm];
    let said = findings::roofline(&against(&rows, &ceilings()));
    assert_eq!(said.len(), 1);
    assert!(said[0].text.starts_with("generate: MUL_MAT"));
}

#[test]
fn ceilings_without_arithmetic_bound_by_memory() {
    let old = Ceilings {
        compute: None,
        ..ceilings()
    };
    let rows = [row(20_000_000_000, 1_000_000_000, 500_000_000)];
    let roofline = against(&rows, &old);
    assert_eq!(roofline.points[0].bound, Bound::Memory);
    assert_eq!(roofline.points[0].share_of_ceiling, 0.1);
    assert!(roofline.compute.is_empty());
}

/// Reads 4 TB/s, computes 600 TFLOP/s in 16 bits and 60 in 32, and takes 50 GB/s from the host.
fn card() -> CardCeiling {
    let rate = |what, per_second| CardRate::of(what, vec![per_second]).unwrap();
    CardCeiling {
        device: "CUDA0".to_owned(),
        name: "a card".to_owned(),
        memory_bytes: 1 << 37,
        driver_version: "13.0".to_owned(),
        values: vec![
            rate(Quantity::Read, 4_000_000_000_000),
            rate(Quantity::Copy, 3_500_000_000_000),
            rate(Quantity::HostToDevicePinned, 50_000_000_000),
            rate(Quantity::F32, 60_000_000_000_000),
            rate(Quantity::F16, 600_000_000_000_000),
        ],
    }
}

fn on_card() -> Work<'static> {
    Work {
        device: "CUDA0",
        op: "MUL_MAT",
        weight_type: Some("q8_0"),
        bytes: 2_000_000_000,
        flops: Some(4_000_000_000),
        exclusive_nanos: 1_000_000,
    }
}

#[test]
fn nodes_on_a_card_are_held_against_that_card() {
    let cards = [card()];
    // 2 GB in a millisecond, half of what can be read.
    let found = cards::reached(&cards, &on_card()).unwrap();
    assert_eq!((found.bound, found.share_of_ceiling), (Bound::Memory, 0.5));
    assert_eq!(found.bytes_per_second, 2e12);
    assert_eq!(found.compute_roof, Some((Quantity::F16, 6e14)));
    // With many tokens arithmetic is the bound: 0.6 TFLOP in a millisecond.
    let more = Work {
        flops: Some(600_000_000_000),
        ..on_card()
    };
    let found = cards::reached(&cards, &more).unwrap();
    assert_eq!((found.bound, found.share_of_ceiling), (Bound::Compute, 1.0));
    let json = serde_json::to_string(&found).unwrap();
    assert_eq!(
        serde_json::from_str::<cards::Reached>(&json).unwrap(),
        found
    );
}

#[test]
fn arithmetic_of_a_card_depends_on_what_is_multiplied() {
    let cards = [card()];
    let roof = |op, weight_type| {
        let work = Work {
            op,
            weight_type,
            ..on_card()
        };
        cards::reached(&cards, &work)
            .unwrap()
            .compute_roof
            .unwrap()
            .0
    };
    assert_eq!(roof("MUL_MAT", Some("q4_K")), Quantity::F16);
    // It has no figure of its own here.
    assert_eq!(roof("MUL_MAT_ID", Some("bf16")), Quantity::F16);
    assert_eq!(roof("FLASH_ATTN_EXT", Some("f16")), Quantity::F16);
    assert_eq!(roof("MUL_MAT", Some("f32")), Quantity::F32);
    assert_eq!(roof("RMS_NORM+MUL", Some("f32")), Quantity::F32);
    assert_eq!(roof("ADD", None), Quantity::F32);
}

#[test]
fn what_was_not_measured_has_no_share() {
    let cards = [card()];
    let is_none = |work: Work| cards::reached(&cards, &work).is_none();
    assert!(is_none(Work {
        device: "CUDA1",
        ..on_card()
    }));
    assert!(is_none(Work {
        device: "CPU",
        ..on_card()
    }));
    assert!(is_none(Work {
        exclusive_nanos: 0,
        ..on_card()
    }));
    assert!(is_none(Work {
        bytes: 0,
        ..on_card()
    }));
    let unmeasured = CardCeiling {
        values: vec![],
        ..card()
    };
    assert!(cards::reached(&[unmeasured], &on_card()).is_none());
    let unknown = Work {
        flops: None,
        ..on_card()
    };
    assert_eq!(
        cards::reached(&cards, &unknown).unwrap().bound,
        Bound::Memory
    );
    let copied = |quantity| cards::copied(&cards, "CUDA0", quantity, 25_000_000, 1_000_000);
    assert_eq!(copied(Quantity::HostToDevicePinned), Some(0.5));
    assert_eq!(copied(Quantity::DeviceToHostPinned), None);
}

proptest! {
    /// Every byte and every nanosecond is in a class, once.
    #[test]
    fn classes_add_up_to_the_traffic(seed in any::<u64>()) {
        let facts = facts(&random_run(seed), &Model::default(), Options::default());
        for phase in ["prompt", "generate", "unknown"] {
            let classes = || facts.classes.iter().filter(|row| row.phase == phase);
            let rows = || facts.traffic.rows.iter().filter(|row| row.phase == phase);
            let times = || facts.traffic.times.iter().filter(|row| row.phase == phase);
            let bytes = |kind: &str| -> u64 {
                rows().filter(|row| row.kind == kind).map(|row| row.bytes).sum()
            };
            prop_assert_eq!(classes().map(|row| row.weight_bytes).sum::<u64>(), bytes("weight"));
            prop_assert_eq!(classes().map(|row| row.kv_bytes).sum::<u64>(), bytes("kv_cache"));
            let others = bytes("activation") + bytes("input");
            prop_assert_eq!(classes().map(|row| row.other_bytes).sum::<u64>(), others);
            let executions = times().map(|row| row.executions).sum::<u64>();
            prop_assert_eq!(classes().map(|row| row.executions).sum::<u64>(), executions);
            let nanos = times().map(|row| row.nanos).sum::<u64>();
            prop_assert_eq!(classes().map(|row| row.nanos).sum::<u64>(), nanos);
        }
    }

    /// Whatever the shapes: rows times columns times tokens, twice.
    #[test]
    fn a_product_is_two_operations_for_each_of_its_terms(
        columns in 1u64..20, rows in 1u64..300, tokens in 1u64..40, heads in 1u64..5,
    ) {
        let columns = columns * 32;
        let mut graph = Graph::new(tokens);
        let input = graph.activation([columns, tokens, heads, 1]);
        let weight = graph.weight("blk.0.ffn_up.weight", GgmlType::Q8_0, [columns, rows, 1, 1]);
        graph.step("MUL_MAT", &[&weight, &input], [rows, tokens, heads, 1]);
        let facts = graph.facts(0, &[Phase::Generate]);
        prop_assert_eq!(flops(&facts, "MUL_MAT"), 2 * columns * rows * tokens * heads);
    }

    /// No class reaches less than nothing, and its parts are what they were.
    #[test]
    fn points_are_finite(
        flops in any::<u64>(), bytes in 1u64..u64::MAX, nanos in 1u64..u64::MAX, threads in any::<u32>(),
    ) {
        let rows = [ClassRow { threads, ..row(flops, bytes, nanos) }];
        let roofline = against(&rows, &ceilings());
        let point = &roofline.points[0];
        prop_assert!(point.share_of_ceiling.is_finite() && point.share_of_ceiling > 0.0);
        prop_assert!(point.intensity.unwrap().is_finite());
        prop_assert!(!findings::roofline(&roofline).is_empty());
    }
}
