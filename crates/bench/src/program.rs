//! `tensorscope bench overhead -- PROGRAM`: what recording costs a program that
//! nobody rebuilt (crate `agent`, `measure.rs`).

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::bail;
use capture::recorder::cycles;
use engine::overhead::{Interval, interval};
use kernelio::leftover::Leftover;
use launch::{
    attach::{self, AttachProps, Purpose, Repacking, Verbosity},
    gpu::GpuTimes,
    underneath::UnderneathArgs,
};
use rundir::Run;
use serde_json::json;

use super::OverheadArgs;

/// One evaluation, as the library noted it.
struct Turn {
    kind: usize,
    round: u64,
    nodes: u64,
    nanos: u64,
    cycles_inside_us: u64,
}

const PASSED_ON: usize = 0;
const PASSED_ON_AGAIN: usize = 1;
const RECORDED: usize = 2;
const WORDS: usize = 5;

pub fn overhead(args: &OverheadArgs) -> anyhow::Result<ExitCode> {
    let scratch = Leftover::scratch(None)?;
    let output = scratch.path().join("run");
    let clock = (cycles(), Instant::now());
    attach::run(&AttachProps {
        program: args.program.clone(),
        output: Some(output.clone()),
        duration: None,
        max_log_bytes: None,
        max_tokens: None,
        repacking: Repacking::AsTheProgramSays,
        purpose: Purpose::Measure,
        underneath: UnderneathArgs::default(),
        feed: None,
        gpu_times: GpuTimes::Off,
        verbosity: Verbosity::Quiet,
    })?;
    if !output.exists() {
        bail!("there is nothing to measure");
    }
    // A program that ends at once leaves the counter too short a time.
    std::thread::sleep(Duration::from_millis(20));
    let nanos_per_cycle = clock.1.elapsed().as_nanos() as f64 / (cycles() - clock.0).max(1) as f64;
    let turns = read(&Run::open(&output)?.log_directory())?;
    // Like with like: evaluations of one graph, the most frequent one (a token).
    let mut by_nodes: BTreeMap<u64, usize> = BTreeMap::new();
    turns
        .iter()
        .for_each(|turn| *by_nodes.entry(turn.nodes).or_default() += 1);
    let Some((&nodes, _)) = by_nodes.iter().max_by_key(|(_, count)| **count) else {
        bail!("there is nothing to measure");
    };
    let mut rounds: BTreeMap<u64, [Option<&Turn>; 3]> = BTreeMap::new();
    for turn in turns.iter().filter(|turn| turn.nodes == nodes) {
        rounds.entry(turn.round).or_default()[turn.kind] = Some(turn);
    }
    let rounds: Vec<[&Turn; 3]> = rounds
        .into_values()
        .filter_map(|[a, b, c]| Some([a?, b?, c?]))
        .collect();
    if rounds.is_empty() {
        bail!("there is nothing to measure: the program computed fewer than three tokens");
    }
    let ratio = |kind: usize| {
        let values = rounds
            .iter()
            .map(|round| round[kind].nanos as f64 / round[PASSED_ON].nanos.max(1) as f64 - 1.0);
        interval(values.collect())
    };
    let direct = rounds.iter().map(|round| {
        let turn = round[RECORDED];
        turn.cycles_inside_us as f64 * nanos_per_cycle / turn.nanos.max(1) as f64
    });
    let token = rounds.iter().map(|round| round[PASSED_ON].nanos as f64);
    let measured = Measured {
        rounds: rounds.len(),
        nodes,
        token_nanos: interval(token.collect()).median,
        control: ratio(PASSED_ON_AGAIN),
        recorded: ratio(RECORDED),
        direct: interval(direct.collect()),
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&measured.as_json())?);
    } else {
        measured.print();
    }
    Ok(ExitCode::SUCCESS)
}

fn read(log_directory: &Path) -> anyhow::Result<Vec<Turn>> {
    let mut turns = Vec::new();
    // Processes count their rounds each for themselves.
    let mut rounds_before = 0;
    for entry in fs::read_dir(log_directory)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if !name.is_some_and(|name| name.starts_with("turns-")) {
            continue;
        }
        let bytes = fs::read(&path)?;
        let (words, _) = bytes.as_chunks::<8>();
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let (records, _) = words.as_chunks::<WORDS>();
        turns.extend(records.iter().filter(|r| r[0] < 3).map(|r| Turn {
            kind: r[0] as usize,
            round: rounds_before + r[1],
            nodes: r[2],
            nanos: r[3],
            cycles_inside_us: r[4],
        }));
        rounds_before = turns.last().map_or(0, |turn| turn.round + 1);
    }
    Ok(turns)
}

struct Measured {
    rounds: usize,
    nodes: u64,
    token_nanos: f64,
    control: Interval,
    recorded: Interval,
    /// Share of an evaluation.
    direct: Interval,
}

impl Measured {
    fn print(&self) {
        println!(
            "{} evaluations per mode of a graph of {} nodes, {:.3} ms each",
            self.rounds,
            self.nodes,
            self.token_nanos / 1e6
        );
        let percent = |i: Interval| {
            format!(
                "{:+.2} %  (95 %: {:+.2} … {:+.2})",
                i.median * 100.0,
                i.low * 100.0,
                i.high * 100.0
            )
        };
        println!("passed on again     {}", percent(self.control));
        println!("recorded            {}", percent(self.recorded));
        println!("inside tensorscope  {:.3} %", self.direct.median * 100.0);
    }

    fn as_json(&self) -> serde_json::Value {
        let percent = |i: Interval| json!({"median": i.median * 100.0, "low": i.low * 100.0, "high": i.high * 100.0});
        json!({
            "evaluations_per_mode": self.rounds,
            "nodes": self.nodes,
            "median_nanos": self.token_nanos,
            "control_percent": percent(self.control),
            "recorded_percent": percent(self.recorded),
            "direct_percent": percent(self.direct),
        })
    }
}
