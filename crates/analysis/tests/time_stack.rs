//! Where the time went, against numbers that were added up by hand.

mod underneath_support;

use analysis::{
    time_stack::{Bytes, Inputs, PhaseTime, stacks},
    underneath::intervals::Union,
};
use kernelio::kernel_log::{
    cpu::{CpuEvent, What},
    stacks::{Function, StackWriter, Stacks},
};
use reader::kernel::{Cpu, Timeline};
use trace::format::Phase;
use underneath_support::timeline_of;

const COMPUTES: u32 = 1;
const WAITS: u32 = 2;
const FAULTS: u32 = 3;

/// Two tokens of 1000 ns each, and 100 ns between them.
fn timeline() -> Timeline {
    timeline_of(
        &[("MUL_MAT", Some(0)), ("ADD", Some(0))],
        &[
            (Phase::Generate, 1, 1000, &[1500, 2000]),
            (Phase::Generate, 1, 2100, &[2600, 3100]),
        ],
    )
}

/// Stacks of a thread that computes, waits for others, and is in a page fault.
fn known_stacks() -> Stacks {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("stacks");
    let mut writer = StackWriter::create(&path).unwrap();
    for (name, module) in [
        ("ggml_vec_dot_f16", "libggml-cpu.so"),
        ("ggml_barrier", "libggml-cpu.so"),
        ("handle_mm_fault", "[kernel]"),
    ] {
        let (name, module) = (name.to_owned(), module.to_owned());
        let function = writer.function(Function { name, module }).unwrap();
        writer.stack(0, function).unwrap();
    }
    writer.flush().unwrap();
    Stacks::read(&path).unwrap()
}

fn sample(tid: u32, nanos: u64, stack: u32, stands_for: u64) -> CpuEvent {
    let what = What::Sample {
        stack,
        nanos: stands_for,
        is_in_kernel: stack == FAULTS,
    };
    event(tid, nanos, what)
}

fn event(tid: u32, nanos: u64, what: What) -> CpuEvent {
    CpuEvent {
        nanos,
        pid: 1,
        tid,
        cpu: 0,
        what,
    }
}

fn generate(events: Vec<CpuEvent>, disk: Option<&Union>) -> PhaseTime {
    let timeline = timeline();
    let cpu = Cpu::join(events, known_stacks(), Vec::new(), &[], &timeline);
    let inputs = Inputs {
        timeline: &timeline,
        bytes: &Bytes::default(),
        disk,
        reads: None,
        cpu: Some(&cpu),
        memory_ceiling: None,
    };
    let [time] = <[PhaseTime; 1]>::try_from(stacks(&inputs)).unwrap();
    let parts = [
        time.disk,
        time.other_threads,
        time.not_running,
        time.unexplained,
    ];
    let parts: u64 = parts.into_iter().flatten().sum();
    assert_eq!(parts + time.below_wall + time.host, time.nanos, "{time:?}");
    time
}

#[test]
fn who_waits_for_a_thread_that_does_not_run_does_not_run_either() {
    let time = generate(
        vec![
            sample(1, 1100, COMPUTES, 500),
            sample(1, 1600, WAITS, 500),
            sample(1, 2200, COMPUTES, 1000),
            sample(2, 1100, COMPUTES, 500),
            event(2, 1500, What::Preempted),
            event(2, 2000, What::On),
            sample(2, 2200, COMPUTES, 1000),
        ],
        None,
    );
    assert_eq!((time.nanos, time.host, time.tokens), (2100, 100, 2));
    assert_eq!(time.not_running, Some(500));
    assert_eq!(time.other_threads, Some(0));
    assert_eq!((time.below_wall, time.unexplained), (1500, Some(0)));
    let threads = time.threads.unwrap();
    assert_eq!((threads.threads, threads.preemptions), (2, 1));
    assert_eq!((threads.computing, threads.waiting), (3000, 500));
}

#[test]
fn who_waits_for_one_that_computes_waits_for_other_threads() {
    let time = generate(
        vec![
            sample(1, 1100, COMPUTES, 500),
            sample(1, 1600, WAITS, 500),
            sample(1, 2200, COMPUTES, 1000),
            sample(2, 1100, COMPUTES, 1000),
            sample(2, 2200, COMPUTES, 1000),
        ],
        None,
    );
    assert_eq!(time.other_threads, Some(250));
    assert_eq!((time.not_running, time.disk), (Some(0), Some(0)));
    let imbalance = time.threads.unwrap().imbalance;
    assert!((imbalance - 2000.0 / 1750.0).abs() < 1e-9, "{imbalance}");
}

#[test]
fn sleep_while_a_page_is_read_is_the_disk_and_so_is_waiting_for_it() {
    let disk = Union::of([(1400, 2000)]);
    let time = generate(
        vec![
            sample(1, 1100, COMPUTES, 400),
            event(1, 1400, What::Waits),
            event(1, 2000, What::On),
            sample(1, 2200, FAULTS, 1000),
            sample(2, 1100, COMPUTES, 400),
            sample(2, 1600, WAITS, 600),
            sample(2, 2200, COMPUTES, 1000),
        ],
        Some(&disk),
    );
    // 600 asleep, 600 waiting for that, 1000 in the kernel's fault; of two threads.
    assert_eq!(time.disk, Some(1100));
    assert_eq!((time.not_running, time.other_threads), (Some(0), Some(0)));
    assert_eq!(time.below_wall, 900);
}

#[test]
fn time_without_a_sample_is_not_explained() {
    let time = generate(vec![sample(1, 1100, COMPUTES, 100)], None);
    assert_eq!(time.unexplained, Some(1900));
    // One sample more or less at either end is no time that was missed.
    let time = generate(vec![sample(1, 1100, COMPUTES, 1500)], None);
    assert_eq!((time.unexplained, time.below_wall), (Some(0), 2000));
    let time = generate(Vec::new(), None);
    assert_eq!(time.unexplained, Some(2000));
}

#[test]
fn without_samples_an_evaluation_is_the_disk_and_computing() {
    let (timeline, disk) = (timeline(), Union::of([(1900, 2300)]));
    let bytes = Bytes::default();
    let inputs = Inputs {
        timeline: &timeline,
        bytes: &bytes,
        disk: Some(&disk),
        reads: None,
        cpu: None,
        memory_ceiling: Some(1 << 30),
    };
    let [time] = <[PhaseTime; 1]>::try_from(stacks(&inputs)).unwrap();
    assert_eq!((time.disk, time.below_wall), (Some(300), 1700));
    assert_eq!((time.at_wall, time.not_running), (Some(0), None));
}

#[test]
fn a_long_pause_is_nobodys_work() {
    let second = 1_000_000_000;
    let timeline = timeline_of(
        &[("MUL_MAT", Some(0))],
        &[
            (Phase::Generate, 1, 1000, &[2000]),
            (Phase::Generate, 1, 5 * second, &[5 * second + 1000]),
        ],
    );
    let inputs = Inputs {
        timeline: &timeline,
        bytes: &Bytes::default(),
        disk: None,
        reads: None,
        cpu: None,
        memory_ceiling: None,
    };
    let time = &stacks(&inputs)[0];
    assert_eq!((time.host, time.idle_nanos), (0, 5 * second - 2000));
    assert_eq!(time.nanos, 2000);
}
