//! Runs with a model and with what the kernel did underneath, made up at random.
//!
//! The log has two streams: evaluations of the small graph, and evaluations of one
//! token that begin before those have ended. The model is a tiny one in two files;
//! the weights of the small graph that it has are where it has them.
#![allow(dead_code, reason = "each user takes a part of it")]

pub mod join;

use std::{fs, ops::ControlFlow, path::Path};

use gguf::{
    Model,
    write::{Existing, Split},
};
use kernelio::{
    devices::Device,
    files::Place,
    kernel_log::{
        FAULTS, IO, RESIDENCY, Record, Writer,
        faults::{Fault, FaultKind},
        io::{Io, Rwbs},
        residency::{ResidencyReader, ResidencyWriter, Sample, Word},
    },
};
use rundir::{Metadata, Run, metadata};
use synth::{Recipe, Size};
use trace::{
    append::Log,
    format::{Phase, RecordKind},
    read::Evaluation,
    template::{CaptureKind, Definition, FilePlace, Template, TensorKind},
};

use testing::log::{self, append, body, define, small_evaluation, small_graph};

pub const PAGE_BYTES: u64 = 4096;

/// Everything that was recorded, in the order of the files.
pub struct Recorded {
    pub run: Run,
    pub model: Model,
    pub faults: Vec<Fault>,
    pub io: Vec<Io>,
    pub samples: Vec<Resident>,
}

/// Whether each page of a file is in memory.
pub struct Resident {
    pub nanos: u64,
    pub token: u64,
    pub file: u32,
    pub pages: Vec<bool>,
}

/// Writes model, log, metadata and the kernel's logs into a folder.
pub fn write_run(path: &Path, evaluations: u64, seed: u64) -> Recorded {
    let log = path.join("log");
    fs::create_dir_all(&log).unwrap();
    let model = write_model(&path.join("model.gguf"));
    write_metadata(path, &model);
    write_log(&log, &model, evaluations);
    let mut random = Random(seed);
    let end_nanos = 1_000_000 + (evaluations + 1) * 10_000;
    let faults = (0..400).map(|_| random.fault(&model, end_nanos));
    let faults: Vec<Fault> = faults.collect();
    write_records(&log.join(FAULTS), &faults);
    let io = random.requests(&model, end_nanos);
    write_records(&log.join(IO), &io);
    let mut samples = Vec::new();
    for number in 0..4 {
        for (file, about) in model.files().iter().enumerate() {
            let pages = about.len_bytes.div_ceil(PAGE_BYTES);
            let share = random.below(8);
            samples.push(Resident {
                nanos: 1_000_000 + number * 9_000,
                token: number,
                file: file as u32,
                pages: (0..pages).map(|_| random.below(8) < share).collect(),
            });
        }
    }
    write_samples(&log, &samples);
    Recorded {
        run: Run::open(path).unwrap(),
        model,
        faults,
        io,
        samples,
    }
}

pub fn write_records<R: Record>(path: &Path, records: &[R]) {
    let mut writer = Writer::create(path).unwrap();
    records
        .iter()
        .for_each(|record| writer.push(record).unwrap());
    writer.flush().unwrap();
}

fn write_model(path: &Path) -> Model {
    let recipe = Recipe {
        size: Size::Tiny,
        ..Recipe::new("mixtral-8x7b").unwrap()
    };
    let model = recipe.model().unwrap();
    let layout = model.layout(path, Split::Tensors(14)).unwrap();
    let go_on = |_| ControlFlow::Continue(());
    model.write(&layout, Existing::Refuse, go_on).unwrap();
    let model = Model::open(&layout.files()[0].path).unwrap();
    assert!(model.files().len() > 1);
    model
}

fn write_metadata(path: &Path, model: &Model) {
    let metadata = Metadata {
        format: metadata::FORMAT.to_owned(),
        version: metadata::VERSION,
        model: Some(metadata::ModelMetadata::of(model)),
        ..Metadata::default()
    };
    let text = serde_json::to_vec(&metadata).unwrap();
    fs::write(path.join("metadata.json"), text).unwrap();
}

/// Evaluations of the small graph in stream 0, of one token in stream 1.
fn write_log(log_directory: &Path, model: &Model, evaluations: u64) {
    let (mut definitions, template) = small_graph();
    let weights = ["token_embd.weight", "blk.0.ffn_up_exps.weight"];
    let defs = definitions
        .iter_mut()
        .filter_map(|definition| match definition {
            Definition::Tensor(tensor) if tensor.kind == TensorKind::Weight => Some(tensor),
            _ => None,
        });
    for (def, name) in defs.zip(weights) {
        let tensor = model.tensors().iter().find(|t| *t.name == *name).unwrap();
        def.place = Some(FilePlace {
            file: tensor.file,
            file_offset: tensor.file_offset,
        });
    }
    let single = single_token(&template);
    definitions.push(Definition::Template(single.clone()));
    let (status, log, mut appender) = log::open(log_directory, log::SEGMENT_BYTES);
    let (second, mut second_appender) = Log::create_sized(
        log_directory,
        1,
        status,
        Box::new(|_| ()),
        log::SEGMENT_BYTES,
    )
    .unwrap();
    assert!(define(&mut appender, &definitions));
    assert!(define(&mut second_appender, &definitions));
    for number in 0..evaluations {
        let evaluation = small_evaluation(number);
        let of_small = body(&template, &evaluation);
        assert!(append(&mut appender, RecordKind::Evaluation, &of_small));
        let begin_nanos = evaluation.begin_nanos + 4_200;
        let of_single = Evaluation {
            template: 1,
            phase: Phase::Generate,
            begin_nanos,
            end_nanos: begin_nanos + 3_000,
            ticks: 2,
            step_nanos: vec![begin_nanos + 1_000, begin_nanos + 2_000],
            captures: vec![vec![5], vec![number as i64]],
            sequences: vec![0],
            token_phases: Vec::new(),
            origins: None,
            device: None,
            ..evaluation
        };
        let of_single = body(&single, &of_single);
        assert!(append(
            &mut second_appender,
            RecordKind::Evaluation,
            &of_single
        ));
    }
    log.finish(appender).unwrap();
    second.finish(second_appender).unwrap();
}

/// A graph of two nodes for one token.
fn single_token(template: &Template) -> Template {
    let mut single = template.clone();
    single.steps = vec![template.steps[3].clone(), template.steps[3].clone()];
    single.steps[1].op = template.steps[0].op;
    single.steps[1].name = template.steps[0].name;
    single
        .captures
        .retain(|capture| matches!(capture.kind, CaptureKind::Tokens | CaptureKind::Positions));
    for capture in &mut single.captures {
        capture.count = [1, 1, 1];
    }
    single
}

/// As the recorder writes them: only the first of a file are whole.
fn write_samples(log: &Path, samples: &[Resident]) {
    // Only a log makes a `Residency` of pages that nobody has asked the kernel about.
    let plain = log.join("plain-residency");
    let mut words = Vec::new();
    for sample in samples {
        let resident = &sample.pages;
        let mut bits = vec![0u64; resident.len().div_ceil(64)];
        for (page, _) in resident.iter().enumerate().filter(|(_, is)| **is) {
            bits[page / 64] |= 1 << (page % 64);
        }
        let (pages, length) = (resident.len() as u64, bits.len() as u64);
        let third = u64::from(sample.file) | 2 << 32 | 12 << 48;
        words.extend([sample.nanos, sample.token, third]);
        words.push(pages | length << 32);
        words.extend(bits);
    }
    let words: Vec<Word> = words.into_iter().map(Word).collect();
    write_records(&plain, &words);
    let mut writer = ResidencyWriter::create(&log.join(RESIDENCY)).unwrap();
    for sample in ResidencyReader::open(&plain).unwrap() {
        let sample: Sample = sample.unwrap();
        writer.push(&sample).unwrap();
    }
    fs::remove_file(&plain).unwrap();
}

/// The same numbers for the same seed.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    /// A byte of the model, often one of its headers, or something else.
    fn place(&mut self, model: &Model) -> Option<Place> {
        let file = self.below(model.files().len() as u64 + 1) as u32;
        let about = model.files().get(file as usize)?;
        let bound = match self.below(4) {
            0 => about.len_bytes.min(1 << 15),
            _ => about.len_bytes,
        };
        let file_offset = self.below(bound);
        Some(Place { file, file_offset })
    }

    pub fn fault(&mut self, model: &Model, end_nanos: u64) -> Fault {
        Fault {
            nanos: 990_000 + self.below(end_nanos - 990_000),
            address: 0x7f00_0000_0000 + self.below(1 << 30),
            instruction: 0x55_0000,
            pid: 4000,
            tid: 4000 + self.below(3) as u32,
            cpu: self.below(2) as u16,
            kind: match self.below(3) {
                0 => FaultKind::Minor,
                _ => FaultKind::Major,
            },
            place: self.place(model),
        }
    }

    /// Requests of up to three pieces, in the order of completion.
    fn requests(&mut self, model: &Model, end_nanos: u64) -> Vec<Io> {
        let mut requests: Vec<Vec<Io>> = Vec::new();
        let mut issued_nanos = 995_000;
        for request in 0..200 {
            issued_nanos += 1 + self.below((end_nanos - 995_000) / 200);
            let completed_nanos = Some(issued_nanos + 100 + self.below(20_000));
            let completed_nanos = completed_nanos.filter(|_| self.below(10) > 0);
            let kinds: [&[u8]; 6] = [b"R", b"RA", b"RSM", b"RA", b"WS", b"FDS"];
            let rwbs = Rwbs::from_text(kinds[self.below(6) as usize]);
            let (sector, mut pieces) = (self.below(1 << 40), Vec::new());
            let mut request_bytes = 0;
            for _ in 0..=self.below(3) {
                let place = self.place(model).map(|place| Place {
                    file_offset: place.file_offset / 512 * 512,
                    ..place
                });
                let piece_bytes = 512 * (1 + self.below(300) as u32);
                pieces.push((place, request_bytes, piece_bytes));
                request_bytes += piece_bytes;
            }
            let of_piece = pieces.into_iter().map(|(place, at, piece_bytes)| Io {
                issued_nanos,
                completed_nanos,
                device: Device {
                    major: 259,
                    minor: 3,
                },
                sector,
                request,
                request_bytes,
                piece_at_bytes: at,
                piece_bytes,
                rwbs,
                pid: 4000,
                tid: 4001,
                place,
            });
            requests.push(of_piece.collect());
        }
        requests.sort_by_key(|pieces| pieces[0].completed_nanos.unwrap_or(u64::MAX));
        requests.into_iter().flatten().collect()
    }
}
