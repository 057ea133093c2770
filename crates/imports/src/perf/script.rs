//! `perf script`, as it prints without options: a line for each sample, its call chain beneath.
//!
//! ```text
//! sh 19346 [000]  880.484570:     250000 cpu-clock:
//!         ffffffff821e86f6 copy_mc_enhanced_fast_string+0x6 ([kernel.kallsyms])
//!            21932 memset+0x32 (/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2)
//! ```
//!
//! Each sample is an event with its innermost function as name.

use rules::{Metrics, Subject, Unit};

use crate::detect::Format;
use crate::error::Error;
use crate::figures::seconds_as_nanos;
use crate::lines::{lines, shown};
use crate::{Event, Import};

pub fn parse(file: &str, bytes: &[u8]) -> Result<Import, Error> {
    let mut import = Import::new(Format::PerfScript, file);
    let mut foreign = 0u64;
    let mut first_foreign: Option<(u64, String)> = None;
    // Where the function of the last sample is still to come.
    let mut awaits = false;
    let (mut samples, mut in_kernel) = (0u64, 0u64);
    for (at, line) in lines(bytes) {
        if line.trim().is_empty() || line.starts_with('#') {
            awaits = false;
            continue;
        }
        if let Some(head) = Head::parse(&line) {
            let frame = head.frame.map(Frame::parse);
            awaits = frame.is_none() && head.is_sample;
            if head.is_sample {
                samples += 1;
                in_kernel += u64::from(frame.as_ref().is_some_and(Frame::is_kernel));
            }
            let name = match (&frame, head.is_sample) {
                (Some(frame), _) => frame.name(),
                (None, true) => "[unknown]".to_owned(),
                (None, false) => head.event.to_owned(),
            };
            import.events.push(Event {
                begin_nanos: head.nanos,
                duration_nanos: 0,
                pid: head.pid,
                tid: head.tid,
                category: head.event.to_owned(),
                name,
            });
            continue;
        }
        let is_frame = line.starts_with(['\t', ' ']) && is_address(line.split_whitespace().next());
        if is_frame {
            if awaits && let Some(event) = import.events.last_mut() {
                let frame = Frame::parse(line.trim());
                in_kernel += u64::from(frame.is_kernel());
                event.name = frame.name();
                awaits = false;
            }
            continue;
        }
        foreign += 1;
        first_foreign.get_or_insert((at, shown(&line)));
    }
    if import.events.is_empty() {
        let (at, text) = first_foreign.unwrap_or((1, String::new()));
        return Err(Error::line(
            file,
            at,
            format!("no sample of perf script: `{text}`; there is none in this file"),
        ));
    }
    if let Some((at, text)) = first_foreign {
        import.notes.push(format!(
            "{foreign} lines are no samples and were passed over, the first at line {at}: `{text}`"
        ));
    }
    import.notes.push("text does not say which clock its times are of; perf.data does (`perf record -k CLOCK_MONOTONIC`)".into());
    if samples > 0 {
        let mut metrics = Metrics::default();
        metrics.number("samples.total", Unit::Count, samples as f64, Some(file));
        metrics.number(
            "samples.kernel_share",
            Unit::Share,
            in_kernel as f64 / samples as f64,
            Some(file),
        );
        import.subjects.push(Subject {
            kind: "counters".to_owned(),
            name: file.to_owned(),
            metrics,
        });
    }
    Ok(import)
}

/// Whether this is the head of a sample. For [`crate::detect()`].
pub fn is_head(line: &str) -> bool {
    Head::parse(line).is_some()
}

#[derive(Debug)]
struct Head<'a> {
    pid: u32,
    tid: u32,
    nanos: u64,
    event: &'a str,
    /// Sampled, and so with a place in the program; else a trace point or a change of threads.
    is_sample: bool,
    /// Address, function and file, if they are on the same line.
    frame: Option<&'a str>,
}

impl<'a> Head<'a> {
    fn parse(line: &'a str) -> Option<Head<'a>> {
        // The time is the first word `seconds.micros:`; names before it may have spaces.
        let (before, time, after) = split_at_time(line)?;
        let nanos = seconds_as_nanos(time)?;
        let mut words = before.split_whitespace().rev();
        let mut ids = words.next()?;
        if ids.starts_with('[') && ids.ends_with(']') {
            ids = words.next()?;
        }
        // A command must be there too.
        words.next()?;
        let (pid, tid) = ids.split_once('/').unwrap_or((ids, ids));
        // perf writes -1 of threads that it does not know.
        let id = |text: &str| {
            if text == "-1" {
                Some(0)
            } else {
                text.parse().ok()
            }
        };
        let (pid, tid) = (id(pid)?, id(tid)?);
        let mut rest = after.trim();
        if let Some((period, after)) = rest.split_once(' ')
            && !period.is_empty()
            && period.bytes().all(|b| b.is_ascii_digit())
        {
            rest = after.trim_start();
        }
        if let Some(switch) = rest.strip_prefix("PERF_RECORD_") {
            let event = switch.split_whitespace().next()?;
            return Some(Head {
                pid,
                tid,
                nanos,
                event,
                is_sample: false,
                frame: None,
            });
        }
        let (event, rest) = match rest.split_once(": ") {
            Some((event, rest)) => (event, rest.trim()),
            None => (rest.strip_suffix(':')?, ""),
        };
        if event.is_empty() || event.contains(char::is_whitespace) {
            return None;
        }
        let frame = Some(rest).filter(|rest| is_address(rest.split_whitespace().next()));
        // Trace points have their fields where samples have a place.
        let is_sample = frame.is_some() || rest.is_empty();
        Some(Head {
            pid,
            tid,
            nanos,
            event,
            is_sample,
            frame,
        })
    }
}

fn split_at_time(line: &str) -> Option<(&str, &str, &str)> {
    let mut from = 0;
    for word in line.split(' ') {
        let to = from + word.len();
        if let Some(time) = word.strip_suffix(':')
            && time.contains('.')
            && seconds_as_nanos(time).is_some()
        {
            return Some((&line[..from], time, &line[to..]));
        }
        from = to + 1;
    }
    None
}

/// `ffffffff821e86f6`; at least two digits, so that words such as `a` are none.
fn is_address(word: Option<&str>) -> bool {
    word.is_some_and(|word| {
        (1..=16).contains(&word.len()) && word.bytes().all(|b| b.is_ascii_hexdigit())
    })
}

/// `21932 memset+0x32 (/usr/lib/ld.so)`
struct Frame<'a> {
    function: &'a str,
    file: &'a str,
}

impl<'a> Frame<'a> {
    fn parse(text: &'a str) -> Frame<'a> {
        let (_, rest) = text.split_once(' ').unwrap_or((text, ""));
        let (function, file) = match rest.rsplit_once(" (") {
            Some((function, file)) => (function.trim(), file.trim_end().trim_end_matches(')')),
            None => (rest.trim(), ""),
        };
        // `+0x32` is where in the function.
        let function = match function.rsplit_once("+0x") {
            Some((name, offset)) if offset.bytes().all(|b| b.is_ascii_hexdigit()) => name,
            _ => function,
        };
        Frame { function, file }
    }

    fn is_kernel(&self) -> bool {
        self.file.starts_with("[kernel") || self.file.starts_with("[guest.kernel")
    }

    /// A function without a name is known by its file.
    fn name(&self) -> String {
        match self.function {
            "" | "[unknown]" if !self.file.is_empty() && self.file != "[unknown]" => {
                let file = self.file.rsplit('/').next().unwrap_or(self.file);
                format!("[{}]", file.trim_matches(['[', ']']))
            }
            "" => "[unknown]".to_owned(),
            function => function.to_owned(),
        }
    }
}
