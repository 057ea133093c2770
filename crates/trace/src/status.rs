//! `log/status`: one mapped page that says how the recording stands.
//!
//! It is allocated before recording starts, so that a full disk cannot keep the
//! recorder from noting what is missing, and it lives in the page cache, so that
//! it survives `kill -9` of the process. Counters are written by the recording
//! threads (`fetch_add`), the state by whoever ends the recording.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read},
    os::fd::AsRawFd,
    path::Path,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use crate::format::{Checksum, STATUS_MAGIC, VERSION};

const STATUS_BYTES: usize = 4096;

/// How a recording ended, or that it has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Still going on, or the process was killed.
    Recording,
    /// Closed in an orderly way.
    Complete,
    /// Ended early with this `errno`; the program went on without us.
    Failed(i32),
}

/// What the page says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    pub state: State,
    pub pid: u32,
    pub evals_committed: u64,
    pub evals_lost: u64,
    pub steps_lost: u64,
    pub accesses_lost: u64,
    pub tick_mismatches: u64,
}

/// On disk. Fields of one cache line's worth of counters follow the fixed part,
/// because only they are written while recording.
#[repr(C)]
struct Page {
    magic: [u8; 8],
    version: u32,
    pid: u32,
    /// 0 recording, 1 complete, 2 failed.
    state: AtomicU32,
    errno: AtomicU32,
    /// Of the state and the counters, once the recording has ended; 0 until then, and in logs that
    /// have none.
    checksum: AtomicU64,
    reserved: [u64; 4],
    evals_committed: AtomicU64,
    evals_lost: AtomicU64,
    steps_lost: AtomicU64,
    accesses_lost: AtomicU64,
    tick_mismatches: AtomicU64,
}

/// The mapped page, on the writing side.
pub struct StatusPage {
    page: *mut Page,
}

// SAFETY: all fields that change are atomics.
unsafe impl Send for StatusPage {}
// SAFETY: as above.
unsafe impl Sync for StatusPage {}

impl StatusPage {
    pub fn create(path: &Path) -> io::Result<StatusPage> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)?;
        let mut bytes = vec![0u8; STATUS_BYTES];
        bytes[..8].copy_from_slice(&STATUS_MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&std::process::id().to_le_bytes());
        // Written, not only sized: the block must exist before the disk is full.
        io::Write::write_all(&mut &file, &bytes)?;
        StatusPage::map(&file)
    }

    /// The page that another process made: counters of several processes add up.
    pub fn open(path: &Path) -> io::Result<StatusPage> {
        if let Err(reason) = read_status(path)? {
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        }
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        StatusPage::map(&file)
    }

    fn map(file: &File) -> io::Result<StatusPage> {
        // SAFETY: a fresh shared mapping of a file of STATUS_BYTES bytes; the
        // result is checked.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                STATUS_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                file.as_raw_fd(),
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(StatusPage { page: page.cast() })
    }

    fn page(&self) -> &Page {
        // SAFETY: the mapping lives as long as self, is page-aligned and large
        // enough, and all-zero counters are valid atomics.
        unsafe { &*self.page }
    }

    pub fn count_committed(&self) {
        self.page().evals_committed.fetch_add(1, Ordering::Relaxed);
        self.seal_again();
    }

    pub fn count_lost(&self, steps: u64, accesses: u64) {
        self.page().evals_lost.fetch_add(1, Ordering::Relaxed);
        self.page().steps_lost.fetch_add(steps, Ordering::Relaxed);
        self.page()
            .accesses_lost
            .fetch_add(accesses, Ordering::Relaxed);
        self.seal_again();
    }

    pub fn count_tick_mismatch(&self) {
        self.page().tick_mismatches.fetch_add(1, Ordering::Relaxed);
        self.seal_again();
    }

    /// A process that goes on after the recording has ended counts on.
    fn seal_again(&self) {
        if self.page().state.load(Ordering::Relaxed) != 0 {
            self.seal();
        }
    }

    fn seal(&self) {
        let page = self.page();
        let words = || {
            let counters = [
                &page.evals_committed,
                &page.evals_lost,
                &page.steps_lost,
                &page.accesses_lost,
                &page.tick_mismatches,
            ];
            let counted = counters.map(|counter| counter.load(Ordering::Relaxed));
            let [a, b, c, d, e] = counted;
            let state = u64::from(page.state.load(Ordering::Acquire));
            let errno = u64::from(page.errno.load(Ordering::Relaxed));
            [state | errno << 32, a, b, c, d, e]
        };
        let mut sealed = words();
        loop {
            page.checksum.store(checksum(sealed), Ordering::Release);
            // Another process may have counted meanwhile.
            let now = words();
            if now == sealed {
                return;
            }
            sealed = now;
        }
    }

    /// The first failure stays; it wins over a later orderly end.
    pub fn set_state(&self, state: State) {
        let page = self.page();
        match state {
            State::Recording => {}
            State::Complete => {
                let _ = page
                    .state
                    .compare_exchange(0, 1, Ordering::Release, Ordering::Relaxed);
            }
            State::Failed(errno) => {
                if page.state.load(Ordering::Acquire) != 2 {
                    page.errno.store(errno as u32, Ordering::Relaxed);
                    page.state.store(2, Ordering::Release);
                }
            }
        }
        self.seal_again();
    }

    pub fn get(&self) -> Status {
        let page = self.page();
        Status {
            state: match page.state.load(Ordering::Acquire) {
                1 => State::Complete,
                2 => State::Failed(page.errno.load(Ordering::Relaxed) as i32),
                _ => State::Recording,
            },
            pid: page.pid,
            evals_committed: page.evals_committed.load(Ordering::Relaxed),
            evals_lost: page.evals_lost.load(Ordering::Relaxed),
            steps_lost: page.steps_lost.load(Ordering::Relaxed),
            accesses_lost: page.accesses_lost.load(Ordering::Relaxed),
            tick_mismatches: page.tick_mismatches.load(Ordering::Relaxed),
        }
    }
}

impl Drop for StatusPage {
    fn drop(&mut self) {
        // SAFETY: mapped by `create` with this length, and no reference outlives self.
        unsafe { libc::munmap(self.page.cast(), STATUS_BYTES) };
    }
}

/// Never 0, which says that there is none.
fn checksum(words: impl IntoIterator<Item = u64>) -> u64 {
    let mut checksum = Checksum::START;
    words.into_iter().for_each(|word| checksum.add(word));
    checksum.value().max(1)
}

/// Reads a status file; `Ok(Err(reason))` when it is not one.
pub fn read_status(path: &Path) -> io::Result<Result<Status, &'static str>> {
    let mut bytes = Vec::new();
    OpenOptions::new()
        .read(true)
        .open(path)?
        .take(STATUS_BYTES as u64)
        .read_to_end(&mut bytes)?;
    if bytes.len() < size_of::<Page>() {
        return Ok(Err("the file is too short"));
    }
    if bytes[..8] != STATUS_MAGIC {
        return Ok(Err("the magic number is wrong"));
    }
    let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    if !(1..=VERSION).contains(&u32_at(8)) {
        return Ok(Err("the version is unknown"));
    }
    let counters = std::mem::offset_of!(Page, evals_committed);
    let sealed = u64_at(std::mem::offset_of!(Page, checksum));
    let state = std::mem::offset_of!(Page, state);
    let words = std::iter::once(state).chain((0..5).map(|i| counters + i * 8));
    if sealed != 0 && sealed != checksum(words.map(u64_at)) {
        return Ok(Err("the checksum is wrong"));
    }
    Ok(Ok(Status {
        state: match u32_at(std::mem::offset_of!(Page, state)) {
            0 => State::Recording,
            1 => State::Complete,
            _ => State::Failed(u32_at(std::mem::offset_of!(Page, errno)) as i32),
        },
        pid: u32_at(12),
        evals_committed: u64_at(counters),
        evals_lost: u64_at(counters + 8),
        steps_lost: u64_at(counters + 16),
        accesses_lost: u64_at(counters + 24),
        tick_mismatches: u64_at(counters + 32),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_to_a_closed_page_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("status");
        let status = StatusPage::create(&path).unwrap();
        status.count_committed();
        status.count_lost(3, 9);
        let read = || read_status(&path).unwrap();
        assert_eq!(read().unwrap(), status.get());
        status.set_state(State::Complete);
        assert_eq!(read().unwrap(), status.get());
        // A process that goes on.
        status.count_tick_mismatch();
        assert_eq!(read().unwrap(), status.get());
        let sound = std::fs::read(&path).unwrap();
        for at in (16..32).chain(64..104) {
            let mut bytes = sound.clone();
            bytes[at] ^= 1 << (at % 8);
            std::fs::write(&path, bytes).unwrap();
            assert!(read().is_err(), "byte {at}");
        }
        // Logs of before have no checksum.
        let mut old = sound;
        old[24..32].fill(0);
        old[95] ^= 1;
        std::fs::write(&path, old).unwrap();
        assert!(read().is_ok());
    }
}
