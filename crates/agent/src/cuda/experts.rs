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
    sync::atomic::{AtomicUsize, Ordering},
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
    memory: Cell<Option<&'static Memory>>,
    used: Cell<usize>,
    evaluations: Cell<u64>,
    /// Of the evaluation that is being launched.
    list: RefCell<ManuallyDrop<Vec<ReadBack>>>,
}

thread_local! {
    static READING: Reading = const {
        Reading {
            memory: Cell::new(None),
            used: Cell::new(0),
            evaluations: Cell::new(0),
            list: RefCell::new(ManuallyDrop::new(Vec::new())),
        }
    };
}

/// Of one thread that launches, and never freed: such threads are few.
struct Memory {
    start: *mut u8,
    /// Pieces that somebody has, maybe another thread: while there are any, none is used again.
    outstanding: AtomicUsize,
}

// SAFETY: the thread that has it hands out pieces of it, each to one owner; the rest is atomic.
unsafe impl Sync for Memory {}

/// A part of it that nobody else has.
struct Piece {
    memory: &'static Memory,
    host: *mut u8,
    bytes: usize,
    /// The card may write here at any time: it is never used again.
    is_given_up: bool,
}

impl Drop for Piece {
    fn drop(&mut self) {
        if !self.is_given_up {
            self.memory.outstanding.fetch_sub(1, Ordering::Release);
        }
    }
}

/// Ids that are on their way to the host. Whoever drops it says that they are there.
pub struct ReadBack {
    pub tensor: *const RawTensor,
    piece: Piece,
}

// SAFETY: the memory is never freed, and the tensor's address is only compared.
unsafe impl Send for ReadBack {}

pub fn begin() {
    READING.with(|reading| {
        // Of a launch that nobody saw ending.
        let left = std::mem::take(&mut **reading.list.borrow_mut());
        left.into_iter().for_each(ReadBack::give_up);
    });
}

/// Whether what was read before should be looked at, so that there is memory for the next
/// evaluation.
pub fn is_short_of_memory() -> bool {
    READING.with(|reading| reading.used.get() > MEMORY_BYTES / 2)
}

pub fn end() -> Vec<ReadBack> {
    READING.with(|reading| {
        let list = std::mem::take(&mut **reading.list.borrow_mut());
        reading
            .evaluations
            .set(reading.evaluations.get() + u64::from(!list.is_empty()));
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
        if self.memory.get().is_none() {
            let memory = Memory {
                start: copies.memory(MEMORY_BYTES)?,
                outstanding: AtomicUsize::new(0),
            };
            self.memory.set(Some(Box::leak(Box::new(memory))));
        }
        let piece = self.piece(usize::try_from(ids.nbytes()).ok()?)?;
        // SAFETY: memory that nobody else has; the ids are the card's until later nodes, which
        // were not launched.
        if unsafe { copies.copy(piece.host, ids.data() as u64, piece.bytes, stream) } {
            list.push(ReadBack {
                tensor: ids.as_ptr(),
                piece,
            });
        }
        Some(())
    }

    fn piece(&self, bytes: usize) -> Option<Piece> {
        let memory = self.memory.get()?;
        if memory.outstanding.load(Ordering::Acquire) == 0 {
            self.used.set(0);
        }
        let used = self.used.get();
        let end = used.checked_add(bytes.checked_next_multiple_of(64)?)?;
        if end > MEMORY_BYTES {
            return None;
        }
        self.used.set(end);
        memory.outstanding.fetch_add(1, Ordering::Relaxed);
        Some(Piece {
            memory,
            // So much memory is there.
            host: memory.start.wrapping_add(used),
            bytes,
            is_given_up: false,
        })
    }
}

impl ReadBack {
    /// The ids, which are there: the evaluation has ended.
    pub fn values(&self, shape: &Source) -> Vec<i64> {
        let source = Source {
            data: self.piece.host.cast_const(),
            ..*shape
        };
        let span = |i: usize| source.count[i].saturating_sub(1) * source.strides_bytes[i];
        if span(0) + span(1) + span(2) + size_of::<i32>() > self.piece.bytes {
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

    /// The card may still be writing, and nobody will ask whether it has ended.
    pub fn give_up(mut self) {
        self.piece.is_given_up = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread's memory, of which nothing is written.
    fn reading() -> Reading {
        let memory = Memory {
            start: std::ptr::without_provenance_mut(64),
            outstanding: AtomicUsize::new(0),
        };
        Reading {
            memory: Cell::new(Some(Box::leak(Box::new(memory)))),
            used: Cell::new(0),
            evaluations: Cell::new(0),
            list: RefCell::new(ManuallyDrop::new(Vec::new())),
        }
    }

    fn read_back(piece: Piece) -> ReadBack {
        ReadBack {
            tensor: std::ptr::null(),
            piece,
        }
    }

    #[test]
    fn memory_is_used_again_when_all_of_it_was_given_back_by_whichever_thread() {
        let reading = reading();
        let half = MEMORY_BYTES / 2;
        let all = [half, half - 63].map(|bytes| read_back(reading.piece(bytes).unwrap()));
        assert!(reading.piece(1).is_none());
        let [first, second] = all;
        drop(second);
        assert!(reading.piece(1).is_none(), "the first is still on its way");
        std::thread::scope(|scope| {
            scope.spawn(move || drop(first));
        });
        assert_eq!(reading.piece(MEMORY_BYTES).unwrap().host.addr(), 64);
    }

    #[test]
    fn where_the_card_may_still_write_nothing_is_read_again() {
        let reading = reading();
        read_back(reading.piece(64).unwrap()).give_up();
        assert_eq!(reading.piece(64).unwrap().host.addr(), 128);
        assert!(reading.piece(MEMORY_BYTES - 64).is_none());
    }
}
