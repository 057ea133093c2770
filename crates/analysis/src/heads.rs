//! Attention: bytes per head, and per Q, K, V, O.
//!
//! A head of the weights is the byte ranges that its caller gives ([`HeadRange`],
//! the numbers of `gguf::heads`); a head of the cache is its share of every row.
//! The cache is read and written in whole rows (K) or in whole columns of all
//! heads (transposed V), so each head has an equal part. What does not divide is
//! reported as unassigned, never guessed.

use std::collections::BTreeMap;

use reader::{Prepared, Tally, Tensor, Tensors, Traffic};
use serde::{Deserialize, Serialize};
use trace::template::{Direction, TensorKind};

/// Bytes of one head in one attention weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadRange {
    pub tensor: String,
    /// `q`, `k`, `v` or `o`.
    pub of: String,
    pub head: u64,
    /// Within the tensor.
    pub offset: u64,
    pub run_bytes: u64,
    pub stride_bytes: u64,
    pub run_count: u64,
}

/// How the model's attention divides, in plain numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeadLayout {
    pub ranges: Vec<HeadRange>,
    /// Heads of K and V, by layer.
    pub kv_heads: BTreeMap<u32, u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HeadResults {
    pub projections: Vec<Projection>,
    pub heads: Vec<HeadBytes>,
    /// Attention bytes that no head could be given.
    pub unassigned_bytes: u64,
}

/// Bytes by what they are for, over all layers. Each byte once, also where heads
/// share quantisation blocks and their own bytes overlap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Projection {
    /// `q`, `k`, `v`, `o` of the weights (or the role of another attention
    /// weight), `cache_k`, `cache_v`.
    pub of: String,
    pub read_bytes: u64,
    pub written_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeadBytes {
    pub layer: u32,
    /// As [`Projection::of`].
    pub of: String,
    pub head: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
}

#[derive(Debug, Default)]
pub struct Accumulator {
    /// By tensor and extent: begin, end and bytes of its accesses.
    fixed: BTreeMap<(u32, u64, u64, u64), Directions>,
    varying: BTreeMap<u32, Directions>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Directions {
    read: Traffic,
    written: Traffic,
}

impl Accumulator {
    /// Takes in what a template's evaluations add up to.
    pub fn end_template(&mut self, prepared: &Prepared, tensors: &Tensors, tally: &Tally) {
        for (at, access) in prepared.accesses.iter().enumerate() {
            let tensor = &tensors.all()[access.tensor as usize];
            if !belongs(tensor) {
                continue;
            }
            let sum = match access.index {
                None => {
                    let end = access.unit.end().unwrap_or(u64::MAX);
                    let key = (tensor.first, access.unit.offset, end, access.bytes);
                    self.fixed.entry(key).or_default()
                }
                Some(_) => self.varying.entry(tensor.first).or_default(),
            };
            let sum = match access.direction {
                Direction::Read => &mut sum.read,
                Direction::Write => &mut sum.written,
            };
            let traffic = tally.of_access(prepared, at);
            sum.add(traffic.accesses, traffic.bytes);
        }
    }

    pub fn finish(self, tensors: &Tensors, layout: &HeadLayout) -> HeadResults {
        let mut ranges: BTreeMap<&str, Vec<&HeadRange>> = BTreeMap::new();
        for range in &layout.ranges {
            ranges.entry(&range.tensor).or_default().push(range);
        }
        let mut sums = Sums::default();
        for (&(number, begin, end, bytes), sum) in &self.fixed {
            let tensor = &tensors.all()[number as usize];
            let Some(meaning) = &tensor.meaning else {
                sums.cache(layout, &tensor.name, sum);
                continue;
            };
            match (ranges.get(tensor.name.as_str()), meaning.layer) {
                (Some(ranges), Some(layer)) if end - begin == bytes => {
                    sums.weight(layer, &meaning.role, ranges, (begin, end), sum);
                }
                _ => sums.unassigned(&meaning.role, sum),
            }
        }
        for (&number, sum) in &self.varying {
            let tensor = &tensors.all()[number as usize];
            match tensor.role() {
                None => sums.cache(layout, &tensor.name, sum),
                Some(role) => sums.unassigned(role, sum),
            }
        }
        sums.finish()
    }
}

/// Attention weights and the cache.
fn belongs(tensor: &Tensor) -> bool {
    let meaning = tensor.meaning.as_ref();
    tensor.kind == TensorKind::KvCache
        || meaning.is_some_and(|m| m.component == gguf::Component::Attention)
}

#[derive(Default)]
struct Sums {
    /// Read and written.
    projections: BTreeMap<String, (u64, u64)>,
    heads: BTreeMap<(u32, String, u64), (u64, u64)>,
    unassigned_bytes: u64,
}

impl Sums {
    fn weight(
        &mut self,
        layer: u32,
        role: &str,
        ranges: &[&HeadRange],
        (begin, end): (u64, u64),
        sum: &Directions,
    ) {
        let read_and_written = (sum.read.bytes, sum.written.bytes);
        let mut assigned = (0, 0);
        // Heads of a merged tensor belong to Q, K and V in turn.
        let is_merged = ranges.iter().any(|range| range.of != ranges[0].of);
        for range in ranges {
            let inside: u64 = (0..range.run_count)
                .map(|run| {
                    let first = range.offset + run * range.stride_bytes;
                    let last = first + range.run_bytes;
                    last.min(end).saturating_sub(first.max(begin))
                })
                .sum();
            let bytes = (inside * sum.read.accesses, inside * sum.written.accesses);
            if is_merged {
                add(self.projections.entry(range.of.clone()).or_default(), bytes);
            }
            let key = (layer, range.of.clone(), range.head);
            add(self.heads.entry(key).or_default(), bytes);
            add(&mut assigned, bytes);
        }
        // Where heads share quantisation blocks, ranges overlap and add up to
        // more than was read; nothing is left over then.
        let left = (
            read_and_written.0.saturating_sub(assigned.0),
            read_and_written.1.saturating_sub(assigned.1),
        );
        self.unassigned_bytes += left.0 + left.1;
        let (of, bytes) = match is_merged {
            true => (role, left),
            false => (ranges[0].of.as_str(), read_and_written),
        };
        if bytes != (0, 0) {
            add(self.projections.entry(of.to_owned()).or_default(), bytes);
        }
    }

    fn unassigned(&mut self, of: &str, sum: &Directions) {
        let bytes = (sum.read.bytes, sum.written.bytes);
        add(self.projections.entry(of.to_owned()).or_default(), bytes);
        self.unassigned_bytes += bytes.0 + bytes.1;
    }

    fn cache(&mut self, layout: &HeadLayout, name: &str, sum: &Directions) {
        let Some((of, layer)) = cache_of(name) else {
            return self.unassigned(name, sum);
        };
        let heads = layout.kv_heads.get(&layer).copied().unwrap_or(0);
        let (read, written) = (sum.read.bytes, sum.written.bytes);
        if heads == 0 || read % heads != 0 || written % heads != 0 {
            return self.unassigned(of, sum);
        }
        add(
            self.projections.entry(of.to_owned()).or_default(),
            (read, written),
        );
        for head in 0..heads {
            let key = (layer, of.to_owned(), head);
            add(
                self.heads.entry(key).or_default(),
                (read / heads, written / heads),
            );
        }
    }

    fn finish(self) -> HeadResults {
        let projections = self.projections.into_iter();
        let heads = self.heads.into_iter();
        HeadResults {
            projections: projections
                .map(|(of, (read_bytes, written_bytes))| Projection {
                    of,
                    read_bytes,
                    written_bytes,
                })
                .collect(),
            heads: heads
                .map(
                    |((layer, of, head), (read_bytes, written_bytes))| HeadBytes {
                        layer,
                        of,
                        head,
                        read_bytes,
                        written_bytes,
                    },
                )
                .collect(),
            unassigned_bytes: self.unassigned_bytes,
        }
    }
}

fn add(sum: &mut (u64, u64), more: (u64, u64)) {
    sum.0 += more.0;
    sum.1 += more.1;
}

/// `cache_k_l3` is `cache_k` of layer 3.
fn cache_of(name: &str) -> Option<(&'static str, u32)> {
    ["cache_k", "cache_v"].into_iter().find_map(|of| {
        let layer = name.strip_prefix(of)?.strip_prefix("_l")?;
        layer.parse().ok().map(|layer| (of, layer))
    })
}
