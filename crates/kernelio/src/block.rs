//! Every block request on the disks of the model: when it was issued and completed,
//! and which bytes of the model it reads.
//!
//! 1. An instance of tracefs (`instance`) is made, with the tracepoints
//!    `block_rq_issue` and `block_rq_complete` on: for all tasks, because read-ahead
//!    and kernel threads issue requests, too. So is `block_rq_requeue`, where a busy
//!    disk puts a request back to issue it again.
//! 2. The kernel filters them by disk, and writes the rest into a ring a cpu.
//! 3. A thread of ours empties the rings, pairs issue and completion (`pair`),
//!    cuts each request where extents end
//!    ([`DiskMap`]), and writes `log/io`.
//!
//! Requests of other programs on the same disks are recorded, too; those for no
//! registered file have no place.

mod instance;
pub(crate) mod pair;
mod tracefs;

use std::fs;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::RawFd;
use std::path::Path;
use std::thread::JoinHandle;

use serde::{Deserialize, Serialize};

use crate::devices::{Device, SECTOR_BYTES};
use crate::error::{KernelError, Missing};
use crate::extents::DiskMap;
use crate::files::Files;
use crate::kernel_log::Writer;
use crate::kernel_log::io::{Io, Operation, Rwbs};
use crate::perf::pump::{self, Sink, Timed};
use crate::quick_map::QuickMap;
use instance::Instance;
use pair::{Completed, Issued, Pairs};
use tracefs::{Tracefs, What};

/// What was recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockSummary {
    /// Requests in the log, whatever their files.
    pub requests: u64,
    /// Bytes of reads, for any file.
    pub read_bytes: u64,
    /// Those of registered files.
    pub file_read_bytes: u64,
    /// Completions of requests issued before the recording began.
    pub unpaired: u64,
    /// Requests whose completion was not seen.
    pub unfinished: u64,
    /// Events that the kernel had no room for.
    pub lost: u64,
}

impl BlockSummary {
    /// Adds what a record of the log says, but for the number of requests.
    pub(crate) fn count_piece(&mut self, io: &Io) {
        if io.completed_nanos.is_none() && io.piece_at_bytes == 0 {
            self.unfinished += 1;
        }
        if io.rwbs.operation() == Operation::Read {
            let bytes = u64::from(io.piece_bytes);
            self.read_bytes += bytes;
            if io.place.is_some() {
                self.file_read_bytes += bytes;
            }
        }
    }
}

/// Records until it is finished or dropped.
#[derive(Debug)]
pub struct BlockRecorder {
    /// Closing it ends the reader.
    stop: PipeWriter,
    reader: JoinHandle<Result<BlockSummary, KernelError>>,
    missing: Vec<Missing>,
}

impl BlockRecorder {
    /// Makes the log, which must not exist, and starts.
    pub fn start(files: &Files, log: &Path) -> Result<BlockRecorder, KernelError> {
        let (map, missing) = DiskMap::of(files)?;
        if map.devices().is_empty() {
            return Err(KernelError::Missing(missing.into_iter().next().unwrap_or(
                Missing {
                    what: "block requests".to_owned(),
                    why: "no file was given".to_owned(),
                    fix: "give the files of the model".to_owned(),
                },
            )));
        }
        BlockRecorder::start_with(map, missing, log)
    }

    /// The same for every disk of the machine, without asking whose bytes they are.
    pub fn start_on_all_disks(log: &Path) -> Result<BlockRecorder, KernelError> {
        BlockRecorder::start_with(DiskMap::default(), Vec::new(), log)
    }

    fn start_with(
        map: DiskMap,
        missing: Vec<Missing>,
        log: &Path,
    ) -> Result<BlockRecorder, KernelError> {
        let tracefs = tracefs::find()?;
        let layouts = tracefs::layouts(&tracefs.root)?;
        let (stop_reader, stop) = io::pipe().map_err(KernelError::system("cannot make a pipe"))?;
        let sink = BlockSink {
            instance: Instance::start(&tracefs.root, &layouts, map.devices())?,
            parser: Parser {
                layouts,
                process_of: QuickMap::default(),
            },
            pairs: Pairs::new(map),
            // After the instance, so that no log is left where nothing can be recorded.
            writer: Writer::create(log)?,
            summary: BlockSummary::default(),
            records: Vec::new(),
            _tracefs: tracefs,
        };
        let reader = std::thread::Builder::new()
            .name("block".to_owned())
            .spawn(move || sink.run(&stop_reader))
            .map_err(KernelError::system("cannot start a thread"))?;
        Ok(BlockRecorder {
            stop,
            reader,
            missing,
        })
    }

    /// What could not be recorded although the rest can.
    pub fn missing(&self) -> &[Missing] {
        &self.missing
    }

    /// Stops, and waits until everything is in the log.
    pub fn finish(self) -> Result<BlockSummary, KernelError> {
        drop(self.stop);
        self.reader.join().map_err(|_| KernelError::System {
            doing: "the reader of block requests",
            cause: io::Error::other("died"),
        })?
    }
}

/// Whether block requests can be recorded here, and what is missing if not.
pub fn probe() -> Option<Missing> {
    let sudo = |why: String| Missing {
        what: "block requests".to_owned(),
        why,
        fix: "run with sudo".to_owned(),
    };
    let tracefs = match tracefs::find() {
        Ok(tracefs) => tracefs,
        Err(KernelError::Missing(missing)) => return Some(missing),
        Err(error) => return Some(sudo(error.to_string())),
    };
    match tracefs::layouts(&tracefs.root) {
        Ok(_) if tracefs::may_trace(&tracefs.root) => None,
        Ok(_) => Some(sudo(format!(
            "{} may be written by root only",
            tracefs.root.display()
        ))),
        Err(KernelError::Missing(missing)) => Some(missing),
        Err(error) => Some(sudo(error.to_string())),
    }
}

#[derive(Clone, Copy)]
enum Item {
    PutBack { device: Device, sector: u64 },
    Issued(Issued),
    Completed(Completed),
}

struct BlockSink {
    instance: Instance,
    parser: Parser,
    pairs: Pairs,
    writer: Writer<Io>,
    summary: BlockSummary,
    /// Of one request, reused.
    records: Vec<Io>,
    // After the instance, which is in it.
    _tracefs: Tracefs,
}

impl BlockSink {
    fn run(mut self, stop: &PipeReader) -> Result<BlockSummary, KernelError> {
        pump::run(stop, &mut self)?;
        // What came between the last round and the stop.
        self.instance.stop()?;
        let mut late = Vec::new();
        self.drain(&mut late)?;
        late.sort_by_key(|timed| timed.nanos);
        late.into_iter().try_for_each(|timed| self.take(timed))?;
        self.pairs.finish(&mut self.records);
        self.write()?;
        self.writer.flush()?;
        self.summary.lost = self.instance.lost();
        self.summary.requests = self.pairs.requests();
        self.summary.unpaired = self.pairs.unpaired();
        Ok(self.summary)
    }

    fn write(&mut self) -> Result<(), KernelError> {
        for io in &self.records {
            self.summary.count_piece(io);
            self.writer.push(io)?;
        }
        self.records.clear();
        Ok(())
    }
}

/// From events to items.
struct Parser {
    layouts: tracefs::Layouts,
    /// Of threads: an event tells the thread only.
    process_of: QuickMap<u32, u32>,
}

impl Parser {
    fn parse(&mut self, nanos: u64, raw: &[u8]) -> Option<Timed<Item>> {
        // Every tracepoint starts with its number.
        let id = u64::from(u16::from_ne_bytes([*raw.first()?, *raw.get(1)?]));
        let layout = self.layouts.all().find(|layout| layout.id == id)?;
        let device = Device::from_kernel(layout.device.u32(raw)?);
        let sectors = u64::from(layout.sectors.u32(raw)?);
        // Flushes have no bytes.
        if sectors == 0 {
            return None;
        }
        let (sector, bytes) = (layout.sector.u64(raw)?, sectors * SECTOR_BYTES);
        let item = match layout.what {
            What::PutBack => Item::PutBack { device, sector },
            What::Issue => {
                let tid = layout.thread.u32(raw)?;
                let process_of = self.process_of.entry(tid);
                Item::Issued(Issued {
                    nanos,
                    device,
                    sector,
                    bytes,
                    rwbs: Rwbs::from_text(layout.rwbs.bytes(raw)?),
                    pid: *process_of.or_insert_with(|| process_of_thread(tid)),
                    tid,
                })
            }
            What::Complete => Item::Completed(Completed {
                nanos,
                device,
                sector,
                bytes,
            }),
        };
        Some(Timed { nanos, item })
    }
}

/// Asked once for each thread, shortly after its first request; a thread that is gone
/// by then is taken for a process.
fn process_of_thread(tid: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    line.and_then(|number| number.trim().parse().ok())
        .unwrap_or(tid)
}

impl Sink for BlockSink {
    type Item = Item;

    /// None: the trace has room for far more than comes in a pause.
    fn descriptors(&self) -> Vec<RawFd> {
        Vec::new()
    }

    fn drain(&mut self, items: &mut Vec<Timed<Item>>) -> Result<(), KernelError> {
        self.instance
            .drain(|nanos, raw| items.extend(self.parser.parse(nanos, raw)))
    }

    fn take(&mut self, timed: Timed<Item>) -> Result<(), KernelError> {
        match timed.item {
            Item::PutBack { device, sector } => self.pairs.put_back(device, sector),
            Item::Issued(issued) => {
                self.pairs.issued(issued, &mut self.records);
                self.write()?;
            }
            Item::Completed(completed) => {
                self.pairs.completed(completed, &mut self.records);
                self.write()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), KernelError> {
        self.writer.flush()
    }
}
