//! How fast the facts are found: accesses per second over evaluations worth
//! 10^8 accesses, of a mixture of experts the size of a 30 B model.
//!
//! Times only the analysis: evaluations are made beforehand and repeated.
//!
//!     cargo run --release -p analysis --example facts_rate [ACCESSES]

use std::time::Instant;

use analysis::{
    facts::{Accumulator, Model, Options},
    pass::Pass,
};
use reader::Walk;
use trace::{
    expand::count_accesses,
    format::Phase,
    read::{Definitions, Evaluation},
    region::{IndexOrder, Indexed, Region, Strided},
    template::*,
};

const LAYERS: u32 = 48;
const EXPERTS: u64 = 128;
const USED: u64 = 8;

fn main() -> Result<(), String> {
    let wanted: u64 = std::env::args()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .unwrap_or(100_000_000);
    let definitions = definitions();
    let evaluations: Vec<Evaluation> = (0..256).map(|n| evaluation(&definitions, n)).collect();
    let per_evaluation = count_accesses(&definitions.templates[0], &evaluations[0]);
    let (mut walk, mut pass) = (Walk::default(), Pass::default());
    let mut accumulator = Accumulator::new(Options::default());
    let begin = Instant::now();
    let (mut accesses, mut pushed) = (0, 0);
    while accesses < wanted {
        for evaluation in &evaluations {
            let seen = walk.see(&definitions, evaluation)?;
            accumulator.push(&pass.push(&seen));
            pushed += 1;
            accesses += per_evaluation;
        }
    }
    accumulator.end_stream(&pass, &walk.end_stream(&definitions));
    let facts = accumulator.finish(&pass.units, walk.tensors(), &Model::default());
    let seconds = begin.elapsed().as_secs_f64();
    let counted: u64 = facts.traffic.phases.iter().map(|p| p.accesses).sum();
    let peak = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = peak
        .lines()
        .find(|l| l.starts_with("VmHWM"))
        .unwrap_or("VmHWM unknown");
    println!(
        "{counted} accesses in {pushed} evaluations: {seconds:.2} s, {:.1} million accesses/s, {}",
        counted as f64 / seconds / 1e6,
        peak.split_whitespace().collect::<Vec<_>>().join(" ")
    );
    Ok(())
}

fn definitions() -> Definitions {
    let mut d = Definitions::default();
    let mut text = |t: &str| {
        d.texts.push(t.as_bytes().to_vec());
        d.texts.len() as u32 - 1
    };
    let ops = [
        "GET_ROWS",
        "MUL_MAT",
        "SET_ROWS",
        "FLASH_ATTN_EXT",
        "MUL_MAT_ID",
        "ADD",
    ]
    .map(&mut text);
    let cpu = text("CPU");
    let embedding = text("token_embd.weight");
    let dense = [
        "blk.\0.attn_norm.weight",
        "blk.\0.attn_q.weight",
        "blk.\0.attn_k.weight",
        "blk.\0.attn_v.weight",
        "blk.\0.attn_output.weight",
        "blk.\0.ffn_norm.weight",
        "blk.\0.ffn_gate_inp.weight",
    ]
    .map(&mut text);
    let experts = [
        "blk.\0.ffn_gate_exps.weight",
        "blk.\0.ffn_up_exps.weight",
        "blk.\0.ffn_down_exps.weight",
    ]
    .map(&mut text);
    let (cache, activation) = (text("cache_k_l\0"), text("act-\0"));
    let mut file_offset = 0;
    let mut tensor = |pattern, number, kind, size_bytes: u64| {
        let place = (kind == TensorKind::Weight).then_some(FilePlace {
            file: 0,
            file_offset,
        });
        file_offset += size_bytes;
        d.tensors.push(TensorDef {
            name: Name { pattern, number },
            kind,
            ggml_type: 0,
            ne: [1; 4],
            size_bytes,
            address: 0,
            buffer_type: cpu,
            place,
        });
        d.tensors.len() as u32 - 1
    };
    let each = IndexOrder::EachInOrder;
    let rows = |capture, bytes, bound, count, order| {
        let unit = Strided::range(0, bytes);
        Region::Indexed(Indexed {
            capture,
            unit,
            stride: bytes,
            bound,
            count,
            outer_strides: [0, 0],
            order,
        })
    };
    let access = |tensor, direction, region| AccessDef {
        tensor,
        operand: Operand::Source(0),
        direction,
        region,
    };
    let (read, write) = (Direction::Read, Direction::Write);
    let fixed = |bytes| Region::Fixed(Strided::range(0, bytes));
    let capture = |kind, time, count, layer, pair| CaptureDef {
        kind,
        time,
        count,
        width_bytes: 4,
        layer,
        pair,
    };
    let mut captures = vec![
        capture(
            CaptureKind::Tokens,
            CaptureTime::Begin,
            [1, 1, 1],
            None,
            None,
        ),
        capture(
            CaptureKind::Index,
            CaptureTime::Begin,
            [1, 1, 1],
            None,
            None,
        ),
    ];
    let mut steps: Vec<Step> = Vec::new();
    let mut step = |op, layer, accesses| {
        let name = Name {
            pattern: activation,
            number: layer,
        };
        steps.push(Step {
            node: 0,
            fused_nodes: 1,
            op,
            name,
            layer,
            op_is_known: true,
            accesses,
        });
        steps.len() as u32 - 1
    };
    let embedding = tensor(embedding, None, TensorKind::Weight, 150_000 * 4096);
    step(
        ops[0],
        None,
        vec![access(
            embedding,
            read,
            rows(0, 4096, 150_000, [1, 1, 1], each),
        )],
    );
    for layer in 0..LAYERS {
        let at = Some(layer);
        let act = tensor(activation, at, TensorKind::Activation, 8192);
        let kv = tensor(cache, at, TensorKind::KvCache, 4096 * 1024);
        for name in dense {
            let weight = tensor(name, at, TensorKind::Weight, 4 << 20);
            step(
                ops[1],
                at,
                vec![
                    access(weight, read, fixed(4 << 20)),
                    access(act, read, fixed(8192)),
                    access(act, write, fixed(8192)),
                ],
            );
        }
        step(
            ops[2],
            at,
            vec![
                access(act, read, fixed(1024)),
                access(kv, write, rows(1, 1024, 4096, [1, 1, 1], each)),
            ],
        );
        step(
            ops[3],
            at,
            vec![
                access(kv, read, fixed(1 << 20)),
                access(act, read, fixed(8192)),
                access(act, write, fixed(8192)),
            ],
        );
        for _ in 0..8 {
            step(
                ops[5],
                at,
                vec![
                    access(act, read, fixed(8192)),
                    access(act, read, fixed(8192)),
                    access(act, write, fixed(8192)),
                ],
            );
        }
        let ids = captures.len() as u32;
        for name in experts {
            let slice = 1 << 20;
            let weight = tensor(name, at, TensorKind::Weight, EXPERTS * slice);
            let slices = rows(
                ids,
                slice,
                EXPERTS,
                [USED, 1, 1],
                IndexOrder::DistinctAscending,
            );
            let number = step(
                ops[4],
                at,
                vec![
                    access(weight, read, slices),
                    access(act, read, fixed(8192)),
                    access(act, write, fixed(8192)),
                ],
            );
            if captures.len() as u32 == ids {
                captures.push(capture(
                    CaptureKind::ExpertIds,
                    CaptureTime::Step(number),
                    [USED, 1, 1],
                    at,
                    None,
                ));
                captures.push(capture(
                    CaptureKind::ExpertWeights,
                    CaptureTime::Step(number),
                    [USED, 1, 1],
                    at,
                    Some(ids),
                ));
            }
        }
        step(
            ops[0],
            at,
            vec![
                access(act, read, rows(ids, 4, EXPERTS, [1, USED, 1], each)),
                access(act, write, fixed(32)),
            ],
        );
    }
    d.templates.push(Template {
        device: None,
        nodes: steps.len() as u32,
        steps,
        captures,
    });
    d
}

fn evaluation(definitions: &Definitions, number: u64) -> Evaluation {
    let template = &definitions.templates[0];
    let begin_nanos = 1_000_000 * (number + 1);
    // Any spread of distinct experts will do.
    let captures = template
        .captures
        .iter()
        .enumerate()
        .map(|(at, def)| match def.kind {
            CaptureKind::Tokens => vec![(number * 7919 % 5000) as i64],
            CaptureKind::ExpertIds => (0..USED)
                .map(|i| ((number * 31 + at as u64 * 17 + i * i * 5) % EXPERTS) as i64)
                .collect(),
            CaptureKind::ExpertWeights => vec![i64::from(0.125f32.to_bits()); USED as usize],
            _ => vec![number as i64],
        });
    Evaluation {
        number,
        template: 0,
        phase: Phase::Generate,
        threads: 1,
        context: 0,
        begin_nanos,
        end_nanos: begin_nanos + 900_000,
        ticks: template.steps.len() as u32,
        flags: 0,
        step_nanos: (0..template.steps.len() as u64)
            .map(|step| begin_nanos + step * 500 + 1)
            .collect(),
        captures: captures.collect(),
        sequences: Vec::new(),
        token_phases: Vec::new(),
        origins: None,
        device: None,
    }
}
