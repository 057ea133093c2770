//! One pass over a run's log, and everything that the analyses say about it.

use std::{io, num::NonZeroUsize, path::Path};

use analysis::{
    actions::{Action, Grounds, actions},
    caches::{CacheQuestion, Caches},
    compare::Models,
    facts::{self, Facts, Options},
    findings::{self, Finding, findings},
    reading::Reading,
    roofline::Roofline,
    sequence::Sequence,
    time_stack::Bytes,
    traffic::TrafficResults,
    underneath::{
        ModelFiles, Rows, UnderneathResults,
        verdict::{Counters, Speeds},
        work::Work,
    },
    weights::{compute_seconds, weights_of},
};
use anyhow::{Context as _, bail};
use gguf::GgmlType;
use kernelio::card::CardCeiling;
use plan::Machine;
use reader::{
    Log,
    kernel::{self, Owners, Timeline, Underneath},
};
use rundir::Run;
use serde::{Deserialize, Serialize};
use terminal::progress;
use trace::format::Checksum;

use launch::planning;

use crate::{diagnose::measured::Measured, setup::setup_of};

/// Everything that `report --json` prints about a run besides its sums.
#[derive(Serialize, Deserialize)]
pub struct Results {
    /// Without a default: results that were kept before there were any are made again.
    pub actions: Vec<Action>,
    pub findings: Vec<Finding>,
    pub facts: Facts,
    /// Absent when the run read no weights from a file.
    pub caches: Option<Caches>,
    /// Absent when nothing was recorded of what the kernel did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub underneath: Option<UnderneathResults>,
    /// Absent when it is not known what the hardware allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roofline: Option<Roofline>,
    /// What the cards allow, as far as that is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cards: Vec<CardCeiling>,
}

/// File in a run directory that keeps the answers to [`AnalyseProps::default`].
const KEPT_FILE: &str = "analysis.json";
/// Counts up whenever results change between two releases.
const KEPT_REVISION: u32 = 6;

/// The first line of that file, about the results behind it. `record` leaves them for every
/// later `report` and `view`: exact curves of 10⁸ accesses take a minute.
#[derive(PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    /// Of the program; another one may define a number differently.
    version: String,
    /// What they were made from.
    log_bytes: u64,
    /// Of the results, as written.
    checksum: u64,
}

impl Kept {
    fn of(run: &Run, results: &[u8]) -> io::Result<Kept> {
        Ok(Kept {
            version: format!("{}+{KEPT_REVISION}", env!("CARGO_PKG_VERSION")),
            log_bytes: run.log_bytes(),
            checksum: Checksum::of(results)?,
        })
    }
}

/// What a user may set.
#[derive(Default)]
pub struct AnalyseProps {
    pub facts: Options,
    /// Budgets of memory for the whole program; none for even steps of memory for weights, up to
    /// the bytes that the run used.
    pub budgets_bytes: Vec<u64>,
    /// Disk and memory as `bench ceilings` measured them.
    pub ceilings: Option<kernelio::Ceilings>,
}

impl AnalyseProps {
    pub fn is_default(&self) -> bool {
        self.facts == Options::default() && self.budgets_bytes.is_empty() && self.ceilings.is_none()
    }
}

/// The answers to the default question: those that were kept, or computed now and kept.
pub fn results(run: &Run) -> anyhow::Result<Results> {
    let mut results = match kept(run) {
        Some(results) => results,
        None => {
            let results = analyse(run, &AnalyseProps::default())?;
            // A run on a disk that cannot be written to is analysed each time.
            let _ = keep(run, &results);
            results
        }
    };
    // `diagnose` has measured the machine of the run, perhaps since these were kept.
    results.roofline = Measured::kept(run).roofline(&results.facts.classes);
    if let Some(roofline) = &results.roofline {
        say_roofline(&mut results.findings, roofline);
    }
    Ok(results)
}

/// Behind where the time went.
fn say_roofline(list: &mut Vec<Finding>, roofline: &Roofline) {
    let time = list.iter().rposition(|finding| finding.topic == "time");
    let at = time.map_or(list.len(), |at| at + 1);
    list.splice(at..at, findings::roofline(roofline));
}

fn kept(run: &Run) -> Option<Results> {
    let text = std::fs::read(run.path().join(KEPT_FILE)).ok()?;
    let line = text.iter().position(|&byte| byte == b'\n')?;
    let (head, results) = (&text[..line], &text[line + 1..]);
    let kept: Kept = serde_json::from_slice(head).ok()?;
    let is_current = kept == Kept::of(run, results).ok()?;
    serde_json::from_slice(results).ok().filter(|_| is_current)
}

fn keep(run: &Run, results: &Results) -> anyhow::Result<()> {
    let results = serde_json::to_vec(results)?;
    let mut text = serde_json::to_vec(&Kept::of(run, &results)?)?;
    text.push(b'\n');
    text.extend(results);
    Ok(keep_file(run, KEPT_FILE, &text)?)
}

/// A file of a run, in one step, so that a reader finds all of it or nothing.
pub fn keep_file(run: &Run, name: &str, bytes: &[u8]) -> io::Result<()> {
    let scratch = run.path().join(format!(".{name}-{}", std::process::id()));
    let written = std::fs::write(&scratch, bytes)
        .and_then(|()| std::fs::rename(&scratch, run.path().join(name)));
    if written.is_err() {
        let _ = std::fs::remove_file(&scratch);
    }
    written
}

/// Reads the log once and runs every analysis.
pub fn analyse(run: &Run, props: &AnalyseProps) -> anyhow::Result<Results> {
    let model = model_of(run);
    let (facts, sequence) = read(run, model.as_ref(), &props.facts)?;
    let weights = weights_of(&sequence, model.as_ref());
    let machine = match &props.ceilings {
        Some(ceilings) => Machine {
            compute_seconds_per_token: compute_seconds(&sequence),
            ..planning::machine_of(&ceilings.disk, &ceilings.memory)
        },
        None => Machine::new(0.0),
    };
    let ahead = planning::read_ahead_bytes(Some(run), None);
    let beside = beside_weights_bytes(props, model.as_ref());
    let for_weights = |&budget: &u64| budget.saturating_sub(beside.unwrap_or(0));
    let question = CacheQuestion {
        budgets_bytes: props.budgets_bytes.iter().map(for_weights).collect(),
        given_bytes: props.budgets_bytes.clone(),
        beside_weights_bytes: beside,
        machine: machine.reading_ahead(ahead, &weights),
        weights,
        threads: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
    };
    // Weights in a device's memory are not read again from a file, and of experts that a device
    // chose not all are known: what less memory would give cannot be said of such a run.
    let has_weights = sequence.touched_bytes() > 0 && facts.devices.is_empty();
    let caches = has_weights
        .then(|| Caches::of(&sequence, &question))
        .transpose()?;
    let opportunities = caches
        .as_ref()
        .and_then(|caches| caches.opportunities.as_ref());
    let underneath = underneath(run, &facts.traffic, props.ceilings.as_ref())?;
    // What a run was recorded under pressure for is what is asked first.
    let mut list = underneath
        .as_ref()
        .map_or_else(Vec::new, findings::underneath);
    let ceilings = props.ceilings.as_ref();
    let cards = ceilings.map_or_else(Vec::new, |ceilings| ceilings.cards.clone());
    list.extend(findings::devices(&facts, &cards));
    list.extend(findings(&facts, opportunities));
    let roofline = ceilings
        .map(|ceilings| Roofline::of(&facts.classes, &ceilings.memory, ceilings.compute.as_ref()));
    if let Some(roofline) = &roofline {
        say_roofline(&mut list, roofline);
    }
    let grounds = Grounds {
        facts: &facts,
        opportunities,
        underneath: underneath.as_ref(),
        setup: &setup_of(run, model.as_ref(), props.ceilings.as_ref()),
    };
    Ok(Results {
        actions: actions(&grounds),
        findings: list,
        facts,
        caches,
        underneath,
        roofline,
        cards,
    })
}

/// What a program needs besides weights, as in a plan; `None` where the model's file is gone.
fn beside_weights_bytes(props: &AnalyseProps, model: Option<&gguf::Model>) -> Option<u64> {
    let Some(model) = model else {
        if !props.budgets_bytes.is_empty() {
            eprintln!(
                "tensorscope: the model's file is not there to say what a run needs besides \
                 weights: --memory is taken to be for weights alone"
            );
        }
        return None;
    };
    let (context, batch) = (planning::CONTEXT_TOKENS, planning::MICRO_BATCH_TOKENS);
    let other = planning::other_bytes(model, GgmlType::F16, context.into(), batch.into());
    Some(planning::beside_weights_bytes(other))
}

/// What the kernel did, where that was recorded; else this costs nothing.
fn underneath(
    run: &Run,
    traffic: &TrafficResults,
    ceilings: Option<&kernelio::Ceilings>,
) -> anyhow::Result<Option<UnderneathResults>> {
    let counters = counters(run);
    if counters.is_none() && !kernel::join::is_there(run) {
        return Ok(None);
    }
    let recorded = Underneath::open(run)?;
    let (faults, io, samples) = match &recorded {
        Some(recorded) => (recorded.faults()?, recorded.io()?, recorded.samples()?),
        None => (None, None, None),
    };
    let cpu = recorded.as_ref().map(Underneath::cpu).transpose()?;
    let cpu = cpu.flatten();
    let mut bytes_read = Bytes::default();
    if cpu.is_some() {
        Log::new(&run.log_directory()).walk(&mut bytes_read)?;
    }
    let (owners, timeline) = match recorded {
        Some(recorded) => (recorded.owners, recorded.timeline),
        None => (Owners::of_run(run), Timeline::read(&run.log_directory())?),
    };
    let described = run.metadata().and_then(|m| m.model.as_ref());
    let files = described.map_or(0, |model| model.files.len() as u32);
    let bytes = described.map_or(0, |model| model.size_bytes);
    let rows = Rows {
        model: &ModelFiles::of(&owners, files, bytes),
        work: &Work::of(timeline),
        faults: faults.as_deref(),
        io: io.as_deref(),
        samples: samples.as_deref(),
        counters: counters.as_ref(),
        cpu: cpu.as_ref().map(|cpu| (cpu, &bytes_read)),
        traffic,
        speeds: ceilings.map(|ceilings| Speeds {
            disk: ceilings.disk.bytes_per_second,
            memory: ceilings.memory.bytes_per_second,
        }),
    };
    Ok(Some(rows.results()))
}

/// The kernel's totals, from the run's metadata; `None` where it was not asked, and only
/// limited, say.
fn counters(run: &Run) -> Option<Counters> {
    let described = run.metadata()?.underneath.as_ref()?;
    let was_asked = described.major_faults.is_some() || described.read_bytes.is_some();
    if !was_asked && described.missing.is_empty() {
        return None;
    }
    let mut missing = described.missing.clone();
    let lost = [
        (described.lost_faults, "page faults"),
        (described.lost_cpu_records, "records of what threads did"),
        (described.lost_requests, "block requests"),
    ];
    for (count, what) in lost {
        let count = count.unwrap_or(0);
        if count > 0 {
            missing.push(format!("{count} {what} were lost while recording"));
        }
    }
    Some(Counters {
        major_faults: described.major_faults,
        minor_faults: described.minor_faults,
        read_bytes: described.read_bytes,
        memory_limit_bytes: described.memory_limit_bytes,
        missing,
    })
}

/// The weights of a run in the order of their use.
pub fn sequence_of(run: &Run) -> anyhow::Result<Sequence> {
    Ok(read(run, None, &Options::default())?.1)
}

/// The facts alone, for a comparison, and from how many evaluations they are.
pub fn facts_of(run: &Run) -> anyhow::Result<(Facts, u64)> {
    let model = model_of(run);
    let (facts, sequence) = read(run, model.as_ref(), &Options::default())?;
    Ok((facts, sequence.evals.len() as u64))
}

/// Two runs are of one model when layers, heads and experts are the same,
/// whatever the precision.
pub fn models_of(a: &Run, b: &Run) -> Models {
    let shape = |run: &Run| {
        let model = run.metadata()?.model.as_ref()?;
        Some((model.architecture.clone(), model.hyperparameters.clone()))
    };
    match (shape(a), shape(b)) {
        (Some(a), Some(b)) if a == b => Models::Same,
        _ => Models::Different,
    }
}

fn read(
    run: &Run,
    model: Option<&gguf::Model>,
    options: &Options,
) -> anyhow::Result<(Facts, Sequence)> {
    let mut reading = Reading::new(options.clone());
    let bar = progress::bar(run.log_bytes(), "analysing", "bytes");
    // Damaged and partial evaluations are named by the summary; no number rests on them.
    let walked = Log::new(&run.log_directory())
        .walk_with_progress(&mut reading, &mut |bytes| bar.set_position(bytes))?;
    bar.finish_and_clear();
    let model = model.map_or_else(facts::Model::default, facts::Model::from);
    Ok(reading.finish(&walked.tensors, &model))
}

/// The model of a run, where its file is still there and still the same.
pub fn model_of(run: &Run) -> Option<gguf::Model> {
    let described = run.metadata()?.model.as_ref()?;
    let model = gguf::Model::open(Path::new(&described.files.first()?.path)).ok()?;
    (model.len_bytes() == described.size_bytes).then_some(model)
}

/// Ceilings that `bench ceilings -o FILE` wrote.
pub fn read_ceilings(path: &Path) -> anyhow::Result<kernelio::Ceilings> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("{}: cannot read", path.display()))?;
    let ceilings: kernelio::Ceilings = serde_json::from_str(&text).with_context(|| {
        format!(
            "{}: not what `tensorscope bench ceilings -o` writes",
            path.display()
        )
    })?;
    let rates = [
        &ceilings.disk.bytes_per_second,
        &ceilings.memory.bytes_per_second,
    ];
    if rates.contains(&&0) {
        bail!(
            "{}: a speed of 0 predicts nothing; measure again",
            path.display()
        );
    }
    Ok(ceilings)
}
