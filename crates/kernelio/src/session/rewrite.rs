//! Gives the logs their final file numbers.
//!
//! Each log is read once and written to a temporary file beside it, which then takes
//! the name of the log: a kill leaves the one or the other. A log whose numbers are
//! right already is only renamed.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use trace::clock::now_nanos;

use super::watch::told;
use super::{REQUESTS, kept};
use crate::block::BlockSummary;
use crate::error::{KernelError, Missing};
use crate::extents::{DiskMap, Piece};
use crate::faults::FaultSummary;
use crate::files::{Files, Place};
use crate::kernel_log::faults::Fault;
use crate::kernel_log::io::Io;
use crate::kernel_log::residency::{ResidencyReader, ResidencyWriter, Sample};
use crate::kernel_log::{self, Reader, Record, Writer};
use crate::sampler::Sampler;

const PROVISIONAL: &str = "provisional";
const TEMPORARY: &str = "temporary";

/// From the numbers of the recording to those of the run.
#[derive(Debug)]
pub(super) struct Numbered<'a> {
    pub provisional: Files,
    pub files: &'a Files,
    pub log_directory: &'a Path,
    /// Logs of a child have provisional names, too.
    pub is_child: bool,
}

impl Numbered<'_> {
    pub fn faults(&self, mut summary: FaultSummary) -> Result<FaultSummary, KernelError> {
        let all = self.numbers();
        if self.is_identity(&all) {
            self.keep(kernel_log::FAULTS)?;
            return Ok(summary);
        }
        (summary.in_files, summary.elsewhere) = (0, 0);
        self.each(kernel_log::FAULTS, |mut fault: Fault, writer| {
            fault.place = renumbered(fault.place, &all);
            match fault.place {
                Some(_) => summary.in_files += 1,
                None => summary.elsewhere += 1,
            }
            writer.push(&fault)
        })?;
        Ok(summary)
    }

    pub fn io(
        &self,
        summary: BlockSummary,
        missing: &mut Vec<Missing>,
    ) -> Result<BlockSummary, KernelError> {
        let all = self.numbers();
        if !self.is_child && self.is_identity(&all) {
            return Ok(summary);
        }
        let mut counted = Counted {
            summary: BlockSummary {
                requests: 0,
                read_bytes: 0,
                file_read_bytes: 0,
                unfinished: 0,
                ..summary
            },
            requests: HashSet::new(),
        };
        if !self.is_child {
            self.each(kernel_log::IO, |mut io: Io, writer| {
                io.place = renumbered(io.place, &all);
                counted.push(&io, writer)
            })?;
            return Ok(counted.summary);
        }
        let (map, untold) = kept(DiskMap::of(self.files), REQUESTS, missing).unwrap_or_default();
        missing.extend(untold);
        let devices = map.devices();
        let mut pieces = Vec::new();
        self.each(kernel_log::IO, |io: Io, writer| {
            // Where it is not known which disks hold the model, all may.
            if !devices.is_empty() && !devices.contains(&io.device) {
                return Ok(());
            }
            let bytes = u64::from(io.request_bytes);
            map.pieces(io.device, io.sector, bytes, &mut pieces);
            pieces
                .iter()
                .try_for_each(|piece| counted.push(&piece_of(&io, piece), writer))
        })?;
        Ok(counted.summary)
    }

    /// Also takes the samples of the end. How many there are then.
    pub fn residency(&self, token: u64, missing: &mut Vec<Missing>) -> Result<u64, KernelError> {
        let name = kernel_log::RESIDENCY;
        let (from, temporary) = (self.recorded(name), self.temporary(name));
        let all = self.numbers();
        let mut writer = ResidencyWriter::create(&temporary)?;
        let mut samples = 0;
        for sample in ResidencyReader::open(&from)? {
            let mut sample = sample?;
            let Some(Some(file)) = all.get(sample.file as usize) else {
                continue;
            };
            sample.file = *file;
            writer.push(&sample)?;
            samples += 1;
        }
        for (file, registered) in self.files.iter() {
            let nanos = now_nanos();
            let sampled = Sampler::open(&registered.path).and_then(|mut file| file.sample());
            if let Some(residency) = told(sampled, missing) {
                writer.push(&Sample {
                    nanos,
                    token,
                    file,
                    residency,
                })?;
                samples += 1;
            }
        }
        drop(writer);
        self.replace(name)?;
        Ok(samples)
    }

    /// The final number of each provisional one.
    fn numbers(&self) -> Vec<Option<u32>> {
        let number = |(number, _)| self.provisional.number_in(number, self.files);
        self.provisional.iter().map(number).collect()
    }

    fn is_identity(&self, all: &[Option<u32>]) -> bool {
        (0..).zip(all).all(|(number, to)| *to == Some(number))
    }

    /// Reads a log and writes another one in its place.
    fn each<R: Record>(
        &self,
        name: &str,
        mut take: impl FnMut(R, &mut Writer<R>) -> Result<(), KernelError>,
    ) -> Result<(), KernelError> {
        let mut writer = Writer::create(&self.temporary(name))?;
        for record in Reader::open(&self.recorded(name))? {
            take(record?, &mut writer)?;
        }
        writer.flush()?;
        drop(writer);
        self.replace(name)
    }

    /// Where the recording has written to.
    fn recorded(&self, name: &str) -> PathBuf {
        let log = self.log_directory.join(name);
        match self.is_child {
            true => provisional(&log),
            false => log,
        }
    }

    fn temporary(&self, name: &str) -> PathBuf {
        self.log_directory.join(name).with_extension(TEMPORARY)
    }

    /// The temporary file becomes the log.
    fn replace(&self, name: &str) -> Result<(), KernelError> {
        renamed(&self.temporary(name), &self.log_directory.join(name))?;
        if self.is_child {
            // What is left costs room only.
            let _ = fs::remove_file(self.recorded(name));
        }
        Ok(())
    }

    /// What was recorded becomes the log as it is.
    fn keep(&self, name: &str) -> Result<(), KernelError> {
        match self.is_child {
            true => renamed(&self.recorded(name), &self.log_directory.join(name)),
            false => Ok(()),
        }
    }
}

/// The name of a log whose file numbers are not final.
pub(super) fn provisional(log: &Path) -> PathBuf {
    log.with_extension(PROVISIONAL)
}

/// Removes what was made for a program that could not be run.
pub(super) fn remove_logs(log_directory: &Path) {
    for name in [kernel_log::FAULTS, kernel_log::IO, kernel_log::RESIDENCY] {
        let _ = fs::remove_file(provisional(&log_directory.join(name)));
    }
    for name in [kernel_log::CPU, kernel_log::STACKS, kernel_log::MACHINE] {
        let _ = fs::remove_file(log_directory.join(name));
    }
}

/// Counts requests again.
struct Counted {
    summary: BlockSummary,
    requests: HashSet<u64>,
}

impl Counted {
    fn push(&mut self, io: &Io, writer: &mut Writer<Io>) -> Result<(), KernelError> {
        let summary = &mut self.summary;
        summary.requests += u64::from(self.requests.insert(io.request));
        summary.count_piece(io);
        writer.push(io)
    }
}

fn piece_of(io: &Io, piece: &Piece) -> Io {
    let narrow = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
    Io {
        piece_at_bytes: narrow(piece.at_bytes),
        piece_bytes: narrow(piece.bytes),
        place: piece.place,
        ..*io
    }
}

fn renumbered(place: Option<Place>, all: &[Option<u32>]) -> Option<Place> {
    let place = place?;
    let file = *all.get(usize::try_from(place.file).ok()?)?;
    Some(Place {
        file: file?,
        ..place
    })
}

fn renamed(from: &Path, to: &Path) -> Result<(), KernelError> {
    fs::rename(from, to).map_err(KernelError::io(to, "cannot replace"))
}
