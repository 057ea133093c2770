//! The records of a stream, across its segments, as the files have them.
//!
//! What a reader must be able to tell apart:
//! 1. the end: a first word of zero and nothing but zeros behind it (segments are
//!    prepared ahead, so a killed process leaves some), or no further segment;
//! 2. a record that was never completed: no commit word, and nothing behind it;
//! 3. damage: everything else that does not fit. The header of a record checks
//!    itself, so damage in a body costs one record, damage in a header the rest.
//!
//! The log may be growing while it is read, and a file is not read in one
//! instant: a commit word may be seen with a body from before. So damage is
//! believed only when reading again shows it again. One reading suffices for
//! that, because whoever saw a word sees the words stored before it next time.
//!
//! Words are read in chunks. At the end, and at a record that is not complete,
//! the reading position goes back to where that record begins, file and chunk are
//! let go, and the next call looks at the files anew: so a log is followed while
//! it grows, and a reader that waits holds nothing but its position.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use crate::{
    format::{
        COMMIT, Checksum, RECORD_HEADER_WORDS, RECORD_TRAILER_WORDS, RecordKind,
        SEGMENT_HEADER_BYTES, SEGMENT_MAGIC, VERSION, length_from_word,
    },
    read::{ReadError, Writer},
    segment::segment_path,
};

/// How often what looks damaged is read again.
const READ_AGAIN: usize = 3;
/// Words that are read at a time.
const CHUNK_WORDS: usize = 8192;
/// How far behind the last record a reader looks for more while the log grows.
const NEAR_WORDS: u64 = 8192;

/// What stands at the reading position.
pub enum Framed {
    Record {
        kind: RecordKind,
        body: Vec<u64>,
    },
    /// Begun and never completed; what is missing of its body is missing here or zero.
    Incomplete {
        kind: RecordKind,
        body: Vec<u64>,
    },
    /// Its kind is known and the reading position stands behind it.
    Damaged {
        kind: RecordKind,
        reason: &'static str,
    },
    /// Nothing behind this can be found.
    Lost {
        reason: &'static str,
    },
    End,
}

/// A place in a stream: a segment and a word of it, from its header on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    index: u32,
    at: usize,
}

/// The words of a stream.
pub struct Words {
    log_directory: PathBuf,
    stream: u32,
    /// The next word.
    position: Position,
    /// Where the record begins that was asked for last.
    record: Position,
    record_header_bytes: usize,
    /// The segment of the position; none while nothing is read.
    segment: Option<Segment>,
    /// Words of it, from `chunk_at` on.
    chunk: Vec<u64>,
    chunk_at: usize,
    /// How many words behind the last record must be zero.
    look_words: u64,
}

impl Words {
    pub fn open(log_directory: &Path, stream: u32) -> Result<Words, ReadError> {
        let start = Position { index: 0, at: 0 };
        let mut words = Words {
            log_directory: log_directory.to_owned(),
            stream,
            position: start,
            record: start,
            record_header_bytes: SEGMENT_HEADER_BYTES,
            segment: None,
            chunk: Vec::new(),
            chunk_at: 0,
            look_words: u64::MAX,
        };
        match words.find_segment(0)? {
            Found::Segment(segment) => words.enter(0, segment)?,
            // Killed while it was opened, or just about to be: an empty stream.
            Found::Unfinished => {}
            Found::Nothing => {
                return Err(ReadError::NoSegments {
                    path: log_directory.to_owned(),
                });
            }
        }
        Ok(words)
    }

    /// Says who may append while the next records are read.
    pub fn expect(&mut self, writer: Writer) {
        self.look_words = match writer {
            Writer::Running => NEAR_WORDS,
            Writer::Gone => u64::MAX,
        };
    }

    /// Where the record begins that was asked for last.
    pub fn record(&self) -> Position {
        self.record
    }

    /// File and byte of that.
    pub fn place(&self) -> (PathBuf, u64) {
        let offset = self.record_header_bytes + self.record.at * 8;
        (self.path(self.record.index), offset as u64)
    }

    /// The next record. Also returns the bytes that it occupies. After the end,
    /// after a record that is not complete and after an error, the next call
    /// looks at the same place again.
    pub fn next_record(&mut self) -> Result<(Framed, u64), ReadError> {
        let framed = self.read_believed();
        if matches!(
            framed,
            Err(_) | Ok(Framed::End | Framed::Incomplete { .. } | Framed::Lost { .. })
        ) {
            self.leave_to(self.record);
        }
        let framed = framed?;
        let body = match &framed {
            Framed::Record { body, .. } | Framed::Incomplete { body, .. } => body.len(),
            _ => return Ok((framed, 0)),
        };
        let words = body + RECORD_HEADER_WORDS + RECORD_TRAILER_WORDS;
        Ok((framed, words as u64 * 8))
    }

    fn read_believed(&mut self) -> Result<Framed, ReadError> {
        self.record = self.position;
        if !self.enter_again()? {
            return Ok(Framed::End);
        }
        if let Some(segment) = &self.segment {
            self.record_header_bytes = segment.header_bytes;
        }
        let mut framed = self.read_record()?;
        for _ in 0..READ_AGAIN {
            if !matches!(framed, Framed::Damaged { .. } | Framed::Lost { .. }) {
                break;
            }
            self.leave_to(self.record);
            self.enter_again()?;
            framed = self.read_record()?;
        }
        Ok(framed)
    }

    fn read_record(&mut self) -> Result<Framed, ReadError> {
        let first = match self.next()? {
            None => return Ok(Framed::End),
            Some(0) if self.rest_is_zero()? => return Ok(Framed::End),
            Some(0) => {
                return Ok(Framed::Lost {
                    reason: "zeros stand where a record should, and more follows",
                });
            }
            Some(word) => word,
        };
        let Some(kind) = RecordKind::from_word(first) else {
            return Ok(Framed::Lost {
                reason: "no record starts here",
            });
        };
        let length = match self.next()? {
            None => {
                return Ok(Framed::Incomplete {
                    kind,
                    body: Vec::new(),
                });
            }
            Some(0) if self.rest_is_zero()? => {
                return Ok(Framed::Incomplete {
                    kind,
                    body: Vec::new(),
                });
            }
            Some(word) => match length_from_word(kind, word) {
                Some(length) => length,
                None => {
                    return Ok(Framed::Lost {
                        reason: "the header of a record is damaged",
                    });
                }
            },
        };
        let mut expected = Checksum::START;
        expected.add(first);
        expected.add(crate::format::length_word(kind, length));
        let body = self.take(length as usize)?;
        body.iter().for_each(|&word| expected.add(word));
        let trailer = self.take(RECORD_TRAILER_WORDS)?;
        let &[checksum, commit] = trailer.as_slice() else {
            return Ok(Framed::Incomplete { kind, body });
        };
        Ok(match commit {
            COMMIT if expected.value() == checksum => Framed::Record { kind, body },
            COMMIT => Framed::Damaged {
                kind,
                reason: "the record's checksum is wrong",
            },
            0 if self.rest_is_zero()? => Framed::Incomplete { kind, body },
            0 => Framed::Damaged {
                kind,
                reason: "the record was never completed, but others follow",
            },
            _ => Framed::Damaged {
                kind,
                reason: "the record's last word is damaged",
            },
        })
    }

    /// Lets go of what was read, and stands at `position`.
    fn leave_to(&mut self, position: Position) {
        self.position = position;
        self.segment = None;
        self.chunk = Vec::new();
        self.chunk_at = 0;
    }

    /// Opens the segment of the position if that was left. `false` when it is the
    /// first one and not there yet.
    fn enter_again(&mut self) -> Result<bool, ReadError> {
        if self.segment.is_some() {
            return Ok(true);
        }
        let Position { index, at } = self.position;
        match self.find_segment(index)? {
            Found::Segment(segment) if at <= segment.words => {
                self.segment = Some(segment);
                self.chunk_at = at;
                Ok(true)
            }
            Found::Segment(_) => Err(ReadError::Damaged {
                path: self.path(index),
                offset: 0,
                reason: "the segment became shorter while it was read".into(),
            }),
            Found::Unfinished if self.position == (Position { index: 0, at: 0 }) => Ok(false),
            Found::Unfinished | Found::Nothing => Err(ReadError::MissingSegment {
                path: self.path(index),
            }),
        }
    }

    fn next(&mut self) -> Result<Option<u64>, ReadError> {
        if !self.fill()? {
            return Ok(None);
        }
        let word = self.chunk[self.position.at - self.chunk_at];
        self.position.at += 1;
        Ok(Some(word))
    }

    /// Up to `count` words: fewer at the end of the stream, whatever `count` says.
    fn take(&mut self, count: usize) -> Result<Vec<u64>, ReadError> {
        let mut words = Vec::new();
        while words.len() < count && self.fill()? {
            let here = &self.chunk[self.position.at - self.chunk_at..];
            let here = &here[..here.len().min(count - words.len())];
            words.extend_from_slice(here);
            self.position.at += here.len();
        }
        Ok(words)
    }

    /// Sees to it that the next word is in the chunk; `false` when there is none.
    fn fill(&mut self) -> Result<bool, ReadError> {
        while self.position.at >= self.chunk_at + self.chunk.len() {
            let Some(segment) = &mut self.segment else {
                return Ok(false);
            };
            let at = self.position.at;
            if at < segment.words {
                segment.read(at, CHUNK_WORDS, &mut self.chunk)?;
                self.chunk_at = at;
                if self.chunk.is_empty() {
                    // Cut off since it was opened, as at the end of a recording.
                    segment.words = at;
                }
            } else if !self.next_segment()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether nothing was stored from the reading position on, as far as one
    /// has to look.
    fn rest_is_zero(&self) -> Result<bool, ReadError> {
        let rest = self.chunk.get(self.position.at - self.chunk_at..);
        let rest = rest.unwrap_or(&[]);
        if rest.iter().any(|&word| word != 0) {
            return Ok(false);
        }
        let mut left = self.look_words.saturating_sub(rest.len() as u64);
        if let Some(segment) = &self.segment
            && !segment.is_zero(self.position.at + rest.len(), &mut left)?
        {
            return Ok(false);
        }
        for index in self.position.index + 1.. {
            if left == 0 {
                break;
            }
            match self.find_segment(index)? {
                Found::Segment(segment) => {
                    if !segment.is_zero(0, &mut left)? {
                        return Ok(false);
                    }
                }
                Found::Unfinished | Found::Nothing => break,
            }
        }
        Ok(true)
    }

    /// `false` when there is none.
    fn next_segment(&mut self) -> Result<bool, ReadError> {
        let index = self.position.index + 1;
        match self.find_segment(index)? {
            Found::Segment(segment) => {
                self.enter(index, segment)?;
                Ok(true)
            }
            Found::Unfinished | Found::Nothing => Ok(false),
        }
    }

    fn enter(&mut self, index: u32, segment: Segment) -> Result<(), ReadError> {
        let before = self.segment.as_ref();
        let expected = before.map_or(0, |s| s.stream_word + s.words as u64);
        if segment.stream_word != expected {
            let reason =
                "the segment before this one is incomplete; was the copy interrupted?".into();
            return Err(ReadError::Damaged {
                path: self.path(index),
                offset: 24,
                reason,
            });
        }
        self.leave_to(Position { index, at: 0 });
        self.segment = Some(segment);
        Ok(())
    }

    fn path(&self, index: u32) -> PathBuf {
        segment_path(&self.log_directory, self.stream, index)
    }

    fn find_segment(&self, index: u32) -> Result<Found, ReadError> {
        let path = self.path(index);
        match File::open(&path) {
            Ok(file) => Segment::open(file, path, self.stream, index),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // A segment is made after the one before it.
                let later = segments(&self.log_directory)?
                    .into_iter()
                    .any(|(stream, other)| stream == self.stream && other > index);
                match later && !path.exists() {
                    true => Err(ReadError::MissingSegment { path }),
                    false => Ok(Found::Nothing),
                }
            }
            Err(cause) => Err(ReadError::Io { path, cause }),
        }
    }
}

/// `(stream, index)` of every file in the folder that is named as a segment.
pub fn segments(log_directory: &Path) -> Result<Vec<(u32, u32)>, ReadError> {
    let io_error = |cause| ReadError::Io {
        path: log_directory.to_owned(),
        cause,
    };
    let mut segments = Vec::new();
    for entry in std::fs::read_dir(log_directory).map_err(io_error)? {
        let name = entry.map_err(io_error)?.file_name();
        let numbers = name
            .to_str()
            .and_then(|n| n.strip_suffix(".tslog"))
            .and_then(|n| n.split_once('-'));
        let Some((stream, index)) = numbers else {
            continue;
        };
        let (Ok(stream), Ok(index)) = (stream.parse(), index.parse()) else {
            continue;
        };
        // Only names that we would give: `+1` parses too.
        if segment_path(log_directory, stream, index).file_name() == Some(&name) {
            segments.push((stream, index));
        }
    }
    Ok(segments)
}

enum Found {
    Segment(Segment),
    /// The file exists, but its header was never completed, or not yet.
    Unfinished,
    Nothing,
}

/// A file of which words are read.
struct Segment {
    file: File,
    path: PathBuf,
    /// After the header.
    words: usize,
    header_bytes: usize,
    /// Stream position of the first of them.
    stream_word: u64,
}

impl Segment {
    fn open(file: File, path: PathBuf, stream: u32, index: u32) -> Result<Found, ReadError> {
        let mut segment = Segment {
            file,
            path,
            words: 0,
            header_bytes: SEGMENT_HEADER_BYTES,
            stream_word: 0,
        };
        let mut is_finished = segment.read_header(stream, index);
        for _ in 0..READ_AGAIN {
            if is_finished.is_ok() {
                break;
            }
            is_finished = segment.read_header(stream, index);
        }
        Ok(match is_finished? {
            true => Found::Segment(segment),
            false => Found::Unfinished,
        })
    }

    /// `false` when the header is not complete.
    fn read_header(&mut self, stream: u32, index: u32) -> Result<bool, ReadError> {
        let damaged = |offset: usize, reason: &str| {
            Err(ReadError::Damaged {
                path: self.path.clone(),
                offset: offset as u64,
                reason: reason.into(),
            })
        };
        let header = self.bytes(0, SEGMENT_HEADER_BYTES)?;
        // After the header: a file has its length before its magic number.
        let file_bytes = self.file.metadata().map_err(|e| self.io_error(e))?.len();
        // The magic number is stored last, and no record before it.
        let magic_is_zero = header.iter().take(8).all(|&byte| byte == 0);
        if magic_is_zero && self.bytes_are_zero(SEGMENT_HEADER_BYTES as u64, file_bytes)? {
            return Ok(false);
        }
        if header.len() < 8 || header[..8] != SEGMENT_MAGIC {
            return damaged(0, "not a log segment: the magic number is wrong");
        }
        if header.len() < SEGMENT_HEADER_BYTES {
            return damaged(header.len(), "the segment ends inside its header");
        }
        let u32_at = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four"));
        if !(1..=VERSION).contains(&u32_at(8)) {
            return Err(ReadError::Version {
                path: self.path.clone(),
                version: u32_at(8),
            });
        }
        let header_bytes = u32_at(12) as usize;
        if header_bytes < SEGMENT_HEADER_BYTES || header_bytes as u64 > file_bytes {
            return damaged(12, "the length of the header is impossible");
        }
        if u32_at(16) != stream || u32_at(20) != index {
            return damaged(
                16,
                "the segment belongs elsewhere: stream or number differ from its name",
            );
        }
        self.header_bytes = header_bytes;
        self.stream_word = word(&header[24..32]);
        self.words = ((file_bytes - header_bytes as u64) / 8) as usize;
        Ok(true)
    }

    /// Replaces `words` by up to `count` from `at` on: fewer where the file ends.
    fn read(&self, at: usize, count: usize, words: &mut Vec<u64>) -> Result<(), ReadError> {
        let bytes = self.bytes(self.offset(at), count.min(self.words - at) * 8)?;
        words.clear();
        words.extend(bytes.chunks_exact(8).map(word));
        Ok(())
    }

    /// Whether the next `left` words from `at` on are zero, as far as there are
    /// so many; takes off those that there are.
    fn is_zero(&self, at: usize, left: &mut u64) -> Result<bool, ReadError> {
        let words = (self.words.saturating_sub(at) as u64).min(*left);
        *left -= words;
        self.bytes_are_zero(self.offset(at), self.offset(at) + words * 8)
    }

    fn bytes_are_zero(&self, from: u64, to: u64) -> Result<bool, ReadError> {
        for offset in (from..to).step_by(CHUNK_WORDS * 8) {
            let bytes = self.bytes(offset, (to - offset).min(CHUNK_WORDS as u64 * 8) as usize)?;
            // Without a way out in the middle, many bytes are looked at at once.
            if bytes.iter().fold(0, |all, &byte| all | byte) != 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn offset(&self, at: usize) -> u64 {
        (self.header_bytes + at * 8) as u64
    }

    /// Up to `count` bytes: fewer where the file ends.
    fn bytes(&self, offset: u64, count: usize) -> Result<Vec<u8>, ReadError> {
        let mut bytes = vec![0; count];
        let mut read = 0;
        while read < count {
            match self.file.read_at(&mut bytes[read..], offset + read as u64) {
                Ok(0) => break,
                Ok(more) => read += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.io_error(error)),
            }
        }
        bytes.truncate(read);
        Ok(bytes)
    }

    fn io_error(&self, cause: io::Error) -> ReadError {
        ReadError::Io {
            path: self.path.clone(),
            cause,
        }
    }
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}
