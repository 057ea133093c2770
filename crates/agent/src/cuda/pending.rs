//! Evaluations that were logged and that the card may not have ended.
//!
//! Each is looked at when a later one of its stream begins, in order; what is known then is
//! logged behind it. One that stays open for too long is given up.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use capture::{
    Recorder,
    known::Late,
    recorder::device::{Launch, Logged},
};
use trace::{device::Measured, format::flags};

use super::{
    Seen, bursts,
    clock::{self, Span},
    driver::Reached,
    experts::ReadBack,
};
use crate::process;

/// Evaluations that may be open.
const MOST: usize = 64;

#[derive(Default)]
pub struct Pending {
    open: VecDeque<Open>,
}

struct Open {
    /// `None` of one that could not be logged, and whose ids are on their way all the same.
    logged: Option<Logged>,
    span: Option<Span>,
    burst: Option<u64>,
    is_replayed: bool,
    /// Of a graph of the card's own.
    launches: Option<Arc<[Launch]>>,
    nodes: Vec<Option<u32>>,
    /// Ids of experts on their way, with the captures that they are of.
    experts: Vec<(ReadBack, Option<Late>)>,
}

impl Pending {
    /// One more was logged, or could not be.
    pub fn add(&mut self, seen: Seen, logged: Option<Logged>, recorder: &mut Recorder) {
        let is_of_use = logged.is_some() && seen.is_measured;
        match is_of_use || !seen.experts.is_empty() {
            true => self.open.push_back(Open {
                experts: of_captures(seen.experts, recorder.late()),
                logged,
                span: seen.span,
                burst: seen.burst,
                is_replayed: seen.is_replayed || seen.captured.is_some(),
                launches: recorder.launches(),
                nodes: seen.nodes,
            }),
            false => seen.span.into_iter().for_each(clock::drop_span),
        }
        self.log_ended(recorder);
    }

    /// Logs what the card has ended by now.
    pub fn log_ended(&mut self, recorder: &mut Recorder) {
        while let Some(open) = self.open.front() {
            let is_late = self.open.len() > MOST;
            let is_open = open.burst.is_some_and(bursts::is_open)
                || open.span.as_ref().map(clock::reached) == Some(Reached::NotYet);
            if is_open && !is_late {
                return;
            }
            if let Some(open) = self.open.pop_front() {
                open.log(recorder, !is_open);
            }
        }
    }

    /// The process ends: what is not known now never will be.
    pub fn give_up(&mut self, recorder: &mut Recorder) {
        bursts::stop();
        for open in std::mem::take(&mut self.open) {
            let is_ended = open.span.as_ref().map(clock::reached) == Some(Reached::Yes);
            open.log(recorder, is_ended);
        }
    }
}

fn of_captures(read: Vec<ReadBack>, late: &[Late]) -> Vec<(ReadBack, Option<Late>)> {
    let found = read.into_iter().map(|read| {
        let of = late
            .iter()
            .find(|late| std::ptr::eq(late.tensor, read.tensor));
        (read, of.copied())
    });
    found.collect()
}

/// From the first kernel's begin to the last one's end.
fn span_of(times: &[(u64, u64)]) -> Option<(u64, u64)> {
    let measured = || times.iter().filter(|&&(begin, _)| begin != 0);
    let begin = measured().map(|&(begin, _)| begin).min()?;
    let end = measured().map(|&(_, end)| end).max()?;
    Some((begin, end))
}

/// For the launcher, which says it to people; the first is enough.
fn say_why_kernels_differ(reason: &str) {
    static IS_SAID: AtomicBool = AtomicBool::new(false);
    if !IS_SAID.swap(true, Ordering::Relaxed)
        && let Some(process) = process::current()
    {
        process.note("kernels_differ", reason);
    }
}

impl Open {
    fn log(self, recorder: &mut Recorder, is_ended: bool) {
        let mut measured = Measured::default();
        let mut is_reached = false;
        if let Some(span) = self.span {
            is_reached = is_ended && clock::reached(&span) == Reached::Yes;
            match is_reached {
                true => measured.nanos = clock::take(span),
                false => clock::drop_span(span),
            }
        }
        for (read, late) in self.experts {
            match (is_reached, late) {
                // What the card may still be writing is not looked at, nor used again.
                (false, _) => read.give_up(),
                (true, Some(late)) => {
                    let values = read.values(&late.source);
                    if values.len() == late.source.elements() {
                        measured.captures.push((late.capture, values));
                    }
                }
                (true, None) => {}
            }
        }
        let records = self.burst.and_then(bursts::take);
        let Some(logged) = self.logged else {
            return;
        };
        let mut seen: Option<Vec<Launch>> = None;
        if let Some(records) = records {
            let joined = match (self.is_replayed, &self.launches) {
                (true, Some(known)) => records.of_graph(known),
                (true, None) => Err("nobody saw the card's graph being recorded".to_owned()),
                (false, _) => records.one_by_one(&self.nodes).map(|(launches, times)| {
                    seen = Some(launches);
                    times
                }),
            };
            match joined.and_then(|times| records.checked(times, logged.begin_nanos)) {
                Ok(times) => {
                    // Events count the wait for the launch, which is long while CUPTI is attached.
                    measured.nanos = span_of(&times).or(measured.nanos);
                    measured.kernels = times;
                }
                Err(reason) => {
                    say_why_kernels_differ(&reason);
                    measured.flags |= flags::KERNELS_DIFFER;
                    seen = None;
                }
            }
        }
        recorder.measured(measured, logged, seen.as_deref());
    }
}
