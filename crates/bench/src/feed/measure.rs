//! Figures: of one run, and of all runs of a mode in a budget. Pure.

use std::collections::BTreeMap;

use launch::report::Report;
use plan::Speed;
use serde::Serialize;

use super::routing::Simulated;

/// What a run's figures are measured against.
#[derive(Clone, Copy, Debug)]
pub struct Ceilings {
    pub disk_bytes_per_second: f64,
    /// With everything in memory, where that was measured.
    pub compute_seconds_per_token: Option<f64>,
    /// Weights that memory has no room for, of a dense model. Of a mixture the bytes
    /// that the run read take their place.
    pub missing_bytes: Option<u64>,
}

impl Ceilings {
    /// Seconds that a token takes at least: reading overlaps computing.
    pub fn seconds_per_token(&self, bytes_read_per_token: f64) -> Option<f64> {
        let missing = self
            .missing_bytes
            .map_or(bytes_read_per_token, |m| m as f64);
        let reading = missing / self.disk_bytes_per_second;
        let seconds = reading.max(self.compute_seconds_per_token.unwrap_or(0.0));
        (seconds > 0.0).then_some(seconds)
    }
}

/// One run that ended well.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    pub tokens_per_second: f64,
    pub bytes_read_per_token: f64,
    pub disk_bytes_per_second: f64,
    pub first_token_seconds: Option<f64>,
    pub peak_bytes: Option<u64>,
    pub oom_kills: u64,
    pub hit_rate: Option<f64>,
    pub identical: bool,
    pub disk_ceiling_bytes_per_second: f64,
    pub compute_seconds_per_token: Option<f64>,
    pub ceiling_tokens_per_second: Option<f64>,
    pub ceiling_share: Option<f64>,
    /// With the disk as it was around the run.
    pub predicted_tokens_per_second: Option<f64>,
    pub predicted_low: Option<f64>,
    pub predicted_high: Option<f64>,
    pub is_covered: Option<bool>,
    #[serde(skip)]
    pub is_over_limit: bool,
}

impl Figures {
    /// With what was predicted for the run.
    pub fn predicted(self, speed: Option<Speed>) -> Figures {
        Figures {
            predicted_tokens_per_second: speed.map(|speed| speed.usual),
            predicted_low: speed.map(|speed| speed.low),
            predicted_high: speed.map(|speed| speed.high),
            is_covered: speed.map(|speed| speed.covers(self.tokens_per_second)),
            ..self
        }
    }

    fn prediction_error(&self) -> Option<f64> {
        let predicted = self.predicted_tokens_per_second?;
        Some(predicted / self.tokens_per_second - 1.0)
    }

    /// None of a run with fewer than two tokens.
    pub fn of(
        report: &Report,
        reference: &Report,
        ceilings: &Ceilings,
        skipped: usize,
    ) -> Option<Figures> {
        let skipped = counted_from(report.token_seconds.len(), skipped);
        let seconds = report.token_seconds.get(skipped..)?;
        let bytes = report.token_disk_bytes.get(skipped..)?;
        let seconds_per_token = median(seconds)?;
        let all_bytes = bytes.iter().sum::<u64>() as f64;
        let bytes_read_per_token = all_bytes / bytes.len() as f64;
        let tokens_per_second = seconds_per_token.recip();
        let ceiling = ceilings.seconds_per_token(bytes_read_per_token);
        let over = |peak: u64| report.limit_bytes.is_some_and(|limit| peak > limit);
        Some(Figures {
            tokens_per_second,
            bytes_read_per_token,
            disk_bytes_per_second: all_bytes / seconds.iter().sum::<f64>(),
            first_token_seconds: report.first_token_seconds,
            peak_bytes: report.peak_bytes,
            oom_kills: report.oom_kills.unwrap_or(0),
            hit_rate: report.fed.and_then(|fed| fed.hit_rate()),
            identical: report.tokens == reference.tokens
                && report.logits_hash == reference.logits_hash,
            disk_ceiling_bytes_per_second: ceilings.disk_bytes_per_second,
            compute_seconds_per_token: ceilings.compute_seconds_per_token,
            ceiling_tokens_per_second: ceiling.map(f64::recip),
            ceiling_share: ceiling.map(|seconds| tokens_per_second * seconds),
            predicted_tokens_per_second: None,
            predicted_low: None,
            predicted_high: None,
            is_covered: None,
            is_over_limit: report.peak_bytes.is_some_and(over),
        })
    }
}

/// All runs of a mode in a budget.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    /// By repeat.
    pub runs: BTreeMap<u32, Figures>,
    pub failures: Vec<String>,
    pub oom_kills: u64,
    pub simulated: Vec<Simulated>,
}

impl Cell {
    pub fn values(&self, value: impl Fn(&Figures) -> Option<f64>) -> Vec<f64> {
        self.runs.values().filter_map(value).collect()
    }

    pub fn median(&self, value: impl Fn(&Figures) -> Option<f64>) -> Option<f64> {
        median(&self.values(value))
    }

    /// Median over the repeats that both have.
    pub fn speedup_over(&self, other: &Cell) -> Option<f64> {
        let ratios = self.runs.iter().filter_map(|(repeat, run)| {
            let other = other.runs.get(repeat)?;
            Some(run.tokens_per_second / other.tokens_per_second)
        });
        median(&ratios.collect::<Vec<f64>>())
    }
}

/// A mode in a budget, as it is reported: medians over the repeats.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub memory: String,
    pub limit_bytes: u64,
    /// Of the limit, what is left for weights.
    pub weights_memory_bytes: u64,
    pub mode: String,
    pub tokens_per_second: Option<f64>,
    pub tokens_per_second_least: Option<f64>,
    pub tokens_per_second_most: Option<f64>,
    /// Over stock, in the same repeats.
    pub speedup: Option<f64>,
    pub speedup_over_best: Option<f64>,
    pub ceiling_tokens_per_second: Option<f64>,
    pub ceiling_share: Option<f64>,
    pub bytes_read_per_token: Option<f64>,
    pub disk_bytes_per_second: Option<f64>,
    pub disk_ceiling_bytes_per_second: Option<f64>,
    /// The most of all repeats.
    pub peak_bytes: Option<u64>,
    pub oom_kills: u64,
    pub first_token_seconds: Option<f64>,
    pub first_token_not_later: Option<bool>,
    pub predicted_before_tokens_per_second: Option<f64>,
    pub predicted_tokens_per_second: Option<f64>,
    pub predicted_low: Option<f64>,
    pub predicted_high: Option<f64>,
    pub is_covered: Option<bool>,
    /// Predicted over measured, less one.
    pub prediction_error: Option<f64>,
    pub hit_rate: Option<f64>,
    pub simulated: Option<Simulated>,
    /// Points that the best policy without knowledge of the future is ahead.
    pub hit_rate_gap: Option<f64>,
    /// Tokens and logits, of all runs.
    pub identical: bool,
    pub failures: Vec<String>,
    pub runs: Vec<Figures>,
}

/// What a row needs besides its runs.
#[derive(Default)]
pub struct About<'a> {
    pub memory: String,
    pub limit_bytes: u64,
    pub weights_memory_bytes: u64,
    pub mode: String,
    pub stock: Option<&'a Cell>,
    pub best: Option<&'a Cell>,
    pub predicted_before: Option<f64>,
}

impl Row {
    pub fn new(cell: &Cell, about: About<'_>) -> Row {
        let speeds = cell.values(|run| Some(run.tokens_per_second));
        let first_token = cell.median(|run| run.first_token_seconds);
        let stocks_first = about
            .stock
            .and_then(|s| s.median(|r| r.first_token_seconds));
        let hit_rate = cell.median(|run| run.hit_rate);
        let simulated = Simulated::median(&cell.simulated);
        let measured = median(&speeds);
        let predicted = Speed::of(
            cell.median(|run| run.predicted_tokens_per_second),
            cell.median(|run| run.predicted_low),
            cell.median(|run| run.predicted_high),
        );
        let in_runs: u64 = cell.runs.values().map(|run| run.oom_kills).sum();
        Row {
            memory: about.memory,
            limit_bytes: about.limit_bytes,
            weights_memory_bytes: about.weights_memory_bytes,
            mode: about.mode,
            tokens_per_second: measured,
            tokens_per_second_least: speeds.iter().copied().reduce(f64::min),
            tokens_per_second_most: speeds.iter().copied().reduce(f64::max),
            speedup: about.stock.and_then(|stock| cell.speedup_over(stock)),
            speedup_over_best: about.best.and_then(|best| cell.speedup_over(best)),
            ceiling_tokens_per_second: cell.median(|run| run.ceiling_tokens_per_second),
            ceiling_share: cell.median(|run| run.ceiling_share),
            bytes_read_per_token: cell.median(|run| Some(run.bytes_read_per_token)),
            disk_bytes_per_second: cell.median(|run| Some(run.disk_bytes_per_second)),
            disk_ceiling_bytes_per_second: cell
                .median(|run| Some(run.disk_ceiling_bytes_per_second)),
            peak_bytes: cell.runs.values().filter_map(|run| run.peak_bytes).max(),
            oom_kills: cell.oom_kills + in_runs,
            first_token_seconds: first_token,
            first_token_not_later: first_token.zip(stocks_first).map(|(ours, his)| ours <= his),
            predicted_before_tokens_per_second: about.predicted_before,
            predicted_tokens_per_second: predicted.map(|speed| speed.usual),
            predicted_low: predicted.map(|speed| speed.low),
            predicted_high: predicted.map(|speed| speed.high),
            is_covered: predicted.zip(measured).map(|(speed, m)| speed.covers(m)),
            prediction_error: predicted.zip(measured).map(|(p, m)| p.usual / m - 1.0),
            hit_rate,
            hit_rate_gap: hit_rate
                .zip(simulated)
                .map(|(ours, simulated)| (simulated.best_online() - ours) * 100.0),
            simulated,
            identical: !cell.runs.is_empty() && cell.runs.values().all(|run| run.identical),
            failures: cell.failures.clone(),
            runs: cell.runs.values().cloned().collect(),
        }
    }

    /// Whether nothing went wrong.
    pub fn is_good(&self) -> bool {
        self.identical
            && self.failures.is_empty()
            && self.oom_kills == 0
            && !self.runs.iter().any(|run| run.is_over_limit)
    }
}

/// How good the predictions of all runs were.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Predictions {
    /// Runs that were predicted.
    pub runs: usize,
    /// Of them, those inside their interval.
    pub covered: usize,
    /// Predicted over measured, less one: the median of its size, and the furthest off.
    pub median_error: f64,
    pub worst_error: f64,
}

impl Predictions {
    /// None where nothing was predicted.
    pub fn of(rows: &[Row]) -> Option<Predictions> {
        let runs = || rows.iter().flat_map(|row| &row.runs);
        let errors: Vec<f64> = runs().filter_map(Figures::prediction_error).collect();
        let sizes: Vec<f64> = errors.iter().map(|error| error.abs()).collect();
        let worst = errors.iter().copied();
        Some(Predictions {
            runs: errors.len(),
            covered: runs().filter(|run| run.is_covered == Some(true)).count(),
            median_error: median(&sizes)?,
            worst_error: worst.max_by(|a, b| a.abs().total_cmp(&b.abs()))?,
        })
    }

    /// For people.
    pub fn sentence(&self) -> String {
        format!(
            "{} of {} measurements inside their interval; error median {:.0} %, worst {:+.0} %",
            self.covered,
            self.runs,
            self.median_error * 100.0,
            self.worst_error * 100.0
        )
    }
}

/// The first of so many tokens that counts, where so many should be skipped: of short runs half of
/// the tokens are left.
pub fn counted_from(tokens: usize, skipped: usize) -> usize {
    skipped.min(tokens / 2)
}

/// The middle one, or between the two in the middle.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (sorted.len().checked_sub(1)? / 2, sorted.len() / 2);
    Some((sorted[low] + sorted[high]) / 2.0)
}

/// Tokens at the begin that do not count: reading ahead and caches are not in their
/// stride yet.
pub fn skipped_tokens(tokens: u32, has_experts: bool) -> usize {
    match has_experts {
        true => (tokens / 3).max(2) as usize,
        false => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(token_seconds: &[f64], token_disk_bytes: &[u64]) -> Report {
        serde_json::from_value(serde_json::json!({
            "model": "m", "strategies": "all", "budget_bytes": 100, "prompt_tokens": 3,
            "generated_tokens": token_seconds.len() + 1, "load_seconds": 0.1,
            "first_token_seconds": 0.5, "token_seconds": token_seconds,
            "token_disk_bytes": token_disk_bytes, "tokens_per_second": 1.0,
            "bytes_read_per_token": 1.0, "peak_bytes": 90, "limit_bytes": 100,
            "oom_kills": 0, "tokens": [1, 2], "logits_hash": "00", "shares": null,
            "fed": null, "predicted_tokens_per_second": null,
        }))
        .unwrap()
    }

    fn ceilings(missing_bytes: Option<u64>, compute: Option<f64>) -> Ceilings {
        Ceilings {
            disk_bytes_per_second: 100.0,
            compute_seconds_per_token: compute,
            missing_bytes,
        }
    }

    #[test]
    fn the_middle_of_values() {
        let check = |values: &[f64], middle| assert_eq!(median(values), middle, "{values:?}");
        check(&[], None);
        check(&[3.0], Some(3.0));
        check(&[4.0, 1.0], Some(2.5));
        check(&[9.0, 1.0, 2.0], Some(2.0));
    }

    #[test]
    fn the_slower_of_disk_and_computing_is_the_ceiling() {
        let check = |missing, compute, read, seconds| {
            let found = ceilings(missing, compute).seconds_per_token(read);
            assert_eq!(found, seconds, "{missing:?} {compute:?} {read}");
        };
        // Dense: what is read does not matter, only what has no room.
        check(Some(200), Some(1.0), 999.0, Some(2.0));
        check(Some(200), Some(5.0), 999.0, Some(5.0));
        check(Some(200), None, 999.0, Some(2.0));
        check(Some(0), None, 999.0, None);
        // A mixture: what was read.
        check(None, Some(1.0), 300.0, Some(3.0));
        check(None, Some(1.0), 0.0, Some(1.0));
    }

    #[test]
    fn figures_leave_the_first_tokens_out() {
        let run = report(&[9.0, 9.0, 4.0, 4.0, 5.0], &[900, 900, 100, 200, 300]);
        let figures = Figures::of(&run, &run, &ceilings(Some(200), Some(1.0)), 2).unwrap();
        assert_eq!(figures.tokens_per_second, 0.25);
        assert_eq!(figures.bytes_read_per_token, 200.0);
        assert_eq!(figures.disk_bytes_per_second, 600.0 / 13.0);
        assert_eq!(figures.ceiling_share, Some(0.5));
        assert!(figures.identical && !figures.is_over_limit);
        let short = Figures::of(
            &report(&[4.0, 2.0], &[8, 6]),
            &run,
            &ceilings(None, None),
            2,
        );
        assert_eq!(short.unwrap().tokens_per_second, 0.5);
        assert!(Figures::of(&report(&[], &[]), &run, &ceilings(None, None), 2).is_none());
    }

    #[test]
    fn other_tokens_logits_or_memory_are_noticed() {
        let good = report(&[1.0, 1.0], &[1, 1]);
        let of = |run: &Report| {
            let figures = Figures::of(run, &good, &ceilings(None, None), 0).unwrap();
            let cell = Cell {
                runs: [(0, figures)].into(),
                ..Cell::default()
            };
            Row::new(&cell, About::default()).is_good()
        };
        assert!(of(&good));
        let mut run = good.clone();
        run.tokens = vec![1, 3];
        assert!(!of(&run));
        run = good.clone();
        run.logits_hash = "01".into();
        assert!(!of(&run));
        run = good.clone();
        run.peak_bytes = Some(101);
        assert!(!of(&run));
        run = good.clone();
        run.oom_kills = Some(1);
        assert!(!of(&run));
    }

    #[test]
    fn speedups_compare_runs_of_one_repeat() {
        let cell = |speeds: &[(u32, f64)]| Cell {
            runs: speeds
                .iter()
                .map(|&(repeat, speed)| {
                    let run = report(&[speed.recip()], &[1]);
                    let figures = Figures::of(&run, &run, &ceilings(None, None), 0);
                    (repeat, figures.unwrap())
                })
                .collect(),
            ..Cell::default()
        };
        let stock = cell(&[(0, 1.0), (1, 2.0), (3, 1.0)]);
        let fed = cell(&[(0, 2.0), (1, 8.0), (2, 99.0)]);
        assert_eq!(fed.speedup_over(&stock), Some(3.0));
        assert_eq!(fed.speedup_over(&Cell::default()), None);
    }

    #[test]
    fn predictions_are_held_against_every_run() {
        let predicted = |measured: f64, speed: Option<Speed>| {
            let run = report(&[measured.recip()], &[1]);
            let figures = Figures::of(&run, &run, &ceilings(None, None), 0).unwrap();
            figures.predicted(speed)
        };
        let speed = |usual| {
            Some(Speed {
                usual,
                low: usual * 0.75,
                high: usual * 1.25,
            })
        };
        let cell = Cell {
            runs: [
                (0, predicted(1.0, speed(1.125))),
                (1, predicted(1.0, speed(0.5))),
                (2, predicted(1.0, speed(1.25))),
            ]
            .into(),
            ..Cell::default()
        };
        let row = Row::new(&cell, About::default());
        assert_eq!(row.predicted_tokens_per_second, Some(1.125));
        assert_eq!(row.is_covered, Some(true));
        let found = Predictions::of(std::slice::from_ref(&row)).unwrap();
        assert_eq!(
            found.sentence(),
            "2 of 3 measurements inside their interval; error median 25 %, worst -50 %"
        );
        let unpredicted = Cell {
            runs: [(0, predicted(1.0, None))].into(),
            ..Cell::default()
        };
        assert_eq!(
            Predictions::of(&[Row::new(&unpredicted, About::default())]),
            None
        );
    }

    #[test]
    fn caches_of_experts_are_given_more_time_to_warm_up() {
        assert_eq!(skipped_tokens(10, false), 2);
        assert_eq!(skipped_tokens(16, true), 5);
        assert_eq!(skipped_tokens(4, true), 2);
    }
}
