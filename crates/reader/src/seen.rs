//! An evaluation, with everything that is known about it.

use trace::{
    expand::{self, Access, Route},
    origin::Source,
    read::{Definitions, Evaluation},
    template::{CaptureKind, Direction, Operand, Template, TensorKind},
};

use crate::{
    prepared::{Prepared, PreparedAccess, PreparedStep, Sums},
    reading::MAX_SUM,
    tally::Traffic,
    tensors::Tensors,
};

pub struct Seen<'a> {
    /// Its number in the run; those that were lost leave gaps.
    pub eval: u64,
    /// The stream that it is in: one for each thread that computes graphs.
    pub stream: u32,
    /// Number of its template in the run.
    pub template: u32,
    /// Number of its first token in the run.
    pub first_token: u64,
    pub evaluation: &'a Evaluation,
    pub prepared: &'a Prepared,
    pub tensors: &'a Tensors,
    pub definitions: &'a Definitions,
    pub(crate) graph: &'a Template,
}

/// A step that was executed.
#[derive(Clone, Copy)]
pub struct Executed<'a> {
    pub number: usize,
    pub step: &'a PreparedStep,
    /// The tick of the step before, or the begin of the evaluation.
    pub begin_nanos: u64,
    pub end_nanos: u64,
}

impl Executed<'_> {
    pub fn nanos(&self) -> u64 {
        self.end_nanos.saturating_sub(self.begin_nanos)
    }
}

/// An access, down to its bytes.
pub struct SeenAccess<'a> {
    pub prepared: &'a PreparedAccess,
    /// Its place in [`Prepared::accesses`].
    pub at: usize,
    /// Of those that became of this one.
    pub is_first: bool,
    pub access: Access<'a>,
}

/// Where a weight was that somebody fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    pub source: Source,
    /// What the computation waited for it.
    pub waited_nanos: u64,
}

impl<'a> Seen<'a> {
    /// Ids of the tokens of its batch.
    pub fn token_ids(&self) -> &'a [i64] {
        self.evaluation.first_of(self.graph, CaptureKind::Tokens)
    }

    pub fn tokens(&self) -> u64 {
        self.token_ids().len() as u64
    }

    /// Of each token in its sequence, where known.
    pub fn positions(&self) -> &'a [i64] {
        self.evaluation.first_of(self.graph, CaptureKind::Positions)
    }

    /// Rows of the batch whose output is asked for.
    pub fn output_rows(&self) -> &'a [i64] {
        self.evaluation
            .first_of(self.graph, CaptureKind::OutputRows)
    }

    /// What a token's id stands for; bytes that are no UTF-8 are replaced.
    pub fn token_text(&self, id: i64) -> Option<String> {
        let piece = self.definitions.tokens.get(&u32::try_from(id).ok()?)?;
        Some(String::from_utf8_lossy(piece).into_owned())
    }

    /// The steps that were executed; of an evaluation that was aborted those it came to.
    pub fn steps(&self) -> impl Iterator<Item = Executed<'a>> {
        let (prepared, evaluation) = (self.prepared, self.evaluation);
        let mut begin_nanos = evaluation.begin_nanos;
        let executed = (0..prepared.steps.len()).filter(|&step| evaluation.was_executed(step));
        executed.map(move |number| {
            let end_nanos = evaluation.step_nanos[number];
            Executed {
                number,
                step: &prepared.steps[number],
                begin_nanos: std::mem::replace(&mut begin_nanos, end_nanos),
                end_nanos,
            }
        })
    }

    /// How long it took, or its steps together where these say more; `None` if a time cannot
    /// be.
    pub(crate) fn nanos(&self) -> Option<u64> {
        let Evaluation {
            begin_nanos: begin,
            end_nanos: end,
            step_nanos,
            ..
        } = self.evaluation;
        let last = step_nanos.iter().fold(*begin.max(end), |a, &b| a.max(b));
        let mut steps = self.steps().map(|step| step.nanos());
        let steps = steps.try_fold(0u64, u64::checked_add)?;
        (last <= MAX_SUM).then_some(steps.max(end.saturating_sub(*begin)))
    }

    /// The accesses of a step, which was executed.
    pub fn for_each_access(&self, step: usize, mut f: impl FnMut(SeenAccess<'a>)) {
        let step = &self.prepared.steps[step];
        for at in step.first..step.end {
            self.for_each_of(at, &mut f);
        }
    }

    /// The accesses that number `at` of the template, whose step was executed, became.
    pub fn for_each_of(&self, at: usize, mut f: impl FnMut(SeenAccess<'a>)) {
        let prepared = &self.prepared.accesses[at];
        let first = self.prepared.steps[prepared.step].first;
        let def = &self.graph.steps[prepared.step].accesses[at - first];
        let mut is_first = true;
        expand::for_each_of(self.graph, self.evaluation, def, |access| {
            f(SeenAccess {
                prepared,
                at,
                is_first: std::mem::replace(&mut is_first, false),
                access,
            });
        });
    }

    /// Where the weight that access `at` of the template reads was; of a weight with experts,
    /// where that expert was. `None` if nobody fed the weights, or it reads none. What was
    /// waited for a whole weight counts for the first of the accesses that `at` became.
    pub fn origin_of(&self, at: usize, expert: Option<u32>, is_first: bool) -> Option<Origin> {
        let origins = self.evaluation.origins.as_deref()?;
        let access = &self.prepared.accesses[at];
        let (TensorKind::Weight, Direction::Read, Operand::Source(operand)) =
            (access.kind, access.direction, access.operand)
        else {
            return None;
        };
        let step = access.step as u32;
        let first = origins.partition_point(|o| (o.step, o.operand) < (step, operand));
        let of_operand = origins[first..].iter();
        let found = of_operand
            .take_while(|o| (o.step, o.operand) == (step, operand))
            .find(|o| o.expert.is_none() || o.expert.map(u32::from) == expert);
        Some(match found {
            None => Origin {
                source: Source::PageCache,
                waited_nanos: 0,
            },
            Some(o) => Origin {
                source: o.source,
                waited_nanos: match o.expert.is_some() || is_first {
                    true => o.waited_nanos,
                    false => 0,
                },
            },
        })
    }

    /// Each access to a weight that somebody fed, with where the weight was.
    pub fn for_each_origin(&self, mut f: impl FnMut(&SeenAccess<'a>, Origin)) {
        if self.evaluation.origins.is_none() {
            return;
        }
        for executed in self.steps() {
            self.for_each_access(executed.number, |seen| {
                if let Some(origin) = self.origin_of(seen.at, seen.access.expert, seen.is_first) {
                    f(&seen, origin);
                }
            });
        }
    }

    /// What the computation waited for weights that somebody fed.
    pub fn waited_nanos(&self) -> Option<u64> {
        let origins = self.evaluation.origins.as_ref()?;
        Some(
            origins
                .iter()
                .fold(0, |n, o| n.saturating_add(o.waited_nanos)),
        )
    }

    /// Of access `at` of the template, whose step was executed. `bits` is scratch.
    pub fn traffic_of(&self, at: usize, bits: &mut Vec<u64>) -> Traffic {
        let prepared = &self.prepared.accesses[at];
        let mut traffic = Traffic::default();
        match &prepared.index {
            None => traffic.add(1, prepared.bytes),
            Some(index) if index.is_plain => {
                index.for_each_value(self.evaluation, bits, |_| traffic.add(1, prepared.bytes));
            }
            Some(_) => {
                self.for_each_of(at, |seen| traffic.add(1, seen.access.region.bytes()));
            }
        }
        traffic
    }

    /// Each choice of an expert, by layer, token and rank.
    pub fn for_each_route(&self, f: impl FnMut(Route)) {
        expand::for_each_route(self.graph, self.evaluation, f);
    }

    /// The token, counted through the run, that alone caused an access: a row of the
    /// embedding, a KV cell.
    pub fn token_of(&self, seen: &SeenAccess) -> Option<u64> {
        let index = seen.prepared.index.as_ref()?;
        let is_per_token = index.elements == self.tokens()
            // Small rows that follow each other are one access for several tokens.
            && seen.access.region.bytes() == seen.prepared.bytes;
        let element = seen.access.element.filter(|_| is_per_token)?;
        Some(self.first_token + element)
    }

    /// Accesses and bytes of all steps that were executed.
    pub fn sums(&self) -> Sums {
        let mut sums = Sums::default();
        for executed in self.steps() {
            if !executed.step.has_index {
                sums.add_all(&executed.step.sums);
                continue;
            }
            self.for_each_access(executed.number, |seen| {
                sums.add(seen.prepared, seen.access.region.bytes());
            });
        }
        sums
    }
}
