//! What every tensor of a run is.
//!
//! Numbers count through the run: the tensors of the first stream, then those of the
//! second. The same weight may be defined by several streams, or twice in one; it is a
//! tensor each time, and [`Tensor::first`] says which of them are one.

use std::collections::HashMap;

use gguf::{GgmlType, Meaning};
use trace::{
    read::Definitions,
    template::{FilePlace, TensorDef, TensorKind},
};

use crate::device::PROCESSOR;

/// A root tensor (no view).
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Its number in the run: its place in [`Tensors::all`], if the log was read at once.
    pub number: u32,
    /// The stream that defined it.
    pub stream: u32,
    /// Place of the first tensor that is the same one: sums go across streams.
    pub first: u32,
    pub name: String,
    pub kind: TensorKind,
    /// What its name says, of weights only: names of other tensors are free.
    pub meaning: Option<Meaning>,
    /// Where it lies in the model's files, of weights that are used as they lie there.
    pub place: Option<FilePlace>,
    /// ggml's number of the type.
    pub ggml_type: u32,
    pub ne: [u64; 4],
    pub size_bytes: u64,
    pub buffer_type: String,
    /// Of its first byte in the traced process.
    pub address: u64,
}

impl Tensor {
    fn new(definitions: &Definitions, def: &TensorDef, stream: u32, at: u32) -> Tensor {
        let name = definitions.name(def.name);
        Tensor {
            number: at,
            stream,
            first: at,
            kind: def.kind,
            meaning: (def.kind == TensorKind::Weight).then(|| Meaning::of(&name)),
            name,
            place: def.place,
            ggml_type: def.ggml_type,
            ne: def.ne,
            size_bytes: def.size_bytes,
            buffer_type: definitions.text(def.buffer_type),
            address: def.address,
        }
    }

    /// Of a weight: `attention`, `ffn`, …
    pub fn component(&self) -> Option<&'static str> {
        self.meaning.as_ref().map(|m| m.component.name())
    }

    /// Of a weight, what it is for in an operation: a tied embedding is `output` where it is
    /// multiplied. Accesses and their sums have this one, whoever shows them.
    pub fn component_in(&self, op: &str) -> Option<&'static str> {
        let meaning = self.meaning.as_ref();
        meaning.map(|m| m.component_in(op).name())
    }

    /// Of a weight: `q`, `gate`, …
    pub fn role(&self) -> Option<&str> {
        self.meaning.as_ref().map(|m| &*m.role)
    }

    /// In whose memory it lies, where the name of its buffer type says so: that of a device
    /// is called like the device.
    pub fn device(&self) -> Option<&str> {
        let buffer_type = self.buffer_type.as_str();
        let is_host = buffer_type.starts_with(PROCESSOR)
            || buffer_type.ends_with("_Host")
            || buffer_type == "AMX";
        let is_device = buffer_type.ends_with(|c: char| c.is_ascii_digit());
        match (is_host, is_device) {
            (true, _) => Some(PROCESSOR),
            (false, true) => Some(buffer_type),
            (false, false) => None,
        }
    }

    pub fn is_weight(&self) -> bool {
        self.kind == TensorKind::Weight
    }

    pub fn type_name(&self) -> &'static str {
        GgmlType::from_u32(self.ggml_type).map_or("unknown", GgmlType::name)
    }

    /// The part of the model, or the kind of memory for what is no weight.
    pub fn part(&self) -> &'static str {
        self.component().unwrap_or(self.kind.name())
    }

    /// The same in an operation.
    pub fn part_in(&self, op: &str) -> &'static str {
        self.component_in(op).unwrap_or(self.kind.name())
    }
}

/// The tensors of a run, in the order in which they were read.
#[derive(Debug, Default)]
pub struct Tensors {
    all: Vec<Tensor>,
    known: HashMap<Identity, u32>,
}

/// What makes a tensor the same in another stream. Not its name alone: a process may hold
/// two models (a draft and its target) with the same names.
type Identity = (String, TensorKind, u64, Option<FilePlace>);

impl Tensors {
    pub fn all(&self) -> &[Tensor] {
        &self.all
    }

    /// Takes in what a stream has defined behind the tensors whose places `of_stream` has.
    pub(crate) fn extend(
        &mut self,
        definitions: &Definitions,
        stream: u32,
        of_stream: &mut Vec<u32>,
    ) {
        for def in &definitions.tensors[of_stream.len()..] {
            let at = self.all.len() as u32;
            let mut tensor = Tensor::new(definitions, def, stream, at);
            let identity = (
                tensor.name.clone(),
                tensor.kind,
                tensor.size_bytes,
                tensor.place,
            );
            tensor.first = *self.known.entry(identity).or_insert(at);
            self.all.push(tensor);
            of_stream.push(at);
        }
    }

    pub(crate) fn number(&mut self, at: u32, number: u32) {
        self.all[at as usize].number = number;
    }
}
