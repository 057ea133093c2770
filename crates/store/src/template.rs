//! A graph template as columns: what its rows are, worked out once.
//!
//! A run evaluates few graphs many times. For each template the values of every
//! column are found once, and numbered once per row group; an evaluation then
//! appends slices of numbers. Only steps with an index (rows of an embedding, KV
//! cells, experts) are expanded access by access.

use std::collections::BTreeMap;

use gguf::Meaning;
use trace::{
    format::Phase,
    read::Definitions,
    region::{Region, Strided},
    template::{Direction, FilePlace, Operand, Template, TensorKind},
};

use crate::{
    row_group::{RowGroup, Texts},
    schema::{ACCESSES, NODES},
};

/// Columns of `accesses` whose values the template fixes, or fixes but for an
/// index (the last six).
pub const FIXED: [&str; 17] = [
    "step",
    "op",
    "layer",
    "tensor",
    "tensor_name",
    "kind",
    "component",
    "role",
    "direction",
    "operand",
    "file",
    "file_offset",
    "tensor_offset",
    "bytes",
    "runs",
    "run_bytes",
    "strides",
];
/// Where the columns that an index changes start in [`FIXED`].
pub const FIRST_INDEXED: usize = 11;
/// Columns of `nodes` that the template fixes.
pub const NODE_FIXED: [&str; 6] = ["step", "node", "fused_nodes", "op", "name", "layer"];

/// What rows need to know of a tensor.
#[derive(Clone, Debug)]
pub struct TensorRow {
    pub tensor: i64,
    pub name: String,
    pub kind: TensorKind,
    pub component: Option<&'static str>,
    pub role: Option<String>,
    pub place: Option<FilePlace>,
}

impl TensorRow {
    pub fn of(definitions: &Definitions, number: usize, first_tensor: i64) -> TensorRow {
        let def = &definitions.tensors[number];
        let name = definitions.name(def.name);
        let meaning = def.place.map(|_| Meaning::of(&name));
        TensorRow {
            tensor: first_tensor + number as i64,
            name,
            kind: def.kind,
            component: meaning.as_ref().map(|m| m.component.name()),
            role: meaning.map(|m| m.role.into_owned()),
            place: def.place,
        }
    }
}

/// A template, ready to become rows.
pub struct TemplateRows {
    pub steps: Vec<StepRows>,
    /// Values of [`FIXED`] for each access, in the order of the template.
    values: Vec<[Option<i64>; FIXED.len()]>,
    pub accesses: Vec<AccessRow>,
    node_values: Vec<[Option<i64>; NODE_FIXED.len()]>,
    /// What was seen of it, by phase.
    pub tallies: BTreeMap<&'static str, Tally>,
    /// Numbers of `values` and `node_values` in the present row groups.
    pub numbers: Numbers,
    pub node_numbers: Numbers,
}

/// Numbers of fixed columns in the dictionaries of one row group.
#[derive(Default)]
pub struct Numbers {
    pub generation: u64,
    pub columns: Vec<Vec<u32>>,
}

pub struct StepRows {
    /// Its accesses, as indices into [`TemplateRows::accesses`].
    pub first: usize,
    pub end: usize,
    pub has_index: bool,
    /// Of its accesses, if none has an index.
    pub sums: Sums,
}

/// One access of the template.
pub struct AccessRow {
    pub step: usize,
    pub tensor: usize,
    pub direction: Direction,
    pub kind: TensorKind,
    pub place: Option<FilePlace>,
    /// What it touches; with an index, what index 0 touches.
    pub unit: Strided,
    pub bytes: u64,
    /// Elements of its iteration space, if it has an index.
    pub elements: Option<u64>,
}

/// Sums of an evaluation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sums {
    pub accesses: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub weight_bytes: u64,
    pub kv_bytes: u64,
}

/// How often each access of a template happened.
pub struct Tally {
    /// Executions of steps without an index.
    pub step_evals: Vec<u64>,
    /// Of accesses of the other steps.
    pub indexed: Vec<IndexedTally>,
}

/// How many, and their bytes.
#[derive(Clone, Default)]
pub struct IndexedTally {
    pub of_no_expert: (u64, u64),
    pub by_expert: BTreeMap<u32, (u64, u64)>,
}

impl IndexedTally {
    #[inline]
    pub fn add(&mut self, expert: Option<u32>, bytes: u64) {
        let sum = match expert {
            None => &mut self.of_no_expert,
            Some(expert) => self.by_expert.entry(expert).or_default(),
        };
        sum.0 += 1;
        sum.1 += bytes;
    }
}

impl Sums {
    pub fn add(&mut self, access: &AccessRow, bytes: u64) {
        self.accesses += 1;
        match access.direction {
            Direction::Read => self.read_bytes += bytes,
            Direction::Write => self.written_bytes += bytes,
        }
        match access.kind {
            TensorKind::Weight => self.weight_bytes += bytes,
            TensorKind::KvCache => self.kv_bytes += bytes,
            TensorKind::Activation | TensorKind::Input => {}
        }
    }

    pub fn add_all(&mut self, other: &Sums) {
        self.accesses += other.accesses;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.weight_bytes += other.weight_bytes;
        self.kv_bytes += other.kv_bytes;
    }
}

impl TemplateRows {
    /// `Err` says what of the template no table can hold.
    pub fn new(
        definitions: &Definitions,
        template: &Template,
        tensors: &[TensorRow],
        texts: &mut Texts,
    ) -> Result<TemplateRows, String> {
        let mut rows = TemplateRows {
            steps: Vec::with_capacity(template.steps.len()),
            values: Vec::new(),
            accesses: Vec::new(),
            node_values: Vec::with_capacity(template.steps.len()),
            tallies: BTreeMap::new(),
            numbers: Numbers::default(),
            node_numbers: Numbers::default(),
        };
        for (number, step) in template.steps.iter().enumerate() {
            let op = texts.number(&definitions.text(step.op));
            let layer = step.layer.map(i64::from);
            rows.node_values.push([
                Some(number as i64),
                Some(i64::from(step.node)),
                Some(i64::from(step.fused_nodes)),
                Some(op),
                Some(texts.number(&definitions.name(step.name))),
                layer,
            ]);
            let first = rows.accesses.len();
            let mut sums = Sums::default();
            for def in &step.accesses {
                let tensor = &tensors[def.tensor as usize];
                let (unit, elements) = match &def.region {
                    Region::Fixed(region) => (region, None),
                    Region::Indexed(indexed) => (
                        &indexed.unit,
                        Some(indexed.count.iter().fold(1u64, |n, &c| n.saturating_mul(c))),
                    ),
                };
                check_range(&def.region, tensor)?;
                let access = AccessRow {
                    step: number,
                    tensor: def.tensor as usize,
                    direction: def.direction,
                    kind: tensor.kind,
                    place: tensor.place,
                    bytes: unit.bytes(),
                    unit: unit.clone(),
                    elements,
                };
                sums.add(&access, access.bytes);
                let operand = match def.operand {
                    Operand::Source(n) => texts.number(&format!("src{n}")),
                    Operand::Destination => texts.number("dst"),
                };
                rows.values.push([
                    Some(number as i64),
                    Some(op),
                    layer,
                    Some(tensor.tensor),
                    Some(texts.number(&tensor.name)),
                    Some(texts.number(tensor.kind.name())),
                    tensor.component.map(|c| texts.number(c)),
                    tensor.role.as_deref().map(|r| texts.number(r)),
                    Some(texts.number(direction_name(def.direction))),
                    Some(operand),
                    tensor.place.map(|p| i64::from(p.file)),
                    tensor.place.map(|p| (p.file_offset + unit.offset) as i64),
                    Some(unit.offset as i64),
                    Some(access.bytes as i64),
                    Some(runs(unit) as i64),
                    Some(unit.run_bytes as i64),
                    Some(texts.number(&strides(unit))),
                ]);
                rows.accesses.push(access);
            }
            let has_index = step
                .accesses
                .iter()
                .any(|a| matches!(a.region, Region::Indexed(_)));
            let end = rows.accesses.len();
            rows.steps.push(StepRows {
                first,
                end,
                has_index,
                sums,
            });
        }
        Ok(rows)
    }

    /// Numbers the fixed values in `group`, unless that was done for `generation`.
    pub fn number_accesses(&mut self, group: &mut RowGroup, generation: u64) {
        number(
            &mut self.numbers,
            &self.values,
            &FIXED.map(|c| ACCESSES.position(c)),
            group,
            generation,
        );
    }

    pub fn number_nodes(&mut self, group: &mut RowGroup, generation: u64) {
        let positions = NODE_FIXED.map(|c| NODES.position(c));
        number(
            &mut self.node_numbers,
            &self.node_values,
            &positions,
            group,
            generation,
        );
    }

    pub fn tally(&mut self, phase: Phase) -> &mut Tally {
        let (steps, accesses) = (self.steps.len(), self.accesses.len());
        self.tallies.entry(phase.name()).or_insert_with(|| Tally {
            step_evals: vec![0; steps],
            indexed: vec![IndexedTally::default(); accesses],
        })
    }
}

fn number<const N: usize>(
    numbers: &mut Numbers,
    values: &[[Option<i64>; N]],
    positions: &[usize; N],
    group: &mut RowGroup,
    generation: u64,
) {
    if numbers.generation == generation {
        return;
    }
    numbers.generation = generation;
    numbers.columns.resize(N, Vec::new());
    for (k, &position) in positions.iter().enumerate() {
        let dictionary = group.dictionary(position);
        let column = &mut numbers.columns[k];
        column.clear();
        column.extend(values.iter().map(|row| dictionary.number_or_null(row[k])));
    }
}

/// Offsets and sizes must be signed 64-bit numbers.
fn check_range(region: &Region<u32>, tensor: &TensorRow) -> Result<(), String> {
    let (unit, end) = match region {
        Region::Fixed(region) => (region, region.end()),
        Region::Indexed(indexed) => (&indexed.unit, indexed.end()),
    };
    let file_offset = tensor.place.map_or(0, |p| p.file_offset);
    let last = end.and_then(|end| end.checked_add(file_offset));
    let runs = unit
        .dims
        .iter()
        .try_fold(1u64, |n, &(count, _)| n.checked_mul(count));
    let bytes = runs.and_then(|runs| runs.checked_mul(unit.run_bytes));
    let fits = |n: Option<u64>| n.is_some_and(|n| i64::try_from(n).is_ok());
    if fits(last) && fits(bytes) && fits(Some(unit.run_bytes)) {
        Ok(())
    } else {
        Err(format!(
            "a region of tensor {} is larger than a table can say",
            tensor.name
        ))
    }
}

pub fn direction_name(direction: Direction) -> &'static str {
    match direction {
        Direction::Read => "read",
        Direction::Write => "write",
    }
}

pub fn runs(region: &Strided) -> u64 {
    region.dims.iter().map(|&(count, _)| count).product()
}

pub fn strides(region: &Strided) -> String {
    let parts: Vec<String> = region
        .dims
        .iter()
        .map(|(count, stride)| format!("{count}x{stride}"))
        .collect();
    parts.join(" ")
}
