//! `tensorscope synth` as a user runs it: files, exit codes, messages.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

#[test]
fn writes_a_model_of_the_size_it_says() {
    let dir = tempfile::tempdir().unwrap();
    let output = synth(
        dir.path(),
        "--like mixtral-8x7b --tiny --type q4_K -o m.gguf --json",
    );
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(result["architecture"], "llama");
    assert_eq!(result["experts"], 8);
    assert_eq!(result["written"], true);
    let size_bytes = std::fs::metadata(dir.path().join("m.gguf")).unwrap().len();
    assert_eq!(result["size_bytes"], size_bytes);
    assert_eq!(result["files"][0]["size_bytes"], size_bytes);
    let model = gguf::Model::open(&dir.path().join("m.gguf")).unwrap();
    assert_eq!(result["tensors"], model.tensors().len());
    let parameters: u64 = model.tensors().iter().map(gguf::Tensor::elements).sum();
    assert_eq!(result["parameters"], parameters);
    assert_eq!(stderr(&output), "");
}

#[test]
fn a_split_set_has_the_names_llama_cpp_looks_for() {
    let dir = tempfile::tempdir().unwrap();
    let output = synth(
        dir.path(),
        "--like llama-3.2-1b --tiny --split 1M -o m.gguf",
    );
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let names = listing(dir.path());
    let count = names.len();
    let expected: Vec<String> = (1..=count)
        .map(|n| format!("m-{n:05}-of-{count:05}.gguf"))
        .collect();
    assert!(count > 1);
    assert_eq!(names, expected);
    let model = gguf::Model::open(&dir.path().join(&names[0])).unwrap();
    assert_eq!(model.files().len(), count);
}

#[test]
fn existing_files_are_replaced_only_by_force() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    std::fs::write(&path, "mine").unwrap();
    let args = "--like llama-2-7b --tiny -o m.gguf";
    refuses(dir.path(), args, &["m.gguf", "exists already", "--force"]);
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    let output = synth(dir.path(), &format!("{args} --force"));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(std::fs::read(&path).unwrap().starts_with(b"GGUF"));
}

#[test]
fn a_dry_run_says_the_size_and_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let output = synth(dir.path(), "--like llama-2-7b --type f16 --dry-run --json");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(result["parameters"], 6_738_415_616u64);
    assert_eq!(result["written"], false);
    // Two bytes a parameter, and at most 2 MB of header and f32 norms.
    let size_bytes = result["size_bytes"].as_u64().unwrap();
    assert!(
        (13_476_831_232..13_480_000_000).contains(&size_bytes),
        "{size_bytes}"
    );
    assert_eq!(listing(dir.path()), [] as [&str; 0]);
}

#[test]
fn the_list_names_every_preset_with_its_size() {
    let dir = tempfile::tempdir().unwrap();
    let table = synth(dir.path(), "--list");
    let rows: Value = serde_json::from_slice(&synth(dir.path(), "--list --json").stdout).unwrap();
    let table = String::from_utf8(table.stdout).unwrap();
    assert_eq!(rows.as_array().unwrap().len(), synth::PRESETS.len());
    for (row, preset) in rows.as_array().unwrap().iter().zip(synth::PRESETS) {
        assert_eq!(row["preset"], preset.name);
        assert!(row["size_bytes"].as_u64() > row["tiny_size_bytes"].as_u64());
        assert!(
            table.lines().any(|line| line.starts_with(preset.name)),
            "{}",
            preset.name
        );
    }
}

#[test]
fn types_that_do_not_fit_are_said() {
    let dir = tempfile::tempdir().unwrap();
    let args = "--like gemma-3-1b --tiny --type q4_K -o m.gguf";
    let output = synth(dir.path(), args);
    assert_eq!(output.status.code(), Some(0));
    let said = stderr(&output);
    assert!(
        said.contains("q5_0 instead of q4_K: rows of 288 elements"),
        "{said}"
    );
    let quiet = synth(dir.path(), &format!("{args} --force --quiet"));
    assert_eq!(stderr(&quiet), "");
}

#[test]
fn bad_requests_get_one_line_and_exit_2() {
    let dir = tempfile::tempdir().unwrap();
    let check = |args: &str, expect: &[&str]| refuses(dir.path(), args, expect);
    check("--like gpt-9 -o m.gguf", &["no preset \"gpt-9\"", "--list"]);
    check("--like llama-2-7b --type q9 -o m.gguf", &["q9", "q4_K"]);
    check(
        "--like llama-2-7b --type iq1_s -o m.gguf",
        &["iq1_s", "possible"],
    );
    check("--like llama-2-7b --experts 4 -o m.gguf", &["no experts"]);
    check(
        "--like llama-2-7b --layers 0 -o m.gguf",
        &["--layers", "between 1 and 512"],
    );
    check(
        "--like llama-2-7b --vocab 10 -o m.gguf",
        &["--vocab", "354"],
    );
    check(
        "--like llama-2-7b --tiny -o no/such/m.gguf",
        &["no/such", "No such file or directory"],
    );
    check("--like llama-2-7b --tiny -o .", &[".: is a folder"]);
    check("--like llama-2-7b --tiny --force -o .", &[".: is a folder"]);
    // 370 TB: no disk of a test machine has that.
    check(
        "--like mixtral-8x7b --layers 512 --experts 1024 --type f32 -o m.gguf",
        &["m.gguf", "needs", "TB", "free"],
    );
    assert_eq!(listing(dir.path()), [] as [&str; 0]);
}

#[test]
fn wrong_usage_is_explained_by_the_parser() {
    let dir = tempfile::tempdir().unwrap();
    for (args, expect) in [
        ("", "--like"),
        ("--like llama-2-7b", "--output"),
        ("--like llama-2-7b -o m.gguf --split 0", "count of tensors"),
        ("--like llama-2-7b -o m.gguf --split 3X", "unknown unit 'X'"),
        ("--like llama-2-7b -o m.gguf --layers many", "invalid"),
    ] {
        let output = synth(dir.path(), args);
        assert_eq!(output.status.code(), Some(2), "{args}");
        assert!(
            stderr(&output).contains(expect),
            "{args}: {}",
            stderr(&output)
        );
    }
}

#[test]
fn a_failing_write_is_reported_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    // A limit of 64 KiB a file stands in for a full disk; without the trap,
    // the signal that comes with it would end the program.
    let script = format!(
        "trap '' XFSZ; ulimit -f 128; exec {} synth --like llama-2-7b --tiny -o m.gguf",
        env!("CARGO_BIN_EXE_tensorscope")
    );
    let output = Command::new("sh")
        .args(["-c", &script])
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    let said = stderr(&output);
    assert_eq!(said, "tensorscope: m.gguf: cannot write: file too large\n");
    assert_eq!(listing(dir.path()), [] as [&str; 0]);
}

#[test]
fn an_interrupt_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    // Large enough to be still at it when the signal comes.
    let child = command(dir.path(), "--like llama-3.2-1b --type f16 -o m.gguf")
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    while listing(dir.path()).is_empty() {
        std::thread::yield_now();
    }
    // SAFETY: the child is ours and has not been waited for, so the number is
    // still its own.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("interrupted"),
        "{}",
        stderr(&output)
    );
    assert_eq!(listing(dir.path()), [] as [&str; 0]);
}

fn command(dir: &Path, args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorscope"));
    command
        .arg("synth")
        .args(args.split_whitespace())
        .current_dir(dir);
    command
}

fn synth(dir: &Path, args: &str) -> Output {
    command(dir, args).output().unwrap()
}

/// One line on stderr with all of `expect`, exit code 2, nothing on stdout.
fn refuses(dir: &Path, args: &str, expect: &[&str]) {
    let output = synth(dir, args);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{args}: {said}");
    assert_eq!(said.lines().count(), 1, "{args}: {said}");
    assert!(said.starts_with("tensorscope: "), "{said}");
    for part in expect {
        assert!(
            said.contains(part),
            "{args}: {part:?} is missing in: {said}"
        );
    }
    assert!(output.stdout.is_empty(), "{args}");
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn listing(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}
