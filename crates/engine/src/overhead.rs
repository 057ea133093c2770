//! What recording costs, measured token by token within one process.
//!
//! Every mode has its own context on the same model. In each round every mode
//! computes one token, in an order that rotates, so that whatever else the
//! machine does falls on all modes alike; a mode's slow-down is the median over
//! rounds of its time divided by that of the mode without hooks in the same
//! round. A second mode without hooks shows what noise alone does.

use std::{ffi::c_void, path::Path, time::Instant};

use capture::{BatchToken, recorder::cycles};
use llama_cpp_sys_2 as sys;
use trace::{clock::now_nanos, format::Phase};

use crate::{
    EngineError,
    context::{Context, ContextProps},
    model::Model,
    recording::Recording,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// llama.cpp as it is.
    NoHooks,
    /// The same once more: the noise.
    NoHooksAgain,
    /// Recording everything, as `record` does.
    Record,
    /// An evaluation callback that splits the graph at every node and writes a
    /// 64-byte record per operand.
    EvalCallback,
}

impl Mode {
    pub const ALL: [Mode; 4] = [
        Mode::NoHooks,
        Mode::NoHooksAgain,
        Mode::Record,
        Mode::EvalCallback,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Mode::NoHooks => "no_hooks",
            Mode::NoHooksAgain => "no_hooks_again",
            Mode::Record => "record",
            Mode::EvalCallback => "eval_callback",
        }
    }
}

/// One mode, over all rounds.
#[derive(Clone, Debug)]
pub struct ModeResult {
    pub mode: Mode,
    pub median_nanos: u64,
    /// Median over rounds of its time over that without hooks, minus one.
    pub slowdown: Interval,
    /// Median share of a token's time spent inside our callbacks; ours only.
    pub direct: Option<f64>,
    /// Median time spent inside our callbacks for a token; ours only.
    pub direct_nanos_per_token: Option<f64>,
}

/// A median with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

#[derive(Clone, Debug)]
pub struct Overhead {
    pub modes: Vec<ModeResult>,
    pub rounds: usize,
    pub steps_per_token: f64,
    pub log_bytes_per_token: f64,
    /// All modes generated the same tokens.
    pub identical: bool,
    pub tick_mismatches: u64,
}

/// Measures `rounds` tokens per mode after a prompt; the log of the recording
/// mode goes to `log_directory`.
pub fn measure(
    model: &Model,
    props: &ContextProps,
    prompt: &[i32],
    rounds: usize,
    log_directory: &Path,
    progress: &mut dyn FnMut(usize),
) -> Result<Overhead, EngineError> {
    let log_error =
        |error: std::io::Error| EngineError::Log(format!("{}: {error}", log_directory.display()));
    let mut recording =
        Recording::start(model, log_directory, Box::new(|_| {})).map_err(log_error)?;
    recording.recorder().time_itself();
    let mut log = Box::new(CallbackLog {
        records: vec![[0; 8]; 1 << 20],
        next: 0,
    });
    let mut lanes = Vec::new();
    for mode in Mode::ALL {
        let callback = (mode == Mode::EvalCallback).then_some((
            eval_callback as unsafe extern "C" fn(_, _, _) -> _,
            (&raw mut *log).cast::<c_void>(),
        ));
        let context = Context::with_callback(model, props.clone(), callback)?;
        lanes.push(Lane {
            mode,
            context,
            nanos: Vec::with_capacity(rounds),
            tokens: Vec::new(),
            next: 0,
        });
    }
    let batch: Vec<BatchToken> = prompt
        .iter()
        .enumerate()
        .map(|(i, &token)| BatchToken {
            token,
            position: i as i32,
            sequence: 0,
        })
        .collect();
    for lane in &mut lanes {
        lane.step(model, &mut recording, Phase::Prompt, &batch)?;
        lane.nanos.clear();
    }
    let mut self_cycles = Vec::with_capacity(rounds);
    recording.recorder().take_self_cycles();
    let (counts, bytes) = (recording.counts(), recording.log_bytes());
    let clock = (cycles(), Instant::now());
    for round in 0..rounds {
        for turn in 0..lanes.len() {
            let at = (turn + round) % Mode::ALL.len();
            let lane = &mut lanes[at];
            let position = (prompt.len() + round) as i32;
            let next = [BatchToken {
                token: lane.next,
                position,
                sequence: 0,
            }];
            lane.step(model, &mut recording, Phase::Generate, &next)?;
            if lane.mode == Mode::Record {
                self_cycles.push(recording.recorder().take_self_cycles());
            }
        }
        progress(round + 1);
    }
    let nanos_per_cycle = clock.1.elapsed().as_nanos() as f64 / (cycles() - clock.0).max(1) as f64;
    let recorded_steps = (recording.counts().steps - counts.steps) as f64;
    let recorded_bytes = (recording.log_bytes() - bytes) as f64;
    let tick_mismatches = recording.counts().tick_mismatches;
    recording.finish().map_err(log_error)?;
    let identical = lanes.iter().all(|lane| lane.tokens == lanes[0].tokens);
    let base = lanes[0].nanos.clone();
    let modes = lanes
        .iter()
        .map(|lane| {
            let ratios: Vec<f64> = lane
                .nanos
                .iter()
                .zip(&base)
                .map(|(&t, &b)| t as f64 / b as f64 - 1.0)
                .collect();
            let direct = (lane.mode == Mode::Record).then(|| {
                let nanos: Vec<f64> = self_cycles
                    .iter()
                    .map(|&c| c as f64 * nanos_per_cycle)
                    .collect();
                let shares = nanos
                    .iter()
                    .zip(&lane.nanos)
                    .map(|(&n, &token)| n / token as f64)
                    .collect();
                (interval(shares).median, interval(nanos).median)
            });
            ModeResult {
                mode: lane.mode,
                median_nanos: median(lane.nanos.clone()),
                slowdown: interval(ratios),
                direct: direct.map(|d| d.0),
                direct_nanos_per_token: direct.map(|d| d.1),
            }
        })
        .collect();
    Ok(Overhead {
        modes,
        rounds,
        steps_per_token: recorded_steps / rounds as f64,
        log_bytes_per_token: recorded_bytes / rounds as f64,
        identical,
        tick_mismatches,
    })
}

struct Lane<'m> {
    mode: Mode,
    context: Context<'m>,
    nanos: Vec<u64>,
    tokens: Vec<i32>,
    next: i32,
}

impl Lane<'_> {
    fn step(
        &mut self,
        model: &Model,
        recording: &mut Recording,
        phase: Phase,
        batch: &[BatchToken],
    ) -> Result<(), EngineError> {
        let last = batch.len() - 1;
        let wants_logits = |i: usize| i == last;
        let start = Instant::now();
        match self.mode {
            Mode::Record => recording.decode(
                model,
                &mut self.context,
                phase,
                batch,
                &wants_logits,
                &mut [],
            )?,
            _ => self.context.decode(batch, wants_logits)?,
        }
        self.nanos.push(start.elapsed().as_nanos() as u64);
        let logits = self.context.logits(last);
        let best = logits
            .iter()
            .enumerate()
            .max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
        self.next = best.map_or(0, |(token, _)| token as i32);
        self.tokens.push(self.next);
        Ok(())
    }
}

/// What the obvious implementation would do: stop at each node, write a record
/// for each operand.
struct CallbackLog {
    records: Vec<[u64; 8]>,
    next: usize,
}

unsafe extern "C" fn eval_callback(
    node: *mut sys::ggml_tensor,
    ask: bool,
    data: *mut c_void,
) -> bool {
    if ask {
        return true;
    }
    // SAFETY: `measure` passes a log that outlives the context; llama.cpp calls
    // from the thread that decodes, with a live node.
    let (log, node) = unsafe { (&mut *data.cast::<CallbackLog>(), &*node) };
    let now = now_nanos();
    for operand in node
        .src
        .iter()
        .copied()
        .filter(|source| !source.is_null())
        .chain([std::ptr::from_ref(node).cast_mut()])
    {
        // SAFETY: a live operand of a live node.
        let (data, bytes) = unsafe { ((*operand).data as u64, sys::ggml_nbytes(operand) as u64) };
        let at = log.next % log.records.len();
        log.records[at] = [now, node.op as u64, operand as u64, data, bytes, 0, 0, 0];
        log.next += 1;
    }
    true
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

/// The median, and the order statistics that enclose it with 95 % confidence
/// whatever the distribution.
pub fn interval(mut values: Vec<f64>) -> Interval {
    values.sort_by(f64::total_cmp);
    if values.is_empty() {
        return Interval {
            median: 0.0,
            low: 0.0,
            high: 0.0,
        };
    }
    let n = values.len();
    let half = 0.98 * (n as f64).sqrt();
    let low = ((n as f64 / 2.0 - half).floor().max(0.0)) as usize;
    let high = ((n as f64 / 2.0 + half).ceil() as usize).min(n - 1);
    Interval {
        median: values[n / 2],
        low: values[low],
        high: values[high],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_encloses_the_median() {
        let values: Vec<f64> = (0..101).map(f64::from).collect();
        let found = interval(values);
        assert_eq!(found.median, 50.0);
        assert!(
            found.low < 41.0 && found.low > 38.0 && found.high > 59.0 && found.high < 62.0,
            "{found:?}"
        );
        assert_eq!(
            interval(vec![3.0]),
            Interval {
                median: 3.0,
                low: 3.0,
                high: 3.0
            }
        );
    }
}
