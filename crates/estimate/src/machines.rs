//! Machines: memory, bandwidth, peak FLOP/s and units, each figure with its source.
//!
//! The table `machines.json` is built in. A user's file has the same format; its machines are
//! added, and replace those of the same name. A figure that nobody published is missing, and
//! what needs it is an error that says which. FLOP/s are dense; GB of memory are GiB.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::number::ComputeType;
use crate::rates::Rates;

const BUILT_IN: &str = include_str!("machines.json");
/// Machines on which llama.cpp's kernels were measured (`rates/measure.cpp`), by name.
const RATES: [(&str, &str); 1] = [("H200 SXM 141GB", include_str!("rates/h200.json"))];

/// Above any machine: a byte count or rate beyond is a typing error.
const MAX_FIGURE: f64 = 1e24;

/// A table of machines.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Machines {
    pub machines: Vec<Machine>,
}

/// One machine. In a figure's place the table has `[number, key of its source]`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Machine {
    pub name: String,
    pub kind: Kind,
    pub memory_bytes: Figure,
    pub memory_bytes_per_second: Figure,
    /// By type; what the machine does not have, or nobody published, is missing.
    pub flops_per_second: BTreeMap<ComputeType, Figure>,
    /// Streaming multiprocessors, compute units or cores.
    pub units: Option<Figure>,
    /// Fast memory of one unit that programs manage (shared memory, LDS).
    pub sram_bytes_per_unit: Option<Figure>,
    /// The last cache that all units share.
    pub cache_bytes: Option<Figure>,
    /// To other machines of its kind, in both directions together, as vendors count.
    pub link_bytes_per_second: Option<Figure>,
    /// Threads that run in step: warp, wavefront, SIMD group.
    pub lanes: Option<Figure>,
    pub line_bytes: Option<Figure>,
    /// Bytes that rows of matrices are best a multiple of.
    pub tile_bytes: Option<Figure>,
    /// What llama.cpp's own kernels reach on it, where they were measured.
    #[serde(skip)]
    pub rates: Option<Rates>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Gpu,
    Cpu,
    Apple,
}

impl Kind {
    /// As it stands in the table.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Gpu => "gpu",
            Kind::Cpu => "cpu",
            Kind::Apple => "apple",
        }
    }
}

/// A number, and who says so.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    pub value: f64,
    pub source: Source,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    pub name: String,
    pub url: String,
}

/// FLOPs for each byte at which a machine turns from memory- to compute-bound.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ridge {
    #[serde(rename = "type")]
    pub ty: ComputeType,
    pub flop_per_byte: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    #[allow(dead_code)]
    about: String,
    sources: BTreeMap<String, Source>,
    machines: Vec<Entry>,
}

type Cell = Option<(f64, String)>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    kind: Kind,
    memory_bytes: (f64, String),
    memory_bytes_per_second: (f64, String),
    #[serde(default)]
    flops_per_second: BTreeMap<ComputeType, Cell>,
    #[serde(default)]
    units: Cell,
    #[serde(default)]
    sram_bytes_per_unit: Cell,
    #[serde(default)]
    cache_bytes: Cell,
    #[serde(default)]
    link_bytes_per_second: Cell,
    #[serde(default)]
    lanes: Cell,
    #[serde(default)]
    line_bytes: Cell,
    #[serde(default)]
    tile_bytes: Cell,
    #[serde(default)]
    rates: Option<Rates>,
}

impl Machines {
    /// The table that is built in.
    pub fn built_in() -> Result<Machines> {
        let mut table = Machines::from_json(BUILT_IN)?;
        for (name, text) in RATES {
            let rates: Rates = serde_json::from_str(text).map_err(|error| Error::NotJson {
                what: "the rates of a machine",
                reason: error.to_string(),
            })?;
            rates.check()?;
            if let Some(at) = table.position(name) {
                table.machines[at].rates = Some(rates);
            }
        }
        Ok(table)
    }

    /// A table of a user's own, in the format of `machines.json`.
    pub fn from_json(text: &str) -> Result<Machines> {
        let file: File = serde_json::from_str(text).map_err(|error| Error::NotJson {
            what: "the machines file",
            reason: error.to_string(),
        })?;
        let machines = file.machines.into_iter();
        let machines = machines.map(|entry| machine(entry, &file.sources));
        let mut table = Machines {
            machines: Vec::new(),
        };
        for machine in machines {
            let machine = machine?;
            if table.position(&machine.name).is_some() {
                return Err(Error::BadMachine {
                    machine: machine.name,
                    reason: "it is there twice; keep one".to_owned(),
                });
            }
            table.machines.push(machine);
        }
        Ok(table)
    }

    /// This table and another one, whose machines win.
    pub fn extended_by(mut self, other: Machines) -> Machines {
        for machine in other.machines {
            match self.position(&machine.name) {
                Some(at) => self.machines[at] = machine,
                None => self.machines.push(machine),
            }
        }
        self
    }

    /// The machine of this name; case, blanks and hyphens do not matter, and a part of a name
    /// will do where only one machine has it.
    pub fn find(&self, name: &str) -> Result<&Machine> {
        if let Some(at) = self.position(name) {
            return Ok(&self.machines[at]);
        }
        let wanted = plain(name);
        let with_part = |machine: &&Machine| plain(&machine.name).contains(&wanted);
        let found: Vec<&Machine> = self.machines.iter().filter(with_part).collect();
        match found[..] {
            [one] if !wanted.is_empty() => Ok(one),
            _ => Err(Error::UnknownMachine {
                name: name.to_owned(),
                nearest: self.nearest(&wanted, &found),
            }),
        }
    }

    fn position(&self, name: &str) -> Option<usize> {
        let wanted = plain(name);
        let machines = self.machines.iter();
        machines
            .map(|machine| plain(&machine.name))
            .position(|name| name == wanted)
    }

    fn nearest(&self, wanted: &str, found: &[&Machine]) -> String {
        let starts_alike = |machine: &&Machine| {
            let name = plain(&machine.name);
            !wanted.is_empty() && name.chars().next() == wanted.chars().next()
        };
        let mut names: Vec<&str> = found.iter().map(|machine| &*machine.name).collect();
        if names.is_empty() {
            let machines = self.machines.iter();
            names = machines
                .filter(starts_alike)
                .map(|machine| &*machine.name)
                .collect();
        }
        if names.is_empty() {
            names = self.machines.iter().map(|machine| &*machine.name).collect();
        }
        names.truncate(8);
        names.join(", ")
    }
}

/// A name without what people spell differently.
fn plain(name: &str) -> String {
    let letters = name.chars().filter(|c| c.is_alphanumeric() || *c == '+');
    letters.flat_map(char::to_lowercase).collect()
}

fn machine(entry: Entry, sources: &BTreeMap<String, Source>) -> Result<Machine> {
    let name = entry.name;
    let bad = |reason: String| Error::BadMachine {
        machine: name.clone(),
        reason,
    };
    let figure = |what: &str, (value, key): (f64, String)| {
        if !(value > 0.0 && value < MAX_FIGURE) {
            return Err(bad(format!(
                "`{what}` is {value:e}: it must be above 0 and below 1e24"
            )));
        }
        let source = sources.get(&key).cloned();
        let source = source.ok_or_else(|| {
            bad(format!(
                "`{what}` has source `{key}`, which `sources` does not list"
            ))
        })?;
        Ok(Figure { value, source })
    };
    let maybe = |what: &str, cell: Cell| cell.map(|cell| figure(what, cell)).transpose();
    let mut flops_per_second = BTreeMap::new();
    for (ty, cell) in entry.flops_per_second {
        if let Some(found) = maybe("flops_per_second", cell)? {
            flops_per_second.insert(ty, found);
        }
    }
    Ok(Machine {
        kind: entry.kind,
        memory_bytes: figure("memory_bytes", entry.memory_bytes)?,
        memory_bytes_per_second: figure("memory_bytes_per_second", entry.memory_bytes_per_second)?,
        flops_per_second,
        units: maybe("units", entry.units)?,
        sram_bytes_per_unit: maybe("sram_bytes_per_unit", entry.sram_bytes_per_unit)?,
        cache_bytes: maybe("cache_bytes", entry.cache_bytes)?,
        link_bytes_per_second: maybe("link_bytes_per_second", entry.link_bytes_per_second)?,
        lanes: maybe("lanes", entry.lanes)?,
        line_bytes: maybe("line_bytes", entry.line_bytes)?,
        tile_bytes: maybe("tile_bytes", entry.tile_bytes)?,
        rates: {
            let checked = entry.rates.as_ref().map_or(Ok(()), Rates::check);
            checked.map_err(|error| bad(error.to_string()))?;
            entry.rates
        },
        name: name.clone(),
    })
}

impl Machine {
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes.value as u64
    }

    /// Peak FLOP/s for numbers of a type. A type that the machine lacks is widened to the
    /// next that it has, and computed as fast as that; the answer says which it was.
    pub fn peak(&self, ty: ComputeType) -> Result<(ComputeType, f64)> {
        use ComputeType::{Bf16, Fp8, Fp16, Fp32, Int8, Tf32};
        let order: &[ComputeType] = match ty {
            Fp32 => &[Fp32],
            Tf32 => &[Tf32, Fp32],
            Fp16 => &[Fp16, Bf16, Fp32],
            Bf16 => &[Bf16, Fp16, Fp32],
            Fp8 => &[Fp8, Fp16, Bf16, Fp32],
            Int8 => &[Int8, Fp16, Bf16, Fp32],
        };
        order
            .iter()
            .find_map(|&ty| Some((ty, self.flops_per_second.get(&ty)?.value)))
            .ok_or_else(|| self.lacks("FLOP/s"))
    }

    /// The ridge point of each type that the machine has.
    pub fn ridges(&self) -> Vec<Ridge> {
        let flops = self.flops_per_second.iter();
        flops
            .map(|(&ty, flops)| Ridge {
                ty,
                flop_per_byte: flops.value / self.memory_bytes_per_second.value,
            })
            .collect()
    }

    pub(crate) fn lacks(&self, what: &'static str) -> Error {
        Error::NotInTable {
            machine: self.name.clone(),
            what,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ridge(name: &str, ty: ComputeType) -> f64 {
        let table = Machines::built_in().unwrap();
        let ridges = table.find(name).unwrap().ridges();
        ridges
            .iter()
            .find(|ridge| ridge.ty == ty)
            .unwrap()
            .flop_per_byte
    }

    /// A100: 312 TFLOP/s over 2,039 GB/s. H100 and H200: 989 TFLOP/s over 3.35 and 4.8 TB/s.
    #[test]
    fn ridge_points_are_those_of_the_datasheets() {
        assert_eq!(ridge("A100 SXM 80GB", ComputeType::Bf16).round(), 153.0);
        assert_eq!(ridge("a100-sxm-40gb", ComputeType::Fp16).round(), 201.0);
        assert_eq!(ridge("H100 SXM", ComputeType::Fp16).round(), 295.0);
        assert_eq!(ridge("H200", ComputeType::Bf16).round(), 206.0);
        assert_eq!(ridge("H100 SXM", ComputeType::Fp8).round(), 591.0);
    }

    #[test]
    fn every_figure_has_a_source_with_an_address() {
        let table = Machines::built_in().unwrap();
        for wanted in [
            "V100 SXM2",
            "A100 PCIe 40GB",
            "H100 PCIe",
            "H200",
            "B200",
            "L4 24GB",
            "L40S",
            "A10 24GB",
            "T4",
            "RTX 3090",
            "RTX 4090",
            "RTX 5090",
            "RTX 2000 Ada",
            "MI250X",
            "MI300X",
            "Apple M4 Max",
            "EPYC 9654",
            "Xeon 8480+",
            "7950X",
            "14900K",
        ] {
            table.find(wanted).unwrap_or_else(|error| panic!("{error}"));
        }
        for machine in &table.machines {
            let others = [
                &machine.units,
                &machine.sram_bytes_per_unit,
                &machine.cache_bytes,
                &machine.link_bytes_per_second,
                &machine.lanes,
                &machine.line_bytes,
                &machine.tile_bytes,
            ];
            let figures = [&machine.memory_bytes, &machine.memory_bytes_per_second];
            let all = figures.into_iter().chain(machine.flops_per_second.values());
            for figure in all.chain(others.into_iter().flatten()) {
                assert!(
                    figure.source.url.starts_with("https://"),
                    "{}: {figure:?}",
                    machine.name
                );
            }
        }
    }

    #[test]
    fn a_users_file_adds_and_replaces() {
        let text = r#"{"sources": {"mine": {"name": "measured", "url": "none"}}, "machines": [
            {"name": "h200 sxm 141gb", "kind": "gpu", "memory_bytes": [150754820096, "mine"],
             "memory_bytes_per_second": [4.2e12, "mine"], "flops_per_second": {"bf16": [7e14, "mine"]}},
            {"name": "My box", "kind": "cpu", "memory_bytes": [6.4e10, "mine"],
             "memory_bytes_per_second": [5e10, "mine"]}]}"#;
        let table = Machines::built_in().unwrap();
        let before = table.machines.len();
        let table = table.extended_by(Machines::from_json(text).unwrap());
        assert_eq!(table.machines.len(), before + 1);
        assert_eq!(table.find("H200").unwrap().memory_bytes(), 150_754_820_096);
        assert_eq!(
            table.find("H200").unwrap().peak(ComputeType::Fp8),
            Ok((ComputeType::Bf16, 7e14))
        );
        let without = table
            .find("my box")
            .unwrap()
            .peak(ComputeType::Fp16)
            .unwrap_err();
        assert!(
            without.to_string().contains("no FLOP/s for `My box`"),
            "{without}"
        );
    }

    #[test]
    fn measured_rates_are_of_machines_in_the_table() {
        let table = Machines::built_in().unwrap();
        for (name, _) in RATES {
            let machine = table.find(name).unwrap();
            let rates = machine.rates.as_ref().unwrap();
            assert!(!rates.products.is_empty() && !rates.attention.is_empty());
        }
    }

    #[test]
    fn wrong_files_and_names_say_what_is_wrong() {
        let check = |from: &str, to: &str, expect: &str| {
            let text = r#"{"sources": {"a": {"name": "b", "url": "c"}}, "machines": [{"name": "x",
                "kind": "gpu", "memory_bytes": [1e9, "a"], "memory_bytes_per_second": [1e9, "a"]}]}"#;
            let error = Machines::from_json(&text.replace(from, to))
                .unwrap_err()
                .to_string();
            assert!(error.contains(expect), "{error}");
        };
        check("[1e9, \"a\"]", "[-1, \"a\"]", "`memory_bytes` is -1e0");
        check("[1e9, \"a\"]", "[1e30, \"a\"]", "`memory_bytes` is 1e30");
        check("[1e9, \"a\"]", "[1e9, \"z\"]", "source `z`");
        check("kind", "knd", "no JSON");
        let table = Machines::built_in().unwrap();
        let unknown = table.find("A100").unwrap_err().to_string();
        assert!(
            unknown.contains("A100 PCIe 40GB, A100 SXM 40GB"),
            "{unknown}"
        );
        assert!(table.find("").is_err());
    }
}
