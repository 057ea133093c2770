//! `tensorscope run -- PROGRAM ARGS…`: feed the llama.cpp inside a program that nobody
//! rebuilt.
//!
//! 1. The model is looked for among the program's arguments. One that fits the budget
//!    is not fed: the program runs as it is.
//! 2. A folder gets the settings (`feed::settings`), and the program the preload
//!    library (crate `agent`), in a memory cgroup of the budget's size.
//! 3. The processes that were fed leave reports in the folder, of which the closing
//!    lines are made.
//!
//! Exit code, standard input, output and error are the program's; our own lines go to
//! standard error and start with `tensorscope:`.

use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus},
};

use anyhow::{Context as _, anyhow, bail};
use feed::{
    Faults, Method, Shares, Snapshot,
    settings::{FeedSettings, Report},
};
use gguf::{GgmlType, Model};
use indicatif::HumanBytes;
use kernelio::pressure::{MemoryLimit, Usage, drop_cache};
use plan::{Policy, Strategies};
use planfile::Plan;
use rundir::metadata::Fed;
use terminal::text::count;

use crate::{
    budget::{Memory, available_bytes},
    child, library_file,
    needs::{self, models_of},
    planning::{self, USUAL_DISK},
    program::{self, preload, typed, why},
    report::changes,
};

/// What is to be fed, and how.
pub struct FeedProps {
    /// Program and arguments; not empty.
    pub program: Vec<OsString>,
    pub memory: Option<Memory>,
    /// File of a plan.
    pub plan: Option<PathBuf>,
    pub strategies: Strategies,
    pub policy: Option<Policy>,
    pub method: Option<Method>,
    pub faults: Option<Faults>,
    /// Feed also a model that fits.
    pub always: bool,
    /// Drop the model's cached pages first.
    pub cold: bool,
    /// Make no memory cgroup of the budget's size.
    pub no_limit: bool,
    pub quiet: bool,
}

/// The program's exit code.
pub fn run(props: &FeedProps) -> anyhow::Result<u8> {
    let prepared = prepare(props)?;
    let mut command = typed(&props.program, &prepared.path);
    if prepared.settings.is_some() {
        let library = library_file::path().context("no program can be fed")?;
        preload(&mut command, &library);
        command.env_remove("TENSORSCOPE_LOG");
    }
    prepared.tell(&mut command)?;
    let limit = prepared.confine(&mut command);
    let status = child::run(&mut command, &mut Plainly)
        .map_err(|error| anyhow!("{}: cannot run it: {}", prepared.name, why(&error)))?;
    prepared.finish(status);
    say_memory(props, limit.and_then(|limit| limit.usage().ok()));
    Ok(child::exit_code(status))
}

/// A program that is about to be fed, or not.
pub(crate) struct Prepared<'p> {
    props: &'p FeedProps,
    name: String,
    path: PathBuf,
    budget_bytes: u64,
    /// `None` when it runs as it is.
    settings: Option<FeedSettings>,
    folder: tempfile::TempDir,
}

pub(crate) fn prepare(props: &FeedProps) -> anyhow::Result<Prepared<'_>> {
    let name = props.program[0].to_string_lossy().into_owned();
    let path = program::find(&props.program[0])
        .map_err(|error| anyhow!("{name}: cannot run it: {}", why(&error)))?;
    let mut models = models_of(&props.program)?.into_iter();
    let model = models.next();
    let beside_bytes = models.map(|model| model.len_bytes()).sum();
    let plan = props.plan.as_deref().map(Plan::read).transpose()?;
    if let (Some(plan), Some(model)) = (&plan, &model) {
        plan.check(model)?;
    }
    let budget_bytes = budget(props, model.as_ref(), plan.as_ref())?;
    let settings = settings(props, model.as_ref(), beside_bytes, plan, budget_bytes);
    if settings.is_some()
        && let Some(refusal) = program::refusal(&path)
    {
        return Err(anyhow!("{name}: {}", refusal.of_feeding()));
    }
    if props.cold {
        let Some(model) = &model else {
            bail!("--cold: there is no .gguf file among the program's arguments");
        };
        for file in model.files() {
            drop_cache(&file.path)?;
        }
    }
    if let (None, Some(model), true) = (&settings, &model, props.strategies != Strategies::NONE) {
        let sizes = (HumanBytes(model.len_bytes()), HumanBytes(budget_bytes));
        say(
            props,
            &format!("{} fits into {}: {name} runs as it is", sizes.0, sizes.1),
        );
    }
    let folder = tempfile::Builder::new()
        .prefix("tensorscope-feed-")
        .tempdir()
        .context("cannot make a folder for the settings")?;
    Ok(Prepared {
        props,
        name,
        path,
        budget_bytes,
        settings,
        folder,
    })
}

impl Prepared<'_> {
    /// Tells the preload library, which the program gets elsewhere, how to feed.
    pub(crate) fn tell(&self, command: &mut Command) -> anyhow::Result<()> {
        let Some(settings) = &self.settings else {
            command.env_remove("TENSORSCOPE_FEED");
            return Ok(());
        };
        let file = self.folder.path().join("settings.txt");
        let written = settings.write(&file);
        written.with_context(|| format!("{}: cannot write it", file.display()))?;
        command.env("TENSORSCOPE_FEED", file);
        Ok(())
    }

    /// Into a memory cgroup of the budget's size, where we may make one.
    pub(crate) fn confine(&self, command: &mut Command) -> Option<MemoryLimit> {
        let is_asked_for = self.props.memory.is_some() || self.props.plan.is_some();
        if !is_asked_for || self.props.no_limit {
            return None;
        }
        let confined = MemoryLimit::new(self.budget_bytes).and_then(|limit| {
            limit.confine(command)?;
            Ok(limit)
        });
        let failed = |error| {
            let line = format!("the budget is planned for, not enforced: {error}");
            say(self.props, &line);
        };
        confined.map_err(failed).ok()
    }

    /// Says what was fed, by the reports; the sum of them.
    pub(crate) fn finish(&self, status: ExitStatus) -> Option<Fed> {
        self.settings.as_ref()?;
        let reports = Report::read_all(self.folder.path()).unwrap_or_default();
        let fed: Vec<&Report> = reports.iter().filter(|r| r.fed.evaluations > 0).collect();
        for report in &fed {
            say(self.props, &sentence(report.shares.as_ref(), &report.fed));
        }
        // A process that was not fed has said why itself.
        if reports.is_empty() {
            let why = match status.success() {
                true => "no llama.cpp (2025 or later) computed a graph on the processor".to_owned(),
                false => child::failure(status),
            };
            let line = format!("{}: nothing was fed: {why}", self.name);
            say(self.props, &line);
        }
        fed.iter()
            .map(|report| described(report.shares.unwrap_or_default(), &report.fed))
            .reduce(|sum, next| Fed {
                evaluations: sum.evaluations + next.evaluations,
                read_bytes: sum.read_bytes + next.read_bytes,
                waited_nanos: sum.waited_nanos + next.waited_nanos,
                waited_for_experts_nanos: sum.waited_for_experts_nanos
                    + next.waited_for_experts_nanos,
                expert_hits: sum.expert_hits + next.expert_hits,
                expert_misses: sum.expert_misses + next.expert_misses,
                // Of the memory the last: they are fed one after the other.
                ..next
            })
    }
}

/// For the metadata of a run.
pub fn described(shares: Shares, fed: &Snapshot) -> Fed {
    Fed {
        budget_bytes: shares.budget_bytes,
        pinned_bytes: shares.pinned_bytes,
        streamed_bytes: shares.streamed_bytes,
        ring_bytes: shares.ring_bytes,
        expert_bytes: shares.expert_bytes,
        page_cache_bytes: shares.mapped_bytes,
        evaluations: fed.evaluations,
        read_bytes: fed.bytes_read,
        waited_nanos: fed.waited_nanos,
        waited_for_experts_nanos: fed.waited_for_experts_nanos,
        expert_hits: fed.expert_hits,
        expert_misses: fed.expert_misses,
    }
}

/// Started and waited for, no more.
struct Plainly;

impl child::Start for Plainly {
    fn spawn(&mut self, command: &mut Command) -> io::Result<Child> {
        command.spawn()
    }

    fn wait(&mut self, child: &mut Child) -> io::Result<ExitStatus> {
        child.wait()
    }
}

fn say(props: &FeedProps, text: &str) {
    if !props.quiet {
        eprintln!("tensorscope: {text}");
    }
}

/// What was asked for, what the plan was made for, or what is free.
fn budget(props: &FeedProps, model: Option<&Model>, plan: Option<&Plan>) -> anyhow::Result<u64> {
    match (props.memory, model, plan) {
        (Some(Memory::Percent(_)), None, _) => bail!(
            "--memory: a share of which model? There is no .gguf file among the program's \
             arguments; give bytes: --memory 4G"
        ),
        (Some(memory), model, _) => memory.of(model.map_or(0, Model::len_bytes)),
        (None, _, Some(plan)) => Ok(plan.memory.budget_bytes),
        (None, _, None) => {
            available_bytes().context("cannot find out how much memory is free; give --memory")
        }
    }
}

/// How to feed; `None` when the program is to run as it is. Its other models have `beside_bytes`.
fn settings(
    props: &FeedProps,
    model: Option<&Model>,
    beside_bytes: u64,
    plan: Option<Plan>,
    budget_bytes: u64,
) -> Option<FeedSettings> {
    let strategies = match &plan {
        Some(plan) if props.strategies == Strategies::ALL => plan.strategies,
        _ => props.strategies,
    };
    let fits = model.is_some_and(|model| {
        let other = planning::other_bytes(
            model,
            GgmlType::F16,
            needs::CONTEXT_TOKENS,
            needs::BATCH_TOKENS,
        );
        model.len_bytes() + beside_bytes + other + feed::MARGIN_BYTES <= budget_bytes
    });
    if strategies == Strategies::NONE || fits && !props.always {
        return None;
    }
    let assumed = plan.as_ref().map(|plan| plan.assumed);
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let policy = plan
        .as_ref()
        .and_then(|plan| plan.experts.as_ref())
        .map(|e| e.policy);
    let disk_of = |path: &Path| planning::disk_rate(path);
    Some(FeedSettings {
        budget_bytes,
        strategies,
        policy: props.policy.or(policy).unwrap_or_default(),
        block_bytes: plan
            .as_ref()
            .and_then(|plan| u32::try_from(plan.ring.read_bytes).ok())
            .unwrap_or(planning::BLOCK_BYTES),
        depth: plan
            .as_ref()
            .map_or(planning::DEPTH, |plan| plan.ring.depth),
        disk_bytes_per_second: assumed
            .map(|assumed| assumed.disk_bytes_per_second)
            .or_else(|| model.and_then(|model| disk_of(&model.files()[0].path)))
            .unwrap_or(USUAL_DISK),
        compute_seconds_per_token: match assumed {
            Some(assumed) => assumed.compute_seconds_per_token,
            None => model.map(|model| planning::guessed_compute_seconds(model, threads)),
        },
        method: props.method.unwrap_or(Method::IoUringDirect),
        plan: plan.map(|plan| plan.named_choice()),
        faults: props.faults.clone(),
        advice: Some(needs::advice(
            &props.program,
            model,
            strategies,
            budget_bytes,
        )),
        is_quiet: props.quiet,
    })
}

/// What feeding did, for people.
pub fn sentence(shares: Option<&Shares>, fed: &Snapshot) -> String {
    let waited = (fed.waited_nanos + fed.waited_for_experts_nanos) as f64 / 1e9;
    let mut parts = vec![format!(
        "{} read in {}, waited {waited:.2} s for it",
        HumanBytes(fed.bytes_read),
        count(fed.evaluations, "evaluation")
    )];
    if let Some(shares) = shares {
        parts.push(match shares.is_nothing_fed() {
            true => "not fed".to_owned(),
            false => format!("{} kept", HumanBytes(shares.pinned_bytes)),
        });
        if shares.streamed_bytes > 0 {
            parts.push(format!(
                "{} streamed through {}",
                HumanBytes(shares.streamed_bytes),
                HumanBytes(shares.ring_bytes)
            ));
        }
        if shares.mapped_bytes > 0 {
            parts.push(format!(
                "{} left to the page cache (the program used {} besides)",
                HumanBytes(shares.mapped_bytes),
                HumanBytes(shares.other_bytes)
            ));
        }
        let uses = fed.expert_hits + fed.expert_misses;
        if uses > 0 {
            parts.push(format!(
                "{:.1} % of expert uses found in {} slots a layer ({})",
                fed.expert_hits as f64 / uses as f64 * 100.0,
                shares.expert_slots,
                HumanBytes(shares.expert_bytes)
            ));
        }
    }
    parts.extend(changes(
        (fed.times_grown, fed.grown_bytes),
        (fed.times_given, fed.given_bytes),
    ));
    if let Some(shares) = shares.filter(|_| fed.used_bytes > 0) {
        parts.push(format!(
            "mostly {} of {} in use",
            HumanBytes(fed.used_bytes),
            HumanBytes(shares.budget_bytes)
        ));
    }
    if fed.repeated_reads > 0 {
        parts.push(format!("{} repeated", count(fed.repeated_reads, "read")));
    }
    parts.join(", ")
}

fn say_memory(props: &FeedProps, usage: Option<Usage>) {
    let Some(usage) = usage else {
        return;
    };
    if let Some(peak) = usage.peak_bytes {
        let (peak, limit) = (HumanBytes(peak), HumanBytes(usage.limit_bytes));
        say(
            props,
            &format!("at most {peak} of memory, of {limit} allowed"),
        );
    }
    if let Some(lack) = needs::lack_of_memory(&props.program, Some(&usage)) {
        // Also when quiet: the program cannot say why it ended.
        eprintln!("tensorscope: {lack}");
    }
}
