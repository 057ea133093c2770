//! What must hold for any numbers: more memory never fits less, a larger batch never has a
//! lower bound of throughput, and nothing absurd makes us panic.

mod common;

use common::shape;
use estimate::attention::{Attention, Blocks, Loops, Separate};
use estimate::kv::{Placing, Sequence, at_context, occupancy};
use estimate::number::{ComputeType, NumberType};
use estimate::roofline::{Pass, Types, time, work};
use estimate::search::{Cluster, search};
use estimate::shape::Shape;
use estimate::training::{
    Job, Layout, Numbers, Recompute, Schedule, States, Trained, Zero, evaluate,
};
use estimate::{Efficiency, Machine, Machines, batch, fit, precision, speculation};
use proptest::prelude::*;

const MODELS: [&str; 6] = [
    "llama-3-8b",
    "mixtral-8x7b",
    "gemma-3-1b",
    "deepseek-v3",
    "mamba-130m",
    "gpt-oss-20b",
];

fn machine(name: &str) -> Machine {
    Machines::built_in().unwrap().find(name).unwrap().clone()
}

fn types() -> Types {
    Types::of(NumberType::F16, NumberType::F16)
}

/// Small numbers, and those that somebody types by mistake.
fn any_count() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..100_000u64,
        Just(0),
        Just(1),
        Just(u64::MAX),
        Just(1 << 48),
        any::<u64>()
    ]
}

fn any_number() -> impl Strategy<Value = f64> {
    prop_oneof![
        -2.0..2.0f64,
        Just(f64::NAN),
        Just(f64::INFINITY),
        Just(1e30),
        Just(0.0),
        any::<f64>()
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn more_memory_never_fits_less(model in 0..MODELS.len(), context in 1..100_000u64,
                                   budget in 1..1u64 << 40, more in 0..1u64 << 40) {
        let (shape, machine) = (shape(MODELS[model]), machine("H200"));
        let mut question = batch::Question::new(&shape, types(), &machine, context);
        question.max_batch = 16;
        question.budget_bytes = budget;
        let small = batch::advise(&question).unwrap();
        question.budget_bytes = budget + more;
        let large = batch::advise(&question).unwrap();
        prop_assert!(large.max_batch_that_fits >= small.max_batch_that_fits);
        let speed = |advice: &batch::Advice| advice.best.map_or(0.0, |p| p.tokens_per_second);
        prop_assert!(speed(&large) >= speed(&small));
    }

    #[test]
    fn a_larger_batch_never_has_a_lower_bound(model in 0..MODELS.len(), context in 0..100_000u64,
                                              size in 1..2000u64) {
        let (shape, machine) = (shape(MODELS[model]), machine("H100 SXM"));
        let at = |batch| time(&shape, Pass::decode(batch, context), types(), &machine, Efficiency::IDEAL).unwrap();
        let (small, large) = (at(size), at(size + 1));
        prop_assert!(large.tokens_per_second >= small.tokens_per_second * (1.0 - 1e-12));
        prop_assert!(large.seconds.likely >= small.seconds.likely);
    }

    #[test]
    fn a_longer_context_never_needs_less(model in 0..MODELS.len(), context in 0..1_000_000u64) {
        let shape = shape(MODELS[model]);
        let bytes = |context| at_context(&shape, NumberType::F16, context).unwrap().bytes;
        prop_assert!(bytes(context + 1) >= bytes(context));
    }

    #[test]
    fn blocks_hold_what_is_used(lengths in prop::collection::vec((0..5000u64, 0..5000u64, 0..3u32), 0..20),
                                block in 1..600u64) {
        let shape = shape("gemma-3-1b");
        let sequences: Vec<Sequence> = lengths.iter()
            .map(|&(tokens, prefix, group)| Sequence::sharing(tokens, group, prefix.min(tokens)))
            .collect();
        let at = |placing| occupancy(&shape, NumberType::F16, &sequences, placing).unwrap();
        let paged = at(Placing::Paged { block_tokens: block });
        prop_assert!(paged.reserved_bytes >= paged.used_bytes);
        prop_assert!(paged.waste_percent < 100.0 || paged.used_bytes == 0);
        let single = at(Placing::Paged { block_tokens: 1 });
        prop_assert_eq!(single.waste_bytes, 0);
        let reserved = at(Placing::Contiguous { max_context_tokens: 5000 });
        prop_assert!(reserved.reserved_bytes >= single.reserved_bytes);
    }

    #[test]
    fn longer_drafts_give_no_fewer_tokens(acceptance in 0.0..=1.0f64, length in 0..60u64) {
        let expected = |k| speculation::expected_tokens(acceptance, k).unwrap();
        prop_assert!(expected(length + 1) >= expected(length));
        prop_assert!(expected(length) <= length as f64 + 1.0 + 1e-9);
    }

    #[test]
    fn sharing_out_never_needs_more(parameters in 1e6..1e13f64, data in 1..5000u64) {
        let bytes = |zero| States::new(parameters, data, zero, Numbers::MIXED_ADAM).unwrap().bytes();
        prop_assert!(bytes(Zero::Optimizer) <= bytes(Zero::None));
        prop_assert!(bytes(Zero::Gradients) <= bytes(Zero::Optimizer));
        prop_assert!(bytes(Zero::Parameters) <= bytes(Zero::Gradients));
    }

    #[test]
    fn more_memory_never_costs_more(budget in 1u64 << 30..1u64 << 38, more in 0..1u64 << 38) {
        let (model, gpu) = (Trained::gpt(24, 2304, 24, 51_200, 2048).unwrap(), machine("A100 SXM 80GB"));
        let job = Job { sequence_tokens: 2048, global_batch: 64, numbers: Numbers::MIXED_ADAM };
        let found = |budget_bytes| {
            let cluster = Cluster { budget_bytes, ..Cluster::new(&gpu, 16, 25e9) };
            search(&model, &job, &cluster, 1).unwrap()
        };
        let (small, large) = (found(budget), found(budget + more));
        prop_assert!(large.fitting >= small.fitting);
        if let Some(small) = small.best.first() {
            prop_assert!(large.best[0].gpu_seconds_per_million_tokens <= small.gpu_seconds_per_million_tokens);
        }
    }

    #[test]
    fn absurd_passes_are_errors(model in 0..MODELS.len(), batch in any_count(), new in any_count(),
                                context in any_count(), output in any_count()) {
        let (shape, machine) = (shape(MODELS[model]), machine("A100 SXM 80GB"));
        let pass = Pass { batch, new_tokens: new, context_tokens: context, output_tokens: output };
        if let Ok(works) = work(&shape, pass, types()) {
            prop_assert!(works.iter().all(|w| w.flops.is_finite() && w.bytes().is_finite()));
        }
        let _ = time(&shape, pass, types(), &machine, Efficiency::default());
        let _ = at_context(&shape, NumberType::F32, context);
        let placings = [Placing::Paged { block_tokens: new }, Placing::Contiguous { max_context_tokens: new }];
        for placing in placings {
            let sequences = [Sequence::new(context), Sequence::sharing(batch, 0, output), Sequence::sharing(new, 0, output)];
            let _ = occupancy(&shape, NumberType::F16, &sequences, placing);
        }
        let _ = precision::compare(&shape, types(), types(), &machine, Efficiency::IDEAL, context, &[batch]);
        let _ = fit::fits(&shape, &machine, ComputeType::Int8);
    }

    #[test]
    fn absurd_efficiencies_and_drafts_are_errors(low in any_number(), likely in any_number(),
                                                 acceptance in any_number(), draft in any_count()) {
        let (shape, machine) = (shape("llama-3-8b"), machine("A100 SXM 80GB"));
        let efficiency = Efficiency { memory: (low, likely, 1.0), compute: (likely, likely, likely), node: Default::default() };
        if let Ok(time) = time(&shape, Pass::decode(1, 1), types(), &machine, efficiency) {
            prop_assert!(time.seconds.likely > 0.0 && time.seconds.best <= time.seconds.worst);
        }
        let costs = speculation::Costs { plain_seconds: low, verify_seconds: likely, draft_seconds: acceptance };
        let _ = speculation::from_costs(acceptance, draft, costs);
        let _ = speculation::operations_ratio(acceptance, draft, low);
        let mut question = batch::Question::new(&shape, types(), &machine, draft);
        question.max_batch = 4;
        question.max_latency_seconds = Some(low);
        question.replicas.idle_seconds = likely;
        question.measured = Some(vec![(draft, low), (draft, likely)]);
        let _ = batch::advise(&question);
        question.measured = None;
        let _ = batch::advise(&question);
        question.max_context_tokens = draft;
        question.other_bytes = draft;
        question.replicas.max_replicas = draft;
        let _ = batch::advise(&question);
    }

    #[test]
    fn absurd_attention_is_an_error(heads in any_count(), tokens in any_count(), length in any_count(),
                                    bytes in any_count(), rows in any_count(), backward: bool) {
        let attention = Attention { heads, tokens, head_length: length, element_bytes: bytes, backward };
        let blocks = Blocks { key_rows: rows, query_rows: rows };
        let separate = Separate { mask: true, dropout: backward };
        let _ = Blocks::for_sram(rows, length, bytes);
        let _ = attention.crossover_tokens(blocks, Loops::AS_PRINTED, separate);
        let _ = attention.crossover_rows(Loops::LEAN, separate);
        for moved in [attention.standard(separate), attention.blockwise(blocks, Loops::LEAN)] {
            prop_assert!(moved.is_err() || moved.unwrap().bytes.is_finite());
        }
    }

    #[test]
    fn absurd_layouts_are_errors(counts in prop::array::uniform7(any_count()), number in any_number()) {
        let [tensor, pipeline, data, micro_batch, global_batch, sequence_tokens, layers] = counts;
        let gpu = machine("A100 SXM 80GB");
        let numbers = Numbers { gradient_bytes: number, ..Numbers::MIXED_ADAM };
        let job = Job { sequence_tokens, global_batch, numbers };
        let layout = Layout {
            tensor, pipeline, data, micro_batch, zero: Zero::Gradients, recompute: Recompute::Full,
            sequence_parallel: true, schedule: Schedule::Interleaved(layers),
        };
        let _ = Trained::gpt(layers, tensor, data, pipeline, micro_batch);
        let model = Trained::gpt(24, 2304, 24, 51_200, 2048).unwrap();
        let _ = evaluate(&model, &job, &layout);
        let cluster = Cluster { gpus: vec![data], link_efficiency: number, ..Cluster::new(&gpu, tensor, number) };
        let _ = search(&model, &job, &cluster, 1);
    }

    #[test]
    fn any_text_is_a_shape_or_an_error(text in ".{0,200}", at in 0..400usize, value in any::<i64>()) {
        let _ = Shape::from_config_json(&text);
        let _ = Machines::from_json(&text);
        // A real config with one digit or word replaced by a number.
        let config = common::config("deepseek-v3");
        let cut = config.char_indices().map(|(i, _)| i).nth(at).unwrap_or(0);
        let end = config[cut..].find([',', '}']).map_or(config.len(), |e| cut + e);
        let changed = format!("{}{value}{}", &config[..cut], &config[end..]);
        let _ = Shape::from_config_json(&changed);
    }

    #[test]
    fn any_numbers_in_a_config_are_a_shape_or_an_error(numbers in prop::array::uniform8(any_count()), family in 0..5usize) {
        let [hidden, layers, heads, kv, ffn, vocabulary, experts, used] = numbers;
        let family = ["llama", "mixtral", "gemma3_text", "falcon", "opt"][family];
        let text = format!(r#"{{"model_type": "{family}", "hidden_size": {hidden}, "num_hidden_layers": {layers},
            "num_attention_heads": {heads}, "num_key_value_heads": {kv}, "intermediate_size": {ffn}, "ffn_dim": {ffn},
            "vocab_size": {vocabulary}, "num_local_experts": {experts}, "num_experts_per_tok": {used},
            "max_position_embeddings": {kv}, "sliding_window": {ffn}}}"#);
        if let Ok(shape) = Shape::from_config_json(&text) {
            prop_assert!(shape.active_parameters <= shape.parameters);
            let _ = at_context(&shape, NumberType::F16, used);
            let _ = work(&shape, Pass::decode(hidden, used), types());
            let _ = Trained::from_shape(&shape);
        }
    }
}
