//! Bytes per second, measured in slices of time.
//!
//! A mean hides a stall; so time is cut into slices and the median slice is the
//! figure, with the other slices as its spread.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Rates of several slices of one measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rates {
    /// Number of slices behind the other figures.
    pub slices: u32,
    pub lowest_bytes_per_second: u64,
    pub lower_quartile_bytes_per_second: u64,
    pub median_bytes_per_second: u64,
    pub upper_quartile_bytes_per_second: u64,
    pub highest_bytes_per_second: u64,
}

impl Rates {
    /// `None` when there is no slice.
    pub fn of(mut rates: Vec<u64>) -> Option<Rates> {
        rates.sort_unstable();
        // Nearest rank: every figure is one that was measured.
        let last = rates.len().checked_sub(1)?;
        let at = |quarter: usize| rates[(last * quarter + 2) / 4];
        Some(Rates {
            slices: rates.len() as u32,
            lowest_bytes_per_second: at(0),
            lower_quartile_bytes_per_second: at(1),
            median_bytes_per_second: at(2),
            upper_quartile_bytes_per_second: at(3),
            highest_bytes_per_second: at(4),
        })
    }
}

/// Bytes over a time; saturates, and treats no time as a nanosecond.
pub(crate) fn bytes_per_second(bytes: u64, time: Duration) -> u64 {
    let nanos = time.as_nanos().max(1);
    u64::try_from(u128::from(bytes) * 1_000_000_000 / nanos).unwrap_or(u64::MAX)
}

/// Cuts a stream of completed reads into slices.
///
/// The first `warm_up` completions are counted as bytes but belong to no slice:
/// until every request of the queue has completed once, the queue is filling.
pub(crate) struct Meter {
    slice: Duration,
    warm_up: u32,
    started: Instant,
    /// When the slices began; `None` while warming up.
    counting_since: Option<Instant>,
    slice_since: Instant,
    slice_bytes: u64,
    rates: Vec<u64>,
    total_bytes: u64,
    last: Instant,
}

impl Meter {
    pub fn start(now: Instant, slice: Duration, warm_up: u32) -> Meter {
        Meter {
            slice,
            warm_up,
            started: now,
            counting_since: (warm_up == 0).then_some(now),
            slice_since: now,
            slice_bytes: 0,
            rates: Vec::new(),
            total_bytes: 0,
            last: now,
        }
    }

    /// Moves the start; only before the first read completed.
    pub fn restart(&mut self, now: Instant) {
        if self.total_bytes == 0 {
            *self = Meter::start(now, self.slice, self.warm_up);
        }
    }

    /// A read completed.
    pub fn add(&mut self, bytes: u64, now: Instant) {
        self.total_bytes += bytes;
        self.last = now;
        if self.counting_since.is_none() {
            self.warm_up -= 1;
            if self.warm_up == 0 {
                self.counting_since = Some(now);
                self.slice_since = now;
            }
            return;
        }
        self.slice_bytes += bytes;
        let time = now.saturating_duration_since(self.slice_since);
        if time >= self.slice {
            self.rates.push(bytes_per_second(self.slice_bytes, time));
            self.slice_since = now;
            self.slice_bytes = 0;
        }
    }

    /// Whether slices have been counted for so long. A disk so slow that warming
    /// up takes all the time is stopped too, at twice the time.
    pub fn has_counted_for(&self, time: Duration, now: Instant) -> bool {
        self.counting_since
            .is_some_and(|since| now.saturating_duration_since(since) >= time)
            || now.saturating_duration_since(self.started) >= time * 2
    }

    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// From the start to the last completion.
    pub fn elapsed(&self) -> Duration {
        self.last.saturating_duration_since(self.started)
    }

    /// The slices; where none was completed, the whole time as one.
    pub fn rates(self) -> Rates {
        let whole = bytes_per_second(self.total_bytes, self.elapsed());
        Rates::of(self.rates)
            .or_else(|| Rates::of(vec![whole]))
            .expect("one slice was given")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_one_that_was_measured() {
        let check = |rates: Vec<u64>, expect: [u64; 5]| {
            let found = Rates::of(rates).unwrap();
            let figures = [
                found.lowest_bytes_per_second,
                found.lower_quartile_bytes_per_second,
                found.median_bytes_per_second,
                found.upper_quartile_bytes_per_second,
                found.highest_bytes_per_second,
            ];
            assert_eq!(figures, expect);
        };
        check(vec![7], [7; 5]);
        check(vec![5, 1, 4, 2, 3], [1, 2, 3, 4, 5]);
        check(vec![9, 1], [1, 1, 9, 9, 9]);
        assert_eq!(Rates::of(Vec::new()), None);
    }

    #[test]
    fn warm_up_and_the_unfinished_slice_are_in_no_rate() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut meter = Meter::start(start, Duration::from_millis(100), 2);
        meter.add(1, at(500));
        meter.add(1, at(1000));
        meter.add(50, at(1050));
        meter.add(50, at(1100));
        assert!(!meter.has_counted_for(Duration::from_secs(1), at(1100)));
        meter.add(400, at(1300));
        meter.add(9999, at(1301));
        assert!(meter.has_counted_for(Duration::from_millis(301), at(1301)));
        assert_eq!(meter.total_bytes(), 10_501);
        let rates = meter.rates();
        assert_eq!(rates.slices, 2);
        assert_eq!(rates.lowest_bytes_per_second, 1000);
        assert_eq!(rates.highest_bytes_per_second, 2000);
    }

    #[test]
    fn a_disk_that_never_warms_up_is_stopped_at_twice_the_time() {
        let start = Instant::now();
        let mut meter = Meter::start(start, Duration::from_millis(100), 1000);
        meter.add(300, start + Duration::from_millis(300));
        let time = Duration::from_millis(150);
        assert!(!meter.has_counted_for(time, start + Duration::from_millis(299)));
        assert!(meter.has_counted_for(time, start + Duration::from_millis(300)));
        assert_eq!(meter.rates().median_bytes_per_second, 1000);
    }

    #[test]
    fn what_was_prepared_before_the_first_request_is_not_measured() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut meter = Meter::start(start, Duration::from_millis(100), 1);
        meter.restart(at(5000));
        meter.add(10, at(5010));
        meter.restart(at(9000));
        assert_eq!(meter.elapsed(), Duration::from_millis(10));
        assert!(!meter.has_counted_for(Duration::from_millis(50), at(5010)));
    }

    #[test]
    fn no_time_and_huge_counts_do_not_overflow() {
        assert_eq!(bytes_per_second(5, Duration::ZERO), 5_000_000_000);
        assert_eq!(bytes_per_second(u64::MAX, Duration::ZERO), u64::MAX);
    }
}
