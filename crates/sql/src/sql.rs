//! `tensorscope sql`: questions to the tables of one or several runs.

use std::{
    fs::OpenOptions,
    io::{self, BufWriter, IsTerminal as _, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, bail};
use store::{
    Session, StoreError, output::MAX_TABLE_ROWS, schema::TABLES, views::VIEWS, write_query,
};

use terminal::runs::open_run;

use crate::{
    code_of,
    ingest::{ensure_tables, says_what_tables_lack},
};

/// Ask a run, or several as one dataset, in SQL
///
/// The query is the last argument. With several runs every table and view has a first column
/// `run`, the name of the run's folder. Tables are made from the log when they are missing.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tensorscope sql --tables
  tensorscope sql RUN \"SELECT * FROM hot_tensors ORDER BY bytes DESC LIMIT 10\"
  tensorscope sql RUN \"SELECT component, SUM(bytes) FROM accesses GROUP BY component\" --format csv
  tensorscope sql RUN1 RUN2 \"SELECT run, * FROM tokens_per_second\"
  tensorscope sql RUN \"SELECT * FROM routing\" --format parquet -o routing.parquet

docs/trace-schema.md says what every column means, and has more queries.")]
pub struct Args {
    /// Run directories, then the query
    #[arg(value_name = "RUN… SQL", required_unless_present = "tables")]
    runs_and_query: Vec<String>,

    /// Format of the answer
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,

    /// File to write [default: standard output]; it must not exist
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// List the tables, their columns and the views
    #[arg(long, conflicts_with_all = ["output", "format"])]
    tables: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// For people: at most 1000 rows
    Table,
    Csv,
    /// One object a line
    Json,
    Parquet,
}

/// What the arguments ask for.
struct Props {
    runs: Vec<PathBuf>,
    query: String,
    format: store::Format,
    output: Option<PathBuf>,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.tables {
        terminal::print(&tables_page())?;
        return Ok(ExitCode::SUCCESS);
    }
    let props = args.props()?;
    let mut is_whole = true;
    let mut ready = Vec::new();
    for path in &props.runs {
        let tables = ensure_tables(open_run(path)?)?;
        is_whole &= !says_what_tables_lack(&tables.run)?;
        ready.push(tables);
    }
    let runs: Vec<&Path> = ready.iter().map(|tables| tables.run.path()).collect();
    let session = Session::open(&runs)?;
    let code = code_of(!is_whole);
    let Some(path) = &props.output else {
        answer(&session, &props, &mut BufWriter::new(io::stdout()))?;
        return Ok(code);
    };
    let file = OpenOptions::new().write(true).create_new(true).open(path);
    let file = file.with_context(|| format!("{}: cannot create", path.display()))?;
    let answered = answer(&session, &props, &mut BufWriter::new(file));
    if answered.is_err() {
        // Half an answer is none, and the same command can be given again.
        let _ = std::fs::remove_file(path);
    }
    answered.map(|()| code)
}

fn answer(session: &Session, props: &Props, out: &mut (dyn Write + Send)) -> anyhow::Result<()> {
    match write_query(session, &props.query, props.format, out) {
        Ok(written) if written.is_cut => {
            eprintln!(
                "tensorscope: only the first {MAX_TABLE_ROWS} rows are shown; `--format csv` gives all"
            );
        }
        Ok(_) => {}
        // `| head` has seen enough.
        Err(StoreError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {}
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

impl Args {
    fn props(self) -> anyhow::Result<Props> {
        let mut runs = self.runs_and_query;
        let query = runs.pop().unwrap_or_default();
        if runs.is_empty() && Path::new(&query).is_dir() {
            bail!(
                "{query}: the query is missing; try `tensorscope sql {query} \"SELECT * FROM hot_tensors\"`"
            );
        }
        if runs.is_empty() {
            bail!("the run is missing; give its folder before the query");
        }
        if self.format == Format::Parquet && self.output.is_none() && io::stdout().is_terminal() {
            bail!("Parquet is not for a terminal; give a file with `-o FILE`");
        }
        Ok(Props {
            runs: runs.into_iter().map(PathBuf::from).collect(),
            query,
            format: match self.format {
                Format::Table => store::Format::Table,
                Format::Csv => store::Format::Csv,
                Format::Json => store::Format::Json,
                Format::Parquet => store::Format::Parquet,
            },
            output: self.output,
        })
    }
}

fn tables_page() -> String {
    let mut lines = vec!["tables".to_owned()];
    for table in TABLES {
        let columns: Vec<&str> = table.columns.iter().map(|c| c.name).collect();
        lines.push(format!("  {:<19} {}", table.name, table.row));
        lines.push(format!("  {:<19}   {}", "", columns.join(", ")));
    }
    lines.push("views".to_owned());
    for view in &VIEWS {
        lines.push(format!("  {:<19} {}", view.name, view.doc));
    }
    lines.join("\n")
}
