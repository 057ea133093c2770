//! Reading a log back: streams, records, evaluations.
//!
//! A reader trusts nothing: every record is checked against its checksum, every
//! reference against what was defined before. What is damaged is reported as
//! such ([`Event::Corrupt`]) and reading goes on where that is safe. Definitions
//! count from the first, so after a damaged record of them later ones are refused
//! too: better no name than a wrong one. A record that was never completed (the
//! process was killed) comes as [`Event::Partial`]; it alone has no checksum.
//!
//! A log that is still written is followed:
//! 1. [`StreamReader::next_event`] until it returns `None`;
//! 2. [`StreamReader::resume`], and again from 1: what was appended since comes,
//!    and only that. A partial evaluation comes once, and when it is complete as
//!    [`Event::Evaluation`];
//! 3. once the writer is known to be gone, 2. a last time with [`Writer::Gone`].

mod definitions;
mod held;

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::{
    coded::{take_coded, unpack},
    device::Copy,
    format::{EVAL_HEAD_WORDS, EVAL_TAIL_WORDS, Phase, RecordKind, VERSION},
    origin::{self, Origin},
    phases::{Phases, TokenPhase},
    stream::{Framed, Position, Words, segments},
    template::{CaptureKind, CaptureTime, Template, decode_definitions},
};

pub use definitions::Definitions;
use held::Held;

/// Why a log cannot be read at all, or not further.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("{}: {cause}", path.display())]
    Io {
        path: PathBuf,
        /// Not named `source`: the message has it already, and a chain of sources would
        /// print it twice.
        cause: io::Error,
    },
    #[error("{}: holds no log segment; is it the `log` folder of a run?", path.display())]
    NoSegments { path: PathBuf },
    #[error("{}: byte {offset}: {reason}", path.display())]
    Damaged {
        path: PathBuf,
        offset: u64,
        reason: String,
    },
    #[error("{}: this segment is missing, but later ones are there; copy the whole `log` folder", path.display())]
    MissingSegment { path: PathBuf },
    #[error("{}: the log has version {version}, this program reads 1 to {VERSION}; use a newer tensorscope", path.display())]
    Version { path: PathBuf, version: u32 },
}

/// Numbers of the streams in a log folder, ascending.
pub fn streams(log_directory: &Path) -> Result<Vec<u32>, ReadError> {
    // By any segment: a stream whose first one is missing must not go unnoticed.
    let mut streams: Vec<u32> = segments(log_directory)?
        .into_iter()
        .map(|(stream, _)| stream)
        .collect();
    streams.sort_unstable();
    streams.dedup();
    if streams.is_empty() {
        return Err(ReadError::NoSegments {
            path: log_directory.to_owned(),
        });
    }
    Ok(streams)
}

/// One graph evaluation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evaluation {
    /// Counts from 0 within the stream, lost ones included.
    pub number: u64,
    pub template: u32,
    /// By its tokens; see [`crate::phases`].
    pub phase: Phase,
    pub threads: u16,
    /// Tells contexts of one process apart.
    pub context: u64,
    pub begin_nanos: u64,
    /// 0 in a partial evaluation.
    pub end_nanos: u64,
    pub ticks: u32,
    /// See [`crate::format::flags`].
    pub flags: u32,
    /// When each step ended; 0 where no tick was seen.
    pub step_nanos: Vec<u64>,
    /// The arrays that the template's captures describe. Empty where the step that
    /// they belong to was not reached, and in a partial evaluation.
    pub captures: Vec<Vec<i64>>,
    /// Sequence of each token of the batch; empty when not known.
    pub sequences: Vec<u32>,
    /// Of each token of the batch; empty in a partial evaluation.
    pub token_phases: Vec<TokenPhase>,
    /// Where its weights came from, by step; `None` if nobody fed them.
    pub origins: Option<Vec<Origin>>,
    /// What is known besides if a device computed it. Its steps have no times of their own.
    pub device: Option<Box<OnDevice>>,
}

/// Of an evaluation that a device computed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OnDevice {
    /// Its number in [`Definitions::devices`].
    pub device: u32,
    /// Its kernels, a number of [`Definitions::launches`], where they are known.
    pub launches: Option<u32>,
    /// When the device began and ended it, where that was measured.
    pub nanos: Option<(u64, u64)>,
    /// When each of its kernels began and ended; empty if that was not measured. They may
    /// overlap.
    pub kernel_nanos: Vec<(u64, u64)>,
}

impl Evaluation {
    /// Whether a tick of this step was seen, or a device was told to execute it.
    pub fn was_executed(&self, step: usize) -> bool {
        let nanos = self.step_nanos.get(step);
        nanos.is_some_and(|&nanos| nanos != 0 || self.device.is_some())
    }

    /// Values of the first capture of a kind (tokens, positions).
    pub fn first_of(&self, template: &Template, kind: CaptureKind) -> &[i64] {
        let index = template.captures.iter().position(|c| c.kind == kind);
        index
            .and_then(|i| self.captures.get(i))
            .map_or(&[], Vec::as_slice)
    }
}

/// What comes next in a stream.
#[derive(Debug)]
pub enum Event {
    Evaluation(Evaluation),
    /// The evaluation that was going on when the process died.
    Partial(Evaluation),
    /// Bytes that were copied between host and device.
    Copy(Copy),
    /// A record that is damaged; reading goes on behind it.
    Corrupt {
        segment: PathBuf,
        offset: u64,
        reason: String,
    },
}

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// Not reached yet.
    NotYet,
    /// Closed in an orderly way.
    Closed,
    /// Without an end record: the process was killed, or the disk was full.
    Open,
}

/// Whether anybody may still append to a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// Zeros where a record would begin are then taken for space that was prepared
    /// for it, after a look at what comes right behind: a running process loses
    /// no pages, and looking through all prepared segments takes time.
    Running,
    /// Everything behind the last record is looked at: where that is not zero, a
    /// power failure has lost records between.
    Gone,
}

/// Reads one stream from its first segment to its end, and on from there when it
/// has grown.
pub struct StreamReader {
    words: Words,
    pub definitions: Definitions,
    end: StreamEnd,
    /// Until a record of definitions turns out damaged.
    definitions_are_whole: bool,
    definition_records: u64,
    /// Bytes of the records read so far, framing included.
    record_bytes: u64,
    /// Those of the last one, if it was not complete.
    incomplete_bytes: u64,
    /// Where the evaluation begins that was the last to come as partial.
    partial: Option<Position>,
    /// Nothing behind the reading position can be found.
    is_lost: bool,
    phases: Phases,
    writer: Writer,
    /// Events that wait for what was measured of an evaluation before them.
    held: Held,
}

impl StreamReader {
    pub fn open(log_directory: &Path, stream: u32) -> Result<StreamReader, ReadError> {
        Ok(StreamReader {
            words: Words::open(log_directory, stream)?,
            definitions: Definitions {
                tokens: crate::tokens::read(log_directory),
                ..Definitions::default()
            },
            end: StreamEnd::NotYet,
            definitions_are_whole: true,
            definition_records: 0,
            record_bytes: 0,
            incomplete_bytes: 0,
            partial: None,
            is_lost: false,
            phases: Phases::default(),
            writer: Writer::Gone,
            held: Held::default(),
        })
    }

    pub fn end(&self) -> StreamEnd {
        self.end
    }

    pub fn record_bytes(&self) -> u64 {
        self.record_bytes
    }

    /// Records of definitions that were taken in: whether there are new ones.
    pub fn definition_records(&self) -> u64 {
        self.definition_records
    }

    /// Goes on where the stream ended, in case it has grown since; see the
    /// module. Changes nothing at an orderly end, or where the rest was lost.
    pub fn resume(&mut self, writer: Writer) {
        self.words.expect(writer);
        self.writer = writer;
        if self.end == StreamEnd::Open && !self.is_lost {
            self.end = StreamEnd::NotYet;
            self.record_bytes -= std::mem::take(&mut self.incomplete_bytes);
        }
    }

    /// The next event; `None` at the end of the stream, or at what is the end at
    /// present. Definitions are taken in on the way. After an error, the next
    /// call tries the same record again.
    pub fn next_event(&mut self) -> Result<Option<Event>, ReadError> {
        loop {
            if let Some(event) = self.held.take() {
                return Ok(Some(event));
            }
            match self.read_event()? {
                Some(event) => self.held.add(event),
                // The last records may have completed what waits.
                None if self.held.is_ready() => {}
                None if self.end == StreamEnd::Open && self.writer == Writer::Running => {
                    return Ok(None);
                }
                // Nothing more can come.
                None if self.held.give_up() => {}
                None => return Ok(None),
            }
        }
    }

    fn read_event(&mut self) -> Result<Option<Event>, ReadError> {
        while self.end == StreamEnd::NotYet {
            let (framed, bytes) = self.words.next_record()?;
            self.record_bytes += bytes;
            let (kind, body) = match framed {
                Framed::Record { kind, body } => (kind, body),
                Framed::End => {
                    self.end = StreamEnd::Open;
                    break;
                }
                Framed::Incomplete { kind, body } => {
                    self.end = StreamEnd::Open;
                    self.incomplete_bytes = bytes;
                    let begin = Some(self.words.record());
                    if kind != RecordKind::Evaluation || self.partial == begin {
                        break;
                    }
                    let Some(partial) = self.partial(&body) else {
                        break;
                    };
                    self.partial = begin;
                    return Ok(Some(Event::Partial(partial)));
                }
                Framed::Damaged { kind, reason } => {
                    self.definitions_are_whole &= kind != RecordKind::Definitions;
                    return Ok(Some(self.corrupt(reason.into())));
                }
                Framed::Lost { reason } => {
                    self.end = StreamEnd::Open;
                    self.is_lost = true;
                    let reason = format!("{reason}; the rest of the stream cannot be read");
                    return Ok(Some(self.corrupt(reason)));
                }
            };
            match kind {
                RecordKind::End => self.end = StreamEnd::Closed,
                RecordKind::Definitions => {
                    self.definition_records += 1;
                    if let Err(reason) = self.define(&body) {
                        self.definitions_are_whole = false;
                        return Ok(Some(self.corrupt(reason)));
                    }
                }
                RecordKind::Measured => {
                    let templates = &self.definitions.templates;
                    let launches = &self.definitions.launches;
                    if let Err(reason) = self.held.measured(&body, templates, launches) {
                        return Ok(Some(self.corrupt(reason)));
                    }
                }
                RecordKind::Copy => {
                    return Ok(Some(match self.copy(&body) {
                        Ok(copy) => Event::Copy(copy),
                        Err(reason) => self.corrupt(reason),
                    }));
                }
                RecordKind::Evaluation => {
                    return Ok(Some(match self.evaluation(&body) {
                        Ok(mut evaluation) => {
                            let templates = &self.definitions.templates;
                            let template = &templates[evaluation.template as usize];
                            self.phases.fill_in(template, &mut evaluation);
                            Event::Evaluation(evaluation)
                        }
                        Err(reason) => self.corrupt(reason),
                    }));
                }
            }
        }
        Ok(None)
    }

    /// About the last record.
    fn corrupt(&self, reason: String) -> Event {
        let (segment, offset) = self.words.place();
        Event::Corrupt {
            segment,
            offset,
            reason,
        }
    }

    fn define(&mut self, body: &[u64]) -> Result<(), String> {
        if !self.definitions_are_whole {
            return Err(
                "definitions before these are damaged, so their numbers are not known".into(),
            );
        }
        let (&bytes, rest) = body.split_first().ok_or("an empty definition record")?;
        let raw: Vec<u8> = rest.iter().flat_map(|word| word.to_le_bytes()).collect();
        let raw = usize::try_from(bytes)
            .ok()
            .and_then(|n| raw.get(..n))
            .ok_or("a definition record is too short")?;
        for definition in decode_definitions(raw).map_err(|e| e.to_string())? {
            self.definitions.add(definition)?;
        }
        Ok(())
    }

    fn evaluation(&self, body: &[u64]) -> Result<Evaluation, String> {
        let mut evaluation = head(body).ok_or("an evaluation is too short")?;
        let template = self
            .definitions
            .templates
            .get(evaluation.template as usize)
            .ok_or_else(|| format!("template {} is not defined", evaluation.template))?;
        let (begin_words, origin_words) = (body[4] as u32 as usize, (body[4] >> 32) as usize);
        let steps_at = EVAL_HEAD_WORDS + begin_words;
        let origins_at = steps_at + template.step_words();
        if origins_at + origin_words + EVAL_TAIL_WORDS != body.len() {
            return Err("an evaluation does not have the length that its template says".into());
        }
        if origin_words > 0 {
            let origins = origin::decode(&body[origins_at..origins_at + origin_words])?;
            if origins
                .iter()
                .any(|o| o.step as usize >= template.steps.len())
            {
                return Err("a weight comes to a step that the graph does not have".into());
            }
            evaluation.origins = Some(origins);
        }
        evaluation.captures = vec![Vec::new(); template.captures.len()];
        let mut begin = &body[EVAL_HEAD_WORDS..steps_at];
        for (index, capture) in template.captures.iter().enumerate() {
            if capture.time == CaptureTime::Begin {
                evaluation.captures[index] = take_coded(&mut begin, capture.elements())?;
                if evaluation.captures[index].len() as u64 != capture.elements() {
                    return Err(
                        "a captured array does not have the length that its template says".into(),
                    );
                }
            }
        }
        let tokens = evaluation.first_of(template, CaptureKind::Tokens).len() as u64;
        let sequences = take_coded(&mut begin, tokens)?
            .into_iter()
            .map(u32::try_from);
        evaluation.sequences = sequences
            .collect::<Result<_, _>>()
            .map_err(|_| "a sequence number is impossible")?;
        if !begin.is_empty() {
            return Err("a begin section is longer than its arrays".into());
        }
        if let Some(device) = template.device {
            let launches = u32::try_from(body[steps_at]).ok();
            let launches = launches.ok_or("launches that cannot be")?.checked_sub(1);
            let of = launches.map(|number| self.definitions.launches.get(number as usize));
            if of.is_some_and(|of| of.is_none_or(|of| of.template != evaluation.template)) {
                return Err("an evaluation launches kernels that are not of its graph".into());
            }
            evaluation.device = Some(Box::new(OnDevice {
                device,
                launches,
                ..OnDevice::default()
            }));
            evaluation.step_nanos = vec![0; template.steps.len()];
            tail(body, &mut evaluation);
            return Ok(evaluation);
        }
        let mut steps = &body[steps_at..origins_at];
        let mut by_step: Vec<(u32, usize)> = template
            .captures
            .iter()
            .enumerate()
            .filter_map(|(i, c)| match c.time {
                CaptureTime::Step(step) => Some((step, i)),
                CaptureTime::Begin => None,
            })
            .collect();
        by_step.sort_by_key(|&(step, _)| step);
        let mut captures = by_step.into_iter().peekable();
        evaluation.step_nanos.reserve_exact(template.steps.len());
        for step in 0..template.steps.len() as u32 {
            evaluation.step_nanos.push(steps[0]);
            let executed = steps[0] != 0;
            steps = &steps[1..];
            while let Some((_, capture)) = captures.next_if(|&(s, _)| s == step) {
                let def = &template.captures[capture];
                let (words, rest) = steps.split_at(def.words());
                if executed {
                    evaluation.captures[capture] =
                        unpack(words, def.width_bytes, def.elements() as usize)?;
                }
                steps = rest;
            }
        }
        tail(body, &mut evaluation);
        Ok(evaluation)
    }

    fn copy(&self, body: &[u64]) -> Result<Copy, String> {
        let copy = Copy::from_words(body).ok_or("a copy that cannot be")?;
        let is_known = (copy.tensor as usize) < self.definitions.tensors.len()
            && (copy.device as usize) < self.definitions.devices.len();
        match is_known {
            true => Ok(copy),
            false => Err("a copy of a tensor or to a device that is not defined".into()),
        }
    }

    /// Of an evaluation that never ended: its head, and how far it came. Times
    /// are kept; captures are not, because their last word may be missing.
    fn partial(&self, body: &[u64]) -> Option<Evaluation> {
        let mut evaluation = head(body)?;
        let template = self
            .definitions
            .templates
            .get(evaluation.template as usize)
            .filter(|template| template.device.is_none())?;
        let mut at = EVAL_HEAD_WORDS + body[4] as u32 as usize;
        for step in 0..template.steps.len() as u32 {
            evaluation
                .step_nanos
                .push(body.get(at).copied().unwrap_or(0));
            let captured: usize = template
                .captures
                .iter()
                .filter(|c| c.time == CaptureTime::Step(step))
                .map(|c| c.words())
                .sum();
            at += 1 + captured;
        }
        evaluation.ticks = evaluation.step_nanos.iter().filter(|&&t| t != 0).count() as u32;
        (evaluation.begin_nanos != 0).then_some(evaluation)
    }
}

fn tail(body: &[u64], evaluation: &mut Evaluation) {
    evaluation.end_nanos = body[body.len() - 2];
    evaluation.ticks = body[body.len() - 1] as u32;
    evaluation.flags = (body[body.len() - 1] >> 32) as u32;
}

fn head(body: &[u64]) -> Option<Evaluation> {
    if body.len() < EVAL_HEAD_WORDS + EVAL_TAIL_WORDS {
        return None;
    }
    Some(Evaluation {
        number: body[0],
        template: body[1] as u32,
        phase: Phase::from_u8((body[1] >> 32) as u8),
        threads: (body[1] >> 48) as u16,
        context: body[2],
        begin_nanos: body[3],
        end_nanos: 0,
        ticks: 0,
        flags: 0,
        step_nanos: Vec::new(),
        captures: Vec::new(),
        sequences: Vec::new(),
        token_phases: Vec::new(),
        origins: None,
        device: None,
    })
}
