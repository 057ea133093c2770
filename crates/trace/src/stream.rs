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

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use crate::{
    format::{
        COMMIT, Checksum, RECORD_HEADER_WORDS, RECORD_TRAILER_WORDS, RecordKind,
        SEGMENT_HEADER_BYTES, SEGMENT_MAGIC, VERSION, length_from_word,
    },
    read::ReadError,
    segment::segment_path,
};

/// How often a record that looks damaged is read again.
const READ_AGAIN: usize = 3;

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

/// The words of a stream.
pub struct Words {
    log_directory: PathBuf,
    stream: u32,
    index: u32,
    path: PathBuf,
    segment: Vec<u64>,
    at: usize,
    header_bytes: usize,
    /// Stream position of the first word of the segment.
    stream_word: u64,
}

impl Words {
    pub fn open(log_directory: &Path, stream: u32) -> Result<Words, ReadError> {
        let mut words = Words {
            log_directory: log_directory.to_owned(),
            stream,
            index: 0,
            path: segment_path(log_directory, stream, 0),
            segment: Vec::new(),
            at: 0,
            header_bytes: SEGMENT_HEADER_BYTES,
            stream_word: 0,
        };
        match words.read_segment(0)? {
            Found::Segment(segment) => words.enter(0, segment)?,
            // Killed while it was opened: an empty stream.
            Found::Unfinished => {}
            Found::Nothing => {
                return Err(ReadError::NoSegments {
                    path: log_directory.to_owned(),
                });
            }
        }
        Ok(words)
    }

    /// File and byte of the next word.
    pub fn place(&self) -> (PathBuf, u64) {
        (self.path.clone(), (self.header_bytes + self.at * 8) as u64)
    }

    /// The next record. Also returns the bytes that it occupies.
    pub fn next_record(&mut self) -> Result<(Framed, u64), ReadError> {
        let (index, at) = (self.index, self.at);
        let mut framed = self.read_record()?;
        for _ in 0..READ_AGAIN {
            if !matches!(framed, Framed::Damaged { .. } | Framed::Lost { .. }) {
                break;
            }
            self.return_to(index, at)?;
            framed = self.read_record()?;
        }
        let body = match &framed {
            Framed::Record { body, .. } | Framed::Incomplete { body, .. } => body.len(),
            _ => return Ok((framed, 0)),
        };
        let words = body + RECORD_HEADER_WORDS + RECORD_TRAILER_WORDS;
        Ok((framed, words as u64 * 8))
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

    /// Reads the segment of an earlier position again and stands there.
    fn return_to(&mut self, index: u32, at: usize) -> Result<(), ReadError> {
        match self.read_segment(index)? {
            Found::Segment(segment) => {
                let path = segment_path(&self.log_directory, self.stream, index);
                if at > segment.words.len() {
                    let reason = "the segment became shorter while it was read".into();
                    return Err(ReadError::Damaged {
                        path,
                        offset: 0,
                        reason,
                    });
                }
                self.segment = segment.words;
                self.stream_word = segment.stream_word;
                self.header_bytes = segment.header_bytes;
                self.index = index;
                self.path = path;
                self.at = at;
                Ok(())
            }
            _ => Err(ReadError::MissingSegment {
                path: segment_path(&self.log_directory, self.stream, index),
            }),
        }
    }

    fn next(&mut self) -> Result<Option<u64>, ReadError> {
        while self.at == self.segment.len() {
            if !self.next_segment()? {
                return Ok(None);
            }
        }
        self.at += 1;
        Ok(Some(self.segment[self.at - 1]))
    }

    /// Up to `count` words: fewer at the end of the stream, whatever `count` says.
    fn take(&mut self, count: usize) -> Result<Vec<u64>, ReadError> {
        let mut words = Vec::new();
        while words.len() < count {
            if self.at == self.segment.len() && !self.next_segment()? {
                break;
            }
            let end = self
                .segment
                .len()
                .min(self.at.saturating_add(count - words.len()));
            words.extend_from_slice(&self.segment[self.at..end]);
            self.at = end;
        }
        Ok(words)
    }

    /// Whether nothing was stored from the reading position on.
    fn rest_is_zero(&self) -> Result<bool, ReadError> {
        if self.segment[self.at..].iter().any(|&word| word != 0) {
            return Ok(false);
        }
        for index in self.index + 1.. {
            match self.read_segment(index)? {
                Found::Segment(segment) if segment.words.iter().any(|&word| word != 0) => {
                    return Ok(false);
                }
                Found::Segment(_) => {}
                Found::Unfinished | Found::Nothing => break,
            }
        }
        Ok(true)
    }

    /// `false` when there is none.
    fn next_segment(&mut self) -> Result<bool, ReadError> {
        match self.read_segment(self.index + 1)? {
            Found::Segment(segment) => {
                self.enter(self.index + 1, segment)?;
                Ok(true)
            }
            Found::Unfinished | Found::Nothing => Ok(false),
        }
    }

    fn enter(&mut self, index: u32, segment: SegmentWords) -> Result<(), ReadError> {
        let path = segment_path(&self.log_directory, self.stream, index);
        let expected = if index == 0 {
            0
        } else {
            self.stream_word + self.segment.len() as u64
        };
        if segment.stream_word != expected {
            let reason =
                "the segment before this one is incomplete; was the copy interrupted?".into();
            return Err(ReadError::Damaged {
                path,
                offset: 24,
                reason,
            });
        }
        self.segment = segment.words;
        self.stream_word = segment.stream_word;
        self.header_bytes = segment.header_bytes;
        self.index = index;
        self.path = path;
        self.at = 0;
        Ok(())
    }

    fn read_segment(&self, index: u32) -> Result<Found, ReadError> {
        let path = segment_path(&self.log_directory, self.stream, index);
        let io_error = |source| ReadError::Io {
            path: path.clone(),
            source,
        };
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // A segment is made after the one before it.
                let later = segments(&self.log_directory)?
                    .into_iter()
                    .any(|(stream, other)| stream == self.stream && other > index);
                return match later && !path.exists() {
                    true => Err(ReadError::MissingSegment { path }),
                    false => Ok(Found::Nothing),
                };
            }
            Err(error) => return Err(io_error(error)),
        };
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(io_error)?;
        parse_segment(&path, &bytes, self.stream, index)
    }
}

/// `(stream, index)` of every file in the folder that is named as a segment.
pub fn segments(log_directory: &Path) -> Result<Vec<(u32, u32)>, ReadError> {
    let io_error = |source| ReadError::Io {
        path: log_directory.to_owned(),
        source,
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
    Segment(SegmentWords),
    /// The file exists, but the process died before its header was complete.
    Unfinished,
    Nothing,
}

struct SegmentWords {
    words: Vec<u64>,
    header_bytes: usize,
    stream_word: u64,
}

fn parse_segment(path: &Path, bytes: &[u8], stream: u32, index: u32) -> Result<Found, ReadError> {
    let damaged = |offset: usize, reason: &str| {
        Err(ReadError::Damaged {
            path: path.to_owned(),
            offset: offset as u64,
            reason: reason.into(),
        })
    };
    // The magic number is stored last, and no record before it.
    let magic_is_zero = bytes.iter().take(8).all(|&byte| byte == 0);
    if magic_is_zero
        && bytes
            .iter()
            .skip(SEGMENT_HEADER_BYTES)
            .all(|&byte| byte == 0)
    {
        return Ok(Found::Unfinished);
    }
    if bytes.len() < 8 || bytes[..8] != SEGMENT_MAGIC {
        return damaged(0, "not a log segment: the magic number is wrong");
    }
    if bytes.len() < SEGMENT_HEADER_BYTES {
        return damaged(bytes.len(), "the segment ends inside its header");
    }
    let u32_at =
        |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    if !(1..=VERSION).contains(&u32_at(8)) {
        return Err(ReadError::Version {
            path: path.to_owned(),
            version: u32_at(8),
        });
    }
    let header_bytes = u32_at(12) as usize;
    if header_bytes < SEGMENT_HEADER_BYTES || header_bytes > bytes.len() {
        return damaged(12, "the length of the header is impossible");
    }
    if u32_at(16) != stream || u32_at(20) != index {
        return damaged(
            16,
            "the segment belongs elsewhere: stream or number differ from its name",
        );
    }
    let words = bytes[header_bytes..].chunks_exact(8).map(word).collect();
    Ok(Found::Segment(SegmentWords {
        words,
        header_bytes,
        stream_word: word(&bytes[24..32]),
    }))
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}
