//! Writes GGUF models with random weights in the shapes of published models.
//!
//! A [`Recipe`] names a preset and what to change about it; [`Recipe::model`]
//! checks it and lays out metadata and tensors; [`Model::write`] streams the
//! weights to files laid out by `gguf::write`. The same recipe gives the same
//! bytes (the table behind f32, f16 and bf16 uses the platform's `exp`, whose
//! last bit may differ elsewhere).
//!
//! llama.cpp loads and runs every model made here. What it says is noise: the
//! weights are random. Sizes, shapes, types and access patterns are the point.

mod arch;
mod blocks;
mod keys;
pub mod presets;
mod rng;
pub mod shape;
mod tokenizer;

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::Path;

use gguf::GgmlType;
use gguf::write::{Existing, Layout, MetadataBuilder, Split, TensorSink, WriteError};

pub use arch::{Fill, Tensor};
pub use blocks::{Encoder, TYPES};
pub use presets::{PRESETS, Preset};
pub use rng::Rng;
pub use shape::{Arch, Shape};
pub use tokenizer::MIN_VOCAB;

/// What llama.cpp's fixed arrays hold.
pub const MAX_LAYERS: u64 = 512;
pub const MAX_EXPERTS: u64 = 1024;

/// Weights are made and written in pieces of about this size.
const PIECE_BYTES: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum SynthError {
    #[error("there is no preset {0:?}; `tensorscope synth --list` names them")]
    NoSuchPreset(String),
    #[error("{preset} has no experts, so --{option} cannot apply")]
    NoExperts {
        preset: &'static str,
        option: &'static str,
    },
    #[error("{what} must be between {least} and {most}, not {given}")]
    OutOfRange {
        what: &'static str,
        least: u64,
        most: u64,
        given: u64,
    },
    #[error("weights of type {given} cannot be made; possible: {possible}")]
    Type { given: String, possible: String },
    /// The progress callback asked to stop; temporary files are gone.
    #[error("interrupted")]
    Interrupted,
    #[error(transparent)]
    Write(#[from] WriteError),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    Published,
    /// Every width shrunk, for tests.
    Tiny,
}

/// A model to make. `None` keeps the preset's value.
#[derive(Debug, Clone)]
pub struct Recipe {
    pub preset: &'static Preset,
    pub size: Size,
    pub layers: Option<u64>,
    pub experts: Option<u64>,
    pub experts_used: Option<u64>,
    pub vocab: Option<u64>,
    /// `None` is what the model is published in: q8_0, or MXFP4 for gpt-oss.
    pub ggml_type: Option<GgmlType>,
    pub seed: u64,
}

impl Recipe {
    pub fn new(preset: &str) -> Result<Recipe, SynthError> {
        let preset =
            presets::find(preset).ok_or_else(|| SynthError::NoSuchPreset(preset.to_owned()))?;
        Ok(Recipe {
            preset,
            size: Size::Published,
            layers: None,
            experts: None,
            experts_used: None,
            vocab: None,
            ggml_type: None,
            seed: 1,
        })
    }

    pub fn model(&self) -> Result<Model, SynthError> {
        let shape = self.shape()?;
        let types = self.types(&shape)?;
        let tiny = if self.size == Size::Tiny { " tiny" } else { "" };
        // Without hyphens: llama.cpp asks a model whose name contains "phi-3"
        // for tokens of that model's own vocabulary.
        let name = format!("synthetic {}{tiny}", self.preset.name.replace('-', " "));
        Ok(Model {
            metadata: keys::metadata(&name, &shape, types),
            tensors: arch::tensors(&shape, types),
            shape,
            seed: self.seed,
        })
    }

    fn shape(&self) -> Result<Shape, SynthError> {
        let preset = self.preset.name;
        let mut shape = match self.size {
            Size::Published => self.preset.full,
            Size::Tiny => self.preset.tiny,
        };
        if let Some(layers) = self.layers {
            shape.layers = in_range("--layers", layers, 1, MAX_LAYERS)?;
        }
        if let Some(vocab) = self.vocab {
            // More than 31 bits of tokens have no token id.
            shape.vocab = in_range("--vocab", vocab, MIN_VOCAB, i32::MAX as u64)?;
        }
        match &mut shape.experts {
            Some(experts) => {
                if let Some(count) = self.experts {
                    experts.count = in_range("--experts", count, 1, MAX_EXPERTS)?;
                    experts.used = experts.used.min(count);
                }
                if let Some(used) = self.experts_used {
                    experts.used = in_range("--experts-used", used, 1, experts.count)?;
                }
            }
            None if self.experts.is_some() => {
                return Err(SynthError::NoExperts {
                    preset,
                    option: "experts",
                });
            }
            None if self.experts_used.is_some() => {
                return Err(SynthError::NoExperts {
                    preset,
                    option: "experts-used",
                });
            }
            None => {}
        }
        Ok(shape)
    }

    fn types(&self, shape: &Shape) -> Result<arch::Types, SynthError> {
        let published = match shape.arch {
            Arch::GptOss => GgmlType::MXFP4,
            _ => GgmlType::Q8_0,
        };
        let experts = self.ggml_type.unwrap_or(published);
        if !TYPES.contains(&experts) {
            return Err(SynthError::Type {
                given: experts.name().to_owned(),
                possible: type_names(),
            });
        }
        // MXFP4 is a type for experts; llama-quantize gives the rest q8_0.
        let matrices = match experts {
            GgmlType::MXFP4 if shape.experts.is_some() => GgmlType::Q8_0,
            other => other,
        };
        Ok(arch::Types { matrices, experts })
    }
}

/// The type of this name, if weights of it can be made.
pub fn type_by_name(name: &str) -> Result<GgmlType, SynthError> {
    GgmlType::from_name(name)
        .filter(|ggml_type| TYPES.contains(ggml_type))
        .ok_or_else(|| SynthError::Type {
            given: name.to_owned(),
            possible: type_names(),
        })
}

/// All types that can be made, for messages and help.
pub fn type_names() -> String {
    TYPES
        .iter()
        .map(|t| t.name())
        .collect::<Vec<_>>()
        .join(", ")
}

/// A model laid out, its weights not made yet.
#[derive(Debug, Clone)]
pub struct Model {
    pub shape: Shape,
    pub metadata: MetadataBuilder,
    pub tensors: Vec<Tensor>,
    pub seed: u64,
}

/// Tensors whose rows did not fit the type asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fallback {
    pub wanted: GgmlType,
    pub used: GgmlType,
    pub row_elements: u64,
    pub tensors: usize,
    /// The first of them.
    pub example: String,
}

impl Model {
    pub fn parameters(&self) -> u64 {
        self.tensors
            .iter()
            .map(|tensor| tensor.spec.elements())
            .sum()
    }

    pub fn fallbacks(&self) -> Vec<Fallback> {
        let mut found: Vec<Fallback> = vec![];
        for tensor in &self.tensors {
            let Some(wanted) = tensor.instead_of else {
                continue;
            };
            let (used, row_elements) = (tensor.spec.ggml_type, tensor.spec.dims[0]);
            let same = |f: &&mut Fallback| {
                (f.wanted, f.used, f.row_elements) == (wanted, used, row_elements)
            };
            match found.iter_mut().find(same) {
                Some(fallback) => fallback.tensors += 1,
                None => found.push(Fallback {
                    wanted,
                    used,
                    row_elements,
                    tensors: 1,
                    example: tensor.spec.name.clone(),
                }),
            }
        }
        found
    }

    /// The files' layout; nothing is created.
    pub fn layout(&self, path: &Path, split: Split) -> Result<Layout, SynthError> {
        let specs = self
            .tensors
            .iter()
            .map(|tensor| tensor.spec.clone())
            .collect();
        Ok(Layout::new(path, &self.metadata, specs, split)?)
    }

    /// Makes the weights and writes them as laid out. `progress` is told the
    /// bytes of every piece written and may stop the writing.
    pub fn write(
        &self,
        layout: &Layout,
        existing: Existing,
        mut progress: impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<(), SynthError> {
        let mut piece = vec![];
        let mut stopped = false;
        let result = layout.write(existing, |index, sink| {
            let flow = self.write_tensor(&self.tensors[index], sink, &mut piece, &mut progress)?;
            stopped = flow.is_break();
            if stopped {
                Err(io::ErrorKind::Interrupted.into())
            } else {
                Ok(())
            }
        });
        if stopped {
            Err(SynthError::Interrupted)
        } else {
            Ok(result?)
        }
    }

    fn write_tensor(
        &self,
        tensor: &Tensor,
        sink: &mut TensorSink<'_>,
        piece: &mut Vec<u8>,
        progress: &mut impl FnMut(u64) -> ControlFlow<()>,
    ) -> io::Result<ControlFlow<()>> {
        let size_bytes = tensor.spec.size_bytes().map_err(io::Error::other)?;
        let mut source = Source::new(tensor, self.seed)?;
        // Four blocks or elements: where streams may be cut.
        let unit_bytes = 4 * source.unit_bytes();
        let piece_bytes = (PIECE_BYTES / unit_bytes).max(1) * unit_bytes;
        let mut left_bytes = size_bytes;
        while left_bytes > 0 {
            let bytes = left_bytes.min(piece_bytes);
            piece.resize(bytes as usize, 0);
            source.fill(piece);
            sink.write_all(piece)?;
            left_bytes -= bytes;
            if progress(bytes).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// Where a tensor's bytes come from.
enum Source<'a> {
    Random {
        encoder: Encoder,
        block_bytes: u64,
    },
    /// Random f32 around a mean.
    Shifted {
        encoder: Encoder,
        mean: f32,
    },
    /// One f32 with random signs.
    Signs {
        encoder: Encoder,
        size: f32,
    },
    Cycle(&'a [f32]),
}

impl Source<'_> {
    fn new(tensor: &Tensor, seed: u64) -> io::Result<Source<'_>> {
        let spec = &tensor.spec;
        let encoder = |rms: f32| {
            let rng = Rng::for_tensor(seed, &spec.name);
            Encoder::new(spec.ggml_type, rms, rng)
                .ok_or_else(|| io::Error::other(format!("{}: no encoder", spec.name)))
        };
        let is_f32 = spec.ggml_type == GgmlType::F32;
        match &tensor.fill {
            Fill::Cycle(values) if is_f32 && !values.is_empty() => Ok(Source::Cycle(values)),
            Fill::Signs(size) if is_f32 => Ok(Source::Signs {
                encoder: encoder(1.0)?,
                size: *size,
            }),
            Fill::Cycle(_) | Fill::Signs(_) => Err(io::Error::other(format!(
                "{}: only f32 can have such values",
                spec.name
            ))),
            Fill::Normal { mean, std } if is_f32 && *mean != 0.0 => Ok(Source::Shifted {
                encoder: encoder(*std)?,
                mean: *mean,
            }),
            Fill::Normal { std, .. } => Ok(Source::Random {
                encoder: encoder(*std)?,
                block_bytes: spec.ggml_type.block_bytes(),
            }),
        }
    }

    /// Bytes after which the source may be cut, but for the encoder's four.
    fn unit_bytes(&self) -> u64 {
        match self {
            Source::Random { block_bytes, .. } => *block_bytes,
            Source::Shifted { .. } | Source::Signs { .. } => size_of::<f32>() as u64,
            Source::Cycle(values) => size_of_val(*values) as u64,
        }
    }

    fn fill(&mut self, out: &mut [u8]) {
        match self {
            Source::Random { encoder, .. } => encoder.fill(out),
            Source::Shifted { encoder, mean } => {
                encoder.fill(out);
                for value in out.as_chunks_mut::<4>().0 {
                    *value = (f32::from_le_bytes(*value) + *mean).to_le_bytes();
                }
            }
            Source::Signs { encoder, size } => {
                encoder.fill(out);
                for value in out.as_chunks_mut::<4>().0 {
                    *value = size.copysign(f32::from_le_bytes(*value)).to_le_bytes();
                }
            }
            Source::Cycle(values) => {
                let cycle = values.iter().cycle();
                for (value, number) in out.as_chunks_mut::<4>().0.iter_mut().zip(cycle) {
                    *value = number.to_le_bytes();
                }
            }
        }
    }
}

fn in_range(what: &'static str, given: u64, least: u64, most: u64) -> Result<u64, SynthError> {
    if (least..=most).contains(&given) {
        Ok(given)
    } else {
        Err(SynthError::OutOfRange {
            what,
            least,
            most,
            given,
        })
    }
}
