//! What the evaluations of a stream add up to, counted by template.
//!
//! A graph is evaluated many times: how often each of its steps ran is counted, and
//! multiplied with what it touches in the end. Only what index arrays decide is added up
//! evaluation by evaluation.

use std::collections::BTreeMap;

use trace::format::Phase;

use crate::{log::Stream, prepared::Prepared, seen::Seen};

/// Accesses and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub accesses: u64,
    pub bytes: u64,
}

impl Traffic {
    pub fn add(&mut self, accesses: u64, bytes: u64) {
        // A damaged log may claim anything; a sum of such is no reason to stop.
        self.accesses = self.accesses.saturating_add(accesses);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// So many accesses of as many bytes each.
    pub fn times(accesses: u64, bytes: u64) -> Traffic {
        Traffic {
            accesses,
            bytes: accesses.saturating_mul(bytes),
        }
    }
}

/// The evaluations of one template in one phase; on a device those whose steps were timed apart
/// from the others, so that bytes can be held against the time that they took.
#[derive(Debug)]
pub struct Tally {
    /// Their steps have times.
    pub is_timed: bool,
    pub steps: Vec<StepTally>,
    /// By access; zero where the region is fixed.
    indexed: Vec<Traffic>,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct StepTally {
    pub executions: u64,
    pub nanos: u64,
}

impl Tally {
    /// What access `at`, which an index array decides, touched in one evaluation.
    pub fn add(&mut self, at: usize, traffic: Traffic) {
        self.indexed[at].add(traffic.accesses, traffic.bytes);
    }

    /// What access `at` touched in all evaluations.
    pub fn of_access(&self, prepared: &Prepared, at: usize) -> Traffic {
        let access = &prepared.accesses[at];
        match access.index {
            None => Traffic::times(self.steps[access.step].executions, access.bytes),
            Some(_) => self.indexed[at],
        }
    }
}

/// The evaluations of one stream.
#[derive(Debug, Default)]
pub struct Tallies {
    /// By template, phase and whether steps have times.
    all: BTreeMap<(u32, &'static str, bool), (Phase, Tally)>,
}

impl Tallies {
    /// Counts the steps of an evaluation; what index arrays decided is left to [`Tally::add`].
    pub fn count(&mut self, seen: &Seen) -> &mut Tally {
        let (phase, prepared) = (seen.evaluation.phase, seen.prepared);
        let is_timed = seen.has_step_times();
        let key = (seen.template, phase.name(), is_timed);
        let (_, tally) = self.all.entry(key).or_insert_with(|| {
            let tally = Tally {
                is_timed,
                steps: vec![StepTally::default(); prepared.steps.len()],
                indexed: vec![Traffic::default(); prepared.accesses.len()],
            };
            (phase, tally)
        });
        for executed in seen.steps() {
            let step = &mut tally.steps[executed.number];
            step.executions += 1;
            step.nanos = step.nanos.saturating_add(executed.nanos());
        }
        tally
    }

    /// Everything that was counted since the stream began, and starts anew.
    pub fn end_stream(
        &mut self,
        stream: &Stream,
        mut f: impl FnMut(u32, &Prepared, Phase, &Tally),
    ) {
        for ((template, ..), (phase, tally)) in std::mem::take(&mut self.all) {
            let prepared = &stream.templates[(template - stream.first_template) as usize];
            if let Ok(prepared) = prepared {
                f(template, prepared, phase, &tally);
            }
        }
    }
}
