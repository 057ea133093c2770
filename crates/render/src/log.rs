//! One pass over a log, for all exports.
//!
//! Order: streams ascending; within a stream evaluations as they ran. Damaged
//! records are skipped and named in [`Stats::damaged`]; whoever exports must pass
//! that on, because the output alone does not show it.

use std::{
    ops::Range,
    path::{Path, PathBuf},
};

use gguf::Meaning;
use trace::{
    read::{Definitions, Evaluation, Event, StreamReader, streams},
    region::Region,
    template::{CaptureKind, Step, Template, TensorKind},
};

use crate::error::RenderError;

/// The log of a run, or the part of it that is wanted.
#[derive(Clone, Debug)]
pub struct Log {
    directory: PathBuf,
    evals: Range<u64>,
}

/// What an export has read and written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub evaluations: u64,
    /// Executed nodes.
    pub steps: u64,
    /// Events, stacks, records or rows, whatever the format has.
    pub written: u64,
    /// Evaluations that the end of the process cut off; they are not exported.
    pub partial: u64,
    /// Records that could not be read: file, byte and reason.
    pub damaged: Vec<String>,
}

impl Log {
    /// The `log` folder of a run.
    pub fn new(directory: &Path) -> Log {
        Log {
            directory: directory.to_owned(),
            evals: 0..u64::MAX,
        }
    }

    /// Only evaluations with these numbers.
    pub fn with_evals(mut self, evals: Range<u64>) -> Log {
        self.evals = evals;
        self
    }

    /// When the first evaluation of the log began; 0 when there is none.
    pub fn start_nanos(&self) -> Result<u64, RenderError> {
        let mut start: Option<u64> = None;
        for stream in streams(&self.directory)? {
            let mut reader = StreamReader::open(&self.directory, stream)?;
            while let Some(event) = reader.next_event()? {
                if let Event::Evaluation(evaluation) = event {
                    let begin = evaluation.begin_nanos;
                    start = Some(start.map_or(begin, |start| start.min(begin)));
                    break;
                }
            }
        }
        Ok(start.unwrap_or(0))
    }

    /// Shows the whole log to `visitor`.
    pub(crate) fn walk(&self, visitor: &mut dyn Visitor) -> Result<Stats, RenderError> {
        let mut stats = Stats::default();
        let mut first_token = 0;
        for stream in streams(&self.directory)? {
            let mut reader = StreamReader::open(&self.directory, stream)?;
            let mut names = Names::default();
            visitor.stream_begins(stream)?;
            while let Some(event) = reader.next_event()? {
                let evaluation = match event {
                    Event::Evaluation(evaluation) => evaluation,
                    Event::Partial(_) => {
                        stats.partial += 1;
                        continue;
                    }
                    Event::Corrupt {
                        segment,
                        offset,
                        reason,
                    } => {
                        let place = segment.display();
                        stats
                            .damaged
                            .push(format!("{place}: byte {offset}: {reason}"));
                        continue;
                    }
                };
                names.extend(&reader.definitions);
                let template = &reader.definitions.templates[evaluation.template as usize];
                let scene = Scene {
                    definitions: &reader.definitions,
                    names: &names,
                    template,
                    evaluation: &evaluation,
                    first_token,
                    tokens: evaluation.first_of(template, CaptureKind::Tokens).len() as u64,
                };
                // Tokens count through the run, whichever part is wanted.
                first_token += scene.tokens;
                if self.evals.contains(&evaluation.number) {
                    stats.evaluations += 1;
                    stats.steps += scene.steps().count() as u64;
                    visitor.evaluation(&scene)?;
                }
            }
            names.extend(&reader.definitions);
            visitor.stream_ends(&reader.definitions, &names)?;
        }
        Ok(stats)
    }
}

/// What an export does with a log.
pub(crate) trait Visitor {
    fn stream_begins(&mut self, _stream: u32) -> Result<(), RenderError> {
        Ok(())
    }

    fn evaluation(&mut self, scene: &Scene) -> Result<(), RenderError>;

    /// Everything that the stream defined is known now.
    fn stream_ends(&mut self, _all: &Definitions, _names: &Names) -> Result<(), RenderError> {
        Ok(())
    }
}

/// An evaluation and what is needed to read it.
pub(crate) struct Scene<'a> {
    pub definitions: &'a Definitions,
    pub names: &'a Names,
    pub template: &'a Template,
    pub evaluation: &'a Evaluation,
    /// Number of its first token in the run.
    pub first_token: u64,
    /// Tokens of its batch.
    pub tokens: u64,
}

/// A step that was executed.
#[derive(Clone, Copy)]
pub(crate) struct Executed<'a> {
    pub number: usize,
    pub step: &'a Step,
    /// The tick of the step before, or the begin of the evaluation.
    pub begin_nanos: u64,
    pub end_nanos: u64,
}

impl Executed<'_> {
    pub fn nanos(&self) -> u64 {
        self.end_nanos.saturating_sub(self.begin_nanos)
    }
}

impl<'a> Scene<'a> {
    pub fn steps(&self) -> impl Iterator<Item = Executed<'a>> {
        let (template, evaluation) = (self.template, self.evaluation);
        let mut begin_nanos = evaluation.begin_nanos;
        let executed = (0..template.steps.len()).filter(|&step| evaluation.was_executed(step));
        executed.map(move |number| {
            let end_nanos = evaluation.step_nanos[number];
            Executed {
                number,
                step: &template.steps[number],
                begin_nanos: std::mem::replace(&mut begin_nanos, end_nanos),
                end_nanos,
            }
        })
    }

    /// The token, counted through the run, that alone caused an access: a row of
    /// the embedding, a KV cell.
    pub fn token_of(&self, access: &trace::expand::Access) -> Option<u64> {
        let is_per_token = match &access.def.region {
            // Small rows that follow each other are one access for several tokens.
            Region::Indexed(indexed) => {
                indexed.count.iter().product::<u64>() == self.tokens
                    && access.region.bytes() == indexed.unit.bytes()
            }
            Region::Fixed(_) => false,
        };
        let element = access.element.filter(|_| is_per_token)?;
        Some(self.first_token + element)
    }
}

/// Texts of a stream's tensors, made once each and not once an access.
#[derive(Default)]
pub(crate) struct Names {
    tensors: Vec<TensorText>,
}

pub(crate) struct TensorText {
    pub name: String,
    /// Of weights only: names of other tensors mean nothing to a model file.
    pub meaning: Option<Meaning>,
    kind: TensorKind,
}

impl Names {
    pub fn tensor(&self, number: u32) -> &TensorText {
        &self.tensors[number as usize]
    }

    /// Definitions only grow.
    fn extend(&mut self, definitions: &Definitions) {
        for tensor in &definitions.tensors[self.tensors.len()..] {
            let name = definitions.name(tensor.name);
            let is_weight = tensor.place.is_some() || tensor.kind == TensorKind::Weight;
            self.tensors.push(TensorText {
                meaning: is_weight.then(|| Meaning::of(&name)),
                kind: tensor.kind,
                name,
            });
        }
    }
}

impl TensorText {
    /// The part of the model, or the kind of memory for what is no weight.
    pub fn component(&self) -> &'static str {
        match &self.meaning {
            Some(meaning) => meaning.component.name(),
            None => self.kind.name(),
        }
    }
}
