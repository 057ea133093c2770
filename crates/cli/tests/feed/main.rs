//! `tensorscope plan` and `tensorscope run`: models larger than their memory, through the
//! program itself.

mod drafting;
mod memory;
mod recorded;

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

use kernelio::{
    Ceilings,
    disk::{DiskCeiling, Method, Setting},
    memory::{MemoryCeiling, Residence, ThreadsCeiling},
    rate::Rates,
};
use serde_json::Value;

fn tensorscope(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tensorscope"))
        .args(args)
        .output()
        .unwrap()
}

fn shipped(name: &str) -> String {
    testing::models::shipped(name).display().to_string()
}

/// Models with weights of megabytes: about 100 MB each, written when they are asked for and
/// removed with this.
struct Models {
    folder: tempfile::TempDir,
}

impl Models {
    fn new() -> Models {
        // On a disk: tmpfs has no direct reads.
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        Models { folder }
    }

    fn path(&self, name: &str) -> String {
        let path = self.folder.path().join(name);
        let options: &[&str] = match name {
            "dense.gguf" => &["--like", "llama-3.2-1b", "--layers", "4"],
            "moe.gguf" => &[
                "--like",
                "qwen3-30b-a3b",
                "--layers",
                "2",
                "--experts",
                "24",
            ],
            _ => &[],
        };
        let path_text = path.display().to_string();
        if !options.is_empty() && !path.exists() {
            let mut args = vec![
                "synth", "-q", "--vocab", "2048", "--type", "q4_0", "-o", &path_text,
            ];
            args.extend(options);
            let output = tensorscope(&args);
            assert!(output.status.success(), "{output:?}");
        }
        path_text
    }
}

fn run(model: &str, more: &[&str]) -> (Value, String) {
    let mut args = vec![
        "run",
        "-m",
        model,
        "-p",
        "To be, or not to be",
        "-n",
        "8",
        "-t",
        "2",
        "--json",
        "--ignore-eos",
        "--ubatch-size",
        "32",
    ];
    args.extend(more);
    let output = tensorscope(&args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{more:?}: {stderr}");
    (serde_json::from_slice(&output.stdout).unwrap(), stderr)
}

fn number(value: &Value, path: &str) -> u64 {
    value
        .pointer(path)
        .and_then(Value::as_u64)
        .unwrap_or_else(|| panic!("{path} in {value}"))
}

#[track_caller]
fn assert_same(expected: &Value, got: &Value) {
    assert_eq!(expected["tokens"], got["tokens"]);
    assert_eq!(expected["logits_hash"], got["logits_hash"]);
    assert_eq!(number(expected, "/generated_tokens"), 8);
}

/// Where memory cgroups can be made, the peak was measured.
fn assert_within_budget(report: &Value) {
    if let Some(peak) = report["peak_bytes"].as_u64() {
        assert!(peak <= number(report, "/limit_bytes"), "{report}");
        assert_eq!(number(report, "/oom_kills"), 0);
    }
}

#[test]
fn dense_model_gives_the_same_in_less_memory() {
    let models = Models::new();
    let model = models.path("dense.gguf");
    let (expected, _) = run(&model, &["--strategy", "none"]);
    for (strategy, memory) in [
        ("all", "120M"),
        ("stream", "120M"),
        ("pin", "120M"),
        ("all", "64M"),
    ] {
        let (report, stderr) = run(
            &model,
            &["--strategy", strategy, "--memory", memory, "--cold"],
        );
        assert_same(&expected, &report);
        assert_within_budget(&report);
        let share = |name: &str| number(&report, &format!("/shares/{name}"));
        let read = number(&report, "/fed/bytes_read");
        match (strategy, memory) {
            // So little that it may be better without a ring.
            (_, "64M") => {}
            ("pin", _) => assert!(share("pinned_bytes") > 10_000_000 && share("mapped_bytes") > 0),
            _ => {
                assert!(share("streamed_bytes") > 10_000_000, "{report}");
                // What is streamed is read for each token, and nothing else.
                let tokens = report["token_seconds"].as_array().unwrap().len() as u64;
                let expected = share("streamed_bytes") * tokens;
                assert!(read.abs_diff(expected) < expected / 4, "{read} {expected}");
                assert!(stderr.contains("predicted"), "{stderr}");
            }
        }
    }
}

#[test]
fn mixture_gives_the_same_in_less_memory() {
    let models = Models::new();
    let model = models.path("moe.gguf");
    for routing in [None, Some("uniform")] {
        let drawn: Vec<&str> = routing.map_or(vec![], |routing| vec!["--routing", routing]);
        let mut plain = vec!["--strategy", "none"];
        plain.extend(&drawn);
        let (expected, _) = run(&model, &plain);
        for strategy in ["all", "experts", "pin,stream"] {
            let mut options = vec!["--strategy", strategy, "--memory", "150M", "--cold"];
            options.extend(&drawn);
            let (report, _) = run(&model, &options);
            assert_same(&expected, &report);
            assert_within_budget(&report);
            if strategy != "pin,stream" {
                assert!(number(&report, "/shares/expert_slots") >= 8, "{report}");
                assert!(number(&report, "/fed/expert_misses") > 0, "{report}");
            }
        }
    }
}

#[test]
fn a_model_that_fits_is_left_alone() {
    let model = shipped("shakespeare-moe.gguf");
    let (expected, _) = run(&model, &["--strategy", "none"]);
    let (report, stderr) = run(&model, &["--memory", "2G"]);
    assert_same(&expected, &report);
    assert!(stderr.contains("llama.cpp runs as it is"), "{stderr}");
    assert!(report["shares"].is_null());
}

#[test]
fn a_plan_is_made_edited_and_carried_out() {
    let folder = tempfile::tempdir().unwrap();
    let models = Models::new();
    let model = models.path("dense.gguf");
    let file = folder.path().join("my.plan").display().to_string();
    let output = tensorscope(&[
        "plan",
        &model,
        "--memory",
        "220M",
        "-c",
        "256",
        "--ubatch-size",
        "32",
        "--disk",
        "1G",
        "--compute",
        "0.02",
        "-o",
        &file,
    ]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    for word in ["keep ", "stream ", "predicted ", "without ", "1.07 GB/s"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let (expected, _) = run(&model, &["--strategy", "none"]);
    let (report, stderr) = run(&model, &["--plan", &file]);
    assert_same(&expected, &report);
    assert_within_budget(&report);
    assert!(stderr.contains("predicted"), "{stderr}");
    // One weight from the pinned to the streamed, by hand.
    let mut plan: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let is_matrix = |name: &&Value| name.as_str().unwrap().contains("attn_q.weight");
    let pinned = plan["pin"].as_array().unwrap();
    let moved = pinned.iter().find(is_matrix).unwrap_or(&pinned[0]).clone();
    let rest: Vec<Value> = pinned
        .iter()
        .filter(|name| **name != moved)
        .cloned()
        .collect();
    plan["pin"] = rest.into();
    plan["stream"].as_array_mut().unwrap().push(moved);
    std::fs::write(&file, plan.to_string()).unwrap();
    let (edited, _) = run(&model, &["--plan", &file]);
    assert_same(&expected, &edited);
    let pinned = |report: &Value| number(report, "/shares/pinned_bytes");
    assert!(pinned(&edited) < pinned(&report));
    // For another model it is refused, and so is a word that is no field.
    let other = tensorscope(&[
        "run",
        "-m",
        &models.path("moe.gguf"),
        "-p",
        "x",
        "--plan",
        &file,
    ]);
    assert_eq!(other.status.code(), Some(2));
    let stderr = String::from_utf8(other.stderr).unwrap();
    assert!(stderr.contains("which is another model"), "{stderr}");
    plan["pins"] = plan["pin"].clone();
    std::fs::write(&file, plan.to_string()).unwrap();
    let wrong = tensorscope(&["run", "-m", &model, "-p", "x", "--plan", &file]);
    let stderr = String::from_utf8(wrong.stderr).unwrap();
    assert!(stderr.contains("pins"), "{stderr}");
}

#[test]
fn a_run_gives_its_order_and_routing_to_the_plan() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("run").display().to_string();
    let models = Models::new();
    let model = models.path("moe.gguf");
    let recorded = tensorscope(&[
        "record",
        "-q",
        "-m",
        &model,
        "-p",
        "To be",
        "-n",
        "12",
        "--ignore-eos",
        "-t",
        "2",
        "--no-tables",
        "-o",
        &directory,
    ]);
    assert!(recorded.status.success(), "{recorded:?}");
    let planned = tensorscope(&[
        "plan",
        &directory,
        "--memory",
        "180M",
        "-c",
        "256",
        "--ubatch-size",
        "32",
        "--disk",
        "1G",
    ]);
    let text = String::from_utf8(planned.stdout).unwrap();
    assert!(planned.status.success());
    assert!(text.contains("on the run's routing: lru "), "{text}");
    assert!(text.contains("(Belady) "), "{text}");
    assert!(!text.contains("is an estimate"), "{text}");
    for memory in ["170M", "200M"] {
        report_says_what_plan_says(folder.path(), &directory, memory);
    }
}

/// One run, one memory, one machine: one prediction, whoever is asked.
fn report_says_what_plan_says(folder: &Path, run: &str, memory: &str) {
    let rates = |rate: u64| Rates::of(vec![rate]).unwrap();
    let threads = |threads| ThreadsCeiling {
        threads,
        bytes_per_second: 10_000_000_000,
        rates: rates(10_000_000_000),
        buffer_bytes: 1 << 30,
        residence: Residence::Memory,
        on_cpu_permille: 1000,
    };
    let ceilings = Ceilings {
        disk: DiskCeiling {
            bytes_per_second: 1_000_000_000,
            rates: rates(1_000_000_000),
            method: Method::IoUringDirect,
            setting: Setting {
                block_bytes: 1 << 20,
                depth: 32,
            },
            alignment_bytes: Some(512),
            path: PathBuf::from("model"),
            file_bytes: 1,
            device: None,
            bytes_read: 1,
            elapsed_nanos: 1,
            refused: vec![],
            sweep: vec![],
            caveats: vec![],
        },
        memory: MemoryCeiling {
            bytes_per_second: 10_000_000_000,
            one_thread: threads(1),
            all_threads: threads(2),
            between: vec![],
            last_level_cache_bytes: None,
        },
        compute: None,
        cards: vec![],
        cpu_threads: 2,
        when: "2026-01-01T00:00:00Z".into(),
    };
    let file = folder.join("ceilings.json");
    std::fs::write(&file, serde_json::to_string(&ceilings).unwrap()).unwrap();
    let ask = |command: &str| -> Value {
        let file = file.display().to_string();
        let args = [
            command,
            run,
            "--memory",
            memory,
            "--ceilings",
            &file,
            "--json",
        ];
        let output = tensorscope(&args);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
    };
    let (plan, report) = (ask("plan"), ask("report"));
    let budget = &report["caches"]["opportunities"]["budgets"][0];
    assert_eq!(budget["budget_bytes"], plan["memory"]["weights_bytes"]);
    let of = |strategy: &str| {
        let all = budget["strategies"].as_array().unwrap();
        all.iter().find(|s| s["strategy"] == strategy).unwrap()
    };
    let (fed, stock) = (of("expert_cache"), of("page_cache"));
    let predicted = &plan["predicted"];
    for (said, planned) in [(fed, predicted), (stock, &predicted["stock"])] {
        assert_eq!(
            said["disk_bytes_per_token"],
            planned["bytes_read_per_token"]
        );
        // A plan has four digits.
        let speed = |value: &Value| value["tokens_per_second"].as_f64().unwrap();
        let ratio = speed(said) / speed(planned);
        assert!((ratio - 1.0).abs() < 1e-3, "{said} {planned}");
    }
    assert!(predicted["bytes_read_per_token"].as_u64().unwrap() > 0);
}

#[test]
fn it_says_so_when_it_will_not_help() {
    let model = shipped("shakespeare-dense.gguf");
    let output = tensorscope(&["plan", &model, "--memory", "4G", "--disk", "1G"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("it will not help, because all weights"),
        "{text}"
    );
}

#[test]
fn bad_input_is_one_line() {
    let dense = shipped("shakespeare-dense.gguf");
    let missing = PathBuf::from("/no/such.gguf").display().to_string();
    let check = |args: &[&str], expect: &str| {
        let output = tensorscope(args);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains(expect), "{args:?}: {stderr}");
    };
    check(&["run", "-m", &dense], "the prompt is empty");
    check(&["run", "-m", &missing, "-p", "x"], "no such file");
    check(
        &["run", "-m", &dense, "-p", "x", "--memory", "5"],
        "are less than the program alone takes",
    );
    check(
        &["run", "-m", &dense, "-p", "x", "--memory", "fast"],
        "is not a valid size",
    );
    check(
        &["run", "-m", &dense, "-p", "x", "--memory", "-1%"],
        "not a valid share",
    );
    check(
        &["run", "-m", &dense, "-p", "x", "--strategy", "magic"],
        "is not a strategy",
    );
    check(
        &["run", "-m", &dense, "-p", "x", "--policy", "mru"],
        "not known",
    );
    check(
        &["run", "-m", &dense, "-p", "x", "--inject", "fail=2"],
        "not a valid share",
    );
    check(
        &["run", "-m", &dense, "-p", "x", "--routing", "odd"],
        "not a distribution",
    );
    check(
        &["run", "-m", &dense, "-p", "x", "--plan", &missing],
        "cannot read",
    );
    check(
        &["run", "-m", &dense, "-p", "x", "--plan", &dense],
        "cannot read",
    );
    check(&["plan", &missing, "--memory", "1G"], "no such file");
    check(&["plan", &dense], "--memory");
    check(
        &["plan", &dense, "--memory", "1G", "--disk", "0"],
        "needs no plan",
    );
    check(
        &["plan", &dense, "--memory", "1G", "--compute", "-1"],
        "is not a valid time",
    );
}

#[test]
fn a_disk_that_fails_ends_it_with_a_line() {
    let models = Models::new();
    let model = models.path("dense.gguf");
    let output = tensorscope(&[
        "run", "-m", &model, "-p", "x", "-n", "4", "--memory", "200M", "--inject", "fail=1", "-q",
    ]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.contains("dense.gguf: cannot read"), "{stderr}");
    assert!(output.stdout.iter().all(u8::is_ascii_whitespace));
}
