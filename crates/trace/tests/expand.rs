//! Accesses of an evaluation against a naive reading of what a region says.

use std::collections::BTreeSet;

use proptest::{collection::vec, prelude::*};
use testing::log;
use trace::{
    expand::{Access, Route, count_accesses, for_each_access, for_each_route},
    read::Evaluation,
    region::{IndexOrder, Indexed, Region, Strided},
    template::*,
};

/// One step with one access through one capture.
fn graph(indexed: Indexed<u32>, kind: CaptureKind, count: [u64; 3]) -> Template {
    let name = Name {
        pattern: 0,
        number: None,
    };
    let region = Region::Indexed(indexed);
    let access = AccessDef {
        tensor: 0,
        operand: Operand::Source(0),
        direction: Direction::Read,
        region,
    };
    let capture = CaptureDef {
        kind,
        time: CaptureTime::Step(0),
        count,
        width_bytes: 8,
        layer: Some(3),
        pair: None,
    };
    let accesses = vec![access];
    let step = Step {
        node: 0,
        fused_nodes: 1,
        op: 0,
        name,
        layer: Some(3),
        op_is_known: true,
        accesses,
    };
    Template {
        device: None,
        nodes: 1,
        steps: vec![step],
        captures: vec![capture],
    }
}

fn evaluation(values: Vec<i64>) -> Evaluation {
    let mut evaluation = log::small_evaluation(1);
    evaluation.step_nanos = vec![1];
    evaluation.captures = vec![values];
    evaluation
}

fn accesses<'t>(template: &'t Template, evaluation: &Evaluation) -> Vec<Access<'t>> {
    let mut accesses = Vec::new();
    for_each_access(template, evaluation, 0, |access| accesses.push(access));
    accesses
}

fn bytes_of(region: &Strided) -> Vec<u64> {
    let mut bytes = Vec::new();
    region.for_each_run(|offset, run| bytes.extend(offset..offset + run));
    bytes
}

/// Element by element, in order: `(position in the array, value, bytes)`.
fn naive(indexed: &Indexed<u32>, n: [u64; 3], values: &[i64]) -> Vec<(u64, u64, Vec<u64>)> {
    let mut touched = Vec::new();
    for i2 in 0..indexed.count[2] {
        for i1 in 0..indexed.count[1] {
            for i0 in 0..indexed.count[0] {
                let at = i0 % n[0] + n[0] * (i1 % n[1] + n[1] * (i2 % n[2]));
                let value = values[at as usize];
                if (0..indexed.bound as i64).contains(&value) {
                    let by = value as u64 * indexed.stride
                        + i1 * indexed.outer_strides[0]
                        + i2 * indexed.outer_strides[1];
                    let bytes = bytes_of(&indexed.unit)
                        .iter()
                        .map(|byte| byte + by)
                        .collect();
                    touched.push((at, value as u64, bytes));
                }
            }
        }
    }
    touched
}

fn case() -> impl Strategy<Value = (Indexed<u32>, [u64; 3], Vec<i64>)> {
    let unit = (
        0u64..50,
        prop_oneof![1u64..12, 64u64..80],
        vec((2u64..4, 90u64..200), 0..2),
    )
        .prop_map(|(offset, run, dims)| Strided::new(offset, run, dims));
    // Rows do not overlap in ggml: the stride is at least the unit's extent.
    (
        unit,
        0u64..3,
        1u64..9,
        [1u64..4, 1u64..4, 1u64..3],
        [1u64..3, 1u64..3, 1u64..3],
        [0u64..3, 0u64..3],
    )
        .prop_flat_map(|(unit, pad, bound, n, times, outer)| {
            let span = unit.end().unwrap() - unit.offset;
            let stride = span + pad;
            let indexed = Indexed {
                capture: 0,
                unit,
                stride,
                bound,
                count: [n[0] * times[0], n[1] * times[1], n[2] * times[2]],
                outer_strides: [outer[0] * stride * bound, outer[1] * stride * bound * 8],
                order: IndexOrder::EachInOrder,
            };
            let elements = n.iter().product::<u64>() as usize;
            (
                Just(indexed),
                Just(n),
                vec(-2i64..bound as i64 + 2, elements),
            )
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn each_in_order_touches_every_row_in_order((indexed, n, values) in case()) {
        let expected = naive(&indexed, n, &values);
        let template = graph(indexed.clone(), CaptureKind::Index, n);
        let evaluation = evaluation(values);
        let found = accesses(&template, &evaluation);
        prop_assert_eq!(count_accesses(&template, &evaluation), found.len() as u64);
        // Collapsed or not: the same bytes in the same order.
        let bytes: Vec<u64> = found.iter().flat_map(|access| bytes_of(&access.region)).collect();
        let all: Vec<u64> = expected.iter().flat_map(|(_, _, bytes)| bytes.clone()).collect();
        prop_assert_eq!(bytes, all);
        let small = indexed.unit.dims.is_empty() && indexed.unit.run_bytes < 64;
        if !small {
            let elements: Vec<u64> = found.iter().map(|access| access.element.unwrap()).collect();
            prop_assert_eq!(elements, expected.iter().map(|(at, _, _)| *at).collect::<Vec<_>>());
        }
        // An access is named after the first element that it covers.
        for access in &found {
            let first = bytes_of(&access.region)[0];
            let element = access.element.unwrap();
            prop_assert!(expected.iter().any(|(at, _, bytes)| *at == element && bytes[0] == first));
        }
    }

    #[test]
    fn experts_are_touched_once_each_ascending((indexed, n, values) in case()) {
        let indexed = Indexed { outer_strides: [0, 0], order: IndexOrder::DistinctAscending, ..indexed };
        let expected: BTreeSet<(u64, Vec<u64>)> =
            naive(&indexed, n, &values).into_iter().map(|(_, value, bytes)| (value, bytes)).collect();
        let template = graph(indexed, CaptureKind::ExpertIds, n);
        let evaluation = evaluation(values);
        let found: Vec<(u64, Vec<u64>)> = accesses(&template, &evaluation)
            .iter()
            .map(|access| (u64::from(access.expert.unwrap()), bytes_of(&access.region)))
            .collect();
        prop_assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn a_transposed_cache_column_is_one_access() {
    let unit = Strided::range(0, 2);
    let indexed = Indexed {
        capture: 0,
        unit,
        stride: 2,
        bound: 64 * 1024,
        count: [1000, 1, 1],
        outer_strides: [0, 0],
        order: IndexOrder::EachInOrder,
    };
    let template = graph(indexed, CaptureKind::Index, [1000, 1, 1]);
    // Row i of the transposed cache, cell 17: elements 64 apart.
    let evaluation = evaluation((0..1000).map(|i| 17 + 64 * i).collect());
    let found = accesses(&template, &evaluation);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].region, Strided::new(34, 2, [(1000, 128)]));
}

#[test]
fn routes_pair_ids_with_weights() {
    let (_, template) = log::small_graph();
    let evaluation = log::small_evaluation(1);
    let mut routes = Vec::new();
    for_each_route(&template, &evaluation, |route| routes.push(route));
    let route = |token, rank, expert, weight: f32| Route {
        layer: 0,
        token,
        rank,
        expert,
        weight: Some(weight),
    };
    assert_eq!(
        routes,
        [
            route(0, 0, 1, 1.0 / 3.0),
            route(0, 1, 4, 1.0 / 4.0),
            route(1, 0, 7, 1.0 / 5.0),
            route(1, 1, 2, 1.0 / 6.0)
        ]
    );
}

#[test]
fn routes_of_the_last_layer_belong_to_the_tokens_that_are_output() {
    let (_, mut template) = log::small_graph();
    let mut evaluation = log::small_evaluation(1);
    // Three tokens, of which the first and the last are output.
    evaluation.captures[0] = vec![7, 8, 9];
    template.captures[2].kind = CaptureKind::OutputRows;
    evaluation.captures[2] = vec![0, 2];
    let mut tokens = Vec::new();
    for_each_route(&template, &evaluation, |route| tokens.push(route.token));
    assert_eq!(tokens, [0, 0, 2, 2]);
}
