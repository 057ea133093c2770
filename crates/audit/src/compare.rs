//! Pages that the trace claims against pages that were touched.

use std::{collections::BTreeMap, path::Path};

use trace::{
    expand::for_each_access,
    read::{Definitions, Evaluation, Event, ReadError, StreamReader},
    template::Direction,
};

use crate::{
    Files, Touched,
    pages::{PAGE_BYTES, PageSet},
};

/// Pages of one op or tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub claimed: u64,
    pub touched: u64,
    pub both: u64,
}

impl Tally {
    /// Share of the touched pages that the trace claims.
    pub fn recall(&self) -> f64 {
        share(self.both, self.touched)
    }

    /// Share of the claimed pages that were touched.
    pub fn precision(&self) -> f64 {
        share(self.both, self.claimed)
    }

    fn since(&self, before: Tally) -> Tally {
        Tally {
            claimed: self.claimed - before.claimed,
            touched: self.touched - before.touched,
            both: self.both - before.both,
        }
    }

    fn add(&mut self, other: Tally) {
        self.claimed += other.claimed;
        self.touched += other.touched;
        self.both += other.both;
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        1.0
    } else {
        part as f64 / whole as f64
    }
}

/// A page on which trace and MMU disagree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discrepancy {
    pub evaluation: u64,
    /// With the node grain.
    pub step: Option<usize>,
    pub file: usize,
    pub file_offset: u64,
    /// Tensors on that page.
    pub tensors: Vec<String>,
    /// Ops that claimed it; empty if none did.
    pub claimed_by: Vec<String>,
}

#[derive(Clone, Debug, Default)]
pub struct Findings {
    pub total: Tally,
    pub evaluations: u64,
    /// Of each evaluation, in order.
    pub by_evaluation: Vec<Tally>,
    pub by_op: BTreeMap<String, Tally>,
    pub by_tensor: BTreeMap<String, Tally>,
    /// All of them, in order.
    pub discrepancies: Vec<Discrepancy>,
    /// Evaluations whose ticks did not match, or that were lost or damaged.
    pub flawed_evaluations: u64,
}

/// Reads a stream of the log and compares it with what was touched, by the number
/// of the evaluation.
pub fn compare(
    files: &Files<'_>,
    log_directory: &Path,
    stream: u32,
    touched: &[Option<Touched>],
) -> Result<Findings, ReadError> {
    let mut reader = StreamReader::open(log_directory, stream)?;
    let mut findings = Findings::default();
    let mut seen = 0;
    while let Some(event) = reader.next_event()? {
        let Event::Evaluation(evaluation) = event else {
            findings.flawed_evaluations += 1;
            continue;
        };
        findings.flawed_evaluations += u64::from(evaluation.flags != 0);
        seen += 1;
        let Some(Some(touched)) = touched.get(evaluation.number as usize) else {
            findings.flawed_evaluations += 1;
            continue;
        };
        let comparison = Comparison {
            files,
            definitions: &reader.definitions,
            evaluation: &evaluation,
        };
        let before = findings.total;
        comparison.run(touched, &mut findings);
        findings.by_evaluation.push(findings.total.since(before));
        findings.evaluations += 1;
    }
    findings.flawed_evaluations += (touched.len() as u64).saturating_sub(seen);
    Ok(findings)
}

impl Findings {
    /// Adds what another stream showed.
    pub fn add(&mut self, other: Findings) {
        self.total.add(other.total);
        self.evaluations += other.evaluations;
        self.by_evaluation.extend(other.by_evaluation);
        for (ours, theirs) in [
            (&mut self.by_op, other.by_op),
            (&mut self.by_tensor, other.by_tensor),
        ] {
            for (name, tally) in theirs {
                ours.entry(name).or_default().add(tally);
            }
        }
        self.discrepancies.extend(other.discrepancies);
        self.flawed_evaluations += other.flawed_evaluations;
    }
}

struct Comparison<'a> {
    files: &'a Files<'a>,
    definitions: &'a Definitions,
    evaluation: &'a Evaluation,
}

impl Comparison<'_> {
    fn run(&self, touched: &Touched, findings: &mut Findings) {
        let template = &self.definitions.templates[self.evaluation.template as usize];
        // Pages claimed, with the ops that claim them.
        let mut claims: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        for step in 0..template.steps.len() {
            if !touched.by_step.is_empty() {
                claims.clear();
            }
            self.claim(step, &mut claims);
            if !touched.by_step.is_empty() {
                let pages = touched.by_step.get(step).map_or(&[][..], Vec::as_slice);
                let mut set = PageSet::with_pages(self.files.pages());
                pages.iter().for_each(|&page| set.insert(page));
                self.hold_against(&claims, &set, Some(step), findings);
            }
        }
        if touched.by_step.is_empty() {
            self.hold_against(&claims, &touched.pages, None, findings);
        }
    }

    fn claim(&self, step: usize, claims: &mut BTreeMap<u64, Vec<u32>>) {
        let template = &self.definitions.templates[self.evaluation.template as usize];
        let op = template.steps[step].op;
        for_each_access(template, self.evaluation, step, |access| {
            let Some(place) = self.definitions.tensors[access.def.tensor as usize].place else {
                return;
            };
            if access.def.direction != Direction::Read {
                return;
            }
            let first = self.files.first[place.file as usize];
            access.region.for_each_run(|offset, bytes| {
                let start = place.file_offset + offset;
                for page in start / PAGE_BYTES..=(start + bytes - 1) / PAGE_BYTES {
                    let ops = claims.entry(first + page).or_default();
                    if !ops.contains(&op) {
                        ops.push(op);
                    }
                }
            });
        });
    }

    fn hold_against(
        &self,
        claims: &BTreeMap<u64, Vec<u32>>,
        touched: &PageSet,
        step: Option<usize>,
        findings: &mut Findings,
    ) {
        for (&page, ops) in claims {
            let tally = Tally {
                claimed: 1,
                touched: 0,
                both: u64::from(touched.contains(page)),
            };
            findings.total.add(tally);
            for &op in ops {
                findings
                    .by_op
                    .entry(self.definitions.text(op))
                    .or_default()
                    .add(tally);
            }
            self.tally_tensors(page, tally, findings);
            if !touched.contains(page) {
                findings
                    .discrepancies
                    .push(self.discrepancy(page, step, ops));
            }
        }
        for page in touched.iter() {
            let ops = claims.get(&page);
            let tally = Tally {
                claimed: 0,
                touched: 1,
                both: 0,
            };
            findings.total.add(tally);
            for &op in ops.into_iter().flatten() {
                findings
                    .by_op
                    .entry(self.definitions.text(op))
                    .or_default()
                    .add(tally);
            }
            self.tally_tensors(page, tally, findings);
            if ops.is_none() {
                findings
                    .discrepancies
                    .push(self.discrepancy(page, step, &[]));
            }
        }
    }

    fn tally_tensors(&self, page: u64, tally: Tally, findings: &mut Findings) {
        for name in self.files.tensors_of(page) {
            findings.by_tensor.entry(name).or_default().add(tally);
        }
    }

    fn discrepancy(&self, page: u64, step: Option<usize>, ops: &[u32]) -> Discrepancy {
        let (file, file_offset) = self.files.place_of(page);
        Discrepancy {
            evaluation: self.evaluation.number,
            step,
            file,
            file_offset,
            tensors: self.files.tensors_of(page),
            claimed_by: ops.iter().map(|&op| self.definitions.text(op)).collect(),
        }
    }
}
