//! Rows of the small tables, one function each.

use std::collections::BTreeMap;

use gguf::GgmlType;
use rundir::{Run, metadata::RunStatus};
use trace::{
    expand::for_each_route,
    read::Definitions,
    template::{CaptureKind, Step, TensorDef},
};

use crate::{
    expand::Expansion,
    row_group::{Cell, RowGroup, Texts},
    schema::RUN,
    template::{Sums, TemplateRows, TensorRow, direction_name},
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
    tensor: usize,
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

pub fn tensor(
    group: &mut RowGroup,
    texts: &mut Texts,
    row: &TensorRow,
    def: &TensorDef,
    buffer_type: &str,
) {
    let layer = def.place.and_then(|_| gguf::Meaning::of(&row.name).layer);
    let ty = GgmlType::from_u32(def.ggml_type).map_or("unknown", GgmlType::name);
    group.push(
        texts,
        [
            Cell::Int(row.tensor),
            Cell::Text(&row.name),
            Cell::Text(row.kind.name()),
            text(row.component),
            text(row.role.as_deref()),
            int(layer),
            Cell::Text(ty),
            Cell::Text(&gguf::structure::shape_text(&def.ne)),
            int(Some(def.size_bytes)),
            int(def.place.map(|p| p.file)),
            int(def.place.map(|p| p.file_offset)),
            Cell::Text(buffer_type),
            Cell::Int(def.address as i64),
        ],
    );
}

pub fn eval(
    group: &mut RowGroup,
    texts: &mut Texts,
    of: &Expansion,
    sums: &Sums,
    stream: u32,
    template: i64,
) {
    let evaluation = of.evaluation;
    let tokens = evaluation.first_of(of.template, CaptureKind::Tokens).len();
    group.push(
        texts,
        [
            Cell::Int(of.eval),
            int(Some(stream)),
            Cell::Text(evaluation.phase.name()),
            int(Some(evaluation.begin_nanos)),
            int(Some(evaluation.end_nanos)),
            Cell::Int(tokens as i64),
            Cell::Int(of.template.steps.len() as i64),
            int(Some(evaluation.threads)),
            // Tells contexts apart and means nothing else: its bits are kept.
            Cell::Int(evaluation.context as i64),
            Cell::Int(template),
            int(Some(evaluation.flags)),
            int(Some(sums.accesses)),
            int(Some(sums.read_bytes)),
            int(Some(sums.written_bytes)),
            int(Some(sums.weight_bytes)),
            int(Some(sums.kv_bytes)),
        ],
    );
}

pub fn tokens(
    group: &mut RowGroup,
    texts: &mut Texts,
    of: &Expansion,
    pieces: &BTreeMap<u32, Vec<u8>>,
) {
    let evaluation = of.evaluation;
    let positions = evaluation.first_of(of.template, CaptureKind::Positions);
    let ids = evaluation.first_of(of.template, CaptureKind::Tokens);
    for (i, &id) in ids.iter().enumerate() {
        let piece = u32::try_from(id).ok().and_then(|id| pieces.get(&id));
        let piece = piece.map(|bytes| String::from_utf8_lossy(bytes));
        group.push(
            texts,
            [
                Cell::Int(of.first_token + i as i64),
                Cell::Int(of.eval),
                Cell::Text(evaluation.phase.name()),
                Cell::Int(id),
                text(piece.as_deref()),
                positions.get(i).map_or(Cell::Null, |&p| Cell::Int(p)),
                int(evaluation.sequences.get(i).copied()),
            ],
        );
    }
}

pub fn routing(group: &mut RowGroup, texts: &mut Texts, of: &Expansion) {
    for_each_route(of.template, of.evaluation, |route| {
        group.push(
            texts,
            [
                Cell::Int(of.eval),
                Cell::Int(of.first_token + i64::from(route.token)),
                int(Some(route.layer)),
                int(Some(route.rank)),
                int(Some(route.expert)),
                route.weight.map_or(Cell::Null, Cell::Float),
            ],
        );
    });
}

/// Adds up what was seen of a template.
pub fn add_traffic(
    rows: &TemplateRows,
    definitions: &Definitions,
    steps: &[Step],
    sums: &mut TrafficSums,
) {
    for (&phase, tally) in &rows.tallies {
        for (row, access) in rows.accesses.iter().enumerate() {
            let step = &steps[access.step];
            let mut add = |expert, (accesses, bytes): (u64, u64)| {
                if accesses > 0 {
                    let key = TrafficKey {
                        tensor: access.tensor,
                        phase,
                        op: definitions.text(step.op),
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
            let indexed = &tally.indexed[row];
            add(None, indexed.of_no_expert);
            let by_expert = indexed.by_expert.iter();
            by_expert.for_each(|(&expert, &sum)| add(Some(expert), sum));
        }
    }
}

pub fn traffic(group: &mut RowGroup, texts: &mut Texts, tensors: &[TensorRow], sums: TrafficSums) {
    for (key, (accesses, bytes)) in sums {
        let tensor = &tensors[key.tensor];
        group.push(
            texts,
            [
                Cell::Text(key.phase),
                Cell::Int(tensor.tensor),
                Cell::Text(&tensor.name),
                Cell::Text(tensor.kind.name()),
                text(tensor.component),
                text(tensor.role.as_deref()),
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
