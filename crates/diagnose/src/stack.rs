//! The time of a token as a stack: parts that add up, each a share of it.

use analysis::{devices::DeviceResults, time_stack::PhaseTime};
use imports::calls::category;
use serde::{Deserialize, Serialize};

/// Where the time of one phase went.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct PhaseStack {
    /// `prompt` or `generate`.
    pub name: String,
    pub evaluations: u64,
    pub tokens: u64,
    /// Of one token on average, from the beginning of an evaluation to that of the next.
    pub token_nanos: f64,
    pub tokens_per_second: f64,
    /// Of all tokens.
    pub nanos: u64,
    /// What is known; shares add up to 1.
    pub stack: Vec<Part>,
    /// By falling share; of samples, so only where threads were watched.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub system_calls: Vec<CallShare>,
    /// In a sentence: the wall, or headroom.
    pub verdict: String,
}

/// A part of a phase's time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Part {
    pub name: String,
    /// For people.
    pub title: String,
    pub share: f64,
    /// Of one token.
    pub nanos: f64,
}

/// System calls of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct CallShare {
    /// One of `imports::calls::Category`, for people.
    pub category: String,
    /// Of the time that threads had, running in such a call.
    pub share: f64,
    /// Names of these calls, the one with most time first.
    pub calls: Vec<String>,
}

/// Names of the parts in the order in which they are shown, and what people call them.
pub const PARTS: [(&str, &str); 12] = [
    ("at_wall", "computing as fast as memory gives the bytes"),
    ("below_wall", "computing slower than memory"),
    (
        "in_operations",
        "in operations: computing, or waiting for threads",
    ),
    ("page_faults", "waiting for pages: faults and the disk"),
    ("fed_reads", "waiting for weights that are fed"),
    ("barriers", "waiting for other threads at barriers"),
    (
        "imbalance",
        "waiting for a thread that has more to do or is slower",
    ),
    ("preempted", "not running: other programs had the processor"),
    ("throttled", "not running: a quota of processor time"),
    (
        "stolen",
        "not running: the hypervisor gave the processor away",
    ),
    ("host", "between evaluations: sampling and the program"),
    ("unexplained", "not explained"),
];

/// Parts of the time of runs in which devices compute; they come before those of [`PARTS`],
/// which are then of the time in which no device does. Kernels have a part for each of the
/// classes of nodes that take longest, [`KERNELS`] with a number.
pub const DEVICE_PARTS: [(&str, &str); 6] = [
    (KERNELS, "kernels of the device"),
    ("device_gaps", "gaps between kernels of the device"),
    (
        "device_unsplit",
        "on the device: kernels and gaps, not timed apart",
    ),
    ("copies", "copies between host and device"),
    (
        "device_waits",
        "copies between host and device, or waiting for the device",
    ),
    ("launching", "handing work to the device"),
];

pub const KERNELS: &str = "device_kernels";
/// Classes of nodes that have a part of their own.
const MAX_CLASSES: usize = 4;

impl PhaseStack {
    /// The same of a run in which devices compute: kernels by class of node.
    pub fn of_devices(
        time: &PhaseTime,
        memory_ceiling: Option<u64>,
        devices: &DeviceResults,
    ) -> PhaseStack {
        let mut stack = PhaseStack::of(time, memory_ceiling);
        let kernels = stack.stack.iter().position(|part| part.name == KERNELS);
        if let Some(at) = kernels {
            let whole = stack.stack.remove(at);
            let parts = by_class(&whole, &time.phase, devices);
            stack.stack.splice(at..at, parts);
        }
        stack
    }

    /// `memory_ceiling`: bytes a second that memory gives to the threads of the run.
    pub fn of(time: &PhaseTime, memory_ceiling: Option<u64>) -> PhaseStack {
        let mut parts = Vec::new();
        let whole = time.nanos.max(1) as f64;
        let tokens = time.tokens.max(1) as f64;
        let mut put = |name: &str, nanos: u64| {
            let mut known = PARTS.iter().chain(&DEVICE_PARTS);
            let title = known.find(|(known, _)| *known == name);
            parts.push(Part {
                name: name.to_owned(),
                title: title.map_or(name, |(_, title)| title).to_owned(),
                share: nanos as f64 / whole,
                nanos: nanos as f64 / tokens,
            });
        };
        if let Some(device) = &time.device {
            put(KERNELS, device.kernels);
            put("device_gaps", device.gaps);
            put("device_unsplit", device.unsplit);
            match device.untimed {
                0 => put("copies", device.copies),
                _ => put("device_waits", device.copies),
            }
            put("launching", device.launching);
        }
        let computing = time.at_wall.unwrap_or(0) + time.below_wall;
        let is_watched = time.not_running.is_some() || time.unexplained.is_some();
        let at_wall = memory_ceiling.map(|ceiling| at_wall(time.bytes, ceiling, computing));
        match (is_watched, at_wall) {
            (true, Some(at_wall)) => {
                put("at_wall", at_wall);
                put("below_wall", computing - at_wall);
            }
            (true, None) => put("below_wall", computing),
            (false, Some(at_wall)) => {
                put("at_wall", at_wall);
                put("in_operations", computing - at_wall);
            }
            (false, None) => put("in_operations", computing),
        }
        if let Some(disk) = time.disk {
            put("page_faults", disk - time.fed.min(disk));
            put("fed_reads", time.fed.min(disk));
        }
        if let Some(others) = time.other_threads {
            let imbalance = time.imbalance.unwrap_or(0).min(others);
            put("barriers", others - imbalance);
            put("imbalance", imbalance);
        }
        if let Some(not_running) = time.not_running {
            let stolen = time.stolen.unwrap_or(0).min(not_running);
            let throttled = time.throttled.unwrap_or(0).min(not_running - stolen);
            put("preempted", not_running - stolen - throttled);
            put("throttled", throttled);
            put("stolen", stolen);
        }
        put("host", time.host);
        put("unexplained", time.unexplained.unwrap_or(0));
        let seconds = time.nanos as f64 / 1e9;
        PhaseStack {
            name: time.phase.clone(),
            evaluations: time.evaluations,
            tokens: time.tokens,
            token_nanos: time.nanos as f64 / tokens,
            tokens_per_second: time.tokens as f64 / seconds.max(1e-9),
            nanos: time.nanos,
            stack: parts,
            system_calls: system_calls(time),
            verdict: String::new(),
        }
    }

    pub fn share(&self, name: &str) -> Option<f64> {
        self.stack
            .iter()
            .find(|part| part.name == name)
            .map(|p| p.share)
    }
}

/// A part for each of the classes that take longest, by what they took where that was timed.
fn by_class(whole: &Part, phase: &str, devices: &DeviceResults) -> Vec<Part> {
    let mut classes: Vec<(String, u64)> = Vec::new();
    let all = devices.devices.iter().flat_map(|device| &device.classes);
    for class in all.filter(|class| class.phase == phase) {
        let name = class.name();
        match classes.iter_mut().find(|(known, _)| *known == name) {
            Some((_, nanos)) => *nanos = nanos.saturating_add(class.nanos),
            None => classes.push((name, class.nanos)),
        }
    }
    classes.sort_by_key(|&(_, nanos)| std::cmp::Reverse(nanos));
    let sum: f64 = classes.iter().map(|&(_, nanos)| nanos as f64).sum();
    if sum == 0.0 {
        return vec![whole.clone()];
    }
    let others = classes.split_off(classes.len().min(MAX_CLASSES));
    let others = others.iter().map(|&(_, nanos)| nanos).sum::<u64>();
    let named = classes
        .into_iter()
        .map(|(name, nanos)| (format!("kernels of the device: {name}"), nanos));
    let all = named.chain([("kernels of the device: all others".to_owned(), others)]);
    let parts = (1..).zip(all).filter(|(_, (_, nanos))| *nanos > 0);
    let part = |(number, (title, nanos)): (usize, (String, u64))| Part {
        name: format!("{KERNELS}_{number}"),
        title,
        share: whole.share * nanos as f64 / sum,
        nanos: whole.nanos * nanos as f64 / sum,
    };
    parts.map(part).collect()
}

fn system_calls(time: &PhaseTime) -> Vec<CallShare> {
    let whole = time.threads.as_ref().map_or(0, |threads| threads.nanos);
    let mut shares: Vec<CallShare> = Vec::new();
    for call in time.system_calls.iter().filter(|_| whole > 0) {
        let category = category(&call.name).name().replace('_', " ");
        let share = call.nanos as f64 / whole as f64;
        match shares.iter_mut().find(|known| known.category == category) {
            Some(known) => {
                known.share += share;
                known.calls.push(call.name.clone());
            }
            None => shares.push(CallShare {
                category,
                share,
                calls: vec![call.name.clone()],
            }),
        }
    }
    shares.sort_by(|a, b| b.share.total_cmp(&a.share));
    shares
}

/// Time in which memory can give so many bytes; a ceiling that was measured may be a little
/// too low, then all of computing is at the wall.
fn at_wall(bytes: u64, ceiling: u64, computing: u64) -> u64 {
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(ceiling.max(1));
    u64::try_from(nanos).unwrap_or(u64::MAX).min(computing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time() -> PhaseTime {
        PhaseTime {
            phase: "generate".to_owned(),
            evaluations: 2,
            tokens: 2,
            nanos: 1000,
            bytes: 300,
            below_wall: 400,
            disk: Some(150),
            fed: 50,
            other_threads: Some(100),
            imbalance: Some(30),
            not_running: Some(200),
            throttled: Some(60),
            stolen: Some(20),
            host: 100,
            unexplained: Some(50),
            ..PhaseTime::default()
        }
    }

    fn sum(stack: &PhaseStack) -> f64 {
        stack.stack.iter().map(|part| part.share).sum()
    }

    #[test]
    fn parts_add_up_to_one_whatever_is_known() {
        let all = time();
        let unwatched = PhaseTime {
            below_wall: 900,
            disk: None,
            other_threads: None,
            not_running: None,
            unexplained: None,
            ..time()
        };
        for time in [all, unwatched] {
            for ceiling in [None, Some(1), Some(1_000_000_000), Some(u64::MAX)] {
                let stack = PhaseStack::of(&time, ceiling);
                assert!((sum(&stack) - 1.0).abs() < 1e-9, "{stack:?}");
                assert!(stack.share("unexplained").is_some());
            }
        }
    }

    #[test]
    fn computing_is_at_the_wall_for_as_long_as_memory_needs() {
        let stack = PhaseStack::of(&time(), Some(1_000_000_000));
        assert_eq!(stack.share("at_wall"), Some(0.3));
        assert_eq!(stack.share("below_wall"), Some(0.1));
        assert_eq!(stack.share("preempted"), Some(0.12));
        assert_eq!(stack.share("fed_reads"), Some(0.05));
        assert_eq!(stack.token_nanos, 500.0);
    }

    #[test]
    fn of_threads_that_nobody_watched_only_operations_are_known() {
        let time = PhaseTime {
            below_wall: 900,
            host: 100,
            disk: None,
            other_threads: None,
            not_running: None,
            unexplained: None,
            ..time()
        };
        let stack = PhaseStack::of(&time, None);
        assert_eq!(stack.share("in_operations"), Some(0.9));
        assert_eq!(stack.share("preempted"), None);
    }
}
