//! Folded stacks: a line for each stack, `phase;layer N;component;op;tensor SUM`.
//!
//! The input of FlameGraph, inferno, speedscope and every other tool that draws
//! flame graphs. The sums of all lines are those of `reader::summary`.

use std::{collections::BTreeMap, io::Write};

use index::Flame;
use reader::{Log, Seen, Visitor};

use crate::{
    error::RenderError,
    frames::{Frames, Measure, Sums},
    log::Stats,
};

/// All stacks with their sums.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Folded {
    pub sums: BTreeMap<Frames, u64>,
}

impl Folded {
    /// Reads the log and adds up.
    pub fn of(log: &Log, measure: Measure) -> Result<(Folded, Stats), RenderError> {
        let mut folding = Folding {
            measure,
            sums: Sums::default(),
        };
        let walked = log.walk(&mut folding)?;
        let mut folded = Folded::default();
        for (frames, sum) in folding.sums.into_frames(&walked.tensors) {
            // A node can take no time by our clock; a stack of nothing is no stack.
            if sum > 0 {
                *folded.sums.entry(frames).or_default() += sum;
            }
        }
        let written = folded.sums.len() as u64;
        Ok((folded, Stats::new(walked, written)))
    }

    pub fn total(&self) -> u64 {
        self.sums.values().sum()
    }

    /// As a flame graph draws it.
    pub(crate) fn tree(&self) -> Flame {
        tree(self.sums.iter().map(|(frames, &sum)| (frames.texts(), sum)))
    }
}

/// Stacks as a tree. They are sorted, so those that share a prefix follow each other.
pub(crate) fn tree<S: IntoIterator<Item = String>>(
    stacks: impl Iterator<Item = (S, u64)>,
) -> Flame {
    let mut root = Flame {
        name: "all".to_owned(),
        ..Flame::default()
    };
    for (frames, sum) in stacks {
        root.value += sum;
        let mut parent = &mut root;
        for name in frames {
            if parent.children.last().is_none_or(|last| last.name != name) {
                parent.children.push(Flame {
                    name,
                    ..Flame::default()
                });
            }
            parent = parent.children.last_mut().expect("pushed if missing");
            parent.value += sum;
        }
    }
    root
}

/// Writes the folded stacks of a log.
pub fn write(log: &Log, measure: Measure, out: &mut dyn Write) -> Result<Stats, RenderError> {
    let (folded, stats) = Folded::of(log, measure)?;
    for (frames, sum) in &folded.sums {
        let texts = frames.texts().map(|text| in_line(&text));
        writeln!(out, "{} {sum}", texts.join(";"))?;
    }
    out.flush()?;
    Ok(stats)
}

struct Folding {
    measure: Measure,
    sums: Sums,
}

impl Visitor for Folding {
    type Error = RenderError;

    fn evaluation(&mut self, seen: &Seen) -> Result<(), RenderError> {
        self.sums.add(seen, self.measure);
        Ok(())
    }
}

/// A tensor may be called anything, but `;` ends a frame and a line its stack.
pub(crate) fn in_line(text: &str) -> String {
    let clean = |c: char| match c {
        ';' => ':',
        c if c.is_control() => '?',
        c => c,
    };
    text.chars().map(clean).collect()
}

#[cfg(test)]
mod tests {
    use super::in_line;

    #[test]
    fn odd_names_stay_in_their_frame() {
        assert_eq!(in_line("blk.0.attn_q.weight"), "blk.0.attn_q.weight");
        assert_eq!(in_line("a;b c\nd\u{1b}"), "a:b c?d?");
    }
}
