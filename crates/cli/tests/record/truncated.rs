//! The model's file is cut short while it is being read: one line that says so, exit code 1,
//! and everything that was computed before is in the trace.

use std::{fs, io::Read};

use rundir::Condition;

use crate::fixture::*;

#[test]
fn a_model_truncated_under_a_recording_ends_it_with_a_reason_and_a_trace() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("copy.gguf");
    fs::copy(dense(), &model).unwrap();
    let before = fs::metadata(&model).unwrap().len();
    let args = "-p To -n 8000 -c 8192 --ignore-eos -o RUN";
    let args: Vec<&str> = args.split(' ').collect();
    let mut child = start(&mut record_command(folder.path(), &model, &args));
    // Token n is printed after evaluation n.
    let mut text = read_text(&mut child, 40);
    let file = fs::OpenOptions::new().write(true).open(&model).unwrap();
    file.set_len(100_000).unwrap();
    child.stdout.take().unwrap().read_to_end(&mut text).unwrap();
    let output = child.wait_with_output().unwrap();
    let talk = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{talk}");
    let why = format!(
        "the model file {} was truncated while it was being read: it is 100000 bytes now, \
         {before} when it was opened",
        model.display()
    );
    assert!(talk.contains(&why) && talk.lines().count() == 1, "{talk}");

    let trace = Trace::open(&folder.path().join("RUN"));
    assert_eq!(trace.run.condition(), &Condition::StoppedEarly(why));
    assert!(trace.partial.len() <= 1);
    let evaluated: Vec<u8> = trace.evaluations[1..]
        .iter()
        .flat_map(|e| trace.text_of(e))
        .collect();
    assert!(
        evaluated.len() + 8 >= text.len(),
        "what was printed is in it"
    );
    let report = tensorscope(folder.path())
        .args(["report", "RUN"])
        .output()
        .unwrap();
    assert!(
        stdout(&report).contains("evaluations"),
        "{}",
        stderr(&report)
    );
    assert!(
        stderr(&report).contains("was truncated"),
        "{}",
        stderr(&report)
    );
}
