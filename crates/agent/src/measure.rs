//! `tensorscope bench overhead -- PROGRAM`: what recording costs this program.
//!
//! Evaluations take turns: passed on, passed on once more (the noise), recorded;
//! the order rotates from round to round. How long each took, and what of it was
//! spent in here, is noted in `log/turns-NNNN`: five 64-bit words, little-endian,
//! for each evaluation.

use std::{
    fs::{File, OpenOptions},
    io::Write,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::{lock::Lock, process::Process};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Turn {
    PassedOn = 0,
    PassedOnAgain = 1,
    Recorded = 2,
}

impl Turn {
    const ALL: [Turn; 3] = [Turn::PassedOn, Turn::PassedOnAgain, Turn::Recorded];

    /// Of the evaluation that begins, and the number of its round.
    pub fn next() -> (Turn, u64) {
        static EVALUATIONS: AtomicU64 = AtomicU64::new(0);
        let number = EVALUATIONS.fetch_add(1, Ordering::Relaxed);
        let round = number / 3;
        (Turn::ALL[((number + round) % 3) as usize], round)
    }
}

/// How one evaluation went.
pub struct Note {
    pub turn: Turn,
    pub round: u64,
    pub nodes: u64,
    pub nanos: u64,
    /// See `capture::recorder::cycles`.
    pub cycles_inside_us: u64,
}

static FILE: Lock<Option<File>> = Lock::new(None);

pub fn note(process: &Process, note: &Note) {
    FILE.with(|file| {
        if file.is_none() {
            let name = format!("turns-{:04}", process.number);
            let path = process.log_directory.join(name);
            *file = OpenOptions::new().create(true).append(true).open(path).ok();
        }
        let words = [
            note.turn as u64,
            note.round,
            note.nodes,
            note.nanos,
            note.cycles_inside_us,
        ];
        let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        if let Some(file) = file {
            // What cannot be noted is not measured.
            let _ = file.write_all(&bytes);
        }
    });
}
