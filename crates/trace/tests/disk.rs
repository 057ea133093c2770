//! A disk that fills up and a directory that vanishes: recording ends, says so,
//! and what was recorded before stays.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use testing::{
    log::{self, append, body, define, read, small_evaluation, small_graph},
    mount::Mount,
};
use trace::{
    append::Log,
    format::RecordKind,
    read::StreamEnd,
    status::{State, StatusPage, read_status},
};

const SEGMENT_BYTES: usize = 16 << 10;

#[test]
fn a_full_disk_ends_recording_and_keeps_what_was_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = Mount::new(folder.path().join("disk"), "size=160k") else {
        return;
    };
    let failures = Arc::new(AtomicU32::new(0));
    let status_path = disk.0.join("status");
    let status = Arc::new(StatusPage::create(&status_path).unwrap());
    let told = failures.clone();
    let on_failure = Box::new(move |error: &std::io::Error| {
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
        told.fetch_add(1, Ordering::Relaxed);
    });
    let (log, mut appender) =
        Log::create_sized(&disk.0, 0, status.clone(), on_failure, SEGMENT_BYTES).unwrap();
    let (definitions, template) = small_graph();
    assert!(define(&mut appender, &definitions));
    let mut written = 0;
    while append(
        &mut appender,
        RecordKind::Evaluation,
        &body(&template, &small_evaluation(written)),
    ) {
        written += 1;
        status.count_committed();
        assert!(written < 10_000, "the disk never filled up");
    }
    // The program goes on; each evaluation that follows is counted.
    for number in 0..3 {
        assert!(!appender.begin(
            RecordKind::Evaluation,
            body(&template, &small_evaluation(number)).len()
        ));
        status.count_lost(4, 9);
    }
    log.finish(appender).unwrap();
    status.set_state(State::Complete);

    assert_eq!(failures.load(Ordering::Relaxed), 1);
    // 160 KiB: a page of status and nine segments.
    let record_words = body(&template, &small_evaluation(0)).len() + 4;
    assert!(written as usize * record_words * 8 > 8 * SEGMENT_BYTES);
    let contents = read(&disk.0).unwrap();
    assert_eq!(
        contents.evaluations,
        (0..written).map(small_evaluation).collect::<Vec<_>>()
    );
    assert!(contents.corrupt.is_empty() && contents.partial.is_none());
    assert!(matches!(contents.end, StreamEnd::Open | StreamEnd::Closed));
    let on_disk = read_status(&status_path).unwrap().unwrap();
    assert_eq!(on_disk, status.get());
    assert_eq!(on_disk.state, State::Failed(libc::ENOSPC));
    assert_eq!(
        (
            on_disk.evals_committed,
            on_disk.evals_lost,
            on_disk.steps_lost,
            on_disk.accesses_lost
        ),
        (written, 3, 12, 27)
    );
}

#[test]
fn a_disk_too_small_from_the_start_is_an_error_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = Mount::new(folder.path().join("disk"), "size=24k") else {
        return;
    };
    let status = Arc::new(StatusPage::create(&disk.0.join("status")).unwrap());
    let result = Log::create_sized(&disk.0, 0, status, Box::new(|_| ()), SEGMENT_BYTES);
    assert_eq!(
        result.err().and_then(|error| error.raw_os_error()),
        Some(libc::ENOSPC)
    );
}

/// The preparer may put a file into the folder while it is being emptied.
fn remove(directory: &Path) {
    while let Err(error) = std::fs::remove_dir_all(directory) {
        assert_eq!(error.kind(), std::io::ErrorKind::DirectoryNotEmpty);
    }
}

#[test]
fn a_removed_directory_ends_recording() {
    let directory = tempfile::tempdir().unwrap();
    let (status, log, mut appender) = log::open(directory.path(), SEGMENT_BYTES);
    let (definitions, template) = small_graph();
    assert!(define(&mut appender, &definitions));
    remove(directory.path());
    let mut written = 0;
    while append(
        &mut appender,
        RecordKind::Evaluation,
        &body(&template, &small_evaluation(written)),
    ) {
        written += 1;
        assert!(written < 10_000, "nobody noticed");
    }
    assert_eq!(status.get().state, State::Failed(libc::ENOENT));
    assert!(log.finish(appender).is_err());
}

#[test]
fn a_short_recording_notices_a_removed_directory_at_its_end() {
    let directory = tempfile::tempdir().unwrap();
    let (status, log, mut appender) = log::open(directory.path(), SEGMENT_BYTES);
    assert!(define(&mut appender, &small_graph().0));
    remove(directory.path());
    let error = log.finish(appender).unwrap_err();
    assert!(error.to_string().contains("the log was removed"), "{error}");
    assert_eq!(status.get().state, State::Failed(libc::ENOENT));
}

#[test]
fn a_status_file_is_checked_before_it_is_believed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("status");
    let status = StatusPage::create(&path).unwrap();
    status.count_tick_mismatch();
    assert_eq!(read_status(&path).unwrap(), Ok(status.get()));
    assert_eq!(status.get().pid, std::process::id());
    status.set_state(State::Complete);
    assert_eq!(read_status(&path).unwrap().unwrap().state, State::Complete);
    let bytes = std::fs::read(&path).unwrap();
    let other = directory.path().join("other");
    let check = |bytes: &[u8], reason| {
        std::fs::write(&other, bytes).unwrap();
        assert_eq!(read_status(&other).unwrap(), Err(reason));
    };
    check(&bytes[..20], "the file is too short");
    check(
        &[&b"GGUF"[..], &bytes[4..]].concat(),
        "the magic number is wrong",
    );
    check(
        &[&bytes[..8], &[9, 0, 0, 0], &bytes[12..]].concat(),
        "the version is unknown",
    );
}
