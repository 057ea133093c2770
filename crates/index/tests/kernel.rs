//! Faults, disk reads and resident pages: every answer under random filters against
//! a naive sum over what crate `underneath` joins.

mod common;

use std::{
    collections::{BTreeMap, HashSet},
    path::{Path, PathBuf},
};

use common::{Kind, Random, case, reference};
use index::*;
use kernelio::{
    devices::Device,
    files::Place,
    kernel_log::{
        self, Writer,
        faults::{Fault, FaultKind},
        io::{Io, Operation, Rwbs},
        residency::Word,
    },
};
use reader::kernel::{Moment, Owner, Underneath};
use rundir::{
    Ending, Metadata, Run, RunDirectory,
    metadata::{ModelFile, ModelMetadata, Statistics},
};

const KIND: Kind = Kind {
    streams: 2,
    evals: 60,
    layers: 2,
    experts: 4,
    odd_one_in: 0,
    has_odd_access: false,
};

struct Recorded {
    index: RunIndex,
    underneath: Underneath,
    evals: Vec<reference::Eval>,
    origin: u64,
    model_bytes: u64,
    _folder: tempfile::TempDir,
}

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/shakespeare-moe.gguf")
}

/// A random log that says to be of a real model, and random logs of the kernel.
fn recorded(kind: Kind, seed: u64) -> Recorded {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run");
    let model_bytes = std::fs::metadata(model()).unwrap().len();
    let metadata = Metadata {
        model: Some(ModelMetadata {
            files: vec![ModelFile {
                path: model().to_str().unwrap().to_owned(),
                size_bytes: model_bytes,
            }],
            size_bytes: model_bytes,
            ..ModelMetadata::default()
        }),
        ..Metadata::start(vec!["test".to_owned()], None)
    };
    let directory = RunDirectory::create(&path, &metadata, None).unwrap();
    common::write_run(&path, kind, seed);
    directory
        .finish(Ending::Complete, Statistics::default())
        .unwrap();
    let evals = reference::read(&path);
    let origin = evals.iter().map(|e| e.begin).min().unwrap();
    let end = evals.iter().map(|e| e.last).max().unwrap();
    write_kernel_logs(
        &path.join("log"),
        origin..end,
        model_bytes,
        &mut Random(seed),
    );
    let run = Run::open(&path).unwrap();
    Recorded {
        index: RunIndex::open(&run, &mut |_| ()).unwrap(),
        underneath: Underneath::open(&run).unwrap().unwrap(),
        evals,
        origin,
        model_bytes,
        _folder: folder,
    }
}

fn write_kernel_logs(
    log: &Path,
    times: std::ops::Range<u64>,
    model_bytes: u64,
    random: &mut Random,
) {
    // Some before the first evaluation and behind the last.
    let first = times.start - 50_000;
    let length = times.end + 50_000 - first;
    let place = |random: &mut Random| {
        (!random.one_in(9)).then(|| Place {
            file: 0,
            file_offset: random.below(model_bytes) & !4095,
        })
    };
    let mut faults = Writer::create(&log.join(kernel_log::FAULTS)).unwrap();
    for _ in 0..900 {
        let fault = Fault {
            nanos: first + random.below(length),
            address: 0,
            instruction: 0,
            pid: 1,
            tid: 1,
            cpu: 0,
            kind: [FaultKind::Minor, FaultKind::Major][random.below(2) as usize],
            place: place(random),
        };
        faults.push(&fault).unwrap();
    }
    let mut io = Writer::create(&log.join(kernel_log::IO)).unwrap();
    for request in 0..400 {
        let issued_nanos = first + random.below(length);
        let bytes = 4096 << random.below(7);
        let halves = 1 + u32::from(random.one_in(5));
        for half in 0..halves {
            io.push(&Io {
                issued_nanos,
                completed_nanos: (!random.one_in(20)).then_some(issued_nanos + 900),
                device: Device { major: 8, minor: 0 },
                sector: 0,
                request,
                request_bytes: bytes,
                piece_at_bytes: half * (bytes / halves),
                piece_bytes: bytes / halves,
                rwbs: Rwbs::from_text(if random.one_in(8) { b"WS" } else { b"RA" }),
                pid: 1,
                tid: 1,
                place: place(random).map(|place| Place {
                    file_offset: place.file_offset.min(model_bytes - (1 << 19)),
                    ..place
                }),
            })
            .unwrap();
        }
    }
    let mut samples = Writer::create(&log.join(kernel_log::RESIDENCY)).unwrap();
    let pages = model_bytes.div_ceil(4096);
    for sample in 0..12 {
        let mut runs: Vec<u64> = Vec::new();
        let mut page = random.below(40);
        while page < pages {
            let count = (1 + random.below(30)).min(pages - page);
            runs.push(page | count << 32);
            page += count + 1 + random.below(60);
        }
        let head = [
            times.start + (times.end - times.start) * sample / 12,
            sample,
            12 << 48,
            pages | (runs.len() as u64) << 32,
        ];
        for word in head.iter().chain(&runs) {
            samples.push(&Word(*word)).unwrap();
        }
    }
}

impl Recorded {
    fn keeps(&self, filter: &Filter, owner: Option<Owner>, at: Option<Moment>) -> bool {
        let tensor = owner.map(|owner| self.underneath.owners.tensor(owner));
        let layer = tensor.and_then(|t| t.layer);
        let keeps_layer = filter.layers.as_ref().is_none_or(|l| l.contains(&layer));
        let keeps_component = filter.components.as_ref().is_none_or(|names| {
            tensor.is_some_and(|tensor| names.iter().any(|n| n == tensor.component))
        });
        let expert = owner.and_then(|o| o.expert);
        let keeps_expert = filter
            .experts
            .as_ref()
            .is_none_or(|wanted| expert.is_some_and(|e| wanted.contains(&e)));
        let asks_for_moment =
            filter.phases.is_some() || filter.tokens.is_some() || filter.ops.is_some();
        let keeps_moment = !asks_for_moment
            || at.is_some_and(|moment| {
                let mut evals = self.evals.iter();
                let eval = evals.find(|e| e.number == moment.eval).unwrap();
                let op = &eval.nodes[moment.step.unwrap() as usize].op;
                let keeps_op = filter.ops.as_ref().is_none_or(|ops| ops.contains(op));
                reference::keeps_eval(filter, eval) && keeps_op
            });
        keeps_layer && keeps_component && keeps_expert && keeps_moment
    }

    /// Time, end, offset, bytes (0 for a fault), owner.
    fn majors(&self, filter: &Filter) -> Vec<(u64, u64, u64)> {
        let faults = self.underneath.faults().unwrap().unwrap().into_iter();
        faults
            .filter(|f| f.fault.kind == FaultKind::Major && self.keeps(filter, f.owner, f.at))
            .filter_map(|f| Some((f.fault.nanos, f.fault.place?.file_offset, 1)))
            .collect()
    }

    fn reads(&self, filter: &Filter) -> Vec<reader::kernel::JoinedIo> {
        let io = self.underneath.io().unwrap().unwrap().into_iter();
        io.filter(|io| io.io.rwbs.operation() == Operation::Read)
            .filter(|io| self.keeps(filter, io.owner, io.at))
            .collect()
    }

    fn filters(&self, random: &mut Random) -> Vec<Filter> {
        let tokens = self.evals.iter().map(|e| e.tokens).sum();
        let mut filters = vec![Filter::default()];
        filters.extend((0..40).map(|_| case::filter(random, tokens)));
        filters
    }
}

#[test]
fn sums_by_layer_and_tensor_are_those_of_the_joined_rows() {
    let run = recorded(KIND, 3);
    let mut seen = 0;
    for filter in run.filters(&mut Random(8)) {
        let disk = run.index.disk(&DiskQuery::default(), &filter).unwrap();
        let mut read: BTreeMap<Option<Box<str>>, u64> = BTreeMap::new();
        let mut requests: HashSet<u64> = HashSet::new();
        let (mut unowned, mut elsewhere) = (0, 0);
        for io in run.reads(&filter) {
            match io.owner {
                Some(owner) => {
                    let name = run.underneath.owners.tensor(owner).name.clone();
                    *read.entry(Some(name)).or_default() += io.bytes;
                }
                None if io.io.place.is_some() => unowned += io.bytes,
                None => elsewhere += io.bytes,
            }
            if io.io.place.is_some() {
                requests.insert(io.io.request);
            }
        }
        for tensor in &disk.by_tensor {
            let expected = read.remove(&Some(tensor.name.clone().into())).unwrap_or(0);
            assert_eq!(
                tensor.sums.read_bytes, expected,
                "{} {filter:?}",
                tensor.name
            );
        }
        assert!(read.is_empty(), "{read:?}");
        assert_eq!(disk.unowned.read_bytes, unowned);
        assert_eq!(disk.elsewhere.read_bytes, elsewhere);
        let of_layers: u64 = disk.by_layer.iter().map(|l| l.sums.read_bytes).sum();
        assert_eq!(of_layers, disk.total.read_bytes);
        let sizes: u64 = disk.sizes.iter().map(|s| s.requests).sum();
        assert_eq!(sizes, requests.len() as u64, "{filter:?}");
        seen += disk.total.read_bytes;
        let majors = run.majors(&filter).len() as u64;
        let counted = disk.total.major_faults + disk.unowned.major_faults;
        assert_eq!(counted, majors, "{filter:?}");
    }
    assert!(seen > 0);
}

#[test]
fn marks_of_a_window_are_those_of_the_joined_rows() {
    // Evaluations that are not as one expects have nodes too.
    let odd = Kind {
        odd_one_in: 3,
        ..KIND
    };
    let run = recorded(odd, 5);
    let mut random = Random(1);
    for filter in run.filters(&mut Random(9)) {
        let duration = run.index.info().totals.duration_nanos;
        let t0 = random.below(duration / 2);
        let t1 = t0 + 1 + random.below(duration);
        let o0 = random.below(run.model_bytes / 2);
        let o1 = o0 + 1 + random.below(run.model_bytes);
        let ask = |of| {
            let window = OffsetsQuery {
                t0: Some(t0),
                t1: Some(t1),
                o0: Some(o0),
                o1: Some(o1),
                w: 37,
                h: 23,
                even: 0,
            };
            run.index
                .marks(&MarksQuery { of, window }, &filter)
                .unwrap()
        };
        let (begin, end) = (run.origin + t0, run.origin + t1);
        let faults = ask(MarkKind::Faults);
        let majors = run.majors(&filter);
        let is_inside = |&&(nanos, offset, _): &&(u64, u64, u64)| {
            (begin..end).contains(&nanos) && (o0..o1).contains(&offset)
        };
        let expected = majors.iter().filter(is_inside).count();
        assert_eq!(faults.header.events, expected as u64, "{filter:?}");
        let sum: f32 = faults.values.iter().sum();
        assert!((f64::from(sum) - expected as f64).abs() < 1e-2, "{sum}");
        let reads = ask(MarkKind::Reads);
        let mut expected = 0.0;
        for io in run.reads(&filter) {
            let Some(_) = io.io.place else { continue };
            let from = io.io.issued_nanos;
            let to = io.io.completed_nanos.unwrap_or(from);
            let in_time = match from < to {
                true => case::share(from as f64, (to - from) as f64, begin as f64, end as f64),
                false => f64::from(u8::from((begin..end).contains(&from))),
            };
            let (at, bytes) = (io.file_offset as f64, io.bytes as f64);
            expected += in_time * case::share(at, bytes, o0 as f64, o1 as f64) * bytes;
        }
        let sum: f64 = reads.values.iter().map(|&v| f64::from(v)).sum();
        assert!(
            (sum - expected).abs() <= 1.0 + expected * 1e-5,
            "{sum} {expected}"
        );
    }
}

#[test]
fn maps_add_up_and_residency_is_that_of_the_last_sample() {
    let run = recorded(KIND, 7);
    let ask = |metric, at| {
        let query = KernelMapQuery {
            cells: 1000,
            metric,
            at,
        };
        run.index.kernel_map(&query, &Filter::default()).unwrap()
    };
    let sum = |raster: &Raster<MapHeader>| raster.values.iter().map(|&v| f64::from(v)).sum::<f64>();
    let all = Filter::default();
    assert_eq!(
        sum(&ask(KernelMetric::Faults, None)),
        run.majors(&all).len() as f64
    );
    let bytes: u64 = run
        .reads(&all)
        .iter()
        .filter(|r| r.io.place.is_some())
        .map(|r| r.bytes)
        .sum();
    assert!((sum(&ask(KernelMetric::Disk, None)) - bytes as f64).abs() < bytes as f64 * 1e-5);
    let samples = run.underneath.samples().unwrap().unwrap();
    for (sample, next) in samples.iter().zip(&samples[1..]) {
        for nanos in [sample.nanos, next.nanos - 1] {
            let at = nanos - run.origin;
            let map = ask(KernelMetric::Residency, Some(at));
            let header = &map.header;
            let sampled = header.sampled.unwrap();
            assert_eq!(
                (sampled.token, sampled.resident_bytes),
                (sample.token, sample.resident_bytes)
            );
            let cell = |i: usize| {
                header
                    .cell_bytes
                    .min(run.model_bytes.saturating_sub(i as u64 * header.cell_bytes))
            };
            let known = map.values.iter().enumerate().filter(|(_, v)| !v.is_nan());
            let found: f64 = known.map(|(i, &v)| f64::from(v) * cell(i) as f64).sum();
            assert!(
                (found - sample.resident_bytes as f64).abs() < 600.0,
                "{found}"
            );
            let disk = run.index.disk(&DiskQuery { at: Some(at) }, &all).unwrap();
            for &(tensor, bytes) in &sample.tensors {
                let name = &*run.underneath.owners.tensors()[tensor as usize].name;
                let found = disk.by_tensor.iter().find(|t| t.name == name).unwrap();
                assert_eq!(found.sums.resident_bytes, bytes, "{name}");
            }
            // The experts of a tensor are its bytes.
            let of = |experts| {
                let filter = Filter {
                    experts: Some(experts),
                    ..Filter::default()
                };
                let disk = run
                    .index
                    .disk(&DiskQuery { at: Some(at) }, &filter)
                    .unwrap();
                disk.total
            };
            let (some, others) = (of(vec![1, 6]), of(vec![0, 2, 3, 4, 5, 7]));
            let experts = disk.by_tensor.iter().filter(|t| t.component == "expert");
            let sums: Vec<DiskSums> = experts.map(|t| t.sums).collect();
            let total = |value: fn(&DiskSums) -> u64| sums.iter().map(value).sum::<u64>();
            assert_eq!(some.size_bytes + others.size_bytes, total(|s| s.size_bytes));
            let resident = some.resident_bytes + others.resident_bytes;
            assert_eq!(resident, total(|s| s.resident_bytes));
            assert!(some.resident_bytes <= some.size_bytes);
        }
    }
}

#[test]
fn a_run_without_logs_says_how_to_get_them_and_a_damaged_log_is_named() {
    let folder = tempfile::tempdir().unwrap();
    common::write_run(folder.path(), KIND, 1);
    let open = || RunIndex::open(&Run::open(folder.path()).unwrap(), &mut |_| ()).unwrap();
    let ask = |index: &RunIndex| index.disk(&DiskQuery::default(), &Filter::default());
    let index = open();
    assert_eq!(index.info().kernel, KernelInfo::default());
    let error = ask(&index).unwrap_err();
    assert!(
        error.to_string().contains("--faults --io --residency"),
        "{error}"
    );
    std::fs::write(
        folder.path().join("log/io"),
        b"not at all what it should be",
    )
    .unwrap();
    let index = open();
    assert!(index.info().kernel.io && !index.info().kernel.faults);
    let error = ask(&index).unwrap_err();
    assert!(
        matches!(error, KernelQueryError::Unreadable(_)),
        "{error:?}"
    );
    assert!(error.to_string().contains("log/io"), "{error}");
}
