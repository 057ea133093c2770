//! What a kernel really moved: this program once more, under NVIDIA's profiler (`ncu`), which
//! reads the counters of the card's memory.

use std::{collections::BTreeMap, path::PathBuf, process::Command};

use anyhow::{Context as _, bail, ensure};

use crate::cuda;

/// Set for the program that runs under the profiler: it shall run each step once and end.
const PROFILED: &str = "TENSORSCOPE_LAB_PROFILED";
const READ: &str = "dram__bytes_read.sum";
const WRITTEN: &str = "dram__bytes_write.sum";
const NANOSECONDS: &str = "gpu__time_duration.sum";

/// What is noted of a step: time, memory, caches, what multiprocessors do and what their warps
/// wait for.
const METRICS: &[&str] = &[
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

/// Bytes between the card and its memory, of one launch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Traffic {
    pub kernel: String,
    pub read: f64,
    pub written: f64,
}

/// Whether this program was started by [`traffic`].
pub fn is_profiled() -> bool {
    std::env::var_os(PROFILED).is_some()
}

/// Runs `experiment` at one size and gives the traffic of the first launches of `kernels`, as
/// many as there are names.
pub fn traffic(experiment: &str, size: usize, kernels: &[&str]) -> anyhow::Result<Vec<Traffic>> {
    let mut ncu = ncu(kernels, &[READ, WRITTEN])?;
    ncu.args([
        "--kill",
        "yes",
        "--launch-count",
        &kernels.len().to_string(),
    ])
    .arg(std::env::current_exe()?)
    .args([
        "lab",
        experiment,
        "--sizes",
        &size.to_string(),
        "--rounds",
        "1",
    ])
    .env(PROFILED, "1");
    let launches = launches(ncu)?;
    ensure!(
        launches.len() == kernels.len(),
        "ncu saw {} of {} kernels",
        launches.len(),
        kernels.len(),
    );
    let traffic = launches.into_iter().map(|(kernel, metrics)| Traffic {
        kernel,
        read: metrics.get(READ).copied().unwrap_or(0.0),
        written: metrics.get(WRITTEN).copied().unwrap_or(0.0),
    });
    Ok(traffic.collect())
}

/// Metrics of each function, of its longest launch while this program runs with these words.
pub fn metrics(words: &[&str], functions: &[&str]) -> anyhow::Result<BTreeMap<String, Metrics>> {
    let mut ncu = ncu(functions, METRICS)?;
    // One launch of each function and grid: enough to find the largest.
    ncu.args(["--filter-mode", "per-launch-config", "--launch-count", "1"])
        .arg(std::env::current_exe()?)
        .arg("lab")
        .args(words);
    let nanoseconds = |metrics: &Metrics| metrics.get(NANOSECONDS).copied().unwrap_or(0.0);
    let mut longest: BTreeMap<String, Metrics> = BTreeMap::new();
    for (kernel, metrics) in launches(ncu)? {
        let known = longest.get(&kernel).map_or(0.0, nanoseconds);
        if nanoseconds(&metrics) > known {
            longest.insert(kernel, metrics);
        }
    }
    Ok(longest)
}

/// The profiler, for these kernels.
fn ncu(kernels: &[&str], metrics: &[&str]) -> anyhow::Result<Command> {
    let path: Option<PathBuf> = cuda::tool("ncu");
    let mut ncu = Command::new(path.context("there is no ncu (NVIDIA Nsight Compute)")?);
    ncu.args(["--csv", "--print-units", "base", "--clock-control", "none"])
        .args(["--metrics", &metrics.join(",")])
        .args(["--kernel-name", &format!("regex:^({})$", kernels.join("|"))]);
    Ok(ncu)
}

/// Kernels and metrics of each launch that the profiler saw.
fn launches(mut ncu: Command) -> anyhow::Result<Vec<(String, Metrics)>> {
    let output = ncu.output().context("ncu does not start")?;
    parse(&String::from_utf8_lossy(&output.stdout))
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
}
