//! Calls added up to the numbers that rules ask for.

use rules::{Metrics, Subject, Unit};

use crate::calls::{CATEGORIES, Category, category};

#[derive(Clone, Copy, Default)]
struct Sum {
    calls: u64,
    nanos: u64,
}

#[derive(Default)]
pub struct Tally {
    by_category: [Sum; CATEGORIES.len()],
    timed_calls: u64,
    errors: u64,
    again: u64,
    read_calls: u64,
    read_bytes: u64,
}

impl Tally {
    /// A call with what it returned; the time only with `-T`.
    pub fn add(&mut self, name: &str, result: &str, nanos: Option<u64>) {
        let of = category(name);
        let place = CATEGORIES.iter().position(|known| *known == of);
        if let Some(sum) = place.and_then(|place| self.by_category.get_mut(place)) {
            sum.calls += 1;
            sum.nanos = sum.nanos.saturating_add(nanos.unwrap_or(0));
        }
        self.timed_calls += u64::from(nanos.is_some());
        if let Some(error) = result.strip_prefix("-1 ") {
            self.errors += 1;
            self.again += u64::from(error.starts_with("EAGAIN"));
        }
        if of == Category::FileRead
            && (name.contains("read") && name != "readahead")
            && let Ok(bytes) = result.parse::<u64>()
        {
            self.read_calls += 1;
            self.read_bytes = self.read_bytes.saturating_add(bytes);
        }
    }

    pub fn calls(&self) -> u64 {
        self.by_category.iter().map(|sum| sum.calls).sum()
    }

    pub fn has_times(&self) -> bool {
        self.timed_calls > 0
    }

    /// `wall_nanos`: from the first line to the end of the last call. `thread_nanos`: the same
    /// of each thread, added up.
    pub fn subject(
        &self,
        file: &str,
        wall_nanos: Option<u64>,
        thread_nanos: Option<u64>,
    ) -> Subject {
        let mut metrics = Metrics::default();
        let source = Some(file);
        let calls = self.calls() as f64;
        let mut number = |name: &str, unit, value: f64| metrics.number(name, unit, value, source);
        number("calls.total", Unit::Count, calls);
        if let Some(wall) = wall_nanos.filter(|nanos| *nanos > 0) {
            number("calls.per_second", Unit::Count, calls / wall as f64 * 1e9);
            number("calls.wall_nanos", Unit::Nanos, wall as f64);
        }
        let total = |of: &[Sum]| of.iter().fold(0u64, |sum, of| sum.saturating_add(of.nanos));
        let in_calls = total(&self.by_category) as f64;
        // Several threads are in calls at once, so that shares are of the time of all threads.
        let time = thread_nanos.filter(|nanos| *nanos > 0 && self.has_times());
        if let Some(time) = time {
            number(
                "calls.time_share",
                Unit::Share,
                (in_calls / time as f64).min(1.0),
            );
        }
        for (of, sum) in CATEGORIES.iter().zip(self.by_category) {
            let (name, nanos) = (of.name(), sum.nanos as f64);
            number(
                &format!("calls.{name}.count"),
                Unit::Count,
                sum.calls as f64,
            );
            if let Some(time) = time {
                let share = (nanos / time as f64).min(1.0);
                number(&format!("calls.{name}.time_share"), Unit::Share, share);
            }
            if in_calls > 0.0 {
                let share = nanos / in_calls;
                number(&format!("calls.{name}.call_time_share"), Unit::Share, share);
            }
        }
        if self.read_calls > 0 {
            let mean = self.read_bytes as f64 / self.read_calls as f64;
            number("calls.mean_read_bytes", Unit::Bytes, mean);
        }
        if calls > 0.0 {
            number(
                "calls.errors_share",
                Unit::Share,
                self.errors as f64 / calls,
            );
            number("calls.eagain_share", Unit::Share, self.again as f64 / calls);
        }
        Subject {
            kind: "calls".to_owned(),
            name: file.to_owned(),
            metrics,
        }
    }
}
