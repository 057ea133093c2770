//! Reads experts before the router has chosen them, while the disk has nothing else to do.
//!
//! A thread that does two things:
//!
//! 1. It answers which experts the next layer is likely to choose ([`Ahead::ask`],
//!    [`Ahead::answer`]), beside the computation.
//! 2. It reads slices ([`Ahead::queue`]), few at a time, so that a read that somebody waits
//!    for stands behind few. What was not begun can be taken back ([`Ahead::take_back`]).
//!
//! Nothing depends on it: a slice that could not be read is said to have failed, and whoever
//! needs it reads it then.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::error::FeedError;
use crate::foresight::Question;
use crate::reader::{Reader, Request};

/// Slices in flight at most. More keep a fast disk no busier, and stand in the way of a read
/// that is needed.
pub const MAX_SLICES_IN_FLIGHT: usize = 4;

/// Which slice of which slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SliceId {
    pub pool: u32,
    pub slot: u32,
    pub role: u32,
}

/// A slice to be read.
pub struct SliceRead {
    pub id: SliceId,
    /// Its blocks, one after the other.
    pub requests: Vec<Request>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    Read,
    Failed,
}

pub struct Ahead {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Something was read, answered, or went wrong.
    progress: Condvar,
    /// There is something to do.
    work: Condvar,
}

#[derive(Default)]
struct State {
    /// The layer that it is about, and what to ask.
    question: Option<(u32, Question)>,
    is_asked: bool,
    answer: Option<(u32, Vec<u32>)>,
    queue: VecDeque<SliceRead>,
    begun: Vec<Begun>,
    arrived: Vec<(SliceId, Arrival)>,
    is_over: bool,
    /// The thread is gone, by an error of ours.
    has_failed: bool,
}

struct Begun {
    id: SliceId,
    missing_blocks: usize,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, what: &Condvar, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        what.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ahead {
    pub fn start(reader: Reader) -> Result<Ahead, FeedError> {
        let shared = Arc::new(Shared::default());
        let for_thread = shared.clone();
        let thread = std::thread::Builder::new()
            .name("tensorscope-ahead".into())
            .stack_size(256 << 10)
            .spawn(move || {
                let ahead = || run(&for_thread, reader);
                if catch_unwind(AssertUnwindSafe(ahead)).is_err() {
                    // The reader is gone, and waited for what was in flight.
                    let mut state = for_thread.state();
                    state.has_failed = true;
                    state.fail_all();
                    for_thread.progress.notify_all();
                }
            })
            .map_err(FeedError::Start)?;
        Ok(Ahead {
            shared,
            thread: Some(thread),
        })
    }

    /// Which experts a layer is likely to choose; the answer comes later.
    pub fn ask(&self, layer: u32, question: Question) {
        let mut state = self.shared.state();
        if state.has_failed {
            return;
        }
        state.answer = None;
        state.question = Some((layer, question));
        self.shared.work.notify_one();
    }

    /// The layer and its experts, the likeliest first; once.
    pub fn answer(&self) -> Option<(u32, Vec<u32>)> {
        self.shared.state().answer.take()
    }

    /// Reads slices, in this order, behind what is queued already.
    ///
    /// # Safety
    /// The places are writable and nobody else's until the slice has arrived, was taken back,
    /// or this is dropped.
    pub unsafe fn queue(&self, slices: impl Iterator<Item = SliceRead>) {
        let mut state = self.shared.state();
        state.queue.extend(slices);
        if state.has_failed {
            state.fail_all();
        }
        self.shared.work.notify_one();
    }

    /// What was not begun will not be.
    pub fn take_back(&self, slices: &mut Vec<SliceId>) {
        let mut state = self.shared.state();
        slices.extend(state.queue.drain(..).map(|slice| slice.id));
    }

    /// Slices that have arrived since the last time.
    pub fn arrived(&self, slices: &mut Vec<(SliceId, Arrival)>) {
        slices.append(&mut self.shared.state().arrived);
    }

    /// The same, and waits for one if anything is in flight.
    pub fn wait(&self, slices: &mut Vec<(SliceId, Arrival)>) {
        let mut state = self.shared.state();
        while state.arrived.is_empty() && !(state.begun.is_empty() && state.queue.is_empty()) {
            state = self.shared.wait(&self.shared.progress, state);
        }
        slices.append(&mut state.arrived);
    }

    /// Until it does nothing at all: neither memory nor weights are looked at any more.
    pub fn stop(&self) {
        let mut state = self.shared.state();
        state.queue.clear();
        state.question = None;
        while state.is_asked || !state.begun.is_empty() {
            state = self.shared.wait(&self.shared.progress, state);
        }
        state.answer = None;
        state.arrived.clear();
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.shared.state().is_over = true;
        self.shared.work.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl State {
    fn fail_all(&mut self) {
        let queued = self.queue.drain(..).map(|slice| slice.id);
        let begun = self.begun.drain(..).map(|begun| begun.id);
        let failed = queued.chain(begun).map(|id| (id, Arrival::Failed));
        self.arrived.extend(failed);
        self.question = None;
        self.is_asked = false;
    }

    /// A block of a slice was read.
    fn count_down(&mut self, tag: u64) {
        let is_it = |begun: &Begun| tag_of(begun.id) == tag;
        let Some(at) = self.begun.iter().position(is_it) else {
            return;
        };
        self.begun[at].missing_blocks -= 1;
        if self.begun[at].missing_blocks == 0 {
            let id = self.begun.swap_remove(at).id;
            self.arrived.push((id, Arrival::Read));
        }
    }
}

/// A slot is in few pools, and a slot has few roles.
fn tag_of(id: SliceId) -> u64 {
    u64::from(id.pool) << 40 | u64::from(id.slot) << 8 | u64::from(id.role)
}

fn run(shared: &Shared, mut reader: Reader) {
    let mut tags = Vec::new();
    let mut state = shared.state();
    while !state.is_over {
        if let Some((layer, question)) = state.question.take() {
            state.is_asked = true;
            drop(state);
            // SAFETY: who gives weights back calls `stop` or drops this before.
            let answer = unsafe { question.answer() };
            state = shared.state();
            state.is_asked = false;
            state.answer = Some((layer, answer));
            shared.progress.notify_all();
            continue;
        }
        let mut pushed = Ok(());
        while state.begun.len() < MAX_SLICES_IN_FLIGHT
            && pushed.is_ok()
            && let Some(slice) = state.queue.pop_front()
        {
            state.begun.push(Begun {
                id: slice.id,
                missing_blocks: slice.requests.len(),
            });
            for mut request in slice.requests {
                request.tag = tag_of(slice.id);
                // SAFETY: the place is the slice's alone (contract of `queue`).
                pushed = pushed.and(unsafe { reader.push(request) });
            }
        }
        if state.begun.is_empty() {
            state = shared.wait(&shared.work, state);
            continue;
        }
        drop(state);
        tags.clear();
        let waited = pushed.and_then(|()| reader.wait(&mut tags));
        if waited.is_err() {
            // Which of them went wrong is not known, and does not matter: they are only
            // read too early.
            reader.drain();
        }
        state = shared.state();
        match waited {
            Ok(()) => tags.iter().for_each(|&tag| state.count_down(tag)),
            Err(_) => {
                let begun = std::mem::take(&mut state.begun);
                let failed = begun.iter().map(|begun| (begun.id, Arrival::Failed));
                state.arrived.extend(failed);
            }
        }
        shared.progress.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{Cache, Method};
    use crate::memory::Region;
    use crate::reader::tests::{open, pattern};

    const BLOCK: u32 = 64 << 10;

    /// Slices of two blocks each, and where they are to be.
    fn slices(region: &Region, count: u32) -> Vec<SliceRead> {
        let slice = |number: u32| SliceRead {
            id: SliceId {
                pool: 0,
                slot: number,
                role: 1,
            },
            requests: (2 * number..2 * number + 2)
                .map(|block| Request {
                    file: 0,
                    offset: u64::from(block * BLOCK),
                    address: region.place(u64::from(block * BLOCK), u64::from(BLOCK)),
                    bytes: BLOCK,
                    needed: BLOCK,
                    tag: 0,
                })
                .collect(),
        };
        (0..count).map(slice).collect()
    }

    fn start(path: &std::path::Path, faults: Option<&str>) -> Ahead {
        let faults = faults.map(|text| text.parse().unwrap());
        let files = open(path, Cache::PassedBy);
        let reader = Reader::new(files, Method::IoUringDirect, 4, Arc::default(), faults);
        Ahead::start(reader.unwrap().0).unwrap()
    }

    #[test]
    fn slices_arrive_whole_or_are_said_to_have_failed() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("model");
        let expected = pattern(20 * BLOCK as usize);
        std::fs::write(&path, &expected).unwrap();
        for (faults, arrival) in [
            (None, Arrival::Read),
            (Some("fail=0.2,short=0.2,seed=3"), Arrival::Read),
            (Some("fail=1"), Arrival::Failed),
        ] {
            let (region, _) = Region::new(expected.len() as u64).unwrap();
            let ahead = start(&path, faults);
            // SAFETY: places of a region that outlives `ahead`.
            unsafe { ahead.queue(slices(&region, 10).into_iter()) };
            let mut arrived = Vec::new();
            while arrived.len() < 10 {
                ahead.wait(&mut arrived);
            }
            assert!(arrived.iter().all(|&(_, a)| a == arrival), "{arrived:?}");
            if arrival == Arrival::Read {
                let address = region.place(0, expected.len() as u64) as *const u8;
                // SAFETY: all of it has arrived.
                let found = unsafe { std::slice::from_raw_parts(address, expected.len()) };
                assert!(found == expected);
            }
            drop(ahead);
        }
    }

    #[test]
    fn each_slice_arrives_or_is_taken_back() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("model");
        std::fs::write(&path, pattern(200 * BLOCK as usize)).unwrap();
        let (region, _) = Region::new(u64::from(200 * BLOCK)).unwrap();
        let ahead = start(&path, None);
        // SAFETY: places of a region that outlives `ahead`.
        unsafe { ahead.queue(slices(&region, 100).into_iter()) };
        let (mut taken_back, mut arrived) = (Vec::new(), Vec::new());
        ahead.take_back(&mut taken_back);
        while taken_back.len() + arrived.len() < 100 {
            ahead.wait(&mut arrived);
        }
        let all = taken_back.into_iter().chain(arrived.iter().map(|a| a.0));
        let mut slots: Vec<u32> = all.map(|id| id.slot).collect();
        slots.sort_unstable();
        assert_eq!(slots, (0..100).collect::<Vec<_>>());
        ahead.stop();
        drop(ahead);
    }
}
