//! Which experts a run used, for the simulated caches of crate `plan`.

use std::collections::BTreeMap;

use gguf::Kind;
pub use plan::routing::{
    ExpertCachePoint, ExpertCaches, Hits, PolicyHits, RoutedLayer, RoutingSequence,
};

use crate::sequence::Sequence;

/// The experts of a run in the order of their use.
pub fn routing_of(sequence: &Sequence) -> RoutingSequence {
    // An expert is used where its first weight is; the others follow.
    let mut leader: BTreeMap<u32, &str> = BTreeMap::new();
    let mut layers: BTreeMap<u32, RoutedLayer> = BTreeMap::new();
    for unit in &sequence.units {
        let (Some(layer), Some(expert)) = (unit.layer, unit.expert) else {
            continue;
        };
        let entry = layers.entry(layer).or_insert(RoutedLayer {
            layer,
            experts: 0,
            expert_bytes: 0,
        });
        entry.experts = entry.experts.max(expert + 1);
        entry.expert_bytes += unit.bytes;
        if gguf::Meaning::of(&unit.name).kind == Kind::Weight {
            leader.entry(layer).or_insert(unit.role.as_str());
        }
    }
    let mut layers: Vec<RoutedLayer> = layers.into_values().collect();
    layers.retain(|l| leader.contains_key(&l.layer));
    for layer in &mut layers {
        layer.expert_bytes /= u64::from(layer.experts.max(1));
    }
    let use_of_unit: Vec<Option<(u32, u32)>> = sequence
        .units
        .iter()
        .map(|unit| {
            let (layer, expert) = (unit.layer?, unit.expert?);
            let is_leader = leader.get(&layer) == Some(&unit.role.as_str())
                && gguf::Meaning::of(&unit.name).kind == Kind::Weight;
            let at = layers.binary_search_by_key(&layer, |l| l.layer).ok()?;
            is_leader.then_some((at as u32, expert))
        })
        .collect();
    let use_of_piece: Vec<Option<(u32, u32)>> = sequence
        .pieces
        .iter()
        .map(|piece| use_of_unit[piece.unit as usize])
        .collect();
    let mut routing = RoutingSequence {
        layers,
        ..RoutingSequence::default()
    };
    if routing.layers.is_empty() {
        return routing;
    }
    for eval in &sequence.evals {
        let first = routing.uses.len();
        let pieces = sequence.accesses_of(eval).iter();
        routing
            .uses
            .extend(pieces.filter_map(|&piece| use_of_piece[piece as usize]));
        if eval.is_generate() {
            routing.generate.push(first..routing.uses.len());
        }
    }
    routing
}
