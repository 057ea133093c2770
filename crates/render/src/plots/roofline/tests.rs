//! Where labels and points of the roofline go.

use analysis::roofline::{Bound, ComputeRoof, MemoryRoof, Point, classes::ClassRow};

use super::*;

/// Op, type, component, phase, milliseconds, GFLOP/s, operations a byte.
type Class<'a> = (&'a str, Option<&'a str>, &'a str, &'a str, u64, f64, f64);

const CLASSES: &[Class] = &[
    ("MUL_MAT", Some("q4_0"), "ffn", "generate", 800, 28.0, 3.5),
    (
        "MUL_MAT",
        Some("q4_0"),
        "attention",
        "generate",
        400,
        26.0,
        3.5,
    ),
    (
        "MUL_MAT",
        Some("q6_K"),
        "output",
        "generate",
        300,
        20.0,
        2.4,
    ),
    ("MUL_MAT", Some("q4_0"), "ffn", "prompt", 500, 70.0, 300.0),
    (
        "MUL_MAT",
        Some("q4_0"),
        "attention",
        "prompt",
        300,
        66.0,
        240.0,
    ),
    (
        "FLASH_ATTN_EXT",
        Some("f16"),
        "kv_cache",
        "generate",
        60,
        6.0,
        4.0,
    ),
    (
        "FLASH_ATTN_EXT",
        Some("f16"),
        "kv_cache",
        "prompt",
        40,
        20.0,
        60.0,
    ),
    (
        "RMS_NORM+MUL",
        Some("f32"),
        "norm",
        "generate",
        20,
        0.8,
        0.45,
    ),
    ("ROPE", None, "activation", "generate", 15, 0.5, 0.37),
    ("ADD", None, "activation", "unknown", 10, 0.2, 0.083),
    (
        "GET_ROWS",
        Some("q4_0"),
        "embedding",
        "generate",
        1,
        0.0,
        0.0,
    ),
];

fn roofline(classes: &[Class]) -> Roofline {
    let points = classes.iter().map(
        |&(op, ty, component, phase, milliseconds, giga_flops, intensity)| Point {
            row: ClassRow {
                phase: phase.to_owned(),
                op: op.to_owned(),
                weight_type: ty.map(str::to_owned),
                component: component.to_owned(),
                threads: 2,
                batch_from: 1,
                batch_to: 1,
                nanos: milliseconds * 1_000_000,
                ..ClassRow::default()
            },
            share_of_phase: 0.1,
            flops_per_second: Some(giga_flops * 1e9),
            bytes_per_second: giga_flops * 1e9 / f64::max(intensity, 0.01),
            intensity: Some(intensity),
            bound: Bound::Memory,
            share_of_ceiling: 0.34,
            compute_roof: None,
        },
    );
    let roof = |ty: Option<&str>, giga: f64| ComputeRoof {
        weight_type: ty.map(str::to_owned),
        threads: 2,
        flops_per_second: giga * 1e9,
    };
    Roofline {
        memory: vec![MemoryRoof {
            threads: 2,
            bytes_per_second: 23.9e9,
        }],
        compute: vec![
            roof(None, 180.0),
            roof(Some("q4_0"), 95.0),
            roof(Some("q6_K"), 88.0),
        ],
        points: points.collect(),
    }
}

#[test]
fn roofs_and_the_largest_points_are_named() {
    let svg = plot(&roofline(CLASSES)).unwrap().svg.standalone();
    for text in [
        ">memory, 2 threads: 23.9 GB/s<",
        ">llama.cpp, q4_0, 2 threads: 95 GFLOP/s<",
        ">f32 in registers, 2 threads: 180 GFLOP/s<",
        ">MUL_MAT q4_0 ffn, 34.0 %<",
        ">100<",
        ">generate<",
        ">prompt<",
    ] {
        assert!(svg.contains(text), "{text}");
    }
    // What computes nothing has no place on a scale of powers.
    assert!(!svg.contains("GET_ROWS"));
    assert!(!svg.contains("NaN") && !svg.contains("inf"));
}

#[test]
fn texts_do_not_lie_over_each_other() {
    let chart = charts::roofline(&roofline(CLASSES)).unwrap();
    let drawn: Vec<Drawn> = chart.points.iter().map(Drawn::of).collect();
    let frame = Frame::panel((40.0, 40.0), (600.0, 300.0), 6.0);
    let mut labels = Labels::new(&frame);
    let mut canvas = Canvas::new(400.0);
    for drawn in &drawn {
        labels.name(drawn, &mut canvas);
    }
    for (at, a) in labels.taken.iter().enumerate() {
        for b in &labels.taken[..at] {
            let apart = a[2] <= b[0] || b[2] <= a[0] || a[3] <= b[1] || b[3] <= a[1];
            assert!(apart, "{a:?} {b:?}");
        }
    }
}

#[test]
fn without_arithmetic_there_is_the_slope_alone() {
    let mut only_memory = roofline(CLASSES);
    only_memory.compute.clear();
    let svg = plot(&only_memory).unwrap().svg.standalone();
    assert!(svg.contains("memory, 2 threads"));
    assert!(!svg.contains("in registers, 2"));
}

#[test]
fn no_class_that_computes_is_no_picture() {
    assert!(plot(&roofline(&[])).is_none());
    assert!(plot(&roofline(&CLASSES[10..])).is_none());
    assert!(plot(&Roofline::default()).is_none());
}

#[test]
fn one_point_is_enough() {
    let svg = plot(&roofline(&CLASSES[..1])).unwrap().svg.standalone();
    assert!(!svg.contains("NaN"));
}
