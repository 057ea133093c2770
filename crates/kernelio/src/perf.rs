//! Events of the kernel, by `perf_event_open`: what this crate needs of it, spelled
//! out, so that no binding has to be kept in step.
//!
//! An [`Event`] is one kind of event on one cpu, for one thread. The
//! kernel writes a sample for each into the [`ring`] of that cpu, [`events`] are those of
//! all threads on all cpus, and [`pump`] empties the rings in the order of time, on a thread
//! of its own ([`reader`]).

pub(crate) mod events;
pub(crate) mod pump;
pub(crate) mod reader;
pub(crate) mod ring;

use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

use crate::error::Missing;

/// `struct perf_event_attr` up to `PERF_ATTR_SIZE_VER5` (Linux 4.8); the kernel takes
/// shorter ones than its own.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Attributes {
    pub kind: u32,
    pub size: u32,
    pub config: u64,
    pub sample_period: u64,
    pub sample_type: u64,
    pub read_format: u64,
    pub flags: u64,
    pub wakeup_watermark: u32,
    pub bp_type: u32,
    pub config1: u64,
    pub config2: u64,
    pub branch_sample_type: u64,
    pub sample_regs_user: u64,
    pub sample_stack_user: u32,
    pub clock: i32,
    pub sample_regs_intr: u64,
    pub aux_watermark: u32,
    pub sample_max_stack: u16,
    pub reserved: u16,
}

const _: () = assert!(size_of::<Attributes>() == 112);

/// `Attributes::kind`.
pub(crate) const HARDWARE: u32 = 0;
pub(crate) const SOFTWARE: u32 = 1;
pub(crate) const HARDWARE_CACHE: u32 = 3;

/// `Attributes::config` of hardware events, and of caches.
pub(crate) mod hardware {
    pub const CYCLES: u64 = 0;
    pub const INSTRUCTIONS: u64 = 1;
    pub const CACHE_MISSES: u64 = 3;
    pub const STALLED_CYCLES_BACKEND: u64 = 8;
    /// Misses (1) of reads (0) of the translation buffer for data (3).
    pub const DTLB_READ_MISSES: u64 = 3 | 1 << 16;
}

/// `Attributes::config` of software events.
pub(crate) const CPU_CLOCK: u64 = 0;
pub(crate) const PAGE_FAULTS: u64 = 2;
pub(crate) const PAGE_FAULTS_MIN: u64 = 5;
pub(crate) const PAGE_FAULTS_MAJ: u64 = 6;

/// `Attributes::sample_type`.
pub(crate) mod sample {
    pub const IP: u64 = 1 << 0;
    pub const TID: u64 = 1 << 1;
    pub const TIME: u64 = 1 << 2;
    pub const ADDR: u64 = 1 << 3;
    pub const CALLCHAIN: u64 = 1 << 5;
    pub const CPU: u64 = 1 << 7;
    pub const PERIOD: u64 = 1 << 8;
    pub const REGS_USER: u64 = 1 << 12;
    pub const STACK_USER: u64 = 1 << 13;
    pub const IDENTIFIER: u64 = 1 << 16;
}

/// `Attributes::flags`, bit fields in C.
pub(crate) mod flag {
    pub const DISABLED: u64 = 1 << 0;
    pub const INHERIT: u64 = 1 << 1;
    pub const EXCLUDE_KERNEL: u64 = 1 << 5;
    pub const MMAP: u64 = 1 << 8;
    pub const COMM: u64 = 1 << 9;
    /// `sample_period` is a frequency.
    pub const FREQUENCY: u64 = 1 << 10;
    pub const ENABLE_ON_EXEC: u64 = 1 << 12;
    pub const TASK: u64 = 1 << 13;
    /// With a watermark of 0: wake the reader when half of the ring is full.
    pub const WATERMARK: u64 = 1 << 14;
    pub const MMAP_DATA: u64 = 1 << 17;
    pub const SAMPLE_ID_ALL: u64 = 1 << 18;
    pub const EXCLUDE_CALLCHAIN_USER: u64 = 1 << 22;
    pub const MMAP2: u64 = 1 << 23;
    pub const COMM_EXEC: u64 = 1 << 24;
    pub const USE_CLOCKID: u64 = 1 << 25;
    pub const CONTEXT_SWITCH: u64 = 1 << 26;
}

/// Types of records in a ring.
pub(crate) mod record {
    pub const LOST: u32 = 2;
    pub const COMM: u32 = 3;
    pub const FORK: u32 = 7;
    pub const SAMPLE: u32 = 9;
    pub const MMAP2: u32 = 10;
    pub const SWITCH: u32 = 14;
    /// In `misc` of a SWITCH: the thread stops running; it could have gone on.
    pub const MISC_SWITCH_OUT: u16 = 1 << 13;
    pub const MISC_SWITCH_OUT_PREEMPT: u16 = 1 << 14;
    /// In `misc` of a COMM: the name changed because another program began.
    pub const MISC_COMM_EXEC: u16 = 1 << 13;
}

const FLAG_FD_CLOEXEC: libc::c_ulong = 1 << 3;
const IOC_ENABLE: libc::c_ulong = 0x2400;
const IOC_DISABLE: libc::c_ulong = 0x2401;
const IOC_SET_OUTPUT: libc::c_ulong = 0x2405;
const IOC_ID: libc::c_ulong = 0x8008_2407;

/// One kind of event on one cpu, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Event {
    file: OwnedFd,
}

impl Event {
    /// Events of a thread (0: of this one) on one cpu or on any, and with INHERIT of what it
    /// starts from now on.
    pub fn open(mut attributes: Attributes, tid: u32, cpu: Option<u32>) -> io::Result<Event> {
        attributes.size = size_of::<Attributes>() as u32;
        let pid: libc::pid_t = tid.try_into().map_err(io::Error::other)?;
        let cpu = cpu.map_or(Ok(-1), libc::c_int::try_from);
        let cpu = cpu.map_err(io::Error::other)?;
        let no_group: libc::c_int = -1;
        // SAFETY: the attributes are a struct of the size that they say, alive
        // through the call; the others are numbers.
        let result = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attributes,
                pid,
                cpu,
                no_group,
                FLAG_FD_CLOEXEC,
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor for us.
        let file = unsafe { OwnedFd::from_raw_fd(result as RawFd) };
        Ok(Event { file })
    }

    pub fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Samples go into the ring of `other`, which must be on the same cpu.
    pub fn send_to(&self, other: &Event) -> io::Result<()> {
        self.control(IOC_SET_OUTPUT, other.descriptor() as libc::c_ulong)
    }

    pub fn enable(&self) -> io::Result<()> {
        self.control(IOC_ENABLE, 0)
    }

    /// Also for the tasks that have inherited the event.
    pub fn disable(&self) -> io::Result<()> {
        self.control(IOC_DISABLE, 0)
    }

    /// What samples of this event are marked with.
    pub fn id(&self) -> io::Result<u64> {
        let mut id = 0u64;
        self.control(IOC_ID, &raw mut id as libc::c_ulong)?;
        Ok(id)
    }

    /// How many there were, inherited ones included: counted apart from the samples,
    /// so nothing is lost here.
    pub fn count(&self) -> io::Result<u64> {
        let mut count = [0u8; 8];
        // SAFETY: the kernel writes at most 8 bytes into an array of 8.
        let read = unsafe { libc::read(self.descriptor(), count.as_mut_ptr().cast(), 8) };
        match read {
            8 => Ok(u64::from_ne_bytes(count)),
            0.. => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn control(&self, request: libc::c_ulong, argument: libc::c_ulong) -> io::Result<()> {
        // The type of the request differs between C libraries.
        #[allow(clippy::unnecessary_cast)]
        let request = request as _;
        // SAFETY: callers pass a number, or the address of what the request reads
        // or writes, alive through the call.
        match unsafe { libc::ioctl(self.descriptor(), request, argument) } {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Cpus that events can be opened on.
pub(crate) fn online_cpus() -> io::Result<Vec<u32>> {
    let text = fs::read_to_string("/sys/devices/system/cpu/online")?;
    parse_cpus(text.trim()).ok_or_else(|| io::Error::other("cpus in an unknown form"))
}

/// `0-3,8`.
pub(crate) fn parse_cpus(text: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        cpus.extend(first..=last);
    }
    Some(cpus)
}

/// The setting that decides who may use events; `None` where there are none.
pub(crate) fn paranoid_level() -> Option<i64> {
    let text = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").ok()?;
    text.trim().parse().ok()
}

/// Why the kernel does not let us record something, and what allows it.
fn refused(what: &str, cause: &io::Error, fix: &str) -> Missing {
    Missing {
        what: what.to_owned(),
        why: match (cause.raw_os_error(), paranoid_level()) {
            (Some(libc::EMFILE), _) => "too many files are open".to_owned(),
            (_, Some(level)) => format!(
                "{}, and kernel.perf_event_paranoid is {level}",
                rundir::error::reason(cause)
            ),
            (_, None) => "this kernel has no perf events".to_owned(),
        },
        fix: match cause.raw_os_error() {
            Some(libc::EMFILE) => "raise the limit with `ulimit -n 65536`".to_owned(),
            _ => fix.to_owned(),
        },
    }
}

/// As much as is allowed: with what the kernel does for the program, or without it, and then
/// what of it (`what`, `inside`) is missing.
pub(crate) fn open_in_scope(
    mut attributes: Attributes,
    tid: u32,
    cpu: u32,
    what: &str,
    inside: &str,
) -> Result<(Event, Option<Missing>), Missing> {
    let fix = "allow it with `sudo sysctl kernel.perf_event_paranoid=1`, or run with sudo";
    let cause = match Event::open(attributes, tid, Some(cpu)) {
        Ok(event) => return Ok((event, None)),
        Err(cause) => cause,
    };
    attributes.flags |= flag::EXCLUDE_KERNEL;
    let less = Missing {
        what: inside.to_owned(),
        why: format!(
            "kernel.perf_event_paranoid is {}",
            paranoid_level().unwrap_or(2)
        ),
        fix: fix.to_owned(),
    };
    match Event::open(attributes, tid, Some(cpu)) {
        Ok(event) => Ok((event, Some(less))),
        Err(_) => Err(refused(what, &cause, fix)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read() {
        let check = |text: &str, expect: Option<&[u32]>| {
            assert_eq!(parse_cpus(text).as_deref(), expect, "{text}");
        };
        check("0", Some(&[0]));
        check("0-1", Some(&[0, 1]));
        check("0-2,5,7-8", Some(&[0, 1, 2, 5, 7, 8]));
        check("", None);
        check("x", None);
    }
}
