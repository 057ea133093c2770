//! `tensorscope ingest`: the raw log as Parquet tables.

use std::{
    io::{BufReader, ErrorKind},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, anyhow, bail};
use indicatif::HumanBytes;
use kernelio::{
    blkparse,
    extents::DiskMap,
    files::Files,
    kernel_log::{self, io::Io},
};
use rundir::{Run, error::reason};
use store::{IngestReport, Session, StoreError, TablesState, ingest, query_rows, tables_state};
use tempfile::TempDir;
use terminal::{
    progress,
    runs::{open_run, says_what_is_missing},
    text::grouped,
};

use crate::{code_of, imported};

/// Turn a run's log into Parquet tables, under RUN/tables
///
/// Tables that are there are replaced when the new ones are complete. `tensorscope sql` does
/// this by itself when it is needed.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tensorscope ingest RUN
  blkparse -i trace > io.txt && tensorscope ingest RUN --blkparse io.txt
  strace -f -ttt -T -o calls.txt tensorscope record … && tensorscope ingest RUN --import calls.txt
  duckdb -c \"SELECT component, sum(bytes) FROM 'RUN/tables/accesses.parquet' GROUP BY component\"

docs/trace-schema.md says what every column means.")]
pub struct Args {
    /// Run directory
    run: PathBuf,

    /// Add block requests that blktrace recorded beside the run: the text that blkparse prints
    #[arg(long, value_name = "FILE")]
    blkparse: Option<PathBuf>,

    /// When blktrace began, in nanoseconds of CLOCK_MONOTONIC [default: when the run began]
    #[arg(long, value_name = "NANOS", requires = "blkparse")]
    blkparse_start: Option<u64>,

    /// Add what another tool recorded beside the run: perf.data, perf script, strace, Nsight
    /// Systems' sqlite, joined by time (table `imported`); what perf stat, sched, mem, c2c or
    /// Nsight Compute say is diagnosed with the run from then on
    #[arg(long, value_name = "FILE")]
    import: Vec<PathBuf>,

    /// When the tool's clock was 0, in nanoseconds of CLOCK_MONOTONIC, where its file does not
    /// say
    #[arg(long, value_name = "NANOS", requires = "import")]
    import_start: Option<u64>,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let run = open_run(&args.run)?;
    if let Some(file) = &args.blkparse {
        add_requests(&run, file, args.blkparse_start)?;
    }
    for file in &args.import {
        imported::add(&run, file, args.import_start)?;
    }
    let report = with_progress(&run)?;
    terminal::print(&page(&run, &report))?;
    let is_missing = says_what_is_missing(&run, report.rows("evals"));
    Ok(code_of(is_missing || !report.corrupt.is_empty()))
}

/// Make the tables of a run where they are missing or old
#[derive(clap::Args)]
pub struct PrepareArgs {
    /// Run directory
    run: PathBuf,

    /// Show no progress
    #[arg(short, long)]
    quiet: bool,
}

/// What `record` starts at its end; it has said itself what the run lacks.
pub fn prepare(args: &PrepareArgs) -> anyhow::Result<ExitCode> {
    if args.quiet {
        progress::be_quiet();
    }
    ensure_tables(Run::open(&args.run)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes `log/io` from blkparse's text. A run has one such log.
fn add_requests(run: &Run, file: &Path, start_nanos: Option<u64>) -> anyhow::Result<()> {
    let metadata = run.metadata();
    let start_nanos = start_nanos
        .or(metadata.map(|m| m.started_monotonic_nanos))
        .unwrap_or(0);
    let model = metadata.and_then(|m| m.model.as_ref());
    let paths = model.map_or(&[][..], |model| &model.files);
    let files = Files::register(paths.iter().map(|f| Path::new(&f.path)))?;
    let (disks, missing) = DiskMap::of(&files)?;
    for missing in missing {
        eprintln!("tensorscope: {missing}");
    }
    let text = std::fs::File::open(file)
        .map_err(|error| anyhow!("{}: cannot open: {}", file.display(), reason(&error)))?;
    let path = run.log_directory().join(kernel_log::IO);
    if path.exists() {
        bail!(
            "{}: there are block requests already; remove the file to replace them",
            path.display()
        );
    }
    let mut writer = kernel_log::Writer::<Io>::create(&path)?;
    let read = blkparse::read(BufReader::new(text), start_nanos, disks, |io| {
        writer.push(io)
    });
    let imported = read.and_then(|imported| writer.flush().map(|()| imported));
    let imported = match imported {
        Ok(imported) if imported.events > 0 => Ok(imported),
        Ok(_) => {
            Err("there is no block request in it; it must be what `blkparse -i` prints".into())
        }
        Err(error) => Err(error.to_string()),
    };
    let imported = imported.map_err(|reason: String| {
        // Half a log would be in the way of the next try.
        let _ = std::fs::remove_file(&path);
        anyhow!("{}: {reason}", file.display())
    })?;
    eprintln!(
        "tensorscope: {} requests from {} events of {}{}",
        grouped(imported.requests),
        grouped(imported.events),
        file.display(),
        match imported.unpaired {
            0 => String::new(),
            n => format!("; {} completions without an issue", grouped(n)),
        }
    );
    Ok(())
}

/// A run whose tables are there and as new as its log.
pub struct Ready {
    pub run: Run,
    /// Where it is, if the real one cannot be written to: removed in the end.
    _folder: Option<TempDir>,
}

/// Makes the tables where they are missing or older than the log.
pub fn ensure_tables(run: Run) -> anyhow::Result<Ready> {
    let is_ready = tables_state(&run)? == TablesState::Ready;
    let made = match is_ready {
        true => Ok(()),
        false => with_progress(&run).map(drop),
    };
    match made {
        Ok(()) => Ok(Ready { run, _folder: None }),
        Err(StoreError::Io { cause, .. })
            if matches!(
                cause.kind(),
                ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied
            ) =>
        {
            beside(&run)
        }
        Err(error) => Err(error.into()),
    }
}

/// Tables of a run that cannot be written to: in a folder of the same name that has the rest
/// by links.
fn beside(run: &Run) -> anyhow::Result<Ready> {
    eprintln!(
        "tensorscope: {}: cannot be written to; its tables are made for this question only",
        run.path().display()
    );
    let real = run.path().canonicalize()?;
    let folder = tempfile::tempdir().context("cannot make a temporary folder for the tables")?;
    let path = folder.path().join(real.file_name().unwrap_or_default());
    let link = |name: &str| symlink(real.join(name), path.join(name));
    std::fs::create_dir(&path)
        .and_then(|()| link("log"))
        .and_then(|()| link("metadata.json"))
        .with_context(|| format!("{}: cannot write", path.display()))?;
    let run = Run::open(&path)?;
    with_progress(&run)?;
    Ok(Ready {
        run,
        _folder: Some(folder),
    })
}

/// Says so when rows are missing because the log was damaged or cut short.
pub fn says_what_tables_lack(run: &Run) -> anyhow::Result<bool> {
    let session = Session::open(&[run.path()])?;
    let counts = query_rows(&session, "SELECT evals, corrupt_records FROM run", 1)?;
    let count = |at: usize| counts.rows.first().and_then(|row| row[at].as_u64());
    let damaged = count(1).unwrap_or(0);
    if damaged > 0 {
        eprintln!(
            "tensorscope: {}: damaged records of the log have no rows: {damaged}; `tensorscope ingest` names them",
            run.path().display()
        );
    }
    let is_missing = says_what_is_missing(run, count(0).unwrap_or(0));
    Ok(damaged > 0 || is_missing)
}

/// Makes the tables; says on stderr what of the log has no rows.
pub fn with_progress(run: &Run) -> Result<IngestReport, StoreError> {
    let bar = progress::bar(run.log_bytes(), "ingesting", "bytes");
    let report = ingest(run, &mut |bytes| bar.set_position(bytes));
    bar.finish_and_clear();
    let report = report?;
    for damage in &report.corrupt {
        eprintln!("tensorscope: {damage}: not in the tables");
    }
    if report.partial > 0 {
        let (path, partial) = (run.path().display(), report.partial);
        eprintln!(
            "tensorscope: {path}: evaluations cut off by the end of the process: {partial}; not in the tables"
        );
    }
    Ok(report)
}

fn page(run: &Run, report: &IngestReport) -> String {
    let mut lines: Vec<String> = report
        .tables
        .iter()
        .map(|t| {
            format!(
                "{:<9} {:>13} rows  {:>12}",
                t.name,
                grouped(t.rows),
                HumanBytes(t.bytes).to_string()
            )
        })
        .collect();
    let accesses = report.rows("accesses");
    let per_access = match accesses {
        0 => String::new(),
        n => format!(", {:.2} bytes per access", report.bytes() as f64 / n as f64),
    };
    let tables = run.path().join("tables");
    lines.push(format!(
        "{} in {}{per_access}",
        HumanBytes(report.bytes()),
        tables.display()
    ));
    lines.join("\n")
}
