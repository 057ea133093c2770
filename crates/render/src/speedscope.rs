//! Files for speedscope.app.
//!
//! By time: an evented profile for each stream, so that its time-order view is a
//! timeline and its left-heavy view a flame graph. By bytes: a sampled profile,
//! a sample for each stack with its bytes as weight. Frames are those of
//! [`crate::folded`].
//!
//! The list of frames comes last in the file: only then are they all known, and
//! the order of keys is free in JSON.

use std::{collections::HashMap, io::Write};

use trace::read::Definitions;

use crate::{
    error::RenderError,
    folded::Folded,
    frames::{Frames, Measure, frames_of_step},
    json::{List, quote},
    log::{Log, Names, Scene, Stats, Visitor},
};

#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Name of the file's profiles: the model, usually.
    pub title: String,
}

/// Writes the profile of a log.
pub fn write(
    log: &Log,
    measure: Measure,
    options: &Options,
    out: &mut dyn Write,
) -> Result<Stats, RenderError> {
    let title = match options.title.as_str() {
        "" => "trace",
        title => title,
    };
    writeln!(
        out,
        "{{\"$schema\":\"https://www.speedscope.app/file-format-schema.json\",\"name\":{},\"exporter\":\"tensorscope\",\"activeProfileIndex\":0,\"profiles\":[",
        quote(title)
    )?;
    let (stats, frames) = match measure {
        Measure::Bytes => sampled(log, title, out)?,
        Measure::Time => evented(log, title, out)?,
    };
    out.write_all(b"\n],\"shared\":{\"frames\":[\n")?;
    let mut list = List::new(",\n");
    for name in &frames.names {
        list.next(out)?;
        write!(out, "{{\"name\":{}}}", quote(name))?;
    }
    out.write_all(b"\n]}}\n")?;
    out.flush()?;
    Ok(stats)
}

fn sampled(
    log: &Log,
    title: &str,
    out: &mut dyn Write,
) -> Result<(Stats, FrameTable), RenderError> {
    let (folded, stats) = Folded::of(log, Measure::Bytes)?;
    let mut frames = FrameTable::default();
    writeln!(
        out,
        "{{\"type\":\"sampled\",\"name\":{},\"unit\":\"bytes\",\"startValue\":0,\"endValue\":{},\"samples\":[",
        quote(&format!("{title}: bytes")),
        folded.total()
    )?;
    let mut list = List::new(",\n");
    for stack in folded.sums.keys() {
        list.next(out)?;
        let numbers = frames.numbers(stack).map(|n| n.to_string());
        write!(out, "[{}]", numbers.join(","))?;
    }
    out.write_all(b"\n],\"weights\":[\n")?;
    let mut list = List::new(",\n");
    for sum in folded.sums.values() {
        list.next(out)?;
        write!(out, "{sum}")?;
    }
    out.write_all(b"\n]}")?;
    Ok((stats, frames))
}

fn evented(
    log: &Log,
    title: &str,
    out: &mut dyn Write,
) -> Result<(Stats, FrameTable), RenderError> {
    let start_nanos = log.start_nanos()?;
    let mut events = Events {
        out,
        title,
        start_nanos,
        profiles: List::new(",\n"),
        list: List::new(",\n"),
        open: Vec::new(),
        now: 0,
        first: None,
        written: 0,
        frames: FrameTable::default(),
    };
    let mut stats = log.walk(&mut events)?;
    stats.written = events.written;
    Ok((stats, events.frames))
}

struct Events<'a> {
    out: &'a mut dyn Write,
    title: &'a str,
    start_nanos: u64,
    profiles: List,
    list: List,
    /// Frames that are open, outermost first.
    open: Vec<usize>,
    /// Since the start. Never goes back: the ticks of a flagged evaluation can,
    /// and speedscope refuses a file whose events do.
    now: u64,
    first: Option<u64>,
    written: u64,
    frames: FrameTable,
}

impl Visitor for Events<'_> {
    fn stream_begins(&mut self, stream: u32) -> Result<(), RenderError> {
        self.list = List::new(",\n");
        self.now = 0;
        self.first = None;
        self.profiles.next(self.out)?;
        let name = quote(&format!("{}: stream {stream}", self.title));
        writeln!(
            self.out,
            "{{\"type\":\"evented\",\"name\":{name},\"unit\":\"nanoseconds\",\"events\":["
        )?;
        Ok(())
    }

    fn evaluation(&mut self, scene: &Scene) -> Result<(), RenderError> {
        for executed in scene.steps() {
            let stack = self.frames.numbers(&frames_of_step(&executed, scene));
            self.turn_to(&stack, executed.begin_nanos)?;
            self.advance(executed.end_nanos);
        }
        // The caller's time between two evaluations belongs to no frame.
        self.turn_to(&[], self.now + self.start_nanos)
    }

    fn stream_ends(&mut self, _all: &Definitions, _names: &Names) -> Result<(), RenderError> {
        let first = self.first.unwrap_or(0);
        write!(
            self.out,
            "\n],\"startValue\":{first},\"endValue\":{}}}",
            self.now
        )?;
        Ok(())
    }
}

impl Events<'_> {
    fn advance(&mut self, nanos: u64) {
        self.now = self.now.max(nanos.saturating_sub(self.start_nanos));
    }

    /// Closes what is not part of `stack` and opens the rest of it.
    fn turn_to(&mut self, stack: &[usize], nanos: u64) -> Result<(), RenderError> {
        self.advance(nanos);
        self.first.get_or_insert(self.now);
        let common = self
            .open
            .iter()
            .zip(stack)
            .take_while(|(a, b)| a == b)
            .count();
        while self.open.len() > common {
            if let Some(frame) = self.open.pop() {
                self.event('C', frame)?;
            }
        }
        for &frame in &stack[common..] {
            self.open.push(frame);
            self.event('O', frame)?;
        }
        Ok(())
    }

    fn event(&mut self, ty: char, frame: usize) -> Result<(), RenderError> {
        self.list.next(self.out)?;
        write!(
            self.out,
            "{{\"type\":\"{ty}\",\"frame\":{frame},\"at\":{}}}",
            self.now
        )?;
        self.written += 1;
        Ok(())
    }
}

/// Frames by name. Two depths with the same name share a number, as speedscope
/// has it: a frame is a function, not a place in a stack.
#[derive(Default)]
struct FrameTable {
    names: Vec<String>,
    numbers: HashMap<String, usize>,
}

impl FrameTable {
    fn numbers(&mut self, frames: &Frames) -> [usize; Frames::DEPTH] {
        frames.texts().map(|text| {
            let next = self.names.len();
            *self.numbers.entry(text).or_insert_with_key(|name| {
                self.names.push(name.clone());
                next
            })
        })
    }
}
