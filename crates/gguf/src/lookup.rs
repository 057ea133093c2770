//! Which tensor, layer, expert and head owns a byte of a file.

use crate::header::PREAMBLE_BYTES;
use crate::heads::HeadLayout;
use crate::model::{Model, Tensor};

/// Who owns a byte.
#[derive(Debug, Clone, Copy)]
pub enum Owner<'a> {
    /// Magic number, version and counts.
    Preamble,
    /// The metadata entry of this key.
    Metadata {
        key: &'a str,
    },
    /// The description of this tensor in the header.
    TensorInfo {
        tensor: &'a Tensor,
    },
    /// Nobody: bytes that align what follows, between these two neighbours.
    Padding {
        after: Option<&'a Tensor>,
        before: Option<&'a Tensor>,
    },
    Tensor(OwnedByte<'a>),
}

/// A byte of tensor data.
#[derive(Debug, Clone, Copy)]
pub struct OwnedByte<'a> {
    pub tensor: &'a Tensor,
    pub offset_in_tensor: u64,
    /// Row of the tensor, counted through all dimensions but the first.
    pub row: u64,
    /// First element in that row that the byte's block holds, and the elements
    /// of a block.
    pub element: u64,
    pub block_elements: u64,
    pub expert: Option<u64>,
    pub heads: Option<HeadsOfByte>,
}

/// The heads whose elements a byte holds; several where a block spans them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadsOfByte {
    pub of: &'static str,
    pub first: u64,
    pub last: u64,
}

impl Model {
    /// The owner of byte `offset` of file `file`, or `None` beyond its end.
    pub fn lookup(&self, file: usize, offset: u64) -> Option<Owner<'_>> {
        let about = self.files().get(file)?;
        if offset >= about.len_bytes {
            return None;
        }
        if offset < PREAMBLE_BYTES {
            return Some(Owner::Preamble);
        }
        if offset < about.infos_offset {
            let entries = about.metadata.entries();
            let next = entries.partition_point(|e| e.entry_offset <= offset);
            let key = &*entries.get(next.checked_sub(1)?)?.key;
            return Some(Owner::Metadata { key });
        }
        if offset < about.infos_end {
            return self.tensor_info_at(file, offset);
        }
        let places = self.places_of(file);
        let tensor_at = |i: usize| places.get(i).map(|&t| &self.tensors()[t as usize]);
        let next = places.partition_point(|&t| self.tensors()[t as usize].file_offset <= offset);
        let candidate = next.checked_sub(1).and_then(tensor_at);
        Some(match candidate {
            Some(tensor) if offset < tensor.file_end() => {
                Owner::Tensor(self.owned_byte(tensor, offset - tensor.file_offset))
            }
            after => Owner::Padding {
                after,
                before: tensor_at(next),
            },
        })
    }

    /// The file of the model that a path or a file name means.
    pub fn file_index(&self, name: &str) -> Option<usize> {
        self.files().iter().position(|file| {
            file.path.as_os_str() == name || file.path.file_name().is_some_and(|f| f == name)
        })
    }

    fn tensor_info_at(&self, file: usize, offset: u64) -> Option<Owner<'_>> {
        // Tensors keep the order of files and headers.
        let next = self
            .tensors()
            .partition_point(|t| (t.file as usize, t.info_offset) <= (file, offset));
        let tensor = self.tensors().get(next.checked_sub(1)?)?;
        Some(Owner::TensorInfo { tensor })
    }

    fn owned_byte<'a>(&self, tensor: &'a Tensor, offset_in_tensor: u64) -> OwnedByte<'a> {
        let row_bytes = tensor.row_bytes().max(1);
        let block = (offset_in_tensor % row_bytes) / tensor.ty.block_bytes();
        let expert = match tensor.expert_slices() {
            Some(slices) => Some(offset_in_tensor / slices.slice_bytes),
            None => tensor.single_expert(),
        };
        let heads = HeadLayout::of(tensor, self.hyper())
            .and_then(|layout| layout.heads_at(tensor, offset_in_tensor))
            .map(|(of, first, last)| HeadsOfByte { of, first, last });
        OwnedByte {
            tensor,
            offset_in_tensor,
            row: offset_in_tensor / row_bytes,
            element: block * tensor.ty.block_elements(),
            block_elements: tensor.ty.block_elements(),
            expert,
            heads,
        }
    }
}
