//! `tensorscope estimate`, through the program itself.

use std::{
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;

fn tensorscope(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tensorscope"))
        .args(args)
        // What is measured here must not be kept for whoever runs the tests.
        .env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"))
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
    let estimate = json(&[&like[..], &["--memory", "11G"], &H100].concat());
    let memory = &estimate["memory"];
    assert_eq!(memory["fits"], false, "{memory}");
    let ways = memory["ways"].as_array().unwrap();
    assert_eq!(ways.len(), 3, "{memory}");
    for way in ways {
        assert!(number(way, "/bytes") <= 11 << 30, "{way}");
    }
    let output = tensorscope(&[&["estimate"], &like[..], &["--memory", "11G"], &H100].concat());
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
        (
            vec![like[0], like[1], "-c", "4", "--parallel", "8"],
            "fewer than 8 sequences",
        ),
        (
            vec![like[0], like[1], "-c", "16777217"],
            "at most 16777216 tokens",
        ),
        (vec![like[0], like[1], "--disk", "0"], "--disk"),
        (
            vec![like[0], like[1], "--shared-prefix", "9999"],
            "--shared-prefix",
        ),
        (
            vec![
                like[0],
                like[1],
                "--gpu-layers",
                "3",
                "--machine",
                "EPYC 9654",
            ],
            "is not a GPU",
        ),
        (
            vec![like[0], like[1], "--versus", "/tmp"],
            "a run is compared",
        ),
        (vec!["/tmp"], "/tmp"),
        (
            vec![
                like[0],
                like[1],
                "--draft",
                "5:0.8",
                "--draft-model",
                "nobody",
            ],
            "nobody",
        ),
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
fn models_and_runs_that_are_broken_are_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let model = testing::models::shipped("shakespeare-dense.gguf");
    let bytes = std::fs::read(&model).unwrap();
    std::fs::write(at("begin.gguf"), &bytes[..5000]).unwrap();
    std::fs::write(at("most.gguf"), &bytes[..bytes.len() - 1000]).unwrap();
    std::fs::write(at("text.gguf"), "all the world's a stage").unwrap();
    std::fs::create_dir(at("folder.gguf")).unwrap();
    let run = at("run");
    let args = ["record", "-q", "-p", "the king", "-n", "2", "-o", &run];
    let output = tensorscope(&[&args[..], &["-m", model.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{output:?}");
    std::fs::write(at("run/log/0000-000000.tslog"), [7; 4000]).unwrap();
    let check = |args: &[&str], named: &str| {
        let output = tensorscope(args);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(
            said.starts_with("tensorscope: ") && said.contains(named),
            "{args:?}: {said}"
        );
        assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
    };
    for name in [
        "begin.gguf",
        "most.gguf",
        "text.gguf",
        "folder.gguf",
        "missing.gguf",
    ] {
        check(&[&["estimate", &at(name)], &H100[..]].concat(), name);
        check(&["bench", "estimate", "-m", &at(name)], name);
    }
    check(
        &[&["estimate", &run], &H100[..]].concat(),
        "0000-000000.tslog",
    );
    check(
        &["bench", "estimate", "--folder", &at("nowhere")],
        "nowhere",
    );
}

#[test]
fn a_folder_that_takes_nothing_is_named_once() {
    let folder = tempfile::tempdir().unwrap();
    // A limit of 64 KiB a file stands in for a full disk (without the trap, its signal would end
    // the program).
    let said = |command: &str, folder: &Path| {
        let program = env!("CARGO_BIN_EXE_tensorscope");
        let script = format!("trap '' XFSZ; ulimit -f 128; exec {program} {command}");
        let output = Command::new("sh")
            .args(["-c", &script])
            .env("TMPDIR", folder)
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        said
    };
    let header = "estimate --like llama-3-8b --machine H200";
    for (command, hint) in [(header, "TMPDIR"), ("bench estimate", "--folder")] {
        let said = said(command, folder.path());
        assert!(said.contains(hint), "{said}");
        assert!(
            said.ends_with(".gguf: cannot write: file too large\n"),
            "{said}"
        );
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    let expected = "tensorscope: /dev/null: cannot make a temporary folder: not a directory; \
                    TMPDIR names another one\n";
    assert_eq!(said(header, Path::new("/dev/null")), expected);
}

#[test]
fn what_was_measured_and_cannot_be_kept_is_answered_with_a_note() {
    let model = testing::models::shipped("shakespeare-dense.gguf");
    let output = Command::new(env!("CARGO_BIN_EXE_tensorscope"))
        .args(["estimate", "--threads", "1", "--json"])
        .arg(&model)
        .env("XDG_CACHE_HOME", "/dev/null")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["machine"]["name"], "this machine");
    assert!(
        said.ends_with(".json: cannot keep what was measured: not a directory\n"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
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
fn layers_are_laid_out_over_gpus_and_the_host() {
    let like = ["--like", "llama-3-8b", "--type", "q4_K"];
    let of = |more: &[&str]| -> Vec<(String, u64)> {
        let estimate = json(&[&like[..], &H100, more].concat());
        let devices = estimate["memory"]["devices"].as_array().unwrap();
        let all: u64 = devices.iter().map(|d| number(d, "/weight_bytes")).sum();
        assert_eq!(all, number(&estimate, "/memory/weight_bytes"));
        devices
            .iter()
            .map(|device| {
                let name = device["name"].as_str().unwrap().to_owned();
                (name, number(device, "/weight_bytes"))
            })
            .collect()
    };
    let on = |devices: &[(String, u64)], name: &str| {
        let found = devices.iter().find(|(known, _)| known == name);
        found.map_or(0, |(_, bytes)| *bytes)
    };
    let (all, some, none) = (
        of(&[]),
        of(&["--gpu-layers", "10"]),
        of(&["--gpu-layers", "0"]),
    );
    // Only embeddings are looked up on the host.
    assert!(on(&all, "GPU0") > 10 * on(&all, "CPU"), "{all:?}");
    assert!(on(&some, "GPU0") < on(&some, "CPU"), "{some:?}");
    assert_eq!(on(&none, "GPU0"), 0, "{none:?}");
    let two = of(&["--gpus", "2"]);
    let ratio = on(&two, "GPU0") as f64 / on(&two, "GPU1") as f64;
    assert!((0.8..1.25).contains(&ratio), "{two:?}");
}

#[test]
fn the_layers_that_are_named_fit_and_one_more_does_not() {
    let like = ["--like", "llama-2-7b", "--type", "f16", "--memory", "10G"];
    let estimate = json(&[&like[..], &H100].concat());
    let ways = estimate["memory"]["ways"].as_array().unwrap();
    let flag = ways
        .iter()
        .find_map(|way| way["change"].as_str()?.strip_prefix("--gpu-layers "))
        .unwrap_or_else(|| panic!("{ways:?}"));
    let layers: u32 = flag.parse().unwrap();
    let fits = |layers: u32| {
        let layers = layers.to_string();
        json(&[&like[..], &H100, &["--gpu-layers", &layers]].concat())["memory"]["fits"].clone()
    };
    assert_eq!(
        (fits(layers), fits(layers + 1)),
        (true.into(), false.into())
    );
}

#[test]
fn what_does_not_fit_is_read_from_disk() {
    let args = ["--like", "llama-3-8b", "--machine", "EPYC 9654"];
    let at = |memory: &str| json(&[&args[..], &["--memory", memory, "--disk", "2G"]].concat());
    assert!(at("64G").get("disk").is_none());
    let (less, more) = (at("3G"), at("6G"));
    let speed = |of: &Value, path: &str| of.pointer(path).and_then(Value::as_f64).unwrap();
    let path = "/disk/tokens_per_second";
    assert!(speed(&less, path) < speed(&more, path), "{less}");
    // Fed, it is not slower than with llama.cpp alone.
    assert!(speed(&more, "/disk/stock/tokens_per_second") <= speed(&more, path));
}

#[test]
fn pages_keep_a_shared_prefix_once() {
    let args = ["--like", "llama-3-8b", "-c", "32768", "--parallel", "8"];
    let reserved = |more: &[&str]| {
        let estimate = json(&[&args[..], &H100, more].concat());
        number(&estimate, "/kv_paged/reserved_bytes")
    };
    let prefix = ["--shared-prefix", "1024"];
    // Seven of eight sequences have 1024 tokens of 128 KiB less.
    assert_eq!(reserved(&[]) - reserved(&prefix), 7 * 1024 * (128 << 10));
    // A sequence of 4096 tokens is half full: one large page has the other half as well.
    let sequences = 8 * (128 << 10);
    assert_eq!(reserved(&["--page-tokens", "1"]), sequences * 2048);
    assert_eq!(reserved(&["--page-tokens", "4096"]), sequences * 4096);
}

#[test]
fn a_run_brings_its_times() {
    let folder = tempfile::tempdir().unwrap();
    let record = |name: &str, model: &str, more: &[&str]| {
        let run = folder.path().join(name).display().to_string();
        let model = testing::models::shipped(model).display().to_string();
        let args = [
            "record", "-q", "-m", &model, "-p", "the king", "-n", "12", "-o", &run,
        ];
        let output = tensorscope(&[&args[..], more].concat());
        assert!(output.status.success(), "{output:?}");
        run
    };
    let run = record("a", "shakespeare-dense.gguf", &[]);
    let other = record("b", "shakespeare-dense.gguf", &[]);
    let more = ["--versus", &other, "--replicas", "3"];
    let estimate = json(&[&[run.as_str()], &more[..], &H100[..]].concat());
    let batches = estimate["measured"]["batches"].as_array().unwrap();
    assert_eq!(number(&batches[0], "/batch"), 1, "{batches:?}");
    assert!(number(&batches[0], "/evaluations") >= 11, "{batches:?}");
    let first = &estimate["batch"]["points"][0];
    assert_eq!(first["seconds"]["likely"], batches[0]["seconds"]);
    assert_eq!(first["is_measured"], true);
    assert_eq!(estimate["batch"]["points"][1]["is_measured"], false);
    assert_eq!(estimate["measured_versus"].as_array().unwrap().len(), 1);
    // Between its steps the program samples: others would have that time.
    assert!(estimate["measured"]["idle_seconds"].as_f64().unwrap() > 0.0);
    let replicas = estimate["batch"]["replicas"].as_array().unwrap();
    assert_eq!(replicas.len(), 3);
    assert!(replicas[1]["gain"].as_f64().unwrap() > 1.0, "{replicas:?}");
}

#[test]
fn a_draft_has_its_price_and_a_cache_its_types() {
    let args = ["--like", "llama-3-8b", "--type", "bf16", "--draft", "5:0.8"];
    let speed_up = |more: &[&str]| {
        let estimate = json(&[&args[..], &H100, more].concat());
        let kv = estimate["kv_types"].as_array().unwrap();
        assert_eq!(number(&kv[0], "/bytes_per_token"), 128 << 10);
        assert_eq!(kv[2]["type"], "fp8");
        assert_eq!(number(&kv[2], "/bytes_per_token"), 64 << 10);
        estimate["draft"]["speed_up"].as_f64().unwrap()
    };
    let (free, small, large) = (
        speed_up(&[]),
        speed_up(&["--draft-model", "qwen3-0.6b"]),
        speed_up(&["--draft-model", "llama-2-7b"]),
    );
    assert!(free > small && small > large, "{free} {small} {large}");
}

#[test]
fn this_machine_is_measured_once() {
    let args = ["--like", "llama-3.2-1b", "-c", "512", "--threads", "1"];
    let estimate = json(&args);
    assert_eq!(estimate["machine"]["name"], "this machine");
    let rate = estimate["machine"]["memory_bytes_per_second"]["value"].as_f64();
    assert!(rate.unwrap() > 1e8, "{rate:?}");
    let token = |estimate: &Value| estimate["token"]["seconds"]["likely"].as_f64().unwrap();
    assert!(token(&estimate) > 1e-4, "{estimate}");
    // What was kept is used: the same to the last digit.
    assert_eq!(token(&json(&args)), token(&estimate));
}
