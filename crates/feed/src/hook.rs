//! Feeding as one of those who take part in a computation.

use std::sync::Arc;

use capture::hook::{Call, Ended, Observer, Part, Split, Stop};
use ggml::{OpNumbers, TickRules};

use crate::error::FeedError;
use crate::feeder::{Feeder, Turn};

/// Feeds the weights of one graph after the other; why it stopped one is in `error`.
pub struct Feeding<'a> {
    pub feeder: &'a mut Feeder,
    pub ops: &'a OpNumbers,
    pub rules: TickRules,
    pub turn: Turn<'a>,
    pub error: Option<FeedError>,
}

impl Feeding<'_> {
    fn stopped<T>(&mut self, result: Result<T, FeedError>) -> Result<T, Stop> {
        result.map_err(|error| {
            self.error = Some(error);
            Stop
        })
    }
}

impl Observer for Feeding<'_> {
    unsafe fn prepare(&mut self, call: &Call<'_>) -> Result<Part, Stop> {
        let begun = self
            .feeder
            .begin_pass(self.turn, self.ops, self.rules, call.may_split);
        self.stopped(begun)?;
        let prepared = self.feeder.prepare_graph(
            call.graph,
            self.ops,
            self.rules,
            call.may_split,
            call.work.clone(),
        );
        let has_work = self.stopped(prepared)?;
        Ok(match has_work {
            true => Part::Takes {
                note_words: self.feeder.max_note_words(),
            },
            false => Part::Leaves,
        })
    }

    unsafe fn begin(&mut self, _: &Call<'_>) -> Result<Part, Stop> {
        // SAFETY: about to be computed by this thread (caller).
        let begun = unsafe { self.feeder.begin() };
        self.stopped(begun)?;
        Ok(Part::Takes { note_words: 0 })
    }

    fn split(&self) -> Option<Arc<Split>> {
        self.feeder.split()
    }

    unsafe fn tick(&mut self, ticks: u32) -> Result<(), Stop> {
        if !self.feeder.needs_point(ticks) {
            return Ok(());
        }
        let done = self.feeder.at_point(ticks);
        self.stopped(done)
    }

    fn end(&mut self, ended: Ended, notes: &mut Vec<u64>) -> Result<(), Stop> {
        let ticked = match ended.is_complete {
            true => self.feeder.check_ticks(ended.ticks),
            false => Ok(()),
        };
        self.feeder.end(ended.is_complete && ticked.is_ok(), notes);
        self.stopped(ticked)
    }

    /// Nobody knows what is where any more: nothing may be computed with it.
    fn panicked(&mut self) -> Result<(), Stop> {
        self.error = Some(self.feeder.break_down());
        Err(Stop)
    }
}
