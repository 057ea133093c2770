//! Rows of the tables that only the ingest makes: `run` and `traffic`.

use std::collections::BTreeMap;

use reader::{Prepared, Tensors, rows::direction_name};
use rundir::{Run, metadata::RunStatus};

use crate::{
    columns::TemplateColumns,
    row_group::{Cell, RowGroup, Texts},
    schema::RUN,
};

/// Counted while reading the log.
#[derive(Default)]
pub struct RunCounts {
    pub evals: u64,
    pub accesses: u64,
    pub partial: u64,
    pub corrupt: u64,
}

/// Accesses and bytes by what table `traffic` tells apart.
pub type TrafficSums = BTreeMap<TrafficKey, (u64, u64)>;

#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub struct TrafficKey {
    tensor: u32,
    phase: &'static str,
    op: String,
    layer: Option<u32>,
    direction: &'static str,
    expert: Option<u32>,
}

pub fn run(texts: &mut Texts, run: &Run, counts: &RunCounts) -> RowGroup {
    let metadata = run.metadata();
    let model = metadata.and_then(|m| m.model.as_ref());
    let status = metadata.map(|m| match m.status {
        RunStatus::Recording => "recording",
        RunStatus::Complete => "complete",
        RunStatus::StoppedEarly => "stopped early",
    });
    let hyper = model.map(|m| &m.hyperparameters);
    let settings = metadata.and_then(|m| m.settings.as_ref());
    let mut group = RowGroup::new(&RUN);
    group.push(
        texts,
        [
            text(metadata.map(|m| m.started_utc.as_str())),
            text(status),
            text(model.and_then(|m| m.name.as_deref())),
            text(model.map(|m| m.architecture.as_str())),
            text(model.and_then(|m| Some(m.files.first()?.path.as_str()))),
            int(model.map(|m| m.size_bytes)),
            int(model.map(|m| m.parameters)),
            int(hyper.map(|h| h.n_layer)),
            int(hyper.map(|h| h.n_expert)),
            int(hyper.map(|h| h.n_expert_used)),
            int(settings.map(|s| s.threads)),
            text(metadata.and_then(|m| m.machine.hostname.as_deref())),
            text(metadata.map(|m| m.tensorscope_version.as_str())),
            int(Some(counts.evals)),
            int(Some(counts.accesses)),
            int(Some(counts.partial)),
            int(Some(counts.corrupt)),
            int(Some(run.lost().evaluations)),
        ],
    );
    group
}

/// Adds up what was seen of a template.
pub fn add_traffic(columns: &TemplateColumns, prepared: &Prepared, sums: &mut TrafficSums) {
    for (&phase, tally) in &columns.tallies {
        for (at, access) in prepared.accesses.iter().enumerate() {
            let step = &prepared.steps[access.step];
            let mut add = |expert, (accesses, bytes): (u64, u64)| {
                if accesses > 0 {
                    let key = TrafficKey {
                        tensor: access.tensor,
                        phase,
                        op: step.op.to_string(),
                        layer: step.layer,
                        direction: direction_name(access.direction),
                        expert,
                    };
                    let sum = sums.entry(key).or_default();
                    sum.0 += accesses;
                    sum.1 += bytes;
                }
            };
            let evals = tally.step_evals[access.step];
            add(None, (evals, evals * access.bytes));
            let indexed = &tally.indexed[at];
            add(None, indexed.of_no_expert);
            let by_expert = indexed.by_expert.iter();
            by_expert.for_each(|(&expert, &sum)| add(Some(expert), sum));
        }
    }
}

pub fn traffic(group: &mut RowGroup, texts: &mut Texts, tensors: &Tensors, sums: TrafficSums) {
    for (key, (accesses, bytes)) in sums {
        let tensor = &tensors.all()[key.tensor as usize];
        group.push(
            texts,
            [
                Cell::Text(key.phase),
                int(Some(tensor.number)),
                Cell::Text(&tensor.name),
                Cell::Text(tensor.kind.name()),
                text(tensor.component_in(&key.op)),
                text(tensor.role()),
                Cell::Text(&key.op),
                int(key.layer),
                Cell::Text(key.direction),
                int(key.expert),
                int(Some(accesses)),
                int(Some(bytes)),
            ],
        );
    }
}

fn text(value: Option<&str>) -> Cell<'_> {
    value.map_or(Cell::Null, Cell::Text)
}

pub fn int(value: Option<impl Into<u64>>) -> Cell<'static> {
    value.map_or(Cell::Null, |value| Cell::Int(value.into() as i64))
}
