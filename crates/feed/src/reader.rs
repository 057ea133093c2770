//! Many reads in flight, each brought to its end: short reads are continued, failed
//! ones are asked for again, and what stays bad is an error with file and offset.
//!
//! Two ways of asking: io_uring, or threads that call pread (`reader/threads.rs`) where
//! there is no io_uring.

mod threads;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use support::direct::{Next, Read, Ring, Waiting};

use crate::error::FeedError;
use crate::faults::{Fault, Faults};
use crate::files::{Files, Method};

/// Times that one read is asked for before it is an error.
const MAX_ATTEMPTS: u32 = 12;
/// The first attempts follow at once, the later ones after a pause that doubles.
const ATTEMPTS_AT_ONCE: u32 = 4;
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// Bytes of a file that shall be at an address.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub file: u32,
    pub offset: u64,
    pub address: usize,
    /// A multiple of the files' alignment.
    pub bytes: u32,
    /// Less than `bytes` where the file may end.
    pub needed: u32,
    /// Given back when it is done.
    pub tag: u64,
}

/// What all readers of a model have done so far.
#[derive(Debug, Default)]
pub struct Work {
    pub bytes: AtomicU64,
    pub reads: AtomicU64,
    pub repeated: AtomicU64,
}

enum Backend {
    Uring(Box<Ring>),
    Threads(threads::Threads),
}

/// One asker. Not shared: each thread that reads has its own.
pub struct Reader {
    backend: Backend,
    files: Arc<Files>,
    faults: Option<Faults>,
    work: Arc<Work>,
    active: Vec<Active>,
    free: Vec<u32>,
    in_flight: usize,
    done: Vec<(u32, i32)>,
}

#[derive(Clone, Copy)]
struct Active {
    request: Request,
    got: u32,
    attempts: u32,
}

impl Reader {
    /// With at most `depth` reads in flight. Why io_uring is not used is answered
    /// beside.
    pub fn new(
        files: Arc<Files>,
        method: Method,
        depth: u32,
        work: Arc<Work>,
        faults: Option<Faults>,
    ) -> io::Result<(Reader, Option<String>)> {
        let mut refused = None;
        let backend = match method {
            Method::IoUringDirect => match Ring::new(depth) {
                Ok(uring) => Some(Backend::Uring(Box::new(uring))),
                Err(error) => {
                    refused = Some(error.to_string());
                    None
                }
            },
            Method::PreadDirect | Method::PreadBuffered => None,
        };
        let backend = match backend {
            Some(backend) => backend,
            None => Backend::Threads(threads::Threads::new(depth, files.is_direct)?),
        };
        let reader = Reader {
            backend,
            files,
            faults,
            work,
            active: Vec::new(),
            free: Vec::new(),
            in_flight: 0,
            done: Vec::new(),
        };
        Ok((reader, refused))
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Queues a read; `wait` or `send` sends it.
    ///
    /// # Safety
    /// The `bytes` at the address are writable and nobody else's until the tag comes
    /// back from `wait`, or until this reader is dropped.
    pub unsafe fn push(&mut self, request: Request) -> Result<(), FeedError> {
        let slot = self.begin(request);
        self.ask(slot, Next::AtOnce)
    }

    /// Queues reads of which at most `at_once` are in flight at a time, the first ones first: the
    /// kernel itself begins the next one when one has ended. A disk that answers many reads
    /// together would otherwise give the first with the last.
    ///
    /// # Safety
    /// As that of [`Reader::push`], for each.
    pub unsafe fn push_in_turns(
        &mut self,
        requests: &[Request],
        at_once: usize,
    ) -> Result<(), FeedError> {
        let at_once = match self.backend {
            Backend::Uring(_) => at_once.clamp(1, requests.len().max(1)),
            // Its threads take one after the other anyway.
            Backend::Threads(_) => requests.len().max(1),
        };
        for first in 0..at_once {
            let mut turn = requests.iter().skip(first).step_by(at_once).peekable();
            while let Some(&request) = turn.next() {
                let slot = self.begin(request);
                let next = match turn.peek() {
                    Some(_) => Next::Afterwards,
                    None => Next::AtOnce,
                };
                self.ask(slot, next)?;
            }
        }
        Ok(())
    }

    fn begin(&mut self, request: Request) -> u32 {
        let active = Active {
            request,
            got: 0,
            attempts: 1,
        };
        self.in_flight += 1;
        match self.free.pop() {
            Some(slot) => {
                self.active[slot as usize] = active;
                slot
            }
            None => {
                self.active.push(active);
                self.active.len() as u32 - 1
            }
        }
    }

    /// Sends what is queued.
    pub fn send(&mut self) -> Result<(), FeedError> {
        match &mut self.backend {
            Backend::Uring(uring) => uring.send(0).map_err(FeedError::Start),
            Backend::Threads(_) => Ok(()),
        }
    }

    /// Sends what is queued, waits for something to be done, and gives the tags of all
    /// that is.
    pub fn wait(&mut self, tags: &mut Vec<u64>) -> Result<(), FeedError> {
        self.reap(tags, Waiting::ForOne)
    }

    /// The tags of all that is done, without waiting.
    pub fn poll(&mut self, tags: &mut Vec<u64>) -> Result<(), FeedError> {
        self.reap(tags, Waiting::No)
    }

    fn reap(&mut self, tags: &mut Vec<u64>, waiting: Waiting) -> Result<(), FeedError> {
        if self.in_flight == 0 {
            return Ok(());
        }
        let mut done = std::mem::take(&mut self.done);
        let result = match &mut self.backend {
            Backend::Uring(uring) => uring.reap(waiting, &mut done).map_err(FeedError::Start),
            Backend::Threads(threads) => {
                threads.reap(waiting, &mut done);
                Ok(())
            }
        };
        let mut first_error = result.err();
        for (slot, result) in done.drain(..) {
            match self.complete(slot, result) {
                Ok(Some(tag)) => tags.push(tag),
                Ok(None) => {}
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        self.done = done;
        first_error.map_or(Ok(()), Err)
    }

    /// The tag when the read is at its end.
    fn complete(&mut self, slot: u32, result: i32) -> Result<Option<u64>, FeedError> {
        let active = &mut self.active[slot as usize];
        let request = active.request;
        let result = match self.faults.as_mut().and_then(Faults::draw) {
            None => result,
            Some(Fault::Fails) => -libc::EIO,
            Some(Fault::Short) => result.min(self.files.alignment_bytes as i32),
            Some(Fault::Slow(pause)) => {
                std::thread::sleep(pause);
                result
            }
        };
        let Ok(got) = u32::try_from(result) else {
            let cause = io::Error::from_raw_os_error(-result);
            return self.again(slot, cause);
        };
        self.work.bytes.fetch_add(u64::from(got), Ordering::Relaxed);
        self.work.reads.fetch_add(1, Ordering::Relaxed);
        active.got += got;
        if active.got >= request.needed {
            self.retire(slot);
            return Ok(Some(request.tag));
        }
        if got == 0 {
            let offset = request.offset + u64::from(request.needed);
            self.retire(slot);
            return Err(FeedError::Short {
                path: self.files.path(request.file).to_owned(),
                offset,
            });
        }
        // The rest, from the last boundary on.
        active.got -= active.got % self.files.alignment_bytes as u32;
        self.work.repeated.fetch_add(1, Ordering::Relaxed);
        self.ask(slot, Next::AtOnce).map(|()| None)
    }

    fn again(&mut self, slot: u32, cause: io::Error) -> Result<Option<u64>, FeedError> {
        let active = &mut self.active[slot as usize];
        let (request, attempts) = (active.request, active.attempts);
        if attempts >= MAX_ATTEMPTS {
            self.retire(slot);
            return Err(FeedError::Read {
                path: self.files.path(request.file).to_owned(),
                offset: request.offset,
                bytes: request.bytes,
                attempts,
                cause,
            });
        }
        if attempts >= ATTEMPTS_AT_ONCE {
            let doublings = (attempts - ATTEMPTS_AT_ONCE).min(16);
            std::thread::sleep(Duration::from_millis(2 << doublings).min(LONGEST_PAUSE));
        }
        active.attempts += 1;
        self.work.repeated.fetch_add(1, Ordering::Relaxed);
        self.ask(slot, Next::AtOnce).map(|()| None)
    }

    fn ask(&mut self, slot: u32, next: Next) -> Result<(), FeedError> {
        let Active { request, got, .. } = self.active[slot as usize];
        let read = Read {
            slot,
            fd: self.files.fd(request.file),
            offset: request.offset + u64::from(got),
            address: request.address + got as usize,
            bytes: request.bytes - got,
        };
        match &mut self.backend {
            // SAFETY: the place is the request's alone (contract of `push`), the files
            // outlive the reader, and `drop` waits for everything in flight.
            Backend::Uring(uring) => unsafe { uring.push(read, next) }.map_err(FeedError::Start),
            Backend::Threads(threads) => {
                threads.push(read);
                Ok(())
            }
        }
    }

    fn retire(&mut self, slot: u32) {
        self.free.push(slot);
        self.in_flight -= 1;
    }

    /// Waits until nothing is in flight, whatever comes of it.
    pub fn drain(&mut self) {
        let mut done = Vec::new();
        while self.in_flight > 0 {
            match &mut self.backend {
                Backend::Uring(uring) => {
                    if uring.reap(Waiting::ForOne, &mut done).is_err() {
                        // Whether the kernel still writes cannot be known. Who drops the
                        // memory after this would be wrong: end here.
                        std::process::abort();
                    }
                }
                Backend::Threads(threads) => threads.reap(Waiting::ForOne, &mut done),
            }
            for (slot, _) in done.drain(..) {
                self.retire(slot);
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.drain();
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::files::{Cache, Mapping};

    pub fn pattern(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|i| (i * 31 + i / 251) as u8).collect()
    }

    pub fn open(path: &std::path::Path, cache: Cache) -> Arc<Files> {
        let mapping = Mapping {
            start: 0,
            end: 0,
            file_offset: 0,
            device: (0, 0),
            inode: std::fs::metadata(path).unwrap().ino(),
            path: path.to_owned(),
        };
        Arc::new(Files::open(&[&mapping], cache).unwrap().0)
    }

    fn read_all(reader: &mut Reader, bytes: usize, block: u32) -> Result<Vec<u8>, FeedError> {
        let blocks = bytes.div_ceil(block as usize);
        let room = blocks * block as usize;
        let (region, _) = crate::memory::Region::new(room as u64).unwrap();
        let mut tags = Vec::new();
        let mut seen = 0;
        for number in 0..blocks {
            let at = number * block as usize;
            let request = Request {
                file: 0,
                offset: at as u64,
                address: region.place(at as u64, 1),
                bytes: block,
                needed: block.min((bytes - at) as u32),
                tag: number as u64,
            };
            // SAFETY: places of a region that outlives the loop below.
            let pushed = unsafe { reader.push(request) };
            pushed.inspect_err(|_| reader.drain())?;
        }
        while seen < blocks {
            tags.clear();
            let waited = reader.wait(&mut tags);
            waited.inspect_err(|_| reader.drain())?;
            seen += tags.len();
        }
        let address = region.place(0, bytes as u64) as *const u8;
        // SAFETY: read to the end, and nobody writes any more.
        Ok(unsafe { std::slice::from_raw_parts(address, bytes) }.to_vec())
    }

    #[test]
    fn every_method_reads_what_is_in_the_file() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("model");
        let expected = pattern(1_000_001);
        std::fs::write(&path, &expected).unwrap();
        for (method, cache) in [
            (Method::IoUringDirect, Cache::PassedBy),
            (Method::PreadDirect, Cache::PassedBy),
            (Method::PreadBuffered, Cache::Used),
        ] {
            let work = Arc::new(Work::default());
            let files = open(&path, cache);
            let (mut reader, _) = Reader::new(files, method, 8, work.clone(), None).unwrap();
            let found = read_all(&mut reader, expected.len(), 64 << 10).unwrap();
            assert!(found == expected, "{method}");
            assert_eq!(work.bytes.load(Ordering::Relaxed), 1_000_001);
        }
    }

    #[test]
    fn reads_that_fail_now_and_then_are_repeated_and_right() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("model");
        let expected = pattern(3_000_000);
        std::fs::write(&path, &expected).unwrap();
        for method in [Method::IoUringDirect, Method::PreadDirect] {
            let faults = "fail=0.2,short=0.2,slow=0.01:1ms,seed=5".parse().unwrap();
            let work = Arc::new(Work::default());
            let files = open(&path, Cache::PassedBy);
            let (mut reader, _) =
                Reader::new(files, method, 8, work.clone(), Some(faults)).unwrap();
            let found = read_all(&mut reader, expected.len(), 64 << 10).unwrap();
            assert!(found == expected, "{method}");
            assert!(work.repeated.load(Ordering::Relaxed) > 5);
        }
    }

    #[test]
    fn reads_that_take_turns_all_end_and_are_right() {
        const BLOCK: usize = 64 << 10;
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("model");
        let expected = pattern(40 * BLOCK);
        std::fs::write(&path, &expected).unwrap();
        for method in [Method::IoUringDirect, Method::PreadDirect] {
            for (at_once, faults) in [
                (1, None),
                (3, None),
                (100, None),
                (3, Some("fail=0.2,short=0.2,seed=9")),
            ] {
                let faults = faults.map(|text: &str| text.parse().unwrap());
                let files = open(&path, Cache::PassedBy);
                let reader = Reader::new(files, method, 64, Arc::default(), faults);
                let mut reader = reader.unwrap().0;
                let (region, _) = crate::memory::Region::new(expected.len() as u64).unwrap();
                let request = |number: usize| Request {
                    file: 0,
                    offset: (number * BLOCK) as u64,
                    address: region.place((number * BLOCK) as u64, 1),
                    bytes: BLOCK as u32,
                    needed: BLOCK as u32,
                    tag: number as u64,
                };
                let requests: Vec<Request> = (0..40).map(request).collect();
                // SAFETY: places of a region that outlives the reads.
                unsafe { reader.push_in_turns(&requests, at_once) }.unwrap();
                let mut tags = Vec::new();
                while reader.in_flight() > 0 {
                    reader.wait(&mut tags).unwrap();
                }
                tags.sort_unstable();
                assert_eq!(tags, (0..40).collect::<Vec<u64>>());
                let address = region.place(0, expected.len() as u64) as *const u8;
                // SAFETY: read to the end, and nobody writes any more.
                let found = unsafe { std::slice::from_raw_parts(address, expected.len()) };
                assert!(found == expected, "{method}, {at_once} at once");
            }
        }
    }

    #[test]
    fn what_stays_bad_is_an_error_with_file_and_offset() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("model");
        std::fs::write(&path, pattern(300_000)).unwrap();
        let reader = |faults: Option<Faults>| {
            let files = open(&path, Cache::PassedBy);
            let work = Arc::default();
            Reader::new(files, Method::IoUringDirect, 8, work, faults)
                .unwrap()
                .0
        };
        let always = Some("fail=1".parse().unwrap());
        let error = read_all(&mut reader(always), 300_000, 64 << 10).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("model: cannot read 65536 bytes at offset"),
            "{text}"
        );
        // More than there is.
        let error = read_all(&mut reader(None), 400_000, 64 << 10).unwrap_err();
        assert!(error.to_string().contains("ends before offset"), "{error}");
    }
}
