//! Which tokens each expert prefers.
//!
//! One row of counts per distinct token, one place per expert of every layer, so
//! that a token's choices are counted in one stretch of memory. Rows are given to
//! the first tokens that come, until the memory allowed for them is used up.

use std::collections::HashMap;

use reader::Seen;
use serde::{Deserialize, Serialize};

use super::{ExpertOptions, LayerExperts};

/// A token that an expert is chosen for more often than others are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Preference {
    pub token_id: i64,
    /// Where the recorder knew it.
    pub text: Option<String>,
    /// Times that the token chose this expert, of times that it came to the layer.
    pub choices: u64,
    pub occurrences: u64,
    /// Share of its choices over the expert's share of all tokens: above 1 the
    /// expert is chosen more for this token than for others.
    pub lift: f64,
}

#[derive(Debug, Default)]
pub(super) struct Counter {
    memory_bytes: u64,
    slots: usize,
    numbers: HashMap<i64, u32>,
    rows: Vec<Row>,
    /// Rows of the tokens of the batch at hand.
    batch: Vec<Option<u32>>,
    pub(super) choices_without_token: u64,
}

#[derive(Debug)]
struct Row {
    token_id: i64,
    text: Option<String>,
    counts: Vec<u32>,
}

impl Counter {
    pub(super) fn new(memory_bytes: u64) -> Counter {
        Counter {
            memory_bytes,
            ..Counter::default()
        }
    }

    /// Makes room for the experts of one more layer; its first place.
    pub(super) fn reserve(&mut self, experts: usize) -> usize {
        let first = self.slots;
        self.slots += experts;
        first
    }

    /// A new batch of tokens.
    pub(super) fn begin(&mut self, seen: &Seen) {
        self.batch.clear();
        for &token_id in seen.token_ids() {
            let row = match self.numbers.get(&token_id) {
                Some(&row) => Some(row),
                None if ((self.rows.len() + 1) * self.slots * 4) as u64 <= self.memory_bytes => {
                    let row = self.rows.len() as u32;
                    self.numbers.insert(token_id, row);
                    self.rows.push(Row {
                        token_id,
                        text: None,
                        counts: Vec::new(),
                    });
                    Some(row)
                }
                None => None,
            };
            if let Some(row) = row {
                let row = &mut self.rows[row as usize];
                row.counts.resize(self.slots, 0);
                if row.text.is_none() {
                    row.text = seen.token_text(token_id);
                }
            }
            self.batch.push(row);
        }
    }

    pub(super) fn choose(&mut self, token: usize, slot: usize) {
        match self.batch.get(token).copied().flatten() {
            Some(row) => {
                let count = &mut self.rows[row as usize].counts[slot];
                *count = count.saturating_add(1);
            }
            None => self.choices_without_token += 1,
        }
    }

    /// Fills in which tokens the experts of a layer prefer: by lift, then by how
    /// often.
    pub(super) fn fill(
        &self,
        layer: &mut LayerExperts,
        first_slot: usize,
        options: &ExpertOptions,
    ) {
        let slots = first_slot..first_slot + layer.experts.len();
        let used = u64::from(layer.used.max(1));
        // How often each token came to this layer: behind the last attention only
        // the tokens whose output is wanted do.
        let came: Vec<(&Row, &[u32], u64)> = self
            .rows
            .iter()
            .filter_map(|row| {
                let counts = row.counts.get(slots.clone())?;
                let choices: u64 = counts.iter().map(|&n| u64::from(n)).sum();
                Some((row, counts, choices / used))
                    .filter(|&(_, _, n)| n >= options.least_count.max(1))
            })
            .collect();
        for expert in layer.experts.iter_mut().filter(|e| e.choices > 0) {
            let chance = expert.share * used as f64;
            let mut found: Vec<Preference> = Vec::new();
            for &(row, counts, occurrences) in &came {
                let choices = u64::from(counts[expert.expert as usize]);
                let lift = choices as f64 / occurrences as f64 / chance;
                if lift > 1.0 {
                    found.push(Preference {
                        token_id: row.token_id,
                        text: row.text.clone(),
                        choices,
                        occurrences,
                        lift,
                    });
                }
            }
            found.sort_by(|a, b| {
                let by_lift = b.lift.total_cmp(&a.lift).then(b.choices.cmp(&a.choices));
                by_lift.then(a.token_id.cmp(&b.token_id))
            });
            found.truncate(options.top_tokens);
            expert.prefers = found;
        }
    }
}
