//! Experts of an evaluation: read slice by slice when the router has chosen them, or whole.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Instant;

use super::shadow::{Shadow, read_ids};
use super::{Feeder, Trust};
use crate::error::FeedError;
use crate::experts::Wanted;
use crate::schedule::{RoutedNode, Routing, Schedule};
use crate::weights::{Fate, Usage};

/// A choice of experts that needs more of a layer than this share of its slots is
/// read whole, in order, instead of slice by slice.
const MAX_OF_SLOTS: f64 = 0.8;

impl Feeder {
    /// Words that [`Feeder::end`] notes at most.
    pub fn max_note_words(&self) -> usize {
        let schedule = &self.schedule;
        let chosen = usize::try_from(schedule.tokens * schedule.used).unwrap_or(usize::MAX);
        let experts_of = |node: &RoutedNode| {
            let weight = &self.fed.as_ref()?.weights.list[node.weight? as usize];
            match weight.usage {
                Usage::Experts { .. } if node.rank.is_some() => Some(1),
                Usage::Experts { count, .. } => Some(chosen.min(count as usize)),
                _ => None,
            }
        };
        let routed = schedule.routings.iter().flat_map(|r| &r.nodes);
        // Each expert, and one wait for them all.
        let routed: usize = match self.run.is_whole {
            true => 0,
            false => routed.filter_map(experts_of).map(|n| n + 1).sum(),
        };
        trace::origin::MAX_WORDS * schedule.needs.len() + routed
    }

    /// Whether a batch needs so many experts that slices do not pay.
    pub(super) fn reads_experts_whole(&self, schedule: &Schedule) -> bool {
        let Some(experts) = self
            .fed
            .as_ref()
            .and_then(|fed| fed.memory.experts.as_ref())
        else {
            return true;
        };
        let tokens = schedule.tokens as f64;
        let weights = &self.fed.as_ref().expect("has experts").weights;
        let routed = schedule.routings.iter().flat_map(|r| &r.nodes);
        routed.filter_map(|node| node.weight).any(|weight| {
            let weight = &weights.list[weight as usize];
            let (Usage::Experts { count, used, .. }, Fate::Sliced { layer, .. }) =
                (weight.usage, weight.fate)
            else {
                return false;
            };
            let slots = f64::from(experts.slots_of(layer));
            let (count, used) = (f64::from(count), f64::from(used).max(schedule.used as f64));
            let likely = count * gguf::summary::experts_union_share(count, used, tokens);
            tokens * used > slots && likely > slots * MAX_OF_SLOTS
        })
    }

    /// Gives the nodes that use experts tensors of ours.
    pub(super) fn shadow_routed(&mut self) {
        self.shadows.clear();
        if self.trust != Trust::Given {
            return;
        }
        for (number, routing) in self.schedule.routings.iter().enumerate() {
            // The ids have to be known at a point before the first node that uses them.
            let first = routing.nodes.first().map_or(0, |node| node.step);
            if routing.known_at > first {
                continue;
            }
            for routed in &routing.nodes {
                let slices = routed.weight.and_then(|weight| {
                    match self.fed.as_ref()?.weights.list[weight as usize].fate {
                        Fate::Sliced { layer, role } if !self.run.is_whole => Some((layer, role)),
                        _ => None,
                    }
                });
                if slices.is_none() && self.draw.is_none() {
                    continue;
                }
                // SAFETY: a node of the graph that is about to be computed.
                let mut shadow = unsafe { Shadow::of(routed.node, number, routed.rank) };
                if let (Some((layer, role)), Some(fed)) = (slices, &self.fed)
                    && let Some(experts) = &fed.memory.experts
                {
                    let (address, stride) = experts.view_of(&fed.weights, layer, role);
                    shadow.weight.data = address as *mut std::ffi::c_void;
                    shadow.weight.nb[2] = stride as usize;
                    shadow.weight.nb[3] = stride as usize * shadow.weight.ne[2].max(0) as usize;
                }
                shadow.slices = slices;
                self.run.sliced.push((routed.step, self.shadows.len()));
                self.shadows.push(shadow);
            }
        }
        for shadow in &mut self.shadows {
            shadow.put();
        }
        self.run.sliced.sort_unstable();
    }

    /// Shadows are in the order of routings.
    fn shadows_of(&self, routing: usize) -> Range<usize> {
        let first = self.shadows.partition_point(|s| s.routing < routing);
        let end = self.shadows.partition_point(|s| s.routing <= routing);
        first..end
    }

    pub(super) fn route(&mut self, number: u32) -> Result<(), FeedError> {
        while let Some(routing) = self.schedule.routings.get(self.run.routed)
            && routing.known_at <= number
        {
            let at = self.run.routed;
            self.run.routed += 1;
            if !self.shadows_of(at).is_empty() {
                let routing = routing.clone();
                self.route_one(at, &routing)?;
            }
        }
        Ok(())
    }

    fn route_one(&mut self, at: usize, routing: &Routing) -> Result<(), FeedError> {
        // SAFETY: at this point the ids are complete, and nobody writes them again.
        let mut ids = unsafe { read_ids(routing.ids) };
        let of_routing = self.shadows_of(at);
        if let Some(draw) = &mut self.draw {
            let count = self.shadows[of_routing.clone()].first();
            let count = count.map_or(1, |s| s.weight.ne[2].max(1)) as u32;
            for (token, row) in ids.rows.iter_mut().enumerate() {
                let used = row.len();
                let drawn = draw.experts(self.evaluations, at, token as u64, (used, count));
                row.iter_mut()
                    .zip(drawn)
                    .for_each(|(id, &drawn)| *id = drawn as i32);
            }
        }
        // In the order of their products, which is that of reading.
        let mut experts: Vec<u32> = Vec::new();
        for &id in ids.rows.iter().flatten() {
            let expert = u32::try_from(id).unwrap_or(u32::MAX);
            if !experts.contains(&expert) {
                experts.push(expert);
            }
        }
        let mut sorted = experts.clone();
        sorted.sort_unstable();
        if self.props.keeps_routing {
            let evaluation = self.evaluations as u32;
            let chosen = sorted.iter().map(|&e| (evaluation, at as u32, e));
            self.chosen.extend(chosen);
        }
        let mut slot_of = HashMap::new();
        let mut is_in_slots = false;
        let mut layer = self.shadows[of_routing.clone()].iter();
        if let Some((layer, _)) = layer.find_map(|shadow| shadow.slices)
            && let Some(fed) = &mut self.fed
            && let Some(cache) = &mut fed.memory.experts
        {
            let before = cache.counts;
            is_in_slots = cache.choose(&fed.weights, layer, &experts, &mut slot_of)?;
            self.stats.experts(before, cache.counts);
            if is_in_slots {
                let mut origin = 0;
                for node in routing.nodes.iter().filter(|node| node.weight.is_some()) {
                    if node.rank.is_none_or(|rank| rank == 0) {
                        let step = self.schedule.step_of_graph(node.step);
                        origin = self.origins.experts(step, &sorted, cache.missing());
                    }
                    let shadows = &mut self.shadows[of_routing.clone()];
                    if let Some(shadow) = shadows.iter_mut().find(|s| s.node == node.node) {
                        shadow.origin = origin;
                    }
                }
            }
        }
        // The reads that are needed have been sent.
        self.ask_ahead(at, ids.rows.len());
        for shadow in &mut self.shadows[of_routing] {
            if shadow.slices.is_some() && !is_in_slots {
                // Too many at once: this layer reads through the mapping.
                shadow.slices = None;
                shadow.put_weight_back();
            }
            let is_in_slots = shadow.slices.is_some();
            let number_of = |&id: &i32| match is_in_slots {
                true => slot_of[&(id as u32)] as i32,
                false => id,
            };
            let numbers = ids.rows.iter().flatten().map(number_of);
            shadow.numbers.clear();
            match shadow.rank {
                None => shadow.numbers.extend(numbers),
                Some(rank) => shadow.numbers.extend(numbers.skip(rank as usize).take(1)),
            }
            shadow.ids.data = shadow.numbers.as_mut_ptr().cast();
        }
        Ok(())
    }

    pub(super) fn wait_for_slices(&mut self, number: u32) -> Result<(), FeedError> {
        while let Some(&(step, shadow)) = self.run.sliced.get(self.run.next_sliced)
            && step <= number
        {
            self.run.next_sliced += 1;
            let shadow = &self.shadows[shadow];
            let Some((_, role)) = shadow.slices else {
                continue;
            };
            let origin = shadow.origin;
            let wanted = match (shadow.rank, shadow.numbers.first()) {
                (Some(_), Some(&slot)) => Wanted::Slot(slot as u32),
                _ => Wanted::All,
            };
            if let Some(fed) = &mut self.fed
                && let Some(experts) = &mut fed.memory.experts
            {
                let begin = Instant::now();
                experts.wait(&fed.weights, role, wanted)?;
                let waited = begin.elapsed();
                self.stats.waited_for_experts(waited);
                self.origins.waited(origin, waited);
            }
        }
        Ok(())
    }

    /// When a layer has chosen: which experts the next one will choose is worked out, or told.
    fn ask_ahead(&mut self, at: usize, tokens: usize) {
        self.run.outlook = Outlook::Nothing;
        let next = &self.shadows[self.shadows_of(at + 1)];
        let layer = next.iter().find_map(|shadow| shadow.slices);
        let (Some(fed), Some((layer, _)), 1) = (&self.fed, layer, tokens) else {
            return;
        };
        let Some(experts) = fed.memory.experts.as_ref().filter(|e| e.is_guessing()) else {
            return;
        };
        let routings = &self.schedule.routings;
        if let Some(draw) = &mut self.draw {
            let count = next.first().map_or(1, |s| s.weight.ne[2].max(1)) as u32;
            let used = self.schedule.used as usize;
            let told = draw.foretell(self.evaluations, at + 1, 0, (used, count));
            self.run.outlook = told.map_or(Outlook::Nothing, |told| Outlook::Told(layer, told));
        } else if let (Some(now), Some(next)) = (routings[at].router, routings[at + 1].router)
            // SAFETY: the experts that were just chosen read the input, so that it is complete,
            // and stays until they have.
            && let Some(question) = unsafe { now.question(&next, &fed.weights) }
        {
            experts.ask(layer, question);
            self.run.outlook = Outlook::Asked;
        }
    }

    /// Starts to read what the next layer is likely to choose, when that is known and nothing
    /// that is needed is being read.
    pub(super) fn read_ahead(&mut self) -> Result<(), FeedError> {
        let Some(fed) = &mut self.fed else {
            return Ok(());
        };
        let Some(experts) = fed.memory.experts.as_mut() else {
            return Ok(());
        };
        if self.run.outlook == Outlook::Nothing || experts.is_reading()? {
            return Ok(());
        }
        let answer = match std::mem::take(&mut self.run.outlook) {
            Outlook::Nothing => None,
            Outlook::Told(layer, ranking) => Some((layer, ranking)),
            Outlook::Asked => experts.answer(),
        };
        match answer {
            Some((layer, ranking)) => experts.read_ahead(&fed.weights, layer, &ranking),
            None => self.run.outlook = Outlook::Asked,
        }
        Ok(())
    }

    /// The next tick, when there may be something to read ahead by then.
    pub(super) fn ahead_at(&self, number: u32) -> Option<u32> {
        let is_waiting = self.run.outlook != Outlook::Nothing;
        // Otherwise something is being read, which is waited for at a point of its own.
        let next = self.run.sliced.get(self.run.next_sliced);
        let layer = next.map(|&(_, shadow)| self.shadows[shadow].routing);
        let is_last = layer.is_none_or(|routing| routing + 1 > self.run.routed);
        (is_waiting && is_last).then_some(number + 1)
    }
}

/// What is known about the next layer's choice.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Outlook {
    #[default]
    Nothing,
    /// It is being worked out.
    Asked,
    Told(u32, Vec<u32>),
}
