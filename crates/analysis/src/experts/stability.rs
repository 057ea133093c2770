//! Whether the experts that are hot now are hot later, and in another run.

use serde::{Deserialize, Serialize};

use super::{ExpertResults, LayerExperts, Stability};
use crate::timeline::Timeline;

/// The hot sets of one layer, window by window.
#[derive(Debug, Default)]
pub(super) struct HotSets {
    size: u32,
    counts: Vec<u64>,
    first: Option<Vec<u32>>,
    previous: Option<Vec<u32>>,
    windows: u64,
    sum: f64,
    least: f64,
    timeline: Timeline<f64>,
}

impl HotSets {
    pub(super) fn new(experts: usize, size: u32) -> HotSets {
        HotSets {
            size,
            counts: vec![0; experts],
            least: 1.0,
            ..HotSets::default()
        }
    }

    pub(super) fn choose(&mut self, expert: usize) {
        self.counts[expert] += 1;
    }

    pub(super) fn end_window(&mut self) {
        let hot = hot_set(&self.counts, self.size as usize);
        self.counts.fill(0);
        self.windows += 1;
        if let Some(previous) = &self.previous {
            let jaccard = jaccard(previous, &hot);
            self.sum += jaccard;
            self.least = self.least.min(jaccard);
            self.timeline.push(|| jaccard);
        }
        self.first.get_or_insert_with(|| hot.clone());
        self.previous = Some(hot);
    }

    /// An incomplete window at the end has too few choices to have a hot set.
    pub(super) fn finish(self) -> Stability {
        let comparisons = self.windows.saturating_sub(1);
        let (first, last) = (
            self.first.unwrap_or_default(),
            self.previous.unwrap_or_default(),
        );
        let is_known = comparisons > 0;
        Stability {
            hot_set: self.size,
            windows: self.windows,
            mean_jaccard: self.sum / comparisons.max(1) as f64,
            min_jaccard: if is_known { self.least } else { 0.0 },
            first_to_last_jaccard: if is_known {
                jaccard(&first, &last)
            } else {
                0.0
            },
            timeline: self.timeline,
        }
    }
}

/// Two runs' hot sets in one layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerOverlap {
    pub layer: u32,
    pub hot_set: u32,
    pub jaccard: f64,
    /// Choices of run B that fall on A's hot set; what pinning A's hot experts
    /// would serve in B.
    pub share_served: f64,
    /// The same for B's own hot set, the best that a static set can do.
    pub best_share: f64,
}

/// Whether what was hot in run A is hot in run B, layer by layer. Layers that do
/// not have the same number of experts are left out.
pub fn between_runs(a: &ExpertResults, b: &ExpertResults) -> Vec<LayerOverlap> {
    let pairs = a.layers.iter().filter_map(|in_a| {
        let in_b = b.layers.iter().find(|in_b| in_b.layer == in_a.layer)?;
        (in_a.experts.len() == in_b.experts.len()).then_some((in_a, in_b))
    });
    let overlap = |(in_a, in_b): (&LayerExperts, &LayerExperts)| {
        let size = in_a.stability.hot_set.min(in_a.experts.len() as u32);
        let counts = |l: &LayerExperts| l.experts.iter().map(|e| e.choices).collect::<Vec<_>>();
        let (hot_a, hot_b) = (
            hot_set(&counts(in_a), size as usize),
            hot_set(&counts(in_b), size as usize),
        );
        let served = |hot: &[u32]| hot.iter().map(|&e| in_b.experts[e as usize].share).sum();
        LayerOverlap {
            layer: in_a.layer,
            hot_set: size,
            jaccard: jaccard(&hot_a, &hot_b),
            share_served: served(&hot_a),
            best_share: served(&hot_b),
        }
    };
    pairs.map(overlap).collect()
}

/// The most chosen experts, ascending; of equals the lower numbers. Experts that
/// were not chosen are never in it.
fn hot_set(counts: &[u64], size: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..counts.len() as u32)
        .filter(|&e| counts[e as usize] > 0)
        .collect();
    order.sort_by_key(|&e| std::cmp::Reverse(counts[e as usize]));
    order.truncate(size);
    order.sort_unstable();
    order
}

/// Common members over all members; two empty sets are equal.
fn jaccard(a: &[u32], b: &[u32]) -> f64 {
    let common = a.iter().filter(|e| b.contains(e)).count();
    let all = a.len() + b.len() - common;
    if all == 0 {
        1.0
    } else {
        common as f64 / all as f64
    }
}
