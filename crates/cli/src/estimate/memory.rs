//! The memory of a configuration: llama.cpp is asked where it can be, and what would make it
//! fit is tried.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use engine::{
    absent::AbsentGpu,
    context::{Context, ContextProps, FlashAttention, Windows},
    memory::{BufferMemory, Offload},
    model::Model,
};
use estimate::{Machine, NumberType, kv, machines::Kind, shape::Weights};
use gguf::{GgmlType, write::Split};
use launch::planning;
use rundir::error::reason;
use serde::Serialize;

use super::{Args, Subject};
use crate::engine_args::When;

/// A file that llama.cpp reads the header of.
pub struct Header {
    path: PathBuf,
    /// Removed when the question is answered.
    folder: Option<tempfile::TempDir>,
}

impl Header {
    pub fn of_file(path: &Path) -> Header {
        Header {
            path: path.to_owned(),
            folder: None,
        }
    }

    /// A file as long as the model would be, of which only the header is written.
    pub fn of_preset(preset: &str, weights: Option<&str>) -> anyhow::Result<Header> {
        let mut recipe = synth::Recipe::new(preset)?;
        if let Some(name) = weights {
            recipe.ggml_type = Some(synth::type_by_name(name)?);
        }
        let folder = tempfile::tempdir().map_err(|error| {
            let folder = std::env::temp_dir();
            let (folder, why) = (folder.display(), reason(&error));
            anyhow!("{folder}: cannot make a temporary folder: {why}; TMPDIR names another one")
        })?;
        let path = folder.path().join(format!("{preset}.gguf"));
        let layout = recipe.model()?.layout(&path, Split::Whole)?;
        layout
            .write_headers()
            .context("a model's header, for which TMPDIR names a folder")?;
        Ok(Header {
            path,
            folder: Some(folder),
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Nothing can be read behind its header.
    pub fn is_a_hole(&self) -> bool {
        self.folder.is_some()
    }
}

/// What a configuration takes.
#[derive(Clone, Debug, Serialize)]
pub struct Memory {
    /// `llama.cpp`, or `arithmetic` where there is no file that it could be asked with.
    pub asked: &'static str,
    pub devices: Vec<Device>,
    pub weight_bytes: u64,
    /// KV cache and recurrent state.
    pub context_bytes: u64,
    pub compute_bytes: u64,
    pub bytes: u64,
    /// What has to fit in the budget: all of it, or what the fullest GPU has.
    pub budgeted_bytes: u64,
    pub budget_bytes: u64,
    pub fits: bool,
    /// What would make it fit, the cheapest first.
    pub ways: Vec<Way>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Device {
    pub name: String,
    pub weight_bytes: u64,
    pub context_bytes: u64,
    pub compute_bytes: u64,
    /// What there is for it; not known of a host beside GPUs.
    pub budget_bytes: Option<u64>,
}

/// A change, and what is taken then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Way {
    pub change: String,
    pub bytes: u64,
    pub costs: &'static str,
}

/// What can be changed about a configuration.
#[derive(Clone, Copy, Debug)]
struct Setting {
    context: u64,
    micro_batch: u64,
    key_type: GgmlType,
    value_type: GgmlType,
    flash_attention: FlashAttention,
}

impl Memory {
    pub fn new(
        args: &Args,
        subject: &Subject,
        machine: &Machine,
        budget_bytes: u64,
    ) -> anyhow::Result<Memory> {
        let now = Setting {
            context: u64::from(args.context),
            micro_batch: u64::from(args.micro_batch),
            key_type: args.key_type,
            value_type: args.value_type,
            flash_attention: match args.flash_attention {
                When::Auto => FlashAttention::Auto,
                When::On => FlashAttention::On,
                When::Off => FlashAttention::Off,
            },
        };
        let asker = Asker::new(args, subject, offload(args, machine, budget_bytes)?)?;
        let mut devices = asker.devices(now)?;
        let has_gpus = devices.iter().any(Device::is_gpu);
        for device in &mut devices {
            device.budget_bytes = Some(budget_bytes).filter(|_| device.is_gpu() || !has_gpus);
        }
        let sum = |of: fn(&Device) -> u64| devices.iter().map(of).sum::<u64>();
        let (weights, context, compute) = (
            sum(|d| d.weight_bytes),
            sum(|d| d.context_bytes),
            sum(|d| d.compute_bytes),
        );
        let bytes = weights + context + compute;
        let budgeted_bytes = budgeted(&devices);
        let fits = budgeted_bytes <= budget_bytes;
        Ok(Memory {
            asked: match asker.model {
                Some(_) => "llama.cpp",
                None => "arithmetic",
            },
            devices,
            weight_bytes: weights,
            context_bytes: context,
            compute_bytes: compute,
            bytes,
            budgeted_bytes,
            budget_bytes,
            fits,
            ways: match fits {
                true => Vec::new(),
                false => asker.ways(now, budgeted_bytes, budget_bytes)?,
            },
        })
    }
}

impl Memory {
    /// Of what has to fit, all but the cache.
    pub fn beside_cache_bytes(&self) -> u64 {
        self.budgeted_bytes.saturating_sub(self.context_bytes)
    }

    /// Share of the weights that GPUs have; 1 where there are none to share with.
    pub fn offloaded_share(&self) -> f64 {
        let on_gpus = self.devices.iter().filter(|device| device.is_gpu());
        let bytes: u64 = on_gpus.map(|device| device.weight_bytes).sum();
        // Rows of embeddings are looked up on the processor in any case.
        bytes as f64 / self.weight_bytes.max(1) as f64
    }
}

impl Device {
    pub fn is_gpu(&self) -> bool {
        self.name.starts_with("GPU")
    }

    pub fn bytes(&self) -> u64 {
        self.weight_bytes + self.context_bytes + self.compute_bytes
    }
}

/// What has to fit in the budget: all of it, or on GPUs the fullest of them.
fn budgeted(devices: &[Device]) -> u64 {
    let on_gpus = devices.iter().filter(|device| device.is_gpu());
    let fullest = on_gpus.map(Device::bytes).max();
    fullest.unwrap_or_else(|| devices.iter().map(Device::bytes).sum())
}

/// Which layers go where: onto GPUs of a budget each, if the machine is one.
fn offload(args: &Args, machine: &Machine, budget_bytes: u64) -> anyhow::Result<Offload> {
    if machine.kind != Kind::Gpu {
        return match args.gpu_layers {
            None | Some(0) => Ok(Offload::default()),
            Some(_) => bail!(
                "--gpu-layers: {} is not a GPU; name one with --machine",
                machine.name
            ),
        };
    }
    let gpu = AbsentGpu {
        memory_bytes: budget_bytes,
    };
    Ok(Offload {
        gpus: vec![gpu; args.gpus as usize],
        layers: args.gpu_layers,
    })
}

/// Ways that are named at most.
const WANTED: usize = 3;

struct Asker<'a> {
    subject: &'a Subject,
    offload: Offload,
    sequences: u64,
    threads: Option<u16>,
    model: Option<Model>,
}

impl<'a> Asker<'a> {
    fn new(args: &Args, subject: &'a Subject, offload: Offload) -> anyhow::Result<Asker<'a>> {
        let of = (u64::from(args.parallel), args.threads);
        Asker::load(subject, offload, of)
    }

    fn load(
        subject: &'a Subject,
        offload: Offload,
        (sequences, threads): (u64, Option<u16>),
    ) -> anyhow::Result<Asker<'a>> {
        let file = subject.file.as_ref();
        let model = file
            .map(|file| Model::load_header(file.path(), &offload))
            .transpose()?;
        Ok(Asker {
            subject,
            offload,
            sequences,
            threads,
            model,
        })
    }

    fn devices(&self, setting: Setting) -> anyhow::Result<Vec<Device>> {
        let weight_bytes = self
            .subject
            .shape
            .weight_bytes(self.subject.types.weights)?;
        let Some(model) = &self.model else {
            return self.by_arithmetic(setting, weight_bytes);
        };
        let defaults = ContextProps::default();
        let context = Context::new(
            model,
            ContextProps {
                context: usize::try_from(setting.context)?,
                micro_batch: usize::try_from(setting.micro_batch)?,
                batch: defaults.batch.max(usize::try_from(setting.micro_batch)?),
                sequences: usize::try_from(self.sequences)?,
                threads: self.threads.map_or(defaults.threads, usize::from),
                key_type: setting.key_type,
                value_type: setting.value_type,
                flash_attention: setting.flash_attention,
                windows: Windows::Narrow,
            },
        )
        .with_context(|| format!("a context of {} tokens", setting.context))?;
        let device = |memory: BufferMemory| Device {
            name: memory.name,
            weight_bytes: memory.model_bytes,
            context_bytes: memory.context_bytes,
            compute_bytes: memory.compute_bytes,
            budget_bytes: None,
        };
        let used = |d: &Device| d.weight_bytes + d.context_bytes + d.compute_bytes > 0;
        Ok(context
            .memory()
            .into_iter()
            .map(device)
            .filter(used)
            .collect())
    }

    fn by_arithmetic(&self, setting: Setting, weight_bytes: u64) -> anyhow::Result<Vec<Device>> {
        let shape = &self.subject.shape;
        let per_sequence = (setting.context / self.sequences).max(1);
        let cache = |ty: GgmlType| -> anyhow::Result<u64> {
            let ty = NumberType::from_name(ty.name())?;
            Ok(kv::at_context(shape, ty, per_sequence)?.bytes)
        };
        // Keys are as long as values in the models that have both.
        let one = cache(setting.key_type)?.midpoint(cache(setting.value_type)?);
        let tokens = setting.micro_batch.min(setting.context);
        Ok(vec![Device {
            name: "memory".to_owned(),
            weight_bytes,
            context_bytes: one.saturating_mul(self.sequences),
            compute_bytes: planning::buffer_bytes(shape.vocabulary, shape.hidden, tokens),
            budget_bytes: None,
        }])
    }

    /// Up to three changes that make it fit, those first that cost the least quality.
    fn ways(&self, now: Setting, taken_bytes: u64, budget: u64) -> anyhow::Result<Vec<Way>> {
        if !self.offload.gpus.is_empty() {
            let mut ways = self.settings(now, budget);
            ways.truncate(WANTED - 1);
            ways.extend(self.fewer_layers(now, budget)?);
            return Ok(ways);
        }
        let weights = self.weight_bytes()?;
        let beside_bytes = taken_bytes.saturating_sub(weights);
        let mut ways = self.settings(now, budget);
        for name in ["q8_0", "q6_K", "q5_K", "q4_K", "q3_K", "q2_K"] {
            let smaller = Weights::All(NumberType::from_name(name)?);
            let bytes = self.subject.shape.weight_bytes(smaller)?;
            let bytes_then = bytes.saturating_add(beside_bytes);
            if bytes < weights && bytes_then <= budget {
                ways.push(Way {
                    change: format!("weights in {name} (llama-quantize)"),
                    bytes: bytes_then,
                    costs: "smaller weights",
                });
            }
        }
        ways.truncate(WANTED);
        if ways.len() < WANTED && budget > beside_bytes {
            ways.push(Way {
                change: format!("tensorscope run --memory {}M", budget >> 20),
                bytes: budget,
                costs: "the rest of the weights is read from disk for each token (see `plan`)",
            });
        }
        Ok(ways)
    }

    fn weight_bytes(&self) -> anyhow::Result<u64> {
        let Subject { shape, types, .. } = self.subject;
        Ok(shape.weight_bytes(types.weights)?)
    }

    /// The most layers that fit on the GPUs, the rest being computed by the processor.
    fn fewer_layers(&self, now: Setting, budget: u64) -> anyhow::Result<Vec<Way>> {
        let layers = self.subject.shape.layers.len() as u32;
        let taken = |layers: u32| -> anyhow::Result<u64> {
            let fewer = Asker::load(
                self.subject,
                Offload {
                    layers: Some(layers),
                    ..self.offload.clone()
                },
                (self.sequences, self.threads),
            )?;
            Ok(budgeted(&fewer.devices(now)?))
        };
        // More layers take more memory: halving finds the most.
        let (mut fits, mut too_many) = (None, self.offload.layers.unwrap_or(layers + 1));
        let mut low = 0;
        while low < too_many {
            let middle = low + (too_many - low) / 2;
            let bytes = taken(middle)?;
            match bytes <= budget {
                true => (fits, low) = (Some((middle, bytes)), middle + 1),
                false => too_many = middle,
            }
        }
        let way = |(layers, bytes)| Way {
            change: format!("--gpu-layers {layers}"),
            bytes,
            costs: "the other layers are computed by the processor",
        };
        Ok(fits.map(way).into_iter().collect())
    }

    /// Changes of the context that make it fit.
    fn settings(&self, now: Setting, budget: u64) -> Vec<Way> {
        let quantised = |ty, setting| Setting {
            key_type: ty,
            value_type: ty,
            flash_attention: FlashAttention::On,
            ..setting
        };
        let small = Setting {
            micro_batch: now.micro_batch.min(64),
            ..now
        };
        let q8 = "--cache-type-k q8_0 --cache-type-v q8_0 --flash-attn on";
        let q4 = "--cache-type-k q4_0 --cache-type-v q4_0 --flash-attn on";
        let ubatch = format!("--ubatch-size {}", small.micro_batch);
        let half = now.context / 2;
        let none = "slower prompts";
        let tried: [(String, Setting, &'static str); 6] = [
            (ubatch.clone(), small, none),
            (
                q8.to_owned(),
                quantised(GgmlType::Q8_0, now),
                "a KV cache of 8 bits",
            ),
            (
                format!("{ubatch} {q8}"),
                quantised(GgmlType::Q8_0, small),
                "slower prompts, a KV cache of 8 bits",
            ),
            (
                format!("{ubatch} --ctx-size {half}"),
                Setting {
                    context: half.max(1),
                    ..small
                },
                "slower prompts, half the context",
            ),
            (
                format!("{ubatch} {q4}"),
                quantised(GgmlType::Q4_0, small),
                "slower prompts, a KV cache of 4 bits",
            ),
            (
                format!("{ubatch} {q8} --ctx-size {half}"),
                Setting {
                    context: half.max(1),
                    ..quantised(GgmlType::Q8_0, small)
                },
                "slower prompts, a KV cache of 8 bits, half the context",
            ),
        ];
        let way = |(change, setting, costs)| {
            // Some types are not for some models.
            let bytes = budgeted(&self.devices(setting).ok()?);
            (bytes <= budget).then_some(Way {
                change,
                bytes,
                costs,
            })
        };
        tried.into_iter().filter_map(way).take(WANTED).collect()
    }
}
