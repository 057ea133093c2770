//! A log that is read, and read on where it stood.
//!
//! While a run is recorded each of its streams grows at its end, and what a stream gains
//! moves the numbers of everything in the streams behind it. A [`Seen`] has the numbers
//! that hold when it is shown; read at once they are final. Whoever keeps what it was
//! shown numbers it anew after each read, by [`Reading::first_eval`] and [`Tensor::number`]:
//! then both are as if the log was read at once.
//!
//! [`Tensor::number`]: crate::Tensor::number

use std::{
    collections::{BTreeMap, HashMap, btree_map::Entry},
    ops::Range,
};

use trace::{
    device::{Copy, Way},
    read::{Definitions, Evaluation, Event, ReadError, StreamEnd, StreamReader, Writer, streams},
    template::CaptureKind,
};

use crate::{
    cells::Cells,
    device::{Device, Kernel, SeenCopy},
    log::{Log, Stream, Visitor, Walked},
    prepared::Prepared,
    seen::Seen,
    tensors::Tensors,
};

/// Evaluations are numbered in 32 bits, with a sign, in every table.
const MAX_EVAL: u64 = i32::MAX as u64;

/// Of a time, of all durations of a run together (146 years) and of the bytes of all its
/// accesses: so that nobody who adds them up has to mind a damaged log.
pub(crate) const MAX_SUM: u64 = 1 << 62;

fn add(sum: u64, more: u64) -> Option<u64> {
    sum.checked_add(more).filter(|&sum| sum <= MAX_SUM)
}

pub struct Reading {
    log: Log,
    streams: BTreeMap<u32, StreamReading>,
    tensors: Tensors,
}

/// The numbers in the run with which a stream begins, or how many of each it has.
#[derive(Clone, Copy, Default)]
struct Numbers {
    eval: u64,
    token: u64,
    template: u32,
    copy: u64,
    /// Of all evaluations.
    nanos: u64,
    bytes: u64,
}

impl Numbers {
    fn plus(self, more: Numbers) -> Numbers {
        Numbers {
            eval: self.eval + more.eval,
            token: self.token + more.token,
            template: self.template + more.template,
            copy: self.copy + more.copy,
            nanos: self.nanos.saturating_add(more.nanos),
            bytes: self.bytes.saturating_add(more.bytes),
        }
    }
}

/// What a stream has defined, and the numbers of what it showed.
#[derive(Default)]
struct Known {
    stream: u32,
    /// Where its numbers begin, and how many it has.
    first: Numbers,
    has: Numbers,
    /// Places of its tensors.
    tensors: Vec<u32>,
    templates: Vec<Result<Prepared, String>>,
    /// Of each context: the first token of its last evaluation that had any.
    parts: HashMap<u64, u64>,
    devices: Vec<Device>,
    /// The kernels of each of its launches.
    launches: Vec<Vec<Kernel>>,
    cells: Cells,
}

impl Known {
    /// Definitions only grow.
    fn define(&mut self, definitions: &Definitions, tensors: &mut Tensors) {
        tensors.extend(definitions, self.stream, &mut self.tensors);
        for template in &definitions.templates[self.templates.len()..] {
            let prepared = Prepared::new(definitions, template, tensors, &self.tensors);
            self.templates.push(prepared);
        }
        self.has.template = self.templates.len() as u32;
        for number in self.devices.len()..definitions.devices.len() {
            self.devices.extend(Device::of(definitions, number as u32));
        }
        let new = definitions.launches[self.launches.len()..].iter();
        self.launches
            .extend(new.map(|launches| Kernel::all(definitions, launches)));
    }

    /// `Err` says why the evaluation has no rows.
    fn see<'a>(
        &'a mut self,
        definitions: &'a Definitions,
        tensors: &'a Tensors,
        evaluation: &'a Evaluation,
    ) -> Result<Seen<'a>, &'a str> {
        let eval = self.first.eval.checked_add(evaluation.number);
        let eval = eval
            .filter(|&eval| eval <= MAX_EVAL)
            .ok_or("its number is larger than a table can say")?;
        // One that has no rows keeps its number all the same.
        self.has.eval = self.has.eval.max(evaluation.number + 1);
        let template = evaluation.template as usize;
        let prepared = self.templates.get(template).ok_or("it has no graph")?;
        let launches = evaluation.device.as_ref().and_then(|d| d.launches);
        let kernels = launches.and_then(|at| self.launches.get(at as usize));
        let tokens = evaluation.first_of(&definitions.templates[template], CaptureKind::Tokens);
        // A part of a graph that has no tokens of its own computes those of the part before.
        let token = match tokens.is_empty() {
            true => *self
                .parts
                .get(&evaluation.context)
                .unwrap_or(&self.has.token),
            false => {
                self.parts.insert(evaluation.context, self.has.token);
                self.has.token
            }
        };
        let prepared = prepared.as_ref().map_err(String::as_str)?;
        self.cells.evaluation(evaluation, prepared, tensors.all());
        let seen = Seen {
            eval,
            stream: self.stream,
            template: self.first.template + evaluation.template,
            first_token: self.first.token + token,
            evaluation,
            prepared,
            tensors,
            definitions,
            kernels: kernels.map_or(&[], Vec::as_slice),
            graph: &definitions.templates[template],
            cells: &self.cells,
        };
        let nanos = seen
            .longest_nanos()
            .and_then(|nanos| add(self.has.nanos, nanos));
        let bytes = add(self.has.bytes, seen.prepared.bytes);
        let fits = |first, has: Option<u64>| has.filter(|&has| add(first, has).is_some());
        self.has.nanos = fits(self.first.nanos, nanos).ok_or("its times cannot be")?;
        self.has.bytes =
            fits(self.first.bytes, bytes).ok_or("it touches more bytes than can be")?;
        // Tokens count through the run, whichever part is wanted.
        self.has.token += seen.tokens();
        Ok(seen)
    }

    /// `Err` says why the copy has no row.
    fn copy<'a>(
        &'a mut self,
        tensors: &'a Tensors,
        copy: &'a Copy,
    ) -> Result<SeenCopy<'a>, &'static str> {
        let number = self.has.copy;
        self.has.copy += 1;
        let eval = self.first.eval.checked_add(copy.evaluation);
        let eval = eval
            .filter(|&eval| eval <= MAX_EVAL)
            .ok_or("its evaluation's number is larger than a table can say")?;
        if copy.begin_nanos.max(copy.end_nanos) > MAX_SUM {
            return Err("its times cannot be");
        }
        let bytes =
            add(self.has.bytes, copy.bytes).filter(|&has| add(self.first.bytes, has).is_some());
        let end = copy.tensor_offset.checked_add(copy.bytes);
        if end.is_none_or(|end| end > MAX_SUM) {
            return Err("it has more bytes than can be");
        }
        self.has.bytes = bytes.ok_or("it has more bytes than can be")?;
        let tensor = self.tensors.get(copy.tensor as usize);
        let device = self.devices.get(copy.device as usize);
        let (tensor, device) = tensor.zip(device).ok_or("it is of nothing that is known")?;
        self.cells
            .copy(copy, *tensor, &tensors.all()[*tensor as usize]);
        Ok(SeenCopy {
            number: self.first.copy + number,
            eval,
            stream: self.stream,
            copy,
            tensor: &tensors.all()[*tensor as usize],
            device,
        })
    }

    fn stream<'a>(&'a self, definitions: &'a Definitions, tensors: &'a Tensors) -> Stream<'a> {
        Stream {
            number: self.stream,
            templates: &self.templates,
            first_template: self.first.template,
            tensors,
            definitions,
        }
    }
}

/// Evaluations that are nowhere else but in memory (those of a benchmark), seen as those of
/// a log are.
#[derive(Default)]
pub struct Walk {
    tensors: Tensors,
    /// Of the stream that is being shown.
    known: Known,
}

impl Walk {
    /// What follows is of this stream.
    pub fn begin_stream(&mut self, stream: u32) {
        self.known = Known {
            stream,
            first: self.known.first.plus(self.known.has),
            ..Known::default()
        };
    }

    /// `Err` says why the evaluation has no rows.
    pub fn see<'a>(
        &'a mut self,
        definitions: &'a Definitions,
        evaluation: &'a Evaluation,
    ) -> Result<Seen<'a>, &'a str> {
        self.known.define(definitions, &mut self.tensors);
        self.known.see(definitions, &self.tensors, evaluation)
    }

    /// Everything that the stream defined is known now.
    pub fn end_stream<'a>(&'a mut self, definitions: &'a Definitions) -> Stream<'a> {
        self.known.define(definitions, &mut self.tensors);
        self.known.stream(definitions, &self.tensors)
    }

    /// Those of all streams so far.
    pub fn tensors(&self) -> &Tensors {
        &self.tensors
    }
}

/// A stream, as far as it has been read.
struct StreamReading {
    /// Until nothing more can come.
    reader: Option<StreamReader>,
    known: Known,
    /// Records of definitions that were taken in.
    definitions: u64,
    /// Other records that were complete.
    events: u64,
    evaluations: u64,
    steps: u64,
    /// The evaluation that was going on.
    has_partial: bool,
    damaged: Vec<String>,
    record_bytes: u64,
    end: StreamEnd,
    writes: Writes,
}

/// Whether a stream may change what is on a device, found out before it is shown to anybody:
/// streams are read one after the other.
enum Writes {
    NotYet(Option<Box<StreamReader>>),
    Yes,
}

impl Writes {
    /// Reads ahead to the first record that decides it. A stream of copies to the host alone is
    /// read to its end: older runs have one for what is copied between evaluations.
    fn look(&mut self, log: &Log, stream: u32, writer: Writer) -> bool {
        let Writes::NotYet(reader) = self else {
            return true;
        };
        let reader = match reader.take() {
            Some(reader) => Ok(reader),
            None => StreamReader::open(&log.directory, stream).map(Box::new),
        };
        // Whoever reads the stream says what is wrong with it.
        let Ok(mut reader) = reader else {
            *self = Writes::Yes;
            return true;
        };
        reader.resume(writer);
        loop {
            match reader.next_event() {
                Ok(Some(Event::Copy(copy))) if copy.way == Way::DeviceToHost => {}
                Ok(None) => {
                    *self = Writes::NotYet((writer == Writer::Running).then_some(reader));
                    return false;
                }
                _ => {
                    *self = Writes::Yes;
                    return true;
                }
            }
        }
    }
}

impl Reading {
    pub fn new(log: Log) -> Reading {
        Reading {
            log,
            streams: BTreeMap::new(),
            tensors: Tensors::default(),
        }
    }

    /// Shows `visitor` what the log has gained; `progress` gets the bytes of records read so
    /// far. After an error, the next call tries the same record again. With
    /// [`Writer::Gone`] it is the last one: a stream's definitions are let go at its end.
    pub fn read<V: Visitor>(
        &mut self,
        writer: Writer,
        visitor: &mut V,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), V::Error> {
        let result = self.read_streams(writer, visitor, progress);
        self.number();
        result
    }

    fn read_streams<V: Visitor>(
        &mut self,
        writer: Writer,
        visitor: &mut V,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), V::Error> {
        let numbers = match streams(&self.log.directory) {
            // Not begun yet.
            Err(ReadError::NoSegments { .. }) if writer == Writer::Running => Vec::new(),
            found => found?,
        };
        let (mut first, mut bytes_before) = (Numbers::default(), 0);
        let mut writers = 0;
        for &number in &numbers {
            if let Entry::Vacant(new) = self.streams.entry(number) {
                new.insert(StreamReading::open(&self.log, number)?);
            }
            if numbers.len() > 1
                && let Some(stream) = self.streams.get_mut(&number)
            {
                writers += usize::from(stream.writes.look(&self.log, number, writer));
            }
        }
        let is_shared = writers > 1;
        for number in numbers {
            let Some(stream) = self.streams.get_mut(&number) else {
                continue;
            };
            stream.known.first = first;
            stream.known.cells.is_shared = is_shared;
            let evals = &self.log.evals;
            let mut progress = |bytes| progress(bytes_before + bytes);
            stream.read(writer, evals, &mut self.tensors, visitor, &mut progress)?;
            first = first.plus(stream.known.has);
            bytes_before += stream.record_bytes;
        }
        Ok(())
    }

    /// What a stream has gained moves those behind it.
    fn number(&mut self) {
        let (mut first, mut first_tensor) = (Numbers::default(), 0);
        for stream in self.streams.values_mut() {
            let known = &mut stream.known;
            known.first = first;
            first = first.plus(known.has);
            for (number, &at) in (first_tensor..).zip(&known.tensors) {
                self.tensors.number(at, number);
            }
            first_tensor += known.tensors.len() as u32;
        }
    }

    pub fn tensors(&self) -> &Tensors {
        &self.tensors
    }

    /// Number in the run of a stream's evaluation 0.
    pub fn first_eval(&self, stream: u32) -> u64 {
        self.streams.get(&stream).map_or(0, |s| s.known.first.eval)
    }

    /// Complete records that were read: whether there were new ones.
    pub fn records(&self) -> u64 {
        let records = |s: &StreamReading| s.definitions + s.events;
        self.streams.values().map(records).sum()
    }

    /// Evaluations that are going on, or that the end of the process cut off.
    pub fn partial(&self) -> u64 {
        self.streams.values().filter(|s| s.has_partial).count() as u64
    }

    /// What could not be read, by stream: where, and why.
    pub fn damaged(&self) -> impl Iterator<Item = &String> {
        self.streams.values().flat_map(|s| &s.damaged)
    }

    /// Those besides the processor, each once, by stream.
    pub fn devices(&self) -> Vec<Device> {
        let mut devices: Vec<Device> = Vec::new();
        for device in self.streams.values().flat_map(|s| &s.known.devices) {
            if !devices.contains(device) {
                devices.push(device.clone());
            }
        }
        devices
    }

    pub(crate) fn finish(self) -> Walked {
        let all = || self.streams.values();
        Walked {
            evaluations: all().map(|s| s.evaluations).sum(),
            steps: all().map(|s| s.steps).sum(),
            partial: self.partial(),
            damaged: self.damaged().cloned().collect(),
            templates: all().map(|s| u64::from(s.known.has.template)).sum(),
            record_bytes: all().map(|s| s.record_bytes).sum(),
            is_closed: all().all(|s| s.end == StreamEnd::Closed),
            devices: self.devices(),
            tensors: self.tensors,
        }
    }
}

impl StreamReading {
    fn open(log: &Log, stream: u32) -> Result<StreamReading, ReadError> {
        Ok(StreamReading {
            reader: Some(StreamReader::open(&log.directory, stream)?),
            known: Known {
                stream,
                ..Known::default()
            },
            definitions: 0,
            events: 0,
            evaluations: 0,
            steps: 0,
            has_partial: false,
            damaged: Vec::new(),
            record_bytes: 0,
            end: StreamEnd::NotYet,
            writes: Writes::NotYet(None),
        })
    }

    fn read<V: Visitor>(
        &mut self,
        writer: Writer,
        evals: &Range<u64>,
        tensors: &mut Tensors,
        visitor: &mut V,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), V::Error> {
        // Taken out, so that the rest can change beside it.
        let Some(mut reader) = self.reader.take() else {
            return Ok(());
        };
        reader.resume(writer);
        let result = self.read_events(&mut reader, evals, tensors, visitor, progress);
        self.record_bytes = reader.record_bytes();
        self.end = reader.end();
        if writer == Writer::Running || result.is_err() {
            self.reader = Some(reader);
        } else {
            self.known.templates = Vec::new();
            self.known.launches = Vec::new();
        }
        result
    }

    fn read_events<V: Visitor>(
        &mut self,
        reader: &mut StreamReader,
        evals: &Range<u64>,
        tensors: &mut Tensors,
        visitor: &mut V,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), V::Error> {
        let stream = self.known.stream;
        visitor.stream_begins(stream)?;
        while let Some(event) = reader.next_event()? {
            progress(reader.record_bytes());
            self.has_partial = matches!(event, Event::Partial(_));
            self.events += u64::from(!self.has_partial);
            match event {
                Event::Evaluation(evaluation) => {
                    self.define(reader, tensors, visitor)?;
                    match self.known.see(&reader.definitions, tensors, &evaluation) {
                        Ok(seen) if evals.contains(&seen.eval) => {
                            self.evaluations += 1;
                            self.steps += executed_steps(&evaluation);
                            visitor.evaluation(&seen)?;
                        }
                        Ok(_) => {}
                        Err(reason) => {
                            let place =
                                format!("stream {stream}: evaluation {}", evaluation.number);
                            self.damaged.push(format!("{place}: {reason}"));
                        }
                    }
                }
                Event::Copy(copy) => {
                    self.define(reader, tensors, visitor)?;
                    match self.known.copy(tensors, &copy) {
                        Ok(seen) if evals.contains(&seen.eval) => visitor.copy(&seen)?,
                        Ok(_) => {}
                        Err(reason) => {
                            let place = format!("stream {stream}: a copy");
                            self.damaged.push(format!("{place}: {reason}"));
                        }
                    }
                }
                Event::Partial(_) => {}
                Event::Corrupt {
                    segment,
                    offset,
                    reason,
                } => {
                    let place = segment.display();
                    self.damaged
                        .push(format!("{place}: byte {offset}: {reason}"));
                }
            }
        }
        self.define(reader, tensors, visitor)?;
        visitor.stream_ends(&self.known.stream(&reader.definitions, tensors))
    }

    fn define<V: Visitor>(
        &mut self,
        reader: &StreamReader,
        tensors: &mut Tensors,
        visitor: &mut V,
    ) -> Result<(), V::Error> {
        if self.definitions == reader.definition_records() {
            return Ok(());
        }
        self.definitions = reader.definition_records();
        self.known.define(&reader.definitions, tensors);
        visitor.defined(&self.known.stream(&reader.definitions, tensors))
    }
}

fn executed_steps(evaluation: &Evaluation) -> u64 {
    let steps = 0..evaluation.step_nanos.len();
    steps.filter(|&step| evaluation.was_executed(step)).count() as u64
}
