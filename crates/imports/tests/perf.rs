//! Files that perf has written, and what is said of damaged ones.

use std::fs;
use std::path::{Path, PathBuf};

use imports::{Clock, Error, Format, Import};
use proptest::prelude::*;
use rules::{Subject, Unit, Value};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/files")
        .join(name)
}

fn read(name: &str) -> Import {
    imports::read(&file(name), None).unwrap_or_else(|error| panic!("{error}"))
}

fn number(subject: &Subject, name: &str) -> Option<f64> {
    match subject.metrics.get(name)?.value {
        Value::Number(number) => Some(number),
        _ => None,
    }
}

fn near(import: &Import, name: &str, expect: f64) {
    let found = number(&import.subjects[0], name).unwrap_or_else(|| panic!("{name} is absent"));
    assert!(
        (found - expect).abs() <= expect.abs() * 1e-3,
        "{name}: {found}, not {expect}"
    );
}

fn parse(format: Format, text: &str) -> Result<Import, Error> {
    imports::parse("p.txt", text.as_bytes(), format)
}

#[test]
fn every_file_is_known_by_its_content() {
    for (name, format) in [
        ("perf-stat.txt", Format::PerfStat),
        ("perf-stat-csv.txt", Format::PerfStat),
        ("perf-stat-json.txt", Format::PerfStat),
        ("perf-stat-interval.txt", Format::PerfStat),
        ("perf-stat-interval-csv.txt", Format::PerfStat),
        ("perf-stat-hardware.txt", Format::PerfStat),
        ("perf-sched-latency.txt", Format::PerfSched),
        ("perf-sched-timehist.txt", Format::PerfSched),
        ("perf-sched-timehist-state.txt", Format::PerfSched),
        ("perf-c2c.txt", Format::PerfC2c),
        ("perf-mem.txt", Format::PerfMem),
        ("perf-mem-sorted.txt", Format::PerfMem),
        ("perf-script.txt", Format::PerfScript),
        ("perf-script-switch.txt", Format::PerfScript),
        ("perf-script-tracepoint.txt", Format::PerfScript),
        ("perf-mono.data", Format::PerfData),
        ("ncu-raw.csv", Format::NcuCsv),
        ("ncu-subset.csv", Format::NcuCsv),
        ("ncu-details.csv", Format::NcuCsv),
        ("nsys.sqlite", Format::NsysSqlite),
        ("strace-c.txt", Format::Strace),
        ("strace-r.txt", Format::Strace),
    ] {
        assert_eq!(imports::detect(&file(name)).unwrap(), format, "{name}");
    }
    // A table of numbers in prose is none of these, nor is a list of a program's own.
    for text in [
        "| 1 | 2 | three | 4 | 5 |\n",
        "1, 2, three and more, 4, 5\n",
        "read(3) is a call\n",
    ] {
        assert!(
            imports::detect_bytes("x", text.as_bytes()).is_err(),
            "{text}"
        );
    }
    let error = imports::detect(&file("README.md")).unwrap_err().to_string();
    assert!(error.contains("of no format that is known here"), "{error}");
    assert!(imports::detect(&file("absent")).is_err());
}

#[test]
fn counters_of_text_csv_and_json_say_the_same() {
    for name in ["perf-stat.txt", "perf-stat-csv.txt", "perf-stat-json.txt"] {
        let import = read(name);
        let subject = &import.subjects[0];
        assert_eq!(subject.kind, "counters", "{name}");
        assert!(number(subject, "cpus_utilized").unwrap() > 0.0, "{name}");
        assert!(
            number(subject, "page_faults_per_second").unwrap() > 100.0,
            "{name}"
        );
        // The machine had none.
        for absent in ["ipc", "branch.miss_share", "frequency_hertz"] {
            assert_eq!(number(subject, absent), None, "{name}: {absent}");
        }
        assert!(import.notes[0].contains("cycles, instructions"), "{name}");
    }
}

#[test]
fn intervals_are_added_up() {
    for name in ["perf-stat-interval.txt", "perf-stat-interval-csv.txt"] {
        let import = read(name);
        // A program that slept for 200 ms and worked for less than one.
        let utilized = number(&import.subjects[0], "cpus_utilized").unwrap();
        assert!((0.003..0.005).contains(&utilized), "{name}: {utilized}");
    }
}

#[test]
fn hardware_counters_become_shares() {
    let import = read("perf-stat-hardware.txt");
    assert_eq!(import.subjects[0].name, "./llama-bench -m model.gguf");
    for (name, expect) in [
        ("ipc", 0.5),
        ("llc.miss_share", 0.8),
        ("l1d.miss_share", 0.1),
        ("dtlb.miss_share", 0.02),
        ("branch.miss_share", 0.01),
        ("stalled_backend", 0.6),
        ("cpus_utilized", 3.988),
        ("frequency_hertz", 3e9),
        ("context_switches_per_second", 4012.0 / 4.012841),
    ] {
        near(&import, name, expect);
    }
    assert_eq!(number(&import.subjects[0], "stalled_frontend"), None);
    assert!(import.notes.iter().any(|note| note.contains("scaled")));
    let kinds = read("perf-stat-topdown.txt");
    near(&kinds, "topdown.backend_bound", 0.582);
    // Both kinds of cores together.
    near(&kinds, "ipc", 12.0 / 15.019_260_224);
}

#[test]
fn more_misses_than_accesses_are_no_share() {
    let text = "5,000 LLC-load-misses\n1,000 LLC-loads\n110 branch-misses\n100 branches\n";
    let import = parse(Format::PerfStat, text).unwrap();
    assert_eq!(number(&import.subjects[0], "llc.miss_share"), None);
    assert!(import.notes[0].contains("line 1: LLC-load-misses is 5.000 times LLC-loads"));
    near(&import, "branch.miss_share", 1.0);
}

#[test]
fn waits_for_a_processor_are_known_by_command() {
    let import = read("perf-sched-latency.txt");
    let shell = import
        .subjects
        .iter()
        .find(|subject| subject.name == "sh")
        .unwrap();
    assert_eq!(number(shell, "threads"), Some(4.0));
    assert_eq!(number(shell, "wait.max_nanos"), Some(28_030_000.0));
    assert_eq!(number(shell, "wait.mean_nanos"), Some(12_678_000.0));
    assert!(number(shell, "wait.share").unwrap() > 0.7);
    assert!(number(shell, "tasks_competing").unwrap() > 4.0);
}

#[test]
fn preempted_threads_wait_also_where_their_state_is_not_printed() {
    let share = |name| {
        let import = read(name);
        let shell = import
            .subjects
            .iter()
            .find(|subject| subject.name == "sh")
            .cloned()
            .unwrap();
        assert!(
            import
                .events
                .iter()
                .any(|event| event.category == "wait" && event.name == "sh")
        );
        number(&shell, "wait.share").unwrap()
    };
    let (with, without) = (
        share("perf-sched-timehist-state.txt"),
        share("perf-sched-timehist.txt"),
    );
    assert!((with - without).abs() < 0.1, "{with} and {without}");
}

#[test]
fn lines_that_travel_between_caches_are_counted() {
    let import = read("perf-c2c.txt");
    for (name, expect) in [
        ("hitm.total", 39.0),
        ("hitm.share", 39.0 / 155.0),
        ("hitm.top_line_share", 0.4872),
        ("hitm.distinct_offsets", 4.0),
        ("mem.l1_share", 63.0 / 155.0),
        ("mem.dram_share", 28.0 / 155.0),
    ] {
        near(&import, name, expect);
    }
    assert_eq!(number(&import.subjects[0], "hitm.threads_on_line"), None);
    near(&read("perf-c2c-tid.txt"), "hitm.threads_on_line", 4.0);
}

#[test]
fn samples_of_memory_are_known_by_where_they_were_served() {
    let import = read("perf-mem-sorted.txt");
    for (name, expect) in [
        ("mem.l1_share", 76.0 / 168.0),
        ("mem.dram_share", 18.0 / 168.0),
        ("mem.remote_share", 14.0 / 168.0),
        ("mem.tlb_miss_share", 28.0 / 155.0),
        ("mem.mean_latency_cycles", 17262.0 / 168.0),
        ("hitm.total", 39.0),
    ] {
        near(&import, name, expect);
    }
    assert!(number(&read("perf-mem.txt").subjects[0], "mem.mean_latency_cycles").unwrap() > 200.0);
}

#[test]
fn samples_of_a_script_are_events_with_their_innermost_function() {
    let import = read("perf-script.txt");
    let event = &import.events[2];
    assert_eq!((event.tid, event.begin_nanos), (19346, 880_484_570_000));
    assert_eq!(
        (event.category.as_str(), event.name.as_str()),
        ("cpu-clock", "copy_mc_enhanced_fast_string")
    );
    let switches = read("perf-script-switch.txt");
    assert!(
        switches
            .events
            .iter()
            .any(|event| event.category == "SWITCH")
    );
    assert!(
        switches
            .events
            .iter()
            .any(|event| event.name == "handle_amd")
    );
    let points = read("perf-script-tracepoint.txt");
    assert!(
        points
            .events
            .iter()
            .all(|event| event.category.starts_with("sched:"))
    );
    let unknown = "a b 1/2 [003] 5.5: 1 cycles:u:  7f00 [unknown] (/usr/lib/libx.so)\n";
    let import = parse(Format::PerfScript, unknown).unwrap();
    assert_eq!(import.events[0].name, "[libx.so]");
    assert_eq!((import.events[0].pid, import.events[0].tid), (1, 2));
}

#[test]
fn a_perf_data_says_which_clock_it_has() {
    let import = read("perf-mono.data");
    assert_eq!(import.clock, Clock::Monotonic);
    assert_eq!(number(&import.subjects[0], "samples.total"), Some(148.0));
    // The same samples as text.
    let text = read("perf-script.txt");
    for (one, other) in import.events.iter().zip(&text.events) {
        assert_eq!(one.begin_nanos / 1000, other.begin_nanos / 1000);
        assert_eq!(one.tid, other.tid);
    }
    assert_eq!(import.events[0].name, "[ld-linux-x86-64.so.2]");
    assert_eq!(import.events[2].name, "[kernel]");
    let switches = read("perf-switches.data");
    let aside = switches
        .events
        .iter()
        .filter(|event| event.category == "not_running");
    assert!(aside.clone().count() > 10);
    assert!(
        aside
            .clone()
            .any(|event| event.name == "preempted" && event.duration_nanos > 1_000_000)
    );
}

#[test]
fn damaged_texts_are_refused_with_their_line() {
    let latency = fs::read_to_string(file("perf-sched-latency.txt")).unwrap();
    let cut = &latency[..latency.len() / 2];
    let c2c = fs::read_to_string(file("perf-c2c.txt")).unwrap();
    let (in_a_line, in_a_section) = (&c2c[..1000], &c2c[..c2c.find("Shared Data").unwrap()]);
    let header = "# Overhead       Samples  Memory access\n";
    for (format, text, expect) in [
        (
            Format::PerfStat,
            "hello\n",
            "p.txt:1: no counter of perf stat: `hello`; there is none in this file",
        ),
        (
            Format::PerfStat,
            "  -5 cycles\n",
            "p.txt:1: no counter of perf stat: a count below zero: `  -5 cycles`",
        ),
        (
            Format::PerfStat,
            "{\"counter-value\" : \"1",
            "p.txt:1: no counter of perf stat: no JSON",
        ),
        (
            Format::PerfSched,
            "hello\n",
            "p.txt: no table of `perf sched latency` or `perf sched timehist`",
        ),
        (
            Format::PerfSched,
            cut,
            "p.txt:3: a table of perf sched latency that is cut: its total is missing",
        ),
        (
            Format::PerfC2c,
            in_a_line,
            "p.txt:21: no event of perf c2c: ",
        ),
        (
            Format::PerfC2c,
            in_a_section,
            "p.txt: cut: the table of shared lines is missing",
        ),
        (Format::PerfC2c, "hello\n", "p.txt: no table of perf c2c"),
        (Format::PerfMem, "hello\n", "p.txt: no table of perf mem"),
        (
            Format::PerfMem,
            header,
            "p.txt:1: a header and no samples; the file is cut, or nothing was sampled",
        ),
        (
            Format::PerfScript,
            "hello\n",
            "p.txt:1: no sample of perf script: `hello`; there is none in this file",
        ),
    ] {
        let error = parse(format, text).unwrap_err().to_string();
        assert!(error.starts_with(expect), "{error}\nand not {expect}");
    }
}

#[test]
fn damaged_perf_data_is_refused_with_its_offset() {
    let whole = fs::read(file("perf-mono.data")).unwrap();
    let refused = |bytes: &[u8]| {
        imports::parse("p", bytes, Format::PerfData)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        refused(&whole[..50]),
        "p: offset 8: cut: the header should be 104 bytes from 0, but the file has 50"
    );
    let cut = refused(&whole[..whole.len() / 2]);
    assert!(
        cut.starts_with("p: offset 40: cut: the records should be"),
        "{cut}"
    );
    let mut killed = whole.clone();
    killed[48..56].fill(0);
    assert!(refused(&killed).contains("perf was killed"));
    let mut pipe = whole.clone();
    pipe[8] = 16;
    assert!(refused(&pipe).contains("written to a pipe"));
    let mut endless = whole.clone();
    endless[24..40].fill(0xff);
    assert!(refused(&endless).starts_with("p: offset 24: cut: the attributes"));
    // The first record claims no bytes: a reader that trusts it never ends.
    let data = u64::from_le_bytes(whole[40..48].try_into().unwrap()) as usize;
    let mut stuck = whole;
    stuck[data + 6..data + 8].fill(0);
    assert!(refused(&stuck).contains("a record of 0 bytes"));
}

const FILES: [(&str, Format); 9] = [
    ("perf-stat-hardware.txt", Format::PerfStat),
    ("perf-stat-interval-csv.txt", Format::PerfStat),
    ("perf-stat-json.txt", Format::PerfStat),
    ("perf-sched-latency.txt", Format::PerfSched),
    ("perf-sched-timehist-state.txt", Format::PerfSched),
    ("perf-c2c-tid.txt", Format::PerfC2c),
    ("perf-mem-sorted.txt", Format::PerfMem),
    ("perf-script-switch.txt", Format::PerfScript),
    ("perf-switches.data", Format::PerfData),
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn no_damage_makes_them_panic(
        which in 0usize..FILES.len(),
        places in proptest::collection::vec((0usize..100_000, any::<u8>()), 0..6),
        cut in 0usize..100_000,
    ) {
        let (name, format) = FILES[which];
        let mut bytes = fs::read(file(name)).unwrap();
        for (place, byte) in places {
            let place = place % bytes.len();
            bytes[place] = byte;
        }
        if cut % 3 == 0 {
            bytes.truncate(cut % bytes.len());
        }
        let _ = imports::detect_bytes(name, &bytes);
        if let Ok(import) = imports::parse(name, &bytes, format) {
            for metric in import.subjects.iter().flat_map(|subject| subject.metrics.0.values()) {
                let Value::Number(number) = metric.value else { continue };
                prop_assert!(number.is_finite());
                prop_assert!(metric.unit != Unit::Share || (0.0..=1.0 + 1e-9).contains(&number));
            }
        }
    }
}
