//! What the launcher tells a program that is to be fed, and what the program answers:
//! two files of JSON in one folder (`TENSORSCOPE_FEED`).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use plan::{Machine, Plan, Policy, Strategies};
use serde::{Deserialize, Serialize};

use crate::faults::Faults;
use crate::files::Method;
use crate::setup::{Props, Shares};
use crate::stats::Snapshot;

/// Names of reports: `report-PID-NUMBER.json`.
const REPORT: &str = "report-";

/// How to feed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeedSettings {
    pub budget_bytes: u64,
    pub strategies: Strategies,
    pub policy: Policy,
    pub block_bytes: u32,
    pub depth: u32,
    pub disk_bytes_per_second: f64,
    pub compute_seconds_per_token: Option<f64>,
    pub method: Method,
    pub plan: Option<Plan>,
    pub faults: Option<Faults>,
    /// Whether only errors are said.
    pub is_quiet: bool,
}

/// What became of a model in a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    pub pid: u32,
    /// Why nothing was fed.
    pub refused: Option<String>,
    pub shares: Option<Shares>,
    pub fed: Snapshot,
}

impl FeedSettings {
    pub fn read(path: &Path) -> io::Result<FeedSettings> {
        Ok(serde_json::from_slice(&fs::read(path)?)?)
    }

    pub fn write(&self, path: &Path) -> io::Result<()> {
        fs::write(path, serde_json::to_vec(self)?)
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
        }
    }
}

impl Report {
    /// Replaces the report of this process's model `number`.
    pub fn write(&self, folder: &Path, number: u32) -> io::Result<()> {
        let path = folder.join(format!("{REPORT}{}-{number}.json", self.pid));
        let unfinished = folder.join(format!(".{REPORT}{}-{number}", self.pid));
        fs::write(&unfinished, serde_json::to_vec(self)?)?;
        fs::rename(unfinished, path)
    }

    /// All reports of a folder, by the name of the file.
    pub fn read_all(folder: &Path) -> io::Result<Vec<Report>> {
        let is_report = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(REPORT) && name.ends_with(".json")
        };
        let entries = fs::read_dir(folder)?;
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let mut paths: Vec<PathBuf> = paths.filter(is_report).collect();
        paths.sort();
        let read = |path: &PathBuf| Ok(serde_json::from_slice(&fs::read(path)?)?);
        paths.iter().map(read).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_and_reports_are_read_as_they_were_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("settings.json");
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
            disk_bytes_per_second: 2.5e9,
            compute_seconds_per_token: Some(0.25),
            method: Method::PreadDirect,
            plan: None,
            faults: Some("fail=0.5,slow=0.1:7ms,seed=3".parse().unwrap()),
            is_quiet: true,
        };
        settings.write(&path).unwrap();
        assert_eq!(FeedSettings::read(&path).unwrap(), settings);
        assert_eq!(Report::read_all(folder.path()).unwrap(), []);
        let first = Report {
            pid: 7,
            refused: Some("no".into()),
            ..Report::default()
        };
        let second = Report {
            pid: 7,
            shares: Some(Shares::default()),
            ..Report::default()
        };
        first.write(folder.path(), 0).unwrap();
        first.write(folder.path(), 1).unwrap();
        second.write(folder.path(), 1).unwrap();
        assert_eq!(Report::read_all(folder.path()).unwrap(), [first, second]);
        fs::write(&path, "{}").unwrap();
        assert!(FeedSettings::read(&path).is_err());
    }
}
