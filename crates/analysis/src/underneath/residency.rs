//! What was in memory, and what the kernel dropped.

use std::collections::{BTreeMap, HashMap};

use reader::kernel::{JoinedIo, JoinedSample};
use serde::{Deserialize, Serialize};

use super::{ModelFiles, reread::is_model_read};
use crate::timeline::Timeline;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResidencyResults {
    /// Moments at which the files were looked at.
    pub samples: u64,
    /// Mean of resident bytes over the bytes of the model's files.
    pub mean_share: f64,
    pub least_bytes: u64,
    pub most_bytes: u64,
    /// Bytes by which tensors were less resident than in the sample before.
    pub lost_bytes: u64,
    /// Bytes dropped: resident before + read − resident after, sample by sample.
    /// Absent without block requests.
    pub evicted_bytes: Option<u64>,
    /// Bytes read that had been in memory before, at least.
    pub read_after_resident_bytes: Option<u64>,
    /// Names for `timeline`, with the bytes of their tensors.
    pub components: Vec<ComponentSize>,
    pub timeline: Timeline<ResidencyPoint>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComponentSize {
    pub component: String,
    pub size_bytes: u64,
}

/// All files at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResidencyPoint {
    pub nanos: u64,
    pub token: u64,
    pub resident_bytes: u64,
    /// In the order of `components`.
    pub by_component: Vec<u64>,
}

/// What samples say about one tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TensorResidency {
    pub mean_share: f64,
    pub lost_bytes: u64,
    pub evicted_bytes: u64,
    pub read_after_resident_bytes: u64,
}

/// `parts` are absent when block requests were not recorded; `distinct` are the
/// bytes of each tensor that were read at all.
pub fn residency(
    samples: &[JoinedSample],
    parts: Option<&[JoinedIo]>,
    distinct: &[u64],
    model: &ModelFiles,
) -> (ResidencyResults, Vec<TensorResidency>) {
    let mut tensors = vec![Tensor::default(); model.tensors.len()];
    let mut reads = Reads::new(parts.unwrap_or(&[]), model);
    for sample in samples {
        for &(index, resident) in &sample.tensors {
            let Some(tensor) = tensors.get_mut(index as usize) else {
                continue;
            };
            let read = reads.until(index, sample.nanos);
            tensor.push(resident, read);
        }
    }
    let mut results = ResidencyResults {
        components: components(model),
        ..ResidencyResults::default()
    };
    let of_tensor: Vec<TensorResidency> = tensors
        .iter()
        .enumerate()
        .map(|(index, tensor)| {
            let size = model.tensors[index].size_bytes;
            let all_reads = reads.until(index as u32, u64::MAX);
            let distinct = distinct.get(index).copied().unwrap_or(0);
            tensor.finish(size, all_reads, distinct)
        })
        .collect();
    results.lost_bytes = of_tensor.iter().map(|tensor| tensor.lost_bytes).sum();
    results.evicted_bytes = parts.map(|_| of_tensor.iter().map(|t| t.evicted_bytes).sum());
    results.read_after_resident_bytes =
        parts.map(|_| of_tensor.iter().map(|t| t.read_after_resident_bytes).sum());
    let points = points(samples, &results.components, model);
    results.samples = points.len() as u64;
    let bytes = points.iter().map(|point| point.resident_bytes);
    results.least_bytes = bytes.clone().min().unwrap_or(0);
    results.most_bytes = bytes.clone().max().unwrap_or(0);
    let shares = bytes.map(|bytes| model.times(bytes));
    results.mean_share = shares.sum::<f64>() / points.len().max(1) as f64;
    for point in points {
        results.timeline.push(|| point);
    }
    (results, of_tensor)
}

/// One tensor while samples go by.
#[derive(Clone, Copy, Debug, Default)]
struct Tensor {
    samples: u64,
    resident_sum: u64,
    first_resident: u64,
    first_read: u64,
    last_resident: u64,
    last_read: u64,
    lost_bytes: u64,
    evicted_bytes: u64,
}

impl Tensor {
    /// `read` are all bytes read up to now.
    fn push(&mut self, resident: u64, read: u64) {
        if self.samples == 0 {
            (self.first_resident, self.first_read) = (resident, read);
        } else {
            self.lost_bytes += self.last_resident.saturating_sub(resident);
            let came_in = read - self.last_read;
            self.evicted_bytes += (self.last_resident + came_in).saturating_sub(resident);
        }
        self.samples += 1;
        self.resident_sum += resident;
        (self.last_resident, self.last_read) = (resident, read);
    }

    /// What was not resident at the first sample can be read for the first time
    /// once; all other reads are of bytes that had been there.
    fn finish(&self, size: u64, all_reads: u64, distinct: u64) -> TensorResidency {
        let since_first = all_reads - self.first_read;
        let by_samples = match self.samples {
            0 => 0,
            _ => since_first.saturating_sub(size.saturating_sub(self.first_resident)),
        };
        let whole = size.saturating_mul(self.samples).max(1);
        TensorResidency {
            mean_share: self.resident_sum as f64 / whole as f64,
            lost_bytes: self.lost_bytes,
            evicted_bytes: self.evicted_bytes,
            read_after_resident_bytes: by_samples.max(all_reads - distinct.min(all_reads)),
        }
    }
}

/// Reads of each tensor by the time they were complete.
struct Reads {
    /// By tensor: moment, and bytes up to and with it.
    of_tensor: Vec<Vec<(u64, u64)>>,
}

impl Reads {
    fn new(parts: &[JoinedIo], model: &ModelFiles) -> Reads {
        let mut of_tensor: Vec<Vec<(u64, u64)>> = vec![Vec::new(); model.tensors.len()];
        for part in parts.iter().filter(|part| is_model_read(part)) {
            let owner = part.owner.map(|owner| owner.tensor as usize);
            if let Some(reads) = owner.and_then(|tensor| of_tensor.get_mut(tensor)) {
                let done = part.io.completed_nanos.unwrap_or(part.io.issued_nanos);
                reads.push((done, part.bytes));
            }
        }
        for reads in &mut of_tensor {
            reads.sort_unstable();
            let mut sum = 0;
            for read in reads {
                sum += read.1;
                read.1 = sum;
            }
        }
        Reads { of_tensor }
    }

    fn until(&mut self, tensor: u32, nanos: u64) -> u64 {
        let reads = &self.of_tensor[tensor as usize];
        let behind = reads.partition_point(|read| read.0 <= nanos);
        behind.checked_sub(1).map_or(0, |last| reads[last].1)
    }
}

fn components(model: &ModelFiles) -> Vec<ComponentSize> {
    let mut sizes: BTreeMap<&str, u64> = BTreeMap::new();
    for tensor in model.tensors {
        *sizes.entry(tensor.component).or_default() += tensor.size_bytes;
    }
    sizes
        .into_iter()
        .map(|(component, size_bytes)| ComponentSize {
            component: component.to_owned(),
            size_bytes,
        })
        .collect()
}

/// Samples of several files that belong together are one point.
fn points(
    samples: &[JoinedSample],
    components: &[ComponentSize],
    model: &ModelFiles,
) -> Vec<ResidencyPoint> {
    let place: HashMap<&str, usize> = components
        .iter()
        .enumerate()
        .map(|(at, component)| (component.component.as_str(), at))
        .collect();
    let mut points: Vec<ResidencyPoint> = Vec::new();
    let mut files: Vec<u32> = Vec::new();
    for sample in samples {
        let goes_on = points
            .last()
            .is_some_and(|last| last.token == sample.token && !files.contains(&sample.file));
        if !goes_on {
            files.clear();
            points.push(ResidencyPoint {
                nanos: sample.nanos,
                token: sample.token,
                resident_bytes: 0,
                by_component: vec![0; components.len()],
            });
        }
        files.push(sample.file);
        let Some(point) = points.last_mut() else {
            continue;
        };
        point.resident_bytes += sample.resident_bytes;
        for &(index, resident) in &sample.tensors {
            let tensor = model.tensors.get(index as usize);
            if let Some(&at) = tensor.and_then(|tensor| place.get(tensor.component)) {
                point.by_component[at] += resident;
            }
        }
    }
    points
}
