//! Around one call of `ggml_graph_compute`: whoever takes part in it, as a chain.
//!
//! 1. Each [`Observer`] says whether the graph is its business, then begins, in the order
//!    of the chain.
//! 2. Our callback is put into the cplan. ggml calls it on thread 0 after each executed
//!    node, before the barrier: the node's inputs are still intact. Each observer gets the
//!    tick, in the order of the chain; then the program's own callback.
//! 3. When the real function returns, the cplan is as it was, and the observers end, in
//!    reverse order.
//!
//! One of them may have steps computed in pieces ([`Split`]): nodes of its own stand in the
//! graph while it is computed. It gets a tick for each piece, the others one for each step
//! of the program's graph, as if nothing had happened.
//!
//! So who stands first sees the program's own graph, and who stands last is closest to the
//! computation. Without observers the graph is computed exactly as without us, and a panic
//! of ours never reaches the program.

use std::{
    ffi::{c_int, c_void},
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use ggml::Graph;

mod split;

pub use self::split::Split;
use self::split::{Nodes, Pieces, is_laid_out_as};
use crate::rounds::{self, Progress, Rounds};

/// `ggml_abort_callback`.
pub type AbortCallback = Option<unsafe extern "C" fn(*mut c_void) -> bool>;

/// The part of `ggml_cplan` that has kept its layout since 2024.
#[repr(C)]
pub struct RawCplan {
    pub work_size: usize,
    pub work_data: *mut u8,
    pub n_threads: c_int,
    pub threadpool: *mut c_void,
    pub abort_callback: AbortCallback,
    pub abort_callback_data: *mut c_void,
}

/// `ggml_graph_compute`.
pub type ComputeFn = unsafe extern "C" fn(*mut c_void, *mut RawCplan) -> c_int;

/// `GGML_STATUS_SUCCESS`.
const STATUS_SUCCESS: c_int = 0;
/// `GGML_STATUS_ABORTED`.
const STATUS_ABORTED: c_int = 1;

/// Where a `ggml_cplan` has its abort callback, and its data behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CplanLayout {
    /// [`RawCplan`].
    Today,
    /// Until 2024-08-30 there was no `threadpool`.
    WithoutThreadpool,
}

impl CplanLayout {
    /// Bytes from the start of the cplan.
    pub fn callback_offset(self) -> usize {
        let today = std::mem::offset_of!(RawCplan, abort_callback);
        match self {
            CplanLayout::Today => today,
            CplanLayout::WithoutThreadpool => std::mem::offset_of!(RawCplan, threadpool),
        }
    }
}

/// When the backend calls the abort callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ticks {
    /// On thread 0 after each node.
    AfterEachNode,
    /// Until 2024-06-24; see [`crate::rounds`].
    InRounds,
}

/// A graph that is about to be computed.
pub struct Call<'g> {
    pub graph: Graph<'g>,
    pub threads: c_int,
    /// What all observers may note at most; known when they begin.
    pub note_words: usize,
    /// Whether [`Observer::split`] would be followed.
    pub may_split: bool,
    /// Addresses of the memory that its kernels use meanwhile.
    pub work: Range<usize>,
}

/// The computation must not go on; why is for the observer to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop;

/// Whether an observer takes part in a computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// It does, and notes at most so many words (see [`Observer::end`]).
    Takes { note_words: usize },
    /// None of its methods is called any more for this graph.
    Leaves,
}

/// How a computation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// To its last node.
    pub is_complete: bool,
    /// The program, or one of us, stopped it.
    pub is_aborted: bool,
    pub ticks: u32,
}

/// Somebody who takes part in the computation of graphs.
///
/// All methods are called on the thread that computes.
pub trait Observer {
    /// Looks at a graph before anybody begins.
    ///
    /// # Safety
    /// The graph is live and about to be computed, its inputs are filled, and its layout is
    /// what crate `ggml` says.
    unsafe fn prepare(&mut self, _call: &Call<'_>) -> Result<Part, Stop> {
        Ok(Part::Takes { note_words: 0 })
    }

    /// The last moment before the computation; `Leaves` if it cannot take part after all.
    ///
    /// # Safety
    /// As [`Observer::prepare`], which was called with the same graph.
    unsafe fn begin(&mut self, call: &Call<'_>) -> Result<Part, Stop>;

    /// Nodes to be computed instead, of the graph that began: whoever gives them gets its
    /// ticks by these. One observer of a chain at most.
    fn split(&self) -> Option<Arc<Split>> {
        None
    }

    /// Step number `ticks - 1` was executed; the next one has not begun on any thread.
    ///
    /// # Safety
    /// Between `begin` and `end`.
    unsafe fn tick(&mut self, _ticks: u32) -> Result<(), Stop> {
        Ok(())
    }

    /// `notes` go into the record of the evaluation, if somebody who began earlier writes
    /// one.
    fn end(&mut self, ended: Ended, notes: &mut Vec<u64>) -> Result<(), Stop>;

    /// Steps that it expects of the graph that began; for backends that say less than they
    /// do ([`crate::rounds`]).
    fn steps(&self) -> u32 {
        0
    }

    /// One of its methods panicked; none is called any more for this graph.
    fn panicked(&mut self) -> Result<(), Stop> {
        Err(Stop)
    }
}

/// What [`compute`] has to know of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct How {
    pub layout: CplanLayout,
    pub ticks: Ticks,
}

impl How {
    /// As libraries are today.
    pub const TODAY: How = How {
        layout: CplanLayout::Today,
        ticks: Ticks::AfterEachNode,
    };
}

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Computed {
    pub status: c_int,
    /// How far the backend was could not be followed: nobody got all ticks.
    pub is_blind: bool,
}

/// Computes `graph` with `real`, observed. `view` is `graph` in our layout.
///
/// # Safety
/// `graph` and `cplan` are what `ggml_graph_compute` was called with, `real` is that
/// function, the layouts are those that were checked, and `view` stays valid meanwhile.
pub unsafe fn compute(
    observers: &mut [&mut dyn Observer],
    view: Graph<'_>,
    graph: *mut c_void,
    cplan: *mut RawCplan,
    how: How,
    real: ComputeFn,
) -> Computed {
    // SAFETY: the fields lie in front of what moved.
    let (threads, work_data, work_size) =
        unsafe { ((*cplan).n_threads, (*cplan).work_data, (*cplan).work_size) };
    let mut call = Call {
        graph: view,
        threads,
        work: work_data as usize..(work_data as usize).saturating_add(work_size),
        note_words: 0,
        // SAFETY: a live graph (caller).
        may_split: how.ticks == Ticks::AfterEachNode && unsafe { is_laid_out_as(graph, view) },
    };
    let mut chain = Chain {
        observers,
        parts: 0,
        ticks: 0,
        split: None,
        is_stopped: false,
    };
    chain.prepare(&mut call);
    chain.begin(&call);
    let (mut status, mut is_blind) = (STATUS_ABORTED, false);
    if chain.parts == 0 && !chain.is_stopped {
        // SAFETY: the call that the program made.
        let status = unsafe { real(graph, cplan) };
        return Computed { status, is_blind };
    }
    if !chain.is_stopped {
        // SAFETY: as promised by the caller.
        (status, is_blind) = unsafe { chain.run(graph, cplan, how, real) };
    }
    chain.end(status, call.note_words);
    // A stop at the last node's own tick comes too late for the backend to notice.
    match chain.is_stopped {
        true => Computed {
            status: STATUS_ABORTED,
            is_blind: false,
        },
        false => Computed { status, is_blind },
    }
}

/// Those who take part in a call.
struct Chain<'a, 'o> {
    observers: &'a mut [&'o mut dyn Observer],
    /// A bit for each observer that takes part. No list: recording allocates nothing.
    parts: u8,
    /// Steps of the program's graph that were executed.
    ticks: u32,
    split: Option<Pieces>,
    is_stopped: bool,
}

impl Chain<'_, '_> {
    /// Calls an observer; `None` after a panic that stops nothing.
    #[inline]
    fn call<T>(
        &mut self,
        at: usize,
        f: impl FnOnce(&mut dyn Observer) -> Result<T, Stop>,
    ) -> Option<T> {
        let observer = &mut *self.observers[at];
        let result = match catch_unwind(AssertUnwindSafe(|| f(observer))) {
            Ok(result) => result.map(Some),
            Err(_) => {
                self.parts &= !(1 << at);
                self.observers[at].panicked().map(|()| None)
            }
        };
        result.unwrap_or_else(|Stop| {
            self.is_stopped = true;
            None
        })
    }

    fn takes_part(&self, at: usize) -> bool {
        self.parts >> at & 1 == 1
    }

    fn prepare(&mut self, call: &mut Call<'_>) {
        for at in 0..self.observers.len() {
            // SAFETY: a live graph whose inputs are filled (`compute`).
            let part = self.call(at, |observer| unsafe { observer.prepare(call) });
            if let Some(Part::Takes { note_words }) = part {
                call.note_words += note_words;
                self.parts |= 1 << at;
            }
        }
    }

    /// After a stop those who have begun still end, and so does who stopped: it has to put
    /// back what it changed.
    fn begin(&mut self, call: &Call<'_>) {
        for at in 0..self.observers.len() {
            let is_late = self.is_stopped;
            if !self.takes_part(at) || is_late {
                self.parts &= !(1 << at);
                continue;
            }
            // SAFETY: a live graph whose inputs are filled (`compute`).
            let part = self.call(at, |observer| unsafe { observer.begin(call) });
            if part.is_none_or(|part| part == Part::Leaves) && !self.is_stopped {
                self.parts &= !(1 << at);
            }
        }
    }

    /// # Safety
    /// As [`compute`].
    unsafe fn run(
        &mut self,
        graph: *mut c_void,
        cplan: *mut RawCplan,
        how: How,
        real: ComputeFn,
    ) -> (c_int, bool) {
        self.split = (0..self.observers.len())
            .filter(|&at| self.takes_part(at))
            .find_map(|at| {
                let split = self.observers[at].split()?;
                Some(Pieces::new(split, at))
            });
        // SAFETY: a live graph, which nobody else reads until `real` (caller).
        let nodes = unsafe { Nodes::swap(graph.cast(), self.split.as_ref()) };
        let steps = self.observers.iter().map(|observer| observer.steps());
        let steps = steps.max().unwrap_or(0);
        let slot = cplan.wrapping_byte_add(how.layout.callback_offset());
        let callback: *mut AbortCallback = slot.cast();
        // SAFETY: the data follow the callback in every layout; the cplan belongs to this
        // call and nobody else reads it until `real`.
        let data: *mut *mut c_void = unsafe { callback.add(1).cast() };
        // SAFETY: as above.
        let before = unsafe { (callback.read(), data.read()) };
        let mut ticking = Ticking {
            chain: std::ptr::from_mut(self).cast(),
            chained: before,
        };
        let pointer = &raw mut ticking;
        // SAFETY: the graph that everybody has begun with, and its cplan.
        let mut rounds = unsafe { Rounds::new(pointer, graph, cplan) };
        let ours: (AbortCallback, *mut c_void) = match how.ticks {
            Ticks::AfterEachNode => (Some(on_tick), pointer.cast()),
            Ticks::InRounds => (Some(rounds::on_call), (&raw mut rounds).cast()),
        };
        // SAFETY: as above; what the callback uses outlives the call of `real`.
        let status = unsafe {
            callback.write(ours.0);
            data.write(ours.1);
            let status = real(graph, cplan);
            callback.write(before.0);
            data.write(before.1);
            status
        };
        drop(nodes);
        let is_blind = how.ticks == Ticks::InRounds
            && status == STATUS_SUCCESS
            // SAFETY: the backend says that all nodes are done.
            && unsafe { rounds.finish(steps) } == Progress::NotFound;
        (status, is_blind)
    }

    /// A step was executed.
    #[inline]
    fn tick(&mut self) {
        if self.is_stopped {
            return;
        }
        let mut pieces = None;
        if let Some(split) = &mut self.split {
            let is_complete = split.tick(self.ticks);
            pieces = Some((split.observer, split.ticks));
            if !is_complete {
                let (at, ticks) = (split.observer, split.ticks);
                if self.takes_part(at) {
                    // SAFETY: begun, and not ended yet.
                    self.call(at, |observer| unsafe { observer.tick(ticks) });
                }
                return;
            }
        }
        self.ticks += 1;
        for at in 0..self.observers.len() {
            let ticks = match pieces {
                Some((splits, ticks)) if splits == at => ticks,
                _ => self.ticks,
            };
            if self.takes_part(at) {
                // SAFETY: begun, and not ended yet.
                self.call(at, |observer| unsafe { observer.tick(ticks) });
            }
        }
    }

    fn end(&mut self, status: c_int, note_words: usize) {
        let mut notes = Vec::with_capacity(note_words);
        for at in (0..self.observers.len()).rev() {
            let ended = Ended {
                is_complete: status == STATUS_SUCCESS && !self.is_stopped,
                is_aborted: status == STATUS_ABORTED || self.is_stopped,
                ticks: match &self.split {
                    Some(split) if split.observer == at => split.ticks,
                    _ => self.ticks,
                },
            };
            if self.takes_part(at) {
                self.call(at, |observer| observer.end(ended, &mut notes));
            }
        }
    }
}

/// The callback's data while a graph is computed.
pub(crate) struct Ticking {
    chain: *mut Chain<'static, 'static>,
    /// The program's own callback.
    pub(crate) chained: (AbortCallback, *mut c_void),
}

impl Ticking {
    /// A step was executed.
    ///
    /// # Safety
    /// While the graph is computed, on the thread that does.
    #[inline]
    pub(crate) unsafe fn tick(&mut self) {
        // SAFETY: `Chain::run` does not touch the chain while the graph is computed.
        unsafe { (*self.chain).tick() };
    }

    pub(crate) fn ticks(&self) -> u32 {
        // SAFETY: as in `tick`.
        unsafe { (*self.chain).ticks }
    }

    pub(crate) fn is_stopped(&self) -> bool {
        // SAFETY: as in `tick`.
        unsafe { (*self.chain).is_stopped }
    }
}

unsafe extern "C" fn on_tick(data: *mut c_void) -> bool {
    // SAFETY: `Chain::run` put it there and does not touch it while the graph is computed;
    // only thread 0 calls.
    let ticking = unsafe { &mut *data.cast::<Ticking>() };
    // SAFETY: ggml calls after each executed node.
    unsafe { ticking.tick() };
    if ticking.is_stopped() {
        return true;
    }
    let (callback, data) = ticking.chained;
    // SAFETY: the program's own callback with its own data.
    callback.is_some_and(|callback| unsafe { callback(data) })
}
