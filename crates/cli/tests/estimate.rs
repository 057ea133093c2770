//! `tensorscope estimate`, through the program itself.

use std::process::{Command, Output};

use serde_json::Value;

fn tensorscope(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tensorscope"))
        .args(args)
        .output()
        .unwrap()
}

fn json(args: &[&str]) -> Value {
    let mut all = vec!["estimate", "--json"];
    all.extend(args);
    let output = tensorscope(&all);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{args:?}: {said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn number(value: &Value, path: &str) -> u64 {
    let found = value.pointer(path).and_then(Value::as_u64);
    found.unwrap_or_else(|| panic!("{path} in {value}"))
}

const H100: [&str; 2] = ["--machine", "H100 SXM 80GB"];

#[test]
fn a_model_that_nobody_has_is_estimated_from_its_shape() {
    let like = ["--like", "llama-2-7b", "--type", "f16", "-c", "2048"];
    let estimate = json(&[&like[..], &H100].concat());
    // 6,738,415,616 parameters of two bytes, but for the norms, which have four.
    assert_eq!(number(&estimate, "/model/parameters"), 6_738_415_616);
    // 512 KiB a token.
    assert_eq!(
        number(&estimate, "/memory/context_bytes"),
        2048 * 512 * 1024
    );
    assert_eq!(estimate["memory"]["asked"], "llama.cpp");
    assert_eq!(estimate["memory"]["fits"], true);
    let token = estimate["token"]["seconds"].as_object().unwrap();
    let of = |name: &str| token[name].as_f64().unwrap();
    // 13.5 GB at 3.35 TB/s take 4 ms at best.
    assert!((0.004..0.006).contains(&of("best")), "{token:?}");
    assert!(of("best") <= of("likely") && of("likely") <= of("worst"));
    assert_eq!(estimate["token"]["bound"], "memory");
}

#[test]
fn what_does_not_fit_gets_ways_that_do() {
    let like = ["--like", "llama-3-8b", "--type", "q8_0", "-c", "32768"];
    let estimate = json(&[&like[..], &["--memory", "12G"], &H100].concat());
    let memory = &estimate["memory"];
    assert_eq!(memory["fits"], false, "{memory}");
    let ways = memory["ways"].as_array().unwrap();
    assert_eq!(ways.len(), 3, "{memory}");
    for way in ways {
        assert!(number(way, "/bytes") <= 12 << 30, "{way}");
    }
    let output = tensorscope(&[&["estimate"], &like[..], &["--memory", "12G"], &H100].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("no: "), "{text}");
    assert!(text.contains("  with     --cache-type-k q8_0"), "{text}");
}

#[test]
fn a_file_is_asked_about_as_it_is() {
    let model = testing::models::shipped("shakespeare-moe.gguf");
    let estimate = json(&[&[model.to_str().unwrap(), "-c", "1024"], &H100[..]].concat());
    assert_eq!(estimate["memory"]["asked"], "llama.cpp");
    assert!(number(&estimate, "/model/active_parameters") < number(&estimate, "/model/parameters"));
}

#[test]
fn a_configuration_is_enough() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    let config = r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
        "max_position_embeddings": 8192, "tie_word_embeddings": false}"#;
    std::fs::write(&path, config).unwrap();
    let path = path.to_str().unwrap();
    let more = [
        "--type", "bf16", "-c", "8192", "--versus", "q8_0", "--draft", "5:0.8",
    ];
    let rest = [
        "--attention",
        "--shapes",
        "--train",
        "8",
        "--latency",
        "50ms",
    ];
    let estimate = json(&[&[path], &more[..], &rest[..], &H100[..]].concat());
    assert_eq!(number(&estimate, "/model/parameters"), 8_030_261_248);
    assert_eq!(number(&estimate, "/kv/bytes_per_token"), 128 << 10);
    assert_eq!(estimate["memory"]["asked"], "arithmetic");
    let ratio = estimate["versus"]["weight_ratio"].as_f64().unwrap();
    assert!((1.85..1.9).contains(&ratio), "{ratio}");
    let tokens = estimate["draft"]["tokens_per_pass"].as_f64().unwrap();
    assert!((tokens - 3.689).abs() < 0.001, "{tokens}");
    assert!(estimate["attention"]["crossover_tokens"].is_u64());
    assert!(number(&estimate, "/train/examined") > 0);
    assert!(estimate["batch"]["best"].is_object());
}

#[test]
fn bad_input_is_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let unknown = write("a.json", r#"{"model_type": "teapot", "hidden_size": 8}"#);
    let missing = write("b.json", r#"{"model_type": "llama", "hidden_size": 8}"#);
    let absurd = write(
        "c.json",
        r#"{"model_type": "llama", "hidden_size": 1e30, "intermediate_size": 8,
            "num_hidden_layers": 1, "num_attention_heads": 0, "vocab_size": 3}"#,
    );
    let like = ["--like", "llama-2-7b"];
    for (args, expect) in [
        (vec![unknown.as_str()], "teapot"),
        (vec![missing.as_str()], "num_hidden_layers"),
        (vec![absurd.as_str()], "hidden_size"),
        (vec!["/no/such.gguf"], "no such file"),
        (vec!["/no/such.json"], "cannot read"),
        (vec!["--like", "llama-9"], "llama-9"),
        (vec![like[0], like[1], "--machine", "abacus"], "abacus"),
        (vec![like[0], like[1], "--type", "q9"], "q9"),
        (vec![like[0], like[1], "--draft", "5"], "is not a draft"),
        (vec![], "MODEL|CONFIG"),
    ] {
        let output =
            tensorscope(&[&["estimate", "--machine", "H100 SXM 80GB"], &args[..]].concat());
        let output = match args.contains(&"--machine") {
            true => tensorscope(&[&["estimate"], &args[..]].concat()),
            false => output,
        };
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(expect), "{args:?}: {said}");
    }
}

#[test]
fn the_table_of_machines_can_be_extended() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.json");
    let mine = r#"{"about": "mine", "sources": {"me": {"name": "my own bench", "url": ""}},
        "machines": [{"name": "toaster", "kind": "cpu", "memory_bytes": [1e9, "me"],
        "memory_bytes_per_second": [1e9, "me"], "flops_per_second": {"fp32": [1e9, "me"]}}]}"#;
    std::fs::write(&path, mine).unwrap();
    let path = path.to_str().unwrap();
    let args = [
        "--machines",
        path,
        "--machine",
        "toaster",
        "--like",
        "llama-3.2-1b",
    ];
    let estimate = json(&args);
    assert_eq!(estimate["machine"]["name"], "toaster");
    assert_eq!(estimate["memory"]["fits"], false);
    let output = tensorscope(&["estimate", "--list-machines", "--machines", path]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("toaster") && text.contains("H100 SXM 80GB"),
        "{text}"
    );
}

#[test]
fn this_machine_is_measured() {
    let estimate = json(&["--like", "llama-3.2-1b", "-c", "512"]);
    assert_eq!(estimate["machine"]["name"], "this machine");
    let rate = estimate["machine"]["memory_bytes_per_second"]["value"].as_f64();
    assert!(rate.unwrap() > 1e8, "{rate:?}");
}
