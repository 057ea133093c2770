//! Streams of processes that were killed are closed afterwards.

use testing::log::{SEGMENT_BYTES, open, read, segment_count, small_evaluation, small_log};
use trace::{
    control::{Bounds, Control, Stop},
    format::RecordKind,
    read::StreamEnd,
    seal::{Sealed, seal},
};

#[test]
fn a_stream_that_was_left_open_is_closed_with_all_its_records() {
    // Sizes that end in every part of a segment.
    for evaluations in [1, 2, 3, 50, 51, 52, 53, 54, 55, 56, 57, 200] {
        let directory = tempfile::tempdir().unwrap();
        small_log(directory.path(), evaluations, StreamEnd::Open);
        assert_eq!(read(directory.path()).unwrap().end, StreamEnd::Open);
        assert_eq!(seal(directory.path(), 0).unwrap(), Sealed::Now);
        let contents = read(directory.path()).unwrap();
        assert_eq!(contents.end, StreamEnd::Closed, "{evaluations}");
        let expected: Vec<_> = (0..evaluations).map(small_evaluation).collect();
        assert_eq!(contents.evaluations, expected);
        assert!(contents.corrupt.is_empty() && contents.partial.is_none());
        // Segments that were prepared and never used are gone.
        let needed = contents
            .reader
            .record_bytes()
            .div_ceil(SEGMENT_BYTES as u64 - 64);
        assert_eq!(u64::from(segment_count(directory.path())), needed);
        assert_eq!(seal(directory.path(), 0).unwrap(), Sealed::WasClosed);
    }
}

#[test]
fn an_evaluation_that_was_going_on_keeps_a_stream_open() {
    let directory = tempfile::tempdir().unwrap();
    let (_status, log, mut appender) = open(directory.path(), SEGMENT_BYTES);
    assert!(appender.begin(RecordKind::Evaluation, 20));
    appender.put(7);
    std::mem::forget(appender);
    drop(log);
    assert_eq!(seal(directory.path(), 0).unwrap(), Sealed::CannotBe);
}

#[test]
fn whoever_reaches_a_bound_first_stops_all() {
    let directory = tempfile::tempdir().unwrap();
    let bounds = Bounds {
        duration_nanos: Some(1_000),
        tokens: Some(10),
        log_bytes: None,
    };
    let launcher = Control::create(directory.path(), bounds).unwrap();
    let one = Control::open(directory.path()).unwrap();
    let other = Control::open(directory.path()).unwrap();
    assert!(one.allows(5_000));
    one.add(1 << 40, 9);
    assert!(other.allows(5_999));
    other.add(0, 1);
    assert!(!one.allows(5_999));
    assert!(!other.allows(5_000));
    assert_eq!(launcher.stop(), Some(Stop::Tokens));
    assert_eq!(launcher.tokens(), 10);
}

#[test]
fn time_counts_from_the_first_evaluation() {
    let directory = tempfile::tempdir().unwrap();
    let bounds = Bounds {
        duration_nanos: Some(1_000),
        ..Bounds::default()
    };
    let control = Control::create(directory.path(), bounds).unwrap();
    assert!(control.allows(1 << 50));
    assert!(control.allows((1 << 50) + 999));
    assert!(!control.allows((1 << 50) + 1_000));
    assert_eq!(control.stop(), Some(Stop::Duration));
}
