//! Files that strace has written, and what is said of damaged ones.

use std::path::PathBuf;

use imports::{Clock, Error, Format, Import};
use proptest::prelude::*;
use rules::Value;

fn file(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/files");
    folder.join(name)
}

fn number(import: &Import, name: &str) -> Option<f64> {
    match import.subjects[0].metrics.get(name)?.value {
        Value::Number(number) => Some(number),
        _ => None,
    }
}

fn parse(text: &str) -> Result<Import, Error> {
    imports::parse("trace", text.as_bytes(), Format::Strace)
}

#[test]
fn a_trace_with_times_is_calls_and_events() {
    let import = imports::read(&file("strace-ttt.txt"), None).unwrap();
    assert_eq!(import.format, Format::Strace);
    assert_eq!(import.clock, Clock::Wall);
    assert_eq!(import.subjects[0].kind, "calls");
    let text = std::fs::read_to_string(file("strace-ttt.txt")).unwrap();
    let begun = text.lines().filter(|line| {
        !line.contains(" resumed>") && !line.contains("+++") && !line.contains("---")
    });
    assert_eq!(number(&import, "calls.total"), Some(begun.count() as f64));
    assert!(number(&import, "calls.file_open.count").unwrap() > 10.0);
    let time = number(&import, "calls.time_share").unwrap();
    assert!((0.05..=1.0).contains(&time), "{time}");
    // `wait4` began on one line and returned on another.
    let wait = import
        .events
        .iter()
        .find(|event| event.name == "wait4")
        .unwrap();
    assert_eq!(wait.category, "scheduling");
    assert!(wait.duration_nanos > 100_000);
    assert!(number(&import, "calls.errors_share").unwrap() > 0.0);
    let categories: f64 = imports::calls::CATEGORIES
        .iter()
        .filter_map(|category| number(&import, &format!("calls.{}.time_share", category.name())))
        .sum();
    assert!((categories - time).abs() < 1e-9);
}

#[test]
fn a_table_of_counts_has_no_share_of_the_time() {
    let import = imports::read(&file("strace-c.txt"), None).unwrap();
    assert_eq!(import.format, Format::Strace);
    assert_eq!(
        number(&import, "calls.total"),
        Some(total(&file("strace-c.txt")))
    );
    assert_eq!(number(&import, "calls.time_share"), None);
    assert_eq!(number(&import, "calls.futex.time_share"), None);
    assert!(number(&import, "calls.scheduling.call_time_share").unwrap() > 0.5);
    assert!(import.events.is_empty());
}

/// The number of calls in the last row of a table.
fn total(path: &std::path::Path) -> f64 {
    let text = std::fs::read_to_string(path).unwrap();
    let row = text.lines().last().unwrap();
    row.split_whitespace().nth(3).unwrap().parse().unwrap()
}

#[test]
fn relative_times_and_times_of_day_give_rates_but_join_no_run() {
    for name in ["strace-r.txt", "strace-tt-terminal.txt"] {
        let import = imports::read(&file(name), None).unwrap();
        assert_eq!(import.clock, Clock::Unknown, "{name}");
        assert!(
            number(&import, "calls.per_second").unwrap() > 100.0,
            "{name}"
        );
        assert!(
            import.notes.iter().any(|note| note.contains("-ttt")),
            "{name}"
        );
    }
}

#[test]
fn a_call_in_two_lines_is_one_call_of_its_thread() {
    let import = parse(concat!(
        "10 1700000000.000000 futex(0x1, FUTEX_WAIT, 2, NULL <unfinished ...>\n",
        "11 1700000000.100000 read(3, \"a = b <1>\", 4096) = 9 <0.000100>\n",
        "11 1700000000.200000 read(3, 0x1, 4096) = -1 EAGAIN (Resource temporarily unavailable) <0.000100>\n",
        "10 1700000001.000000 <... futex resumed>) = 0 <1.000000>\n",
        "11 1700000001.000000 +++ exited with 0 +++\n",
        "10 1700000001.000000 exit_group(0) = ?\n",
    ))
    .unwrap();
    assert_eq!(number(&import, "calls.total"), Some(4.0));
    assert_eq!(number(&import, "calls.mean_read_bytes"), Some(9.0));
    assert_eq!(number(&import, "calls.eagain_share"), Some(0.25));
    assert_eq!(number(&import, "calls.errors_share"), Some(0.25));
    let futex = import
        .events
        .iter()
        .find(|event| event.name == "futex")
        .unwrap();
    assert_eq!((futex.tid, futex.duration_nanos), (10, 1_000_000_000));
    assert_eq!(futex.begin_nanos, 1_700_000_000_000_000_000);
    // One second of each thread of which one waited for all of it.
    let share = number(&import, "calls.futex.time_share").unwrap();
    assert!((share - 1.0 / 1.9).abs() < 1e-6, "{share}");
}

#[test]
fn a_call_that_never_returned_is_counted_and_said() {
    let import = parse("10 1700000000.0 futex(0x1, FUTEX_WAIT <unfinished ...>\n").unwrap();
    assert_eq!(number(&import, "calls.futex.count"), Some(1.0));
    assert!(
        import.notes[0].contains("had not returned"),
        "{:?}",
        import.notes
    );
}

#[test]
fn midnight_does_not_turn_time_back() {
    let import =
        parse("23:59:59.900000 read(0, \"\", 1) = 0\n00:00:00.100000 read(0, \"\", 1) = 0\n")
            .unwrap();
    assert_eq!(number(&import, "calls.per_second"), Some(10.0));
}

#[test]
fn what_is_not_strace_is_refused_with_its_line() {
    for (text, expect) in [
        (
            "hello\n",
            "trace:1: no line of strace: `hello`; there is no system call in this file",
        ),
        (
            "99999999999999999999.0 read(0) = 0\n",
            "trace:1: no line of strace: `99999999999999999999.0 read(0) = 0`; there is no system call in this file",
        ),
        (
            "1700000000.0 read(0) = 0 <18000000000.0>\n",
            "trace:1: a call that ends behind all times",
        ),
        (
            "read(0) = 0 <1.x>\n",
            "trace:1: `<1.x>` is no time in seconds",
        ),
        (
            "% time     seconds  usecs/call     calls    errors syscall\n------ --- --- --- --- ---\n 1.0 0.1 3 4 read\n",
            "trace:1: a table of strace -c that is cut: its total is missing",
        ),
        (
            "% time     seconds  usecs/call     calls    errors syscall\n------ --- --- --- --- ---\n 1.0 0.1 3 x read\n",
            "trace:3: no row of strace -c: no number of calls: ` 1.0 0.1 3 x read`",
        ),
        (
            "% time     seconds  usecs/call     calls    errors syscall\n1.0 0.1 3 4 read\n",
            "trace:2: no row of strace -c: the rule under the header is missing: `1.0 0.1 3 4 read`",
        ),
    ] {
        assert_eq!(parse(text).unwrap_err().to_string(), expect);
    }
}

proptest! {
    #[test]
    fn no_damage_makes_it_panic(place in 0usize..100_000, byte: u8, cut in 0usize..100_000) {
        for name in ["strace-ttt.txt", "strace-c.txt"] {
            let mut bytes = std::fs::read(file(name)).unwrap();
            let (place, cut) = (place % bytes.len(), cut % bytes.len());
            bytes[place] = byte;
            bytes.truncate(cut);
            let _ = imports::detect_bytes(name, &bytes);
            if let Ok(import) = imports::parse(name, &bytes, Format::Strace) {
                for metric in import.subjects[0].metrics.0.values() {
                    let Value::Number(number) = metric.value else { continue };
                    prop_assert!(number.is_finite() && number >= 0.0);
                    if metric.unit == rules::Unit::Share {
                        prop_assert!(number <= 1.0 + 1e-9);
                    }
                }
            }
        }
    }
}
