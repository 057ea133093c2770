//! How the store scales: makes a log, ingests it, times the documented queries.
//!
//! ```text
//! cargo run --release -p store --example store_scale -- ACCESSES [dense|moe] [FOLDER]
//! ```
//!
//! Prints a line per figure, with the bar it has to reach.

use std::{fs, path::PathBuf, time::Instant};

use rundir::Run;
use store::{Format, Session, ingest, views, write_query};
use testing::transformer::{Shape, write_run};

fn main() {
    let mut args = std::env::args().skip(1);
    let accesses: u64 = args
        .next()
        .map_or(1_000_000, |n| n.parse().expect("a number of accesses"));
    let experts = match args.next().as_deref() {
        None | Some("dense") => None,
        Some("moe") => Some((64, 8)),
        Some(other) => panic!("{other}: say dense or moe"),
    };
    let folder = args.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let path = folder.join(format!("tensorscope-scale-{}", std::process::id()));
    let accesses = write_run(
        &path,
        Shape {
            layers: 32,
            experts,
        },
        accesses,
    );
    let run = Run::open(&path).expect("the log that was just written");
    println!(
        "log              {accesses} accesses, {:.2} B/access",
        per(run.log_bytes(), accesses)
    );

    reset_peak();
    let start = Instant::now();
    let report = ingest(&run, &mut |_| ()).expect("ingest");
    let seconds = start.elapsed().as_secs_f64();
    assert_eq!(report.rows("accesses"), accesses);
    println!(
        "ingest           {:.2} million accesses/s (at least 5), {seconds:.2} s",
        accesses as f64 / seconds / 1e6
    );
    println!("ingest memory    {} MB (at most 512)", peak_megabytes());
    for table in &report.tables {
        println!(
            "  {:<14} {:>10} rows, {:>11} bytes",
            table.name, table.rows, table.bytes
        );
    }
    let of_accesses = report
        .tables
        .iter()
        .find(|t| t.name == "accesses")
        .map_or(0, |t| t.bytes);
    println!(
        "size             {:.2} B/access (at most 4), table accesses alone {:.2}",
        per(report.bytes(), accesses),
        per(of_accesses, accesses)
    );

    let session = Session::open(&[&path]).expect("tables");
    let views = views::VIEWS
        .iter()
        .map(|v| (v.name, format!("SELECT * FROM {}", v.name)));
    let queries = views::QUERIES
        .iter()
        .map(|(title, sql)| (*title, (*sql).to_owned()));
    for (title, sql) in views.chain(queries) {
        reset_peak();
        let start = Instant::now();
        let written = write_query(&session, &sql, Format::Csv, &mut std::io::sink()).expect(title);
        let seconds = start.elapsed().as_secs_f64();
        println!(
            "query {seconds:>6.2} s (at most 5), {:>5} MB (at most 2048), {:>8} rows: {title}",
            peak_megabytes(),
            written.rows
        );
    }
    fs::remove_dir_all(&path).expect("cannot remove the folder");
}

fn per(bytes: u64, accesses: u64) -> f64 {
    bytes as f64 / accesses as f64
}

/// Forgets the peak of memory so far, where the kernel lets us.
fn reset_peak() {
    let _ = fs::write("/proc/self/clear_refs", "5");
}

fn peak_megabytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) / 1000
}
