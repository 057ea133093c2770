//! What the kernel did underneath, as tables, against a naive join.

mod kernel_logs;
mod naive;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    path::Path,
};

use kernel_logs::{
    Random,
    join::{Naive, text},
    write_records, write_run,
};
use kernelio::kernel_log::{
    FAULTS, HEADER_BYTES, IO, RESIDENCY, Record as _,
    faults::{Fault, FaultKind},
    io::Operation,
};
use naive::table_rows;
use rundir::Run;
use store::{Format, Session, TablesState, ingest, schema, tables_state, views, write_query};
use trace::read::StreamEnd;

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
    testing::log::small_log(&folder.path().join("log"), 5, StreamEnd::Closed);
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
    let file = recorded.samples.last().unwrap().file;
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
