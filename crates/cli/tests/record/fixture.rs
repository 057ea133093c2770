//! Running the program, and reading back what it leaves.

use std::{
    io::Read,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use reader::summary::{Summary, summarise};
use rundir::Run;
pub use testing::models::shipped;
use trace::{
    read::{Evaluation, Event, StreamEnd, StreamReader},
    template::{CaptureKind, Template},
};

pub fn dense() -> PathBuf {
    shipped("shakespeare-dense.gguf")
}

pub fn moe() -> PathBuf {
    shipped("shakespeare-moe.gguf")
}

/// The program in `folder`. With backtraces on, so that a panic cannot hide.
pub fn tensorscope(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorscope"));
    command
        .current_dir(folder)
        .env("RUST_BACKTRACE", "1")
        .stdin(Stdio::null());
    command
}

/// `record -m MODEL -t 1 ARGS`; one thread, because the cores are shared.
pub fn record_command(folder: &Path, model: &Path, args: &[&str]) -> Command {
    let mut command = tensorscope(folder);
    command
        .arg("record")
        .arg("-m")
        .arg(model)
        .args(["-t", "1"])
        .args(args);
    command
}

pub fn record(folder: &Path, model: &Path, args: &[&str]) -> Output {
    record_command(folder, model, args).output().unwrap()
}

/// As [`record`] into `RUN-0`, `RUN-1`, …, which must succeed.
pub fn recorded(folder: &Path, model: &Path, args: &[&str]) -> (Output, Trace) {
    let name = (0..)
        .map(|n| format!("RUN-{n}"))
        .find(|name| !folder.join(name).exists())
        .unwrap();
    let output = record(folder, model, &[args, &["-o", &name]].concat());
    assert_eq!(
        output.status.code(),
        Some(0),
        "{args:?}: {}",
        stderr(&output)
    );
    (output, Trace::open(&folder.join(name)))
}

/// Starts a recording whose output the test reads.
pub fn start(command: &mut Command) -> Child {
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Reads until `count` bytes of text have come: so many were printed for sure.
pub fn read_text(child: &mut Child, count: usize) -> Vec<u8> {
    let mut text = vec![0; count];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut text)
        .unwrap();
    text
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A tiny model of random weights.
pub fn synth(folder: &Path, args: &str) -> PathBuf {
    let path = folder.join("synth.gguf");
    let mut command = tensorscope(folder);
    command
        .arg("synth")
        .args(args.split(' '))
        .args(["--tiny", "-q", "-o"])
        .arg(&path);
    assert!(command.output().unwrap().status.success());
    path
}

/// A run that was read back completely.
pub struct Trace {
    pub run: Run,
    pub reader: StreamReader,
    pub evaluations: Vec<Evaluation>,
    pub partial: Vec<Evaluation>,
    pub summary: Summary,
}

impl Trace {
    /// Fails on anything damaged.
    pub fn open(path: &Path) -> Trace {
        let run = Run::open(path).unwrap_or_else(|e| panic!("{e}"));
        let log = run.log_directory();
        let summary = summarise(&log, &mut |_| {}).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(summary.corrupt, Vec::<String>::new());
        let mut reader = StreamReader::open(&log, 0).unwrap();
        let (mut evaluations, mut partial) = (Vec::new(), Vec::new());
        while let Some(event) = reader.next_event().unwrap() {
            match event {
                Event::Evaluation(evaluation) => evaluations.push(evaluation),
                Event::Partial(evaluation) => partial.push(evaluation),
                Event::Copy(copy) => panic!("nothing is copied to a device: {copy:?}"),
                Event::Corrupt { reason, .. } => panic!("{reason}"),
            }
        }
        assert_eq!(summary.evaluations, evaluations.len() as u64);
        assert_eq!(summary.partial, partial.len() as u64);
        Trace {
            run,
            reader,
            evaluations,
            partial,
            summary,
        }
    }

    pub fn is_closed(&self) -> bool {
        self.reader.end() == StreamEnd::Closed
    }

    pub fn template(&self, evaluation: &Evaluation) -> &Template {
        &self.reader.definitions.templates[evaluation.template as usize]
    }

    pub fn tokens<'a>(&'a self, evaluation: &'a Evaluation) -> &'a [i64] {
        evaluation.first_of(self.template(evaluation), CaptureKind::Tokens)
    }

    pub fn positions<'a>(&'a self, evaluation: &'a Evaluation) -> &'a [i64] {
        evaluation.first_of(self.template(evaluation), CaptureKind::Positions)
    }

    /// Text of the tokens that evaluation after evaluation got as input.
    pub fn text_of(&self, evaluation: &Evaluation) -> Vec<u8> {
        let text = |token: &i64| self.reader.definitions.tokens[&(*token as u32)].clone();
        self.tokens(evaluation).iter().flat_map(text).collect()
    }

    pub fn ops(&self) -> Vec<String> {
        self.summary.by_op.keys().cloned().collect()
    }
}
