//! Recorders, each with a stream of the log, lent to whichever thread computes.
//!
//! A stream belongs to a *context* (a scheduler of ggml's) rather than to a
//! thread, because programs with a pool of threads compute one context on any of
//! them. A recorder is lent for the time of one computation; an atomic flag tells
//! that it is out, and nobody waits for one. Contexts that compute at the same
//! time have streams of their own; the stream of a context that is gone goes to
//! the next one.

use std::{
    cell::UnsafeCell,
    io,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering},
};

use capture::{Recorder, plan::Surroundings};
use ggml::foreign::Mirror;
use trace::append::Log;

use crate::{
    library::Library,
    models,
    process::{self, Process, STREAMS},
    settings,
};

pub struct Stream {
    pub recorder: Recorder,
    pub mirror: Mirror,
    log: Log,
    counted_bytes: u64,
    counted_tokens: u64,
}

struct Slot {
    is_lent: AtomicBool,
    /// The context that used it last; 0 when that is gone.
    context: AtomicUsize,
    library: AtomicPtr<Library>,
    stream: UnsafeCell<Option<Box<Stream>>>,
}

// SAFETY: the stream is reached only by who holds `is_lent`.
unsafe impl Sync for Slot {}

static SLOTS: [Slot; STREAMS as usize] = [const {
    Slot {
        is_lent: AtomicBool::new(false),
        context: AtomicUsize::new(0),
        library: AtomicPtr::new(std::ptr::null_mut()),
        stream: UnsafeCell::new(None),
    }
}; STREAMS as usize];

/// Contexts that have a number, by the address of their scheduler.
static CONTEXTS: [(AtomicUsize, AtomicU64); 256] =
    [const { (AtomicUsize::new(0), AtomicU64::new(0)) }; 256];
static NEXT_CONTEXT: AtomicU64 = AtomicU64::new(0);

/// A recorder that is lent; dropping it gives it back.
pub struct Lent {
    slot: &'static Slot,
}

impl Lent {
    pub fn stream(&mut self) -> &mut Stream {
        // SAFETY: `is_lent` is ours; `lend` put a stream there.
        let stream = unsafe { &mut *self.slot.stream.get() };
        stream.as_mut().expect("a slot is lent with its stream")
    }

    /// Keeps the slot for good: its stream must not be used again.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.slot.is_lent.store(false, Ordering::Release);
    }
}

/// Lends a recorder for a computation of `context` (0 when not known) by
/// `library`. `None` when all are out, or no stream can be opened.
#[inline]
pub fn lend(process: &'static Process, library: &'static Library, context: usize) -> Option<Lent> {
    let library_pointer = std::ptr::from_ref(library).cast_mut();
    let fits = |slot: &Slot| slot.library.load(Ordering::Relaxed) == library_pointer;
    let of_context = |slot: &&Slot| slot.context.load(Ordering::Relaxed) == context && fits(slot);
    // Its own, then that of a context that is gone.
    if let Some(lent) = SLOTS.iter().filter(of_context).find_map(try_take) {
        return Some(lent);
    }
    let is_free = |slot: &&Slot| slot.context.load(Ordering::Relaxed) == 0 && fits(slot);
    let adopted = SLOTS.iter().filter(is_free).find_map(try_take);
    if let Some(lent) = adopted.or_else(|| open(process, library)) {
        lent.slot.context.store(context, Ordering::Relaxed);
        return Some(lent);
    }
    // Every slot has its context: take turns.
    let lent = SLOTS.iter().filter(|slot| fits(slot)).find_map(try_take)?;
    lent.slot.context.store(context, Ordering::Relaxed);
    Some(lent)
}

fn try_take(slot: &'static Slot) -> Option<Lent> {
    let taken = slot
        .is_lent
        .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
    // Lazily: a `Lent` that is dropped gives the slot back.
    taken.is_ok().then(|| Lent { slot })
}

/// Opens a stream in a slot that has none.
#[cold]
fn open(process: &'static Process, library: &'static Library) -> Option<Lent> {
    let (number, lent) = (0..).zip(&SLOTS).find_map(|(number, slot)| {
        let is_new = slot.library.load(Ordering::Relaxed).is_null();
        let lent = is_new.then(|| try_take(slot))??;
        // Somebody may have been faster.
        let is_new = slot.library.load(Ordering::Relaxed).is_null();
        is_new.then_some((number, lent))
    })?;
    match Stream::open(process, library, process.number * STREAMS + number) {
        Ok(stream) => {
            // SAFETY: the slot is lent to us.
            unsafe { *lent.slot.stream.get() = Some(Box::new(stream)) };
            let library = std::ptr::from_ref(library).cast_mut();
            lent.slot.library.store(library, Ordering::Relaxed);
            Some(lent)
        }
        Err(error) => {
            let folder = process.log_directory.display();
            process::switch_off(&format!(
                "{folder}: cannot start stream {number} of the log: {error}"
            ));
            None
        }
    }
}

impl Stream {
    fn open(
        process: &'static Process,
        library: &'static Library,
        number: u32,
    ) -> io::Result<Stream> {
        let create = move || {
            let on_failure = |error: &io::Error| {
                let folder = process.log_directory.display();
                process::say(&format!(
                    "{folder}: the log cannot grow: {error}; the program goes on"
                ));
            };
            Log::create(
                &process.log_directory,
                number,
                process.status.clone(),
                Box::new(on_failure),
            )
        };
        let (log, appender) = on_quiet_thread(create)??;
        let mut recorder =
            Recorder::new(appender, process.status.clone(), library.knowledge.clone());
        recorder.watch(Surroundings {
            rules: library.rules,
            place_of: Box::new(models::place_of),
        });
        if settings::get().is_some_and(|s| s.times_itself) {
            recorder.time_itself();
        }
        Ok(Stream {
            recorder,
            mirror: Mirror::default(),
            log,
            counted_bytes: 0,
            counted_tokens: 0,
        })
    }

    /// Adds what was recorded since the last call to what the run's bounds count.
    pub fn count(&mut self, process: &Process) {
        let bytes = self.log.bytes_committed();
        let tokens = self.recorder.counts().tokens;
        process
            .control
            .add(bytes - self.counted_bytes, tokens - self.counted_tokens);
        (self.counted_bytes, self.counted_tokens) = (bytes, tokens);
    }
}

/// Runs `f` on a thread that takes no signals, nor do the threads that it starts:
/// the program's handlers run on the program's threads, and a signal that
/// writing may raise (SIGXFSZ) dies with the thread.
fn on_quiet_thread<R: Send + 'static>(f: impl FnOnce() -> R + Send + 'static) -> io::Result<R> {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets are ours; the first call initialises the one it is given.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let thread = std::thread::Builder::new()
        .name("tensorscope".into())
        .spawn(f);
    // SAFETY: restores what the call above noted.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
    }
    let failed = |_| io::Error::other("a thread of the recorder failed");
    thread?.join().map_err(failed)
}

/// An entry of [`CONTEXTS`] whose context is gone: to be used again, but entries
/// behind it must still be found.
const GONE: usize = usize::MAX - 1;
/// An entry that is being filled.
const TAKEN: usize = usize::MAX;

/// The number of a context in the trace.
pub fn context_number(process: &Process, context: usize) -> u64 {
    let of_process = u64::from(process.number) << 32;
    // Graphs that no scheduler computes belong together.
    let key = context.max(1);
    let known = CONTEXTS
        .iter()
        .take_while(|(known, _)| known.load(Ordering::Acquire) != 0)
        .find(|(known, _)| known.load(Ordering::Acquire) == key);
    if let Some((_, number)) = known {
        return of_process | number.load(Ordering::Relaxed);
    }
    let free = CONTEXTS.iter().find(|(known, _)| {
        [GONE, 0].into_iter().any(|free| {
            known
                .compare_exchange(free, TAKEN, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        })
    });
    match free {
        Some((known, number)) => {
            let next = NEXT_CONTEXT.fetch_add(1, Ordering::Relaxed);
            number.store(next, Ordering::Relaxed);
            known.store(key, Ordering::Release);
            of_process | next
        }
        // More contexts at a time than we can tell apart share a number.
        None => of_process | u64::from(u32::MAX),
    }
}

/// A context is gone; its address may come back as another one.
pub fn forget_context(context: usize) {
    for (known, _) in &CONTEXTS {
        if known.load(Ordering::Relaxed) == context {
            known.store(GONE, Ordering::Relaxed);
        }
    }
    for slot in &SLOTS {
        if slot.context.load(Ordering::Relaxed) == context {
            slot.context.store(0, Ordering::Relaxed);
        }
    }
}

/// Closes every stream that is not in use.
pub fn close_all(process: &Process) {
    for slot in &SLOTS {
        let Some(lent) = try_take(slot) else {
            continue;
        };
        // SAFETY: the slot is lent to us.
        if let Some(stream) = unsafe { (*slot.stream.get()).take() } {
            let counts = stream.recorder.counts();
            let mut recorder = stream.recorder;
            let cycles = recorder.take_self_cycles();
            process.note(
                "closed",
                &format!(
                    "{} evaluations {} tokens {cycles} cycles",
                    counts.evaluations, counts.tokens
                ),
            );
            if let Err(error) = stream.log.finish(recorder.into_appender()) {
                process.note("unclosed", &error.to_string());
            }
        }
        lent.keep();
    }
}

/// In a forked child: the streams are the parent's. Their memory is left alone.
pub fn forget_all() {
    for slot in &SLOTS {
        // SAFETY: the child's only thread that records is here (the caller holds
        // the lock of starting).
        std::mem::forget(unsafe { (*slot.stream.get()).take() });
        slot.library.store(std::ptr::null_mut(), Ordering::Relaxed);
        slot.context.store(0, Ordering::Relaxed);
        slot.is_lent.store(false, Ordering::Release);
    }
}
