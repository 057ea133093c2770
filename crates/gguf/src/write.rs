//! Writes GGUF version 3, whole or as a split set, in one pass and with
//! bounded memory.
//!
//! The order of work, and the promises it keeps:
//!
//! 1. [`Layout::new`] lays every file out from metadata and tensor shapes alone:
//!    sizes and offsets are known before anything is created, so that a caller
//!    can ask for the space (or print it) first.
//! 2. [`Layout::write`] refuses existing targets unless told to replace them,
//!    and creates each file under a temporary name beside its target.
//! 3. Tensor data comes from the caller, tensor by tensor in file order,
//!    through a [`TensorSink`] that takes exactly the bytes the header claims.
//! 4. Only when the whole set is complete are the files renamed; on any error
//!    the temporary files are removed. A half-written model never exists under
//!    the name that somebody would load.
//!
//! Split sets are what llama.cpp's `gguf-split` makes: all metadata in the
//! first file, `split.no`, `split.count` and `split.tensors.count` in each.
//! Nested arrays are not offered: llama.cpp refuses them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::GgmlType;
use crate::error::reason;

mod builder;

use builder::encode_string;
pub use builder::{DEFAULT_ALIGNMENT_BYTES, MetadataBuilder, Scalar};

/// ggml keeps names in 64 bytes, with a terminating zero.
const MAX_NAME_BYTES: usize = 63;
const MAX_DIMS: usize = 4;
const MAGIC: &[u8; 4] = b"GGUF";
const VERSION: u32 = 3;

#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The request itself is wrong; nothing was created.
    #[error("{0}")]
    Invalid(String),
    #[error("{path}: the file exists already")]
    Exists { path: PathBuf },
    #[error("{path}: cannot {action}: {}", reason(cause))]
    Io {
        path: PathBuf,
        action: &'static str,
        /// Not named `source`: the message has it already, and a chain of sources would
        /// print it twice.
        cause: io::Error,
    },
    /// The caller's data for a tensor was not what its shape says.
    #[error(
        "{path}: tensor {tensor}: {given_bytes} bytes were given, its shape needs {needed_bytes}"
    )]
    WrongSize {
        path: PathBuf,
        tensor: String,
        given_bytes: u64,
        needed_bytes: u64,
    },
}

/// Name, shape and type of a tensor to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    pub name: String,
    /// In ggml's order: `dims[0]` is the row length.
    pub dims: Vec<u64>,
    pub ggml_type: GgmlType,
}

impl TensorSpec {
    pub fn elements(&self) -> u64 {
        self.dims.iter().product()
    }

    /// Exact bytes of the data, or why there is no such tensor.
    pub fn size_bytes(&self) -> Result<u64, WriteError> {
        let invalid =
            |why: String| Err(WriteError::Invalid(format!("tensor {}: {why}", self.name)));
        if self.name.len() > MAX_NAME_BYTES {
            return invalid(format!("the name is longer than {MAX_NAME_BYTES} bytes"));
        }
        if self.dims.is_empty() || self.dims.len() > MAX_DIMS || self.dims.contains(&0) {
            return invalid(format!(
                "{:?} is not a shape of 1 to {MAX_DIMS} positive dimensions",
                self.dims
            ));
        }
        let Some(row_bytes) = self.ggml_type.row_bytes(self.dims[0]) else {
            return invalid(format!(
                "rows of {} elements are no multiple of the {} elements of a {} block",
                self.dims[0],
                self.ggml_type.block_elements(),
                self.ggml_type.name()
            ));
        };
        let bytes = self.dims[1..]
            .iter()
            .try_fold(row_bytes, |bytes, &dim| bytes.checked_mul(dim))
            // Offsets are signed 64-bit numbers in every reader.
            .filter(|&bytes| bytes <= i64::MAX as u64);
        match bytes {
            Some(bytes) => Ok(bytes),
            None => invalid(format!("{:?} does not fit in 63 bits of bytes", self.dims)),
        }
    }
}

/// Where one file ends and the next begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// One file under the name given.
    Whole,
    /// At most this many tensors a file.
    Tensors(u64),
    /// At most this many bytes of tensor data a file; a tensor that is larger
    /// gets a file of its own.
    Bytes(u64),
}

/// What to do about targets that exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    Refuse,
    Replace,
}

/// One file of the set.
#[derive(Debug, Clone)]
pub struct FileLayout {
    pub path: PathBuf,
    pub size_bytes: u64,
    /// Which of the layout's tensors it holds.
    pub tensors: Range<usize>,
    header: Vec<u8>,
}

/// The complete layout of a model that is not written yet.
#[derive(Debug, Clone)]
pub struct Layout {
    files: Vec<FileLayout>,
    tensors: Vec<TensorSpec>,
    alignment_bytes: u64,
}

impl Layout {
    /// Lays the files out. With a split, `path` gives the name of the set:
    /// `model.gguf` becomes `model-00001-of-00003.gguf` and so on, also when
    /// everything fits in one file, so that the name is predictable.
    pub fn new(
        path: &Path,
        metadata: &MetadataBuilder,
        tensors: Vec<TensorSpec>,
        split: Split,
    ) -> Result<Layout, WriteError> {
        let alignment_bytes = metadata.alignment()?;
        let sizes = tensors
            .iter()
            .map(TensorSpec::size_bytes)
            .collect::<Result<Vec<_>, _>>()?;
        let mut names: Vec<&str> = tensors.iter().map(|t| t.name.as_str()).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(WriteError::Invalid(format!(
                "tensor {} is given twice",
                twice[0]
            )));
        }
        let ranges = file_ranges(&sizes, split)?;
        let count = u16::try_from(ranges.len()).map_err(|_| {
            let why = format!("the split makes {} files; 65535 are possible", ranges.len());
            WriteError::Invalid(why)
        })?;
        let mut files = Vec::with_capacity(ranges.len());
        for (number, range) in (0u16..).zip(ranges) {
            let mut keys = if number == 0 {
                metadata.clone()
            } else {
                MetadataBuilder::new()
            };
            let mut file_path = path.to_path_buf();
            if split != Split::Whole {
                keys.set("split.no", number);
                keys.set("split.count", count);
                keys.set("split.tensors.count", tensors.len() as i32);
                // A file that opens on its own must be aligned as it says.
                if number > 0 && alignment_bytes != DEFAULT_ALIGNMENT_BYTES {
                    keys.set_alignment(alignment_bytes as u32);
                }
                file_path = split_path(path, number, count)?;
            }
            let (header, data_bytes) = header(
                &keys,
                &tensors[range.clone()],
                &sizes[range.clone()],
                alignment_bytes,
            );
            files.push(FileLayout {
                path: file_path,
                size_bytes: header.len() as u64 + data_bytes,
                tensors: range,
                header,
            });
        }
        Ok(Layout {
            files,
            tensors,
            alignment_bytes,
        })
    }

    pub fn files(&self) -> &[FileLayout] {
        &self.files
    }

    pub fn tensors(&self) -> &[TensorSpec] {
        &self.tensors
    }

    /// Bytes of all files together.
    pub fn size_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size_bytes).sum()
    }

    /// Whether any target exists already, and which.
    pub fn existing(&self) -> Option<&Path> {
        self.files
            .iter()
            .map(|file| file.path.as_path())
            .find(|path| path.exists())
    }

    /// Writes the set. `fill` is called once a tensor, in order, with the
    /// tensor's index; an error it returns ends the writing.
    pub fn write(
        &self,
        existing: Existing,
        mut fill: impl FnMut(usize, &mut TensorSink<'_>) -> io::Result<()>,
    ) -> Result<(), WriteError> {
        if existing == Existing::Refuse
            && let Some(path) = self.existing()
        {
            return Err(WriteError::Exists {
                path: path.to_owned(),
            });
        }
        // A rename would put a file in the place of a device or a link to one.
        if let Some(file) = self
            .files
            .iter()
            .find(|f| f.path.exists() && !f.path.is_file())
        {
            let why = format!("{}: exists and is not a regular file", file.path.display());
            return Err(WriteError::Invalid(why));
        }
        let mut finished = Vec::with_capacity(self.files.len());
        for layout in &self.files {
            let (mut file, temporary) = Temporary::create(&layout.path)?;
            self.write_file(layout, &mut file, &mut fill)?;
            // The data must be on the disk before its name is.
            file.sync_all()
                .map_err(|cause| temporary.error("finish writing", cause))?;
            finished.push(temporary);
        }
        finished
            .into_iter()
            .try_for_each(|temporary| temporary.rename(existing))
    }

    /// Writes the headers only; the data are a hole as long as they would be, which takes no
    /// room on most file systems. For programs that read headers, and nothing else.
    pub fn write_headers(&self) -> Result<(), WriteError> {
        for layout in &self.files {
            let failed = |cause| WriteError::Io {
                path: layout.path.clone(),
                action: "write",
                cause,
            };
            let mut file = File::create_new(&layout.path).map_err(failed)?;
            file.write_all(&layout.header).map_err(failed)?;
            file.set_len(layout.size_bytes).map_err(failed)?;
        }
        Ok(())
    }

    fn write_file(
        &self,
        layout: &FileLayout,
        file: &mut File,
        fill: &mut impl FnMut(usize, &mut TensorSink<'_>) -> io::Result<()>,
    ) -> Result<(), WriteError> {
        let failed = |cause| WriteError::Io {
            path: layout.path.clone(),
            action: "write",
            cause,
        };
        file.write_all(&layout.header).map_err(failed)?;
        for index in layout.tensors.clone() {
            let tensor = &self.tensors[index];
            let needed_bytes = tensor.size_bytes()?;
            let mut sink = TensorSink {
                file,
                needed_bytes,
                given_bytes: 0,
            };
            let filled = fill(index, &mut sink);
            let given_bytes = sink.given_bytes;
            // A wrong count explains the error that the sink gave for it.
            if given_bytes > needed_bytes || (filled.is_ok() && given_bytes < needed_bytes) {
                return Err(WriteError::WrongSize {
                    path: layout.path.clone(),
                    tensor: tensor.name.clone(),
                    given_bytes,
                    needed_bytes,
                });
            }
            filled.map_err(failed)?;
            let padding = padding_bytes(needed_bytes, self.alignment_bytes) as usize;
            file.write_all(&vec![0; padding]).map_err(failed)?;
        }
        Ok(())
    }
}

/// Takes the bytes of one tensor. Unbuffered: give it large pieces.
pub struct TensorSink<'a> {
    file: &'a mut File,
    needed_bytes: u64,
    given_bytes: u64,
}

impl Write for TensorSink<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if self.given_bytes + data.len() as u64 > self.needed_bytes {
            self.given_bytes += data.len() as u64;
            return Err(io::Error::other("more data than the tensor's shape needs"));
        }
        let written = self.file.write(data)?;
        self.given_bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// A file under a temporary name, removed unless it is renamed.
struct Temporary {
    path: PathBuf,
    target: PathBuf,
}

impl Temporary {
    fn create(target: &Path) -> Result<(File, Temporary), WriteError> {
        let failed = |cause| WriteError::Io {
            path: target.to_owned(),
            action: "create the file",
            cause,
        };
        let name = target
            .file_name()
            .ok_or_else(|| failed(io::Error::other("the path names no file")))?;
        let mut temporary_name = std::ffi::OsString::from(".");
        temporary_name.push(name);
        temporary_name.push(format!(".{}.part", std::process::id()));
        let path = target.with_file_name(temporary_name);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(failed)?;
        Ok((
            file,
            Temporary {
                path,
                target: target.to_owned(),
            },
        ))
    }

    fn rename(self, existing: Existing) -> Result<(), WriteError> {
        // Somebody may have made the target while the data was written.
        if existing == Existing::Refuse && self.target.exists() {
            return Err(WriteError::Exists {
                path: self.target.clone(),
            });
        }
        fs::rename(&self.path, &self.target)
            .map_err(|cause| self.error("rename the finished file", cause))
    }

    fn error(&self, action: &'static str, cause: io::Error) -> WriteError {
        WriteError::Io {
            path: self.target.clone(),
            action,
            cause,
        }
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // After a rename there is nothing to remove, and on the way out of an
        // error the first error is the one worth reporting.
        let _ = fs::remove_file(&self.path);
    }
}

/// The files' shares of the tensors, in order, none of them empty.
fn file_ranges(sizes: &[u64], split: Split) -> Result<Vec<Range<usize>>, WriteError> {
    if matches!(split, Split::Tensors(0) | Split::Bytes(0)) {
        return Err(WriteError::Invalid(
            "a split file cannot hold 0 tensors or 0 bytes".into(),
        ));
    }
    let mut ranges = vec![];
    let (mut start, mut bytes) = (0, 0u64);
    for (index, &size) in sizes.iter().enumerate() {
        let full = match split {
            Split::Whole => false,
            Split::Tensors(most) => (index - start) as u64 >= most,
            Split::Bytes(most) => bytes.saturating_add(size) > most,
        };
        if full && index > start {
            ranges.push(start..index);
            (start, bytes) = (index, 0);
        }
        bytes = bytes.saturating_add(size);
    }
    ranges.push(start..sizes.len());
    Ok(ranges)
}

/// The name llama.cpp's loader expects: `llama_split_path` counts from one.
fn split_path(path: &Path, number: u16, count: u16) -> Result<PathBuf, WriteError> {
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .ok_or_else(|| {
            WriteError::Invalid(format!(
                "{}: the path names no file in UTF-8",
                path.display()
            ))
        })?;
    let stem = name.strip_suffix(".gguf").unwrap_or(name);
    Ok(path.with_file_name(format!(
        "{stem}-{:05}-of-{count:05}.gguf",
        u32::from(number) + 1
    )))
}

/// Everything before the data, padded, and how many bytes of data follow.
fn header(
    keys: &MetadataBuilder,
    tensors: &[TensorSpec],
    sizes: &[u64],
    alignment: u64,
) -> (Vec<u8>, u64) {
    let mut out = Vec::with_capacity(keys.encoded().len() + tensors.len() * 96 + 64);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&(tensors.len() as u64).to_le_bytes());
    out.extend_from_slice(&(keys.len() as u64).to_le_bytes());
    out.extend_from_slice(keys.encoded());
    let mut offset = 0u64;
    for (tensor, size) in tensors.iter().zip(sizes) {
        encode_string(&tensor.name, &mut out);
        out.extend_from_slice(&(tensor.dims.len() as u32).to_le_bytes());
        for dim in &tensor.dims {
            out.extend_from_slice(&dim.to_le_bytes());
        }
        out.extend_from_slice(&tensor.ggml_type.as_u32().to_le_bytes());
        out.extend_from_slice(&offset.to_le_bytes());
        offset += size + padding_bytes(*size, alignment);
    }
    let padding = padding_bytes(out.len() as u64, alignment) as usize;
    out.resize(out.len() + padding, 0);
    (out, offset)
}

fn padding_bytes(size: u64, alignment: u64) -> u64 {
    size.next_multiple_of(alignment) - size
}
