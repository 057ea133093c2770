//! What appending costs: `cargo run --release -p trace --example append_rate`.
//!
//! Writes 200 MB in records of 8 KB (a token of a small model) as fast as the
//! processor goes, and prints
//! - the time inside the appends, which is what a recording thread sees: pages are
//!   already there, and no model is so fast that it has to wait for more;
//! - the rate overall, which is what the preparer sustains.
//!
//! An argument names the folder to write to, the temporary folder otherwise.

use std::{path::PathBuf, sync::Arc, time::Instant};

use trace::{
    append::{Appender, Log, SEGMENT_BYTES, SEGMENTS_AHEAD},
    format::RecordKind,
    status::StatusPage,
};

const TOTAL_BYTES: usize = 200_000_000;
const BODY_WORDS: usize = 1000;

fn main() -> std::io::Result<()> {
    let parent = std::env::args_os()
        .nth(1)
        .map_or_else(std::env::temp_dir, PathBuf::from);
    let directory = parent.join(format!("append_rate-{}", std::process::id()));
    std::fs::create_dir(&directory)?;
    let result = measure(&directory);
    std::fs::remove_dir_all(&directory)?;
    result
}

fn measure(directory: &std::path::Path) -> std::io::Result<()> {
    let status = Arc::new(StatusPage::create(&directory.join("status"))?);
    let (log, mut appender) =
        Log::create(directory, 0, status, Box::new(|error| eprintln!("{error}")))?;
    let before_kib = anonymous_kib();
    let started = Instant::now();
    let (mut busy_nanos, mut puts, mut waits) = (0u128, 0usize, 0u64);
    while puts * 8 < TOTAL_BYTES {
        let begun = Instant::now();
        if !append(&mut appender, puts as u64) {
            waits += 1;
            std::thread::yield_now();
            continue;
        }
        busy_nanos += begun.elapsed().as_nanos();
        puts += BODY_WORDS;
    }
    let elapsed = started.elapsed();
    println!(
        "records       {} of {} bytes",
        puts / BODY_WORDS,
        (BODY_WORDS + 4) * 8
    );
    println!(
        "recording     {:.2} ns per put",
        busy_nanos as f64 / puts as f64
    );
    println!(
        "sustained     {:.0} MB/s, {waits} times ahead of the preparer",
        puts as f64 * 8.0 / 1e6 / elapsed.as_secs_f64()
    );
    println!(
        "memory        {} KiB private before, {} KiB after; mapped log at most {} MiB",
        before_kib,
        anonymous_kib(),
        (SEGMENT_BYTES * (SEGMENTS_AHEAD + 2)) >> 20
    );
    println!(
        "peak resident {} KiB, the mapped log included",
        status_kib("VmHWM:")
    );
    log.finish(appender)
}

fn append(appender: &mut Appender, first: u64) -> bool {
    if !appender.begin(RecordKind::Evaluation, BODY_WORDS) {
        return false;
    }
    for word in 0..BODY_WORDS as u64 {
        appender.put(first + word);
    }
    appender.commit();
    true
}

fn anonymous_kib() -> u64 {
    status_kib("RssAnon:")
}

fn status_kib(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse().ok())
        .unwrap_or(0)
}
