//! Calendar time in UTC, without a time-zone library: a run needs its start and
//! its end, and a name.

use std::time::{SystemTime, UNIX_EPOCH};

/// The two clocks at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Nanoseconds since 1970, UTC.
    pub unix_nanos: u64,
    /// Nanoseconds of CLOCK_MONOTONIC, the clock of the log.
    pub monotonic_nanos: u64,
}

impl Moment {
    pub fn now() -> Moment {
        let before = trace::clock::now_nanos();
        let unix = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let after = trace::clock::now_nanos();
        Moment {
            unix_nanos: unix.as_nanos() as u64,
            // The middle halves the error of a thread that lost its core between
            // the two calls.
            monotonic_nanos: before + (after - before) / 2,
        }
    }

    /// RFC 3339 with nanoseconds: `2026-01-01T12:00:00.000000000Z`.
    pub fn rfc3339(self) -> String {
        let [year, month, day, hour, minute, second] = calendar(self.unix_nanos / 1_000_000_000);
        let nanos = self.unix_nanos % 1_000_000_000;
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanos:09}Z")
    }

    /// As part of a file name: `20260101-120000`.
    pub fn compact(self) -> String {
        let [year, month, day, hour, minute, second] = calendar(self.unix_nanos / 1_000_000_000);
        format!("{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}")
    }
}

/// Nanoseconds since 1970 of what [`Moment::rfc3339`] writes; `None` of anything else.
pub fn parse_rfc3339(text: &str) -> Option<u64> {
    let (seconds, nanos) = text.strip_suffix('Z')?.split_once('.')?;
    let nanos: u64 = (nanos.len() == 9).then(|| nanos.parse().ok())??;
    let (date, time) = seconds.split_once('T')?;
    let numbers = |text: &str, between: char| -> Option<[u64; 3]> {
        let list: Option<Vec<u64>> = text.split(between).map(|t| t.parse().ok()).collect();
        list?.try_into().ok()
    };
    let ([year, month, day], [hour, minute, second]) = (numbers(date, '-')?, numbers(time, ':')?);
    let is_possible = (1970..2200).contains(&year) && (1..=12).contains(&month);
    if !is_possible || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    // The reverse of `calendar`, by the same source: days_from_civil.
    let year = if month <= 2 { year - 1 } else { year };
    let from_march = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * from_march + 2) / 5 + day - 1;
    let year_of_era = year % 400;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    let days = (year / 400 * 146_097 + day_of_era).checked_sub(719_468)?;
    Some((days * 86_400 + hour * 3600 + minute * 60 + second) * 1_000_000_000 + nanos)
}

/// Year, month, day, hour, minute, second of a second since 1970.
fn calendar(unix_seconds: u64) -> [u64; 6] {
    let days = unix_seconds / 86_400;
    let second_of_day = unix_seconds % 86_400;
    // Years are taken to start on 1 March, which puts the leap day at the end;
    // eras of 400 years have a fixed number of days. (Howard Hinnant,
    // "chrono-compatible low-level date algorithms", civil_from_days.)
    let shifted = days + 719_468;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = shifted / 146_097 * 400 + year_of_era + u64::from(month <= 2);
    [
        year,
        month,
        day,
        second_of_day / 3_600,
        second_of_day / 60 % 60,
        second_of_day % 60,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calendar_agrees_with_date() {
        // Expected values from `date -u -d @N`.
        let check = |seconds: u64, rfc3339: &str, compact: &str| {
            let moment = Moment {
                unix_nanos: seconds * 1_000_000_000 + 7,
                monotonic_nanos: 0,
            };
            assert_eq!(moment.rfc3339(), format!("{rfc3339}.000000007Z"));
            assert_eq!(moment.compact(), compact);
        };
        check(0, "1970-01-01T00:00:00", "19700101-000000");
        check(951_782_399, "2000-02-28T23:59:59", "20000228-235959");
        check(951_782_400, "2000-02-29T00:00:00", "20000229-000000");
        check(1_767_268_800, "2026-01-01T12:00:00", "20260101-120000");
        check(4_107_542_400, "2100-03-01T00:00:00", "21000301-000000");
    }

    #[test]
    fn clocks_of_a_moment_do_not_run_backwards() {
        let (first, second) = (Moment::now(), Moment::now());
        assert!(second.monotonic_nanos >= first.monotonic_nanos);
    }

    #[test]
    fn what_is_written_is_read_back() {
        for unix_nanos in [
            0,
            951_782_400_000_000_001,
            1_709_164_799_999_999_999,
            1_795_000_000_123_456_789,
        ] {
            let moment = Moment {
                unix_nanos,
                monotonic_nanos: 0,
            };
            assert_eq!(parse_rfc3339(&moment.rfc3339()), Some(unix_nanos));
        }
        for wrong in [
            "",
            "2026-01-01T12:00:00Z",
            "2026-13-01T12:00:00.000000000Z",
            "x",
        ] {
            assert_eq!(parse_rfc3339(wrong), None, "{wrong}");
        }
    }
}
