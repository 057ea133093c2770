//! Whose a byte of a model file is.

use std::{fs, path::Path};

use gguf::Model;
use kernelio::files::Place;
use rundir::Run;

/// A tensor of one of the run's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedTensor {
    pub name: Box<str>,
    pub layer: Option<u32>,
    /// See `gguf::Component`.
    pub component: &'static str,
    /// Of the run.
    pub file: u32,
    pub file_offset: u64,
    pub size_bytes: u64,
    /// Bytes of one expert's slice, of a tensor that holds several.
    pub slice_bytes: Option<u64>,
}

/// A tensor by its index in [`Owners::tensors`], and the expert whose slice a byte
/// is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    pub tensor: u32,
    pub expert: Option<u32>,
}

/// The tensors of a run's files, by their place.
#[derive(Debug, Default)]
pub struct Owners {
    tensors: Vec<OwnedTensor>,
    /// Of each file: bytes, and indices into `tensors` by offset.
    files: Vec<(u64, Vec<u32>)>,
}

impl Owners {
    /// Of the model files that the run's metadata name. A file that is gone or is
    /// no model any more owns nothing.
    pub fn of_run(run: &Run) -> Owners {
        let described = run.metadata().and_then(|m| m.model.as_ref());
        let paths = described.map_or(&[][..], |model| &model.files);
        Owners::of_files(paths.iter().map(|file| Path::new(&file.path)))
    }

    pub fn of_files<'p>(paths: impl IntoIterator<Item = &'p Path>) -> Owners {
        let mut owners = Owners::default();
        let mut models: Vec<Model> = Vec::new();
        for path in paths {
            let number = owners.files.len() as u32;
            let known = models.iter().find_map(|model| file_of(model, path));
            let file = known.or_else(|| {
                models.push(Model::open(path).ok()?);
                file_of(models.last()?, path)
            });
            owners.files.push((0, Vec::new()));
            let Some(index) = file else {
                continue;
            };
            let Some(model) = models.iter().find(|m| file_of(m, path).is_some()) else {
                continue;
            };
            owners.add(number, model, index);
        }
        owners
    }

    fn add(&mut self, file: u32, model: &Model, index: usize) {
        let slot = &mut self.files[file as usize];
        slot.0 = model.files()[index].len_bytes;
        for tensor in model.tensors_by_place(index) {
            let experts = tensor.meaning.component == gguf::Component::Expert && tensor.ne[2] > 1;
            slot.1.push(self.tensors.len() as u32);
            self.tensors.push(OwnedTensor {
                name: tensor.name.clone(),
                layer: tensor.meaning.layer,
                component: tensor.meaning.component.name(),
                file,
                file_offset: tensor.file_offset,
                size_bytes: tensor.size_bytes,
                slice_bytes: experts.then(|| tensor.size_bytes / tensor.ne[2]),
            });
        }
    }

    pub fn tensors(&self) -> &[OwnedTensor] {
        &self.tensors
    }

    pub fn tensor(&self, owner: Owner) -> &OwnedTensor {
        &self.tensors[owner.tensor as usize]
    }

    /// Bytes of all files.
    pub fn file_bytes(&self) -> u64 {
        self.files.iter().map(|(bytes, _)| bytes).sum()
    }

    /// Bytes of one file, by its number in the run.
    pub fn bytes_of_file(&self, file: u32) -> u64 {
        self.files.get(file as usize).map_or(0, |(bytes, _)| *bytes)
    }

    /// Whose the byte is; `None` for headers, padding and unknown files.
    pub fn find(&self, place: Place) -> Option<Owner> {
        let (_, by_place) = self.files.get(place.file as usize)?;
        let behind = by_place
            .partition_point(|&t| self.tensors[t as usize].file_offset <= place.file_offset);
        let tensor = by_place[behind.checked_sub(1)?];
        self.owner(tensor, place.file_offset)
    }

    /// The tensor that a page has bytes of, when its first byte has no owner: the
    /// header and the first tensor share a page.
    pub fn find_in_page(&self, place: Place, page_bytes: u64) -> Option<Owner> {
        self.find(place).or_else(|| {
            let start = place.file_offset - place.file_offset % page_bytes;
            let mut pieces = self.split(
                Place {
                    file_offset: start,
                    ..place
                },
                page_bytes,
            );
            pieces.find_map(|piece| piece.owner)
        })
    }

    fn owner(&self, tensor: u32, file_offset: u64) -> Option<Owner> {
        let owned = &self.tensors[tensor as usize];
        let inside = file_offset
            .checked_sub(owned.file_offset)
            .filter(|&inside| inside < owned.size_bytes)?;
        Some(Owner {
            tensor,
            expert: owned
                .slice_bytes
                .and_then(|bytes| u32::try_from(inside / bytes.max(1)).ok()),
        })
    }

    /// Cuts a range of a file where its owner changes.
    pub fn split(&self, place: Place, bytes: u64) -> impl Iterator<Item = Piece> {
        let end = place.file_offset.saturating_add(bytes);
        let mut at = place.file_offset;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let here = Place {
                file_offset: at,
                ..place
            };
            let owner = self.find(here);
            let next = self.next_border(here, owner).min(end);
            let piece = Piece {
                owner,
                file_offset: at,
                bytes: next - at,
            };
            at = next;
            Some(piece)
        })
    }

    fn next_border(&self, place: Place, owner: Option<Owner>) -> u64 {
        if let Some(owner) = owner {
            let tensor = self.tensor(owner);
            return match (tensor.slice_bytes, owner.expert) {
                (Some(slice), Some(expert)) => tensor.file_offset + (u64::from(expert) + 1) * slice,
                _ => tensor.file_offset + tensor.size_bytes,
            };
        }
        let by_place = self.files.get(place.file as usize).map(|(_, list)| list);
        by_place
            .and_then(|list| {
                let next = list.partition_point(|&t| {
                    self.tensors[t as usize].file_offset <= place.file_offset
                });
                Some(self.tensors[*list.get(next)? as usize].file_offset)
            })
            .unwrap_or(u64::MAX)
    }
}

/// A part of a range that has one owner, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub owner: Option<Owner>,
    pub file_offset: u64,
    pub bytes: u64,
}

fn file_of(model: &Model, path: &Path) -> Option<usize> {
    let same = |a: &Path| {
        a == path || fs::canonicalize(a).is_ok_and(|a| fs::canonicalize(path).is_ok_and(|p| a == p))
    };
    model.files().iter().position(|file| same(&file.path))
}
