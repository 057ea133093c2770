//! Experiment `false-sharing`: threads that share nothing but a cache line.
//!
//! Each thread counts in a counter of its own. Where counters lie in one line, every
//! increment takes the line away from the other cores.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use anyhow::ensure;

use crate::{
    experiments::Request,
    measure::{self, Spread},
    outcome::{Outcome, Row},
    step::{File, Step},
};

const HERE: File = File {
    path: "crates/lab/src/false_sharing.rs",
    text: include_str!("false_sharing.rs"),
};

const fn step(name: &'static str, about: &'static str) -> Step {
    Step {
        name,
        about,
        file: HERE,
        function: "count",
        defines: &[],
        claims: &[],
    }
}

pub const STEPS: &[Step] = &[
    step(
        "one line",
        "Counters lie side by side: cores take the line from each other.",
    ),
    step(
        "a line each",
        "Each counter has 64 bytes of its own: as fast as one thread alone.",
    ),
    step(
        "two lines each",
        "128 bytes each, as processors that fetch lines in pairs may still pass one around.",
    ),
];

/// Bytes between the counters, by step.
const APART: [usize; 3] = [8, 64, 128];

/// Increments of each thread that are timed at once.
const INCREMENTS: u64 = 4_000_000;
const QUICK_INCREMENTS: u64 = 1_000_000;

/// Counters in two lines each at most, which begin at a pair of lines.
#[repr(align(128))]
#[derive(Default)]
struct Pair([AtomicU64; 16]);

/// Counters at equal distances.
struct Counters {
    room: Vec<Pair>,
    apart: usize,
}

impl Counters {
    fn new(count: usize, apart: usize) -> Counters {
        let pairs = (count * apart).div_ceil(size_of::<Pair>());
        Counters {
            room: (0..pairs).map(|_| Pair::default()).collect(),
            apart,
        }
    }

    fn of(&self, thread: usize) -> &AtomicU64 {
        let number = thread * self.apart / size_of::<AtomicU64>();
        &self.room[number / 16].0[number % 16]
    }
}

/// Seconds until all threads have counted, from when all were ready.
fn count(threads: usize, apart: usize, increments: u64) -> anyhow::Result<f64> {
    let counters = Counters::new(threads, apart);
    let ready = AtomicUsize::new(0);
    let work = &|thread: usize| {
        let counter = counters.of(thread);
        // Not asleep: who wakes up late counts alone.
        ready.fetch_add(1, Ordering::Relaxed);
        while ready.load(Ordering::Relaxed) < threads {
            std::thread::yield_now();
        }
        let (seconds, ()) = measure::seconds(|| {
            for _ in 0..increments {
                counter.fetch_add(1, Ordering::Relaxed);
            }
        });
        seconds
    };
    let slowest = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads)
            .map(|thread| scope.spawn(move || work(thread)))
            .collect();
        let mut slowest = work(0);
        for other in others {
            let seconds = other.join().unwrap_or(f64::NAN);
            slowest = slowest.max(seconds);
        }
        slowest
    });
    for thread in 0..threads {
        let counted = counters.of(thread).load(Ordering::Relaxed);
        ensure!(
            counted == increments,
            "thread {thread} counted {counted} instead of {increments}"
        );
    }
    Ok(slowest)
}

pub fn run(request: &Request) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::new(
        "false-sharing",
        "What does it cost when threads' counters lie in one cache line?",
        "threads",
        "ns/increment",
        None,
        request.seed,
    );
    let increments = match request.is_quick {
        true => QUICK_INCREMENTS,
        false => INCREMENTS,
    };
    let cores = outcome.machine.cores;
    let all: Vec<usize> = std::iter::successors(Some(1), |n| Some(n * 2))
        .take_while(|&n| n <= cores)
        .collect();
    if cores == 1 {
        let note = "This machine has one core: nothing takes a line away.";
        outcome.notes.push(note.to_owned());
    }
    for threads in request.sizes_or(&all, &all) {
        ensure!(
            (1..=4096).contains(&threads),
            "threads are from 1 to 4096, not {threads}"
        );
        if threads > cores {
            let note = format!("{threads} threads take turns on {cores} cores.");
            outcome.notes.push(note);
        }
        let members: Vec<(&Step, usize)> = STEPS
            .iter()
            .zip(APART)
            .filter(|(step, _)| request.wants(step.name))
            .collect();
        let times = measure::in_turns(members.len(), request.rounds, |i| {
            let seconds = count(threads, members[i].1, increments)?;
            Ok(seconds * 1e9 / increments as f64)
        })?;
        for (i, ((step, apart), these)) in members.iter().zip(&times).enumerate() {
            let case = threads.to_string();
            let mut row = Row::of(step, case, threads as f64, Spread::of(these));
            if i > 0 && members[0].1 < *apart {
                let ratio = measure::speed_against(these, &times[0]);
                row = row.against(members[0].0.name, ratio);
            }
            outcome.rows.push(row);
        }
    }
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_as_far_apart_as_said() {
        for apart in APART {
            let counters = Counters::new(5, apart);
            let address = |thread| std::ptr::from_ref(counters.of(thread)) as usize;
            assert_eq!(address(0) % 128, 0);
            for thread in 1..5 {
                assert_eq!(address(thread) - address(thread - 1), apart);
            }
        }
    }

    #[test]
    fn nothing_is_counted_twice_or_lost() {
        for apart in APART {
            assert!(count(3, apart, 1000).unwrap() > 0.0);
        }
    }
}
