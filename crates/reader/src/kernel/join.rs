//! Faults, reads and samples of a run, each with its tensor and its node.

use std::path::Path;

use kernelio::kernel_log::{
    self, Reader, Record,
    faults::Fault,
    io::Io,
    residency::{ResidencyReader, Sample},
    stacks::Stacks,
};
use rundir::Run;

use super::{
    Cpu, Imported, Moment, Owner, Owners, Timeline, UnderneathError, imported, owners::Piece,
};

/// Pages are the unit of faults on every machine that we know.
const PAGE_BYTES: u64 = 4096;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JoinedFault {
    pub fault: Fault,
    /// `None` outside the model's files, and in their headers.
    pub owner: Option<Owner>,
    /// `None` outside evaluations.
    pub at: Option<Moment>,
}

/// A part of a block request that lies in one tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JoinedIo {
    /// The piece that it is a part of.
    pub io: Io,
    /// Of this part; 0 without a file.
    pub file_offset: u64,
    pub bytes: u64,
    pub owner: Option<Owner>,
    /// When it was issued.
    pub at: Option<Moment>,
}

/// Resident bytes of each tensor of a file at a moment.
#[derive(Clone, Debug, PartialEq)]
pub struct JoinedSample {
    pub nanos: u64,
    pub token: u64,
    pub file: u32,
    /// Of the whole file.
    pub resident_bytes: u64,
    /// Index into [`Owners::tensors`], and bytes; all tensors of the file.
    pub tensors: Vec<(u32, u64)>,
}

/// Everything that was recorded underneath a run.
pub struct Underneath {
    pub owners: Owners,
    pub timeline: Timeline,
    log_directory: std::path::PathBuf,
    /// That have recorded the others.
    own_threads: Vec<u32>,
}

/// Whether anything was recorded underneath.
pub fn is_there(run: &Run) -> bool {
    let log = run.log_directory();
    [
        kernel_log::FAULTS,
        kernel_log::IO,
        kernel_log::RESIDENCY,
        kernel_log::CPU,
        imported::FILE,
    ]
    .iter()
    .any(|name| log.join(name).exists())
}

impl Underneath {
    /// `None` when nothing was recorded underneath.
    pub fn open(run: &Run) -> Result<Option<Underneath>, UnderneathError> {
        if !is_there(run) {
            return Ok(None);
        }
        let log_directory = run.log_directory();
        let described = run.metadata().and_then(|m| m.underneath.as_ref());
        Ok(Some(Underneath {
            own_threads: described.map_or_else(Vec::new, |u| u.recorder_threads.clone()),
            owners: Owners::of_run(run),
            timeline: Timeline::read(&log_directory)?,
            log_directory,
        }))
    }

    /// By time; `None` when faults were not recorded.
    pub fn faults(&self) -> Result<Option<Vec<JoinedFault>>, UnderneathError> {
        let Some(mut faults) = read::<Fault>(&self.log_directory.join(kernel_log::FAULTS))? else {
            return Ok(None);
        };
        faults.sort_by_key(|fault| fault.nanos);
        let joined = faults.into_iter().map(|fault| JoinedFault {
            owner: fault
                .place
                .and_then(|place| self.owners.find_in_page(place, PAGE_BYTES)),
            at: self.timeline.at(fault.nanos),
            fault,
        });
        Ok(Some(joined.collect()))
    }

    /// By the time of issue; `None` when block requests were not recorded.
    pub fn io(&self) -> Result<Option<Vec<JoinedIo>>, UnderneathError> {
        let Some(mut requests) = read::<Io>(&self.log_directory.join(kernel_log::IO))? else {
            return Ok(None);
        };
        requests.sort_by_key(|io| io.issued_nanos);
        let mut joined = Vec::with_capacity(requests.len());
        for io in requests {
            let at = self.timeline.at(io.issued_nanos);
            let mut push = |piece: Piece| {
                joined.push(JoinedIo {
                    io,
                    file_offset: piece.file_offset,
                    bytes: piece.bytes,
                    owner: piece.owner,
                    at,
                });
            };
            let bytes = u64::from(io.piece_bytes);
            match io.place {
                Some(place) => self.owners.split(place, bytes).for_each(push),
                None => push(Piece {
                    owner: None,
                    file_offset: 0,
                    bytes,
                }),
            }
        }
        Ok(Some(joined))
    }

    /// In the order in which they were taken; `None` when none were.
    pub fn samples(&self) -> Result<Option<Vec<JoinedSample>>, UnderneathError> {
        let path = self.log_directory.join(kernel_log::RESIDENCY);
        if !path.exists() {
            return Ok(None);
        }
        let mut joined = Vec::new();
        for sample in ResidencyReader::open(&path)? {
            joined.push(self.join_sample(&sample?));
        }
        Ok(Some(joined))
    }

    /// Samples as they were written: page by page.
    pub fn raw_samples(&self) -> Result<Option<ResidencyReader>, UnderneathError> {
        let path = self.log_directory.join(kernel_log::RESIDENCY);
        if !path.exists() {
            return Ok(None);
        }
        Ok(Some(ResidencyReader::open(&path)?))
    }

    /// `None` when nobody looked at the processors.
    pub fn cpu(&self) -> Result<Option<Cpu>, UnderneathError> {
        let log = |name| self.log_directory.join(name);
        let Some(events) = read(&log(kernel_log::CPU))? else {
            return Ok(None);
        };
        let machine = read(&log(kernel_log::MACHINE))?.unwrap_or_default();
        let stacks = match log(kernel_log::STACKS) {
            path if path.exists() => Stacks::read(&path)?,
            _ => Stacks::default(),
        };
        let (own, timeline) = (&self.own_threads, &self.timeline);
        Ok(Some(Cpu::join(events, stacks, machine, own, timeline)))
    }

    /// By time: what other tools have recorded, with the node that was running.
    pub fn imported(&self) -> Result<Vec<(Imported, Option<Moment>)>, UnderneathError> {
        let events = imported::read(&self.log_directory)?;
        let join = |event: Imported| {
            let at = self.timeline.at(event.begin_nanos);
            (event, at)
        };
        Ok(events.into_iter().map(join).collect())
    }

    fn join_sample(&self, sample: &Sample) -> JoinedSample {
        let page_bytes = sample.residency.page_bytes();
        let tensors = self.owners.tensors().iter().enumerate();
        let of_file = tensors.filter(|(_, tensor)| tensor.file == sample.file);
        let mut list: Vec<(u32, u64)> = of_file.map(|(index, _)| (index as u32, 0)).collect();
        let file_bytes = self.owners.bytes_of_file(sample.file);
        let mut resident_bytes = 0;
        // Tensors and runs are both in the order of the file.
        let mut next = 0;
        for run in sample.residency.runs() {
            let start = run.start * page_bytes;
            let end = (run.end * page_bytes).min(file_bytes.max(start));
            resident_bytes += end - start;
            while next < list.len() {
                let tensor = &self.owners.tensors()[list[next].0 as usize];
                let tensor_end = tensor.file_offset + tensor.size_bytes;
                let from = start.max(tensor.file_offset);
                let to = end.min(tensor_end);
                list[next].1 += to.saturating_sub(from);
                if tensor_end > end {
                    break;
                }
                next += 1;
            }
        }
        JoinedSample {
            nanos: sample.nanos,
            token: sample.token,
            file: sample.file,
            resident_bytes,
            tensors: list,
        }
    }
}

fn read<R: Record>(path: &Path) -> Result<Option<Vec<R>>, UnderneathError> {
    if !path.exists() {
        return Ok(None);
    }
    let mut records = Vec::new();
    for record in Reader::<R>::open(path)? {
        records.push(record?);
    }
    Ok(Some(records))
}
