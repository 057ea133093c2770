//! The columns of a graph: values that its template fixes, numbered once per row group.
//!
//! A run evaluates few graphs many times. For each template the values of every column are
//! found once, and numbered once per row group; an evaluation then appends slices of
//! numbers. Only steps with an index (rows of an embedding, KV cells, experts) are expanded
//! access by access.

use std::collections::BTreeMap;

use reader::{
    Prepared, Seen, Tensors,
    rows::{ACCESS_FIXED, Cell, KERNEL_FIXED, NODE_FIXED, fixed_access, fixed_kernel, fixed_node},
};
use trace::format::Phase;

use crate::{
    row_group::{RowGroup, Texts},
    schema::{ACCESSES, KERNELS, NODES},
};

/// A template, ready to become rows.
pub struct TemplateColumns {
    /// Values of [`ACCESS_FIXED`] for each access, in the order of the template.
    values: Vec<[Option<i64>; ACCESS_FIXED.len()]>,
    node_values: Vec<[Option<i64>; NODE_FIXED.len()]>,
    /// What was seen of it, by phase.
    pub tallies: BTreeMap<&'static str, Tally>,
    /// Numbers of `values` and `node_values` in the present row groups.
    pub numbers: Numbers,
    pub node_numbers: Numbers,
    steps: usize,
}

/// Numbers of fixed columns in the dictionaries of one row group.
#[derive(Default)]
pub struct Numbers {
    pub generation: u64,
    pub columns: Vec<Vec<u32>>,
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

impl TemplateColumns {
    pub fn new(prepared: &Prepared, tensors: &Tensors, texts: &mut Texts) -> TemplateColumns {
        let mut number = |cell: Cell| fixed(cell, texts);
        let accesses = prepared.accesses.iter();
        let values = accesses.map(|access| {
            let tensor = &tensors.all()[access.tensor as usize];
            fixed_access(&prepared.steps[access.step], access, tensor).map(&mut number)
        });
        let values = values.collect();
        let steps = 0..prepared.steps.len();
        let node_values = steps.map(|at| fixed_node(prepared, at).map(&mut number));
        TemplateColumns {
            node_values: node_values.collect(),
            values,
            tallies: BTreeMap::new(),
            numbers: Numbers::default(),
            node_numbers: Numbers::default(),
            steps: prepared.steps.len(),
        }
    }

    /// Numbers the fixed values in `group`, unless that was done for `generation`.
    pub fn number_accesses(&mut self, group: &mut RowGroup, generation: u64) {
        let positions = ACCESS_FIXED.map(|c| ACCESSES.position(c));
        let numbers = &mut self.numbers;
        number(numbers, &self.values, &positions, group, generation);
    }

    pub fn number_nodes(&mut self, group: &mut RowGroup, generation: u64) {
        let positions = NODE_FIXED.map(|c| NODES.position(c));
        let numbers = &mut self.node_numbers;
        number(numbers, &self.node_values, &positions, group, generation);
    }

    pub fn tally(&mut self, phase: Phase) -> &mut Tally {
        let (steps, accesses) = (self.steps, self.values.len());
        self.tallies.entry(phase.name()).or_insert_with(|| Tally {
            step_evals: vec![0; steps],
            indexed: vec![IndexedTally::default(); accesses],
        })
    }
}

/// The kernels of a graph on a device, ready to become rows.
pub struct KernelColumns {
    values: Vec<[Option<i64>; KERNEL_FIXED.len()]>,
    pub numbers: Numbers,
}

impl KernelColumns {
    pub fn new(seen: &Seen, texts: &mut Texts) -> KernelColumns {
        let kernels = seen.kernels.iter().enumerate();
        let values = kernels.map(|(at, kernel)| {
            fixed_kernel(seen.prepared, at, kernel).map(|cell| fixed(cell, texts))
        });
        KernelColumns {
            values: values.collect(),
            numbers: Numbers::default(),
        }
    }

    pub fn number(&mut self, group: &mut RowGroup, generation: u64) {
        let positions = KERNEL_FIXED.map(|c| KERNELS.position(c));
        let numbers = &mut self.numbers;
        number(numbers, &self.values, &positions, group, generation);
    }
}

fn fixed(cell: Cell, texts: &mut Texts) -> Option<i64> {
    match cell {
        Cell::Null => None,
        Cell::Int(value) => Some(value),
        Cell::Text(text) => Some(texts.number(&text)),
        Cell::Float(_) => panic!("a graph fixes no fractions"),
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
