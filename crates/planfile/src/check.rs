//! What can be wrong with a plan that somebody edited, or took for another model.

use std::collections::{BTreeMap, HashMap};

use plan::{
    Use, Weight,
    choose::{RING_WEIGHTS, layers_of, pool_slot_bytes, superset_bytes},
    weights_of,
};

use super::{FORMAT, MadeFor, Plan, PlanError, VERSION};

/// Alignment is known only where the plan is carried out: sizes are checked with the
/// least there is, which no plan can be below.
const MIN_ALIGNMENT_BYTES: u64 = 1;

pub(super) fn check(plan: &Plan, model: &gguf::Model) -> Result<(), PlanError> {
    if plan.format != FORMAT {
        return wrong("format", format!("{:?} instead of {FORMAT:?}", plan.format));
    }
    if plan.version != VERSION {
        return Err(PlanError::UnknownVersion {
            found: plan.version.into(),
        });
    }
    check_model(&plan.made_for, model)?;
    check_names(plan, model)?;
    let weights: HashMap<String, Weight> = weights_of(model)
        .into_iter()
        .map(|weight| (weight.name.clone(), weight))
        .collect();
    check_ring(plan, &weights)?;
    check_experts(plan, &weights)?;
    check_memory(plan, &weights)
}

fn check_model(made_for: &MadeFor, model: &gguf::Model) -> Result<(), PlanError> {
    let here = MadeFor::of(model);
    if made_for.fingerprint == here.fingerprint {
        return Ok(());
    }
    let bytes = |of: &MadeFor| {
        of.files
            .iter()
            .fold(0u64, |sum, file| sum.saturating_add(file.bytes))
    };
    let differs = if made_for.files.len() != here.files.len() {
        format!(
            "it has {} files and {:?} has {}",
            made_for.files.len(),
            here.model,
            here.files.len()
        )
    } else if bytes(made_for) != bytes(&here) {
        format!(
            "it has {} bytes and {:?} has {}",
            bytes(made_for),
            here.model,
            bytes(&here)
        )
    } else if made_for.weight_bytes != here.weight_bytes {
        format!(
            "its weights have {} bytes and those of {:?} have {}",
            made_for.weight_bytes, here.model, here.weight_bytes
        )
    } else {
        format!(
            "{:?} has the same size, but tensors of other names, types, shapes or places",
            here.model
        )
    };
    Err(PlanError::OtherModel {
        model: made_for.model.clone(),
        differs,
    })
}

fn check_names(plan: &Plan, model: &gguf::Model) -> Result<(), PlanError> {
    let mut seen: BTreeMap<&str, &'static str> = BTreeMap::new();
    for (list, names) in [
        ("pin", &plan.pin),
        ("stream", &plan.stream),
        ("sliced", &plan.sliced),
        ("mapped", &plan.mapped),
    ] {
        for name in names {
            if model.tensor(name).is_none() {
                let known = model.tensors().iter().map(|tensor| &*tensor.name);
                return Err(PlanError::UnknownTensor {
                    list,
                    name: name.clone(),
                    nearest: nearest(name, known).map(str::to_owned),
                });
            }
            if let Some(first) = seen.insert(name, list) {
                return Err(PlanError::ListedTwice {
                    name: name.clone(),
                    first,
                    second: list,
                });
            }
        }
    }
    Ok(())
}

fn check_ring(plan: &Plan, weights: &HashMap<String, Weight>) -> Result<(), PlanError> {
    let streamed = plan.stream.iter().filter_map(|name| weights.get(name));
    let offered = plan.ring.bytes / RING_WEIGHTS;
    let needed = |weight: &&Weight| weight.ring_bytes(offered, MIN_ALIGNMENT_BYTES);
    let Some(largest) = streamed.max_by_key(needed) else {
        return Ok(());
    };
    if plan.ring.read_bytes == 0 {
        return wrong("ring.read_bytes", "0 bytes a read read nothing");
    }
    if plan.ring.depth == 0 {
        return wrong("ring.depth", "0 reads in flight read nothing");
    }
    if plan.ring.bytes < needed(&largest).saturating_mul(RING_WEIGHTS) {
        let least = largest.min_ring_bytes(MIN_ALIGNMENT_BYTES);
        return Err(PlanError::RingTooSmall {
            ring_bytes: plan.ring.bytes,
            name: largest.name.clone(),
            needed_bytes: least.saturating_mul(RING_WEIGHTS),
        });
    }
    Ok(())
}

fn check_experts(plan: &Plan, weights: &HashMap<String, Weight>) -> Result<(), PlanError> {
    let sliced: Vec<Weight> = plan
        .sliced
        .iter()
        .filter_map(|name| weights.get(name).cloned())
        .collect();
    if let Some(weight) = sliced
        .iter()
        .find(|weight| !matches!(weight.usage, Use::Experts { .. }))
    {
        let reason = format!("tensor {:?} is not divided into experts", weight.name);
        return wrong("sliced", reason);
    }
    if sliced.is_empty() {
        return Ok(());
    }
    let Some(experts) = plan.experts else {
        return wrong("experts", "missing, but there are tensors in sliced");
    };
    let all: Vec<usize> = (0..sliced.len()).collect();
    let layers = layers_of(&sliced, &all, MIN_ALIGNMENT_BYTES);
    if experts.pools == 0 || experts.pools as usize > layers.len() {
        let reason = format!("{} for {} layers", experts.pools, layers.len());
        return wrong("experts.pools", reason);
    }
    let used = layers.iter().map(|layer| layer.used).max().unwrap_or(0);
    if experts.slots < used {
        let reason = format!("{}, but a token uses {used} experts", experts.slots);
        return wrong("experts.slots", reason);
    }
    let row = pool_slot_bytes(&layers, experts.pools)
        .iter()
        .fold(0u64, |sum, &slot| sum.saturating_add(slot));
    let needed = row.saturating_mul(u64::from(experts.slots));
    if experts.bytes < needed {
        let reason = format!(
            "{}, but {} pools of {} slots need {needed}",
            experts.bytes, experts.pools, experts.slots
        );
        return wrong("experts.bytes", reason);
    }
    Ok(())
}

fn check_memory(plan: &Plan, weights: &HashMap<String, Weight>) -> Result<(), PlanError> {
    let memory = plan.memory;
    let pinned = plan.pin.iter().filter_map(|name| weights.get(name));
    let pinned_bytes = pinned.fold(0u64, |sum, weight| {
        sum.saturating_add(superset(weight.bytes))
    });
    let experts_bytes = plan.experts.map_or(0, |experts| experts.bytes);
    let all = pinned_bytes
        .saturating_add(plan.ring.bytes)
        .saturating_add(experts_bytes);
    if all > memory.weights_bytes {
        return Err(PlanError::OverMemory {
            pinned_bytes,
            ring_bytes: plan.ring.bytes,
            experts_bytes,
            weights_bytes: memory.weights_bytes,
        });
    }
    if memory.weights_bytes.saturating_add(memory.other_bytes) > memory.budget_bytes {
        let reason = format!(
            "{} is less than weights_bytes ({}) and other_bytes ({}) together",
            memory.budget_bytes, memory.weights_bytes, memory.other_bytes
        );
        return wrong("memory.budget_bytes", reason);
    }
    Ok(())
}

pub(super) fn suggestion(nearest: &Option<String>) -> String {
    nearest
        .as_ref()
        .map_or_else(String::new, |name| format!("; did you mean {name:?}?"))
}

fn superset(bytes: u64) -> u64 {
    superset_bytes(bytes, MIN_ALIGNMENT_BYTES)
}

fn wrong(field: &'static str, reason: impl Into<String>) -> Result<(), PlanError> {
    Err(PlanError::Wrong {
        field,
        reason: reason.into(),
    })
}

/// The name that is a few typing errors away, if there is one.
fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let most = name.len() / 4;
    known
        .filter(|known| known.len().abs_diff(name.len()) <= most)
        .map(|known| (distance(name.as_bytes(), known.as_bytes()), known))
        .min()
        .filter(|&(distance, _)| distance <= most)
        .map(|(_, known)| known)
}

/// Letters to change, insert or leave out (Levenshtein).
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, &x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &y) in b.iter().enumerate() {
            let changed = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_name_is_few_letters_away() {
        assert_eq!(distance(b"kitten", b"sitting"), 3);
        assert_eq!(distance(b"", b"abc"), 3);
        let known = [
            "blk.0.attn_q.weight",
            "blk.0.attn_k.weight",
            "output.weight",
        ];
        let check = |name, expect| assert_eq!(nearest(name, known.into_iter()), expect);
        check("blk.0.atn_k.weight", Some("blk.0.attn_k.weight"));
        check("blk.0.attn_q", None);
        check("ouput.weigth", Some("output.weight"));
        check("x", None);
    }
}
