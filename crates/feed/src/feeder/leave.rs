//! Feeding inside somebody else's program: its library is not trusted at once, its
//! model may be freed, and it may fork.

use super::{Feeder, Pass, Schedule, Trust};
use crate::error::FeedError;

impl Feeder {
    /// Feeds only what is kept until a whole graph has shown that the library ticks as
    /// its rules say.
    pub fn distrusting(mut self) -> Feeder {
        self.trust = Trust::NotYet;
        self
    }

    /// The library was seen to tick in another way: it has to run as it is.
    pub fn cannot_be(&self) -> bool {
        self.trust == Trust::Lost
    }

    /// After a complete graph: whether the points were where they were meant to be.
    pub(crate) fn check_ticks(&mut self, ticks: u32) -> Result<(), FeedError> {
        let is_right = ticks == self.schedule.steps;
        match (self.trust, is_right) {
            // A graph of a few nodes proves little: all of the pass have to.
            (Trust::NotYet, true) if self.pass.is_cut => {
                self.pass.has_ticked = true;
                Ok(())
            }
            (Trust::NotYet, true) => {
                self.trust_library();
                Ok(())
            }
            (Trust::NotYet, false) => {
                self.trust = Trust::Lost;
                Ok(())
            }
            (_, true) => Ok(()),
            (_, false) => Err(FeedError::Refused(format!(
                "llama.cpp computed {ticks} steps of a graph of {}; generation ends here",
                self.schedule.steps
            ))),
        }
    }

    /// The pump has prepared for what was fed so far, and so has the schedule.
    pub(super) fn trust_library(&mut self) {
        self.trust = Trust::Given;
        self.schedule = Schedule::default();
        self.pass.forget();
    }

    /// Nobody knows where the tensors of this graph point.
    pub(crate) fn break_down(&mut self) -> FeedError {
        self.trust = Trust::Broken;
        FeedError::broken()
    }

    /// Where the weights lie in the file's mapping: start and end of each.
    pub fn mapped(&self) -> Vec<(usize, usize)> {
        let weights = self.fed.iter().flat_map(|fed| &fed.weights.list);
        weights
            .map(|weight| (weight.original, weight.original + weight.bytes as usize))
            .collect()
    }

    /// The model was freed: its tensors are not touched any more.
    pub fn forget_model(&mut self) {
        if let Some(fed) = &mut self.fed {
            fed.weights.list.clear();
        }
        self.fed = None;
        self.shadows.clear();
        self.schedule = Schedule::default();
        self.pass = Pass::default();
    }

    /// In a forked child, which has none of the threads and none of the memory: the
    /// tensors point at the mapping again, and the rest is left alone.
    pub fn leave_to_parent(mut self) {
        if let Some(fed) = &mut self.fed {
            fed.weights.restore();
        }
        std::mem::forget(self);
    }
}
