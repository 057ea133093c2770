//! Facts from one pass against the same facts from every access written out.

mod facts_support;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use analysis::{
    facts::{Facts, Model, ModelTensor, Options},
    hot::Measure,
};
use facts_support::{Row, Run, expand, facts, random_run};
use proptest::prelude::*;
use trace::template::TensorKind;

fn quick() -> Options {
    Options {
        gap_bytes: 64,
        window_evaluations: vec![1, 3, 8],
        ..Options::default()
    }
}

fn weights(rows: &[Row]) -> Vec<&Row> {
    rows.iter()
        .filter(|row| row.kind == TensorKind::Weight)
        .collect()
}

type Unit = (String, Option<u32>);

fn unit(row: &Row) -> Unit {
    (row.name.clone(), row.expert)
}

fn check_traffic(found: &Facts, rows: &[Row], run: &Run) {
    let mut expected: BTreeMap<_, (u64, u64)> = BTreeMap::new();
    for row in rows {
        let names = (
            row.phase.to_owned(),
            row.kind.name().to_owned(),
            row.component.clone(),
            row.role.clone(),
        );
        let sum = expected
            .entry((names, row.op.clone(), row.layer, row.direction.to_owned()))
            .or_default();
        sum.0 += 1;
        sum.1 += row.bytes;
    }
    let rows_found = found.traffic.rows.iter().cloned().map(|r| {
        let names = (r.phase, r.kind, r.component, r.role);
        ((names, r.op, r.layer, r.direction), (r.accesses, r.bytes))
    });
    assert_eq!(rows_found.collect::<BTreeMap<_, _>>(), expected);

    let mut expected: BTreeMap<_, (u64, u64)> = BTreeMap::new();
    let mut tokens = 0;
    for stream in &run.streams {
        for evaluation in &stream.evaluations {
            let template = &stream.definitions.templates[evaluation.template as usize];
            let mut begin = evaluation.begin_nanos;
            for (number, step) in template.steps.iter().enumerate() {
                if evaluation.was_executed(number) {
                    let op = stream.definitions.text(step.op);
                    let key = (evaluation.phase.name().to_owned(), op, step.layer);
                    let sum = expected.entry(key).or_default();
                    *sum = (sum.0 + 1, sum.1 + evaluation.step_nanos[number] - begin);
                    begin = evaluation.step_nanos[number];
                }
            }
            tokens += evaluation.captures[0].len() as u64;
        }
    }
    let times = &found.traffic.times;
    let mut by_op: BTreeMap<_, (u64, u64)> = BTreeMap::new();
    for time in times {
        let key = (time.phase.clone(), time.op.clone(), time.layer);
        let sum = by_op.entry(key).or_default();
        *sum = (sum.0 + time.executions, sum.1 + time.nanos);
    }
    assert_eq!(by_op, expected);
    assert_eq!(found.traffic.tokens(), tokens);
    assert_eq!(
        found.traffic.phases.iter().map(|p| p.accesses).sum::<u64>(),
        rows.len() as u64
    );
    for time in times {
        let expected = match time.op.as_str() {
            "MUL_MAT_ID" | "ADD_ID" => "expert",
            "FLASH_ATTN_EXT" | "SET_ROWS" => "kv_cache",
            "MUL_MAT" if time.layer.is_some() => "attention",
            // The embedding is tied.
            "MUL_MAT" => "output",
            "GET_ROWS" if time.layer.is_some() => "activation",
            _ => "embedding",
        };
        assert_eq!(time.component, expected, "of {}", time.op);
    }
}

fn check_kv_growth(found: &Facts, rows: &[Row], run: &Run) {
    let points = &found.traffic.kv_growth.points;
    let mut at = 0;
    let mut tokens = 0;
    for (number, stream) in run.streams.iter().enumerate() {
        for (eval, evaluation) in stream.evaluations.iter().enumerate() {
            let bytes = |direction: &str| -> u64 {
                let of_eval = rows.iter().filter(|r| (r.stream, r.eval) == (number, eval));
                let kv =
                    of_eval.filter(|r| r.kind == TensorKind::KvCache && r.direction == direction);
                kv.map(|r| r.bytes).sum()
            };
            tokens += evaluation.captures[0].len() as u64;
            let point = &points[at];
            assert_eq!(point.eval, at as u64, "counts through the run");
            assert_eq!(
                (point.read_bytes, point.written_bytes),
                (bytes("read"), bytes("write"))
            );
            assert_eq!(point.tokens, tokens);
            assert_eq!(
                point.context_tokens as i64,
                evaluation.captures[1].iter().max().unwrap() + 1
            );
            at += 1;
        }
    }
    assert_eq!(at, points.len());
}

fn check_hot(found: &Facts, rows: &[Row]) {
    let mut expected: BTreeMap<Unit, (u64, u64)> = BTreeMap::new();
    for row in weights(rows) {
        let sum = expected.entry(unit(row)).or_default();
        sum.0 += 1;
        sum.1 += row.bytes;
    }
    let touched = found.hot.units.iter().filter(|u| u.accesses > 0);
    let touched = touched.map(|u| ((u.name.clone(), u.expert), (u.accesses, u.bytes)));
    assert_eq!(touched.collect::<BTreeMap<_, _>>(), expected);
    let units = &found.hot.units;
    assert_eq!(units.iter().filter(|u| u.name == "never.weight").count(), 1);
    for unit in units {
        assert_eq!(unit.phase_bytes.iter().sum::<u64>(), unit.bytes);
    }
    for ranking in &found.hot.rankings {
        let heat = |&at: &u32| match ranking.measure {
            Measure::Accesses => units[at as usize].accesses as f64,
            Measure::Bytes => units[at as usize].bytes as f64,
            Measure::BytesPerByte => units[at as usize].bytes_per_byte(),
        };
        assert!(ranking.order.windows(2).all(|w| heat(&w[0]) >= heat(&w[1])));
        let distinct: BTreeSet<_> = ranking.order.iter().collect();
        assert_eq!(distinct.len(), units.len());
        assert_eq!(ranking.hot.units, (units.len() as f64 * 0.1).round() as u64);
        let cold = &ranking.order[units.len() - ranking.cold.units as usize..];
        assert_eq!(
            ranking.cold.bytes,
            cold.iter().map(|&at| units[at as usize].bytes).sum::<u64>()
        );
    }
    let total: u64 = weights(rows).iter().map(|r| r.bytes).sum();
    for groups in [
        &found.hot.by_component,
        &found.hot.by_layer,
        &found.hot.by_op,
        &found.hot.by_phase,
    ] {
        assert_eq!(groups.iter().map(|g| g.bytes).sum::<u64>(), total);
    }
    // A tied embedding is one tensor: its bytes are counted once, as those of the output.
    let sizes = found.hot.by_component.iter().filter_map(|g| g.size_bytes);
    assert_eq!(sizes.sum::<u64>(), found.hot.model_bytes);
    let group = |name: &str| found.hot.by_component.iter().find(|g| g.name == name);
    if let Some(output) = group("output") {
        let embedding = found.hot.units.iter();
        let embedding = embedding.filter(|u| u.name == "token_embd.weight");
        let size = embedding.map(|u| u.size_bytes).sum();
        assert_eq!(output.size_bytes, Some(size));
        assert_eq!(output.tied_to.as_deref(), Some("embedding"));
        assert!(group("embedding").is_none_or(|g| g.size_bytes.is_none()));
    }
    let experts: u64 = weights(rows)
        .iter()
        .filter(|r| r.component == "expert")
        .map(|r| r.bytes)
        .sum();
    let group = found.hot.by_component.iter().find(|g| g.name == "expert");
    assert_eq!(group.map_or(0, |g| g.bytes), experts);
}

fn check_sequential(found: &Facts, rows: &[Row]) {
    let mut previous: Option<(usize, u64)> = None;
    let mut runs: Vec<(u64, u64)> = Vec::new();
    let (mut sequential, mut sequential_bytes) = (0, 0);
    for row in weights(rows) {
        let begin = row.file_offset.unwrap();
        let follows = previous
            .is_some_and(|(stream, end)| stream == row.stream && (end..=end + 64).contains(&begin));
        if follows {
            sequential += 1;
            sequential_bytes += row.bytes;
            let run = runs.last_mut().unwrap();
            *run = (run.0 + 1, run.1 + row.bytes);
        } else {
            runs.push((1, row.bytes));
        }
        previous = Some((
            row.stream,
            begin + row.region.end().unwrap() - row.region.offset,
        ));
    }
    let of = &found.sequential;
    assert_eq!(
        (of.total.sequential_accesses, of.total.sequential_bytes),
        (sequential, sequential_bytes)
    );
    assert_eq!(of.total.accesses, weights(rows).len() as u64);
    assert_eq!(of.runs, runs.len() as u64);
    assert_eq!(
        of.longest_run_bytes,
        runs.iter().map(|r| r.1).max().unwrap_or(0)
    );
    for bin in &of.histogram {
        let inside = runs
            .iter()
            .filter(|r| (bin.from_bytes..bin.from_bytes * 2).contains(&r.1));
        assert_eq!(bin.runs, inside.count() as u64);
    }
    assert_eq!(of.histogram.iter().map(|b| b.runs).sum::<u64>(), of.runs);
}

fn check_determinism(found: &Facts, rows: &[Row]) {
    let dense: Vec<&Row> = weights(rows)
        .into_iter()
        .filter(|row| row.expert.is_none())
        .collect();
    let found = &found.determinism;
    assert_eq!(
        score(&dense, rows, |_| true),
        [
            found.dense.predictions,
            found.dense.hits,
            found.dense.bytes,
            found.dense.hit_bytes
        ]
    );
    let experts = score(&weights(rows), rows, |row| row.expert.is_some());
    assert_eq!(
        experts,
        [
            found.experts.predictions,
            found.experts.hits,
            found.experts.bytes,
            found.experts.hit_bytes
        ]
    );
}

/// Predictions, hits and their bytes over a sequence, of the rows that count.
fn score(sequence: &[&Row], all: &[Row], counts: impl Fn(&Row) -> bool) -> [u64; 4] {
    let mut tables: HashMap<(usize, u32), HashMap<Option<Unit>, Unit>> = HashMap::new();
    // The first evaluation of a template that got as far as any weight.
    let mut first: HashMap<(usize, u32), usize> = HashMap::new();
    for row in weights(all) {
        first.entry((row.stream, row.template)).or_insert(row.eval);
    }
    let mut score = [0u64; 4];
    let (mut context, mut at) = (None, None);
    for row in sequence {
        if at != Some((row.stream, row.eval)) {
            context = None;
            at = Some((row.stream, row.eval));
        }
        let table = tables.entry((row.stream, row.template)).or_default();
        if first[&(row.stream, row.template)] != row.eval && counts(row) {
            let is_hit = u64::from(table.get(&context) == Some(&unit(row)));
            let more = [1, is_hit, row.bytes, is_hit * row.bytes];
            score.iter_mut().zip(more).for_each(|(sum, n)| *sum += n);
        }
        table.insert(context, unit(row));
        context = Some(unit(row));
    }
    score
}

fn check_working_set(found: &Facts, rows: &[Row], run: &Run) {
    let evals: Vec<(usize, usize)> = run
        .streams
        .iter()
        .enumerate()
        .flat_map(|(stream, s)| (0..s.evaluations.len()).map(move |eval| (stream, eval)))
        .collect();
    let distinct = |evals: &[(usize, usize)]| {
        let mut bytes: BTreeSet<(&str, u64)> = BTreeSet::new();
        for row in weights(rows) {
            if evals.contains(&(row.stream, row.eval)) {
                row.region.for_each_run(|offset, run| {
                    bytes.extend((offset..offset + run).map(|byte| (row.name.as_str(), byte)));
                });
            }
        }
        bytes.len() as u64
    };
    assert_eq!(found.working_set.distinct_bytes, distinct(&evals));
    for (at, point) in found.working_set.cumulative.points.iter().enumerate() {
        assert_eq!(point.distinct_bytes, distinct(&evals[..=at]));
    }
    for window in &found.working_set.windows {
        let expected: Vec<u64> = evals
            .chunks(window.evaluations as usize)
            .map(&distinct)
            .collect();
        let points: Vec<u64> = window
            .timeline
            .points
            .iter()
            .map(|p| p.distinct_bytes)
            .collect();
        assert_eq!(points, expected);
        let complete = &expected[..evals.len() / window.evaluations as usize];
        assert_eq!(window.complete, complete.len() as u64);
        assert_eq!(
            window.max_bytes,
            complete.iter().copied().max().unwrap_or(0)
        );
        assert_eq!(
            window.min_bytes,
            complete.iter().copied().min().unwrap_or(0)
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn facts_are_those_of_every_access_written_out(seed in any::<u64>()) {
        let run = random_run(seed);
        let rows = expand(&run);
        let model = Model {
            tensors: vec![ModelTensor { name: "never.weight".to_owned(), size_bytes: 10, ..ModelTensor::default() }],
            ..Model::default()
        };
        let found = facts(&run, &model, quick());
        check_traffic(&found, &rows, &run);
        check_kv_growth(&found, &rows, &run);
        check_hot(&found, &rows);
        check_sequential(&found, &rows);
        check_determinism(&found, &rows);
        check_working_set(&found, &rows, &run);
    }

    #[test]
    fn facts_survive_json(seed in any::<u64>()) {
        let found = facts(&random_run(seed), &Model::default(), quick());
        let text = serde_json::to_string(&found).unwrap();
        let back: Facts = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(back.hot.units, found.hot.units);
        prop_assert_eq!(back.traffic.rows, found.traffic.rows);
        prop_assert_eq!(back.working_set.cumulative, found.working_set.cumulative);
        prop_assert_eq!(back.experts.layers.len(), found.experts.layers.len());
    }
}
