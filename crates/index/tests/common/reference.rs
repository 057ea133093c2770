//! The naive reference: every access of a log, one by one.

use std::path::Path;

use gguf::Meaning;
use index::Filter;
use trace::{
    expand::{for_each_access, for_each_route},
    format::Phase,
    read::{Event, StreamReader, streams},
    template::{CaptureKind, Direction, TensorKind},
};

pub struct Eval {
    pub number: u64,
    pub phase: Phase,
    pub begin: u64,
    pub last: u64,
    pub first_token: u64,
    pub tokens: u64,
    pub nodes: Vec<Node>,
    /// Token of the run, layer, expert, weight.
    pub routes: Vec<(u64, u32, u32, Option<f32>)>,
}

pub struct Node {
    pub op: String,
    pub layer: Option<u32>,
    pub begin: u64,
    pub end: u64,
    /// The first weight that the graph says it reads.
    pub weight: Option<String>,
    pub accesses: Vec<Access>,
}

impl Node {
    /// Whether it lies in a window of time; where the clock jumped back, by its begin.
    pub fn lies_in(&self, t0: u64, t1: u64) -> bool {
        self.end.max(self.begin) >= t0 && self.begin < t1
    }
}

pub struct Access {
    pub tensor: String,
    pub part: &'static str,
    pub is_weight: bool,
    pub direction: Direction,
    pub expert: Option<u32>,
    pub bytes: u64,
    /// File, offset in it.
    pub place: Option<(u32, u64)>,
    pub span: u64,
}

/// Evaluations in the order of the tables.
pub fn read(run: &Path) -> Vec<Eval> {
    let log = run.join("log");
    let mut evals: Vec<Eval> = Vec::new();
    let (mut first_eval, mut first_token) = (0, 0);
    for stream in streams(&log).unwrap() {
        let mut reader = StreamReader::open(&log, stream).unwrap();
        let mut end_eval = first_eval;
        while let Some(event) = reader.next_event().unwrap() {
            let Event::Evaluation(evaluation) = event else {
                continue;
            };
            let definitions = &reader.definitions;
            let template = &definitions.templates[evaluation.template as usize];
            let tokens = evaluation.first_of(template, CaptureKind::Tokens).len() as u64;
            let mut nodes = Vec::new();
            let mut begin = evaluation.begin_nanos;
            for (number, step) in template.steps.iter().enumerate() {
                if !evaluation.was_executed(number) {
                    continue;
                }
                let mut accesses = Vec::new();
                for_each_access(template, &evaluation, number, |access| {
                    let def = &definitions.tensors[access.def.tensor as usize];
                    let tensor = definitions.name(def.name);
                    let meaning = def.place.map(|_| Meaning::of(&tensor));
                    let is_head = definitions.text(step.op) == "MUL_MAT";
                    let component = meaning.map(|m| match (&*m.role, is_head) {
                        ("token", true) => "output",
                        _ => m.component.name(),
                    });
                    accesses.push(Access {
                        part: component.unwrap_or(def.kind.name()),
                        tensor,
                        is_weight: def.kind == TensorKind::Weight,
                        direction: access.def.direction,
                        expert: access.expert,
                        bytes: access.region.bytes(),
                        place: def
                            .place
                            .map(|p| (p.file, p.file_offset + access.region.offset)),
                        span: access.region.end().unwrap() - access.region.offset,
                    });
                });
                let end = evaluation.step_nanos[number];
                let tensors = step
                    .accesses
                    .iter()
                    .map(|a| &definitions.tensors[a.tensor as usize]);
                let mut weights = tensors.filter(|t| t.kind == TensorKind::Weight);
                nodes.push(Node {
                    weight: weights.next().map(|t| definitions.name(t.name)),
                    op: definitions.text(step.op),
                    layer: step.layer,
                    begin,
                    end,
                    accesses,
                });
                begin = end;
            }
            let mut routes = Vec::new();
            for_each_route(template, &evaluation, |route| {
                let token = first_token + u64::from(route.token);
                routes.push((token, route.layer, route.expert, route.weight));
            });
            let number = first_eval + evaluation.number;
            end_eval = end_eval.max(number + 1);
            let ends = evaluation.step_nanos.iter().copied().max().unwrap_or(0);
            evals.push(Eval {
                number,
                phase: evaluation.phase,
                begin: evaluation.begin_nanos,
                last: ends.max(evaluation.end_nanos),
                first_token,
                tokens,
                nodes,
                routes,
            });
            first_token += tokens;
        }
        first_eval = end_eval;
    }
    evals
}

pub fn keeps_eval(filter: &Filter, eval: &Eval) -> bool {
    let end = eval.first_token + eval.tokens;
    filter
        .phases
        .as_ref()
        .is_none_or(|p| p.contains(&eval.phase))
        && filter
            .tokens
            .is_none_or(|(a, b)| eval.first_token <= b && a < end)
}

pub fn keeps_access(filter: &Filter, node: &Node, access: &Access) -> bool {
    keeps_step(filter, node)
        && filter
            .components
            .as_ref()
            .is_none_or(|c| c.iter().any(|c| c == access.part))
        && filter
            .experts
            .as_ref()
            .is_none_or(|e| access.expert.is_some_and(|expert| e.contains(&expert)))
}

pub fn keeps_step(filter: &Filter, node: &Node) -> bool {
    filter
        .layers
        .as_ref()
        .is_none_or(|l| l.contains(&node.layer))
        && filter.ops.as_ref().is_none_or(|o| o.contains(&node.op))
}

pub fn keeps_node(filter: &Filter, node: &Node) -> bool {
    let asks = filter.components.is_some() || filter.experts.is_some();
    keeps_step(filter, node)
        && (!asks || node.accesses.iter().any(|a| keeps_access(filter, node, a)))
}

/// Nodes and accesses that are kept, with their evaluation.
pub fn kept<'e>(
    evals: &'e [Eval],
    filter: &'e Filter,
) -> impl Iterator<Item = (&'e Eval, &'e Node, &'e Access)> {
    let evals = evals.iter().filter(|e| keeps_eval(filter, e));
    evals.flat_map(move |eval| {
        eval.nodes.iter().flat_map(move |node| {
            let accesses = node.accesses.iter();
            accesses
                .filter(move |a| keeps_access(filter, node, a))
                .map(move |a| (eval, node, a))
        })
    })
}

pub fn kept_nodes<'e>(
    evals: &'e [Eval],
    filter: &'e Filter,
) -> impl Iterator<Item = (&'e Eval, &'e Node)> {
    let evals = evals.iter().filter(|e| keeps_eval(filter, e));
    evals.flat_map(move |eval| {
        let nodes = eval.nodes.iter().filter(move |n| keeps_node(filter, n));
        nodes.map(move |n| (eval, n))
    })
}
