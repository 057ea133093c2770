//! What an export has read and written.

use reader::Walked;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub evaluations: u64,
    /// Executed nodes.
    pub steps: u64,
    /// Events, stacks or rows, whatever the format has.
    pub written: u64,
    /// Evaluations that the end of the process cut off; they are not exported.
    pub partial: u64,
    /// What could not be read: where, and why. Whoever exports must pass it on, because the
    /// output alone does not show it.
    pub damaged: Vec<String>,
}

impl Stats {
    pub(crate) fn new(walked: Walked, written: u64) -> Stats {
        Stats {
            evaluations: walked.evaluations,
            steps: walked.steps,
            written,
            partial: walked.partial,
            damaged: walked.damaged,
        }
    }
}
