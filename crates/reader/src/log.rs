//! A log, and one pass over it.
//!
//! Order: streams ascending; within a stream evaluations as they ran. Numbers count
//! through the run: those of a stream begin where those of the stream before ended. A log
//! that is still written is read on with [`Reading`].
//!
//! What has no rows, here and everywhere: records that are damaged, evaluations of a graph
//! that cannot be, and evaluations that the end of the process cut off. They are in
//! [`Walked`]; whoever shows a run must pass that on, because the rows alone do not tell.

use std::{
    ops::Range,
    path::{Path, PathBuf},
};

use trace::read::{Definitions, ReadError, Writer};

use crate::{
    device::{Device, SeenCopy},
    prepared::Prepared,
    reading::Reading,
    seen::Seen,
    tensors::Tensors,
};

/// The log of a run, or the part of it that is wanted.
#[derive(Clone, Debug)]
pub struct Log {
    pub(crate) directory: PathBuf,
    pub(crate) evals: Range<u64>,
}

/// What a pass has read.
#[derive(Debug, Default)]
pub struct Walked {
    /// Those that were shown.
    pub evaluations: u64,
    /// Executed nodes of those.
    pub steps: u64,
    /// Evaluations that the end of the process cut off.
    pub partial: u64,
    /// What could not be read: where, and why.
    pub damaged: Vec<String>,
    pub templates: u64,
    /// Bytes of records, framing included.
    pub record_bytes: u64,
    /// Every stream was closed in an orderly way.
    pub is_closed: bool,
    pub tensors: Tensors,
    /// Those besides the processor, each once.
    pub devices: Vec<Device>,
}

/// A stream, as far as it has been read.
pub struct Stream<'a> {
    pub number: u32,
    /// Its templates, or why their evaluations have no rows.
    pub templates: &'a [Result<Prepared, String>],
    /// Number of the first of them in the run.
    pub first_template: u32,
    pub tensors: &'a Tensors,
    pub definitions: &'a Definitions,
}

/// What somebody does with a log.
pub trait Visitor {
    type Error: From<ReadError>;

    fn stream_begins(&mut self, _stream: u32) -> Result<(), Self::Error> {
        Ok(())
    }

    /// It has defined something, before the evaluations that need it.
    fn defined(&mut self, _stream: &Stream) -> Result<(), Self::Error> {
        Ok(())
    }

    fn evaluation(&mut self, seen: &Seen) -> Result<(), Self::Error>;

    /// Bytes went between host and device, before the evaluation that follows.
    fn copy(&mut self, _copy: &SeenCopy) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Everything that the stream has defined is known now.
    fn stream_ends(&mut self, _stream: &Stream) -> Result<(), Self::Error> {
        Ok(())
    }
}

impl Log {
    /// The `log` folder of a run.
    pub fn new(directory: &Path) -> Log {
        Log {
            directory: directory.to_owned(),
            evals: 0..u64::MAX,
        }
    }

    /// Only evaluations with these numbers in the run.
    pub fn with_evals(mut self, evals: Range<u64>) -> Log {
        self.evals = evals;
        self
    }

    /// Shows the whole log to `visitor`.
    pub fn walk<V: Visitor>(&self, visitor: &mut V) -> Result<Walked, V::Error> {
        self.walk_with_progress(visitor, &mut |_| ())
    }

    /// The same; `progress` gets the bytes of records read so far.
    pub fn walk_with_progress<V: Visitor>(
        &self,
        visitor: &mut V,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Walked, V::Error> {
        let mut reading = Reading::new(self.clone());
        reading.read(Writer::Gone, visitor, progress)?;
        Ok(reading.finish())
    }
}
