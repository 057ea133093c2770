//! What somebody meets who has just installed the program: demo, version, completions, manual.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Command, Output, Stdio},
};

fn tensorscope(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorscope"));
    command.current_dir(folder).args(args).stdin(Stdio::null());
    command
}

fn output(folder: &Path, args: &[&str]) -> Output {
    tensorscope(folder, args).output().unwrap()
}

fn stdout(args: &[&str]) -> String {
    let output = output(Path::new("."), args);
    assert!(output.status.success(), "{args:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn demo_leaves_a_run_and_its_report_and_overwrites_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for place in ["tensorscope-demo", "tensorscope-demo-2"] {
        let demo = output(folder, &["demo", "--no-view"]);
        let said = String::from_utf8(demo.stderr).unwrap();
        assert!(demo.status.success(), "{said}");
        for command in ["record -m ", "report ", "view "] {
            assert!(said.contains(&format!("tensorscope {command}")), "{said}");
        }
        let text = String::from_utf8(demo.stdout).unwrap();
        assert!(text.lines().count() > 3, "{text}");
        let page = fs::read_to_string(folder.join(place).join("report.html")).unwrap();
        assert!(page.contains("<section id=\"actions\">"));
        let report = output(folder, &["report", &format!("{place}/run")]);
        assert!(report.status.success());
    }
    let again = output(folder, &["demo", "--no-view", "-o", "tensorscope-demo"]);
    assert_eq!(again.status.code(), Some(2));
    let said = String::from_utf8(again.stderr).unwrap();
    assert!(said.contains("tensorscope-demo: "), "{said}");
}

#[test]
fn demo_shows_the_run_until_it_is_asked_to_stop() {
    let folder = tempfile::tempdir().unwrap();
    let mut demo = tensorscope(folder.path(), &["demo", "--no-open", "-p", "JULIET:"]);
    let demo = demo.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut demo = demo.spawn().unwrap();
    let lines = BufReader::new(demo.stdout.take().unwrap()).lines();
    let address = lines
        .map_while(Result::ok)
        .find(|l| l.starts_with("http://127.0.0.1:"));
    assert!(address.is_some());
    let pid = demo.id().to_string();
    let kill = Command::new("kill").args(["-INT", &pid]).status().unwrap();
    assert!(kill.success());
    assert!(demo.wait().unwrap().success());
}

#[test]
fn a_demo_that_cannot_record_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let demo = output(folder.path(), &["demo", "--no-view", "-p", ""]);
    assert_eq!(demo.status.code(), Some(2));
    let said = String::from_utf8(demo.stderr).unwrap();
    assert!(said.contains("the prompt is empty"), "{said}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn the_long_version_names_llama_cpp_too() {
    let ours = concat!("tensorscope ", env!("CARGO_PKG_VERSION"), "\n");
    assert_eq!(stdout(&["-V"]), ours);
    let long = stdout(&["--version"]);
    let linked = long.strip_prefix(ours).unwrap();
    assert!(linked.starts_with("llama.cpp "), "{long}");
    assert!(linked.contains("ggml "), "{long}");
}

/// Commands that `--help` lists.
fn commands() -> BTreeSet<String> {
    let help = stdout(&["--help"]);
    let list = help.split("\nCommands:\n").nth(1).unwrap();
    let list = list.lines().take_while(|line| !line.is_empty());
    let names = list.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names
        .filter(|name| !name.is_empty() && *name != "help")
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_shell_is_told_every_command() {
    let commands = commands();
    assert!(
        commands.contains("demo") && commands.contains("sql"),
        "{commands:?}"
    );
    for shell in ["bash", "zsh", "fish"] {
        let script = stdout(&["completions", shell]);
        for command in &commands {
            assert!(script.contains(command), "{shell}: {command}");
        }
        assert!(script.contains("no-view"), "{shell}");
    }
}

#[test]
fn every_command_has_a_man_page() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    assert!(output(folder, &["manual", "pages"]).status.success());
    let names = fs::read_dir(folder.join("pages")).unwrap();
    let names: BTreeSet<_> = names
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(names.contains("tensorscope.1"), "{names:?}");
    for command in commands() {
        assert!(
            names.contains(&format!("tensorscope-{command}.1")),
            "{command}"
        );
    }
    // Those of a command's own commands too; what is hidden stays hidden.
    assert!(names.contains("tensorscope-bench-overhead.1"), "{names:?}");
    assert!(!names.contains("tensorscope-manual.1"), "{names:?}");
    let page = fs::read_to_string(folder.join("pages/tensorscope-demo.1")).unwrap();
    assert!(page.contains("tensorscope demo \\-\\-no\\-view"), "{page}");
}
