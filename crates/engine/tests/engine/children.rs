//! Tests that need a process of their own: for an environment that llama.cpp
//! reads once, or because they measure the process.

use std::process::Command;

use crate::fixtures::alone;

const IS_CHILD: &str = "TENSORSCOPE_TEST_CHILD";

/// Whether this is a process that [`in_own_process`] made.
pub fn is_child() -> bool {
    std::env::var_os(IS_CHILD).is_some()
}

/// Runs `work` in a fresh process with these variables: the test named `test`
/// calls itself again. In that process, `work` simply runs.
pub fn in_own_process(test: &str, variables: &[(&str, &str)], work: impl FnOnce()) {
    if is_child() {
        return work();
    }
    let _alone = alone();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .envs(variables.iter().copied())
        .env(IS_CHILD, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    print!("{said}");
    assert!(
        output.status.success(),
        "{test} in its own process: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    // A name that fits no test would succeed without a word.
    assert!(said.contains("1 passed"), "{test}: no such test");
}
