//! How fast the disk delivers a file, read in order and past the page cache.
//!
//! 1. The first [`Method`] that works is taken; those before it are listed in
//!    [`DiskCeiling::refused`] with the reason.
//! 2. A sweep reads for 50 ms with each block size and depth, and the setting with
//!    the least in flight among the best is taken.
//! 3. With that setting the file is read, around and around, for two seconds, and
//!    the median slice is the figure.
//!
//! Every read goes on where the last one stopped, in the sweep too, so that
//! nothing is read again before the whole file was. The file is opened for reading
//! only.
//!
//! [`measure_while_computing`] (`loaded`) is the other figure: shorter, while all cores are
//! busy, and with scattered reads as experts need them.
//!
//! What it deliberately does not do: reads smaller than 128 KiB. Weights need none.

mod job;
mod loaded;
mod pread;
mod ring;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rundir::machine::Disk;
use serde::{Deserialize, Serialize};
pub use support::direct::Method;

use crate::error::CeilingError;
use crate::rate::Rates;
use crate::target::Target;
use job::{Job, Outcome, Span};
pub use loaded::{Batches, LoadedOptions, WhileComputing, measure_while_computing};

/// A file smaller than this is likely to come, from the second round on, from the
/// memory of the disk, of its controller or of the host of a virtual machine.
pub const LARGE_FILE_BYTES: u64 = 1 << 30;

/// Block sizes that the sweep tries.
const BLOCKS_BYTES: [u32; 4] = [128 << 10, 512 << 10, 1 << 20, 4 << 20];
/// Depths that the sweep tries.
const DEPTHS: [u32; 5] = [1, 4, 8, 16, 32];
/// More than this in flight is memory, not speed.
const MAX_IN_FLIGHT_BYTES: u64 = 64 << 20;
const MAX_DEPTH: u32 = 1024;
const TRIAL: Duration = Duration::from_millis(50);
/// When this is over, the settings not tried yet, those with most in flight, are
/// left out.
const SWEEP: Duration = Duration::from_millis(1500);
const SLICE: Duration = Duration::from_millis(100);

/// Which method to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MethodChoice {
    /// The first that works.
    Best,
    /// This one, or an error.
    Only(Method),
}

/// How much is asked for at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Size of one read.
    pub block_bytes: u32,
    /// Reads in flight at any time.
    pub depth: u32,
}

impl Setting {
    pub fn in_flight_bytes(self) -> u64 {
        u64::from(self.block_bytes) * u64::from(self.depth)
    }
}

/// Which setting to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingChoice {
    /// What a short sweep finds best.
    Sweep,
    /// This one; the block size is rounded up to what direct reads ask for.
    Fixed(Setting),
}

/// When to stop, after the sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// After so long.
    After(Duration),
    /// When the file has been read so many times from its first byte to its last.
    Passes(u32),
}

#[derive(Clone, Copy, Debug)]
pub struct DiskOptions {
    pub method: MethodChoice,
    pub setting: SettingChoice,
    pub stop: Stop,
}

impl Default for DiskOptions {
    fn default() -> DiskOptions {
        DiskOptions {
            method: MethodChoice::Best,
            setting: SettingChoice::Sweep,
            stop: Stop::After(Duration::from_secs(2)),
        }
    }
}

/// The figure, and what it was measured with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DiskCeiling {
    /// The median slice.
    pub bytes_per_second: u64,
    pub rates: Rates,
    pub method: Method,
    pub setting: Setting,
    /// What direct reads of this file are aligned to; `None` without O_DIRECT.
    pub alignment_bytes: Option<u32>,
    pub path: PathBuf,
    pub file_bytes: u64,
    /// The disk below the file's file system, where the kernel names one.
    pub device: Option<String>,
    /// What was read after the sweep, and how long that took.
    pub bytes_read: u64,
    pub elapsed_nanos: u64,
    /// Better methods that do not work here.
    pub refused: Vec<Refused>,
    /// What the sweep found, in the order tried; empty without a sweep.
    pub sweep: Vec<Trial>,
    /// Why the figure may be too high.
    pub caveats: Vec<Caveat>,
}

/// A method that does not work here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    pub method: Method,
    pub why: String,
}

/// One setting of the sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trial {
    #[serde(flatten)]
    pub setting: Setting,
    pub bytes_per_second: u64,
}

/// Why a figure may be higher than what a large model would see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Caveat {
    /// See [`LARGE_FILE_BYTES`].
    SmallFile,
    /// tmpfs and its like.
    InMemory,
    /// Parts of the file are not on the disk: sparse or compressed.
    Holes,
    /// O_DIRECT was not available.
    PageCache,
    /// The disk of a virtual machine.
    VirtualDisk,
}

impl Caveat {
    /// For people: what, and what to do about it.
    pub fn text(self) -> &'static str {
        match self {
            Caveat::SmallFile => {
                "the file is smaller than 1 GiB, so this may be the speed of a cache in the disk, its controller or the host; measure with a larger file"
            }
            Caveat::InMemory => {
                "the file lies in memory (tmpfs), so this is not the speed of a disk; copy the model to the disk that will serve it"
            }
            Caveat::Holes => {
                "the file takes less room on the disk than its size (sparse or compressed), and holes are read without the disk; measure with a file written in full"
            }
            Caveat::PageCache => {
                "the file was read through the page cache because O_DIRECT is not available; pages that another process holds were not read from the disk"
            }
            Caveat::VirtualDisk => {
                "the disk is that of a virtual machine, whose host may serve what was read or written lately from its own memory; measure with a file larger than the host's memory, or one not touched for long"
            }
        }
    }
}

/// What comes next while measuring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Another setting of the sweep; so many of so many were tried.
    Trial { done: u32, of: u32 },
    /// The measurement itself.
    Measuring,
}

/// Measures, and tells before each step what comes next.
pub fn measure(
    path: &Path,
    options: DiskOptions,
    on_event: &mut dyn FnMut(Event),
) -> Result<DiskCeiling, CeilingError> {
    if options.stop == Stop::Passes(0) {
        return Err(CeilingError::Setting {
            what: "a file must be read at least once to be measured".to_owned(),
        });
    }
    if let SettingChoice::Fixed(setting) = options.setting {
        check(setting)?;
    }
    let target = Target::open(path)?;
    let (mut job, refused) = choose_method(&target, options.method)?;
    let (setting, sweep) = match options.setting {
        SettingChoice::Fixed(setting) => (job.fitting(setting), Vec::new()),
        SettingChoice::Sweep => sweep(&mut job, on_event)?,
    };
    on_event(Event::Measuring);
    let outcome = match options.stop {
        Stop::After(time) => job.run(setting, Span::Time(time), SLICE)?,
        Stop::Passes(passes) => {
            job.rewind();
            let bytes = target.size_bytes.saturating_mul(u64::from(passes));
            job.run(setting, Span::Bytes(bytes), SLICE)?
        }
    };
    let Outcome {
        rates,
        bytes_read,
        elapsed,
    } = outcome;
    let method = job.method();
    let disk = rundir::machine::describe(Some(path)).model_disk;
    Ok(DiskCeiling {
        bytes_per_second: rates.median_bytes_per_second,
        rates,
        method,
        setting,
        alignment_bytes: job.direct_alignment_bytes(),
        path: path.to_owned(),
        file_bytes: target.size_bytes,
        bytes_read,
        elapsed_nanos: elapsed.as_nanos() as u64,
        refused,
        sweep,
        caveats: caveats(&target, method, disk.as_ref()),
        device: disk.map(|disk| disk.device),
    })
}

fn caveats(target: &Target, method: Method, disk: Option<&Disk>) -> Vec<Caveat> {
    let is_small = target.size_bytes < LARGE_FILE_BYTES;
    [
        (Caveat::InMemory, target.is_in_memory),
        (Caveat::SmallFile, is_small && !target.is_in_memory),
        (Caveat::Holes, target.has_holes && !target.is_in_memory),
        (Caveat::PageCache, method == Method::PreadBuffered),
        (Caveat::VirtualDisk, disk.is_some_and(is_virtual)),
    ]
    .into_iter()
    .filter_map(|(caveat, holds)| holds.then_some(caveat))
    .collect()
}

/// By the names that virtio, Xen and the emulated controllers give.
fn is_virtual(disk: &Disk) -> bool {
    let model = disk.model.as_deref().unwrap_or_default();
    ["vd", "xvd"].iter().any(|p| disk.device.starts_with(p))
        || ["QEMU", "VBOX", "Virtual"]
            .iter()
            .any(|m| model.contains(m))
}

fn check(setting: Setting) -> Result<(), CeilingError> {
    let is_possible = setting.block_bytes > 0
        && (1..=MAX_DEPTH).contains(&setting.depth)
        && setting.in_flight_bytes() <= MAX_IN_FLIGHT_BYTES;
    if is_possible {
        return Ok(());
    }
    Err(CeilingError::Setting {
        what: format!(
            "{} reads of {} bytes in flight cannot be had; choose 1 to {MAX_DEPTH} reads, and at most {MAX_IN_FLIGHT_BYTES} bytes together",
            setting.depth, setting.block_bytes
        ),
    })
}

/// Reads one block with each method until one works.
fn choose_method(
    target: &Target,
    choice: MethodChoice,
) -> Result<(Job<'_>, Vec<Refused>), CeilingError> {
    let methods = match choice {
        MethodChoice::Best => Method::ALL.to_vec(),
        MethodChoice::Only(method) => vec![method],
    };
    let mut refused = Vec::new();
    for method in methods {
        match Job::probe(target, method) {
            Ok(job) => return Ok((job, refused)),
            Err(CeilingError::Unavailable { method, why, .. }) if choice == MethodChoice::Best => {
                refused.push(Refused { method, why });
            }
            Err(error) => return Err(error),
        }
    }
    Err(CeilingError::Unavailable {
        path: target.path.clone(),
        method: Method::PreadBuffered,
        why: "no way of reading works".to_owned(),
    })
}

fn sweep(
    job: &mut Job<'_>,
    on_event: &mut dyn FnMut(Event),
) -> Result<(Setting, Vec<Trial>), CeilingError> {
    let settings = candidates(job.file_bytes());
    let begin = Instant::now();
    let mut trials: Vec<Trial> = Vec::new();
    for (done, setting) in settings.iter().enumerate() {
        let best = trials.iter().map(|t| t.bytes_per_second).max();
        if let Some(best) = best {
            // What the disk takes a tenth of a second to deliver hides any
            // latency; more in flight only takes longer to wait for.
            let is_pointless = setting.in_flight_bytes() > best / 10;
            if is_pointless || begin.elapsed() >= SWEEP {
                break;
            }
        }
        on_event(Event::Trial {
            done: done as u32,
            of: settings.len() as u32,
        });
        let setting = job.fitting(*setting);
        let outcome = job.run(setting, Span::Time(TRIAL), TRIAL)?;
        trials.push(Trial {
            setting,
            bytes_per_second: outcome.rates.median_bytes_per_second,
        });
    }
    Ok((best_of(&trials), trials))
}

/// Settings worth trying on a file of this size, least in flight first.
fn candidates(file_bytes: u64) -> Vec<Setting> {
    let fits = |block: &u32| *block == BLOCKS_BYTES[0] || u64::from(*block) <= file_bytes;
    let mut settings: Vec<Setting> = BLOCKS_BYTES
        .into_iter()
        .filter(fits)
        .flat_map(|block_bytes| DEPTHS.map(|depth| Setting { block_bytes, depth }))
        .filter(|setting| setting.in_flight_bytes() <= MAX_IN_FLIGHT_BYTES)
        .collect();
    settings.sort_by_key(|setting| (setting.in_flight_bytes(), setting.depth));
    settings
}

/// The first, so the one with least in flight, of those within 3 % of the best.
fn best_of(trials: &[Trial]) -> Setting {
    let best = trials.iter().map(|t| t.bytes_per_second).max().unwrap_or(0);
    trials
        .iter()
        .find(|trial| trial.bytes_per_second >= best / 100 * 97)
        .expect("the first candidate is always tried")
        .setting
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sweep_never_asks_for_more_than_it_may_and_starts_small() {
        for file_bytes in [1, 4096, 600 << 10, 1 << 40] {
            let settings = candidates(file_bytes);
            assert_eq!(settings[0].in_flight_bytes(), 128 << 10);
            assert!(settings.is_sorted_by_key(|s| s.in_flight_bytes()));
            assert!(settings.iter().all(|s| check(*s).is_ok()));
            let largest = settings.iter().map(|s| s.block_bytes).max().unwrap();
            assert!(largest == BLOCKS_BYTES[0] || u64::from(largest) <= file_bytes);
        }
    }

    #[test]
    fn among_equals_the_least_in_flight_wins() {
        let trial = |block_bytes, depth, bytes_per_second| Trial {
            setting: Setting { block_bytes, depth },
            bytes_per_second,
        };
        let trials = [trial(1, 1, 500), trial(1, 4, 985), trial(4, 4, 1000)];
        assert_eq!(best_of(&trials), trials[1].setting);
    }

    #[test]
    fn caveats_say_why_a_figure_may_be_too_high() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        std::fs::write(&path, [7u8; 8192]).unwrap();
        let mut target = Target::open(&path).unwrap();
        target.is_in_memory = false;
        target.has_holes = false;
        assert_eq!(
            caveats(&target, Method::IoUringDirect, None),
            [Caveat::SmallFile]
        );
        target.size_bytes = LARGE_FILE_BYTES;
        assert_eq!(caveats(&target, Method::PreadDirect, None), []);
        target.has_holes = true;
        assert_eq!(
            caveats(&target, Method::PreadBuffered, None),
            [Caveat::Holes, Caveat::PageCache]
        );
        target.is_in_memory = true;
        assert_eq!(
            caveats(&target, Method::PreadDirect, None),
            [Caveat::InMemory]
        );
    }

    #[test]
    fn disks_of_virtual_machines_are_known_by_name() {
        let check = |device: &str, model: Option<&str>, expect| {
            let disk = Disk {
                device: device.to_owned(),
                model: model.map(str::to_owned),
                ..Disk::default()
            };
            assert_eq!(is_virtual(&disk), expect, "{device}");
        };
        check("vda", None, true);
        check("xvdf", None, true);
        check("sda", Some("QEMU HARDDISK"), true);
        check("sda", Some("Samsung SSD 870"), false);
        check("nvme0n1", Some("Samsung SSD 990 PRO 2TB"), false);
    }
}
