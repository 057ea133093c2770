//! Feeds the weights of one model to the graphs that are computed with it.
//!
//! 1. The first graph shows which weights there are and in which order they are used.
//!    By then the model's caches and buffers are made, so what is left of the budget is
//!    known: the memory for weights is shared out ([`crate::setup`]). What is kept grows and
//!    shrinks with what others use (`room.rs`).
//! 2. Before each evaluation its schedule says what is read: pinned weights once, in
//!    the evaluation that uses them first; streamed ones each time; of experts what is
//!    chosen.
//! 3. At each point (`schedule.rs`) the feeder waits for what the next step needs and
//!    points its tensors there, and takes back what is not needed any more.
//! 4. After the evaluation all tensors but the pinned ones point at the file's mapping
//!    again, so that whoever looks at them in between sees the right bytes.

mod install;
mod leave;
mod pass;
mod room;
mod route;
mod shadow;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use capture::hook::Split;
use ggml::{Graph, OpNumbers, TickRules};

use trace::origin::Source;

use crate::coming::untouched_bytes;
use crate::elastic::Key;
use crate::error::FeedError;
use crate::origins::Origins;
use crate::pump::RingPlace;
use crate::routing::Draw;
use crate::schedule::{Need, Schedule};
use crate::setup::{Memory, Props, Situation, set_up};
use crate::stats::Stats;
use crate::usage::{Kernel, Meter};
use crate::weights::{Fate, Usage, Weights, point};
pub use pass::Turn;
use pass::{Pass, Queue};
use shadow::Shadow;

pub struct Feeder {
    props: Props,
    fed: Option<Fed>,
    schedule: Schedule,
    pass: Pass,
    draw: Option<Draw>,
    shadows: Vec<Shadow>,
    run: Run,
    evaluations: u64,
    /// Of the evaluation that is going on.
    origins: Origins,
    /// Experts chosen: evaluation, layer, expert; kept when asked for.
    chosen: Vec<(u32, u32, u32)>,
    trust: Trust,
    /// Who says what is used; the kernel, if nobody was named.
    meter: Option<Arc<dyn Meter>>,
    pub stats: Arc<Stats>,
    notes: Vec<String>,
}

/// Whether a library ticks as its rules say. Until that was seen nothing depends on it:
/// only weights that stay where they are put are fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    Given,
    NotYet,
    /// It does not: nothing was computed with wrong bytes, but it cannot be fed.
    Lost,
    /// Feeding panicked in the middle of a graph: nothing may be computed any more.
    Broken,
}

/// The model that is fed.
struct Fed {
    weights: Weights,
    memory: Memory,
    /// Kept pieces of weights that are streamed.
    parts: BTreeMap<Key, KeptPart>,
    /// What the pump reads from the evaluation that is going on; `None` when that is not known.
    queue: Option<Queue>,
    /// Number of the next use.
    next_use: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KeptPart {
    /// Where its aligned read starts.
    address: usize,
    bytes: u64,
    is_loaded: bool,
}

/// Where an evaluation is.
#[derive(Default)]
struct Run {
    uses: Vec<Use>,
    first_use: u64,
    prepared: usize,
    released: usize,
    routed: usize,
    /// Nodes with slices, by step: step, shadow.
    sliced: Vec<(u32, usize)>,
    next_sliced: usize,
    next_point: u32,
    is_whole: bool,
    outlook: route::Outlook,
}

#[derive(Clone, Copy)]
struct Use {
    need: Need,
    is_pin: bool,
}

impl Feeder {
    pub fn new(props: Props) -> Feeder {
        Feeder {
            draw: props.routing.map(|d| Draw::new(d, props.routing_seed)),
            props,
            fed: None,
            schedule: Schedule::default(),
            pass: Pass::default(),
            shadows: Vec::new(),
            run: Run::default(),
            evaluations: 0,
            origins: Origins::default(),
            chosen: Vec::new(),
            trust: Trust::Given,
            meter: None,
            stats: Arc::new(Stats::default()),
            notes: Vec::new(),
        }
    }

    /// What is to be said about how it runs; given away once.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// What was set up, once the first graph was seen.
    pub fn memory(&self) -> Option<&Memory> {
        self.fed.as_ref().map(|fed| &fed.memory)
    }

    /// Evaluation, layer and expert of each choice so far (with `keeps_routing`).
    pub fn routing(&self) -> &[(u32, u32, u32)] {
        &self.chosen
    }

    /// Works out what a graph that is about to be computed needs. `false` when there is
    /// nothing to do.
    pub fn prepare_graph(
        &mut self,
        graph: Graph<'_>,
        ops: &OpNumbers,
        rules: TickRules,
        may_split: bool,
        work: Range<usize>,
    ) -> Result<bool, FeedError> {
        if self.trust == Trust::Broken {
            return Err(FeedError::broken());
        }
        self.set_up(graph, ops, rules)?;
        self.recall(graph);
        let is_known = self.schedule.is_of(graph);
        let coming_bytes = match is_known {
            true => 0,
            false => untouched_bytes(graph, ops, rules, work),
        };
        // Of a pass it was made before the first graph, but for what each of them touches.
        if !self.pass.is_cut || coming_bytes > 0 {
            self.make_room(coming_bytes, is_known)?;
        }
        if !self.schedule.is_of(graph) {
            self.schedule = self.schedule_of(graph, ops, rules, may_split);
        }
        let has_work = !self.schedule.needs.is_empty()
            || self.draw.is_some() && !self.schedule.routings.is_empty();
        if has_work && let Some(fed) = &self.fed {
            fed.weights.files.check()?;
        }
        self.run = Run {
            is_whole: match self.pass.is_cut {
                true => self.pass.is_whole,
                false => self.reads_experts_whole(&self.schedule),
            },
            ..Run::default()
        };
        Ok(has_work)
    }

    /// Before that graph is computed; then [`Feeder::at_point`] for each point.
    ///
    /// # Safety
    /// The graph of [`Feeder::prepare_graph`] is about to be computed by this thread, its
    /// tensors are laid out as crate `ggml` says, and nobody else changes them until
    /// [`Feeder::end`].
    pub unsafe fn begin(&mut self) -> Result<(), FeedError> {
        self.origins.clear();
        self.schedule.renew_pieces();
        self.shadow_routed();
        self.install();
        self.evaluations += 1;
        self.stats.evaluation();
        self.at_point(0)
    }

    /// Shares the memory out for the model of a graph, if that was not done yet.
    pub fn set_up(
        &mut self,
        graph: Graph<'_>,
        ops: &OpNumbers,
        rules: TickRules,
    ) -> Result<(), FeedError> {
        let strategies = self.props.strategies;
        let feeds = strategies.pin || strategies.stream || strategies.experts;
        if feeds && self.fed.is_none() {
            let (fed, notes) = self.start(graph, ops, rules)?;
            self.notes.extend(notes);
            self.fed = Some(fed);
        }
        Ok(())
    }

    fn start(
        &mut self,
        graph: Graph<'_>,
        ops: &OpNumbers,
        rules: TickRules,
    ) -> Result<(Fed, Vec<String>), FeedError> {
        let (nodes, steps) = crate::schedule::walk(graph, ops, rules);
        let cache = self.props.cache();
        let mut weights = Weights::discover(&nodes, &steps, ops, cache)?;
        weights.correct_warm_up();
        let found = Schedule::build(graph, ops, rules, Some(&weights), None);
        let groups = layers_of(&found, &weights);
        let mut notes = Vec::new();
        let meter = self
            .meter
            .clone()
            .unwrap_or_else(|| Arc::new(Kernel::new(self.props.budget_bytes, &weights.file_ids)));
        let situation = Situation {
            meter,
            coming_bytes: untouched_bytes(graph, ops, rules, 0..0),
            groups: &groups,
        };
        let (props, stats) = (&self.props, &self.stats);
        let memory = set_up(props, &mut weights, situation, stats, &mut notes)?;
        let fed = Fed {
            weights,
            memory,
            parts: BTreeMap::new(),
            queue: None,
            next_use: 0,
        };
        Ok((fed, notes))
    }

    /// Whether `at_point` has something to do there: all that most ticks ask.
    pub fn needs_point(&self, point: u32) -> bool {
        point >= self.run.next_point
    }

    /// At point `number`: waits for what the next step needs, gives back what is done.
    pub fn at_point(&mut self, number: u32) -> Result<(), FeedError> {
        self.release(number);
        self.prepare(number)?;
        self.route(number)?;
        self.wait_for_slices(number)?;
        self.read_ahead()?;
        let ahead_at = self.ahead_at(number).unwrap_or(u32::MAX);
        self.run.next_point = self.next_point().min(ahead_at);
        Ok(())
    }

    fn next_point(&self) -> u32 {
        let step_of = |at: usize| self.run.uses.get(at).map(|u| u.need.step);
        let released = step_of(self.run.released).map(|step| step + 2);
        let prepared = step_of(self.run.prepared);
        let has_shadows = !self.shadows.is_empty();
        let routings = self.schedule.routings.get(self.run.routed);
        let routed = routings.map(|r| r.known_at).filter(|_| has_shadows);
        let sliced = self.run.sliced.get(self.run.next_sliced).map(|s| s.0);
        let all = [released, prepared, routed, sliced];
        all.into_iter().flatten().min().unwrap_or(u32::MAX)
    }

    fn release(&mut self, number: u32) {
        let Some(fed) = &mut self.fed else {
            return;
        };
        let before = self.run.released;
        while let Some(done) = self.run.uses.get(self.run.released)
            && done.need.step + 2 <= number
            && self.run.released < self.run.prepared
        {
            if !done.is_pin {
                restore(&self.schedule, &fed.weights, &done.need);
            }
            self.run.released += 1;
        }
        if self.run.released > before {
            let pump = &fed.memory.pump;
            pump.release(self.run.first_use + self.run.released as u64);
        }
    }

    fn prepare(&mut self, number: u32) -> Result<(), FeedError> {
        let Some(fed) = &mut self.fed else {
            return Ok(());
        };
        while let Some(next) = self.run.uses.get(self.run.prepared).copied()
            && next.need.step <= number
        {
            let at = self.run.first_use + self.run.prepared as u64;
            let (mut address, waited) = fed.memory.pump.wait(at)?;
            self.stats.waited(waited);
            let source = match next.is_pin {
                true => Source::Loaded,
                false => Source::Streamed,
            };
            let step = self.schedule.step_of_graph(next.need.step);
            self.origins.whole(step, next.need.operand, source, waited);
            let weight = &mut fed.weights.list[next.need.weight as usize];
            let key = Key {
                weight: next.need.weight,
                part: next.need.part.map(|part| part.0),
            };
            if let Some(part) = fed.parts.get_mut(&key).filter(|_| next.is_pin) {
                let bytes = part.bytes;
                let loaded = fed.memory.elastic.loaded(key);
                loaded.map_err(|cause| FeedError::Memory { bytes, cause })?;
                part.is_loaded = true;
            } else if next.is_pin {
                if let Fate::Pinned {
                    address: start,
                    is_loaded,
                } = &mut weight.fate
                {
                    let bytes = weight.bytes;
                    let loaded = fed.memory.elastic.loaded(key);
                    let loaded = loaded.map_err(|cause| FeedError::Memory { bytes, cause })?;
                    // It may have been there before, and views may still point there.
                    let home = loaded.unwrap_or(*start);
                    address = home + (address - *start);
                    (*start, *is_loaded) = (home, true);
                }
                point(weight.tensor, address);
            }
            point_all(&self.schedule, &next.need, address);
            self.run.prepared += 1;
        }
        Ok(())
    }

    /// After the graph was computed, or not; `notes` get where its weights came from.
    pub fn end(&mut self, is_complete: bool, notes: &mut Vec<u64>) {
        self.origins.encode(notes);
        for shadow in &mut self.shadows {
            shadow.take_back();
        }
        if let Some(fed) = &mut self.fed {
            for left in &self.run.uses[self.run.released..self.run.prepared] {
                if !left.is_pin {
                    restore(&self.schedule, &fed.weights, &left.need);
                }
            }
            let uses = self.run.uses.len();
            if is_complete && self.run.prepared == uses {
                fed.next_use = self.run.first_use + uses as u64;
                fed.memory.pump.release(fed.next_use);
            } else {
                fed.queue = None;
                if let Some(experts) = &mut fed.memory.experts {
                    experts.abandon();
                }
            }
            self.stats.reading(fed.memory.pump.busy());
        }
        self.run = Run::default();
    }

    /// The nodes to be computed instead of the graph's own.
    pub fn split(&self) -> Option<Arc<Split>> {
        self.schedule.split.clone()
    }

    /// How long a token may be without the disk being asked: for the status line.
    pub fn busy(&self) -> Duration {
        self.fed
            .as_ref()
            .map_or(Duration::ZERO, |fed| fed.memory.pump.busy())
    }
}

impl Drop for Feeder {
    fn drop(&mut self) {
        if let Some(fed) = &mut self.fed {
            fed.weights.restore();
        }
    }
}

const NO_RING: RingPlace = RingPlace {
    address: 0,
    bytes: 1,
};

/// Points what a step reads a weight, or a piece of one, by.
fn point_all(schedule: &Schedule, need: &Need, address: usize) {
    let (first, end) = need.pointers;
    for pointer in &schedule.pointers[first as usize..end as usize] {
        point(pointer.tensor, address + pointer.offset as usize);
    }
}

fn restore(schedule: &Schedule, weights: &Weights, need: &Need) {
    if need.part.is_some() {
        // A tensor of ours, which nobody else knows.
        return;
    }
    let weight = &weights.list[need.weight as usize];
    let (first, end) = need.pointers;
    for pointer in &schedule.pointers[first as usize..end as usize] {
        point(pointer.tensor, weight.original + pointer.offset as usize);
    }
}

/// The weights of each routed layer, in the order of their use.
fn layers_of(schedule: &Schedule, weights: &Weights) -> Vec<Vec<u32>> {
    let mut groups = Vec::new();
    for routing in &schedule.routings {
        let mut group: Vec<u32> = Vec::new();
        for weight in routing.nodes.iter().filter_map(|node| node.weight) {
            let is_sliced = matches!(weights.list[weight as usize].usage, Usage::Experts { .. });
            if is_sliced && !group.contains(&weight) {
                group.push(weight);
            }
        }
        let is_new = |w: &u32| !groups.iter().flatten().any(|known| known == w);
        if !group.is_empty() && group.iter().all(is_new) {
            groups.push(group);
        }
    }
    groups
}
