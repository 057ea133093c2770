//! Experts and heads against naive counts.

mod facts_support;

use std::collections::{BTreeMap, BTreeSet};

use analysis::{
    experts::{Balance, ExpertOptions, between_runs},
    facts::{Model, ModelTensor, Options},
};
use facts_support::{Run, Shape, expand, facts, random_run};
use gguf::heads::{Boundary, HeadRange};
use proptest::prelude::*;
use trace::{
    expand::for_each_route,
    template::{CaptureKind, TensorKind},
};

/// A choice: evaluation, token of the run, token id, layer, expert.
struct Choice {
    eval: usize,
    token: usize,
    token_id: i64,
    layer: u32,
    expert: u32,
}

struct Chosen {
    choices: Vec<Choice>,
    /// Tokens of each evaluation.
    tokens: Vec<u64>,
    bad_ids: u64,
}

fn chosen(run: &Run) -> Chosen {
    let mut all = Chosen {
        choices: Vec::new(),
        tokens: Vec::new(),
        bad_ids: 0,
    };
    let mut first_token = 0;
    for stream in &run.streams {
        for evaluation in &stream.evaluations {
            let template = &stream.definitions.templates[evaluation.template as usize];
            let ids = evaluation.first_of(template, CaptureKind::Tokens);
            for_each_route(template, evaluation, |route| {
                if u64::from(route.expert) >= run.shape.experts {
                    all.bad_ids += 1;
                    return;
                }
                all.choices.push(Choice {
                    eval: all.tokens.len(),
                    token: first_token + route.token as usize,
                    token_id: ids[route.token as usize],
                    layer: route.layer,
                    expert: route.expert,
                });
            });
            first_token += ids.len();
            all.tokens.push(ids.len() as u64);
        }
    }
    all
}

fn options() -> Options {
    let experts = ExpertOptions {
        window_tokens: 5,
        hot_set: 2,
        top_pairs: 10_000,
        top_tokens: 10_000,
        least_count: 1,
        ..ExpertOptions::default()
    };
    Options {
        experts,
        ..Options::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn experts_are_counted_as_the_routes_say(seed in any::<u64>()) {
        let run = random_run(seed);
        let all = chosen(&run);
        let found = facts(&run, &Model::default(), options()).experts;
        prop_assert_eq!(found.choices, all.choices.len() as u64);
        prop_assert_eq!(found.bad_ids, all.bad_ids);
        prop_assert_eq!(found.choices_without_token, 0);
        for layer in &found.layers {
            let of_layer: Vec<&Choice> = all.choices.iter().filter(|c| c.layer == layer.layer).collect();
            let count = |expert: u32| of_layer.iter().filter(|c| c.expert == expert).count() as u64;
            for expert in &layer.experts {
                prop_assert_eq!(expert.choices, count(expert.expert));
                prop_assert_eq!(expert.phase_choices.iter().sum::<u64>(), expert.choices);
            }
            if layer.choices > 0 {
                let mean: f64 = layer.experts.iter().map(|e| e.temperature).sum::<f64>() / layer.experts.len() as f64;
                prop_assert!((mean - 1.0).abs() < 1e-9);
            }
            // Pairs of one token.
            let mut by_token: BTreeMap<usize, BTreeSet<u32>> = BTreeMap::new();
            for choice in &of_layer {
                by_token.entry(choice.token).or_default().insert(choice.expert);
            }
            let mut pairs: BTreeMap<[u32; 2], u64> = BTreeMap::new();
            for experts in by_token.values() {
                for &a in experts {
                    for &b in experts.range(a + 1..) {
                        *pairs.entry([a, b]).or_default() += 1;
                    }
                }
            }
            let found_pairs: BTreeMap<[u32; 2], u64> = layer.pairs.iter().map(|p| (p.experts, p.tokens)).collect();
            prop_assert_eq!(found_pairs, pairs);
            prop_assert!(layer.pairs.windows(2).all(|w| w[0].tokens >= w[1].tokens));
            // Tokens.
            for expert in &layer.experts {
                for preference in &expert.prefers {
                    let of_token = |c: &&&Choice| c.token_id == preference.token_id;
                    let choices = of_layer.iter().filter(of_token).filter(|c| c.expert == expert.expert).count() as u64;
                    let came = of_layer.iter().filter(of_token).count() as u64 / u64::from(layer.used);
                    prop_assert_eq!((preference.choices, preference.occurrences), (choices, came));
                    let known = (preference.token_id < 10).then(|| format!("t{}", preference.token_id));
                    prop_assert_eq!(&preference.text, &known);
                }
            }
            // Hot sets of windows of at least 5 tokens.
            let mut sets: Vec<BTreeSet<u32>> = Vec::new();
            let (mut first, mut tokens) = (0, 0);
            for (eval, &n) in all.tokens.iter().enumerate() {
                tokens += n;
                if tokens >= 5 {
                    let inside = |e: &u32| of_layer.iter().filter(|c| c.expert == *e && (first..=eval).contains(&c.eval)).count();
                    let mut order: Vec<u32> = (0..run.shape.experts as u32).filter(|e| inside(e) > 0).collect();
                    order.sort_by_key(|e| std::cmp::Reverse(inside(e)));
                    sets.push(order.into_iter().take(2).collect());
                    (first, tokens) = (eval + 1, 0);
                }
            }
            prop_assert_eq!(layer.stability.windows, sets.len() as u64);
            let jaccards: Vec<f64> = sets.windows(2).map(|w| {
                let all = w[0].union(&w[1]).count();
                if all == 0 { 1.0 } else { w[0].intersection(&w[1]).count() as f64 / all as f64 }
            }).collect();
            prop_assert_eq!(&layer.stability.timeline.points, &jaccards);
            // Experts that the evaluation before, of those that came to this layer, used too.
            let mut sets: Vec<BTreeSet<u32>> = Vec::new();
            let mut at = None;
            for choice in &of_layer {
                if at != Some(choice.eval) {
                    sets.push(BTreeSet::new());
                    at = Some(choice.eval);
                }
                sets.last_mut().unwrap().insert(choice.expert);
            }
            if all.bad_ids == 0 {
                let repeats: usize = sets.windows(2).map(|w| w[1].intersection(&w[0]).count()).sum();
                let repeatable: usize = sets.iter().skip(1).map(BTreeSet::len).sum();
                prop_assert_eq!(layer.repeat_share, repeats as f64 / repeatable.max(1) as f64);
            }
        }
        let same = between_runs(&found, &found);
        for overlap in &same {
            prop_assert_eq!(overlap.jaccard, 1.0);
            prop_assert_eq!(overlap.share_served, overlap.best_share);
        }
    }

    #[test]
    fn heads_have_the_bytes_that_lie_in_them(seed in any::<u64>()) {
        let run = random_run(seed);
        let rows = expand(&run);
        let found = facts(&run, &with_heads(&run.shape), Options::default()).heads;
        let mut expected: BTreeMap<(u32, &str, u64, &str), u64> = BTreeMap::new();
        let mut unassigned = 0;
        let (head_bytes, shape) = (run.shape.head_bytes, &run.shape);
        for row in rows.iter().filter(|r| r.kind == TensorKind::KvCache || r.component == "attention") {
            let layer = row.layer.unwrap();
            // What has gaps is not divided.
            if row.kind == TensorKind::Weight && !row.region.dims.is_empty() {
                unassigned += row.bytes;
                continue;
            }
            row.region.for_each_run(|offset, bytes| {
                for byte in offset..offset + bytes {
                    let (of, head) = match row.name.as_str() {
                        name if name.starts_with("cache_k") => ("cache_k", byte % (shape.kv_heads * head_bytes) / head_bytes),
                        name if name.starts_with("cache_v") => ("cache_v", byte % (shape.kv_heads * head_bytes) / head_bytes),
                        name if name.contains("attn_q") => ("q", byte / (head_bytes * 4)),
                        _ => ("o", byte % (shape.q_heads * head_bytes) / head_bytes),
                    };
                    *expected.entry((layer, of, head, row.direction)).or_default() += 1;
                }
            });
        }
        prop_assert_eq!(found.unassigned_bytes, unassigned);
        let mut sums = BTreeMap::new();
        for head in &found.heads {
            for (direction, bytes) in [("read", head.read_bytes), ("write", head.written_bytes)] {
                if bytes > 0 {
                    sums.insert((head.layer, head.of.as_str(), head.head, direction), bytes);
                }
            }
        }
        prop_assert_eq!(sums, expected);
        let total: u64 = found.projections.iter().map(|p| p.read_bytes + p.written_bytes).sum();
        let all: u64 = rows.iter().filter(|r| r.kind == TensorKind::KvCache || r.component == "attention").map(|r| r.bytes).sum();
        prop_assert_eq!(total, all);
    }
}

/// Q by rows, four of them; O by columns.
fn with_heads(shape: &Shape) -> Model {
    let mut model = Model::default();
    let row = shape.q_heads * shape.head_bytes;
    for layer in 0..shape.layers {
        model.kv_heads.insert(layer, shape.kv_heads);
        let range = |of, head: u64, run_bytes, stride_bytes, run_count| HeadRange {
            of,
            head,
            file_offset: head * run_bytes,
            run_bytes,
            stride_bytes,
            run_count,
            boundary: Boundary::Exact,
        };
        let (heads, bytes) = (0..shape.q_heads, shape.head_bytes);
        for (name, heads) in [
            (
                "attn_q",
                heads
                    .clone()
                    .map(|head| range("q", head, bytes * 4, bytes * 4, 1))
                    .collect(),
            ),
            (
                "attn_output",
                heads.map(|head| range("o", head, bytes, row, 3)).collect(),
            ),
        ] {
            model.tensors.push(ModelTensor {
                name: format!("blk.{layer}.{name}.weight"),
                heads,
                ..ModelTensor::default()
            });
        }
    }
    model
}

#[test]
fn balance_knows_even_from_uneven() {
    let check = |counts: &[u64], entropy: f64, max: f64, variation: f64| {
        let found = Balance::of(counts);
        let expected = [entropy, max, variation];
        let found = [
            found.normalised_entropy,
            found.max_over_mean,
            found.coefficient_of_variation,
        ];
        let close = found
            .iter()
            .zip(expected)
            .all(|(a, b)| (a - b).abs() < 1e-9);
        assert!(close, "{counts:?}: {found:?} is not {expected:?}");
    };
    check(&[5, 5, 5, 5], 1.0, 1.0, 0.0);
    check(&[8, 0, 0, 0], 0.0, 4.0, 3f64.sqrt());
    check(&[4, 4, 0, 0], 0.5, 2.0, 1.0);
    check(&[0, 0], 0.0, 0.0, 0.0);
    check(&[3], 1.0, 1.0, 0.0);
}
