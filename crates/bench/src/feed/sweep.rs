//! Stock llama.cpp at its best: which read-ahead and which advice are fastest here.

use anyhow::{Context as _, bail};
use kernelio::leftover::Leftover;
use serde::Serialize;

use super::{
    child::{Ended, Runner, Wanted},
    measure::median,
    readahead::ReadAhead,
};

/// Kibibytes that the kernel reads ahead. None at all is what the advice `random` does.
const READ_AHEADS: [u32; 3] = [128, 1024, 8192];

/// What stock llama.cpp is run with.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Setting {
    /// None where it is left as it was found.
    pub read_ahead_kib: Option<u32>,
    pub madvise: &'static str,
    pub tokens_per_second: Option<f64>,
}

impl Setting {
    pub fn describe(&self) -> String {
        match self.read_ahead_kib {
            Some(kibibytes) => format!("read-ahead {kibibytes} KiB, madvise {}", self.madvise),
            None => format!("read-ahead as found, madvise {}", self.madvise),
        }
    }

    /// Sets the read-ahead, until the result is dropped.
    pub fn apply(&self, disk: Option<&ReadAhead>) -> anyhow::Result<Option<Leftover>> {
        match (self.read_ahead_kib, disk) {
            (Some(kibibytes), Some(disk)) => disk
                .change(kibibytes)
                .map(Some)
                .context("cannot set how far the kernel reads ahead"),
            _ => Ok(None),
        }
    }

    pub fn advice(&self) -> Option<&'static str> {
        (self.madvise != "normal").then_some(self.madvise)
    }
}

/// What is worth trying: read-ahead does nothing where the advice is `random`.
pub fn candidates(as_found_kib: Option<u32>) -> Vec<Setting> {
    let setting = |read_ahead_kib, madvise| Setting {
        read_ahead_kib,
        madvise,
        tokens_per_second: None,
    };
    let mut found = vec![
        setting(None, "normal"),
        setting(None, "random"),
        setting(None, "sequential"),
    ];
    let others = READ_AHEADS.into_iter().filter(|&k| Some(k) != as_found_kib);
    if as_found_kib.is_some() {
        found.extend(others.map(|kibibytes| setting(Some(kibibytes), "normal")));
    }
    found
}

/// Runs each once, and gives all with their speed, the fastest first; None when we were
/// asked to stop.
pub fn sweep(
    runner: &Runner,
    disk: Option<&ReadAhead>,
    wanted: &Wanted<'_>,
    say: &dyn Fn(&str),
) -> anyhow::Result<Option<Vec<Setting>>> {
    let mut settings = candidates(disk.and_then(ReadAhead::as_found_kibibytes));
    for setting in &mut settings {
        let _changed = setting.apply(disk)?;
        let wanted = Wanted {
            advice: setting.advice(),
            ..*wanted
        };
        setting.tokens_per_second = match runner.run(&wanted)? {
            Ended::Interrupted => return Ok(None),
            Ended::Badly { why, .. } => bail!("stock llama.cpp: {why}"),
            // The first is still reading what the prompt left behind.
            Ended::Well(report) => {
                let seconds = &report.token_seconds;
                median(&seconds[seconds.len().min(1)..]).map(f64::recip)
            }
        };
        let speed = setting.tokens_per_second.unwrap_or(0.0);
        say(&format!(
            "sweep of stock settings, {}: {speed:.2} tokens/s",
            setting.describe()
        ));
    }
    let speed = |setting: &Setting| setting.tokens_per_second.unwrap_or(0.0);
    settings.sort_by(|a, b| speed(b).total_cmp(&speed(a)));
    Ok(Some(settings))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_is_not_tried_twice() {
        let read_aheads = |found| -> Vec<Option<u32>> {
            let all = candidates(found);
            all.iter().map(|setting| setting.read_ahead_kib).collect()
        };
        assert_eq!(read_aheads(None), [None; 3]);
        assert_eq!(
            read_aheads(Some(128)),
            [None, None, None, Some(1024), Some(8192)]
        );
    }
}
