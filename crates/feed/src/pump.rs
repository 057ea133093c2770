//! Reads weights ahead of the computation, in the order of their use.
//!
//! 1. The feeder gives the pump a [`Program`]: the reads of one evaluation, in order,
//!    and of the one that is likely to follow.
//! 2. The pump's thread gives each read a place (in the ring, or its own), keeps as
//!    many blocks in flight as the disk wants, and goes on as long as the ring has
//!    room, across the end of the evaluation.
//! 3. The feeder waits for a use before the node that needs it ([`Pump::wait`]), and
//!    gives its place back when all threads have passed that node ([`Pump::release`]).
//!
//! Uses are numbered for good; places are given and taken back in this order, so the
//! ring is a queue of stretches. A stretch is never split: where it does not fit
//! before the ring's end it starts at the beginning. Reading into it begins as soon as
//! its first bytes are free, so that the disk always has something to do.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::depth::Depth;
use crate::error::FeedError;
use crate::memory::Region;
use crate::reader::{Reader, Request};

/// One weight to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    pub weight: u32,
    pub file: u32,
    /// Aligned; the weight starts `phase` bytes further on.
    pub offset: u64,
    pub bytes: u64,
    pub phase: u32,
    /// Of `bytes`, what has to be there (a file may end before).
    pub needed: u64,
    pub place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Ring,
    /// Kept: an address of its own, where the aligned read starts.
    Own(usize),
}

/// The reads of an evaluation.
pub type Program = Arc<Vec<Planned>>;

/// Where the ring lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPlace {
    pub address: usize,
    pub bytes: u64,
}

impl RingPlace {
    pub fn of(region: &Region) -> RingPlace {
        RingPlace {
            address: region.place(0, region.len()),
            bytes: region.len(),
        }
    }
}

/// The feeder's end.
pub struct Pump {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Something became ready, or went wrong, or was emptied.
    progress: Condvar,
    /// There is something to do.
    work: Condvar,
}

#[derive(Default)]
struct State {
    program: Program,
    /// Position in `program` of the next use to get a place.
    at: usize,
    /// What follows when `program` is through; for ever after.
    then: Option<Program>,
    ring: Option<RingPlace>,
    /// Positions that only grow; modulo the ring's size they are places.
    head: u64,
    tail: u64,
    /// Uses with a place that was not given back.
    live: VecDeque<Live>,
    /// Number of the first use in `live`.
    first: u64,
    /// All uses below are read.
    ready: u64,
    /// The use whose blocks are being asked for: number and bytes asked for.
    asking: Option<(u64, u64)>,
    error: Option<FeedError>,
    /// The feeder waits until nothing is in flight and all places are given back.
    is_emptied: bool,
    is_over: bool,
    /// The thread is gone, by an error of ours.
    has_failed: bool,
    /// Time with reads in flight.
    busy: Duration,
}

struct Live {
    planned: Planned,
    /// Where the aligned read starts.
    address: usize,
    /// Blocks that were not read yet.
    missing: u32,
    /// Ring positions where it starts and ends; `None` for a place of its own.
    stretch: Option<(u64, u64)>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pump {
    /// # Safety
    /// Places of the programs and of the rings that it will be given are writable and
    /// not used otherwise as long as the pump lives, but for uses between `wait` and
    /// `release`.
    pub unsafe fn start(reader: Reader, block_bytes: u32, depth: Depth) -> Result<Pump, FeedError> {
        let shared = Arc::new(Shared::default());
        let for_thread = shared.clone();
        let thread = std::thread::Builder::new()
            .name("tensorscope-feed".into())
            .stack_size(256 << 10)
            .spawn(move || {
                let pump = || run(&for_thread, reader, block_bytes, depth);
                if catch_unwind(AssertUnwindSafe(pump)).is_err() {
                    // Whoever waits must not wait for ever.
                    let mut state = for_thread.state();
                    state.has_failed = true;
                    state.is_emptied = false;
                    for_thread.progress.notify_all();
                }
            })
            .map_err(FeedError::Start)?;
        Ok(Pump {
            shared,
            thread: Some(thread),
        })
    }

    /// Forgets what was read ahead and starts with another program. The next use has
    /// the number that is answered.
    pub fn install(&self, program: Program, then: Option<Program>, ring: RingPlace) -> u64 {
        let mut state = self.shared.state();
        state.is_emptied = !state.has_failed;
        self.shared.work.notify_one();
        while state.is_emptied {
            state = self.wait_for_progress(state);
        }
        state.program = program;
        state.at = 0;
        state.then = then;
        state.ring = Some(ring);
        let next = state.first;
        self.shared.work.notify_one();
        next
    }

    /// What follows when the program that is running is through.
    pub fn continue_with(&self, then: Option<Program>) {
        self.shared.state().then = then;
        self.shared.work.notify_one();
    }

    /// Waits until a use is read, and answers its weight's address and the time
    /// waited.
    pub fn wait(&self, number: u64) -> Result<(usize, Duration), FeedError> {
        let mut state = self.shared.state();
        let mut begin = None;
        loop {
            if let Some(error) = state.error.take() {
                return Err(error);
            }
            if state.has_failed {
                return Err(FeedError::Refused(
                    "an error in reading ahead; generation ends here".into(),
                ));
            }
            if number < state.ready {
                let live = &state.live[(number - state.first) as usize];
                let waited = begin.map_or(Duration::ZERO, |begin: Instant| begin.elapsed());
                return Ok((live.address + live.planned.phase as usize, waited));
            }
            begin.get_or_insert_with(Instant::now);
            state = self.wait_for_progress(state);
        }
    }

    /// All uses below `number` are not needed any more.
    pub fn release(&self, number: u64) {
        let mut state = self.shared.state();
        while state.first < number {
            let Some(live) = state.live.pop_front() else {
                break;
            };
            if let Some((_, end)) = live.stretch {
                state.tail = end;
            }
            state.first += 1;
        }
        drop(state);
        self.shared.work.notify_one();
    }

    /// Time with reads in flight so far.
    pub fn busy(&self) -> Duration {
        self.shared.state().busy
    }

    fn wait_for_progress<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.shared
            .progress
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.shared.state().is_over = true;
        self.shared.work.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl State {
    /// Gives places to uses and collects blocks to be asked for, at most `room`.
    fn collect(&mut self, room: usize, block_bytes: u32, requests: &mut Vec<Request>) {
        while requests.len() < room {
            let Some((number, asked)) = self.asking.or_else(|| self.next_place(block_bytes)) else {
                return;
            };
            let live = &self.live[(number - self.first) as usize];
            let planned = live.planned;
            let bytes = (planned.bytes - asked).min(u64::from(block_bytes));
            if let (Some((start, _)), Some(ring)) = (live.stretch, self.ring)
                && start + asked + bytes - self.tail > ring.bytes
            {
                // The rest of its stretch is not free yet.
                self.asking = Some((number, asked));
                return;
            }
            requests.push(Request {
                file: planned.file,
                offset: planned.offset + asked,
                address: live.address + asked as usize,
                bytes: bytes as u32,
                needed: planned.needed.saturating_sub(asked).min(bytes) as u32,
                tag: number,
            });
            let asked = asked + bytes;
            self.asking = (asked < planned.bytes).then_some((number, asked));
        }
    }

    /// A place for the next use, if there is one and it has room.
    fn next_place(&mut self, block_bytes: u32) -> Option<(u64, u64)> {
        if self.at >= self.program.len() {
            let then = self.then.clone().filter(|then| !then.is_empty())?;
            self.program = then;
            self.at = 0;
        }
        let planned = self.program[self.at];
        let (address, stretch) = match planned.place {
            Place::Own(address) => (address, None),
            Place::Ring => {
                let (address, stretch) = self.stretch(planned.bytes)?;
                (address, Some(stretch))
            }
        };
        self.at += 1;
        let number = self.first + self.live.len() as u64;
        self.live.push_back(Live {
            planned,
            address,
            missing: planned.bytes.div_ceil(u64::from(block_bytes)) as u32,
            stretch,
        });
        Some((number, 0))
    }

    /// Address and positions of a stretch of the ring, of which at least the beginning is
    /// free. The rest becomes free as what is in front of it is given back.
    fn stretch(&mut self, bytes: u64) -> Option<(usize, (u64, u64))> {
        let ring = self.ring?;
        assert!(bytes <= ring.bytes, "a weight is larger than the ring");
        let at = self.head % ring.bytes;
        let start = match at + bytes > ring.bytes {
            true => self.head + (ring.bytes - at),
            false => self.head,
        };
        if self.tail == self.head {
            // Empty: nothing is lost by skipping to the beginning.
            self.tail = start;
        }
        if start - self.tail >= ring.bytes {
            return None;
        }
        self.head = start + bytes;
        let address = ring.address + (start % ring.bytes) as usize;
        Some((address, (start, self.head)))
    }

    /// A block of a use is there. Whether something became ready.
    fn arrived(&mut self, number: u64) -> bool {
        self.live[(number - self.first) as usize].missing -= 1;
        let before = self.ready;
        while let Some(live) = self.live.get((self.ready - self.first) as usize)
            && live.missing == 0
        {
            self.ready += 1;
        }
        self.ready > before
    }

    fn empty(&mut self) {
        self.first += self.live.len() as u64;
        self.ready = self.first;
        self.live.clear();
        self.program = Program::default();
        self.then = None;
        self.at = 0;
        (self.head, self.tail) = (0, 0);
        self.asking = None;
        self.error = None;
        self.is_emptied = false;
    }
}

/// The disk, or who needs memory, waits for this thread whenever it waits for a processor.
pub fn be_first() {
    const NICE: libc::c_int = -10;
    // SAFETY: a number of this thread's own; refusal costs speed, nothing else.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, libc::gettid() as libc::id_t, NICE) };
}

fn run(shared: &Shared, mut reader: Reader, block_bytes: u32, mut depth: Depth) {
    be_first();
    let mut requests = Vec::new();
    let mut tags = Vec::new();
    let mut state = shared.state();
    loop {
        if state.is_over {
            drop(state);
            reader.drain();
            return;
        }
        if state.is_emptied || state.error.is_some() && reader.in_flight() > 0 {
            drop(state);
            reader.drain();
            state = shared.state();
            if state.is_emptied {
                state.empty();
                shared.progress.notify_all();
            }
            continue;
        }
        let room = match state.error {
            None => (depth.now() as usize).saturating_sub(reader.in_flight()),
            Some(_) => 0,
        };
        state.collect(room, block_bytes, &mut requests);
        if requests.is_empty() && reader.in_flight() == 0 {
            depth.pause();
            state = shared
                .work
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        let is_full = requests.len() == room;
        drop(state);
        let begin = Instant::now();
        let mut result = Ok(());
        for request in requests.drain(..) {
            // SAFETY: a place of the program or a stretch of the ring, which is nobody
            // else's until the use is released (contract of `start`).
            result = result.and_then(|()| unsafe { reader.push(request) });
        }
        result = result.and_then(|()| reader.wait(&mut tags));
        let took = begin.elapsed();
        depth.note(tags.len(), is_full, took);
        state = shared.state();
        state.busy += took;
        let mut is_progress = false;
        for number in tags.drain(..) {
            is_progress |= state.arrived(number);
        }
        if let Err(error) = result {
            state.error = Some(error);
            is_progress = true;
        }
        if is_progress {
            shared.progress.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(bytes: u64) -> Planned {
        Planned {
            weight: 0,
            file: 0,
            offset: 0,
            bytes,
            phase: 0,
            needed: bytes,
            place: Place::Ring,
        }
    }

    fn state(ring_bytes: u64, program: &[u64]) -> State {
        let program: Program = Arc::new(program.iter().map(|&bytes| planned(bytes)).collect());
        State {
            program: program.clone(),
            then: Some(program),
            ring: Some(RingPlace {
                address: 1 << 30,
                bytes: ring_bytes,
            }),
            ..State::default()
        }
    }

    fn release(state: &mut State, count: usize) {
        for live in state.live.drain(..count) {
            state.tail = live.stretch.unwrap().1;
        }
        state.first += count as u64;
    }

    /// Weights of random sizes through a ring of three of the largest: a use never
    /// overlaps another one that is not given back, and it always goes on.
    #[test]
    fn stretches_never_overlap_and_never_get_stuck() {
        const LARGEST: u64 = 1000;
        let mut random = support::random::Random(7);
        for _ in 0..300 {
            let mut size = || 1 + random.below(LARGEST);
            let sizes: Vec<u64> = (0..9).map(|_| size()).collect();
            let mut state = state(3 * LARGEST, &sizes);
            let mut requests = Vec::new();
            let mut done = 0;
            for _ in 0..200 {
                requests.clear();
                state.collect(usize::MAX, 64, &mut requests);
                for request in &requests {
                    let number = request.tag;
                    let (from, to) = (request.address, request.address + request.bytes as usize);
                    for (other, live) in state.live.iter().enumerate() {
                        let whole = live.address..live.address + live.planned.bytes as usize;
                        if state.first + other as u64 != number {
                            let is_apart = to <= whole.start || whole.end <= from;
                            // What comes later has no bytes asked for yet.
                            assert!(is_apart || state.first + other as u64 > number);
                        }
                    }
                    state.arrived(number);
                }
                // The step that computes and the one that is waited for are held.
                let ready = (state.ready - state.first) as usize;
                assert!(ready >= 2.min(state.live.len()), "stuck: {sizes:?}");
                release(&mut state, ready - 1);
                done += ready - 1;
            }
            assert!(done >= 200, "{done}");
        }
    }
}
