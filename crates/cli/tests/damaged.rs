//! What commands that read a run say of a log that is not whole.

use std::{
    fs::{self, OpenOptions},
    path::Path,
    process::{Command, Output},
};

fn tensorscope(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorscope"));
    command.current_dir(folder).args(args).output().unwrap()
}

/// Records a run, lets `spoil` at its log, and expects every reader to exit with 1
/// and to say `expected`.
fn check(spoil: impl Fn(&Path), expected: &str) {
    let folder = tempfile::tempdir().unwrap();
    let model = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../models/shakespeare-moe.gguf"
    );
    for run in ["run", "whole"] {
        // Tables would be made while the log is still whole.
        let args = [
            "record",
            "-m",
            model,
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
        assert!(tensorscope(folder.path(), &args).status.success());
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
    ] {
        let output = tensorscope(folder.path(), args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
        assert!(said.contains(expected), "{args:?}: {said}");
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
