//! `tensorscope export`: the trace as rows for other tools.

use std::{
    fs::OpenOptions,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use gguf::{GgmlType, Meaning};
use rundir::Run;
use trace::{
    expand::{for_each_access, for_each_route},
    read::{Definitions, Evaluation, Event, StreamReader, streams},
    region::Strided,
    template::{CaptureKind, Direction, Operand},
};

/// Write a trace's rows as CSV or JSON lines
///
/// Tables: tensors, evals, tokens, nodes, accesses, routing. An access with several byte
/// ranges has its first one in tensor_offset, the sum in bytes, and how they repeat in
/// runs (count), run_bytes and strides (count x bytes, innermost first).
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tensorscope export RUN --table accesses > accesses.csv
  tensorscope export RUN --table routing --to json -o routing.jsonl
  tensorscope export RUN --table nodes | sort -t, -k10 -n | tail")]
pub struct Args {
    /// Run directory
    run: PathBuf,

    /// Which rows
    #[arg(long, value_enum, default_value_t = Table::Accesses)]
    table: Table,

    /// Format
    #[arg(long, value_enum, default_value_t = Format::Csv)]
    to: Format,

    /// File to write [default: standard output]; it must not exist
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Table {
    Tensors,
    Evals,
    Tokens,
    Nodes,
    Accesses,
    Routing,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Format {
    Csv,
    /// One object a line
    Json,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let run = open_run(&args.run)?;
    let out: Box<dyn Write> = match &args.output {
        None => Box::new(io::stdout().lock()),
        Some(path) => Box::new(
            OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(path)
                .with_context(|| format!("{}: cannot create", path.display()))?,
        ),
    };
    let mut sink = Sink::new(args.to, args.table.columns(), BufWriter::new(out));
    let damaged = write_rows(&run, args.table, &mut sink);
    match damaged.and_then(|damaged| sink.finish().map(|()| damaged).map_err(anyhow::Error::from)) {
        Ok(0) => Ok(ExitCode::SUCCESS),
        // Lost data is an error, never a warning.
        Ok(_) => Ok(ExitCode::from(1)),
        // `| head` has seen enough.
        Err(error) if is_closed_pipe(&error) => Ok(ExitCode::SUCCESS),
        Err(error) => Err(error),
    }
}

impl Table {
    fn columns(self) -> &'static [&'static str] {
        match self {
            Table::Tensors => &[
                "tensor", "name", "kind", "component", "role", "layer", "type", "shape", "size_bytes", "file",
                "file_offset", "buffer_type", "address",
            ],
            Table::Evals => &[
                "eval", "phase", "begin_nanos", "end_nanos", "tokens", "steps", "threads", "context", "template",
                "flags",
            ],
            Table::Tokens => &["token", "eval", "phase", "token_id", "text", "position", "sequence"],
            Table::Nodes => &[
                "eval", "step", "node", "fused_nodes", "op", "name", "layer", "begin_nanos", "end_nanos",
                "duration_nanos",
            ],
            Table::Accesses => &[
                "eval", "step", "op", "layer", "tensor_name", "kind", "component", "role", "direction", "operand",
                "expert", "token", "file", "file_offset", "tensor_offset", "bytes", "runs", "run_bytes", "strides",
                "buffer_type", "address", "begin_nanos", "end_nanos",
            ],
            Table::Routing => &["eval", "token", "layer", "rank", "expert", "weight"],
        }
    }
}

/// Writes the table; the number of records that could not be read.
fn write_rows(run: &Run, table: Table, sink: &mut Sink) -> anyhow::Result<u64> {
    let log_directory = run.log_directory();
    let mut damaged = 0;
    let mut first_token = 0;
    for stream in streams(&log_directory)? {
        let mut reader = StreamReader::open(&log_directory, stream)?;
        while let Some(event) = reader.next_event()? {
            match event {
                Event::Partial(_) => {}
                Event::Corrupt { segment, offset, reason } => {
                    eprintln!("tensorscope: {}: byte {offset}: {reason}", segment.display());
                    damaged += 1;
                }
                Event::Evaluation(evaluation) => {
                    let rows = Rows { definitions: &reader.definitions, evaluation: &evaluation, first_token };
                    rows.write(table, sink)?;
                    let template = &reader.definitions.templates[evaluation.template as usize];
                    first_token += evaluation.first_of(template, CaptureKind::Tokens).len();
                }
            }
        }
        if table == Table::Tensors {
            tensor_rows(&reader.definitions, sink)?;
        }
    }
    Ok(damaged)
}

struct Rows<'a> {
    definitions: &'a Definitions,
    evaluation: &'a Evaluation,
    /// Number of the evaluation's first token in the run.
    first_token: usize,
}

impl Rows<'_> {
    fn write(&self, table: Table, sink: &mut Sink) -> io::Result<()> {
        match table {
            Table::Tensors => Ok(()),
            Table::Evals => self.eval(sink),
            Table::Tokens => self.tokens(sink),
            Table::Nodes => self.nodes(sink),
            Table::Accesses => self.accesses(sink),
            Table::Routing => self.routing(sink),
        }
    }

    fn eval(&self, sink: &mut Sink) -> io::Result<()> {
        let e = self.evaluation;
        let template = &self.definitions.templates[e.template as usize];
        sink.row([
            number(e.number),
            text(e.phase.name()),
            number(e.begin_nanos),
            number(e.end_nanos),
            number(e.first_of(template, CaptureKind::Tokens).len() as u64),
            number(template.steps.len() as u64),
            number(u64::from(e.threads)),
            number(e.context),
            number(u64::from(e.template)),
            number(u64::from(e.flags)),
        ])
    }

    fn tokens(&self, sink: &mut Sink) -> io::Result<()> {
        let e = self.evaluation;
        let template = &self.definitions.templates[e.template as usize];
        let positions = e.first_of(template, CaptureKind::Positions);
        for (i, &id) in e.first_of(template, CaptureKind::Tokens).iter().enumerate() {
            let piece = u32::try_from(id).ok().and_then(|id| self.definitions.tokens.get(&id));
            sink.row([
                number((self.first_token + i) as u64),
                number(e.number),
                text(e.phase.name()),
                Cell::Number(id),
                piece.map_or(Cell::Null, |p| text(&String::from_utf8_lossy(p))),
                positions.get(i).map_or(Cell::Null, |&p| Cell::Number(p)),
                e.sequences.get(i).map_or(Cell::Null, |&s| number(u64::from(s))),
            ])?;
        }
        Ok(())
    }

    fn nodes(&self, sink: &mut Sink) -> io::Result<()> {
        let e = self.evaluation;
        let mut begin = e.begin_nanos;
        for (i, step) in self.definitions.templates[e.template as usize].steps.iter().enumerate() {
            let end = e.step_nanos[i];
            sink.row([
                number(e.number),
                number(i as u64),
                number(u64::from(step.node)),
                number(u64::from(step.fused_nodes)),
                text(&self.definitions.text(step.op)),
                text(&self.definitions.name(step.name)),
                optional(step.layer),
                number(begin),
                number(end),
                number(end.saturating_sub(begin)),
            ])?;
            begin = end;
        }
        Ok(())
    }

    fn accesses(&self, sink: &mut Sink) -> io::Result<()> {
        let e = self.evaluation;
        let template = &self.definitions.templates[e.template as usize];
        let tokens = e.first_of(template, CaptureKind::Tokens).len() as u64;
        let mut begin = e.begin_nanos;
        let mut result = Ok(());
        for (i, step) in template.steps.iter().enumerate() {
            let op = self.definitions.text(step.op);
            let end = e.step_nanos[i];
            for_each_access(template, e, i, |access| {
                if result.is_err() {
                    return;
                }
                let tensor = &self.definitions.tensors[access.def.tensor as usize];
                let name = self.definitions.name(tensor.name);
                let meaning = Meaning::of(&name);
                let is_weight = tensor.place.is_some();
                // One element of an index array per token: a row of the embedding, a KV cell.
                let token = access.element.filter(|_| match &access.def.region {
                    trace::region::Region::Indexed(indexed) => indexed.count.iter().product::<u64>() == tokens,
                    trace::region::Region::Fixed(_) => false,
                });
                result = sink.row([
                    number(e.number),
                    number(i as u64),
                    text(&op),
                    optional(step.layer),
                    text(&name),
                    text(tensor.kind.name()),
                    if is_weight { text(meaning.component.name()) } else { Cell::Null },
                    if is_weight { text(&meaning.role) } else { Cell::Null },
                    text(match access.def.direction {
                        Direction::Read => "read",
                        Direction::Write => "write",
                    }),
                    match access.def.operand {
                        Operand::Source(n) => text(&format!("src{n}")),
                        Operand::Destination => text("dst"),
                    },
                    optional(access.expert),
                    token.map_or(Cell::Null, |t| number(self.first_token as u64 + t)),
                    optional(tensor.place.map(|p| p.file)),
                    tensor.place.map_or(Cell::Null, |p| number(p.file_offset + access.region.offset)),
                    number(access.region.offset),
                    number(access.region.bytes()),
                    number(runs(&access.region)),
                    number(access.region.run_bytes),
                    text(&strides(&access.region)),
                    text(&self.definitions.text(tensor.buffer_type)),
                    number(tensor.address + access.region.offset),
                    number(begin),
                    number(end),
                ]);
            });
            begin = end;
        }
        result
    }

    fn routing(&self, sink: &mut Sink) -> io::Result<()> {
        let mut result = Ok(());
        let template = &self.definitions.templates[self.evaluation.template as usize];
        for_each_route(template, self.evaluation, |route| {
            if result.is_ok() {
                result = sink.row([
                    number(self.evaluation.number),
                    number(self.first_token as u64 + u64::from(route.token)),
                    number(u64::from(route.layer)),
                    number(u64::from(route.rank)),
                    number(u64::from(route.expert)),
                    route.weight.map_or(Cell::Null, Cell::Float),
                ]);
            }
        });
        result
    }
}

fn tensor_rows(definitions: &Definitions, sink: &mut Sink) -> io::Result<()> {
    for (i, tensor) in definitions.tensors.iter().enumerate() {
        let name = definitions.name(tensor.name);
        let meaning = Meaning::of(&name);
        let is_weight = tensor.place.is_some();
        let ty = GgmlType::from_u32(tensor.ggml_type).map_or("unknown", GgmlType::name);
        sink.row([
            number(i as u64),
            text(&name),
            text(tensor.kind.name()),
            if is_weight { text(meaning.component.name()) } else { Cell::Null },
            if is_weight { text(&meaning.role) } else { Cell::Null },
            optional(meaning.layer.filter(|_| is_weight)),
            text(ty),
            text(&gguf::structure::shape_text(&tensor.ne)),
            number(tensor.size_bytes),
            optional(tensor.place.map(|p| p.file)),
            tensor.place.map_or(Cell::Null, |p| number(p.file_offset)),
            text(&definitions.text(tensor.buffer_type)),
            number(tensor.address),
        ])?;
    }
    Ok(())
}

fn runs(region: &Strided) -> u64 {
    region.dims.iter().map(|&(count, _)| count).product()
}

fn strides(region: &Strided) -> String {
    let parts: Vec<String> = region.dims.iter().map(|(count, stride)| format!("{count}x{stride}")).collect();
    parts.join(" ")
}

/// A field of a row.
enum Cell {
    Null,
    Number(i64),
    Float(f32),
    Text(String),
}

fn number(value: u64) -> Cell {
    Cell::Number(value as i64)
}

fn optional(value: Option<u32>) -> Cell {
    value.map_or(Cell::Null, |v| Cell::Number(i64::from(v)))
}

fn text(value: &str) -> Cell {
    Cell::Text(value.to_owned())
}

enum Sink {
    Csv(Box<csv::Writer<BufWriter<Box<dyn Write>>>>),
    Json(BufWriter<Box<dyn Write>>, &'static [&'static str]),
}

impl Sink {
    fn new(format: Format, columns: &'static [&'static str], out: BufWriter<Box<dyn Write>>) -> Sink {
        match format {
            Format::Csv => {
                let mut writer = csv::Writer::from_writer(out);
                // Into the buffer: a closed pipe shows at the first flush.
                let _ = writer.write_record(columns);
                Sink::Csv(Box::new(writer))
            }
            Format::Json => Sink::Json(out, columns),
        }
    }

    fn row<const N: usize>(&mut self, cells: [Cell; N]) -> io::Result<()> {
        match self {
            Sink::Csv(writer) => {
                let fields = cells.map(|cell| match cell {
                    Cell::Null => String::new(),
                    Cell::Number(n) => n.to_string(),
                    Cell::Float(f) => f.to_string(),
                    Cell::Text(t) => t,
                });
                writer.write_record(&fields).map_err(|error| match error.into_kind() {
                    csv::ErrorKind::Io(error) => error,
                    other => io::Error::other(format!("{other:?}")),
                })
            }
            Sink::Json(out, columns) => {
                let mut object = serde_json::Map::new();
                for (column, cell) in columns.iter().zip(cells) {
                    let value = match cell {
                        Cell::Null => serde_json::Value::Null,
                        Cell::Number(n) => n.into(),
                        Cell::Float(f) => f64::from(f).into(),
                        Cell::Text(t) => t.into(),
                    };
                    object.insert((*column).to_owned(), value);
                }
                serde_json::to_writer(&mut *out, &object)?;
                out.write_all(b"\n")
            }
        }
    }

    fn finish(self) -> io::Result<()> {
        match self {
            Sink::Csv(mut writer) => writer.flush(),
            Sink::Json(mut out, _) => out.flush(),
        }
    }
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

/// Opens a run for any command, and says what it lacks.
pub fn open_run(path: &Path) -> anyhow::Result<Run> {
    let run = Run::open(path)?;
    if let Some(warning) = run.warning() {
        eprintln!("tensorscope: {}: {warning}", path.display());
    }
    Ok(run)
}
