//! A model: all its files, its tensors by name and by place.
//!
//! Invariants: tensors keep file order; every tensor's bytes lie inside its
//! file; no two tensors overlap or share a name, across all files of a set.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result, quoted};
use crate::header::{self, Header, MAX_TENSORS, TensorInfo};
use crate::hyper::Hyperparameters;
use crate::metadata::Metadata;
use crate::names::Meaning;
use crate::source::ReadAt;
use crate::split;
use crate::types::GgmlType;

/// One opened model. Holds no file open and no tensor data.
#[derive(Debug, Clone)]
pub struct Model {
    files: Vec<ModelFile>,
    tensors: Vec<Tensor>,
    by_name: Vec<u32>,
    by_place: Vec<u32>,
    hyper: Hyperparameters,
}

/// One file of a model.
#[derive(Debug, Clone)]
pub struct ModelFile {
    pub path: PathBuf,
    pub len_bytes: u64,
    pub version: u32,
    pub alignment_bytes: u32,
    pub metadata: Metadata,
    /// First byte of the tensor infos, and first byte after them.
    pub infos_offset: u64,
    pub infos_end: u64,
    /// First byte of the data section.
    pub data_offset: u64,
}

/// One tensor, with its place and what it means.
#[derive(Debug, Clone)]
pub struct Tensor {
    pub name: Box<str>,
    /// Index into [`Model::files`].
    pub file: u32,
    /// First byte of the data, from the start of that file.
    pub file_offset: u64,
    pub size_bytes: u64,
    pub ty: GgmlType,
    pub n_dims: u32,
    /// Elements along each dimension, fastest first; 1 beyond `n_dims`.
    pub ne: [u64; 4],
    /// First byte of the tensor's description in the header.
    pub info_offset: u64,
    pub meaning: Meaning,
}

impl Model {
    /// Opens the model that `path` belongs to, with all files of a split set.
    pub fn open(path: &Path) -> Result<Model> {
        let opened = open_header(path)?;
        let (paths, opened_index) = split::files_of_set(path, &opened)?;
        let count = paths.len();
        let mut opened = Some(opened);
        let mut headers = Vec::new();
        for (index, file) in paths.into_iter().enumerate() {
            let header = match opened.take_if(|_| index == opened_index) {
                Some(header) => header,
                None => open_header(&file)?,
            };
            split::check_member(&file, &header, index, count)?;
            headers.push((file, header));
        }
        Model::assemble(headers)
    }

    /// Reads a model of one file from memory; `path` serves messages only.
    pub fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Model> {
        Model::from_source(path, bytes, bytes.len() as u64)
    }

    /// Reads a model of one file of `len_bytes` from any source.
    pub fn from_source<S: ReadAt + ?Sized>(
        path: &Path,
        source: &S,
        len_bytes: u64,
    ) -> Result<Model> {
        let header = header::read_header(source, path, len_bytes)?;
        Model::assemble(vec![(path.to_owned(), header)])
    }

    pub fn files(&self) -> &[ModelFile] {
        &self.files
    }

    /// All tensors, file by file in the order of their headers.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The metadata that describes the model: that of the first file.
    pub fn metadata(&self) -> &Metadata {
        &self.files[0].metadata
    }

    pub fn hyper(&self) -> &Hyperparameters {
        &self.hyper
    }

    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.by_name
            .binary_search_by(|&i| (*self.tensors[i as usize].name).cmp(name))
            .ok()
            .map(|found| &self.tensors[self.by_name[found] as usize])
    }

    /// Tensors of one file that are not empty, by ascending offset.
    pub fn tensors_by_place(&self, file: usize) -> impl DoubleEndedIterator<Item = &Tensor> {
        self.places_of(file)
            .iter()
            .map(|&i| &self.tensors[i as usize])
    }

    pub fn len_bytes(&self) -> u64 {
        self.files.iter().map(|f| f.len_bytes).sum()
    }

    /// Indices of one file's tensors, ascending by offset.
    pub(crate) fn places_of(&self, file: usize) -> &[u32] {
        let file_of = |i: &u32| self.tensors[*i as usize].file as usize;
        let start = self.by_place.partition_point(|i| file_of(i) < file);
        let end = self.by_place.partition_point(|i| file_of(i) <= file);
        &self.by_place[start..end]
    }

    fn assemble(headers: Vec<(PathBuf, Header)>) -> Result<Model> {
        let mut files = Vec::new();
        let mut tensors = Vec::new();
        let total: usize = headers.iter().map(|(_, h)| h.tensors.len()).sum();
        let (first_path, first) = &headers[0];
        split::check_tensor_count(first_path, first, total)?;
        if total as u64 > MAX_TENSORS {
            return Err(Error::Split {
                path: first_path.clone(),
                offset: 0,
                reason: format!(
                    "absurd count: {total} tensors in all files, more than {MAX_TENSORS}"
                ),
            });
        }
        for (index, (path, header)) in headers.into_iter().enumerate() {
            tensors.extend(
                header
                    .tensors
                    .into_iter()
                    .map(|info| Tensor::new(info, index as u32)),
            );
            files.push(ModelFile {
                path,
                len_bytes: header.len_bytes,
                version: header.version,
                alignment_bytes: header.alignment_bytes,
                metadata: header.metadata,
                infos_offset: header.infos_offset,
                infos_end: header.infos_end,
                data_offset: header.data_offset,
            });
        }
        let by_name = index_by_name(&files, &tensors)?;
        let mut by_place: Vec<u32> = (0..tensors.len() as u32)
            .filter(|&i| tensors[i as usize].size_bytes > 0)
            .collect();
        by_place.sort_by_key(|&i| {
            let tensor = &tensors[i as usize];
            (tensor.file, tensor.file_offset)
        });
        let hyper = Hyperparameters::new(&files[0].metadata);
        Ok(Model {
            files,
            tensors,
            by_name,
            by_place,
            hyper,
        })
    }
}

impl Tensor {
    fn new(info: TensorInfo, file: u32) -> Tensor {
        Tensor {
            meaning: Meaning::of(&info.name),
            name: info.name,
            file,
            file_offset: info.file_offset,
            size_bytes: info.size_bytes,
            ty: info.ty,
            n_dims: info.n_dims,
            ne: info.ne,
            info_offset: info.info_offset,
        }
    }

    pub fn elements(&self) -> u64 {
        // The header reader has checked that this does not overflow.
        self.ne.iter().product()
    }

    /// Bytes of one row, which is what the first dimension spans.
    pub fn row_bytes(&self) -> u64 {
        self.ty.row_bytes(self.ne[0]).unwrap_or(0)
    }

    /// The dimensions that the file states.
    pub fn shape(&self) -> &[u64] {
        &self.ne[..self.n_dims as usize]
    }

    /// First byte after the data.
    pub fn file_end(&self) -> u64 {
        self.file_offset + self.size_bytes
    }
}

fn open_header(path: &Path) -> Result<Header> {
    let io = |doing| {
        move |cause| Error::Io {
            path: path.to_owned(),
            offset: 0,
            doing,
            cause,
        }
    };
    // Asked before opening, because opening a pipe would wait for its writer.
    let about = std::fs::metadata(path).map_err(io("cannot open"))?;
    if !about.is_file() {
        return Err(Error::Unsupported {
            path: path.to_owned(),
            offset: 0,
            reason: "not a regular file".to_owned(),
        });
    }
    let file = File::open(path).map_err(io("cannot open"))?;
    header::read_header(&file, path, about.len())
}

fn index_by_name(files: &[ModelFile], tensors: &[Tensor]) -> Result<Vec<u32>> {
    let mut by_name: Vec<u32> = (0..tensors.len() as u32).collect();
    by_name.sort_by_key(|&i| (&tensors[i as usize].name, i));
    for pair in by_name.windows(2) {
        let (first, second) = (&tensors[pair[0] as usize], &tensors[pair[1] as usize]);
        if first.name == second.name {
            return Err(Error::Split {
                path: files[second.file as usize].path.clone(),
                offset: second.info_offset,
                reason: format!(
                    "duplicate tensor name {}, which is also in {}",
                    quoted(&second.name),
                    files[first.file as usize].path.display()
                ),
            });
        }
    }
    Ok(by_name)
}
