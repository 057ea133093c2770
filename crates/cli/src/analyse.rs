//! One pass over a run's log, and everything that the analyses say about it.

use std::{num::NonZeroUsize, path::Path};

use analysis::{
    cache_trace::{CacheTrace, Scope},
    compare::Models,
    curves::{Curves, even_budgets},
    experts_cache::{ExpertCaches, RoutingSequence},
    facts::{self, Facts, Options},
    findings::{Finding, findings},
    opportunities::{Machine, Opportunities},
    reuse::{ReuseHistogram, ReuseTables},
    sequence::{Sequence, SequenceBuilder},
};
use anyhow::Context as _;
use rundir::Run;
use serde::Serialize;
use trace::read::{Event, StreamReader, streams};

use crate::progress;

/// Everything that `report --json` prints about a run besides its sums.
#[derive(Serialize)]
pub struct Results {
    pub findings: Vec<Finding>,
    pub facts: Facts,
    /// Absent when the run read no weights from a file.
    pub reuse: Option<Reuse>,
    pub curves: Option<CurvesOfRun>,
    pub expert_caches: Option<ExpertCaches>,
    /// Absent when no token was generated.
    pub opportunities: Option<Opportunities>,
}

/// Reuse distances of the whole run.
#[derive(Serialize)]
pub struct Reuse {
    pub units: ReuseHistogram,
    pub pages: ReuseHistogram,
}

#[derive(Serialize)]
pub struct CurvesOfRun {
    pub units: Curves,
    pub pages: Curves,
}

/// What a user may set.
pub struct AnalyseProps {
    pub facts: Options,
    /// Budgets of memory; none for even steps up to the bytes that the run used.
    pub budgets_bytes: Vec<u64>,
    /// Disk and memory as `bench ceilings` measured them.
    pub ceilings: Option<kernelio::Ceilings>,
}

/// Steps of a curve when no budgets are given.
const CURVE_POINTS: u64 = 16;

/// Reads the log once and runs every analysis.
pub fn analyse(run: &Run, props: &AnalyseProps) -> anyhow::Result<Results> {
    let (facts, sequence) = read(run, &props.facts)?;
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let footprint = sequence.touched_bytes();
    let budgets = match props.budgets_bytes.as_slice() {
        [] => even_budgets(footprint, CURVE_POINTS),
        given => given.to_vec(),
    };
    let machine = props.ceilings.as_ref().map(|ceilings| Machine {
        disk_bytes_per_second: ceilings.disk.bytes_per_second,
        memory_bytes_per_second: ceilings.memory.bytes_per_second,
        compute_nanos_per_token: median_token_nanos(&sequence),
    });
    let (mut reuse, mut curves) = (None, None);
    if footprint > 0 {
        let units = CacheTrace::units(&sequence);
        let pages = CacheTrace::pages(&sequence)?;
        let (unit_reuse, page_reuse) = (ReuseTables::of(&units), ReuseTables::of(&pages));
        curves = Some(CurvesOfRun {
            units: Curves::with_reuse(&units, &unit_reuse, &budgets, threads),
            pages: Curves::with_reuse(&pages, &page_reuse, &budgets, threads),
        });
        reuse = Some(Reuse {
            units: unit_reuse.scope(Scope::Run).histogram(),
            pages: page_reuse.scope(Scope::Run).histogram(),
        });
    }
    let opportunities = (sequence.generated_tokens() > 0 && footprint > 0)
        .then(|| Opportunities::of(&sequence, &budgets, machine, threads))
        .transpose()?;
    Ok(Results {
        findings: findings(&facts, opportunities.as_ref()),
        facts,
        reuse,
        curves,
        expert_caches: ExpertCaches::of(&RoutingSequence::of(&sequence), None),
        opportunities,
    })
}

/// The facts alone, for a comparison.
pub fn facts_of(run: &Run) -> anyhow::Result<Facts> {
    Ok(read(run, &Options::default())?.0)
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

fn read(run: &Run, options: &Options) -> anyhow::Result<(Facts, Sequence)> {
    let log_directory = run.log_directory();
    let mut facts = facts::Accumulator::new(options.clone());
    let mut sequence = SequenceBuilder::new();
    let bar = progress::bar(run.log_bytes(), "analysing", "bytes");
    let mut bytes_before = 0;
    for stream in streams(&log_directory)? {
        let mut reader = StreamReader::open(&log_directory, stream)?;
        sequence.select_stream(stream);
        while let Some(event) = reader.next_event()? {
            // Damaged and partial evaluations are named by the summary; no number
            // rests on them.
            if let Event::Evaluation(evaluation) = event {
                facts.push(&reader.definitions, &evaluation);
                sequence.push(&reader.definitions, &evaluation)?;
            }
            bar.set_position(bytes_before + reader.record_bytes());
        }
        facts.end_stream();
        bytes_before += reader.record_bytes();
    }
    bar.finish_and_clear();
    Ok((facts.finish(&model_of(run)), sequence.finish()))
}

/// What the model's files say, where they are still there and still the same.
fn model_of(run: &Run) -> facts::Model {
    let described = run.metadata().and_then(|m| m.model.as_ref());
    let Some(file) = described.and_then(|m| m.files.first()) else { return facts::Model::default() };
    match gguf::Model::open(Path::new(&file.path)) {
        Ok(model) if Some(model.len_bytes()) == described.map(|m| m.size_bytes) => (&model).into(),
        _ => facts::Model::default(),
    }
}

fn median_token_nanos(sequence: &Sequence) -> u64 {
    let mut nanos: Vec<u64> = sequence
        .evals
        .iter()
        .filter(|eval| eval.is_generate() && eval.tokens > 0)
        .map(|eval| eval.end_nanos.saturating_sub(eval.begin_nanos) / u64::from(eval.tokens))
        .collect();
    nanos.sort_unstable();
    nanos.get(nanos.len() / 2).copied().unwrap_or(0)
}

/// Ceilings that `bench ceilings -o FILE` wrote.
pub fn read_ceilings(path: &Path) -> anyhow::Result<kernelio::Ceilings> {
    let text = std::fs::read_to_string(path).with_context(|| format!("{}: cannot read", path.display()))?;
    serde_json::from_str(&text)
        .with_context(|| format!("{}: not what `tensorscope bench ceilings -o` writes", path.display()))
}
