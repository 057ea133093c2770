//! The record held against the MMU: pages that the trace claims against pages that were
//! touched (crate `audit`).

mod files;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use audit::{
    Touched,
    pages::{PAGE_BYTES, PageSet},
};
use trace::{read::ReadError, template::Direction};

pub use files::Files;

use crate::{
    log::{Log, Stream, Visitor},
    seen::Seen,
};

#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    #[error(transparent)]
    Model(#[from] gguf::Error),
    #[error("{}: is none of the files of its own model", .0.display())]
    Stray(PathBuf),
}

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
    /// Its number in the run.
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

/// What the evaluations of each stream touched, by their number.
pub type TouchedByStream = BTreeMap<u32, Vec<Option<Touched>>>;

/// Reads the log and compares it with what was touched.
pub fn compare(
    files: &Files<'_>,
    log_directory: &Path,
    touched: &TouchedByStream,
) -> Result<Findings, ReadError> {
    let mut comparing = Comparing {
        files,
        touched,
        seen: 0,
        findings: Findings::default(),
    };
    let walked = Log::new(log_directory).walk(&mut comparing)?;
    let mut findings = comparing.findings;
    findings.flawed_evaluations += walked.partial + walked.damaged.len() as u64;
    Ok(findings)
}

struct Comparing<'a> {
    files: &'a Files<'a>,
    touched: &'a TouchedByStream,
    /// Evaluations of the stream.
    seen: u64,
    findings: Findings,
}

impl Visitor for Comparing<'_> {
    type Error = ReadError;

    fn evaluation(&mut self, seen: &Seen) -> Result<(), ReadError> {
        self.seen += 1;
        let findings = &mut self.findings;
        findings.flawed_evaluations += u64::from(seen.evaluation.flags != 0);
        let of_stream = self.touched.get(&seen.stream);
        let touched = of_stream.and_then(|all| all.get(seen.evaluation.number as usize));
        let Some(Some(touched)) = touched else {
            findings.flawed_evaluations += 1;
            return Ok(());
        };
        let before = findings.total;
        let files = self.files;
        Comparison { files, seen }.run(touched, findings);
        findings.by_evaluation.push(findings.total.since(before));
        findings.evaluations += 1;
        Ok(())
    }

    fn stream_ends(&mut self, stream: &Stream) -> Result<(), ReadError> {
        let touched = self.touched.get(&stream.number).map_or(0, Vec::len) as u64;
        self.findings.flawed_evaluations += touched.saturating_sub(self.seen);
        self.seen = 0;
        Ok(())
    }
}

/// Pages claimed, with the ops that claim them.
type Claims = BTreeMap<u64, Vec<Arc<str>>>;

/// Of one evaluation.
struct Comparison<'a> {
    files: &'a Files<'a>,
    seen: &'a Seen<'a>,
}

impl Comparison<'_> {
    fn run(&self, touched: &Touched, findings: &mut Findings) {
        let mut claims = Claims::new();
        for step in 0..self.seen.prepared.steps.len() {
            if !touched.by_step.is_empty() {
                claims.clear();
            }
            if self.seen.evaluation.was_executed(step) {
                self.claim(step, &mut claims);
            }
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

    fn claim(&self, step: usize, claims: &mut Claims) {
        let op = &self.seen.prepared.steps[step].op;
        self.seen.for_each_access(step, |of| {
            let Some(place) = of.prepared.place else {
                return;
            };
            if of.prepared.direction != Direction::Read {
                return;
            }
            let first = self.files.first[place.file as usize];
            of.access.region.for_each_run(|offset, bytes| {
                let start = place.file_offset + offset;
                for page in start / PAGE_BYTES..=(start + bytes - 1) / PAGE_BYTES {
                    let ops = claims.entry(first + page).or_default();
                    if !ops.contains(op) {
                        ops.push(op.clone());
                    }
                }
            });
        });
    }

    fn hold_against(
        &self,
        claims: &Claims,
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
            self.add(page, ops, tally, findings);
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
            self.add(page, ops.map_or(&[], Vec::as_slice), tally, findings);
            if ops.is_none() {
                findings
                    .discrepancies
                    .push(self.discrepancy(page, step, &[]));
            }
        }
    }

    fn add(&self, page: u64, ops: &[Arc<str>], tally: Tally, findings: &mut Findings) {
        findings.total.add(tally);
        for op in ops {
            findings.by_op.entry(op.to_string()).or_default().add(tally);
        }
        for name in self.files.tensors_of(page) {
            findings.by_tensor.entry(name).or_default().add(tally);
        }
    }

    fn discrepancy(&self, page: u64, step: Option<usize>, ops: &[Arc<str>]) -> Discrepancy {
        let (file, file_offset) = self.files.place_of(page);
        Discrepancy {
            evaluation: self.seen.eval,
            step,
            file,
            file_offset,
            tensors: self.files.tensors_of(page),
            claimed_by: ops.iter().map(|op| op.to_string()).collect(),
        }
    }
}
