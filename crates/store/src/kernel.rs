//! Rows of what the kernel did underneath: `faults`, `io` and `residency`; what threads did
//! on the processors is in [`cpu`], what other tools have recorded in [`imported`].
//!
//! Crate `underneath` joins records with tensors and nodes; here they become rows,
//! and refer to rows of the other tables by the numbers that the ingest has given.
//! A column of text takes numbers of [`Texts`]: each text is looked up once, not
//! once a row.

mod cpu;
mod imported;

use std::collections::HashMap;

use kernelio::kernel_log::{
    faults::FaultKind,
    io::{Io, Operation},
};
use reader::kernel::{JoinedFault, JoinedIo, JoinedSample, Moment, Owner, Underneath};
use reader::{Seen, Tensor};

use crate::{
    StoreError,
    expand::GROUP_ROWS,
    row_group::{Cell, RowGroup, Texts},
    rows::int,
    schema::{FAULTS, IO, RESIDENCY},
};

/// Rows of the other tables, as far as these refer to them.
#[derive(Default)]
pub struct References {
    /// Weights by file and offset: name and number.
    tensors: HashMap<(u32, u64), Vec<(String, i64)>>,
    /// The token of each evaluation that has rows, if it has just one.
    tokens: HashMap<u64, Option<i64>>,
}

impl References {
    pub fn add_tensor(&mut self, tensor: &Tensor) {
        if let Some(place) = tensor.place {
            let here = self.tensors.entry((place.file, place.file_offset));
            let number = i64::from(tensor.number);
            here.or_default().push((tensor.name.clone(), number));
        }
    }

    pub fn add_eval(&mut self, seen: &Seen) {
        let token = (seen.tokens() == 1).then_some(seen.first_token as i64);
        self.tokens.insert(seen.eval, token);
    }

    /// Streams number their tensors each for itself: the first has it. A weight
    /// that is used under another name (tied embeddings) is found by its place.
    fn tensor(&self, file: u32, file_offset: u64, name: &str) -> Option<i64> {
        let here = self.tensors.get(&(file, file_offset))?;
        let same = here.iter().find(|(other, _)| other == name);
        Some(same.or(here.first())?.1)
    }
}

/// Appends all rows of these tables; `send` gets the row groups.
pub fn write(
    underneath: &Underneath,
    references: &References,
    texts: &mut Texts,
    send: &mut impl FnMut(RowGroup) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let mut cells = Cells::new(underneath, references, texts);
    let mut group = RowGroup::new(&FAULTS);
    for fault in underneath.faults()?.into_iter().flatten() {
        cells.fault(&mut group, texts, &fault);
        send_if_full(&mut group, texts, send)?;
    }
    send(group.take(texts))?;
    let mut group = RowGroup::new(&IO);
    for io in underneath.io()?.into_iter().flatten() {
        cells.io(&mut group, texts, &io);
        send_if_full(&mut group, texts, send)?;
    }
    send(group.take(texts))?;
    let mut group = RowGroup::new(&RESIDENCY);
    for sample in underneath.samples()?.into_iter().flatten() {
        cells.sample(&mut group, texts, &sample);
        send_if_full(&mut group, texts, send)?;
    }
    send(group.take(texts))?;
    if let Some(joined) = underneath.cpu()? {
        cpu::write(&joined, &cells, texts, send)?;
    }
    imported::write(underneath, &cells, texts, send)
}

fn send_if_full(
    group: &mut RowGroup,
    texts: &Texts,
    send: &mut impl FnMut(RowGroup) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    if group.rows >= GROUP_ROWS {
        send(group.take(texts))?;
    }
    Ok(())
}

/// What rows say about tensors, nodes and disks, worked out once for each.
struct Cells {
    tensors: Vec<TensorCells>,
    evals: HashMap<u64, EvalCells>,
    /// Op, name and layer of each step, of each graph.
    graphs: Vec<Vec<[Cell<'static>; 3]>>,
    devices: HashMap<(u32, u32), Cell<'static>>,
    rwbs: HashMap<[u8; 8], Cell<'static>>,
}

#[derive(Clone, Copy)]
struct TensorCells {
    tensor: Cell<'static>,
    name: Cell<'static>,
    layer: Cell<'static>,
    component: Cell<'static>,
    size_bytes: Cell<'static>,
}

struct EvalCells {
    phase: Cell<'static>,
    token: Cell<'static>,
    /// Which of [`Cells::graphs`].
    graph: usize,
}

/// The node that was running.
struct NodeCells {
    eval: Cell<'static>,
    step: Cell<'static>,
    op: Cell<'static>,
    name: Cell<'static>,
    layer: Cell<'static>,
    phase: Cell<'static>,
    token: Cell<'static>,
}

const NO_TENSOR: TensorCells = TensorCells {
    tensor: Cell::Null,
    name: Cell::Null,
    layer: Cell::Null,
    component: Cell::Null,
    size_bytes: Cell::Null,
};

const NO_NODE: NodeCells = NodeCells {
    eval: Cell::Null,
    step: Cell::Null,
    op: Cell::Null,
    name: Cell::Null,
    layer: Cell::Null,
    phase: Cell::Null,
    token: Cell::Null,
};

impl Cells {
    fn new(underneath: &Underneath, references: &References, texts: &mut Texts) -> Cells {
        let tensors = underneath.owners.tensors().iter().map(|tensor| {
            let number = references.tensor(tensor.file, tensor.file_offset, &tensor.name);
            TensorCells {
                tensor: number.map_or(Cell::Null, Cell::Int),
                name: Cell::Int(texts.number(&tensor.name)),
                layer: int(tensor.layer),
                component: Cell::Int(texts.number(tensor.component)),
                size_bytes: int(Some(tensor.size_bytes)),
            }
        });
        let tensors = tensors.collect();
        let (mut evals, mut graphs, mut graph_numbers) =
            (HashMap::new(), Vec::new(), HashMap::new());
        for span in underneath.timeline.spans() {
            // An evaluation without rows has nothing to refer to.
            let Some(&token) = references.tokens.get(&span.eval) else {
                continue;
            };
            let graph = graph_numbers.entry(span.template).or_insert_with(|| {
                let steps = underneath.timeline.graph(span).iter();
                let cells = steps.map(|step| {
                    let [op, name] = [&step.op, &step.name].map(|t| Cell::Int(texts.number(t)));
                    [op, name, int(step.layer)]
                });
                graphs.push(cells.collect());
                graphs.len() - 1
            });
            let cells = EvalCells {
                phase: Cell::Int(texts.number(span.phase.name())),
                token: token.map_or(Cell::Null, Cell::Int),
                graph: *graph,
            };
            evals.insert(span.eval, cells);
        }
        Cells {
            tensors,
            evals,
            graphs,
            devices: HashMap::new(),
            rwbs: HashMap::new(),
        }
    }

    fn tensor(&self, owner: Option<Owner>) -> (TensorCells, Cell<'static>) {
        owner.map_or((NO_TENSOR, Cell::Null), |owner| {
            (self.tensors[owner.tensor as usize], int(owner.expert))
        })
    }

    fn node(&self, at: Option<Moment>) -> NodeCells {
        let Some((moment, eval)) = at.and_then(|at| Some((at, self.evals.get(&at.eval)?))) else {
            return NO_NODE;
        };
        let steps = &self.graphs[eval.graph];
        let step = moment.step.and_then(|step| steps.get(step as usize));
        let [op, name, layer] = step.copied().unwrap_or([Cell::Null; 3]);
        NodeCells {
            eval: int(Some(moment.eval)),
            step: int(step.and(moment.step)),
            op,
            name,
            layer,
            phase: eval.phase,
            token: eval.token,
        }
    }

    fn fault(&self, group: &mut RowGroup, texts: &mut Texts, joined: &JoinedFault) {
        let fault = &joined.fault;
        let (tensor, expert) = self.tensor(joined.owner);
        let node = self.node(joined.at);
        let kind = match fault.kind {
            FaultKind::Major => "major",
            FaultKind::Minor => "minor",
        };
        group.push(
            texts,
            [
                int(Some(fault.nanos)),
                Cell::Text(kind),
                int(Some(fault.address)),
                process(fault.pid),
                process(fault.tid),
                int(Some(u32::from(fault.cpu))),
                int(fault.place.map(|p| p.file)),
                int(fault.place.map(|p| p.file_offset)),
                tensor.tensor,
                tensor.name,
                tensor.layer,
                tensor.component,
                expert,
                node.eval,
                node.step,
                node.op,
                node.name,
                node.phase,
                node.token,
            ],
        );
    }

    fn io(&mut self, group: &mut RowGroup, texts: &mut Texts, joined: &JoinedIo) {
        let io = &joined.io;
        let (device, rwbs) = self.request(texts, io);
        let (tensor, expert) = self.tensor(joined.owner);
        let node = self.node(joined.at);
        let kind = match io.rwbs.operation() {
            Operation::Read => "read",
            Operation::Write => "write",
            Operation::Discard => "discard",
            Operation::Other => "other",
        };
        let latency_nanos = io
            .completed_nanos
            .map(|end| end.saturating_sub(io.issued_nanos));
        group.push(
            texts,
            [
                int(Some(io.request)),
                int(Some(io.issued_nanos)),
                int(io.completed_nanos),
                int(latency_nanos),
                device,
                int(Some(io.sector)),
                int(Some(io.request_bytes)),
                Cell::Text(kind),
                rwbs,
                int(Some(u32::from(io.rwbs.is_read_ahead()))),
                process(io.pid),
                process(io.tid),
                int(io.place.map(|p| p.file)),
                int(io.place.map(|_| joined.file_offset)),
                int(Some(joined.bytes)),
                tensor.tensor,
                tensor.name,
                tensor.size_bytes,
                tensor.layer,
                tensor.component,
                expert,
                node.eval,
                node.step,
                node.op,
                node.phase,
            ],
        );
    }

    fn request(&mut self, texts: &mut Texts, io: &Io) -> (Cell<'static>, Cell<'static>) {
        let device = self.devices.entry((io.device.major, io.device.minor));
        let device = device.or_insert_with(|| Cell::Int(texts.number(&io.device.to_string())));
        let rwbs = self.rwbs.entry(io.rwbs.0);
        let rwbs = rwbs.or_insert_with(|| Cell::Int(texts.number(&io.rwbs.to_string())));
        (*device, *rwbs)
    }

    fn sample(&self, group: &mut RowGroup, texts: &mut Texts, sample: &JoinedSample) {
        for &(number, resident_bytes) in &sample.tensors {
            let tensor = &self.tensors[number as usize];
            group.push(
                texts,
                [
                    int(Some(sample.nanos)),
                    int(Some(sample.token)),
                    int(Some(sample.file)),
                    tensor.tensor,
                    tensor.name,
                    tensor.layer,
                    tensor.component,
                    tensor.size_bytes,
                    int(Some(resident_bytes)),
                ],
            );
        }
    }
}

/// The kernel writes -1 for a process that it cannot name here.
fn process(number: u32) -> Cell<'static> {
    Cell::Int(i64::from(number.cast_signed()))
}
