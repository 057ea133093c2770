//! What the begin of an evaluation, each tick and its end store.

pub mod device;
mod graphs;
mod observe;

use std::{collections::VecDeque, sync::Arc};

use ggml::Graph;
use trace::{
    append::Appender,
    clock::now_nanos,
    format::{EVAL_HEAD_WORDS, EVAL_TAIL_WORDS, Phase, RecordKind, flags},
    status::StatusPage,
    template::encode_definitions,
};

use crate::{
    gather::{self, Packer, Source},
    intern::Interner,
    known::{Knowledge, KnownGraph, Surroundings},
};
use graphs::{GraphKey, Graphs, KeptGraph, fingerprint, identity};

/// Nodes whose structs (and sources) are compared with the library's answers.
const LAYOUT_SAMPLES: usize = 64;

/// The position of a token whose program leaves it to llama.cpp.
pub const ANY_POSITION: i32 = i32::MIN;

/// A token that is about to be evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchToken {
    pub token: i32,
    pub position: i32,
    pub sequence: u32,
}

/// What the program knows about the evaluations that follow and the graph does
/// not show. A batch may be computed in several evaluations.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Tells contexts of one process apart.
    pub context: u64,
    pub phase: Phase,
    pub tokens: VecDeque<BatchToken>,
}

/// Counts since the start, for progress and summaries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub evaluations: u64,
    pub steps: u64,
    /// Token ids that the graphs were fed.
    pub tokens: u64,
    /// Experts are counted per token that chose them; the log has the exact sets.
    pub accesses: u64,
    pub templates: u64,
    pub unknown_ops: u64,
    pub tick_mismatches: u64,
    pub bad_indices: u64,
}

/// Records the evaluations of one thread into one stream.
pub struct Recorder {
    appender: Appender,
    status: Arc<StatusPage>,
    // What a tick touches, together.
    step: usize,
    steps: usize,
    has_capture: *const bool,
    next_capture: usize,
    flags: u32,
    extra_ticks: u32,
    // What begin and end touch.
    evaluations: u64,
    current: usize,
    body_words: usize,
    note_words: usize,
    graphs: Graphs,
    knowledge: Arc<Knowledge>,
    interner: Interner,
    batch: Batch,
    /// Of the last evaluation that had tokens.
    last_phase: Phase,
    scratch: Vec<i64>,
    begin_words: Vec<u64>,
    counts: Counts,
    timing: Option<Timing>,
    layout: Layout,
    surroundings: Option<Surroundings>,
    /// Of the evaluation that begins; kept for their memory.
    tokens: Vec<i64>,
    positions: Vec<i64>,
    /// Whether two tokens of the batch follow each other; see [`Recorder::phase`].
    has_consecutive_positions: bool,
    /// Recording itself failed in the middle of an evaluation; nothing more is
    /// recorded.
    is_broken: bool,
}

/// Whether our view of ggml's structs holds for the library that computes.
enum Layout {
    Unchecked,
    Right,
    /// Recording is off for good, for this reason.
    Wrong(String),
}

#[derive(Default)]
struct Timing {
    cycles: u64,
}

impl Recorder {
    pub fn new(appender: Appender, status: Arc<StatusPage>, knowledge: Arc<Knowledge>) -> Recorder {
        Recorder {
            appender,
            status,
            step: 0,
            steps: 0,
            has_capture: std::ptr::null(),
            next_capture: 0,
            flags: 0,
            extra_ticks: 0,
            evaluations: 0,
            current: 0,
            body_words: 0,
            note_words: 0,
            graphs: Graphs::default(),
            knowledge,
            interner: Interner::default(),
            batch: Batch {
                context: 0,
                phase: Phase::Unknown,
                tokens: VecDeque::new(),
            },
            last_phase: Phase::Unknown,
            scratch: Vec::with_capacity(4096),
            begin_words: Vec::with_capacity(4096),
            counts: Counts::default(),
            timing: None,
            layout: Layout::Unchecked,
            surroundings: None,
            tokens: Vec::new(),
            positions: Vec::new(),
            has_consecutive_positions: false,
            is_broken: false,
        }
    }

    /// For a program that we only watch: how its graphs are to be understood.
    /// Phases, which nobody announces, are inferred from then on.
    pub fn watch(&mut self, surroundings: Surroundings) {
        self.surroundings = Some(surroundings);
    }

    /// The caller has checked the layout of the graphs it hands over itself, or
    /// translated them.
    pub fn trust_layout(&mut self) {
        self.layout = Layout::Right;
    }

    /// Says which context the next evaluation belongs to.
    pub fn set_context(&mut self, context: u64) {
        self.batch.context = context;
    }

    /// Says which tokens the next evaluations take; forgets those before.
    pub fn set_tokens(&mut self, tokens: impl Iterator<Item = BatchToken>) {
        self.batch.tokens.clear();
        self.batch.tokens.extend(tokens);
    }

    /// Our own code panicked; this recorder must not be used again.
    pub fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Evaluations so far, the lost ones included: the number of the next one.
    pub fn next_evaluation(&self) -> u64 {
        self.evaluations
    }

    /// Counts an evaluation that was not recorded.
    pub fn count_lost(&self) {
        self.status.count_lost(0, 0);
    }

    /// Why nothing is recorded: the library's structs are not as we know them.
    pub fn refusal(&self) -> Option<&str> {
        match &self.layout {
            Layout::Wrong(reason) => Some(reason),
            Layout::Unchecked | Layout::Right => None,
        }
    }

    /// Says what the next evaluations compute.
    pub fn announce(&mut self, batch: Batch) {
        self.batch = batch;
    }

    /// Notes what a token stands for; it is written before the next evaluation.
    pub fn name_token(&mut self, id: u32, text: &[u8]) {
        self.interner.token(id, text);
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Gives the appender back, to close the stream.
    pub fn into_appender(self) -> Appender {
        self.appender
    }

    /// Writes the head of an evaluation's record, which has room for so many words of notes.
    /// `false` when it cannot be recorded: it is counted as lost, and nothing else must be
    /// called.
    ///
    /// # Safety
    /// `graph` is live and its inputs are filled.
    pub unsafe fn begin(&mut self, graph: Graph<'_>, threads: i32, note_words: usize) -> bool {
        let number = self.evaluations;
        self.evaluations += 1;
        // SAFETY: a live graph of the library that `knowledge` describes.
        if !unsafe { self.layout_is_right(graph) } {
            self.status.count_lost(0, 0);
            return false;
        }
        self.current = self.find_graph(graph);
        // SAFETY: what is known was made from this graph, whose inputs are filled.
        unsafe { self.read_inputs() };
        let known = &self.graphs[self.current].known;
        self.note_words = note_words;
        self.body_words = EVAL_HEAD_WORDS
            + self.begin_words.len()
            + known.step_words
            + note_words
            + EVAL_TAIL_WORDS;
        if !self.write_definitions()
            || !self.appender.begin(RecordKind::Evaluation, self.body_words)
        {
            let known = &self.graphs[self.current].known;
            self.status.count_lost(known.steps as u64, known.accesses);
            return false;
        }
        let known = &self.graphs[self.current].known;
        let threads = u64::from(u16::try_from(threads).unwrap_or(0));
        let phase = match (known.tokens, self.surroundings.is_some()) {
            // Of a graph that devices share with the processor the tokens are in one part.
            (None, true) if self.last_phase != Phase::Unknown => self.last_phase,
            _ => self.phase(known),
        };
        self.last_phase = phase;
        self.appender.put(number);
        self.appender
            .put(u64::from(known.template) | (phase as u64) << 32 | threads << 48);
        self.appender.put(self.batch.context);
        // Read as late as possible: what we did so far is not the program's time.
        self.appender.put(now_nanos());
        self.appender
            .put(self.begin_words.len() as u64 | (note_words as u64) << 32);
        for &word in &self.begin_words {
            self.appender.put(word);
        }
        self.step = 0;
        self.steps = known.steps;
        self.has_capture = known.has_capture.as_ptr();
        self.next_capture = 0;
        self.extra_ticks = 0;
        true
    }

    /// What the program announced; for one that we only watch, a guess:
    /// a prompt asks for fewer results than it has tokens, or its tokens follow
    /// each other; tokens of several sequences side by side do neither.
    fn phase(&self, known: &KnownGraph) -> Phase {
        if self.surroundings.is_none() || self.batch.phase != Phase::Unknown {
            return self.batch.phase;
        }
        let Some(tokens) = known.tokens.map(|index| known.begin[index].elements()) else {
            return Phase::Unknown;
        };
        let is_prompt = known.outputs.is_some_and(|outputs| outputs < tokens)
            || tokens > 1 && self.has_consecutive_positions;
        if is_prompt {
            Phase::Prompt
        } else {
            Phase::Generate
        }
    }

    /// Compares, on the first graph, what the library answers about a sample of
    /// its tensors with what we read from their structs.
    unsafe fn layout_is_right(&mut self, graph: Graph<'_>) -> bool {
        if let Layout::Unchecked = self.layout {
            let nodes = graph.nodes().take(LAYOUT_SAMPLES);
            let samples: Vec<_> = nodes
                .flat_map(|node| node.srcs().map(|(_, source)| source).chain([node]))
                .map(ggml::Tensor::as_ptr)
                .collect();
            let api = &self.knowledge.api;
            // SAFETY: functions, tensors and graph are of one library (caller).
            let checked = unsafe {
                ggml::check::self_check(api, &samples)
                    .and_then(|()| ggml::check::check_graph(api, graph))
            };
            self.layout = match checked {
                Ok(()) => Layout::Right,
                Err(error) => Layout::Wrong(error.to_string()),
            };
        }
        matches!(self.layout, Layout::Right)
    }

    /// A node was executed.
    ///
    /// # Safety
    /// Between `begin` and `end`, on thread 0 of the graph that began.
    #[inline]
    pub unsafe fn tick(&mut self) {
        let now = now_nanos();
        let step = self.step;
        if step >= self.steps {
            self.extra_ticks += 1;
            return;
        }
        self.step = step + 1;
        self.appender.put(now);
        // SAFETY: step < steps, the length of the array of the current graph.
        if unsafe { *self.has_capture.add(step) } {
            // SAFETY: the step's inputs are complete and no later node has begun.
            unsafe { self.capture_at(step) };
        }
    }

    /// Completes the record; there was room for `notes`.
    pub fn end(&mut self, aborted: bool, notes: &[u64]) {
        let end = now_nanos();
        let complete = self.step == self.steps && self.extra_ticks == 0;
        if aborted {
            self.flags |= flags::ABORTED;
        } else if !complete {
            self.flags |= flags::TICK_MISMATCH;
            self.counts.tick_mismatches += 1;
            self.status.count_tick_mismatch();
        }
        while self.appender.body_words_left() > EVAL_TAIL_WORDS + self.note_words {
            self.appender.put(0);
        }
        let unused = self.note_words.saturating_sub(notes.len());
        let notes = notes.iter().copied().chain(std::iter::repeat_n(0, unused));
        notes
            .take(self.note_words)
            .for_each(|note| self.appender.put(note));
        let ticks = self.step as u64 + u64::from(self.extra_ticks);
        self.appender.put(end);
        self.appender
            .put(ticks & 0xffff_ffff | u64::from(self.flags) << 32);
        self.appender.commit();
        self.appender.count_bytes(self.body_words);
        self.status.count_committed();
        let known = &self.graphs[self.current].known;
        self.counts.evaluations += 1;
        self.counts.steps += self.step as u64;
        self.counts.tokens += known
            .tokens
            .map_or(0, |index| known.begin[index].elements() as u64);
        self.counts.accesses += known.accesses;
        self.counts.unknown_ops += known.unknown_ops;
    }

    #[cold]
    unsafe fn capture_at(&mut self, step: usize) {
        let known = &self.graphs[self.current].known;
        while let Some((_, source)) = known
            .at_steps
            .get(self.next_capture)
            .filter(|(s, _)| *s as usize == step)
        {
            self.next_capture += 1;
            let mut bad = 0;
            let appender = &mut self.appender;
            let mut packer = Packer::new(source.width_bytes, |word| appender.put(word));
            // SAFETY: inputs of the step are complete (contract of `tick`).
            unsafe {
                source.for_each(|value| {
                    let is_good = gather::in_bounds(value, source.bound);
                    bad += u64::from(!is_good);
                    packer.push(if is_good { value } else { gather::BAD_INDEX });
                });
            }
            packer.finish();
            if bad > 0 {
                self.flags |= flags::BAD_INDEX;
                self.counts.bad_indices += bad;
            }
        }
    }

    /// Fills `begin_words`: the inputs that the graph was fed, then the sequence
    /// of each token.
    unsafe fn read_inputs(&mut self) {
        self.begin_words.clear();
        self.flags = 0;
        let known = &self.graphs[self.current].known;
        let (tokens, positions) = (&mut self.tokens, &mut self.positions);
        tokens.clear();
        positions.clear();
        for (index, source) in known.begin.iter().enumerate() {
            self.scratch.clear();
            let mut bad = 0;
            let scratch = &mut self.scratch;
            // SAFETY: an input of a live graph, filled by the program before.
            unsafe {
                source.for_each(|value| {
                    bad += u64::from(!gather::in_bounds(value, source.bound));
                    scratch.push(value);
                });
            }
            if bad > 0 && is_index(source) {
                self.flags |= flags::BAD_INDEX;
                self.counts.bad_indices += bad;
            }
            gather::encode(&self.scratch, &mut self.begin_words);
            if known.positions == Some(index) {
                self.has_consecutive_positions = self
                    .scratch
                    .windows(2)
                    .any(|w| w[1].wrapping_sub(w[0]) == 1);
            }
            // Only a batch that is to be matched needs copies.
            if !self.batch.tokens.is_empty() {
                if known.tokens == Some(index) {
                    tokens.extend_from_slice(&self.scratch);
                } else if known.positions == Some(index) {
                    positions.extend_from_slice(&self.scratch);
                }
            }
        }
        self.scratch.clear();
        let mut last: Option<BatchToken> = None;
        if known.positions.is_none() && known.tokens.is_some() {
            self.has_consecutive_positions = false;
        }
        for (i, &token) in tokens.iter().enumerate() {
            // Evaluations take the batch's tokens in order; a batch that llama.cpp
            // regrouped by sequence is searched.
            let found = self.batch.tokens.iter().position(|t| {
                let is_here = |&p: &i64| p == i64::from(t.position) || t.position == ANY_POSITION;
                i64::from(t.token) == token && positions.get(i).is_none_or(is_here)
            });
            let Some(found) = found.and_then(|at| self.batch.tokens.remove(at)) else {
                break;
            };
            self.scratch.push(i64::from(found.sequence));
            // Where the positions are in another part of the graph.
            let follows = |last: BatchToken| {
                last.sequence == found.sequence
                    && (found.position == ANY_POSITION || found.position == last.position + 1)
            };
            if known.positions.is_none() && last.is_some_and(follows) {
                self.has_consecutive_positions = true;
            }
            last = Some(found);
        }
        if self.scratch.len() != tokens.len() {
            self.scratch.clear();
        }
        gather::encode(&self.scratch, &mut self.begin_words);
    }

    fn find_graph(&mut self, graph: Graph<'_>) -> usize {
        let key = match graph.uid() {
            0 => GraphKey::Fingerprint(fingerprint(graph)),
            uid => GraphKey::Uid(uid),
        };
        if let Some(index) = self.graphs.find(self.current, |kept| kept.key == key) {
            return index;
        }
        let identity = match key {
            GraphKey::Uid(_) => identity(graph, self.batch.context),
            _ => 0,
        };
        let equal = self.graphs.find(self.current, |kept| {
            matches!(kept.key, GraphKey::Uid(_)) && kept.fingerprint == identity
        });
        if let Some(index) = equal.filter(|_| identity != 0) {
            self.graphs[index].key = key;
            return index;
        }
        let surroundings = self.surroundings.as_ref();
        let known = KnownGraph::build_in(
            surroundings,
            None,
            graph,
            &self.knowledge,
            &mut self.interner,
        );
        self.counts.templates = self.counts.templates.max(u64::from(known.template) + 1);
        self.graphs.keep(KeptGraph {
            key,
            known,
            fingerprint: identity,
            launches: None,
            kernels: None,
        })
    }

    /// `false` when they could not be written; they stay pending.
    fn write_definitions(&mut self) -> bool {
        if self.interner.pending().is_empty() {
            return true;
        }
        let bytes = encode_definitions(self.interner.pending());
        let words = 1 + bytes.len().div_ceil(8);
        if !self.appender.begin(RecordKind::Definitions, words) {
            return false;
        }
        self.appender.put(bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.appender.put(u64::from_le_bytes(word));
        }
        self.appender.commit();
        self.appender.count_bytes(words);
        self.interner.written();
        true
    }
}

/// A cheap counter of constant rate: the time-stamp counter, or nanoseconds
/// where there is none.
#[inline]
pub fn cycles() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction.
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    now_nanos()
}

fn is_index(source: &Source) -> bool {
    source.bound != u64::MAX
}
