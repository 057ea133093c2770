//! A generation that is fed: the text, the status line, and what is noted per token.

use std::{
    io::Write as _,
    ops::ControlFlow,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use capture::BatchToken;
use engine::{
    EngineError,
    context::Context,
    draft::Counts,
    feeding::Feeding,
    generate::{Observer, Waited},
    model::{Model, Repack},
    recording::Recording,
};
use feed::{Shares, Snapshot};
use kernelio::pressure::Usage;
use launch::{
    feeding,
    report::{Drafted, Fed, Report, per_token, tokens_per_second},
};
use rundir::{RunDirectory, metadata};
use support::hash::Fnv;
use terminal::signals;
use trace::format::Phase;

use super::args::Args;
use crate::{
    engine_args::Prepared,
    record::{
        directory::{ClosedLog, close_log, describe, start_log},
        screen::{Bar, Screen},
    },
};

/// One evaluation.
#[derive(Clone, Copy, Debug)]
pub struct Evaluation {
    pub phase: Phase,
    /// That came out of it.
    pub tokens: u32,
    /// With what guessing its tokens took.
    pub time: Duration,
    /// What the disk gave this process in it.
    pub disk_bytes: u64,
}

pub struct Generation<'a> {
    model: &'a Model,
    feeding: Option<Feeding>,
    recording: Option<Recording>,
    begin: Instant,
    phase: Phase,
    screen: Screen,
    /// Of several, which cannot be read side by side, or for the report.
    texts: Vec<Vec<u8>>,
    shows_text: bool,
    is_quiet: bool,
    pub evaluations: Vec<Evaluation>,
    pub first_token: Option<Duration>,
    pub tokens: Vec<i32>,
    pub logits_hash: Fnv,
    /// Tokens per second, by the plan.
    pub predicted: Option<plan::Speed>,
    /// What became of guesses.
    pub drafted: Option<Counts>,
    /// Before the first pass that counts as generating.
    after_prompt: Option<Snapshot>,
    /// Later prompts are computed beside what others generate.
    takes_turns: bool,
    /// What guessing the tokens of the next pass took.
    guessing: Duration,
    status: (Instant, Snapshot),
}

impl<'a> Generation<'a> {
    pub fn new(
        prepared: &'a Prepared,
        feeding: Option<Feeding>,
        args: &Args,
        begin: Instant,
    ) -> Generation<'a> {
        let sequences = prepared.generate.prompts.len();
        let sequences_at_once = prepared.generate.sequences();
        let bar = match args.quiet || args.json {
            true => Bar::Never,
            false => Bar::OnTerminals,
        };
        let count = (prepared.generate.tokens * sequences) as u64;
        Generation {
            model: &prepared.model,
            feeding,
            recording: None,
            begin,
            phase: Phase::Prompt,
            screen: Screen::new(count, "running", bar),
            texts: vec![Vec::new(); sequences],
            shows_text: !args.json,
            is_quiet: args.quiet,
            evaluations: Vec::new(),
            first_token: None,
            tokens: Vec::new(),
            logits_hash: Fnv::default(),
            predicted: None,
            drafted: None,
            after_prompt: None,
            takes_turns: prepared.generate.prompts.len() > sequences_at_once,
            guessing: Duration::ZERO,
            status: (Instant::now(), Snapshot::default()),
        }
    }

    /// Records what is computed from now on.
    pub fn record(
        &mut self,
        directory: &mut RunDirectory,
        prepared: &Prepared,
    ) -> anyhow::Result<()> {
        let (context, generate) = (&prepared.context, &prepared.generate);
        let metadata = directory.metadata_mut();
        describe(metadata, &prepared.texts, context, generate, Repack::Off);
        directory.update()?;
        self.recording = Some(start_log(directory, self.model, &self.screen)?);
        Ok(())
    }

    /// Of a generation that was recorded.
    pub fn close_log(&mut self) -> Option<ClosedLog> {
        self.recording.take().map(close_log)
    }

    /// For the metadata of a run.
    pub fn described(&self) -> Option<metadata::Fed> {
        let shares = self.feeding.as_ref()?.shares();
        Some(feeding::described(
            shares.unwrap_or_default(),
            &self.snapshot(),
        ))
    }

    pub fn snapshot(&self) -> Snapshot {
        match &self.feeding {
            Some(feeding) => feeding.stats().snapshot(),
            None => Snapshot::default(),
        }
    }

    pub fn shares(&self) -> Option<Shares> {
        self.feeding.as_ref()?.shares()
    }

    /// Clears the status line and prints what was kept.
    pub fn finish(&mut self) {
        self.screen.end();
        if !self.shows_text {
            return;
        }
        let mut out = std::io::stdout().lock();
        if self.texts.len() == 1 {
            let _ = writeln!(out);
            return;
        }
        for text in &self.texts {
            let _ = out.write_all(text).and_then(|()| out.write_all(b"\n"));
        }
    }

    /// Evaluation, layer and expert of each choice.
    pub fn write_routing(&self, path: &Path) -> anyhow::Result<()> {
        let mut text = String::from("evaluation,layer,expert\n");
        for (evaluation, layer, expert) in self.feeding.iter().flat_map(Feeding::routing) {
            text.push_str(&format!("{evaluation},{layer},{expert}\n"));
        }
        std::fs::write(path, text)
            .with_context(|| format!("{}: cannot write the routing", path.display()))
    }

    /// What it was like.
    pub fn report(
        &self,
        args: &Args,
        prepared: &Prepared,
        load: Duration,
        usage: Option<Usage>,
        budget_bytes: u64,
    ) -> Report {
        let is_counted = |(number, evaluation): &(usize, &Evaluation)| {
            evaluation.phase == Phase::Generate || self.takes_turns && *number > 0
        };
        let passes = || {
            let passes = self.evaluations.iter().enumerate().filter(is_counted);
            passes.map(|(_, evaluation)| evaluation)
        };
        let token_seconds: Vec<f64> = passes().map(|e| e.time.as_secs_f64()).collect();
        let token_disk_bytes: Vec<u64> = passes().map(|e| e.disk_bytes).collect();
        let pass_tokens: Vec<u32> = passes().map(|e| e.tokens).collect();
        let shares = self.shares();
        Report {
            model: args.engine.model().display().to_string(),
            strategies: args.strategy.to_string(),
            budget_bytes,
            prompt_tokens: prepared
                .generate
                .prompts
                .iter()
                .map(Vec::len)
                .sum::<usize>() as u64,
            generated_tokens: self.tokens.len() as u64,
            load_seconds: load.as_secs_f64(),
            first_token_seconds: self.first_token.map(|t| t.as_secs_f64()),
            tokens_per_second: tokens_per_second(&pass_tokens, &token_seconds),
            bytes_read_per_token: per_token(&token_disk_bytes, &pass_tokens),
            token_seconds,
            token_disk_bytes,
            pass_tokens,
            drafted: self.drafted.map(|counts| Drafted {
                passes: counts.passes,
                drafted_passes: counts.drafted_passes,
                drafted_tokens: counts.drafted_tokens,
                accepted_tokens: counts.accepted_tokens,
            }),
            texts: self
                .texts
                .iter()
                .map(|text| String::from_utf8_lossy(text).into_owned())
                .collect(),
            peak_bytes: usage.and_then(|usage| usage.peak_bytes),
            limit_bytes: usage.map(|usage| usage.limit_bytes),
            oom_kills: usage.map(|usage| usage.oom_kills),
            tokens: self.tokens.clone(),
            logits_hash: format!("{:016x}", self.logits_hash.value()),
            fed: shares.map(|_| {
                let now = self.snapshot();
                Fed::between(self.after_prompt.unwrap_or_default(), now)
            }),
            shares,
            predicted_tokens_per_second: self.predicted.map(|speed| speed.usual),
            predicted_low: self.predicted.map(|speed| speed.low),
            predicted_high: self.predicted.map(|speed| speed.high),
        }
    }

    /// Tokens per second, the disk, hits and waiting since the last line.
    fn status(&mut self) -> String {
        let (since, before) = self.status;
        let now = self.snapshot();
        let seconds = since.elapsed().as_secs_f64().max(1e-9);
        let recent = || self.evaluations.iter().rev().take(4);
        let tokens: u32 = recent().map(|e| e.tokens).sum();
        let time: f64 = recent().map(|e| e.time.as_secs_f64()).sum();
        let rate = f64::from(tokens) / time.max(1e-9);
        let mut text = format!("{rate:.2} tokens/s");
        if self.feeding.is_some() {
            let gigabytes = (now.bytes_read - before.bytes_read) as f64 / seconds / 1e9;
            let waited = now.waited_nanos + now.waited_for_experts_nanos
                - before.waited_nanos
                - before.waited_for_experts_nanos;
            let hits = now.expert_hits - before.expert_hits;
            let uses = hits + now.expert_misses - before.expert_misses;
            text.push_str(&format!(", disk {gigabytes:.2} GB/s"));
            if uses > 0 {
                let rate = hits as f64 * 100.0 / uses as f64;
                text.push_str(&format!(", {rate:.0} % of experts there"));
            }
            let share = (waited as f64 / 1e9 / seconds * 100.0).min(100.0);
            text.push_str(&format!(", waited {share:.0} %"));
        }
        if since.elapsed() > Duration::from_millis(500) {
            self.status = (Instant::now(), now);
        }
        text
    }
}

impl Observer for Generation<'_> {
    fn before(&mut self, phase: Phase, _: &[BatchToken]) -> ControlFlow<()> {
        let generates = self.phase == Phase::Prompt && phase == Phase::Generate;
        let is_counted = generates || self.takes_turns && !self.evaluations.is_empty();
        if is_counted && self.after_prompt.is_none() {
            self.after_prompt = Some(self.snapshot());
        }
        self.phase = phase;
        self.screen.begin();
        match signals::asked() {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        }
    }

    fn decode(
        &mut self,
        context: &mut Context<'_>,
        batch: &[BatchToken],
        wants_logits: &dyn Fn(usize) -> bool,
    ) -> Result<(), EngineError> {
        let (begin, before) = (Instant::now(), disk_bytes());
        let (model, phase) = (self.model, self.phase);
        match (&mut self.feeding, &mut self.recording) {
            (Some(feeding), None) => feeding.decode(context, batch, wants_logits)?,
            (None, None) => context.decode(batch, wants_logits)?,
            (Some(feeding), Some(recording)) => {
                feeding.decode_recorded(recording, model, context, phase, batch, wants_logits)?;
            }
            (None, Some(recording)) => {
                recording.decode(model, context, phase, batch, wants_logits, &mut [])?;
            }
        }
        self.evaluations.push(Evaluation {
            phase: self.phase,
            tokens: 0,
            time: begin.elapsed() + std::mem::take(&mut self.guessing),
            disk_bytes: disk_bytes().saturating_sub(before),
        });
        if let Some(feeding) = &mut self.feeding {
            let print = self.screen.line_printer();
            for note in feeding.take_notes() {
                if !self.is_quiet {
                    print(&format!("tensorscope: {note}"));
                }
            }
        }
        Ok(())
    }

    fn logits(&mut self, _: usize, logits: &[f32]) {
        for value in logits {
            self.logits_hash.add_word(u64::from(value.to_bits()));
        }
    }

    fn waited(&self) -> Waited {
        let fed = self.snapshot();
        Waited {
            streamed: Duration::from_nanos(fed.waited_nanos),
            experts: Duration::from_nanos(fed.waited_for_experts_nanos),
        }
    }

    fn guessed(&mut self, took: Duration) {
        self.guessing = took;
    }

    /// Experts of more tokens than the slots hold are read whole, or through the page cache.
    fn max_pass_tokens(&self) -> usize {
        let slots = self.shares().map_or(0, |shares| shares.expert_slots.into());
        let hyper = self.model.gguf.hyper();
        match (slots, hyper.expert_used_count_max()) {
            (0, _) | (_, 0) => usize::MAX,
            (slots, _) if slots >= hyper.expert_count => usize::MAX,
            (slots, used) => usize::try_from(slots / used).unwrap_or(usize::MAX).max(1),
        }
    }

    fn token(&mut self, text: usize, token: i32) {
        self.first_token.get_or_insert_with(|| self.begin.elapsed());
        self.tokens.push(token);
        if let Some(evaluation) = self.evaluations.last_mut() {
            evaluation.tokens += 1;
        }
        let bytes = self.model.token_text(token);
        match self.texts.len() {
            1 if self.shows_text => self.screen.write(&bytes),
            _ => self.texts[text].extend(bytes),
        }
        let status = self.status();
        self.screen.count_token(status);
    }
}

/// What the disk has given this process so far, by faults and by reads.
pub fn disk_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("read_bytes: "));
    line.and_then(|number| number.trim().parse().ok())
        .unwrap_or(0)
}
