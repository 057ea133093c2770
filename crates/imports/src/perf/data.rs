//! `perf.data`, by the parser of samply (`linux-perf-data`).
//!
//! That parser trusts the lengths in a file, so that [`check`] looks first whether all of them
//! lie inside it. Samples become events; a thread that was put aside and came back (recorded
//! with `--switch-events`) becomes one with a duration. Functions have no names here: that
//! needs the programs, and `perf script` has them. An event's name is the file that the
//! innermost address lies in.

mod check;

use std::collections::{BTreeMap, HashMap};
use std::io::Cursor;

use linux_perf_data::linux_perf_event_reader::constants::PERF_CONTEXT_MAX;
use linux_perf_data::linux_perf_event_reader::{
    ClockId, ContextSwitchRecord, CpuMode, EventRecord, PerfClock, RawData, SampleRecord,
    TaskWasPreempted,
};
use linux_perf_data::{AttributeDescription, PerfFileReader, PerfFileRecord};
use rules::{Metrics, Subject, Unit};

use crate::detect::Format;
use crate::error::Error;
use crate::lines::said;
use crate::{Clock, Event, Import};

pub fn parse(file: &str, bytes: &[u8]) -> Result<Import, Error> {
    check::check(file, bytes)?;
    let unreadable = |error: linux_perf_data::Error| Error::content(file, said(&error.to_string()));
    let reader = PerfFileReader::parse_file(Cursor::new(bytes)).map_err(unreadable)?;
    let (mut perf_file, mut records) = (reader.perf_file, reader.record_iter);
    let mut import = Import::new(Format::PerfData, file);
    let attributes = perf_file.event_attributes();
    let names: Vec<String> = attributes
        .iter()
        .map(|attribute| attribute.name().unwrap_or("event").to_owned())
        .collect();
    import.clock = clock(attributes);
    let mut trace = Trace::default();
    let mut refused = 0u64;
    while let Some(record) = records.next_record(&mut perf_file).map_err(unreadable)? {
        let PerfFileRecord::EventRecord { attr_index, record } = record else {
            continue;
        };
        let common = record.common_data().ok();
        let name = names.get(attr_index).map_or("event", String::as_str);
        match record.parse() {
            Ok(EventRecord::ContextSwitch(switch)) => {
                if let Some(common) = common
                    && let (Some(tid), Some(nanos)) = (common.tid, common.timestamp)
                {
                    let pid = common.pid.unwrap_or(tid);
                    trace.switch(id(pid), id(tid), nanos, &switch, &mut import.events);
                }
            }
            Ok(EventRecord::Sample(sample)) => trace.sample(name, &sample, &mut import.events),
            Ok(EventRecord::Mmap(map)) => trace.map(map.pid, map.address, map.length, map.path),
            Ok(EventRecord::Mmap2(map)) => trace.map(map.pid, map.address, map.length, map.path),
            Ok(EventRecord::Lost(lost)) => trace.lost = trace.lost.saturating_add(lost.count),
            Ok(_) => {}
            Err(_) => refused += 1,
        }
    }
    if trace.samples == 0 && trace.switches == 0 {
        return Err(Error::content(
            file,
            "no samples and no switches; `perf record` was ended before any",
        ));
    }
    if refused > 0 {
        import.notes.push(format!(
            "{refused} records are shorter than their kind and were passed over"
        ));
    }
    if trace.without_time > 0 {
        import.notes.push(format!(
            "{} samples have no time and join no run; record without `-B`, or with `-T`",
            trace.without_time
        ));
    }
    if import.clock == Clock::Unknown {
        import.notes.push(
            "times are of perf's own clock; record with `-k CLOCK_MONOTONIC` to join them to a run"
                .into(),
        );
    }
    import.subjects.push(trace.subject(file));
    Ok(import)
}

/// The kernel counts ids from 1; -1 is a thread that it did not name.
fn id(id: i32) -> u32 {
    u32::try_from(id).unwrap_or(0)
}

/// Of all events, if they have the same.
fn clock(attributes: &[AttributeDescription]) -> Clock {
    let mut clocks = attributes
        .iter()
        .map(|attribute| match attribute.attr.clock {
            PerfClock::ClockId(ClockId::Monotonic) => Clock::Monotonic,
            PerfClock::ClockId(ClockId::Realtime) => Clock::Wall,
            _ => Clock::Unknown,
        });
    let first = clocks.next().unwrap_or(Clock::Unknown);
    if clocks.all(|clock| clock == first) {
        first
    } else {
        Clock::Unknown
    }
}

#[derive(Default)]
struct Trace {
    /// By process and where it begins: where a file is mapped to, and its name.
    maps: HashMap<u32, BTreeMap<u64, (u64, String)>>,
    /// By thread: since when it does not run, and why.
    aside: HashMap<u32, (u64, &'static str)>,
    samples: u64,
    in_kernel: u64,
    without_time: u64,
    switches: u64,
    preempted: u64,
    lost: u64,
}

impl Trace {
    fn sample(&mut self, event: &str, sample: &SampleRecord<'_>, events: &mut Vec<Event>) {
        self.samples += 1;
        let kernel = matches!(sample.cpu_mode, CpuMode::Kernel | CpuMode::GuestKernel);
        self.in_kernel += u64::from(kernel);
        let Some(nanos) = sample.timestamp else {
            self.without_time += 1;
            return;
        };
        let pid = id(sample.pid.unwrap_or(0));
        // The chain begins with marks of where its addresses are from.
        let in_chain = sample.callchain.and_then(|chain| {
            let addresses = (0..chain.len()).filter_map(|at| chain.get(at));
            addresses
                .take(8)
                .find(|address| *address < PERF_CONTEXT_MAX)
        });
        let address = sample.ip.or(in_chain);
        let name = match address {
            _ if kernel => "[kernel]".to_owned(),
            Some(address) => self.file_at(pid, address),
            None => "[unknown]".to_owned(),
        };
        events.push(Event {
            begin_nanos: nanos,
            duration_nanos: 0,
            pid,
            tid: id(sample.tid.unwrap_or(0)),
            category: event.to_owned(),
            name,
        });
    }

    fn file_at(&self, pid: u32, address: u64) -> String {
        let maps = self.maps.get(&pid);
        let below = maps.and_then(|maps| maps.range(..=address).next_back());
        match below {
            Some((_, (end, name))) if address < *end => format!("[{name}]"),
            _ => "[unknown]".to_owned(),
        }
    }

    fn map(&mut self, pid: i32, address: u64, length: u64, path: RawData<'_>) {
        let path = path.as_slice();
        let path = String::from_utf8_lossy(&path);
        let name = path.rsplit('/').next().unwrap_or(&path);
        let name = name.trim_matches(['[', ']']).to_owned();
        let maps = self.maps.entry(id(pid)).or_default();
        maps.insert(address, (address.saturating_add(length), name));
    }

    fn switch(
        &mut self,
        pid: u32,
        tid: u32,
        nanos: u64,
        switch: &ContextSwitchRecord,
        events: &mut Vec<Event>,
    ) {
        match switch {
            ContextSwitchRecord::Out { preempted, .. } => {
                self.switches += 1;
                let why = match preempted {
                    TaskWasPreempted::Yes => "preempted",
                    TaskWasPreempted::No => "waiting",
                };
                self.preempted += u64::from(why == "preempted");
                self.aside.insert(tid, (nanos, why));
            }
            ContextSwitchRecord::In { .. } => {
                let Some((since, why)) = self.aside.remove(&tid) else {
                    return;
                };
                events.push(Event {
                    begin_nanos: since,
                    duration_nanos: nanos.saturating_sub(since),
                    pid,
                    tid,
                    category: "not_running".to_owned(),
                    name: why.to_owned(),
                });
            }
        }
    }

    fn subject(&self, file: &str) -> Subject {
        let mut metrics = Metrics::default();
        let mut put = |name: &str, unit, value: f64| metrics.number(name, unit, value, Some(file));
        if self.samples > 0 {
            put("samples.total", Unit::Count, self.samples as f64);
            put(
                "samples.kernel_share",
                Unit::Share,
                self.in_kernel as f64 / self.samples as f64,
            );
        }
        if self.switches > 0 {
            put("switches.total", Unit::Count, self.switches as f64);
            put(
                "switches.preempted_share",
                Unit::Share,
                self.preempted as f64 / self.switches as f64,
            );
        }
        put("samples.lost", Unit::Count, self.lost as f64);
        Subject {
            kind: "counters".to_owned(),
            name: file.to_owned(),
            metrics,
        }
    }
}
