//! Evaluations → rows of the two large tables, `accesses` and `nodes`.

use trace::{
    expand::{Access, for_each_access},
    read::Evaluation,
    template::{CaptureKind, Template},
};

use crate::{
    row_group::{ColumnRows, NULL, RowGroup, Texts},
    schema::{ACCESSES, NODES},
    template::{FIRST_INDEXED, FIXED, NODE_FIXED, Sums, TemplateRows, runs, strides},
};

/// Rows of a row group: enough for the dictionaries to pay, few enough for two
/// groups to be in memory.
pub const GROUP_ROWS: usize = 1 << 20;

/// The open row groups of the two large tables.
pub struct Expander {
    pub accesses: RowGroup,
    pub nodes: RowGroup,
    /// Counts the row groups: numbers in dictionaries are good for one.
    generation: u64,
    fixed: [usize; FIXED.len()],
    node_fixed: [usize; NODE_FIXED.len()],
    positions: Positions,
}

/// Columns that the template does not fix.
struct Positions {
    eval: usize,
    phase: usize,
    expert: usize,
    token: usize,
    node_eval: usize,
    node_begin: usize,
}

/// One evaluation and what is known about it.
pub struct Expansion<'a> {
    pub template: &'a Template,
    pub evaluation: &'a Evaluation,
    /// Its number in the tables.
    pub eval: i64,
    /// Number of its first token.
    pub first_token: i64,
}

impl Expander {
    pub fn new() -> Expander {
        Expander {
            accesses: RowGroup::new(&ACCESSES),
            nodes: RowGroup::new(&NODES),
            generation: 1,
            fixed: FIXED.map(|c| ACCESSES.position(c)),
            node_fixed: NODE_FIXED.map(|c| NODES.position(c)),
            positions: Positions {
                eval: ACCESSES.position("eval"),
                phase: ACCESSES.position("phase"),
                expert: ACCESSES.position("expert"),
                token: ACCESSES.position("token"),
                node_eval: NODES.position("eval"),
                node_begin: NODES.position("begin_nanos"),
            },
        }
    }

    /// Appends the accesses of an evaluation; `full` gets each group that is full.
    pub fn accesses<E>(
        &mut self,
        of: &Expansion,
        rows: &mut TemplateRows,
        texts: &mut Texts,
        full: &mut impl FnMut(RowGroup) -> Result<(), E>,
    ) -> Result<Sums, E> {
        let mut sums = Sums::default();
        let phase_text = texts.number(of.evaluation.phase.name());
        rows.tally(of.evaluation.phase);
        rows.number_accesses(&mut self.accesses, self.generation);
        let tokens = of
            .evaluation
            .first_of(of.template, CaptureKind::Tokens)
            .len() as u64;
        // Steps without an index that follow each other are copied as one slice.
        let mut pending = 0..0;
        for step in 0..rows.steps.len() {
            if !of.evaluation.was_executed(step) {
                continue;
            }
            let about = &rows.steps[step];
            let (first, end) = (about.first, about.end);
            if !about.has_index {
                sums.add_all(&about.sums);
                rows.tally(of.evaluation.phase).step_evals[step] += 1;
                if pending.end != first {
                    self.copy(rows, pending);
                    pending = first..first;
                }
                pending.end = end;
            } else {
                self.copy(rows, std::mem::replace(&mut pending, 0..0));
                self.indexed_step(of, rows, texts, step, tokens, &mut sums);
            }
            let rows_now = self.accesses.rows + pending.len();
            if rows_now >= GROUP_ROWS {
                self.copy(rows, std::mem::replace(&mut pending, 0..0));
                self.fill(of.eval, phase_text);
                full(self.accesses.take(texts))?;
                self.generation += 1;
                rows.number_accesses(&mut self.accesses, self.generation);
            }
        }
        self.copy(rows, pending);
        self.fill(of.eval, phase_text);
        Ok(sums)
    }

    /// Appends the executed nodes of an evaluation.
    pub fn nodes<E>(
        &mut self,
        of: &Expansion,
        rows: &mut TemplateRows,
        texts: &Texts,
        full: &mut impl FnMut(RowGroup) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.nodes.rows >= GROUP_ROWS {
            full(self.nodes.take(texts))?;
            self.generation += 1;
        }
        rows.number_nodes(&mut self.nodes, self.generation);
        let nanos = &of.evaluation.step_nanos;
        let executed: Vec<usize> = (0..nanos.len())
            .filter(|&step| of.evaluation.was_executed(step))
            .collect();
        let numbers = &rows.node_numbers.columns;
        for (k, &position) in self.node_fixed.iter().enumerate() {
            let column = &mut self.nodes.dictionary(position).rows;
            if executed.len() == nanos.len() {
                column.extend_from_slice(&numbers[k]);
            } else {
                column.extend(executed.iter().map(|&step| numbers[k][step]));
            }
        }
        let eval = self.nodes.dictionary(self.positions.node_eval);
        let number = eval.number(of.eval);
        eval.rows.resize(eval.rows.len() + executed.len(), number);
        let begins = std::iter::once(of.evaluation.begin_nanos)
            .chain(executed.iter().map(|&step| nanos[step]));
        let times = begins.zip(executed.iter().map(|&step| nanos[step]));
        let columns = &mut self.nodes.columns[self.positions.node_begin..];
        let [
            ColumnRows::Delta(begin),
            ColumnRows::Delta(end),
            ColumnRows::Delta(duration),
        ] = columns
        else {
            panic!("nodes ends with three columns of times");
        };
        for (begin_nanos, end_nanos) in times {
            begin.push(begin_nanos as i64);
            end.push(end_nanos as i64);
            duration.push(end_nanos.saturating_sub(begin_nanos) as i64);
        }
        self.nodes.rows += executed.len();
        Ok(())
    }

    /// Rows of accesses whose every value is fixed.
    fn copy(&mut self, rows: &TemplateRows, range: std::ops::Range<usize>) {
        if range.is_empty() {
            return;
        }
        for (column, &position) in rows.numbers.columns.iter().zip(&self.fixed) {
            let to = &mut self.accesses.dictionary(position).rows;
            to.extend_from_slice(&column[range.clone()]);
        }
        self.accesses.rows += range.len();
        for position in [self.positions.expert, self.positions.token] {
            let rows = self.accesses.rows;
            self.accesses.dictionary(position).rows.resize(rows, NULL);
        }
    }

    /// Brings the columns that are the same for the whole evaluation up to date.
    fn fill(&mut self, eval: i64, phase: i64) {
        let rows = self.accesses.rows;
        for (position, value) in [(self.positions.eval, eval), (self.positions.phase, phase)] {
            let column = self.accesses.dictionary(position);
            let number = column.number(value);
            column.rows.resize(rows, number);
        }
    }

    fn indexed_step(
        &mut self,
        of: &Expansion,
        rows: &mut TemplateRows,
        texts: &mut Texts,
        step: usize,
        tokens: u64,
        sums: &mut Sums,
    ) {
        let first = rows.steps[step].first;
        let defs = &of.template.steps[step].accesses;
        let phase = of.evaluation.phase;
        for_each_access(of.template, of.evaluation, step, |access| {
            let at = defs.iter().position(|def| std::ptr::eq(def, access.def));
            let row = first + at.expect("an access is one of its step's");
            let bytes = self.indexed_row(of, rows, texts, row, &access, tokens);
            sums.add(&rows.accesses[row], bytes);
            rows.tally(phase).indexed[row].add(access.expert, bytes);
        });
    }

    /// Appends one access; its bytes.
    fn indexed_row(
        &mut self,
        of: &Expansion,
        rows: &TemplateRows,
        texts: &mut Texts,
        row: usize,
        access: &Access,
        tokens: u64,
    ) -> u64 {
        let about = &rows.accesses[row];
        let numbers = &rows.numbers.columns;
        for (column, &position) in numbers.iter().zip(&self.fixed).take(FIRST_INDEXED) {
            self.accesses.dictionary(position).rows.push(column[row]);
        }
        let [file_offset, tensor_offset, shape @ ..] = &self.fixed[FIRST_INDEXED..] else {
            panic!("an index changes six columns");
        };
        let region = &access.region;
        let place = about.place.map(|p| (p.file_offset + region.offset) as i64);
        let column = self.accesses.dictionary(*file_offset);
        let number = column.number_or_null(place);
        column.rows.push(number);
        self.accesses
            .dictionary(*tensor_offset)
            .push(region.offset as i64);
        let mut bytes = about.bytes;
        if (region.run_bytes, &region.dims) == (about.unit.run_bytes, &about.unit.dims) {
            for (column, &position) in numbers[FIRST_INDEXED + 2..].iter().zip(shape) {
                self.accesses.dictionary(position).rows.push(column[row]);
            }
        } else {
            bytes = region.bytes();
            let strides = texts.number(&strides(region));
            let values = [
                bytes as i64,
                runs(region) as i64,
                region.run_bytes as i64,
                strides,
            ];
            for (value, &position) in values.into_iter().zip(shape) {
                self.accesses.dictionary(position).push(value);
            }
        }
        // One element of an index array per token: a row of the embedding, a KV cell.
        let token = access.element.filter(|_| about.elements == Some(tokens));
        let column = self.accesses.dictionary(self.positions.token);
        let number = column.number_or_null(token.map(|t| of.first_token + t as i64));
        column.rows.push(number);
        let column = self.accesses.dictionary(self.positions.expert);
        let number = column.number_or_null(access.expert.map(i64::from));
        column.rows.push(number);
        self.accesses.rows += 1;
        bytes
    }
}
