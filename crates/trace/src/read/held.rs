//! Events that wait until an evaluation on a device is complete.
//!
//! A device ends an evaluation after it was logged, and what was measured of it comes in a
//! later record. Readers get the evaluation once, whole, and events in their order: so an
//! evaluation that announces a measurement holds back everything behind it until that comes,
//! until more wait than a recorder ever leaves open, or until nothing more can come.

use std::collections::VecDeque;

use super::{Evaluation, Event};
use crate::{
    device::{Launches, Measured},
    format::flags,
    template::Template,
};

/// Recorders give up on an evaluation long before.
const MAX_HELD: usize = 4096;

#[derive(Default)]
pub struct Held {
    events: VecDeque<Waiting>,
    /// Nothing is waited for any more.
    gives_up: bool,
}

struct Waiting {
    event: Event,
    is_complete: bool,
}

impl Held {
    pub fn add(&mut self, event: Event) {
        let is_open = |e: &Evaluation| e.device.is_some() && e.flags & flags::MEASURED_LATER != 0;
        let is_complete = !matches!(&event, Event::Evaluation(e) if is_open(e));
        self.events.push_back(Waiting { event, is_complete });
    }

    /// The next event, if it need not wait.
    pub fn take(&mut self) -> Option<Event> {
        if !self.is_ready() {
            return None;
        }
        self.events.pop_front().map(|waiting| waiting.event)
    }

    /// There is an event that need not wait.
    pub fn is_ready(&self) -> bool {
        let goes = self.gives_up || self.events.len() > MAX_HELD;
        self.events
            .front()
            .is_some_and(|next| next.is_complete || goes)
    }

    /// Nothing more can come: `true` if something waited.
    pub fn give_up(&mut self) -> bool {
        self.gives_up = true;
        !self.events.is_empty()
    }

    /// Takes in the body of a record. One of an evaluation that does not wait (any more) is
    /// passed over: it came too late, or its evaluation was damaged.
    pub fn measured(
        &mut self,
        body: &[u64],
        templates: &[Template],
        launches: &[Launches],
    ) -> Result<(), String> {
        let number = Measured::evaluation_of(body).ok_or("an empty measurement")?;
        let found = self.events.iter_mut().find_map(|waiting| {
            match (&mut waiting.event, waiting.is_complete) {
                (Event::Evaluation(e), false) if e.number == number => {
                    Some((e, &mut waiting.is_complete))
                }
                _ => None,
            }
        });
        let Some((evaluation, is_complete)) = found else {
            return Ok(());
        };
        *is_complete = true;
        let template = &templates[evaluation.template as usize];
        let elements = |number: u32| Some(template.captures.get(number as usize)?.elements());
        let measured = Measured::from_words(body, elements)?;
        let Some(device) = &mut evaluation.device else {
            return Ok(());
        };
        if let Some(number) = measured.launches {
            let of = launches.get(number as usize);
            if of.is_none_or(|of| of.template != evaluation.template) {
                return Err("kernels were measured that are not of the graph".into());
            }
            device.launches = Some(number);
        }
        let kernels = device
            .launches
            .map(|at| launches[at as usize].kernels.len());
        if !measured.kernels.is_empty() && Some(measured.kernels.len()) != kernels {
            return Err("more or fewer kernels were measured than were launched".into());
        }
        device.nanos = measured.nanos;
        device.kernel_nanos = measured.kernels;
        evaluation.flags |= measured.flags;
        for (number, values) in measured.captures {
            evaluation.captures[number as usize] = values;
        }
        Ok(())
    }
}
