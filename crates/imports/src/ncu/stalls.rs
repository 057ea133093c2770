//! Why warps wait: shares of the time between two instructions of a warp.
//!
//! Three families of metrics say it, and sentences of the details page; the first that is in the
//! file is taken, so that shares of one launch are of one whole.

use std::collections::BTreeMap;

use super::Reading;
use super::table::{before, last_number};

/// Before and behind the reason in a name, the best first.
const FAMILIES: [(&str, &str); 3] = [
    (
        "smsp__average_warps_issue_stalled_",
        "_per_issue_active.ratio",
    ),
    ("smsp__average_warp_latency_issue_stalled_", ".ratio"),
    ("smsp__pcsamp_warps_issue_stalled_", ""),
];

/// The sum of the first two families: cycles between two instructions.
const TOTALS: [&str; 2] = [
    "smsp__average_warp_latency_per_inst_issued.ratio",
    "Warp Cycles Per Issued Instruction",
];

/// With so many reasons in a file these are all that there are, and their sum is the whole.
const MOST_REASONS: usize = 12;

/// The tool's names where ours are shorter.
const RENAMED: &[(&str, &str)] = &[
    ("math_pipe_throttle", "math_throttle"),
    ("branch_resolving", "branch"),
    ("branch_resolve", "branch"),
    ("imc_miss", "imc"),
    ("dispatch_stall", "dispatch"),
    ("no_instructions", "no_instruction"),
];

/// What the sentences say of each reason.
const SENTENCES: &[(&str, &str)] = &[
    ("scoreboard dependency on a L1TEX", "long_scoreboard"),
    ("scoreboard dependency on an L1TEX", "long_scoreboard"),
    ("scoreboard dependency on a MIO", "short_scoreboard"),
    ("scoreboard dependency on an MIO", "short_scoreboard"),
    (
        "waiting for the MIO (memory input/output) instruction queue",
        "mio_throttle",
    ),
    (
        "local and global (LG) memory operations to be not full",
        "lg_throttle",
    ),
    ("texture operations to be not full", "tex_throttle"),
    (
        "waiting for the execution pipe to be available",
        "math_throttle",
    ),
    ("waiting for the math pipe to be available", "math_throttle"),
    ("waiting for sibling warps at a CTA barrier", "barrier"),
    (
        "waiting for sibling warps at a thread block barrier",
        "barrier",
    ),
    ("waiting on a fixed latency execution dependency", "wait"),
    ("waiting for a branch target to be computed", "branch"),
    (
        "waiting for the micro scheduler to select the warp",
        "not_selected",
    ),
    ("waiting for all memory instructions to complete", "drain"),
    ("after EXIT", "drain"),
    ("waiting on a memory barrier", "membar"),
    ("immediate constant cache (IMC) miss", "imc"),
    ("waiting on a dispatch stall", "dispatch"),
    (
        "waiting to be selected to fetch an instruction",
        "no_instruction",
    ),
    ("instruction cache miss", "no_instruction"),
];

#[derive(Debug, Default)]
pub struct Stalls {
    families: [BTreeMap<String, Reading>; FAMILIES.len()],
    total: Option<Reading>,
    /// From sentences; shares already.
    said: BTreeMap<&'static str, Reading>,
}

pub fn is_wanted(name: &str) -> bool {
    TOTALS.contains(&name) || reason(name).is_some()
}

/// Family and reason of a name.
fn reason(name: &str) -> Option<(usize, &str)> {
    FAMILIES.iter().enumerate().find_map(|(at, (front, back))| {
        let reason = name.strip_prefix(front)?.strip_suffix(back)?;
        // Those of cycles without an issue are a part of the others.
        let whole = !reason.is_empty()
            && !reason.ends_with("_not_issued")
            && reason.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        whole.then_some((at, reason))
    })
}

impl Stalls {
    /// Whether the name is one of these.
    pub fn take(&mut self, name: &str, reading: Reading) -> bool {
        if TOTALS.contains(&name) {
            self.total.get_or_insert(reading);
            return true;
        }
        let Some((family, reason)) = reason(name) else {
            return false;
        };
        self.families[family]
            .entry(reason.to_owned())
            .or_insert(reading);
        true
    }

    /// "On average, each warp of this workload spends 5.1 cycles being stalled waiting for …
    /// This stall type represents about 51.3% of the total average of 9.9 cycles …"
    pub fn rule(&mut self, text: &str, line: u64) {
        let Some(percent) = before(text, "% of the total average of").and_then(last_number) else {
            return;
        };
        let known = SENTENCES.iter().find(|(words, _)| text.contains(words));
        if let Some((_, reason)) = known.filter(|_| (0.0..=100.0).contains(&percent)) {
            let value = percent / 100.0;
            self.said.entry(reason).or_insert(Reading { value, line });
        }
    }

    /// Name of ours without `stall.`, share, and the name of theirs.
    pub fn shares(&self) -> Vec<(String, Reading, String)> {
        for (at, (front, back)) in FAMILIES.iter().enumerate() {
            let family = &self.families[at];
            let Some(whole) = self.whole(at) else {
                continue;
            };
            return family
                .iter()
                // Being selected is no stall; it is a part of the whole.
                .filter(|(reason, _)| *reason != "selected")
                .map(|(reason, reading)| {
                    let value = (reading.value / whole).clamp(0.0, 1.0);
                    let source = format!("{front}{reason}{back}");
                    (ours(reason), Reading { value, ..*reading }, source)
                })
                .collect();
        }
        self.said
            .iter()
            .map(|(reason, reading)| ((*reason).to_owned(), *reading, "rule CPIStall".to_owned()))
            .collect()
    }

    /// What the shares of a family are of.
    fn whole(&self, at: usize) -> Option<f64> {
        let family = &self.families[at];
        let sum: f64 = family.values().map(|reading| reading.value).sum();
        // Samples have no total of their own.
        let total = self.total.filter(|_| at < 2).map(|total| total.value);
        let whole = match total {
            _ if family.is_empty() => None,
            // A total that is below its parts is of something else.
            Some(total) if total >= sum * 0.9 => Some(total.max(sum)),
            _ => (family.len() >= MOST_REASONS).then_some(sum),
        };
        whole.filter(|whole| *whole > 0.0 && whole.is_finite())
    }
}

fn ours(reason: &str) -> String {
    let renamed = RENAMED.iter().find(|(theirs, _)| *theirs == reason);
    renamed.map_or(reason, |(_, ours)| *ours).to_owned()
}
