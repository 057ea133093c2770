//! A run directory, opened as every command does.

use std::fs;

use index::{Filter, RunIndex};
use reader::kernel::{Owners, Underneath};
use rundir::{Metadata, Run};

use crate::log::one_line;
use crate::pieces::folder;

/// Input: its files, as [`crate::FILES`] names them.
pub fn run(data: &[u8]) {
    let folder = folder(data);
    let run = match Run::open(folder.path()) {
        Ok(run) => run,
        Err(error) => return one_line(&error.to_string()),
    };
    let _ = (run.warning(), run.lost(), run.missing_from_log(0));
    let _ = (run.tensor_names(), run.log_bytes());
    if let Some(metadata) = run.metadata() {
        let text = serde_json::to_string(metadata).expect("metadata is JSON");
        assert!(serde_json::from_str::<Metadata>(&text).is_ok(), "{text}");
    }
    let log = run.log_directory();
    let _ = audit::touched::read(&log, 0, &[0, 100, 120]);
    if fs::metadata(log.join("control")).is_ok_and(|about| about.len() > 0) {
        let _ = trace::control::Control::open(&log).map(|control| control.stop());
    }
    if let Ok(Some(mut underneath)) = Underneath::open(&run) {
        let model = folder.path().join("model.gguf");
        underneath.owners = Owners::of_files([model.as_path()]);
        let _ = (underneath.faults(), underneath.io(), underneath.samples());
    }
    if let Ok(index) = RunIndex::open(&run, &mut |_| ()) {
        index.info();
        index.summary(&Filter::default());
    }
}
