//! What cannot be recorded is said at once, with what to do instead, and leaves
//! nothing behind.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    process::Command,
};

use crate::fixture::*;

const STATIC: &str =
    "no trace can be written: the program has ggml linked into it, and the C library too";

/// Runs `record -- PROGRAM` in an empty folder, which stays empty.
fn record(program: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let output = record_program(folder.path(), &[], program)
        .args(args)
        .output()
        .unwrap();
    let (ours, theirs) = talk(&output);
    assert_eq!(theirs, Vec::<String>::new());
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        0,
        "something was left behind"
    );
    (output.status.code(), stdout(&output), ours.join("\n"))
}

/// A refusal is one line, and one that says what to try.
fn check(program: &Path, expect: &str) {
    let (code, out, talk) = record(program, &["--help"]);
    assert_eq!((code, out.as_str()), (Some(2), ""), "{talk}");
    let lines: Vec<&str> = talk.lines().collect();
    let [what, instead] = lines[..] else {
        panic!("{talk}")
    };
    let program = program.display();
    assert!(
        what.starts_with(&format!("tensorscope: {program}: {expect}")),
        "{talk}"
    );
    assert!(instead.starts_with("  try: "), "{talk}");
}

/// A copy of a program, to be spoilt.
fn copy(folder: &Path, program: &Path) -> PathBuf {
    let copy = folder.join("program");
    fs::copy(fs::canonicalize(program).unwrap(), &copy).unwrap();
    copy
}

#[test]
fn a_program_without_a_loader_is_refused() {
    check(&generate_linked(Linked::Static), STATIC);
}

#[test]
fn a_stripped_program_with_a_shared_ggml_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["generate", "libllama.so"] {
        let from = generate_program().with_file_name(name);
        let to = folder.path().join(name);
        fs::copy(from, &to).unwrap();
        let stripped = Command::new("strip").arg(&to).status();
        if !stripped.is_ok_and(|status| status.success()) {
            println!("skipped: there is no strip on this machine");
            return;
        }
    }
    let output = record_program(folder.path(), &["-o", "RUN"], "./generate")
        .arg(dense())
        .arg("To")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let trace = Trace::complete(&folder.path().join("RUN"));
    assert_eq!(trace.stream().evaluations.len(), 8);
}

#[test]
fn a_setuid_program_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let program = copy(folder.path(), Path::new("/bin/true"));
    const NOBODY: u32 = 65534;
    if chown(&program, Some(NOBODY), None).is_err() {
        println!("skipped: only root can give a file away");
        return;
    }
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    check(
        &program,
        "no trace can be written: the program is setuid or setgid",
    );
}

#[test]
fn a_program_of_another_machine_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let spoilt = |at: usize, value: u8| {
        let program = copy(folder.path(), Path::new("/bin/true"));
        let mut bytes = fs::read(&program).unwrap();
        bytes[at] = value;
        fs::write(&program, bytes).unwrap();
        program
    };
    // The class of the file, then the processor (a SPARC).
    check(
        &spoilt(4, 1),
        "no trace can be written: it is a 32-bit program",
    );
    check(
        &spoilt(18, 2),
        "no trace can be written: it is a program for another processor",
    );
}

#[test]
fn a_program_that_cannot_be_run_is_said_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text");
    fs::write(&text, "no program\n").unwrap();
    let missing = "cannot run it: there is no such program; check the name and PATH";
    let forbidden = "cannot run it: it may not be executed; see `chmod +x`";
    for (program, expect) in [
        (Path::new("/no/such/program"), missing),
        (Path::new("no-such-program-in-path"), missing),
        (text.as_path(), forbidden),
        (folder.path(), forbidden),
    ] {
        let (code, out, talk) = record(program, &[]);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{talk}");
        let expect = format!("tensorscope: {}: {expect}", program.display());
        assert_eq!(talk, expect);
    }
}

#[test]
fn a_program_without_ggml_runs_as_ever_and_leaves_no_run() {
    let (code, out, talk) = record(Path::new("/bin/echo"), &["-n", "a", "b"]);
    assert_eq!((code, out.as_str()), (Some(0), "a b"));
    let lines: Vec<&str> = talk.lines().collect();
    let [what, instead] = lines[..] else {
        panic!("{talk}")
    };
    assert!(
        what.starts_with("tensorscope: /bin/echo: no trace was written: "),
        "{talk}"
    );
    assert!(instead.starts_with("  try: "), "{talk}");
}

#[test]
fn a_program_that_fails_before_it_computes_is_said_to_have_failed() {
    let (code, out, talk) = record(Path::new("sh"), &["-c", "echo out; exit 3"]);
    assert_eq!((code, out.as_str()), (Some(3), "out\n"));
    assert_eq!(
        talk,
        "tensorscope: sh: no trace was written: it failed before it computed a graph (exit code 3)"
    );
}

#[test]
fn a_program_that_dies_before_it_computes_is_said_to_have_died_of_what() {
    let died = |signal: &str| record(Path::new("sh"), &["-c", &format!("kill -{signal} $$")]);
    for (signal, code, said) in [
        (
            "ILL",
            132,
            "it died of SIGILL before it computed a graph: it uses instructions that this processor does not run",
        ),
        ("SEGV", 139, "it died of SIGSEGV before it computed a graph"),
        (
            "KILL",
            137,
            "it was killed (SIGKILL) before it computed a graph: by somebody, or by the kernel for the memory it took",
        ),
    ] {
        let (found, _, talk) = died(signal);
        assert_eq!(found, Some(code), "{talk}");
        assert_eq!(
            talk,
            format!("tensorscope: sh: no trace was written: {said}")
        );
    }
    // As a shell says it of what it waited for.
    let (_, _, talk) = record(Path::new("sh"), &["-c", "exit 132"]);
    assert!(talk.contains("it died of SIGILL"), "{talk}");
}

#[test]
fn a_run_that_exists_is_not_touched() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("RUN")).unwrap();
    fs::write(folder.path().join("RUN/precious"), "").unwrap();
    let output = record_generate(folder.path(), &["-o", "RUN"], &[], &dense(), &["To"])
        .output()
        .unwrap();
    let (ours, theirs) = talk(&output);
    assert_eq!(output.status.code(), Some(2), "{ours:?}");
    assert_eq!((stdout(&output), theirs), (String::new(), vec![]));
    assert_eq!(ours.len(), 1, "{ours:?}");
    assert!(ours[0].starts_with("tensorscope: RUN: "), "{ours:?}");
    let files = fs::read_dir(folder.path().join("RUN")).unwrap();
    assert_eq!(files.count(), 1);
}

#[test]
fn a_model_and_a_program_are_not_for_one_run() {
    let folder = tempfile::tempdir().unwrap();
    let output = record_program(folder.path(), &["-m", "x.gguf"], "true")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("cannot be used with"));
}
