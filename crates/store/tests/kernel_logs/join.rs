//! Joins what the kernel did with tensors and nodes, the slow and obvious way: an owner
//! for each byte, and a look at every node. Rows are lines of CSV, as the tables have them.

use std::collections::BTreeMap;

use gguf::{Component, Model};
use kernelio::{
    files::Place,
    kernel_log::{
        faults::{Fault, FaultKind},
        io::Io,
    },
};
use rundir::Run;
use trace::{
    read::{Event, StreamReader, streams},
    template::CaptureKind,
};

use super::{PAGE_BYTES, Recorded, Resident};

/// A tensor, and the expert whose slice a byte is of.
pub type NaiveOwner = (usize, Option<u64>);

/// Of every byte of a file.
type Bytes = Vec<Option<NaiveOwner>>;

/// Offset, bytes and owner.
pub type Part = (Option<u64>, u64, Option<NaiveOwner>);

/// A node and when it ran.
pub struct Node {
    eval: u64,
    step: usize,
    pub op: String,
    name: String,
    pub phase: &'static str,
    token: Option<u64>,
    eval_begin: u64,
    eval_end: u64,
    end: u64,
}

/// The slow and obvious way.
pub struct Naive<'a> {
    model: &'a Model,
    files: Vec<Bytes>,
    nodes: Vec<Node>,
}

impl Naive<'_> {
    pub fn new(recorded: &Recorded) -> Naive<'_> {
        let model = &recorded.model;
        let mut files: Vec<Bytes> = Vec::new();
        for file in model.files() {
            files.push(vec![None; file.len_bytes as usize]);
        }
        for (number, tensor) in model.tensors().iter().enumerate() {
            for inside in 0..tensor.size_bytes {
                let is_expert = tensor.meaning.component == Component::Expert;
                let slice_bytes = tensor.size_bytes / tensor.ne[2];
                let expert = is_expert.then_some(inside / slice_bytes);
                let at = (tensor.file_offset + inside) as usize;
                files[tensor.file as usize][at] = Some((number, expert));
            }
        }
        Naive {
            model,
            files,
            nodes: nodes(&recorded.run),
        }
    }

    fn owner(&self, file: u32, file_offset: u64) -> Option<NaiveOwner> {
        let bytes = &self.files[file as usize];
        bytes.get(file_offset as usize).copied().flatten()
    }

    pub fn owner_of_fault(&self, place: Place) -> Option<NaiveOwner> {
        let page = place.file_offset / PAGE_BYTES * PAGE_BYTES;
        let of_page = (page..page + PAGE_BYTES).find_map(|at| self.owner(place.file, at));
        self.owner(place.file, place.file_offset).or(of_page)
    }

    pub fn node(&self, nanos: u64) -> Option<&Node> {
        let open = |node: &&Node| node.eval_begin <= nanos && nanos <= node.eval_end;
        let begin = self.nodes.iter().filter(open).map(|n| n.eval_begin).max()?;
        let mut of_eval = self.nodes.iter().filter(|node| node.eval_begin == begin);
        let running = of_eval.clone().find(|node| node.end >= nanos);
        running.or_else(|| of_eval.next_back())
    }

    /// `tensor`, name, layer and component, and bytes.
    pub fn tensor(&self, owner: Option<NaiveOwner>) -> [String; 5] {
        let Some((number, _)) = owner else {
            return [const { String::new() }; 5];
        };
        let tensor = &self.model.tensors()[number];
        let row = match &*tensor.name {
            "token_embd.weight" => "0",
            "blk.0.ffn_up_exps.weight" => "2",
            _ => "",
        };
        [
            row.to_owned(),
            tensor.name.to_string(),
            text(tensor.meaning.layer),
            tensor.meaning.component.name().to_owned(),
            tensor.size_bytes.to_string(),
        ]
    }

    pub fn fault(&self, fault: &Fault) -> String {
        let owner = fault.place.and_then(|place| self.owner_of_fault(place));
        let [tensor, tensor_name, layer, component, _] = self.tensor(owner);
        let node = self.node(fault.nanos);
        let row = [
            fault.nanos.to_string(),
            match fault.kind {
                FaultKind::Major => "major".to_owned(),
                FaultKind::Minor => "minor".to_owned(),
            },
            fault.address.to_string(),
            fault.pid.to_string(),
            fault.tid.to_string(),
            fault.cpu.to_string(),
            text(fault.place.map(|p| p.file)),
            text(fault.place.map(|p| p.file_offset)),
            tensor,
            tensor_name,
            layer,
            component,
            text(owner.and_then(|(_, expert)| expert)),
            text(node.map(|n| n.eval)),
            text(node.map(|n| n.step)),
            text(node.map(|n| &n.op)),
            text(node.map(|n| &n.name)),
            text(node.map(|n| n.phase)),
            text(node.and_then(|n| n.token)),
        ];
        row.join(",")
    }

    /// A piece, cut where its owner changes.
    pub fn parts(&self, io: &Io) -> Vec<Part> {
        let Some(place) = io.place else {
            return vec![(None, u64::from(io.piece_bytes), None)];
        };
        let mut parts: Vec<(Option<u64>, u64, _)> = Vec::new();
        for at in place.file_offset..place.file_offset + u64::from(io.piece_bytes) {
            let owner = self.owner(place.file, at);
            match parts.last_mut() {
                Some((_, bytes, last)) if *last == owner => *bytes += 1,
                _ => parts.push((Some(at), 1, owner)),
            }
        }
        parts
    }

    pub fn io(&self, io: &Io, rows: &mut Vec<String>) {
        let node = self.node(io.issued_nanos);
        let rwbs = io.rwbs.to_string();
        for (file_offset, bytes, owner) in self.parts(io) {
            let [tensor, tensor_name, layer, component, tensor_bytes] = self.tensor(owner);
            let row = [
                io.request.to_string(),
                io.issued_nanos.to_string(),
                text(io.completed_nanos),
                text(io.completed_nanos.map(|end| end - io.issued_nanos)),
                "259:3".to_owned(),
                io.sector.to_string(),
                io.request_bytes.to_string(),
                match rwbs.trim_start_matches('F').chars().next() {
                    Some('R') => "read".to_owned(),
                    Some('W') => "write".to_owned(),
                    _ => "discard".to_owned(),
                },
                rwbs.clone(),
                u8::from(rwbs.contains('A')).to_string(),
                io.pid.to_string(),
                io.tid.to_string(),
                text(io.place.map(|p| p.file)),
                text(file_offset),
                bytes.to_string(),
                tensor,
                tensor_name,
                tensor_bytes,
                layer,
                component,
                text(owner.and_then(|(_, expert)| expert)),
                text(node.map(|n| n.eval)),
                text(node.map(|n| n.step)),
                text(node.map(|n| &n.op)),
                text(node.map(|n| n.phase)),
            ];
            rows.push(row.join(","));
        }
    }

    pub fn sample(&self, sample: &Resident, rows: &mut Vec<String>) {
        let Resident {
            nanos,
            token,
            file,
            pages,
        } = sample;
        let mut of_file = BTreeMap::new();
        for (at, owner) in self.files[*file as usize].iter().enumerate() {
            if let Some((number, _)) = owner {
                let offset = self.model.tensors()[*number].file_offset;
                *of_file.entry((offset, *number)).or_insert(0) +=
                    u64::from(pages[at / PAGE_BYTES as usize]);
            }
        }
        for ((_, number), resident_bytes) in of_file {
            let [tensor, tensor_name, layer, component, size_bytes] =
                self.tensor(Some((number, None)));
            rows.push(format!(
                "{nanos},{token},{file},{tensor},{tensor_name},{layer},{component},{size_bytes},{resident_bytes}"
            ));
        }
    }
}

fn nodes(run: &Run) -> Vec<Node> {
    let mut nodes = Vec::new();
    let (mut first_eval, mut token) = (0, 0);
    for stream in streams(&run.log_directory()).unwrap() {
        let mut reader = StreamReader::open(&run.log_directory(), stream).unwrap();
        let mut evals = 0;
        while let Some(event) = reader.next_event().unwrap() {
            let Event::Evaluation(evaluation) = event else {
                panic!("the log is whole");
            };
            let definitions = &reader.definitions;
            let template = &definitions.templates[evaluation.template as usize];
            let tokens = evaluation.first_of(template, CaptureKind::Tokens).len() as u64;
            for (number, step) in template.steps.iter().enumerate() {
                nodes.push(Node {
                    eval: first_eval + evaluation.number,
                    step: number,
                    op: definitions.text(step.op),
                    name: definitions.name(step.name),
                    phase: evaluation.phase.name(),
                    token: (tokens == 1).then_some(token),
                    eval_begin: evaluation.begin_nanos,
                    eval_end: evaluation.end_nanos,
                    end: evaluation.step_nanos[number],
                });
            }
            token += tokens;
            evals += 1;
        }
        first_eval += evals;
    }
    nodes
}

pub fn text(value: Option<impl ToString>) -> String {
    value.map_or(String::new(), |value| value.to_string())
}
