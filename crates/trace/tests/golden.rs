//! Logs of every released version stay readable, with exactly what they held.
//!
//! `tests/golden/vN/` has a log as version N wrote it and `expected.txt`, what a
//! reader must find in it. `TENSORSCOPE_BLESS=1 cargo test --release -p trace --test
//! golden every` writes the folder of the current version anew; one of an earlier
//! version is never touched.

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use testing::{
    device::{Measure, copy_before, device_evaluation, graphs, measured},
    log::{append, body_coded, define, open, read, small_evaluation},
};
use trace::{
    expand::{for_each_access, for_each_route},
    format::{RecordKind, VERSION, flags},
    origin::{Origin, Source},
    status::{State, read_status},
    template::{CaptureKind, Direction},
};

/// Stands for the process id, which would differ each time.
const PID: u32 = 4711;

fn golden(version: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/v{version}"))
}

/// A closed log of three evaluations, the last aborted after two steps, and two on a device, of
/// the first of which it is measured later when its kernels ran.
fn write_current(directory: &Path) {
    let (definitions, [template, on_device]) = graphs();
    let (status, log, mut appender) = open(directory, 4096);
    assert!(define(&mut appender, &definitions));
    for number in 0..3 {
        let mut evaluation = small_evaluation(number);
        if number == 1 {
            evaluation.origins = Some(origins());
        }
        if number == 2 {
            evaluation.step_nanos[2..].fill(0);
            evaluation.captures[3..].fill(vec![0; 4]);
            evaluation.ticks = 2;
            evaluation.flags = flags::ABORTED;
        }
        assert!(append(
            &mut appender,
            RecordKind::Evaluation,
            &body_coded(&template, &evaluation, &[2, 1, 4, 8])
        ));
        status.count_committed();
    }
    for (number, measure) in [(3, Measure::Kernels), (4, Measure::Nothing)] {
        let words = copy_before(number).to_words();
        assert!(append(&mut appender, RecordKind::Copy, &words));
        let evaluation = device_evaluation(number, measure);
        assert!(append(
            &mut appender,
            RecordKind::Evaluation,
            &body_coded(&on_device, &evaluation, &[2, 1, 4, 8])
        ));
        status.count_committed();
    }
    let later = measured(&device_evaluation(3, Measure::Kernels)).unwrap();
    assert!(append(&mut appender, RecordKind::Measured, &later));
    log.finish(appender).unwrap();
    status.count_lost(4, 9);
    status.set_state(State::Complete);
    drop(status);
    let path = directory.join("status");
    let mut bytes = fs::read(&path).unwrap();
    bytes[12..16].copy_from_slice(&PID.to_le_bytes());
    fs::write(path, bytes).unwrap();
}

/// Of the graph's experts one was there and one was read.
fn origins() -> Vec<Origin> {
    let origin = |step, expert, source, waited_nanos| Origin {
        step,
        operand: 0,
        expert,
        source,
        waited_nanos,
    };
    vec![
        origin(0, None, Source::Streamed, 1500),
        origin(2, Some(1), Source::CacheHit, 0),
        origin(2, Some(4), Source::CacheMiss, 70_000),
    ]
}

/// All that can be read, as text that does not depend on how types are written.
fn dump(directory: &Path) -> String {
    let mut out = String::new();
    let status = read_status(&directory.join("status")).unwrap().unwrap();
    writeln!(
        out,
        "status {:?}, pid {}, committed {}, lost {} evaluations {} steps {} accesses, mismatches {}",
        status.state,
        status.pid,
        status.evals_committed,
        status.evals_lost,
        status.steps_lost,
        status.accesses_lost,
        status.tick_mismatches
    )
    .unwrap();
    let contents = read(directory).unwrap();
    assert!(contents.corrupt.is_empty() && contents.partial.is_none());
    let definitions = &contents.reader.definitions;
    for (number, tensor) in definitions.tensors.iter().enumerate() {
        writeln!(
            out,
            "tensor {}: {} type {} {:?}, {} bytes at {:#x} in {}, file {:?}",
            definitions.tensor_name(number as u32),
            tensor.kind.name(),
            tensor.ggml_type,
            tensor.ne,
            tensor.size_bytes,
            tensor.address,
            definitions.text(tensor.buffer_type),
            tensor.place.map(|place| (place.file, place.file_offset))
        )
        .unwrap();
    }
    for (id, text) in &definitions.tokens {
        writeln!(out, "token {id}: {}", String::from_utf8_lossy(text)).unwrap();
    }
    for device in &definitions.devices {
        writeln!(
            out,
            "device {}: {}, {} bytes",
            definitions.text(device.name),
            definitions.text(device.description),
            device.memory_bytes
        )
        .unwrap();
    }
    for copy in &contents.copies {
        writeln!(
            out,
            "copy before {}: {} of {}, {}+{}, device {}, context {}, async {}, {} to {}",
            copy.evaluation,
            copy.way.name(),
            definitions.tensor_name(copy.tensor),
            copy.tensor_offset,
            copy.bytes,
            copy.device,
            copy.context,
            copy.is_async,
            copy.begin_nanos,
            copy.end_nanos
        )
        .unwrap();
    }
    for evaluation in &contents.evaluations {
        let template = &definitions.templates[evaluation.template as usize];
        writeln!(
            out,
            "evaluation {}: {} {} threads, {} to {}, {} ticks, flags {}, tokens {:?} positions {:?} sequences {:?}",
            evaluation.number,
            evaluation.phase.name(),
            evaluation.threads,
            evaluation.begin_nanos,
            evaluation.end_nanos,
            evaluation.ticks,
            evaluation.flags,
            evaluation.first_of(template, CaptureKind::Tokens),
            evaluation.first_of(template, CaptureKind::Positions),
            evaluation.sequences
        )
        .unwrap();
        for (number, step) in template
            .steps
            .iter()
            .enumerate()
            .filter(|(n, _)| evaluation.was_executed(*n))
        {
            writeln!(
                out,
                "  {} node {} {} {} layer {:?}",
                evaluation.step_nanos[number],
                step.node,
                definitions.text(step.op),
                definitions.name(step.name),
                step.layer
            )
            .unwrap();
            for_each_access(template, evaluation, number, |access| {
                let verb = if access.def.direction == Direction::Read {
                    "reads"
                } else {
                    "writes"
                };
                write!(
                    out,
                    "    {verb} {}",
                    definitions.tensor_name(access.def.tensor)
                )
                .unwrap();
                access
                    .region
                    .for_each_run(|offset, bytes| write!(out, " {offset}+{bytes}").unwrap());
                writeln!(
                    out,
                    ", expert {:?}, element {:?}",
                    access.expert, access.element
                )
                .unwrap();
            });
        }
        if let Some(device) = &evaluation.device {
            writeln!(out, "  on device {}, {:?}", device.device, device.nanos).unwrap();
            let launches = device.launches.map(|at| &definitions.launches[at as usize]);
            for (at, kernel) in launches.iter().flat_map(|l| &l.kernels).enumerate() {
                writeln!(
                    out,
                    "  {} {}, step {:?}, grid {:?}, block {:?}, {:?}",
                    kernel.kind.name(),
                    definitions.text(kernel.name),
                    kernel.step,
                    kernel.grid,
                    kernel.block,
                    device.kernel_nanos.get(at)
                )
                .unwrap();
            }
        }
        for origin in evaluation.origins.iter().flatten() {
            writeln!(
                out,
                "  step {} operand {}: {}, expert {:?}, waited {}",
                origin.step,
                origin.operand,
                origin.source.name(),
                origin.expert,
                origin.waited_nanos
            )
            .unwrap();
        }
        for_each_route(template, evaluation, |route| {
            writeln!(
                out,
                "  layer {} token {} rank {}: expert {} weight {:?}",
                route.layer, route.token, route.rank, route.expert, route.weight
            )
            .unwrap();
        });
    }
    writeln!(out, "end {:?}", contents.end).unwrap();
    out
}

#[test]
fn every_released_version_stays_readable() {
    if std::env::var_os("TENSORSCOPE_BLESS").is_some_and(|value| value == "1") {
        let directory = golden(VERSION);
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(directory.join("log")).unwrap();
        write_current(&directory.join("log"));
        fs::write(directory.join("expected.txt"), dump(&directory.join("log"))).unwrap();
    }
    for version in 1..=VERSION {
        let directory = golden(version);
        let expected = fs::read_to_string(directory.join("expected.txt")).unwrap();
        assert_eq!(dump(&directory.join("log")), expected, "version {version}");
    }
}

#[test]
fn the_current_version_is_written_byte_for_byte() {
    let directory = tempfile::tempdir().unwrap();
    write_current(directory.path());
    for file in ["0000-000000.tslog", "status"] {
        let golden = fs::read(golden(VERSION).join("log").join(file)).unwrap();
        assert!(
            fs::read(directory.path().join(file)).unwrap() == golden,
            "{file} differs from tests/golden/v{VERSION}: a change of the format needs a new version"
        );
    }
}

/// Lines `0xOFFSET  hex bytes  words` of the format's document are bytes of the log
/// of version 1.
#[test]
fn the_document_shows_the_golden_log() {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/trace-format.md");
    let golden = fs::read(golden(1).join("log/0000-000000.tslog")).unwrap();
    let mut shown = 0;
    for line in fs::read_to_string(document).unwrap().lines() {
        let Some((offset, rest)) = line.strip_prefix("0x").and_then(|l| l.split_once("  ")) else {
            continue;
        };
        let offset = usize::from_str_radix(offset, 16).unwrap();
        let hex = rest.split("  ").next().unwrap();
        let bytes: Vec<u8> = hex
            .split(' ')
            .map(|byte| u8::from_str_radix(byte, 16).unwrap())
            .collect();
        assert_eq!(
            golden[offset..offset + bytes.len()],
            bytes,
            "at {offset:#x}: {line}"
        );
        shown += bytes.len();
    }
    assert!(shown > 500, "the document shows {shown} bytes");
}
