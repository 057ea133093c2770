//! Facts about which CUPTI is taken, with libraries that the test compiles.

use std::process::Command;

use super::*;

/// A library that answers `cuptiGetVersion` with `api`; `None` where there is no compiler.
fn library(path: &Path, api: u32) -> Option<()> {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let source = path.with_extension("c");
    fs::write(
        &source,
        format!("int cuptiGetVersion(unsigned *v) {{ *v = {api}; return 0; }}\n"),
    )
    .unwrap();
    let mut compile = Command::new("cc");
    compile.args(["-shared", "-fPIC", "-o"]).arg(path);
    let compiled = compile.arg(&source).status();
    match compiled {
        Ok(status) if status.success() => Some(()),
        _ => {
            eprintln!("skipped: there is no C compiler");
            None
        }
    }
}

#[track_caller]
fn check(api: u32, build: Option<Build>, is_enough: bool, text: &str) {
    let version = Version { api, build };
    assert_eq!(version.is_enough(), is_enough, "{version}");
    assert_eq!(version.to_string(), text);
}

#[test]
fn the_first_that_survives_graphs_is_12_4_update_1() {
    check(12, None, false, "10 or earlier");
    check(18, None, false, "11.8");
    check(21, None, false, "12.3");
    // The number alone does not tell.
    check(22, None, false, "12.4");
    check(22, Some(Build::Wheel(12, 4, 99)), false, "12.4.99");
    check(22, Some(Build::Wheel(12, 4, 127)), true, "12.4.127");
    check(22, Some(Build::File(2024, 1, 0)), false, "12.4");
    check(22, Some(Build::File(2024, 1, 1)), true, "12.4");
    check(23, None, true, "12.5");
    check(25, None, true, "12.6");
    check(28, None, true, "12.9 update 1");
    check(130_001, None, true, "13.0");
    check(130_400, None, true, "13.4");
    check(140_000, None, true, "14.0");
}

#[test]
fn a_wheel_says_its_version_and_its_neighbours_do_not() {
    let root = tempfile::tempdir().unwrap();
    let at = |path: &str| root.path().join(path);
    let old = at("a/nvidia/cuda_cupti/lib/libcupti.so.12");
    let new = at("b/nvidia/cu13/lib/libcupti.so.13");
    for file in [&old, &new] {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "").unwrap();
    }
    for folder in [
        "a/nvidia_cuda_cupti_cu12-12.4.99.dist-info",
        "a/nvidia_cuda_runtime_cu12-12.8.1.dist-info",
        "b/nvidia_cuda_cupti-13.0.85.dist-info",
        "b/nvidia_cuda_nvrtc-13.4.1.dist-info",
    ] {
        fs::create_dir_all(at(folder)).unwrap();
    }
    assert_eq!(build_of(&old), Some(Build::Wheel(12, 4, 99)));
    assert_eq!(build_of(&new), Some(Build::Wheel(13, 0, 85)));
    assert!(matches!(examine(&old), Err(Unusable::TooOld(_))));
}

#[test]
fn a_toolkits_file_says_its_release() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("libcupti.so.2024.1.1");
    fs::write(&file, "").unwrap();
    let link = root.path().join("libcupti.so.12");
    std::os::unix::fs::symlink("libcupti.so.2024.1.1", &link).unwrap();
    assert_eq!(build_of(&link), Some(Build::File(2024, 1, 1)));
}

#[test]
fn what_is_loaded_answers_for_itself() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("libcupti.so.12");
    if library(&path, 24).is_none() {
        return;
    }
    let found = examine(&path).unwrap();
    assert_eq!((found.path.as_path(), found.version.api), (&*path, 24));
    let version = found.version;
    assert_eq!(found.clone().judged(Some(12_040)), Ok(found.clone()));
    assert_eq!(found.clone().judged(None), Ok(found.clone()));
    let driver = "11.8".to_owned();
    assert_eq!(
        found.judged(Some(11_080)),
        Err(Unusable::TooNew { version, driver })
    );
    let broken = root.path().join("libcupti.so.13");
    fs::write(&broken, "no library").unwrap();
    assert!(matches!(examine(&broken), Err(Unusable::Broken(_))));
}

#[test]
fn every_place_is_looked_into_in_order() {
    let root = tempfile::tempdir().unwrap();
    let at = |path: &str| root.path().join(path);
    let files = [
        "mine/libcupti.so.12",
        "listed/libcupti.so.13",
        "usr/local/cuda-12.6/extras/CUPTI/lib64/libcupti.so.12",
        "venv/lib/python3.11/site-packages/nvidia/cuda_cupti/lib/libcupti.so.12",
        "venv/lib/python3.11/site-packages/nvidia/cu13/lib/libcupti.so.13",
        "usr/lib/python3/dist-packages/nvidia/cu13/lib/libcupti.so.13",
    ];
    for file in files {
        fs::create_dir_all(at(file).parent().unwrap()).unwrap();
        fs::write(at(file), "").unwrap();
    }
    fs::write(at("mine/libcuptimine.so"), "").unwrap();
    let environment = |name: &str| match name {
        "TENSORSCOPE_CUDA" => Some(at("mine").into_os_string()),
        "LD_LIBRARY_PATH" => Some(at("listed").into_os_string()),
        "VIRTUAL_ENV" => Some(at("venv").into_os_string()),
        _ => None,
    };
    let (first, last) = candidates(&environment, root.path(), None);
    let found: Vec<PathBuf> = first.into_iter().chain(last).collect();
    let expect = [files[0], files[1], files[2], files[4], files[3], files[5]];
    assert_eq!(found, expect.map(at));
}

#[test]
fn other_tools_are_known_by_what_they_set() {
    let of = |set: &'static [(&str, &str)]| {
        let value = move |name: &str| {
            let found = set.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).into())
        };
        subscriber(&value).map(|found| (found.name, found.variable))
    };
    assert_eq!(of(&[]), None);
    assert_eq!(of(&[("CUDA_INJECTION64_PATH", "")]), None);
    assert_eq!(
        of(&[("CUDA_INJECTION64_PATH", "/opt/a/libmine.so")]),
        Some(("libmine.so".to_owned(), "CUDA_INJECTION64_PATH"))
    );
    // The tool's own variable says more than the library that it has injected.
    let nsys = of(&[
        ("CUDA_INJECTION64_PATH", "/x/libToolsInjection64.so"),
        ("NSYS_PROFILING_SESSION_ID", "1"),
    ]);
    assert_eq!(nsys.unwrap().0, "Nsight Systems (nsys)");
    let ncu = of(&[("NV_NSIGHT_INJECTION_PORT_BASE", "49152")]);
    assert_eq!(ncu.unwrap().0, "Nsight Compute (ncu)");
}

#[test]
fn the_command_is_for_the_drivers_cuda() {
    assert_eq!(
        fix(Some(12_040)),
        "pip install --upgrade nvidia-cuda-cupti-cu12"
    );
    assert_eq!(fix(Some(13_000)), "pip install --upgrade nvidia-cuda-cupti");
}
