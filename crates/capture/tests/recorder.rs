//! A graph made by hand, "computed" by a function that ticks as ggml does,
//! recorded and read back.

mod fixture;

use std::{
    collections::HashMap, collections::VecDeque, ffi::c_int, ffi::c_void, path::Path, sync::Arc,
};

use capture::{
    Batch, BatchToken, RawCplan, Recorder,
    hook::{How, Observer, compute},
    known::Knowledge,
};
use fixture::{Arena, OPS, api, op};
use ggml::{Fusion, OpNumbers, RawTensor};
use gguf::types::GgmlType;
use trace::{
    append::Log,
    expand::{for_each_access, for_each_route},
    format::{Phase, flags},
    read::{Evaluation, Event, StreamEnd, StreamReader},
    region::Strided,
    status::StatusPage,
    template::{CaptureKind, Direction, FilePlace, TensorKind},
};

const EXPERTS: i64 = 4;

/// Embedding, rope, KV write, router, experts and their weights: one layer, two
/// tokens, two experts each.
struct Graph {
    arena: Arena,
    tokens: *mut RawTensor,
    positions: *mut RawTensor,
    cells: *mut RawTensor,
    sorted: *mut RawTensor,
    weights: *mut RawTensor,
    nodes: Vec<*mut RawTensor>,
    /// What the computation does when it runs: stop after this many ticks.
    ticks: usize,
    routing: [[i32; EXPERTS as usize]; 2],
}

impl Graph {
    fn new() -> Graph {
        let mut a = Arena::default();
        let (f32, i32) = (GgmlType::F32, GgmlType::I32);
        let tokens = a.leaf("inp_tokens", i32, &[2]);
        let positions = a.leaf("inp_pos", i32, &[2]);
        let cells = a.leaf("attn_inp_k_idxs", GgmlType::I64, &[2]);
        let table = a.leaf("token_embd.weight", f32, &[32, 16]);
        let cache = a.leaf("cache_k_l0", f32, &[64, 64]);
        let up = a.leaf("blk.0.ffn_up_exps.weight", f32, &[32, 8, EXPERTS]);
        let logits = a.leaf("leaf_9", f32, &[EXPERTS, 2]);

        let embedded = a.node("GET_ROWS", "inp_embd", f32, &[32, 2], &[table, tokens]);
        let rotated = a.node("ROPE", "Kcur-0", f32, &[32, 2], &[embedded, positions]);
        // Half of each row of the cache.
        let stored = a.view(cache, "cache_k_l0 (view)", &[32, 64], 256, 0);
        let stored = a.make_node(stored, "SET_ROWS", &[rotated, cells, cache]);
        let sorted = a.node(
            "ARGSORT",
            "ffn_moe_argsort-0",
            i32,
            &[EXPERTS, 2],
            &[logits],
        );
        // The two best of four, row by row: not contiguous.
        let chosen = a.view(sorted, "ffn_moe_topk-0", &[2, 2], 4 * EXPERTS as usize, 0);
        let chosen = a.make_node(chosen, "VIEW", &[sorted]);
        let weights = a.node("SOFT_MAX", "ffn_moe_weights-0", f32, &[1, 2, 2], &[logits]);
        let result = a.node(
            "MUL_MAT_ID",
            "ffn_moe_up-0",
            f32,
            &[8, 2, 2],
            &[up, rotated, chosen],
        );
        let weighted = a.node(
            "MUL",
            "ffn_moe_weighted-0",
            f32,
            &[8, 2, 2],
            &[result, weights],
        );
        let nodes = vec![
            embedded, rotated, stored, sorted, chosen, weights, result, weighted,
        ];
        let routing = [[3, 1, 0, 2], [1, 0, 2, 3]];
        Graph {
            arena: a,
            tokens,
            positions,
            cells,
            sorted,
            weights,
            nodes,
            ticks: usize::MAX,
            routing,
        }
    }

    fn feed(&mut self, tokens: [i32; 2], positions: [i32; 2], cells: [i64; 2]) {
        self.arena.fill(self.tokens, &tokens);
        self.arena.fill(self.positions, &positions);
        self.arena.fill(self.cells, &cells);
    }
}

/// Stands for `ggml_graph_compute`: what the graph computes appears when its node
/// has run, and a tick follows each executed node.
unsafe extern "C" fn run(graph: *mut c_void, plan: *mut RawCplan) -> c_int {
    // SAFETY: the tests pass a raw graph whose `grads` holds the test's graph.
    let graph = unsafe { &mut *(*graph.cast::<ggml::RawGraph>()).grads.cast::<Graph>() };
    for (number, &node) in graph
        .nodes
        .clone()
        .iter()
        .filter(|&&node| fixture::is_executed(node))
        .enumerate()
    {
        if number == graph.ticks {
            break;
        }
        if node == graph.sorted {
            graph.arena.fill(node, graph.routing.as_flattened());
        }
        if node == graph.weights {
            graph.arena.fill(node, &[0.75f32, 0.25, 0.625, 0.375]);
        }
        // SAFETY: the callback that `compute` put there, with its data.
        if unsafe { (*plan).abort_callback.unwrap()((*plan).abort_callback_data) } {
            return 1;
        }
    }
    0
}

struct Run {
    directory: tempfile::TempDir,
    status: Arc<StatusPage>,
    log: Log,
    recorder: Recorder,
    /// ggml's number of the next graph.
    uid: u64,
}

impl Run {
    fn new() -> Run {
        let directory = tempfile::tempdir().unwrap();
        let status = Arc::new(StatusPage::create(&directory.path().join("status")).unwrap());
        let (log, appender) =
            Log::create(directory.path(), 0, status.clone(), Box::new(|_| ())).unwrap();
        let place = |file_offset| FilePlace {
            file: 0,
            file_offset,
        };
        let places = HashMap::from([
            (b"token_embd.weight".to_vec(), place(4096)),
            (b"blk.0.ffn_up_exps.weight".to_vec(), place(8192)),
        ]);
        // SAFETY: the names of the ops of the tensors in this test.
        let ops = unsafe { OpNumbers::new(api().ggml_op_name) };
        let knowledge = Arc::new(Knowledge {
            api: api(),
            ops,
            places,
            fusion: Fusion::On,
        });
        let recorder = Recorder::new(appender, status.clone(), knowledge);
        Run {
            directory,
            status,
            log,
            recorder,
            uid: 0,
        }
    }

    fn compute(&mut self, graph: &mut Graph) -> c_int {
        let mut nodes = graph.nodes.clone();
        let mut raw = fixture::raw_graph(&mut nodes);
        raw.grads = std::ptr::from_mut(graph).cast();
        raw.uid = self.uid;
        let mut plan = RawCplan {
            work_size: 0,
            work_data: std::ptr::null_mut(),
            n_threads: 3,
            threadpool: std::ptr::null_mut(),
            abort_callback: None,
            abort_callback_data: std::ptr::null_mut(),
        };
        // SAFETY: a live graph with filled inputs and a plan of our own.
        unsafe {
            let pointer = std::ptr::from_mut(&mut raw).cast();
            let view = ggml::Graph::from_ptr(pointer).unwrap();
            let observers: &mut [&mut dyn Observer] = &mut [&mut self.recorder];
            compute(observers, view, pointer, &mut plan, How::TODAY, run).status
        }
    }

    fn read(self) -> (Vec<Evaluation>, StreamReader, tempfile::TempDir) {
        self.log.finish(self.recorder.into_appender()).unwrap();
        let (evaluations, reader) = read(self.directory.path());
        (evaluations, reader, self.directory)
    }
}

fn read(directory: &Path) -> (Vec<Evaluation>, StreamReader) {
    let mut reader = StreamReader::open(directory, 0).unwrap();
    let mut evaluations = Vec::new();
    while let Some(event) = reader.next_event().unwrap() {
        match event {
            Event::Evaluation(evaluation) => evaluations.push(evaluation),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(reader.end(), StreamEnd::Closed);
    (evaluations, reader)
}

/// `tensor, direction, region, expert` of every access of a step.
fn touched(
    reader: &StreamReader,
    evaluation: &Evaluation,
    step: usize,
) -> Vec<(String, Direction, Strided, Option<u32>)> {
    let template = &reader.definitions.templates[evaluation.template as usize];
    let mut touched = Vec::new();
    for_each_access(template, evaluation, step, |access| {
        let tensor = reader.definitions.tensor_name(access.def.tensor);
        touched.push((tensor, access.def.direction, access.region, access.expert));
    });
    touched
}

#[test]
fn a_recorded_graph_reads_back_as_it_was_built() {
    let (mut run, mut graph) = (Run::new(), Graph::new());
    run.recorder.name_token(5, b"five");
    let token = |token, position, sequence| BatchToken {
        token,
        position,
        sequence,
    };
    let batch = [token(11, 3, 0), token(5, 9, 1)];
    run.recorder.announce(Batch {
        context: 7,
        phase: Phase::Prompt,
        tokens: VecDeque::from(batch),
    });
    // llama.cpp may group the tokens of a batch by sequence.
    graph.feed([5, 11], [9, 3], [40, 7]);
    assert_eq!(run.compute(&mut graph), 0);
    // The same graph again, with other contents.
    run.recorder.announce(Batch {
        context: 7,
        phase: Phase::Generate,
        tokens: VecDeque::new(),
    });
    graph.feed([1, 2], [10, 4], [41, 8]);
    graph.routing = [[0, 2, 1, 3], [0, 2, 1, 3]];
    assert_eq!(run.compute(&mut graph), 0);
    let counts = run.recorder.counts();
    assert_eq!(
        (counts.evaluations, counts.steps, counts.templates),
        (2, 14, 1)
    );
    assert_eq!(
        (
            counts.unknown_ops,
            counts.tick_mismatches,
            counts.bad_indices
        ),
        (0, 0, 0)
    );
    assert_eq!(run.status.get().evals_committed, 2);
    let (evaluations, reader, _directory) = run.read();
    let definitions = &reader.definitions;
    assert_eq!((evaluations.len(), definitions.templates.len()), (2, 1));
    assert_eq!(definitions.tokens[&5], b"five");
    let template = &definitions.templates[0];

    // Steps: everything but the view, in order, with names and layers.
    assert_eq!(template.nodes, 8);
    let steps: Vec<_> = template
        .steps
        .iter()
        .map(|step| {
            (
                step.node,
                definitions.text(step.op),
                definitions.name(step.name),
                step.layer,
            )
        })
        .collect();
    let step = |node, op: &str, name: &str, layer| (node, op.to_string(), name.to_string(), layer);
    assert_eq!(
        steps,
        [
            step(0, "GET_ROWS", "inp_embd", None),
            step(1, "ROPE", "Kcur-0", Some(0)),
            step(2, "SET_ROWS", "cache_k_l0 (view)", Some(0)),
            step(3, "ARGSORT", "ffn_moe_argsort-0", Some(0)),
            step(5, "SOFT_MAX", "ffn_moe_weights-0", Some(0)),
            step(6, "MUL_MAT_ID", "ffn_moe_up-0", Some(0)),
            step(7, "MUL", "ffn_moe_weighted-0", Some(0)),
        ]
    );
    let kind = |name: &str| {
        let number = (0..definitions.tensors.len())
            .find(|&n| definitions.tensor_name(n as u32) == name)
            .unwrap();
        let tensor = &definitions.tensors[number];
        assert_eq!(definitions.text(tensor.buffer_type), "CPU_Test");
        (
            tensor.kind,
            tensor.size_bytes,
            tensor.place.map(|place| place.file_offset),
        )
    };
    assert_eq!(
        kind("token_embd.weight"),
        (TensorKind::Weight, 2048, Some(4096))
    );
    assert_eq!(
        kind("blk.0.ffn_up_exps.weight"),
        (TensorKind::Weight, 4096, Some(8192))
    );
    assert_eq!(kind("cache_k_l0"), (TensorKind::KvCache, 16384, None));
    assert_eq!(kind("inp_tokens"), (TensorKind::Input, 8, None));
    assert_eq!(kind("Kcur-0"), (TensorKind::Activation, 256, None));

    // Evaluations.
    let [first, second] = evaluations.as_slice() else {
        unreachable!()
    };
    assert_eq!(
        (
            first.number,
            first.phase,
            first.threads,
            first.ticks,
            first.flags
        ),
        (0, Phase::Prompt, 3, 7, 0)
    );
    assert_eq!((second.number, second.phase), (1, Phase::Generate));
    assert_eq!(first.first_of(template, CaptureKind::Tokens), [5, 11]);
    assert_eq!(first.first_of(template, CaptureKind::Positions), [9, 3]);
    assert_eq!(first.sequences, [1, 0]);
    assert_eq!(second.first_of(template, CaptureKind::Tokens), [1, 2]);
    assert_eq!(second.sequences, Vec::<u32>::new());
    for evaluation in &evaluations {
        assert_eq!(evaluation.step_nanos.len(), 7);
        assert!(evaluation.begin_nanos <= evaluation.step_nanos[0]);
        assert!(
            evaluation.step_nanos.is_sorted() && evaluation.step_nanos[6] <= evaluation.end_nanos
        );
    }
    assert!(first.end_nanos <= second.begin_nanos);

    // Byte ranges: rows of the embedding, rows of the cache, slices of experts.
    let read = |tensor: &str, offset, bytes| {
        (
            tensor.to_string(),
            Direction::Read,
            Strided::range(offset, bytes),
            None,
        )
    };
    let write = |tensor: &str, offset, bytes| {
        (
            tensor.to_string(),
            Direction::Write,
            Strided::range(offset, bytes),
            None,
        )
    };
    assert_eq!(
        touched(&reader, first, 0),
        [
            read("token_embd.weight", 5 * 128, 128),
            read("token_embd.weight", 11 * 128, 128),
            read("inp_tokens", 0, 8),
            write("inp_embd", 0, 256),
        ]
    );
    assert_eq!(
        touched(&reader, first, 2)[2..],
        [
            write("cache_k_l0", 40 * 256, 128),
            write("cache_k_l0", 7 * 256, 128)
        ]
    );
    let experts = |evaluation| -> Vec<_> {
        touched(&reader, evaluation, 5)
            .into_iter()
            .filter_map(|(tensor, _, region, expert)| Some((tensor, region, expert?)))
            .collect()
    };
    let slice = |expert: u32| {
        (
            "blk.0.ffn_up_exps.weight".to_string(),
            Strided::range(u64::from(expert) * 1024, 1024),
            expert,
        )
    };
    assert_eq!(experts(first), [slice(0), slice(1), slice(3)]);
    assert_eq!(experts(second), [slice(0), slice(2)]);
    let mut routes = Vec::new();
    for_each_route(template, first, |r| {
        routes.push((r.layer, r.token, r.rank, r.expert, r.weight))
    });
    assert_eq!(
        routes,
        [
            (0, 0, 0, 3, Some(0.75)),
            (0, 0, 1, 1, Some(0.25)),
            (0, 1, 0, 1, Some(0.625)),
            (0, 1, 1, 0, Some(0.375))
        ]
    );
}

#[test]
fn fewer_ticks_than_steps_mark_the_evaluation() {
    let (mut run, mut graph) = (Run::new(), Graph::new());
    graph.feed([1, 2], [0, 1], [0, 1]);
    graph.ticks = 4;
    run.compute(&mut graph);
    graph.ticks = usize::MAX;
    run.compute(&mut graph);
    assert_eq!(run.status.get().tick_mismatches, 1);
    let (evaluations, reader, _directory) = run.read();
    assert_eq!(
        (evaluations[0].ticks, evaluations[0].flags),
        (4, flags::TICK_MISMATCH)
    );
    assert_eq!((evaluations[1].ticks, evaluations[1].flags), (7, 0));
    assert_eq!(
        (0..7)
            .filter(|&step| evaluations[0].was_executed(step))
            .count(),
        4
    );
    // No expert is claimed for a step that never ran.
    let mut routes = 0;
    for_each_route(&reader.definitions.templates[0], &evaluations[0], |_| {
        routes += 1
    });
    assert_eq!(routes, 0);
}

#[test]
fn an_index_out_of_bounds_is_flagged_and_touches_nothing() {
    let (mut run, mut graph) = (Run::new(), Graph::new());
    // 16 tokens and 64 cells exist.
    graph.feed([16, 2], [0, 1], [-1, 63]);
    run.compute(&mut graph);
    assert_eq!(run.recorder.counts().bad_indices, 2);
    let (evaluations, reader, _directory) = run.read();
    assert_eq!(evaluations[0].flags, flags::BAD_INDEX);
    let rows = |step, tensor: &str| -> Vec<u64> {
        let touched = touched(&reader, &evaluations[0], step);
        touched
            .into_iter()
            .filter(|t| t.0 == tensor)
            .map(|t| t.2.offset)
            .collect()
    };
    assert_eq!(rows(0, "token_embd.weight"), [2 * 128]);
    assert_eq!(rows(2, "cache_k_l0"), [63 * 256]);
}

#[test]
fn a_graph_that_was_divided_anew_is_the_one_it_was_unless_something_differs() {
    let mut run = Run::new();
    let mut graph = Graph::new();
    graph.feed([1, 2], [0, 1], [0, 1]);
    let first = graph.nodes[0];
    let mut compute = |graph: &mut Graph| {
        run.uid += 1;
        run.compute(graph);
    };
    (0..600).for_each(|_| compute(&mut graph));
    graph.arena.edit(first, |tensor| tensor.op = op("CONT"));
    compute(&mut graph);
    graph.arena.edit(first, |tensor| tensor.op = op("GET_ROWS"));
    compute(&mut graph);
    // Nothing but its name: accesses are said by that.
    graph.arena.edit(first, |tensor| tensor.name[0] = b'o');
    compute(&mut graph);
    let (evaluations, _, _directory) = run.read();
    let templates = evaluations.iter().map(|e| e.template).collect::<Vec<_>>();
    assert_eq!(templates[..600], [0; 600]);
    assert_eq!(templates[600..], [1, 0, 2]);
}

#[test]
fn a_changed_graph_gets_a_template_of_its_own() {
    let mut run = Run::new();
    let mut graph = Graph::new();
    graph.feed([1, 2], [0, 1], [0, 1]);
    run.compute(&mut graph);
    // The same structs and memory, another shape: graph memory is recycled.
    let first = graph.nodes[0];
    graph.arena.edit(first, |tensor| tensor.op = op("CONT"));
    run.compute(&mut graph);
    graph.arena.edit(first, |tensor| tensor.op = op("GET_ROWS"));
    run.compute(&mut graph);
    let (evaluations, reader, _directory) = run.read();
    assert_eq!(
        evaluations.iter().map(|e| e.template).collect::<Vec<_>>(),
        [0, 1, 0]
    );
    assert_eq!(
        reader
            .definitions
            .text(reader.definitions.templates[1].steps[0].op),
        "CONT"
    );
    assert!(OPS.contains(&c"CONT"));
}
