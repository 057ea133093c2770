//! The text of a plan, and each thing that can be wrong with one.

use plan::{choose, weights_of};
use testing::models::{dense, model, moe};

use super::*;

/// A plan with something in every list: 8 KiB pinned, 6 KiB streamed.
fn example() -> (gguf::Model, Plan) {
    let model = moe();
    let weights = weights_of(&model);
    let index = |name: &str| weights.iter().position(|w| w.name == name).unwrap();
    let choice = Choice {
        pinned: vec![index("output.weight")],
        streamed: vec![
            index("blk.0.attn_q.weight"),
            index("blk.0.ffn_up_shexp.weight"),
        ],
        sliced: vec![
            index("blk.0.ffn_gate_exps.weight"),
            index("blk.0.ffn_up_exps.weight"),
            index("blk.0.ffn_down_exps.weight"),
        ],
        mapped: vec![index("token_embd.weight")],
        ring_bytes: 16_384,
        experts: Some(ExpertMemory {
            pools: 1,
            slots: 3,
            bytes: 18_450,
        }),
    };
    let wanted = Wanted {
        weights_bytes: 50_000,
        strategies: Strategies {
            pin: true,
            stream: true,
            experts: true,
        },
        read_bytes: 4096,
        depth: 4,
        alignment_bytes: 512,
    };
    let machine = Machine {
        compute_seconds_per_token: Some(0.01),
        ..Machine::new(1e6)
    };
    let assumed = (&machine, Some(0.25.into()));
    let mut plan = Plan::new(&model, &weights, &wanted, &choice, assumed);
    plan.made_by = "tensorscope, for a test".to_owned();
    plan.made_for.model = "models/example.gguf".to_owned();
    plan.memory.budget_bytes = 60_000;
    plan.memory.other_bytes = 10_000;
    plan.notes.push("an example".to_owned());
    (model, plan)
}

fn parse(text: &str) -> Result<Plan, PlanError> {
    Plan::from_json(Path::new("my.plan"), text)
}

/// The message for a plan after an edit.
fn message(edit: impl FnOnce(&mut Plan)) -> String {
    let (model, mut plan) = example();
    plan.check(&model).unwrap();
    edit(&mut plan);
    let message = plan.check(&model).unwrap_err().to_string();
    assert!(!message.contains('\n'), "{message}");
    message
}

#[test]
fn text_of_a_plan_is_the_golden_one() {
    let (_, plan) = example();
    let golden = include_str!("../tests/golden/plan.json");
    assert_eq!(plan.to_json(), golden);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/plan.json");
    assert_eq!(Plan::read(&path).unwrap(), plan);
}

#[test]
fn plans_and_machines_of_older_versions_are_read_and_do_not_vary() {
    let (_, plan) = example();
    let is_new = |line: &&str| {
        ["_low\"", "_high\"", "read_latency_seconds\""]
            .iter()
            .any(|key| line.contains(key))
    };
    let text = plan.to_json();
    assert_eq!(text.lines().filter(is_new).count(), 7);
    let older: Vec<&str> = text.lines().filter(|line| !is_new(line)).collect();
    // The last field of an object has no comma.
    let older = older.join("\n").replace("56.02,", "56.02");
    let read = parse(&older).unwrap();
    assert_eq!(read.pin, plan.pin);
    assert_eq!(read.predicted.tokens_per_second_low, None);
    let speed = read.predicted.speed().unwrap();
    assert_eq!((speed.low, speed.high), (speed.usual, speed.usual));

    let text = r#"{"disk_bytes_per_second": 1e9, "memory_bytes_per_second": null,
        "read_latency_seconds": 0.0003, "compute_seconds_per_token": null,
        "weights_bytes": null, "stock_amplification": 1.0, "fault_efficiency": 0.6}"#;
    let machine: Machine = serde_json::from_str(text).unwrap();
    assert_eq!(machine, Machine::new(1e9));
    assert_eq!(machine.slowest(), machine.fastest());
}

#[test]
fn chosen_plan_passes_and_gives_its_choice_back() {
    for model in [dense(), moe()] {
        let weights = weights_of(&model);
        for weights_bytes in [0, 10_000, 100_000, 1 << 30] {
            let wanted = Wanted {
                weights_bytes,
                strategies: Strategies {
                    pin: true,
                    stream: true,
                    experts: true,
                },
                read_bytes: 4096,
                depth: 2,
                alignment_bytes: 512,
            };
            let choice = choose(&weights, &wanted);
            let assumed = (&Machine::new(1e9), None);
            let plan = Plan::new(&model, &weights, &wanted, &choice, assumed);
            plan.check(&model).unwrap();
            let read = parse(&plan.to_json()).unwrap();
            assert_eq!(read, plan);
            assert_eq!(read.named_choice().choice(&weights), choice);
        }
    }
}

#[test]
fn weights_in_no_list_stay_in_the_file_and_streams_keep_their_order() {
    let (model, mut plan) = example();
    let weights = weights_of(&model);
    plan.stream.reverse();
    let choice = plan.named_choice().choice(&weights);
    let names: Vec<&str> = choice.streamed.iter().map(|&i| &*weights[i].name).collect();
    assert_eq!(names, ["blk.0.ffn_up_shexp.weight", "blk.0.attn_q.weight"]);
    // Of the twelve weights, six are in another list.
    assert_eq!(choice.mapped.len(), 6);
    assert_eq!(choice.ring_bytes, 16_384);
}

#[test]
fn moved_model_is_the_same_model() {
    let (_, plan) = example();
    plan.check(&moe()).unwrap();
}

#[test]
fn plan_for_another_model_says_what_differs() {
    let check = |other: gguf::Model, edit: fn(&mut Plan), differs: &str| {
        let (_, mut plan) = example();
        edit(&mut plan);
        let got = plan.check(&other).unwrap_err().to_string();
        let path = other.files()[0].path.display().to_string();
        let start = "the plan was made for \"models/example.gguf\", which is another model: ";
        let differs = differs.replace("HERE", &format!("{path:?}"));
        assert_eq!(got, format!("{start}{differs}"));
    };
    let (_, plan) = example();
    let bytes = plan.made_for.files[0].bytes;
    let dense_bytes = dense().len_bytes();
    check(
        dense(),
        |_| {},
        &format!("it has {bytes} bytes and HERE has {dense_bytes}"),
    );
    check(
        dense(),
        |plan| plan.made_for.files.push(plan.made_for.files[0].clone()),
        "it has 2 files and HERE has 1",
    );
    check(
        moe(),
        |plan| {
            plan.made_for.fingerprint = "0123".to_owned();
            plan.made_for.weight_bytes = 7;
        },
        &format!(
            "its weights have 7 bytes and those of HERE have {}",
            plan.made_for.weight_bytes
        ),
    );
    check(
        moe(),
        |plan| plan.made_for.fingerprint = "0123".to_owned(),
        "HERE has the same size, but tensors of other names, types, shapes or places",
    );
    // Same tensors, other order: other places.
    let one = model(&[], &[("a.weight", &[32]), ("b.weight", &[32])]);
    let two = model(&[], &[("b.weight", &[32]), ("a.weight", &[32])]);
    let (_, mut plan) = example();
    plan.made_for = MadeFor::of(&one);
    let got = plan.check(&two).unwrap_err();
    assert!(matches!(got, PlanError::OtherModel { .. }));
}

#[test]
fn unknown_tensor_names_the_nearest() {
    assert_eq!(
        message(|plan| plan.stream[0] = "blk.0.atn_q.weight".to_owned()),
        "stream: the model has no tensor \"blk.0.atn_q.weight\"; \
         did you mean \"blk.0.attn_q.weight\"?"
    );
    assert_eq!(
        message(|plan| plan.mapped.push("mapped\nby me".to_owned())),
        "mapped: the model has no tensor \"mapped\\nby me\""
    );
}

#[test]
fn tensor_in_two_places_is_refused() {
    assert_eq!(
        message(|plan| plan.mapped.push("output.weight".to_owned())),
        "tensor \"output.weight\" is in pin and again in mapped: keep one of the two"
    );
    assert_eq!(
        message(|plan| plan.pin.push("output.weight".to_owned())),
        "tensor \"output.weight\" is in pin and again in pin: keep one of the two"
    );
}

#[test]
fn ring_that_could_deadlock_is_refused() {
    // Rows of 32 numbers of 4 bytes, and 3 bytes for reading around them.
    let needed = 3 * (128 + 3);
    assert_eq!(
        message(|plan| plan.ring.bytes = needed - 1),
        format!(
            "ring.bytes is {}, but to stream \"blk.0.attn_q.weight\" the ring needs room for \
             three pieces of it: at least {needed} bytes",
            needed - 1
        )
    );
    let (model, mut plan) = example();
    plan.ring.bytes = needed;
    plan.check(&model).unwrap();
    assert_eq!(
        message(|plan| plan.ring.read_bytes = 0),
        "ring.read_bytes: 0 bytes a read read nothing"
    );
    assert_eq!(
        message(|plan| plan.ring.depth = 0),
        "ring.depth: 0 reads in flight read nothing"
    );
}

#[test]
fn plan_over_its_memory_is_refused() {
    assert_eq!(
        message(|plan| plan.memory.weights_bytes = 43_027),
        "pin (8194 bytes), ring (16384) and experts (18450) are more than \
         memory.weights_bytes: 43027"
    );
    assert_eq!(
        message(|plan| plan.ring.bytes = u64::MAX),
        "pin (8194 bytes), ring (18446744073709551615) and experts (18450) are more than \
         memory.weights_bytes: 50000"
    );
    assert_eq!(
        message(|plan| plan.memory.budget_bytes = 59_999),
        "memory.budget_bytes: 59999 is less than weights_bytes (50000) and other_bytes (10000) \
         together"
    );
}

#[test]
fn slots_that_cannot_work_are_refused() {
    let experts = |change: fn(&mut Experts)| {
        message(|plan| {
            if let Some(experts) = &mut plan.experts {
                change(experts);
            }
        })
    };
    assert_eq!(
        experts(|experts| experts.slots = 1),
        "experts.slots: 1, but a token uses 2 experts"
    );
    assert_eq!(
        experts(|experts| experts.pools = 2),
        "experts.pools: 2 for 1 layers"
    );
    assert_eq!(
        experts(|experts| experts.pools = 0),
        "experts.pools: 0 for 1 layers"
    );
    // Three slices of 2048 bytes, and 2 bytes for reading around each, in three slots.
    assert_eq!(
        experts(|experts| experts.bytes = 18_449),
        "experts.bytes: 18449, but 1 pools of 3 slots need 18450"
    );
    assert_eq!(
        message(|plan| plan.experts = None),
        "experts: missing, but there are tensors in sliced"
    );
    assert_eq!(
        message(|plan| {
            plan.pin.clear();
            plan.sliced.push("output.weight".to_owned());
        }),
        "sliced: tensor \"output.weight\" is not divided into experts"
    );
}

#[test]
fn other_versions_and_formats_are_refused() {
    assert_eq!(
        message(|plan| plan.version = 2),
        "version 2 of the plan is not known, only 1: make the plan anew"
    );
    assert_eq!(
        message(|plan| plan.format = "plan".to_owned()),
        "format: \"plan\" instead of \"tensorscope-plan\""
    );
    // Before its fields are looked at.
    let text = r#"{"format": "tensorscope-plan", "version": 7, "new": true}"#;
    assert_eq!(
        parse(text).unwrap_err().to_string(),
        "version 7 of the plan is not known, only 1: make the plan anew"
    );
    for text in [r#"{"version": 1}"#, r#"{"format": "gguf"}"#, "[null, null]"] {
        assert_eq!(
            parse(text).unwrap_err().to_string(),
            "my.plan: not a plan: no \"format\": \"tensorscope-plan\" in it"
        );
    }
}

#[test]
fn typing_errors_in_the_file_are_seen() {
    let (_, plan) = example();
    let text = plan.to_json();
    let check = |from: &str, to: &str, start: &str| {
        assert!(text.contains(from), "{from}");
        let got = parse(&text.replacen(from, to, 1)).unwrap_err().to_string();
        let start = format!("my.plan: not a plan: {start}");
        assert!(got.starts_with(&start), "{got}");
        assert!(!got.contains('\n'), "{got}");
        assert!(got.contains(" at line "), "{got}");
    };
    check("\"pin\": [", "\"pinn\": [", "unknown field `pinn`");
    check("\"notes\"", "\"no\\ntes\"", "unknown field `no tes`");
    check("\"depth\"", "\"deep\"", "unknown field `deep`");
    check(
        "\"stream\": true",
        "\"streams\": true",
        "unknown field `streams`",
    );
    check(
        "\"policy\": \"lru\"",
        "\"policy\": \"mru\"",
        "unknown variant `mru`",
    );
    check("\"slots\": 3", "\"slots\": -3", "invalid value");
    check("\"slots\": 3,", "", "missing field `slots`");
    check("\"slots\": 3,", "\"slots\": 3", "expected `,` or `}`");
    assert!(parse("").is_err());
}

#[test]
fn file_that_is_not_there_is_named() {
    let path = Path::new("/nonexistent/my.plan");
    let got = Plan::read(path).unwrap_err().to_string();
    assert!(
        got.starts_with("/nonexistent/my.plan: cannot read: "),
        "{got}"
    );
}

#[test]
fn policies_have_the_name_that_is_typed() {
    for policy in Policy::ALL {
        let name = policy.to_string();
        assert_eq!(serde_json::to_string(&policy).unwrap(), format!("{name:?}"));
    }
}

#[test]
fn what_is_no_plan_is_said_in_a_line_that_can_be_read() {
    let text = format!("{:?}", "x".repeat(1 << 20));
    let error = Plan::from_json(Path::new("my.plan"), &text).unwrap_err();
    let message = error.to_string();
    assert!(
        message.starts_with("my.plan: not a plan: invalid type: string"),
        "{message}"
    );
    assert!(
        message.contains("line 1 column") && message.len() < 600,
        "{message}"
    );
}
