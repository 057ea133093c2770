//! One evaluation of the log becomes a part of the index.
//!
//! A regular one adds its times, choices and rows, and to the running sums of its
//! graph; any other is kept access by access.

use std::collections::HashMap;

use reader::Seen;
use trace::origin::Source;

use crate::{
    RunIndex,
    data::{Data, Entry, Eval, RAGGED, Ragged},
    graph::{Counting, Graph, NO_EXPERT},
};

/// A larger batch is damage.
const MAX_BATCH: usize = 1 << 20;
/// Limits of what a hostile log, whose arrays are run-coded, makes us keep.
const MAX_TOKENS: usize = 1 << 26;
const MAX_ENTRIES: usize = 4 << 20;
const MAX_ROWS: usize = 1 << 27;

/// What came from where, of an evaluation whose weights were fed.
pub type Sources = Vec<(Source, OfSource)>;

/// How many tokens the last part of a graph that had any brought, by stream and context: the
/// parts behind it compute those.
#[derive(Debug, Default)]
pub struct Batches(HashMap<(u32, u64), u32>);

impl Batches {
    fn of(&mut self, seen: &Seen) -> u32 {
        let batch = self.0.entry((seen.stream, seen.evaluation.context));
        match seen.tokens() as u32 {
            0 => *batch.or_default(),
            own => *batch.insert_entry(own).get(),
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct OfSource {
    pub accesses: u64,
    pub bytes: u64,
    pub waited_nanos: u64,
}

fn sources(seen: &Seen) -> Sources {
    let mut sources: Sources = Vec::new();
    seen.for_each_origin(|of, origin| {
        let at = sources
            .iter()
            .position(|(source, _)| *source == origin.source);
        let at = at.unwrap_or_else(|| {
            sources.push((origin.source, OfSource::default()));
            sources.len() - 1
        });
        let sum = &mut sources[at].1;
        sum.accesses += 1;
        sum.bytes = sum.bytes.saturating_add(of.access.region.bytes());
        sum.waited_nanos = sum.waited_nanos.saturating_add(origin.waited_nanos);
    });
    sources
}

impl RunIndex {
    /// `Err` says why it cannot be kept.
    pub(crate) fn add(&mut self, graph_number: u32, seen: &Seen) -> Result<(), String> {
        let evaluation = seen.evaluation;
        let graph = &mut self.graphs[graph_number as usize];
        let data = &mut self.data;
        let batch = seen.token_ids();
        if batch.len() > MAX_BATCH || data.token_ids.len() + batch.len() > MAX_TOKENS {
            return Err("its batch has more tokens than can be".into());
        }
        let at = data.lengths();
        if at.rows + graph.kept_rows as usize > MAX_ROWS {
            return Err("the log holds more indices than fit into memory".into());
        }
        let (begin, end) = seen.window();
        let ends = seen.steps().filter_map(|step| Some(step.times?.end_nanos));
        let last = ends.max().unwrap_or(0);
        let mut eval = Eval {
            graph: graph_number,
            rank: RAGGED,
            stream: seen.stream,
            in_stream: evaluation.number,
            context: evaluation.context,
            number: seen.eval,
            phase: evaluation.phase,
            begin,
            end: end.max(begin),
            on_device: self.on_devices.push(seen),
            computed: seen.computed_nanos().unwrap_or(0),
            last: last.max(end).max(begin),
            // Numbered when everything is read.
            first_token: 0,
            tokens: batch.len() as u32,
            batch_first: 0,
            batch: self.batches.of(seen),
            at,
            outputs: 0,
        };
        let sources = sources(seen);
        if !sources.is_empty() {
            self.origins.push((self.evals.len() as u32, sources));
        }
        data.token_ids.extend(batch);
        let positions = seen.positions();
        let per_token = 0..batch.len();
        data.positions
            .extend(per_token.clone().map(|i| positions.get(i).copied()));
        data.sequences
            .extend(per_token.map(|i| evaluation.sequences.get(i).copied()));
        add_choices(data, graph, seen, &mut eval);
        for kept in &graph.rows {
            let index = seen.prepared.accesses[kept.access].index.as_ref();
            let rows = index.map_or(&[][..], |index| index.values(evaluation));
            data.push_rows(rows, kept.elements as usize);
        }
        let is_even = add_times(data, graph, seen);
        let sums = is_even.then(|| class_sums(data, graph, seen, &eval));
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
                data.forget_ends(&at);
                eval.at.times = data.ragged.len();
                let ragged = ragged(graph, seen, data.entries);
                data.entries += ragged.entries.len();
                let times = ragged.nanos.iter().filter(|nanos| **nanos != 0);
                let back = times.map(|nanos| eval.begin.saturating_sub(*nanos)).max();
                self.jumped_back = self.jumped_back.max(back.unwrap_or(0));
                data.ragged.push(ragged);
                self.evals.push(eval);
            }
        }
        Ok(())
    }
}

fn add_choices(data: &mut Data, graph: &Graph, seen: &Seen, eval: &mut Eval) {
    let outputs = seen.output_rows();
    let mut is_reduced = false;
    for router in &graph.routers {
        let ids = router.ids(seen.evaluation);
        let weights = router.weights(seen.evaluation);
        data.push_choices(router, ids, weights, eval.at.distinct);
        let rows = ids.len() / router.used as usize;
        is_reduced |= rows != eval.batch as usize && rows == outputs.len();
    }
    if is_reduced {
        data.push_outputs(outputs);
        eval.outputs = outputs.len() as u32;
    }
}

/// Whether the times are those of a regular evaluation.
fn add_times(data: &mut Data, graph: &Graph, seen: &Seen) -> bool {
    let evaluation = seen.evaluation;
    if graph.is_on_device() {
        return add_device_times(data, seen);
    }
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

/// Of an evaluation on a device: what each step had for itself, and when it ended. What nobody
/// measured has no time.
fn device_times(seen: &Seen) -> (Vec<u64>, Vec<u64>) {
    let begin = seen.evaluation.begin_nanos;
    let mut end = begin;
    seen.steps()
        .map(|executed| {
            end = executed.times.map_or(end, |times| times.end_nanos);
            (executed.nanos(), end)
        })
        .unzip()
}

fn add_device_times(data: &mut Data, seen: &Seen) -> bool {
    let begin = seen.evaluation.begin_nanos;
    let (own, ends) = device_times(seen);
    let mut all = 0u64;
    let sums = own.iter().map(|nanos| {
        all = all.saturating_add(*nanos);
        u32::try_from(all).ok()
    });
    let sums: Option<Vec<u32>> = sums.collect();
    // A time before the call would be damage; the clock is the same.
    let ends = ends.iter().zip(&own).map(|(end, own)| {
        let from_begin = end.checked_sub(begin)?;
        u32::try_from(from_begin)
            .ok()
            .filter(|_| from_begin >= *own)
    });
    let ends: Option<Vec<u32>> = ends.collect();
    let Some((sums, ends)) = sums.zip(ends) else {
        return false;
    };
    sums.into_iter()
        .chain(ends)
        .for_each(|nanos| data.push_end(nanos));
    true
}

fn class_sums(data: &Data, graph: &Graph, seen: &Seen, eval: &Eval) -> Vec<(u64, u64)> {
    let sums = graph.classes.iter().map(|class| {
        let access = &seen.prepared.accesses[class.access];
        let mut count = 0u64;
        match (&access.index, class.counting) {
            (Some(index), Counting::Values) => {
                index.for_each_value(seen.evaluation, &mut Vec::new(), |_| count += 1);
            }
            (Some(index), Counting::Distinct { router }) => {
                let all = data.distinct(eval, router as usize);
                let bound = index.indexed.bound;
                count = all.partition_point(|&e| u64::from(e) < bound) as u64;
            }
            (None, _) | (_, Counting::Expanded) => {
                let mut bytes = 0u64;
                seen.for_each_of(class.access, |seen| {
                    count += 1;
                    bytes = bytes.wrapping_add(seen.access.region.bytes());
                });
                return (count, bytes);
            }
        }
        (count, count.wrapping_mul(access.bytes))
    });
    sums.collect()
}

/// Expands the indexed accesses of an evaluation.
fn ragged(graph: &Graph, seen: &Seen, entries_before: usize) -> Ragged {
    let mut entries: Vec<Entry> = Vec::new();
    let indexed = seen.steps().filter(|executed| executed.step.has_index);
    for at in indexed.flat_map(|executed| executed.step.first..executed.step.end) {
        if seen.prepared.accesses[at].index.is_none() {
            continue;
        }
        let about = &graph.accesses[at];
        seen.for_each_of(at, |seen| {
            let access = &seen.access;
            let expert = access.expert.and_then(|e| u16::try_from(e).ok());
            let entry = Entry {
                access: at as u32,
                expert: expert.unwrap_or(NO_EXPERT),
                count: 1,
                bytes: access.region.bytes(),
                offset: access.region.offset,
                span: access.region.end().unwrap_or(u64::MAX) - access.region.offset,
            };
            let is_placed = about.is_weight_read && entries_before + entries.len() < MAX_ENTRIES;
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
    let (nanos, own) = match graph.is_on_device() {
        false => (seen.evaluation.step_nanos.clone(), None),
        true => {
            let (own, ends) = device_times(seen);
            // 0 is for steps that were not executed.
            let ends = ends.into_iter().map(|end| end.max(1));
            (ends.collect(), Some(own))
        }
    };
    Ragged {
        nanos,
        own,
        entries,
    }
}
