//! Valgrind's cachegrind: another simulation of two levels, of what this program really does.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, anyhow, ensure};

use super::levels::Level;

/// Of reading and writing data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    pub accesses: u64,
    /// Of the first level and of the one after.
    pub misses: [u64; 2],
}

impl Counts {
    /// What is left without what `other` did too.
    pub fn without(self, other: Counts) -> Counts {
        let [first, last] = self.misses;
        Counts {
            accesses: self.accesses.saturating_sub(other.accesses),
            misses: [
                first.saturating_sub(other.misses[0]),
                last.saturating_sub(other.misses[1]),
            ],
        }
    }
}

pub fn is_here() -> bool {
    let mut valgrind = Command::new("valgrind");
    let output = valgrind.arg("--version").stderr(Stdio::null()).output();
    output.is_ok_and(|output| output.status.success())
}

/// Runs a command under it, with caches like these.
pub fn run(program: &Path, arguments: &[String], levels: [&Level; 2]) -> anyhow::Result<Counts> {
    let mut valgrind = Command::new("valgrind");
    valgrind
        .args(["--tool=cachegrind", "--cache-sim=yes"])
        .arg("--cachegrind-out-file=/dev/null")
        .arg("--I1=32768,8,64")
        .arg(format!("--D1={}", levels[0].for_cachegrind()))
        .arg(format!("--LL={}", levels[1].for_cachegrind()))
        .arg(program)
        .args(arguments)
        .stdin(Stdio::null());
    let output = valgrind.output().context("valgrind")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "valgrind: {}", said.trim());
    counts(&said).ok_or_else(|| anyhow!("valgrind answers in another way: {}", said.trim()))
}

/// From the summary: `==1== D   refs:  1,234  (1,000 rd + 234 wr)`.
fn counts(summary: &str) -> Option<Counts> {
    let number = |name: &str| {
        let line = summary.lines().find_map(|line| {
            let (_, rest) = line.rsplit_once("== ")?;
            let (found, rest) = rest.split_once(':')?;
            let words: Vec<&str> = found.split_whitespace().collect();
            (words.join(" ") == name).then_some(rest)
        })?;
        let digits = line.split_whitespace().next()?.replace(',', "");
        digits.parse::<u64>().ok()
    };
    Some(Counts {
        accesses: number("D refs")?,
        misses: [number("D1 misses")?, number("LLd misses")?],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_is_read() {
        let text = "==7== Cachegrind, a cache profiler\n\
            ==7== I   refs:      163,470\n\
            ==7== D   refs:       54,321  (40,000 rd   + 14,321 wr)\n\
            ==7== D1  misses:      2,456  ( 1,899 rd   +    557 wr)\n\
            ==7== LLd misses:      2,001  ( 1,499 rd   +    502 wr)\n\
            ==7== D1  miss rate:     4.5% (   4.7%     +    3.9%  )\n";
        let found = counts(text).unwrap();
        let expected = Counts {
            accesses: 54_321,
            misses: [2456, 2001],
        };
        assert_eq!(found, expected);
        assert_eq!(counts("nothing"), None);
        assert_eq!(found.without(expected).misses, [0, 0]);
    }
}
