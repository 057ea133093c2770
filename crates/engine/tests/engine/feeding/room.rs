//! What is kept grows and shrinks with what the program uses, and the numbers stay the same.

use std::{
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use feed::usage::{Glance, Level, Meter};

use super::*;

/// Enough for the trained models and half as much again, when others use 40 MiB of it.
const LIMIT_BYTES: u64 = 64 * MIB;
/// Of them, what is kept free.
const MARGIN_BYTES: u64 = 6 * MIB;
/// More than it takes until weights grow again.
const EVALUATIONS_OF_A_PHASE: usize = 24;

/// Says that others use, and have asked for, as much as a test wants.
#[derive(Default)]
struct Pretended {
    used_bytes: AtomicU64,
    asked_bytes: AtomicU64,
}

impl Pretended {
    fn set(&self, used_mib: u64, asked_mib: u64) {
        self.used_bytes.store(used_mib * MIB, Ordering::Relaxed);
        self.asked_bytes.store(asked_mib * MIB, Ordering::Relaxed);
    }
}

impl Meter for Pretended {
    fn level(&self, resident_bytes: u64, own_bytes: u64) -> Level {
        Level {
            used_bytes: self.used_bytes.load(Ordering::Relaxed) + resident_bytes,
            glance: self.glance(own_bytes),
        }
    }

    fn glance(&self, own_bytes: u64) -> Glance {
        Glance {
            private_bytes: self.used_bytes.load(Ordering::Relaxed),
            asked_bytes: self.asked_bytes.load(Ordering::Relaxed) + own_bytes,
            mapped_bytes: 0,
        }
    }
}

/// Pretends something else every few evaluations.
struct InPhases {
    feeding: Feeding,
    meter: Arc<Pretended>,
    /// Used and asked for, in MiB.
    phases: Vec<(u64, u64)>,
    evaluations: usize,
    /// After the last evaluation of each phase.
    shares: Vec<Shares>,
}

impl Observer for InPhases {
    fn before(&mut self, _: Phase, _: &[BatchToken]) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn decode(
        &mut self,
        context: &mut Context<'_>,
        batch: &[BatchToken],
        wants_logits: &dyn Fn(usize) -> bool,
    ) -> Result<(), EngineError> {
        let phase = self.evaluations / EVALUATIONS_OF_A_PHASE;
        let (used_mib, asked_mib) = self.phases[phase];
        self.meter.set(used_mib, asked_mib);
        self.feeding.decode(context, batch, wants_logits)?;
        self.evaluations += 1;
        let shares = self.feeding.shares().unwrap();
        let own = shares.pinned_bytes + shares.ring_bytes + shares.expert_bytes;
        let left = (LIMIT_BYTES - MARGIN_BYTES / 2).saturating_sub(used_mib * MIB);
        // What is too small to be given back stays.
        let small = shares.weight_bytes / 4;
        assert!(own <= left.max(small), "{used_mib} MiB: {shares:?}");
        if self.evaluations.is_multiple_of(EVALUATIONS_OF_A_PHASE) {
            self.shares.push(shares);
        }
        Ok(())
    }

    fn token(&mut self, _: usize, _: i32) {}
}

/// What was kept at the end of each phase, and what feeding did for it.
fn check(path: &Path, phases: &[(u64, u64)]) -> (Vec<Shares>, Snapshot) {
    let model = load(path);
    let what = greedy(
        vec![prompt(&model, 5)],
        phases.len() * EVALUATIONS_OF_A_PHASE,
    );
    let expected = plain(&model, &what);
    let mut context = Context::new(&model, context_props(1)).unwrap();
    let meter = Arc::new(Pretended::default());
    meter.set(phases[0].0, phases[0].1);
    let props = Props {
        budget_bytes: LIMIT_BYTES,
        ..props(None)
    };
    let mut observer = InPhases {
        feeding: Feeding::new(props).measured_by(meter.clone()),
        meter,
        phases: phases.to_vec(),
        evaluations: 0,
        shares: Vec::new(),
    };
    let generated = generate(&model, &mut context, &what, &mut observer).unwrap();
    assert_same(&path.display().to_string(), &expected, &generated);
    let stats = observer.feeding.stats().snapshot();
    (observer.shares, stats)
}

#[test]
fn what_is_kept_follows_what_the_program_uses() {
    for name in ["shakespeare-dense.gguf", "shakespeare-moe.gguf"] {
        let _alone = alone();
        let phases = [(40, 100), (56, 100), (40, 100), (63, 100), (40, 100)];
        let (shares, stats) = check(&shipped(name), &phases);
        let all = shares[0].weight_bytes;
        let kept: Vec<u64> = shares.iter().map(|shares| shares.pinned_bytes).collect();
        assert_eq!(
            (kept[0], kept[2], kept[4]),
            (all, all, all),
            "{name}: {kept:?}"
        );
        assert!(kept[1] > kept[3] && kept[1] < 4 * MIB, "{name}: {kept:?}");
        // What is not kept goes through a ring, unless there is no room for one. Experts do not.
        assert!(
            name.contains("moe") || shares[1].streamed_bytes > 0,
            "{name}: {shares:?}"
        );
        assert_eq!(shares[3].ring_bytes + shares[3].streamed_bytes, 0, "{name}");
        assert!(
            stats.times_given >= 2 && stats.times_grown >= 2,
            "{stats:?}"
        );
        assert!(stats.given_bytes > all / 2, "{name}: {stats:?}");
    }
}

#[test]
fn a_ring_that_had_to_go_comes_back_when_it_is_calm() {
    let _alone = alone();
    let phases = [(40, 100), (56, 100), (63, 100), (56, 100)];
    let (shares, _) = check(&shipped("shakespeare-dense.gguf"), &phases);
    let streamed: Vec<bool> = shares.iter().map(|s| s.streamed_bytes > 0).collect();
    assert_eq!(streamed, [false, true, false, true], "{shares:?}");
}

#[test]
fn memory_that_is_asked_for_is_free_before_it_is_touched_and_kept_free_for_a_while() {
    let _alone = alone();
    let path = shipped("shakespeare-dense.gguf");
    let (shares, stats) = check(&path, &[(40, 100), (40, 140), (40, 140)]);
    assert!(stats.given_bytes > shares[0].weight_bytes / 2, "{stats:?}");
    // Nobody touched it.
    assert_eq!(shares[2].pinned_bytes, shares[0].weight_bytes);
    // A little more announces nothing.
    let (_, stats) = check(&path, &[(40, 100), (40, 120)]);
    assert_eq!(stats.times_given, 0, "{stats:?}");
}

#[test]
fn a_plan_is_kept_but_for_what_others_need() {
    let _alone = alone();
    let model = load(&shipped("shakespeare-dense.gguf"));
    let what = greedy(vec![prompt(&model, 5)], EVALUATIONS_OF_A_PHASE);
    let expected = plain(&model, &what);
    let plan = by_hand(&model.gguf, Way::HalfPinned);
    let outcome = fed(&model, &what, props(Some(plan))).unwrap();
    assert_same("planned", &expected, &outcome.generated);
    assert_eq!(outcome.stats.times_grown, 0, "{:?}", outcome.stats);
    assert!(outcome.shares.streamed_bytes > 0, "{:?}", outcome.shares);
}
