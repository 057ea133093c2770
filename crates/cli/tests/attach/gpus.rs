//! Graphics cards that are not there: shared objects of tests/fakes stand in for NVIDIA's driver,
//! for CUPTI and for Vulkan, so that what `doctor` and `bench ceilings` say of them can be tested.

use std::{fs, path::Path, process::Command};

use serde_json::Value;

use crate::fixture::*;

const CUDA: &str = include_str!("../fakes/cuda.c");
const CUPTI: &str = include_str!("../fakes/cupti.c");
const VULKAN: &str = include_str!("../fakes/vulkan.c");

/// Compiles one of them into a folder; `define` is `NAME=VALUE`, or empty.
fn fake(folder: &Path, file: &str, source: &str, define: &str) {
    fs::create_dir_all(folder).unwrap();
    let path = folder.join("fake.c");
    fs::write(&path, source).unwrap();
    let mut compile = Command::new("cc");
    compile.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1"]);
    compile
        .args(["-shared", "-fPIC", "-o"])
        .arg(folder.join(file));
    if !define.is_empty() {
        compile.arg(format!("-D{define}"));
    }
    let output = compile.arg(&path).arg("-lm").output().unwrap();
    assert!(output.status.success(), "{file}: {}", stderr(&output));
}

/// The program where nothing of NVIDIA's is found but what is in `libraries`.
fn with_libraries(folder: &Path, libraries: &Path) -> Command {
    let mut command = tensorscope(folder);
    command.env("LD_LIBRARY_PATH", libraries);
    command.env("HOME", folder).env("PATH", "/usr/bin:/bin");
    for variable in [
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "PYTHONPATH",
        "TENSORSCOPE_CUDA",
        "CUDA_INJECTION64_PATH",
        "NSYS_PROFILING_SESSION_ID",
        "GGML_CUDA_DISABLE_GRAPHS",
        "CUDA_VISIBLE_DEVICES",
    ] {
        command.env_remove(variable);
    }
    command
}

/// What doctor says of one thing, if it does.
fn finding(command: &mut Command, what: &str) -> Option<(bool, String, Option<String>)> {
    let output = command.args(["doctor", "--json"]).output().unwrap();
    let findings: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let found = findings.iter().find(|finding| finding["what"] == what)?;
    let text = |name: &str| found[name].as_str().map(str::to_owned);
    Some((
        found["works"].as_bool().unwrap(),
        text("state").unwrap(),
        text("fix"),
    ))
}

#[test]
fn a_machine_without_a_driver_is_not_broken() {
    let folder = tempfile::tempdir().unwrap();
    let doctor = || with_libraries(folder.path(), folder.path());
    let (works, state, _) = finding(&mut doctor(), "gpu").unwrap();
    if state.starts_with("NVIDIA's driver") {
        println!("skipped: this machine has a driver");
        return;
    }
    assert!(works, "{state}");
    assert!(state.contains("libcuda.so.1"), "{state}");
    assert_eq!(finding(&mut doctor(), "cupti"), None);
    assert_eq!(finding(&mut doctor(), "gpu profiler"), None);
}

#[test]
fn a_card_is_named_and_a_missing_cupti_has_its_command() {
    let folder = tempfile::tempdir().unwrap();
    let libraries = folder.path().join("libraries");
    fake(&libraries, "libcuda.so.1", CUDA, "");
    let doctor = || with_libraries(folder.path(), &libraries);
    let (works, state, _) = finding(&mut doctor(), "gpu").unwrap();
    assert!(works);
    assert_eq!(
        state,
        "NVIDIA's driver for CUDA 12.8; CUDA0 is Fake Card, 0.3 GB"
    );
    let (works, _, fix) = finding(&mut doctor(), "cupti").unwrap();
    assert!(!works);
    assert_eq!(
        fix.as_deref(),
        Some("pip install --upgrade nvidia-cuda-cupti-cu12")
    );
    // A driver that does not start is something to mend.
    let (works, state, fix) = finding(doctor().env("FAKE_CUDA_INIT", "803"), "gpu").unwrap();
    assert!(!works && fix.is_some());
    assert!(state.contains("unsupported display driver"), "{state}");
    // One that shows no card is not.
    let (works, state, _) = finding(doctor().env("FAKE_CUDA_INIT", "100"), "gpu").unwrap();
    assert!(works && state.ends_with("it shows no card"), "{state}");
}

#[test]
fn a_cupti_that_is_too_old_or_too_new_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let libraries = folder.path().join("libraries");
    fake(&libraries, "libcuda.so.1", CUDA, "");
    let doctor = || with_libraries(folder.path(), &libraries);
    fake(&libraries, "libcupti.so.12", CUPTI, "VERSION=21");
    let (works, state, fix) = finding(&mut doctor(), "cupti").unwrap();
    assert!(!works);
    assert!(
        state.contains("is that of CUDA 12.3, older than 12.4 update 1"),
        "{state}"
    );
    assert_eq!(
        fix.as_deref(),
        Some("pip install --upgrade nvidia-cuda-cupti-cu12")
    );
    fs::remove_file(libraries.join("libcupti.so.12")).unwrap();
    fake(&libraries, "libcupti.so.13", CUPTI, "VERSION=130001");
    let (works, state, _) = finding(&mut doctor(), "cupti").unwrap();
    assert!(!works);
    assert!(state.contains("CUPTI must not be the later one"), "{state}");
    // The next one will do: that of a wheel, where the interpreter has it.
    let packages = folder.path().join(".local/lib/python3.11/site-packages");
    let wheel = packages.join("nvidia/cuda_cupti/lib");
    fake(&wheel, "libcupti.so.12", CUPTI, "VERSION=22");
    fs::create_dir(packages.join("nvidia_cuda_cupti_cu12-12.4.127.dist-info")).unwrap();
    let (works, state, _) = finding(&mut doctor(), "cupti").unwrap();
    assert!(works, "{state}");
    assert!(state.starts_with("that of CUDA 12.4.127, "), "{state}");
}

#[test]
fn another_profiler_and_switched_off_graphs_are_said() {
    let folder = tempfile::tempdir().unwrap();
    let libraries = folder.path().join("libraries");
    fake(&libraries, "libcuda.so.1", CUDA, "");
    let doctor = || with_libraries(folder.path(), &libraries);
    assert!(finding(&mut doctor(), "gpu profiler").unwrap().0);
    assert!(finding(&mut doctor(), "cuda graphs").unwrap().0);
    let injected = doctor()
        .env("CUDA_INJECTION64_PATH", "/opt/other/libinject.so")
        .env("GGML_CUDA_DISABLE_GRAPHS", "1")
        .args(["doctor"])
        .output()
        .unwrap();
    let page = stdout(&injected);
    assert_eq!(injected.status.code(), Some(1), "{page}");
    assert!(
        page.contains("libinject.so is attached (CUDA_INJECTION64_PATH is set)")
            && page.contains("fix: unset CUDA_INJECTION64_PATH")
            && page.contains("fix: unset GGML_CUDA_DISABLE_GRAPHS"),
        "{page}"
    );
}

#[test]
fn devices_of_vulkan_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let libraries = folder.path().join("libraries");
    fake(&libraries, "libvulkan.so.1", VULKAN, "");
    let mut doctor = with_libraries(folder.path(), &libraries);
    let (works, state, _) = finding(&mut doctor, "vulkan").unwrap();
    assert!(works);
    assert_eq!(
        state,
        "Fake Radeon; llvmpipe; recorded without times of kernels"
    );
}

/// The kernels themselves are those of the fake: what is tested is what is asked of the card,
/// and that wrong results are noticed.
#[test]
fn a_card_is_measured_beside_disk_and_memory_and_wrong_results_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let libraries = folder.path().join("libraries");
    fake(&libraries, "libcuda.so.1", CUDA, "");
    let measure = |wrong: &str| {
        let output = with_libraries(folder.path(), &libraries)
            .env("FAKE_CUDA_WRONG", wrong)
            .args(["bench", "ceilings", "-t", "1", "--json", "-m"])
            .arg(dense())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        (found, stderr(&output))
    };
    let (found, said) = measure("nothing");
    assert_eq!(said, "");
    let [card] = &found["cards"].as_array().unwrap()[..] else {
        panic!("{found}");
    };
    assert_eq!(card["device"], "CUDA0");
    assert_eq!(card["name"], "Fake Card");
    assert_eq!(card["memory_bytes"], 256 << 20);
    assert_eq!(card["driver_version"], "12.8");
    let values = card["values"].as_array().unwrap();
    let names: Vec<&str> = values
        .iter()
        .map(|value| value["what"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "read",
            "copy",
            "host_to_device_pinned",
            "device_to_host_pinned",
            "host_to_device_pageable",
            "device_to_host_pageable",
            "f32",
            "f16",
            "bf16"
        ]
    );
    for value in values {
        let of = |name: &str| value[name].as_u64().unwrap();
        assert!(of("slices") >= 11, "{value}");
        assert!(
            0 < of("lowest") && of("lowest") <= of("lower_quartile"),
            "{value}"
        );
        assert!(of("lower_quartile") <= of("per_second"), "{value}");
        assert!(of("per_second") <= of("upper_quartile"), "{value}");
    }
    for (wrong, reason) in [
        ("copy", "a copy within the card is wrong"),
        ("mma_bf16", "mma_bf16 is wrong"),
    ] {
        let (found, said) = measure(wrong);
        assert!(found.get("cards").is_none(), "{found}");
        assert!(
            said.starts_with("tensorscope: Fake Card was not measured: ") && said.contains(reason),
            "{said}"
        );
    }
}
