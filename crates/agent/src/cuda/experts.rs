//! Which experts a router on the card has chosen, read back without waiting.
//!
//! The ids are in the card's memory, and that is used for something else soon after. So they
//! are copied to the host in the card's own order: when the backend asks about the first node
//! that uses them, everything that makes them was launched, and what overwrites them was not.
//! Nobody waits: they are looked at when the evaluation has ended ([`super::Pending`]).
//!
//! Each copy takes a microsecond or two of the card's time, in every layer. So it is done for
//! prompts, and otherwise for the first evaluations and one of many later. Evaluations that
//! launch a graph of the card's own, recorded before, have none: nothing is added to the
//! program's graphs.

use std::{
    cell::{Cell, RefCell},
    ffi::c_void,
    mem::ManuallyDrop,
};

use capture::gather::{BAD_INDEX, Source, in_bounds};
use ggml::{Op, RawTensor, Tensor};
use gguf::types::GgmlType;

use super::{clock::Span, driver::Copies};
use crate::library;

/// Memory for ids that are on their way.
const MEMORY_BYTES: usize = 8 << 20;
/// Evaluations with one token for each sequence that are read back at first, …
const FIRST: u64 = 8;
/// … and which of those later.
const EVERY: u64 = 32;

struct Reading {
    memory: Cell<*mut u8>,
    used: Cell<usize>,
    /// Copies that were not looked at yet: while there are any, no memory is used again.
    outstanding: Cell<usize>,
    evaluations: Cell<u64>,
    /// Of the evaluation that is being launched.
    list: RefCell<ManuallyDrop<Vec<ReadBack>>>,
}

thread_local! {
    static READING: Reading = const {
        Reading {
            memory: Cell::new(std::ptr::null_mut()),
            used: Cell::new(0),
            outstanding: Cell::new(0),
            evaluations: Cell::new(0),
            list: RefCell::new(ManuallyDrop::new(Vec::new())),
        }
    };
}

/// Ids that are on their way to the host.
#[derive(Debug)]
pub struct ReadBack {
    pub tensor: *const RawTensor,
    host: *const u8,
    bytes: usize,
}

// SAFETY: the memory is never freed, and one thread at a time has the stream that holds this.
unsafe impl Send for ReadBack {}

pub fn begin() {
    READING.with(|reading| reading.list.borrow_mut().clear());
}

pub fn end() -> Vec<ReadBack> {
    READING.with(|reading| {
        let list = std::mem::take(&mut **reading.list.borrow_mut());
        reading
            .evaluations
            .set(reading.evaluations.get() + u64::from(!list.is_empty()));
        reading
            .outstanding
            .set(reading.outstanding.get() + list.len());
        list
    })
}

/// The backend asks about a node that it is about to launch by itself.
pub fn asked(node: *const RawTensor, span: &Span) {
    let Some(library) = library::any().filter(|library| library.is_laid_out_as_today()) else {
        return;
    };
    // SAFETY: a node of the graph that is being launched.
    let Some(node) = (unsafe { Tensor::from_ptr(node) }) else {
        return;
    };
    if library.knowledge.ops.op_of(node) != Op::MUL_MAT_ID {
        return;
    }
    if let Some(ids) = node.src(2).filter(|ids| ids.ty() == GgmlType::I32.as_u32()) {
        READING.with(|reading| reading.read(ids, span.stream()));
    }
}

impl Reading {
    fn read(&self, ids: Tensor<'_>, stream: *mut c_void) -> Option<()> {
        let is_prompt = ids.extent(1) > 1;
        let number = self.evaluations.get();
        if !is_prompt && number >= FIRST && !number.is_multiple_of(EVERY) {
            // Counted all the same, once an evaluation.
            if self.list.borrow().is_empty() {
                self.evaluations.set(number + 1);
            }
            return None;
        }
        let mut list = self.list.borrow_mut();
        if list
            .iter()
            .any(|read| std::ptr::eq(read.tensor, ids.as_ptr()))
        {
            return None;
        }
        let copies = Copies::get()?;
        if self.memory.get().is_null() {
            self.memory.set(copies.memory(MEMORY_BYTES)?);
        }
        if self.outstanding.get() == 0 && list.is_empty() {
            self.used.set(0);
        }
        let bytes = usize::try_from(ids.nbytes()).ok()?;
        let used = self.used.get();
        let end = used.checked_add(bytes.next_multiple_of(64))?;
        if end > MEMORY_BYTES {
            return None;
        }
        // SAFETY: so much memory is there, and nobody else has this part of it.
        let host = unsafe { self.memory.get().add(used) };
        // SAFETY: as above; the ids are the card's until later nodes, which were not launched.
        if unsafe { copies.copy(host, ids.data() as u64, bytes, stream) } {
            self.used.set(end);
            list.push(ReadBack {
                tensor: ids.as_ptr(),
                host,
                bytes,
            });
        }
        Some(())
    }
}

impl ReadBack {
    /// The ids, which are there: the evaluation has ended.
    pub fn values(&self, shape: &Source) -> Vec<i64> {
        let source = Source {
            data: self.host,
            ..*shape
        };
        let span = |i: usize| source.count[i].saturating_sub(1) * source.strides_bytes[i];
        if span(0) + span(1) + span(2) + size_of::<i32>() > self.bytes {
            return Vec::new();
        }
        let mut values = Vec::with_capacity(source.elements());
        // SAFETY: inside of what was copied, and the card has written it.
        unsafe {
            source.for_each(|value| {
                let is_good = in_bounds(value, source.bound);
                values.push(if is_good { value } else { BAD_INDEX });
            });
        }
        values
    }

    /// Its memory may be used again.
    pub fn done(self) {
        READING.with(|reading| {
            reading
                .outstanding
                .set(reading.outstanding.get().saturating_sub(1));
        });
    }
}
