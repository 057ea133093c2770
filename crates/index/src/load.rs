//! Log → index: reading it whole, and reading what a live one has gained.
//!
//! While a run is live its [`Reading`] is kept and goes on where it stood.
//! `log/status` says beforehand whether there is anything new. Whatever the steps
//! in which it was read, the index answers as if it was read at once:
//! 1. evaluations are put in order, and numbered, by stream;
//! 2. a tensor's number is that in the first stream that defines it;
//! 3. components, ops and names are numbered as they appear. When one stream brings
//!    what another one after it had brought before, all is read anew; that is at
//!    the begin of a run with several streams, if at all.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
};

use reader::{Log, Reading, Seen, SeenCopy, Tensors, Visitor};
use rundir::{Condition, Run};
use trace::read::Writer;

use crate::{Changed, IndexError, RunIndex, graph::Graph, kernel};

/// Sentences about damage that are shown; the rest are counted.
const MAX_SENTENCES: usize = 100;

/// What is known of a stream.
#[derive(Default)]
pub struct Stream {
    /// Number of each template's graph, if it can be.
    graphs: Vec<Option<u32>>,
    /// Evaluations that are too large to keep, and why.
    refused: Vec<String>,
}

/// Puts what is read into the index.
struct Loading<'a>(&'a mut RunIndex);

impl Visitor for Loading<'_> {
    type Error = IndexError;

    fn defined(&mut self, stream: &reader::Stream) -> Result<(), IndexError> {
        let index = &mut *self.0;
        index.catalog.extend(stream.tensors);
        let known = index.streams.entry(stream.number).or_default();
        for template in &stream.templates[known.graphs.len()..] {
            known.graphs.push(template.as_ref().ok().map(|prepared| {
                index.graphs.push(Graph::new(prepared, &mut index.catalog));
                index.graphs.len() as u32 - 1
            }));
        }
        Ok(())
    }

    fn evaluation(&mut self, seen: &Seen) -> Result<(), IndexError> {
        let template = seen.evaluation.template as usize;
        let stream = self.0.streams.entry(seen.stream).or_default();
        let graph = stream.graphs[template].expect("one that can be, because it was prepared");
        if let Err(reason) = self.0.add(graph, seen) {
            let number = seen.evaluation.number;
            let sentence = format!("stream {}: evaluation {number}: {reason}", seen.stream);
            let stream = self.0.streams.entry(seen.stream).or_default();
            stream.refused.push(sentence);
        }
        Ok(())
    }

    fn copy(&mut self, copy: &SeenCopy) -> Result<(), IndexError> {
        let index = &mut *self.0;
        index.on_devices.copy(copy, &index.catalog);
        Ok(())
    }

    /// Texts of tokens, by the first stream that knows them.
    fn stream_ends(&mut self, stream: &reader::Stream) -> Result<(), IndexError> {
        let pieces = &mut self.0.pieces;
        for (&id, text) in &stream.definitions.tokens {
            let (from, known) = pieces.entry(id).or_insert((stream.number, Vec::new()));
            if stream.number <= *from {
                *from = stream.number;
                known.clone_from(text);
            }
        }
        Ok(())
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
    /// Reads the log of a run; `progress` gets the bytes read so far.
    pub fn open(run: &Run, progress: &mut dyn FnMut(u64)) -> Result<RunIndex, IndexError> {
        let mut index = RunIndex::empty(run);
        let mut reading = Reading::new(Log::new(&run.log_directory()));
        index.read(run, &mut reading, progress)?;
        index.finish(run, reading);
        Ok(index)
    }

    /// Takes in what a live log has gained; cheap when that is nothing.
    pub fn refresh(&mut self) -> Result<Changed, IndexError> {
        let before = self.evals.len();
        let mut result = Ok(());
        if self.live {
            let run = Run::open(&self.path)?;
            if let Some(reading) = self.reading.take() {
                result = self.catch_up(&run, reading);
            }
        }
        result.map(|()| Changed {
            new_evals: self.evals.len().saturating_sub(before) as u64,
            version: self.version,
            live: self.live,
        })
    }

    fn catch_up(&mut self, run: &Run, mut reading: Reading) -> Result<(), IndexError> {
        let (records, defined) = (reading.records(), self.definitions());
        let mut result = Ok(());
        if run.status().map(|s| s.evals_committed) != self.committed || !is_live(run) {
            result = self.read(run, &mut reading, &mut |_| ());
        }
        if self.definitions() != defined && !self.is_numbered_in_order(reading.tensors()) {
            match RunIndex::open(run, &mut |_| ()) {
                Ok(anew) => {
                    let version = self.version + 1;
                    *self = RunIndex { version, ..anew };
                    return Ok(());
                }
                Err(error) => result = result.and(Err(error)),
            }
        }
        // Also after an error: what was read before it must fit together.
        if reading.records() != records
            || self.live != is_live(run)
            || self.sentences(run, &reading) != self.missing
        {
            self.version += 1;
            self.finish(run, reading);
        } else {
            self.reading = Some(reading);
        }
        result
    }

    /// Tensors and templates, of all streams.
    fn definitions(&self) -> usize {
        let templates = self.streams.values().map(|s| s.graphs.len());
        self.catalog.numbers.len() + templates.sum::<usize>()
    }

    fn read(
        &mut self,
        run: &Run,
        reading: &mut Reading,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), IndexError> {
        let writer = match is_live(run) {
            true => Writer::Running,
            false => Writer::Gone,
        };
        reading.read(writer, &mut Loading(self), progress)?;
        // Not after an error: what that has left out is not known.
        self.committed = run.status().map(|s| s.evals_committed);
        Ok(())
    }

    /// Whether everything that answers list by its number has them in the order
    /// that reading the streams one after the other would give.
    fn is_numbered_in_order(&self, tensors: &Tensors) -> bool {
        let catalog = &self.catalog;
        let [mut parts, mut names, mut weights, mut ops] = [(); 4].map(|()| Order::default());
        let mut by_number: Vec<_> = tensors.all().iter().zip(&catalog.numbers).collect();
        by_number.sort_by_key(|(tensor, _)| tensor.number);
        let mut graphs = self
            .streams
            .values()
            .flat_map(|s| s.graphs.iter().flatten());
        by_number.into_iter().all(|(_, &number)| {
            let about = &catalog.tensors[number as usize];
            parts.is_next(about.part)
                && parts.is_next(about.multiplied_part)
                && names.is_next(about.namesake)
                && (!about.is_weight() || weights.is_next(number))
        }) && graphs.all(|&graph| {
            let mut steps = self.graphs[graph as usize].steps.iter();
            steps.all(|step| ops.is_next(step.op))
        })
    }

    /// What follows from everything that was read.
    fn finish(&mut self, run: &Run, reading: Reading) {
        self.live = is_live(run);
        self.kernel_logs = kernel::logs_of(run);
        self.catalog.renumber(reading.tensors());
        self.put_in_order(&reading);
        self.on_devices.put_in_order();
        self.missing = self.sentences(run, &reading);
        // Of one that is not live nothing more comes.
        self.reading = self.live.then_some(reading);
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
    fn sentences(&self, run: &Run, reading: &Reading) -> Vec<String> {
        let mut missing = Vec::new();
        missing.extend(run.warning());
        missing.extend(run.missing_from_log(self.evals.len() as u64));
        let partial = reading.partial();
        // Of a run that goes on, the last evaluation always is.
        if partial > 0 && !is_live(run) {
            missing.push(format!(
                "{partial} cut off by the end of the process: not shown"
            ));
        }
        if self.on_devices.unlisted > 0 {
            missing.push(format!(
                "{} evaluations have more timed kernels than the viewer keeps: they are in the table kernels",
                self.on_devices.unlisted
            ));
        }
        let refused = self.streams.values().flat_map(|s| &s.refused);
        let mut damaged = reading.damaged().chain(refused);
        missing.extend(damaged.by_ref().take(MAX_SENTENCES).cloned());
        match damaged.count() {
            0 => {}
            more => missing.push(format!("{more} more damaged records")),
        }
        missing
    }

    /// The order of the tables, streams one after the other; and that of time, where those
    /// that begin together stay in the order of the tables.
    fn put_in_order(&mut self, reading: &Reading) {
        let new = self.order.len()..self.evals.len();
        self.order.extend(new.map(|at| at as u32));
        self.order.sort_by_key(|&at| self.evals[at as usize].stream);
        self.tokens = 0;
        let mut batches: HashMap<(u32, u64), u64> = HashMap::new();
        for &at in &self.order {
            let eval = &mut self.evals[at as usize];
            eval.number = reading.first_eval(eval.stream) + eval.in_stream;
            eval.first_token = self.tokens;
            let batch = batches.entry((eval.stream, eval.context));
            eval.batch_first = match eval.tokens {
                0 => *batch.or_insert(self.tokens),
                _ => *batch.insert_entry(self.tokens).get(),
            };
            self.tokens += u64::from(eval.tokens);
        }
        let eval = |at: u32| &self.evals[at as usize];
        self.by_time.clone_from(&self.order);
        self.by_time.sort_by_key(|&at| eval(at).begin);
        self.by_token.clone_from(&self.order);
        self.by_token.sort_by_key(|&at| eval(at).batch_first);
        let mut latest = 0;
        let latest = self.by_time.iter().map(|&at| {
            latest = eval(at).last.max(latest);
            latest
        });
        self.latest = latest.collect();
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
