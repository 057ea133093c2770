//! The append protocol against a reader that maps the growing file, for loom.
//!
//! [`crate::append`] stores plain words and then the commit word with Release;
//! a viewer in another process loads the commit word with Acquire and, only if it
//! is there, the words before it. The model has the same stores in the same order
//! on memory that loom watches: a plain word that is read while it may be written
//! is an error.

use loom::{
    cell::UnsafeCell,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use crate::format::{COMMIT, Checksum};

const BODY_WORDS: usize = 2;

/// Room for one record: header and body, checksum, commit word.
struct Record {
    body: [UnsafeCell<u64>; BODY_WORDS],
    checksum: UnsafeCell<u64>,
    commit: AtomicU64,
}

// SAFETY: loom reports every access that the protocol does not order.
unsafe impl Sync for Record {}
// SAFETY: as above.
unsafe impl Send for Record {}

impl Record {
    fn new() -> Record {
        Record {
            body: [UnsafeCell::new(0), UnsafeCell::new(0)],
            checksum: UnsafeCell::new(0),
            commit: AtomicU64::new(0),
        }
    }

    fn write(&self, first: u64, commit: Ordering) {
        let mut checksum = Checksum::START;
        for (word, cell) in (first..).zip(&self.body) {
            checksum.add(word);
            // SAFETY: only the writer comes here before the commit word is stored.
            cell.with_mut(|cell| unsafe { *cell = word });
        }
        // SAFETY: as above.
        self.checksum
            .with_mut(|cell| unsafe { *cell = checksum.value() });
        self.commit.store(COMMIT, commit);
    }

    /// The body, if the record is complete.
    fn read(&self) -> Option<Vec<u64>> {
        if self.commit.load(Ordering::Acquire) != COMMIT {
            return None;
        }
        // SAFETY: complete, and a record never changes afterwards.
        let body: Vec<u64> = self
            .body
            .iter()
            .map(|cell| cell.with(|cell| unsafe { *cell }))
            .collect();
        let mut checksum = Checksum::START;
        body.iter().for_each(|&word| checksum.add(word));
        // SAFETY: as above.
        assert_eq!(
            self.checksum.with(|cell| unsafe { *cell }),
            checksum.value()
        );
        Some(body)
    }
}

fn check(commit: Ordering) {
    loom::model(move || {
        let records = Arc::new([Record::new(), Record::new()]);
        let writer = {
            let records = records.clone();
            thread::spawn(move || {
                records[0].write(10, commit);
                records[1].write(20, commit);
            })
        };
        // In the order of the stream, as a reader goes; stops at the first gap.
        let seen: Vec<Vec<u64>> = records.iter().map_while(Record::read).collect();
        assert_eq!(seen, [vec![10, 11], vec![20, 21]][..seen.len()]);
        writer.join().unwrap();
        assert_eq!(records.iter().map_while(Record::read).count(), 2);
    });
}

#[test]
fn loom_a_committed_record_is_seen_whole() {
    check(Ordering::Release);
}

/// The model can fail: without Release the words may come after the commit word.
#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_relaxed_commit_would_not_do() {
    check(Ordering::Relaxed);
}
