//! What the kernel did underneath a run: read again, faulted, waited, evicted; and
//! what bounds each phase.
//!
//! Input are the joined rows of `reader::kernel` (each fault, part of a block
//! request and sample of resident pages with its tensor and its node), as slices;
//! [`Rows::results`] is the way in. What was not recorded is absent from the results,
//! never zero.
//!
//! - [`reread`]: bytes read over bytes of the model; [`requests`]: the same reads as
//!   the disk sees them;
//! - [`faults`]: page faults and how long they waited; [`stall`]: both by node;
//! - [`residency`]: what was in memory and what was dropped;
//! - [`verdict`]: compute, memory bandwidth, page faults or disk;
//! - [`picture`]: reads and faults as cells of time and offset;
//! - [`work`] and [`intervals`]: evaluations in time, and unions of time.

pub mod faults;
pub mod intervals;
pub mod picture;
pub mod requests;
pub mod reread;
pub mod residency;
pub mod stall;
pub mod verdict;
pub mod work;

use std::collections::BTreeMap;

use reader::kernel::{Cpu, JoinedFault, JoinedIo, JoinedSample, OwnedTensor, Owners};
use serde::{Deserialize, Serialize};

use crate::time_stack::{self, Bytes, PhaseTime};
use crate::traffic::TrafficResults;
use faults::{FaultCounts, FaultResults};
use intervals::Union;
use picture::Picture;
use requests::DiskResults;
use reread::{RereadResults, TensorReads};
use residency::{ResidencyResults, TensorResidency};
use stall::StallResults;
use verdict::{Counters, PhaseVerdict, Speeds};
use work::Work;

/// The model's files.
#[derive(Clone, Debug)]
pub struct ModelFiles<'a> {
    /// As [`Owners::tensors`] has them.
    pub tensors: &'a [OwnedTensor],
    /// Of each file of the run; 0 of one that is gone.
    pub file_bytes: Vec<u64>,
    /// Of all files, by the run's own account where they are gone.
    pub bytes: u64,
}

impl<'a> ModelFiles<'a> {
    /// `bytes` as the run's metadata tell them.
    pub fn of(owners: &'a Owners, files: u32, bytes: u64) -> ModelFiles<'a> {
        let file_bytes: Vec<u64> = (0..files).map(|file| owners.bytes_of_file(file)).collect();
        let found: u64 = file_bytes.iter().sum();
        ModelFiles {
            tensors: owners.tensors(),
            file_bytes,
            bytes: if found > 0 { found } else { bytes },
        }
    }

    /// How many times the model's size.
    pub fn times(&self, bytes: u64) -> f64 {
        bytes as f64 / self.bytes.max(1) as f64
    }

    /// What a byte is that belongs to no tensor.
    fn between_tensors(&self, file: u32, file_offset: u64) -> &'static str {
        let of_file = || self.tensors.iter().filter(|tensor| tensor.file == file);
        let first = of_file().map(|tensor| tensor.file_offset).min();
        let end = of_file().map(|t| t.file_offset + t.size_bytes).max();
        match (first, end) {
            (Some(first), _) if file_offset < first => "header",
            (_, Some(end)) if file_offset >= end => "end",
            (Some(_), _) => "padding",
            _ => "unknown_file",
        }
    }
}

/// Everything that was recorded; `None` what was not.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    pub model: &'a ModelFiles<'a>,
    pub work: &'a Work,
    /// By time.
    pub faults: Option<&'a [JoinedFault]>,
    /// By the time of issue.
    pub io: Option<&'a [JoinedIo]>,
    /// In the order in which they were taken.
    pub samples: Option<&'a [JoinedSample]>,
    pub counters: Option<&'a Counters>,
    /// What threads did on the processors, and what the phases read.
    pub cpu: Option<(&'a Cpu, &'a Bytes)>,
    /// What the run touched, for the rate of memory.
    pub traffic: &'a TrafficResults,
    pub speeds: Option<Speeds>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UnderneathResults {
    pub model_bytes: u64,
    pub verdicts: Vec<PhaseVerdict>,
    /// Of each phase, where its time went; empty where nobody looked at the processors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub time: Vec<PhaseTime>,
    /// What was not recorded, and how to record it.
    pub missing: Vec<String>,
    /// The kernel's own totals of the process, where it was asked.
    pub counters: Option<Counters>,
    /// These two from block requests.
    pub reread: Option<RereadResults>,
    pub disk: Option<DiskResults>,
    pub faults: Option<FaultResults>,
    /// From block requests, faults or both.
    pub stall: Option<StallResults>,
    pub residency: Option<ResidencyResults>,
    /// In the order of the files.
    pub by_tensor: Vec<OwnerSum>,
    pub by_layer: Vec<OwnerSum>,
    /// By falling bytes read.
    pub by_component: Vec<OwnerSum>,
    pub picture: Option<Picture>,
}

/// A tensor, or all of a layer or component.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OwnerSum {
    /// Of the tensor, `layer 3`, `no layer`, or of the component.
    pub name: String,
    pub layer: Option<u32>,
    /// `None` where several are summed up.
    pub component: Option<String>,
    pub size_bytes: u64,
    /// 0 without block requests, as the next four.
    pub read_bytes: u64,
    pub distinct_bytes: u64,
    pub read_again_bytes: u64,
    /// Bytes read over size.
    pub reread_factor: f64,
    /// How often every byte was read, of the byte that was read least.
    pub whole_reads: u64,
    pub major_faults: u64,
    pub minor_faults: u64,
    /// These three from samples of residency.
    pub mean_resident_share: Option<f64>,
    pub lost_bytes: Option<u64>,
    pub evicted_bytes: Option<u64>,
}

impl UnderneathResults {
    /// Tensors with most bytes read first, then with most faults.
    pub fn most_read(&self) -> Vec<&OwnerSum> {
        let mut list: Vec<&OwnerSum> = self.by_tensor.iter().collect();
        list.sort_by(|a, b| {
            let key = |sum: &OwnerSum| (sum.read_bytes, sum.major_faults, sum.minor_faults);
            key(b).cmp(&key(a)).then_with(|| a.name.cmp(&b.name))
        });
        list
    }
}

impl Rows<'_> {
    pub fn results(&self) -> UnderneathResults {
        let parts = self.io.unwrap_or(&[]);
        let requests = requests::requests(parts);
        let reads = requests.iter().filter(|request| request.is_model_read());
        let outstanding = Union::of(reads.filter_map(requests::Request::interval));
        let (reread, of_reads) = reread::reread(parts, self.work, self.model);
        let rows = self.faults.unwrap_or(&[]);
        let (mut faults, of_faults) = faults::faults(rows, self.work, self.model);
        let waits = faults::waits(rows, parts, self.model);
        faults.waits = self.io.map(|_| faults::sum_of_waits(rows, &waits));
        let distinct: Vec<u64> = of_reads.iter().map(|reads| reads.distinct_bytes).collect();
        let (residency, of_samples) =
            residency::residency(self.samples.unwrap_or(&[]), self.io, &distinct, self.model);
        let stall = stall::stall(self.work, &outstanding, &requests, rows, &waits);
        let verdicts = verdict::verdicts(&verdict::Evidence {
            rows: self,
            requests: &requests,
            outstanding: &outstanding,
            waits: &waits,
        });
        let of_samples = self.samples.map(|_| of_samples.as_slice());
        let by_tensor = by_tensor(self, &of_reads, &of_faults, of_samples);
        let by_layer = grouped(&by_tensor, |sum| {
            let name = match sum.layer {
                Some(layer) => format!("layer {layer}"),
                None => "no layer".to_owned(),
            };
            (sum.layer.is_none(), sum.layer, name)
        });
        let mut by_component = grouped(&by_tensor, |sum| {
            (false, None, sum.component.clone().unwrap_or_default())
        });
        for sum in &mut by_component {
            sum.component = Some(sum.name.clone());
        }
        by_component.sort_by_key(|sum| std::cmp::Reverse((sum.read_bytes, sum.major_faults)));
        UnderneathResults {
            model_bytes: self.model.bytes,
            verdicts,
            time: self.time(&waits, &outstanding),
            missing: verdict::missing(self),
            counters: self.counters.cloned(),
            reread: self.io.map(|_| reread),
            disk: self.io.map(|_| requests::disk(&requests)),
            faults: self.faults.map(|_| faults),
            stall: (self.io.is_some() || self.faults.is_some()).then_some(stall),
            residency: self.samples.map(|_| residency),
            by_tensor,
            by_layer,
            by_component,
            picture: picture::picture(rows, parts, self.work, self.model),
        }
    }
}

impl Rows<'_> {
    fn time(&self, waits: &[faults::Wait], outstanding: &Union) -> Vec<PhaseTime> {
        let Some((cpu, bytes)) = self.cpu else {
            return Vec::new();
        };
        let waits = waits.iter().map(|wait| (wait.begin_nanos, wait.end_nanos));
        let disk = Union::of(waits);
        time_stack::stacks(&time_stack::Inputs {
            timeline: self.work.timeline(),
            bytes,
            disk: (self.io.is_some() && self.faults.is_some()).then_some(&disk),
            reads: self.io.map(|_| outstanding),
            cpu: Some(cpu),
            memory_ceiling: self.speeds.map(|speeds| speeds.memory),
        })
    }
}

fn by_tensor(
    rows: &Rows,
    reads: &[TensorReads],
    faults: &[FaultCounts],
    samples: Option<&[TensorResidency]>,
) -> Vec<OwnerSum> {
    let tensors = rows.model.tensors.iter().enumerate();
    tensors
        .map(|(at, tensor)| {
            let resident = samples.map(|samples| samples[at]);
            OwnerSum {
                name: tensor.name.to_string(),
                layer: tensor.layer,
                component: Some(tensor.component.to_owned()),
                size_bytes: tensor.size_bytes,
                read_bytes: reads[at].read_bytes,
                distinct_bytes: reads[at].distinct_bytes,
                read_again_bytes: reads[at].read_bytes - reads[at].distinct_bytes,
                reread_factor: reads[at].read_bytes as f64 / tensor.size_bytes.max(1) as f64,
                whole_reads: reads[at].whole_reads,
                major_faults: faults[at].major,
                minor_faults: faults[at].minor,
                mean_resident_share: resident.map(|resident| resident.mean_share),
                lost_bytes: resident.map(|resident| resident.lost_bytes),
                evicted_bytes: resident
                    .filter(|_| rows.io.is_some())
                    .map(|resident| resident.evicted_bytes),
            }
        })
        .collect()
}

/// Sums of tensors by what `key` gives: what has no layer, layer, name.
fn grouped(
    tensors: &[OwnerSum],
    key: impl Fn(&OwnerSum) -> (bool, Option<u32>, String),
) -> Vec<OwnerSum> {
    let mut groups: BTreeMap<(bool, Option<u32>, String), OwnerSum> = BTreeMap::new();
    for tensor in tensors {
        let key = key(tensor);
        let first = || OwnerSum {
            name: key.2.clone(),
            layer: key.1,
            whole_reads: u64::MAX,
            ..OwnerSum::default()
        };
        let sum = groups.entry(key.clone()).or_insert_with(first);
        sum.size_bytes += tensor.size_bytes;
        sum.read_bytes += tensor.read_bytes;
        sum.distinct_bytes += tensor.distinct_bytes;
        sum.read_again_bytes += tensor.read_again_bytes;
        sum.whole_reads = sum.whole_reads.min(tensor.whole_reads);
        sum.major_faults += tensor.major_faults;
        sum.minor_faults += tensor.minor_faults;
        // A mean by bytes: the sum of resident bytes for now.
        sum.mean_resident_share = tensor
            .mean_resident_share
            .map(|share| sum.mean_resident_share.unwrap_or(0.0) + share * tensor.size_bytes as f64);
        let plus = |a: Option<u64>, b: Option<u64>| b.map(|b| a.unwrap_or(0) + b);
        sum.lost_bytes = plus(sum.lost_bytes, tensor.lost_bytes);
        sum.evicted_bytes = plus(sum.evicted_bytes, tensor.evicted_bytes);
    }
    let finish = |mut sum: OwnerSum| {
        let size = sum.size_bytes.max(1) as f64;
        sum.reread_factor = sum.read_bytes as f64 / size;
        sum.mean_resident_share = sum.mean_resident_share.map(|bytes| bytes / size);
        sum
    };
    groups.into_values().map(finish).collect()
}
