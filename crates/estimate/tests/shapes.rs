//! Parameters and caches of published models, to the last digit, from their `config.json`.

mod common;

use common::{config, shape};
use estimate::number::NumberType;
use estimate::shape::{Part, Shape};
use estimate::{Error, kv};

/// Counts as `transformers` and the files on Hugging Face have them.
#[test]
fn published_parameter_counts_come_out_exactly() {
    let mut wrong = Vec::new();
    for (name, expect) in [
        ("llama-2-7b", 6_738_415_616),
        ("llama-3-8b", 8_030_261_248),
        ("llama-3.2-1b", 1_235_814_400),
        ("mistral-7b", 7_241_732_096),
        ("mixtral-8x7b", 46_702_792_704),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen1.5-moe-a2.7b", 14_315_784_192),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("gemma-2-9b", 9_241_705_984),
        ("gemma-3-1b", 999_885_952),
        ("phi-3-mini", 3_821_079_552),
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("opt-13b", 12_853_473_280),
        ("opt-350m", 331_196_416),
        ("gpt-neox-20b", 20_554_567_680),
        ("falcon-7b", 6_921_720_704),
        ("deepseek-v2", 235_741_434_880),
        ("deepseek-v3", 671_026_419_200),
        ("gpt-oss-20b", 20_914_757_184),
        ("gpt-oss-120b", 116_829_156_672),
        ("mamba-130m", 129_135_360),
        ("mamba-2.8b", 2_768_345_600),
    ] {
        let shape = shape(name);
        if shape.parameters != expect {
            wrong.push(format!("{name}: {} instead of {expect}", shape.parameters));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Model card of gpt-oss (arXiv 2508.10925), table 1: billions, without the embedding.
#[test]
fn active_parameters_are_those_of_the_gpt_oss_model_card() {
    let billions = |n: u64| (n as f64 / 1e7).round() / 100.0;
    for (name, active, experts_and_router, attention, total) in [
        ("gpt-oss-120b", 5.13, 114.71, 0.96, 116.83),
        ("gpt-oss-20b", 3.61, 19.12, 0.64, 20.91),
    ] {
        let shape = shape(name);
        let part = |part| shape.part(part).parameters;
        assert_eq!(billions(shape.active_parameters), active, "{name}");
        assert_eq!(
            billions(part(Part::Experts) + part(Part::Router)),
            experts_and_router
        );
        assert_eq!(billions(part(Part::Attention)), attention);
        assert_eq!(billions(part(Part::Embedding) + part(Part::Output)), 1.16);
        assert_eq!(billions(shape.parameters), total);
    }
    // DeepSeek-V3 (arXiv 2412.19437), abstract: 671B, of which 37B for each token.
    let v3 = shape("deepseek-v3");
    assert_eq!((v3.active_parameters as f64 / 1e9).round(), 37.0);
    // Mixtral of experts (arXiv 2401.04088), abstract: 47B and 13B.
    let mixtral = shape("mixtral-8x7b");
    assert_eq!((mixtral.active_parameters as f64 / 1e9).round(), 13.0);
}

#[test]
fn published_cache_sizes_come_out_exactly() {
    let per_token = |name| kv::bytes_per_token(&shape(name), NumberType::F16).unwrap();
    // Llama 2 7B: 2 x 32 layers x 4096 x 2 bytes.
    assert_eq!(per_token("llama-2-7b"), 512 << 10);
    assert_eq!(per_token("llama-3-8b"), 128 << 10);
    // vLLM (arXiv 2309.06180), section 3: 800 KB for OPT-13B.
    assert_eq!(per_token("opt-13b"), 800 << 10);
    // DeepSeek-V2 (arXiv 2405.04434), section 2.1: 512 + 64 numbers for each layer.
    let attention = shape("deepseek-v2").layers[0].attention.unwrap();
    assert_eq!(attention.cached_values(), Ok((576, 0)));
    // DeepSeek-V3 hardware paper (arXiv 2505.09343), table 1: 70.272 KB in bf16.
    assert_eq!(per_token("deepseek-v3"), 70_272);
    // The same table: LLaMA-3.1 405B 516.096 KB, Qwen-2.5 72B 327.680 KB.
    assert_eq!(per_token("llama-3.1-405b"), 516_096);
    assert_eq!(per_token("qwen2.5-72b"), 327_680);
    assert_eq!(per_token("mamba-130m"), 0);
}

/// A seed document of this project says 4 GiB. It is wrong: 512 KiB x 2048 x 8 is 8 GiB.
#[test]
fn llama_2_7b_at_2048_tokens_and_batch_8_needs_8_gib() {
    let shape = shape("llama-2-7b");
    let one = kv::at_context(&shape, NumberType::F16, 2048).unwrap();
    assert_eq!(one.bytes * 8, 8 << 30);
}

#[test]
fn quantised_caches_have_the_bytes_of_their_blocks() {
    let per_token =
        |ty| kv::bytes_per_token(&shape("llama-3-8b"), NumberType::from_name(ty).unwrap());
    assert_eq!(per_token("fp8"), Ok(64 << 10));
    assert_eq!(per_token("q8_0"), Ok(32 * 2 * 1088));
    assert_eq!(per_token("q4_0"), Ok(32 * 2 * 576));
}

#[test]
fn windows_are_on_the_layers_that_have_them() {
    let windows = |name| {
        let shape = shape(name);
        let window = |layer: &estimate::shape::Layer| layer.attention.unwrap().window_tokens;
        shape.layers.iter().map(window).collect::<Vec<_>>()
    };
    let gemma = windows("gemma-3-1b");
    assert_eq!(gemma.iter().filter(|w| **w == Some(512)).count(), 22);
    assert_eq!((gemma[4], gemma[5], gemma[6]), (Some(512), None, Some(512)));
    let oss = windows("gpt-oss-20b");
    assert_eq!((oss[0], oss[1], oss[23]), (Some(128), None, None));
    assert!(windows("mistral-7b").iter().all(|w| *w == Some(4096)));
    assert!(windows("qwen2.5-7b").iter().all(Option::is_none));
}

#[test]
fn what_is_missing_is_named() {
    let text = config("llama-2-7b");
    let without = |key: &str| Shape::from_config_json(&text.replace(key, "x")).unwrap_err();
    assert_eq!(
        without("num_hidden_layers").to_string(),
        "config.json of architecture `llama` lacks `num_hidden_layers`; add it as the model's authors publish it"
    );
    assert!(matches!(without("model_type"), Error::NoArchitecture));
    let unknown = Shape::from_config_json(r#"{"model_type": "nobody"}"#).unwrap_err();
    assert!(
        unknown
            .to_string()
            .starts_with("architecture `nobody` is not known"),
        "{unknown}"
    );
    let absurd = |from: &str, to: &str| {
        let text = text.replace(from, to);
        Shape::from_config_json(&text).unwrap_err().to_string()
    };
    assert_eq!(
        absurd("\"num_attention_heads\": 32", "\"num_attention_heads\": 0"),
        "config.json: `num_attention_heads` is 0: it must be at least 1"
    );
    assert_eq!(
        absurd("\"hidden_size\": 4096", "\"hidden_size\": 1e30"),
        "config.json: `hidden_size` is 1e+30: it must be a whole number from 0 to 2^32"
    );
    assert!(
        absurd(
            "\"num_hidden_layers\": 32",
            "\"num_hidden_layers\": 4294967296"
        )
        .contains("10000")
    );
    assert!(absurd("{", "").contains("no JSON"));
}

#[test]
fn a_file_and_its_config_have_the_same_shape() {
    let text = r#"{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128,
        "vocab_size": 96, "max_position_embeddings": 256}"#;
    let from_config = Shape::from_config_json(text).unwrap();
    let model = common::llama_file();
    let from_file = Shape::from_model(&model).unwrap();
    assert_eq!(from_file.parameters, from_config.parameters);
    assert_eq!(from_file.active_parameters, from_config.active_parameters);
    assert_eq!(from_file.layers, from_config.layers);
    assert_eq!(from_file.tied_embeddings, from_config.tied_embeddings);
    for part in Part::ALL {
        let (file, config) = (from_file.part(part), from_config.part(part));
        assert_eq!(file.parameters, config.parameters, "{part:?}");
        assert_eq!(file.active_parameters, config.active_parameters, "{part:?}");
    }
    let ty = NumberType::F16;
    assert_eq!(
        kv::bytes_per_token(&from_file, ty),
        kv::bytes_per_token(&from_config, ty)
    );
}
