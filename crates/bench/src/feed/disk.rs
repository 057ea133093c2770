//! The disk between runs: alone, which is what ceilings are made of, and while as many threads as
//! compute are busy, which is what predictions are made of. Both in turns, because a disk with
//! burst credits changes while one looks at it.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use launch::glance::{self, Glance};
use plan::{Machine, Spread, Varies, Weight};

use super::measure::median;

/// How long one turn takes.
const MIN_TURN: Duration = Duration::from_millis(200);
const MAX_TURN: Duration = Duration::from_millis(500);

/// What a look at the disk found.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// Bytes per second, of each turn.
    alone: Vec<f64>,
    while_computing: Vec<f64>,
    /// See [`Machine`].
    compute_while_reading: Vec<f64>,
    read_latency: Option<(f64, Spread)>,
}

impl Look {
    pub fn alone(&self) -> f64 {
        median(&self.alone).unwrap_or(0.0)
    }

    /// The machine with the disk as it was in this look, and as far as that varies.
    pub fn machine(&self) -> Machine {
        let usual = median(&self.while_computing).unwrap_or(0.0);
        let least = self.while_computing.iter().copied().fold(usual, f64::min);
        let most = self.while_computing.iter().copied().fold(usual, f64::max);
        let machine = Machine::new(usual);
        let (read_latency_seconds, read_latency) = self
            .read_latency
            .unwrap_or((machine.read_latency_seconds, Spread::NONE));
        let machine = Machine {
            disk_while_waiting: glance::gain(self.alone(), usual),
            compute_while_reading: median(&self.compute_while_reading).unwrap_or(1.0),
            read_latency_seconds,
            ..machine
        };
        machine.varying(Varies {
            disk: Spread::around(usual, least, most),
            read_latency,
            ..Varies::default()
        })
    }
}

/// The machine as it was after a run, varying as far as before.
pub fn machine_between(before: Option<&Look>, after: &Look) -> Machine {
    let machine = after.machine();
    let Some(before) = before.map(Look::machine) else {
        return machine;
    };
    let around = |usual: f64, low: f64, high: f64| Spread::around(usual, low, high);
    let (slow, fast) = (before.slowest(), before.fastest());
    let (disk, latency) = (machine.disk_bytes_per_second, machine.read_latency_seconds);
    machine.varying(Varies {
        disk: machine.varies.disk.or(around(
            disk,
            slow.disk_bytes_per_second,
            fast.disk_bytes_per_second,
        )),
        read_latency: machine.varies.read_latency.or(around(
            latency,
            fast.read_latency_seconds,
            slow.read_latency_seconds,
        )),
        ..machine.varies
    })
}

/// Looks at one disk, again and again.
pub struct Disk {
    path: PathBuf,
    threads: usize,
    weights: Vec<Weight>,
    looks: Vec<Look>,
}

impl Disk {
    pub fn new(path: PathBuf, threads: usize, weights: Vec<Weight>) -> Disk {
        Disk {
            path,
            threads,
            weights,
            looks: Vec::new(),
        }
    }

    /// For about so long.
    pub fn look(&mut self, time: Duration) -> anyhow::Result<Look> {
        let turn = (time / 2).clamp(MIN_TURN, MAX_TURN);
        let mut look = Look::default();
        let begin = Instant::now();
        while look.alone.is_empty() || begin.elapsed() < time {
            // The wait for a router is measured once a look.
            let weights = match look.alone.is_empty() {
                true => &*self.weights,
                false => &[],
            };
            let glance = Glance::take(&self.path, self.threads, weights, turn)?;
            look.alone.push(glance.disk_alone_bytes_per_second);
            look.while_computing.push(glance.disk_bytes_per_second);
            look.compute_while_reading
                .push(glance.compute_while_reading);
            look.read_latency = look.read_latency.or(glance.latency);
        }
        self.looks.push(look.clone());
        Ok(look)
    }

    pub fn last(&self) -> Option<&Look> {
        self.looks.last()
    }

    /// The median over all looks.
    pub fn alone(&self) -> Option<f64> {
        median(&self.looks.iter().map(Look::alone).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_the_disk_of_after_and_varies_as_far_as_before() {
        let look = |rates: &[f64], latency| Look {
            alone: vec![6.0],
            while_computing: rates.to_vec(),
            compute_while_reading: vec![1.25],
            read_latency: Some((latency, Spread::NONE)),
        };
        let (before, after) = (look(&[8.0], 0.5), look(&[3.0, 4.0, 5.0], 1.0));
        let machine = machine_between(Some(&before), &after);
        assert_eq!(machine.disk_bytes_per_second, 4.0);
        assert_eq!(machine.idle_disk_bytes_per_second(), 6.0);
        assert_eq!(machine.compute_while_reading, 1.25);
        let spread = |low, high| Spread { low, high };
        assert_eq!(machine.varies.disk, spread(0.75, 2.0));
        assert_eq!(machine.varies.read_latency, spread(0.5, 1.0));
        let machine = machine_between(None, &after);
        assert_eq!(machine.varies.disk, spread(0.75, 1.25));
    }
}
