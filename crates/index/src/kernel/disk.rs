//! What was read again and again: bytes read over size, by layer and by tensor,
//! and in which sizes.

use std::{
    collections::BTreeMap,
    ops::{AddAssign, Range},
};

use kernelio::kernel_log::faults::FaultKind;
use reader::kernel::OwnedTensor;

use crate::{
    RunIndex,
    answers::{Disk, DiskLayer, DiskSums, DiskTensor, ReadSize, SampledAt},
    filter::Filter,
    kernel::{Kernel, KernelQueryError, Mark, MarkSelector, NONE},
    query::DiskQuery,
};

impl RunIndex {
    /// Bytes read over size.
    pub fn disk(&self, query: &DiskQuery, filter: &Filter) -> Result<Disk, KernelQueryError> {
        let kernel = self.kernel()?;
        let selector = MarkSelector::new(self, &kernel, filter);
        let tensors = kernel.owners.tensors();
        let mut sums = vec![DiskSums::default(); tensors.len()];
        for (at, tensor) in tensors.iter().enumerate() {
            if selector.keeps_tensor(at) {
                sums[at].size_bytes = kept_bytes(tensor, 0..tensor.size_bytes, &selector);
            }
        }
        let (mut unowned, mut elsewhere) = (DiskSums::default(), DiskSums::default());
        let mut slot = |mark: &Mark, add: DiskSums| match sums.get_mut(mark.tensor as usize) {
            Some(of_tensor) => *of_tensor += add,
            None if mark.has_place() => unowned += add,
            None => elsewhere += add,
        };
        for fault in kernel.faults.iter().flatten() {
            if selector.keeps(&fault.mark) {
                let is_major = fault.kind == FaultKind::Major;
                slot(
                    &fault.mark,
                    DiskSums {
                        major_faults: is_major.into(),
                        minor_faults: (!is_major).into(),
                        ..DiskSums::default()
                    },
                );
            }
        }
        let requests = kernel.reads.as_ref().map_or(&[][..], |r| &r.request_bytes);
        let mut is_kept = vec![false; requests.len()];
        for read in kernel.reads.iter().flat_map(|r| &r.marks) {
            if selector.keeps(&read.mark) {
                // Requests for other files are no business of the model.
                is_kept[read.request as usize] |= read.mark.has_place();
                slot(
                    &read.mark,
                    DiskSums {
                        read_bytes: read.bytes,
                        ..DiskSums::default()
                    },
                );
            }
        }
        let moment = query
            .at
            .map_or(u64::MAX, |at| self.origin.saturating_add(at));
        let sampled = self.sum_resident(&kernel, moment, &selector, &mut sums);
        let mut total = DiskSums::default();
        let mut by_layer: BTreeMap<(bool, Option<u32>), DiskSums> = BTreeMap::new();
        let mut by_tensor = Vec::new();
        for (tensor, &of_tensor) in tensors.iter().zip(&sums) {
            if of_tensor == DiskSums::default() {
                continue;
            }
            total += of_tensor;
            // None last.
            let key = (tensor.layer.is_none(), tensor.layer);
            *by_layer.entry(key).or_default() += of_tensor;
            by_tensor.push(DiskTensor {
                name: tensor.name.to_string(),
                layer: tensor.layer,
                component: tensor.component,
                sums: of_tensor,
            });
        }
        let by_layer = by_layer.into_iter();
        Ok(Disk {
            recorded: self.kernel_logs,
            total,
            unowned,
            elsewhere,
            by_layer: by_layer
                .map(|((_, layer), sums)| DiskLayer { layer, sums })
                .collect(),
            by_tensor,
            sizes: read_sizes(requests, &is_kept),
            samples: kernel.samples.as_ref().map_or(0, |s| s.count()),
            sampled,
        })
    }

    /// Resident bytes of each kept tensor.
    fn sum_resident(
        &self,
        kernel: &Kernel,
        moment: u64,
        selector: &MarkSelector,
        sums: &mut [DiskSums],
    ) -> Option<SampledAt> {
        let samples = kernel.samples.as_ref()?;
        let mut sampled: Option<SampledAt> = None;
        for (number, file) in self.catalog.files.iter().enumerate() {
            let Some(pages) = samples.of_file(number as u32, moment) else {
                continue;
            };
            let of_file = |tensor: &OwnedTensor| tensor.file == number as u32;
            let tensors = kernel.owners.tensors().iter().enumerate();
            // Tensors and runs are both in the order of the file.
            let mut rest = tensors.filter(|(_, t)| of_file(t)).peekable();
            let mut resident_bytes = 0;
            pages.each_run(file.size_bytes, |begin, end| {
                resident_bytes += end - begin;
                while let Some((at, tensor)) = rest.peek() {
                    let tensor_end = tensor.file_offset.saturating_add(tensor.size_bytes);
                    let within = |at: u64| at.saturating_sub(tensor.file_offset);
                    let part = within(begin)..within(end).min(tensor.size_bytes);
                    if selector.keeps_tensor(*at) {
                        sums[*at].resident_bytes += kept_bytes(tensor, part, selector);
                    }
                    if tensor_end > end {
                        break;
                    }
                    rest.next();
                }
            });
            let so_far = sampled.get_or_insert(SampledAt {
                nanos: 0,
                token: pages.token,
                resident_bytes: 0,
            });
            so_far.nanos = so_far.nanos.max(pages.nanos.saturating_sub(self.origin));
            so_far.resident_bytes += resident_bytes;
        }
        sampled
    }
}

impl AddAssign for DiskSums {
    fn add_assign(&mut self, other: DiskSums) {
        self.size_bytes += other.size_bytes;
        self.read_bytes += other.read_bytes;
        self.major_faults += other.major_faults;
        self.minor_faults += other.minor_faults;
        self.resident_bytes += other.resident_bytes;
    }
}

/// Bytes of a part of a tensor whose experts are kept.
fn kept_bytes(tensor: &OwnedTensor, part: Range<u64>, selector: &MarkSelector) -> u64 {
    let whole = part.end.saturating_sub(part.start);
    if selector.keeps_expert(NONE) {
        return whole;
    }
    let Some(slice) = tensor.slice_bytes.filter(|&bytes| bytes > 0 && whole > 0) else {
        return 0;
    };
    let experts = part.start / slice..part.end.div_ceil(slice);
    let kept = experts.filter(|&e| u32::try_from(e).is_ok_and(|e| selector.keeps_expert(e)));
    kept.map(|e| part.end.min((e + 1) * slice) - part.start.max(e * slice))
        .sum()
}

/// Requests by the power of two up to their size.
fn read_sizes(request_bytes: &[u32], is_kept: &[bool]) -> Vec<ReadSize> {
    let mut sizes: BTreeMap<u32, ReadSize> = BTreeMap::new();
    let kept = request_bytes.iter().zip(is_kept);
    for (&bytes, _) in kept.filter(|(_, is_kept)| **is_kept) {
        let power = bytes.max(1).ilog2();
        let size = sizes.entry(power).or_insert(ReadSize {
            from_bytes: 1 << power,
            requests: 0,
            bytes: 0,
        });
        size.requests += 1;
        size.bytes += u64::from(bytes);
    }
    sizes.into_values().collect()
}
