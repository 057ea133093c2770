//! What nodes reached of what the hardware allows.

use std::collections::BTreeMap;

use super::{Finding, List, text::percent};
use crate::roofline::{Bound, Point, Roofline};

/// Classes of less of a phase's time are not worth a sentence.
const MIN_SHARE: f64 = 0.05;
/// The first few of each phase are.
const MAX_OF_PHASE: usize = 3;

/// A sentence for each of the ops that took most of a phase's time.
pub fn roofline(roofline: &Roofline) -> Vec<Finding> {
    let mut list = List::default();
    for phase in ["prompt", "generate", "unknown"] {
        let mut groups: BTreeMap<_, Group> = BTreeMap::new();
        for point in roofline.points.iter().filter(|p| p.row.phase == phase) {
            // What touches activations only finds them in a cache.
            if point.row.weight_bytes + point.row.kv_bytes == 0 {
                continue;
            }
            let row = &point.row;
            let key = (&row.op, &row.weight_type, row.weight_bytes > 0, row.threads);
            groups.entry(key).or_default().add(point, roofline);
        }
        let mut groups: Vec<_> = groups.into_iter().collect();
        groups.retain(|(_, group)| group.share >= MIN_SHARE);
        groups.sort_by(|a, b| b.1.seconds.total_cmp(&a.1.seconds));
        for ((op, ty, has_weights, threads), group) in groups.into_iter().take(MAX_OF_PHASE) {
            let of = match (ty, has_weights) {
                (Some(ty), true) => format!(" with {ty} weights"),
                (Some(ty), false) => format!(" over a KV cache of {ty}"),
                (None, _) => String::new(),
            };
            let kind = match has_weights {
                true => "weight",
                false => "kv_cache",
            };
            let who = support::text::count(u64::from(threads).max(1), "thread");
            let reached = group.reached(&who, ty.as_deref());
            list.close(
                "roofline",
                "roofline.points",
                format!(
                    "{phase}: {op}{of}, {} of the time in nodes, ran at {reached}",
                    percent(group.share)
                ),
                query(phase, op, ty.as_deref(), kind),
            );
        }
    }
    list.0
}

/// Points of one op and type.
#[derive(Default)]
struct Group {
    share: f64,
    seconds: f64,
    bytes: f64,
    flops: Option<f64>,
    /// Seconds that the bounds would take.
    reading: f64,
    computing: f64,
    by_kernels: bool,
}

impl Group {
    fn add(&mut self, point: &Point, roofline: &Roofline) {
        let seconds = point.row.nanos as f64 / 1e9;
        let bytes = point.row.bytes() as f64;
        self.share += point.share_of_phase;
        self.seconds += seconds;
        self.bytes += bytes;
        let bound = point.share_of_ceiling * seconds;
        match point.bound {
            Bound::Memory => self.reading += bound,
            Bound::Compute => self.computing += bound,
        }
        let flops = point.row.flops.map(|flops| flops as f64);
        self.flops = match (self.flops, flops) {
            (None, flops) => flops,
            (sum, None) => sum,
            (Some(sum), Some(flops)) => Some(sum + flops),
        };
        let roof = point.compute_roof.map(|at| &roofline.compute[at]);
        self.by_kernels |= roof.is_some_and(|roof| roof.weight_type.is_some());
    }

    /// `34.0 % of what 2 threads can read (8.1 of 23.9 GB/s)`.
    fn reached(&self, who: &str, ty: Option<&str>) -> String {
        // Sums of bounds: where one class is bound by memory and another by arithmetic, the one
        // that would take longer is named.
        let share = (self.reading + self.computing) / self.seconds;
        let above = match share > 1.0 {
            true => "; some of it came from a cache",
            false => "",
        };
        let giga = |amount: f64| format!("{:.1}", amount / 1e9);
        let text = percent(share);
        match (self.computing > self.reading, self.flops) {
            (true, Some(flops)) => {
                let rate = flops / self.seconds;
                let roof = match (self.by_kernels, ty) {
                    (true, Some(ty)) => {
                        format!("what llama.cpp's {ty} kernels reach with {who}")
                    }
                    _ => format!("what {who} can compute"),
                };
                format!(
                    "{text} of {roof} ({} of {} GFLOP/s)",
                    giga(rate),
                    giga(rate / share)
                )
            }
            _ => {
                let rate = self.bytes / self.seconds;
                format!(
                    "{text} of what {who} can read ({} of {} GB/s{above})",
                    giga(rate),
                    giga(rate / share)
                )
            }
        }
    }
}

/// Bytes of these nodes over their time.
fn query(phase: &str, op: &str, ty: Option<&str>, kind: &str) -> String {
    let of_type = ty.map_or_else(String::new, |ty| format!(" AND t.type = '{ty}'"));
    format!(
        "WITH those AS (SELECT DISTINCT a.eval, a.step FROM accesses a JOIN tensors t ON t.tensor = a.tensor \
         WHERE a.phase = '{phase}' AND a.op = '{op}' AND t.kind = '{kind}'{of_type}) \
         SELECT (SELECT sum(bytes) FROM accesses JOIN those USING (eval, step)) * 1.0 / \
         (SELECT sum(duration_nanos) FROM nodes JOIN those USING (eval, step)) AS gigabytes_per_second"
    )
}
