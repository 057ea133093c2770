//! Uses in order, as a cache sees them: items of known size, and a use of one at a time.
//!
//! What an item is, the maker of the trace says: a weight or an expert's slice, a run of
//! pages that are always used together, or an expert of a layer.

use std::{borrow::Cow, ops::Range};

use serde::{Deserialize, Serialize};

/// Bytes of a page of the page cache.
pub const PAGE_BYTES: u64 = 4096;

/// What a cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Granularity {
    Unit,
    Page,
}

/// Which accesses are counted. The cache always sees all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// The whole run.
    Run,
    /// Evaluations that generate a token.
    Generate,
}

/// What an access does to the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Use {
    /// Reads the whole item.
    Whole,
    /// Reads a part of it, and is not cached by itself.
    Probe,
}

/// What an access number stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference {
    pub item: u32,
    pub kind: Use,
    /// Bytes that a miss reads.
    pub bytes: u64,
    /// Misses that a miss counts as: 1, or the pages of an atom.
    pub touches: u64,
}

/// Uses of cache items in order.
#[derive(Clone, Debug)]
pub struct CacheTrace<'s> {
    pub granularity: Granularity,
    pub item_bytes: Vec<u64>,
    pub references: Vec<Reference>,
    /// Numbers of references, in execution order.
    pub accesses: Cow<'s, [u32]>,
    /// Stretches of `accesses` that belong to generated tokens, ascending.
    pub generate: Vec<Range<usize>>,
}

/// Touches (units or pages) and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    pub accesses: u64,
    pub bytes: u64,
}

impl Count {
    pub fn add(&mut self, reference: &Reference) {
        self.accesses += reference.touches;
        self.bytes += reference.bytes;
    }
}

/// A count over the whole run and over its generating part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub run: Count,
    pub generate: Count,
}

impl Counts {
    pub fn of(&self, scope: Scope) -> Count {
        match scope {
            Scope::Run => self.run,
            Scope::Generate => self.generate,
        }
    }
}

impl CacheTrace<'static> {
    /// Whole uses of items of given sizes, as one generating stretch.
    pub fn whole_items(item_bytes: Vec<u64>, accesses: Vec<u32>) -> CacheTrace<'static> {
        let references = item_bytes.iter().enumerate();
        let references = references.map(|(item, &bytes)| Reference {
            item: item as u32,
            kind: Use::Whole,
            bytes,
            touches: 1,
        });
        let generate = std::iter::once(0..accesses.len()).collect();
        CacheTrace {
            granularity: Granularity::Unit,
            references: references.collect(),
            item_bytes,
            accesses: Cow::Owned(accesses),
            generate,
        }
    }
}

impl CacheTrace<'_> {
    /// Everything that was asked for, hit or missed.
    pub fn totals(&self) -> Counts {
        let mut uses = vec![0u64; self.references.len()];
        let mut totals = Counts::default();
        let mut add = |range: Range<usize>, count: &mut Count| {
            uses.fill(0);
            for &reference in &self.accesses[range] {
                uses[reference as usize] += 1;
            }
            for (reference, &uses) in self.references.iter().zip(&uses) {
                count.accesses += uses * reference.touches;
                count.bytes += uses * reference.bytes;
            }
        };
        add(0..self.accesses.len(), &mut totals.run);
        for range in &self.generate {
            add(range.clone(), &mut totals.generate);
        }
        totals
    }

    /// Distinct bytes that are used at least once, each item counted whole.
    pub fn footprint_bytes(&self) -> u64 {
        let mut used = vec![false; self.item_bytes.len()];
        for &reference in self.accesses.iter() {
            used[self.references[reference as usize].item as usize] = true;
        }
        let items = self.item_bytes.iter().zip(&used);
        items
            .filter(|(_, used)| **used)
            .map(|(bytes, _)| bytes)
            .sum()
    }

    /// Calls `f(position, scope)` range by range, so that hot loops need no test
    /// of the scope for each access.
    pub fn for_each_stretch(&self, mut f: impl FnMut(Range<usize>, Scope)) {
        let mut at = 0;
        for range in &self.generate {
            if at < range.start {
                f(at..range.start, Scope::Run);
            }
            f(range.clone(), Scope::Generate);
            at = range.end;
        }
        if at < self.accesses.len() {
            f(at..self.accesses.len(), Scope::Run);
        }
    }
}
