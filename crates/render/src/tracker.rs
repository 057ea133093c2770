//! The files of the tensor access tracker plan: a folder that numpy reads.
//!
//! ```text
//! DIR/
//!   tensor_access.bin     one record of 64 bytes an access (see [`record`])
//!   tensor_names.txt      `index,name` of every tensor that a record names
//!   trace_metadata.json   model, run, machine, and what the numbers in records mean
//!   gguf_structure.csv    the structure map, as `tensorscope inspect --csv` writes it
//! ```
//!
//! The plan's record is corrected, not copied: `docs/exports.md` says where and why.
//! `trace_metadata.json` is written last, so a folder that has it is complete.

mod about;
mod heads;
pub mod record;

use std::{
    collections::HashMap,
    fs::{self, OpenOptions},
    io::{self, BufWriter, Write},
    path::Path,
};

use rundir::Run;
use trace::{
    expand::{Access, for_each_access, for_each_route},
    format::Phase,
    template::{Direction, TensorKind},
};

use crate::{
    error::RenderError,
    log::{Executed, Log, Scene, Stats, TensorText, Visitor},
};
use heads::HeadRanges;
use record::{NONE_U16, NONE_U64, Operations, Record, phase, qkv, quantised};

/// Names inside the folder.
pub const ACCESSES: &str = "tensor_access.bin";
pub const NAMES: &str = "tensor_names.txt";
pub const METADATA: &str = "trace_metadata.json";
pub const STRUCTURE: &str = "gguf_structure.csv";

/// How accesses to attention weights become records.
#[derive(Clone, Copy, Debug, Default)]
pub enum Heads<'m> {
    /// One record an access: llama.cpp reads the matrix of all heads at once.
    #[default]
    Together,
    /// One record for each head of a matrix that is read whole, for models whose
    /// heads lie apart. Other accesses are as with [`Heads::Together`].
    Apart(&'m gguf::Model),
}

/// Writes the folder, which must not exist or be empty.
pub fn write(run: &Run, heads: Heads, directory: &Path) -> Result<Stats, RenderError> {
    make_folder(directory)?;
    let log = Log::new(&run.log_directory());
    let start_nanos = log.start_nanos()?;
    let mut tracker = Tracker {
        out: BufWriter::with_capacity(1 << 18, create(&directory.join(ACCESSES))?),
        start_nanos,
        end_nanos: start_nanos,
        heads: HeadRanges::of(heads),
        operations: Operations::default(),
        tensors: HashMap::new(),
        names: Vec::new(),
        records: 0,
    };
    let mut stats = log.walk(&mut tracker)?;
    stats.written = tracker.records;
    tracker.out.flush()?;
    let names = tracker.names.iter().map(String::as_str);
    rundir::names::write(names, create(&directory.join(NAMES))?)?;
    match fs::File::open(run.structure_path()) {
        Ok(mut structure) => {
            io::copy(&mut structure, &mut create(&directory.join(STRUCTURE))?)?;
        }
        // A program that loaded its model by itself: there is none to copy.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(named(&run.structure_path(), error).into()),
    }
    let about = about::describe(run, &tracker, &stats);
    let mut out = create(&directory.join(METADATA))?;
    serde_json::to_writer_pretty(&mut out, &about).map_err(io::Error::from)?;
    out.write_all(b"\n")?;
    Ok(stats)
}

fn make_folder(directory: &Path) -> io::Result<()> {
    let in_use = || {
        let reason = "the folder is not empty; name one that is new";
        named(
            directory,
            io::Error::new(io::ErrorKind::AlreadyExists, reason),
        )
    };
    match fs::create_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let mut entries = fs::read_dir(directory).map_err(|e| named(directory, e))?;
            entries.next().map_or(Ok(()), |_| Err(in_use()))
        }
        other => other.map_err(|error| named(directory, error)),
    }
}

fn create(path: &Path) -> io::Result<fs::File> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).open(path);
    file.map_err(|error| named(path, error))
}

fn named(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

struct Tracker {
    out: BufWriter<fs::File>,
    start_nanos: u64,
    end_nanos: u64,
    heads: HeadRanges,
    operations: Operations,
    /// Index in `tensor_names.txt`: streams number their tensors each for itself.
    tensors: HashMap<String, u32>,
    names: Vec<String>,
    records: u64,
}

/// The best rank and the largest weight that any token of the batch gave an expert.
#[derive(Clone, Copy)]
struct Chosen {
    rank: u32,
    weight: Option<f32>,
}

impl Visitor for Tracker {
    fn evaluation(&mut self, scene: &Scene) -> Result<(), RenderError> {
        self.end_nanos = self.end_nanos.max(scene.evaluation.end_nanos);
        let mut chosen: HashMap<(u32, u32), Chosen> = HashMap::new();
        for_each_route(scene.template, scene.evaluation, |route| {
            let new = Chosen {
                rank: route.rank,
                weight: route.weight,
            };
            let best = chosen.entry((route.layer, route.expert)).or_insert(new);
            best.rank = best.rank.min(route.rank);
            best.weight = match (best.weight, route.weight) {
                (Some(a), Some(b)) => Some(a.max(b)),
                (a, b) => a.or(b),
            };
        });
        let mut result = Ok(());
        for executed in scene.steps() {
            for_each_access(
                scene.template,
                scene.evaluation,
                executed.number,
                |access| {
                    if result.is_ok() {
                        result = self.access(scene, &executed, &access, &chosen);
                    }
                },
            );
        }
        result
    }
}

impl Tracker {
    fn access(
        &mut self,
        scene: &Scene,
        executed: &Executed,
        access: &Access,
        chosen: &HashMap<(u32, u32), Chosen>,
    ) -> Result<(), RenderError> {
        let eval = scene.evaluation.number;
        let tensor = &scene.definitions.tensors[access.def.tensor as usize];
        let text = scene.names.tensor(access.def.tensor);
        let layer = executed.step.layer;
        let route = access
            .expert
            .zip(layer)
            .and_then(|(expert, layer)| chosen.get(&(layer, expert)));
        let own_token = scene.token_of(access);
        let token_count = if own_token.is_some() { 1 } else { scene.tokens };
        let op = scene.definitions.text(executed.step.op);
        let narrow = |field, value: Option<u32>| match value {
            None => Ok(NONE_U16),
            Some(value) => u16::try_from(value)
                .ok()
                .filter(|&value| value != NONE_U16)
                .ok_or(RenderError::TooLarge {
                    eval,
                    field,
                    value: value.into(),
                    bits: 16,
                }),
        };
        let too_large = |field, value, bits| RenderError::TooLarge {
            eval,
            field,
            value,
            bits,
        };
        let token_id = own_token.unwrap_or(scene.first_token);
        let record = Record {
            timestamp_ns: executed.begin_nanos.saturating_sub(self.start_nanos),
            tensor_ptr: tensor.address + access.region.offset,
            file_offset: tensor
                .place
                .map_or(NONE_U64, |p| p.file_offset + access.region.offset),
            size_bytes: access.region.bytes(),
            token_id: u32::try_from(token_id).map_err(|_| too_large("token", token_id, 32))?,
            eval: u32::try_from(eval).map_err(|_| too_large("number", eval, 32))?,
            tensor_idx: self.tensor_index(text),
            operation: self
                .operations
                .number(&op)
                .ok_or(too_large("operation", 1 << 16, 16))?,
            layer_id: narrow("layer", layer)?,
            attention_head: NONE_U16,
            expert_id: narrow("expert", access.expert)?,
            expert_rank: narrow("rank", route.map(|r| r.rank))?,
            routing_score: quantised(route.and_then(|r| r.weight)),
            file: narrow("file", tensor.place.map(|p| p.file))?,
            // Larger batches than this are not known; the evaluation has the count.
            token_count: u16::try_from(token_count).unwrap_or(u16::MAX),
            phase: match scene.evaluation.phase {
                Phase::Prompt => phase::PROMPT,
                Phase::Generate => phase::GENERATE,
                Phase::Unknown => phase::UNKNOWN,
            },
            qkv_type: qkv_of(text, tensor.kind),
            direction: match access.def.direction {
                Direction::Read => 0,
                Direction::Write => 1,
            },
        };
        let is_whole = access.region.offset == 0
            && access.region.dims.is_empty()
            && access.region.run_bytes == tensor.size_bytes;
        let ranges = if is_whole {
            self.heads.of_tensor(&text.name)
        } else {
            &[]
        };
        if ranges.is_empty() {
            self.out.write_all(&record.to_bytes())?;
            self.records += 1;
        }
        for range in ranges {
            let head = u32::try_from(range.head).unwrap_or(u32::MAX);
            let of_head = Record {
                tensor_ptr: tensor.address + range.offset,
                file_offset: tensor
                    .place
                    .map_or(NONE_U64, |p| p.file_offset + range.offset),
                size_bytes: range.size_bytes,
                attention_head: narrow("head", Some(head))?,
                qkv_type: qkv::of_role(range.of),
                ..record
            };
            self.out.write_all(&of_head.to_bytes())?;
            self.records += 1;
        }
        Ok(())
    }

    fn tensor_index(&mut self, text: &TensorText) -> u32 {
        if let Some(&index) = self.tensors.get(&text.name) {
            return index;
        }
        let index = self.names.len() as u32;
        self.names.push(text.name.clone());
        self.tensors.insert(text.name.clone(), index);
        index
    }
}

fn qkv_of(text: &TensorText, kind: TensorKind) -> u8 {
    match (&text.meaning, kind) {
        (Some(meaning), _) if meaning.component == gguf::Component::Attention => {
            qkv::of_role(&meaning.role)
        }
        (None, TensorKind::KvCache) if text.name.contains("cache_k") => qkv::KEY,
        (None, TensorKind::KvCache) if text.name.contains("cache_v") => qkv::VALUE,
        _ => qkv::NONE,
    }
}
