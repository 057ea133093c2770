//! Whatever is fed in whatever way, what comes out is bit for bit what llama.cpp alone
//! gives.

mod room;

use std::{ops::ControlFlow, path::Path};

use capture::BatchToken;
use engine::{
    EngineError,
    context::{Context, ContextProps},
    feeding::Feeding,
    generate::{GenerateProps, Generated, Observer, generate},
    loading::Loading,
    model::{Model, Repack},
};
use feed::{Distribution, Method, Props, ReadAhead, Shares, Snapshot};
use gguf::write::Split;
use plan::{
    Machine, Policy, Strategies, Use, Wanted, Weight,
    choose::{RING_WEIGHTS, layers_of, pool_slot_bytes},
    weights_of,
};
use planfile::Plan;
use synth::PRESETS;
use trace::format::Phase;

use crate::fixtures::{Plain, alone, greedy, prompt, shipped, tiny, write};

const ALL: Strategies = Strategies {
    pin: true,
    stream: true,
    experts: true,
};
const MIB: u64 = 1 << 20;

fn props(plan: Option<Plan>) -> Props {
    Props {
        budget_bytes: 2 << 30,
        strategies: ALL,
        plan: plan.map(|plan| plan.named_choice()),
        policy: Policy::Lru,
        block_bytes: 1 << 16,
        depth: 8,
        machine: Machine::new(1e9),
        predicted_tokens_per_second: None,
        method: Method::IoUringDirect,
        faults: None,
        routing: None,
        routing_seed: 1,
        keeps_routing: false,
        read_ahead: ReadAhead::Experts,
        advice: None,
    }
}

struct Fed(Feeding);

impl Observer for Fed {
    fn before(&mut self, _: Phase, _: &[BatchToken]) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
    fn decode(
        &mut self,
        context: &mut Context<'_>,
        batch: &[BatchToken],
        wants_logits: &dyn Fn(usize) -> bool,
    ) -> Result<(), EngineError> {
        self.0.decode(context, batch, wants_logits)
    }
    fn token(&mut self, _: usize, _: i32) {}
}

fn context_props(sequences: usize) -> ContextProps {
    ContextProps {
        threads: 2,
        micro_batch: 8,
        sequences,
        ..ContextProps::default()
    }
}

fn load(path: &Path) -> Model {
    Model::load_as(path, Repack::Off, Loading::Lazy).unwrap()
}

fn plain(model: &Model, what: &GenerateProps) -> Generated {
    let mut context = Context::new(model, context_props(what.prompts.len())).unwrap();
    generate(model, &mut context, what, &mut Plain).unwrap()
}

/// What came out, and what feeding did for it.
struct Outcome {
    generated: Generated,
    shares: Shares,
    stats: Snapshot,
    notes: Vec<String>,
}

fn fed(model: &Model, what: &GenerateProps, props: Props) -> Result<Outcome, EngineError> {
    let mut context = Context::new(model, context_props(what.prompts.len())).unwrap();
    let mut observer = Fed(Feeding::new(props));
    let generated = generate(model, &mut context, what, &mut observer)?;
    let Fed(mut feeding) = observer;
    Ok(Outcome {
        generated,
        shares: feeding.shares().unwrap(),
        stats: feeding.stats().snapshot(),
        notes: feeding.take_notes(),
    })
}

#[track_caller]
fn assert_same(label: &str, expected: &Generated, got: &Generated) {
    let bits = |generated: &Generated| -> Vec<Vec<u32>> {
        let logits = generated.final_logits.iter();
        logits
            .map(|l| l.iter().map(|v| v.to_bits()).collect())
            .collect()
    };
    assert_eq!(expected.tokens, got.tokens, "{label}");
    assert!(!expected.final_logits[0].is_empty());
    assert!(bits(expected) == bits(got), "{label}: other logits");
}

/// Where weights go in a plan made by hand, whatever their size.
#[derive(Clone, Copy, Debug)]
enum Way {
    AllStreamed,
    /// All, those that are large in pieces.
    InPieces,
    /// Every other one.
    HalfPinned,
    /// All but experts; those in as many pools as there are layers, or in one.
    ExpertsInSlots {
        more_than_needed: u32,
        shared: bool,
    },
}

/// Of what a tiny model has, the largest weights are more.
const PIECE_BYTES: u64 = 32 << 10;

fn by_hand(model: &gguf::Model, way: Way) -> Plan {
    const ALIGNMENT: u64 = 512;
    let weights = weights_of(model);
    let wanted = Wanted {
        weights_bytes: 1 << 30,
        strategies: ALL,
        read_bytes: 1 << 16,
        depth: 8,
        alignment_bytes: ALIGNMENT,
    };
    let mut choice = plan::Choice {
        ring_bytes: 8 * MIB,
        ..plan::Choice::default()
    };
    for (number, Weight { usage, .. }) in weights.iter().enumerate() {
        let list = match (way, usage) {
            (_, Use::Rows) => &mut choice.mapped,
            (Way::ExpertsInSlots { .. }, Use::Experts { .. }) => &mut choice.sliced,
            (Way::HalfPinned, _) if number % 2 == 0 => &mut choice.pinned,
            _ => &mut choice.streamed,
        };
        list.push(number);
    }
    if let Way::ExpertsInSlots {
        more_than_needed,
        shared,
    } = way
    {
        let layers = layers_of(&weights, &choice.sliced, ALIGNMENT);
        let used = layers.iter().map(|l| l.used).max().unwrap();
        let count = layers.iter().map(|l| l.count).min().unwrap();
        let pools = if shared { 1 } else { layers.len() as u32 };
        let slots = (used + more_than_needed).min(count);
        let bytes: u64 = pool_slot_bytes(&layers, pools).iter().sum();
        choice.experts = Some(plan::ExpertMemory {
            pools,
            slots,
            bytes: bytes * u64::from(slots),
        });
    }
    if matches!(way, Way::InPieces) {
        let streamed = choice.streamed.iter().map(|&number| &weights[number]);
        let needed = streamed.map(|weight| weight.ring_bytes(PIECE_BYTES, 4096));
        choice.ring_bytes = needed.max().unwrap() * RING_WEIGHTS;
    }
    let plan = Plan::new(
        model,
        &weights,
        &wanted,
        &choice,
        (&Machine::new(1e9), None),
    );
    plan.check(model).unwrap();
    plan
}

#[test]
fn every_architecture_gives_the_same_streamed_pinned_and_in_slots() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for preset in PRESETS {
        let _alone = alone();
        let model = load(&write(&tiny(preset.name), directory.path(), Split::Whole));
        let what = greedy(vec![prompt(&model, 17)], 6);
        let expected = plain(&model, &what);
        let has_experts = model.gguf.hyper().expert_count > 0;
        let mut ways = vec![Way::AllStreamed, Way::InPieces, Way::HalfPinned];
        if has_experts {
            for (more_than_needed, shared) in [(0, false), (2, false), (0, true)] {
                ways.push(Way::ExpertsInSlots {
                    more_than_needed,
                    shared,
                });
            }
        }
        for way in ways {
            let label = format!("{} {way:?}", preset.name);
            let plan = by_hand(&model.gguf, way);
            let piece_bytes = plan.ring.bytes / RING_WEIGHTS;
            let outcome = fed(&model, &what, props(Some(plan))).unwrap();
            assert_same(&label, &expected, &outcome.generated);
            let [note] = outcome.notes.as_slice() else {
                panic!("{label}: {:?}", outcome.notes);
            };
            assert!(note.starts_with("fed within 2.0 GiB: "), "{label}: {note}");
            let Outcome { shares, stats, .. } = outcome;
            let largest = weights_of(&model.gguf).iter().map(|w| w.bytes).max();
            if matches!(way, Way::InPieces) && !has_experts {
                assert!(largest > Some(2 * piece_bytes), "{label}: {piece_bytes}");
            }
            // 17 tokens of prompt in batches of 8, and the tokens but the last.
            assert!(stats.evaluations >= 8, "{label}: {stats:?}");
            let streamed = shares.streamed_bytes * stats.evaluations;
            assert!(stats.bytes_read >= streamed / 2, "{label}: {stats:?}");
            if matches!(way, Way::ExpertsInSlots { .. }) {
                assert!(stats.expert_misses > 0, "{label}: {stats:?}");
            } else {
                assert!(shares.streamed_bytes > 0, "{label}: {shares:?}");
            }
        }
    }
}

#[test]
fn trained_models_split_sets_and_sequences_give_the_same() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let split = write(&tiny("qwen3-30b-a3b"), directory.path(), Split::Tensors(7));
    let dense = shipped("shakespeare-dense.gguf");
    let moe = shipped("shakespeare-moe.gguf");
    for path in [split, dense, moe] {
        let _alone = alone();
        let model = load(&path);
        let prompts = vec![prompt(&model, 19), prompt(&model, 3)];
        let what = greedy(prompts, 12);
        let expected = plain(&model, &what);
        let mut ways = vec![Way::AllStreamed, Way::InPieces];
        if model.gguf.hyper().expert_count > 0 {
            ways.push(Way::ExpertsInSlots {
                more_than_needed: 1,
                shared: false,
            });
        }
        for way in ways {
            for method in [
                Method::IoUringDirect,
                Method::PreadDirect,
                Method::PreadBuffered,
            ] {
                let props = Props {
                    method,
                    ..props(Some(by_hand(&model.gguf, way)))
                };
                let outcome = fed(&model, &what, props).unwrap();
                let label = format!("{} {way:?} {method}", path.display());
                assert_same(&label, &expected, &outcome.generated);
            }
        }
    }
}

#[test]
fn every_policy_and_drawn_routing_gives_the_same() {
    let _alone = alone();
    let model = load(&shipped("shakespeare-moe.gguf"));
    let what = greedy(vec![prompt(&model, 5)], 30);
    let none = Strategies {
        pin: false,
        stream: false,
        experts: false,
    };
    for routing in [
        None,
        Some(Distribution::Uniform),
        Some(Distribution::Zipf(1.2)),
    ] {
        // Drawn experts are drawn for llama.cpp alone too.
        let expected = match routing {
            None => plain(&model, &what),
            Some(_) => {
                let mut context = Context::new(&model, context_props(1)).unwrap();
                let mut observer = Fed(Feeding::new(Props {
                    strategies: none,
                    routing,
                    ..props(None)
                }));
                generate(&model, &mut context, &what, &mut observer).unwrap()
            }
        };
        for policy in Policy::ALL {
            let way = Way::ExpertsInSlots {
                more_than_needed: 2,
                shared: false,
            };
            let props = Props {
                policy,
                routing,
                ..props(Some(by_hand(&model.gguf, way)))
            };
            let outcome = fed(&model, &what, props).unwrap();
            let label = format!("{policy} {routing:?}");
            assert_same(&label, &expected, &outcome.generated);
            assert!(outcome.stats.expert_hits > 0, "{label}");
        }
    }
}

#[test]
fn experts_read_ahead_change_nothing_whether_right_or_wrong() {
    let _alone = alone();
    let model = load(&shipped("shakespeare-moe.gguf"));
    let what = greedy(vec![prompt(&model, 5)], 40);
    let none = Strategies {
        pin: false,
        stream: false,
        experts: false,
    };
    let told = |share| Some(Distribution::Foretold(share));
    for routing in [None, told(1.0), told(0.5), told(0.0)] {
        let alone = Props {
            strategies: none,
            routing,
            ..props(None)
        };
        let mut context = Context::new(&model, context_props(1)).unwrap();
        let mut observer = Fed(Feeding::new(alone));
        let expected = match routing {
            None => plain(&model, &what),
            Some(_) => generate(&model, &mut context, &what, &mut observer).unwrap(),
        };
        for (more_than_needed, shared) in [(0, false), (2, false), (20, false), (3, true)] {
            for faults in [None, Some("fail=0.05,short=0.05,slow=0.01:1ms")] {
                let way = Way::ExpertsInSlots {
                    more_than_needed,
                    shared,
                };
                let props = Props {
                    routing,
                    faults: faults.map(|text| text.parse().unwrap()),
                    ..props(Some(by_hand(&model.gguf, way)))
                };
                let outcome = fed(&model, &what, props).unwrap();
                let label = format!("{routing:?} {way:?} {faults:?}");
                assert_same(&label, &expected, &outcome.generated);
                let stats = outcome.stats;
                let uses = stats.expert_hits + stats.expert_misses;
                assert!(stats.experts_used_ahead <= stats.experts_read_ahead);
                assert!(stats.experts_used_ahead <= stats.expert_misses, "{label}");
                // All that is told rightly is foreseen, in each layer but the first.
                if routing == told(1.0) {
                    assert!(2 * stats.experts_foreseen > uses, "{label}: {stats:?}");
                }
            }
        }
    }
}

#[test]
fn reads_that_fail_now_and_then_change_nothing() {
    let _alone = alone();
    let model = load(&shipped("shakespeare-moe.gguf"));
    let what = greedy(vec![prompt(&model, 5)], 20);
    let expected = plain(&model, &what);
    for way in [
        Way::AllStreamed,
        Way::ExpertsInSlots {
            more_than_needed: 0,
            shared: false,
        },
    ] {
        let props = Props {
            faults: Some("fail=0.02,short=0.02,slow=0.005:2ms".parse().unwrap()),
            ..props(Some(by_hand(&model.gguf, way)))
        };
        let outcome = fed(&model, &what, props).unwrap();
        assert_same(&format!("{way:?}"), &expected, &outcome.generated);
        assert!(outcome.stats.repeated_reads > 0);
    }
}

#[test]
fn what_cannot_be_read_ends_the_generation() {
    let _alone = alone();
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = directory.path().join("model.gguf");
    std::fs::copy(shipped("shakespeare-moe.gguf"), &path).unwrap();
    let model = load(&path);
    let what = greedy(vec![prompt(&model, 5)], 20);
    for way in [
        Way::AllStreamed,
        Way::ExpertsInSlots {
            more_than_needed: 0,
            shared: true,
        },
    ] {
        let props = Props {
            faults: Some("fail=1".parse().unwrap()),
            ..props(Some(by_hand(&model.gguf, way)))
        };
        let error = fed(&model, &what, props).err().unwrap().to_string();
        assert!(error.contains("model.gguf: cannot read"), "{error}");
        assert!(error.ends_with("generation ends here"), "{error}");
    }
    // The same model works again when the disk does.
    let expected = plain(&model, &what);
    let again = fed(
        &model,
        &what,
        props(Some(by_hand(&model.gguf, Way::HalfPinned))),
    );
    assert_same("again", &expected, &again.unwrap().generated);
}

#[test]
fn a_model_that_changes_meanwhile_ends_the_generation() {
    let _alone = alone();
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = directory.path().join("model.gguf");
    std::fs::copy(shipped("shakespeare-dense.gguf"), &path).unwrap();
    let model = load(&path);
    let mut context = Context::new(&model, context_props(1)).unwrap();
    let mut feeding = Feeding::new(props(Some(by_hand(&model.gguf, Way::AllStreamed))));
    let token = |position| {
        [BatchToken {
            token: 5,
            position,
            sequence: 0,
        }]
    };
    feeding.decode(&mut context, &token(0), &|_| true).unwrap();
    let before = std::fs::metadata(&path).unwrap().modified().unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_modified(before + std::time::Duration::from_secs(1))
        .unwrap();
    let error = feeding
        .decode(&mut context, &token(1), &|_| true)
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("model.gguf: changed while it was read"),
        "{text}"
    );
}

#[test]
fn the_budget_is_shared_out_by_what_is_left_of_it() {
    let _alone = alone();
    let model = load(&shipped("shakespeare-moe.gguf"));
    let what = greedy(vec![prompt(&model, 5)], 6);
    let expected = plain(&model, &what);
    for budget_bytes in [MIB, 48 * MIB, 2 << 30] {
        let props = Props {
            budget_bytes,
            ..props(None)
        };
        let outcome = fed(&model, &what, props).unwrap();
        assert_same(&format!("{budget_bytes}"), &expected, &outcome.generated);
        let shares = outcome.shares;
        let used = shares.pinned_bytes + shares.ring_bytes + shares.expert_bytes;
        // What is kept may have grown since, within what was left free at first.
        let left = budget_bytes.saturating_sub(shares.other_bytes);
        assert!(used <= left, "{shares:?}");
        if budget_bytes == 2 << 30 {
            assert_eq!(shares.mapped_bytes, 0, "{shares:?}");
        } else if budget_bytes == MIB {
            assert_eq!(used, 0, "{shares:?}");
        }
    }
}
