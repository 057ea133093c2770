//! This machine, as estimates want it: memory, arithmetic and llama.cpp's own kernels,
//! measured once and kept, because an estimate must not take seconds.

use std::{
    collections::BTreeMap,
    io,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use engine::kernels::{self, Kernels, Timing};
use estimate::{
    ComputeType, Machine, Shape,
    machines::{Figure, Kind, Source},
    rates::{Curve, Heads, Product, Rates},
    roofline::{Seconds, Types},
    shape::{Matrix, Part},
};
use gguf::GgmlType;
use kernelio::{compute, memory};
use rundir::error::reason;
use serde::{Deserialize, Serialize};
use terminal::{progress, signals};

/// What the machine is called in answers.
pub const THIS: &str = "this machine";
/// Of memory and of arithmetic.
const CEILING_TIME: Duration = Duration::from_millis(200);
/// Buffers that memory is measured with.
const BUFFER_BYTES: u64 = 512 << 20;
/// Of each kernel at each number of tokens.
const KERNEL_TIME: Duration = Duration::from_millis(60);
/// Raised when something else is measured, or otherwise.
const REVISION: u32 = 2;
/// Tokens that products are measured with: between them times grow evenly.
const PRODUCT_TOKENS: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 512];
const EXPERT_TOKENS: [usize; 4] = [1, 4, 16, 64];
const ATTENTION_TOKENS: [usize; 4] = [1, 8, 64, 512];
const ELEMENT_TOKENS: [usize; 3] = [1, 32, 512];
/// Cached tokens that attention is measured over.
const CACHED_TOKENS: usize = 2048;

/// Whose rates an estimate needs.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    products: Vec<kernels::Matrix>,
    experts: Vec<kernels::Experts>,
    attention: Vec<kernels::Heads>,
}

impl Wanted {
    /// What passes through a model consist of, with weights and caches of those types. Types
    /// that llama.cpp does not have are left to what the hardware can do.
    pub fn add(&mut self, shape: &Shape, types: Types) -> anyhow::Result<()> {
        for part in Part::ALL {
            // Rows are picked from an embedding that is not the output as well.
            if part == Part::Norm || (part == Part::Embedding && !shape.tied_embeddings) {
                continue;
            }
            let sum = shape.part(part);
            if sum.parameters == 0 {
                continue;
            }
            for (matrix, _) in sum.matrix_shares(types.weights)? {
                let Some(matrix) = kernel_matrix(matrix) else {
                    continue;
                };
                match part {
                    Part::Experts => self.add_experts(shape, matrix),
                    _ if !self.products.contains(&matrix) => self.products.push(matrix),
                    _ => {}
                }
            }
        }
        let Some(cache) = GgmlType::from_name(types.kv.name) else {
            return Ok(());
        };
        for attention in shape.layers.iter().filter_map(|layer| layer.attention) {
            let [heads, kv_heads, key_length, value_length] = attention.as_computed();
            let heads = kernels::Heads {
                cache,
                heads,
                kv_heads,
                key_length,
                value_length,
            };
            if !self.attention.contains(&heads) {
                self.attention.push(heads);
            }
        }
        Ok(())
    }

    fn add_experts(&mut self, shape: &Shape, matrix: kernels::Matrix) {
        let mixture = shape.layers.iter().find_map(|layer| layer.experts);
        let experts = mixture.map(|experts| kernels::Experts {
            matrix,
            count: experts.count,
            used: experts.used,
        });
        let new = experts.filter(|experts| !self.experts.contains(experts));
        self.experts.extend(new);
    }
}

fn kernel_matrix(matrix: Matrix) -> Option<kernels::Matrix> {
    let Matrix { columns, rows, ty } = matrix;
    let ty = GgmlType::from_name(ty)?;
    Some(kernels::Matrix { ty, columns, rows })
}

/// Whether earlier measurements are good enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    Once,
    Again,
}

/// What is kept.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    /// Of what, by whom: another processor or llama.cpp is another file.
    key: String,
    /// For people who look into the file.
    measured_unix_seconds: u64,
    memory_bytes_per_second: f64,
    flops_per_second: f64,
    last_level_cache_bytes: Option<u64>,
    rates: Rates,
}

/// This machine with `threads` threads; what is wanted and not kept is measured now.
pub fn this(threads: Option<u16>, wanted: &Wanted, measure: Measure) -> anyhow::Result<Machine> {
    let cores = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let threads = threads.map(usize::from).and_then(NonZeroUsize::new);
    let threads = threads.unwrap_or(cores);
    let key = key(threads);
    let path = kept_path(&key);
    let earlier = path.as_deref().and_then(|path| read(path, &key));
    let earlier = earlier.filter(|_| measure == Measure::Once);
    let mut kept = match earlier {
        Some(kept) => kept,
        None => ceilings(threads, key)?,
    };
    if complete(&mut kept.rates, wanted, threads)? || measure == Measure::Again {
        // Who cannot keep it measures again.
        if let Some(path) = path
            && let Err(error) = write(&path, &kept)
        {
            let (path, why) = (path.display(), reason(&error));
            eprintln!("tensorscope: {path}: cannot keep what was measured: {why}");
        }
    }
    Ok(machine(kept, threads, cores))
}

fn unix_seconds() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

fn key(threads: NonZeroUsize) -> String {
    let machine = rundir::machine::describe(None);
    let versions = engine::versions();
    format!(
        "{REVISION} {} {} {} {threads} {} {} {}",
        machine.hostname.unwrap_or_default(),
        machine.cpu_model.unwrap_or_default(),
        machine.cpus_allowed.unwrap_or(0),
        versions.crate_version,
        versions.ggml,
        versions.kernels.unwrap_or_default()
    )
}

/// In the user's cache folder, as others do.
fn kept_path(key: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("XDG_CACHE_HOME")
        .filter(|folder| !folder.is_empty())
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
    let hash = support::hash::fnv1a(key.as_bytes());
    Some(
        folder
            .join("tensorscope")
            .join(format!("machine-{hash:016x}.json")),
    )
}

/// `None` for a file that is not there, of another machine, or damaged.
fn read(path: &Path, key: &str) -> Option<Kept> {
    let kept: Kept = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    let sound = kept.rates.check().is_ok()
        && kept.memory_bytes_per_second > 0.0
        && kept.flops_per_second > 0.0;
    (kept.key == key && sound).then_some(kept)
}

/// Whole or not at all: two commands may write at once.
fn write(path: &Path, kept: &Kept) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    serde_json::to_writer_pretty(&mut file, kept)?;
    file.persist(path)?;
    Ok(())
}

fn ceilings(threads: NonZeroUsize, key: String) -> anyhow::Result<Kept> {
    let options = memory::MemoryOptions {
        time: CEILING_TIME,
        budget_bytes: memory::MemoryOptions::for_this_machine()
            .budget_bytes
            .min(BUFFER_BYTES),
    };
    let read = memory::measure(threads, options, &mut |_| {})?;
    Ok(Kept {
        key,
        measured_unix_seconds: unix_seconds(),
        memory_bytes_per_second: read.bytes_per_second as f64,
        flops_per_second: compute::measure(threads, CEILING_TIME),
        last_level_cache_bytes: read.last_level_cache_bytes,
        rates: Rates::default(),
    })
}

/// Measures what is wanted and missing, until we are asked to stop; whether that was anything.
fn complete(rates: &mut Rates, wanted: &Wanted, threads: NonZeroUsize) -> anyhow::Result<bool> {
    let same = |known: &Product, matrix: &kernels::Matrix| {
        let of = (known.ty.as_str(), known.columns, known.rows);
        of == (matrix.ty.name(), matrix.columns, matrix.rows)
    };
    let mut products = wanted.products.clone();
    products.retain(|matrix| !rates.products.iter().any(|known| same(known, matrix)));
    let mut experts = wanted.experts.clone();
    experts.retain(|of| !rates.experts.iter().any(|known| same(known, &of.matrix)));
    let mut attention = wanted.attention.clone();
    attention.retain(|heads| {
        let known = rates.attention.iter();
        !known.clone().any(|known| {
            let of = (
                known.heads,
                known.kv_heads,
                known.key_length,
                known.value_length,
            );
            let wanted = (
                heads.heads,
                heads.kv_heads,
                heads.key_length,
                heads.value_length,
            );
            known.ty == heads.cache.name() && of == wanted
        })
    });
    let small = rates.elements.points.is_empty();
    let steps = products.len() + experts.len() + attention.len();
    if steps == 0 && !small {
        return Ok(false);
    }
    let budget_bytes = memory::MemoryOptions::for_this_machine().budget_bytes;
    let kernels = Kernels::new(threads.get(), KERNEL_TIME, budget_bytes)?;
    let bar = progress::bar(
        steps as u64,
        "measuring llama.cpp's kernels, once",
        "kernels",
    );
    for matrix in products {
        if signals::stop_asked() {
            return Ok(true);
        }
        let seconds = curve(kernels.product(matrix, &PRODUCT_TOKENS));
        rates.products.push(product(matrix, seconds));
        bar.inc(1);
    }
    for of in experts {
        if signals::stop_asked() {
            return Ok(true);
        }
        let seconds = curve(kernels.experts(of, &EXPERT_TOKENS));
        rates.experts.push(product(of.matrix, seconds));
        bar.inc(1);
    }
    for of in attention {
        if signals::stop_asked() {
            return Ok(true);
        }
        let timings = kernels.attention(of, &ATTENTION_TOKENS, CACHED_TOKENS);
        let timings = timings.map(|timings| {
            let all = timings.into_iter();
            all.map(|(tokens, each)| (tokens, all_tokens(each, tokens)))
                .collect()
        });
        rates.attention.push(Heads {
            ty: of.cache.name().to_owned(),
            heads: of.heads,
            kv_heads: of.kv_heads,
            key_length: of.key_length,
            value_length: of.value_length,
            seconds: curve(timings),
        });
        bar.inc(1);
    }
    if small {
        let of = |&tokens: &usize| Some((tokens, all_tokens(kernels.element(tokens)?, tokens)));
        rates.elements = curve(ELEMENT_TOKENS.iter().map(of).collect());
        rates.node = seconds(kernels.node());
        rates.seconds_per_pass = kernels.graph_seconds();
    }
    bar.finish_and_clear();
    Ok(true)
}

fn product(matrix: kernels::Matrix, seconds: Curve) -> Product {
    Product {
        ty: matrix.ty.name().to_owned(),
        columns: matrix.columns,
        rows: matrix.rows,
        seconds,
    }
}

/// Empty for a kernel that llama.cpp does not have: estimates then do without.
fn curve(timings: Option<kernels::Timings>) -> Curve {
    let all = timings.into_iter().flatten();
    Curve {
        points: all
            .map(|(tokens, timing)| (tokens as u64, seconds(timing)))
            .collect(),
    }
}

fn seconds(timing: Timing) -> Seconds {
    Seconds {
        best: timing.best,
        likely: timing.median,
        worst: timing.worst,
    }
}

fn all_tokens(each: Timing, tokens: usize) -> Timing {
    let times = |seconds: f64| seconds * tokens as f64;
    Timing {
        best: times(each.best),
        median: times(each.median),
        worst: times(each.worst),
    }
}

fn machine(kept: Kept, threads: NonZeroUsize, cores: NonZeroUsize) -> Machine {
    let measured = |value: f64, name: &str| Figure {
        value,
        source: Source {
            name: name.to_owned(),
            url: String::new(),
        },
    };
    let of_threads = |what: &str| format!("{what}, {threads} threads, measured");
    let memory_bytes = rundir::machine::describe(None).memory_bytes;
    Machine {
        name: THIS.to_owned(),
        kind: Kind::Cpu,
        memory_bytes: measured(
            memory_bytes.unwrap_or(0) as f64,
            "MemTotal of /proc/meminfo",
        ),
        memory_bytes_per_second: measured(
            kept.memory_bytes_per_second,
            &of_threads("a sum over buffers larger than the caches"),
        ),
        flops_per_second: BTreeMap::from([(
            ComputeType::Fp32,
            measured(
                kept.flops_per_second,
                &of_threads("fused 32-bit products in registers"),
            ),
        )]),
        units: Some(measured(
            cores.get() as f64,
            "cores that this process may use",
        )),
        sram_bytes_per_unit: None,
        cache_bytes: kept
            .last_level_cache_bytes
            .map(|bytes| measured(bytes as f64, "/sys/devices/system/cpu")),
        link_bytes_per_second: None,
        lanes: None,
        line_bytes: Some(measured(64.0, "x86-64 and most AArch64 processors")),
        tile_bytes: None,
        rates: Some(kept.rates),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_and_foreign_measurements_are_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("of").join("machine.json");
        let kept = Kept {
            key: "mine".to_owned(),
            measured_unix_seconds: 0,
            memory_bytes_per_second: 1e9,
            flops_per_second: 1e9,
            last_level_cache_bytes: None,
            rates: Rates::default(),
        };
        assert!(read(&path, "mine").is_none());
        write(&path, &kept).unwrap();
        assert!(read(&path, "mine").is_some());
        assert!(read(&path, "another").is_none());
        let whole = std::fs::read(&path).unwrap();
        for bytes in [b"{\"key\": 3".as_slice(), b"", &whole[..whole.len() / 2]] {
            std::fs::write(&path, bytes).unwrap();
            assert!(read(&path, "mine").is_none());
        }
    }
}
