//! Log → index: reading it whole, and reading what a live one has gained.
//!
//! A reader that has met the end of a stream does not go on, so a live log is
//! read again from its begin and what is known is passed over. `log/status` says
//! beforehand whether there is anything new.

use std::path::Path;

use rundir::{Condition, Run};
use trace::{
    expand::for_each_access,
    read::{Definitions, Evaluation, Event, StreamReader, streams},
    region::Region,
};

use crate::{
    Changed, IndexError, RunIndex,
    data::{Data, Entry, Eval, RAGGED, Ragged},
    graph::{Class, Counting, Graph, NO_EXPERT, values},
};

/// A larger batch is damage.
const MOST_BATCH: usize = 1 << 20;
/// Limits of what a hostile log, whose arrays are run-coded, makes us keep.
const MOST_TOKENS: usize = 1 << 26;
const MOST_ENTRIES: usize = 4 << 20;
const MOST_ROWS: usize = 1 << 27;
/// Sentences about damage that are kept; the rest are counted.
const MOST_SENTENCES: usize = 100;

/// What is known of a stream.
#[derive(Debug, Default)]
pub struct Stream {
    pub number: u32,
    /// Number of each template's graph, or why it has none.
    graphs: Vec<Result<u32, String>>,
    /// Catalogue numbers of its tensors.
    tensors: Vec<u32>,
    /// Evaluations and damaged records that were taken in.
    events: u64,
    /// One past its last evaluation.
    end_number: u64,
    /// The evaluation that was going on.
    has_partial: bool,
}

impl RunIndex {
    pub(crate) fn load(run: &Run, progress: &mut dyn FnMut(u64)) -> Result<RunIndex, IndexError> {
        let mut index = RunIndex::empty(run);
        index.read(run, progress)?;
        index.finish(run);
        Ok(index)
    }

    pub(crate) fn reload(&mut self) -> Result<Changed, IndexError> {
        let changed = |index: &RunIndex, new_evals| Changed {
            new_evals,
            version: index.version,
            live: index.live,
        };
        if !self.live {
            return Ok(changed(self, 0));
        }
        let run = Run::open(&self.path)?;
        let before = self.evals.len();
        let committed = run.status().map(|s| s.evals_committed);
        let was_live = self.live;
        let is_live = matches!(run.condition(), Condition::Recording { .. });
        if committed != self.committed || !is_live {
            self.read(&run, &mut |_| ())?;
        }
        if self.evals.len() != before || was_live != is_live {
            self.version += 1;
            self.finish(&run);
        }
        Ok(changed(self, (self.evals.len() - before) as u64))
    }

    fn read(&mut self, run: &Run, progress: &mut dyn FnMut(u64)) -> Result<(), IndexError> {
        self.committed = run.status().map(|s| s.evals_committed);
        let log = run.log_directory();
        let mut bytes_before = 0;
        let numbers = match streams(&log) {
            Ok(numbers) => numbers,
            // Not begun yet.
            Err(trace::read::ReadError::NoSegments { .. })
                if matches!(run.condition(), Condition::Recording { .. }) =>
            {
                return Ok(());
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
            bytes_before += self.read_stream(&log, at, bytes_before, progress)?;
        }
        Ok(())
    }

    fn read_stream(
        &mut self,
        log: &Path,
        at: usize,
        bytes_before: u64,
        progress: &mut dyn FnMut(u64),
    ) -> Result<u64, IndexError> {
        // Taken out, so that the rest of the index can change beside it.
        let mut stream = std::mem::take(&mut self.streams[at]);
        let result = self.take_in(log, &mut stream, at, bytes_before, progress);
        self.streams[at] = stream;
        result
    }

    fn take_in(
        &mut self,
        log: &Path,
        stream: &mut Stream,
        at: usize,
        bytes_before: u64,
        progress: &mut dyn FnMut(u64),
    ) -> Result<u64, IndexError> {
        let mut reader = StreamReader::open(log, stream.number)?;
        let mut known = stream.events;
        stream.has_partial = false;
        while let Some(event) = reader.next_event()? {
            progress(bytes_before + reader.record_bytes());
            if matches!(event, Event::Partial(_)) {
                stream.has_partial = true;
                continue;
            }
            if known > 0 {
                known -= 1;
                continue;
            }
            stream.events += 1;
            match event {
                Event::Evaluation(evaluation) => {
                    self.define(&reader.definitions, stream, at);
                    let number = evaluation.number;
                    let graph = stream.graphs[evaluation.template as usize].clone();
                    let added = graph
                        .and_then(|graph| self.add(&reader.definitions, graph, at, evaluation));
                    match added {
                        Ok(()) => stream.end_number = stream.end_number.max(number + 1),
                        Err(reason) => self.damaged(format!(
                            "stream {}: evaluation {number}: {reason}",
                            stream.number
                        )),
                    }
                }
                Event::Corrupt {
                    segment,
                    offset,
                    reason,
                } => self.damaged(format!("{}: byte {offset}: {reason}", segment.display())),
                Event::Partial(_) => {}
            }
        }
        self.define(&reader.definitions, stream, at);
        for (&id, text) in &reader.definitions.tokens {
            self.pieces.entry(id).or_insert_with(|| text.clone());
        }
        Ok(reader.record_bytes())
    }

    fn damaged(&mut self, sentence: String) {
        self.damaged += 1;
        if self.damage.len() < MOST_SENTENCES {
            self.damage.push(sentence);
        }
    }

    fn define(&mut self, definitions: &Definitions, stream: &mut Stream, at: usize) {
        for number in stream.tensors.len()..definitions.tensors.len() {
            let tensor = self.catalog.tensor(definitions, number, at as u32);
            stream.tensors.push(tensor);
        }
        for template in &definitions.templates[stream.graphs.len()..] {
            let graph = Graph::new(definitions, template, &stream.tensors, &mut self.catalog);
            stream.graphs.push(graph.map(|graph| {
                self.graphs.push(graph);
                self.graphs.len() as u32 - 1
            }));
        }
    }

    fn add(
        &mut self,
        definitions: &Definitions,
        graph_number: u32,
        stream: usize,
        evaluation: Evaluation,
    ) -> Result<(), String> {
        let template = &definitions.templates[evaluation.template as usize];
        let graph = &mut self.graphs[graph_number as usize];
        let data = &mut self.data;
        let batch = graph.batch(&evaluation);
        if batch.len() > MOST_BATCH || data.token_ids.len() + batch.len() > MOST_TOKENS {
            return Err("its batch has more tokens than can be".into());
        }
        if evaluation.number > i32::MAX as u64 || self.evals.len() >= i32::MAX as usize {
            return Err("its number is larger than a table can say".into());
        }
        let lengths = data.lengths();
        if lengths.rows + graph.kept_rows as usize > MOST_ROWS {
            return Err("the log holds more indices than fit into memory".into());
        }
        let begin = evaluation.begin_nanos;
        let last = evaluation.step_nanos.iter().copied().max().unwrap_or(0);
        let mut eval = Eval {
            graph: graph_number,
            rank: RAGGED,
            stream: stream as u32,
            in_stream: evaluation.number,
            number: evaluation.number,
            phase: evaluation.phase,
            begin,
            end: evaluation.end_nanos.max(begin),
            last: last.max(evaluation.end_nanos).max(begin),
            first_token: 0,
            tokens: batch.len() as u32,
            tokens_at: lengths.tokens,
            times_at: lengths.times,
            ids_at: lengths.ids,
            distinct_at: lengths.distinct,
            routers_at: lengths.routers,
            rows_at: lengths.rows,
            outputs: lengths.outputs..lengths.outputs,
        };
        data.token_ids.extend(batch);
        let positions = values(&evaluation, graph.positions);
        let per_token = 0..batch.len();
        data.positions
            .extend(per_token.clone().map(|i| positions.get(i).copied()));
        data.sequences
            .extend(per_token.map(|i| evaluation.sequences.get(i).copied()));
        add_choices(data, graph, &evaluation, &mut eval);
        for kept in &graph.rows {
            let rows = values(&evaluation, Some(kept.capture));
            data.push_rows(rows, kept.elements as usize);
        }
        let is_even = add_times(data, graph, &evaluation);
        let sums = is_even.then(|| class_sums(data, graph, &evaluation, &eval));
        match sums.filter(|sums| !graph.has_odd && sums.iter().all(|s| s.0 > 0)) {
            Some(sums) => {
                eval.rank = graph.evals.len() as u32;
                graph.evals.push(self.evals.len() as u32);
                for (class, sum) in graph.classes.iter_mut().zip(sums) {
                    class.push(eval.rank, sum);
                }
                self.evals.push(eval);
                graph.keep_sums(&self.evals, data);
            }
            None => {
                data.forget_ends(&lengths);
                eval.times_at = data.ragged.len();
                let ragged = ragged(graph, template, evaluation, data.entries);
                data.entries += ragged.entries.len();
                data.ragged.push(ragged);
                self.evals.push(eval);
            }
        }
        Ok(())
    }

    /// What follows from everything that was read.
    fn finish(&mut self, run: &Run) {
        self.live = matches!(run.condition(), Condition::Recording { .. });
        self.streams_order();
        let partial = self.streams.iter().filter(|s| s.has_partial).count();
        self.missing.clear();
        if let Some(warning) = run.warning() {
            self.missing.push(warning);
        }
        self.missing
            .extend(run.missing_from_log(self.evals.len() as u64));
        // Of a run that goes on, the last evaluation always is.
        if partial > 0 && !self.live {
            self.missing.push(format!(
                "{partial} cut off by the end of the process: not shown"
            ));
        }
        self.missing.extend(self.damage.iter().cloned());
        if self.damaged > self.damage.len() as u64 {
            let more = self.damaged - self.damage.len() as u64;
            self.missing.push(format!("{more} more damaged records"));
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

    /// Numbers as the tables count them: streams one after the other.
    fn streams_order(&mut self) {
        let mut order: Vec<u32> = (0..self.evals.len() as u32).collect();
        let mut by_number: Vec<usize> = (0..self.streams.len()).collect();
        by_number.sort_by_key(|&s| self.streams[s].number);
        let mut place = vec![0; self.streams.len()];
        let (mut first_eval, mut first_tensor) = (0u64, 0u64);
        let mut firsts = vec![(0, 0); self.streams.len()];
        for (at, &stream) in by_number.iter().enumerate() {
            place[stream] = at;
            firsts[stream] = (first_eval, first_tensor);
            let about = &self.streams[stream];
            if about.end_number > 0 {
                first_eval = first_eval.max(first_eval + about.end_number);
            }
            first_tensor += about.tensors.len() as u64;
        }
        order.sort_by_key(|&e| place[self.evals[e as usize].stream as usize]);
        let mut first_token = 0;
        for &at in &order {
            let eval = &mut self.evals[at as usize];
            eval.number = firsts[eval.stream as usize].0 + eval.in_stream;
            eval.first_token = first_token;
            first_token += u64::from(eval.tokens);
        }
        self.tokens = first_token;
        for tensor in &mut self.catalog.tensors {
            let number = firsts[tensor.stream as usize].1 + u64::from(tensor.number);
            tensor.table_number = u32::try_from(number).unwrap_or(u32::MAX);
        }
        self.order = order;
        self.by_time = (0..self.evals.len() as u32).collect();
        self.by_time.sort_by_key(|&e| self.evals[e as usize].begin);
        let mut latest = 0;
        let lasts = self.by_time.iter().map(|&e| {
            latest = self.evals[e as usize].last.max(latest);
            latest
        });
        self.latest = lasts.collect();
        let first = self.by_time.first();
        self.origin = first.map_or(0, |&e| self.evals[e as usize].begin);
    }
}

fn file_name(path: &str) -> String {
    let name = Path::new(path).file_name();
    name.map_or_else(|| path.to_owned(), |n| n.to_string_lossy().into_owned())
}

fn add_choices(data: &mut Data, graph: &Graph, evaluation: &Evaluation, eval: &mut Eval) {
    let outputs = values(evaluation, graph.outputs);
    let mut is_reduced = false;
    for router in &graph.routers {
        let ids = values(evaluation, Some(router.capture));
        let weights = values(evaluation, router.weights);
        data.push_choices(router, ids, weights, eval.distinct_at);
        let rows = ids.len() / router.used as usize;
        is_reduced |= rows != eval.tokens as usize && rows == outputs.len();
    }
    if is_reduced {
        data.push_outputs(outputs);
        eval.outputs.end = data.lengths().outputs;
    }
}

/// Whether the times are those of a regular evaluation.
fn add_times(data: &mut Data, graph: &Graph, evaluation: &Evaluation) -> bool {
    let mut before = 0;
    for &nanos in &evaluation.step_nanos {
        let end = nanos.checked_sub(evaluation.begin_nanos);
        match end.and_then(|end| u32::try_from(end).ok()) {
            Some(end) if end >= before && nanos != 0 => {
                data.push_end(end);
                before = end;
            }
            _ => return false,
        }
    }
    evaluation.step_nanos.len() == graph.steps.len()
}

fn class_sums(data: &Data, graph: &Graph, evaluation: &Evaluation, eval: &Eval) -> Vec<(u64, u64)> {
    let times_unit = |count: u64, class: &Class| (count, count.wrapping_mul(class.unit_bytes));
    let sums = graph.classes.iter().map(|class| match &class.counting {
        Counting::Values { capture, bound } => {
            let all = values(evaluation, Some(*capture)).iter();
            let count = all.filter(|&&v| v >= 0 && (v as u64) < *bound).count();
            times_unit(count as u64, class)
        }
        Counting::Distinct { router, bound } => {
            let all = data.distinct(eval, *router as usize);
            times_unit(
                all.partition_point(|&e| u64::from(e) < *bound) as u64,
                class,
            )
        }
        Counting::Expanded(template) => {
            let mut sum = (0, 0u64);
            for_each_access(template, evaluation, 0, |access| {
                sum.0 += 1;
                sum.1 = sum.1.wrapping_add(access.region.bytes());
            });
            sum
        }
    });
    sums.collect()
}

/// Expands the indexed accesses of an evaluation.
fn ragged(
    graph: &Graph,
    template: &trace::template::Template,
    evaluation: Evaluation,
    entries_before: usize,
) -> Ragged {
    let mut entries: Vec<Entry> = Vec::new();
    for (number, step) in template.steps.iter().enumerate() {
        let is_indexed =
            |def: &trace::template::AccessDef| matches!(def.region, Region::Indexed(_));
        if !evaluation.was_executed(number) || !step.accesses.iter().any(is_indexed) {
            continue;
        }
        let first = graph.steps[number].first;
        for_each_access(template, &evaluation, number, |access| {
            if !is_indexed(access.def) {
                return;
            }
            let at = step
                .accesses
                .iter()
                .position(|d| std::ptr::eq(d, access.def));
            let at = first + at.expect("an access is one of its step's") as u32;
            let about = &graph.accesses[at as usize];
            let expert = access.expert.and_then(|e| u16::try_from(e).ok());
            let entry = Entry {
                access: at,
                expert: expert.unwrap_or(NO_EXPERT),
                count: 1,
                bytes: access.region.bytes(),
                offset: access.region.offset,
                span: access.region.end().unwrap_or(u64::MAX) - access.region.offset,
            };
            let is_placed = about.is_weight_read && entries_before + entries.len() < MOST_ENTRIES;
            let same = entries.last_mut().filter(|last| {
                !is_placed && (last.access, last.expert) == (entry.access, entry.expert)
            });
            match same {
                Some(last) => {
                    last.count = last.count.saturating_add(1);
                    last.bytes = last.bytes.wrapping_add(entry.bytes);
                }
                None => entries.push(entry),
            }
        });
    }
    Ragged {
        nanos: evaluation.step_nanos,
        entries,
    }
}
