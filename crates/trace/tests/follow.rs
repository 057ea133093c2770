//! Logs that are followed while they grow: a reader that goes on where it stood
//! finds what one that starts anew finds, and each thing once.

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
    sync::LazyLock,
};

use proptest::{collection::vec, prelude::*};
use testing::log::{
    SEGMENT_BYTES, append, body, define, open, read, segment_count, small_evaluation, small_graph,
    small_log,
};
use trace::{
    append::SEGMENTS_AHEAD,
    device::Copy,
    format::{RecordKind, SEGMENT_HEADER_BYTES},
    read::{Evaluation, Event, StreamEnd, StreamReader, Writer},
    segment::segment_path,
};

const SEGMENT_WORDS: usize = (SEGMENT_BYTES - SEGMENT_HEADER_BYTES) / 8;

/// A log as its files stand after each word that the writer stores.
#[derive(Clone)]
struct Growing {
    header: Vec<u8>,
    words: Vec<[u8; 8]>,
}

impl Growing {
    fn new(evaluations: u64, end: StreamEnd) -> Growing {
        let directory = tempfile::tempdir().unwrap();
        small_log(directory.path(), evaluations, end);
        let mut growing = Growing {
            header: Vec::new(),
            words: Vec::new(),
        };
        for index in 0..segment_count(directory.path()) {
            let bytes = fs::read(segment_path(directory.path(), 0, index)).unwrap();
            let (header, words) = bytes.split_at(SEGMENT_HEADER_BYTES);
            if index == 0 {
                growing.header = header.to_vec();
            }
            growing
                .words
                .extend(words.chunks(8).map(|w| <[u8; 8]>::try_from(w).unwrap()));
        }
        while growing.words.last() == Some(&[0; 8]) {
            growing.words.pop();
        }
        growing
    }

    /// After `stored` words. The segment behind those prepared is being made.
    fn write(&self, to: &Path, stored: usize) {
        let ready = stored / SEGMENT_WORDS + SEGMENTS_AHEAD;
        for index in 0..=ready + 1 {
            let mut bytes = self.header.clone();
            bytes[20..24].copy_from_slice(&(index as u32).to_le_bytes());
            let first = index * SEGMENT_WORDS;
            bytes[24..32].copy_from_slice(&(first as u64).to_le_bytes());
            let words = self.words[..stored].iter().skip(first);
            bytes.extend(words.take(SEGMENT_WORDS).flatten());
            bytes.resize(SEGMENT_BYTES, 0);
            if index > ready {
                bytes[..8].fill(0);
            }
            // In place: a file that is cut to be written anew goes to the disk.
            let file = OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .open(segment_path(to, 0, index as u32))
                .unwrap();
            file.write_all_at(&bytes, 0).unwrap();
        }
    }

    /// As [`trace::append::Log::finish`] leaves it.
    fn finish(&self, to: &Path) {
        self.write(to, self.words.len());
        let last = (self.words.len() - 1) / SEGMENT_WORDS;
        for index in last + 1..segment_count(to) as usize {
            fs::remove_file(segment_path(to, 0, index as u32)).unwrap();
        }
        let file = OpenOptions::new()
            .write(true)
            .open(segment_path(to, 0, last as u32))
            .unwrap();
        let words = self.words.len() - last * SEGMENT_WORDS;
        file.set_len((SEGMENT_HEADER_BYTES + words * 8) as u64)
            .unwrap();
    }
}

/// What came so far.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    evaluations: Vec<Evaluation>,
    copies: Vec<Copy>,
    corrupt: Vec<(u64, String)>,
    /// The number of the one that is going on.
    partial: Option<u64>,
    partials: Vec<u64>,
}

impl Seen {
    fn take_in(&mut self, reader: &mut StreamReader) {
        while let Some(event) = reader.next_event().unwrap() {
            self.partial = None;
            match event {
                Event::Evaluation(evaluation) => self.evaluations.push(evaluation),
                Event::Partial(evaluation) => {
                    self.partial = Some(evaluation.number);
                    self.partials.push(evaluation.number);
                }
                Event::Corrupt { offset, reason, .. } => self.corrupt.push((offset, reason)),
                Event::Copy(copy) => self.copies.push(copy),
            }
        }
    }

    fn check_against_anew(&self, reader: &StreamReader, directory: &Path, what: &str) {
        let mut anew = StreamReader::open(directory, 0).unwrap();
        let mut expected = Seen::default();
        expected.take_in(&mut anew);
        assert_eq!(self.evaluations, expected.evaluations, "{what}");
        assert_eq!(self.corrupt, expected.corrupt, "{what}");
        assert_eq!(self.partial, expected.partial, "{what}");
        assert_eq!(reader.end(), anew.end(), "{what}");
        assert_eq!(reader.record_bytes(), anew.record_bytes(), "{what}");
        let of = |reader: &StreamReader| {
            let all = &reader.definitions;
            let names: Vec<String> = (0..all.tensors.len() as u32)
                .map(|t| all.tensor_name(t))
                .collect();
            (names, all.templates.clone(), all.tokens.clone())
        };
        assert_eq!(of(reader), of(&anew), "{what}");
    }
}

#[test]
fn a_log_is_followed_word_by_word() {
    let growing = Growing::new(60, StreamEnd::Closed);
    assert!(growing.words.len() > 3 * SEGMENT_WORDS);
    let directory = tempfile::tempdir().unwrap();
    fs::write(segment_path(directory.path(), 0, 0), []).unwrap();
    let mut reader = StreamReader::open(directory.path(), 0).unwrap();
    let mut seen = Seen::default();
    seen.take_in(&mut reader);
    for stored in 0..growing.words.len() {
        growing.write(directory.path(), stored);
        reader.resume(Writer::Running);
        seen.take_in(&mut reader);
        let what = format!("after {stored} words");
        seen.check_against_anew(&reader, directory.path(), &what);
        assert_eq!(reader.end(), StreamEnd::Open);
    }
    growing.finish(directory.path());
    reader.resume(Writer::Gone);
    seen.take_in(&mut reader);
    seen.check_against_anew(&reader, directory.path(), "closed");
    assert_eq!(reader.end(), StreamEnd::Closed);
    let all: Vec<u64> = (0..60).collect();
    assert_eq!(seen.partials, all, "each was seen going on, once");
    // There is nothing behind an end.
    reader.resume(Writer::Gone);
    assert!(reader.next_event().unwrap().is_none());
    assert_eq!(reader.end(), StreamEnd::Closed);
}

#[test]
fn records_that_only_a_power_failure_hides_are_found_once_the_writer_is_gone() {
    let mut growing = Growing::new(40, StreamEnd::Open);
    let directory = tempfile::tempdir().unwrap();
    growing.write(directory.path(), growing.words.len());
    let mut reader = StreamReader::open(directory.path(), 0).unwrap();
    let mut seen = Seen::default();
    seen.take_in(&mut reader);
    // Far behind the end, farther than a reader of a running recording looks.
    let far = growing.words.len() + 20 * SEGMENT_WORDS;
    growing.words.resize(far, [0; 8]);
    growing.words.push([1; 8]);
    growing.write(directory.path(), growing.words.len());
    reader.resume(Writer::Running);
    seen.take_in(&mut reader);
    assert_eq!((seen.evaluations.len(), seen.corrupt.len()), (40, 0));
    reader.resume(Writer::Gone);
    seen.take_in(&mut reader);
    assert_eq!((seen.evaluations.len(), seen.corrupt.len()), (40, 1));
    seen.check_against_anew(&reader, directory.path(), "with a gap");
    // And said once.
    reader.resume(Writer::Gone);
    seen.take_in(&mut reader);
    assert_eq!(seen.corrupt.len(), 1);
}

#[test]
fn a_reader_goes_on_after_an_error_that_has_passed() {
    let growing = Growing::new(40, StreamEnd::Closed);
    let directory = tempfile::tempdir().unwrap();
    growing.finish(directory.path());
    let (second, away) = (
        segment_path(directory.path(), 0, 1),
        directory.path().join("away"),
    );
    fs::rename(&second, &away).unwrap();
    let mut reader = StreamReader::open(directory.path(), 0).unwrap();
    let mut before = 0;
    while let Ok(event) = reader.next_event() {
        assert!(matches!(event, Some(Event::Evaluation(_))));
        before += 1;
    }
    assert!(before > 0 && reader.next_event().is_err());
    fs::rename(&away, &second).unwrap();
    let mut seen = Seen::default();
    seen.take_in(&mut reader);
    let rest: Vec<Evaluation> = (before..40).map(small_evaluation).collect();
    assert_eq!((seen.evaluations, reader.end()), (rest, StreamEnd::Closed));
}

/// A viewer that keeps its reader while the recorder writes: it gets each
/// evaluation once, in order, and nothing looks damaged.
#[test]
fn a_running_writer_is_followed() {
    let directory = tempfile::tempdir().unwrap();
    let (definitions, template) = small_graph();
    let (_status, log, mut appender) = open(directory.path(), 1 << 16);
    let total = 60_000;
    let mut reader = StreamReader::open(directory.path(), 0).unwrap();
    let writer = std::thread::spawn(move || {
        assert!(define(&mut appender, &definitions));
        for number in 0..total {
            assert!(append(
                &mut appender,
                RecordKind::Evaluation,
                &body(&template, &small_evaluation(number))
            ));
        }
        log.finish(appender).unwrap();
    });
    let (mut next, mut last_partial) = (0, None);
    while reader.end() != StreamEnd::Closed {
        while let Some(event) = reader.next_event().unwrap() {
            match event {
                Event::Evaluation(evaluation) => {
                    assert_eq!(evaluation, small_evaluation(next));
                    next += 1;
                }
                Event::Partial(partial) => {
                    assert_eq!(partial.number, next);
                    assert!(last_partial < Some(next), "a partial one came again");
                    last_partial = Some(next);
                }
                Event::Corrupt { reason, .. } => panic!("evaluation {next}: {reason}"),
                Event::Copy(copy) => panic!("{copy:?}"),
            }
        }
        reader.resume(Writer::Running);
    }
    assert_eq!(next, total);
    writer.join().unwrap();
    assert_eq!(read(directory.path()).unwrap().evaluations.len(), 60_000);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    /// Whatever is damaged, and wherever the reader stood meanwhile.
    #[test]
    fn damage_is_found_the_same_in_steps(
        patches in vec((any::<prop::sample::Index>(), any::<u64>(), any::<bool>(), 1usize..40), 0..4),
        stops in vec(any::<prop::sample::Index>(), 1..12),
        closed in any::<bool>(),
    ) {
        // The same log each time, and writing it takes longest.
        static LOGS: LazyLock<[Growing; 2]> =
            LazyLock::new(|| [StreamEnd::Open, StreamEnd::Closed].map(|end| Growing::new(30, end)));
        let mut growing = LOGS[usize::from(closed)].clone();
        for (at, word, is_zero, length) in patches {
            let at = at.index(growing.words.len());
            match is_zero {
                true => growing.words.iter_mut().skip(at).take(length).for_each(|w| *w = [0; 8]),
                false => growing.words[at] = word.to_le_bytes(),
            }
        }
        let mut stops: Vec<usize> = stops.iter().map(|s| s.index(growing.words.len())).collect();
        stops.sort_unstable();
        let directory = tempfile::tempdir().unwrap();
        growing.write(directory.path(), stops[0]);
        let mut reader = StreamReader::open(directory.path(), 0).unwrap();
        let mut seen = Seen::default();
        for stored in stops {
            growing.write(directory.path(), stored);
            seen.take_in(&mut reader);
            seen.check_against_anew(&reader, directory.path(), &format!("after {stored} words"));
            reader.resume(Writer::Running);
        }
        growing.finish(directory.path());
        reader.resume(Writer::Gone);
        seen.take_in(&mut reader);
        seen.check_against_anew(&reader, directory.path(), "at the end");
    }
}
