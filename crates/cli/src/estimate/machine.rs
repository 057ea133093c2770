//! Machines that are asked about: of the table, or this one, measured.

use std::{collections::BTreeMap, num::NonZeroUsize, path::Path, time::Duration};

use anyhow::{Context as _, anyhow};
use estimate::{
    ComputeType, Efficiency, Machine, Machines,
    machines::{Figure, Kind, Source},
};
use kernelio::{compute, memory};
use rundir::error::reason;

/// Of each figure, for this machine.
const MEASURED: Duration = Duration::from_millis(200);
/// Buffers that memory is measured with.
const BUFFER_BYTES: u64 = 512 << 20;

/// The built-in table, with a user's own on top.
pub fn table(file: Option<&Path>) -> anyhow::Result<Machines> {
    let built_in = Machines::built_in()?;
    let Some(path) = file else {
        return Ok(built_in);
    };
    let text = std::fs::read_to_string(path)
        .map_err(|error| anyhow!("{}: cannot read it: {}", path.display(), reason(&error)))?;
    let more = Machines::from_json(&text).with_context(|| path.display().to_string())?;
    Ok(built_in.extended_by(more))
}

pub fn find(table: &Machines, name: &str, threads: Option<u16>) -> anyhow::Result<Machine> {
    match name {
        "this" => this(threads),
        name => Ok(table.find(name)?.clone()),
    }
}

/// What a machine reaches of its figures: those that were measured with a read and with
/// products are closer than those of a datasheet.
pub fn efficiency(machine: &Machine) -> Efficiency {
    match machine.name == THIS {
        true => Efficiency {
            memory: (0.6, 0.85, 1.0),
            // Quantised weights are unpacked on the way.
            compute: (0.15, 0.4, 0.8),
        },
        false => Efficiency::default(),
    }
}

const THIS: &str = "this machine";

fn this(threads: Option<u16>) -> anyhow::Result<Machine> {
    let cores = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let threads = threads.map(usize::from).and_then(NonZeroUsize::new);
    let threads = threads.unwrap_or(cores);
    let described = rundir::machine::describe(None);
    let options = memory::MemoryOptions {
        time: MEASURED,
        budget_bytes: memory::MemoryOptions::for_this_machine()
            .budget_bytes
            .min(BUFFER_BYTES),
    };
    let read = memory::measure(threads, options, &mut |_| {})?;
    let flops = compute::measure(threads, MEASURED);
    let measured = |value: f64, name: &str| Figure {
        value,
        source: Source {
            name: name.to_owned(),
            url: String::new(),
        },
    };
    let of_threads = |what: &str| format!("{what}, {threads} threads, measured now");
    let computes = measured(flops, &of_threads("fused 32-bit products in registers"));
    Ok(Machine {
        name: THIS.to_owned(),
        kind: Kind::Cpu,
        memory_bytes: measured(
            described.memory_bytes.unwrap_or(0) as f64,
            "MemTotal of /proc/meminfo",
        ),
        memory_bytes_per_second: measured(
            read.bytes_per_second as f64,
            &of_threads("a sum over buffers larger than the caches"),
        ),
        flops_per_second: BTreeMap::from([(ComputeType::Fp32, computes)]),
        units: Some(measured(
            cores.get() as f64,
            "cores that this process may use",
        )),
        sram_bytes_per_unit: None,
        cache_bytes: read
            .last_level_cache_bytes
            .map(|bytes| measured(bytes as f64, "/sys/devices/system/cpu")),
        link_bytes_per_second: None,
        lanes: None,
        line_bytes: Some(measured(64.0, "x86-64 and most AArch64 processors")),
        tile_bytes: None,
    })
}
