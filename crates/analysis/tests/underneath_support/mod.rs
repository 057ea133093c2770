//! A run of three evaluations over a model of four tensors, with what the kernel did
//! written by hand: small enough to add up on paper.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use analysis::{
    traffic::{TrafficResults, TrafficRow},
    underneath::{ModelFiles, Rows, UnderneathResults, verdict::Speeds, work::Work},
};
use kernelio::{
    devices::Device,
    files::Place,
    kernel_log::{
        faults::{Fault, FaultKind},
        io::{Io, Rwbs},
    },
};
use reader::{
    Visitor, Walk,
    kernel::{JoinedFault, JoinedIo, JoinedSample, Moment, OwnedTensor, Owner, Timeline},
};
use trace::{
    format::Phase,
    read::{Definitions, Evaluation},
    template::{CaptureDef, CaptureKind, CaptureTime, Name, Step, Template},
};

pub const MODEL_BYTES: u64 = 40960;
pub const DISK: Device = Device { major: 8, minor: 0 };

/// Header, `A`, `B`, `C`, padding, `D`, and a page behind it.
pub fn tensors() -> Vec<OwnedTensor> {
    let tensor = |name: &str, layer, component, file_offset, size_bytes| OwnedTensor {
        name: name.into(),
        layer,
        component,
        file: 0,
        file_offset,
        size_bytes,
        slice_bytes: None,
    };
    vec![
        tensor("token_embd.weight", None, "embedding", 4096, 8192),
        tensor("blk.0.attn_q.weight", Some(0), "attention", 12288, 8192),
        tensor("blk.0.ffn_down.weight", Some(0), "ffn", 20480, 4096),
        tensor("blk.1.ffn_down.weight", Some(1), "ffn", 28672, 8192),
    ]
}

pub fn model(tensors: &[OwnedTensor]) -> ModelFiles<'_> {
    ModelFiles {
        tensors,
        file_bytes: vec![MODEL_BYTES],
        bytes: MODEL_BYTES,
    }
}

/// A prompt of two tokens, and two evaluations of one.
pub fn work() -> Work {
    work_of(
        &[
            ("GET_ROWS", None),
            ("MUL_MAT", Some(0)),
            ("MUL_MAT", Some(1)),
        ],
        &[
            (Phase::Prompt, 2, 1000, &[1200, 1600, 2000]),
            (Phase::Generate, 1, 3000, &[3200, 3600, 4000]),
            (Phase::Generate, 1, 5000, &[5200, 5600, 6000]),
        ],
    )
}

/// Evaluations of one graph: phase, tokens, begin, and end of each step.
pub fn work_of(graph: &[(&str, Option<u32>)], evaluations: &[(Phase, usize, u64, &[u64])]) -> Work {
    Work::of(timeline_of(graph, evaluations))
}

pub fn timeline_of(
    graph: &[(&str, Option<u32>)],
    evaluations: &[(Phase, usize, u64, &[u64])],
) -> Timeline {
    let mut definitions = Definitions::default();
    let mut template = Template::default();
    template.captures.push(CaptureDef {
        kind: CaptureKind::Tokens,
        time: CaptureTime::Begin,
        count: [1, 1, 1],
        width_bytes: 4,
        layer: None,
        pair: None,
    });
    for (number, &(op, layer)) in (0..).zip(graph) {
        definitions.texts.push(op.into());
        template.steps.push(Step {
            node: number,
            fused_nodes: 1,
            op: number,
            name: Name {
                pattern: number,
                number: None,
            },
            layer,
            op_is_known: true,
            accesses: Vec::new(),
        });
    }
    definitions.templates.push(template);
    let (mut walk, mut timeline) = (Walk::default(), Timeline::default());
    for (number, &(phase, tokens, begin_nanos, ends)) in (0..).zip(evaluations) {
        let evaluation = Evaluation {
            number,
            template: 0,
            phase,
            threads: 1,
            context: 0,
            begin_nanos,
            end_nanos: *ends.last().unwrap(),
            ticks: ends.len() as u32,
            flags: 0,
            step_nanos: ends.to_vec(),
            captures: vec![vec![0; tokens]],
            sequences: Vec::new(),
            token_phases: Vec::new(),
            origins: None,
            device: None,
        };
        let seen = walk.see(&definitions, &evaluation).unwrap();
        timeline.evaluation(&seen).unwrap();
    }
    let ended = walk.end_stream(&definitions);
    timeline.stream_ends(&ended).unwrap();
    timeline
}

pub fn owner(tensor: u32) -> Option<Owner> {
    Some(Owner {
        tensor,
        expert: None,
    })
}

pub fn at(eval: u64, step: u32) -> Option<Moment> {
    Some(Moment {
        eval,
        step: Some(step),
    })
}

/// One part of a request; `place` is `None` for other files.
pub struct Part {
    pub request: u64,
    pub kind: &'static str,
    pub sector: u64,
    pub issued: u64,
    pub completed: Option<u64>,
    pub offset: Option<u64>,
    pub bytes: u64,
    pub owner: Option<Owner>,
    pub at: Option<Moment>,
}

impl Part {
    pub fn joined(&self) -> JoinedIo {
        JoinedIo {
            io: Io {
                issued_nanos: self.issued,
                completed_nanos: self.completed,
                device: DISK,
                sector: self.sector,
                request: self.request,
                request_bytes: self.bytes as u32,
                piece_at_bytes: 0,
                piece_bytes: self.bytes as u32,
                rwbs: Rwbs::from_text(self.kind.as_bytes()),
                pid: 1,
                tid: 7,
                place: self.offset.map(|file_offset| Place {
                    file: 0,
                    file_offset,
                }),
            },
            file_offset: self.offset.unwrap_or(0),
            bytes: self.bytes,
            owner: self.owner,
            at: self.at,
        }
    }
}

#[rustfmt::skip]
pub fn io() -> Vec<JoinedIo> {
    let part = |request, kind, sector, (issued, completed), offset, bytes, owner, at| Part {
        request, kind, sector, issued, completed, offset, bytes, owner, at,
    };
    [
        // Before the first evaluation: the header and A, in one request.
        part(0, "R", 1000, (100, Some(200)), Some(0), 4096, None, None),
        part(0, "R", 1000, (100, Some(200)), Some(4096), 8192, owner(0), None),
        // B, right behind it, and again for the next token.
        part(1, "RA", 1024, (1100, Some(1500)), Some(12288), 8192, owner(1), at(0, 0)),
        part(2, "R", 1024, (3100, Some(3700)), Some(12288), 8192, owner(1), at(1, 0)),
        part(3, "R", 1040, (3300, Some(3500)), Some(20480), 4096, owner(2), at(1, 1)),
        // Half of D, a page further on; never seen to complete.
        part(4, "R", 1056, (5100, None), Some(28672), 4096, owner(3), at(2, 0)),
        // Somebody else's.
        part(5, "R", 9000, (5200, Some(5300)), None, 4096, None, at(2, 0)),
        part(6, "WS", 9500, (5400, Some(5450)), None, 512, None, at(2, 1)),
    ]
    .iter()
    .map(Part::joined)
    .collect()
}

#[rustfmt::skip]
pub fn faults() -> Vec<JoinedFault> {
    use FaultKind::{Major, Minor};
    let fault = |nanos, tid, kind, place: Option<(u32, u64)>, owner, at| JoinedFault {
        fault: Fault {
            nanos,
            address: 0,
            instruction: 0,
            pid: 1,
            tid,
            cpu: 0,
            kind,
            place: place.map(|(file, file_offset)| Place { file, file_offset }),
        },
        owner,
        at,
    };
    vec![
        fault(50, 7, Minor, None, None, None),
        fault(210, 7, Major, Some((0, 0)), None, None),
        fault(1520, 7, Major, Some((0, 12288)), owner(1), at(0, 1)),
        fault(1530, 8, Major, Some((0, 16384)), owner(1), at(0, 1)),
        fault(3150, 7, Minor, Some((0, 12288)), owner(1), at(1, 0)),
        fault(3600, 8, Major, Some((0, 20480)), owner(2), at(1, 1)),
        fault(3720, 7, Major, Some((0, 12288)), owner(1), at(1, 2)),
        // Its page was read long ago; nothing says what it waited for.
        fault(5500, 8, Major, Some((0, 4096)), owner(0), at(2, 1)),
        fault(5600, 7, Minor, Some((0, 26000)), None, at(2, 1)),
        fault(5700, 7, Minor, Some((0, 38000)), None, at(2, 2)),
        fault(5800, 7, Minor, Some((3, 0)), None, at(2, 2)),
    ]
}

pub fn samples() -> Vec<JoinedSample> {
    let sample = |nanos, token, of: [u64; 4]| JoinedSample {
        nanos,
        token,
        file: 0,
        resident_bytes: 4096 + of.iter().sum::<u64>(),
        tensors: (0..).zip(of).collect(),
    };
    vec![
        sample(900, 0, [8192, 4096, 0, 0]),
        sample(2500, 2, [4096, 8192, 0, 0]),
        sample(4500, 3, [0, 4096, 4096, 0]),
    ]
}

/// The prompt reads 700 bytes of weights; activations do not count.
pub fn traffic() -> TrafficResults {
    let row = |kind: &str, bytes| TrafficRow {
        phase: "prompt".to_owned(),
        kind: kind.to_owned(),
        component: "ffn".to_owned(),
        role: None,
        op: "MUL_MAT".to_owned(),
        layer: Some(0),
        direction: "read".to_owned(),
        accesses: 1,
        bytes,
    };
    TrafficResults {
        rows: vec![
            row("weight", 600),
            row("kv_cache", 100),
            row("activation", 5000),
        ],
        ..TrafficResults::default()
    }
}

/// Everything above, with a disk and a memory that do a byte a nanosecond.
pub fn results() -> UnderneathResults {
    let (tensors, io, faults, samples) = (tensors(), io(), faults(), samples());
    Rows {
        model: &model(&tensors),
        work: &work(),
        faults: Some(&faults),
        io: Some(&io),
        samples: Some(&samples),
        counters: None,
        cpu: None,
        traffic: &traffic(),
        speeds: Some(Speeds {
            disk: 1_000_000_000,
            memory: 1_000_000_000,
        }),
    }
    .results()
}
