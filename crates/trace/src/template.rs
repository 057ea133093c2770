//! Templates: what an evaluation of a graph will touch, known before it runs.
//!
//! llama.cpp evaluates the same graph again and again. The log therefore holds
//! each graph once, as a template: its steps (executed nodes) in order, and for
//! each the accesses. What differs from one evaluation to the next (times, token
//! ids, KV cells, expert ids and weights) is stored per evaluation in *captures*,
//! whose place and size the template fixes.
//!
//! Strings, tensors and templates are numbered in the order of their definition
//! within a stream.

use crate::{
    device::{DeviceDef, Launches, decode_device, decode_launches, encode_device, encode_launches},
    region::{IndexOrder, Indexed, Region, Strided},
    wire::{Decoder, Encoder, WireError},
};

/// A name with at most one number in it, so that `ffn_norm-0` to `ffn_norm-31`
/// share one string.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    /// The string `prefix NUL suffix`, or just the name when there is no number.
    pub pattern: u32,
    pub number: Option<u32>,
}

/// What a tensor is to the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum TensorKind {
    Activation = 0,
    Weight = 1,
    KvCache = 2,
    Input = 3,
}

impl TensorKind {
    const ALL: [TensorKind; 4] = [
        TensorKind::Activation,
        TensorKind::Weight,
        TensorKind::KvCache,
        TensorKind::Input,
    ];

    pub fn name(self) -> &'static str {
        match self {
            TensorKind::Activation => "activation",
            TensorKind::Weight => "weight",
            TensorKind::KvCache => "kv_cache",
            TensorKind::Input => "input",
        }
    }
}

/// Where a weight lies in the model's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FilePlace {
    /// Index into the files of the model.
    pub file: u32,
    /// Absolute byte offset in that file.
    pub file_offset: u64,
}

/// A root tensor (no view).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorDef {
    pub name: Name,
    pub kind: TensorKind,
    /// ggml's number of the type.
    pub ggml_type: u32,
    pub ne: [u64; 4],
    pub size_bytes: u64,
    /// Address of its first byte in the traced process.
    pub address: u64,
    /// Name of its buffer type (`CPU_Mapped`, `CPU_REPACK`, …), a string number.
    pub buffer_type: u32,
    pub place: Option<FilePlace>,
}

/// Which operand of a node an access belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operand {
    Source(u8),
    Destination,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    Read,
    Write,
}

/// One access of a step.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AccessDef {
    pub tensor: u32,
    pub operand: Operand,
    pub direction: Direction,
    pub region: Region<u32>,
}

/// One executed node, or several that ggml executes as one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Step {
    /// Index of its (first) node in the graph.
    pub node: u32,
    /// Nodes that it covers: 2 for a fused pair.
    pub fused_nodes: u8,
    /// Name of the op, a string number.
    pub op: u32,
    /// Name of its (last) node.
    pub name: Name,
    pub layer: Option<u32>,
    /// Whether the op table knows the op; if not, whole views are recorded.
    pub op_is_known: bool,
    pub accesses: Vec<AccessDef>,
}

/// When a capture is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CaptureTime {
    /// Before the first node: inputs of the graph.
    Begin,
    /// At the tick of this step, when its inputs are complete.
    Step(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CaptureKind {
    /// Row numbers, KV cells.
    Index = 0,
    /// Token ids of the batch; also an index into the embedding.
    Tokens = 1,
    Positions = 2,
    /// Expert ids, `n_used × n_tokens`, by rank.
    ExpertIds = 3,
    /// Router weights for the experts that capture `pair` names (f32 bits).
    ExpertWeights = 4,
    /// Tokens of the batch whose output is wanted: llama.cpp computes the end of
    /// the last layer for these only.
    OutputRows = 5,
}

impl CaptureKind {
    const ALL: [CaptureKind; 6] = [
        CaptureKind::Index,
        CaptureKind::Tokens,
        CaptureKind::Positions,
        CaptureKind::ExpertIds,
        CaptureKind::ExpertWeights,
        CaptureKind::OutputRows,
    ];
}

/// An array of numbers that each evaluation stores.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CaptureDef {
    pub kind: CaptureKind,
    pub time: CaptureTime,
    /// Elements along each dimension, innermost first.
    pub count: [u64; 3],
    /// Bytes per stored element: 2, 4 or 8. Captures taken at the begin carry
    /// their own coding and ignore this.
    pub width_bytes: u8,
    pub layer: Option<u32>,
    /// For [`CaptureKind::ExpertWeights`]: the capture of the ids.
    pub pair: Option<u32>,
}

impl CaptureDef {
    pub fn elements(&self) -> u64 {
        self.count.iter().product()
    }

    /// Words that a capture taken at a step occupies.
    pub fn words(&self) -> usize {
        (self.elements() * u64::from(self.width_bytes)).div_ceil(8) as usize
    }
}

/// A graph, as the evaluations that refer to it need it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Template {
    /// Nodes of the graph, executed or not.
    pub nodes: u32,
    pub steps: Vec<Step>,
    pub captures: Vec<CaptureDef>,
    /// The device that computes it, a device number; `None` for the processor.
    pub device: Option<u32>,
}

impl Template {
    /// Words that the steps of an evaluation occupy: a time each, then captures. On a device
    /// one word names its launches; times and captures come later ([`crate::device`]).
    pub fn step_words(&self) -> usize {
        if self.device.is_some() {
            return 1;
        }
        let captured: usize = self
            .captures
            .iter()
            .filter(|c| c.time != CaptureTime::Begin)
            .map(CaptureDef::words)
            .sum();
        self.steps.len() + captured
    }
}

/// Something that later records refer to by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Definition {
    Text(Vec<u8>),
    Tensor(TensorDef),
    Template(Template),
    Device(DeviceDef),
    /// The kernels of a template on a device.
    Launches(Launches),
    /// What a token id stands for; not numbered.
    Token {
        id: u32,
        text: Vec<u8>,
    },
}

/// Encodes definitions into the body of a record.
pub fn encode_definitions(definitions: &[Definition]) -> Vec<u8> {
    let mut e = Encoder::default();
    for definition in definitions {
        match definition {
            Definition::Text(text) => {
                e.unsigned(1);
                e.text(text);
            }
            Definition::Tensor(tensor) => {
                e.unsigned(2);
                encode_tensor(&mut e, tensor);
            }
            Definition::Template(template) => {
                match template.device {
                    None => e.unsigned(3),
                    Some(device) => {
                        e.unsigned(6);
                        e.unsigned(u64::from(device));
                    }
                }
                encode_template(&mut e, template);
            }
            Definition::Device(device) => {
                e.unsigned(5);
                encode_device(&mut e, device);
            }
            Definition::Launches(launches) => {
                e.unsigned(7);
                encode_launches(&mut e, launches);
            }
            Definition::Token { id, text } => {
                e.unsigned(4);
                e.unsigned(u64::from(*id));
                e.text(text);
            }
        }
    }
    e.bytes
}

/// Decodes a record's body; does not check that references exist ([`crate::read`]
/// does).
pub fn decode_definitions(bytes: &[u8]) -> Result<Vec<Definition>, DefinitionError> {
    let mut d = Decoder::new(bytes);
    let mut definitions = Vec::new();
    while !d.is_done() {
        definitions.push(match d.unsigned()? {
            1 => Definition::Text(d.text()?.to_vec()),
            2 => Definition::Tensor(decode_tensor(&mut d)?),
            3 => Definition::Template(decode_template(&mut d)?),
            5 => Definition::Device(decode_device(&mut d)?),
            6 => {
                let device = Some(d.narrow()?);
                let template = decode_template(&mut d)?;
                Definition::Template(Template { device, ..template })
            }
            7 => Definition::Launches(decode_launches(&mut d)?),
            4 => Definition::Token {
                id: d.narrow()?,
                text: d.text()?.to_vec(),
            },
            tag => return Err(WireError::UnknownTag(tag).into()),
        });
    }
    Ok(definitions)
}

/// Why definitions could not be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct DefinitionError(#[from] WireError);

fn encode_name(e: &mut Encoder, name: Name) {
    e.unsigned(u64::from(name.pattern));
    e.unsigned(name.number.map_or(0, |n| u64::from(n) + 1));
}

fn decode_name(d: &mut Decoder) -> Result<Name, WireError> {
    Ok(Name {
        pattern: d.narrow()?,
        number: decode_option(d)?,
    })
}

fn decode_option(d: &mut Decoder) -> Result<Option<u32>, WireError> {
    match d.unsigned()? {
        0 => Ok(None),
        n => u32::try_from(n - 1)
            .map(Some)
            .map_err(|_| WireError::Overflow),
    }
}

fn encode_option(e: &mut Encoder, value: Option<u32>) {
    e.unsigned(value.map_or(0, |v| u64::from(v) + 1));
}

fn encode_tensor(e: &mut Encoder, tensor: &TensorDef) {
    encode_name(e, tensor.name);
    e.unsigned(tensor.kind as u64);
    e.unsigned(u64::from(tensor.ggml_type));
    for n in tensor.ne {
        e.unsigned(n);
    }
    e.unsigned(tensor.size_bytes);
    e.unsigned(tensor.address);
    e.unsigned(u64::from(tensor.buffer_type));
    match tensor.place {
        None => e.unsigned(0),
        Some(place) => {
            e.unsigned(u64::from(place.file) + 1);
            e.unsigned(place.file_offset);
        }
    }
}

fn decode_tensor(d: &mut Decoder) -> Result<TensorDef, WireError> {
    Ok(TensorDef {
        name: decode_name(d)?,
        kind: decode_enum(d, &TensorKind::ALL)?,
        ggml_type: d.narrow()?,
        ne: [d.unsigned()?, d.unsigned()?, d.unsigned()?, d.unsigned()?],
        size_bytes: d.unsigned()?,
        address: d.unsigned()?,
        buffer_type: d.narrow()?,
        place: match decode_option(d)? {
            None => None,
            Some(file) => Some(FilePlace {
                file,
                file_offset: d.unsigned()?,
            }),
        },
    })
}

fn decode_enum<T: Copy>(d: &mut Decoder, all: &[T]) -> Result<T, WireError> {
    let value = d.unsigned()?;
    usize::try_from(value)
        .ok()
        .and_then(|i| all.get(i))
        .copied()
        .ok_or(WireError::UnknownTag(value))
}

fn encode_template(e: &mut Encoder, template: &Template) {
    e.unsigned(u64::from(template.nodes));
    e.unsigned(template.steps.len() as u64);
    let mut node = 0;
    for step in &template.steps {
        // Nodes ascend: the difference is nearly always one byte.
        e.unsigned(u64::from(step.node - node));
        node = step.node;
        e.unsigned(u64::from(step.fused_nodes) << 1 | u64::from(step.op_is_known));
        e.unsigned(u64::from(step.op));
        encode_name(e, step.name);
        encode_option(e, step.layer);
        e.unsigned(step.accesses.len() as u64);
        for access in &step.accesses {
            encode_access(e, access);
        }
    }
    e.unsigned(template.captures.len() as u64);
    for capture in &template.captures {
        e.unsigned(capture.kind as u64);
        encode_option(
            e,
            match capture.time {
                CaptureTime::Begin => None,
                CaptureTime::Step(step) => Some(step),
            },
        );
        for n in capture.count {
            e.unsigned(n);
        }
        e.unsigned(u64::from(capture.width_bytes));
        encode_option(e, capture.layer);
        encode_option(e, capture.pair);
    }
}

fn decode_template(d: &mut Decoder) -> Result<Template, WireError> {
    let nodes = d.narrow()?;
    let count = d.count()?;
    let mut steps = Vec::with_capacity(count);
    let mut node = 0u32;
    for _ in 0..count {
        node = node.checked_add(d.narrow()?).ok_or(WireError::Overflow)?;
        let fused_and_known: u16 = d.narrow()?;
        let op = d.narrow()?;
        let name = decode_name(d)?;
        let layer = decode_option(d)?;
        let count = d.count()?;
        let accesses = (0..count)
            .map(|_| decode_access(d))
            .collect::<Result<_, _>>()?;
        steps.push(Step {
            node,
            fused_nodes: u8::try_from(fused_and_known >> 1).map_err(|_| WireError::Overflow)?,
            op,
            name,
            layer,
            op_is_known: fused_and_known & 1 == 1,
            accesses,
        });
    }
    let count = d.count()?;
    let mut captures = Vec::with_capacity(count);
    for _ in 0..count {
        captures.push(CaptureDef {
            kind: decode_enum(d, &CaptureKind::ALL)?,
            time: decode_option(d)?.map_or(CaptureTime::Begin, CaptureTime::Step),
            count: [d.unsigned()?, d.unsigned()?, d.unsigned()?],
            width_bytes: d.narrow()?,
            layer: decode_option(d)?,
            pair: decode_option(d)?,
        });
    }
    Ok(Template {
        nodes,
        steps,
        captures,
        device: None,
    })
}

/// Bits of an access's first number: operand (0 destination, else source + 1),
/// direction, indexed or fixed, order.
fn encode_access(e: &mut Encoder, access: &AccessDef) {
    let operand = match access.operand {
        Operand::Destination => 0,
        Operand::Source(i) => u64::from(i) + 1,
    };
    let write = u64::from(access.direction == Direction::Write);
    let (indexed, distinct) = match &access.region {
        Region::Fixed(_) => (0, 0),
        Region::Indexed(i) => (1, u64::from(i.order == IndexOrder::DistinctAscending)),
    };
    e.unsigned(operand << 3 | distinct << 2 | indexed << 1 | write);
    e.unsigned(u64::from(access.tensor));
    match &access.region {
        Region::Fixed(strided) => encode_strided(e, strided),
        Region::Indexed(indexed) => {
            e.unsigned(u64::from(indexed.capture));
            encode_strided(e, &indexed.unit);
            e.unsigned(indexed.stride);
            e.unsigned(indexed.bound);
            for n in indexed.count {
                e.unsigned(n);
            }
            for n in indexed.outer_strides {
                e.unsigned(n);
            }
        }
    }
}

fn decode_access(d: &mut Decoder) -> Result<AccessDef, WireError> {
    let bits = d.unsigned()?;
    let tensor = d.narrow()?;
    let operand = match bits >> 3 {
        0 => Operand::Destination,
        i => Operand::Source(u8::try_from(i - 1).map_err(|_| WireError::Overflow)?),
    };
    let direction = if bits & 1 == 1 {
        Direction::Write
    } else {
        Direction::Read
    };
    let region = if bits & 2 == 0 {
        Region::Fixed(decode_strided(d)?)
    } else {
        Region::Indexed(Indexed {
            capture: d.narrow()?,
            unit: decode_strided(d)?,
            stride: d.unsigned()?,
            bound: d.unsigned()?,
            count: [d.unsigned()?, d.unsigned()?, d.unsigned()?],
            outer_strides: [d.unsigned()?, d.unsigned()?],
            order: if bits & 4 == 0 {
                IndexOrder::EachInOrder
            } else {
                IndexOrder::DistinctAscending
            },
        })
    };
    Ok(AccessDef {
        tensor,
        operand,
        direction,
        region,
    })
}

fn encode_strided(e: &mut Encoder, strided: &Strided) {
    e.unsigned(strided.offset);
    e.unsigned(strided.run_bytes);
    e.unsigned(strided.dims.len() as u64);
    for &(count, stride) in &strided.dims {
        e.unsigned(count);
        e.unsigned(stride);
    }
}

fn decode_strided(d: &mut Decoder) -> Result<Strided, WireError> {
    let offset = d.unsigned()?;
    let run_bytes = d.unsigned()?;
    let count: usize = d.narrow()?;
    if count > 4 {
        return Err(WireError::Overflow);
    }
    let dims = (0..count)
        .map(|_| Ok((d.unsigned()?, d.unsigned()?)))
        .collect::<Result<_, WireError>>()?;
    Ok(Strided {
        offset,
        run_bytes,
        dims,
    })
}
