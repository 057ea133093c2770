//! Evaluations → rows of the large tables: `accesses`, `nodes` and `kernels`.

use reader::{
    Executed, Origin, Seen, Times,
    prepared::Sums,
    rows::{ACCESS_FIXED, FIRST_INDEXED, KERNEL_FIXED, NODE_FIXED, indexed_access},
    seen::SeenAccess,
};

use crate::{
    columns::{KernelColumns, TemplateColumns},
    row_group::{Cell, NULL, RowGroup, Texts},
    schema::{ACCESSES, KERNELS, NODES},
};

/// Rows of a row group: enough for the dictionaries to pay, few enough for two
/// groups to be in memory.
pub const GROUP_ROWS: usize = 1 << 20;

/// The open row groups of the large tables.
pub struct Expander {
    pub accesses: RowGroup,
    pub nodes: RowGroup,
    pub kernels: RowGroup,
    /// Counts the row groups: numbers in dictionaries are good for one.
    generation: u64,
    fixed: [usize; ACCESS_FIXED.len()],
    node_fixed: [usize; NODE_FIXED.len()],
    positions: Positions,
}

/// Columns that the template does not fix.
struct Positions {
    eval: usize,
    phase: usize,
    expert: usize,
    token: usize,
    source: usize,
    waited: usize,
    used: usize,
    node_eval: usize,
    node_begin: usize,
    kernel_eval: usize,
    kernel_begin: usize,
}

impl Expander {
    pub fn new() -> Expander {
        Expander {
            accesses: RowGroup::new(&ACCESSES),
            nodes: RowGroup::new(&NODES),
            kernels: RowGroup::new(&KERNELS),
            generation: 1,
            fixed: ACCESS_FIXED.map(|c| ACCESSES.position(c)),
            node_fixed: NODE_FIXED.map(|c| NODES.position(c)),
            positions: Positions {
                eval: ACCESSES.position("eval"),
                phase: ACCESSES.position("phase"),
                expert: ACCESSES.position("expert"),
                token: ACCESSES.position("token"),
                source: ACCESSES.position("source"),
                waited: ACCESSES.position("waited_nanos"),
                used: ACCESSES.position("used_bytes"),
                node_eval: NODES.position("eval"),
                node_begin: NODES.position("begin_nanos"),
                kernel_eval: KERNELS.position("eval"),
                kernel_begin: KERNELS.position("begin_nanos"),
            },
        }
    }

    /// Appends the accesses of an evaluation; `full` gets each group that is full.
    pub fn accesses<E>(
        &mut self,
        of: &Seen,
        rows: &mut TemplateColumns,
        texts: &mut Texts,
        full: &mut impl FnMut(RowGroup) -> Result<(), E>,
    ) -> Result<Sums, E> {
        let mut sums = Sums::default();
        let phase_text = texts.number(of.evaluation.phase.name());
        rows.tally(of.evaluation.phase);
        rows.number_accesses(&mut self.accesses, self.generation);
        // Steps without an index that follow each other are copied as one slice.
        let mut pending = 0..0;
        for (step, about) in of.prepared.steps.iter().enumerate() {
            if !of.evaluation.was_executed(step) {
                continue;
            }
            let (first, end) = (about.first, about.end);
            if !about.has_index {
                sums.add_all(&about.sums);
                rows.tally(of.evaluation.phase).step_evals[step] += 1;
                if pending.end != first {
                    self.copy(of, rows, texts, pending);
                    pending = first..first;
                }
                pending.end = end;
            } else {
                self.copy(of, rows, texts, std::mem::replace(&mut pending, 0..0));
                self.indexed_step(of, rows, texts, step, &mut sums);
            }
            let rows_now = self.accesses.rows + pending.len();
            if rows_now >= GROUP_ROWS {
                self.copy(of, rows, texts, std::mem::replace(&mut pending, 0..0));
                self.fill(of.eval as i64, phase_text);
                full(self.accesses.take(texts))?;
                self.generation += 1;
                rows.number_accesses(&mut self.accesses, self.generation);
            }
        }
        self.copy(of, rows, texts, pending);
        self.fill(of.eval as i64, phase_text);
        Ok(sums)
    }

    /// Appends the executed nodes of an evaluation.
    pub fn nodes<E>(
        &mut self,
        of: &Seen,
        rows: &mut TemplateColumns,
        texts: &Texts,
        full: &mut impl FnMut(RowGroup) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.nodes.rows >= GROUP_ROWS {
            full(self.nodes.take(texts))?;
            self.generation += 1;
        }
        rows.number_nodes(&mut self.nodes, self.generation);
        let executed: Vec<Executed> = of.steps().collect();
        let numbers = &rows.node_numbers.columns;
        for (k, &position) in self.node_fixed.iter().enumerate() {
            let column = &mut self.nodes.dictionary(position).rows;
            if executed.len() == of.prepared.steps.len() {
                column.extend_from_slice(&numbers[k]);
            } else {
                column.extend(executed.iter().map(|of| numbers[k][of.number]));
            }
        }
        let eval = self.nodes.dictionary(self.positions.node_eval);
        let number = eval.number(of.eval as i64);
        eval.rows.resize(eval.rows.len() + executed.len(), number);
        let times = executed.iter().map(|of| of.times);
        push_times(&mut self.nodes, self.positions.node_begin, times);
        self.nodes.rows += executed.len();
        Ok(())
    }

    /// Appends the kernels of an evaluation on a device.
    pub fn kernels<E>(
        &mut self,
        of: &Seen,
        rows: &mut KernelColumns,
        texts: &Texts,
        full: &mut impl FnMut(RowGroup) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.kernels.rows >= GROUP_ROWS {
            full(self.kernels.take(texts))?;
            self.generation += 1;
        }
        rows.number(&mut self.kernels, self.generation);
        for (column, position) in rows.numbers.columns.iter().zip(KERNEL_FIXED) {
            let position = KERNELS.position(position);
            let to = &mut self.kernels.dictionary(position).rows;
            to.extend_from_slice(column);
        }
        let eval = self.kernels.dictionary(self.positions.kernel_eval);
        let number = eval.number(of.eval as i64);
        let count = of.kernels.len();
        eval.rows.resize(eval.rows.len() + count, number);
        let measured = of.kernel_times();
        let times = (0..count).map(|at| {
            let times = measured.as_ref().map(|measured| measured[at]);
            times.filter(Times::is_measured)
        });
        push_times(&mut self.kernels, self.positions.kernel_begin, times);
        self.kernels.rows += count;
        Ok(())
    }

    /// Rows of accesses whose every value is fixed.
    fn copy(
        &mut self,
        of: &Seen,
        rows: &TemplateColumns,
        texts: &mut Texts,
        range: std::ops::Range<usize>,
    ) {
        if range.is_empty() {
            return;
        }
        for (column, &position) in rows.numbers.columns.iter().zip(&self.fixed) {
            let to = &mut self.accesses.dictionary(position).rows;
            to.extend_from_slice(&column[range.clone()]);
        }
        let first = self.accesses.rows;
        self.accesses.rows += range.len();
        self.used(of, range.clone(), first);
        for position in [self.positions.expert, self.positions.token] {
            let rows = self.accesses.rows;
            self.accesses.dictionary(position).rows.resize(rows, NULL);
        }
        if of.evaluation.origins.is_some() {
            range.for_each(|at| self.origin(of.origin_of(at, None, true), texts));
        }
    }

    /// What is used of the views of a KV cache among rows that begin with row `first`.
    fn used(&mut self, of: &Seen, range: std::ops::Range<usize>, first: usize) {
        let rows = self.accesses.rows;
        let column = self.accesses.dictionary(self.positions.used);
        column.rows.resize(rows, NULL);
        let kv = &of.prepared.kv;
        let from = kv.partition_point(|&at| at < range.start);
        for &at in kv[from..].iter().take_while(|&&at| at < range.end) {
            if let Some(bytes) = of.used_bytes(at) {
                let number = column.number(bytes as i64);
                column.rows[first + at - range.start] = number;
            }
        }
    }

    /// Where the weight of the next row was; rows of evaluations that nobody fed get theirs
    /// from [`Expander::fill`].
    fn origin(&mut self, origin: Option<Origin>, texts: &mut Texts) {
        let source = origin.map(|o| texts.number(o.source.name()));
        let column = self.accesses.dictionary(self.positions.source);
        column.push_or_null(source);
        let column = self.accesses.dictionary(self.positions.waited);
        column.push_or_null(origin.map(|o| o.waited_nanos as i64));
    }

    /// Brings the columns that are the same for the whole evaluation up to date.
    fn fill(&mut self, eval: i64, phase: i64) {
        let rows = self.accesses.rows;
        for (position, value) in [(self.positions.eval, eval), (self.positions.phase, phase)] {
            let column = self.accesses.dictionary(position);
            let number = column.number(value);
            column.rows.resize(rows, number);
        }
        for position in [
            self.positions.source,
            self.positions.waited,
            self.positions.used,
        ] {
            self.accesses.dictionary(position).rows.resize(rows, NULL);
        }
    }

    fn indexed_step(
        &mut self,
        of: &Seen,
        rows: &mut TemplateColumns,
        texts: &mut Texts,
        step: usize,
        sums: &mut Sums,
    ) {
        let phase = of.evaluation.phase;
        of.for_each_access(step, |seen| {
            let bytes = self.indexed_row(of, rows, texts, &seen);
            sums.add(seen.prepared, bytes);
            rows.tally(phase).indexed[seen.at].add(seen.access.expert, bytes);
        });
    }

    /// Appends one access; its bytes.
    fn indexed_row(
        &mut self,
        of: &Seen,
        rows: &TemplateColumns,
        texts: &mut Texts,
        seen: &SeenAccess,
    ) -> u64 {
        let (about, region) = (seen.prepared, &seen.access.region);
        let numbers = &rows.numbers.columns;
        for (column, &position) in numbers.iter().zip(&self.fixed).take(FIRST_INDEXED) {
            let column = column[seen.at];
            self.accesses.dictionary(position).rows.push(column);
        }
        let [file_offset, tensor_offset, shape @ ..] = &self.fixed[FIRST_INDEXED..] else {
            panic!("an index changes six columns");
        };
        let mut bytes = about.bytes;
        // Nearly all units of an access have its shape: their texts are not made anew.
        if (region.run_bytes, &region.dims) == (about.unit.run_bytes, &about.unit.dims) {
            let place = about.place.map(|p| (p.file_offset + region.offset) as i64);
            self.accesses.dictionary(*file_offset).push_or_null(place);
            let offset = region.offset as i64;
            self.accesses.dictionary(*tensor_offset).push(offset);
            for (column, &position) in numbers[FIRST_INDEXED + 2..].iter().zip(shape) {
                let column = column[seen.at];
                self.accesses.dictionary(position).rows.push(column);
            }
        } else {
            bytes = region.bytes();
            let cells = indexed_access(about, region);
            for (cell, &position) in cells.iter().zip(&self.fixed[FIRST_INDEXED..]) {
                let value = match Cell::from(cell) {
                    Cell::Int(value) => Some(value),
                    Cell::Text(text) => Some(texts.number(text)),
                    Cell::Null | Cell::Float(_) => None,
                };
                self.accesses.dictionary(position).push_or_null(value);
            }
        }
        // One element of an index array per token: a row of the embedding, a KV cell.
        let token = of.token_of(seen).map(|token| token as i64);
        let column = self.accesses.dictionary(self.positions.token);
        column.push_or_null(token);
        let column = self.accesses.dictionary(self.positions.expert);
        column.push_or_null(seen.access.expert.map(i64::from));
        if of.evaluation.origins.is_some() {
            let origin = of.origin_of(seen.at, seen.access.expert, seen.is_first);
            self.origin(origin, texts);
        }
        let first = self.accesses.rows;
        self.accesses.rows += 1;
        self.used(of, seen.at..seen.at + 1, first);
        bytes
    }
}

/// Begin, end and time of each row; null where nobody measured them.
fn push_times(group: &mut RowGroup, at: usize, times: impl Iterator<Item = Option<Times>>) {
    let [begin, end, nanos] = group.times(at);
    for times in times {
        begin.push(times.map(|t| t.begin_nanos as i64));
        end.push(times.map(|t| t.end_nanos as i64));
        nanos.push(times.map(|t| t.nanos as i64));
    }
}
