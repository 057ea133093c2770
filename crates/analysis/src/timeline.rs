//! A series of bounded length, however long the run.

use serde::{Deserialize, Serialize};

/// Most points of a series that a result carries.
pub const MAX_POINTS: usize = 1024;

/// Every `every`-th point of a series.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline<T> {
    pub every: u64,
    pub points: Vec<T>,
    /// Points offered.
    pub seen: u64,
}

impl<T> Default for Timeline<T> {
    fn default() -> Timeline<T> {
        Timeline {
            every: 1,
            points: Vec::new(),
            seen: 0,
        }
    }
}

impl<T> Timeline<T> {
    /// Keeps the point if its turn has come. When full, every second point goes,
    /// so that what is left is evenly spaced.
    pub fn push(&mut self, point: impl FnOnce() -> T) {
        if self.seen.is_multiple_of(self.every) {
            if self.points.len() == MAX_POINTS {
                let mut at = 0;
                self.points.retain(|_| {
                    at += 1;
                    at % 2 == 1
                });
                self.every *= 2;
            }
            // The capacity is even, so the point after the last is kept still.
            self.points.push(point());
        }
        self.seen += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_evenly_spaced_and_bounded() {
        for length in [0u64, 1, 1023, 1024, 1025, 2048, 2049, 5000, 100_000] {
            let mut timeline = Timeline::default();
            (0..length).for_each(|i| timeline.push(|| i));
            assert!(timeline.points.len() <= MAX_POINTS);
            let expected: Vec<u64> = (0..length).step_by(timeline.every as usize).collect();
            assert_eq!(timeline.points, expected, "of {length}");
        }
    }
}
