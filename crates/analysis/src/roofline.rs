//! The nodes of a run against what the hardware allows.
//!
//! [`flops`] counts what a node computes, [`classes`] adds that up with its bytes and its time.
//! Here both are held against measured ceilings: what the threads of the run can read from
//! memory, and what they can compute. The one that would take longer is the bound, and how
//! long it would take over how long it took is the share that was reached.
//!
//! Bytes are those that nodes touch. What a cache holds (activations, small models) does not
//! come from memory, so that a share may be above one: the roof was not that of memory then.
//!
//! Nodes on a graphics card are held against that card: [`cards`].

pub mod cards;
pub mod classes;
pub mod flops;

use kernelio::{compute::ComputeCeiling, memory::MemoryCeiling};
use serde::{Deserialize, Serialize};

use classes::{ClassRow, class_name};

/// Ops whose arithmetic is that of a matrix of weights.
const PRODUCTS: [&str; 2] = ["MUL_MAT", "MUL_MAT_ID"];

/// What the classes of a run reach of the ceilings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Roofline {
    /// One for each number of threads that computed.
    pub memory: Vec<MemoryRoof>,
    pub compute: Vec<ComputeRoof>,
    /// Those that took longest first.
    pub points: Vec<Point>,
}

/// Bytes a second that so many threads can read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryRoof {
    pub threads: u32,
    pub bytes_per_second: f64,
}

/// Operations a second that so many threads can compute.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComputeRoof {
    /// Of weights of this type, by llama.cpp's kernels; `None` for 32-bit numbers in registers.
    pub weight_type: Option<String>,
    pub threads: u32,
    pub flops_per_second: f64,
}

/// A class of nodes in one phase, with about as many tokens at once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    #[serde(flatten)]
    pub row: ClassRow,
    /// Of the time of all nodes in the phase.
    pub share_of_phase: f64,
    pub flops_per_second: Option<f64>,
    pub bytes_per_second: f64,
    /// Operations for each byte.
    pub intensity: Option<f64>,
    pub bound: Bound,
    /// Of what the bound would allow: 1 is the roof itself.
    pub share_of_ceiling: f64,
    /// Which of [`Roofline::compute`] is over it; `None` where arithmetic was not measured.
    pub compute_roof: Option<usize>,
}

/// What would take longer, were it done as fast as the hardware can.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Reading the bytes.
    Memory,
    /// Computing.
    Compute,
}

impl Point {
    pub fn name(&self) -> String {
        let row = &self.row;
        class_name(&row.op, row.weight_type.as_deref(), &row.component)
    }
}

impl Roofline {
    /// Classes that took no time, or touched nothing, are left out.
    pub fn of(
        rows: &[ClassRow],
        memory: &MemoryCeiling,
        compute: Option<&ComputeCeiling>,
    ) -> Roofline {
        let mut roofline = Roofline::default();
        for row in rows.iter().filter(|row| row.nanos > 0 && row.bytes() > 0) {
            let memory = roofline.memory_roof(row.threads, memory);
            let roof = compute.and_then(|compute| roofline.compute_roof(row, compute));
            let seconds = row.nanos as f64 / 1e9;
            let (flops, bytes) = (row.flops.map(|flops| flops as f64), row.bytes() as f64);
            let reading = bytes / memory;
            let computing = match (flops, roof) {
                (Some(flops), Some(roof)) => flops / roofline.compute[roof].flops_per_second,
                _ => 0.0,
            };
            let phase = rows.iter().filter(|other| other.phase == row.phase);
            let of_phase = phase.fold(0, |n: u64, other| n.saturating_add(other.nanos));
            roofline.points.push(Point {
                share_of_phase: row.nanos as f64 / of_phase as f64,
                flops_per_second: flops.map(|flops| flops / seconds),
                bytes_per_second: bytes / seconds,
                intensity: flops.map(|flops| flops / bytes),
                bound: match computing > reading {
                    true => Bound::Compute,
                    false => Bound::Memory,
                },
                share_of_ceiling: reading.max(computing) / seconds,
                compute_roof: roof,
                row: row.clone(),
            });
        }
        let nanos = |point: &Point| std::cmp::Reverse(point.row.nanos);
        roofline.points.sort_by_key(nanos);
        roofline
    }

    /// Bytes a second.
    pub fn memory_of(&self, threads: u32) -> Option<f64> {
        let roof = self.memory.iter().find(|roof| roof.threads == threads);
        roof.map(|roof| roof.bytes_per_second)
    }

    fn memory_roof(&mut self, threads: u32, memory: &MemoryCeiling) -> f64 {
        if let Some(known) = self.memory_of(threads) {
            return known;
        }
        let bytes_per_second = memory.with_threads(threads.max(1) as usize);
        self.memory.push(MemoryRoof {
            threads,
            bytes_per_second,
        });
        bytes_per_second
    }

    fn compute_roof(&mut self, row: &ClassRow, compute: &ComputeCeiling) -> Option<usize> {
        let threads = row.threads.max(1) as usize;
        let ty = row.weight_type.as_deref();
        let ty = ty.filter(|_| row.weight_bytes > 0 && PRODUCTS.contains(&&*row.op));
        let kernel = ty.and_then(|ty| Some((ty, compute.kernel_with_threads(ty, threads)?)));
        let (weight_type, flops_per_second) = match kernel {
            Some((ty, flops)) => (Some(ty.to_owned()), flops),
            None => (None, compute.flops_with_threads(threads)?),
        };
        let roof = ComputeRoof {
            weight_type,
            threads: row.threads,
            flops_per_second,
        };
        let known = self.compute.iter().position(|known| *known == roof);
        Some(known.unwrap_or_else(|| {
            self.compute.push(roof);
            self.compute.len() - 1
        }))
    }
}
