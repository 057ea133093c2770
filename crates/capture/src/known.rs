//! What is known of a graph: its template, and the places its captures are read from.
//!
//! Built when a graph is met for the first time; after that an evaluation of it
//! only looks it up.

use std::{
    collections::HashMap,
    ffi::{CStr, c_void},
    sync::Arc,
};

use ggml::{
    DeviceStep, Fusion, Graph, Known, NodeAccess, Op, OpNumbers, RawTensor, Slot, StepNodes,
    Tensor, TickRules, check::Api, device_accesses, device_steps, step_accesses,
};
use gguf::types::GgmlType;
use trace::{
    region::{IndexOrder, Indexed, Region},
    template::{
        AccessDef, CaptureDef, CaptureKind, CaptureTime, Direction, FilePlace, Operand, Step,
        Template, TensorDef, TensorKind,
    },
};

use crate::{
    gather::{Element, Source, width_for},
    intern::Interner,
    names::{LayerHint, Places, layer_hint},
};

/// What an evaluation of a known graph needs.
pub struct KnownGraph {
    /// Number of the template in the log.
    pub template: u32,
    pub steps: usize,
    /// On a device: the first node of each step.
    pub first_nodes: Arc<[u32]>,
    /// On a device: the tensors of `begin`, whose values the host may have elsewhere each
    /// time.
    pub begin_tensors: Vec<*const RawTensor>,
    /// On a device: arrays that only the device has, to be read back by who can.
    pub late: Vec<Late>,
    /// Words of the steps of an evaluation.
    pub step_words: usize,
    /// Arrays to read before the first node, in the order of their captures.
    pub begin: Vec<Source>,
    /// Position of the token ids and of the positions in `begin`.
    pub tokens: Option<usize>,
    pub positions: Option<usize>,
    /// Rows of the result that the program asked for; `None` when it is not said.
    pub outputs: Option<usize>,
    /// Arrays to read at ticks, by step.
    pub at_steps: Vec<(u32, Source)>,
    /// For each step, whether `at_steps` has something for it: one byte a step is
    /// all that a tick reads of it.
    pub has_capture: Vec<bool>,
    /// Accesses of an evaluation, experts counted as if each token chose its own.
    pub accesses: u64,
    /// Steps whose op the table does not know.
    pub unknown_ops: u64,
}

/// The linked library, and what is known about the model.
pub struct Knowledge {
    pub api: Api,
    pub ops: OpNumbers,
    pub places: Places,
    pub fusion: Fusion,
}

/// What a program that we only watch does differently: its backend may tick by
/// other rules, and it may have loaded several models.
pub struct Surroundings {
    pub rules: TickRules,
    pub place_of: PlaceOf,
}

/// Where a root tensor lies in the files that the program loaded.
pub type PlaceOf = Box<dyn Fn(Tensor<'_>) -> Option<FilePlace> + Send>;

/// `GGML_BACKEND_BUFFER_USAGE_WEIGHTS`.
const USAGE_WEIGHTS: u32 = 1;
/// `GGML_TENSOR_FLAG_INPUT`.
const FLAG_INPUT: i32 = 1;

impl KnownGraph {
    pub fn build(graph: Graph<'_>, knowledge: &Knowledge, interner: &mut Interner) -> KnownGraph {
        KnownGraph::build_in(None, None, graph, knowledge, interner)
    }

    /// As [`KnownGraph::build`], for a graph of a program that we watch, or of a device.
    pub fn build_in<'g>(
        surroundings: Option<&Surroundings>,
        device: Option<&OnDevice<'_, 'g>>,
        graph: Graph<'g>,
        knowledge: &Knowledge,
        interner: &mut Interner,
    ) -> KnownGraph {
        let nodes: Vec<Tensor> = graph.nodes().collect();
        let rules = surroundings.map_or(TickRules::today(knowledge.fusion), |s| s.rules);
        let mut builder = Builder::new(surroundings, knowledge, interner);
        builder.host_of = device.map(|device| device.host_of);
        let op_of = |node| knowledge.ops.op_of(node);
        let use_count = |tensor| graph.use_count(tensor);
        let executed: Vec<Executed> = match device {
            None => ggml::executed_steps_under(rules, &nodes, op_of, use_count)
                .into_iter()
                .map(Executed::Ticked)
                .collect(),
            Some(device) => device_steps(rules, &nodes, op_of, device.asked)
                .into_iter()
                .map(Executed::OnDevice)
                .collect(),
        };
        let mut layer = None;
        let mut found: Vec<NodeAccess> = Vec::new();
        let mut steps = Vec::with_capacity(executed.len());
        for (number, &step) in executed.iter().enumerate() {
            found.clear();
            let (known, result, node, fused_nodes) = match step {
                Executed::Ticked(step) => {
                    let (node, fused) = match step {
                        StepNodes::One(node) => (node, 1),
                        StepNodes::RmsNormMul { norm } => (norm, 2),
                    };
                    let known = step_accesses(step, &nodes, op_of, &mut found);
                    (known, step.result(), node, fused)
                }
                Executed::OnDevice(step) => {
                    let known = device_accesses(step, &nodes, op_of, use_count, &mut found);
                    let fused = u8::try_from(step.nodes(&nodes, op_of).count());
                    (known, step.last, step.first, fused.unwrap_or(u8::MAX))
                }
            };
            let result = nodes[result];
            layer = builder.layer_of(result, &found, layer);
            match step {
                Executed::Ticked(_) => builder.capture_special(number as u32, result, layer),
                Executed::OnDevice(step) => step
                    .nodes(&nodes, op_of)
                    .for_each(|node| builder.capture_special(number as u32, node, layer)),
            }
            let accesses = found
                .iter()
                .filter_map(|access| builder.access(number as u32, access, layer))
                .collect();
            let op = builder.op_text(step, &nodes);
            steps.push(Step {
                node: node as u32,
                fused_nodes,
                op,
                name: builder.interner.name(result.name()),
                layer,
                op_is_known: known == Known::Yes,
                accesses,
            });
        }
        let device = device.map(|device| device.number);
        builder.finish(nodes.len() as u32, steps, device)
    }
}

/// A graph that a device computes.
pub struct OnDevice<'a, 'g> {
    /// Of the device in the log.
    pub number: u32,
    /// See [`device_steps`].
    pub asked: Option<&'a [u32]>,
    pub host_of: &'a HostOf<'g>,
}

/// An array in the memory of a device.
#[derive(Clone, Copy, Debug)]
pub struct Late {
    /// Number of its capture.
    pub capture: u32,
    /// The tensor that holds it.
    pub tensor: *const RawTensor,
    /// Its shape; `data` is for who has read it back to say.
    pub source: Source,
}

/// Where the host has the values of an input that lies in a device's memory.
pub type HostOf<'g> = dyn Fn(Tensor<'g>) -> Option<*const u8> + 'g;

#[derive(Clone, Copy)]
enum Executed {
    Ticked(StepNodes),
    OnDevice(DeviceStep),
}

/// The number of a root tensor in the log.
pub fn tensor(
    surroundings: Option<&Surroundings>,
    knowledge: &Knowledge,
    interner: &mut Interner,
    root: Tensor<'_>,
) -> u32 {
    Builder::new(surroundings, knowledge, interner).tensor(root)
}

struct Builder<'a, 'g> {
    knowledge: &'a Knowledge,
    place_of: Option<&'a PlaceOf>,
    host_of: Option<&'a HostOf<'g>>,
    interner: &'a mut Interner,
    buffer_types: HashMap<*mut c_void, (u32, u32)>,
    roots: HashMap<Tensor<'g>, u32>,
    captures: Vec<(CaptureDef, Source)>,
    capture_of: HashMap<Tensor<'g>, u32>,
}

impl<'a, 'g> Builder<'a, 'g> {
    fn new(
        surroundings: Option<&'a Surroundings>,
        knowledge: &'a Knowledge,
        interner: &'a mut Interner,
    ) -> Builder<'a, 'g> {
        Builder {
            knowledge,
            place_of: surroundings.map(|s| &s.place_of),
            host_of: None,
            interner,
            buffer_types: HashMap::new(),
            roots: HashMap::new(),
            captures: Vec::new(),
            capture_of: HashMap::new(),
        }
    }

    fn op_text(&mut self, step: Executed, nodes: &[Tensor<'g>]) -> u32 {
        let knowledge = self.knowledge;
        let name_of = |node: Tensor<'g>| {
            // SAFETY: the number comes from a live node of this library, which
            // answers with a static string.
            unsafe { CStr::from_ptr((knowledge.api.ggml_op_name)(node.op())) }.to_bytes()
        };
        match step {
            Executed::Ticked(StepNodes::RmsNormMul { .. }) => self.interner.text(b"RMS_NORM+MUL"),
            Executed::Ticked(StepNodes::One(node)) => self.interner.text(name_of(nodes[node])),
            Executed::OnDevice(step) => {
                let op_of = |node| knowledge.ops.op_of(node);
                let names: Vec<&[u8]> = step.nodes(nodes, op_of).map(name_of).collect();
                self.interner.text(&names.join(&b'+'))
            }
        }
    }

    /// The layer that the node's name tells, else that of a weight or cache it
    /// touches, else the one before.
    fn layer_of(
        &self,
        node: Tensor<'g>,
        accesses: &[NodeAccess<'g>],
        current: Option<u32>,
    ) -> Option<u32> {
        match layer_hint(node.name()) {
            LayerHint::Layer(layer) => return Some(layer),
            LayerHint::Outside => return None,
            LayerHint::Unnamed => {}
        }
        let from_tensor =
            accesses
                .iter()
                .find_map(|access| match layer_hint(access.tensor.root().name()) {
                    LayerHint::Layer(layer) => Some(layer),
                    _ => None,
                });
        from_tensor.or(current)
    }

    /// Arrays that no region refers to but that readers want: positions, and the
    /// router's weights.
    fn capture_special(&mut self, step: u32, node: Tensor<'g>, layer: Option<u32>) {
        let is_rope = self.knowledge.ops.op_of(node) == Op::ROPE;
        for (slot, source) in node.srcs() {
            let is_positions = source.name() == b"inp_pos"
                || is_rope && slot == 1 && layer_hint(source.name()) == LayerHint::Unnamed;
            if is_positions && is_leaf(source) {
                self.capture(step, source, CaptureKind::Positions, u64::MAX, None);
            }
        }
        if node.name().starts_with(b"ffn_moe_weighted")
            && let Some(weights) = node.src(1).filter(|w| w.ty() == GgmlType::F32.as_u32())
        {
            let ne = weights.extents();
            // One weight per expert and token: [1, n_used, n_tokens].
            if ne[0] == 1 && ne[3] == 1 && !self.capture_of.contains_key(&weights) {
                self.capture(step, weights, CaptureKind::ExpertWeights, u64::MAX, layer);
            }
        }
    }

    fn access(
        &mut self,
        step: u32,
        access: &NodeAccess<'g>,
        layer: Option<u32>,
    ) -> Option<AccessDef> {
        let region = match &access.region {
            Region::Fixed(strided) if strided.bytes() == 0 => return None,
            Region::Fixed(strided) => Region::Fixed(strided.clone()),
            Region::Indexed(indexed) => {
                let kind = match indexed.order {
                    IndexOrder::DistinctAscending => CaptureKind::ExpertIds,
                    IndexOrder::EachInOrder => kind_of_index(access, indexed.capture),
                };
                let capture = self.capture(step, indexed.capture, kind, indexed.bound, layer)?;
                Region::Indexed(Indexed {
                    capture,
                    unit: indexed.unit.clone(),
                    stride: indexed.stride,
                    bound: indexed.bound,
                    count: indexed.count,
                    outer_strides: indexed.outer_strides,
                    order: indexed.order,
                })
            }
        };
        Some(AccessDef {
            tensor: self.tensor(access.tensor.root()),
            operand: match access.slot {
                Slot::Src(i) => Operand::Source(i),
                Slot::Dst => Operand::Destination,
            },
            direction: match access.direction {
                ggml::Direction::Read => Direction::Read,
                ggml::Direction::Write => Direction::Write,
            },
            region,
        })
    }

    /// The capture of an index tensor: one per tensor and evaluation, taken when
    /// it is first used. `None` for an element type that holds no indices.
    fn capture(
        &mut self,
        step: u32,
        tensor: Tensor<'g>,
        kind: CaptureKind,
        bound: u64,
        layer: Option<u32>,
    ) -> Option<u32> {
        if let Some(&number) = self.capture_of.get(&tensor) {
            let def = &mut self.captures[number as usize].0;
            // The ids of experts are first used to pick their router weights.
            if kind == CaptureKind::ExpertIds {
                def.kind = kind;
                def.layer = layer;
            }
            return Some(number);
        }
        let element = match GgmlType::from_u32(tensor.ty())? {
            GgmlType::I32 => Element::I32,
            GgmlType::I64 => Element::I64,
            GgmlType::F32 => Element::F32,
            _ => return None,
        };
        let kind = match tensor.root().name() {
            b"inp_tokens" => CaptureKind::Tokens,
            b"inp_pos" => CaptureKind::Positions,
            b"out_ids" | b"inp_out_ids" => CaptureKind::OutputRows,
            _ => kind,
        };
        let (ne, nb) = (tensor.extents(), tensor.nb());
        // Router weights are [1, n_used, n_tokens]; everything else starts at
        // dimension 0.
        let from = usize::from(kind == CaptureKind::ExpertWeights);
        let count: [u64; 3] = std::array::from_fn(|i| ne[i + from]);
        let is_input = is_leaf(tensor);
        let data = match self.host_of {
            None => Some(tensor.data() as *const u8),
            // What is not the host's to read comes later, or never.
            Some(host_of) => host_of(tensor).filter(|_| is_input),
        };
        let source = Source {
            data: data.unwrap_or(std::ptr::null()),
            element,
            count: count.map(|n| n as usize),
            strides_bytes: std::array::from_fn(|i| nb[i + from] as usize),
            bound,
            width_bytes: if element == Element::F32 {
                4
            } else {
                width_for(bound)
            },
        };
        let time = if is_input && data.is_some() {
            CaptureTime::Begin
        } else {
            CaptureTime::Step(step)
        };
        let number = self.captures.len() as u32;
        let width_bytes = source.width_bytes;
        self.captures.push((
            CaptureDef {
                kind,
                time,
                count,
                width_bytes,
                layer,
                pair: None,
            },
            source,
        ));
        self.capture_of.insert(tensor, number);
        Some(number)
    }

    fn tensor(&mut self, root: Tensor<'g>) -> u32 {
        if let Some(&number) = self.roots.get(&root) {
            return number;
        }
        let (buffer_type, usage) = self.buffer_type(root.buffer());
        let name = root.name();
        let place = match self.place_of {
            Some(place_of) => place_of(root),
            None => self.knowledge.places.get(name).copied(),
        };
        let kind = if name.starts_with(b"cache_") {
            TensorKind::KvCache
        } else if usage == USAGE_WEIGHTS || place.is_some() {
            TensorKind::Weight
        } else if is_leaf(root) {
            TensorKind::Input
        } else {
            TensorKind::Activation
        };
        let def = TensorDef {
            name: self.interner.name(name),
            kind,
            ggml_type: root.ty(),
            ne: root.extents(),
            size_bytes: root.nbytes(),
            address: root.data() as u64,
            buffer_type,
            place,
        };
        let number = self.interner.tensor(def);
        self.roots.insert(root, number);
        number
    }

    /// Number of the buffer type's name, and what the buffer is used for.
    fn buffer_type(&mut self, buffer: *mut c_void) -> (u32, u32) {
        if let Some(&known) = self.buffer_types.get(&buffer) {
            return known;
        }
        let api = &self.knowledge.api;
        let known = if buffer.is_null() {
            (self.interner.text(b"none"), u32::MAX)
        } else {
            // SAFETY: a live buffer of a live tensor; the library answers with a
            // string that lives as long as the buffer type.
            let (name, usage) = unsafe {
                let buft = (api.ggml_backend_buffer_get_type)(buffer);
                (
                    CStr::from_ptr((api.ggml_backend_buft_name)(buft)),
                    (api.ggml_backend_buffer_get_usage)(buffer),
                )
            };
            (self.interner.text(name.to_bytes()), usage)
        };
        self.buffer_types.insert(buffer, known);
        known
    }

    fn finish(mut self, nodes: u32, steps: Vec<Step>, device: Option<u32>) -> KnownGraph {
        let of_device = self.capture_of.iter().filter(|_| device.is_some());
        let late = of_device.filter_map(|(tensor, &capture)| {
            let (def, source) = &self.captures[capture as usize];
            let is_late = def.time != CaptureTime::Begin && def.kind == CaptureKind::ExpertIds;
            is_late.then_some(Late {
                capture,
                tensor: tensor.as_ptr(),
                source: *source,
            })
        });
        let late: Vec<Late> = late.collect();
        // A router's weights belong to the experts chosen in the same layer.
        for i in 0..self.captures.len() {
            if self.captures[i].0.kind == CaptureKind::ExpertWeights {
                let (layer, count) = (self.captures[i].0.layer, self.captures[i].0.count);
                let ids = self.captures.iter().position(|(c, _)| {
                    c.kind == CaptureKind::ExpertIds && c.layer == layer && c.count == count
                });
                self.captures[i].0.pair = ids.map(|n| n as u32);
            }
        }
        let tensor_of = |capture: usize| {
            let mut known = self.capture_of.iter();
            let found = known.find(|&(_, &number)| number as usize == capture);
            found.map_or(std::ptr::null(), |(tensor, _)| tensor.as_ptr())
        };
        let begin_tensors = (0..self.captures.len())
            .filter(|&at| device.is_some() && self.captures[at].0.time == CaptureTime::Begin)
            .map(tensor_of)
            .collect();
        let begin: Vec<(CaptureKind, Source)> = self
            .captures
            .iter()
            .filter(|(c, _)| c.time == CaptureTime::Begin)
            .map(|(c, source)| (c.kind, *source))
            .collect();
        let mut at_steps: Vec<(u32, Source)> = self
            .captures
            .iter()
            .filter_map(|(c, source)| match c.time {
                CaptureTime::Step(step) => Some((step, *source)),
                CaptureTime::Begin => None,
            })
            .collect();
        at_steps.sort_by_key(|&(step, _)| step);
        let mut has_capture = vec![false; steps.len()];
        at_steps
            .iter()
            .for_each(|&(step, _)| has_capture[step as usize] = true);
        let unknown_ops = steps.iter().filter(|s| !s.op_is_known).count() as u64;
        let accesses = steps
            .iter()
            .flat_map(|s| &s.accesses)
            .map(access_count)
            .sum();
        let captures = self.captures.into_iter().map(|(def, _)| def).collect();
        let template = Template {
            nodes,
            steps,
            captures,
            device,
        };
        let first_nodes = match device {
            Some(_) => template.steps.iter().map(|step| step.node).collect(),
            None => Arc::default(),
        };
        KnownGraph {
            first_nodes,
            begin_tensors,
            late,
            steps: template.steps.len(),
            step_words: template.step_words(),
            template: self.interner.template(template),
            tokens: begin
                .iter()
                .position(|(kind, _)| *kind == CaptureKind::Tokens),
            positions: begin
                .iter()
                .position(|(kind, _)| *kind == CaptureKind::Positions),
            outputs: begin
                .iter()
                .find(|(kind, _)| *kind == CaptureKind::OutputRows)
                .map(|(_, source)| source.elements()),
            begin: begin.into_iter().map(|(_, source)| source).collect(),
            at_steps,
            has_capture,
            accesses,
            unknown_ops,
        }
    }
}

/// What an index array is for. llama.cpp named its inputs until 2025-03 and does
/// again since; those in between are told by what they index.
fn kind_of_index(access: &NodeAccess<'_>, index: Tensor<'_>) -> CaptureKind {
    let is_read = access.direction == ggml::Direction::Read;
    if !is_read || !is_leaf(index) || layer_hint(index.name()) != LayerHint::Unnamed {
        return CaptureKind::Index;
    }
    let data = access.tensor.root();
    match data.name() {
        b"token_embd.weight" => CaptureKind::Tokens,
        b"position_embd.weight" => CaptureKind::Positions,
        // Rows of what was computed, not of a weight or a cache.
        _ if !is_leaf(data) => CaptureKind::OutputRows,
        _ => CaptureKind::Index,
    }
}

/// Filled by the program before the graph is computed.
fn is_leaf(tensor: Tensor<'_>) -> bool {
    let root = tensor.root();
    root.flags() & FLAG_INPUT != 0 || root.srcs().next().is_none()
}

fn access_count(access: &AccessDef) -> u64 {
    match &access.region {
        Region::Fixed(_) => 1,
        Region::Indexed(indexed) => match indexed.order {
            IndexOrder::EachInOrder => indexed.count.iter().product(),
            IndexOrder::DistinctAscending => {
                indexed.count.iter().product::<u64>().min(indexed.bound)
            }
        },
    }
}
