//! Those who take part in a computation begin and tick in order, end in reverse, and a
//! panic of one of them is theirs alone.

use std::{
    cell::RefCell,
    ffi::{c_int, c_void},
    rc::Rc,
    sync::Arc,
};

use capture::{
    RawCplan,
    hook::{Call, Computed, Ended, How, Observer, Part, Split, Stop, compute},
};
use ggml::{Graph, RawGraph};

const STEPS: usize = 3;
const SUCCESS: c_int = 0;
const ABORTED: c_int = 1;

type Said = Rc<RefCell<Vec<String>>>;

struct Speaker {
    name: &'static str,
    said: Said,
    does: fn(&str) -> Result<Part, Stop>,
    notes: Vec<u64>,
}

impl Speaker {
    fn new(name: &'static str, said: &Said, does: fn(&str) -> Result<Part, Stop>) -> Speaker {
        let said = said.clone();
        Speaker {
            name,
            said,
            does,
            notes: Vec::new(),
        }
    }

    fn say(&self, what: &str) -> Result<Part, Stop> {
        self.said
            .borrow_mut()
            .push(format!("{}: {what}", self.name));
        (self.does)(what)
    }
}

impl Observer for Speaker {
    unsafe fn prepare(&mut self, _: &Call<'_>) -> Result<Part, Stop> {
        self.say("prepare")
    }

    unsafe fn begin(&mut self, call: &Call<'_>) -> Result<Part, Stop> {
        self.say(&format!("begin {}", call.note_words))
    }

    unsafe fn tick(&mut self, ticks: u32) -> Result<(), Stop> {
        self.say(&format!("tick {ticks}")).map(drop)
    }

    fn end(&mut self, ended: Ended, notes: &mut Vec<u64>) -> Result<(), Stop> {
        let how = match (ended.is_complete, ended.is_aborted) {
            (true, false) => "complete",
            (false, true) => "aborted",
            other => panic!("{other:?}"),
        };
        self.notes.clone_from(notes);
        notes.push(7);
        self.say(how).map(drop)
    }
}

/// A graph of some steps, whose callback may stop it.
unsafe extern "C" fn real(_: *mut c_void, plan: *mut RawCplan) -> c_int {
    for _ in 0..STEPS {
        // SAFETY: the plan of `computed`.
        let (callback, data) = unsafe { ((*plan).abort_callback, (*plan).abort_callback_data) };
        // SAFETY: the callback with its data.
        if callback.is_some_and(|callback| unsafe { callback(data) }) {
            return ABORTED;
        }
    }
    SUCCESS
}

fn empty_plan() -> RawCplan {
    RawCplan {
        work_size: 0,
        work_data: std::ptr::null_mut(),
        n_threads: 1,
        threadpool: std::ptr::null_mut(),
        abort_callback: None,
        abort_callback_data: std::ptr::null_mut(),
    }
}

fn computed(observers: &mut [&mut dyn Observer]) -> (Computed, AbortedCallback) {
    // SAFETY: all zero is a graph without nodes.
    let mut raw: RawGraph = unsafe { std::mem::zeroed() };
    let graph: *mut c_void = (&raw mut raw).cast();
    let mut plan = empty_plan();
    // SAFETY: a live graph and its plan.
    let computed = unsafe {
        let view = Graph::from_ptr(graph).unwrap();
        compute(observers, view, graph, &mut plan, How::TODAY, real)
    };
    (computed, plan.abort_callback)
}

type AbortedCallback = capture::hook::AbortCallback;

fn takes(what: &str) -> Result<Part, Stop> {
    let note_words = if what == "prepare" { 2 } else { 0 };
    Ok(Part::Takes { note_words })
}

#[test]
fn they_begin_and_tick_in_order_and_end_in_reverse() {
    let said = Said::default();
    let mut first = Speaker::new("first", &said, takes);
    let mut second = Speaker::new("second", &said, takes);
    let (computed, callback) = computed(&mut [&mut first, &mut second]);
    assert_eq!((computed.status, computed.is_blind), (SUCCESS, false));
    assert!(callback.is_none(), "the plan is as it was");
    let expected = "first: prepare, second: prepare, first: begin 4, second: begin 4, \
                    first: tick 1, second: tick 1, first: tick 2, second: tick 2, \
                    first: tick 3, second: tick 3, second: complete, first: complete";
    assert_eq!(said.borrow().join(", "), expected);
    assert_eq!(first.notes, [7], "what the second noted");
    assert!(second.notes.is_empty());
}

/// Has the second of three steps computed in three pieces.
struct Splitter(Said);

impl Observer for Splitter {
    unsafe fn begin(&mut self, call: &Call<'_>) -> Result<Part, Stop> {
        assert!(call.may_split);
        Ok(Part::Takes { note_words: 0 })
    }

    fn split(&self) -> Option<Arc<Split>> {
        Some(Arc::new(Split {
            nodes: vec![std::ptr::null_mut(); STEPS + 2],
            pieces: vec![(1, 3)],
        }))
    }

    unsafe fn tick(&mut self, ticks: u32) -> Result<(), Stop> {
        self.0.borrow_mut().push(format!("splitter: tick {ticks}"));
        Ok(())
    }

    fn end(&mut self, ended: Ended, _: &mut Vec<u64>) -> Result<(), Stop> {
        let line = format!("splitter: {} ticks", ended.ticks);
        self.0.borrow_mut().push(line);
        Ok(())
    }
}

/// Ticks once for each node that is in the graph while it is computed.
unsafe extern "C" fn real_by_nodes(graph: *mut c_void, plan: *mut RawCplan) -> c_int {
    // SAFETY: the graph of the test.
    let nodes = unsafe { (*graph.cast::<RawGraph>()).n_nodes };
    for _ in 0..nodes {
        // SAFETY: the plan of the test, and the callback with its data.
        unsafe { (*plan).abort_callback.unwrap()((*plan).abort_callback_data) };
    }
    SUCCESS
}

#[test]
fn pieces_of_a_step_are_seen_by_who_split_it_alone() {
    let said = Said::default();
    let mut first = Speaker::new("first", &said, takes);
    let mut splitter = Splitter(said.clone());
    let mut own = vec![std::ptr::null_mut(); STEPS];
    // SAFETY: all zero is a graph without nodes.
    let mut raw: RawGraph = unsafe { std::mem::zeroed() };
    (raw.n_nodes, raw.nodes) = (STEPS as i32, own.as_mut_ptr());
    let graph: *mut c_void = (&raw mut raw).cast();
    let mut plan = empty_plan();
    // SAFETY: a live graph and its plan; nobody follows the nodes.
    let computed = unsafe {
        let view = Graph::from_ptr(graph).unwrap();
        let mut observers: [&mut dyn Observer; 2] = [&mut first, &mut splitter];
        compute(
            &mut observers,
            view,
            graph,
            &mut plan,
            How::TODAY,
            real_by_nodes,
        )
    };
    assert_eq!(computed.status, SUCCESS);
    assert_eq!((raw.n_nodes, raw.nodes), (STEPS as i32, own.as_mut_ptr()));
    let expected = "first: prepare, first: begin 2, first: tick 1, splitter: tick 1, \
                    splitter: tick 2, splitter: tick 3, first: tick 2, splitter: tick 4, \
                    first: tick 3, splitter: tick 5, splitter: 5 ticks, first: complete";
    assert_eq!(said.borrow().join(", "), expected);
}

#[test]
fn one_who_leaves_hears_nothing_more() {
    let said = Said::default();
    let mut first = Speaker::new("first", &said, |_| Ok(Part::Leaves));
    let mut second = Speaker::new("second", &said, |what| match what {
        "prepare" => takes(what),
        _ => Ok(Part::Leaves),
    });
    let (computed, _) = computed(&mut [&mut first, &mut second]);
    assert_eq!(computed.status, SUCCESS);
    assert_eq!(
        *said.borrow(),
        ["first: prepare", "second: prepare", "second: begin 2"]
    );
}

#[test]
fn a_stop_ends_the_computation_and_all_who_began() {
    for at in ["begin 4", "tick 2", "tick 3", "complete"] {
        let said = Said::default();
        let mut first = Speaker::new("first", &said, takes);
        let stops: fn(&str) -> Result<Part, Stop> = match at {
            "begin 4" => |what| {
                if what == "begin 4" {
                    Err(Stop)
                } else {
                    takes(what)
                }
            },
            "tick 2" => |what| {
                if what == "tick 2" {
                    Err(Stop)
                } else {
                    takes(what)
                }
            },
            "tick 3" => |what| {
                if what == "tick 3" {
                    Err(Stop)
                } else {
                    takes(what)
                }
            },
            _ => |what| {
                if what == "complete" {
                    Err(Stop)
                } else {
                    takes(what)
                }
            },
        };
        let mut second = Speaker::new("second", &said, stops);
        let (computed, _) = computed(&mut [&mut first, &mut second]);
        assert_eq!(computed.status, ABORTED, "{at}");
        let said = said.borrow();
        let last = said.last().unwrap();
        assert_eq!(last, "first: aborted", "{at}: {said:?}");
        let ended = if at == "complete" {
            "second: complete"
        } else {
            "second: aborted"
        };
        assert_eq!(said[said.len() - 2], ended, "{at}");
    }
}

#[test]
fn a_panic_stops_only_what_it_has_to() {
    struct Harmless(Said);
    impl Observer for Harmless {
        unsafe fn begin(&mut self, _: &Call<'_>) -> Result<Part, Stop> {
            Ok(Part::Takes { note_words: 0 })
        }
        unsafe fn tick(&mut self, ticks: u32) -> Result<(), Stop> {
            self.0.borrow_mut().push(format!("harmless: tick {ticks}"));
            assert!(ticks < 2, "our own defect");
            Ok(())
        }
        fn end(&mut self, _: Ended, _: &mut Vec<u64>) -> Result<(), Stop> {
            unreachable!("it is out")
        }
        fn panicked(&mut self) -> Result<(), Stop> {
            Ok(())
        }
    }
    let said = Said::default();
    let mut first = Harmless(said.clone());
    let mut second = Speaker::new("second", &said, takes);
    let (harmless, _) = computed(&mut [&mut first, &mut second]);
    assert_eq!(harmless.status, SUCCESS);
    assert_eq!(said.borrow().last().unwrap(), "second: complete");
    let ticks = said.borrow();
    let ticks = ticks.iter().filter(|line| line.starts_with("harmless"));
    assert_eq!(ticks.count(), 2);

    let said = Said::default();
    let mut fatal = Speaker::new("fatal", &said, |what| match what {
        "tick 2" => panic!("our own defect"),
        _ => takes(what),
    });
    assert_eq!(computed(&mut [&mut fatal]).0.status, ABORTED);
    assert_eq!(said.borrow().last().unwrap(), "fatal: tick 2");
}
