//! When a burst may begin: so that all of them together cost no more than a share of the time.
//!
//! What a burst costs is measured: attaching and taking off, and how much longer its evaluations
//! took than those outside. The first burst comes soon, because a run without any has no times
//! of kernels at all; from then on each waits until the budget has grown enough for one more.

/// How much of the time measuring kernels may cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GpuTimes {
    /// Kernels have no times.
    Off,
    /// This share.
    Share(f64),
    /// Whatever it costs: every evaluation is measured.
    All,
}

impl Default for GpuTimes {
    fn default() -> GpuTimes {
        GpuTimes::Share(0.01)
    }
}

impl GpuTimes {
    /// As the launcher says it.
    pub fn read() -> GpuTimes {
        match std::env::var(crate::settings::GPU_TIMES).as_deref() {
            Ok("all") => GpuTimes::All,
            Ok("off") => GpuTimes::Off,
            Ok(share) => share.parse().map_or(GpuTimes::default(), GpuTimes::Share),
            Err(_) => GpuTimes::default(),
        }
    }
}

/// Evaluations of one burst.
const CALLS: u32 = 8;
/// Evaluations before the first burst: graphs are recorded by then.
const FIRST_AFTER: u64 = 12;
/// Evaluations whose middle says how long one takes at first, and how much longer a later one may
/// seem to take: a server that waits for a request is no slow evaluation.
const EARLY: usize = 8;
const LONGEST: f64 = 8.0;
/// How much longer evaluations take under CUPTI at most, as a multiple of what they take
/// otherwise: 0.92 was measured. What is more is a pause of the program's.
const MOST_SLOWER: u64 = 2;
/// With every evaluation measured, buffers are emptied after so many.
const CALLS_OF_ALL: u32 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    GoOn,
    Measure { calls: u32 },
}

#[derive(Debug)]
pub struct Governor {
    times: GpuTimes,
    evaluations: u64,
    /// Time so far, without the program's pauses: these pay for no burst.
    busy_nanos: f64,
    last_nanos: u64,
    /// From one evaluation to the next, of the first ones.
    early_nanos: [f64; EARLY],
    /// Mean time from one evaluation to the next, outside bursts.
    usual_nanos: f64,
    spent_nanos: u64,
    /// Of the last burst.
    cost_nanos: u64,
    bursts: u64,
}

impl Governor {
    pub fn new(times: GpuTimes) -> Governor {
        Governor {
            times,
            evaluations: 0,
            busy_nanos: 0.0,
            last_nanos: 0,
            early_nanos: [0.0; EARLY],
            usual_nanos: 0.0,
            spent_nanos: 0,
            cost_nanos: 0,
            bursts: 0,
        }
    }

    /// An evaluation is about to begin, outside of a burst.
    pub fn decide(&mut self, now_nanos: u64) -> Decision {
        if self.last_nanos != 0 {
            self.takes_in(now_nanos.saturating_sub(self.last_nanos) as f64);
        }
        self.last_nanos = now_nanos;
        self.evaluations += 1;
        let share = match self.times {
            GpuTimes::Off => return Decision::GoOn,
            GpuTimes::All => {
                return Decision::Measure {
                    calls: CALLS_OF_ALL,
                };
            }
            GpuTimes::Share(share) => share,
        };
        if self.evaluations <= FIRST_AFTER {
            return Decision::GoOn;
        }
        let allowed = self.busy_nanos * share;
        let fits = self.spent_nanos as f64 + self.cost_nanos as f64 <= allowed;
        match self.bursts == 0 || fits {
            true => Decision::Measure { calls: CALLS },
            false => Decision::GoOn,
        }
    }

    /// From one evaluation to the next it took so long.
    fn takes_in(&mut self, since: f64) {
        let count = usize::try_from(self.evaluations).unwrap_or(usize::MAX);
        let place = count.checked_sub(1);
        if let Some(place) = place.and_then(|at| self.early_nanos.get_mut(at)) {
            *place = since;
            let mut early = self.early_nanos;
            let seen = &mut early[..count];
            seen.sort_unstable_by(f64::total_cmp);
            self.usual_nanos = seen[(count - 1) / 2].max(1.0);
            self.busy_nanos = self.usual_nanos * count as f64;
            return;
        }
        let since = since.min(LONGEST * self.usual_nanos);
        self.busy_nanos += since;
        self.usual_nanos += (since - self.usual_nanos) / count.clamp(1, 64) as f64;
    }

    /// A burst of so many evaluations has ended: what attaching and taking off took, and how
    /// long the evaluations took together.
    pub fn measured(&mut self, calls: u64, overhead_nanos: u64, took_nanos: u64, now_nanos: u64) {
        let usual = (self.usual_nanos * calls as f64) as u64;
        let slower = took_nanos
            .saturating_sub(usual)
            .min(usual.saturating_mul(MOST_SLOWER));
        self.cost_nanos = overhead_nanos.saturating_add(slower);
        self.busy_nanos += usual as f64 + self.cost_nanos as f64;
        self.spent_nanos = self.spent_nanos.saturating_add(self.cost_nanos);
        self.bursts += 1;
        // What comes next is not compared with the burst.
        self.last_nanos = now_nanos;
    }

    /// Measuring is not possible.
    pub fn stop(&mut self) {
        self.times = GpuTimes::Off;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Evaluations of `usual` nanoseconds, those of a burst slower by `slower`, each burst
    /// `overhead` besides; the share of the time that bursts cost, and how many there were.
    fn run(
        times: GpuTimes,
        evaluations: u64,
        usual: u64,
        slower: u64,
        overhead: u64,
    ) -> (f64, u64) {
        let mut governor = Governor::new(times);
        let (mut now, mut cost, mut bursts, mut done) = (1_000, 0, 0, 0);
        while done < evaluations {
            match governor.decide(now) {
                Decision::GoOn => {
                    now += usual;
                    done += 1;
                }
                Decision::Measure { calls } => {
                    let took = u64::from(calls) * (usual + slower);
                    now += took + overhead;
                    cost += u64::from(calls) * slower + overhead;
                    governor.measured(u64::from(calls), overhead, took, now);
                    done += u64::from(calls);
                    bursts += 1;
                }
            }
        }
        (cost as f64 / now as f64, bursts)
    }

    #[test]
    fn bursts_stay_within_their_share() {
        let (cost, bursts) = run(
            GpuTimes::Share(0.01),
            100_000,
            1_300_000,
            400_000,
            32_000_000,
        );
        assert!(cost <= 0.0101 && cost > 0.008, "{cost} of the time");
        assert!(bursts > 10);
    }

    #[test]
    fn a_short_run_has_one_burst() {
        let (_, bursts) = run(GpuTimes::Share(0.01), 100, 1_300_000, 400_000, 32_000_000);
        assert_eq!(bursts, 1);
    }

    #[test]
    fn off_is_off_and_all_is_all() {
        assert_eq!(run(GpuTimes::Off, 1_000, 1_000_000, 0, 1_000_000).1, 0);
        let (_, bursts) = run(GpuTimes::All, 640, 1_000_000, 0, 1_000);
        assert_eq!(bursts, 10);
    }

    /// A governor after so many evaluations of a millisecond, and the time.
    fn after(evaluations: u64) -> (Governor, u64) {
        let mut governor = Governor::new(GpuTimes::Share(0.01));
        let mut now = 1_000;
        for _ in 0..evaluations {
            assert_eq!(governor.decide(now), Decision::GoOn);
            now += 1_000_000;
        }
        (governor, now)
    }

    const HOUR_NANOS: u64 = 3_600_000_000_000;

    #[test]
    fn a_pause_in_the_middle_of_a_burst_does_not_put_the_next_one_off() {
        let (mut governor, mut now) = after(FIRST_AFTER);
        assert_eq!(governor.decide(now), Decision::Measure { calls: CALLS });
        let took = 8 * 1_500_000 + HOUR_NANOS;
        now += took;
        governor.measured(8, 30_000_000, took, now);
        assert!(governor.cost_nanos <= 30_000_000 + 16_000_000);
        // Nor is it time that pays for many bursts at once.
        let mut until_next = 0;
        while governor.decide(now) == Decision::GoOn {
            now += 1_000_000;
            until_next += 1;
        }
        assert!((8_000..10_000).contains(&until_next), "{until_next}");
    }

    #[test]
    fn a_pause_between_evaluations_is_no_slow_evaluation() {
        let (mut governor, now) = after(FIRST_AFTER);
        governor.decide(now + HOUR_NANOS);
        let usual = governor.usual_nanos;
        assert!((1e6..2e6).contains(&usual), "{usual}");
    }

    #[test]
    fn nor_is_the_wait_of_a_server_that_has_warmed_up() {
        let mut governor = Governor::new(GpuTimes::Share(0.01));
        let mut now = 1_000;
        for number in 0..12 {
            governor.decide(now);
            now += if number == 1 { HOUR_NANOS } else { 1_000_000 };
        }
        assert_eq!(governor.usual_nanos, 1e6);
        assert_eq!(governor.busy_nanos, 11e6);
    }

    #[test]
    fn what_cannot_measure_is_not_asked_again() {
        let mut governor = Governor::new(GpuTimes::All);
        governor.stop();
        assert_eq!(governor.decide(1), Decision::GoOn);
    }
}
