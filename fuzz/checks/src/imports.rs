//! What other people's tools have written.

use std::path::Path;

use imports::{Error, Format, Import};
use rules::{Unit, Value};

use crate::log::one_line;

pub fn ncu(data: &[u8]) {
    holds(data, Format::NcuCsv);
}

pub fn strace(data: &[u8]) {
    holds(data, Format::Strace);
}

pub fn perf_data(data: &[u8]) {
    holds(data, Format::PerfData);
}

/// All texts of perf; each of them must say no to those of the others, or find something.
pub fn perf_text(data: &[u8]) {
    for format in [
        Format::PerfScript,
        Format::PerfStat,
        Format::PerfSched,
        Format::PerfMem,
        Format::PerfC2c,
    ] {
        holds(data, format);
    }
}

pub fn nsys(data: &[u8]) {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), data).expect("a temporary file takes bytes");
    let path: &Path = file.path();
    sound(data, imports::read(path, Some(Format::NsysSqlite)));
}

fn holds(data: &[u8], format: Format) {
    match imports::detect_bytes("file", data) {
        Ok(_) => {}
        Err(error) => one_line(&error.to_string()),
    }
    sound(data, imports::parse("file", data, format));
}

/// An error is one line; numbers are numbers, shares are shares, and there are no more events
/// than bytes could hold.
fn sound(data: &[u8], read: Result<Import, Error>) {
    let import = match read {
        Ok(import) => import,
        Err(error) => return one_line(&error.to_string()),
    };
    for note in &import.notes {
        one_line(note);
    }
    assert!(import.events.len() <= data.len());
    for subject in &import.subjects {
        for (name, metric) in &subject.metrics.0 {
            if let Value::Number(number) = metric.value {
                assert!(number.is_finite(), "{name} is {number}");
                let share = metric.unit == Unit::Share;
                assert!(
                    !share || (0.0..=1.0 + 1e-9).contains(&number),
                    "{name} is {number}"
                );
            }
        }
    }
}
