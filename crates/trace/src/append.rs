//! Appending records to a stream, without ever waiting for a disk.
//!
//! Protocol:
//! 1. A background thread (the *preparer*) keeps [`SEGMENTS_AHEAD`] segments
//!    allocated and faulted in, and hands them over through a lock-free queue.
//! 2. The recording thread reserves a whole record with [`Appender::begin`]; if
//!    the prepared segments cannot hold it, the record is refused and counted as
//!    lost, and the program goes on.
//! 3. It stores the record's words with [`Appender::put`]. A record may run over
//!    the end of a segment into the next.
//! 4. [`Appender::commit`] stores the checksum and then, with Release, the commit
//!    word. A reader takes a record as complete only if that word is there.
//! 5. A segment that is full goes back through a second queue and is unmapped by
//!    the preparer, so that the recording thread makes no system call but a
//!    wake-up per segment.
//! 6. [`Log::finish`] closes the stream with an `End` record and cuts the file.
//!
//! When a segment cannot be made (disk full, directory gone), the preparer notes
//! it in the status page, reports one line, and ends; what fits into segments
//! already prepared is still recorded.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, compiler_fence},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crate::{
    format::{
        COMMIT, Checksum, RECORD_HEADER_WORDS, RECORD_TRAILER_WORDS, RecordKind, length_word,
    },
    handoff::{Consumer, Producer, queue},
    segment::Segment,
    status::{State, StatusPage},
};

/// Small enough that three of them are no burden, large enough for half a minute
/// of a fast model.
pub const SEGMENT_BYTES: usize = 4 << 20;
/// Segments kept ready beyond the current one.
pub const SEGMENTS_AHEAD: usize = 2;
/// Most segments that are ever kept ready: the largest record is 1 GiB.
const MAX_SEGMENTS_AHEAD: usize = 256;
/// How long a record larger than everything that is normally kept ready may wait
/// for more segments. Only prompts of many thousand tokens on models of many
/// experts are that large; an ordinary record never waits.
const LARGE_RECORD_WAIT: Duration = Duration::from_secs(1);

/// Told once, from the preparer's thread, when recording has to end early.
pub type OnFailure = Box<dyn Fn(&io::Error) + Send>;

/// The writing end of one stream; belongs to the recording thread.
pub struct Appender {
    cursor: *mut u64,
    end: *mut u64,
    checksum: Checksum,
    /// Words of the record that is being written which have not been put yet.
    left_words: usize,
    current: Segment,
    ready: Consumer<Segment>,
    retired: Producer<Segment>,
    preparer: std::thread::Thread,
    shared: Arc<Shared>,
}

// SAFETY: the cursor points into `current`, which moves along.
unsafe impl Send for Appender {}

/// The rest of a stream: its preparer thread and its end.
pub struct Log {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    status: Arc<StatusPage>,
    stop: AtomicBool,
    /// Segments to keep ready; raised for the sake of a large record.
    segments_ahead: AtomicUsize,
    bytes_committed: AtomicU64,
}

impl Log {
    /// Opens stream `stream` in `log_directory`, which must exist.
    pub fn create(
        log_directory: &Path,
        stream: u32,
        status: Arc<StatusPage>,
        on_failure: OnFailure,
    ) -> io::Result<(Log, Appender)> {
        Log::create_sized(log_directory, stream, status, on_failure, SEGMENT_BYTES)
    }

    /// As [`Log::create`], with another segment size (tests want small ones).
    pub fn create_sized(
        log_directory: &Path,
        stream: u32,
        status: Arc<StatusPage>,
        on_failure: OnFailure,
        segment_bytes: usize,
    ) -> io::Result<(Log, Appender)> {
        let first = Segment::create(log_directory, stream, 0, 0, segment_bytes)?;
        let (ready_in, ready) = queue(MAX_SEGMENTS_AHEAD);
        let (retired, retired_out) = queue(MAX_SEGMENTS_AHEAD);
        let shared = Arc::new(Shared {
            status,
            stop: AtomicBool::new(false),
            segments_ahead: AtomicUsize::new(SEGMENTS_AHEAD),
            bytes_committed: AtomicU64::new(0),
        });
        let mut preparer = Preparer {
            log_directory: log_directory.to_owned(),
            stream,
            segment_bytes,
            next_index: 1,
            ready: ready_in,
            retired: retired_out,
            shared: shared.clone(),
            on_failure,
        };
        // The first spare exists before recording starts, so that a small disk
        // says so at second 0.
        preparer.make_one()?;
        let thread = std::thread::Builder::new()
            .name("tensorscope-log".into())
            .spawn(move || preparer.run())?;
        let appender = Appender {
            cursor: first.first(),
            end: first.end(),
            checksum: Checksum::START,
            left_words: 0,
            current: first,
            ready,
            retired,
            preparer: thread.thread().clone(),
            shared: shared.clone(),
        };
        Ok((
            Log {
                shared,
                thread: Some(thread),
            },
            appender,
        ))
    }

    /// Bytes of complete records so far.
    pub fn bytes_committed(&self) -> u64 {
        self.shared.bytes_committed.load(Ordering::Relaxed)
    }

    /// Ends the stream; what is not needed of the last segment is cut off.
    pub fn finish(mut self, mut appender: Appender) -> io::Result<()> {
        if appender.begin_at_leisure(RecordKind::End) {
            appender.commit();
        }
        self.stop_preparer();
        if !appender.current.is_linked()? {
            self.shared.status.set_state(State::Failed(libc::ENOENT));
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the log was removed while it was written; what was recorded is gone",
            ));
        }
        let result = appender.current.truncate(appender.cursor);
        // Segments prepared and never used are of no interest to a reader.
        while let Some(unused) = appender.ready.pop() {
            unused.discard()?;
        }
        result
    }

    fn stop_preparer(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.stop_preparer();
    }
}

impl Appender {
    /// Reserves a record with a body of `body_words`; `false` when it cannot be
    /// stored now, in which case nothing was written.
    pub fn begin(&mut self, kind: RecordKind, body_words: usize) -> bool {
        // A record that was begun and never committed ends the stream: what comes
        // after it could not be found.
        let Ok(length) = u32::try_from(body_words) else {
            return false;
        };
        if self.left_words > 0 {
            return false;
        }
        let words = body_words + RECORD_HEADER_WORDS + RECORD_TRAILER_WORDS;
        if words > self.available_words() && !self.wait_for(words) {
            return false;
        }
        self.left_words = words;
        self.checksum = Checksum::START;
        self.put(kind.to_word());
        self.put(length_word(kind, length));
        // A reader of a killed process's file looks for this header; the compiler
        // must not store any word of the body before it.
        compiler_fence(Ordering::Release);
        true
    }

    /// Stores the next word of the body.
    #[inline(always)]
    pub fn put(&mut self, word: u64) {
        self.checksum.add(word);
        self.store(word);
    }

    /// Words of the body still to be put.
    pub fn body_words_left(&self) -> usize {
        self.left_words - RECORD_TRAILER_WORDS
    }

    /// Completes the record; body words that were not put become zero.
    pub fn commit(&mut self) {
        debug_assert!(self.left_words >= RECORD_TRAILER_WORDS);
        while self.left_words > RECORD_TRAILER_WORDS {
            self.put(0);
        }
        self.store(self.checksum.value());
        // The commit word must not be stored before any other word of the record:
        // a reader of a killed process's file believes it.
        if self.cursor == self.end {
            self.next_segment();
        }
        // SAFETY: `cursor` lies inside the current segment (checked above), is
        // aligned, and only this thread writes there.
        unsafe { AtomicU64::from_ptr(self.cursor).store(COMMIT, Ordering::Release) };
        // SAFETY: at most one past the last word.
        self.cursor = unsafe { self.cursor.add(1) };
        self.left_words = 0;
    }

    /// Adds to the count of bytes that [`Log::bytes_committed`] shows.
    pub fn count_bytes(&self, body_words: usize) {
        let words = body_words + RECORD_HEADER_WORDS + RECORD_TRAILER_WORDS;
        self.shared
            .bytes_committed
            .fetch_add(words as u64 * 8, Ordering::Relaxed);
    }

    pub fn status(&self) -> &StatusPage {
        &self.shared.status
    }

    #[inline(always)]
    fn store(&mut self, word: u64) {
        if self.cursor == self.end {
            self.next_segment();
        }
        // SAFETY: `begin` made sure that the record fits into this segment and
        // the prepared ones, and `next_segment` moved on at the end of one.
        unsafe {
            self.cursor.write(word);
            self.cursor = self.cursor.add(1);
        }
        self.left_words -= 1;
    }

    #[cold]
    fn next_segment(&mut self) {
        let next = self.ready.pop().expect("begin() reserved this segment");
        let full = std::mem::replace(&mut self.current, next);
        self.cursor = self.current.first();
        self.end = self.current.end();
        if let Err(full) = self.retired.push(full) {
            // The preparer has ended; unmapping here is rare and harmless.
            drop(full);
        }
        self.preparer.unpark();
    }

    /// As [`Appender::begin`] for an empty record, but the program is done, so the
    /// preparer may take a moment.
    fn begin_at_leisure(&mut self, kind: RecordKind) -> bool {
        let deadline = Instant::now() + LARGE_RECORD_WAIT;
        loop {
            if self.begin(kind, 0) {
                return true;
            }
            let hopeless =
                self.left_words > 0 || self.shared.status.get().state != State::Recording;
            if hopeless || Instant::now() > deadline {
                return false;
            }
            std::thread::yield_now();
        }
    }

    fn segment_words(&self) -> usize {
        (self.current.end() as usize - self.current.first() as usize) / 8
    }

    fn available_words(&self) -> usize {
        let here = (self.end as usize - self.cursor as usize) / 8;
        here + self.ready.len() * self.segment_words()
    }

    /// Waits for the preparer, but only for a record larger than what is
    /// normally kept ready, and only for a moment.
    #[cold]
    fn wait_for(&mut self, words: usize) -> bool {
        let needed = words.div_ceil(self.segment_words());
        if needed <= SEGMENTS_AHEAD
            || needed > MAX_SEGMENTS_AHEAD
            || self.shared.status.get().state != State::Recording
        {
            return false;
        }
        self.shared.segments_ahead.store(needed, Ordering::Relaxed);
        self.preparer.unpark();
        let deadline = Instant::now() + LARGE_RECORD_WAIT;
        let fits = loop {
            if words <= self.available_words() {
                break true;
            }
            let failed = self.shared.status.get().state != State::Recording;
            if failed || Instant::now() > deadline {
                break false;
            }
            std::thread::yield_now();
        };
        self.shared
            .segments_ahead
            .store(SEGMENTS_AHEAD, Ordering::Relaxed);
        fits
    }
}

struct Preparer {
    log_directory: PathBuf,
    stream: u32,
    segment_bytes: usize,
    next_index: u32,
    ready: Producer<Segment>,
    retired: Consumer<Segment>,
    shared: Arc<Shared>,
    on_failure: OnFailure,
}

impl Preparer {
    fn run(mut self) {
        loop {
            while self.retired.pop().is_some() {}
            if self.shared.stop.load(Ordering::Acquire) {
                return;
            }
            if self.ready.len() < self.shared.segments_ahead.load(Ordering::Relaxed) {
                if let Err(error) = self.make_one() {
                    self.shared
                        .status
                        .set_state(State::Failed(error.raw_os_error().unwrap_or(0)));
                    (self.on_failure)(&error);
                    return;
                }
                continue;
            }
            std::thread::park_timeout(Duration::from_millis(100));
        }
    }

    fn make_one(&mut self) -> io::Result<()> {
        let words = Segment::capacity_words(self.segment_bytes) as u64;
        let segment = Segment::create(
            &self.log_directory,
            self.stream,
            self.next_index,
            words * u64::from(self.next_index),
            self.segment_bytes,
        )?;
        self.next_index += 1;
        if self.ready.push(segment).is_err() {
            unreachable!("only called when the queue has room");
        }
        Ok(())
    }
}
