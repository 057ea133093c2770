//! Who computed when: a lane for the processor, one for each device, and one for each way that
//! bytes were copied; one by one, or as a grid.
//!
//! A lane shows what was measured and says what was not: kernels where each was timed, whole
//! evaluations where the device timed no more, the call alone where it timed nothing. Nothing
//! is spread over what lies between. Lanes follow the filter by phase, tokens and device; a
//! gap is one of all kernels, so that layers, ops and the rest leave lanes as they are.

use std::ops::Range;

use reader::device::PROCESSOR;
use trace::device::Way;

use crate::{
    RunIndex,
    answers::{
        Lane, LaneCopy, LaneEval, LaneKind, LaneSpans, LaneTimes, LaneWork, LanesHeader, Raster,
    },
    data::Eval,
    devices::{KeptCopy, TimedKernels},
    filter::Filter,
    offsets::Window,
    query::LanesQuery,
    select::Selector,
    sums::lies_in,
};

/// At most this many things are listed one by one.
pub const MAX_SPANS: usize = 6000;
/// Rows of the grid for each lane: what ran (evaluations of the processor, kernels, copies);
/// no kernel between those of an evaluation; evaluations whose nodes nobody timed; evaluations
/// of which only the call is known.
pub const PARTS: usize = 4;
const RAN: usize = 0;
const GAPS: usize = 1;
const UNTIMED: usize = 2;
const ASKED: usize = 3;

/// What passes the filter in a window.
struct Seen<'a> {
    times: Range<u64>,
    lanes: Vec<Lane>,
    /// Each with its lane.
    evals: Vec<(usize, &'a Eval)>,
    copies: Vec<(usize, &'a KeptCopy)>,
}

/// When an evaluation was computed, and what is known of it.
enum Computed<'a> {
    Processor,
    Kernels((u64, u64), &'a TimedKernels),
    Evaluation((u64, u64)),
    Call,
}

impl RunIndex {
    /// `values` is empty when the header lists spans; otherwise it has [`PARTS`] rows of `w`
    /// cells for each lane: the share of each cell's time.
    pub fn lanes(&self, query: &LanesQuery, filter: &Filter) -> Raster<LanesHeader> {
        let times = self.window(query.t0, query.t1);
        let seen = self.in_lanes(times, filter);
        let mut header = LanesHeader {
            t0: seen.times.start - self.origin,
            t1: seen.times.end - self.origin,
            w: query.w.max(1),
            spans: self.lane_spans(&seen),
            lanes: Vec::new(),
        };
        let values = match header.spans {
            Some(_) => Vec::new(),
            None => self.lane_grid(&seen, header.w as usize),
        };
        header.lanes = seen.lanes;
        Raster { header, values }
    }

    fn in_lanes(&self, times: Range<u64>, filter: &Filter) -> Seen<'_> {
        let by = Filter {
            phases: filter.phases.clone(),
            tokens: filter.tokens,
            devices: filter.devices.clone(),
            ..Filter::default()
        };
        let selector = Selector::new(self, &by);
        let keeps = |name: &str| {
            let wanted = by.devices.as_ref();
            wanted.is_none_or(|names| names.iter().any(|wanted| wanted == name))
        };
        let devices = self.devices();
        let mut lanes: Vec<Lane> = Vec::new();
        for kind in [LaneKind::Processor, LaneKind::Device] {
            let of_kind = devices.iter().filter(|name| kind == kind_of(name));
            let names = of_kind.filter(|name| keeps(name));
            lanes.extend(names.map(|name| Lane::new(kind, name)));
        }
        let mut ways: Vec<u32> = (0..self.on_devices.ways.all.len() as u32).collect();
        ways.sort_by_key(|&way| {
            let (device, way) = &self.on_devices.ways.all[way as usize];
            (device.clone(), *way as u8)
        });
        let mut lane_of_way = vec![None; ways.len()];
        for way in ways {
            let (device, of) = &self.on_devices.ways.all[way as usize];
            if keeps(device) {
                lane_of_way[way as usize] = Some(lanes.len());
                let kind = match of {
                    Way::HostToDevice => LaneKind::ToDevice,
                    Way::DeviceToHost => LaneKind::FromDevice,
                    Way::DeviceToDevice => LaneKind::BetweenDevices,
                };
                lanes.push(Lane::new(kind, device));
            }
        }
        let lane_of_graph: Vec<Option<usize>> = self
            .graphs
            .iter()
            .map(|graph| {
                let is_its = |lane: &Lane| lane.computes() && lane.device == graph.device_name();
                lanes.iter().position(is_its)
            })
            .collect();
        let mut evals = Vec::new();
        for &at in self.evals_between(times.start, times.end) {
            let eval = &self.evals[at as usize];
            let lane = lane_of_graph[eval.graph as usize];
            if let Some(lane) = lane.filter(|_| eval.last >= times.start)
                && selector.keeps_eval(eval)
            {
                self.count_eval(&mut lanes[lane], eval, &times);
                evals.push((lane, eval));
            }
        }
        let mut copies = Vec::new();
        for copy in self.copies_between(&times) {
            let Some(lane) = lane_of_way[copy.way as usize] else {
                continue;
            };
            // The evaluation that it is for may be of another device.
            let is_whole = by.phases.is_none() && by.tokens.is_none();
            let follows = || {
                let eval = self.eval_of(copy.stream, copy.in_stream);
                eval.is_some_and(|eval| selector.keeps_batch(eval))
            };
            if is_whole || follows() {
                lanes[lane].copies += 1;
                lanes[lane].bytes = lanes[lane].bytes.saturating_add(copy.bytes);
                copies.push((lane, copy));
            }
        }
        Seen {
            times,
            lanes,
            evals,
            copies,
        }
    }

    fn count_eval(&self, lane: &mut Lane, eval: &Eval, times: &Range<u64>) {
        let computed = self.computed(eval);
        let (begin, end) = computed.window(eval);
        if !lies_in(times, begin, end) {
            return;
        }
        lane.evals += 1;
        match computed {
            Computed::Processor | Computed::Call => {}
            Computed::Evaluation(_) => lane.timed_evals += 1,
            Computed::Kernels(_, kernels) => {
                lane.timed_evals += 1;
                lane.measured_evals += 1;
                let span = kernels.span.1 - kernels.span.0;
                lane.span_nanos = lane.span_nanos.saturating_add(span);
                lane.gap_nanos = lane.gap_nanos.saturating_add(kernels.gap_nanos());
            }
        }
    }

    fn computed(&self, eval: &Eval) -> Computed<'_> {
        let Some(on) = self.on_devices.of(eval.on_device) else {
            return Computed::Processor;
        };
        match (on.nanos, &on.kernels) {
            (nanos, Some(kernels)) if kernels.are_listed() => {
                Computed::Kernels(nanos.unwrap_or(kernels.span), kernels)
            }
            (Some(nanos), _) => Computed::Evaluation(nanos),
            (None, _) => Computed::Call,
        }
    }

    fn copies_between(&self, times: &Range<u64>) -> &[KeptCopy] {
        let on = &self.on_devices;
        let start = on.latest.partition_point(|&last| last < times.start);
        let end = on.copies.partition_point(|copy| copy.begin < times.end);
        &on.copies[start.min(end)..end]
    }

    fn eval_of(&self, stream: u32, in_stream: u64) -> Option<&Eval> {
        let eval = |at: &u32| &self.evals[*at as usize];
        let key = |at: &u32| (eval(at).stream, eval(at).in_stream);
        let at = self
            .order
            .partition_point(|at| key(at) < (stream, in_stream));
        let found = self.order.get(at).map(eval);
        found.filter(|eval| (eval.stream, eval.in_stream) == (stream, in_stream))
    }

    /// `None` when they are too many.
    fn lane_spans(&self, seen: &Seen) -> Option<LaneSpans> {
        let mut spans = LaneSpans::default();
        let since = |nanos: u64| nanos.saturating_sub(self.origin);
        let is_in = |begin: u64, end: u64| lies_in(&seen.times, begin, end);
        let mut room = MAX_SPANS.checked_sub(seen.evals.len() + seen.copies.len())?;
        for &(lane, eval) in &seen.evals {
            let computed = self.computed(eval);
            let (begin, end) = computed.window(eval);
            if !is_in(begin, end) {
                continue;
            }
            let (times, kernels) = match &computed {
                Computed::Processor => (LaneTimes::Nodes, None),
                Computed::Kernels(_, kernels) => (LaneTimes::Kernels, Some(*kernels)),
                Computed::Evaluation(_) => (LaneTimes::Evaluation, None),
                Computed::Call => (LaneTimes::Call, None),
            };
            spans.evals.push(LaneEval {
                lane: lane as u32,
                eval: eval.number,
                phase: eval.phase.name(),
                token: eval.first_token_if_any(),
                begin: since(begin),
                end: since(end),
                times,
                kernels: kernels.map_or(0, |kernels| kernels.count),
                kernels_begin: kernels.map(|kernels| since(kernels.span.0)),
                kernels_end: kernels.map(|kernels| since(kernels.span.1)),
                gap_nanos: kernels.map(TimedKernels::gap_nanos),
            });
            let mut work = Vec::new();
            match kernels {
                Some(kernels) => {
                    let ran = self.on_devices.ran(kernels, eval.begin);
                    work.extend(ran.map(|ran| (ran.step, Some(ran.name), ran.begin, ran.end)));
                }
                None if matches!(computed, Computed::Processor) => {
                    self.each_step(eval, |step, begin, end| {
                        work.push((Some(step as u32), None, begin, end));
                    });
                }
                None => {}
            }
            work.retain(|&(_, _, begin, end)| is_in(begin, end));
            room = room.checked_sub(work.len())?;
            let steps = &self.graphs[eval.graph as usize].steps;
            spans
                .work
                .extend(work.into_iter().map(|(step, kernel, begin, end)| {
                    let about = step.and_then(|step| steps.get(step as usize));
                    LaneWork {
                        lane: lane as u32,
                        eval: eval.number,
                        step,
                        kernel: kernel.map(str::to_owned),
                        op: about.map(|step| self.catalog.ops.all[step.op as usize].clone()),
                        name: about.map(|step| self.catalog.names.all[step.name as usize].clone()),
                        begin: since(begin),
                        end: since(end),
                    }
                }));
        }
        for &(lane, copy) in &seen.copies {
            let tensor = &self.catalog.tensors[copy.tensor as usize];
            spans.copies.push(LaneCopy {
                lane: lane as u32,
                eval: self
                    .eval_of(copy.stream, copy.in_stream)
                    .map(|eval| eval.number),
                tensor: tensor.name.clone(),
                component: tensor.part(),
                bytes: copy.bytes,
                begin: since(copy.begin),
                end: since(copy.end),
                is_async: copy.is_async,
            });
        }
        Some(spans)
    }

    fn lane_grid(&self, seen: &Seen, w: usize) -> Vec<f32> {
        let window = Window {
            t0: seen.times.start,
            t1: seen.times.end,
            o0: 0,
            o1: 1,
            w,
            h: 1,
        };
        let column_nanos = (window.t1 - window.t0) as f64 / w as f64;
        let mut nanos = vec![0f64; seen.lanes.len() * PARTS * w];
        // `amount` of the time between the two.
        let mut add = |lane: usize, part: usize, (begin, end): (u64, u64), amount: u64| {
            let row = (lane * PARTS + part) * w;
            window.columns(begin, end, |column, share| {
                nanos[row + column] += share * amount as f64;
            });
        };
        for &(lane, eval) in &seen.evals {
            match self.computed(eval) {
                Computed::Processor => {
                    add(lane, RAN, (eval.begin, eval.end), eval.end - eval.begin);
                }
                Computed::Call => {
                    add(lane, ASKED, (eval.begin, eval.end), eval.end - eval.begin);
                }
                Computed::Evaluation(times) => add(lane, UNTIMED, times, times.1 - times.0),
                Computed::Kernels(_, kernels) => {
                    let (begin, end) = kernels.span;
                    // All of it in about one cell: sums will do.
                    if ((end - begin) as f64) < column_nanos {
                        add(lane, RAN, (begin, end), kernels.ran_nanos);
                        add(lane, GAPS, (begin, end), kernels.gap_nanos());
                        continue;
                    }
                    let ran = self.on_devices.ran(kernels, eval.begin);
                    let mut ran: Vec<(u64, u64)> = ran.map(|ran| (ran.begin, ran.end)).collect();
                    ran.sort_unstable();
                    let mut latest = begin;
                    for (from, to) in ran {
                        if from > latest {
                            add(lane, GAPS, (latest, from), from - latest);
                        }
                        let from = from.max(latest);
                        if to > from {
                            add(lane, RAN, (from, to), to - from);
                            latest = to;
                        }
                    }
                }
            }
        }
        for &(lane, copy) in &seen.copies {
            // What took no time is there all the same.
            let end = copy.end.max(copy.begin + 1);
            add(lane, RAN, (copy.begin, end), end - copy.begin);
        }
        let share = |nanos: &f64| (nanos / column_nanos).min(1.0) as f32;
        nanos.iter().map(share).collect()
    }
}

impl Computed<'_> {
    fn window(&self, eval: &Eval) -> (u64, u64) {
        match self {
            Computed::Kernels(times, _) | Computed::Evaluation(times) => *times,
            Computed::Processor | Computed::Call => (eval.begin, eval.end),
        }
    }
}

impl Lane {
    fn new(kind: LaneKind, device: &str) -> Lane {
        Lane {
            kind,
            device: device.to_owned(),
            evals: 0,
            timed_evals: 0,
            measured_evals: 0,
            span_nanos: 0,
            gap_nanos: 0,
            copies: 0,
            bytes: 0,
        }
    }

    fn computes(&self) -> bool {
        matches!(self.kind, LaneKind::Processor | LaneKind::Device)
    }
}

fn kind_of(device: &str) -> LaneKind {
    match device == PROCESSOR {
        true => LaneKind::Processor,
        false => LaneKind::Device,
    }
}
