//! Closing the stream of a process that ended without doing so.
//!
//! A process that is killed, or leaves by `_exit`, cannot close its streams.
//! Every record that it completed is there; only the end is missing, and the
//! segments that were prepared and never used are in the way. Whoever waited for
//! the process does both, when it is surely gone.

use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::Path,
};

use crate::{
    format::{
        COMMIT, Checksum, RECORD_HEADER_WORDS, RECORD_TRAILER_WORDS, RecordKind,
        SEGMENT_HEADER_BYTES, length_word,
    },
    read::{Event, ReadError, StreamEnd, StreamReader, Writer},
    segment::{Segment, segment_path},
};

/// What [`seal`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sealed {
    /// The process closed the stream itself.
    WasClosed,
    Now,
    /// An evaluation was going on, or something is damaged: the stream stays as it
    /// is, and readers say so.
    CannotBe,
}

/// Closes stream `stream`, which nobody writes any more.
pub fn seal(log_directory: &Path, stream: u32) -> Result<Sealed, ReadError> {
    let mut reader = StreamReader::open(log_directory, stream)?;
    while let Some(event) = reader.next_event()? {
        if !matches!(event, Event::Evaluation(_) | Event::Copy(_)) {
            return Ok(Sealed::CannotBe);
        }
    }
    if reader.end() == StreamEnd::Closed {
        return Ok(Sealed::WasClosed);
    }
    // A record that was begun is counted until reading goes on behind it: then
    // the end would have to be written into it.
    let bytes_with_it = reader.record_bytes();
    reader.resume(Writer::Gone);
    if reader.record_bytes() != bytes_with_it {
        return Ok(Sealed::CannotBe);
    }
    match write_end(log_directory, stream, reader.record_bytes() / 8) {
        Ok(sealed) => Ok(sealed),
        Err(cause) => Err(ReadError::Io {
            path: log_directory.to_owned(),
            cause,
        }),
    }
}

fn write_end(log_directory: &Path, stream: u32, at_word: u64) -> io::Result<Sealed> {
    let first = RecordKind::End.to_word();
    let length = length_word(RecordKind::End, 0);
    let mut checksum = Checksum::START;
    checksum.add(first);
    checksum.add(length);
    let words: [u64; RECORD_HEADER_WORDS + RECORD_TRAILER_WORDS] =
        [first, length, checksum.value(), COMMIT];
    // No segment of an open stream was cut, so the first tells the size of all.
    let first_bytes = fs::metadata(segment_path(log_directory, stream, 0))?.len();
    let capacity = Segment::capacity_words(first_bytes as usize) as u64;
    let segment_of = |word: u64| u32::try_from(word / capacity).map_err(io::Error::other);
    let last = segment_of(at_word + words.len() as u64 - 1)?;
    // The record may run over into a segment that was prepared; if there is none,
    // the end stays open.
    if !segment_path(log_directory, stream, last).exists() {
        return Ok(Sealed::CannotBe);
    }
    for (word, place) in words.into_iter().zip(at_word..) {
        let path = segment_path(log_directory, stream, segment_of(place)?);
        let offset = SEGMENT_HEADER_BYTES as u64 + place % capacity * 8;
        let file = OpenOptions::new().write(true).open(path)?;
        file.write_all_at(&word.to_le_bytes(), offset)?;
        if word == COMMIT {
            file.set_len(offset + 8)?;
        }
    }
    for unused in last + 1.. {
        match fs::remove_file(segment_path(log_directory, stream, unused)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            removed => removed?,
        }
    }
    Ok(Sealed::Now)
}
