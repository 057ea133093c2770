//! What the launcher tells a program that is to be fed, and what the program answers: files
//! of lines, a key and a value each, in one folder (`TENSORSCOPE_FEED`).
//!
//! Both sides are of one version (the launcher looks), so that the format is nobody else's;
//! and no more than that, because the one side lives in other people's programs.

use std::fmt::{Display, Write as _};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use plan::{ExpertMemory, Machine, NamedChoice, Policy, Strategies};

use crate::faults::Faults;
use crate::files::Method;
use crate::setup::{Props, ReadAhead};
use crate::shares::Shares;
use crate::stats::Snapshot;

/// Names of reports: `report-PID-NUMBER.txt`.
const REPORT: &str = "report-";

/// How to feed.
#[derive(Clone, Debug, PartialEq)]
pub struct FeedSettings {
    pub budget_bytes: u64,
    pub strategies: Strategies,
    pub policy: Policy,
    pub block_bytes: u32,
    pub depth: u32,
    pub disk_bytes_per_second: f64,
    pub compute_seconds_per_token: Option<f64>,
    pub method: Method,
    pub plan: Option<NamedChoice>,
    pub faults: Option<Faults>,
    /// See [`Props::advice`].
    pub advice: Option<String>,
    /// Whether only errors are said.
    pub is_quiet: bool,
}

/// What became of a model in a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub pid: u32,
    /// Why nothing was fed.
    pub refused: Option<String>,
    pub shares: Option<Shares>,
    pub fed: Snapshot,
}

impl FeedSettings {
    pub fn read(path: &Path) -> io::Result<FeedSettings> {
        let text = fs::read_to_string(path)?;
        let lines = Lines(&text);
        let plan = lines.maybe("ring_bytes")?.map(|ring_bytes| {
            Ok::<_, io::Error>(NamedChoice {
                pinned: lines.all("pin"),
                streamed: lines.all("stream"),
                sliced: lines.all("slice"),
                ring_bytes,
                experts: match lines.maybe("expert_bytes")? {
                    None => None,
                    Some(bytes) => Some(ExpertMemory {
                        pools: lines.one("expert_pools")?,
                        slots: lines.one("expert_slots")?,
                        bytes,
                    }),
                },
            })
        });
        Ok(FeedSettings {
            budget_bytes: lines.one("budget_bytes")?,
            strategies: lines.one("strategies")?,
            policy: lines.one("policy")?,
            block_bytes: lines.one("block_bytes")?,
            depth: lines.one("depth")?,
            disk_bytes_per_second: lines.one("disk_bytes_per_second")?,
            compute_seconds_per_token: lines.maybe("compute_seconds_per_token")?,
            method: lines.one("method")?,
            plan: plan.transpose()?,
            faults: lines.maybe("faults")?,
            advice: lines.all("advice").pop(),
            is_quiet: lines.one("is_quiet")?,
        })
    }

    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut text = String::new();
        add(&mut text, "budget_bytes", self.budget_bytes);
        add(&mut text, "strategies", self.strategies);
        add(&mut text, "policy", self.policy);
        add(&mut text, "block_bytes", self.block_bytes);
        add(&mut text, "depth", self.depth);
        let disk = self.disk_bytes_per_second;
        add(&mut text, "disk_bytes_per_second", disk);
        if let Some(seconds) = self.compute_seconds_per_token {
            add(&mut text, "compute_seconds_per_token", seconds);
        }
        add(&mut text, "method", self.method.name());
        if let Some(faults) = &self.faults {
            add(&mut text, "faults", faults);
        }
        if let Some(advice) = &self.advice {
            add(&mut text, "advice", advice);
        }
        add(&mut text, "is_quiet", self.is_quiet);
        if let Some(plan) = &self.plan {
            add(&mut text, "ring_bytes", plan.ring_bytes);
            if let Some(experts) = plan.experts {
                add(&mut text, "expert_pools", experts.pools);
                add(&mut text, "expert_slots", experts.slots);
                add(&mut text, "expert_bytes", experts.bytes);
            }
            for (key, names) in [
                ("pin", &plan.pinned),
                ("stream", &plan.streamed),
                ("slice", &plan.sliced),
            ] {
                names.iter().for_each(|name| add(&mut text, key, name));
            }
        }
        fs::write(path, text)
    }

    pub fn props(&self) -> Props {
        Props {
            budget_bytes: self.budget_bytes,
            strategies: self.strategies,
            plan: self.plan.clone(),
            policy: self.policy,
            block_bytes: self.block_bytes,
            depth: self.depth,
            machine: Machine {
                compute_seconds_per_token: self.compute_seconds_per_token,
                ..Machine::new(self.disk_bytes_per_second)
            },
            predicted_tokens_per_second: None,
            method: self.method,
            faults: self.faults.clone(),
            routing: None,
            routing_seed: 1,
            keeps_routing: false,
            read_ahead: ReadAhead::default(),
            advice: self.advice.clone(),
        }
    }
}

impl Report {
    /// Replaces the report of this process's model `number`.
    pub fn write(&self, folder: &Path, number: u32) -> io::Result<()> {
        let path = folder.join(format!("{REPORT}{}-{number}.txt", self.pid));
        let unfinished = folder.join(format!(".{REPORT}{}-{number}", self.pid));
        fs::write(&unfinished, self.text())?;
        fs::rename(unfinished, path)
    }

    /// All reports of a folder, by the name of the file.
    pub fn read_all(folder: &Path) -> io::Result<Vec<Report>> {
        let is_report = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(REPORT) && name.ends_with(".txt")
        };
        let entries = fs::read_dir(folder)?;
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let mut paths: Vec<PathBuf> = paths.filter(is_report).collect();
        paths.sort();
        let read = |path: &PathBuf| Report::parse(&fs::read_to_string(path)?);
        paths.iter().map(read).collect()
    }

    fn text(&self) -> String {
        let mut text = String::new();
        add(&mut text, "pid", self.pid);
        if let Some(refused) = &self.refused {
            add(&mut text, "refused", refused);
        }
        self.fed.add_to(&mut text);
        if let Some(shares) = &self.shares {
            shares.add_to(&mut text);
        }
        text
    }

    fn parse(text: &str) -> io::Result<Report> {
        let lines = Lines(text);
        let has_shares = lines.maybe::<u64>("budget_bytes")?.is_some();
        Ok(Report {
            pid: lines.one("pid")?,
            refused: lines.all("refused").pop(),
            shares: has_shares.then(|| Shares::of(&lines)).transpose()?,
            fed: Snapshot::of(&lines)?,
        })
    }
}

/// A struct of numbers as lines, by the names of its fields: of all, or it does not compile.
macro_rules! numbers {
    ($type:ident: $($field:ident),*) => {
        impl $type {
            fn add_to(&self, text: &mut String) {
                let $type { $($field),* } = self;
                $(add(text, stringify!($field), $field);)*
            }

            fn of(lines: &Lines<'_>) -> io::Result<$type> {
                Ok($type { $($field: lines.one(stringify!($field))?),* })
            }
        }
    };
}

numbers!(Snapshot: evaluations, bytes_read, reads, repeated_reads, waited_nanos,
    waited_for_experts_nanos, reading_nanos, expert_hits, expert_misses, too_many_experts,
    experts_read_ahead, experts_used_ahead, experts_foreseen, times_grown, grown_bytes, times_given,
    given_bytes, used_bytes, max_used_bytes);
numbers!(Shares: budget_bytes, other_bytes, weight_bytes, pinned_bytes, ring_bytes,
    streamed_bytes, expert_bytes, expert_slots, expert_pools, mapped_bytes);

/// A line. Names of tensors may have any character.
fn add(text: &mut String, key: &str, value: impl Display) {
    let value = value.to_string().replace('\\', "\\\\").replace('\n', "\\n");
    let _ = writeln!(text, "{key} {value}");
}

/// What was written by [`add`].
struct Lines<'a>(&'a str);

impl Lines<'_> {
    fn all(&self, key: &str) -> Vec<String> {
        let lines = self.0.lines().filter_map(|line| line.split_once(' '));
        lines
            .filter(|(found, _)| *found == key)
            .map(|(_, value)| unescaped(value))
            .collect()
    }

    fn maybe<T: FromStr>(&self, key: &str) -> io::Result<Option<T>> {
        let wrong = |_| io::Error::other(format!("{key}: a value that cannot be read"));
        let value = self.all(key).pop();
        value.map(|value| value.parse().map_err(wrong)).transpose()
    }

    fn one<T: FromStr>(&self, key: &str) -> io::Result<T> {
        self.maybe(key)?
            .ok_or_else(|| io::Error::other(format!("{key} is missing")))
    }
}

fn unescaped(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    let mut characters = value.chars();
    while let Some(character) = characters.next() {
        text.push(match character {
            '\\' if characters.next() == Some('n') => '\n',
            other => other,
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_and_reports_are_read_as_they_were_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("settings.txt");
        let settings = FeedSettings {
            budget_bytes: 1 << 40,
            strategies: Strategies {
                pin: true,
                stream: false,
                experts: true,
            },
            policy: Policy::LfuAged,
            block_bytes: 1 << 20,
            depth: 32,
            disk_bytes_per_second: 2.5e9 / 3.0,
            compute_seconds_per_token: Some(0.1),
            method: Method::PreadDirect,
            plan: None,
            faults: Some("fail=0.5,slow=0.1:7ms,seed=3".parse().unwrap()),
            advice: Some("two\nlines".to_owned()),
            is_quiet: true,
        };
        let check = |settings: &FeedSettings| {
            settings.write(&path).unwrap();
            assert_eq!(FeedSettings::read(&path).unwrap(), *settings);
        };
        check(&settings);
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let plan = NamedChoice {
            pinned: names(&["output.weight", "a b", " \\n\\ \n", "ü"]),
            streamed: names(&["blk.1.x", "blk.0.x"]),
            ..NamedChoice::default()
        };
        check(&FeedSettings {
            plan: Some(plan.clone()),
            compute_seconds_per_token: None,
            faults: None,
            ..settings.clone()
        });
        check(&FeedSettings {
            plan: Some(NamedChoice {
                sliced: names(&["blk.0.exps"]),
                ring_bytes: 7,
                experts: Some(ExpertMemory {
                    pools: 1,
                    slots: 2,
                    bytes: 3,
                }),
                ..plan
            }),
            ..settings
        });
        assert_eq!(Report::read_all(folder.path()).unwrap(), []);
        let first = Report {
            pid: 7,
            refused: Some("no:\nnever".into()),
            ..Report::default()
        };
        let second = Report {
            pid: 7,
            shares: Some(Shares {
                expert_pools: 5,
                ..Shares::default()
            }),
            fed: Snapshot {
                reads: u64::MAX,
                ..Snapshot::default()
            },
            ..Report::default()
        };
        first.write(folder.path(), 0).unwrap();
        first.write(folder.path(), 1).unwrap();
        second.write(folder.path(), 1).unwrap();
        assert_eq!(Report::read_all(folder.path()).unwrap(), [first, second]);
        fs::write(&path, "budget_bytes 1\n").unwrap();
        assert!(FeedSettings::read(&path).is_err());
    }
}
