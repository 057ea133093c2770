//! What every tensor of a run is.
//!
//! Numbers count through the run: the tensors of the first stream, then those of the
//! second. The same weight may be defined by several streams, or twice in one; it is a
//! tensor each time, and [`Tensor::first`] says which of them are one.

use std::collections::HashMap;

use gguf::Meaning;
use trace::{
    read::Definitions,
    template::{FilePlace, TensorKind},
};

/// A root tensor (no view).
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Its number in the run.
    pub number: u32,
    /// Number of the first tensor of the run that is the same one: sums go across streams.
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
    fn new(definitions: &Definitions, in_stream: usize, number: u32) -> Tensor {
        let def = &definitions.tensors[in_stream];
        let name = definitions.name(def.name);
        Tensor {
            number,
            first: number,
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

    /// Of a weight: `q`, `gate`, …
    pub fn role(&self) -> Option<&str> {
        self.meaning.as_ref().map(|m| &*m.role)
    }

    /// The part of the model, or the kind of memory for what is no weight.
    pub fn part(&self) -> &'static str {
        self.component().unwrap_or(self.kind.name())
    }
}

/// The tensors of a run, by number.
#[derive(Debug, Default)]
pub struct Tensors {
    all: Vec<Tensor>,
    known: HashMap<Identity, u32>,
    /// Of the stream that is being read.
    first: usize,
}

/// What makes a tensor the same in another stream. Not its name alone: a process may hold
/// two models (a draft and its target) with the same names.
type Identity = (String, TensorKind, u64, Option<FilePlace>);

impl Tensors {
    /// A tensor of the stream that is being read, by the stream's own number.
    pub fn in_stream(&self, number: u32) -> &Tensor {
        &self.all[self.first + number as usize]
    }

    /// Those that the stream that is being read has defined so far.
    pub fn of_stream(&self) -> &[Tensor] {
        &self.all[self.first..]
    }

    pub fn all(&self) -> &[Tensor] {
        &self.all
    }

    /// Definitions only grow.
    pub(crate) fn extend(&mut self, definitions: &Definitions) {
        for in_stream in self.all.len() - self.first..definitions.tensors.len() {
            let number = self.all.len() as u32;
            let mut tensor = Tensor::new(definitions, in_stream, number);
            let identity = (
                tensor.name.clone(),
                tensor.kind,
                tensor.size_bytes,
                tensor.place,
            );
            tensor.first = *self.known.entry(identity).or_insert(number);
            self.all.push(tensor);
        }
    }

    pub(crate) fn begin_stream(&mut self) {
        self.first = self.all.len();
    }
}
