//! 10^8 accesses, dense and mixture of experts: how long opening takes, how much
//! memory it holds, and how long each query takes over random pans, zooms and
//! filters, with the bars beside them.
//!
//! `cargo run --release -p index --example index_scale -- [ACCESSES] [FOLDER]`
//! keeps the runs in FOLDER and uses them again; without it they are temporary.

use std::{
    hint::black_box,
    path::{Path, PathBuf},
    time::Instant,
};

use index::*;
use trace::format::Phase;

const OPEN_SECONDS: f64 = 5.0;
const RESIDENT_MIB: u64 = 1536;
const P95_MILLIS: f64 = 100.0;
const WISHED_MILLIS: f64 = 30.0;
const ROUNDS: usize = 60;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let accesses: u64 = arguments
        .next()
        .map_or(100_000_000, |n| n.parse().expect("a number of accesses"));
    let kept = arguments.next().map(PathBuf::from);
    let temporary = tempfile::tempdir().expect("a folder for the runs");
    let folder = kept.as_deref().unwrap_or(temporary.path());
    for (name, experts) in [("dense", None), ("moe", Some((64, 8)))] {
        let run = folder.join(format!("{name}-{accesses}"));
        if !run.exists() {
            let shape = testing::transformer::Shape {
                layers: 32,
                experts,
            };
            let written = testing::transformer::write_run(&run, shape, accesses);
            println!("{name}: {written} accesses written");
        }
        measure(name, &run);
    }
}

fn measure(name: &str, path: &Path) {
    let before = resident_mib();
    let run = rundir::Run::open(path).expect("a run");
    let started = Instant::now();
    let index = RunIndex::open(&run, &mut |_| ()).expect("an index");
    let seconds = started.elapsed().as_secs_f64();
    let info = index.info();
    let resident = resident_mib() - before;
    println!(
        "\n{name}: {} accesses, {} nodes, {} evaluations, log of {} MiB",
        info.totals.accesses,
        info.totals.nodes,
        info.totals.evals,
        run.log_bytes() >> 20
    );
    println!("  opened in {seconds:.2} s (bar {OPEN_SECONDS} s)");
    println!("  holds {resident} MiB (bar {RESIDENT_MIB} MiB)");
    println!(
        "  query                     median     p95    wall  (ms; bar {P95_MILLIS} ms, wished {WISHED_MILLIS} ms)"
    );
    let mut random = Random(7);
    let queries: [(&str, Query); 16] = [
        ("info", &|i, _, _| drop(black_box(i.info()))),
        ("summary", &|i, _, f| drop(black_box(i.summary(f)))),
        ("flame bytes", &|i, _, f| {
            drop(black_box(i.flame(FlameBy::Bytes, f)))
        }),
        ("flame nanos", &|i, _, f| {
            drop(black_box(i.flame(FlameBy::Nanos, f)))
        }),
        ("experts", &|i, _, f| drop(black_box(i.experts(f)))),
        ("heatmap layer bytes", &|i, r, f| {
            heatmap(i, r, f, RowKind::Layer, HeatmapMetric::Bytes)
        }),
        ("heatmap layer nanos", &|i, r, f| {
            heatmap(i, r, f, RowKind::Layer, HeatmapMetric::Nanos)
        }),
        ("heatmap tensor bytes", &|i, r, f| {
            heatmap(i, r, f, RowKind::Tensor, HeatmapMetric::Bytes)
        }),
        ("heatmap tensor nanos", &|i, r, f| {
            heatmap(i, r, f, RowKind::Tensor, HeatmapMetric::Nanos)
        }),
        ("heatmap expert accesses", &|i, r, f| {
            heatmap(i, r, f, RowKind::Expert, HeatmapMetric::Accesses)
        }),
        ("heatmap expert weight", &|i, r, f| {
            heatmap(i, r, f, RowKind::Expert, HeatmapMetric::Weight)
        }),
        ("offsets", &|i, r, f| {
            let (t0, t1) = r.window(i.info_duration());
            let (o0, o1) = r.window(i.info_bytes());
            let query = OffsetsQuery {
                t0: Some(t0),
                t1: Some(t1),
                o0: Some(o0),
                o1: Some(o1),
                w: 1200,
                h: 600,
                even: 12,
            };
            drop(black_box(i.offsets(&query, f)));
        }),
        ("nodes", &|i, r, f| {
            let (t0, t1) = r.window(i.info_duration());
            let query = NodesQuery {
                t0: Some(t0),
                t1: Some(t1),
                w: 1200,
                even: 12,
            };
            drop(black_box(i.nodes(&query, f)));
        }),
        ("map accesses", &|i, r, f| map(i, r, f, MapMetric::Accesses)),
        ("map recency", &|i, r, f| map(i, r, f, MapMetric::Recency)),
        ("eval, locate, tokens", &|i, r, _| {
            drop(black_box(i.eval(r.below(1000))));
            drop(black_box(i.locate(r.below(i.info_bytes()))));
            drop(black_box(i.tokens(TokenWindow::default())));
        }),
    ];
    let sizes = Sized {
        index: &index,
        tokens: info.totals.tokens,
        duration: info.totals.duration_nanos,
        bytes: info.model.size_bytes,
    };
    for (name, query) in queries {
        let mut wall = Vec::new();
        let mut millis: Vec<f64> = (0..ROUNDS)
            .map(|round| {
                let filter = random.filter(round, sizes.tokens);
                let started = (Instant::now(), on_core_millis());
                query(&sizes, &mut random, &filter);
                // Other programs may want the core too; what a query takes of it is
                // what it would take of one of its own.
                let on_core = on_core_millis() - started.1;
                wall.push(started.0.elapsed().as_secs_f64() * 1e3);
                on_core
            })
            .collect();
        millis.sort_by(f64::total_cmp);
        wall.sort_by(f64::total_cmp);
        let (median, p95) = (millis[ROUNDS / 2], millis[ROUNDS * 95 / 100]);
        let wall = wall[ROUNDS * 95 / 100];
        let verdict = if p95 > P95_MILLIS {
            "OVER THE BAR"
        } else if p95 > WISHED_MILLIS {
            "more than wished"
        } else {
            ""
        };
        println!("  {name:24} {median:7.2} {p95:7.2} {wall:7.2}  {verdict}");
    }
}

type Query<'q> = &'q dyn Fn(&Sized, &mut Random, &Filter);

/// An index, and how large what it shows is.
struct Sized<'i> {
    index: &'i RunIndex,
    tokens: u64,
    duration: u64,
    bytes: u64,
}

impl Sized<'_> {
    fn info_duration(&self) -> u64 {
        self.duration
    }

    fn info_bytes(&self) -> u64 {
        self.bytes
    }
}

impl std::ops::Deref for Sized<'_> {
    type Target = RunIndex;

    fn deref(&self) -> &RunIndex {
        self.index
    }
}

fn heatmap(
    index: &Sized,
    random: &mut Random,
    filter: &Filter,
    rows: RowKind,
    metric: HeatmapMetric,
) {
    let (from, end) = random.window(index.tokens);
    let query = HeatmapQuery {
        rows,
        metric,
        window: TokenWindow {
            from: Some(from),
            to: Some(end - 1),
        },
        columns: 1000,
    };
    drop(black_box(index.heatmap(&query, filter)));
}

fn map(index: &Sized, random: &mut Random, filter: &Filter, metric: MapMetric) {
    let query = MapQuery {
        cells: 16_384,
        metric,
        at: random.below(2).eq(&0).then(|| random.below(index.duration)),
    };
    drop(black_box(index.map(&query, filter)));
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound.max(1)
    }

    /// A place and a zoom: from all of it to a ten-thousandth, each zoom alike.
    fn window(&mut self, whole: u64) -> (u64, u64) {
        let width = (whole >> self.below(14)).max(1);
        let begin = self.below(whole - width + 1);
        (begin, begin + width)
    }

    fn filter(&mut self, round: usize, tokens: u64) -> Filter {
        let mut filter = Filter::default();
        match round % 8 {
            1 => filter.phases = Some(vec![Phase::Generate]),
            2 => {
                let (first, end) = self.window(tokens);
                filter.tokens = Some((first, end - 1));
            }
            3 => filter.layers = Some(vec![Some(3), Some(17), None]),
            4 => filter.components = Some(vec!["attention".into(), "expert".into()]),
            5 => filter.ops = Some(vec!["MUL_MAT".into(), "MUL_MAT_ID".into()]),
            6 => filter.experts = Some(vec![3, 7, 21]),
            _ => {}
        }
        filter
    }
}

/// Time that this thread was on a core.
fn on_core_millis() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = text.split(' ').next().and_then(|n| n.parse::<f64>().ok());
    nanos.unwrap_or(0.0) / 1e6
}

fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    let kib = line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) >> 10
}
