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

use reader::kernel::Underneath;
use reader::{Log, Seen, SeenCopy, Stream, Visitor};
use rundir::Run;

use crate::{
    StoreError, checksums,
    columns::{KernelColumns, TemplateColumns},
    expand::{Expander, GROUP_ROWS},
    kernel,
    row_group::{RowGroup, Texts},
    rows,
    schema::{COPIES, DEVICES, EVALS, ROUTING, TABLES, TENSORS, TOKENS, TRAFFIC},
    table_file::TableFile,
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
    checksums::write(&folder.path)?;
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
    /// Of the stream that is being read, by template.
    columns: BTreeMap<u32, TemplateColumns>,
    /// Likewise, by the number of launches.
    kernels: BTreeMap<u32, KernelColumns>,
    evals: RowGroup,
    tokens: RowGroup,
    routing: RowGroup,
    copies: RowGroup,
    traffic: RowGroup,
    counts: rows::RunCounts,
    /// Collected if something was recorded underneath.
    references: Option<kernel::References>,
}

impl<'a> Ingest<'a> {
    fn new(run: &'a Run, sender: SyncSender<RowGroup>) -> Ingest<'a> {
        Ingest {
            run,
            sender,
            texts: Texts::default(),
            expander: Expander::new(),
            columns: BTreeMap::new(),
            kernels: BTreeMap::new(),
            evals: RowGroup::new(&EVALS),
            tokens: RowGroup::new(&TOKENS),
            routing: RowGroup::new(&ROUTING),
            copies: RowGroup::new(&COPIES),
            traffic: RowGroup::new(&TRAFFIC),
            counts: rows::RunCounts::default(),
            references: reader::kernel::join::is_there(run).then(kernel::References::default),
        }
    }

    fn run(mut self, progress: &mut dyn FnMut(u64)) -> Result<IngestReport, StoreError> {
        let log = Log::new(&self.run.log_directory());
        let walked = log.walk_with_progress(&mut self, progress)?;
        let mut tensors = RowGroup::new(&TENSORS);
        for tensor in walked.tensors.all() {
            tensors.push_row(&mut self.texts, &reader::rows::tensor(tensor));
            if let Some(references) = &mut self.references {
                references.add_tensor(tensor);
            }
        }
        let mut devices = RowGroup::new(&DEVICES);
        for device in &walked.devices {
            devices.push_row(&mut self.texts, &reader::rows::device(device));
        }
        self.kernel()?;
        self.counts.partial = walked.partial;
        self.counts.corrupt = walked.damaged.len() as u64;
        self.finish(tensors, devices)?;
        Ok(IngestReport {
            tables: Vec::new(),
            corrupt: walked.damaged,
            partial: walked.partial,
        })
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

    fn finish(mut self, mut tensors: RowGroup, mut devices: RowGroup) -> Result<(), StoreError> {
        let mut run = rows::run(&mut self.texts, self.run, &self.counts);
        for group in [
            &mut run,
            &mut tensors,
            &mut self.evals,
            &mut self.tokens,
            &mut self.expander.nodes,
            &mut self.expander.accesses,
            &mut self.routing,
            &mut self.traffic,
            &mut devices,
            &mut self.expander.kernels,
            &mut self.copies,
        ] {
            send(&self.sender, group.take(&self.texts))?;
        }
        Ok(())
    }
}

impl Visitor for Ingest<'_> {
    type Error = StoreError;

    fn evaluation(&mut self, seen: &Seen) -> Result<(), StoreError> {
        let texts = &mut self.texts;
        let columns = self
            .columns
            .entry(seen.template)
            .or_insert_with(|| TemplateColumns::new(seen.prepared, seen.tensors, texts));
        let sender = &self.sender;
        let mut send = |group| send(sender, group);
        let sums = self.expander.accesses(seen, columns, texts, &mut send)?;
        self.expander.nodes(seen, columns, texts, &mut send)?;
        let launches = seen.evaluation.device.as_ref().and_then(|d| d.launches);
        if let Some(launches) = launches {
            let kernels = self.kernels.entry(launches);
            let kernels = kernels.or_insert_with(|| KernelColumns::new(seen, texts));
            self.expander.kernels(seen, kernels, texts, &mut send)?;
        }
        self.evals.push_row(texts, &reader::rows::eval(seen, &sums));
        for row in reader::rows::tokens(seen) {
            self.tokens.push_row(texts, &row);
        }
        let routing = &mut self.routing;
        reader::rows::routing(seen, |row| routing.push_row(texts, &row));
        for group in [&mut self.evals, &mut self.tokens, &mut self.routing] {
            if group.rows >= GROUP_ROWS {
                send(group.take(texts))?;
            }
        }
        if let Some(references) = &mut self.references {
            references.add_eval(seen);
        }
        self.counts.evals += 1;
        self.counts.accesses += sums.accesses;
        Ok(())
    }

    fn copy(&mut self, copy: &SeenCopy) -> Result<(), StoreError> {
        self.copies
            .push_row(&mut self.texts, &reader::rows::copy(copy));
        if self.copies.rows >= GROUP_ROWS {
            send(&self.sender, self.copies.take(&self.texts))?;
        }
        Ok(())
    }

    fn stream_ends(&mut self, stream: &Stream) -> Result<(), StoreError> {
        self.kernels.clear();
        let mut sums = BTreeMap::new();
        for (template, columns) in std::mem::take(&mut self.columns) {
            let template = (template - stream.first_template) as usize;
            if let Ok(prepared) = &stream.templates[template] {
                rows::add_traffic(&columns, prepared, &mut sums);
            }
        }
        rows::traffic(&mut self.traffic, &mut self.texts, stream.tensors, sums);
        Ok(())
    }
}

/// The writer has failed if nobody receives; its own error says why.
fn send(sender: &SyncSender<RowGroup>, group: RowGroup) -> Result<(), StoreError> {
    let failed = |_| StoreError::Output(io::Error::other("the tables could not be written"));
    sender.send(group).map_err(failed)
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
