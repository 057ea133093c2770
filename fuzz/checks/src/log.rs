//! The raw log: as bytes of files, and as records whose checksums are right.
//!
//! Most bytes of a log are behind a checksum that no fuzzer guesses, so `records` takes
//! the bodies of records and frames them itself.

use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;

use analysis::caches::{CacheQuestion, Caches};
use analysis::facts::{Model, Options};
use analysis::reading::Reading;
use analysis::weights::weights_of;
use index::{Filter, FlameBy, RunIndex};
use plan::Machine;
use reader::{Log, Seen, SeenCopy, Visitor, rows};
use rundir::Run;
use trace::format::{
    COMMIT, Checksum, RecordKind, SEGMENT_HEADER_BYTES, SEGMENT_MAGIC, VERSION, length_word,
};
use trace::region::Region;
use trace::template::{Definition, decode_definitions};

use crate::pieces::{folder, pieces, scratch};

/// An array of more elements is allowed, and takes its time: not here.
const MAX_ELEMENTS: u64 = 1 << 10;

/// Input: files of a `log` folder, as [`crate::FILES`] names them.
pub fn log(data: &[u8]) {
    let folder = folder(data);
    walk(&folder.path().join("log"));
}

/// Input: records, `d` with definitions, `e` with evaluations, `m` with measurements and `c` with
/// copies.
pub fn records(data: &[u8]) {
    let mut segment = SEGMENT_MAGIC.to_vec();
    segment.extend(VERSION.to_le_bytes());
    segment.extend((SEGMENT_HEADER_BYTES as u32).to_le_bytes());
    segment.resize(SEGMENT_HEADER_BYTES, 0);
    for (letter, body) in pieces(data) {
        let (words, rest) = body.as_chunks::<8>();
        let mut words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let kind = match letter {
            b'd' => {
                if claims_too_much(body) {
                    return;
                }
                let mut last = [0; 8];
                last[..rest.len()].copy_from_slice(rest);
                words.push(u64::from_le_bytes(last));
                words.insert(0, body.len() as u64);
                RecordKind::Definitions
            }
            b'e' => RecordKind::Evaluation,
            b'm' => RecordKind::Measured,
            b'c' => RecordKind::Copy,
            _ => RecordKind::End,
        };
        let length = length_word(kind, words.len() as u32);
        let mut checksum = Checksum::START;
        words.splice(0..0, [kind.to_word(), length]);
        words.iter().for_each(|&word| checksum.add(word));
        words.extend([checksum.value(), COMMIT]);
        segment.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    }
    let folder = scratch();
    let log = folder.path().join("log");
    fs::write(log.join("0000-000000.tslog"), segment).expect("scratch space");
    walk(&log);
    if let Ok(run) = Run::open(folder.path()) {
        analyse(&run);
    }
}

fn claims_too_much(definitions: &[u8]) -> bool {
    let size = |count: &[u64]| count.iter().try_fold(1u64, |n, &c| n.checked_mul(c));
    let is_large = |count: &[u64]| size(count).is_some_and(|n| n > MAX_ELEMENTS);
    let definitions = decode_definitions(definitions).unwrap_or_default();
    definitions.iter().any(|definition| {
        let Definition::Template(template) = definition else {
            return false;
        };
        let mut accesses = template.steps.iter().flat_map(|step| &step.accesses);
        template.captures.iter().any(|c| is_large(&c.count))
            || accesses.any(|access| match &access.region {
                Region::Indexed(indexed) => is_large(&indexed.count),
                Region::Fixed(_) => false,
            })
    })
}

/// Every row of every table; their number agrees with the sums. 0 for what cannot be read.
fn walk(log_directory: &Path) {
    let mut rows = Rows::default();
    let walked = Log::new(log_directory).walk(&mut rows);
    let summary = reader::summary::summarise(log_directory, &mut |_| ());
    let (walked, summary) = match (walked, summary) {
        (Ok(walked), Ok(summary)) => (walked, summary),
        (Err(error), Err(_)) => return one_line(&error.to_string()),
        _ => panic!("readable in one pass and not in another"),
    };
    for tensor in walked.tensors.all() {
        rows::tensor(tensor);
    }
    for device in &walked.devices {
        rows::device(device);
    }
    walked.damaged.iter().for_each(|damage| one_line(damage));
    assert_eq!(walked.evaluations, rows.evaluations);
    assert_eq!(summary.evaluations, rows.evaluations);
    assert_eq!(
        (summary.accesses, summary.steps),
        (rows.accesses, walked.steps)
    );
}

/// What people are told about damage.
pub fn one_line(message: &str) {
    assert!(!message.contains('\n') && message.len() < 4096, "{message}");
}

#[derive(Default)]
struct Rows {
    evaluations: u64,
    accesses: u64,
}

impl Visitor for Rows {
    type Error = trace::read::ReadError;

    fn evaluation(&mut self, seen: &Seen) -> Result<(), Self::Error> {
        self.evaluations += 1;
        let sums = seen.sums();
        rows::eval(seen, &sums);
        rows::tokens(seen).for_each(drop);
        rows::routing(seen, |_| ());
        rows::kernels(seen).for_each(drop);
        times_add_up(seen);
        let before = self.accesses;
        for executed in seen.steps() {
            rows::node(seen, &executed);
            seen.for_each_access(executed.number, |access| {
                self.accesses += 1;
                rows::access(seen, &executed, &access);
            });
        }
        assert_eq!(self.accesses - before, sums.accesses);
        Ok(())
    }

    fn copy(&mut self, copy: &SeenCopy) -> Result<(), Self::Error> {
        rows::copy(copy);
        Ok(())
    }
}

/// What kernels and steps of a device had for themselves is no longer than from the first begin
/// to the last end.
fn times_add_up(seen: &Seen) {
    let Some(kernels) = seen.kernel_times() else {
        let mut timed = seen.steps().filter(|step| step.times.is_some());
        assert!(!seen.is_on_device() || timed.next().is_none());
        return;
    };
    let first = kernels.iter().map(|k| k.begin_nanos).min().unwrap_or(0);
    let last = kernels.iter().map(|k| k.end_nanos).max().unwrap_or(0);
    let of_kernels: u64 = kernels.iter().map(|k| k.nanos).sum();
    let of_steps: u64 = seen.steps().map(|step| step.nanos()).sum();
    assert!(of_steps <= of_kernels && of_kernels <= last.saturating_sub(first));
}

/// What `report` and `view` compute, in small.
fn analyse(run: &Run) {
    let mut reading = Reading::new(Options::default());
    if let Ok(walked) = Log::new(&run.log_directory()).walk(&mut reading) {
        let (_, sequence) = reading.finish(&walked.tensors, &Model::default());
        if sequence.touched_bytes() > 0 {
            let question = CacheQuestion {
                budgets_bytes: vec![0, 1 << 20],
                given_bytes: Vec::new(),
                beside_weights_bytes: None,
                weights: weights_of(&sequence, None),
                machine: Machine::new(1e9),
                threads: NonZeroUsize::MIN,
            };
            let _ = Caches::of(&sequence, &question);
        }
    }
    let Ok(index) = RunIndex::open(run, &mut |_| ()) else {
        return;
    };
    index.info();
    index.summary(&Filter::default());
    index.experts(&Filter::default());
    index.flame(FlameBy::Bytes, &Filter::default());
    index.flame(FlameBy::Nanos, &Filter::default());
}
