//! Memory that is too little for something: it is said, with why and what to change.

use super::{Models, assert_same, assert_within_budget, number, run, shipped, tensorscope};

/// Of a small model with a large vocabulary, most is the output head: it is streamed in
/// pieces where a ring for three of it would be larger than the budget.
#[test]
fn an_output_head_larger_than_the_ring_is_streamed_in_pieces() {
    let models = Models::new();
    let model = models.path("head.gguf");
    let shape = [
        "--like",
        "gemma-3-1b",
        "--layers",
        "2",
        "--vocab",
        "131072",
        "--type",
        "q4_0",
    ];
    let mut args = vec!["synth", "-q", "-o", &model];
    args.extend(shape);
    assert!(tensorscope(&args).status.success());
    let (expected, _) = run(&model, &["--strategy", "none"]);
    let (report, stderr) = run(&model, &["--memory", "130M", "--cold"]);
    assert_same(&expected, &report);
    assert_within_budget(&report);
    let head_bytes = 131_072 * 1152 / 32 * 18;
    // Some of them are kept, because there is room.
    let streamed = number(&report, "/shares/streamed_bytes");
    assert!((1..head_bytes).contains(&streamed), "{report}");
    assert!(number(&report, "/shares/pinned_bytes") > 0, "{report}");
    assert!(
        number(&report, "/shares/ring_bytes") < head_bytes,
        "{report}"
    );
    assert_eq!(number(&report, "/shares/mapped_bytes"), 0, "{report}");
    assert!(stderr.contains("fed within 130.0 MiB: "), "{stderr}");
}

#[test]
fn what_is_not_fed_says_so_and_which_flag_helps() {
    let models = Models::new();
    let model = models.path("dense.gguf");
    // Almost all of it is the KV cache.
    let (report, stderr) = run(&model, &["--memory", "64M", "--ctx-size", "6656"]);
    assert_within_budget(&report);
    let line = stderr
        .lines()
        .find(|line| line.contains("not fed: of 64.0 MiB"));
    let line = line.unwrap_or_else(|| panic!("{stderr}"));
    assert!(line.contains(" left for 132.8 MiB of weights"), "{line}");
    assert!(line.contains("--ctx-size 256 frees about"), "{line}");
    assert!(!stderr.contains("predicted"), "{stderr}");
    // The memory that it names is enough.
    let (_, memory) = line.rsplit_once("--memory ").unwrap();
    let (_, stderr) = run(&model, &["--memory", memory, "--ctx-size", "6656"]);
    assert!(!stderr.contains("page cache"), "{memory}: {stderr}");
    assert!(stderr.contains("fed within"), "{memory}: {stderr}");
}

#[test]
fn a_plan_without_memory_says_what_the_model_needs() {
    let models = Models::new();
    let model = models.path("dense.gguf");
    let plan = |memory: &str| {
        let output = tensorscope(&["plan", &model, "--memory", memory, "--disk", "1G"]);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let text = plan("90M");
    let line = text.lines().find(|line| line.contains("are not enough"));
    let line = line.unwrap_or_else(|| panic!("{text}"));
    for part in [
        "the KV cache of 2048 tokens takes",
        "--ubatch-size 32 frees about",
    ] {
        assert!(line.contains(part), "{line}");
    }
    let (_, memory) = line.rsplit_once("--memory ").unwrap();
    let text = plan(memory);
    assert!(!text.contains("are not enough"), "{text}");
    assert!(!text.contains("to the page cache"), "{text}");
}

/// Buffers are asked for with room for the longest graph; what no graph touches is for weights.
#[test]
fn a_long_batch_that_does_not_come_takes_no_memory() {
    let model = shipped("shakespeare-dense.gguf");
    let other = |more: &[&str]| {
        let mut args = vec!["run", "-m", &model, "-p", "To be", "-n", "2", "--json"];
        args.extend(["--always", "--memory", "300M"]);
        args.extend(more);
        let output = tensorscope(&args);
        assert!(output.status.success(), "{output:?}");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (number(&report, "/shares/other_bytes"), report)
    };
    let (short, expected) = other(&[]);
    let (long, report) = other(&["--ubatch-size", "512"]);
    assert!(short.abs_diff(long) < 1 << 20, "{short} {long}");
    assert_eq!(expected["logits_hash"], report["logits_hash"]);
}
