//! Which of llama.cpp's kernels compute: the variable, the run's metadata, `doctor`.
#![cfg(target_arch = "x86_64")]

use crate::fixture::*;

const VARIABLE: &str = "TENSORSCOPE_CPU";

/// The most modest, which every processor that this program runs on has.
#[test]
fn the_variable_chooses_the_kernels_and_the_run_says_which() {
    let folder = tempfile::tempdir().unwrap();
    let output = record_command(folder.path(), &dense(), &["-p", "To be", "-n", "3"])
        .args(["-o", "RUN"])
        .env(VARIABLE, "sse42")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let run = rundir::Run::open(&folder.path().join("RUN")).unwrap();
    let kernels = run.metadata().unwrap().versions.kernels.clone();
    assert_eq!(kernels.as_deref(), Some("sse42"));
}

#[test]
fn kernels_that_there_are_not_are_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let output = record_command(folder.path(), &dense(), &["-p", "To be", "-n", "3"])
        .env(VARIABLE, "avx9")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = stderr(&output);
    let expected = "TENSORSCOPE_CPU=avx9: there are no such kernels; those there are: sse42, avx2, avx512, avx512bf16";
    assert!(said.trim_end().ends_with(expected), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn doctor_says_which_kernels_are_used_and_which_others_there_are() {
    let folder = tempfile::tempdir().unwrap();
    let output = tensorscope(folder.path())
        .arg("doctor")
        .env(VARIABLE, "sse42")
        .output()
        .unwrap();
    let page = stdout(&output);
    let line = page.lines().next().unwrap();
    for part in ["uses its sse42 kernels (SSE4.2); ", "avx2", "avx512"] {
        assert!(line.contains(part), "{line}");
    }
}

/// llama-cpp-sys-2's own copy, compiled for AVX2, would bring templates of the C++ library with
/// it, which the linker may take for the whole program: it would end where there is no AVX2.
#[test]
fn the_only_kernels_in_the_program_are_those_of_the_variants() {
    let output = std::process::Command::new("nm")
        .args(["--defined-only", "--extern-only", "--format=just-symbols"])
        .arg(env!("CARGO_BIN_EXE_tensorscope"))
        .output()
        .unwrap();
    let symbols = stdout(&output);
    let is_there = |name: &str| symbols.lines().any(|symbol| symbol == name);
    assert!(is_there("tensorscope_avx512_ggml_backend_cpu_reg"));
    for name in [
        "ggml_backend_cpu_reg",
        "ggml_graph_compute",
        "ggml_cpu_init",
    ] {
        assert!(!is_there(name), "{name}");
    }
}
