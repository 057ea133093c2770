//! What threads do on the processors: of a program that is told what to do, and of this
//! process.
//!
//! The program is this test binary, run again with `TENSORSCOPE_TEST_CHILD`.

use std::hint::black_box;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kernelio::cpu::{self, CpuSummary};
use kernelio::files::Files;
use kernelio::kernel_log::cpu::{CpuEvent, What};
use kernelio::kernel_log::machine::MachineSample;
use kernelio::kernel_log::stacks::Stacks;
use kernelio::kernel_log::{self, Reader};
use kernelio::session::{Session, Wish};

const CHILD: &str = "TENSORSCOPE_TEST_CHILD";
const BUSY: Duration = Duration::from_millis(1200);
const ASLEEP: Duration = Duration::from_millis(400);

const CPU: Wish = Wish {
    faults: None,
    io: false,
    residency_every: None,
    cpu: true,
};

/// The program: computes, sleeps, computes on a second thread.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    outer_of_the_main_thread();
    wait_for_nothing(ASLEEP);
    let thread = std::thread::spawn(|| spin_on_the_second_thread(BUSY));
    thread.join().unwrap();
}

/// Gives the processor up for so long.
fn wait_for_nothing(time: Duration) {
    let (_sender, receiver) = std::sync::mpsc::channel::<()>();
    assert!(receiver.recv_timeout(time).is_err());
}

#[inline(never)]
fn outer_of_the_main_thread() {
    spin_on_the_main_thread(BUSY);
    black_box(());
}

#[inline(never)]
fn spin_on_the_main_thread(time: Duration) {
    let begin = Instant::now();
    let mut x = 1u64;
    while begin.elapsed() < time {
        (0..20_000).for_each(|_| x = black_box(x.wrapping_mul(3)));
    }
}

#[inline(never)]
fn spin_on_the_second_thread(time: Duration) {
    let begin = Instant::now();
    let mut x = 1u64;
    while begin.elapsed() < time {
        (0..20_000).for_each(|_| x = black_box(x.wrapping_mul(5)));
    }
}

struct Recorded {
    summary: CpuSummary,
    events: Vec<CpuEvent>,
    stacks: Stacks,
    machine: Vec<MachineSample>,
}

impl Recorded {
    fn read(summary: Option<CpuSummary>, folder: &Path) -> Recorded {
        let log = |name| folder.join(name);
        let events = Reader::open(&log(kernel_log::CPU)).unwrap();
        let machine = Reader::open(&log(kernel_log::MACHINE)).unwrap();
        Recorded {
            summary: summary.unwrap(),
            events: events.map(Result::unwrap).collect(),
            stacks: Stacks::read(&log(kernel_log::STACKS)).unwrap(),
            machine: machine.map(Result::unwrap).collect(),
        }
    }

    /// Samples with a function of this name in their stack: how many, whose, and what
    /// the functions are called from the outside in.
    fn samples_in(&self, name: &str) -> (Duration, Vec<u32>, Vec<String>) {
        let (mut nanos, mut tids, mut path) = (0, Vec::new(), Vec::new());
        for event in &self.events {
            let What::Sample {
                stack, nanos: one, ..
            } = event.what
            else {
                continue;
            };
            let names: Vec<&str> = self
                .stacks
                .inwards_out(stack)
                .map(|f| self.stacks.functions()[f as usize].name.as_str())
                .collect();
            if names.iter().any(|n| n.ends_with(name)) {
                nanos += one;
                tids.push(event.tid);
                path = names.iter().rev().map(|n| (*n).to_owned()).collect();
            }
        }
        tids.sort_unstable();
        tids.dedup();
        (Duration::from_nanos(nanos), tids, path)
    }
}

#[test]
fn a_program_is_sampled_in_its_functions_and_its_sleep_is_seen() {
    if let Some(missing) = cpu::probe() {
        println!("skipped: {missing}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture"]);
    command.env(CHILD, "1").stdout(Stdio::null());
    let tokens = Arc::new(|| 0);
    let (mut child, mut session) =
        Session::of_child(&CPU, &mut command, folder.path(), tokens).unwrap();
    let status = session.wait(&mut child).unwrap();
    assert!(status.success());
    let summary = session.finish(&Files::default()).unwrap();
    let run = Recorded::read(summary.cpu, folder.path());
    assert_eq!(run.summary.lost, 0);
    let samples = run
        .events
        .iter()
        .filter(|e| matches!(e.what, What::Sample { .. }));
    assert_eq!(samples.count() as u64, run.summary.samples);

    // It spins for a time of the clock; of the processor it may have had half.
    let (main, main_tids, path) = run.samples_in("spin_on_the_main_thread");
    assert!(main > BUSY / 3 && main < BUSY * 5 / 4, "{main:?}");
    assert!(
        path.iter().any(|n| n.ends_with("outer_of_the_main_thread")),
        "{path:?}"
    );
    // To its beginning, through the C library.
    assert!(path.iter().any(|n| n.contains("thread_start")), "{path:?}");
    let (second, second_tids, path) = run.samples_in("spin_on_the_second_thread");
    assert!(second > BUSY / 3 && second < BUSY * 5 / 4, "{second:?}");
    assert!(
        !path.iter().any(|n| n.ends_with("outer_of_the_main_thread")),
        "{path:?}"
    );
    assert_eq!((main_tids.len(), second_tids.len()), (1, 1));
    assert_ne!(main_tids, second_tids);

    // The sleep: the thread waits, and runs again so much later. The clock of the sleep runs
    // before the thread is off its processor.
    let of_main = run.events.iter().filter(|e| e.tid == main_tids[0]);
    let switches: Vec<&CpuEvent> = of_main
        .filter(|e| matches!(e.what, What::On | What::Waits | What::Preempted))
        .collect();
    let slept = switches.windows(2).any(|pair| {
        let away = Duration::from_nanos(pair[1].nanos - pair[0].nanos);
        pair[0].what == What::Waits && pair[1].what == What::On && away >= ASLEEP * 9 / 10
    });
    assert!(slept, "{switches:?}");

    let (first, last) = (run.machine.first().unwrap(), run.machine.last().unwrap());
    assert!(run.machine.len() > 8, "{}", run.machine.len());
    let busy = last.busy_nanos.unwrap() - first.busy_nanos.unwrap();
    assert!(Duration::from_nanos(busy) > BUSY / 2, "{busy}");
    assert!(last.processors >= Some(1));
}

#[test]
fn this_process_is_sampled_but_for_the_reader() {
    if let Some(missing) = cpu::probe() {
        println!("skipped: {missing}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let tokens = Arc::new(|| 0);
    let session = Session::of_this_process(&CPU, Files::default(), folder.path(), tokens);
    spin_on_the_main_thread(BUSY / 2);
    let thread = std::thread::spawn(|| spin_on_the_second_thread(BUSY / 2));
    thread.join().unwrap();
    let summary = session.finish(&Files::default()).unwrap();
    let run = Recorded::read(summary.cpu, folder.path());
    let (here, _, _) = run.samples_in("spin_on_the_main_thread");
    let (there, _, _) = run.samples_in("spin_on_the_second_thread");
    assert!(here > BUSY / 6 && there > BUSY / 6, "{here:?} {there:?}");
    assert_eq!(run.samples_in("pump::run").0, Duration::ZERO);
}

#[test]
fn a_program_that_cannot_be_run_leaves_no_log() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("/no/such/program");
    let tokens = Arc::new(|| 0);
    assert!(Session::of_child(&CPU, &mut command, folder.path(), tokens).is_err());
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}
