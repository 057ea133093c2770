//! Pages of the models' mappings: taking them away, and noticing who comes back.

use std::{
    os::unix::ffi::OsStrExt as _,
    path::Path,
    sync::atomic::{AtomicPtr, AtomicU64, Ordering},
    sync::{Mutex, MutexGuard},
};

use support::proc;

pub const PAGE_BYTES: u64 = 4096;

/// A set of pages of model files, numbered through all files: page 0 is
/// the first of file 0, and each file starts on a new number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageSet(Vec<u64>);

impl PageSet {
    pub fn with_pages(pages: u64) -> PageSet {
        PageSet(vec![0; pages.div_ceil(64) as usize])
    }

    pub fn insert(&mut self, page: u64) {
        self.0[(page / 64) as usize] |= 1 << (page % 64);
    }

    pub fn contains(&self, page: u64) -> bool {
        self.0[(page / 64) as usize] >> (page % 64) & 1 == 1
    }

    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().enumerate().flat_map(|(word, &bits)| {
            (0..64)
                .filter(move |bit| bits >> bit & 1 == 1)
                .map(move |bit| word as u64 * 64 + bit)
        })
    }

    pub fn len(&self) -> u64 {
        self.0.iter().map(|bits| u64::from(bits.count_ones())).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// First page number of each file, and the number after the last.
pub fn first_pages(file_bytes: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let mut next = 0;
    let mut first = Vec::new();
    for bytes in file_bytes {
        first.push(next);
        next += bytes.div_ceil(PAGE_BYTES);
    }
    first.push(next);
    first
}

/// A mapped piece of a model file.
struct Piece {
    start: usize,
    bytes: usize,
    first_page: u64,
    /// What its owner may do with it.
    protection: libc::c_int,
}

/// What the signal handler needs; it never changes while it is in use.
struct Watched {
    pieces: Vec<Piece>,
    touched: Vec<AtomicU64>,
}

static WATCHED: AtomicPtr<Watched> = AtomicPtr::new(std::ptr::null_mut());
/// One watch at a time: there is one signal handler.
static ONE_WATCH: Mutex<()> = Mutex::new(());

pub struct Watch {
    watched: Box<Watched>,
    pages: u64,
    old_action: libc::sigaction,
    _one: MutexGuard<'static, ()>,
}

impl Watch {
    /// Finds the mappings of files, given by canonical path and length; the
    /// handler is in place from now.
    pub fn of_files<'p>(files: impl IntoIterator<Item = (&'p Path, u64)>) -> Result<Watch, String> {
        // SAFETY: takes and answers a number.
        watchable(unsafe { libc::sysconf(libc::_SC_PAGESIZE) })?;
        let one = ONE_WATCH
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let (paths, lengths): (Vec<&Path>, Vec<u64>) = files.into_iter().unzip();
        let first = first_pages(lengths);
        let maps = proc::own_maps().map_err(|e| format!("/proc/self/maps: {e}"))?;
        let mut pieces = Vec::new();
        for (path, first_page) in paths.iter().zip(&first) {
            let path = path.as_os_str().as_bytes();
            let mappings = proc::mappings(&maps).filter(|mapping| mapping.path == path);
            pieces.extend(mappings.map(|mapping| Piece {
                start: mapping.start as usize,
                bytes: (mapping.end - mapping.start) as usize,
                first_page: first_page + mapping.file_offset / PAGE_BYTES,
                protection: mapping.protection,
            }));
        }
        if pieces.is_empty() {
            return Err(
                "the model's weights are not mapped (were they repacked?); nothing to audit".into(),
            );
        }
        let pages = *first.last().expect("one more than files");
        let watched = Box::new(Watched {
            pieces,
            touched: (0..pages.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
        });
        WATCHED.store(std::ptr::from_ref(&*watched).cast_mut(), Ordering::Release);
        // SAFETY: a zeroed sigaction is valid; the handler only uses what is
        // allowed in one.
        let old_action = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_ONSTACK;
            let mut old: libc::sigaction = std::mem::zeroed();
            libc::sigaction(libc::SIGSEGV, &action, &mut old);
            old
        };
        Ok(Watch {
            watched,
            pages,
            old_action,
            _one: one,
        })
    }

    pub fn empty_set(&self) -> PageSet {
        PageSet::with_pages(self.pages)
    }

    /// No page may be touched unnoticed from now on.
    pub fn take_away(&mut self) {
        self.watched
            .touched
            .iter()
            .for_each(|word| word.store(0, Ordering::Relaxed));
        self.protect(|_| libc::PROT_NONE);
    }

    /// Every page may be touched again; the pages that were touched since.
    pub fn give_back(&mut self) -> PageSet {
        self.protect(|piece| piece.protection);
        PageSet(
            self.watched
                .touched
                .iter()
                .map(|word| word.swap(0, Ordering::Relaxed))
                .collect(),
        )
    }

    /// Takes away again what was touched since, and tells what that was.
    pub fn take_away_again(&mut self) -> Vec<u64> {
        let mut pages = Vec::new();
        for (index, word) in self.watched.touched.iter().enumerate() {
            let bits = word.swap(0, Ordering::Relaxed);
            pages.extend(
                (0..64)
                    .filter(|bit| bits >> bit & 1 == 1)
                    .map(|bit| index as u64 * 64 + bit),
            );
        }
        let mut at = 0;
        while at < pages.len() {
            // Neighbours go in one call: a call a page takes minutes.
            let run = 1 + pages[at..]
                .windows(2)
                .take_while(|w| w[1] == w[0] + 1)
                .count();
            self.protect_pages(pages[at], run as u64);
            at += run;
        }
        pages
    }

    fn protect(&self, protection: fn(&Piece) -> libc::c_int) {
        for piece in &self.watched.pieces {
            let start = piece.start as *mut libc::c_void;
            // SAFETY: a mapping of the model, which nobody unmaps while it is
            // loaded; reads that come too early end in our handler.
            unsafe { libc::mprotect(start, piece.bytes, protection(piece)) };
        }
    }

    fn protect_pages(&self, first: u64, count: u64) {
        for piece in &self.watched.pieces {
            let last_of_piece = piece.first_page + piece.bytes as u64 / PAGE_BYTES;
            let from = first.max(piece.first_page);
            let to = (first + count).min(last_of_piece);
            if from < to {
                let start = piece.start + ((from - piece.first_page) * PAGE_BYTES) as usize;
                let bytes = ((to - from) * PAGE_BYTES) as usize;
                // SAFETY: as in `protect`.
                unsafe { libc::mprotect(start as *mut libc::c_void, bytes, libc::PROT_NONE) };
            }
        }
    }
}

/// Protection is given back page by page: where a page is larger than ours, the call would be
/// refused, and the access that waits for it would fault for ever.
fn watchable(page_bytes: libc::c_long) -> Result<(), String> {
    match u64::try_from(page_bytes) {
        Ok(PAGE_BYTES) => Ok(()),
        _ => Err(format!(
            "this kernel has pages of {page_bytes} bytes; accesses are audited by pages of \
             {PAGE_BYTES}"
        )),
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.protect(|piece| piece.protection);
        // SAFETY: the action that was there before.
        unsafe { libc::sigaction(libc::SIGSEGV, &self.old_action, std::ptr::null_mut()) };
        WATCHED.store(std::ptr::null_mut(), Ordering::Release);
    }
}

unsafe extern "C" fn on_fault(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let watched = WATCHED.load(Ordering::Acquire);
    // SAFETY: the kernel passes a valid siginfo; `watched` lives while it is set.
    let address = unsafe { (*info).si_addr() } as usize;
    if !watched.is_null() {
        // SAFETY: as above.
        let watched = unsafe { &*watched };
        for piece in &watched.pieces {
            if (piece.start..piece.start + piece.bytes).contains(&address) {
                let page = piece.first_page + (address - piece.start) as u64 / PAGE_BYTES;
                watched.touched[(page / 64) as usize].fetch_or(1 << (page % 64), Ordering::Relaxed);
                let start = address & !(PAGE_BYTES as usize - 1);
                // SAFETY: a page of the model's mapping.
                unsafe {
                    libc::mprotect(
                        start as *mut libc::c_void,
                        PAGE_BYTES as usize,
                        piece.protection,
                    )
                };
                return;
            }
        }
    }
    // Somebody else's fault: let it happen again, without us.
    // SAFETY: the default action is always allowed.
    unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_pages_are_refused_instead_of_faulting_for_ever() {
        assert_eq!(watchable(4096), Ok(()));
        let refusal = watchable(65536).unwrap_err();
        assert!(refusal.contains("pages of 65536 bytes"), "{refusal}");
    }

    #[test]
    fn a_page_set_holds_what_was_put_in() {
        let mut set = PageSet::with_pages(200);
        for page in [0, 63, 64, 199] {
            set.insert(page);
        }
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 63, 64, 199]);
        assert!(set.contains(63) && !set.contains(62));
        assert_eq!(set.len(), 4);
    }
}
