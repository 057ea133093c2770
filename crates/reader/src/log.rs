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

use trace::read::{Definitions, Evaluation, Event, ReadError, StreamEnd, StreamReader, streams};

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
        let mut walk = Walk::default();
        for stream in streams(&self.directory)? {
            let mut reader = StreamReader::open(&self.directory, stream)?;
            walk.begin_stream(stream);
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
                let seen = match walk.see(&reader.definitions, &evaluation) {
                    Ok(seen) => seen,
                    Err(reason) => {
                        let place = format!("stream {stream}: evaluation {}", evaluation.number);
                        walked.damaged.push(format!("{place}: {reason}"));
                        continue;
                    }
                };
                if self.evals.contains(&seen.eval) {
                    walked.evaluations += 1;
                    walked.steps += seen.steps().count() as u64;
                    visitor.evaluation(&seen)?;
                }
            }
            let ended = walk.end_stream(&reader.definitions);
            walked.templates += ended.templates.len() as u64;
            visitor.stream_ends(&ended)?;
            walked.record_bytes += reader.record_bytes();
            walked.is_closed &= reader.end() == StreamEnd::Closed;
        }
        walked.tensors = walk.tensors;
        Ok(walked)
    }
}

/// Evaluations are numbered in 32 bits, with a sign, in every table.
const MAX_EVAL: u64 = i32::MAX as u64;

/// What has been defined so far, and the numbers that come next. [`Log::walk`] shows what is
/// on disk; evaluations that are nowhere else but in memory (those of a benchmark) are seen
/// through this.
#[derive(Debug, Default)]
pub struct Walk {
    tensors: Tensors,
    /// Of the stream that is being read.
    templates: Vec<Result<Prepared, String>>,
    stream: u32,
    first_eval: u64,
    /// One more than the largest number of an evaluation so far.
    end_eval: u64,
    first_template: u32,
    next_token: u64,
}

impl Walk {
    /// What follows is of this stream.
    pub fn begin_stream(&mut self, stream: u32) {
        self.tensors.begin_stream();
        self.first_template += self.templates.len() as u32;
        self.templates.clear();
        self.first_eval = self.end_eval;
        self.stream = stream;
    }

    /// `Err` says why the evaluation has no rows.
    pub fn see<'a>(
        &'a mut self,
        definitions: &'a Definitions,
        evaluation: &'a Evaluation,
    ) -> Result<Seen<'a>, String> {
        self.define(definitions);
        let eval = self.first_eval.checked_add(evaluation.number);
        let eval = eval
            .filter(|&eval| eval <= MAX_EVAL)
            .ok_or("its number is larger than a table can say")?;
        // One that has no rows keeps its number all the same.
        self.end_eval = self.end_eval.max(eval + 1);
        let number = evaluation.template as usize;
        let prepared = self.templates.get(number).ok_or("it has no graph")?;
        let seen = Seen {
            eval,
            stream: self.stream,
            template: self.first_template + evaluation.template,
            first_token: self.next_token,
            evaluation,
            prepared: prepared.as_ref().map_err(String::clone)?,
            tensors: &self.tensors,
            definitions,
            graph: &definitions.templates[number],
        };
        // Tokens count through the run, whichever part is wanted.
        self.next_token += seen.tokens();
        Ok(seen)
    }

    /// Everything that the stream defined is known now.
    pub fn end_stream<'a>(&'a mut self, definitions: &'a Definitions) -> Stream<'a> {
        self.define(definitions);
        Stream {
            number: self.stream,
            templates: &self.templates,
            first_template: self.first_template,
            tensors: &self.tensors,
            definitions,
        }
    }

    /// Those of all streams so far.
    pub fn tensors(&self) -> &Tensors {
        &self.tensors
    }

    /// Definitions only grow.
    fn define(&mut self, definitions: &Definitions) {
        self.tensors.extend(definitions);
        for template in &definitions.templates[self.templates.len()..] {
            let prepared = Prepared::new(definitions, template, &self.tensors);
            self.templates.push(prepared);
        }
    }
}
