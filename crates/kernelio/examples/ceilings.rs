//! Prints the ceilings of this machine for a model:
//! `cargo run --release -p kernelio --example ceilings -- FILE [--json]`.

use std::num::NonZeroUsize;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use kernelio::disk::Trial;
use kernelio::memory::{Residence, ThreadsCeiling};
use kernelio::rate::Rates;
use kernelio::{Ceilings, measure};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (file, is_json) = match &arguments[..] {
        [file] => (file, false),
        [file, flag] if flag == "--json" => (file, true),
        _ => {
            eprintln!("usage: ceilings FILE [--json]");
            return ExitCode::from(2);
        }
    };
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let begin = Instant::now();
    let mut told = None;
    let result = measure(Path::new(file), threads, &mut |progress| {
        if told.replace(progress.stage) != Some(progress.stage) {
            eprintln!("{:?} …", progress.stage);
        }
    });
    match result {
        Ok(found) if is_json => match serde_json::to_string_pretty(&found) {
            Ok(text) => println!("{text}"),
            Err(error) => {
                eprintln!("ceilings: {error}");
                return ExitCode::from(2);
            }
        },
        Ok(found) => {
            print(&found);
            println!("\n{:.1} s", begin.elapsed().as_secs_f64());
        }
        Err(error) => {
            eprintln!("ceilings: {error}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

fn print(found: &Ceilings) {
    let disk = &found.disk;
    println!("disk    {}", rates(&disk.rates));
    println!(
        "        {}, {} × {} in flight, {} read from {}",
        disk.method,
        disk.setting.depth,
        size(u64::from(disk.setting.block_bytes)),
        size(disk.bytes_read),
        disk.device.as_deref().unwrap_or("an unnamed disk"),
    );
    for refused in &disk.refused {
        println!("        not {}: {}", refused.method, refused.why);
    }
    for caveat in &disk.caveats {
        println!("        note: {}", caveat.text());
    }
    for part in [&found.memory.one_thread, &found.memory.all_threads] {
        memory(part);
    }
    println!("cpu     {} threads", found.cpu_threads);
    println!("\nsweep (GB/s)");
    sweep(&disk.sweep);
}

fn memory(part: &ThreadsCeiling) {
    println!("memory  {}", rates(&part.rates));
    let note = match part.residence {
        Residence::Memory => "",
        Residence::PartlyCache => "; note: that is too little, some of it comes from the caches",
    };
    let threads = match part.threads {
        1 => "1 thread".to_owned(),
        threads => format!("{threads} threads"),
    };
    println!(
        "        {threads}, buffers of {}{note}",
        size(part.buffer_bytes)
    );
    if part.on_cpu_permille < 950 {
        let share = part.on_cpu_permille / 10;
        println!(
            "        note: other programs ran; the threads had a processor {share} % of the time"
        );
    }
}

/// A row for each block size, a column for each depth.
fn sweep(trials: &[Trial]) {
    let mut depths: Vec<u32> = trials.iter().map(|t| t.setting.depth).collect();
    let mut blocks: Vec<u32> = trials.iter().map(|t| t.setting.block_bytes).collect();
    for list in [&mut depths, &mut blocks] {
        list.sort_unstable();
        list.dedup();
    }
    let header: String = depths.iter().map(|depth| format!("{depth:>8}")).collect();
    println!("{:>10}{header}  in flight", "");
    for block in blocks {
        let cell = |depth: &u32| {
            let is_it = |t: &&Trial| (t.setting.block_bytes, t.setting.depth) == (block, *depth);
            let rate = trials.iter().find(is_it).map(|t| giga(t.bytes_per_second));
            format!("{:>8}", rate.unwrap_or_default())
        };
        let cells: String = depths.iter().map(cell).collect();
        println!("{:>10}{}", size(u64::from(block)), cells.trim_end());
    }
}

fn rates(rates: &Rates) -> String {
    format!(
        "{:>6} GB/s  (middle half {} to {}, all {} to {}, {} slices)",
        giga(rates.median_bytes_per_second),
        giga(rates.lower_quartile_bytes_per_second),
        giga(rates.upper_quartile_bytes_per_second),
        giga(rates.lowest_bytes_per_second),
        giga(rates.highest_bytes_per_second),
        rates.slices
    )
}

fn giga(bytes: u64) -> String {
    format!("{:.2}", bytes as f64 / 1e9)
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        1_048_576..1_073_741_824 => format!("{} MiB", bytes >> 20),
        _ => format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64),
    }
}
