//! Machines that are asked about: of the table, or this one, measured.

use std::path::Path;

use anyhow::{Context as _, anyhow};
use bench::machine::{Measure, THIS, Wanted};
use estimate::{Efficiency, Machine, Machines, machines::Kind, roofline::Seconds};
use rundir::error::reason;

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

/// The machine of that name; `this` one with the rates that are wanted.
pub fn find(
    table: &Machines,
    name: &str,
    threads: Option<u16>,
    wanted: &Wanted,
    measure: Measure,
) -> anyhow::Result<Machine> {
    match name {
        "this" => bench::machine::this(threads, wanted, measure),
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
            ..Efficiency::IDEAL
        },
        // What llama.cpp reaches on an H200 with large matrices, and an operation there.
        false if machine.kind == Kind::Gpu => Efficiency {
            memory: (0.5, 0.75, 0.9),
            node: Seconds {
                best: 1e-6,
                likely: 2e-6,
                worst: 4e-6,
            },
            ..Efficiency::default()
        },
        false => Efficiency::default(),
    }
}
