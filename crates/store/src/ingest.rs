//! Log → tables: one pass, memory for two row groups, whatever the log's length.
//!
//! Protocol:
//! 1. Files are written into `RUN/.tables-PID`, next to where they will be.
//! 2. One thread reads the log and fills row groups, another encodes and writes
//!    those that are full.
//! 3. When all files are complete and synced, the folder takes the name
//!    `RUN/tables`. Tables that were there are exchanged in the same step and then
//!    removed, so that a reader finds the old tables or the new ones.
//!
//! What the kernel did underneath is joined after the pass, when all tensors and
//! evaluations have their numbers, and sent group by group as well.
//!
//! An evaluation that is cut off or damaged has no rows; it is counted and named.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, SyncSender, sync_channel},
};

use rundir::Run;
use trace::{
    read::{Definitions, Event, StreamReader, streams},
    template::CaptureKind,
};
use underneath::Underneath;

use crate::{
    StoreError,
    expand::{Expander, Expansion, GROUP_ROWS},
    kernel,
    row_group::{RowGroup, Texts},
    rows,
    schema::{EVALS, ROUTING, TABLES, TENSORS, TOKENS, TRAFFIC},
    table_file::TableFile,
    template::{TemplateRows, TensorRow},
};

/// Folder of the tables inside a run directory.
pub const TABLES_DIRECTORY: &str = "tables";

/// What an ingest made, and what it could not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IngestReport {
    pub tables: Vec<TableReport>,
    /// Damaged records: where, and why. They have no rows.
    pub corrupt: Vec<String>,
    /// Evaluations cut off by the end of the process. They have no rows.
    pub partial: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableReport {
    pub name: &'static str,
    pub rows: u64,
    pub bytes: u64,
}

impl IngestReport {
    pub fn rows(&self, table: &str) -> u64 {
        let report = self.tables.iter().find(|t| t.name == table);
        report.map_or(0, |t| t.rows)
    }

    pub fn bytes(&self) -> u64 {
        self.tables.iter().map(|t| t.bytes).sum()
    }
}

/// Makes the tables of a run anew. `progress` gets the bytes of the log read so far.
pub fn ingest(run: &Run, progress: &mut dyn FnMut(u64)) -> Result<IngestReport, StoreError> {
    let folder = Scratch::create(run.path())?;
    let log_bytes = run.log_bytes();
    let mut files = Vec::new();
    for table in TABLES {
        files.push(TableFile::create(&folder.path, table, log_bytes)?);
    }
    let (sender, receiver) = sync_channel(0);
    let (ingested, written) = std::thread::scope(|scope| {
        let writer = scope.spawn(move || write_groups(files, receiver));
        let ingested = Ingest::new(run, sender).run(progress);
        (ingested, writer.join())
    });
    let written = written.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    // The writer's error is the cause when both have one.
    let tables = match (written, ingested) {
        (Err(error), _) | (Ok(_), Err(error)) => return Err(error),
        (Ok(tables), Ok(report)) => IngestReport { tables, ..report },
    };
    folder.publish()?;
    Ok(tables)
}

fn write_groups(
    mut files: Vec<TableFile>,
    receiver: Receiver<RowGroup>,
) -> Result<Vec<TableReport>, StoreError> {
    let mut rows = vec![0; files.len()];
    for group in receiver {
        let at = TABLES.iter().position(|t| t.name == group.table.name);
        let at = at.expect("a group belongs to a table");
        rows[at] += group.rows as u64;
        files[at].append(group)?;
    }
    let mut reports = Vec::new();
    for ((file, table), rows) in files.into_iter().zip(TABLES).zip(rows) {
        let (name, bytes) = (table.name, file.finish()?);
        reports.push(TableReport { name, rows, bytes });
    }
    Ok(reports)
}

/// One pass over a log.
struct Ingest<'a> {
    run: &'a Run,
    sender: SyncSender<RowGroup>,
    texts: Texts,
    expander: Expander,
    evals: RowGroup,
    tokens: RowGroup,
    routing: RowGroup,
    tensors: RowGroup,
    traffic: RowGroup,
    report: IngestReport,
    counts: rows::RunCounts,
    /// Collected if something was recorded underneath.
    references: Option<kernel::References>,
    /// Of the streams before this one.
    first_eval: i64,
    first_tensor: i64,
    first_template: i64,
    first_token: i64,
}

impl<'a> Ingest<'a> {
    fn new(run: &'a Run, sender: SyncSender<RowGroup>) -> Ingest<'a> {
        Ingest {
            run,
            sender,
            texts: Texts::default(),
            expander: Expander::new(),
            evals: RowGroup::new(&EVALS),
            tokens: RowGroup::new(&TOKENS),
            routing: RowGroup::new(&ROUTING),
            tensors: RowGroup::new(&TENSORS),
            traffic: RowGroup::new(&TRAFFIC),
            report: IngestReport::default(),
            counts: rows::RunCounts::default(),
            references: underneath::join::is_there(run).then(kernel::References::default),
            first_eval: 0,
            first_tensor: 0,
            first_template: 0,
            first_token: 0,
        }
    }

    fn run(mut self, progress: &mut dyn FnMut(u64)) -> Result<IngestReport, StoreError> {
        let log = self.run.log_directory();
        let mut bytes_before = 0;
        for stream in streams(&log)? {
            let mut reader = StreamReader::open(&log, stream)?;
            let mut of_stream = OfStream {
                stream,
                ..OfStream::default()
            };
            while let Some(event) = reader.next_event()? {
                self.event(&reader.definitions, event, &mut of_stream)?;
                progress(bytes_before + reader.record_bytes());
            }
            self.end_stream(&reader.definitions, of_stream)?;
            bytes_before += reader.record_bytes();
        }
        self.kernel()?;
        self.finish()
    }

    fn event(
        &mut self,
        definitions: &Definitions,
        event: Event,
        of_stream: &mut OfStream,
    ) -> Result<(), StoreError> {
        let evaluation = match event {
            Event::Evaluation(evaluation) => evaluation,
            Event::Partial(_) => {
                self.report.partial += 1;
                return Ok(());
            }
            Event::Corrupt {
                segment,
                offset,
                reason,
            } => {
                let damage = format!("{}: byte {offset}: {reason}", segment.display());
                self.report.corrupt.push(damage);
                return Ok(());
            }
        };
        let eval = i64::try_from(evaluation.number).ok();
        let eval = eval.and_then(|number| number.checked_add(self.first_eval));
        let Some(eval) = eval.filter(|&n| n <= i64::from(i32::MAX)) else {
            return Err(StoreError::TooLarge {
                path: self.run.path().to_owned(),
                what: format!("evaluation {}", evaluation.number),
            });
        };
        // One whose graph is damaged counts: every reader of the log counts it.
        of_stream.end_eval = of_stream.end_eval.max(eval + 1);
        of_stream.define(definitions, self.first_tensor, &mut self.texts);
        let template = &definitions.templates[evaluation.template as usize];
        let rows = match &mut of_stream.templates[evaluation.template as usize] {
            Ok(rows) => rows,
            Err(reason) => {
                let (number, stream) = (evaluation.number, of_stream.stream);
                let damage = format!("stream {stream}: evaluation {number}: {reason}");
                self.report.corrupt.push(damage);
                return Ok(());
            }
        };
        let of = Expansion {
            template,
            evaluation: &evaluation,
            eval,
            first_token: self.first_token,
        };
        let sender = &self.sender;
        let mut send = |group| send(sender, group);
        let sums = self
            .expander
            .accesses(&of, rows, &mut self.texts, &mut send)?;
        self.expander.nodes(&of, rows, &self.texts, &mut send)?;
        let template_number = self.first_template + i64::from(evaluation.template);
        let stream = of_stream.stream;
        rows::eval(
            &mut self.evals,
            &mut self.texts,
            &of,
            &sums,
            stream,
            template_number,
        );
        rows::tokens(&mut self.tokens, &mut self.texts, &of, &definitions.tokens);
        rows::routing(&mut self.routing, &mut self.texts, &of);
        for group in [&mut self.evals, &mut self.tokens, &mut self.routing] {
            if group.rows >= GROUP_ROWS {
                send(group.take(&self.texts))?;
            }
        }
        let tokens = evaluation.first_of(template, CaptureKind::Tokens).len();
        if let Some(references) = &mut self.references {
            references.add_eval(eval, self.first_token, tokens);
        }
        self.first_token += tokens as i64;
        self.counts.evals += 1;
        self.counts.accesses += sums.accesses;
        Ok(())
    }

    fn end_stream(
        &mut self,
        definitions: &Definitions,
        mut of_stream: OfStream,
    ) -> Result<(), StoreError> {
        of_stream.define(definitions, self.first_tensor, &mut self.texts);
        for (row, def) in of_stream.tensors.iter().zip(&definitions.tensors) {
            let buffer_type = definitions.text(def.buffer_type);
            rows::tensor(&mut self.tensors, &mut self.texts, row, def, &buffer_type);
            if let Some(references) = &mut self.references {
                references.add_tensor(row);
            }
        }
        let mut sums = BTreeMap::new();
        for (number, template) in of_stream.templates.iter().enumerate() {
            if let Ok(rows) = template {
                let steps = &definitions.templates[number].steps;
                rows::add_traffic(rows, definitions, steps, &mut sums);
            }
        }
        rows::traffic(&mut self.traffic, &mut self.texts, &of_stream.tensors, sums);
        self.first_eval = self.first_eval.max(of_stream.end_eval);
        self.first_tensor += definitions.tensors.len() as i64;
        self.first_template += definitions.templates.len() as i64;
        Ok(())
    }

    fn kernel(&mut self) -> Result<(), StoreError> {
        if let Some(references) = &self.references
            && let Some(underneath) = Underneath::open(self.run)?
        {
            let (sender, texts) = (&self.sender, &mut self.texts);
            kernel::write(&underneath, references, texts, &mut |group| {
                send(sender, group)
            })?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<IngestReport, StoreError> {
        self.counts.partial = self.report.partial;
        self.counts.corrupt = self.report.corrupt.len() as u64;
        let mut run = rows::run(&mut self.texts, self.run, &self.counts);
        for group in [
            &mut run,
            &mut self.tensors,
            &mut self.evals,
            &mut self.tokens,
            &mut self.expander.nodes,
            &mut self.expander.accesses,
            &mut self.routing,
            &mut self.traffic,
        ] {
            send(&self.sender, group.take(&self.texts))?;
        }
        Ok(self.report)
    }
}

/// The writer has failed if nobody receives; its own error says why.
fn send(sender: &SyncSender<RowGroup>, group: RowGroup) -> Result<(), StoreError> {
    let failed = |_| StoreError::Output(io::Error::other("the tables could not be written"));
    sender.send(group).map_err(failed)
}

/// What a stream has defined so far, as rows.
#[derive(Default)]
struct OfStream {
    stream: u32,
    tensors: Vec<TensorRow>,
    templates: Vec<Result<TemplateRows, String>>,
    /// One past its last evaluation.
    end_eval: i64,
}

impl OfStream {
    fn define(&mut self, definitions: &Definitions, first_tensor: i64, texts: &mut Texts) {
        for number in self.tensors.len()..definitions.tensors.len() {
            self.tensors
                .push(TensorRow::of(definitions, number, first_tensor));
        }
        for template in &definitions.templates[self.templates.len()..] {
            let rows = TemplateRows::new(definitions, template, &self.tensors, texts);
            self.templates.push(rows);
        }
    }
}

/// The folder that becomes `tables`; removed unless it does.
struct Scratch {
    path: PathBuf,
    run: PathBuf,
}

impl Scratch {
    fn create(run: &Path) -> Result<Scratch, StoreError> {
        let path = run.join(format!(".{TABLES_DIRECTORY}-{}", std::process::id()));
        remove_leftovers(run);
        fs::create_dir(&path).map_err(StoreError::io(&path, "cannot create the folder"))?;
        Ok(Scratch {
            path,
            run: run.to_owned(),
        })
    }

    fn publish(&self) -> Result<(), StoreError> {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        let tables = self.run.join(TABLES_DIRECTORY);
        let renamed = match fs::rename(&self.path, &tables) {
            // Old tables are in the way: trade places, then remove them (on drop).
            Err(_) if tables.is_dir() => {
                renameat_with(CWD, &self.path, CWD, &tables, RenameFlags::EXCHANGE)
                    .map_err(io::Error::from)
                    .or_else(|_| {
                        // A file system without exchange.
                        fs::remove_dir_all(&tables)?;
                        fs::rename(&self.path, &tables)
                    })
            }
            renamed => renamed,
        };
        renamed.map_err(StoreError::io(&tables, "cannot put the tables in place"))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // After publishing, what has this name are the old tables, if anything.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes what killed processes left behind.
fn remove_leftovers(run: &Path) {
    let prefix = format!(".{TABLES_DIRECTORY}-");
    for entry in fs::read_dir(run).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name
            .to_str()
            .and_then(|n| n.strip_prefix(&prefix)?.parse::<u32>().ok());
        let is_left =
            |pid| pid == std::process::id() || !Path::new(&format!("/proc/{pid}")).exists();
        if pid.is_some_and(is_left) {
            // What cannot be removed is no obstacle.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
