//! `tensorscope diagnose`: why a run is slow, what to change, what that gives, and whether
//! it does.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

pub mod measured;

use analysis::{
    experts_cache::routing_of,
    roofline::Roofline,
    time_stack::{self, Bytes, PhaseTime},
    weights::weights_of,
};
use anyhow::Context as _;
use bench::verify;
use diagnose::{Diagnosis, Inputs};
use gguf::GgmlType;
use imports::{Format, Import};
use launch::planning::{self, Question};
use plan::{Machine, Strategies};
use reader::{Log, kernel::Timeline};
use render::diagnosis::Sources;
use rules::{RuleFile, RuleSet, Subject};
use rundir::{Run, machine, metadata::Metadata};
use serde_json::json;
use terminal::runs::{open_run, says_what_is_missing};

use measured::{Measure, Measured};

use crate::{
    analyse::{Results, model_of, read_ceilings, results, sequence_of},
    setup::setup_of,
};

/// Of the samples; more say too little about what threads do.
const MANY_UNNAMED: f64 = 0.5;

/// Say why a run is slow, what to change, by how much that helps, and check it
///
/// The time of a token as a stack that adds up (computing, waiting for pages, for other
/// threads, not running, between evaluations), for each phase; then causes, the one that
/// costs most first: evidence, why, what to type, the gain to expect, and what would refute
/// it. Rules are data: docs/rules.md.
///
/// Threads are seen in a run that was recorded with --cpu, and what they waited for with
/// --faults --io as well. Other tools' files (perf, Nsight Compute and Systems, strace) are
/// diagnosed beside a run, or alone.
///
/// Exit code 0 whether there are causes or not, 1 when the run lacks something or --verify
/// refutes an action, 2 for bad input.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tensorscope record -m model.gguf -p Hi -n 64 --cpu --faults --io -o RUN
  tensorscope diagnose RUN
  tensorscope diagnose RUN --verify                 # try each action, in turns with none
  tensorscope diagnose RUN --json | jq '.causes[0]'
  tensorscope diagnose RUN --rules mine.toml        # rules of your own, see docs/rules.md
  tensorscope diagnose RUN --import perf.data --import strace.txt
  ncu --set full --page raw --csv ./program > kernels.csv
  tensorscope diagnose --ncu kernels.csv            # without a run")]
pub struct Args {
    /// Run directory
    #[arg(required_unless_present_any = ["import", "ncu", "nsys", "perf", "strace"])]
    run: Option<PathBuf>,

    /// File of another tool, of any kind that is known; may be given several times
    #[arg(long, value_name = "FILE")]
    import: Vec<PathBuf>,

    /// Nsight Compute's CSV (ncu --csv --page raw, or details)
    #[arg(long, value_name = "FILE")]
    ncu: Vec<PathBuf>,

    /// Nsight Systems' sqlite export (nsys export --type sqlite)
    #[arg(long, value_name = "FILE")]
    nsys: Vec<PathBuf>,

    /// perf.data, or what perf script, stat, sched, mem or c2c print
    #[arg(long, value_name = "FILE")]
    perf: Vec<PathBuf>,

    /// What strace prints, with -c or without
    #[arg(long, value_name = "FILE")]
    strace: Vec<PathBuf>,

    /// Rules besides those that come with the program
    #[arg(long, value_name = "FILE")]
    rules: Vec<PathBuf>,

    /// What memory and disk give: what `bench ceilings -o FILE` wrote [default: memory is
    /// measured now, where the run is of this machine]
    #[arg(long, value_name = "FILE")]
    ceilings: Option<PathBuf>,

    /// Do not measure memory
    #[arg(long, conflicts_with = "ceilings")]
    no_measure: bool,

    /// Try each action that can be applied, one at a time and in turns with the run as it
    /// was: predicted and measured gain side by side. Takes minutes
    #[arg(long, requires = "run")]
    verify: bool,

    /// How often each variant is run with --verify
    #[arg(long, value_name = "N", default_value_t = 3, requires = "verify",
          value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,

    /// Show the query or the place behind each number, and rules that lack an input
    #[arg(long, conflicts_with = "json")]
    evidence: bool,

    /// Print everything as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let rules = rule_set(&args.rules)?;
    let imports = args.imports()?;
    let imported: Vec<Subject> = imports.iter().flat_map(|i| i.subjects.clone()).collect();
    let Some(path) = &args.run else {
        let mut diagnosis = diagnose::diagnose_imported(imported, &rules);
        diagnosis.missing = imports.iter().flat_map(|i| i.notes.clone()).collect();
        return print(args, &diagnosis, None, &[], true);
    };
    let run = open_run(path)?;
    let kept = imports::kept(run.path()).with_context(|| run.path().display().to_string())?;
    let imported: Vec<Subject> = kept
        .iter()
        .flat_map(|kept| kept.subjects.clone())
        .chain(imported)
        .collect();
    let results = results(&run)?;
    let times = times(&run, &results)?;
    let threads = threads_of(&results, &times.0);
    let measured = args.measured(&run, &times.1, threads)?;
    let mut diagnosis = diagnosis_of(&run, &results, &times, &measured, &rules, &imported)?;
    let notes = imports.iter().flat_map(|i| i.notes.clone());
    diagnosis.missing.extend(notes);
    let is_whole = !says_what_is_missing(
        &run,
        results
            .facts
            .traffic
            .phases
            .iter()
            .map(|p| p.evaluations)
            .sum(),
    );
    let verified = match args.verify {
        true => verify::verify(&run, &diagnosis, usize::from(args.rounds))?,
        false => Vec::new(),
    };
    let roofline = measured.roofline(&results.facts.classes);
    print(args, &diagnosis, roofline.as_ref(), &verified, is_whole)
}

/// What a run shows by itself, with the rules that come with the program: for `report` and
/// `view`.
pub fn of_run(run: &Run, results: &Results) -> anyhow::Result<Diagnosis> {
    let times = times(run, results)?;
    let measured = Measured::kept(run);
    let kept = imports::kept(run.path()).with_context(|| run.path().display().to_string())?;
    let imported: Vec<Subject> = kept.into_iter().flat_map(|kept| kept.subjects).collect();
    let rules = RuleSet::shipped();
    diagnosis_of(run, results, &times, &measured, rules, &imported)
}

fn diagnosis_of(
    run: &Run,
    results: &Results,
    (bytes, times): &(Bytes, Vec<PhaseTime>),
    measured: &Measured,
    rules: &RuleSet,
    imported: &[Subject],
) -> anyhow::Result<Diagnosis> {
    let ceilings = measured.ceilings(threads_of(results, bytes));
    let model = model_of(run);
    let setup = setup_of(run, model.as_ref(), None);
    let inputs = Inputs {
        facts: &results.facts,
        underneath: results.underneath.as_ref(),
        times,
        metadata: run.metadata(),
        setup: &setup,
        ceilings: ceilings.clone(),
        threads: &bytes.threads(),
        better_kernels: better_kernels(run),
        fed_nanos_per_token: fed_nanos(run, results, times, measured)?,
        more: &[],
    };
    let mut diagnosis = diagnose::diagnose(&inputs, rules, imported);
    let below = results.underneath.as_ref();
    let missing = below.map_or_else(Vec::new, |below| below.missing.clone());
    diagnosis.missing.extend(missing);
    let is_watched = below.is_some_and(|below| !below.time.is_empty());
    if !is_watched {
        diagnosis.missing.push(
            "what threads did was not recorded: whether an operation computed or waited is not known; \
             record with --cpu (and --faults --io for what they waited for)"
                .to_owned(),
        );
    }
    if times.iter().any(|time| time.unnamed_share > MANY_UNNAMED) {
        diagnosis.missing.push(
            "most functions of the program have no names (its symbols were stripped): threads that wait for \
             each other look as if they computed; run a program that has its symbols"
                .to_owned(),
        );
    }
    if ceilings.memory.is_none() {
        diagnosis.missing.push(
            "what memory gives is not known: `tensorscope bench ceilings -m MODEL -o FILE` on the machine of \
             the run, then --ceilings FILE"
                .to_owned(),
        );
    }
    Ok(diagnosis)
}

/// What threads and disk did where that was recorded; else evaluations and pauses.
fn times(run: &Run, results: &Results) -> anyhow::Result<(Bytes, Vec<PhaseTime>)> {
    let mut bytes = Bytes::default();
    Log::new(&run.log_directory()).walk(&mut bytes)?;
    let watched = results.underneath.as_ref().map(|below| &below.time);
    if let Some(times) = watched.filter(|times| !times.is_empty()) {
        return Ok((bytes, times.clone()));
    }
    let timeline = Timeline::read(&run.log_directory())?;
    let times = time_stack::stacks(&time_stack::Inputs {
        timeline: &timeline,
        bytes: &bytes,
        disk: None,
        reads: None,
        cpu: None,
        memory_ceiling: None,
    });
    Ok((bytes, times))
}

/// Kernels of the built-in engine that the machine of the run could have used instead.
fn better_kernels(run: &Run) -> Option<&'static str> {
    let metadata = run.metadata()?;
    let used = metadata.versions.kernels.as_deref()?;
    let best = engine::variant::all().iter().rev();
    let best = best.into_iter().find(|variant| variant.lacks().is_none())?;
    (is_this_machine(metadata) && best.name != used).then_some(best.name)
}

/// By its name and processor: what is measured here holds for it.
fn is_this_machine(metadata: &Metadata) -> bool {
    let (then, now) = (&metadata.machine, machine::describe(None));
    then.hostname == now.hostname
        && then.cpu_model == now.cpu_model
        && then.cpus_online == now.cpus_online
}

fn rule_set(files: &[PathBuf]) -> anyhow::Result<RuleSet> {
    let mut rules = RuleSet::shipped().clone();
    for file in files {
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("{}: cannot read", file.display()))?;
        rules.extend(RuleFile::parse(&text, &file.to_string_lossy())?)?;
    }
    Ok(rules)
}

impl Args {
    fn imports(&self) -> anyhow::Result<Vec<Import>> {
        let any = |files: &[PathBuf], format: Option<Format>| -> Vec<(PathBuf, Option<Format>)> {
            files.iter().map(|file| (file.clone(), format)).collect()
        };
        let mut list = any(&self.import, None);
        list.extend(any(&self.ncu, Some(Format::NcuCsv)));
        list.extend(any(&self.nsys, Some(Format::NsysSqlite)));
        list.extend(any(&self.perf, None));
        list.extend(any(&self.strace, Some(Format::Strace)));
        let read = |(file, format): (PathBuf, Option<Format>)| Ok(imports::read(&file, format)?);
        list.into_iter().map(read).collect()
    }

    /// As given; else measured now, where the run is of this machine.
    fn measured(
        &self,
        run: &Run,
        times: &[PhaseTime],
        threads: Option<usize>,
    ) -> anyhow::Result<Measured> {
        let Some(file) = &self.ceilings else {
            let here = run.metadata().is_some_and(is_this_machine);
            let measure = match here && !self.no_measure {
                true => Measure::Now,
                false => Measure::Never,
            };
            return Ok(Measured::of(run, times, threads, measure));
        };
        let given = read_ceilings(file)?;
        Ok(Measured {
            compute: given.compute,
            memory: Some(given.memory),
            disk: Some(given.disk),
        })
    }
}

/// Of the phase that took longest.
fn threads_of(results: &Results, bytes: &Bytes) -> Option<usize> {
    let longest = results
        .facts
        .traffic
        .phases
        .iter()
        .max_by_key(|p| p.nanos)?;
    let threads = bytes.threads();
    let found = threads.iter().find(|(phase, _)| *phase == longest.phase)?;
    usize::try_from(found.1).ok()
}

/// A generated token's time with weights fed in the memory that the run had, as `plan`
/// predicts it; only of a run that waited for pages, where the disk was measured and the model
/// is still there.
fn fed_nanos(
    run: &Run,
    results: &Results,
    times: &[PhaseTime],
    measured: &Measured,
) -> anyhow::Result<Option<f64>> {
    let waits = |time: &PhaseTime| time.disk.unwrap_or(0) > time.nanos / 20 && time.fed == 0;
    let generates = |time: &&PhaseTime| time.phase == "generate" && time.tokens > 0;
    let (Some(disk), Some(memory)) = (&measured.disk, &measured.memory) else {
        return Ok(None);
    };
    let model = model_of(run);
    let budget = setup_of(run, model.as_ref(), None).memory_bytes;
    let budget = budget.filter(|_| times.iter().any(waits));
    let generate = times.iter().find(generates);
    let (Some(model), Some(budget_bytes), Some(generate)) = (model, budget, generate) else {
        return Ok(None);
    };
    let sequence = sequence_of(run)?;
    let weights = weights_of(&sequence, Some(&model));
    let routing = routing_of(&sequence);
    // The run computed as fast as its threads do when they do not wait.
    let compute = (generate.at_wall.unwrap_or(0) + generate.below_wall) as f64;
    let machine = planning::machine_of(disk, memory);
    // Disks with credits give less after a run than they gave in it, by faults alone.
    let below = results.underneath.as_ref();
    let verdicts = below.map_or(&[][..], |below| &below.verdicts);
    let seen = verdicts.iter().find(|v| v.phase == generate.phase);
    let seen = seen.and_then(|verdict| verdict.disk_bytes_per_second);
    let machine = Machine {
        compute_seconds_per_token: Some(compute / 1e9 / generate.tokens as f64),
        disk_bytes_per_second: machine.disk_bytes_per_second.max(seen.unwrap_or(0) as f64),
        ..machine
    };
    let first = &model.files()[0].path;
    let ahead = planning::read_ahead_bytes(Some(run), Some(first));
    let question = Question {
        budget_bytes,
        other_bytes: other_bytes(run, &model),
        strategies: Strategies::ALL,
        machine: machine.reading_ahead(ahead, &weights),
        routing: Some(&routing).filter(|routing| !routing.uses.is_empty()),
        policy: None,
        tokens: None,
        model: &model,
        weights,
    };
    let speed = question.answer().plan.predicted.tokens_per_second;
    Ok(speed.map(|tokens_per_second| 1e9 / tokens_per_second))
}

/// What `run` would need besides weights for what was recorded: its context, and buffers for
/// no more tokens than its prompt has. Of a program that is not ours what plans presume.
fn other_bytes(run: &Run, model: &gguf::Model) -> u64 {
    let usual = (
        GgmlType::F16,
        planning::CONTEXT_TOKENS,
        planning::MICRO_BATCH_TOKENS,
    );
    let metadata = run.metadata();
    let of_run = metadata.and_then(|metadata| {
        let settings = metadata.settings.as_ref()?;
        let prompt = metadata.statistics.as_ref()?.prompt_tokens;
        let prompt = u32::try_from(prompt).unwrap_or(u32::MAX);
        let at_once = prompt.max(settings.parallel).min(settings.ubatch_tokens);
        let key_type = GgmlType::from_name(&settings.kv_type_k)?;
        Some((key_type, settings.context_tokens, at_once))
    });
    let (key_type, context, at_once) = of_run.unwrap_or(usual);
    planning::other_bytes(model, key_type, context.into(), at_once.into())
}

fn print(
    args: &Args,
    diagnosis: &Diagnosis,
    roofline: Option<&Roofline>,
    verified: &[verify::Verified],
    is_whole: bool,
) -> anyhow::Result<ExitCode> {
    if args.json {
        let mut value = serde_json::to_value(diagnosis)?;
        value["run"] = json!(args.run.as_deref().map(Path::to_string_lossy));
        value["roofline"] = serde_json::to_value(roofline)?;
        if args.verify {
            value["verified"] = serde_json::to_value(verified)?;
        }
        terminal::print(&(serde_json::to_string_pretty(&value)? + "\n"))?;
    } else {
        let sources = match args.evidence {
            true => Sources::Shown,
            false => Sources::Hidden,
        };
        let mut page = render::diagnosis::text(diagnosis, sources);
        if args.verify {
            page.push_str(&verify::text(verified));
        }
        terminal::print(&page)?;
    }
    let is_refuted = verified.iter().any(verify::Verified::is_refuted);
    match is_whole && !is_refuted {
        true => Ok(ExitCode::SUCCESS),
        false => Ok(ExitCode::from(1)),
    }
}
