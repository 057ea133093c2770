//! What another tool recorded beside a run, put into the run: events on its clock, for table
//! `imported`, and numbers for `diagnose`.

use std::path::Path;

use anyhow::{Context as _, bail};
use imports::{Clock, Import};
use reader::kernel::{Imported, imported};
use rundir::{Run, metadata::Metadata};
use terminal::text::count;

pub fn add(run: &Run, file: &Path, start_nanos: Option<u64>) -> anyhow::Result<()> {
    let import = imports::read(file, None)?;
    for note in &import.notes {
        eprintln!("tensorscope: {note}");
    }
    let events = on_our_clock(run, &import, start_nanos)?;
    imported::put(&run.log_directory(), &import.file, &events)
        .with_context(|| format!("{}: cannot write", run.path().display()))?;
    import.keep(run.path())?;
    eprintln!(
        "tensorscope: {}: {} and numbers of {}",
        file.display(),
        count(events.len() as u64, "event"),
        count(import.subjects.len() as u64, "subject")
    );
    Ok(())
}

fn on_our_clock(
    run: &Run,
    import: &Import,
    start_nanos: Option<u64>,
) -> anyhow::Result<Vec<Imported>> {
    if import.events.is_empty() {
        return Ok(Vec::new());
    }
    let offset: i128 = match (import.clock, start_nanos) {
        (_, Some(start)) => i128::from(start),
        (Clock::Monotonic, None) => 0,
        (Clock::Wall, None) => run
            .metadata()
            .and_then(Metadata::wall_to_monotonic_nanos)
            .context("the run does not say when it began: give --import-start")?,
        (Clock::Unknown, None) => bail!(
            "{}: it does not say which clock its times are of; record with one that does (perf record -k mono, \
             strace -ttt), or give --import-start NANOS",
            import.file
        ),
    };
    let tool = import.format.name();
    let events = import.events.iter().filter_map(|event| {
        let begin = i128::from(event.begin_nanos) + offset;
        Some(Imported {
            begin_nanos: u64::try_from(begin).ok()?,
            duration_nanos: event.duration_nanos,
            pid: event.pid,
            tid: event.tid,
            tool: tool.to_owned(),
            file: import.file.clone(),
            category: event.category.clone(),
            name: event.name.clone(),
        })
    });
    Ok(events.collect())
}
