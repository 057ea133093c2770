//! Feeds the model of this program (`tensorscope run -- PROGRAM`): what crate `feed` does,
//! inside somebody else's process, recorded or not.
//!
//! 1. The launcher names a file of settings (`settings::FEED`). It is read when the
//!    first graph comes; a process that computes nothing does nothing.
//! 2. The first graph of a model whose weights are mapped makes this process the one
//!    that is fed: a lock on the settings' file, because the budget is for one.
//! 3. Graphs are computed one at a time, and so are passes of several (`passes.rs`): the whole
//!    of a pass says what the processor will need. Graphs of other models pass.
//! 4. When the mapping goes, the model is gone (`unmapping.rs`), and the next may be fed.
//! 5. A forked child starts anew: its tensors are pointed back at the mapping.
//!
//! What cannot be fed runs as it is, with one line. Once weights are fed, an error makes
//! the computation fail: other numbers are never computed.

use std::{
    ffi::c_int,
    fs::File,
    os::fd::AsRawFd as _,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use feed::{
    FeedError, Feeder, Shares, Stats, Turn,
    hook::Feeding,
    settings::{FeedSettings, Report},
    survey::{Verdict, survey},
};
use ggml::{
    Graph, RawGraph, Tensor,
    foreign::{Mirror, TensorLayout},
};

use crate::{
    hooks::{self, Computation, Fed, compute_observed, view_as_today},
    library::{self, Library},
    lock::Lock,
    passes, streams, unmapping,
};

/// How often the report is written while the program computes.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// A fork does not wait longer for a graph.
const FORK_WAITS: Duration = Duration::from_secs(10);
/// `GGML_STATUS_ABORTED`.
const STATUS_ABORTED: c_int = 1;
/// A model that is on a device is looked at again after so many times what that takes.
const PAUSE_OF_LOOKS: u32 = 100;

static IS_ON: AtomicBool = AtomicBool::new(false);
/// A fork has cut through a graph: this child must not compute with what it got.
static IS_TORN: AtomicBool = AtomicBool::new(false);
static SETTINGS_FILE: OnceLock<PathBuf> = OnceLock::new();
static STATE: Lock<State> = Lock::new(State::new());
/// What the report is made of, so that it does not have to wait for a graph.
static FIGURES: Lock<Option<Figures>> = Lock::new(None);

struct State {
    settings: Option<FeedSettings>,
    feeder: Option<Feeder>,
    mirror: Option<Mirror>,
    /// Open as long as this process is the one that is fed.
    turn: Option<File>,
    /// Models that were fed before this one.
    models: u32,
    /// Number of the last pass of which a graph was fed.
    pass: u64,
    /// Number of the last pass that is not to be fed.
    passed_over: u64,
    looks_again: Option<Instant>,
    said: Vec<String>,
    reported: Option<Instant>,
}

struct Figures {
    pid: u32,
    number: u32,
    refused: Option<String>,
    shares: Option<Shares>,
    stats: Arc<Stats>,
}

/// Whether this process is to be fed.
#[inline]
pub fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Before the program starts; the file is read later.
pub fn start(settings_file: PathBuf) {
    let _ = SETTINGS_FILE.set(settings_file);
    IS_ON.store(true, Ordering::Relaxed);
    unmapping::feeds();
}

/// Computes a graph, its weights fed if they are those of the model.
///
/// # Safety
/// The call that the program made.
pub unsafe fn compute(call: &Computation) -> c_int {
    if IS_TORN.load(Ordering::Relaxed) {
        say("the program forked while a graph was computed; this process cannot compute");
        return STATUS_ABORTED;
    }
    let fed = STATE.with(|state| {
        // SAFETY: the program's call (caller).
        let prepared = catch_unwind(AssertUnwindSafe(|| unsafe { state.prepare(call) }));
        match prepared {
            // SAFETY: as above.
            Ok(Some(library)) => Some(unsafe { state.compute(call, library) }),
            Ok(None) => None,
            Err(_) => {
                state.refuse("an error in feeding itself, before a graph");
                None
            }
        }
    });
    // Outside of the lock: others may compute meanwhile.
    // SAFETY: as above.
    fed.unwrap_or_else(|| unsafe { compute_observed(call, None).0 })
}

/// Feeds nothing in this process from now on: it computes where we cannot see it.
pub fn refuse(reason: &str) {
    STATE.with(|state| state.refuse(reason));
}

impl State {
    const fn new() -> State {
        State {
            settings: None,
            feeder: None,
            mirror: None,
            turn: None,
            models: 0,
            pass: 0,
            passed_over: 0,
            looks_again: None,
            said: Vec::new(),
            reported: None,
        }
    }

    /// `None` when the graph is to be computed as it is.
    ///
    /// # Safety
    /// The call that the program made.
    unsafe fn prepare(&mut self, call: &Computation) -> Option<&'static Library> {
        if self.feeder.is_some() && unmapping::take_gone() {
            self.leave_model();
        }
        let library = match library::of(call.caller, call.real, |_| {}) {
            Ok(library) => library,
            Err(reason) => {
                self.complain(&reason);
                return None;
            }
        };
        let mirror = self.mirror.get_or_insert_default();
        // SAFETY: a live graph of this library (caller).
        match unsafe { library.tensor_layout(call.graph, mirror) } {
            Ok(TensorLayout::Today) => {}
            Ok(_) => {
                let path = &library.path;
                self.complain(&format!("{path}: this llama.cpp is too old to be fed"));
                return None;
            }
            Err(reason) => {
                self.complain(&reason);
                return None;
            }
        }
        if self.feeder.is_none() {
            let whole = passes::current();
            let is_paused = self.looks_again.is_some_and(|at| at > Instant::now());
            if is_paused || whole.is_some_and(|whole| whole.number == self.passed_over) {
                return None;
            }
            let graph = whole.map_or(call.graph, |whole| whole.graph);
            let mut copy = None;
            // SAFETY: as above; the layout was found out, and a pass is of the same library.
            let view = unsafe { Graph::from_ptr(view_as_today(library, graph, &mut copy)) }?;
            if self.begin(view, library).is_none() {
                self.passed_over = whole.map_or(0, |whole| whole.number);
                return None;
            }
        }
        Some(library)
    }

    /// Which graph of its pass a call computes; `copy` keeps what that needs.
    ///
    /// # Safety
    /// The call that the program made, of a library whose layouts were checked.
    unsafe fn turn<'g>(
        &mut self,
        call: &Computation,
        library: &Library,
        copy: &'g mut Option<RawGraph>,
    ) -> Turn<'g> {
        let Some(whole) = passes::current() else {
            return Turn::Only;
        };
        if whole.number == self.pass {
            return Turn::Further;
        }
        // SAFETY: a live graph (caller), and the one that its scheduler was called with.
        let graphs = unsafe {
            let mut of_call = None;
            let graph = Graph::from_ptr(view_as_today(library, call.graph, &mut of_call));
            let part = graph.map(|graph| {
                let first = graph.nodes().next().map(Tensor::as_ptr);
                (graph.nodes().len(), first)
            });
            let whole = Graph::from_ptr(view_as_today(library, whole.graph, copy));
            whole.zip(part)
        };
        let Some((graph, (nodes, Some(first)))) = graphs else {
            return Turn::Only;
        };
        let is_part =
            nodes < graph.nodes().len() && graph.nodes().any(|node| node.as_ptr() == first);
        match is_part {
            true => {
                self.pass = whole.number;
                Turn::First(graph)
            }
            false => Turn::Only,
        }
    }

    /// Sets up for the model of a graph, if it is one to be fed.
    fn begin(&mut self, view: Graph<'_>, library: &Library) -> Option<()> {
        let ops = &library.knowledge.ops;
        let begin = Instant::now();
        let verdict = survey(view, ops, library.rules).unwrap_or(Verdict::Pass);
        match verdict {
            Verdict::Pass => return None,
            Verdict::NotMapped => {
                self.complain(
                    "the model is not fed: its weights do not lie in a mapped file (--no-mmap?)",
                );
                return None;
            }
            Verdict::OnDevice => {
                self.looks_again = Some(Instant::now() + begin.elapsed() * PAUSE_OF_LOOKS);
                self.complain(
                    "the model is not fed: a device has its weights, all but rows that are \
                     looked up",
                );
                return None;
            }
            Verdict::Feed { .. } => {}
        }
        let path = SETTINGS_FILE.get()?;
        if self.settings.is_none() {
            match FeedSettings::read(path) {
                Ok(settings) => self.settings = Some(settings),
                Err(error) => {
                    let path = path.display();
                    self.refuse(&format!("{path}: cannot read how to feed: {error}"));
                    return None;
                }
            }
        }
        if !self.takes_turn(path) {
            self.refuse("another process of this run is fed");
            return None;
        }
        let settings = self.settings.as_ref()?;
        let mut feeder = Feeder::new(settings.props()).distrusting();
        // Threads that are started take no signals of the program's.
        let result = streams::quietly(|| feeder.set_up(view, ops, library.rules));
        if let Err(error) = result {
            self.refuse(&error.to_string());
            return None;
        }
        if !settings.is_quiet {
            feeder.take_notes().iter().for_each(|note| say(note));
            if let Verdict::Feed {
                on_device_bytes: bytes @ 1..,
            } = verdict
            {
                let mebibytes = bytes as f64 / f64::from(1 << 20);
                say(&format!(
                    "{mebibytes:.1} MiB of the model's weights are on a device, and not fed"
                ));
            }
        }
        unmapping::watch(feeder.mapped());
        let figures = Figures {
            pid: std::process::id(),
            number: self.models,
            refused: None,
            shares: feeder.memory().map(|memory| memory.shares),
            stats: feeder.stats.clone(),
        };
        FIGURES.with(|known| *known = Some(figures));
        self.feeder = Some(feeder);
        Some(())
    }

    /// The budget is for one process at a time.
    fn takes_turn(&mut self, path: &Path) -> bool {
        if self.turn.is_some() {
            return true;
        }
        let Ok(file) = File::open(path) else {
            return false;
        };
        // SAFETY: an open descriptor.
        let is_ours = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0;
        self.turn = is_ours.then_some(file);
        is_ours
    }

    /// # Safety
    /// As [`compute`]; the library's layouts were checked.
    unsafe fn compute(&mut self, call: &Computation, library: &'static Library) -> c_int {
        let mut whole = None;
        // SAFETY: the call that the program made.
        let turn = unsafe { self.turn(call, library, &mut whole) };
        let Some(feeder) = &mut self.feeder else {
            // SAFETY: as above.
            return unsafe { compute_observed(call, None).0 };
        };
        let mut feeding = Feeding {
            feeder,
            ops: &library.knowledge.ops,
            rules: library.rules,
            turn,
            error: None,
        };
        let fed = Fed {
            feeding: &mut feeding,
            library,
        };
        // SAFETY: the call that the program made, in layouts that were checked.
        let (status, _) = unsafe { compute_observed(call, Some(fed)) };
        let Feeding { feeder, error, .. } = feeding;
        if let Some(error) = error {
            self.say_new(&error);
        } else if feeder.cannot_be() {
            // Dropped, it points the tensors back at the mapping.
            self.feeder = None;
            unmapping::watch(Vec::new());
            let (path, version) = (&library.path, &library.version);
            self.refuse(&format!(
                "{path}: ggml {version} computes graphs in a way that is not known"
            ));
        }
        self.note_shares();
        if self.reported.is_none_or(|at| at.elapsed() >= REPORT_EVERY) {
            self.reported = Some(Instant::now());
            report();
        }
        status
    }

    /// What is kept changes with what the program uses.
    fn note_shares(&self) {
        let Some(memory) = self.feeder.as_ref().and_then(Feeder::memory) else {
            return;
        };
        FIGURES.with(|figures| {
            if let Some(figures) = figures {
                figures.shares = Some(memory.shares);
            }
        });
    }

    /// The model that was fed was freed.
    fn leave_model(&mut self) {
        self.note_shares();
        report();
        if let Some(mut feeder) = self.feeder.take() {
            feeder.forget_model();
        }
        unmapping::watch(Vec::new());
        self.models += 1;
    }

    /// Feeds nothing in this process from now on.
    #[cold]
    fn refuse(&mut self, reason: &str) {
        IS_ON.store(false, Ordering::Relaxed);
        self.complain(reason);
    }

    /// Says once that something runs as it is, and why.
    #[cold]
    fn complain(&mut self, reason: &str) {
        if self.said.iter().any(|said| said == reason) {
            return;
        }
        self.said.push(reason.to_owned());
        say(&format!("{reason}; it runs as it is"));
        FIGURES.with(|figures| {
            let figures = figures.get_or_insert_with(|| Figures {
                pid: std::process::id(),
                number: self.models,
                refused: None,
                shares: None,
                stats: Arc::default(),
            });
            figures.refused.get_or_insert_with(|| reason.to_owned());
        });
        report();
    }

    fn say_new(&mut self, error: &FeedError) {
        let text = error.to_string();
        if self.said.last() != Some(&text) {
            say(&text);
            self.said.push(text);
        }
    }
}

/// A line of ours on standard error.
fn say(text: &str) {
    let line = format!("tensorscope: {}\n", text.replace('\n', " "));
    // In one piece, so that lines of other threads do not mix with it.
    // SAFETY: a buffer and its length.
    unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
}

/// Writes down what was done so far; without it the launcher has less to say.
fn report() {
    let Some(folder) = SETTINGS_FILE.get().and_then(|file| file.parent()) else {
        return;
    };
    FIGURES.with(|figures| {
        let pid = std::process::id();
        if let Some(figures) = figures.as_ref().filter(|figures| figures.pid == pid) {
            let report = Report {
                pid,
                refused: figures.refused.clone(),
                shares: figures.shares,
                fed: figures.stats.snapshot(),
            };
            let _ = report.write(folder, figures.number);
        }
    });
}

/// When the program ends.
pub fn at_exit() {
    if SETTINGS_FILE.get().is_some() {
        report();
    }
}

/// Nobody may be inside when memory is copied. A graph that takes too long, or whose
/// own thread forks, is cut through.
pub fn before_fork() -> bool {
    if SETTINGS_FILE.get().is_none() || hooks::is_computing() {
        return false;
    }
    let is_held = STATE.take_within(FORK_WAITS);
    if is_held {
        FIGURES.take();
    }
    is_held
}

pub fn after_fork_in_parent(is_held: bool) {
    if is_held {
        FIGURES.release();
        STATE.release();
    }
}

/// The child has neither the threads nor the memory of the feeder.
pub fn after_fork_in_child(is_held: bool) {
    passes::after_fork_in_child();
    if !is_held {
        // What the tensors point to stayed with the parent.
        if unmapping::is_watching() {
            IS_TORN.store(true, Ordering::Relaxed);
            IS_ON.store(true, Ordering::Relaxed);
        }
        return;
    }
    unmapping::watch(Vec::new());
    // SAFETY: taken by this thread before the fork, and there is no other thread.
    unsafe {
        let state = STATE.value_while_taken();
        if let Some(feeder) = state.feeder.take() {
            feeder.leave_to_parent();
        }
        // The lock is the parent's as long as that lives.
        state.turn = None;
        *FIGURES.value_while_taken() = None;
    }
    after_fork_in_parent(true);
}
