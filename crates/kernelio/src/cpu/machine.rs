//! How busy the machine is, asked a few times a second: processors that others use or take,
//! quotas, the time that threads wait for a processor, swap, clock frequency.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use rundir::limits::control_group_in;
use trace::clock::now_nanos;

use crate::error::KernelError;
use crate::kernel_log::Writer;
use crate::kernel_log::machine::MachineSample;
use crate::residency::page_bytes;

/// Between two looks, each of which reads a file for every thread of the program.
const PAUSE: Duration = Duration::from_millis(250);
/// What the kernel shows times to programs in, on every processor that we know.
const NANOS_PER_TICK: u64 = 10_000_000;

/// Looks until it is finished or dropped.
#[derive(Debug)]
pub(super) struct MachineWatch {
    /// Closing it ends the thread.
    stop: Sender<()>,
    thread: JoinHandle<Result<(), KernelError>>,
}

impl MachineWatch {
    /// `pid`: the program whose threads are looked at.
    pub fn start(pid: u32, log: &Path) -> Result<MachineWatch, KernelError> {
        let mut writer = Writer::create(log)?;
        let (stop, stopped) = mpsc::channel::<()>();
        let thread = std::thread::Builder::new()
            .name(super::MACHINE_READER.to_owned())
            .spawn(move || {
                let mut machine = Machine::new(Path::new("/"), pid);
                loop {
                    writer.push(&machine.look())?;
                    writer.flush()?;
                    if stopped.recv_timeout(PAUSE) != Err(RecvTimeoutError::Timeout) {
                        // The end of the recording, as well as its beginning.
                        writer.push(&machine.look())?;
                        return writer.flush();
                    }
                }
            })
            .map_err(KernelError::system("cannot start a thread"))?;
        Ok(MachineWatch { stop, thread })
    }

    pub fn finish(self) -> Result<(), KernelError> {
        drop(self.stop);
        let died = |_| KernelError::System {
            doing: "the thread that looks at the machine",
            cause: std::io::Error::other("died"),
        };
        self.thread.join().map_err(died)?
    }
}

/// Where to look, with `/proc` and `/sys` below `root`.
struct Machine {
    root: PathBuf,
    process: PathBuf,
    /// `cpu.stat` of its control group and of those above.
    quotas: Vec<PathBuf>,
    frequencies: Vec<PathBuf>,
    last: MachineSample,
}

impl Machine {
    fn new(root: &Path, pid: u32) -> Machine {
        let group = control_group_in(root, &pid.to_string(), "cpu");
        let folders = group.into_iter().flat_map(|group| group.folders);
        let processors = fs::read_dir(root.join("sys/devices/system/cpu"));
        let frequency = |entry: fs::DirEntry| entry.path().join("cpufreq/scaling_cur_freq");
        let frequencies = processors.into_iter().flatten().flatten().map(frequency);
        Machine {
            root: root.to_owned(),
            process: root.join("proc").join(pid.to_string()),
            quotas: folders.map(|folder| folder.join("cpu.stat")).collect(),
            frequencies: frequencies.filter(|path| path.exists()).collect(),
            last: MachineSample::default(),
        }
    }

    fn look(&mut self) -> MachineSample {
        let read = |path: PathBuf| fs::read_to_string(path).ok();
        let (busy, stolen) = read(self.root.join("proc/stat"))
            .and_then(|text| processors_time(&text))
            .map_or((None, None), |(busy, stolen)| (Some(busy), Some(stolen)));
        let status = read(self.process.join("status"));
        let field = |name: &str| {
            let text = status.as_deref()?;
            text.lines().find_map(|line| line.strip_prefix(name))
        };
        let throttled = self.quotas.iter().filter_map(|path| throttled(path));
        let hertz: Vec<u64> = self.frequencies.iter().filter_map(|f| number(f)).collect();
        let kilohertz = hertz.iter().sum::<u64>().checked_div(hertz.len() as u64);
        let now = MachineSample {
            nanos: now_nanos(),
            busy_nanos: busy,
            stolen_nanos: stolen,
            own_nanos: read(self.process.join("stat")).and_then(|text| own_time(&text)),
            queued_nanos: self.queued(),
            throttled_nanos: throttled.max(),
            swapped_in_bytes: read(self.root.join("proc/vmstat")).and_then(|text| swapped(&text)),
            hertz: kilohertz.map(|kilo| kilo * 1000),
            processors: field("Cpus_allowed_list:").and_then(|list| {
                let cpus = crate::perf::parse_cpus(list.trim())?;
                Some(cpus.len() as u64)
            }),
            threads: field("Threads:").and_then(|text| text.trim().parse().ok()),
        };
        // A program that has ended has no more to say: what it had used stays.
        let last = std::mem::replace(&mut self.last, now);
        let kept = MachineSample {
            own_nanos: now.own_nanos.or(last.own_nanos),
            queued_nanos: now.queued_nanos.max(last.queued_nanos),
            throttled_nanos: now.throttled_nanos.or(last.throttled_nanos),
            processors: now.processors.or(last.processors),
            threads: now.threads.or(last.threads),
            ..now
        };
        self.last = kept;
        kept
    }

    /// Of threads that are there; what ended ones had waited is lost, so this may fall.
    fn queued(&self) -> Option<u64> {
        let tasks = fs::read_dir(self.process.join("task")).ok()?.flatten();
        let of_task = |task: fs::DirEntry| -> Option<u64> {
            let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split_ascii_whitespace().nth(1)?.parse().ok()
        };
        let waits: Vec<u64> = tasks.filter_map(of_task).collect();
        (!waits.is_empty()).then(|| waits.iter().sum())
    }
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Used and stolen time of all processors: the first line of `/proc/stat` has user, nice,
/// system, idle, iowait, irq, softirq, steal.
fn processors_time(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line
        .split_ascii_whitespace()
        .map_while(|t| t.parse().ok())
        .collect();
    let [user, nice, system, _idle, _iowait, irq, softirq, steal, ..] = ticks[..] else {
        return None;
    };
    let busy = user + nice + system + irq + softirq;
    Some((busy * NANOS_PER_TICK, steal * NANOS_PER_TICK))
}

/// Of a process and the children that it has waited for.
fn own_time(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let ticks: Option<Vec<u64>> = fields.get(11..15)?.iter().map(|t| t.parse().ok()).collect();
    Some(ticks?.iter().sum::<u64>() * NANOS_PER_TICK)
}

/// Version 2 counts microseconds, version 1 nanoseconds.
fn throttled(path: &Path) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let value = |name: &str| -> Option<u64> {
        let mut lines = text.lines();
        lines.find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    };
    value("throttled_time ").or_else(|| Some(value("throttled_usec ")?.saturating_mul(1000)))
}

fn swapped(vmstat: &str) -> Option<u64> {
    let mut lines = vmstat.lines();
    let pages: u64 = lines.find_map(|line| line.strip_prefix("pswpin ")?.trim().parse().ok())?;
    Some(pages * page_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_where_the_kernel_writes_them() {
        let stat = "cpu  100 1 20 5000 7 3 4 9 0 0\ncpu0 1 2 3\n";
        let tick = NANOS_PER_TICK;
        assert_eq!(processors_time(stat), Some((128 * tick, 9 * tick)));
        assert_eq!(processors_time("cpu  1 2 3\n"), None);
        let own = "7 (a) b) S 1 7 7 0 -1 41 5 2 6 1 10 20 3 4 20 0 2 0";
        assert_eq!(own_time(own), Some(37 * tick));
        assert_eq!(own_time("7 (a"), None);
        assert_eq!(
            swapped("pgpgin 3\npswpin 2\npswpout 9\n"),
            Some(2 * page_bytes())
        );
    }

    #[test]
    fn a_quota_of_either_version_is_read_also_of_a_group_above() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("proc/7/cgroup", "0::/a/b\n");
        put(
            "proc/7/mountinfo",
            "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        );
        put(
            "sys/fs/cgroup/a/cpu.stat",
            "nr_throttled 3\nthrottled_usec 5\n",
        );
        put("sys/fs/cgroup/a/b/cpu.stat", "throttled_usec 2\n");
        put(
            "proc/7/status",
            "Name:\tx\nThreads:\t3\nCpus_allowed_list:\t0-1,4\n",
        );
        put("proc/7/task/7/schedstat", "100 40 9\n");
        put("proc/7/task/8/schedstat", "100 2 9\n");
        put(
            "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq",
            "1000\n",
        );
        put(
            "sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq",
            "3000\n",
        );
        let mut machine = Machine::new(root.path(), 7);
        let seen = machine.look();
        assert_eq!(seen.throttled_nanos, Some(5000));
        assert_eq!((seen.queued_nanos, seen.threads), (Some(42), Some(3)));
        assert_eq!((seen.processors, seen.hertz), (Some(3), Some(2_000_000)));
        fs::remove_dir_all(root.path().join("proc/7")).unwrap();
        let after = machine.look();
        assert_eq!((after.queued_nanos, after.threads), (Some(42), Some(3)));
        fs::remove_dir_all(root.path().join("sys/fs")).unwrap();
        put("sys/fs/cgroup/cpu/cpu.stat", "throttled_time 77\n");
        let stat = root.path().join("sys/fs/cgroup/cpu/cpu.stat");
        assert_eq!(throttled(&stat), Some(77));
    }

    #[test]
    fn this_machine_tells_at_least_the_time_of_its_processors() {
        let mut machine = Machine::new(Path::new("/"), std::process::id());
        let seen = machine.look();
        assert!(seen.busy_nanos.is_some() && seen.own_nanos.is_some());
        assert!(seen.processors >= Some(1) && seen.threads >= Some(1));
    }
}
