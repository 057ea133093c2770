//! Unions of intervals of time.

/// The moments that at least one of several intervals covers, as disjoint
/// intervals from `begin` up to, not including, `end`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Union {
    /// Begin, end, and the nanos covered before begin.
    parts: Vec<(u64, u64, u64)>,
}

impl Union {
    /// In any order; those that end before they begin are none.
    pub fn of(intervals: impl IntoIterator<Item = (u64, u64)>) -> Union {
        let mut list: Vec<(u64, u64)> = intervals
            .into_iter()
            .filter(|(begin, end)| begin < end)
            .collect();
        list.sort_unstable();
        let mut parts: Vec<(u64, u64, u64)> = Vec::new();
        for (begin, end) in list {
            match parts.last_mut() {
                Some(last) if begin <= last.1 => last.1 = last.1.max(end),
                last => {
                    let before = last.map_or(0, |(begin, end, before)| *before + (*end - *begin));
                    parts.push((begin, end, before));
                }
            }
        }
        Union { parts }
    }

    pub fn nanos(&self) -> u64 {
        self.before(u64::MAX)
    }

    /// Nanos of the union within an interval.
    pub fn within(&self, begin: u64, end: u64) -> u64 {
        if begin >= end {
            return 0;
        }
        self.before(end) - self.before(begin)
    }

    /// Begin and end of each of the disjoint intervals.
    pub fn parts(&self) -> impl Iterator<Item = (u64, u64)> {
        self.parts.iter().map(|&(begin, end, _)| (begin, end))
    }

    pub fn covers(&self, moment: u64) -> bool {
        self.within(moment, moment.saturating_add(1)) > 0
    }

    /// Nanos that both unions cover.
    pub fn common(&self, other: &Union) -> u64 {
        let parts = other.parts.iter();
        parts.map(|&(begin, end, _)| self.within(begin, end)).sum()
    }

    fn before(&self, moment: u64) -> u64 {
        let behind = self.parts.partition_point(|(begin, ..)| *begin < moment);
        match behind.checked_sub(1).map(|last| self.parts[last]) {
            Some((begin, end, before)) => before + (end.min(moment) - begin),
            None => 0,
        }
    }
}
