//! Bad input: one clear line, exit code 2, nothing left behind, no backtrace.

use std::path::Path;

use crate::fixture::*;

/// Runs `record` into `RUN` and expects it to refuse, with these words.
fn refuses(folder: &Path, model: &Path, args: &[&str], words: &[&str]) {
    let output = record(folder, model, &[&["-o", "RUN"], args].concat());
    let talk = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {talk}");
    assert_eq!(stdout(&output), "", "{args:?}");
    assert!(
        !talk.contains("backtrace") && !talk.contains("panicked"),
        "{args:?}: {talk}"
    );
    for word in words {
        assert!(talk.contains(word), "{args:?}: {word:?} is not in {talk:?}");
    }
    if talk.starts_with("tensorscope: ") {
        assert_eq!(talk.lines().count(), 1, "{args:?}: {talk}");
    } else {
        // clap's own: the error, an empty line, a hint.
        assert!(
            talk.starts_with("error: ") && talk.lines().count() <= 5,
            "{args:?}: {talk}"
        );
    }
    assert!(!folder.join("RUN").exists(), "{args:?} left a run behind");
}

#[test]
fn bad_models_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let prompt = ["-p", "To be", "-n", "1"];
    refuses(folder.path(), &path("none.gguf"), &prompt, &["none.gguf"]);
    std::fs::write(path("text.gguf"), "this is no model\n").unwrap();
    refuses(
        folder.path(),
        &path("text.gguf"),
        &prompt,
        &["text.gguf", "GGUF"],
    );
    let bytes = std::fs::read(dense()).unwrap();
    std::fs::write(path("short.gguf"), &bytes[..bytes.len() / 2]).unwrap();
    refuses(
        folder.path(),
        &path("short.gguf"),
        &prompt,
        &["short.gguf", "the file ends at byte"],
    );
    refuses(
        folder.path(),
        folder.path(),
        &prompt,
        &["not a regular file"],
    );
    // Sound, but of an architecture that llama.cpp does not know.
    let mut bytes = bytes;
    let key = bytes
        .windows(20)
        .position(|w| w == b"general.architecture")
        .unwrap();
    let value = key + bytes[key..].windows(5).position(|w| w == b"llama").unwrap();
    bytes[value..value + 5].copy_from_slice(b"lxama");
    std::fs::write(path("unknown.gguf"), bytes).unwrap();
    refuses(
        folder.path(),
        &path("unknown.gguf"),
        &prompt,
        &["unknown.gguf", "llama.cpp refuses the model", "lxama"],
    );
}

#[test]
fn bad_prompts_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("empty.txt"), "").unwrap();
    std::fs::write(folder.path().join("latin1.txt"), b"caf\xe9").unwrap();
    let check = |args: &[&str], words: &[&str]| refuses(folder.path(), &dense(), args, words);
    check(&[], &["the prompt is empty", "-p TEXT"]);
    check(&["-p", ""], &["the prompt is empty"]);
    check(&["-p", "To be", "-p", ""], &["the prompt is empty"]);
    check(&["-f", "empty.txt"], &["the prompt is empty"]);
    // Standard input is /dev/null.
    check(&["-f", "-"], &["the prompt is empty"]);
    check(
        &["-f", "latin1.txt"],
        &["latin1.txt: byte 3: the prompt is not UTF-8"],
    );
    check(
        &["-f", "none.txt"],
        &["none.txt: cannot read the prompt: no such file"],
    );
    check(&["-f", "."], &["cannot read the prompt: is a directory"]);
    check(&["-p", "x", "-f", "empty.txt"], &["cannot be used with"]);
    let long = "word ".repeat(200);
    check(
        &["-p", &long, "-c", "64"],
        &["the context holds 64", "--ctx"],
    );
    check(
        &["-p", "x", "-n", "300", "-c", "256"],
        &["300 more are wanted", "--ctx-size 302"],
    );
}

#[test]
fn absurd_numbers_are_refused_before_llama_cpp_sees_them() {
    let folder = tempfile::tempdir().unwrap();
    let check = |flag: &str, value: &str, words: &[&str]| {
        refuses(folder.path(), &dense(), &["-p", "x", flag, value], words);
    };
    check("--parallel", "0", &["--parallel"]);
    check("--parallel", "257", &["256"]);
    check("--parallel", "100000000000", &["--parallel"]);
    check("--batch-size", "0", &["--batch-size"]);
    // As u32 this would be 0.
    check("--batch-size", "4294967296", &["--batch-size"]);
    check("--ubatch-size", "0", &["--ubatch-size"]);
    check("--tokens", "18446744073709551615", &["--tokens"]);
    check(
        "--tokens",
        "4294967295",
        &["4294967297 tokens", "fewer tokens"],
    );
    check("--ctx-size", "4294967297", &["--ctx-size"]);
    check("--ctx-size", "4294967295", &["of memory", "--ctx-size"]);
    check("--ctx-size", "0", &["the context holds 0"]);
    check("--temp", "-1", &["a temperature is 0 or a positive number"]);
    check("--temp", "nan", &["a temperature"]);
    check("--top-p", "1.5", &["between 0 and 1"]);
    check("--cache-type-k", "q9_9", &["--cache-type-k", "q8_0"]);
    check(
        "--flash-attn",
        "maybe",
        &["[possible values: auto, on, off]"],
    );
    let quantised = ["-p", "x", "--cache-type-v", "q4_0", "--flash-attn", "off"];
    refuses(
        folder.path(),
        &dense(),
        &quantised,
        &["V cache requires flash_attn"],
    );
    let prompts: Vec<&str> = (0..257).flat_map(|_| ["-p", "x"]).collect();
    refuses(
        folder.path(),
        &dense(),
        &prompts,
        &["257 prompts", "256 sequences"],
    );
}

/// `-t` is given by the fixture, and may be given once.
#[test]
fn absurd_thread_counts_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for threads in ["0", "513", "60000", "-1", "many"] {
        let mut command = tensorscope(folder.path());
        command
            .args(["record", "-p", "x", "-o", "RUN", "-t", threads, "-m"])
            .arg(dense());
        let output = command.output().unwrap();
        assert_eq!(
            output.status.code(),
            Some(2),
            "{threads}: {}",
            stderr(&output)
        );
        assert!(!folder.path().join("RUN").exists());
    }
}

#[test]
fn a_refused_run_leaves_a_folder_that_was_there() {
    let folder = tempfile::tempdir().unwrap();
    let mine = folder.path().join("mine");
    std::fs::create_dir(&mine).unwrap();
    let output = record(
        folder.path(),
        &dense(),
        &["-p", "x", "-n", "300", "-c", "256", "-o", "mine"],
    );
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(std::fs::read_dir(&mine).unwrap().count(), 0);
}

#[test]
fn bad_output_paths_are_refused_before_the_model_loads() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let _ = recorded(folder.path(), &dense(), &["-p", "x", "-n", "1"]);
    std::fs::write(path("file"), "mine").unwrap();
    std::fs::create_dir(path("full")).unwrap();
    std::fs::write(path("full/mine"), "mine").unwrap();
    // Has a sound header and is refused by llama.cpp: if that were asked first, its
    // answer would show.
    let mut bytes = std::fs::read(dense()).unwrap();
    let value = bytes.windows(5).position(|w| w == b"llama").unwrap();
    bytes[value..value + 5].copy_from_slice(b"lxama");
    std::fs::write(path("refused.gguf"), bytes).unwrap();
    let check = |output: &str, word: &str| {
        let result = record(
            folder.path(),
            &path("refused.gguf"),
            &["-p", "x", "-o", output],
        );
        let talk = stderr(&result);
        assert_eq!(result.status.code(), Some(2), "{talk}");
        assert!(
            talk.starts_with("tensorscope: ") && talk.lines().count() == 1,
            "{talk}"
        );
        assert!(talk.contains(word) && talk.contains(output), "{talk}");
    };
    check("RUN-0", "is already there and is not overwritten");
    check("file", "a file is already there");
    check("full", "not empty is already there");
    check("none/run", "the folder none does not exist");
    check(
        "file/run",
        "cannot create the run directory: not a directory",
    );
    check("/proc/run", "cannot create the run directory");
    assert_eq!(std::fs::read(path("file")).unwrap(), b"mine");
    assert_eq!(std::fs::read(path("full/mine")).unwrap(), b"mine");
}
