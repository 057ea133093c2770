//! What a kernel really did: this program once more, under NVIDIA's profiler (`ncu`), which
//! reads the card's counters.
//!
//! A program launches kernels for many reasons: to fill inputs, to check odd sizes, to find the
//! best of several. The one that runs under the profiler shows each step once, at the size that
//! counts ([`show`]): the profiler is off but for that. It also writes down what it showed, so
//! that what the profiler saw is known by its step.

use std::{collections::BTreeMap, fs, io::Write as _, path::PathBuf, process::Command};

use anyhow::{Context as _, bail, ensure};
use cuda::Card;
use serde::{Deserialize, Serialize};

use crate::step::Step;

/// Set for the program that runs under the profiler: the file for what it shows.
const SHOWN: &str = "TENSORSCOPE_LAB_SHOWN";
pub const READ: &str = "dram__bytes_read.sum";
pub const WRITTEN: &str = "dram__bytes_write.sum";
const NANOSECONDS: &str = "gpu__time_duration.sum";

/// What is noted of a step: time, memory, caches, what multiprocessors do and what their warps
/// wait for.
pub const METRICS: &[&str] = &[
    NANOSECONDS,
    READ,
    WRITTEN,
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "lts__t_sector_hit_rate.pct",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_math_pipe_throttle_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_mio_throttle_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio",
];

/// By their names.
pub type Metrics = BTreeMap<String, f64>;

/// One step, as it was shown to the profiler.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Shown {
    pub step: String,
    pub defines: Vec<String>,
    /// Of several variants and sizes, which.
    pub case: String,
    /// In the order of their launches.
    kernels: Vec<String>,
}

/// The same with what the profiler saw.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    pub shown: Shown,
    /// Kernels and what was measured of them.
    pub launches: Vec<(String, Metrics)>,
}

impl Seen {
    /// The launch that the step is about: of its function, or else the longest.
    pub fn main(&self, function: &str) -> Option<&(String, Metrics)> {
        let of_function = self.launches.iter().find(|(kernel, _)| kernel == function);
        let nanoseconds = |metrics: &Metrics| metrics.get(NANOSECONDS).copied().unwrap_or(0.0);
        let longest = || {
            self.launches
                .iter()
                .max_by(|a, b| nanoseconds(&a.1).total_cmp(&nanoseconds(&b.1)))
        };
        of_function.or_else(longest)
    }

    /// Of all launches together.
    pub fn sum(&self, metric: &str) -> f64 {
        let values = self.launches.iter().filter_map(|(_, m)| m.get(metric));
        values.sum()
    }
}

/// Whether this program was started by [`seen`]: then an experiment shall show each step and end.
pub fn is_profiled() -> bool {
    std::env::var_os(SHOWN).is_some()
}

/// Does `launch` before the eyes of the profiler.
pub fn show(
    card: &Card,
    step: &Step,
    case: &str,
    launch: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let path = std::env::var_os(SHOWN).context("nobody watches")?;
    let shown = Shown {
        step: step.name.to_owned(),
        defines: step.defines(),
        case: case.to_owned(),
        kernels: card.profiled(launch).with_context(|| step.name)?,
    };
    let mut file = fs::File::options().append(true).create(true).open(path)?;
    writeln!(file, "{}", serde_json::to_string(&shown)?)?;
    Ok(())
}

/// Runs this program with these words under the profiler: what it showed, and these metrics.
pub fn seen(words: &[&str], metrics: &[&str]) -> anyhow::Result<Vec<Seen>> {
    let path: Option<PathBuf> = cuda::tool("ncu");
    let ncu = path.context("there is no ncu (NVIDIA Nsight Compute)")?;
    let folder = tempfile::tempdir()?;
    let shown = folder.path().join("shown");
    let output = Command::new(ncu)
        .args(["--csv", "--print-units", "base", "--clock-control", "none"])
        .args(["--profile-from-start", "off"])
        .args(["--metrics", &metrics.join(",")])
        .arg(std::env::current_exe()?)
        .arg("lab")
        .args(words)
        .env(SHOWN, &shown)
        .output()
        .context("ncu does not start")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "under ncu: {}",
        said.lines().last().unwrap_or("it failed without a word")
    );
    let launches = parse(&String::from_utf8_lossy(&output.stdout))?;
    let shown = fs::read_to_string(&shown).context("nothing was shown to ncu")?;
    joined(&shown, launches)
}

/// Each line of what was shown, with its launches.
fn joined(shown: &str, launches: Vec<(String, Metrics)>) -> anyhow::Result<Vec<Seen>> {
    let mut launches = launches.into_iter();
    let mut all = Vec::new();
    for line in shown.lines() {
        let shown: Shown = serde_json::from_str(line)?;
        let of_step: Vec<(String, Metrics)> = launches.by_ref().take(shown.kernels.len()).collect();
        let names: Vec<&String> = of_step.iter().map(|(kernel, _)| kernel).collect();
        ensure!(
            shown.kernels.iter().eq(names.iter().copied()),
            "{}: ncu saw {names:?} instead of {:?}",
            shown.step,
            shown.kernels
        );
        all.push(Seen {
            shown,
            launches: of_step,
        });
    }
    ensure!(
        launches.next().is_none(),
        "ncu saw more launches than were shown to it"
    );
    Ok(all)
}

/// Reads the table that `ncu --csv` prints after what the program itself prints.
fn parse(text: &str) -> anyhow::Result<Vec<(String, Metrics)>> {
    let mut lines = text.lines().skip_while(|line| !line.starts_with("\"ID\","));
    let Some(header) = lines.next() else {
        let reason = text.lines().find(|line| line.contains("==ERROR=="));
        bail!(
            "ncu gave no table: {}",
            reason.unwrap_or("it did not say why")
        );
    };
    let header = fields(header);
    let column = |name: &str| {
        let found = header.iter().position(|field| field == name);
        found.with_context(|| format!("ncu's table has no {name:?}"))
    };
    let (id, kernel) = (column("ID")?, column("Kernel Name")?);
    let (metric, value) = (column("Metric Name")?, column("Metric Value")?);
    let mut launches: Vec<(String, (String, Metrics))> = Vec::new();
    for line in lines.filter(|line| line.starts_with('"')) {
        let fields = fields(line);
        let field = |at: usize| fields.get(at).map_or("", String::as_str);
        // A metric that this card does not have is no number.
        let Ok(number) = field(value).replace(',', "").parse() else {
            continue;
        };
        if launches
            .last()
            .is_none_or(|(last, _)| last.as_str() != field(id))
        {
            launches.push((
                field(id).to_owned(),
                (field(kernel).to_owned(), Metrics::new()),
            ));
        }
        if let Some((_, (_, metrics))) = launches.last_mut() {
            metrics.insert(field(metric).to_owned(), number);
        }
    }
    Ok(launches.into_iter().map(|(_, launch)| launch).collect())
}

/// Fields of a line, all in quotation marks.
fn fields(line: &str) -> Vec<String> {
    line.trim()
        .trim_matches('"')
        .split("\",\"")
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_becomes_traffic() {
        let text = "==PROF== Connected\nattention-prefill: …\n\
            \"ID\",\"Process ID\",\"Kernel Name\",\"Metric Name\",\"Metric Unit\",\"Metric Value\"\n\
            \"0\",\"7\",\"one\",\"dram__bytes_read.sum\",\"byte\",\"1,024\"\n\
            \"0\",\"7\",\"one\",\"dram__bytes_write.sum\",\"byte\",\"32\"\n\
            \"1\",\"7\",\"two\",\"dram__bytes_read.sum\",\"byte\",\"64\"\n";
        let found = parse(text).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].1[READ], found[0].1[WRITTEN]), (1024.0, 32.0));
        assert_eq!(found[1].0, "two");
        assert!(parse("==ERROR== no card\n").is_err());
    }

    #[test]
    fn launches_are_known_by_the_step_that_was_shown() {
        let shown = "{\"step\":\"split\",\"defines\":[],\"case\":\"\",\"kernels\":[\"split\",\"join\"]}\n{\"step\":\"wide\",\"defines\":[\"X=1\"],\"case\":\"8\",\"kernels\":[\"wide\"]}\n";
        let launch = |name: &str, nanoseconds: f64| {
            let metrics = Metrics::from([(NANOSECONDS.to_owned(), nanoseconds)]);
            (name.to_owned(), metrics)
        };
        let launches = || {
            vec![
                launch("split", 5.0),
                launch("join", 7.0),
                launch("wide", 2.0),
            ]
        };
        let seen = joined(shown, launches()).unwrap();
        assert_eq!(seen.len(), 2);
        assert_eq!(seen[0].sum(NANOSECONDS), 12.0);
        assert_eq!(seen[0].main("split"), Some(&launch("split", 5.0)));
        assert_eq!(seen[0].main("other"), Some(&launch("join", 7.0)));
        assert_eq!(seen[1].shown.defines, ["X=1"]);
        // One too few, one too many, and one of another name.
        assert!(joined(shown, launches()[..2].to_vec()).is_err());
        let first = shown.lines().next().unwrap();
        assert!(joined(first, launches()).is_err());
        assert!(joined(first, vec![launch("join", 1.0), launch("split", 1.0)]).is_err());
    }
}
