//! One pass over a log.
//!
//! Order: streams ascending; within a stream evaluations as they ran. Numbers count
//! through the run: those of a stream begin where those of the stream before ended.
//!
//! What has no rows, here and everywhere: records that are damaged, evaluations of a graph
//! that cannot be, and evaluations that the end of the process cut off. They are in
//! [`Walked`]; whoever shows a run must pass that on, because the rows alone do not tell.

use std::{
    ops::Range,
    path::{Path, PathBuf},
};

use trace::read::{Definitions, Event, ReadError, StreamEnd, StreamReader, streams};

use crate::{prepared::Prepared, seen::Seen, tensors::Tensors};

/// The log of a run, or the part of it that is wanted.
#[derive(Clone, Debug)]
pub struct Log {
    directory: PathBuf,
    evals: Range<u64>,
}

/// What a pass has read.
#[derive(Debug, Default)]
pub struct Walked {
    /// Those that were shown.
    pub evaluations: u64,
    /// Executed nodes of those.
    pub steps: u64,
    /// Evaluations that the end of the process cut off.
    pub partial: u64,
    /// What could not be read: where, and why.
    pub damaged: Vec<String>,
    pub templates: u64,
    /// Bytes of records, framing included.
    pub record_bytes: u64,
    /// Every stream was closed in an orderly way.
    pub is_closed: bool,
    pub tensors: Tensors,
}

/// A stream that has been read to its end.
pub struct Stream<'a> {
    pub number: u32,
    /// Its templates, or why their evaluations have no rows.
    pub templates: &'a [Result<Prepared, String>],
    /// Number of the first of them in the run.
    pub first_template: u32,
    pub tensors: &'a Tensors,
    pub definitions: &'a Definitions,
}

/// What somebody does with a log.
pub trait Visitor {
    type Error: From<ReadError>;

    fn stream_begins(&mut self, _stream: u32) -> Result<(), Self::Error> {
        Ok(())
    }

    fn evaluation(&mut self, seen: &Seen) -> Result<(), Self::Error>;

    /// Everything that the stream defined is known now.
    fn stream_ends(&mut self, _stream: &Stream) -> Result<(), Self::Error> {
        Ok(())
    }
}

impl Log {
    /// The `log` folder of a run.
    pub fn new(directory: &Path) -> Log {
        Log {
            directory: directory.to_owned(),
            evals: 0..u64::MAX,
        }
    }

    /// Only evaluations with these numbers in the run.
    pub fn with_evals(mut self, evals: Range<u64>) -> Log {
        self.evals = evals;
        self
    }

    /// Shows the whole log to `visitor`.
    pub fn walk<V: Visitor>(&self, visitor: &mut V) -> Result<Walked, V::Error> {
        self.walk_with_progress(visitor, &mut |_| ())
    }

    /// The same; `progress` gets the bytes of records read so far.
    pub fn walk_with_progress<V: Visitor>(
        &self,
        visitor: &mut V,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Walked, V::Error> {
        let mut walked = Walked {
            is_closed: true,
            ..Walked::default()
        };
        let mut next = Next::default();
        for stream in streams(&self.directory)? {
            let mut reader = StreamReader::open(&self.directory, stream)?;
            let mut templates = Vec::new();
            let mut end_eval = next.eval;
            visitor.stream_begins(stream)?;
            while let Some(event) = reader.next_event()? {
                progress(walked.record_bytes + reader.record_bytes());
                let evaluation = match event {
                    Event::Evaluation(evaluation) => evaluation,
                    Event::Partial(_) => {
                        walked.partial += 1;
                        continue;
                    }
                    Event::Corrupt {
                        segment,
                        offset,
                        reason,
                    } => {
                        let place = segment.display();
                        walked
                            .damaged
                            .push(format!("{place}: byte {offset}: {reason}"));
                        continue;
                    }
                };
                define(&reader.definitions, &mut walked.tensors, &mut templates);
                let number = evaluation.number;
                let mut damaged = |reason: &str| {
                    let place = format!("stream {stream}: evaluation {number}");
                    walked.damaged.push(format!("{place}: {reason}"));
                };
                let eval = next.eval.checked_add(number);
                let Some(eval) = eval.filter(|&eval| eval <= MAX_EVAL) else {
                    damaged("its number is larger than a table can say");
                    continue;
                };
                // One that has no rows keeps its number all the same.
                end_eval = end_eval.max(eval + 1);
                let prepared = match &templates[evaluation.template as usize] {
                    Ok(prepared) => prepared,
                    Err(reason) => {
                        damaged(reason);
                        continue;
                    }
                };
                let seen = Seen {
                    eval,
                    stream,
                    template: next.template + evaluation.template,
                    first_token: next.token,
                    evaluation: &evaluation,
                    prepared,
                    tensors: &walked.tensors,
                    definitions: &reader.definitions,
                    graph: &reader.definitions.templates[evaluation.template as usize],
                };
                // Tokens count through the run, whichever part is wanted.
                next.token += seen.tokens();
                if self.evals.contains(&eval) {
                    walked.evaluations += 1;
                    walked.steps += seen.steps().count() as u64;
                    visitor.evaluation(&seen)?;
                }
            }
            define(&reader.definitions, &mut walked.tensors, &mut templates);
            visitor.stream_ends(&Stream {
                number: stream,
                templates: &templates,
                first_template: next.template,
                tensors: &walked.tensors,
                definitions: &reader.definitions,
            })?;
            walked.tensors.end_stream();
            walked.templates += templates.len() as u64;
            walked.record_bytes += reader.record_bytes();
            walked.is_closed &= reader.end() == StreamEnd::Closed;
            next.eval = end_eval;
            next.template += templates.len() as u32;
        }
        Ok(walked)
    }
}

/// Evaluations are numbered in 32 bits, with a sign, in every table.
const MAX_EVAL: u64 = i32::MAX as u64;

/// The first numbers of the next stream.
#[derive(Default)]
struct Next {
    eval: u64,
    token: u64,
    template: u32,
}

/// Definitions only grow.
fn define(
    definitions: &Definitions,
    tensors: &mut Tensors,
    templates: &mut Vec<Result<Prepared, String>>,
) {
    tensors.extend(definitions);
    for template in &definitions.templates[templates.len()..] {
        templates.push(Prepared::new(definitions, template, tensors));
    }
}
