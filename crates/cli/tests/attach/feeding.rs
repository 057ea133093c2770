//! `tensorscope run -- PROGRAM`: a program whose weights are fed prints what it prints
//! without us, and where it cannot be fed it runs as it is.

mod room;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use feed::settings::Report;

use crate::fixture::*;

const PROMPT: &str = "To be, or not to be";
/// Leaves the reports behind, which go with the launcher.
const KEEPING: &str = r#""$@"; code=$?; cp "${TENSORSCOPE_FEED%/*}"/report-*.txt . ; exit $code"#;

/// `run FLAGS -- PROGRAM`, to which its arguments can be added.
fn run_program(folder: &Path, flags: &[&str], program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = tensorscope(folder);
    command.arg("run").args(flags).arg("--").arg(program);
    command
}

/// `run FLAGS -- generate ARGS MODEL PROMPTS`, and what it reported.
fn fed(
    folder: &Path,
    flags: &[&str],
    args: &[&str],
    model: &Path,
    prompts: &[&str],
) -> (Output, Vec<Report>) {
    fed_linked(Linked::Shared, folder, flags, args, model, prompts)
}

fn fed_linked(
    linked: Linked,
    folder: &Path,
    flags: &[&str],
    args: &[&str],
    model: &Path,
    prompts: &[&str],
) -> (Output, Vec<Report>) {
    let mut command = run_program(folder, flags, "sh");
    command
        .args(["-c", KEEPING, "sh"])
        .arg(generate_linked(linked));
    let output = command
        .args(args)
        .arg(model)
        .args(prompts)
        .output()
        .unwrap();
    let reports = Report::read_all(folder).unwrap();
    (output, reports)
}

/// The same without feeding, the weights in the file's order as well.
fn unfed(folder: &Path, args: &[&str], model: &Path, prompts: &[&str]) -> String {
    let flags = ["--no-repack", "-q", "-o", "UNFED"];
    let output = record_generate(folder, &flags, args, model, prompts)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    fs::remove_dir_all(folder.join("UNFED")).unwrap();
    stdout(&output)
}

/// A model of tensors that are worth streaming, in a program that asks for little.
fn large(folder: &Path, shape: &str) -> PathBuf {
    let path = folder.join("large.gguf");
    let mut command = tensorscope(folder);
    command.arg("synth").args(shape.split(' '));
    let output = command.args(["-q", "-o"]).arg(&path).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    path
}

const DENSE: &str = "--like llama-3.2-1b --type q8_0 --layers 3 --vocab 2048";
const MOE: &str =
    "--like qwen3-30b-a3b --type q8_0 --layers 2 --experts 24 --experts-used 4 --vocab 2048";

fn assert_same(
    folder: &Path,
    flags: &[&str],
    args: &[&str],
    model: &Path,
    prompts: &[&str],
) -> Vec<Report> {
    let expected = unfed(folder, args, model, prompts);
    let (output, reports) = fed(folder, flags, args, model, prompts);
    let talk = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{talk}");
    assert_eq!(stdout(&output), expected, "{talk}");
    assert!(!talk.contains("the kernel killed"), "{talk}");
    assert!(
        talk.contains("tensorscope: at most ") || talk.contains("not enforced"),
        "{talk}"
    );
    reports
}

/// Memory for all but `weights` bytes, in a program that asks for `other` besides.
fn budget(report: &Report, weights: u64) -> String {
    let shares = report.shares.unwrap();
    (shares.other_bytes + feed::MARGIN_BYTES + weights).to_string()
}

#[test]
fn trained_models_say_the_same() {
    for model in [dense(), moe()] {
        let folder = tempfile::tempdir().unwrap();
        let flags = ["--always", "--memory", "200M"];
        for prompts in [&[PROMPT][..], &[PROMPT, "Now is the winter"]] {
            let reports = assert_same(
                folder.path(),
                &flags,
                &["-t", "2", "-n", "12"],
                &model,
                prompts,
            );
            assert!(reports[0].fed.bytes_read > 1 << 20, "{reports:?}");
        }
    }
}

/// Runs a model in memory for `share` of its weights.
fn check_large(shape: &str, share: f64, more_args: &[&str]) -> Report {
    let folder = tempfile::tempdir().unwrap();
    let model = large(folder.path(), shape);
    let args = [&["-e", "-t", "2", "-n", "8"][..], more_args].concat();
    // What the program asks for besides is known after a first run.
    let first = assert_same(
        folder.path(),
        &["--always", "--memory", "2G"],
        &args,
        &model,
        &[PROMPT],
    );
    let weights = first[0].shares.unwrap().weight_bytes as f64 * share;
    fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "txt"))
        .for_each(|path| fs::remove_file(path).unwrap());
    let memory = budget(&first[0], weights as u64);
    let reports = assert_same(
        folder.path(),
        &["--memory", &memory, "--always"],
        &args,
        &model,
        &[PROMPT],
    );
    assert_eq!(reports.len(), 1, "{reports:?}");
    reports[0].clone()
}

#[test]
fn streamed_weights_say_the_same() {
    let report = check_large(DENSE, 0.6, &[]);
    let shares = report.shares.unwrap();
    assert!(
        shares.pinned_bytes > 0 && shares.streamed_bytes > 0,
        "{report:?}"
    );
    // The first evaluation proves that it can be done; the others stream.
    assert!(
        report.fed.bytes_read >= 6 * shares.streamed_bytes,
        "{report:?}"
    );
}

#[test]
fn experts_in_slots_say_the_same() {
    let report = check_large(MOE, 0.6, &[]);
    assert!(report.shares.unwrap().expert_slots > 0, "{report:?}");
    assert!(report.fed.expert_misses > 0, "{report:?}");
}

/// As with a device, which computes what is between two graphs, and may be given copies of weights
/// then: the program reads them between graphs, too, and says what it has read.
#[test]
fn graphs_of_one_pass_are_fed_as_one() {
    const PASSES: u64 = 8;
    const GRAPHS: u64 = 4;
    let report = check_large(DENSE, 0.6, &["-w"]);
    let shares = report.shares.unwrap();
    assert!(
        report.fed.evaluations >= (PASSES - 1) * GRAPHS,
        "{report:?}"
    );
    assert!(shares.streamed_bytes > 0, "{report:?}");
    let read = report.fed.bytes_read;
    assert!(read >= 6 * shares.streamed_bytes, "{report:?}");
    // Nothing is read in vain between two graphs.
    let most = 2 * shares.weight_bytes + PASSES * shares.streamed_bytes;
    assert!(read <= most, "{report:?}");
    let report = check_large(MOE, 0.6, &["-w"]);
    assert!(report.shares.unwrap().expert_slots > 0, "{report:?}");
    assert!(report.fed.expert_misses > 0, "{report:?}");
}

#[test]
fn a_model_that_is_loaded_again_is_fed_again() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--always", "--memory", "200M"];
    let reports = assert_same(folder.path(), &flags, &["-r", "3"], &dense(), &[PROMPT]);
    assert_eq!(reports.len(), 3, "{reports:?}");
    assert!(
        reports.iter().all(|report| report.fed.bytes_read > 0),
        "{reports:?}"
    );
}

#[test]
fn one_of_two_models_is_fed() {
    let folder = tempfile::tempdir().unwrap();
    let other = moe().display().to_string();
    let flags = ["--always", "--memory", "200M"];
    let reports = assert_same(folder.path(), &flags, &["-m", &other], &dense(), &[PROMPT]);
    assert_eq!(reports.len(), 1, "{reports:?}");
}

#[test]
fn a_model_that_is_not_mapped_runs_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let expected = stdout(&alone(folder.path(), &[], &dense(), &[PROMPT]));
    let flags = ["--always", "--memory", "200M"];
    let (output, reports) = fed(
        folder.path(),
        &flags,
        &["-b", "-x", "5"],
        &dense(),
        &[PROMPT],
    );
    let talk = stderr(&output);
    assert_eq!(output.status.code(), Some(5), "{talk}");
    assert_eq!(stdout(&output), expected);
    assert_eq!(
        talk.matches("do not lie in a mapped file").count(),
        1,
        "{talk}"
    );
    assert!(reports[0].refused.is_some(), "{reports:?}");
}

#[test]
fn a_program_without_llama_cpp_runs_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = run_program(folder.path(), &["--memory", "200M"], "sh");
    let output = command.args(["-c", "echo out; exit 3"]).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(stdout(&output), "out\n");
    assert!(
        stderr(&output).contains("sh: nothing was fed"),
        "{}",
        stderr(&output)
    );
    let mut command = run_program(folder.path(), &["-q", "--memory", "200M"], "true");
    assert_eq!(stderr(&command.output().unwrap()), "");
}

#[test]
fn a_model_that_fits_is_not_fed() {
    let folder = tempfile::tempdir().unwrap();
    let expected = stdout(&alone(folder.path(), &["-x", "7"], &dense(), &[PROMPT]));
    let mut command = run_program(folder.path(), &["--memory", "1G"], generate_program());
    let output = command
        .args(["-x", "7"])
        .arg(dense())
        .arg(PROMPT)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(stdout(&output), expected);
    assert!(
        stderr(&output).contains(" fits into 1.00 GiB: "),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_disk_that_fails_ends_the_program_and_not_its_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--always", "--memory", "200M", "--inject", "fail=1"];
    let (output, _) = fed(folder.path(), &flags, &[], &dense(), &[PROMPT]);
    let talk = stderr(&output);
    assert_eq!(
        (output.status.code(), stdout(&output).as_str()),
        (Some(70), ""),
        "{talk}"
    );
    assert!(
        talk.contains("tensorscope: ") && talk.contains("cannot read"),
        "{talk}"
    );
    assert!(talk.contains("generate: cannot compute a batch"), "{talk}");
}

#[test]
fn a_model_that_changes_ends_the_program_and_not_its_numbers() {
    for change in [1, -1] {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("copy.gguf");
        fs::copy(dense(), &model).unwrap();
        let expected = unfed(folder.path(), &["-e", "-n", "200"], &model, &[PROMPT]);
        let flags = ["--always", "--memory", "200M"];
        let mut command = run_program(folder.path(), &flags, generate_program());
        command
            .args(["-e", "-l", "-n", "200"])
            .arg(&model)
            .arg(PROMPT);
        let (child, mut lines) = start(&mut command);
        let first: Vec<String> = (0..3).map(|_| next_line(&mut lines)).collect();
        let file = fs::OpenOptions::new().write(true).open(&model).unwrap();
        let length = file.metadata().unwrap().len();
        file.set_len(length.strict_add_signed(change)).unwrap();
        let printed = first.join("\n") + "\n" + &rest(lines);
        let output = child.wait_with_output().unwrap();
        let talk = stderr(&output);
        assert_eq!(output.status.code(), Some(70), "{talk}");
        assert!(
            talk.contains("copy.gguf: changed while it was read"),
            "{talk}"
        );
        // It begins again with the prompt after so many tokens.
        let endless = expected.lines().cycle();
        assert!(
            printed
                .lines()
                .zip(endless)
                .all(|(one, other)| one == other),
            "{printed}"
        );
    }
}

#[test]
fn what_says_nothing_about_a_program_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let check = |flags: &[&str], program: &str, expect: &str| {
        let output = run_program(folder.path(), flags, program).output().unwrap();
        assert_eq!(
            output.status.code(),
            Some(2),
            "{flags:?}: {}",
            stderr(&output)
        );
        assert!(
            stderr(&output).contains(expect),
            "{flags:?}: {}",
            stderr(&output)
        );
    };
    for flag in [
        "--json",
        "--routing-file=x",
        "--routing=uniform",
        "--madvise=random",
        "-n3",
        "-mx",
        "-pHi",
        "-t2",
    ] {
        check(&["--memory", "200M", flag], "true", "cannot be used with");
    }
    check(&["--memory", "50%"], "true", "a share of which model?");
    check(
        &["--memory", "1M"],
        "true",
        "are less than the program alone takes",
    );
    check(
        &["--memory", "200M", "--cold"],
        "true",
        "no .gguf file among",
    );
    check(
        &["--memory", "200M"],
        "no-such-program",
        "there is no such program",
    );
    check(
        &["--memory", "200M"],
        generate_linked(Linked::Static).to_str().unwrap(),
        "it cannot be fed: the program has ggml linked into it, and the C library too",
    );
}

#[test]
fn a_program_with_llama_cpp_inside_says_the_same() {
    for linked in [Linked::Inside, Linked::Stripped] {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let folder = folder.path();
        let model = large(folder, DENSE);
        let expected = unfed(folder, &[], &model, &[PROMPT]);
        let flags = ["--memory", "230M", "--always"];
        let (output, reports) = fed_linked(linked, folder, &flags, &[], &model, &[PROMPT]);
        let talk = stderr(&output);
        assert_eq!(output.status.code(), Some(0), "{linked:?}: {talk}");
        assert_eq!(stdout(&output), expected, "{linked:?}: {talk}");
        assert_eq!(reports.len(), 1, "{linked:?}: {talk}");
        assert_eq!(reports[0].refused, None, "{linked:?}: {talk}");
        assert!(reports[0].fed.bytes_read > 0, "{linked:?}: {reports:?}");
    }
}

#[test]
fn a_program_is_fed_and_recorded_at_once() {
    for shape in [DENSE, MOE] {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let folder = folder.path();
        let model = large(folder, shape);
        let expected = unfed(folder, &[], &model, &[PROMPT]);
        let flags = ["--memory", "230M", "--always", "--record", "RUN"];
        let (output, reports) = fed(folder, &flags, &[], &model, &[PROMPT]);
        let talk = stderr(&output);
        assert_eq!(output.status.code(), Some(0), "{talk}");
        assert_eq!(stdout(&output), expected, "{talk}");
        assert!(talk.contains("evaluations, waited"), "{talk}");
        let run = folder.join("RUN");
        let metadata = fs::read(run.join("metadata.json")).unwrap();
        let metadata: serde_json::Value = serde_json::from_slice(&metadata).unwrap();
        let of = |name: &str| metadata["fed"][name].as_u64().unwrap();
        assert_eq!(of("waited_nanos"), reports[0].fed.waited_nanos);
        assert!(of("read_bytes") > 0);
        struct Waited(u64, u64);
        impl reader::Visitor for Waited {
            type Error = trace::read::ReadError;
            fn evaluation(&mut self, seen: &reader::Seen) -> Result<(), Self::Error> {
                self.0 += seen.waited_nanos().unwrap_or(0);
                self.1 += u64::from(seen.evaluation.origins.is_some());
                Ok(())
            }
        }
        let mut waited = Waited(0, 0);
        let walked = reader::Log::new(&run.join("log"))
            .walk(&mut waited)
            .unwrap();
        assert_eq!(waited.1, walked.evaluations, "{talk}");
        let counted = of("waited_nanos") + of("waited_for_experts_nanos");
        assert!(
            waited.0.abs_diff(counted) <= counted / 100,
            "{} {counted}",
            waited.0
        );
    }
}
