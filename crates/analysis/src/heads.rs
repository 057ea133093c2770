//! Attention: bytes per head, and per Q, K, V, O.
//!
//! A head of the weights is the byte ranges that `gguf::heads` gives; a head of the cache is
//! its share of every row.
//! The cache is read and written in whole rows (K) or in whole columns of all
//! heads (transposed V), so each head has an equal part. What does not divide is
//! reported as unassigned, never guessed.

use std::collections::BTreeMap;

use reader::{Prepared, Tally, Tensor, Tensors, Traffic};
use serde::{Deserialize, Serialize};
use trace::template::TensorKind;

use crate::facts::{Model, ModelTensor};

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

/// Read and written.
type Both<T> = [T; 2];

#[derive(Debug, Default)]
pub struct Accumulator {
    /// By tensor and extent: begin, end and bytes of its accesses.
    fixed: BTreeMap<(u32, u64, u64, u64), Both<Traffic>>,
    varying: BTreeMap<u32, Both<Traffic>>,
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
            let traffic = tally.of_access(prepared, at);
            sum[access.direction as usize].add(traffic.accesses, traffic.bytes);
        }
    }

    pub fn finish(self, tensors: &Tensors, model: &Model) -> HeadResults {
        let with_heads = model.tensors.iter().filter(|t| !t.heads.is_empty());
        let with_heads: BTreeMap<&str, &ModelTensor> =
            with_heads.map(|t| (t.name.as_str(), t)).collect();
        let mut sums = Sums::default();
        for (&(number, begin, end, bytes), sum) in &self.fixed {
            let tensor = &tensors.all()[number as usize];
            let Some(meaning) = &tensor.meaning else {
                sums.cache(model, &tensor.name, sum);
                continue;
            };
            match (with_heads.get(tensor.name.as_str()), meaning.layer) {
                (Some(of), Some(layer)) if end - begin == bytes => {
                    sums.weight(layer, &meaning.role, of, (begin, end), sum);
                }
                _ => sums.unassigned(&meaning.role, sum),
            }
        }
        for (&number, sum) in &self.varying {
            let tensor = &tensors.all()[number as usize];
            match tensor.role() {
                None => sums.cache(model, &tensor.name, sum),
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
    projections: BTreeMap<String, Both<u64>>,
    heads: BTreeMap<(u32, &'static str, u64), Both<u64>>,
    unassigned_bytes: u64,
}

impl Sums {
    fn weight(
        &mut self,
        layer: u32,
        role: &str,
        tensor: &ModelTensor,
        (begin, end): (u64, u64),
        sum: &Both<Traffic>,
    ) {
        let ranges = &tensor.heads;
        let mut left = sum.map(|traffic| traffic.bytes);
        // Heads of a merged tensor belong to Q, K and V in turn.
        let is_merged = ranges.iter().any(|range| range.of != ranges[0].of);
        if !is_merged && left != [0, 0] {
            self.project(ranges[0].of, left);
        }
        for range in ranges {
            let inside: u64 = (0..range.run_count)
                .map(|run| {
                    let first = range.file_offset - tensor.file_offset + run * range.stride_bytes;
                    let last = first + range.run_bytes;
                    last.min(end).saturating_sub(first.max(begin))
                })
                .sum();
            let bytes = sum.map(|traffic| inside * traffic.accesses);
            if is_merged {
                self.project(range.of, bytes);
            }
            add(
                self.heads.entry((layer, range.of, range.head)).or_default(),
                bytes,
            );
            // Where heads share quantisation blocks, ranges overlap and add up to
            // more than was read; nothing is left over then.
            left = [0, 1].map(|at| left[at].saturating_sub(bytes[at]));
        }
        self.unassigned_bytes += left[0] + left[1];
        if is_merged && left != [0, 0] {
            self.project(role, left);
        }
    }

    fn unassigned(&mut self, of: &str, sum: &Both<Traffic>) {
        let bytes = sum.map(|traffic| traffic.bytes);
        self.project(of, bytes);
        self.unassigned_bytes += bytes[0] + bytes[1];
    }

    fn cache(&mut self, model: &Model, name: &str, sum: &Both<Traffic>) {
        let Some((of, layer)) = cache_of(name) else {
            return self.unassigned(name, sum);
        };
        let heads = model.kv_heads.get(&layer).copied().unwrap_or(0);
        let bytes = sum.map(|traffic| traffic.bytes);
        if heads == 0 || bytes.iter().any(|bytes| bytes % heads != 0) {
            return self.unassigned(of, sum);
        }
        self.project(of, bytes);
        for head in 0..heads {
            let sum = self.heads.entry((layer, of, head)).or_default();
            add(sum, bytes.map(|bytes| bytes / heads));
        }
    }

    fn project(&mut self, of: &str, bytes: Both<u64>) {
        add(self.projections.entry(of.to_owned()).or_default(), bytes);
    }

    fn finish(self) -> HeadResults {
        let projections = self.projections.into_iter();
        let projections = projections.map(|(of, [read_bytes, written_bytes])| Projection {
            of,
            read_bytes,
            written_bytes,
        });
        let heads = self.heads.into_iter();
        let heads = heads.map(
            |((layer, of, head), [read_bytes, written_bytes])| HeadBytes {
                layer,
                of: of.to_owned(),
                head,
                read_bytes,
                written_bytes,
            },
        );
        HeadResults {
            projections: projections.collect(),
            heads: heads.collect(),
            unassigned_bytes: self.unassigned_bytes,
        }
    }
}

fn add(sum: &mut Both<u64>, more: Both<u64>) {
    sum[0] += more[0];
    sum[1] += more[1];
}

/// `cache_k_l3` is `cache_k` of layer 3.
fn cache_of(name: &str) -> Option<(&'static str, u32)> {
    ["cache_k", "cache_v"].into_iter().find_map(|of| {
        let layer = name.strip_prefix(of)?.strip_prefix("_l")?;
        layer.parse().ok().map(|layer| (of, layer))
    })
}
