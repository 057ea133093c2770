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

use capture::{Recorder, known::Surroundings};
use ggml::foreign::Mirror;
use trace::append::Log;

use crate::{
    cuda,
    library::Library,
    models,
    process::{self, Process, STREAMS},
    settings,
};

pub struct Stream {
    pub recorder: Recorder,
    pub mirror: Mirror,
    /// Evaluations on devices that are still measured.
    pub pending: cuda::Pending,
    /// In the run.
    pub number: u32,
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

impl Slot {
    const fn new() -> Slot {
        Slot {
            is_lent: AtomicBool::new(false),
            context: AtomicUsize::new(0),
            library: AtomicPtr::new(std::ptr::null_mut()),
            stream: UnsafeCell::new(None),
        }
    }
}

static SLOTS: [Slot; STREAMS as usize] = [const { Slot::new() }; STREAMS as usize];

static CONTEXTS: Contexts = Contexts::new();

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
    let pointer = std::ptr::from_ref(library).cast_mut();
    lend_from(&SLOTS, pointer, context, || open(process, library))
}

#[inline]
fn lend_from(
    slots: &'static [Slot],
    library: *mut Library,
    context: usize,
    open: impl FnOnce() -> Option<Lent>,
) -> Option<Lent> {
    let fits = |slot: &Slot| slot.library.load(Ordering::Relaxed) == library;
    let of_context = |slot: &&Slot| slot.context.load(Ordering::Relaxed) == context && fits(slot);
    // Its own, then that of a context that is gone.
    if let Some(lent) = slots.iter().filter(of_context).find_map(try_take) {
        return Some(lent);
    }
    let is_free = |slot: &&Slot| slot.context.load(Ordering::Relaxed) == 0 && fits(slot);
    let adopted = slots.iter().filter(is_free).find_map(try_take);
    if let Some(lent) = adopted.or_else(open) {
        lent.slot.context.store(context, Ordering::Relaxed);
        return Some(lent);
    }
    // Every slot has its context: take turns.
    let lent = slots.iter().filter(|slot| fits(slot)).find_map(try_take)?;
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

fn take_new(slots: &'static [Slot]) -> Option<(u32, Lent)> {
    (0..).zip(slots).find_map(|(number, slot)| {
        let is_new = slot.library.load(Ordering::Relaxed).is_null();
        let lent = is_new.then(|| try_take(slot))??;
        // Somebody may have been faster.
        let is_new = slot.library.load(Ordering::Relaxed).is_null();
        is_new.then_some((number, lent))
    })
}

/// Opens a stream in a slot that has none.
#[cold]
fn open(process: &'static Process, library: &'static Library) -> Option<Lent> {
    let (number, lent) = take_new(&SLOTS)?;
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
        if settings::get().is_some_and(|s| s.measures) {
            recorder.time_itself();
        }
        Ok(Stream {
            recorder,
            mirror: Mirror::default(),
            pending: cuda::Pending::default(),
            number,
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
    let thread = quietly(|| {
        std::thread::Builder::new()
            .name("tensorscope".into())
            .spawn(f)
    });
    let failed = |_| io::Error::other("a thread of the recorder failed");
    thread?.join().map_err(failed)
}

/// Runs `f`; threads that it starts take no signals.
pub fn quietly<R>(f: impl FnOnce() -> R) -> R {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets are ours; the first call initialises the one it is given.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let result = f();
    // SAFETY: restores what the call above noted.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
    }
    result
}

/// Contexts that have a number, by the address of their scheduler.
struct Contexts {
    known: [(AtomicUsize, AtomicU64); 256],
    next: AtomicU64,
}

/// An entry of [`Contexts`] whose context is gone: to be used again, but entries
/// behind it must still be found.
const GONE: usize = usize::MAX - 1;
/// An entry that is being filled.
const TAKEN: usize = usize::MAX;

impl Contexts {
    const fn new() -> Contexts {
        Contexts {
            known: [const { (AtomicUsize::new(0), AtomicU64::new(0)) }; 256],
            next: AtomicU64::new(0),
        }
    }

    fn number(&self, context: usize) -> u64 {
        // Graphs that no scheduler computes belong together.
        let key = context.max(1);
        let known = self
            .known
            .iter()
            .take_while(|(known, _)| known.load(Ordering::Acquire) != 0)
            .find(|(known, _)| known.load(Ordering::Acquire) == key);
        if let Some((_, number)) = known {
            return number.load(Ordering::Relaxed);
        }
        let free = self.known.iter().find(|(known, _)| {
            [GONE, 0].into_iter().any(|free| {
                known
                    .compare_exchange(free, TAKEN, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
            })
        });
        match free {
            Some((known, number)) => {
                let next = self.next.fetch_add(1, Ordering::Relaxed);
                number.store(next, Ordering::Relaxed);
                known.store(key, Ordering::Release);
                next
            }
            // More contexts at a time than we can tell apart share a number.
            None => u64::from(u32::MAX),
        }
    }

    fn forget(&self, context: usize) {
        for (known, _) in &self.known {
            if known.load(Ordering::Relaxed) == context {
                known.store(GONE, Ordering::Relaxed);
            }
        }
    }
}

/// The number of a context in the trace.
pub fn context_number(process: &Process, context: usize) -> u64 {
    u64::from(process.number) << 32 | CONTEXTS.number(context)
}

/// A context is gone; its address may come back as another one.
pub fn forget_context(context: usize) {
    CONTEXTS.forget(context);
    forget_in(&SLOTS, context);
}

fn forget_in(slots: &[Slot], context: usize) {
    for slot in slots {
        if slot.context.load(Ordering::Relaxed) == context {
            slot.context.store(0, Ordering::Relaxed);
        }
    }
}

/// Devices are about to end: what they have ended is logged.
pub fn log_what_devices_ended() {
    for slot in &SLOTS {
        let Some(lent) = try_take(slot) else {
            continue;
        };
        // SAFETY: the slot is lent to us.
        if let Some(stream) = unsafe { (*slot.stream.get()).as_mut() } {
            stream.pending.log_ended(&mut stream.recorder);
        }
        drop(lent);
    }
}

/// Closes every stream that is not in use.
pub fn close_all(process: &Process) {
    for slot in &SLOTS {
        let Some(lent) = try_take(slot) else {
            continue;
        };
        // SAFETY: the slot is lent to us.
        if let Some(mut stream) = unsafe { (*slot.stream.get()).take() } {
            stream.pending.give_up(&mut stream.recorder);
            let counts = stream.recorder.counts();
            process.note(
                "closed",
                &format!(
                    "{} evaluations {} tokens",
                    counts.evaluations, counts.tokens
                ),
            );
            if let Err(error) = stream.log.finish(stream.recorder.into_appender()) {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Slots of a test's own. A library is only ever compared by its address.
    struct Bench {
        slots: &'static [Slot],
    }

    const LIBRARY: *mut Library = std::ptr::dangling_mut();
    const OTHER: *mut Library = std::ptr::without_provenance_mut(4096);

    impl Bench {
        fn new(slots: usize) -> Bench {
            Bench {
                slots: Box::leak((0..slots).map(|_| Slot::new()).collect()),
            }
        }

        fn lend(&self, library: *mut Library, context: usize) -> Option<Lent> {
            lend_from(self.slots, library, context, || {
                let (_, lent) = take_new(self.slots)?;
                lent.slot.library.store(library, Ordering::Relaxed);
                Some(lent)
            })
        }

        fn number(&self, lent: &Lent) -> usize {
            let mut slots = self.slots.iter();
            slots
                .position(|slot| std::ptr::eq(slot, lent.slot))
                .unwrap()
        }

        /// Lends and gives back at once.
        fn turn(&self, context: usize) -> usize {
            self.number(&self.lend(LIBRARY, context).unwrap())
        }
    }

    #[test]
    fn a_context_gets_its_own_stream_again() {
        let bench = Bench::new(4);
        assert_eq!([10, 20, 30].map(|c| bench.turn(c)), [0, 1, 2]);
        assert_eq!([30, 10, 20, 30].map(|c| bench.turn(c)), [2, 0, 1, 2]);
    }

    #[test]
    fn the_stream_of_a_context_that_is_gone_goes_to_the_next_one() {
        let bench = Bench::new(4);
        assert_eq!([10, 20].map(|c| bench.turn(c)), [0, 1]);
        forget_in(bench.slots, 10);
        assert_eq!([20, 30, 20, 30, 40].map(|c| bench.turn(c)), [1, 0, 1, 0, 2]);
    }

    #[test]
    fn contexts_that_compute_at_once_have_streams_of_their_own() {
        let bench = Bench::new(4);
        // Also two computations that nobody knows the context of.
        for context in [10, 0] {
            let first = bench.lend(LIBRARY, context).unwrap();
            let second = bench.lend(LIBRARY, context).unwrap();
            assert_ne!(bench.number(&first), bench.number(&second));
        }
    }

    #[test]
    fn libraries_do_not_share_streams() {
        let bench = Bench::new(2);
        let ours = bench.turn(10);
        forget_in(bench.slots, 10);
        let theirs = bench.lend(OTHER, 10).unwrap();
        assert_ne!(bench.number(&theirs), ours);
        // No slot is new, and none of another library will do.
        assert!(bench.lend(OTHER, 20).is_none());
        assert_eq!(bench.turn(20), ours);
    }

    #[test]
    fn more_contexts_than_streams_take_turns() {
        let bench = Bench::new(2);
        for context in 1..=6 {
            assert!(bench.turn(context * 10) < 2);
        }
    }

    #[test]
    fn nothing_is_lent_twice() {
        let bench = Bench::new(2);
        let first = bench.lend(LIBRARY, 10).unwrap();
        let second = bench.lend(LIBRARY, 20).unwrap();
        assert!(bench.lend(LIBRARY, 30).is_none());
        drop(first);
        assert_eq!(bench.turn(30), 0);
        // Kept for good: not lent again even when its context is gone.
        second.keep();
        forget_in(bench.slots, 20);
        assert_eq!([40, 50].map(|c| bench.turn(c)), [0, 0]);
    }

    #[test]
    fn threads_that_lend_at_once_never_hold_the_same_slot() {
        let bench = Bench::new(3);
        let holders = [const { AtomicUsize::new(0) }; 3];
        std::thread::scope(|scope| {
            for thread in 1..=4 {
                let (bench, holders) = (&bench, &holders);
                scope.spawn(move || {
                    for turn in 0..2000 {
                        let Some(lent) = bench.lend(LIBRARY, thread * 10 + turn % 2) else {
                            continue;
                        };
                        let holder = &holders[bench.number(&lent)];
                        assert_eq!(holder.swap(thread, Ordering::Relaxed), 0);
                        assert_eq!(holder.swap(0, Ordering::Relaxed), thread);
                    }
                });
            }
        });
    }

    #[test]
    fn an_address_that_comes_back_is_another_context() {
        let contexts = Contexts::new();
        assert_eq!([100, 200, 100].map(|c| contexts.number(c)), [0, 1, 0]);
        contexts.forget(100);
        // What lies behind the gap is still known, and the gap is used again.
        assert_eq!(
            [200, 100, 100, 300].map(|c| contexts.number(c)),
            [1, 2, 2, 3]
        );
        contexts.forget(400);
        assert_eq!([200, 100, 300].map(|c| contexts.number(c)), [1, 2, 3]);
        // Graphs of no scheduler belong together.
        assert_eq!([0, 0].map(|c| contexts.number(c)), [4, 4]);
    }

    #[test]
    fn contexts_beyond_the_table_share_a_number() {
        let contexts = Contexts::new();
        let count = contexts.known.len();
        for context in 0..count {
            assert_eq!(contexts.number(1000 + context), context as u64);
        }
        let shared = u64::from(u32::MAX);
        assert_eq!([5000, 5001].map(|c| contexts.number(c)), [shared, shared]);
        contexts.forget(1007);
        assert_eq!(contexts.number(5001), count as u64);
    }
}
