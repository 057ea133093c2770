//! What threads did, as stacks: the functions that had called each other, and inside an
//! evaluation the layer, the op and the tensor that was computed.
//!
//! From the samples of `record --cpu`; each counts for the time that it stands for.

use std::{collections::BTreeMap, io::Write};

use reader::{
    Log, Seen, Visitor,
    kernel::{Activity, Cpu, CpuSample},
};

use crate::{
    error::RenderError,
    flamegraph::{self, Frame, Shade, without_layer},
    folded::in_line,
    frames::frames_of_step,
    log::Stats,
    palette::Category,
    plot::Unit,
};

/// A line of a stack, in the order in which they are drawn beside each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Line {
    Function(String),
    /// What a thread does that waits for others: no work on the tensor below.
    Waiting,
    Layer(Option<u32>),
    Op(String, &'static str),
    Tensor(String, &'static str),
}

impl Line {
    fn text(&self) -> String {
        match self {
            Line::Function(name) | Line::Op(name, _) | Line::Tensor(name, _) => name.clone(),
            Line::Waiting => "waiting for other threads".to_owned(),
            Line::Layer(Some(layer)) => format!("layer {layer}"),
            Line::Layer(None) => "no layer".to_owned(),
        }
    }
}

/// All stacks with their nanoseconds.
#[derive(Debug, Default)]
struct Stacks {
    sums: BTreeMap<Vec<Line>, u64>,
}

/// Gives samples their nodes while the log is read.
struct Folding<'a> {
    cpu: &'a Cpu,
    /// By evaluation and step.
    inside: BTreeMap<(u64, usize), Vec<&'a CpuSample>>,
    stacks: Stacks,
}

impl Visitor for Folding<'_> {
    type Error = RenderError;

    fn evaluation(&mut self, seen: &Seen) -> Result<(), RenderError> {
        for executed in seen.steps() {
            let Some(samples) = self.inside.remove(&(seen.eval, executed.number)) else {
                continue;
            };
            let frames = frames_of_step(&executed, seen);
            for sample in samples {
                let mut lines = functions(self.cpu, sample);
                if self.cpu.activity(sample) == Activity::Waiting {
                    lines.push(Line::Waiting);
                }
                lines.push(Line::Layer(frames.layer));
                lines.push(Line::Op(frames.op.clone(), frames.component));
                lines.push(Line::Tensor(frames.tensor.clone(), frames.component));
                *self.stacks.sums.entry(lines).or_default() += sample.sampled_nanos;
            }
        }
        Ok(())
    }
}

fn functions(cpu: &Cpu, sample: &CpuSample) -> Vec<Line> {
    let calls = cpu.calls(sample.stack).into_iter();
    calls
        .map(|call| Line::Function(call.name.clone()))
        .collect()
}

impl Stacks {
    /// With `whole`, also what threads did between evaluations.
    fn of(log: &Log, cpu: &Cpu, whole: bool) -> Result<(Stacks, Stats), RenderError> {
        let mut folding = Folding {
            cpu,
            inside: BTreeMap::new(),
            stacks: Stacks::default(),
        };
        for sample in &cpu.samples {
            // While a device computes, what threads do belongs to no node.
            let node = sample.at.and_then(|at| Some((at.eval, at.step? as usize)));
            match node {
                Some(key) => {
                    folding.inside.entry(key).or_default().push(sample);
                }
                None if whole => {
                    let lines = functions(cpu, sample);
                    *folding.stacks.sums.entry(lines).or_default() += sample.sampled_nanos;
                }
                None => {}
            }
        }
        let walked = log.walk(&mut folding)?;
        let written = folding.stacks.sums.len() as u64;
        Ok((folding.stacks, Stats::new(walked, written)))
    }

    fn tree(&self) -> Frame {
        let mut root = frame("all".to_owned(), None, Shade::Full);
        for (lines, &sum) in &self.sums {
            root.value += sum;
            let mut parent = &mut root;
            for line in lines {
                let name = match line {
                    Line::Tensor(name, _) => without_layer(name).to_owned(),
                    _ => line.text(),
                };
                // Stacks are sorted, so those that share a prefix follow each other.
                if parent.children.last().is_none_or(|last| last.name != name) {
                    parent.children.push(match line {
                        Line::Op(_, component) => {
                            frame(name, Some(Category::of(component)), Shade::Full)
                        }
                        Line::Tensor(_, component) => {
                            frame(name, Some(Category::of(component)), Shade::Pale)
                        }
                        _ => frame(name, None, Shade::Full),
                    });
                }
                parent = parent.children.last_mut().expect("pushed if missing");
                parent.value += sum;
            }
        }
        root
    }
}

fn frame(name: String, component: Option<Category>, shade: Shade) -> Frame {
    Frame {
        name,
        value: 0,
        component,
        shade,
        children: Vec::new(),
    }
}

/// Writes a line for each stack: `main;…;layer 3;MUL_MAT;blk.3.ffn_up.weight NANOSECONDS`.
/// With `whole`, also of threads between evaluations.
pub fn write_folded(
    log: &Log,
    cpu: &Cpu,
    whole: bool,
    out: &mut dyn Write,
) -> Result<Stats, RenderError> {
    let (stacks, stats) = Stacks::of(log, cpu, whole)?;
    for (lines, sum) in &stacks.sums {
        let texts: Vec<String> = lines.iter().map(|line| in_line(&line.text())).collect();
        writeln!(out, "{} {sum}", texts.join(";"))?;
    }
    out.flush()?;
    Ok(stats)
}

/// Writes the flame graph as an SVG.
pub fn write_flamegraph(
    log: &Log,
    cpu: &Cpu,
    whole: bool,
    title: &str,
    out: &mut dyn Write,
) -> Result<Stats, RenderError> {
    let (stacks, stats) = Stacks::of(log, cpu, whole)?;
    let root = stacks.tree();
    let title = format!("{title}: time on processors");
    let caption = format!(
        "Time on processors of all threads ({}), by samples: functions from the outside in, and inside an evaluation layer, op and tensor. A frame is as wide as its share; point at one for its numbers.",
        Unit::Nanos.amount(root.value as f64)
    );
    flamegraph::write_file(root, Unit::Nanos, (&title, &caption), out)?;
    Ok(stats)
}
