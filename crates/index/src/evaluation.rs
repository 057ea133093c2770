//! One evaluation of the log becomes a part of the index.
//!
//! A regular one adds its times, choices and rows, and to the running sums of its
//! graph; any other is kept access by access.

use trace::{
    expand::for_each_access,
    read::{Definitions, Evaluation},
    region::Region,
};

use crate::{
    RunIndex,
    data::{Data, Entry, Eval, RAGGED, Ragged},
    graph::{Class, Counting, Graph, NO_EXPERT, values},
};

/// A larger batch is damage.
const MAX_BATCH: usize = 1 << 20;
/// Limits of what a hostile log, whose arrays are run-coded, makes us keep.
const MAX_TOKENS: usize = 1 << 26;
const MAX_ENTRIES: usize = 4 << 20;
const MAX_ROWS: usize = 1 << 27;

impl RunIndex {
    pub(crate) fn add(
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
        if batch.len() > MAX_BATCH || data.token_ids.len() + batch.len() > MAX_TOKENS {
            return Err("its batch has more tokens than can be".into());
        }
        if evaluation.number > i32::MAX as u64 || self.evals.len() >= i32::MAX as usize {
            return Err("its number is larger than a table can say".into());
        }
        let lengths = data.lengths();
        if lengths.rows + graph.kept_rows as usize > MAX_ROWS {
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
    Ragged {
        nanos: evaluation.step_nanos,
        entries,
    }
}
