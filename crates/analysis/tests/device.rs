//! Runs in which a device computes: bytes of everything, times of what was measured.

use analysis::{
    facts::{Facts, Model, Options},
    findings,
    reading::Reading,
    sequence::Sequence,
    time_stack::{self, Bytes},
    traffic::DeviceSum,
};
use kernelio::card::{CardCeiling, CardRate, Quantity};
use reader::{Log, kernel::Timeline, summary::summarise};
use testing::device::{
    ATTENTION_NANOS, CELL_BYTES, CELLS, DESCRIPTION, DEVICE, EXCLUSIVE_NANOS, MEMORY_BYTES,
    attention_stream, mixed_stream,
};
use trace::read::StreamEnd;

/// Ten evaluations on the processor, and thirty on the device: ten of them with times of
/// kernels, ten with their own, ten without.
fn facts() -> (Facts, Sequence, reader::summary::Summary) {
    let directory = tempfile::tempdir().unwrap();
    mixed_stream(directory.path(), 0, 40, StreamEnd::Closed);
    let mut reading = Reading::new(Options::default());
    let walked = Log::new(directory.path()).walk(&mut reading).unwrap();
    let (facts, sequence) = reading.finish(&walked.tensors, &Model::default());
    let summary = summarise(directory.path(), &mut |_| ()).unwrap();
    (facts, sequence, summary)
}

#[test]
fn devices_have_the_bytes_that_they_touched() {
    let (facts, _, summary) = facts();
    let sums = &facts.traffic.devices;
    let keys: Vec<_> = sums.iter().map(|s| (&*s.device, &*s.phase)).collect();
    assert_eq!(
        keys,
        [("CPU", "generate"), ("CPU", "prompt"), (DEVICE, "generate")]
    );
    let all = |of: fn(&DeviceSum) -> u64| sums.iter().map(of).sum::<u64>();
    assert_eq!(all(|s| s.steps), summary.steps);
    assert_eq!(all(|s| s.accesses), summary.accesses);
    let bytes: u64 = summary.by_kind.values().map(|t| t.bytes).sum();
    assert_eq!(all(|s| s.read_bytes + s.written_bytes), bytes);
    assert_eq!(all(|s| s.evaluations), 40);
}

#[test]
fn a_device_step_without_a_time_counts_bytes_and_no_time() {
    let (facts, _, summary) = facts();
    let [.., device] = &facts.traffic.devices[..] else {
        panic!("{:?}", facts.traffic.devices);
    };
    assert_eq!((device.evaluations, device.untimed_evaluations), (30, 10));
    assert_eq!(device.nanos, 20 * 3_500);
    assert_eq!((device.steps, device.timed_steps), (120, 40));
    assert_eq!(device.timed_nanos, 10 * 3_200);
    // A third of the evaluations, which have experts; another third does not.
    let all = device.read_bytes + device.written_bytes;
    assert!(device.timed_bytes > all / 3 && device.timed_bytes < all / 2);
    let times: u64 = facts.traffic.times.iter().map(|t| t.nanos).sum();
    let by_op: u64 = summary.by_op.values().map(|op| op.nanos).sum();
    assert_eq!((times, times), (by_op, 10 * 4_000 + 10 * 3_200));
    let generate = facts.traffic.phase("generate").unwrap();
    assert_eq!(generate.untimed_evaluations, 10);
    assert_eq!(generate.nanos, 9 * 4_500 + 20 * 3_500);
    assert_eq!(facts.traffic.flagged_evaluations, 0);
}

#[test]
fn ceilings_of_the_processor_are_held_against_its_own_steps() {
    let (facts, ..) = facts();
    let executions: u64 = facts.classes.iter().map(|row| row.executions).sum();
    assert_eq!(executions, 40);
}

#[test]
fn weights_are_in_the_sequence_whoever_read_them() {
    let (_, sequence, _) = facts();
    assert_eq!(sequence.evals.len(), 40);
    for eval in &sequence.evals {
        assert!(eval.access_count >= 2, "the rows of two tokens");
    }
    // On a device the time that was measured there, else that of the call.
    let nanos = |at: usize| sequence.evals[at].end_nanos - sequence.evals[at].begin_nanos;
    assert_eq!([0, 1, 2, 3].map(nanos), [4_500, 3_500, 3_500, 500]);
}

#[test]
fn a_run_of_the_processor_says_nothing_of_devices() {
    let directory = tempfile::tempdir().unwrap();
    testing::log::small_log(directory.path(), 5, StreamEnd::Closed);
    let mut reading = Reading::new(Options::default());
    let walked = Log::new(directory.path()).walk(&mut reading).unwrap();
    let (facts, _) = reading.finish(&walked.tensors, &Model::default());
    let json = serde_json::to_value(&facts.traffic).unwrap();
    assert!(json.get("devices").is_none());
    assert!(json["phases"][0].get("untimed_evaluations").is_none());
    assert!(facts.devices.is_empty() && facts.devices.experts.are_all());
}

#[test]
fn times_of_a_device_are_those_that_were_measured() {
    let (facts, ..) = facts();
    let [device] = &facts.devices.devices[..] else {
        panic!("{:?}", facts.devices);
    };
    let about = (&*device.device, &*device.description, device.memory_bytes);
    assert_eq!(about, (DEVICE, DESCRIPTION, Some(MEMORY_BYTES)));
    let [phase] = &device.phases[..] else {
        panic!("{:?}", device.phases);
    };
    assert_eq!((&*phase.phase, phase.evaluations), ("generate", 30));
    assert_eq!((phase.timed_evaluations, phase.nanos), (20, 20 * 3_500));
    assert_eq!((phase.measured_evaluations, phase.kernels), (10, 60));
    let ran: u64 = EXCLUSIVE_NANOS.iter().sum();
    assert_eq!(phase.kernel_nanos, 10 * ran);
    assert_eq!((phase.span_nanos, phase.gap_nanos()), (34_000, 1_000));
    // Of four evaluations two on the device are timed and follow each other.
    assert_eq!(phase.between.map(|between| between.gaps), Some(10));
}

#[test]
fn bytes_are_held_against_time_where_both_are_known() {
    let (facts, ..) = facts();
    let classes = &facts.devices.devices[0].classes;
    let executions: u64 = classes.iter().map(|class| class.executions).sum();
    assert_eq!(executions, 40);
    // All kernels but the one that belongs to no step.
    let nanos: u64 = classes.iter().map(|class| class.nanos).sum();
    assert_eq!(nanos, 10 * 3_200);
    for class in classes {
        assert_eq!(class.counted_nanos, class.nanos, "its experts are known");
    }
    let slow = classes.iter().find(|class| class.bytes() > 0).unwrap();
    assert_eq!(slow.reached(DEVICE, &[]), None);
    let rate = slow.bytes_per_second().unwrap();
    let card = CardCeiling {
        device: DEVICE.to_owned(),
        name: "a card".to_owned(),
        memory_bytes: MEMORY_BYTES,
        driver_version: "13.0".to_owned(),
        values: Vec::from_iter(CardRate::of(Quantity::Read, vec![(rate * 4.0) as u64])),
    };
    let share = slow.reached(DEVICE, &[card]).unwrap().share_of_ceiling;
    assert!((share - 0.25).abs() < 0.01, "{share}");
}

#[test]
fn copies_have_the_phase_of_what_they_are_for() {
    let (facts, ..) = facts();
    let [row] = &facts.devices.devices[0].copies[..] else {
        panic!("{:?}", facts.devices.devices[0].copies);
    };
    assert_eq!((&*row.phase, &*row.way), ("generate", "host_to_device"));
    assert_eq!((row.calls, row.bytes, row.nanos), (30, 30 * 256, 3_000));
}

#[test]
fn nothing_is_said_that_needs_experts_which_nobody_knows() {
    let (facts, ..) = facts();
    let experts = facts.devices.experts;
    assert_eq!((experts.evaluations, experts.known), (40, 30));
    let mut said = findings::findings(&facts, None);
    said.extend(findings::devices(&facts, &[]));
    let texts: Vec<&str> = said.iter().map(|finding| &*finding.text).collect();
    let has = |part: &str| texts.iter().any(|text| text.contains(part));
    assert!(has("known for 30 of 40 evaluations"), "{texts:#?}");
    assert!(has("node times were measured in 10 of 30 evaluations"));
    assert!(has("at least"), "{texts:#?}");
    for needs_all in ["never read", "hottest 10", "distinct bytes", "in nodes,"] {
        assert!(!has(needs_all), "{needs_all}: {texts:#?}");
    }
}

#[test]
fn bandwidth_of_attention_is_that_of_cells_in_use() {
    let directory = tempfile::tempdir().unwrap();
    attention_stream(directory.path(), 0, 0..16);
    let mut reading = Reading::new(Options::default());
    let walked = Log::new(directory.path()).walk(&mut reading).unwrap();
    let (facts, _) = reading.finish(&walked.tensors, &Model::default());
    let classes = &facts.devices.devices[0].classes;
    let of_phase = |phase: &str| {
        let mut found = classes.iter().filter(|class| class.op == "FLASH_ATTN_EXT");
        found.find(|class| class.phase == phase).unwrap()
    };
    // Two cells more in each evaluation, the first of which is a prompt.
    assert_eq!(of_phase("prompt").kv_bytes, 2 * CELL_BYTES);
    let generate = of_phase("generate");
    let used: u64 = (2..=16).map(|n| 2 * n * CELL_BYTES).sum();
    assert_eq!((generate.kv_bytes, generate.whole_view_bytes), (used, 0));
    assert_eq!(generate.unused_kv_bytes, 15 * CELLS * CELL_BYTES - used);
    let rate = used as f64 * 1e9 / (15 * ATTENTION_NANOS) as f64;
    assert_eq!(generate.bytes_per_second(), Some(rate));
    let said = findings::devices(&facts, &[]);
    let said: Vec<&str> = said.iter().map(|finding| &*finding.text).collect();
    let expected = "of the KV cache the cells in use are counted, 28.1 % of those it was given";
    assert!(said.iter().any(|text| text.contains(expected)), "{said:#?}");
    // A tenth of a microsecond in each evaluation of two tokens.
    let expected = "between 6 kernels; that costs a token at most 0 µs";
    assert!(said.iter().any(|text| text.contains(expected)), "{said:#?}");
}

#[test]
fn every_moment_of_a_phase_is_one_thing_only() {
    let directory = tempfile::tempdir().unwrap();
    mixed_stream(directory.path(), 0, 40, StreamEnd::Closed);
    let mut bytes = Bytes::default();
    Log::new(directory.path()).walk(&mut bytes).unwrap();
    let timeline = Timeline::read(directory.path()).unwrap();
    let times = time_stack::stacks(&time_stack::Inputs {
        timeline: &timeline,
        bytes: &bytes,
        disk: None,
        reads: None,
        cpu: None,
        memory_ceiling: None,
    });
    let [prompt, generate] = &times[..] else {
        panic!("{times:?}");
    };
    assert_eq!(prompt.device, None, "the processor's alone");
    let device = generate.device.as_ref().unwrap();
    assert_eq!((device.evaluations, device.untimed), (30, 10));
    // Ten were watched, and ten more of the same graph took as long.
    let ran: u64 = EXCLUSIVE_NANOS.iter().sum();
    assert_eq!((device.measured, device.kernels), (10, 20 * ran));
    assert_eq!(device.kernels + device.gaps, 20 * 3_500);
    assert_eq!(device.unsplit, 0);
    // One before each evaluation on the device; the first is in the prompt's time.
    assert_eq!((device.copy_calls, device.copies), (29, 29 * 100));
    assert_eq!(device.to_device_bytes, 29 * 256);
    // What devices do only after the call has returned, and all of those that nobody timed.
    assert_eq!(device.launching, 30 * 500);
    assert_eq!(
        generate.below_wall,
        9 * 4_500,
        "the processor's evaluations"
    );
    let known = device.nanos() + generate.below_wall;
    assert_eq!(generate.nanos, 38 * 10_000 + 500);
    assert_eq!(generate.host, generate.nanos - known);
    let parts: u64 = generate.parts().iter().map(|(_, nanos)| nanos).sum();
    assert_eq!(parts, generate.nanos);
    // What a device reads does not come out of the host's memory.
    let (facts, ..) = facts();
    let of_processor = facts.traffic.devices.iter();
    let mut of_processor = of_processor.filter(|sum| sum.device == "CPU");
    let sum = of_processor.find(|sum| sum.phase == "generate").unwrap();
    assert_eq!(generate.bytes, sum.weight_bytes + sum.kv_bytes);
}
