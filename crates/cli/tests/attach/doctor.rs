//! `tensorscope doctor`: what this machine allows.

use crate::fixture::*;

const THINGS: [&str; 9] = [
    "processor",
    "preload",
    "perf events",
    "block events",
    "memlock",
    "io_uring",
    "cgroups",
    "huge pages",
    "gpu",
];
/// Said besides where there is something to say it of.
const OF_CARDS: [&str; 4] = ["cupti", "gpu profiler", "cuda graphs", "vulkan"];

#[test]
fn nine_things_are_said_and_what_fixes_them() {
    let folder = tempfile::tempdir().unwrap();
    let output = tensorscope(folder.path()).arg("doctor").output().unwrap();
    let page = stdout(&output);
    assert_eq!(stderr(&output), "");
    let findings: Vec<&str> = page.lines().filter(|l| !l.starts_with(' ')).collect();
    assert!(findings.len() >= THINGS.len(), "{page}");
    let says = |finding: &str, thing: &str| {
        let said = finding
            .strip_prefix("ok  ")
            .or(finding.strip_prefix("NO  "));
        let state = said.and_then(|said| said.strip_prefix(thing));
        state.is_some_and(|s| !s.trim().is_empty())
    };
    for (finding, thing) in findings.iter().zip(THINGS) {
        assert!(says(finding, thing), "{finding:?}");
    }
    for finding in &findings[THINGS.len()..] {
        assert!(OF_CARDS.iter().any(|thing| says(finding, thing)), "{page}");
    }
    let fails = findings.iter().filter(|f| f.starts_with("NO ")).count();
    let fixes = page.lines().filter(|l| l.trim().starts_with("fix: "));
    assert_eq!(fixes.count(), fails, "{page}");
    assert_eq!(output.status.code(), Some(i32::from(fails > 0)), "{page}");
    // Tests record programs, so that this works here.
    assert!(findings[1].starts_with("ok  preload"), "{page}");
}

#[test]
fn json_says_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let output = tensorscope(folder.path())
        .args(["doctor", "--json"])
        .output()
        .unwrap();
    let findings: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    let names: Vec<&str> = findings
        .iter()
        .map(|f| f["what"].as_str().unwrap())
        .collect();
    assert_eq!(names[..THINGS.len()], THINGS);
    let mut others = names[THINGS.len()..].iter();
    assert!(others.all(|name| OF_CARDS.contains(name)), "{names:?}");
    let mut all_work = true;
    for finding in &findings {
        let works = finding["works"].as_bool().unwrap();
        all_work &= works;
        assert_eq!(finding["fix"].is_string(), !works, "{finding}");
        assert!(finding["state"].is_string() && finding["used_by"].is_string());
    }
    assert_eq!(output.status.code(), Some(i32::from(!all_work)));
}

/// A home where no library can be written is no reason to fail; nowhere is.
#[test]
fn a_place_for_the_library_is_looked_for() {
    let folder = tempfile::tempdir().unwrap();
    let output = tensorscope(folder.path())
        .arg("doctor")
        .env("XDG_CACHE_HOME", "/proc/nobody")
        .env("TMPDIR", folder.path())
        .output()
        .unwrap();
    let shown = folder.path().display().to_string();
    assert!(stdout(&output).lines().nth(1).unwrap().contains(&shown));
}
