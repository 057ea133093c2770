//! What the kernel did underneath, as tables, against a naive join.

mod common;
mod kernel_logs;
mod naive;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    path::Path,
};

use gguf::{Component, Model};
use kernel_logs::{PAGE_BYTES, Random, Recorded, write_records, write_run};
use kernelio::{
    files::Place,
    kernel_log::{
        FAULTS, HEADER_BYTES, IO, RESIDENCY, Record as _,
        faults::{Fault, FaultKind},
        io::{Io, Operation},
    },
};
use naive::table_rows;
use rundir::Run;
use store::{Format, Session, TablesState, ingest, schema, tables_state, views, write_query};
use trace::{
    read::{Event, StreamEnd, StreamReader, streams},
    template::CaptureKind,
};

/// Tensor and expert of every byte of a file.
type Bytes = Vec<Option<(usize, Option<u64>)>>;

/// A node and when it ran.
struct Node {
    eval: u64,
    step: usize,
    op: String,
    name: String,
    phase: &'static str,
    token: Option<u64>,
    eval_begin: u64,
    eval_end: u64,
    end: u64,
}

/// The slow and obvious way.
struct Naive<'a> {
    model: &'a Model,
    files: Vec<Bytes>,
    nodes: Vec<Node>,
}

impl Naive<'_> {
    fn new(recorded: &Recorded) -> Naive<'_> {
        let model = &recorded.model;
        let mut files: Vec<Bytes> = Vec::new();
        for file in model.files() {
            files.push(vec![None; file.len_bytes as usize]);
        }
        for (number, tensor) in model.tensors().iter().enumerate() {
            for inside in 0..tensor.size_bytes {
                let is_expert = tensor.meaning.component == Component::Expert;
                let slice_bytes = tensor.size_bytes / tensor.ne[2];
                let expert = is_expert.then_some(inside / slice_bytes);
                let at = (tensor.file_offset + inside) as usize;
                files[tensor.file as usize][at] = Some((number, expert));
            }
        }
        Naive {
            model,
            files,
            nodes: nodes(&recorded.run),
        }
    }

    fn owner(&self, file: u32, file_offset: u64) -> Option<(usize, Option<u64>)> {
        let bytes = &self.files[file as usize];
        bytes.get(file_offset as usize).copied().flatten()
    }

    fn owner_of_fault(&self, place: Place) -> Option<(usize, Option<u64>)> {
        let page = place.file_offset / PAGE_BYTES * PAGE_BYTES;
        let of_page = (page..page + PAGE_BYTES).find_map(|at| self.owner(place.file, at));
        self.owner(place.file, place.file_offset).or(of_page)
    }

    fn node(&self, nanos: u64) -> Option<&Node> {
        let open = |node: &&Node| node.eval_begin <= nanos && nanos <= node.eval_end;
        let begin = self.nodes.iter().filter(open).map(|n| n.eval_begin).max()?;
        let mut of_eval = self.nodes.iter().filter(|node| node.eval_begin == begin);
        let running = of_eval.clone().find(|node| node.end >= nanos);
        running.or_else(|| of_eval.next_back())
    }

    /// `tensor`, name, layer and component, and bytes.
    fn tensor(&self, owner: Option<(usize, Option<u64>)>) -> [String; 5] {
        let Some((number, _)) = owner else {
            return [const { String::new() }; 5];
        };
        let tensor = &self.model.tensors()[number];
        let row = match &*tensor.name {
            "token_embd.weight" => "0",
            "blk.0.ffn_up_exps.weight" => "2",
            _ => "",
        };
        [
            row.to_owned(),
            tensor.name.to_string(),
            text(tensor.meaning.layer),
            tensor.meaning.component.name().to_owned(),
            tensor.size_bytes.to_string(),
        ]
    }

    fn fault(&self, fault: &Fault) -> String {
        let owner = fault.place.and_then(|place| self.owner_of_fault(place));
        let [tensor, tensor_name, layer, component, _] = self.tensor(owner);
        let node = self.node(fault.nanos);
        let row = [
            fault.nanos.to_string(),
            match fault.kind {
                FaultKind::Major => "major".to_owned(),
                FaultKind::Minor => "minor".to_owned(),
            },
            fault.address.to_string(),
            fault.pid.to_string(),
            fault.tid.to_string(),
            fault.cpu.to_string(),
            text(fault.place.map(|p| p.file)),
            text(fault.place.map(|p| p.file_offset)),
            tensor,
            tensor_name,
            layer,
            component,
            text(owner.and_then(|(_, expert)| expert)),
            text(node.map(|n| n.eval)),
            text(node.map(|n| n.step)),
            text(node.map(|n| &n.op)),
            text(node.map(|n| &n.name)),
            text(node.map(|n| n.phase)),
            text(node.and_then(|n| n.token)),
        ];
        row.join(",")
    }

    /// Offset, bytes and owner of each part of a piece.
    fn parts(&self, io: &Io) -> Vec<(Option<u64>, u64, Option<(usize, Option<u64>)>)> {
        let Some(place) = io.place else {
            return vec![(None, u64::from(io.piece_bytes), None)];
        };
        let mut parts: Vec<(Option<u64>, u64, _)> = Vec::new();
        for at in place.file_offset..place.file_offset + u64::from(io.piece_bytes) {
            let owner = self.owner(place.file, at);
            match parts.last_mut() {
                Some((_, bytes, last)) if *last == owner => *bytes += 1,
                _ => parts.push((Some(at), 1, owner)),
            }
        }
        parts
    }

    fn io(&self, io: &Io, rows: &mut Vec<String>) {
        let node = self.node(io.issued_nanos);
        let rwbs = io.rwbs.to_string();
        for (file_offset, bytes, owner) in self.parts(io) {
            let [tensor, tensor_name, layer, component, tensor_bytes] = self.tensor(owner);
            let row = [
                io.request.to_string(),
                io.issued_nanos.to_string(),
                text(io.completed_nanos),
                text(io.completed_nanos.map(|end| end - io.issued_nanos)),
                "259:3".to_owned(),
                io.sector.to_string(),
                io.request_bytes.to_string(),
                match rwbs.trim_start_matches('F').chars().next() {
                    Some('R') => "read".to_owned(),
                    Some('W') => "write".to_owned(),
                    _ => "discard".to_owned(),
                },
                rwbs.clone(),
                u8::from(rwbs.contains('A')).to_string(),
                io.pid.to_string(),
                io.tid.to_string(),
                text(io.place.map(|p| p.file)),
                text(file_offset),
                bytes.to_string(),
                tensor,
                tensor_name,
                tensor_bytes,
                layer,
                component,
                text(owner.and_then(|(_, expert)| expert)),
                text(node.map(|n| n.eval)),
                text(node.map(|n| n.step)),
                text(node.map(|n| &n.op)),
                text(node.map(|n| n.phase)),
            ];
            rows.push(row.join(","));
        }
    }

    fn sample(&self, sample: &(u64, u64, u32, Vec<bool>), rows: &mut Vec<String>) {
        let (nanos, token, file, resident) = sample;
        let mut of_file = BTreeMap::new();
        for (at, owner) in self.files[*file as usize].iter().enumerate() {
            if let Some((number, _)) = owner {
                let offset = self.model.tensors()[*number].file_offset;
                *of_file.entry((offset, *number)).or_insert(0) +=
                    u64::from(resident[at / PAGE_BYTES as usize]);
            }
        }
        for ((_, number), resident_bytes) in of_file {
            let [tensor, tensor_name, layer, component, size_bytes] =
                self.tensor(Some((number, None)));
            rows.push(format!(
                "{nanos},{token},{file},{tensor},{tensor_name},{layer},{component},{size_bytes},{resident_bytes}"
            ));
        }
    }
}

fn nodes(run: &Run) -> Vec<Node> {
    let mut nodes = Vec::new();
    let (mut first_eval, mut token) = (0, 0);
    for stream in streams(&run.log_directory()).unwrap() {
        let mut reader = StreamReader::open(&run.log_directory(), stream).unwrap();
        let mut evals = 0;
        while let Some(event) = reader.next_event().unwrap() {
            let Event::Evaluation(evaluation) = event else {
                panic!("the log is whole");
            };
            let definitions = &reader.definitions;
            let template = &definitions.templates[evaluation.template as usize];
            let tokens = evaluation.first_of(template, CaptureKind::Tokens).len() as u64;
            for (number, step) in template.steps.iter().enumerate() {
                nodes.push(Node {
                    eval: first_eval + evaluation.number,
                    step: number,
                    op: definitions.text(step.op),
                    name: definitions.name(step.name),
                    phase: evaluation.phase.name(),
                    token: (tokens == 1).then_some(token),
                    eval_begin: evaluation.begin_nanos,
                    eval_end: evaluation.end_nanos,
                    end: evaluation.step_nanos[number],
                });
            }
            token += tokens;
            evals += 1;
        }
        first_eval += evals;
    }
    nodes
}

fn text(value: Option<impl ToString>) -> String {
    value.map_or(String::new(), |value| value.to_string())
}

fn csv(session: &Session, sql: &str) -> Vec<String> {
    let mut out = Vec::new();
    write_query(session, sql, Format::Csv, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    text.lines().skip(1).map(str::to_owned).collect()
}

fn make_tables(run: &Run) -> store::IngestReport {
    ingest(run, &mut |_| ()).unwrap()
}

#[test]
fn rows_are_those_of_a_naive_join() {
    for seed in [1, 2, 3] {
        let folder = tempfile::tempdir().unwrap();
        let mut recorded = write_run(folder.path(), 40, seed);
        make_tables(&recorded.run);
        recorded.faults.sort_by_key(|fault| fault.nanos);
        recorded.io.sort_by_key(|io| io.issued_nanos);
        let naive = Naive::new(&recorded);
        let faults: Vec<String> = recorded.faults.iter().map(|f| naive.fault(f)).collect();
        assert_eq!(table_rows(folder.path(), &schema::FAULTS), faults);
        let (mut io, mut residency) = (Vec::new(), Vec::new());
        recorded.io.iter().for_each(|one| naive.io(one, &mut io));
        assert_eq!(table_rows(folder.path(), &schema::IO), io);
        let samples = recorded.samples.iter();
        samples.for_each(|sample| naive.sample(sample, &mut residency));
        assert_eq!(table_rows(folder.path(), &schema::RESIDENCY), residency);
        // The examples are of every kind.
        let of = |column: &str, table: &schema::Table, rows: &[String]| {
            let at = table.position(column);
            let values = rows
                .iter()
                .map(|row| row.split(',').nth(at).unwrap().to_owned());
            values.collect::<BTreeSet<String>>()
        };
        for (column, least) in [("tensor", 3), ("expert", 9), ("eval", 60), ("token", 30)] {
            let found = of(column, &schema::FAULTS, &faults).len();
            assert!(found >= least, "{column}: {found}");
        }
        assert_eq!(of("kind", &schema::IO, &io).len(), 3);
        // Every evaluation and node that a row names is in its table.
        let session = Session::open(&[folder.path()]).unwrap();
        for (table, op) in [("faults", "f.op"), ("io", "f.op")] {
            let joined = csv(
                &session,
                &format!(
                    "SELECT COUNT(*) FROM {table} f JOIN nodes n ON f.eval = n.eval AND f.step = n.step AND n.op = {op} JOIN evals e ON e.eval = f.eval AND e.phase = f.phase"
                ),
            );
            let named = csv(&session, &format!("SELECT COUNT(eval) FROM {table}"));
            assert_eq!(joined, named, "{table}");
        }
        let names = "SELECT COUNT(*) FROM faults f JOIN tensors t ON f.tensor = t.tensor WHERE t.name <> f.tensor_name OR t.file <> f.file";
        assert_eq!(csv(&session, names), ["0"]);
    }
}

#[test]
fn views_add_up_what_was_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let recorded = write_run(folder.path(), 40, 7);
    make_tables(&recorded.run);
    let naive = Naive::new(&recorded);
    let session = Session::open(&[folder.path()]).unwrap();
    let check = |sql: &str, mut expected: Vec<String>| {
        let mut rows = csv(&session, sql);
        rows.sort();
        expected.sort();
        assert_eq!(rows, expected, "{sql}");
    };
    let reads = recorded
        .io
        .iter()
        .filter(|io| io.rwbs.operation() == Operation::Read && io.place.is_some());
    let (mut by_tensor, mut by_layer, mut by_node, mut sizes) = (
        BTreeMap::new(),
        BTreeMap::new(),
        BTreeMap::new(),
        BTreeMap::new(),
    );
    let mut read_bytes = 0;
    for io in reads {
        let node = naive.node(io.issued_nanos);
        for (_, bytes, owner) in naive.parts(io) {
            read_bytes += bytes;
            let [_, name, layer, _, size] = naive.tensor(owner);
            let node = format!(
                "{},{}",
                text(node.map(|n| n.phase)),
                text(node.map(|n| &n.op))
            );
            let file = io.place.unwrap().file;
            for (map, key) in [
                (&mut by_tensor, format!("{file},{name},{size}")),
                (&mut by_layer, layer),
                (&mut by_node, node),
            ] {
                let (requests, sum): &mut (BTreeSet<u64>, u64) = map.entry(key).or_default();
                requests.insert(io.request);
                *sum += bytes;
            }
        }
        let from_bytes = 1u64 << u64::from(io.request_bytes).ilog2();
        let of_size: &mut BTreeMap<u64, u64> = sizes.entry(from_bytes).or_default();
        of_size.insert(io.request, io.request_bytes.into());
    }
    let lines = |map: &BTreeMap<String, (BTreeSet<u64>, u64)>| -> Vec<String> {
        let line = |(key, (requests, bytes)): (&String, &(BTreeSet<u64>, u64))| {
            format!("{key},{},{bytes}", requests.len())
        };
        map.iter().map(line).collect()
    };
    check(
        "SELECT file, tensor_name, tensor_bytes, requests, bytes FROM reads_by_tensor",
        lines(&by_tensor),
    );
    check(
        "SELECT layer, requests, bytes FROM reads_by_layer",
        lines(&by_layer),
    );
    check(
        "SELECT phase, op, requests, bytes FROM reads_by_node",
        lines(&by_node),
    );
    let of_sizes = sizes.iter().map(|(from, requests)| {
        format!(
            "{from},{},{}",
            requests.len(),
            requests.values().sum::<u64>()
        )
    });
    check(
        "SELECT from_bytes, requests, bytes FROM read_sizes",
        of_sizes.collect(),
    );
    let model_bytes = recorded.model.len_bytes();
    check(
        "SELECT model_bytes, bytes, CAST(ROUND(times_read * 1e6) AS BIGINT) FROM reread",
        vec![format!(
            "{model_bytes},{read_bytes},{:.0}",
            read_bytes as f64 / model_bytes as f64 * 1e6
        )],
    );
    check(
        "SELECT COUNT(*) FROM reads_by_tensor WHERE times_read <> CAST(bytes AS DOUBLE) / tensor_bytes OR (times_read IS NULL) <> (tensor_name IS NULL)",
        vec!["0".to_owned()],
    );
    let mut faults: BTreeMap<String, [u64; 2]> = BTreeMap::new();
    for fault in &recorded.faults {
        let owner = fault.place.and_then(|place| naive.owner_of_fault(place));
        let [_, name, ..] = naive.tensor(owner);
        let key = format!("{},{name}", text(fault.place.map(|p| p.file)));
        faults.entry(key).or_default()[usize::from(fault.kind == FaultKind::Minor)] += 1;
    }
    let of_faults = faults
        .iter()
        .map(|(key, [major, minor])| format!("{key},{major},{minor},{}", major + minor));
    check(
        "SELECT file, tensor_name, major_faults, minor_faults, faults FROM faults_by_tensor",
        of_faults.collect(),
    );
}

const KERNEL_TABLES: [&str; 3] = ["faults", "io", "residency"];
const KERNEL_VIEWS: [&str; 6] = [
    "faults_by_tensor",
    "reads_by_tensor",
    "reads_by_layer",
    "reads_by_node",
    "read_sizes",
    "reread",
];

#[test]
fn tables_and_views_are_empty_when_nothing_was_recorded() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("log")).unwrap();
    common::fixture::small_log(&folder.path().join("log"), 5, StreamEnd::Closed);
    let run = Run::open(folder.path()).unwrap();
    let report = make_tables(&run);
    let session = Session::open(&[folder.path()]).unwrap();
    for name in KERNEL_TABLES.into_iter().chain(KERNEL_VIEWS) {
        assert_eq!(report.rows(name), 0);
        assert_eq!(csv(&session, &format!("SELECT * FROM {name}")).len(), 0);
    }
    assert!(
        KERNEL_VIEWS
            .iter()
            .all(|name| views::VIEWS.iter().any(|v| v.name == *name))
    );
}

#[test]
fn a_run_whose_model_is_gone_keeps_places_and_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let recorded = write_run(folder.path(), 10, 5);
    for file in recorded.model.files() {
        fs::remove_file(&file.path).unwrap();
    }
    let report = make_tables(&recorded.run);
    assert_eq!(report.rows("faults"), recorded.faults.len() as u64);
    assert_eq!(report.rows("io"), recorded.io.len() as u64);
    assert_eq!(report.rows("residency"), 0);
    let session = Session::open(&[folder.path()]).unwrap();
    let counts = "SELECT COUNT(tensor_name), COUNT(file), COUNT(op) > 100 FROM faults";
    let places = recorded.faults.iter().filter(|f| f.place.is_some()).count();
    assert_eq!(csv(&session, counts), [format!("0,{places},true")]);
}

#[test]
fn a_torn_last_record_is_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let recorded = write_run(folder.path(), 10, 6);
    let log = recorded.run.log_directory();
    let whole = make_tables(&recorded.run);
    for name in [FAULTS, IO, RESIDENCY] {
        let bytes = fs::read(log.join(name)).unwrap();
        fs::write(log.join(name), &bytes[..bytes.len() - 5]).unwrap();
    }
    let torn = make_tables(&recorded.run);
    assert_eq!(torn.rows("faults"), whole.rows("faults") - 1);
    let last = Naive::new(&recorded)
        .parts(recorded.io.last().unwrap())
        .len() as u64;
    assert_eq!(torn.rows("io"), whole.rows("io") - last);
    let file = recorded.samples.last().unwrap().2;
    let tensors = recorded.model.tensors().iter().filter(|t| t.file == file);
    let lost = tensors.count() as u64;
    assert_eq!(torn.rows("residency"), whole.rows("residency") - lost);
    // A kill may leave less than a header.
    for name in [FAULTS, IO, RESIDENCY] {
        fs::write(log.join(name), b"TS").unwrap();
    }
    let report = make_tables(&recorded.run);
    assert_eq!(KERNEL_TABLES.map(|name| report.rows(name)), [0; 3]);
}

#[test]
fn a_damaged_kernel_log_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let recorded = write_run(folder.path(), 10, 8);
    let report = make_tables(&recorded.run);
    let kind_at = HEADER_BYTES + 10 * Fault::BYTES + 46;
    for (name, at, value) in [
        (FAULTS, kind_at, 9),
        (FAULTS, 0, b'X'),
        (IO, 3, 0),
        (IO, 12, 0),
        // How the first sample is written.
        (RESIDENCY, HEADER_BYTES + 20, 7),
    ] {
        let path = recorded.run.log_directory().join(name);
        let bytes = fs::read(&path).unwrap();
        let mut damaged = bytes.clone();
        damaged[at] = value;
        fs::write(&path, damaged).unwrap();
        let error = ingest(&recorded.run, &mut |_| ()).unwrap_err().to_string();
        assert!(error.contains(&path.display().to_string()), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        // The old tables are still there.
        let rows = table_rows(folder.path(), &schema::FAULTS).len() as u64;
        assert_eq!(rows, report.rows("faults"));
        fs::write(&path, bytes).unwrap();
    }
    assert_eq!(make_tables(&recorded.run), report);
}

#[test]
fn logs_of_the_kernel_that_come_later_make_tables_stale() {
    let folder = tempfile::tempdir().unwrap();
    let recorded = write_run(folder.path(), 10, 9);
    let run = &recorded.run;
    let kept = fs::read(run.log_directory().join(IO)).unwrap();
    fs::remove_file(run.log_directory().join(IO)).unwrap();
    assert_eq!(make_tables(run).rows("io"), 0);
    assert_eq!(tables_state(run).unwrap(), TablesState::Ready);
    fs::write(run.log_directory().join(IO), kept).unwrap();
    assert_eq!(tables_state(run).unwrap(), TablesState::Stale);
    assert!(make_tables(run).rows("io") > 0);
    assert_eq!(tables_state(run).unwrap(), TablesState::Ready);
}

#[test]
fn tables_of_an_older_program_are_stale() {
    let folder = tempfile::tempdir().unwrap();
    let recorded = write_run(folder.path(), 10, 10);
    make_tables(&recorded.run);
    for name in KERNEL_TABLES {
        fs::remove_file(store::table_path(folder.path(), name)).unwrap();
    }
    assert_eq!(tables_state(&recorded.run).unwrap(), TablesState::Stale);
}

#[test]
fn more_faults_than_a_row_group_holds_are_all_there_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let recorded = write_run(folder.path(), 10, 11);
    let (mut random, end_nanos) = (Random(12), 1_110_000);
    let mut faults: Vec<Fault> = Vec::new();
    faults.resize_with((1 << 20) + 1000, || {
        random.fault(&recorded.model, end_nanos)
    });
    let path = recorded.run.log_directory().join(FAULTS);
    fs::remove_file(&path).unwrap();
    write_records(&path, &faults);
    make_tables(&recorded.run);
    faults.sort_by_key(|fault| fault.nanos);
    let naive = Naive::new(&recorded);
    let mut hash = DefaultHasher::new();
    faults
        .iter()
        .for_each(|fault| naive.fault(fault).as_str().hash(&mut hash));
    let expected = (faults.len() as u64, hash.finish());
    assert_eq!(
        naive::hash_of_table(folder.path(), &schema::FAULTS),
        expected
    );
    assert_eq!(row_groups(&store::table_path(folder.path(), "faults")), 2);
}

fn row_groups(path: &Path) -> usize {
    use datafusion::parquet::file::reader::{FileReader as _, SerializedFileReader};
    let reader = SerializedFileReader::new(fs::File::open(path).unwrap()).unwrap();
    reader.metadata().num_row_groups()
}
