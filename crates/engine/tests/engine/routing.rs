//! Recorded experts and router weights against an independent reading: llama.cpp's
//! own evaluation callback, which computes each wanted node alone and waits for
//! all threads before it shows the result.

use std::{collections::BTreeMap, ffi::c_void};

use engine::{
    context::{Context, ContextProps},
    generate::generate,
    model::Model,
};
use ggml::Tensor;
use gguf::write::Split;
use llama_cpp_sys_2 as sys;
use trace::expand::{Route, for_each_route};

use crate::fixtures::{Plain, Run, alone, greedy, load, prompt, record, shipped, tiny, write};

/// One layer of one evaluation: by token, then rank.
#[derive(Debug, PartialEq)]
struct Choice {
    layer: u32,
    experts: Vec<i32>,
    weight_bits: Vec<u32>,
}

#[test]
fn experts_and_weights_are_those_of_the_synchronised_callback() {
    for preset in [
        "mixtral-8x7b",
        "qwen3-30b-a3b",
        "gpt-oss-20b",
        "qwen1.5-moe-a2.7b",
        "deepseek-v2-lite",
    ] {
        let directory = tempfile::tempdir().unwrap();
        check(
            preset,
            &load(&write(&tiny(preset), directory.path(), Split::Whole)),
        );
    }
    check("shakespeare-moe", &load(&shipped("shakespeare-moe.gguf")));
}

#[test]
fn tokens_of_the_last_layer_are_those_whose_output_is_wanted() {
    let _alone = alone();
    let model = load(&shipped("shakespeare-moe.gguf"));
    let props = ContextProps {
        threads: 2,
        micro_batch: 16,
        sequences: 2,
        ..ContextProps::default()
    };
    let run = record(
        &model,
        props,
        &greedy(vec![prompt(&model, 40), prompt(&model, 9)], 2),
    );
    let last_layer = model.gguf.hyper().layer_count as u32 - 1;
    // Tokens 39 and 48 of 49 are the last of their sequences; then one of each.
    let wanted: [&[u32]; 5] = [&[], &[], &[39 - 32], &[48 - 48], &[0, 1]];
    let tokens_in: [u32; 5] = [16, 16, 16, 1, 2];
    assert_eq!(run.evaluations.len(), wanted.len());
    for (evaluation, (wanted, tokens)) in run.evaluations.iter().zip(wanted.iter().zip(tokens_in)) {
        let mut of_layer: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for_each_route(run.template(evaluation), evaluation, |route| {
            if route.rank == 0 {
                of_layer.entry(route.layer).or_default().push(route.token);
            }
        });
        assert_eq!(
            of_layer.get(&last_layer).map_or(&[][..], Vec::as_slice),
            *wanted,
            "{}",
            evaluation.number
        );
        for layer in 0..last_layer {
            assert_eq!(
                of_layer[&layer],
                (0..tokens).collect::<Vec<_>>(),
                "{}",
                evaluation.number
            );
        }
    }
}

fn check(label: &str, model: &Model) {
    let _alone = alone();
    for threads in [1, 2] {
        // A micro-batch smaller than the prompt: some evaluations have no output.
        let props = ContextProps {
            threads,
            micro_batch: 16,
            sequences: 2,
            ..ContextProps::default()
        };
        let what = greedy(vec![prompt(model, 40), prompt(model, 9)], 6);
        let mut expected: Vec<Choice> = Vec::new();
        let data: *mut c_void = (&raw mut expected).cast();
        let mut context =
            Context::with_callback(model, props.clone(), Some((on_node, data))).unwrap();
        let generated = generate(model, &mut context, &what, &mut Plain).unwrap();
        drop(context);
        let run = record(model, props, &what);
        assert_eq!(generated.tokens, run.generated.tokens, "{label}");
        let recorded = choices(&run);
        let routed: usize = recorded.iter().map(|c| c.experts.len()).sum();
        println!(
            "{label}, {threads} threads: {} layers evaluated, {routed} choices",
            recorded.len()
        );
        assert!(routed > 100, "{label}");
        assert_eq!(recorded.len(), expected.len(), "{label}");
        for (at, (recorded, expected)) in recorded.iter().zip(&expected).enumerate() {
            assert_eq!(
                recorded, expected,
                "{label}, {threads} threads, choice {at}"
            );
        }
    }
}

fn choices(run: &Run) -> Vec<Choice> {
    let mut choices: Vec<Choice> = Vec::new();
    for evaluation in &run.evaluations {
        let first = choices.len();
        for_each_route(
            run.template(evaluation),
            evaluation,
            |Route {
                 layer,
                 expert,
                 weight,
                 ..
             }| {
                if choices[first..].last().is_none_or(|c| c.layer != layer) {
                    choices.push(Choice {
                        layer,
                        experts: Vec::new(),
                        weight_bits: Vec::new(),
                    });
                }
                let choice = choices.last_mut().unwrap();
                choice.experts.push(expert as i32);
                choice
                    .weight_bits
                    .push(weight.expect("every choice has a weight").to_bits());
            },
        );
    }
    choices
}

/// The last of these names that a layer has holds the weights as they are used.
const WEIGHTS: [&[u8]; 4] = [
    b"ffn_moe_weights",
    b"ffn_moe_weights_norm",
    b"ffn_moe_weights_softmax",
    b"ffn_moe_weights_scaled",
];

unsafe extern "C" fn on_node(node: *mut sys::ggml_tensor, asks: bool, data: *mut c_void) -> bool {
    // SAFETY: llama.cpp passes a live node of the layout that the engine checks.
    let node = unsafe { Tensor::from_ptr(node.cast()) }.unwrap();
    let Some(dash) = node.name().iter().rposition(|&b| b == b'-') else {
        return false;
    };
    // Views of these nodes are named like them, with a remark behind the number.
    let Some(layer) = std::str::from_utf8(&node.name()[dash + 1..])
        .ok()
        .and_then(|n| n.parse().ok())
    else {
        return false;
    };
    let name = &node.name()[..dash];
    let is_ids = name == b"ffn_moe_topk";
    if !is_ids && !WEIGHTS.contains(&name) {
        return false;
    }
    if asks {
        return true;
    }
    // SAFETY: the list that `check` passed, which nobody uses meanwhile.
    let choices = unsafe { &mut *data.cast::<Vec<Choice>>() };
    let values = elements(node);
    if values.is_empty() {
        // The last layer of an evaluation without output.
        return true;
    }
    if is_ids {
        let experts = values.into_iter().map(|bits| bits.cast_signed()).collect();
        choices.push(Choice {
            layer,
            experts,
            weight_bits: Vec::new(),
        });
    } else {
        let choice = choices.last_mut().unwrap();
        assert_eq!(choice.layer, layer);
        choice.weight_bits = values;
    }
    true
}

/// All elements of four bytes, in order.
fn elements(tensor: Tensor<'_>) -> Vec<u32> {
    let ([n0, n1, n2, n3], nb) = (tensor.extents(), tensor.nb());
    let mut values = Vec::new();
    for (i3, i2) in (0..n3).flat_map(|i3| (0..n2).map(move |i2| (i3, i2))) {
        for (i1, i0) in (0..n1).flat_map(|i1| (0..n0).map(move |i0| (i1, i0))) {
            let offset = i0 * nb[0] + i1 * nb[1] + i2 * nb[2] + i3 * nb[3];
            // SAFETY: inside the computed tensor by its extents and strides.
            values.push(unsafe {
                (tensor.data() as *const u8)
                    .add(offset as usize)
                    .cast::<u32>()
                    .read_unaligned()
            });
        }
    }
    values
}
