//! A timeline for ui.perfetto.dev: Chrome trace events as JSON.
//!
//! A stream becomes a process with two tracks: evaluations, and nodes inside their
//! layers. A device has two more, for its evaluations and for its kernels, which hold what was
//! measured there, and there is one of copies between host and device: when they were asked for.
//! Kernels overlap, slices of a track must not: a kernel's slice is what it had for itself, and
//! its args say when it began and ended. Counters carry, for each evaluation, the bytes of weights read and of
//! KV cache read and written. Times are those of the log (CLOCK_MONOTONIC), in
//! microseconds with three decimals, so that nothing is rounded and traces of the
//! kernel line up.
//!
//! Why not Perfetto's own protobuf: it would be a third of the size, but JSON is
//! what every trace viewer opens, and what a test can check against its published
//! rules without a download.

use std::{fmt, io::Write};

use reader::{Executed, Log, Seen, SeenCopy, Visitor, rows::direction_name};
use trace::template::{Direction, TensorKind};

use crate::{
    error::RenderError,
    frames::frames_of_step,
    json::{List, quote},
    log::Stats,
};

/// Token texts that an evaluation's args show; a prompt can have thousands.
const MAX_TOKENS_SHOWN: usize = 32;

const EVALUATIONS: u32 = 1;
const NODES: u32 = 2;
const COPIES: u32 = 3;
/// The first track of the first device.
const DEVICES: u32 = 4;

#[derive(Clone, Debug, Default)]
pub struct Options {
    /// What the processes are called: the model, usually.
    pub title: String,
}

/// Writes the timeline of a log.
pub fn write(log: &Log, options: &Options, out: &mut dyn Write) -> Result<Stats, RenderError> {
    out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n")?;
    let mut timeline = Timeline {
        out,
        title: &options.title,
        list: List::new(",\n"),
        pid: 0,
        events: 0,
        devices: Vec::new(),
        has_copies: false,
    };
    let walked = log.walk(&mut timeline)?;
    let stats = Stats::new(walked, timeline.events);
    out.write_all(b"\n]}\n")?;
    out.flush()?;
    Ok(stats)
}

struct Timeline<'a> {
    out: &'a mut dyn Write,
    title: &'a str,
    list: List,
    pid: u32,
    events: u64,
    /// Of the stream, those that have tracks.
    devices: Vec<String>,
    has_copies: bool,
}

impl Visitor for Timeline<'_> {
    type Error = RenderError;

    fn stream_begins(&mut self, stream: u32) -> Result<(), RenderError> {
        // Process 0 is the idle task to many tools.
        self.pid = stream + 1;
        self.devices.clear();
        self.has_copies = false;
        let process = match self.title {
            "" => format!("stream {stream}"),
            title => format!("{title}, stream {stream}"),
        };
        self.name("process_name", 0, &process)?;
        self.name("thread_name", EVALUATIONS, "evaluations")?;
        self.name("thread_name", NODES, "nodes")
    }

    fn evaluation(&mut self, seen: &Seen) -> Result<(), RenderError> {
        let sums = EvalSums::of(seen);
        self.eval_slice(seen, &sums)?;
        let begin = Micros(seen.evaluation.begin_nanos);
        for (counter, bytes) in [
            ("weight bytes read", sums.weights_read),
            ("KV bytes read", sums.kv_read),
            ("KV bytes written", sums.kv_written),
        ] {
            let pid = self.pid;
            self.event(format_args!(
                "{{\"ph\":\"C\",\"name\":\"{counter}\",\"pid\":{pid},\"ts\":{begin},\"args\":{{\"bytes\":{bytes}}}}}"
            ))?;
        }
        if seen.is_on_device() {
            return self.device(seen);
        }
        let steps: Vec<Executed> = seen.steps().collect();
        for same_layer in steps.chunk_by(|a, b| a.step.layer == b.step.layer) {
            let (first, last) = (&same_layer[0], &same_layer[same_layer.len() - 1]);
            let ends = first.times.zip(last.times);
            if let Some((layer, (first, last))) = first.step.layer.zip(ends) {
                let nanos = last.end_nanos.saturating_sub(first.begin_nanos);
                let head = self.slice(
                    NODES,
                    &format!("layer {layer}"),
                    "layer",
                    first.begin_nanos,
                    nanos,
                );
                let eval = seen.eval;
                self.event(format_args!(
                    "{head},\"args\":{{\"eval\":{eval},\"layer\":{layer}}}}}"
                ))?;
            }
            for executed in same_layer {
                self.node(seen, executed)?;
            }
        }
        Ok(())
    }

    fn copy(&mut self, seen: &SeenCopy) -> Result<(), RenderError> {
        if !std::mem::replace(&mut self.has_copies, true) {
            self.name("thread_name", COPIES, "copies")?;
        }
        let (copy, tensor) = (seen.copy, seen.tensor);
        let nanos = copy.end_nanos.saturating_sub(copy.begin_nanos);
        let name = &tensor.name;
        let head = self.slice(COPIES, name, copy.way.name(), copy.begin_nanos, nanos);
        self.event(format_args!(
            "{head},\"args\":{{\"copy\":{},\"eval\":{},\"device\":{},\"way\":\"{}\",\"tensor\":{},\"kind\":\"{}\",\"tensor_offset\":{},\"bytes\":{},\"is_async\":{}}}}}",
            seen.number,
            seen.eval,
            quote(&seen.device.name),
            copy.way.name(),
            quote(name),
            tensor.kind.name(),
            copy.tensor_offset,
            copy.bytes,
            copy.is_async,
        ))
    }
}

impl Timeline<'_> {
    fn event(&mut self, event: fmt::Arguments) -> Result<(), RenderError> {
        self.list.next(self.out)?;
        self.out.write_fmt(event)?;
        self.events += 1;
        Ok(())
    }

    fn name(&mut self, what: &str, tid: u32, name: &str) -> Result<(), RenderError> {
        let (pid, name) = (self.pid, quote(name));
        self.event(format_args!(
            "{{\"ph\":\"M\",\"name\":\"{what}\",\"pid\":{pid},\"tid\":{tid},\"args\":{{\"name\":{name}}}}}"
        ))
    }

    /// A complete event, up to its args.
    fn slice(&self, tid: u32, name: &str, category: &str, begin_nanos: u64, nanos: u64) -> String {
        format!(
            "{{\"ph\":\"X\",\"name\":{},\"cat\":\"{category}\",\"pid\":{},\"tid\":{tid},\"ts\":{},\"dur\":{}",
            quote(name),
            self.pid,
            Micros(begin_nanos),
            Micros(nanos)
        )
    }

    fn eval_slice(&mut self, seen: &Seen, sums: &EvalSums) -> Result<(), RenderError> {
        let e = seen.evaluation;
        let ids = seen.token_ids();
        let mut text = String::new();
        for id in ids.iter().take(MAX_TOKENS_SHOWN) {
            text.push_str(&seen.token_text(*id).unwrap_or("\u{fffd}".into()));
        }
        if ids.len() > MAX_TOKENS_SHOWN {
            text.push('…');
        }
        let nanos = e.end_nanos.saturating_sub(e.begin_nanos);
        let head = self.slice(
            EVALUATIONS,
            e.phase.name(),
            "evaluation",
            e.begin_nanos,
            nanos,
        );
        self.event(format_args!(
            "{head},\"args\":{{\"eval\":{},\"first_token\":{},\"tokens\":{},\"text\":{},\"threads\":{},\"flags\":{},\"steps\":{},\"weight_bytes_read\":{},\"kv_bytes_read\":{},\"kv_bytes_written\":{}}}}}",
            seen.eval,
            seen.first_token,
            seen.tokens(),
            quote(&text),
            e.threads,
            e.flags,
            sums.steps,
            sums.weights_read,
            sums.kv_read,
            sums.kv_written,
        ))
    }

    /// What a device did, where it was measured.
    fn device(&mut self, seen: &Seen) -> Result<(), RenderError> {
        let name = seen.device_name();
        let known = self.devices.iter().position(|device| device == name);
        let at = known.unwrap_or(self.devices.len()) as u32;
        let (evaluations, kernels) = (DEVICES + 2 * at, DEVICES + 2 * at + 1);
        if known.is_none() {
            self.devices.push(name.to_owned());
            self.name("thread_name", evaluations, name)?;
            self.name("thread_name", kernels, &format!("{name} kernels"))?;
        }
        let eval = seen.eval;
        if let Some((begin, end)) = seen.device_nanos() {
            let phase = seen.evaluation.phase.name();
            let nanos = end.saturating_sub(begin);
            let head = self.slice(evaluations, phase, "evaluation", begin, nanos);
            self.event(format_args!("{head},\"args\":{{\"eval\":{eval}}}}}"))?;
        }
        let times = seen.kernel_times().unwrap_or_default();
        for (number, (kernel, times)) in seen.kernels.iter().zip(times).enumerate() {
            if !times.is_measured() {
                continue;
            }
            let begin = times.end_nanos.saturating_sub(times.nanos);
            let category = kernel.kind.name();
            let head = self.slice(kernels, &kernel.name, category, begin, times.nanos);
            let step = kernel.step.map(|step| &seen.prepared.steps[step as usize]);
            let [op, node] = match step {
                Some(step) => [quote(&step.op), quote(&step.name)],
                None => ["null", "null"].map(str::to_owned),
            };
            let step = kernel
                .step
                .map_or("null".to_owned(), |step| step.to_string());
            self.event(format_args!(
                "{head},\"args\":{{\"eval\":{eval},\"kernel\":{number},\"step\":{step},\"op\":{op},\"name\":{node},\"begin_nanos\":{},\"end_nanos\":{}}}}}",
                times.begin_nanos, times.end_nanos,
            ))?;
        }
        Ok(())
    }

    fn node(&mut self, seen: &Seen, executed: &Executed) -> Result<(), RenderError> {
        let Some(times) = executed.times else {
            return Ok(());
        };
        let frames = frames_of_step(executed, seen);
        let touched = Touched::of(seen, executed.number);
        let mut tensors = String::new();
        for (i, touched) in touched.iter().enumerate() {
            if i > 0 {
                tensors.push(',');
            }
            touched.write(seen, &mut tensors);
        }
        let head = self.slice(
            NODES,
            &frames.op,
            frames.component,
            times.begin_nanos,
            times.nanos,
        );
        let layer = frames
            .layer
            .map_or("null".to_owned(), |layer| layer.to_string());
        self.event(format_args!(
            "{head},\"args\":{{\"eval\":{},\"step\":{},\"op\":{},\"name\":{},\"layer\":{layer},\"tensors\":[{tensors}]}}}}",
            seen.eval,
            executed.number,
            quote(&frames.op),
            quote(&executed.step.name),
        ))
    }
}

#[derive(Default)]
struct EvalSums {
    steps: u64,
    weights_read: u64,
    kv_read: u64,
    kv_written: u64,
}

impl EvalSums {
    fn of(seen: &Seen) -> EvalSums {
        let mut sums = EvalSums::default();
        for executed in seen.steps() {
            sums.steps += 1;
            seen.for_each_access(executed.number, |access| {
                let sum = match (access.prepared.kind, access.prepared.direction) {
                    (TensorKind::Weight, Direction::Read) => &mut sums.weights_read,
                    (TensorKind::KvCache, Direction::Read) => &mut sums.kv_read,
                    (TensorKind::KvCache, Direction::Write) => &mut sums.kv_written,
                    _ => return,
                };
                *sum += access.access.region.bytes();
            });
        }
        sums
    }
}

/// What one node does to one tensor.
struct Touched {
    tensor: u32,
    direction: Direction,
    accesses: u64,
    bytes: u64,
    experts: Vec<u32>,
}

impl Touched {
    fn of(seen: &Seen, step: usize) -> Vec<Touched> {
        let mut all: Vec<Touched> = Vec::new();
        seen.for_each_access(step, |access| {
            let (tensor, direction) = (access.prepared.tensor, access.prepared.direction);
            let known = all
                .iter_mut()
                .rev()
                .find(|t| t.tensor == tensor && t.direction == direction);
            let (bytes, expert) = (access.access.region.bytes(), access.access.expert);
            match known {
                Some(touched) => {
                    touched.accesses += 1;
                    touched.bytes += bytes;
                    touched.experts.extend(expert);
                }
                None => all.push(Touched {
                    tensor,
                    direction,
                    accesses: 1,
                    bytes,
                    experts: expert.into_iter().collect(),
                }),
            }
        });
        all
    }

    fn write(&self, seen: &Seen, out: &mut String) {
        use fmt::Write as _;
        let direction = direction_name(self.direction);
        let tensor = &seen.tensors.all()[self.tensor as usize];
        let kind = tensor.kind.name();
        // Into a string: cannot fail.
        let _ = write!(
            out,
            "{{\"name\":{},\"kind\":\"{kind}\",\"direction\":\"{direction}\",\"bytes\":{},\"accesses\":{}",
            quote(&tensor.name),
            self.bytes,
            self.accesses,
        );
        if !self.experts.is_empty() {
            let experts: Vec<String> = self.experts.iter().map(u32::to_string).collect();
            let _ = write!(out, ",\"experts\":[{}]", experts.join(","));
        }
        out.push('}');
    }
}

/// Nanoseconds as microseconds, exactly.
struct Micros(u64);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::Micros;

    #[test]
    fn nothing_is_rounded() {
        let check = |nanos, expect: &str| assert_eq!(Micros(nanos).to_string(), expect);
        check(0, "0.000");
        check(7, "0.007");
        check(1_234_567, "1234.567");
        check(u64::MAX, "18446744073709551.615");
    }
}
