//! Block requests as the disk sees them: whole, in the order of issue.

use kernelio::devices::Device;
use kernelio::kernel_log::io::Operation;
use reader::kernel::{JoinedIo, Moment};
use serde::{Deserialize, Serialize};

use super::intervals::Union;
use crate::sequential::DEFAULT_GAP_BYTES;

const SECTOR_BYTES: u64 = 512;

/// A request, put together from its parts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    pub device: Device,
    pub sector: u64,
    pub bytes: u64,
    /// Of these, bytes in the model's files.
    pub model_bytes: u64,
    pub issued_nanos: u64,
    /// The last of its parts; `None` when one was not seen.
    pub completed_nanos: Option<u64>,
    pub operation: Operation,
    pub is_read_ahead: bool,
    pub at: Option<Moment>,
    number: u64,
}

impl Request {
    pub fn is_model_read(&self) -> bool {
        self.operation == Operation::Read && self.model_bytes > 0
    }

    /// From issue to completion, of one that was seen to complete.
    pub fn interval(&self) -> Option<(u64, u64)> {
        Some((self.issued_nanos, self.completed_nanos?))
    }
}

/// Requests of parts, which are in the order of issue.
pub fn requests(parts: &[JoinedIo]) -> Vec<Request> {
    let mut list: Vec<Request> = Vec::new();
    for part in parts {
        let io = &part.io;
        let model_bytes = if io.place.is_some() { part.bytes } else { 0 };
        // Parts of a request have one time of issue; others may have it, too.
        let known = list
            .iter_mut()
            .rev()
            .take_while(|request| request.issued_nanos == io.issued_nanos)
            .find(|request| request.number == io.request);
        if let Some(request) = known {
            request.sector = request.sector.min(io.sector);
            request.bytes += part.bytes;
            request.model_bytes += model_bytes;
            let both = request.completed_nanos.zip(io.completed_nanos);
            request.completed_nanos = both.map(|(a, b)| a.max(b));
            continue;
        }
        list.push(Request {
            device: io.device,
            sector: io.sector,
            bytes: part.bytes,
            model_bytes,
            issued_nanos: io.issued_nanos,
            completed_nanos: io.completed_nanos,
            operation: io.rwbs.operation(),
            is_read_ahead: io.rwbs.is_read_ahead(),
            at: part.at,
            number: io.request,
        });
    }
    list
}

/// Reads of the model as its disks see them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DiskResults {
    /// Reads with bytes of the model's files; all that follows is about these.
    pub requests: u64,
    /// Bytes of whole requests, a neighbour of the model's file included.
    pub bytes: u64,
    pub read_ahead_bytes: u64,
    pub read_ahead_share: f64,
    /// Of requests that begin where the read before them on that disk ended.
    pub sequential_bytes: u64,
    pub sequential_share: f64,
    /// Of those and of requests that begin at most `gap_bytes` behind it.
    pub near_bytes: u64,
    pub near_share: f64,
    pub gap_bytes: u64,
    pub median_bytes: u64,
    /// By powers of two; empty bins are left out.
    pub sizes: Vec<SizeBin>,
    /// Time with at least one of them outstanding.
    pub busy_nanos: u64,
    /// Mean number outstanding in that time.
    pub mean_depth: f64,
    pub bytes_per_second: u64,
    /// From issue to completion.
    pub median_nanos: u64,
    pub p99_nanos: u64,
    /// Completion not seen: in none of the times above.
    pub unfinished: u64,
    /// Other reads on the same disks while the run was recorded.
    pub other_requests: u64,
    pub other_bytes: u64,
    pub write_requests: u64,
    pub write_bytes: u64,
}

/// Requests of at least `from_bytes` and less than twice that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeBin {
    pub from_bytes: u64,
    pub requests: u64,
    pub bytes: u64,
}

pub fn disk(requests: &[Request]) -> DiskResults {
    let mut results = DiskResults {
        gap_bytes: DEFAULT_GAP_BYTES,
        ..DiskResults::default()
    };
    // Ends of the last read on each disk, whoever it was for.
    let mut ends: Vec<(Device, u64)> = Vec::new();
    let mut bins = [(0u64, 0u64); 64];
    let mut sizes = Vec::new();
    let mut times = Vec::new();
    for request in requests {
        match request.operation {
            Operation::Read => {}
            Operation::Write => {
                results.write_requests += 1;
                results.write_bytes += request.bytes;
                continue;
            }
            Operation::Discard | Operation::Other => continue,
        }
        let begin = request.sector.saturating_mul(SECTOR_BYTES);
        let end = begin.saturating_add(request.bytes);
        let known = ends.iter_mut().find(|(disk, _)| *disk == request.device);
        let before = match known {
            Some((_, before)) => Some(std::mem::replace(before, end)),
            None => {
                ends.push((request.device, end));
                None
            }
        };
        if !request.is_model_read() {
            results.other_requests += 1;
            results.other_bytes += request.bytes;
            continue;
        }
        results.requests += 1;
        results.bytes += request.bytes;
        if request.is_read_ahead {
            results.read_ahead_bytes += request.bytes;
        }
        let gap = before.and_then(|before| begin.checked_sub(before));
        if gap == Some(0) {
            results.sequential_bytes += request.bytes;
        }
        if gap.is_some_and(|gap| gap <= results.gap_bytes) {
            results.near_bytes += request.bytes;
        }
        let bin = &mut bins[(63 - request.bytes.max(1).leading_zeros()) as usize];
        bin.0 += 1;
        bin.1 += request.bytes;
        sizes.push(request.bytes);
        match request.interval() {
            Some((issued, completed)) => times.push((
                completed.saturating_sub(issued),
                request.bytes,
                (issued, completed),
            )),
            None => results.unfinished += 1,
        }
    }
    let share = |part: u64| part as f64 / results.bytes.max(1) as f64;
    results.read_ahead_share = share(results.read_ahead_bytes);
    results.sequential_share = share(results.sequential_bytes);
    results.near_share = share(results.near_bytes);
    sizes.sort_unstable();
    results.median_bytes = quantile(&sizes, 50);
    let busy = Union::of(times.iter().map(|time| time.2));
    results.busy_nanos = busy.nanos();
    let in_flight: u64 = times.iter().map(|time| time.0).sum();
    results.mean_depth = in_flight as f64 / results.busy_nanos.max(1) as f64;
    let finished_bytes = times.iter().map(|time| time.1).sum();
    results.bytes_per_second = rate(finished_bytes, results.busy_nanos).unwrap_or(0);
    let mut nanos: Vec<u64> = times.iter().map(|time| time.0).collect();
    nanos.sort_unstable();
    results.median_nanos = quantile(&nanos, 50);
    results.p99_nanos = quantile(&nanos, 99);
    let filled = bins.iter().enumerate().filter(|(_, bin)| bin.0 > 0);
    results.sizes = filled
        .map(|(power, &(requests, bytes))| SizeBin {
            from_bytes: 1 << power,
            requests,
            bytes,
        })
        .collect();
    results
}

/// The smallest that at least this many per cent do not exceed.
fn quantile(sorted: &[u64], percent: usize) -> u64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(0)
}

/// Bytes per second; `None` of no time.
pub(super) fn rate(bytes: u64, nanos: u64) -> Option<u64> {
    let per_second = u128::from(bytes) * 1_000_000_000 / u128::from(nanos.max(1));
    (nanos > 0).then(|| u64::try_from(per_second).unwrap_or(u64::MAX))
}
