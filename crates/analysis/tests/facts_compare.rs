//! Comparing runs, and sentences about them.

mod facts_support;

use std::{collections::BTreeMap, num::NonZeroUsize};

use analysis::{
    caches::{CacheQuestion, Caches},
    compare::{Change, Models, compare},
    facts::{Model, Options},
    findings::{Answer, findings},
    opportunities::{Machine, Opportunities},
    weights::weights_of,
};
use facts_support::{Row, Run, expand, facts, random_run, read};
use proptest::prelude::*;

fn per_token(
    rows: &[Row],
    run: &Run,
    phase: &str,
    key: impl Fn(&Row) -> String,
) -> BTreeMap<String, f64> {
    let evaluations = run.streams.iter().flat_map(|s| &s.evaluations);
    let of_phase = evaluations.filter(|e| e.phase.name() == phase);
    let tokens: usize = of_phase.map(|e| e.captures[0].len()).sum();
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.phase == phase) {
        *sums.entry(key(row)).or_default() += row.bytes;
    }
    sums.into_iter()
        .map(|(name, bytes)| (name, bytes as f64 / tokens as f64))
        .collect()
}

fn check(changes: &[Change], a: &BTreeMap<String, f64>, b: &BTreeMap<String, f64>) {
    for change in changes {
        let of = |side: &BTreeMap<String, f64>| side.get(&change.name).copied().unwrap_or(0.0);
        assert_eq!(
            (change.a_bytes_per_token, change.b_bytes_per_token),
            (of(a), of(b)),
            "{}",
            change.name
        );
        assert_eq!(change.bytes_change, of(b) - of(a));
        assert_eq!(change.bytes_ratio.is_some(), of(a) > 0.0);
    }
    let is_sorted = changes
        .windows(2)
        .all(|w| w[0].bytes_change.abs() >= w[1].bytes_change.abs());
    assert!(is_sorted, "{changes:?}");
    let names = changes.iter().map(|c| &c.name);
    assert!(
        a.keys()
            .chain(b.keys())
            .all(|name| names.clone().any(|n| n == name))
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn changes_are_per_token_and_sorted(seeds in any::<[u64; 2]>()) {
        let runs = seeds.map(random_run);
        let rows = [expand(&runs[0]), expand(&runs[1])];
        let [a, b] = [0, 1].map(|i| facts(&runs[i], &Model::default(), Options::default()));
        let found = compare(&a, &b, Models::Same);
        for phase in &found.phases {
            let sides = |key: &dyn Fn(&Row) -> String| [0, 1].map(|i| per_token(&rows[i], &runs[i], &phase.phase, key));
            let [x, y] = sides(&|row| row.component.clone());
            check(&phase.by_component, &x, &y);
            let [x, y] = sides(&|row| row.op.clone());
            check(&phase.by_op, &x, &y);
            let [x, y] = sides(&|row| row.kind.name().to_owned());
            check(&phase.by_kind, &x, &y);
            let [x, y] = sides(&|row| row.layer.map_or("-".to_owned(), |l| l.to_string()));
            match &phase.by_layer {
                Some(changes) => check(changes, &x, &y),
                None => prop_assert!(runs[0].shape.layers != runs[1].shape.layers || rows.iter().any(|r| r.len() < 50)),
            }
            let nanos: f64 = phase.by_op.iter().map(|c| c.b_nanos_per_token).sum();
            prop_assert!((nanos - phase.total.b_nanos_per_token).abs() <= 1e-6 * nanos.max(1.0));
        }
        prop_assert!(compare(&a, &b, Models::Different).phases.iter().all(|p| p.by_layer.is_none()));
        let same = compare(&a, &a, Models::Same);
        for phase in &same.phases {
            prop_assert_eq!(phase.total.bytes_change, 0.0);
            prop_assert_eq!(phase.total.nanos_change, 0.0);
        }
    }

    #[test]
    fn findings_are_whole_sentences_with_a_query(seed in any::<u64>()) {
        let run = random_run(seed);
        let facts = facts(&run, &Model::default(), Options::default());
        let opportunities = opportunities(&run);
        for finding in findings(&facts, opportunities.as_ref()) {
            let text = &finding.text;
            prop_assert!(!text.contains("NaN") && !text.contains("inf"), "{}", text);
            prop_assert!(!text.ends_with('.') && !text.is_empty());
            prop_assert_eq!(finding.sql.is_none(), finding.sql_answer == Answer::None);
            // The evidence is a place in the results.
            let results = serde_json::json!({ "facts": facts, "caches": { "opportunities": opportunities } });
            let mut place = &results;
            for part in finding.evidence.split('.') {
                let inside = match place {
                    serde_json::Value::Array(list) => list.first().and_then(|first| first.get(part)),
                    object => object.get(part),
                };
                prop_assert!(inside.is_some(), "{} of {}", part, finding.evidence);
                place = inside.unwrap();
            }
        }
    }
}

/// At a quarter and at half of the weights; `None` when nothing was generated.
fn opportunities(run: &Run) -> Option<Opportunities> {
    let (_, sequence) = read(run, &Model::default(), Options::default());
    let bytes = sequence.touched_bytes();
    let question = CacheQuestion {
        budgets_bytes: vec![bytes / 4, bytes / 2],
        given_bytes: Vec::new(),
        beside_weights_bytes: None,
        weights: weights_of(&sequence, None),
        machine: Machine::new(1e9),
        threads: NonZeroUsize::MIN,
    };
    Caches::of(&sequence, &question).unwrap().opportunities
}

#[test]
fn an_empty_run_has_no_findings() {
    let facts = facts(
        &Run {
            streams: Vec::new(),
            ..random_run(1)
        },
        &Model::default(),
        Options::default(),
    );
    assert_eq!(findings(&facts, None), []);
}
