//! Runs in which a device computes: their stack, and the causes that are found in it.

use analysis::{
    actions::Setup,
    devices::{DeviceClass, DeviceFacts, DevicePhase, DeviceResults, HostPart, Passes},
    facts::Facts,
    time_stack::{DeviceTime, PhaseTime},
    traffic::DeviceSum,
};
use diagnose::{Ceilings, Diagnosis, Inputs, diagnose};
use rules::RuleSet;

const GIB: u64 = 1 << 30;

/// A tenth of a second for each share of ten; 10 tokens.
fn time(device: DeviceTime, processor: u64, host: u64) -> PhaseTime {
    PhaseTime {
        phase: "generate".to_owned(),
        evaluations: 20,
        tokens: 10,
        nanos: device.nanos() + processor + host,
        bytes: 5_000_000,
        below_wall: processor,
        host,
        device: Some(device),
        ..PhaseTime::default()
    }
}

fn facts(kernels: u64, processor: u64, memory_bytes: u64) -> Facts {
    let class = |op: &str, component: &str, nanos| DeviceClass {
        phase: "generate".to_owned(),
        op: op.to_owned(),
        weight_type: Some("q4_K".to_owned()),
        component: component.to_owned(),
        executions: 10,
        nanos,
        ..DeviceClass::default()
    };
    let device = DeviceFacts {
        device: "CUDA0".to_owned(),
        memory_bytes: Some(memory_bytes),
        phases: vec![DevicePhase {
            phase: "generate".to_owned(),
            evaluations: 10,
            timed_evaluations: 10,
            nanos: 4 * kernels,
            measured_evaluations: 10,
            kernel_nanos: kernels,
            kernels: 3_000,
            ..DevicePhase::default()
        }],
        classes: vec![
            class("MUL_MAT", "ffn", 60),
            class("MUL_MAT", "attention", 20),
        ],
        ..DeviceFacts::default()
    };
    let devices = DeviceResults {
        devices: vec![device],
        host: HostPart {
            layers: 32,
            host_layers: 8,
            host_layer_bytes: 8 * GIB / 4,
            ..HostPart::default()
        },
        passes: vec![Passes {
            phase: "generate".to_owned(),
            passes: 10,
            tokens: 10,
        }],
        ..DeviceResults::default()
    };
    let mut facts = Facts {
        devices,
        ..Facts::default()
    };
    facts.traffic.devices = vec![DeviceSum {
        device: "CPU".to_owned(),
        phase: "generate".to_owned(),
        nanos: processor,
        ..DeviceSum::default()
    }];
    facts
}

fn diagnosis(time: &PhaseTime, facts: &Facts) -> Diagnosis {
    let inputs = Inputs {
        facts,
        underneath: None,
        times: std::slice::from_ref(time),
        metadata: None,
        setup: &Setup::default(),
        ceilings: Ceilings::default(),
        threads: &[],
        better_kernels: None,
        fed_nanos_per_token: None,
        more: &[],
    };
    let diagnosis = diagnose(&inputs, RuleSet::shipped(), &[]);
    let sum: f64 = diagnosis.phases[0]
        .stack
        .iter()
        .map(|part| part.share)
        .sum();
    assert!((sum - 1.0).abs() < 1e-9, "{:?}", diagnosis.phases[0].stack);
    diagnosis
}

fn causes(diagnosis: &Diagnosis) -> Vec<&str> {
    let causes = diagnosis.causes.iter();
    causes.map(|ranked| &*ranked.cause.id).collect()
}

#[test]
fn kernels_have_a_part_for_each_class_of_nodes() {
    let device = DeviceTime {
        evaluations: 10,
        measured: 10,
        kernels: 800,
        gaps: 50,
        kernels_each: 300,
        ..DeviceTime::default()
    };
    let diagnosis = diagnosis(&time(device, 50, 100), &facts(800, 50, 80 * GIB));
    let parts = diagnosis.phases[0].stack.iter();
    let parts = parts.filter(|part| part.share > 0.0);
    let parts: Vec<_> = parts
        .map(|part| (&*part.name, &*part.title, part.share))
        .collect();
    assert_eq!(
        parts,
        [
            (
                "device_kernels_1",
                "kernels of the device: MUL_MAT q4_K ffn",
                0.6
            ),
            (
                "device_kernels_2",
                "kernels of the device: MUL_MAT q4_K attention",
                0.2
            ),
            ("device_gaps", "gaps between kernels of the device", 0.05),
            (
                "in_operations",
                "in operations: computing, or waiting for threads",
                0.05
            ),
            ("host", "between evaluations: sampling and the program", 0.1),
        ]
    );
    assert_eq!(causes(&diagnosis), Vec::<&str>::new());
}

#[test]
fn causes_of_a_device_that_waits_are_told_apart() {
    let base = DeviceTime {
        evaluations: 10,
        measured: 10,
        kernels: 400,
        kernels_each: 300,
        ..DeviceTime::default()
    };
    let roomy = facts(400, 400, 80 * GIB);
    let gaps = DeviceTime {
        gaps: 500,
        ..base.clone()
    };
    let found = diagnosis(&time(gaps, 50, 50), &roomy);
    assert_eq!(causes(&found), ["run.launch_bound"]);
    let why = &found.causes[0].cause.why;
    assert!(
        why.contains("for 56 % of the time in which the device had work: 300 kernels"),
        "{why}"
    );
    let copies = DeviceTime {
        copies: 500,
        copy_calls: 60,
        ..base.clone()
    };
    let found = diagnosis(&time(copies.clone(), 50, 50), &roomy);
    assert_eq!(causes(&found), ["run.small_copies"]);
    // Its graph in six parts.
    let copies = DeviceTime {
        evaluations: 60,
        ..copies
    };
    assert_eq!(
        causes(&diagnosis(&time(copies, 50, 50), &roomy)),
        ["run.copies"]
    );
    let found = diagnosis(&time(base.clone(), 550, 50), &roomy);
    assert_eq!(causes(&found), ["run.offload_split"]);
    assert_eq!(found.causes[0].cause.action.as_deref(), Some("-ngl 99"));
    // No room for another layer.
    let full = facts(400, 400, GIB / 5);
    assert_eq!(
        causes(&diagnosis(&time(base.clone(), 550, 50), &full)),
        ["run.offload_full"]
    );
    // Copies that may have waited for a device that nobody timed are no copies.
    let untimed = DeviceTime {
        evaluations: 10,
        untimed: 10,
        copies: 900,
        ..DeviceTime::default()
    };
    let found = diagnosis(&time(untimed, 50, 50), &roomy);
    assert_eq!(causes(&found), Vec::<&str>::new());
    assert!(found.phases[0].share("device_waits") > Some(0.8));
}

#[test]
fn rules_for_devices_lack_nothing_where_there_is_none() {
    let time = PhaseTime {
        phase: "generate".to_owned(),
        evaluations: 10,
        tokens: 10,
        nanos: 1000,
        below_wall: 900,
        host: 100,
        ..PhaseTime::default()
    };
    let found = diagnosis(&time, &Facts::default());
    let of_devices = [
        "run.launch_bound",
        "run.copies",
        "run.small_copies",
        "run.offload_split",
        "run.offload_full",
    ];
    for rule in &found.not_evaluated {
        assert!(!of_devices.contains(&&*rule.rule), "{rule:?}");
    }
}
