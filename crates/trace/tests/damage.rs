//! Logs that were damaged, mixed up or written by somebody else: said so, and never
//! a wrong value.

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
};

use proptest::{collection::vec, prelude::*};
use testing::log::{
    append, body, define, open, read, segment_count, small_evaluation, small_graph, small_log,
};
use trace::{
    format::{RecordKind, SEGMENT_HEADER_BYTES, VERSION},
    read::{Evaluation, ReadError, StreamEnd, streams},
    region::{Region, Strided},
    segment::segment_path,
    template::*,
};

#[test]
fn a_flipped_bit_anywhere_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let count = 36;
    small_log(directory.path(), count, StreamEnd::Closed);
    let expected: Vec<Evaluation> = (0..count).map(small_evaluation).collect();
    let mut bit = 0;
    for index in 0..segment_count(directory.path()) {
        let path = segment_path(directory.path(), 0, index);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        for at in 0..file.metadata().unwrap().len() {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            bit = (bit + 3) % 8;
            file.write_all_at(&[byte[0] ^ 1 << bit], at).unwrap();
            let what = format!("segment {index}, byte {at}, bit {bit}");
            // Bytes 32 to 63 of a segment are reserved and not looked at.
            let noticed = notices(directory.path(), &expected, &what);
            assert_eq!(noticed, !(32..64).contains(&at), "{what}");
            file.write_all_at(&byte, at).unwrap();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn damage_of_any_kind_never_gives_a_wrong_value(
        patches in vec((any::<prop::sample::Index>(), vec(any::<u8>(), 1..40), any::<bool>()), 1..4)
    ) {
        let directory = tempfile::tempdir().unwrap();
        small_log(directory.path(), 36, StreamEnd::Closed);
        let expected: Vec<Evaluation> = (0..36).map(small_evaluation).collect();
        for (at, bytes, zero) in patches {
            let path = segment_path(directory.path(), 0, at.index(segment_count(directory.path()) as usize) as u32);
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            let length = file.metadata().unwrap().len() as usize;
            // Header damage is another test's; here the records.
            let at = SEGMENT_HEADER_BYTES + at.index(length - SEGMENT_HEADER_BYTES);
            let bytes = if zero { vec![0; bytes.len() * 20] } else { bytes };
            let fits = bytes.len().min(length - at);
            file.write_all_at(&bytes[..fits], at as u64).unwrap();
        }
        notices(directory.path(), &expected, "patched");
    }
}

#[test]
fn after_damaged_definitions_no_later_number_is_trusted() {
    let directory = tempfile::tempdir().unwrap();
    let (mut definitions, template) = small_graph();
    let (_status, log, mut appender) = open(directory.path(), 1 << 16);
    assert!(define(&mut appender, &definitions));
    // A second graph that has the same length but means something else.
    assert!(define(
        &mut appender,
        &[Definition::Text(b"OTHER".to_vec())]
    ));
    let mut other = template.clone();
    other.steps[0].op = 11;
    definitions = vec![Definition::Template(other)];
    assert!(define(&mut appender, &definitions));
    for (number, template_number) in [(0, 0), (1, 1)] {
        let evaluation = Evaluation {
            template: template_number,
            ..small_evaluation(number)
        };
        assert!(append(
            &mut appender,
            RecordKind::Evaluation,
            &body(&template, &evaluation)
        ));
    }
    log.finish(appender).unwrap();
    assert_eq!(read(directory.path()).unwrap().evaluations.len(), 2);

    let path = segment_path(directory.path(), 0, 0);
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes
        .windows(5)
        .position(|window| window == b"OTHER")
        .unwrap();
    bytes[at] ^= 1;
    fs::write(&path, bytes).unwrap();
    let contents = read(directory.path()).unwrap();
    assert_eq!(contents.evaluations, [small_evaluation(0)]);
    assert_eq!(
        contents.corrupt,
        [
            "the record's checksum is wrong",
            "definitions before these are damaged, so their numbers are not known",
            "template 1 is not defined"
        ]
    );
}

#[test]
fn what_is_no_whole_log_is_refused_with_a_reason() {
    let fresh = || {
        let directory = tempfile::tempdir().unwrap();
        small_log(directory.path(), 60, StreamEnd::Closed);
        assert!(segment_count(directory.path()) >= 3);
        directory
    };
    let patched = |offset, bytes: &[u8]| {
        let directory = fresh();
        let file = OpenOptions::new()
            .write(true)
            .open(segment_path(directory.path(), 0, 1))
            .unwrap();
        file.write_all_at(bytes, offset).unwrap();
        error(directory.path()).to_string()
    };
    let check = |message: String, expect: &str| assert!(message.contains(expect), "{message}");

    for missing in [0, 1] {
        let directory = fresh();
        fs::remove_file(segment_path(directory.path(), 0, missing)).unwrap();
        assert_eq!(streams(directory.path()).unwrap(), [0]);
        let message = error(directory.path()).to_string();
        check(
            message,
            &format!(
                "0000-00000{missing}.tslog: this segment is missing, but later ones are there"
            ),
        );
    }
    check(
        patched(0, b"GGUF"),
        "0000-000001.tslog: byte 0: not a log segment",
    );
    check(
        patched(8, &(VERSION + 1).to_le_bytes()),
        "use a newer tensorscope",
    );
    check(
        patched(12, &[7, 0]),
        "the length of the header is impossible",
    );
    check(patched(20, &[9]), "the segment belongs elsewhere");
    check(
        patched(24, &[9]),
        "the segment before this one is incomplete",
    );

    let directory = fresh();
    let path = segment_path(directory.path(), 0, 1);
    fs::write(&path, &fs::read(&path).unwrap()[..40]).unwrap();
    check(
        error(directory.path()).to_string(),
        "the segment ends inside its header",
    );

    let directory = fresh();
    let path = segment_path(directory.path(), 0, 0);
    fs::write(&path, &fs::read(&path).unwrap()[..2048]).unwrap();
    check(
        error(directory.path()).to_string(),
        "the segment before this one is incomplete",
    );

    let nothing = tempfile::tempdir().unwrap();
    fs::write(nothing.path().join("notes.txt"), "not ours").unwrap();
    check(
        streams(nothing.path()).unwrap_err().to_string(),
        "holds no log segment",
    );
    check(error(nothing.path()).to_string(), "holds no log segment");
    check(
        streams(&nothing.path().join("absent"))
            .unwrap_err()
            .to_string(),
        "No such file",
    );
}

/// Records that are intact and say impossible things: written by a foreign or
/// broken program.
#[test]
fn impossible_contents_are_refused_without_a_panic() {
    let check = |definitions: &[Definition], bodies: &[Vec<u64>], expect: &str| {
        let directory = tempfile::tempdir().unwrap();
        let (_status, log, mut appender) = open(directory.path(), 1 << 16);
        assert!(define(&mut appender, definitions));
        for body in bodies {
            assert!(append(&mut appender, RecordKind::Evaluation, body));
        }
        log.finish(appender).unwrap();
        let contents = read(directory.path()).unwrap();
        assert!(contents.evaluations.is_empty());
        assert!(
            contents
                .corrupt
                .last()
                .is_some_and(|reason| reason.contains(expect)),
            "{:?}",
            contents.corrupt
        );
    };
    let (definitions, template) = small_graph();
    let edited = |edit: fn(&mut Template)| {
        let mut definitions = definitions.clone();
        let Some(Definition::Template(template)) = definitions.last_mut() else {
            panic!("the template is last")
        };
        edit(template);
        definitions
    };
    check(
        &edited(|t| t.steps[0].op = 99),
        &[],
        "string 99 is not defined",
    );
    check(
        &edited(|t| t.steps[0].accesses[0].tensor = 99),
        &[],
        "tensor 99 is not defined",
    );
    check(
        &edited(|t| t.captures.clear()),
        &[],
        "capture 0 is not defined",
    );
    check(
        &edited(|t| t.captures[0].count = [1 << 40, 1 << 40, 1]),
        &[],
        "a capture of a template is impossible",
    );
    check(
        &edited(|t| t.captures[3].width_bytes = 3),
        &[],
        "a capture of a template is impossible",
    );
    check(
        &edited(|t| t.captures[3].time = CaptureTime::Step(4)),
        &[],
        "a capture of a template is impossible",
    );
    check(
        &edited(|t| t.steps[0].accesses[1].region = Region::Fixed(Strided::range(u64::MAX, 2))),
        &[],
        "a region of tensor 3 is impossible",
    );

    let whole = body(&template, &small_evaluation(0));
    let with = |edits: &[(usize, u64)]| {
        let mut body = whole.clone();
        edits.iter().for_each(|&(at, word)| body[at] = word);
        vec![body]
    };
    check(&definitions, &[vec![0; 6]], "an evaluation is too short");
    check(&definitions, &with(&[(1, 5)]), "template 5 is not defined");
    check(
        &definitions,
        &with(&[(4, u64::MAX)]),
        "does not have the length that its template says",
    );
    check(
        &definitions,
        &with(&[(4, 3)]),
        "does not have the length that its template says",
    );
    check(
        &definitions,
        &with(&[(5, u64::MAX)]),
        "longer than its template says",
    );
    check(&definitions, &with(&[(5, 2 << 8 | 3)]), "unknown coding 3");
    check(
        &definitions,
        &with(&[(5, 1 << 8 | 8)]),
        "does not have the length that its template says",
    );
    // Runs: more than the section has, more elements than there are, overflowing.
    check(
        &definitions,
        &with(&[(5, 2 << 8 | 1), (6, u64::MAX)]),
        "a length is too large",
    );
    check(
        &definitions,
        &with(&[(5, 2 << 8 | 1), (6, 1), (9, u64::MAX)]),
        "add up to too many elements",
    );
    check(
        &definitions,
        &with(&[(5, 2 << 8 | 1), (6, 2), (9, 1), (12, u64::MAX)]),
        "add up to too many elements",
    );
    check(
        &definitions,
        &with(&[(15, u64::MAX)]),
        "a sequence number is impossible",
    );
}

/// Evaluations that are returned are right, and whoever lacks one says so. Returns
/// whether anything was noticed.
fn notices(directory: &Path, expected: &[Evaluation], what: &str) -> bool {
    let Ok(contents) = read(directory) else {
        return true;
    };
    let mut rest = expected.iter();
    for found in &contents.evaluations {
        assert!(
            rest.any(|evaluation| evaluation == found),
            "{what}: a wrong evaluation: {found:?}"
        );
    }
    let noticed = !contents.corrupt.is_empty();
    // Zeros up to the end of the log are what a kill leaves: then it is not closed.
    let complete = contents.evaluations.len() == expected.len() || contents.end == StreamEnd::Open;
    assert!(
        noticed || complete,
        "{what}: something is missing and nobody says so"
    );
    noticed
}

fn error(directory: &Path) -> ReadError {
    match read(directory) {
        Ok(_) => panic!("an unreadable log was read"),
        Err(error) => error,
    }
}
