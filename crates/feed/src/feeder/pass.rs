//! A pass that is computed as several graphs.
//!
//! Where a device computes a part of a model, the scheduler cuts the graph of a pass wherever
//! the computation changes sides, and only the processor's pieces come here, one after the
//! other. They are windows of the nodes of the whole, in its order, so the whole says what all
//! of them need: reading ahead goes on from one to the next, while the device computes.
//!
//! Weights that lie on the device are in no mapping, and are nobody's need. Neither is a weight
//! of ours that the scheduler copies to the device for a long prompt: the node reads the copy,
//! which is made from where the weight's tensor points between two graphs: its mapping, or
//! where it is kept.

use std::collections::HashMap;

use ggml::{Graph, OpNumbers, TickRules};

use super::{Feeder, Trust};
use crate::error::FeedError;
use crate::pump::{Planned, Program, RingPlace};
use crate::schedule::Schedule;
use crate::setup::Memory;

/// Which graph of a pass it is.
#[derive(Clone, Copy, Debug)]
pub enum Turn<'g> {
    /// The only one.
    Only,
    /// The first one, of a pass that is this graph.
    First(Graph<'g>),
    Further,
}

/// The pass that is going on.
#[derive(Default)]
pub(super) struct Pass {
    /// Of the whole; its nodes are never touched by it.
    pub schedule: Schedule,
    /// Whether it comes in several graphs.
    pub is_cut: bool,
    /// Whether a batch needs so many experts that they are read whole.
    pub is_whole: bool,
    /// Whether any of its graphs chooses experts.
    pub has_routings: bool,
    /// Schedules of its graphs, by number.
    known: HashMap<u64, Schedule>,
    /// What is read for it and was not used yet; `None` before its first graph.
    left: Option<Vec<Planned>>,
    /// What follows it.
    then: Option<Program>,
    /// Of a library that is not trusted yet: whether its graphs ticked as they should.
    pub has_ticked: bool,
}

/// What the pump was told to read, as far as it was not used yet.
pub(super) struct Queue {
    program: Program,
    at: usize,
    pub then: Option<Program>,
    pub ring: RingPlace,
}

impl Queue {
    pub fn new(program: Program, then: Option<Program>, ring: RingPlace) -> Queue {
        Queue {
            program,
            at: 0,
            then,
            ring,
        }
    }

    /// What comes next. When the program is through, what follows it does, for ever after.
    pub fn next(&mut self) -> &[Planned] {
        if self.at == self.program.len()
            && let Some(then) = &self.then
        {
            self.program = then.clone();
            self.at = 0;
        }
        &self.program[self.at..]
    }

    /// So many of `next` are used.
    pub fn advance(&mut self, reads: usize) {
        self.at += reads;
    }
}

impl Pass {
    /// A pass of which nothing was read yet.
    pub fn is_new(&self) -> bool {
        self.left.is_none()
    }

    pub fn start(&mut self, reads: Vec<Planned>, then: Option<Program>) {
        self.left = Some(reads);
        self.then = then;
    }

    pub fn left(&self) -> &[Planned] {
        self.left.as_deref().unwrap_or_default()
    }

    pub fn then(&self) -> Option<Program> {
        self.then.clone()
    }

    /// What is to be read from a graph that reads `now` on, and what after the pass. A graph that
    /// was not expected is all that is known.
    pub fn onwards(&self, now: &[Planned]) -> (Vec<Planned>, Option<Program>) {
        match self.left().starts_with(now) {
            true => (self.left().to_vec(), self.then()),
            false => (now.to_vec(), None),
        }
    }

    /// A graph that reads `now` is computed.
    pub fn advance(&mut self, now: &[Planned]) {
        if let Some(left) = self.left.as_mut().filter(|left| left.starts_with(now)) {
            left.drain(..now.len());
        }
    }

    /// What weights become has changed: nothing that was worked out holds.
    pub fn forget(&mut self) {
        self.schedule = Schedule::default();
        self.known.clear();
    }
}

impl Feeder {
    /// Before the first graph of a pass that is cut: the whole of it. The graphs that follow
    /// are its windows, until the next pass begins.
    pub fn begin_pass(
        &mut self,
        turn: Turn<'_>,
        ops: &OpNumbers,
        rules: TickRules,
        may_split: bool,
    ) -> Result<(), FeedError> {
        let whole = match turn {
            Turn::Further => return Ok(()),
            Turn::Only => {
                self.pass.is_cut = false;
                return Ok(());
            }
            Turn::First(whole) => whole,
        };
        match self.trust {
            // Said for the graph itself.
            Trust::Broken => return Ok(()),
            Trust::NotYet if self.pass.has_ticked => self.trust_library(),
            Trust::NotYet | Trust::Given | Trust::Lost => {}
        }
        self.set_up(whole, ops, rules)?;
        // What its graphs touch for the first time is asked when they come.
        self.make_room(0, false)?;
        if !self.pass.schedule.is_of(whole) {
            self.pass.known.clear();
            self.pass.schedule = self.schedule_of(whole, ops, rules, may_split);
        }
        self.pass.is_cut = true;
        self.pass.is_whole = self.reads_experts_whole(&self.pass.schedule);
        self.pass.has_routings = !self.pass.schedule.routings.is_empty();
        self.pass.left = None;
        Ok(())
    }

    pub(super) fn schedule_of(
        &self,
        graph: Graph<'_>,
        ops: &OpNumbers,
        rules: TickRules,
        may_split: bool,
    ) -> Schedule {
        let weights = self.fed.as_ref().map(|fed| &fed.weights);
        let may_split = may_split && self.trust == Trust::Given;
        let memory = self.fed.as_ref().map(|fed| &fed.memory);
        let splitting = memory.filter(|_| may_split).map(Memory::splitting);
        Schedule::build(graph, ops, rules, weights, splitting)
    }

    /// The schedule of a graph of this pass, if it was computed before, becomes the present one.
    pub(super) fn recall(&mut self, graph: Graph<'_>) {
        if !self.pass.is_cut || self.schedule.is_of(graph) {
            return;
        }
        let known = self.pass.known.remove(&graph.uid());
        let before = std::mem::replace(&mut self.schedule, known.unwrap_or_default());
        if before.uid() != 0 {
            self.pass.known.insert(before.uid(), before);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::pump::Place;

    fn reads(numbers: &[u32]) -> Vec<Planned> {
        let read = |&weight: &u32| Planned {
            weight,
            file: 0,
            offset: 0,
            bytes: 1,
            phase: 0,
            needed: 1,
            place: Place::Ring,
        };
        numbers.iter().map(read).collect()
    }

    #[test]
    fn reading_goes_on_from_one_graph_of_a_pass_to_the_next() {
        let ring = RingPlace {
            address: 0,
            bytes: 1,
        };
        let then = Some(Arc::new(reads(&[1, 2, 3])));
        let mut pass = Pass::default();
        assert!(pass.is_new());
        pass.start(reads(&[1, 2, 3]), then.clone());
        let (program, follows) = pass.onwards(&reads(&[1]));
        assert_eq!((&program, &follows), (&reads(&[1, 2, 3]), &then));
        let mut queue = Queue::new(Arc::new(program), follows, ring);
        queue.advance(1);
        assert_eq!(queue.next(), reads(&[2, 3]));
        queue.advance(2);
        // After the pass comes the same again.
        assert_eq!(queue.next(), reads(&[1, 2, 3]));
    }

    #[test]
    fn a_graph_that_was_not_expected_is_all_that_is_read() {
        let mut pass = Pass::default();
        pass.start(reads(&[1, 2, 3]), None);
        let mut check = |now: &[u32], expect: &[u32]| {
            let now = reads(now);
            assert_eq!(pass.onwards(&now).0, reads(expect));
            pass.advance(&now);
        };
        check(&[7], &[7]);
        // What was expected may still come.
        check(&[1, 2], &[1, 2, 3]);
        check(&[3], &[3]);
        check(&[3], &[3]);
    }
}
