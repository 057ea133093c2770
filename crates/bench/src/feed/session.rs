//! The measurement: calibration, plans, and the runs that take turns.

mod predictions;

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail};
use indicatif::HumanBytes;
use kernelio::leftover::Leftover;
use launch::{
    budget::available_bytes,
    planning::{self, Question},
    report::Report,
};
use plan::{Strategies, Weight};
use planfile::Plan;
use terminal::signals;

use super::{
    Args, Outcome, ROUTER,
    child::{Ended, Runner, Wanted, context},
    disk::{Disk, Look},
    measure::{About, Ceilings, Cell, Figures, Predictions, Row, median, skipped_tokens},
    modes::{Budget, Mode},
    readahead::ReadAhead,
    routing::{Simulated, simulate},
    sweep::{Setting, sweep},
};

/// Besides the model's files, for the run with everything in memory.
const RESIDENT_EXTRA_BYTES: u64 = 2 << 30;
/// Tokens of runs that measure only computing, or one setting of a sweep.
const SHORT_TOKENS: u32 = 6;
const SWEEP_TOKENS: u32 = 4;
/// How long the disk is measured between two runs.
const DISK_TIME: Duration = Duration::from_millis(300);
/// After a run that was fed it is measured for as long as that run read, within this.
const MAX_DISK_TIME: Duration = Duration::from_secs(10);
/// After a run of llama.cpp alone, which takes long, no longer than this.
const MAX_DISK_TIME_STOCK: Duration = Duration::from_secs(3);
/// A plan leaves this free: no two runs need the same to the byte.
const PLAN_SLACK_BYTES: u64 = 1 << 20;
/// With less nothing runs.
const MIN_LIMIT_BYTES: u64 = 64 << 20;

pub struct Session<'a> {
    args: &'a Args,
    model: gguf::Model,
    weights: Vec<Weight>,
    has_experts: bool,
    tokens: u32,
    modes: Vec<Mode>,
    runner: Runner,
    read_ahead: Option<ReadAhead>,
    /// Measured before and after each run.
    disk: Disk,
    notes: Vec<String>,
    /// The output that all must have.
    reference: Report,
    weight_bytes: u64,
    other_bytes: u64,
    /// Limit of the run with everything in memory, where that is possible.
    resident_bytes: Option<u64>,
    compute: Vec<f64>,
    /// All tokens behind these.
    compute_tokens: Vec<f64>,
    budgets: Vec<(Budget, u64)>,
    settings: Vec<Setting>,
    plans: HashMap<(usize, usize), (PathBuf, Plan)>,
    /// By budget and mode.
    cells: HashMap<(usize, usize), Cell>,
}

/// How long a run read: from the end of loading to the last token.
fn reading_time(report: &Report) -> Duration {
    let prompt = report.first_token_seconds.unwrap_or(0.0) - report.load_seconds;
    let seconds = prompt.max(0.0) + report.token_seconds.iter().sum::<f64>();
    Duration::try_from_secs_f64(seconds)
        .unwrap_or(DISK_TIME)
        .clamp(DISK_TIME, MAX_DISK_TIME)
}

impl<'a> Session<'a> {
    /// Calibrates, sweeps and plans; None when we were asked to stop.
    pub fn begin(
        args: &'a Args,
        model: gguf::Model,
        modes: Vec<Mode>,
    ) -> anyhow::Result<Option<Session<'a>>> {
        let has_experts = model.hyper().expert_used_count_max() > 0;
        let routing = args.routing.as_deref().unwrap_or("uniform");
        let runner = Runner {
            model: args.model.clone(),
            threads: args.threads,
            routing: (has_experts && routing != ROUTER).then(|| routing.to_owned()),
            scratch: Leftover::scratch(None)?,
        };
        let tokens = args.tokens.unwrap_or(if has_experts { 16 } else { 10 });
        let path = &model.files()[0].path;
        let weights = plan::weights_of(&model);
        let threads = args.threads.map_or_else(
            || std::thread::available_parallelism().map_or(1, |n| n.get()),
            usize::from,
        );
        let mut disk = Disk::new(path.clone(), threads, weights.clone());
        disk.look(DISK_TIME)?;
        let whole_bytes = model.len_bytes() + RESIDENT_EXTRA_BYTES;
        let free_bytes = available_bytes().unwrap_or(u64::MAX);
        let wanted = Wanted {
            tokens,
            context: context(tokens),
            limit_bytes: whole_bytes.min(free_bytes),
            strategy: "all",
            always: true,
            ..Wanted::default()
        };
        let reference = match runner.run(&wanted)? {
            Ended::Interrupted => return Ok(None),
            Ended::Badly { why, .. } => bail!("the run that calibrates failed: {why}"),
            Ended::Well(report) => *report,
        };
        let Some(shares) = reference.shares else {
            bail!("{}: no weights were fed", args.model.display());
        };
        let is_resident = shares.pinned_bytes >= shares.weight_bytes;
        let mut session = Session {
            weights,
            has_experts,
            tokens,
            modes,
            runner,
            read_ahead: None,
            disk,
            notes: Vec::new(),
            weight_bytes: shares.weight_bytes,
            other_bytes: shares.other_bytes + feed::MARGIN_BYTES,
            resident_bytes: is_resident.then_some(wanted.limit_bytes),
            compute: Vec::new(),
            compute_tokens: Vec::new(),
            budgets: Vec::new(),
            settings: Vec::new(),
            plans: HashMap::new(),
            cells: HashMap::new(),
            args,
            model,
            reference,
        };
        if is_resident {
            session.note_computing(&session.reference.token_seconds.clone());
        } else if args.compute_seconds.is_none() {
            session.notes.push(format!(
                "the machine has {} free, and not {} to hold the model: computing was not \
                 measured and is left out of the ceiling; give --compute-seconds",
                HumanBytes(free_bytes),
                HumanBytes(whole_bytes)
            ));
        }
        session.budgets = session.limits()?;
        if !session.sweep()? {
            return Ok(None);
        }
        session.plan()?;
        Ok(Some(session))
    }

    /// Limits of the budgets, the largest first.
    fn limits(&self) -> anyhow::Result<Vec<(Budget, u64)>> {
        let mut limits: Vec<(Budget, u64)> = Vec::new();
        for &budget in &self.args.memory {
            let limit = budget.limit_bytes(self.weight_bytes, self.other_bytes);
            if limit < MIN_LIMIT_BYTES.max(self.other_bytes) {
                bail!(
                    "--memory {budget}: a run needs {} besides weights",
                    HumanBytes(self.other_bytes.max(MIN_LIMIT_BYTES))
                );
            }
            if !limits.iter().any(|known| known.1 == limit) {
                limits.push((budget, limit));
            }
        }
        limits.sort_by_key(|limit| std::cmp::Reverse(limit.1));
        Ok(limits)
    }

    /// Settings for `stock-best`, at the middle budget. False when we were asked to stop.
    fn sweep(&mut self) -> anyhow::Result<bool> {
        if !self.modes.contains(&Mode::StockBest) {
            return Ok(true);
        }
        match ReadAhead::of(&self.model.files()[0].path) {
            Ok(found) => self.read_ahead = Some(found),
            Err(error) => self.notes.push(format!(
                "how far the kernel reads ahead could not be changed ({error}): stock-best has \
                 only the best advice"
            )),
        }
        let wanted = Wanted {
            tokens: SWEEP_TOKENS.min(self.tokens),
            context: context(self.tokens),
            limit_bytes: self.budgets[self.budgets.len() / 2].1,
            strategy: "none",
            ..Wanted::default()
        };
        let say = |line: &str| self.say(line);
        match sweep(&self.runner, self.read_ahead.as_ref(), &wanted, &say)? {
            None => Ok(false),
            Some(settings) => {
                self.settings = settings;
                Ok(true)
            }
        }
    }

    /// A plan for each budget and strategy, from what was measured so far.
    fn plan(&mut self) -> anyhow::Result<()> {
        let found = self.disk.last().map(Look::machine);
        let machine = self.machine(found.unwrap_or_else(planning::usual_machine));
        for (b, &(_, limit)) in self.budgets.iter().enumerate() {
            for (m, &mode) in self.modes.iter().enumerate() {
                let strategies = match mode {
                    Mode::Fed(strategies) => strategies,
                    Mode::Recorded => Strategies::ALL,
                    // For the prediction.
                    Mode::Stock => Strategies::ALL,
                    Mode::StockBest => continue,
                };
                let question = Question {
                    model: &self.model,
                    weights: self.weights.clone(),
                    budget_bytes: limit,
                    other_bytes: self.other_bytes - feed::MARGIN_BYTES + PLAN_SLACK_BYTES,
                    strategies,
                    machine,
                    routing: None,
                    policy: None,
                    tokens: Some(self.counted_tokens()),
                };
                let plan = question.answer().plan;
                let path = self.runner.file(&format!("{b}-{m}.plan"));
                fs::write(&path, plan.to_json()).context("cannot write a plan")?;
                self.plans.insert((b, m), (path, plan));
            }
        }
        Ok(())
    }

    /// All runs, or those before we were asked to stop.
    pub fn repeats(&mut self) -> anyhow::Result<()> {
        for repeat in 0..self.args.repeats {
            if repeat > 0 && !self.measure_computing()? {
                return Ok(());
            }
            for b in 0..self.budgets.len() {
                for turn in 0..self.modes.len() {
                    let m = (turn + b + repeat as usize) % self.modes.len();
                    if !self.one(repeat, b, m)? {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    /// With everything in memory. False when we were asked to stop.
    fn measure_computing(&mut self) -> anyhow::Result<bool> {
        let Some(limit_bytes) = self.resident_bytes else {
            return Ok(!signals::stop_asked());
        };
        let wanted = Wanted {
            tokens: SHORT_TOKENS.min(self.tokens),
            context: context(self.tokens),
            limit_bytes,
            strategy: "all",
            always: true,
            ..Wanted::default()
        };
        match self.runner.run(&wanted)? {
            Ended::Interrupted => return Ok(false),
            Ended::Badly { why, .. } => {
                let note = format!("computing could not be measured again: {why}");
                self.notes.push(note);
            }
            Ended::Well(report) => self.note_computing(&report.token_seconds),
        }
        self.disk.look(DISK_TIME)?;
        Ok(true)
    }

    fn note_computing(&mut self, token_seconds: &[f64]) {
        // The first token finds the caches of the processor cold.
        let warm = &token_seconds[token_seconds.len().min(1)..];
        let Some(seconds) = median(warm) else {
            return;
        };
        self.compute.push(seconds);
        self.compute_tokens.extend(warm);
        self.say(&format!(
            "with everything in memory: {:.2} tokens/s",
            seconds.recip()
        ));
    }

    /// False when we were asked to stop.
    fn rests(&self) -> bool {
        if let Some(rest) = self.args.rest {
            std::thread::sleep(rest);
        }
        !signals::stop_asked()
    }

    /// One measured run. False when we were asked to stop.
    fn one(&mut self, repeat: u32, b: usize, m: usize) -> anyhow::Result<bool> {
        let ((budget, limit_bytes), mode) = (self.budgets[b], self.modes[m]);
        if !self.rests() {
            return Ok(false);
        }
        let before = self.disk.last().cloned();
        let setting = self.settings.first().filter(|_| mode == Mode::StockBest);
        let strategy = match mode {
            Mode::Fed(Strategies::ALL) | Mode::Recorded => "all".to_owned(),
            _ => mode.strategies().to_string(),
        };
        let plan = self.plans.get(&(b, m)).filter(|_| !mode.is_stock());
        let keeps_routing = mode.strategies().experts && self.has_experts;
        let routing_file = keeps_routing.then(|| self.runner.file("routing.csv"));
        let wanted = Wanted {
            tokens: self.tokens,
            context: context(self.tokens),
            limit_bytes,
            strategy: &strategy,
            plan: plan.map(|(path, _)| path.as_path()),
            advice: setting.and_then(Setting::advice),
            always: false,
            routing_file: routing_file.as_deref(),
            is_recorded: mode == Mode::Recorded,
        };
        let ended = {
            let _changed = setting
                .map(|s| s.apply(self.read_ahead.as_ref()))
                .transpose()?;
            self.runner.run(&wanted)?
        };
        let place = format!(
            "repeat {} of {}, {budget}, {mode}",
            repeat + 1,
            self.args.repeats
        );
        let report = match ended {
            Ended::Interrupted => return Ok(false),
            Ended::Badly { why, oom } => {
                self.say(&format!("{place}: {why}"));
                let cell = self.cells.entry((b, m)).or_default();
                cell.failures.push(why);
                cell.oom_kills += u64::from(oom);
                self.disk.look(DISK_TIME)?;
                return Ok(true);
            }
            Ended::Well(report) => *report,
        };
        // A disk may be fast for a moment only: what counts is what it gives in the time that
        // the run took, from the same state.
        let max_time = match mode.is_stock() {
            true => MAX_DISK_TIME_STOCK,
            false => MAX_DISK_TIME,
        };
        if !mode.is_stock() && !self.rests() {
            return Ok(false);
        }
        let after = self.disk.look(reading_time(&report).min(max_time))?;
        let ceilings = Ceilings {
            disk_bytes_per_second: after.alone(),
            compute_seconds_per_token: self.compute_seconds(self.compute.last().copied()),
            missing_bytes: (!self.has_experts).then(|| {
                self.weight_bytes
                    .saturating_sub(limit_bytes - self.other_bytes)
            }),
        };
        let skipped = skipped_tokens(self.tokens, self.has_experts);
        let predicted = self.predicted(b, m, before.as_ref(), &after);
        let figures = Figures::of(&report, &self.reference, &ceilings, skipped)
            .map(|figures| figures.predicted(predicted));
        let simulated = self.simulated(routing_file.as_deref(), &report);
        let followed = self.has_followed_plan(b, m, &report);
        match &figures {
            None => self.say(&format!("{place}: too few tokens")),
            Some(figures) => self.say(&format!(
                "{place}: {:.2} tokens/s{}",
                figures.tokens_per_second,
                if figures.identical {
                    ""
                } else {
                    ", OTHER OUTPUT"
                }
            )),
        }
        let cell = self.cells.entry((b, m)).or_default();
        match figures {
            None => cell.failures.push("it generated too few tokens".to_owned()),
            Some(figures) => {
                cell.runs.insert(repeat, figures);
            }
        }
        cell.simulated.extend(simulated);
        if !followed {
            let note = format!("{budget}, {mode}: the plan did not fit, and was made anew");
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
        Ok(true)
    }

    /// Measured, unless somebody knows better.
    fn compute_seconds(&self, measured: Option<f64>) -> Option<f64> {
        self.args.compute_seconds.or(measured)
    }

    fn simulated(&self, routing_file: Option<&Path>, report: &Report) -> Option<Simulated> {
        let shares = report.shares?;
        let csv = fs::read_to_string(routing_file?).ok()?;
        let layers = self.weights.iter().filter_map(|weight| match weight.usage {
            plan::Use::Experts { .. } => weight.layer,
            _ => None,
        });
        let layers = layers.collect::<std::collections::BTreeSet<u32>>().len();
        // Layers that share a pool are simulated by nobody.
        let is_own_pool = shares.expert_pools as usize == layers;
        let tokens = report.token_seconds.len();
        is_own_pool.then(|| simulate(&csv, tokens, &self.weights, shares.expert_slots))?
    }

    /// By what was kept and streamed.
    fn has_followed_plan(&self, b: usize, m: usize, report: &Report) -> bool {
        let (Some((_, plan)), Some(shares)) = (self.plans.get(&(b, m)), report.shares) else {
            return true;
        };
        if self.modes[m].is_stock() {
            return true;
        }
        let bytes = |names: &[String]| -> u64 {
            let weights = self.weights.iter().filter(|w| names.contains(&w.name));
            weights.map(|weight| weight.bytes).sum()
        };
        bytes(&plan.pin) == shares.pinned_bytes && bytes(&plan.stream) == shares.streamed_bytes
    }

    fn say(&self, line: &str) {
        if !self.args.quiet {
            eprintln!("tensorscope: {line}");
        }
    }

    pub fn outcome(self) -> Outcome {
        let mut results = Vec::new();
        for b in 0..self.budgets.len() {
            for m in 0..self.modes.len() {
                results.extend(self.row(b, m));
            }
        }
        let wanted = self.budgets.len() * self.modes.len() * self.args.repeats as usize;
        let done = self.cells.values().map(|c| c.runs.len() + c.failures.len());
        Outcome {
            interrupted: done.sum::<usize>() < wanted,
            model: self.args.model.display().to_string(),
            weight_bytes: self.weight_bytes,
            other_bytes: self.other_bytes,
            tokens: self.tokens,
            repeats: self.args.repeats,
            has_experts: self.has_experts,
            ceiling: match self.has_experts {
                true => {
                    "the slower of computing and reading what the run itself read per token, at \
                     the disk's speed"
                }
                false => {
                    "the slower of computing and reading the weights that the memory has no room \
                     for, at the disk's speed"
                }
            },
            compute_seconds_per_token: self.compute_seconds(median(&self.compute)),
            disk_bytes_per_second: self.disk.alone(),
            routing: self.runner.routing,
            stock_best: self.settings,
            notes: self.notes,
            predictions: Predictions::of(&results),
            results,
        }
    }

    fn row(&self, b: usize, m: usize) -> Option<Row> {
        let ((budget, limit_bytes), mode) = (self.budgets[b], self.modes[m]);
        let cell = self.cells.get(&(b, m))?;
        let cell_of = |wanted: Mode| {
            let m = self.modes.iter().position(|&mode| mode == wanted)?;
            self.cells.get(&(b, m))
        };
        let plan = self.plans.get(&(b, m)).map(|(_, plan)| plan);
        let predicted_before = plan.and_then(|plan| self.speed_of(m, &plan.predicted));
        Some(Row::new(
            cell,
            About {
                memory: budget.to_string(),
                limit_bytes,
                weights_memory_bytes: limit_bytes - self.other_bytes,
                mode: mode.to_string(),
                stock: cell_of(Mode::Stock),
                best: cell_of(Mode::StockBest),
                predicted_before: predicted_before.map(|speed| speed.usual),
            },
        ))
    }
}
