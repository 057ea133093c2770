//! Who got what of the memory, and how that is said.

use plan::predict::size;

use crate::balance::margin_bytes;
use crate::weights::{Fate, Usage, WeightInMemory, Weights};

/// Who got what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Shares {
    pub budget_bytes: u64,
    /// Used by the program when the first graph came, or by that: not for weights.
    pub other_bytes: u64,
    /// All weights but looked-up rows.
    pub weight_bytes: u64,
    pub pinned_bytes: u64,
    pub ring_bytes: u64,
    /// Bytes that go through the ring for each token.
    pub streamed_bytes: u64,
    pub expert_bytes: u64,
    pub expert_slots: u32,
    pub expert_pools: u32,
    /// Left to the page cache, without looked-up rows.
    pub mapped_bytes: u64,
}

impl Shares {
    /// After fates have changed. Of weights that are streamed, pieces of `part_bytes` are kept.
    pub(crate) fn follow(&mut self, weights: &Weights, part_bytes: u64) {
        let sum = |is_it: &dyn Fn(&WeightInMemory) -> bool| {
            let of_it = weights.list.iter().filter(|weight| is_it(weight));
            of_it.map(|weight| weight.bytes).sum::<u64>()
        };
        let is_read = |weight: &WeightInMemory| weight.usage != Usage::Rows;
        self.weight_bytes = sum(&is_read);
        let pinned = sum(&|weight| matches!(weight.fate, Fate::Pinned { .. }));
        self.pinned_bytes = pinned + part_bytes;
        self.streamed_bytes = sum(&|weight| weight.fate == Fate::Streamed) - part_bytes;
        self.mapped_bytes = sum(&|weight| weight.fate == Fate::Mapped && is_read(weight));
    }

    /// Whether nothing but what is too small to matter is kept, streamed or cached.
    pub fn is_nothing_fed(&self) -> bool {
        let fed = [self.streamed_bytes, self.expert_bytes];
        // Small weights are kept wherever they fit; they are a hundredth of a model.
        fed == [0, 0] && self.pinned_bytes <= self.weight_bytes / 50
    }

    /// What is fed, or why nothing is and what to change.
    pub fn sentence(&self, advice: Option<&str>) -> String {
        let budget = size(self.budget_bytes);
        if !self.is_nothing_fed() {
            let mut parts = vec![format!("{} kept", size(self.pinned_bytes))];
            if self.streamed_bytes > 0 {
                let (streamed, ring) = (size(self.streamed_bytes), size(self.ring_bytes));
                parts.push(format!("{streamed} streamed through a ring of {ring}"));
            }
            if self.expert_bytes > 0 {
                let (slots, bytes) = (self.expert_slots, size(self.expert_bytes));
                parts.push(format!("experts in {slots} slots a layer ({bytes})"));
            }
            if self.mapped_bytes > 0 {
                parts.push(format!(
                    "{} left to the page cache",
                    size(self.mapped_bytes)
                ));
            }
            let mut line = format!("fed within {budget}: {}", parts.join(", "));
            if let Some(advice) = advice.filter(|_| self.mapped_bytes > self.weight_bytes / 2) {
                line.push_str(&format!("; to feed more: {advice}"));
            }
            return line;
        }
        let margin = margin_bytes(self.budget_bytes);
        let taken = self.other_bytes + margin;
        let mut line = format!(
            "not fed: of {budget} the program itself uses {} and {} are kept free, so {} left \
             for {} of weights, which come through the page cache",
            size(self.other_bytes),
            size(margin),
            match self.budget_bytes.saturating_sub(taken) {
                0 => "nothing is".to_owned(),
                left => format!("only {} are", size(left)),
            },
            size(self.weight_bytes)
        );
        if let Some(advice) = advice {
            line.push_str(&format!("; to change that: {advice}"));
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn it_is_said_whether_and_why_not_and_what_to_change() {
        let nothing = Shares {
            budget_bytes: 260 * MIB,
            other_bytes: 700 * MIB,
            weight_bytes: 241 * MIB,
            pinned_bytes: MIB / 2,
            mapped_bytes: 240 * MIB,
            ..Shares::default()
        };
        assert_eq!(
            nothing.sentence(Some("--ubatch-size 32 frees about 480.0 MiB")),
            "not fed: of 260.0 MiB the program itself uses 700.0 MiB and 8.1 MiB are kept \
             free, so nothing is left for 241.0 MiB of weights, which come through the page \
             cache; to change that: --ubatch-size 32 frees about 480.0 MiB"
        );
        let little = Shares {
            other_bytes: 100 * MIB,
            pinned_bytes: 90 * MIB,
            mapped_bytes: 151 * MIB,
            ..nothing
        };
        assert_eq!(
            little.sentence(Some("--memory 400M")),
            "fed within 260.0 MiB: 90.0 MiB kept, 151.0 MiB left to the page cache; to feed more: \
             --memory 400M"
        );
        let well = Shares {
            streamed_bytes: 151 * MIB,
            ring_bytes: 48 * MIB,
            mapped_bytes: 0,
            ..little
        };
        assert_eq!(
            well.sentence(Some("--memory 400M")),
            "fed within 260.0 MiB: 90.0 MiB kept, 151.0 MiB streamed through a ring of 48.0 MiB"
        );
    }
}
