//! What is read for an evaluation, and what after it.

use std::sync::Arc;
use std::time::Duration;

use trace::origin::Source;

use super::{Feeder, NO_RING, Trust, Use, point_all};
use crate::elastic::Key;
use crate::pump::{Place, Planned, RingPlace};
use crate::schedule::Need;
use crate::weights::Fate;

impl Feeder {
    /// What the pump reads for this evaluation, and after it.
    pub(super) fn install(&mut self) {
        let Some(fed) = &mut self.fed else {
            return;
        };
        let is_whole = self.run.is_whole;
        let mut now: Vec<Planned> = Vec::new();
        let mut later: Vec<Planned> = Vec::new();
        let is_shadowed = |need: &Need| {
            let sliced = matches!(
                fed.weights.list[need.weight as usize].fate,
                Fate::Sliced { .. }
            );
            sliced && !is_whole
        };
        let mut first_uses: Vec<u32> = Vec::new();
        for need in self.schedule.needs.iter().filter(|need| !is_shadowed(need)) {
            let number = need.weight;
            match fed.weights.list[number as usize].fate {
                Fate::Pinned {
                    address,
                    is_loaded: false,
                } if !first_uses.contains(&number) => {
                    first_uses.push(number);
                    now.push(fed.weights.planned(number, Place::Own(address)));
                    self.run.uses.push(Use {
                        need: *need,
                        is_pin: true,
                    });
                }
                Fate::Pinned { .. } => {
                    let step = self.schedule.step_of_graph(need.step);
                    let (source, waited) = (Source::Pinned, Duration::ZERO);
                    self.origins.whole(step, need.operand, source, waited);
                }
                Fate::Streamed if self.trust == Trust::Given => {
                    let key = Key {
                        weight: number,
                        part: need.part.map(|part| part.0),
                    };
                    if let (Some(part), Some(kept)) = (need.part, fed.parts.get(&key)) {
                        let own = Place::Own(kept.address);
                        let planned = fed.weights.planned_part(number, part, own);
                        if kept.is_loaded {
                            let address = kept.address + planned.phase as usize;
                            point_all(&self.schedule, need, address);
                            let step = self.schedule.step_of_graph(need.step);
                            let (source, waited) = (Source::Pinned, Duration::ZERO);
                            self.origins.whole(step, need.operand, source, waited);
                        } else {
                            now.push(planned);
                            self.run.uses.push(Use {
                                need: *need,
                                is_pin: true,
                            });
                        }
                        continue;
                    }
                    let planned = match need.part {
                        Some(part) => fed.weights.planned_part(number, part, Place::Ring),
                        None => fed.weights.planned(number, Place::Ring),
                    };
                    // What cannot come in pieces that fit stays in the file's mapping.
                    if planned.bytes > fed.memory.max_piece_bytes {
                        continue;
                    }
                    now.push(planned);
                    later.push(planned);
                    self.run.uses.push(Use {
                        need: *need,
                        is_pin: false,
                    });
                }
                // Experts of a batch that needs nearly all of them.
                Fate::Sliced { .. }
                    if fed.memory.whole_ring.is_some() && self.trust == Trust::Given =>
                {
                    now.push(fed.weights.planned(number, Place::Ring));
                    self.run.uses.push(Use {
                        need: *need,
                        is_pin: false,
                    });
                }
                _ => {}
            }
        }
        let has_experts = fed.memory.experts.is_some() && !self.schedule.routings.is_empty();
        let ring = match fed.memory.whole_ring.filter(|_| is_whole && has_experts) {
            Some(ring) => {
                if let Some(experts) = &mut fed.memory.experts {
                    experts.forget_below(ring.bytes);
                }
                ring
            }
            None => fed.memory.ring.as_ref().map_or(NO_RING, RingPlace::of),
        };
        // Whether another batch follows is not known; a token mostly follows a token.
        let then = (!is_whole || !has_experts).then(|| Arc::new(later));
        let is_expected = fed.expected.as_deref() == Some(&now);
        if !is_expected {
            let pump = &fed.memory.pump;
            fed.next_use = pump.install(Arc::new(now), then.clone(), ring);
        } else if fed.expected != then {
            fed.memory.pump.continue_with(then.clone());
        }
        fed.expected = then;
        self.run.first_use = fed.next_use;
    }
}
