//! How long at least one of several things was under way.

/// From start to end, in nanoseconds since the session began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    pub start: u64,
    pub end: u64,
}

impl Span {
    /// None where there is no such time.
    pub fn of(start: Option<i64>, end: Option<i64>) -> Option<Span> {
        let (start, end) = (u64::try_from(start?).ok()?, u64::try_from(end?).ok()?);
        (start <= end).then_some(Span { start, end })
    }

    pub fn nanos(self) -> u64 {
        self.end - self.start
    }
}

#[derive(Clone, Debug, Default)]
pub struct Timeline {
    spans: Vec<Span>,
}

/// All spans, overlaps counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Joined {
    pub nanos: u64,
    /// Times between in which there was nothing.
    pub gaps: u64,
    pub first_start: u64,
    pub last_end: u64,
}

impl Timeline {
    pub fn add(&mut self, span: Span) {
        self.spans.push(span);
    }

    /// Only what lies between two times.
    pub fn clipped(&self, from: u64, to: u64) -> Timeline {
        let inside = |span: &Span| {
            let (start, end) = (span.start.max(from), span.end.min(to));
            (start < end).then_some(Span { start, end })
        };
        Timeline {
            spans: self.spans.iter().filter_map(inside).collect(),
        }
    }

    pub fn joined(mut self) -> Joined {
        self.spans.sort_unstable();
        let mut spans = self.spans.into_iter();
        let Some(first) = spans.next() else {
            return Joined::default();
        };
        let mut joined = Joined {
            nanos: first.nanos(),
            gaps: 0,
            first_start: first.start,
            last_end: first.end,
        };
        for span in spans {
            joined.gaps += u64::from(span.start > joined.last_end);
            let begin = span.start.max(joined.last_end);
            joined.nanos += span.end.saturating_sub(begin);
            joined.last_end = joined.last_end.max(span.end);
        }
        joined
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn joined_spans_are_the_moments_that_any_of_them_has(
            spans in proptest::collection::vec((0u64..200, 0u64..30), 0..20),
            from in 0u64..100,
            length in 0u64..150,
        ) {
            let mut timeline = Timeline::default();
            for (start, length) in &spans {
                timeline.add(Span { start: *start, end: start + length });
            }
            let covered = |moment: u64| spans.iter().any(|(start, length)| (*start..start + length).contains(&moment));
            let moments = (0..250).filter(|moment| covered(*moment)).count() as u64;
            prop_assert_eq!(timeline.clone().joined().nanos, moments);
            let to = from + length;
            let inside = (from..to).filter(|moment| covered(*moment)).count() as u64;
            prop_assert_eq!(timeline.clipped(from, to).joined().nanos, inside);
        }
    }
}
