//! A bounded queue between exactly one producer and one consumer, without locks.
//!
//! Protocol:
//! 1. The producer owns slots `tail..head + N`, the consumer `head..tail`.
//! 2. The producer fills a slot, then publishes it by storing `tail + 1` with
//!    Release; the consumer sees it after loading `tail` with Acquire.
//! 3. The consumer empties a slot, then gives it back by storing `head + 1` with
//!    Release; the producer sees that after loading `head` with Acquire.
//!
//! The recording thread must never wait for the thread that prepares segments,
//! nor allocate: both ends are wait-free. Model-checked with loom (see tests).

#[cfg(loom)]
use loom::{
    cell::UnsafeCell,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
#[cfg(not(loom))]
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

#[cfg(not(loom))]
struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    fn new(value: T) -> Self {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

struct Shared<T> {
    slots: Box<[UnsafeCell<Option<T>>]>,
    /// Next slot to take; written by the consumer only.
    head: AtomicUsize,
    /// Next slot to fill; written by the producer only.
    tail: AtomicUsize,
}

// SAFETY: a slot is touched by one side at a time (see the protocol), and moving
// a `T` from one side to the other is sending it.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Shared<T> {}

/// The end that puts values in.
pub struct Producer<T>(Arc<Shared<T>>);

/// The end that takes values out.
pub struct Consumer<T>(Arc<Shared<T>>);

/// A queue of `capacity` values.
pub fn queue<T>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    let shared = Arc::new(Shared {
        slots: (0..capacity).map(|_| UnsafeCell::new(None)).collect(),
        head: AtomicUsize::new(0),
        tail: AtomicUsize::new(0),
    });
    (Producer(shared.clone()), Consumer(shared))
}

impl<T> Producer<T> {
    /// Gives the value back when the queue is full.
    pub fn push(&mut self, value: T) -> Result<(), T> {
        let shared = &*self.0;
        let tail = shared.tail.load(Ordering::Relaxed);
        if tail.wrapping_sub(shared.head.load(Ordering::Acquire)) == shared.slots.len() {
            return Err(value);
        }
        // SAFETY: slot `tail` lies in the producer's part, and `&mut self` keeps
        // a second push away.
        shared.slots[tail % shared.slots.len()].with_mut(|slot| unsafe { *slot = Some(value) });
        shared.tail.store(tail.wrapping_add(1), Ordering::Release);
        Ok(())
    }

    /// Values that the consumer has not taken yet; it may take more at any moment.
    pub fn len(&self) -> usize {
        let shared = &*self.0;
        shared
            .tail
            .load(Ordering::Relaxed)
            .wrapping_sub(shared.head.load(Ordering::Acquire))
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Consumer<T> {
    pub fn pop(&mut self) -> Option<T> {
        let shared = &*self.0;
        let head = shared.head.load(Ordering::Relaxed);
        if head == shared.tail.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: slot `head` lies in the consumer's part, and `&mut self` keeps
        // a second pop away.
        let value =
            shared.slots[head % shared.slots.len()].with_mut(|slot| unsafe { (*slot).take() });
        shared.head.store(head.wrapping_add(1), Ordering::Release);
        value
    }

    /// Values that can be popped now; more may arrive at any moment.
    pub fn len(&self) -> usize {
        let shared = &*self.0;
        shared
            .tail
            .load(Ordering::Acquire)
            .wrapping_sub(shared.head.load(Ordering::Relaxed))
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    #[test]
    fn loom_values_arrive_once_and_in_order() {
        loom::model(|| {
            let (mut producer, mut consumer) = queue::<u32>(2);
            let thread = loom::thread::spawn(move || {
                for value in 0..3 {
                    let mut value = value;
                    while let Err(back) = producer.push(value) {
                        value = back;
                        loom::thread::yield_now();
                    }
                }
            });
            let mut seen = Vec::new();
            while seen.len() < 3 {
                match consumer.pop() {
                    Some(value) => seen.push(value),
                    None => loom::thread::yield_now(),
                }
            }
            thread.join().unwrap();
            assert_eq!(seen, [0, 1, 2]);
            assert!(consumer.pop().is_none());
        });
    }

    #[test]
    fn loom_what_len_promises_can_be_popped() {
        loom::model(|| {
            let (mut producer, mut consumer) = queue::<u32>(2);
            let thread = loom::thread::spawn(move || {
                let _ = producer.push(7);
                let _ = producer.push(8);
            });
            let promised = consumer.len();
            for _ in 0..promised {
                assert!(consumer.pop().is_some());
            }
            thread.join().unwrap();
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_gives_the_value_back() {
        let (mut producer, mut consumer) = queue(2);
        assert!(producer.push(1).is_ok() && producer.push(2).is_ok());
        assert_eq!(producer.push(3), Err(3));
        assert_eq!(producer.len(), 2);
        assert_eq!((consumer.pop(), consumer.len()), (Some(1), 1));
        assert!(producer.push(3).is_ok());
        assert_eq!(
            (consumer.pop(), consumer.pop(), consumer.pop()),
            (Some(2), Some(3), None)
        );
    }
}
