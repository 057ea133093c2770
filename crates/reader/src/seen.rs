//! An evaluation, with everything that is known about it.

use trace::{
    expand::{self, Access, Route},
    format::flags,
    origin::Source,
    read::{Definitions, Evaluation},
    template::{CaptureKind, Direction, Operand, Template, TensorKind},
};

use crate::{
    cells::Cells,
    device::{Kernel, PROCESSOR, Times, kernel_times, step_times},
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
    /// On a device: what it launched there, in this order; empty where that is not known.
    pub kernels: &'a [Kernel],
    pub(crate) graph: &'a Template,
    pub(crate) cells: &'a Cells,
}

/// A step that was executed.
#[derive(Clone, Copy)]
pub struct Executed<'a> {
    pub number: usize,
    pub step: &'a PreparedStep,
    /// On the processor from the tick of the step before, or the begin of the evaluation, to
    /// its own; on a device by its kernels. `None` where nobody measured it.
    pub times: Option<Times>,
}

impl Executed<'_> {
    /// What is known to have been its time: 0 where nobody measured it.
    pub fn nanos(&self) -> u64 {
        self.times.map_or(0, |times| times.nanos)
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
        let on_device = evaluation.device.is_some();
        let measured = match self.kernel_times() {
            Some(times) => step_times(self.kernels, &times, prepared.steps.len()),
            None => Vec::new(),
        };
        let mut begin_nanos = evaluation.begin_nanos;
        let executed = (0..prepared.steps.len()).filter(|&step| evaluation.was_executed(step));
        executed.map(move |number| {
            let times = if on_device {
                measured.get(number).copied().flatten()
            } else {
                let end_nanos = evaluation.step_nanos[number];
                let begin_nanos = std::mem::replace(&mut begin_nanos, end_nanos);
                Some(Times {
                    begin_nanos,
                    end_nanos,
                    nanos: end_nanos.saturating_sub(begin_nanos),
                })
            };
            Executed {
                number,
                step: &prepared.steps[number],
                times,
            }
        })
    }

    /// The name of the device that computed it, or of the processor.
    pub fn device_name(&self) -> &'a str {
        let device = self.prepared.device.as_ref();
        device.map_or(PROCESSOR, |device| &device.name)
    }

    pub fn is_on_device(&self) -> bool {
        self.evaluation.device.is_some()
    }

    /// When the device began and ended it, where that was measured.
    pub fn device_nanos(&self) -> Option<(u64, u64)> {
        self.evaluation.device.as_ref()?.nanos
    }

    /// When each of its [`Seen::kernels`] ran; `None` where that was not measured.
    pub fn kernel_times(&self) -> Option<Vec<Times>> {
        kernel_times(self.evaluation, self.kernels.len())
    }

    /// Whether anybody measured when its steps ran.
    pub fn has_step_times(&self) -> bool {
        !self.is_on_device() || self.kernel_times().is_some()
    }

    /// From the call that asked for it to the end of it, as far as anybody knows.
    pub fn window(&self) -> (u64, u64) {
        let Evaluation {
            begin_nanos: begin,
            end_nanos: end,
            ..
        } = *self.evaluation;
        let on_device = self.device_nanos().map_or(0, |(_, end)| end);
        (begin, end.max(on_device))
    }

    /// How long it was computed: by the processor, or by the device. `None` if that was not
    /// measured: how long a device was asked for it is not how long it took.
    pub fn computed_nanos(&self) -> Option<u64> {
        let (begin, end) = match self.is_on_device() {
            true => self.device_nanos()?,
            false => (self.evaluation.begin_nanos, self.evaluation.end_nanos),
        };
        Some(end.saturating_sub(begin))
    }

    /// Its graph chooses experts.
    pub fn has_routers(&self) -> bool {
        self.prepared.routers.iter().any(|r| r.elements > 0)
    }

    /// Which experts were read is known. Of a device only those evaluations say so that read
    /// it back: nothing may be concluded from an expert that the others do not name.
    pub fn experts_are_known(&self) -> bool {
        let mut routers = self.prepared.routers.iter();
        routers.all(|r| r.elements == 0 || !r.ids(self.evaluation).is_empty())
    }

    /// What access `at` of the template touched is known: no index array that decides it is
    /// missing.
    pub fn is_index_known(&self, at: usize) -> bool {
        let index = self.prepared.accesses[at].index.as_ref();
        index.is_none_or(|i| i.elements == 0 || !i.values(self.evaluation).is_empty())
    }

    /// Something was not as predicted: its times, or what it touched, are not certain.
    pub fn is_doubtful(&self) -> bool {
        let doubts = flags::TICK_MISMATCH | flags::BAD_INDEX | flags::KERNELS_DIFFER;
        self.evaluation.flags & doubts != 0
    }

    /// The longest that anybody may say it took, or its steps together; `None` if a time
    /// cannot be.
    pub(crate) fn longest_nanos(&self) -> Option<u64> {
        let evaluation = self.evaluation;
        let (begin, end) = self.window();
        let mut last = begin.max(end);
        last = evaluation.step_nanos.iter().fold(last, |a, &b| a.max(b));
        if let Some(device) = &evaluation.device {
            let ends = device.kernel_nanos.iter().chain(&device.nanos);
            last = ends.fold(last, |a, &(begin, end)| a.max(begin).max(end));
        }
        let mut steps = self.steps().map(|step| step.nanos());
        let steps = steps.try_fold(0u64, u64::checked_add)?;
        let longest = steps.max(end.saturating_sub(begin));
        (last <= MAX_SUM).then_some(longest.max(self.computed_nanos().unwrap_or(0)))
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

    /// Of access `at` of the template, if it reads a view of a KV cache on a device: the bytes
    /// of the cells in it that have been written, this evaluation's among them. `None` where a
    /// write may have been missed.
    pub fn used_bytes(&self, at: usize) -> Option<u64> {
        let access = &self.prepared.accesses[at];
        let is_read = access.direction == Direction::Read && access.kind == TensorKind::KvCache;
        if !is_read || !self.is_on_device() {
            return None;
        }
        self.cells.used_bytes(access)
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
