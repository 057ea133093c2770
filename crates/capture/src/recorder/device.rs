//! Evaluations that a device was told to compute, what is measured of them later, and copies.
//!
//! Everything is stored after the call that launched the graph has returned: which nodes were
//! executed as one is known only then, and the program has not touched the graph or its inputs
//! since. The device may still be computing.

use std::sync::Arc;

use ggml::{Graph, Tensor};
use trace::{
    device::{Copy, DeviceDef, KernelDef, KernelKind, Launches, Measured, Way},
    format::{EVAL_HEAD_WORDS, EVAL_TAIL_WORDS, RecordKind, flags},
};

use super::{
    Recorder,
    graphs::{GraphKey, KeptGraph, fingerprint},
};
use crate::{
    gather,
    known::{self, HostOf, KnownGraph, Late, OnDevice},
};

/// Something that computes graphs besides the processor, in ggml's words.
pub struct Device {
    pub name: Vec<u8>,
    pub description: Vec<u8>,
    pub memory_bytes: u64,
}

/// A kernel that was launched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Position of the node that the backend had asked about last.
    pub node: Option<u32>,
    pub kind: KernelKind,
    pub name: Vec<u8>,
    pub grid: [u32; 3],
    pub block: [u32; 3],
}

/// A call by which a device was told to compute a graph, and which has returned.
pub struct DeviceCall<'a, 'g> {
    pub graph: Graph<'g>,
    pub device: &'a Device,
    pub how: Launched<'a>,
    pub host_of: &'a HostOf<'g>,
    pub begin_nanos: u64,
    pub end_nanos: u64,
    pub is_aborted: bool,
    /// [`Recorder::measured`] will be called for it.
    pub is_measured_later: bool,
}

/// How the device was told.
pub enum Launched<'a> {
    /// Node by node; gives the positions of those that the backend asked about, or `None` if
    /// nobody heard. Called for a graph that is not known yet.
    Anew(&'a dyn Fn() -> Option<Vec<u32>>),
    /// By a graph of the device's own, recorded before from an equal graph.
    Again,
}

/// What became of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logged {
    /// Number of the evaluation in its stream.
    pub evaluation: u64,
    pub begin_nanos: u64,
    template: u32,
    /// The first node of each step: its graph may be forgotten when it was measured.
    first_nodes: Arc<[u32]>,
}

impl Recorder {
    /// Stores an evaluation on a device. `launches` are its kernels, if they were seen in
    /// this call; otherwise those that were seen before are taken. `None` when it could not
    /// be stored.
    ///
    /// # Safety
    /// The graph is live, of the library that this recorder knows, and its inputs are as
    /// they were in the call.
    pub unsafe fn device_evaluation(
        &mut self,
        call: &DeviceCall<'_, '_>,
        launches: Option<&[Launch]>,
    ) -> Option<Logged> {
        let number = self.evaluations;
        self.evaluations += 1;
        // SAFETY: a live graph of the library that `knowledge` describes (caller).
        if !unsafe { self.layout_is_right(call.graph) } {
            self.status.count_lost(0, 0);
            return None;
        }
        let device = self.interner_device(call.device);
        self.current = self.find_device_graph(call, device);
        if let Some(launches) = launches {
            self.keep_launches(launches);
        }
        let are_there = self.find_inputs(call.host_of);
        // SAFETY: what is known was made from this graph; arrays of the host are as they were
        // (caller).
        unsafe { self.read_inputs() };
        if !are_there {
            self.flags |= flags::BAD_INDEX;
        }
        let kept = &self.graphs[self.current];
        let (template, steps) = (kept.known.template, kept.known.steps);
        let accesses = kept.known.accesses;
        let launches = kept.launches.map_or(0, |number| u64::from(number) + 1);
        let tokens = kept.known.tokens;
        let phase = match tokens {
            Some(_) => self.phase(&kept.known),
            // The tokens are in a part of the graph that was computed before.
            None => self.last_phase,
        };
        self.last_phase = phase;
        let words = EVAL_HEAD_WORDS + self.begin_words.len() + 1 + EVAL_TAIL_WORDS;
        if !self.write_definitions() || !self.appender.begin(RecordKind::Evaluation, words) {
            self.status.count_lost(steps as u64, accesses);
            return None;
        }
        let mut flags = self.flags;
        if call.is_aborted {
            flags |= flags::ABORTED;
        }
        if call.is_measured_later {
            flags |= flags::MEASURED_LATER;
        }
        let head = [
            number,
            u64::from(template) | (phase as u64) << 32,
            self.batch.context,
            call.begin_nanos,
            self.begin_words.len() as u64,
        ];
        let begin = std::mem::take(&mut self.begin_words);
        let tail = [
            launches,
            call.end_nanos,
            steps as u64 & 0xffff_ffff | u64::from(flags) << 32,
        ];
        for word in head.into_iter().chain(begin.iter().copied()).chain(tail) {
            self.appender.put(word);
        }
        self.begin_words = begin;
        self.appender.commit();
        self.appender.count_bytes(words);
        self.status.count_committed();
        self.counts.evaluations += 1;
        self.counts.steps += steps as u64;
        self.counts.accesses += accesses;
        let known = &self.graphs[self.current].known;
        self.counts.unknown_ops += known.unknown_ops;
        self.counts.tokens += tokens.map_or(0, |index| known.begin[index].elements() as u64);
        Some(Logged {
            evaluation: number,
            begin_nanos: call.begin_nanos,
            template,
            first_nodes: known.first_nodes.clone(),
        })
    }

    /// Stores what was measured of an earlier evaluation, with its kernels if these were seen
    /// only by the measurement; `false` when that is not possible.
    pub fn measured(
        &mut self,
        mut measured: Measured,
        of: Logged,
        seen: Option<&[Launch]>,
    ) -> bool {
        measured.evaluation = of.evaluation;
        measured.launches = seen.map(|seen| self.launches_of(of.template, &of.first_nodes, seen));
        let words = measured.to_words(gather::encode);
        self.write_definitions() && self.append(RecordKind::Measured, &words)
    }

    /// Arrays of the graph that was evaluated last that only the device has.
    pub fn late(&self) -> &[Late] {
        let kept = self.graphs.get(self.current);
        kept.map_or(&[], |kept| &kept.known.late)
    }

    /// The kernels of the graph that was evaluated last, if its graph of the device's own was
    /// seen being recorded.
    pub fn launches(&self) -> Option<Arc<[Launch]>> {
        self.graphs.get(self.current)?.kernels.clone()
    }

    /// Stores a copy of bytes of `tensor` to or from a device.
    ///
    /// # Safety
    /// A live tensor of the library that this recorder knows.
    pub unsafe fn copy(&mut self, tensor: Tensor<'_>, device: &Device, copy: &CopyCall) -> bool {
        let root = tensor.root();
        let device = self.interner_device(device);
        let surroundings = self.surroundings.as_ref();
        let number = known::tensor(surroundings, &self.knowledge, &mut self.interner, root);
        let copy = Copy {
            begin_nanos: copy.begin_nanos,
            end_nanos: copy.end_nanos,
            tensor: number,
            way: copy.way,
            is_async: copy.is_async,
            tensor_offset: tensor.offset_in_root().wrapping_add(copy.offset),
            bytes: copy.bytes,
            evaluation: self.evaluations,
            context: self.batch.context,
            device,
        };
        self.write_definitions() && self.append(RecordKind::Copy, &copy.to_words())
    }

    fn append(&mut self, kind: RecordKind, words: &[u64]) -> bool {
        if !self.appender.begin(kind, words.len()) {
            return false;
        }
        words.iter().for_each(|&word| self.appender.put(word));
        self.appender.commit();
        self.appender.count_bytes(words.len());
        true
    }

    fn interner_device(&mut self, device: &Device) -> u32 {
        let def = DeviceDef {
            name: self.interner.text(&device.name),
            description: self.interner.text(&device.description),
            memory_bytes: device.memory_bytes,
        };
        self.interner.device(def)
    }

    /// Says where the host has the inputs this time; `false` if one is nowhere.
    fn find_inputs(&mut self, host_of: &HostOf<'_>) -> bool {
        let known = &mut self.graphs[self.current].known;
        let mut are_there = true;
        for (source, &tensor) in known.begin.iter_mut().zip(&known.begin_tensors) {
            // SAFETY: of the graph that is live.
            let tensor = unsafe { Tensor::from_ptr(tensor) };
            let host = tensor.and_then(host_of);
            are_there &= host.is_some();
            source.data = host.unwrap_or(std::ptr::null());
        }
        are_there
    }

    fn find_device_graph(&mut self, call: &DeviceCall<'_, '_>, device: u32) -> usize {
        let key = GraphKey::OnDevice {
            device,
            uid: call.graph.uid(),
        };
        let has_number = call.graph.uid() != 0;
        let known = self.graphs.find(self.current, |kept| kept.key == key);
        if let Some(index) = known.filter(|_| has_number) {
            return index;
        }
        let fingerprint = fingerprint(call.graph);
        let equal = self.graphs.find(self.current, |kept| {
            let is_here = matches!(kept.key, GraphKey::OnDevice { device: d, .. } if d == device);
            is_here && kept.fingerprint == fingerprint
        });
        if let Some(index) = equal {
            self.graphs[index].key = key;
            return index;
        }
        let asked = match call.how {
            Launched::Anew(asked) => asked(),
            Launched::Again => None,
        };
        let on_device = OnDevice {
            number: device,
            asked: asked.as_deref(),
            host_of: call.host_of,
        };
        let known = KnownGraph::build_in(
            self.surroundings.as_ref(),
            Some(&on_device),
            call.graph,
            &self.knowledge,
            &mut self.interner,
        );
        self.counts.templates = self.counts.templates.max(u64::from(known.template) + 1);
        self.graphs.keep(KeptGraph {
            key,
            known,
            fingerprint,
            launches: None,
            kernels: None,
        })
    }

    /// From now on these are the kernels of the graph that was found last.
    fn keep_launches(&mut self, launches: &[Launch]) {
        let known = &self.graphs[self.current].known;
        let (template, first_nodes) = (known.template, known.first_nodes.clone());
        let number = self.launches_of(template, &first_nodes, launches);
        let kept = &mut self.graphs[self.current];
        kept.launches = Some(number);
        kept.kernels = Some(launches.into());
    }

    /// The number in the log of these kernels of a graph, whose steps begin with these nodes.
    fn launches_of(&mut self, template: u32, first_nodes: &[u32], launches: &[Launch]) -> u32 {
        let step_of = |node: u32| {
            let after = first_nodes.partition_point(|&first| first <= node);
            after.checked_sub(1).map(|step| step as u32)
        };
        let interner = &mut self.interner;
        let kernels = launches.iter().map(|launch| KernelDef {
            step: launch.node.and_then(step_of),
            kind: launch.kind,
            name: interner.text(&launch.name),
            grid: launch.grid,
            block: launch.block,
        });
        let all = Launches {
            template,
            kernels: kernels.collect(),
        };
        self.interner.launches(all)
    }
}

/// A copy, as its call says.
pub struct CopyCall {
    pub way: Way,
    pub is_async: bool,
    /// In the tensor.
    pub offset: u64,
    pub bytes: u64,
    pub begin_nanos: u64,
    pub end_nanos: u64,
}
