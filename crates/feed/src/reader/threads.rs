//! Reads by threads that call pread, where there is no io_uring.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use support::direct::{Read, Waiting, forget, pread};

/// More threads than this gain nothing: each keeps a read in flight.
const MAX_THREADS: u32 = 16;

pub struct Threads {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    queues: Mutex<Queues>,
    asked: Condvar,
    answered: Condvar,
}

#[derive(Default)]
struct Queues {
    asked: VecDeque<Read>,
    answered: Vec<(u32, i32)>,
    is_over: bool,
}

impl Shared {
    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Threads {
    pub fn new(depth: u32, is_direct: bool) -> io::Result<Threads> {
        let shared = Arc::new(Shared::default());
        let mut threads = Threads {
            shared: shared.clone(),
            threads: Vec::new(),
        };
        for _ in 0..depth.clamp(1, MAX_THREADS) {
            let shared = shared.clone();
            let builder = std::thread::Builder::new()
                .name("tensorscope-read".into())
                .stack_size(64 << 10);
            threads
                .threads
                .push(builder.spawn(move || serve(&shared, is_direct))?);
        }
        Ok(threads)
    }

    pub fn push(&mut self, read: Read) {
        self.shared.queues().asked.push_back(read);
        self.shared.asked.notify_one();
    }

    pub fn reap(&mut self, waiting: Waiting, done: &mut Vec<(u32, i32)>) {
        let mut queues = self.shared.queues();
        while queues.answered.is_empty() && waiting == Waiting::ForOne {
            queues = self
                .shared
                .answered
                .wait(queues)
                .unwrap_or_else(PoisonError::into_inner);
        }
        done.append(&mut queues.answered);
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.queues().is_over = true;
        self.shared.asked.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn serve(shared: &Shared, is_direct: bool) {
    let mut queues = shared.queues();
    loop {
        let Some(read) = queues.asked.pop_front() else {
            if queues.is_over {
                return;
            }
            queues = shared
                .asked
                .wait(queues)
                .unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        drop(queues);
        let result = read_one(&read, is_direct);
        queues = shared.queues();
        queues.answered.push((read.slot, result));
        shared.answered.notify_one();
    }
}

fn read_one(read: &Read, is_direct: bool) -> i32 {
    // SAFETY: the place is the read's alone until it is answered (contract of
    // `Reader::push`), and the descriptor is open as long as the files.
    let got = unsafe { pread(read) };
    if !is_direct && got > 0 {
        // The cache would keep what we keep already.
        forget(read.fd, read.offset, got as u32);
    }
    got
}
