//! Runs that grow: an index that was opened early and kept up to date answers as
//! one that is opened now.

mod common;

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
    sync::Arc,
};

use common::{Kind, Random, case::filter, fixture};
use index::*;
use proptest::prelude::*;
use serde_json::{Value, to_value};
use trace::{
    append::{Appender, Log},
    format::RecordKind,
    segment::segment_path,
    status::{State, StatusPage},
    template::{Definition, Template},
};

fn open(run: &Path) -> RunIndex {
    RunIndex::open(&rundir::Run::open(run).unwrap(), &mut |_| ()).unwrap()
}

/// A stream that is being written.
struct Stream {
    kind: Kind,
    log: Log,
    appender: Appender,
    /// Those that are not in the log yet.
    definitions: Vec<Definition>,
    templates: Vec<Template>,
    number: u64,
    nanos: u64,
    /// The rest of a record that was begun.
    rest: Vec<u64>,
}

impl Stream {
    fn create(log: &Path, number: u32, status: &Arc<StatusPage>, random: &mut Random) -> Stream {
        let (log, appender) =
            Log::create_sized(log, number, status.clone(), Box::new(|_| ()), 4096).unwrap();
        let kind = Kind {
            streams: 1,
            evals: 0,
            layers: 1 + random.below(3) as u32,
            experts: [0, 2, 4][random.below(3) as usize],
            odd_one_in: [0, 4][random.below(2) as usize],
            has_odd_access: random.one_in(3),
        };
        let batches = [1, 1 + random.below(4), 2];
        let (mut definitions, mut templates) = common::graphs(kind, &batches);
        // The last one has an op of its own.
        let texts = definitions
            .iter()
            .filter(|d| matches!(d, Definition::Text(_)));
        let op = random.below(texts.count() as u64) as u32;
        templates[2].steps[0].op = op;
        if let Some(Definition::Template(last)) = definitions.last_mut() {
            last.steps[0].op = op;
        }
        Stream {
            kind,
            log,
            appender,
            definitions,
            templates,
            number: 0,
            // All begin together.
            nanos: 1_000_000,
            rest: Vec::new(),
        }
    }

    /// Defines up to the next template.
    fn define(&mut self) {
        let is_template = |d: &Definition| matches!(d, Definition::Template(_));
        let next = self.definitions.iter().position(is_template);
        let record: Vec<Definition> = self
            .definitions
            .drain(..next.map_or(0, |n| n + 1))
            .collect();
        assert!(fixture::define(&mut self.appender, &record));
    }

    fn defined(&self) -> usize {
        self.templates.len() - self.definitions.len().min(self.templates.len())
    }

    fn evaluation(&mut self, random: &mut Random) -> Vec<u64> {
        let which = random.below(self.defined() as u64) as usize;
        self.number += 1 + u64::from(random.one_in(9));
        let template = &self.templates[which];
        let (number, nanos, kind) = (self.number, &mut self.nanos, self.kind);
        let evaluation = common::evaluation(template, which as u32, number, nanos, kind, random);
        fixture::body(template, &evaluation)
    }

    /// One thing that a recorder does; whether that completed an evaluation.
    fn grow(&mut self, random: &mut Random) -> bool {
        if !self.rest.is_empty() {
            let some = 1 + random.below(self.rest.len() as u64) as usize;
            self.rest.drain(..some).for_each(|w| self.appender.put(w));
            if self.rest.is_empty() {
                self.appender.commit();
            }
            return self.rest.is_empty();
        }
        match random.below(12) {
            _ if self.defined() == 0 => self.define(),
            0 if !self.definitions.is_empty() => self.define(),
            1 => {
                let token = Definition::Token {
                    id: random.below(50) as u32,
                    text: random.next_u64().to_le_bytes()[..1].to_vec(),
                };
                assert!(fixture::define(&mut self.appender, &[token]));
            }
            2 => {
                let body = self.evaluation(random);
                let kind = RecordKind::Evaluation;
                assert!(fixture::begin(&mut self.appender, kind, body.len()));
                self.rest = body;
            }
            3 => {
                // Intact, and impossible.
                let kind = RecordKind::Evaluation;
                return fixture::append(&mut self.appender, kind, &[random.next_u64(); 3]);
            }
            _ => {
                let body = self.evaluation(random);
                return fixture::append(&mut self.appender, RecordKind::Evaluation, &body);
            }
        }
        false
    }

    fn finish(mut self) -> u64 {
        let rest = std::mem::take(&mut self.rest);
        let completes = u64::from(!rest.is_empty());
        if completes > 0 {
            rest.into_iter().for_each(|w| self.appender.put(w));
            self.appender.commit();
        }
        self.log.finish(self.appender).unwrap();
        completes
    }
}

/// Where two answers differ first. Sums of floats depend on the order of adding a
/// little.
fn difference(a: &Value, b: &Value) -> Option<String> {
    let inside = |at: &dyn std::fmt::Display, a, b| {
        difference(a, b).map(|difference| format!("/{at}{difference}"))
    };
    let is_same = match (a, b) {
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            let mut both = a.iter().zip(b).enumerate();
            return both.find_map(|(at, (a, b))| inside(&at, a, b));
        }
        (Value::Object(a), Value::Object(b)) if a.keys().eq(b.keys()) => {
            let mut both = a.iter().zip(b.values());
            return both.find_map(|((key, a), b)| inside(key, a, b));
        }
        (Value::Number(a), Value::Number(b)) if a.is_f64() || b.is_f64() => {
            let (a, b) = (a.as_f64().unwrap(), b.as_f64().unwrap());
            (a - b).abs() <= 1e-4 * a.abs().max(b.abs()) + 1e-6
        }
        _ => a == b,
    };
    (!is_same).then(|| format!(": {a} is not {b}"))
}

fn answers(index: &RunIndex, seed: u64) -> Vec<(String, Value)> {
    let mut random = Random(seed);
    let mut all = Vec::new();
    let mut add = |what: &str, value: serde_json::Result<Value>| {
        all.push((what.to_owned(), value.unwrap()));
    };
    let info = index.info();
    let (tokens, duration) = (info.totals.tokens, info.totals.duration_nanos);
    let bytes = info.model.size_bytes;
    add("info", to_value(Info { version: 0, ..info }));
    add("tokens", to_value(index.tokens(TokenWindow::default())));
    let query = EvalsQuery {
        from: None,
        to: None,
        max: 10_000,
    };
    let evals = index.evals(&query);
    for eval in evals.iter().filter(|_| random.one_in(5)) {
        add("eval", to_value(index.eval(eval.eval)));
    }
    add("evals", to_value(evals));
    for _ in 0..4 {
        add("locate", to_value(index.locate(random.below(bytes + 1))));
    }
    for round in 0..4 {
        let filter = match round {
            0 => Filter::default(),
            _ => filter(&mut random, tokens),
        };
        let window = |random: &mut Random, whole: u64| {
            let begin = random.below(whole);
            (Some(begin), Some(begin + 1 + random.below(whole)))
        };
        add("summary", to_value(index.summary(&filter)));
        add("flame", to_value(index.flame(FlameBy::Bytes, &filter)));
        add("flame", to_value(index.flame(FlameBy::Nanos, &filter)));
        add("experts", to_value(index.experts(&filter)));
        let mut raster = |what: &str, header: serde_json::Result<Value>, values: Vec<f32>| {
            add(what, header);
            add(what, to_value(values));
        };
        for rows in [RowKind::Layer, RowKind::Tensor, RowKind::Expert] {
            for metric in [
                HeatmapMetric::Bytes,
                HeatmapMetric::Accesses,
                HeatmapMetric::Nanos,
                HeatmapMetric::Weight,
            ] {
                let query = HeatmapQuery {
                    rows,
                    metric,
                    window: TokenWindow::default(),
                    columns: 9,
                };
                if let Ok(found) = index.heatmap(&query, &filter) {
                    raster("heatmap", to_value(found.header), found.values);
                }
            }
        }
        let (t0, t1) = window(&mut random, duration);
        let (o0, o1) = window(&mut random, bytes);
        let (w, h) = (7, 5);
        let query = OffsetsQuery {
            t0,
            t1,
            o0,
            o1,
            w,
            h,
            even: 0,
        };
        let found = index.offsets(&query, &filter);
        raster("offsets", to_value(found.header), found.values);
        let found = index.nodes(&NodesQuery { t0, t1, w, even: 0 }, &filter);
        raster("nodes", to_value(found.header), found.values);
        for metric in [MapMetric::Accesses, MapMetric::Bytes, MapMetric::Recency] {
            let (cells, at) = (33, t1.filter(|_| round % 2 == 1));
            let found = index.map(&MapQuery { cells, metric, at }, &filter);
            raster("map", to_value(found.header), found.values);
        }
    }
    all
}

fn check(index: &RunIndex, run: &Path, seed: u64) {
    let (found, expected) = (answers(index, seed), answers(&open(run), seed));
    assert_eq!(found.len(), expected.len());
    for ((what, found), (_, expected)) in found.iter().zip(&expected) {
        if let Some(difference) = difference(found, expected) {
            panic!("{what}{difference}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(96) })]

    #[test]
    fn an_index_kept_up_to_date_answers_as_one_opened_now(seed in any::<u64>(), most_streams in 1..4u32) {
        let mut random = Random(seed);
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        fs::create_dir_all(&log).unwrap();
        let status = Arc::new(StatusPage::create(&log.join("status")).unwrap());
        let mut streams = vec![Some(Stream::create(&log, 0, &status, &mut random))];
        let mut index = None;
        let mut has_new = true;
        for _ in 0..150 {
            let number = streams.len() as u32;
            match random.below(14) {
                0 if number < most_streams => {
                    streams.push(Some(Stream::create(&log, number, &status, &mut random)));
                }
                1 => {
                    let before = index.as_ref().map_or(0, |i: &RunIndex| i.info().totals.evals);
                    let index = index.get_or_insert_with(|| open(folder.path()));
                    let changed = index.refresh().unwrap();
                    prop_assert!(changed.live && before + changed.new_evals <= index.info().totals.evals);
                    // Definitions alone are not looked for.
                    if has_new {
                        check(index, folder.path(), seed);
                    }
                    has_new = false;
                }
                _ => {
                    let at = random.below(streams.len() as u64) as usize;
                    let ends = random.one_in(60);
                    if let Some(stream) = streams[at].take_if(|_| ends) {
                        let completed = stream.finish();
                        (0..completed).for_each(|_| status.count_committed());
                        has_new |= completed > 0;
                    } else if let Some(stream) = &mut streams[at]
                        && stream.grow(&mut random)
                    {
                        status.count_committed();
                        has_new = true;
                    }
                }
            }
        }
        let mut index = index.unwrap_or_else(|| open(folder.path()));
        let is_killed = random.one_in(2);
        for stream in streams.into_iter().flatten() {
            match is_killed {
                true => drop((stream.log, stream.appender)),
                false => (0..stream.finish()).for_each(|_| status.count_committed()),
            }
        }
        if !is_killed {
            status.set_state(State::Complete);
        }
        drop(status);
        let changed = index.refresh().unwrap();
        prop_assert!(!changed.live);
        check(&index, folder.path(), seed);
        let again = index.refresh().unwrap();
        prop_assert_eq!((again.new_evals, again.version), (0, changed.version));
    }
}

#[test]
fn what_was_read_is_not_looked_at_again() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    fs::create_dir_all(&log).unwrap();
    let status = Arc::new(StatusPage::create(&log.join("status")).unwrap());
    let mut random = Random(4);
    let mut stream = Stream::create(&log, 0, &status, &mut random);
    stream.define();
    let mut add = |count: usize| {
        for _ in 0..count {
            let body = stream.evaluation(&mut random);
            let kind = RecordKind::Evaluation;
            assert!(fixture::append(&mut stream.appender, kind, &body));
            status.count_committed();
        }
    };
    add(200);
    let mut index = open(folder.path());
    // Damage that whoever reads it again must stumble over.
    let first = OpenOptions::new()
        .write(true)
        .open(segment_path(&log, 0, 0));
    first.unwrap().write_all_at(&[0xff; 4096], 0).unwrap();
    add(3);
    assert_eq!(index.refresh().unwrap().new_evals, 3);
    add(200);
    assert_eq!(index.refresh().unwrap().new_evals, 200);
    let info = index.info();
    assert_eq!((info.totals.evals, info.missing.len()), (403, 1));
}
