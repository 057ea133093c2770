//! What commands say of a log that is not whole, and of places and arguments that will not do.

use std::{
    fs::{self, OpenOptions},
    path::Path,
    process::{Command, Output},
};

use testing::mount;

fn tensorscope(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorscope"));
    command.current_dir(folder).args(args).output().unwrap()
}

const MODEL: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../models/shakespeare-moe.gguf"
);

/// Tables would be made while the log is still whole.
fn record(folder: &Path, run: &str) {
    let args = [
        "record",
        "-m",
        MODEL,
        "-p",
        "ROMEO:",
        "-n",
        "8",
        "-t",
        "1",
        "-q",
        "--no-tables",
        "-o",
        run,
    ];
    let output = tensorscope(folder, &args);
    assert!(output.status.success(), "{}", said(&output));
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Expects this exit code and a message that has all `parts`.
fn ends(folder: &Path, args: &[&str], code: i32, parts: &[&str]) {
    let output = tensorscope(folder, args);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
    for part in parts {
        assert!(said.contains(part), "{args:?}: {said}");
    }
}

/// Records a run, lets `spoil` at its log, and expects every reader to exit with 1
/// and to say `expected`.
fn check(spoil: impl Fn(&Path), expected: &str) {
    let folder = tempfile::tempdir().unwrap();
    for run in ["run", "whole"] {
        record(folder.path(), run);
    }
    spoil(&folder.path().join("run/log/0000-000000.tslog"));
    for args in [
        &["report", "run"][..],
        &["report", "run", "--json"],
        &["compare", "whole", "run"],
        &["export", "run", "--table", "evals"],
        &["export", "run", "--to", "folded"],
        &["sql", "run", "SELECT count(*) FROM accesses"],
        // The second time the tables are there already.
        &["sql", "run", "SELECT count(*) FROM accesses"],
        &["sql", "whole", "run", "SELECT count(*) FROM accesses"],
        &["report", "run", "--html", "-o", "page.html"],
        &["export", "run", "--to", "parquet", "--table", "evals"],
        &["export", "run", "--to", "animation", "-o", "run.gif"],
        &["ingest", "run"],
    ] {
        ends(folder.path(), args, 1, &[expected]);
    }
    let whole = tensorscope(folder.path(), &["compare", "whole", "whole"]);
    assert_eq!(whole.status.code(), Some(0));
}

#[test]
fn a_log_that_was_cut_short_is_noticed_by_every_command() {
    let cut = |log: &Path| {
        let file = OpenOptions::new().write(true).open(log).unwrap();
        file.set_len(fs::metadata(log).unwrap().len() / 2).unwrap();
    };
    check(cut, "of the 8 evaluations that were recorded");
}

#[test]
fn a_flipped_bit_is_noticed_by_every_command() {
    let flip = |log: &Path| {
        let mut bytes = fs::read(log).unwrap();
        let last = bytes.len() - 400;
        bytes[last] ^= 1;
        fs::write(log, bytes).unwrap();
    };
    check(flip, "of the 8 evaluations that were recorded");
}

#[test]
fn a_report_does_not_need_the_files_for_people() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    record(folder, "run");
    let report = |form: &[&str]| tensorscope(folder, &[&["report", "run"], form].concat()).stdout;
    let before = [report(&[]), report(&["--json"])];
    assert!(String::from_utf8_lossy(&before[0]).contains("expert"));
    fs::write(folder.join("run/tensor_names.txt"), "").unwrap();
    fs::remove_file(folder.join("run/structure.csv")).unwrap();
    assert!([report(&[]), report(&["--json"])] == before);
}

#[test]
fn a_killed_run_says_how_much_was_recorded_and_not_what_was_prepared() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    record(folder, "run");
    let log_bytes = || {
        let report = tensorscope(folder, &["report", "run", "--json"]).stdout;
        let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
        report["log_bytes"].as_u64().unwrap()
    };
    let whole = log_bytes();
    // As a kill leaves it: still recording, with a segment that is mostly zeros.
    let mut status = fs::read(folder.join("run/log/status")).unwrap();
    status[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
    // No state, and no checksum either.
    status[16..32].fill(0);
    fs::write(folder.join("run/log/status"), status).unwrap();
    let log = OpenOptions::new()
        .write(true)
        .open(folder.join("run/log/0000-000000.tslog"))
        .unwrap();
    log.set_len(64 << 20).unwrap();
    assert!(log_bytes() <= whole, "{} of {whole}", log_bytes());
}

#[test]
fn an_export_of_no_evaluation_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    record(folder, "run");
    for to in ["csv", "json", "perfetto", "parquet"] {
        let args = [
            "export", "run", "--table", "evals", "--to", to, "--evals", "900..902",
        ];
        ends(folder, &args, 1, &["no evaluation is in 900..902"]);
    }
}

#[test]
fn a_full_disk_leaves_no_half_export_and_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    record(folder, "run");
    let Some(disk) = mount::Mount::new(folder.join("disk"), "size=16k") else {
        return;
    };
    for to in ["csv", "perfetto"] {
        let args = [
            "export",
            "run",
            "--table",
            "accesses",
            "--to",
            to,
            "-o",
            "disk/rows",
        ];
        ends(folder, &args, 2, &["disk/rows", "no space left"]);
        assert!(!disk.0.join("rows").exists());
    }
}

#[test]
fn what_exists_is_not_overwritten_and_the_message_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    record(folder, "run");
    fs::write(folder.join("page.html"), "mine").unwrap();
    let exists = ["page.html: exists already", "give another name"];
    ends(
        folder,
        &["report", "run", "--html", "-o", "page.html"],
        2,
        &exists,
    );
    ends(folder, &["export", "run", "-o", "page.html"], 2, &exists);
    assert_eq!(fs::read(folder.join("page.html")).unwrap(), b"mine");
}

#[test]
fn advice_can_be_followed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    ends(folder, &["record"], 2, &["--model FILE", "-- PROGRAM"]);
    let of = |more: &[&'static str]| [&["record", "-m", MODEL, "-p", "a"], more].concat();
    ends(
        folder,
        &of(&["-n", "-5"]),
        2,
        &["`-5` is not a number of tokens"],
    );
    // More than the model was made for is no advice.
    let output = tensorscope(folder, &of(&["-n", "100000000"]));
    assert_eq!(output.status.code(), Some(2));
    assert!(
        said(&output).contains("the model was trained for"),
        "{}",
        said(&output)
    );
    assert!(!said(&output).contains("ctx-size"), "{}", said(&output));
}
