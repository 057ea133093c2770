//! Whether advice holds: each action of a diagnosis that can be applied is tried, alone, in
//! turns with the run as it was.
//!
//! 1. The run is made again from its metadata: the same model, prompts, settings, kernels,
//!    processors and memory limit, in a process of its own, recorded as before but without
//!    looking at the kernel.
//! 2. A round runs it as it was, with the action, and as it was once more (the control), in
//!    another order each time.
//! 3. The gain of a round is the speed with the action over the mean of the two without; the
//!    median over the rounds is what was measured, the control's spread is its noise.
//!
//! Settings of the system are changed through `kernelio::leftover` and put back, also when we
//! are killed. What only its owner can change (other programs, quotas, the hypervisor) is not
//! tried, and the result says so.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, anyhow, bail};
use comfy_table::{Table, presets};
use diagnose::{Diagnosis, Ranked};
use kernelio::leftover::Leftover;
use rundir::{
    Run,
    metadata::{Metadata, Sampling, Settings},
};
use serde::Serialize;
use terminal::progress;

use crate::feed::readahead::ReadAhead;

/// One action, predicted and measured.
#[derive(Clone, Debug, Serialize)]
pub struct Verified {
    pub cause: String,
    pub phase: String,
    pub action: String,
    /// As rules write it: `threads=2`.
    pub applied: String,
    pub predicted_percent: f64,
    pub predicted_percent_low: f64,
    pub predicted_percent_high: f64,
    /// The speed of the recorded run with that gain. The machine may be faster or slower now
    /// than it was then: this is what `tokens_per_second_with` is held against.
    pub predicted_tokens_per_second: Option<f64>,
    /// `None` where it was not tried; `why_not` says why.
    pub measured_percent: Option<f64>,
    pub measured_percent_low: Option<f64>,
    pub measured_percent_high: Option<f64>,
    /// The run as it was against itself: the noise.
    pub control_percent: Option<f64>,
    pub tokens_per_second: Option<f64>,
    pub tokens_per_second_with: Option<f64>,
    pub why_not: Option<String>,
}

/// Measured this much less than the least that was predicted, in points, refutes an action.
const TOLERATED_POINTS: f64 = 5.0;

impl Verified {
    pub fn is_refuted(&self) -> bool {
        let least = self.predicted_percent_low - TOLERATED_POINTS;
        self.measured_percent_high
            .is_some_and(|measured| measured < least)
    }
}

/// A change that can be made to a run.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Change {
    Threads(u32),
    MicroBatch(u32),
    FlashAttention(String),
    CacheType(String),
    Repack,
    Feed,
    /// Kibibytes.
    ReadAhead(u32),
    /// All processors of the machine.
    AllProcessors,
    BestKernels,
}

impl Change {
    /// `None` of what only its owner can change.
    fn parse(text: &str) -> Option<Change> {
        let (name, value) = text.split_once('=')?;
        Some(match name {
            "threads" => Change::Threads(value.parse().ok()?),
            "ubatch" => Change::MicroBatch(value.parse().ok()?),
            "flash_attention" => Change::FlashAttention(value.to_owned()),
            "kv_type" => Change::CacheType(value.to_owned()),
            "repack" => Change::Repack,
            "feed" => Change::Feed,
            "read_ahead_kib" => Change::ReadAhead(value.parse().ok()?),
            "processors" => Change::AllProcessors,
            "kernels" => Change::BestKernels,
            _ => return None,
        })
    }
}

/// Tries every cause's action that can be applied; each change once.
pub fn verify(run: &Run, diagnosis: &Diagnosis, rounds: usize) -> anyhow::Result<Vec<Verified>> {
    let metadata = run
        .metadata()
        .context("the run has no metadata to repeat it by")?;
    let mut list: Vec<Verified> = Vec::new();
    for ranked in &diagnosis.causes {
        let Some(mut verified) = predicted(ranked) else {
            continue;
        };
        let mut phases = diagnosis.phases.iter();
        let phase = phases.find(|phase| phase.name == verified.phase);
        verified.predicted_tokens_per_second =
            phase.map(|p| p.tokens_per_second * (1.0 + verified.predicted_percent / 100.0));
        if list.iter().any(|known| known.applied == verified.applied) {
            continue;
        }
        match try_it(metadata, &verified, rounds) {
            Ok(measured) => measured.fill(&mut verified),
            Err(error) => verified.why_not = Some(format!("{error:#}")),
        }
        list.push(verified);
    }
    Ok(list)
}

/// `None` without an action or a prediction.
fn predicted(ranked: &Ranked) -> Option<Verified> {
    let cause = &ranked.cause;
    Some(Verified {
        cause: cause.id.clone(),
        phase: ranked.phase.clone(),
        action: cause.action.clone()?,
        applied: cause.apply.clone()?,
        predicted_percent: cause.gain_percent?,
        predicted_percent_low: cause.gain_percent_low?,
        predicted_percent_high: cause.gain_percent_high?,
        predicted_tokens_per_second: None,
        measured_percent: None,
        measured_percent_low: None,
        measured_percent_high: None,
        control_percent: None,
        tokens_per_second: None,
        tokens_per_second_with: None,
        why_not: None,
    })
}

fn try_it(metadata: &Metadata, verified: &Verified, rounds: usize) -> anyhow::Result<Measured> {
    let change = Change::parse(&verified.applied)
        .ok_or_else(|| anyhow!("only its owner can change that"))?;
    let subject = Repeat::of(metadata)?;
    let scratch = tempfile::tempdir().context("a folder for runs")?;
    let bar = progress::bar(
        rounds as u64 * 3,
        &format!("trying {}", verified.applied),
        "runs",
    );
    let mut measured = Measured::default();
    for round in 0..rounds {
        // The one in the middle is never that which the machine was left by.
        let order: [Option<&Change>; 3] = match round % 2 {
            0 => [None, Some(&change), None],
            _ => [Some(&change), None, None],
        };
        let mut plain = Vec::new();
        for (place, change) in order.into_iter().enumerate() {
            let folder = scratch.path().join(format!("{round}-{place}"));
            let speed = subject.speed(change, &folder, &verified.phase)?;
            bar.inc(1);
            match change {
                Some(_) => measured.with.push(speed),
                None => plain.push(speed),
            }
        }
        measured.plain.push((plain[0], plain[1]));
    }
    bar.finish_and_clear();
    Ok(measured)
}

/// Tokens a second of each round.
#[derive(Default)]
struct Measured {
    with: Vec<f64>,
    plain: Vec<(f64, f64)>,
}

impl Measured {
    fn fill(self, verified: &mut Verified) {
        let percent = |ratio: f64| (ratio - 1.0) * 100.0;
        let pairs = self.with.iter().zip(&self.plain);
        let mut gains: Vec<f64> = pairs
            .map(|(with, (a, b))| percent(with / ((a + b) / 2.0)))
            .collect();
        let mut noise: Vec<f64> = self.plain.iter().map(|(a, b)| percent(b / a)).collect();
        let mut plain: Vec<f64> = self.plain.iter().map(|(a, b)| (a + b) / 2.0).collect();
        let mut with = self.with;
        verified.measured_percent = median(&mut gains);
        verified.measured_percent_low = gains.first().copied();
        verified.measured_percent_high = gains.last().copied();
        verified.control_percent = median(&mut noise);
        verified.tokens_per_second = median(&mut plain);
        verified.tokens_per_second_with = median(&mut with);
    }
}

/// Sorts, too.
fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    match values.len() % 2 {
        0 => Some((values[values.len() / 2 - 1] + upper) / 2.0),
        _ => Some(upper),
    }
}

/// A run that can be made again.
struct Repeat<'a> {
    metadata: &'a Metadata,
    settings: &'a Settings,
    model: PathBuf,
}

impl Repeat<'_> {
    fn of(metadata: &Metadata) -> anyhow::Result<Repeat<'_>> {
        let Some(settings) = &metadata.settings else {
            bail!(
                "a program of somebody else computed: start it with the action, record that, and compare the two runs"
            );
        };
        let model = metadata.model.as_ref().and_then(|m| m.files.first());
        let model = PathBuf::from(&model.context("the model's file is not known")?.path);
        if !model.is_file() {
            bail!("{}: the model is not there any more", model.display());
        }
        Ok(Repeat {
            metadata,
            settings,
            model,
        })
    }

    /// Tokens a second of a phase.
    fn speed(&self, change: Option<&Change>, folder: &Path, phase: &str) -> anyhow::Result<f64> {
        let _setting = self.system_setting(change)?;
        let mut command = self.command(change, folder)?;
        let output = command.output().context("cannot start ourselves")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let line = said.lines().last().unwrap_or("it says nothing").to_owned();
            bail!("the run made again ended with {}: {line}", output.status);
        }
        let run = Run::open(folder)?;
        let statistics = run.metadata().and_then(|m| m.statistics.as_ref());
        let speed = statistics.and_then(|s| match phase {
            "prompt" => s.tokens_per_second_prompt,
            _ => s.tokens_per_second_generate,
        });
        speed
            .filter(|speed| *speed > 0.0)
            .with_context(|| format!("the run made again has no phase {phase}"))
    }

    fn system_setting(&self, change: Option<&Change>) -> anyhow::Result<Option<Leftover>> {
        match change {
            Some(Change::ReadAhead(kibibytes)) => {
                let of_disk =
                    ReadAhead::of(&self.model).context("read-ahead cannot be changed here")?;
                Ok(Some(of_disk.change(*kibibytes)?))
            }
            _ => Ok(None),
        }
    }

    fn command(&self, change: Option<&Change>, folder: &Path) -> anyhow::Result<Command> {
        let settings = self.settings;
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["record", "--quiet", "--no-tables", "-o"])
            .arg(folder);
        command.arg("-m").arg(&self.model);
        for prompt in &self.metadata.prompts {
            command.arg(format!("--prompt={prompt}"));
        }
        let threads = match change {
            Some(Change::Threads(threads)) => *threads,
            _ => settings.threads,
        };
        let micro_batch = match change {
            Some(Change::MicroBatch(tokens)) => *tokens,
            _ => settings.ubatch_tokens,
        };
        let flash_attention = match change {
            Some(Change::FlashAttention(when)) => when,
            // A quantised cache of V needs it.
            Some(Change::CacheType(_)) => "on",
            _ => &settings.flash_attention,
        };
        let (key, value) = match change {
            Some(Change::CacheType(ty)) => (ty, ty),
            _ => (&settings.kv_type_k, &settings.kv_type_v),
        };
        let flags = [
            ("-t", threads.to_string()),
            ("-c", settings.context_tokens.to_string()),
            ("-b", settings.batch_tokens.max(micro_batch).to_string()),
            ("--ubatch-size", micro_batch.to_string()),
            ("--flash-attn", flash_attention.to_string()),
            ("--cache-type-k", key.clone()),
            ("--cache-type-v", value.clone()),
            ("-n", settings.generate_tokens.unwrap_or(32).to_string()),
        ];
        for (flag, value) in flags {
            command.arg(flag).arg(value);
        }
        if let Sampling::Random {
            temperature,
            top_k,
            top_p,
            seed,
        } = self.metadata.sampling
        {
            command.args([
                "--temp",
                &temperature.to_string(),
                "--seed",
                &seed.to_string(),
            ]);
            command.args(top_k.map(|k| format!("--top-k={k}")));
            command.args(top_p.map(|p| format!("--top-p={p}")));
        }
        let said = |flag: &str| self.metadata.command_line.iter().any(|word| word == flag);
        if said("--ignore-eos") {
            command.arg("--ignore-eos");
        }
        if settings.repack || change == Some(&Change::Repack) {
            command.arg("--repack");
        }
        let below = self.metadata.underneath.as_ref();
        if let Some(limit) = below.and_then(|below| below.memory_limit_bytes) {
            command.arg(format!("--memory={limit}"));
            if self.metadata.fed.is_some() || change == Some(&Change::Feed) {
                command.arg("--feed");
            }
        } else if change == Some(&Change::Feed) {
            bail!("the run had no limit of memory: nothing has to be fed");
        }
        if below.is_some_and(|below| below.dropped_bytes.is_some()) {
            command.arg("--cold");
        }
        self.environment(change, &mut command);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        Ok(command)
    }

    /// Kernels and processors as the run had them, or as the change wants them.
    fn environment(&self, change: Option<&Change>, command: &mut Command) {
        match &self.metadata.versions.kernels {
            Some(kernels) if change != Some(&Change::BestKernels) => {
                command.env(engine::variant::VARIABLE, kernels);
            }
            _ => {
                command.env_remove(engine::variant::VARIABLE);
            }
        }
        let online = self.metadata.machine.cpus_online.unwrap_or(0);
        let allowed = match change {
            Some(Change::AllProcessors) => online,
            _ => self.metadata.machine.cpus_allowed.unwrap_or(online),
        };
        let processors = usize::try_from(allowed).unwrap_or(0);
        if processors > 0 {
            launch::processors::limit(command, processors);
        }
    }
}

/// For people.
pub fn text(list: &[Verified]) -> String {
    if list.is_empty() {
        return "\nNothing to verify: no cause has an action with a predicted gain.\n".to_owned();
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "action",
        "phase",
        "predicted",
        "measured",
        "control",
        "tokens/s predicted",
        "measured",
    ]);
    let mut notes = String::new();
    for one in list {
        let predicted = format!(
            "{:+.0} % ({:+.0} to {:+.0})",
            one.predicted_percent, one.predicted_percent_low, one.predicted_percent_high
        );
        let spread = one.measured_percent_low.zip(one.measured_percent_high);
        let measured = match (one.measured_percent, spread) {
            (Some(measured), Some((low, high))) => {
                format!("{measured:+.0} % ({low:+.0} to {high:+.0})")
            }
            _ => "not tried".to_owned(),
        };
        let control = one
            .control_percent
            .map_or_else(String::new, |c| format!("{c:+.1} %"));
        if let Some(why) = &one.why_not {
            notes.push_str(&format!("{}: {why}\n", one.applied));
        }
        if one.is_refuted() {
            notes.push_str(&format!(
                "{}: refuted, it does not give what was predicted\n",
                one.applied
            ));
        }
        let speed = |speed: Option<f64>| speed.map_or_else(String::new, |s| format!("{s:.1}"));
        let (foreseen, found) = (
            speed(one.predicted_tokens_per_second),
            speed(one.tokens_per_second_with),
        );
        let cells = [
            &one.applied,
            &one.phase,
            &predicted,
            &measured,
            &control,
            &foreseen,
            &found,
        ];
        table.add_row(cells);
    }
    format!("\nVerified, in turns with the run as it was\n{table}\n{notes}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_rules_apply_is_understood_or_left_to_its_owner() {
        assert_eq!(Change::parse("threads=2"), Some(Change::Threads(2)));
        assert_eq!(
            Change::parse("kv_type=q8_0"),
            Some(Change::CacheType("q8_0".into()))
        );
        assert_eq!(
            Change::parse("read_ahead_kib=128"),
            Some(Change::ReadAhead(128))
        );
        assert_eq!(Change::parse("threads=many"), None);
        assert_eq!(Change::parse("quota=none"), None);
    }

    #[test]
    fn a_gain_is_held_against_both_runs_without_it() {
        let measured = Measured {
            with: vec![20.0, 22.0, 21.0],
            plain: vec![(10.0, 10.0), (11.0, 9.0), (10.0, 10.0)],
        };
        let mut verified = Verified {
            cause: String::new(),
            phase: "generate".into(),
            action: String::new(),
            applied: "threads=2".into(),
            predicted_percent: 100.0,
            predicted_percent_low: 90.0,
            predicted_percent_high: 120.0,
            predicted_tokens_per_second: None,
            measured_percent: None,
            measured_percent_low: None,
            measured_percent_high: None,
            control_percent: None,
            tokens_per_second: None,
            tokens_per_second_with: None,
            why_not: None,
        };
        measured.fill(&mut verified);
        assert!((verified.measured_percent.unwrap() - 110.0).abs() < 1e-9);
        assert!(!verified.is_refuted());
        verified.predicted_percent_low = 200.0;
        assert!(verified.is_refuted());
    }
}
