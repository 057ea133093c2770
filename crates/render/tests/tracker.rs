//! Tracker files, as the Python reader of the docs sees them.

#[path = "../../trace/tests/fixture/mod.rs"]
mod fixture;
mod golden;

use std::{fs, path::Path, process::Command};

use golden::{check_golden, golden_log};
use render::tracker;
use trace::{
    format::RecordKind,
    region::{Region, Strided},
    template::{
        AccessDef, Definition, Direction, FilePlace, Name, Operand, Step, Template, TensorDef,
        TensorKind,
    },
};

/// A run directory around the golden log, without metadata.
fn golden_run(directory: &Path) -> rundir::Run {
    let run = directory.join("run");
    fs::create_dir_all(run.join("log")).unwrap();
    for entry in fs::read_dir(golden_log()).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, run.join("log").join(path.file_name().unwrap())).unwrap();
    }
    fs::write(run.join("structure.csv"), "tensor_name,file\n").unwrap();
    rundir::Run::open(&run).unwrap()
}

#[test]
fn the_python_reader_reads_the_tracker_files() {
    let directory = tempfile::tempdir().unwrap();
    let run = golden_run(directory.path());
    let out = directory.path().join("tracker");
    let stats = tracker::write(&run, tracker::Heads::Together, &out).unwrap();
    let bytes = fs::metadata(out.join(tracker::ACCESSES)).unwrap().len();
    assert_eq!(bytes, stats.written * tracker::record::RECORD_BYTES as u64);
    assert_eq!(
        fs::read_to_string(out.join(tracker::STRUCTURE)).unwrap(),
        "tensor_name,file\n"
    );
    check_golden(
        "trace_metadata.json",
        &fs::read(out.join(tracker::METADATA)).unwrap(),
    );
    check_golden(
        "tensor_names.txt",
        &fs::read(out.join(tracker::NAMES)).unwrap(),
    );
    let reader = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/read_tracker.py");
    let source = fs::read_to_string(&reader).unwrap();
    assert!(
        source.lines().count() <= 20,
        "{} lines",
        source.lines().count()
    );
    let python = Command::new("python3")
        .arg(&reader)
        .arg(&out)
        .output()
        .unwrap();
    assert!(
        python.status.success(),
        "{}",
        String::from_utf8_lossy(&python.stderr)
    );
    check_golden("read_tracker.csv", &python.stdout);
}

#[test]
fn tracker_files_go_into_a_new_folder_only() {
    let directory = tempfile::tempdir().unwrap();
    let run = golden_run(directory.path());
    let error = tracker::write(&run, tracker::Heads::Together, run.path()).unwrap_err();
    let expected = format!(
        "{}: the folder is not empty; name one that is new",
        run.path().display()
    );
    assert_eq!(error.to_string(), expected);
    let empty = directory.path().join("empty");
    fs::create_dir(&empty).unwrap();
    tracker::write(&run, tracker::Heads::Together, &empty).unwrap();
}

/// A log with one evaluation that reads one whole tensor of the model.
fn log_of_whole_read(directory: &Path, tensor: &gguf::Tensor) {
    let texts = ["MUL_MAT", &*tensor.name, "CPU_Mapped"];
    let name = Name {
        pattern: 1,
        number: None,
    };
    let mut definitions: Vec<Definition> = texts
        .iter()
        .map(|text| Definition::Text(text.as_bytes().to_vec()))
        .collect();
    definitions.push(Definition::Tensor(TensorDef {
        name,
        kind: TensorKind::Weight,
        ggml_type: tensor.ty.as_u32(),
        ne: tensor.ne,
        size_bytes: tensor.size_bytes,
        address: 0x1000,
        buffer_type: 2,
        place: Some(FilePlace {
            file: 0,
            file_offset: tensor.file_offset,
        }),
    }));
    let template = Template {
        nodes: 1,
        steps: vec![Step {
            node: 0,
            fused_nodes: 1,
            op: 0,
            name,
            layer: Some(0),
            op_is_known: true,
            accesses: vec![AccessDef {
                tensor: 0,
                operand: Operand::Source(0),
                direction: Direction::Read,
                region: Region::Fixed(Strided::range(0, tensor.size_bytes)),
            }],
        }],
        captures: Vec::new(),
    };
    definitions.push(Definition::Template(template.clone()));
    let mut evaluation = fixture::small_evaluation(0);
    evaluation.step_nanos.truncate(1);
    evaluation.captures.clear();
    evaluation.sequences.clear();
    fs::create_dir_all(directory).unwrap();
    let (status, log, mut appender) = fixture::open(directory, fixture::SEGMENT_BYTES);
    assert!(fixture::define(&mut appender, &definitions));
    let body = fixture::body(&template, &evaluation);
    assert!(fixture::append(
        &mut appender,
        RecordKind::Evaluation,
        &body
    ));
    log.finish(appender).unwrap();
    status.set_state(trace::status::State::Complete);
}

#[test]
fn heads_apart_add_up_to_the_tensor() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/shakespeare-moe.gguf");
    let model = gguf::Model::open(&model).unwrap();
    // Six heads of queries and three of keys, 32 elements each: a block of q8_0.
    let cases = [
        ("blk.0.attn_q.weight", 6, 1),
        ("blk.0.attn_k.weight", 3, 2),
        ("blk.0.attn_output.weight", 6, 4),
        ("blk.0.ffn_gate_inp.weight", 1, 0),
    ];
    for (name, heads, qkv_type) in cases {
        let tensor = model.tensor(name).unwrap();
        let directory = tempfile::tempdir().unwrap();
        log_of_whole_read(&directory.path().join("run/log"), tensor);
        let run = rundir::Run::open(&directory.path().join("run")).unwrap();
        for (apart, expected) in [(false, 1), (true, heads)] {
            let out = directory.path().join(format!("apart-{apart}"));
            let mode = if apart {
                tracker::Heads::Apart(&model)
            } else {
                tracker::Heads::Together
            };
            assert_eq!(
                tracker::write(&run, mode, &out).unwrap().written,
                expected,
                "{name}"
            );
            let bytes = fs::read(out.join(tracker::ACCESSES)).unwrap();
            let sizes = bytes.chunks(64).map(|record| u64_at(record, 24));
            assert_eq!(sizes.sum::<u64>(), tensor.size_bytes, "{name}");
            assert_eq!(u64_at(&bytes, 16), tensor.file_offset, "{name}");
            let numbers: Vec<u16> = bytes
                .chunks(64)
                .map(|r| u16::from_le_bytes([r[48], r[49]]))
                .collect();
            let numbered: Vec<u16> = match expected {
                1 => vec![tracker::record::NONE_U16],
                n => (0..n as u16).collect(),
            };
            assert_eq!(numbers, numbered, "{name}");
            assert!(
                bytes.chunks(64).all(|record| record[61] == qkv_type),
                "{name}"
            );
        }
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}
