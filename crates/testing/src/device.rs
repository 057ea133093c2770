//! Logs of runs in which a device computes beside the processor.
//!
//! The graph is [`small_graph`], computed by the processor and by a device in turns. What was
//! measured of an evaluation differs with its number, and comes when the next one is logged.

use std::path::Path;

use trace::{
    append::Appender,
    device::{Copy, DeviceDef, KernelDef, KernelKind, Launches, Measured, Way},
    format::{RecordKind, flags},
    read::{Evaluation, OnDevice, StreamEnd},
    region::{Region, Strided},
    template::{AccessDef, CaptureTime, Definition, Direction, Operand, Step, Template},
};

use crate::log::{
    SEGMENT_BYTES, append, body, define, encode, open_stream, small_evaluation, small_graph,
};

/// What was measured of an evaluation on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// No record of it came.
    Nothing,
    /// When it began and ended, and its experts.
    Evaluation,
    /// Each kernel, too.
    Kernels,
}

pub const DEVICE: &str = "CUDA0";
pub const DESCRIPTION: &str = "NVIDIA H200";
pub const MEMORY_BYTES: u64 = 150_000_000_000;

/// From the begin of the evaluation's call: the device, and its kernels. Two pairs overlap,
/// and between the third and the fourth there is a gap.
pub const DEVICE_NANOS: (u64, u64) = (600, 4_100);
pub const KERNEL_NANOS: [(u64, u64); 6] = [
    (600, 1_000),
    (900, 1_500),
    (1_500, 1_600),
    (1_700, 2_900),
    (2_900, 3_000),
    (2_950, 4_000),
];
/// What each of them had for itself.
pub const EXCLUSIVE_NANOS: [u64; 6] = [400, 500, 100, 1_200, 100, 1_000];
/// The step that launches each; the fifth is of none.
pub const KERNEL_STEPS: [Option<u32>; 6] = [Some(0), Some(1), Some(2), Some(2), None, Some(3)];
const KERNEL_NAMES: [&str; 6] = [
    "k_get_rows_float",
    "k_set_rows",
    "quantize_q8_1",
    "mul_mat_vec_q",
    "memset",
    "k_bin_bcast",
];

/// What a stream defines, and its graphs: that of the processor, that of the device.
pub fn graphs() -> (Vec<Definition>, [Template; 2]) {
    let (mut definitions, on_processor) = small_graph();
    let mut texts = definitions
        .iter()
        .filter(|definition| matches!(definition, Definition::Text(_)))
        .count() as u32;
    let mut text = |definitions: &mut Vec<Definition>, text: &str| {
        definitions.push(Definition::Text(text.as_bytes().to_vec()));
        texts += 1;
        texts - 1
    };
    let name = text(&mut definitions, DEVICE);
    let description = text(&mut definitions, DESCRIPTION);
    let names = KERNEL_NAMES.map(|name| text(&mut definitions, name));
    definitions.push(Definition::Device(DeviceDef {
        name,
        description,
        memory_bytes: MEMORY_BYTES,
    }));
    let on_device = Template {
        device: Some(0),
        ..on_processor.clone()
    };
    definitions.push(Definition::Template(on_device.clone()));
    let kernels = names.into_iter().zip(KERNEL_STEPS).enumerate();
    let kernels = kernels.map(|(at, (name, step))| KernelDef {
        step,
        kind: match step {
            Some(_) => KernelKind::Kernel,
            None => KernelKind::Set,
        },
        name,
        grid: [1 + at as u32, 2, 1],
        block: [32, 1, 1],
    });
    definitions.push(Definition::Launches(Launches {
        template: 1,
        kernels: kernels.collect(),
    }));
    (definitions, [on_processor, on_device])
}

/// Cells of the KV cache, all of which [`attention_graphs`] reads, and bytes of one.
pub const CELLS: u64 = 64;
pub const CELL_BYTES: u64 = 32;

/// The step that reads them, and what it has for itself.
pub const ATTENTION_STEP: usize = 4;
pub const ATTENTION_NANOS: u64 = EXCLUSIVE_NANOS[ATTENTION_KERNEL];
const ATTENTION_KERNEL: usize = 3;

/// As [`graphs`]; on the device the fourth kernel is an attention, which is given a view of all
/// cells of the cache.
pub fn attention_graphs() -> (Vec<Definition>, [Template; 2]) {
    let (mut definitions, [on_processor, mut on_device]) = graphs();
    let texts = definitions
        .iter()
        .filter(|definition| matches!(definition, Definition::Text(_)))
        .count() as u32;
    let last = on_device.steps.last().unwrap();
    on_device.steps.push(Step {
        op: texts,
        name: last.name,
        accesses: vec![AccessDef {
            tensor: 1,
            operand: Operand::Source(1),
            direction: Direction::Read,
            region: Region::Fixed(Strided::range(0, CELLS * CELL_BYTES)),
        }],
        ..last.clone()
    });
    for definition in &mut definitions {
        match definition {
            Definition::Template(template) if template.device.is_some() => {
                *template = on_device.clone();
            }
            Definition::Launches(launches) => {
                launches.kernels[ATTENTION_KERNEL].step = Some(ATTENTION_STEP as u32);
            }
            _ => {}
        }
    }
    let op = Definition::Text(b"FLASH_ATTN_EXT".to_vec());
    let is_template = |definition: &Definition| matches!(definition, Definition::Template(_));
    let first = definitions.iter().position(is_template).unwrap();
    // Behind all other texts, before who names it.
    let is_device = |definition: &Definition| matches!(definition, Definition::Device(_));
    let at = definitions.iter().position(is_device).unwrap();
    assert!(first < at);
    definitions.insert(at, op);
    (definitions, [on_processor, on_device])
}

/// Evaluation `number` of them, whose kernels were timed. It sets cells `2 * number` and the
/// next one, from the first again once all are set.
pub fn attention_evaluation(number: u64) -> Evaluation {
    let evaluation = device_evaluation(number, Measure::Kernels);
    Evaluation {
        step_nanos: vec![0; ATTENTION_STEP + 1],
        ..evaluation
    }
}

/// A stream of such evaluations.
pub fn attention_stream(directory: &Path, stream: u32, evaluations: impl Iterator<Item = u64>) {
    let (definitions, [_, template]) = attention_graphs();
    let (_status, log, mut appender) = open_stream(directory, stream, SEGMENT_BYTES);
    assert!(define(&mut appender, &definitions));
    for number in evaluations {
        let evaluation = attention_evaluation(number);
        let words = body(&template, &evaluation);
        assert!(append(&mut appender, RecordKind::Evaluation, &words));
        let words = measured(&evaluation).unwrap();
        assert!(append(&mut appender, RecordKind::Measured, &words));
    }
    log.finish(appender).unwrap();
}

/// Evaluation `number` on the device, as a reader finds it.
pub fn device_evaluation(number: u64, measure: Measure) -> Evaluation {
    let mut evaluation = small_evaluation(number);
    let begin = evaluation.begin_nanos;
    let moved = |(from, to): (u64, u64)| (begin + from, begin + to);
    let (_, [_, template]) = graphs();
    if measure == Measure::Nothing {
        let captures = template.captures.iter().zip(&mut evaluation.captures);
        for (_, values) in captures.filter(|(def, _)| def.time != CaptureTime::Begin) {
            values.clear();
        }
    }
    let kernel_nanos = match measure {
        Measure::Kernels => KERNEL_NANOS.map(moved).to_vec(),
        Measure::Nothing | Measure::Evaluation => Vec::new(),
    };
    Evaluation {
        template: 1,
        threads: 0,
        // The call that asked for it.
        end_nanos: begin + 500,
        ticks: 0,
        flags: flags::MEASURED_LATER,
        step_nanos: vec![0; template.steps.len()],
        device: Some(Box::new(OnDevice {
            device: 0,
            launches: Some(0),
            nanos: (measure != Measure::Nothing).then(|| moved(DEVICE_NANOS)),
            kernel_nanos,
        })),
        ..evaluation
    }
}

/// The record of what was measured of an evaluation; `None` if nothing was.
pub fn measured(evaluation: &Evaluation) -> Option<Vec<u64>> {
    let device = evaluation.device.as_ref()?;
    let (_, [_, template]) = graphs();
    let captures = (0..).zip(template.captures.iter().zip(&evaluation.captures));
    let on_device = captures.filter(|(_, (def, _))| def.time != CaptureTime::Begin);
    let measured = Measured {
        evaluation: evaluation.number,
        flags: 0,
        launches: None,
        nanos: Some(device.nanos?),
        kernels: device.kernel_nanos.clone(),
        captures: on_device
            .map(|(at, (_, values))| (at, values.clone()))
            .collect(),
    };
    Some(measured.to_words(|values, words| encode(values, 8, words)))
}

/// What is measured of evaluation `number` of [`mixed_evaluation`]; `None` on the processor.
pub fn measure_of(number: u64) -> Option<Measure> {
    match number % 4 {
        0 => None,
        1 => Some(Measure::Kernels),
        2 => Some(Measure::Evaluation),
        _ => Some(Measure::Nothing),
    }
}

/// The processor first, then three times the device.
pub fn mixed_evaluation(number: u64) -> Evaluation {
    match measure_of(number) {
        None => small_evaluation(number),
        Some(measure) => device_evaluation(number, measure),
    }
}

/// Before an evaluation on the device its input goes there.
pub fn copy_before(number: u64) -> Copy {
    let begin_nanos = small_evaluation(number).begin_nanos - 300;
    Copy {
        begin_nanos,
        end_nanos: begin_nanos + 100,
        tensor: 3,
        way: Way::HostToDevice,
        is_async: number % 2 == 1,
        tensor_offset: 0,
        bytes: 256,
        evaluation: number,
        context: 0,
        device: 0,
    }
}

/// Appends evaluation `number`, the copy before it, and what was measured of the one before.
pub fn append_mixed(appender: &mut Appender, templates: &[Template; 2], number: u64) {
    let evaluation = mixed_evaluation(number);
    if evaluation.device.is_some() {
        let words = copy_before(number).to_words();
        assert!(append(appender, RecordKind::Copy, &words));
    }
    let template = &templates[evaluation.template as usize];
    let words = body(template, &evaluation);
    assert!(append(appender, RecordKind::Evaluation, &words));
    if let Some(before) = number.checked_sub(1) {
        append_measured(appender, before);
    }
}

pub fn append_measured(appender: &mut Appender, number: u64) {
    if let Some(words) = measured(&mixed_evaluation(number)) {
        assert!(append(appender, RecordKind::Measured, &words));
    }
}

/// A stream of such evaluations.
pub fn mixed_stream(directory: &Path, stream: u32, evaluations: u64, end: StreamEnd) {
    let (definitions, templates) = graphs();
    let (_status, log, mut appender) = open_stream(directory, stream, SEGMENT_BYTES);
    assert!(define(&mut appender, &definitions));
    for number in 0..evaluations {
        append_mixed(&mut appender, &templates, number);
    }
    if let Some(last) = evaluations.checked_sub(1) {
        append_measured(&mut appender, last);
    }
    if end == StreamEnd::Closed {
        log.finish(appender).unwrap();
    }
}
