//! The heads of attention weights, by tensor.

use std::collections::HashMap;

use gguf::heads::{Boundary, HeadLayout};

use crate::tracker::Heads;

/// A head's part of a tensor.
pub struct HeadRange {
    /// `q`, `k`, `v` or `o`.
    pub of: &'static str,
    pub head: u64,
    /// Of its first byte in the tensor.
    pub offset: u64,
    pub size_bytes: u64,
}

#[derive(Default)]
pub struct HeadRanges {
    by_tensor: HashMap<String, Vec<HeadRange>>,
}

impl HeadRanges {
    pub fn of(heads: Heads) -> HeadRanges {
        let Heads::Apart(model) = heads else {
            return HeadRanges::default();
        };
        let mut by_tensor = HashMap::new();
        for tensor in model.tensors() {
            let Some(layout) = HeadLayout::of(tensor, model.hyper()) else {
                continue;
            };
            let ranges: Vec<_> = layout.ranges(tensor).collect();
            // Heads that share a block would count its bytes twice.
            let bytes: u64 = ranges.iter().map(|range| range.size_bytes()).sum();
            let are_apart = ranges.iter().all(|range| range.boundary == Boundary::Exact);
            if !are_apart || bytes != tensor.size_bytes {
                continue;
            }
            let ranges = ranges.into_iter().map(|range| HeadRange {
                of: range.of,
                head: range.head,
                offset: range.file_offset - tensor.file_offset,
                size_bytes: range.size_bytes(),
            });
            by_tensor.insert(tensor.name.to_string(), ranges.collect());
        }
        HeadRanges { by_tensor }
    }

    /// Empty for a tensor without heads, or with heads that share bytes.
    pub fn of_tensor(&self, name: &str) -> &[HeadRange] {
        self.by_tensor.get(name).map_or(&[], Vec::as_slice)
    }
}
