//! How fast memory is read: what STREAM would call "read", a sum over buffers much
//! larger than the caches, with one thread and with all.
//!
//! Each thread fills a buffer of its own, so that on machines with several memory
//! nodes the pages lie near their reader, and sums it around and around. Meanwhile
//! the caller looks every 50 ms at how much was read; the median slice is the
//! figure.
//!
//! What it deliberately does not do: write, copy, or bind threads to cores. Weights
//! are only read, and inference threads are usually not bound.

mod caches;

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rundir::limits::Limit;
use serde::{Deserialize, Serialize};

use crate::buffer::AlignedBuffer;
use crate::error::CeilingError;
use crate::rate::{Rates, bytes_per_second};
use caches::LastLevel;

/// All buffers together, whatever the machine has.
pub const MAX_BYTES: u64 = 1 << 30;
/// Less than this for each thread measures a cache for sure.
const MIN_THREAD_BYTES: u64 = 1 << 20;
/// A buffer has this many times the size of the last-level cache, if it may.
const TIMES_CACHE: u64 = 4;
/// Below this many times the caches, the figure carries a caveat.
const ENOUGH_TIMES_CACHE: u64 = 2;
/// Where the machine does not tell the size of its cache.
const USUAL_CACHE_BYTES: u64 = 32 << 20;
const SLICE: Duration = Duration::from_millis(50);
/// Counters are brought up to date after so much: often enough for a slice, too
/// seldom to cost anything.
const CHUNK_WORDS: usize = (256 << 10) / 8;

/// Figures for one thread and for all of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryCeiling {
    /// The median slice with all threads.
    pub bytes_per_second: u64,
    pub one_thread: ThreadsCeiling,
    pub all_threads: ThreadsCeiling,
    /// Numbers of threads between these two, ascending; empty in files of older versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub between: Vec<ThreadsCeiling>,
    /// One last-level cache; `None` where the machine does not tell.
    pub last_level_cache_bytes: Option<u64>,
}

impl MemoryCeiling {
    /// What so many threads can read. Between two numbers that were measured, in proportion;
    /// more threads than were measured read no more.
    pub fn with_threads(&self, threads: usize) -> f64 {
        let measured = std::iter::once(&self.one_thread)
            .chain(&self.between)
            .chain(std::iter::once(&self.all_threads));
        let figures = measured.map(|part| (part.threads, part.bytes_per_second as f64));
        at_threads(figures, threads).unwrap_or(self.bytes_per_second as f64)
    }
}

/// A figure for a number of threads, from those that were measured, ascending. Between two of
/// them, in proportion; outside, the nearest. `None` where nothing was.
pub fn at_threads(measured: impl Iterator<Item = (usize, f64)>, threads: usize) -> Option<f64> {
    let mut below: Option<(usize, f64)> = None;
    for (at, figure) in measured {
        match below {
            _ if at == threads => return Some(figure),
            None if at > threads => return Some(figure),
            Some((from, less)) if at > threads => {
                let part = (threads - from) as f64 / (at - from) as f64;
                return Some(less + (figure - less) * part);
            }
            _ => below = Some((at, figure)),
        }
    }
    below.map(|(_, figure)| figure)
}

/// The figure for one number of threads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThreadsCeiling {
    pub threads: usize,
    pub bytes_per_second: u64,
    pub rates: Rates,
    /// All buffers together.
    pub buffer_bytes: u64,
    pub residence: Residence,
    /// How much of the time the threads had a processor, in thousandths. Less than
    /// about 950 means that other programs ran, and that the figure is too low.
    pub on_cpu_permille: u32,
}

/// Where the buffers are, by their size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Residence {
    /// They are at least twice as large as the caches.
    Memory,
    /// There was not enough memory for that: the figure may be that of a cache.
    PartlyCache,
}

/// What may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryOptions {
    /// For each of the two figures.
    pub time: Duration,
    /// All buffers together.
    pub budget_bytes: u64,
}

impl MemoryOptions {
    /// A second for each figure, a quarter of the memory that is available now,
    /// and at most 1 GiB.
    pub fn for_this_machine() -> MemoryOptions {
        let machine = rundir::machine::describe(None);
        let group = rundir::limits::describe().cgroup;
        let group_bytes = match group.map(|group| group.limit_bytes) {
            Some(Limit::Bytes(bytes)) => bytes,
            _ => u64::MAX,
        };
        MemoryOptions {
            time: Duration::from_secs(1),
            budget_bytes: budget(machine.memory_available_bytes, group_bytes),
        }
    }
}

/// Where the kernel does not say what is available, 256 MiB are.
fn budget(available_bytes: Option<u64>, group_limit_bytes: u64) -> u64 {
    let available = available_bytes.unwrap_or(MAX_BYTES).min(group_limit_bytes);
    (available / 4).min(MAX_BYTES)
}

/// Measures with one thread and with `threads`. `on_threads` is told the number of
/// threads before each.
pub fn measure(
    threads: NonZeroUsize,
    options: MemoryOptions,
    on_threads: &mut dyn FnMut(usize),
) -> Result<MemoryCeiling, CeilingError> {
    let caches = caches::last_level();
    // Refused before the first second is spent.
    thread_bytes(threads.get(), options.budget_bytes, caches)?;
    on_threads(1);
    let one_thread = measure_threads(1, options, caches)?;
    let all_threads = match threads.get() {
        1 => one_thread.clone(),
        threads => {
            on_threads(threads);
            measure_threads(threads, options, caches)?
        }
    };
    Ok(MemoryCeiling {
        bytes_per_second: all_threads.bytes_per_second,
        one_thread,
        all_threads,
        between: Vec::new(),
        last_level_cache_bytes: caches.map(|caches| caches.one_bytes),
    })
}

/// Powers of two between one thread and `threads`.
pub fn counts_between(threads: NonZeroUsize) -> impl Iterator<Item = usize> {
    let powers = std::iter::successors(Some(2usize), |n| n.checked_mul(2));
    powers.take_while(move |&n| n < threads.get())
}

/// As [`measure`], with these numbers of threads.
pub fn measure_between(
    threads: NonZeroUsize,
    options: MemoryOptions,
    on_threads: &mut dyn FnMut(usize),
) -> Result<Vec<ThreadsCeiling>, CeilingError> {
    let caches = caches::last_level();
    counts_between(threads)
        .map(|threads| {
            on_threads(threads);
            measure_threads(threads, options, caches)
        })
        .collect()
}

/// A buffer for each of so many threads that is not all in a cache, if memory allows.
pub(crate) fn load_bytes(threads: usize) -> Result<u64, CeilingError> {
    /// Enough for a load, of which no figure is made; more takes longer to fill.
    const MAX_LOAD_BYTES: u64 = 64 << 20;
    let budget_bytes = MemoryOptions::for_this_machine().budget_bytes;
    let bytes = thread_bytes(threads, budget_bytes, caches::last_level())?;
    Ok(bytes.min(MAX_LOAD_BYTES))
}

fn thread_bytes(
    threads: usize,
    budget_bytes: u64,
    caches: Option<LastLevel>,
) -> Result<u64, CeilingError> {
    let cache = caches.map_or(USUAL_CACHE_BYTES, |caches| caches.one_bytes);
    let share = budget_bytes.min(MAX_BYTES) / threads as u64;
    if share < MIN_THREAD_BYTES {
        return Err(CeilingError::Memory {
            what: "reading memory with that many threads",
            wanted_bytes: MIN_THREAD_BYTES.saturating_mul(threads as u64),
        });
    }
    let wanted = cache.saturating_mul(TIMES_CACHE).max(MIN_THREAD_BYTES);
    Ok(wanted.min(share))
}

fn residence(threads: usize, buffer_bytes: u64, caches: Option<LastLevel>) -> Residence {
    let caches_bytes = match (caches, threads) {
        (None, _) => USUAL_CACHE_BYTES,
        (Some(caches), threads) => caches
            .all_bytes
            .min(caches.one_bytes.saturating_mul(threads as u64)),
    };
    match buffer_bytes >= caches_bytes.saturating_mul(ENOUGH_TIMES_CACHE) {
        true => Residence::Memory,
        false => Residence::PartlyCache,
    }
}

/// What the threads and their caller tell each other.
struct Shared {
    /// Threads whose buffer is filled, or that failed.
    ready: AtomicUsize,
    go: AtomicBool,
    stop: AtomicBool,
    read_bytes: AtomicU64,
}

fn measure_threads(
    threads: usize,
    options: MemoryOptions,
    caches: Option<LastLevel>,
) -> Result<ThreadsCeiling, CeilingError> {
    let bytes_each = thread_bytes(threads, options.budget_bytes, caches)?;
    let (rates, times) =
        while_reading(threads, bytes_each, |counter| sample(options.time, counter))?;
    let rates = Rates::of(rates).expect("there is at least one slice");
    let buffer_bytes = bytes_each * threads as u64;
    Ok(ThreadsCeiling {
        threads,
        bytes_per_second: rates.median_bytes_per_second,
        rates,
        buffer_bytes,
        residence: residence(threads, buffer_bytes, caches),
        on_cpu_permille: times.on_cpu_permille(),
    })
}

/// What threads that read memory have read so far.
pub(crate) struct Counter<'a>(&'a AtomicU64);

impl Counter<'_> {
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Works while so many threads read memory, each a buffer of so many bytes, as threads do that
/// compute with weights.
pub(crate) fn while_reading<T>(
    threads: usize,
    bytes_each: u64,
    work: impl FnOnce(Counter<'_>) -> T,
) -> Result<(T, Times), CeilingError> {
    let shared = Shared {
        ready: AtomicUsize::new(0),
        go: AtomicBool::new(false),
        stop: AtomicBool::new(false),
        read_bytes: AtomicU64::new(0),
    };
    thread::scope(|scope| {
        let mut readers = Vec::with_capacity(threads);
        let mut failure = None;
        for number in 0..threads {
            let work = || read_until_stopped(bytes_each as usize, &shared);
            match thread::Builder::new().spawn_scoped(scope, work) {
                Ok(reader) => readers.push(reader),
                Err(cause) => {
                    failure = Some(CeilingError::Thread {
                        number: number + 1,
                        threads,
                        cause,
                    });
                    break;
                }
            }
        }
        let done = failure.is_none().then(|| {
            // A thread that panicked is not ready but finished.
            while shared.ready.load(Ordering::Relaxed) < readers.len()
                && !readers.iter().any(|reader| reader.is_finished())
            {
                thread::sleep(Duration::from_millis(1));
            }
            shared.go.store(true, Ordering::Relaxed);
            work(Counter(&shared.read_bytes))
        });
        shared.stop.store(true, Ordering::Relaxed);
        let mut times = Times::default();
        for reader in readers {
            match reader.join() {
                Ok(Ok(more)) => {
                    times.wall += more.wall;
                    times.cpu += more.cpu;
                }
                Ok(Err(error)) => failure = failure.or(Some(error)),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        match (failure, done) {
            (None, Some(done)) => Ok((done, times)),
            (Some(error), _) => Err(error),
            (None, None) => unreachable!("without a failure the work is done"),
        }
    })
}

/// Looks at the counter until the time is over; at least once.
fn sample(time: Duration, counter: Counter<'_>) -> Vec<u64> {
    // The first slice pays for waking up.
    thread::sleep(SLICE);
    let begin = Instant::now();
    let (mut since, mut before) = (begin, counter.bytes());
    let mut rates = Vec::new();
    loop {
        thread::sleep(SLICE);
        let (now, bytes) = (Instant::now(), counter.bytes());
        rates.push(bytes_per_second(bytes - before, now - since));
        (since, before) = (now, bytes);
        if now - begin >= time {
            return rates;
        }
    }
}

/// How long threads read, by the clock and on a processor.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    wall: Duration,
    cpu: Duration,
}

impl Times {
    fn on_cpu_permille(self) -> u32 {
        let wall = self.wall.as_nanos().max(1);
        // The two clocks tick apart; more than all of the time is not meant.
        (self.cpu.as_nanos() * 1000 / wall).min(1000) as u32
    }
}

/// What this thread has had of a processor.
fn cpu_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` lives through the call, which cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn read_until_stopped(bytes: usize, shared: &Shared) -> Result<Times, CeilingError> {
    let buffer = AlignedBuffer::new("reading memory", bytes, 1);
    shared.ready.fetch_add(1, Ordering::Relaxed);
    let buffer = buffer?;
    // The fastest thread must not read alone while the others still fill.
    while !shared.go.load(Ordering::Relaxed) && !shared.stop.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(1));
    }
    let sum = best_sum();
    let (begin, cpu_begin) = (Instant::now(), cpu_time());
    while !shared.stop.load(Ordering::Relaxed) {
        for chunk in buffer.words().chunks(CHUNK_WORDS) {
            black_box(sum(black_box(chunk)));
            let bytes = size_of_val(chunk) as u64;
            shared.read_bytes.fetch_add(bytes, Ordering::Relaxed);
            if shared.stop.load(Ordering::Relaxed) {
                break;
            }
        }
    }
    Ok(Times {
        wall: begin.elapsed(),
        cpu: cpu_time().saturating_sub(cpu_begin),
    })
}

/// The sum with the widest loads that this processor has.
fn best_sum() -> fn(&[u64]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        return |words| {
            // SAFETY: the processor has AVX2, as was just asked.
            unsafe { sum_avx2(words) }
        };
    }
    sum
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sum_avx2(words: &[u64]) -> u64 {
    sum(words)
}

/// Four cache lines' worth of sums that do not wait for each other; the compiler
/// makes vectors of them.
#[inline(always)]
fn sum(words: &[u64]) -> u64 {
    const LANES: usize = 32;
    let (blocks, rest) = words.as_chunks::<LANES>();
    let mut sums = [0u64; LANES];
    for block in blocks {
        for (sum, word) in sums.iter_mut().zip(block) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.iter()
        .chain(rest)
        .fold(0, |total, word| total.wrapping_add(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn caches(one_mib: u64, all_mib: u64) -> Option<LastLevel> {
        Some(LastLevel {
            one_bytes: one_mib * MIB,
            all_bytes: all_mib * MIB,
        })
    }

    #[test]
    fn every_word_is_summed_whatever_the_length() {
        for length in [0, 1, 31, 32, 33, 1000] {
            let words: Vec<u64> = (0..length).map(|i| i * i + u64::MAX / 3).collect();
            let expect = words.iter().fold(0u64, |a, b| a.wrapping_add(*b));
            assert_eq!(best_sum()(&words), expect, "{length}");
            assert_eq!(sum(&words), expect, "{length}");
        }
    }

    #[test]
    fn buffers_stay_within_the_budget() {
        let check = |threads, budget_mib: u64, caches, expect_mib: u64| {
            let found = thread_bytes(threads, budget_mib * MIB, caches).unwrap();
            assert_eq!(found, expect_mib * MIB, "{threads} threads");
            assert!(found * threads as u64 <= MAX_BYTES);
        };
        check(1, 4096, caches(32, 32), 128);
        check(2, 4096, caches(32, 32), 128);
        check(64, 4096, caches(32, 256), 16);
        check(2, 100, caches(32, 32), 50);
        check(1, 4096, caches(1024, 1024), 1024);
        check(4, 4096, None, 128);
        assert!(thread_bytes(1025, 4096 * MIB, None).is_err());
        assert!(thread_bytes(1, MIB - 1, None).is_err());
    }

    #[test]
    fn a_quarter_of_what_is_available_is_used_at_most() {
        assert_eq!(budget(Some(400 * MIB), u64::MAX), 100 * MIB);
        assert_eq!(budget(Some(400 * MIB), 40 * MIB), 10 * MIB);
        assert_eq!(budget(Some(u64::MAX), u64::MAX), MAX_BYTES);
        assert_eq!(budget(None, u64::MAX), 256 * MIB);
    }

    #[test]
    fn buffers_that_fit_into_the_caches_are_named() {
        let check = |threads, mib: u64, caches, expect| {
            assert_eq!(residence(threads, mib * MIB, caches), expect);
        };
        check(1, 64, caches(32, 256), Residence::Memory);
        check(1, 63, caches(32, 256), Residence::PartlyCache);
        check(16, 1024, caches(32, 512), Residence::Memory);
        check(64, 1024, caches(96, 1152), Residence::PartlyCache);
        check(1, 16, None, Residence::PartlyCache);
    }

    #[test]
    fn a_figure_between_two_measured_ones_is_in_proportion() {
        let check = |measured: &[(usize, f64)], threads, expect: Option<f64>| {
            assert_eq!(at_threads(measured.iter().copied(), threads), expect);
        };
        let measured = [(1, 10.0), (2, 18.0), (4, 20.0)];
        check(&measured, 1, Some(10.0));
        check(&measured, 2, Some(18.0));
        check(&measured, 3, Some(19.0));
        check(&measured, 4, Some(20.0));
        check(&measured, 64, Some(20.0));
        check(&measured[1..], 1, Some(18.0));
        check(&[(1, 10.0), (1, 10.0)], 2, Some(10.0));
        check(&[], 2, None);
    }

    #[test]
    fn powers_of_two_lie_between_one_thread_and_all() {
        let check = |threads, expect: &[usize]| {
            let threads = NonZeroUsize::new(threads).unwrap();
            assert_eq!(counts_between(threads).collect::<Vec<_>>(), expect);
        };
        check(1, &[]);
        check(2, &[]);
        check(3, &[2]);
        check(16, &[2, 4, 8]);
    }

    #[test]
    fn memory_is_measured_with_one_thread_and_with_all() {
        let options = MemoryOptions {
            time: Duration::from_millis(200),
            budget_bytes: MemoryOptions::for_this_machine().budget_bytes.min(64 * MIB),
        };
        let mut asked = Vec::new();
        let threads = NonZeroUsize::new(3).unwrap();
        let found = measure(threads, options, &mut |n| asked.push(n)).unwrap();
        assert_eq!(asked, [1, 3]);
        assert_eq!(
            (found.one_thread.threads, found.all_threads.threads),
            (1, 3)
        );
        for part in [&found.one_thread, &found.all_threads] {
            assert!(part.bytes_per_second > 100_000_000, "{part:?}");
            assert!(part.rates.slices >= 1);
            assert!((1..=1000).contains(&part.on_cpu_permille), "{part:?}");
            assert!(part.buffer_bytes <= options.budget_bytes);
        }
        assert_eq!(found.bytes_per_second, found.all_threads.bytes_per_second);
    }
}
