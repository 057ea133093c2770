//! Sequential or random: does a weight lie just behind the one read before it?
//!
//! In execution order, an access is *sequential* when it starts in the same file
//! at or behind the end of the access before it, by at most the gap. A maximal
//! series of such accesses is a *run*. Only weights with a place in a file count.

use reader::Traffic;
use serde::{Deserialize, Serialize};

use crate::{pass::View, traffic::PHASES};

/// A gap that one read-ahead of many disks' default (128 KiB) bridges.
pub const DEFAULT_GAP_BYTES: u64 = 128 << 10;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SequentialResults {
    pub gap_bytes: u64,
    pub total: Share,
    pub by_phase: Vec<Share>,
    pub runs: u64,
    pub mean_run_bytes: f64,
    pub mean_run_accesses: f64,
    pub longest_run_bytes: u64,
    /// Where an access is not sequential: further on in the file, or back.
    pub forward_jumps: u64,
    pub backward_jumps: u64,
    /// By powers of two; empty bins are left out.
    pub histogram: Vec<RunBin>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// `None` for all.
    pub phase: Option<String>,
    pub accesses: u64,
    pub bytes: u64,
    pub sequential_accesses: u64,
    pub sequential_bytes: u64,
}

impl Share {
    pub fn of_bytes(&self) -> f64 {
        self.sequential_bytes as f64 / self.bytes.max(1) as f64
    }
}

/// Runs whose bytes are at least `from_bytes` and less than twice that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunBin {
    pub from_bytes: u64,
    pub runs: u64,
    pub bytes: u64,
}

#[derive(Debug)]
pub struct Accumulator {
    gap_bytes: u64,
    /// File, begin and end of each piece.
    places: Vec<Option<(u32, u64, u64)>>,
    /// File and end of the access before.
    previous: Option<(u32, u64)>,
    run: Traffic,
    all: [Traffic; 3],
    sequential: [Traffic; 3],
    bins: [Traffic; 65],
    run_accesses: u64,
    longest_run_bytes: u64,
    forward_jumps: u64,
    backward_jumps: u64,
}

impl Accumulator {
    pub fn new(gap_bytes: u64) -> Accumulator {
        Accumulator {
            gap_bytes,
            places: Vec::new(),
            previous: None,
            run: Traffic::default(),
            all: Default::default(),
            sequential: Default::default(),
            bins: [Traffic::default(); 65],
            run_accesses: 0,
            longest_run_bytes: 0,
            forward_jumps: 0,
            backward_jumps: 0,
        }
    }

    pub fn push(&mut self, view: &View) {
        let phase = view.seen.evaluation.phase as usize;
        let new = &view.units.pieces[self.places.len()..];
        self.places
            .extend(new.iter().map(|piece| view.units.place_of(piece)));
        for &number in view.pieces {
            if let Some((file, begin, end)) = self.places[number as usize] {
                let bytes = view.units.pieces[number as usize].bytes;
                self.access(phase, file, begin, end, bytes);
            }
        }
    }

    fn access(&mut self, phase: usize, file: u32, begin: u64, end: u64, bytes: u64) {
        let is_sequential = match self.previous {
            Some((at_file, at)) if at_file == file && begin >= at => begin - at <= self.gap_bytes,
            _ => false,
        };
        self.all[phase].add(1, bytes);
        if is_sequential {
            self.sequential[phase].add(1, bytes);
        } else {
            match self.previous {
                Some((at_file, at)) if (file, begin) >= (at_file, at) => self.forward_jumps += 1,
                Some(_) => self.backward_jumps += 1,
                None => {}
            }
            self.end_run();
        }
        self.run.add(1, bytes);
        self.previous = Some((file, end));
    }

    fn end_run(&mut self) {
        if self.run.accesses > 0 {
            let bin = 64 - self.run.bytes.leading_zeros();
            self.bins[bin as usize].add(1, self.run.bytes);
            self.run_accesses += self.run.accesses;
            self.longest_run_bytes = self.longest_run_bytes.max(self.run.bytes);
        }
        self.run = Traffic::default();
    }

    /// The next stream's first access follows none.
    pub fn end_stream(&mut self) {
        self.end_run();
        self.previous = None;
    }

    pub fn finish(mut self) -> SequentialResults {
        self.end_stream();
        let shares = PHASES.iter().zip(self.all.iter().zip(&self.sequential));
        let by_phase: Vec<Share> = shares
            .filter(|(_, (all, _))| all.accesses > 0)
            .map(|(phase, (all, sequential))| Share {
                phase: Some(phase.name().to_owned()),
                accesses: all.accesses,
                bytes: all.bytes,
                sequential_accesses: sequential.accesses,
                sequential_bytes: sequential.bytes,
            })
            .collect();
        let mut total = Share::default();
        for share in &by_phase {
            total.accesses += share.accesses;
            total.bytes += share.bytes;
            total.sequential_accesses += share.sequential_accesses;
            total.sequential_bytes += share.sequential_bytes;
        }
        let runs: u64 = self.bins.iter().map(|bin| bin.accesses).sum();
        let histogram = self.bins.iter().enumerate().filter(|(_, b)| b.accesses > 0);
        SequentialResults {
            gap_bytes: self.gap_bytes,
            runs,
            mean_run_bytes: total.bytes as f64 / runs.max(1) as f64,
            mean_run_accesses: self.run_accesses as f64 / runs.max(1) as f64,
            longest_run_bytes: self.longest_run_bytes,
            forward_jumps: self.forward_jumps,
            backward_jumps: self.backward_jumps,
            histogram: histogram
                .map(|(bin, traffic)| RunBin {
                    from_bytes: if bin == 0 { 0 } else { 1 << (bin - 1) },
                    runs: traffic.accesses,
                    bytes: traffic.bytes,
                })
                .collect(),
            total,
            by_phase,
        }
    }
}
