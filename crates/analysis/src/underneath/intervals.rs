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

    /// What both cover.
    pub fn and(&self, other: &Union) -> Union {
        let (mut a, mut b) = (self.parts().peekable(), other.parts().peekable());
        let mut common = Vec::new();
        while let (Some(&left), Some(&right)) = (a.peek(), b.peek()) {
            common.push((left.0.max(right.0), left.1.min(right.1)));
            match left.1 < right.1 {
                true => a.next(),
                false => b.next(),
            };
        }
        Union::of(common)
    }

    /// What the other does not cover.
    pub fn without(&self, other: &Union) -> Union {
        let ends = [(0, 0)].into_iter().chain(other.parts());
        let begins = other.parts().map(|(begin, _)| begin).chain([u64::MAX]);
        let between = Union::of(ends.map(|(_, end)| end).zip(begins));
        self.and(&between)
    }

    fn before(&self, moment: u64) -> u64 {
        let behind = self.parts.partition_point(|(begin, ..)| *begin < moment);
        match behind.checked_sub(1).map(|last| self.parts[last]) {
            Some((begin, end, before)) => before + (end.min(moment) - begin),
            None => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_unions_are_those_of_their_moments() {
        let mut random = 11u64;
        let mut next = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        let covered = |union: &Union| -> Vec<bool> { (0..80).map(|at| union.covers(at)).collect() };
        for _ in 0..300 {
            let mut some = || {
                let all: Vec<(u64, u64)> = (0..next(8))
                    .map(|_| {
                        let begin = next(60);
                        (begin, begin + next(15))
                    })
                    .collect();
                Union::of(all)
            };
            let (a, b) = (some(), some());
            let naive = |keep: fn(bool, bool) -> bool| -> Vec<bool> {
                let both = covered(&a).into_iter().zip(covered(&b));
                both.map(|(a, b)| keep(a, b)).collect()
            };
            assert_eq!(covered(&a.and(&b)), naive(|a, b| a && b), "{a:?} {b:?}");
            assert_eq!(
                covered(&a.without(&b)),
                naive(|a, b| a && !b),
                "{a:?} {b:?}"
            );
            assert_eq!(a.and(&b).nanos() + a.without(&b).nanos(), a.nanos());
        }
    }
}
