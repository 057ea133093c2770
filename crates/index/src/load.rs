//! Log → index: reading it whole, and reading what a live one has gained.
//!
//! While a run is live its readers are kept and go on where they stood.
//! `log/status` says beforehand whether there is anything new. Whatever the steps
//! in which it was read, the index answers as if it was read at once:
//! 1. evaluations are put in order, and numbered, by stream;
//! 2. a tensor's number is that in the first stream that defines it;
//! 3. components, ops and names are numbered as they appear. When one stream brings
//!    what another one after it had brought before, all is read anew; that is at
//!    the begin of a run with several streams, if at all.

use std::{collections::HashSet, path::Path};

use rundir::{Condition, Run};
use trace::read::{Definitions, Event, StreamReader, Writer, streams};

use crate::{Changed, IndexError, RunIndex, data::Eval, graph::Graph, kernel};

/// Sentences about damage that are kept; the rest are counted.
const MAX_SENTENCES: usize = 100;

/// What is known of a stream.
#[derive(Default)]
pub struct Stream {
    pub number: u32,
    /// While more may come.
    reader: Option<StreamReader>,
    /// Number of each template's graph, or why it has none.
    graphs: Vec<Result<u32, String>>,
    /// Catalogue numbers of its tensors.
    tensors: Vec<u32>,
    /// Records of definitions, evaluations and damaged records that were taken in.
    definitions: u64,
    events: u64,
    /// One past its last evaluation.
    end_number: u64,
    /// The evaluation that was going on.
    has_partial: bool,
    /// Damaged records, and what was wrong with the first of them.
    damaged: u64,
    damage: Vec<String>,
}

impl Stream {
    fn damaged(&mut self, sentence: String) {
        self.damaged += 1;
        if self.damage.len() < MAX_SENTENCES {
            self.damage.push(sentence);
        }
    }
}

/// Numbers as they first appear.
#[derive(Default)]
struct Order {
    appeared: HashSet<u32>,
    largest: u32,
}

impl Order {
    /// Whether a number appeared before, or is larger than all that did.
    fn is_next(&mut self, number: u32) -> bool {
        let is_known = !self.appeared.insert(number);
        let is_largest = number >= self.largest;
        self.largest = number.max(self.largest);
        is_known || is_largest
    }
}

impl RunIndex {
    pub(crate) fn load(run: &Run, progress: &mut dyn FnMut(u64)) -> Result<RunIndex, IndexError> {
        let mut index = RunIndex::empty(run);
        index.read(run, progress)?;
        index.finish(run);
        Ok(index)
    }

    pub(crate) fn reload(&mut self) -> Result<Changed, IndexError> {
        let before = self.evals.len();
        let mut result = Ok(());
        if self.live {
            let run = Run::open(&self.path)?;
            result = self.catch_up(&run);
        }
        result.map(|()| Changed {
            new_evals: self.evals.len().saturating_sub(before) as u64,
            version: self.version,
            live: self.live,
        })
    }

    fn catch_up(&mut self, run: &Run) -> Result<(), IndexError> {
        let (taken_in, defined) = (self.taken_in(), self.defined());
        let is_live = is_live(run);
        let mut result = Ok(());
        if run.status().map(|s| s.evals_committed) != self.committed || !is_live {
            result = self.read(run, &mut |_| ());
        }
        if self.defined() != defined && !self.is_numbered_in_order() {
            match RunIndex::load(run, &mut |_| ()) {
                Ok(anew) => {
                    let version = self.version + 1;
                    *self = RunIndex { version, ..anew };
                    return Ok(());
                }
                Err(error) => result = result.and(Err(error)),
            }
        }
        // Also after an error: what was read before it must fit together.
        if self.taken_in() != taken_in
            || self.live != is_live
            || self.sentences(run) != self.missing
        {
            self.version += 1;
            self.finish(run);
        }
        result
    }

    /// Records of definitions and other records, of all streams.
    fn taken_in(&self) -> (u64, u64) {
        let definitions = self.streams.iter().map(|s| s.definitions).sum();
        (definitions, self.streams.iter().map(|s| s.events).sum())
    }

    /// Tensors and templates, of all streams.
    fn defined(&self) -> usize {
        let of_stream = |s: &Stream| s.tensors.len() + s.graphs.len();
        self.streams.iter().map(of_stream).sum()
    }

    fn read(&mut self, run: &Run, progress: &mut dyn FnMut(u64)) -> Result<(), IndexError> {
        let definitions = self.taken_in().0;
        let result = self.read_streams(run, progress);
        if self.taken_in().0 != definitions {
            self.name_tokens();
        }
        // By stream, whichever was found first.
        let by_number = self.streams_by_number().into_iter();
        let damage = by_number.flat_map(|s| &self.streams[s].damage);
        self.damage = damage.take(MAX_SENTENCES).cloned().collect();
        self.damaged = self.streams.iter().map(|s| s.damaged).sum();
        if result.is_ok() {
            // What an error has left out is not known.
            self.committed = run.status().map(|s| s.evals_committed);
        }
        result
    }

    fn read_streams(&mut self, run: &Run, progress: &mut dyn FnMut(u64)) -> Result<(), IndexError> {
        let log = run.log_directory();
        let writer = match is_live(run) {
            true => Writer::Running,
            false => Writer::Gone,
        };
        let mut bytes_before = 0;
        let numbers = match streams(&log) {
            Ok(numbers) => numbers,
            // Not begun yet.
            Err(trace::read::ReadError::NoSegments { .. }) if writer == Writer::Running => {
                Vec::new()
            }
            Err(error) => return Err(error.into()),
        };
        for number in numbers {
            let at = match self.streams.iter().position(|s| s.number == number) {
                Some(at) => at,
                None => {
                    self.streams.push(Stream {
                        number,
                        ..Stream::default()
                    });
                    self.streams.len() - 1
                }
            };
            // Taken out, so that the rest of the index can change beside it.
            let mut stream = std::mem::take(&mut self.streams[at]);
            let mut progress = |bytes| progress(bytes_before + bytes);
            let result = self.take_in(&log, writer, &mut stream, at, &mut progress);
            self.streams[at] = stream;
            bytes_before += result?;
        }
        Ok(())
    }

    /// Reads what a stream has gained; the bytes of all its records.
    fn take_in(
        &mut self,
        log: &Path,
        writer: Writer,
        stream: &mut Stream,
        at: usize,
        progress: &mut dyn FnMut(u64),
    ) -> Result<u64, IndexError> {
        let mut reader = match stream.reader.take() {
            None => StreamReader::open(log, stream.number)?,
            Some(mut reader) => {
                reader.resume(writer);
                reader
            }
        };
        let result = self.take_events(&mut reader, stream, at, progress);
        if reader.definition_records() != stream.definitions {
            stream.definitions = reader.definition_records();
            self.define(&reader.definitions, stream, at);
        }
        let bytes = reader.record_bytes();
        stream.reader = Some(reader);
        result.map(|()| bytes)
    }

    fn take_events(
        &mut self,
        reader: &mut StreamReader,
        stream: &mut Stream,
        at: usize,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), IndexError> {
        while let Some(event) = reader.next_event()? {
            progress(reader.record_bytes());
            stream.has_partial = matches!(event, Event::Partial(_));
            stream.events += u64::from(!stream.has_partial);
            match event {
                Event::Evaluation(evaluation) => {
                    self.define(&reader.definitions, stream, at);
                    let number = evaluation.number;
                    let graph = stream.graphs[evaluation.template as usize].clone();
                    let added = graph
                        .and_then(|graph| self.add(&reader.definitions, graph, at, evaluation));
                    match added {
                        Ok(()) => stream.end_number = stream.end_number.max(number + 1),
                        Err(reason) => stream.damaged(format!(
                            "stream {}: evaluation {number}: {reason}",
                            stream.number
                        )),
                    }
                }
                Event::Corrupt {
                    segment,
                    offset,
                    reason,
                } => stream.damaged(format!("{}: byte {offset}: {reason}", segment.display())),
                Event::Partial(_) => {}
            }
        }
        Ok(())
    }

    fn define(&mut self, definitions: &Definitions, stream: &mut Stream, at: usize) {
        for number in stream.tensors.len()..definitions.tensors.len() {
            let tensor = self.catalog.tensor(definitions, number, at as u32);
            stream.tensors.push(tensor);
            let about = &mut self.catalog.tensors[tensor as usize];
            let first = about.stream as usize;
            // This stream is taken out of the list, but it is not another one.
            if first != at && stream.number < self.streams[first].number {
                about.stream = at as u32;
                about.number = number as u32;
                about.ggml_type = definitions.tensors[number].ggml_type;
            }
        }
        for template in &definitions.templates[stream.graphs.len()..] {
            let graph = Graph::new(definitions, template, &stream.tensors, &mut self.catalog);
            stream.graphs.push(graph.map(|graph| {
                self.graphs.push(graph);
                self.graphs.len() as u32 - 1
            }));
        }
    }

    /// Whether everything that answers list by its number has them in the order
    /// that reading the streams one after the other would give.
    fn is_numbered_in_order(&self) -> bool {
        if self.streams.len() < 2 {
            return true;
        }
        let catalog = &self.catalog;
        let [mut parts, mut names, mut weights, mut ops] = [(); 4].map(|()| Order::default());
        self.streams_by_number().into_iter().all(|stream| {
            let stream = &self.streams[stream];
            let mut steps = stream
                .graphs
                .iter()
                .flatten()
                .flat_map(|&graph| &self.graphs[graph as usize].steps);
            stream.tensors.iter().all(|&tensor| {
                let about = &catalog.tensors[tensor as usize];
                parts.is_next(about.part)
                    && names.is_next(about.namesake)
                    && (!about.is_weight() || weights.is_next(tensor))
            }) && steps.all(|step| ops.is_next(step.op))
        })
    }

    fn streams_by_number(&self) -> Vec<usize> {
        let mut by_number: Vec<usize> = (0..self.streams.len()).collect();
        by_number.sort_by_key(|&s| self.streams[s].number);
        by_number
    }

    /// What follows from everything that was read.
    fn finish(&mut self, run: &Run) {
        self.live = is_live(run);
        self.kernel_logs = kernel::logs_of(run);
        self.streams_order();
        self.missing = self.sentences(run);
        if !self.live {
            // Nothing more comes.
            self.streams.iter_mut().for_each(|s| s.reader = None);
        }
        let model = run.metadata().and_then(|m| m.model.as_ref());
        let files: Vec<(String, u64)> = model.map_or(Vec::new(), |m| {
            let files = m.files.iter();
            files.map(|f| (file_name(&f.path), f.size_bytes)).collect()
        });
        self.catalog.place(&files);
        self.open_model(run);
        self.totals = self.summary(&crate::Filter::default()).totals;
    }

    /// What is not in the index.
    fn sentences(&self, run: &Run) -> Vec<String> {
        let mut missing = Vec::new();
        missing.extend(run.warning());
        missing.extend(run.missing_from_log(self.evals.len() as u64));
        let partial = self.streams.iter().filter(|s| s.has_partial).count();
        // Of a run that goes on, the last evaluation always is.
        if partial > 0 && !is_live(run) {
            missing.push(format!(
                "{partial} cut off by the end of the process: not shown"
            ));
        }
        missing.extend(self.damage.iter().cloned());
        if self.damaged > self.damage.len() as u64 {
            let more = self.damaged - self.damage.len() as u64;
            missing.push(format!("{more} more damaged records"));
        }
        missing
    }

    /// Texts of tokens, by the first stream that knows them.
    fn name_tokens(&mut self) {
        for stream in self.streams_by_number().into_iter().rev() {
            if let Some(reader) = &self.streams[stream].reader {
                for (&id, text) in &reader.definitions.tokens {
                    match self.pieces.get_mut(&id) {
                        Some(known) => known.clone_from(text),
                        None => drop(self.pieces.insert(id, text.clone())),
                    }
                }
            }
        }
    }

    /// Numbers as the tables count them: streams one after the other.
    fn streams_order(&mut self) {
        let mut place = vec![0; self.streams.len()];
        let (mut first_eval, mut first_tensor) = (0u64, 0u64);
        let mut firsts = vec![(0, 0); self.streams.len()];
        for (at, stream) in self.streams_by_number().into_iter().enumerate() {
            place[stream] = at;
            firsts[stream] = (first_eval, first_tensor);
            let about = &self.streams[stream];
            if about.end_number > 0 {
                first_eval = first_eval.max(first_eval + about.end_number);
            }
            first_tensor += about.tensors.len() as u64;
        }
        for tensor in &mut self.catalog.tensors {
            let number = firsts[tensor.stream as usize].1 + u64::from(tensor.number);
            tensor.table_number = u32::try_from(number).unwrap_or(u32::MAX);
        }
        // What the last stream gains comes behind all others; anything else moves them.
        let place_of = |eval: &Eval| place[eval.stream as usize];
        let mut gained = self.evals[self.order.len()..].iter();
        if gained.any(|eval| place_of(eval) + 1 < place.len()) {
            self.order.clear();
            self.by_time.clear();
            self.latest.clear();
            self.tokens = 0;
        }
        let mut gained: Vec<u32> = (self.order.len()..self.evals.len())
            .map(|at| at as u32)
            .collect();
        gained.sort_by_key(|&at| place_of(&self.evals[at as usize]));
        for &at in &gained {
            let eval = &mut self.evals[at as usize];
            eval.number = firsts[eval.stream as usize].0 + eval.in_stream;
            eval.first_token = self.tokens;
            self.tokens += u64::from(eval.tokens);
        }
        self.order.extend(&gained);
        self.time_order(gained);
    }

    /// Those that begin together stay in the order of the tables.
    fn time_order(&mut self, mut gained: Vec<u32>) {
        let eval = |at: u32| &self.evals[at as usize];
        gained.sort_by_key(|&at| eval(at).begin);
        let last = self.by_time.last().map(|&at| eval(at).begin);
        if gained
            .first()
            .is_some_and(|&at| Some(eval(at).begin) < last)
        {
            self.latest.clear();
            self.by_time.clone_from(&self.order);
            self.by_time.sort_by_key(|&at| eval(at).begin);
        } else {
            self.by_time.extend(gained);
        }
        let mut latest = self.latest.last().copied().unwrap_or(0);
        let unknown = &self.by_time[self.latest.len()..];
        self.latest.extend(unknown.iter().map(|&at| {
            latest = eval(at).last.max(latest);
            latest
        }));
        self.origin = self.by_time.first().map_or(0, |&at| eval(at).begin);
    }
}

fn is_live(run: &Run) -> bool {
    matches!(run.condition(), Condition::Recording { .. })
}

fn file_name(path: &str) -> String {
    let name = Path::new(path).file_name();
    name.map_or_else(|| path.to_owned(), |n| n.to_string_lossy().into_owned())
}
