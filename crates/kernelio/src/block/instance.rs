//! An instance of tracefs: a trace of our own, with events, filter and clock of our
//! own, beside whatever else is traced on the machine.
//!
//! Each cpu has a file of pages (`trace_pipe_raw`). A page has a time and a length,
//! then events; each event has the time since the one before.
//!
//! Not `perf_event_open`, although it has the same tracepoints: where it was measured
//! (Linux 6.18 in a virtual machine) it counted completions that it wrote no sample
//! for, without a LOST record: 22 to 6279 of 7700, and `perf record` beside it lacked
//! the same ones. It seems to be those that interrupt an idle cpu or a protected
//! process. This trace had all of them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use super::tracefs::Layouts;
use crate::devices::Device;
use crate::error::KernelError;
use crate::leftover::Leftover;
use crate::perf;

/// Room for all cpus together, and for one.
const ALL_CPUS_KIB: usize = 64 << 10;
const MAX_KIB: usize = 4 << 10;
const MIN_KIB: usize = 256;

/// Of a page: when it starts, and how many bytes of events it has.
const PAGE_HEADER_BYTES: usize = 8 + size_of::<usize>();
const LENGTH_MASK: u64 = (1 << 27) - 1;

/// Lengths of an event with a special meaning.
const PADDING: u32 = 29;
const TIME_EXTEND: u32 = 30;
const TIME_STAMP: u32 = 31;
const DELTA_BITS: u32 = 27;

/// Runs until it is dropped.
#[derive(Debug)]
pub(super) struct Instance {
    pipes: Vec<File>,
    page: Vec<u8>,
    // After the files, which must be closed before it goes.
    folder: Leftover,
}

impl Instance {
    /// Starts tracing requests of these devices; none stands for all.
    pub fn start(
        root: &Path,
        layouts: &Layouts,
        devices: &[Device],
    ) -> Result<Instance, KernelError> {
        let folder = Leftover::folder(&root.join("instances"))?;
        let set = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).map_err(KernelError::io(&path, "cannot write"))
        };
        let cpus = perf::online_cpus().map_err(KernelError::system("cannot list the cpus"))?;
        // CLOCK_MONOTONIC, as everything else here.
        set("trace_clock", "mono")?;
        let kib = (ALL_CPUS_KIB / cpus.len().max(1)).clamp(MIN_KIB, MAX_KIB);
        set("buffer_size_kb", &kib.to_string())?;
        let mut pipes = Vec::new();
        for cpu in cpus {
            let path = folder
                .path()
                .join(format!("per_cpu/cpu{cpu}/trace_pipe_raw"));
            let pipe = OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_NONBLOCK)
                .open(&path)
                .map_err(KernelError::io(&path, "cannot open"))?;
            pipes.push(pipe);
        }
        let filter: Vec<String> = devices
            .iter()
            .map(|device| format!("dev == {}", device.to_kernel()))
            .collect();
        let filter = filter.join(" || ");
        for layout in layouts.all().filter(|_| !filter.is_empty()) {
            set(&format!("events/block/{}/filter", layout.name), &filter)?;
        }
        for layout in layouts.all() {
            set(&format!("events/block/{}/enable", layout.name), "1")?;
        }
        let page_bytes = usize::try_from(crate::residency::page_bytes()).unwrap_or(4096);
        let page_kib = fs::read_to_string(folder.path().join("buffer_subbuf_size_kb"));
        let page_kib = page_kib.ok().and_then(|text| text.trim().parse().ok());
        Ok(Instance {
            pipes,
            page: vec![0; page_kib.map_or(page_bytes, |kib: usize| kib << 10)],
            folder,
        })
    }

    /// No more events; those there can still be read.
    pub fn stop(&self) -> Result<(), KernelError> {
        let path = self.folder.path().join("tracing_on");
        fs::write(&path, "0").map_err(KernelError::io(&path, "cannot write"))
    }

    /// Hands out all events that are there: when, and what the tracepoint wrote.
    pub fn drain(&mut self, mut take: impl FnMut(u64, &[u8])) -> Result<(), KernelError> {
        for pipe in &mut self.pipes {
            loop {
                match pipe.read(&mut self.page) {
                    Ok(0) => break,
                    Ok(bytes) => events_of(&self.page[..bytes], &mut take),
                    Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => break,
                    Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                    Err(cause) => {
                        return Err(
                            KernelError::io(self.folder.path(), "cannot read the trace")(cause),
                        );
                    }
                }
            }
        }
        Ok(())
    }

    /// Events that there was no room for, on all cpus.
    pub fn lost(&self) -> u64 {
        let mut lost = 0;
        let folder = self.folder.path().join("per_cpu");
        for cpu in fs::read_dir(folder).into_iter().flatten().flatten() {
            let stats = fs::read_to_string(cpu.path().join("stats")).unwrap_or_default();
            let number = |name: &str| -> Option<u64> {
                let line = stats.lines().find_map(|line| line.strip_prefix(name))?;
                line.trim().parse().ok()
            };
            // Overwritten, and dropped because the kernel was writing already.
            for name in ["overrun:", "commit overrun:", "dropped events:"] {
                lost += number(name).unwrap_or(0);
            }
        }
        lost
    }
}

/// The events of one page. A page that is not what it should be ends early.
fn events_of(page: &[u8], take: &mut impl FnMut(u64, &[u8])) {
    let Some((header, events)) = page.split_at_checked(PAGE_HEADER_BYTES) else {
        return;
    };
    let mut nanos = word64(header, 0).unwrap_or(0);
    let length = match header.len() {
        16 => word64(header, 8).unwrap_or(0),
        _ => u64::from(word32(header, 8).unwrap_or(0)),
    };
    let length = ((length & LENGTH_MASK) as usize).min(events.len());
    let events = &events[..length];
    let mut at = 0;
    while let Some(head) = word32(events, at) {
        at += 4;
        // The compiler lays bit fields from the other end on big-endian machines.
        let (kind, delta) = match cfg!(target_endian = "big") {
            true => (head >> DELTA_BITS, head & ((1 << DELTA_BITS) - 1)),
            false => (head & 31, head >> 5),
        };
        let next = word32(events, at).unwrap_or(0);
        let delta = u64::from(delta);
        let long = u64::from(next) << DELTA_BITS | delta;
        let (skip, bytes) = match kind {
            // The rest of the page is empty.
            PADDING if delta == 0 => return,
            PADDING => (0, next as usize),
            TIME_EXTEND => {
                nanos = nanos.wrapping_add(long);
                at += 4;
                continue;
            }
            TIME_STAMP => {
                // The highest bits did not fit and are those of the page.
                nanos = long | nanos & 0xf8 << 56;
                at += 4;
                continue;
            }
            // A long event says its length, that number included.
            0 => (4, next as usize),
            kind => (0, kind as usize * 4),
        };
        nanos = nanos.wrapping_add(delta);
        let Some(event) = events.get(at..at + bytes) else {
            return;
        };
        if kind != PADDING
            && let Some(raw) = event.get(skip..)
        {
            take(nanos, raw);
        }
        // A length of 0 would never end.
        at += bytes.max(4);
    }
}

fn word32(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at + 4)?;
    word.try_into().ok().map(u32::from_ne_bytes)
}

fn word64(bytes: &[u8], at: usize) -> Option<u64> {
    let word = bytes.get(at..at + 8)?;
    word.try_into().ok().map(u64::from_ne_bytes)
}

#[cfg(test)]
#[cfg(all(target_endian = "little", target_pointer_width = "64"))]
mod tests {
    use super::*;

    fn page(words: &[u32]) -> Vec<u8> {
        let mut page = 1000u64.to_le_bytes().to_vec();
        // Some kernels set a flag beside the length.
        page.extend_from_slice(&((words.len() as u64 * 4) | (1 << 31)).to_le_bytes());
        for word in words {
            page.extend_from_slice(&word.to_le_bytes());
        }
        page.resize(4096, 0);
        page
    }

    fn read(page: &[u8]) -> Vec<(u64, usize)> {
        let mut found = Vec::new();
        events_of(page, &mut |nanos, raw| found.push((nanos, raw.len())));
        found
    }

    #[test]
    fn events_have_the_time_since_the_one_before() {
        let event = |kind: u32, delta: u32| delta << 5 | kind;
        let words = [
            event(2, 5),
            7,
            7,
            event(0, 10),
            12,
            7,
            7,
            event(TIME_EXTEND, 1),
            2,
            event(1, 3),
            7,
            event(PADDING, 1),
            8,
            0,
            event(TIME_STAMP, 9),
            1 << 10,
            event(1, 0),
            7,
            event(PADDING, 0),
        ];
        let long = 1015 + (2 << 27) + 1 + 3;
        let stamp = (1 << 37) + 9;
        assert_eq!(
            read(&page(&words)),
            [(1005, 8), (1015, 8), (long, 4), (stamp, 4)]
        );
    }

    proptest::proptest! {
        #[test]
        fn no_page_makes_it_panic(bytes: Vec<u8>, words: Vec<u32>) {
            read(&bytes);
            read(&page(&words[..words.len().min(1000)]));
        }
    }
}
