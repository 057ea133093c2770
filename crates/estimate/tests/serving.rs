//! Time, batch, cache and precision of published models on machines of the table.

mod common;

use common::shape;
use estimate::kv::{Placing, Sequence, at_context, bytes_per_token, occupancy};
use estimate::number::{ComputeType, NumberType};
use estimate::roofline::{Bound, Pass, Stage, Types, time, work};
use estimate::shape::{Shape, Weights};
use estimate::{Efficiency, Machine, Machines, batch, fit, precision, speculation};

const F16: NumberType = NumberType::F16;

fn machine(name: &str) -> Machine {
    Machines::built_in().unwrap().find(name).unwrap().clone()
}

fn fp16() -> Types {
    Types::of(F16, F16)
}

#[test]
fn decoding_alone_reads_every_weight_once() {
    let shape = shape("llama-2-7b");
    let step = time(
        &shape,
        Pass::decode(1, 0),
        fp16(),
        &machine("H100 SXM"),
        Efficiency::IDEAL,
    )
    .unwrap();
    // All weights but the embedding, of which one row is read; and the token's own cache.
    let read = 2 * (shape.parameters - 32_000 * 4096 + 4096) + (512 << 10);
    assert_eq!(step.bytes, read as f64);
    assert!((step.seconds.likely - read as f64 / 3.35e12).abs() < 1e-9);
    assert_eq!(step.bound, Bound::Memory);
    // Two FLOPs for each weight but norms and the row, and attention to itself.
    let norms = 65 * 4096;
    let multiplied = shape.active_parameters - norms - 4096;
    let attention = 32 * 4 * 4096;
    assert_eq!(step.flops, (2 * multiplied + attention) as f64);
}

#[test]
fn prompts_are_bound_by_computing() {
    let shape = shape("llama-3-8b");
    let machine = machine("A100 SXM 80GB");
    let prompt = time(
        &shape,
        Pass::prompt(1, 4096),
        fp16(),
        &machine,
        Efficiency::default(),
    )
    .unwrap();
    assert_eq!(prompt.bound, Bound::Compute);
    assert!(
        prompt.seconds.best < prompt.seconds.likely && prompt.seconds.likely < prompt.seconds.worst
    );
    // The rule of thumb, 2 FLOPs a parameter and token, without embedding and output.
    let rule = 2.0 * (shape.active_parameters - 128_256 * 4096) as f64 * 4096.0;
    assert!(
        (prompt.flops / rule - 1.0).abs() < 0.1,
        "{}",
        prompt.flops / rule
    );
}

#[test]
fn experts_are_read_as_their_union() {
    let shape = shape("mixtral-8x7b");
    let experts = |batch| {
        let works = work(&shape, Pass::decode(batch, 0), fp16()).unwrap();
        works
            .into_iter()
            .find(|w| w.stage == Stage::Experts)
            .unwrap()
    };
    let whole = 2.0 * 32.0 * 8.0 * 3.0 * 4096.0 * 14336.0;
    assert_eq!(experts(1).weight_bytes, whole / 4.0);
    assert!((experts(2).weight_bytes / (whole * 0.4375) - 1.0).abs() < 1e-12);
    assert!(experts(64).weight_bytes > 0.999 * whole);
    assert_eq!(experts(64).flops, 64.0 * experts(1).flops);
}

#[test]
fn a_file_is_read_as_it_is_stored() {
    let model = common::llama_file();
    let shape = Shape::from_model(&model).unwrap();
    let summary = gguf::Summary::new(&model, &gguf::Question::default());
    assert_eq!(
        shape.weight_bytes(Weights::AsStored),
        Ok(summary.tensor_bytes)
    );
    let works = work(&shape, Pass::decode(8, 256), Types::stored(F16)).unwrap();
    let bytes: f64 = works.iter().map(|w| w.weight_bytes).sum();
    let decode = summary.decode.iter().find(|d| d.batch == 8).unwrap();
    assert_eq!(bytes, decode.weight_bytes);
    let flops: f64 = works.iter().map(|w| w.flops).sum();
    // `gguf` does not count the token itself among those that it sees.
    let itself = 8.0 * 2.0 * 2.0 * 4.0 * 32.0;
    assert_eq!(flops, decode.flops + itself);
    let config = common::shape("llama-2-7b")
        .weight_bytes(Weights::AsStored)
        .unwrap_err();
    assert!(config.to_string().contains("name one"), "{config}");
}

#[test]
fn files_of_every_kind_agree_with_their_summary() {
    use testing::gguf_bytes::{dense, mixed, moe};
    for builder in [dense(gguf::GgmlType::Q8_0), moe(), mixed()] {
        let path = std::path::Path::new("small.gguf");
        let model = gguf::Model::from_bytes(path, &builder.build()).unwrap();
        let question = gguf::Question {
            context_tokens: Some(100),
            ..gguf::Question::default()
        };
        let summary = gguf::Summary::new(&model, &question);
        let shape = Shape::from_model(&model).unwrap();
        assert_eq!(shape.parameters, summary.parameters);
        assert_eq!(shape.active_parameters, summary.active_parameters);
        let cache = at_context(&shape, F16, 100).unwrap();
        assert_eq!(cache.cache_bytes, summary.kv_cache.bytes_at_context);
        for decode in &summary.decode {
            let works = work(&shape, Pass::decode(decode.batch, 100), Types::stored(F16)).unwrap();
            let bytes: f64 = works.iter().map(|w| w.weight_bytes).sum();
            assert!(
                (bytes / decode.weight_bytes - 1.0).abs() < 1e-6,
                "{bytes} {decode:?}"
            );
        }
    }
}

#[test]
fn windows_and_states_bound_the_cache() {
    let gemma = shape("gemma-3-1b");
    let short = at_context(&gemma, F16, 512).unwrap();
    let long = at_context(&gemma, F16, 32_768).unwrap();
    assert_eq!((short.layers, short.window_layers), (26, 22));
    assert_eq!(short.bytes_per_token, 26 * 2 * 256 * 2);
    assert_eq!(long.bytes_per_token_beyond_windows, 4 * 2 * 256 * 2);
    assert_eq!(long.bytes - short.bytes, (32_768 - 512) * 4 * 1024);
    let mamba = shape("mamba-130m");
    let state = at_context(&mamba, F16, 1 << 20).unwrap();
    // 24 layers of 1536 x (16 + 3) numbers of 4 bytes.
    assert_eq!((state.cache_bytes, state.bytes), (0, 24 * 1536 * 19 * 4));
    assert!(at_context(&gemma, F16, u64::MAX).is_err());
}

#[test]
fn blocks_waste_less_than_reserved_contexts() {
    let shape = shape("opt-13b");
    let token = bytes_per_token(&shape, F16).unwrap();
    let lengths = [100, 17, 2048, 1].map(Sequence::new);
    let contiguous = Placing::Contiguous {
        max_context_tokens: 2048,
    };
    let found = occupancy(&shape, F16, &lengths, contiguous).unwrap();
    assert_eq!(found.used_bytes, 2166 * token);
    assert_eq!(found.reserved_bytes, 4 * 2048 * token);
    assert_eq!(found.waste_bytes, found.reserved_bytes - found.used_bytes);
    let paged = Placing::Paged { block_tokens: 16 };
    let found = occupancy(&shape, F16, &lengths, paged).unwrap();
    assert_eq!(found.reserved_bytes, (112 + 32 + 2048 + 16) * token);
    assert_eq!(found.waste_bytes, (12 + 15 + 15) * token);
    assert_eq!(found.expected_waste_bytes, 7.5 * 4.0 * token as f64);
    assert!((found.waste_percent - 100.0 * 42.0 / 2208.0).abs() < 1e-9);
    let too_long = [Sequence::new(2049)];
    assert!(occupancy(&shape, F16, &too_long, contiguous).is_err());
    assert!(occupancy(&shape, F16, &lengths, Placing::Paged { block_tokens: 0 }).is_err());
}

#[test]
fn whole_blocks_of_a_shared_prefix_are_there_once() {
    let shape = shape("llama-2-7b");
    let token = bytes_per_token(&shape, F16).unwrap();
    // 40 shared tokens are two blocks of 16 and a part that each copies.
    let sequences = [
        Sequence::sharing(50, 1, 40),
        Sequence::sharing(64, 1, 40),
        Sequence::new(16),
    ];
    let found = occupancy(&shape, F16, &sequences, Placing::Paged { block_tokens: 16 }).unwrap();
    assert_eq!(found.shared_bytes, 32 * token);
    assert_eq!(found.reserved_bytes, (64 + 64 + 16 - 32) * token);
    assert_eq!(found.used_bytes, (50 + 64 + 16 - 32) * token);
    let contiguous = Placing::Contiguous {
        max_context_tokens: 64,
    };
    assert_eq!(
        occupancy(&shape, F16, &sequences, contiguous)
            .unwrap()
            .shared_bytes,
        0
    );
    let wrong = [Sequence::sharing(10, 1, 11)];
    assert!(occupancy(&shape, F16, &wrong, contiguous).is_err());
}

#[test]
fn advice_respects_memory_and_latency() {
    let (shape, machine) = (shape("llama-2-7b"), machine("A100 SXM 80GB"));
    let mut question = batch::Question::new(&shape, fp16(), &machine, 2048);
    let free = batch::advise(&question).unwrap();
    // 80 GiB less 13.48 GB of weights, a GiB a sequence.
    let fits = ((80u64 << 30) - 2 * shape.parameters) >> 30;
    assert_eq!(free.max_batch_that_fits, fits);
    assert_eq!(free.best.unwrap().batch, fits);
    assert!(free.points[0].meets_latency && !free.points[200].fits);
    question.max_latency_seconds = Some(0.02);
    let bounded = batch::advise(&question).unwrap().best.unwrap();
    assert!(bounded.seconds.likely <= 0.02 && bounded.batch < fits);
    question.budget_bytes = 8 << 30;
    let nothing = batch::advise(&question).unwrap();
    assert_eq!((nothing.best, nothing.max_batch_that_fits), (None, 0));
    question.max_batch = 0;
    assert!(batch::advise(&question).is_err());
}

#[test]
fn throughput_has_its_knee_where_computing_takes_over() {
    let (shape, machine) = (shape("llama-3-8b"), machine("A100 SXM 80GB"));
    let mut question = batch::Question::new(&shape, fp16(), &machine, 0);
    question.efficiency = Efficiency::IDEAL;
    question.max_batch = 1024;
    let knee = batch::advise(&question).unwrap().knee_batch.unwrap();
    // The ridge point is 153 FLOPs a byte, and fp16 has one FLOP for each byte and sequence.
    assert!((150..160).contains(&knee), "{knee}");
}

#[test]
fn replicas_gain_only_what_one_leaves_idle() {
    let (shape, machine) = (shape("llama-3.2-1b"), machine("A100 SXM 80GB"));
    let mut question = batch::Question::new(&shape, fp16(), &machine, 1024);
    question.max_batch = 1;
    question.replicas.max_replicas = 4;
    let busy = batch::advise(&question).unwrap().replicas;
    assert!(busy.iter().all(|r| (r.gain - 1.0).abs() < 1e-9), "{busy:?}");
    // As long idle as busy: a second program fills it, a third does not.
    question.replicas.idle_seconds = batch::advise(&question).unwrap().points[0].seconds.likely;
    let idle = batch::advise(&question).unwrap().replicas;
    let gains: Vec<f64> = idle
        .iter()
        .map(|r| (r.gain * 100.0).round() / 100.0)
        .collect();
    assert_eq!(gains, [1.0, 2.0, 2.0, 2.0]);
    assert_eq!(idle[3].memory_bytes, 4 * idle[0].memory_bytes);
    question.replicas.shared_weights = true;
    let shared = batch::advise(&question).unwrap().replicas;
    assert!(shared[3].memory_bytes < idle[3].memory_bytes);
}

#[test]
fn measured_times_replace_the_model() {
    let (shape, machine) = (shape("llama-3-8b"), machine("H200"));
    let mut question = batch::Question::new(&shape, fp16(), &machine, 1024);
    question.measured = Some(vec![(1, 0.010), (8, 0.012), (16, 0.024)]);
    let advice = batch::advise(&question).unwrap();
    assert_eq!(advice.points[7].tokens_per_second, 8.0 / 0.012);
    assert_eq!(advice.points[0].bound, None);
    assert!(advice.points[15].is_measured && !advice.points[16].is_measured);
    // The model goes on from the last: slower there than it says, slower behind.
    question.measured = None;
    let model = batch::advise(&question).unwrap();
    let ratio = |at: usize| advice.points[at].seconds.likely / model.points[at].seconds.likely;
    assert!((ratio(99) / ratio(15) - 1.0).abs() < 1e-9);
    question.measured = Some(vec![(8, 0.0)]);
    assert!(batch::advise(&question).is_err());
}

#[test]
fn drafts_are_dearer_for_mixtures() {
    let machine = machine("H100 SXM");
    let draft = shape("llama-3.2-1b");
    let (dense, mixture) = (shape("llama-3-8b"), shape("mixtral-8x7b"));
    let at = |target| {
        let question = speculation::Question {
            target,
            types: fp16(),
            draft: speculation::Draft::Model(&draft, fp16()),
            acceptance: 0.8,
            batch: 1,
            context_tokens: 1024,
            machine: &machine,
            efficiency: Efficiency::IDEAL,
        };
        (question.at(4).unwrap(), question.best().unwrap().0)
    };
    let (dense, best) = at(&dense);
    assert!((dense.bytes_ratio.unwrap() - 1.0).abs() < 0.01);
    assert!(dense.speed_up > 1.5 && best.unwrap().speed_up >= dense.speed_up);
    // Five tokens use 1 - 0.75^5 = 76 % of the experts, one uses 25 %.
    let (mixture, _) = at(&mixture);
    assert!(mixture.bytes_ratio.unwrap() > 2.5, "{mixture:?}");
}

#[test]
fn fewer_bits_help_until_computing_takes_over() {
    let (shape, machine) = (shape("llama-3-8b"), machine("H100 SXM"));
    let q4 = Types::of(NumberType::from_name("q4_0").unwrap(), F16);
    let ideal = Efficiency::IDEAL;
    let found = precision::compare(&shape, fp16(), q4, &machine, ideal, 0, &[1, 16, 4096]).unwrap();
    assert!((found.weight_ratio - 16.0 / 4.5).abs() < 1e-6);
    let ratios: Vec<f64> = found.rows.iter().map(|row| row.ratio).collect();
    assert!(
        ratios[0] > 3.5 && (ratios[2] - 1.0).abs() < 0.01,
        "{ratios:?}"
    );
    let (first, second) = (
        found.first.turning_batch.unwrap(),
        found.second.turning_batch.unwrap(),
    );
    // 295 FLOPs a byte; weights of 4.5 bits reach them 3.56 times earlier.
    assert!(
        (290..=300).contains(&first) && (80..=86).contains(&second),
        "{first} {second}"
    );
    let long = precision::compare(&shape, fp16(), q4, &machine, ideal, 100_000, &[1]).unwrap();
    assert_eq!(long.first.turning_batch, None);
}

#[test]
fn padding_is_told_in_percent() {
    let shape = shape("gpt2");
    let found = fit::fits(&shape, &machine("A100 SXM 80GB"), ComputeType::Fp16).unwrap();
    let vocabulary = found
        .iter()
        .find(|f| f.dimension == "vocabulary" && f.unit == fit::Unit::Tile);
    let vocabulary = vocabulary.unwrap();
    assert_eq!(
        (vocabulary.multiple_of, vocabulary.padded, vocabulary.fits),
        (64, 50_304, false)
    );
    assert!((vocabulary.padding_percent - 100.0 * 47.0 / 50_257.0).abs() < 1e-9);
    assert!(found.iter().any(|f| f.dimension == "hidden" && f.fits));
    let volta = fit::fits(&shape, &machine("V100 SXM2"), ComputeType::Fp16).unwrap();
    assert!(
        volta
            .iter()
            .any(|f| f.unit == fit::Unit::Tile && f.multiple_of == 8)
    );
}

#[test]
fn answers_serialise() {
    let (shape, machine) = (shape("llama-3-8b"), machine("H200"));
    let advice = batch::advise(&batch::Question::new(&shape, fp16(), &machine, 1024)).unwrap();
    assert!(
        serde_json::to_string(&advice)
            .unwrap()
            .contains("knee_batch")
    );
    assert!(
        serde_json::to_string(&machine)
            .unwrap()
            .contains("\"bf16\":{\"value\":989400000000000.0")
    );
    assert!(
        serde_json::to_string(&shape)
            .unwrap()
            .contains("\"kv_heads\":8")
    );
    let step = time(
        &shape,
        Pass::decode(1, 10),
        fp16(),
        &machine,
        Efficiency::default(),
    )
    .unwrap();
    assert!(
        serde_json::to_string(&step)
            .unwrap()
            .contains("flop_per_byte")
    );
}
