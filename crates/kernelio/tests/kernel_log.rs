//! Logs of the kernel survive writing, reading while they grow, kills and damage.

use std::fs;
use std::path::{Path, PathBuf};

use kernelio::KernelError;
use kernelio::devices::Device;
use kernelio::files::Place;
use kernelio::kernel_log::faults::{Fault, FaultKind};
use kernelio::kernel_log::io::{Io, Operation, Rwbs};
use kernelio::kernel_log::residency::{ResidencyReader, ResidencyWriter, Sample};
use kernelio::kernel_log::{HEADER_BYTES, Reader, Record, Writer};
use kernelio::residency::Residency;
use proptest::prelude::*;

fn place() -> impl Strategy<Value = Option<Place>> {
    proptest::option::of(
        (0..u32::MAX, any::<u64>()).prop_map(|(file, file_offset)| Place { file, file_offset }),
    )
}

prop_compose! {
    fn fault()(
        (nanos, address, instruction) in any::<(u64, u64, u64)>(),
        (pid, tid, cpu) in any::<(u32, u32, u16)>(),
        is_major: bool,
        place in place(),
    ) -> Fault {
        let kind = if is_major { FaultKind::Major } else { FaultKind::Minor };
        Fault { nanos, address, instruction, pid, tid, cpu, kind, place }
    }
}

prop_compose! {
    fn io()(
        (issued_nanos, sector, request) in any::<(u64, u64, u64)>(),
        completed_nanos in proptest::option::of(1..u64::MAX),
        (major, minor, pid, tid) in any::<(u32, u32, u32, u32)>(),
        (piece_at_bytes, piece_bytes, behind) in (0..1u32 << 30, 0..1u32 << 30, 0..1u32 << 30),
        rwbs: [u8; 8],
        place in place(),
    ) -> Io {
        Io {
            issued_nanos, completed_nanos, sector, request, pid, tid, place,
            piece_at_bytes, piece_bytes,
            device: Device { major, minor },
            request_bytes: piece_at_bytes + piece_bytes + behind,
            rwbs: Rwbs(rwbs),
        }
    }
}

fn in_folder(name: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    (folder, path)
}

fn round_trip<R: Record + Copy + PartialEq + std::fmt::Debug>(records: &[R], cut: usize) {
    let (_folder, path) = in_folder("log");
    let mut writer = Writer::create(&path).unwrap();
    for record in records {
        writer.push(record).unwrap();
    }
    writer.flush().unwrap();
    let read = |path: &Path| -> Vec<R> {
        let reader = Reader::open(path).unwrap();
        reader.collect::<Result<_, _>>().unwrap()
    };
    assert_eq!(read(&path), records);
    // A kill may leave any part of the last record, or of the header.
    let bytes = fs::read(&path).unwrap();
    let left = bytes.len() - cut % (bytes.len() + 1);
    let torn = path.with_extension("torn");
    fs::write(&torn, &bytes[..left]).unwrap();
    let mut reader = Reader::<R>::open(&torn).unwrap();
    let whole = left.saturating_sub(HEADER_BYTES) / R::BYTES;
    let before: Vec<R> = reader.by_ref().collect::<Result<_, _>>().unwrap();
    assert_eq!(before, records[..whole]);
    // What comes later is read by the same reader.
    fs::write(&torn, &bytes).unwrap();
    let after: Vec<R> = reader.collect::<Result<_, _>>().unwrap();
    assert_eq!(after, records[whole..]);
}

proptest! {
    // Each case writes files.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn faults_round_trip(records in proptest::collection::vec(fault(), 0..50), cut: usize) {
        round_trip(&records, cut);
    }

    #[test]
    fn requests_round_trip(records in proptest::collection::vec(io(), 0..50), cut: usize) {
        round_trip(&records, cut);
    }

    #[test]
    fn garbage_is_never_more_than_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let (_folder, path) = in_folder("log");
        for magic in [Fault::MAGIC, Io::MAGIC, *b"TSRESID\0"] {
            let mut whole = magic.to_vec();
            let record = match magic { Fault::MAGIC => 48u32, Io::MAGIC => 80, _ => 8 };
            whole.extend_from_slice(&1u32.to_le_bytes());
            whole.extend_from_slice(&record.to_le_bytes());
            whole.extend_from_slice(&bytes);
            fs::write(&path, &whole).unwrap();
            if let Ok(reader) = Reader::<Fault>::open(&path) { reader.for_each(drop); }
            if let Ok(reader) = Reader::<Io>::open(&path) { reader.for_each(drop); }
            if let Ok(reader) = ResidencyReader::open(&path) { reader.for_each(drop); }
        }
    }

    /// Against the plainest way to have a set of pages: a list of true and false.
    #[test]
    fn residency_round_trips(
        samples in proptest::collection::vec((0..3u32, residents()), 0..12),
        cut: usize,
    ) {
        let (_folder, path) = in_folder("residency");
        let mut writer = ResidencyWriter::create(&path).unwrap();
        let samples: Vec<Sample> = (0..).zip(&samples).map(|(token, (file, pages))| Sample {
            nanos: token * 10,
            token,
            file: *file,
            residency: residency_of(pages),
        }).collect();
        for sample in &samples {
            writer.push(sample).unwrap();
        }
        let read: Vec<Sample> = ResidencyReader::open(&path).unwrap().collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(&read, &samples);
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - cut % (bytes.len() + 1)]).unwrap();
        let torn: Vec<Sample> = ResidencyReader::open(&path).unwrap().collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(&torn[..], &samples[..torn.len()]);
    }

    #[test]
    fn runs_are_the_pages_that_are_there(pages in residents()) {
        let residency = residency_of(&pages);
        let mut from_runs = vec![false; pages.len()];
        let mut end_before = None;
        for run in residency.runs() {
            prop_assert!(run.start < run.end && Some(run.start) != end_before);
            end_before = Some(run.end);
            for page in run {
                from_runs[page as usize] = true;
            }
        }
        prop_assert_eq!(from_runs, pages);
    }
}

/// Pages in stretches, as read-ahead makes them, of one file of 200 pages, so that
/// changes are possible; or scattered.
fn residents() -> impl Strategy<Value = Vec<bool>> {
    let stretches = proptest::collection::vec((any::<bool>(), 1..90usize), 1..9).prop_map(|all| {
        let mut pages: Vec<bool> = all
            .iter()
            .flat_map(|(is_there, count)| std::iter::repeat_n(*is_there, *count))
            .collect();
        pages.resize(200, false);
        pages
    });
    prop_oneof![stretches, proptest::collection::vec(any::<bool>(), 200)]
}

/// Written by the public way: through a file whose pages were read or not cannot be
/// forced, so through the bytes of a log.
fn residency_of(pages: &[bool]) -> Residency {
    let (_folder, path) = in_folder("one");
    let mut bytes = b"TSRESID\0".to_vec();
    bytes.extend_from_slice(&1u32.to_le_bytes());
    bytes.extend_from_slice(&8u32.to_le_bytes());
    let words: Vec<u64> = pages
        .chunks(64)
        .map(|chunk| {
            (0..).zip(chunk).fold(0, |word, (bit, is_there)| {
                word | u64::from(*is_there) << bit
            })
        })
        .collect();
    let head = [
        0,
        0,
        2 << 32 | 12 << 48,
        pages.len() as u64 | (words.len() as u64) << 32,
    ];
    for word in head.iter().chain(&words) {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    fs::write(&path, &bytes).unwrap();
    let mut reader = ResidencyReader::open(&path).unwrap();
    reader.next().unwrap().unwrap().residency
}

#[test]
fn a_sample_is_small_and_never_larger_than_a_bit_a_page() {
    let (_folder, path) = in_folder("residency");
    let mut writer = ResidencyWriter::create(&path).unwrap();
    let pages = 3 << 20;
    let mut push = |pages: &[bool]| {
        let before = fs::metadata(&path).unwrap().len();
        let residency = residency_of(pages);
        let sample = Sample {
            nanos: 1,
            token: 1,
            file: 0,
            residency,
        };
        writer.push(&sample).unwrap();
        fs::metadata(&path).unwrap().len() - before
    };
    let half: Vec<bool> = (0..pages).map(|page| page < pages / 2).collect();
    assert_eq!(push(&half), 32 + 8);
    assert_eq!(push(&half), 32);
    let scattered: Vec<bool> = (0..pages).map(|page| page % 2 == 0).collect();
    assert_eq!(push(&scattered), 32 + pages as u64 / 8);
}

#[test]
fn other_files_and_newer_versions_are_refused() {
    let (_folder, path) = in_folder("log");
    let check = |bytes: &[u8], expect: &str| {
        fs::write(&path, bytes).unwrap();
        let error = Reader::<Fault>::open(&path).unwrap_err().to_string();
        assert_eq!(error, format!("{}: {expect}", path.display()));
    };
    check(
        b"TSBLOCK\0\x01\0\0\0\x50\0\0\0",
        "another kind of file at byte 0",
    );
    check(
        b"TSFAULTS\x02\0\0\0\x30\0\0\0",
        "version 2, this program reads version 1; update tensorscope",
    );
    check(
        b"TSFAULTS\x01\0\0\0\x31\0\0\0",
        "a wrong record size at byte 12",
    );
    fs::write(&path, "").unwrap();
    assert!(matches!(
        Writer::<Fault>::create(&path),
        Err(KernelError::Io { .. })
    ));
}

#[test]
fn letters_tell_what_a_request_does() {
    let check = |text: &str, operation, is_ahead| {
        let rwbs = Rwbs::from_text(text.as_bytes());
        assert_eq!(
            (rwbs.operation(), rwbs.is_read_ahead()),
            (operation, is_ahead)
        );
        assert_eq!(rwbs.to_string(), text);
    };
    check("R", Operation::Read, false);
    check("RA", Operation::Read, true);
    check("RM", Operation::Read, false);
    check("WS", Operation::Write, false);
    check("FWFS", Operation::Write, false);
    check("D", Operation::Discard, false);
    check("FF", Operation::Other, false);
    check("N", Operation::Other, false);
}
