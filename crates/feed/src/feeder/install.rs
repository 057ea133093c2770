//! What is read for an evaluation, and what after it.

use std::sync::Arc;
use std::time::Duration;

use trace::origin::Source;

use super::{Fed, Feeder, NO_RING, Queue, Trust, Use, point_all};
use crate::elastic::Key;
use crate::pump::{Place, Planned, Program, RingPlace};
use crate::schedule::{Need, Schedule};
use crate::weights::Fate;

/// Where a step gets a weight from.
enum Supply {
    /// The tensor points there already: it is kept, left to the file's mapping, or of experts
    /// that go into slots.
    Kept,
    Left,
    /// A kept piece, at this address.
    KeptPart(usize),
    /// Read now, and kept.
    Loads(Planned),
    /// Read now, and in the next evaluation again.
    Streams(Planned),
    /// Read now: experts of a batch that needs nearly all of them.
    StreamsOnce(Planned),
}

/// How an evaluation, or a pass of several, is read.
#[derive(Clone, Copy)]
struct How {
    /// Experts are read whole.
    is_whole: bool,
    has_experts: bool,
    is_trusted: bool,
}

impl Fed {
    /// In the order of the needs.
    fn supplies(&self, needs: &[Need], how: How) -> Vec<Supply> {
        let mut first_uses: Vec<u32> = Vec::new();
        needs
            .iter()
            .map(|need| self.supply(need, how, &mut first_uses))
            .collect()
    }

    fn supply(&self, need: &Need, how: How, first_uses: &mut Vec<u32>) -> Supply {
        let number = need.weight;
        match self.weights.list[number as usize].fate {
            Fate::Pinned {
                address,
                is_loaded: false,
            } if !first_uses.contains(&number) => {
                first_uses.push(number);
                Supply::Loads(self.weights.planned(number, Place::Own(address)))
            }
            Fate::Pinned { .. } => Supply::Kept,
            Fate::Streamed if how.is_trusted => {
                let key = Key {
                    weight: number,
                    part: need.part.map(|part| part.0),
                };
                if let (Some(part), Some(kept)) = (need.part, self.parts.get(&key)) {
                    let own = Place::Own(kept.address);
                    let planned = self.weights.planned_part(number, part, own);
                    return match kept.is_loaded {
                        true => Supply::KeptPart(kept.address + planned.phase as usize),
                        false => Supply::Loads(planned),
                    };
                }
                let planned = match need.part {
                    Some(part) => self.weights.planned_part(number, part, Place::Ring),
                    None => self.weights.planned(number, Place::Ring),
                };
                // What cannot come in pieces that fit stays in the file's mapping.
                match planned.bytes > self.memory.max_piece_bytes {
                    true => Supply::Left,
                    false => Supply::Streams(planned),
                }
            }
            Fate::Sliced { .. }
                if how.is_whole && how.is_trusted && self.memory.whole_ring.is_some() =>
            {
                Supply::StreamsOnce(self.weights.planned(number, Place::Ring))
            }
            _ => Supply::Left,
        }
    }

    /// What a pass reads, and what follows it.
    fn program(&self, schedule: &Schedule, how: How) -> (Vec<Planned>, Option<Program>) {
        let supplies = self.supplies(&schedule.needs, how);
        let reads = supplies.iter().filter_map(Supply::read).collect();
        (reads, how.then(&supplies))
    }
}

impl Supply {
    fn read(&self) -> Option<Planned> {
        match self {
            Supply::Loads(planned) | Supply::Streams(planned) | Supply::StreamsOnce(planned) => {
                Some(*planned)
            }
            Supply::Kept | Supply::Left | Supply::KeptPart(_) => None,
        }
    }
}

impl How {
    /// What is read after it. Whether another batch follows is not known; a token mostly follows
    /// a token.
    fn then(self, supplies: &[Supply]) -> Option<Program> {
        let again = |supply: &Supply| match supply {
            Supply::Streams(planned) => Some(*planned),
            _ => None,
        };
        let again = || Arc::new(supplies.iter().filter_map(again).collect());
        (!self.is_whole || !self.has_experts).then(again)
    }
}

impl Feeder {
    /// What the pump reads for this evaluation, and after it.
    pub(super) fn install(&mut self) {
        let Some(fed) = &mut self.fed else {
            return;
        };
        // A pass is read in one way.
        let has_routings = match self.pass.is_cut {
            true => self.pass.has_routings,
            false => !self.schedule.routings.is_empty(),
        };
        let how = How {
            is_whole: self.run.is_whole,
            has_experts: fed.memory.experts.is_some() && has_routings,
            is_trusted: self.trust == Trust::Given,
        };
        let supplies = fed.supplies(&self.schedule.needs, how);
        let mut now: Vec<Planned> = Vec::new();
        for (need, supply) in self.schedule.needs.iter().zip(&supplies) {
            if let Some(planned) = supply.read() {
                now.push(planned);
                let is_pin = matches!(supply, Supply::Loads(_));
                self.run.uses.push(Use {
                    need: *need,
                    is_pin,
                });
            }
            if let Supply::KeptPart(address) = supply {
                point_all(&self.schedule, need, *address);
            }
            if let Supply::Kept | Supply::KeptPart(_) = supply {
                let step = self.schedule.step_of_graph(need.step);
                let (source, waited) = (Source::Pinned, Duration::ZERO);
                self.origins.whole(step, need.operand, source, waited);
            }
        }
        let ring = match fed
            .memory
            .whole_ring
            .filter(|_| how.is_whole && how.has_experts)
        {
            Some(ring) => {
                if let Some(experts) = &mut fed.memory.experts {
                    experts.forget_below(ring.bytes);
                }
                ring
            }
            None => fed.memory.ring.as_ref().map_or(NO_RING, RingPlace::of),
        };
        let is_first = self.pass.is_cut && self.pass.is_new();
        if is_first {
            let (reads, then) = fed.program(&self.pass.schedule, how);
            self.pass.start(reads, then);
        }
        let queue = fed.queue.as_mut().filter(|queue| queue.ring == ring);
        // What comes next has to be what is needed now; what follows may be another pass.
        let is_expected = queue.is_some_and(|queue| {
            let next = queue.next();
            let is_all_right = match self.pass.is_cut {
                true => !is_first || next == self.pass.left(),
                false => next.len() == now.len(),
            };
            next.starts_with(&now) && is_all_right
        });
        let reads = now.len();
        let (program, then) = match (self.pass.is_cut, is_expected) {
            (true, true) => (Vec::new(), self.pass.then()),
            (true, false) => self.pass.onwards(&now),
            (false, _) => (now.clone(), how.then(&supplies)),
        };
        self.pass.advance(&now);
        if !is_expected {
            let program = Arc::new(program);
            fed.next_use = fed.memory.pump.install(program.clone(), then.clone(), ring);
            fed.queue = Some(Queue::new(program, then, ring));
        } else if let Some(queue) = &mut fed.queue
            && queue.then != then
        {
            fed.memory.pump.continue_with(then.clone());
            queue.then = then;
        }
        if let Some(queue) = &mut fed.queue {
            queue.advance(reads);
        }
        self.run.first_use = fed.next_use;
    }
}
