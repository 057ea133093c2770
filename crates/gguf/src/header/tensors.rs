//! Tensor infos: reading one, and checking that all of them together make sense:
//! every tensor lies inside the file, none overlaps another, no name is used twice.

use super::{Parser, TensorInfo};
use crate::error::{Error, Result, quoted};
use crate::source::ReadAt;
use crate::types::{GgmlType, removed_type_advice};

const MAX_DIMS: u32 = 4;
/// ggml allows 63; other writers a little more.
const MAX_TENSOR_NAME_BYTES: u64 = 1024;

impl<S: ReadAt + ?Sized> Parser<'_, S> {
    /// Reads one info. `file_offset` is still relative to the data section,
    /// whose place is not known before the last info is read.
    pub(super) fn tensor_info(&mut self, index: u64) -> Result<TensorInfo> {
        let info_offset = self.cursor.position();
        let name = self.name("tensor name", index, MAX_TENSOR_NAME_BYTES)?;
        let dims_offset = self.cursor.position();
        let n_dims = self.cursor.u32("a tensor's number of dimensions")?;
        if n_dims > MAX_DIMS {
            return Err(self.cursor.malformed_at(
                dims_offset,
                format!(
                    "tensor {} has {n_dims} dimensions, at most {MAX_DIMS} are allowed",
                    quoted(&name)
                ),
            ));
        }
        let mut ne = [1u64; 4];
        for dim in ne.iter_mut().take(n_dims as usize) {
            *dim = self.cursor.u64("a tensor's dimensions")?;
        }
        let type_offset = self.cursor.position();
        let number = self.cursor.u32("a tensor's type")?;
        let Some(ty) = GgmlType::from_u32(number) else {
            let advice = removed_type_advice(number).unwrap_or("a newer file than this reader?");
            return Err(self.cursor.unsupported_at(
                type_offset,
                format!(
                    "tensor {} has unknown type {number}: {advice}",
                    quoted(&name)
                ),
            ));
        };
        let size_bytes = self.tensor_bytes(&name, ty, ne, dims_offset + 4)?;
        let file_offset = self.cursor.u64("a tensor's offset")?;
        Ok(TensorInfo {
            name,
            ty,
            n_dims,
            ne,
            file_offset,
            size_bytes,
            info_offset,
        })
    }

    fn tensor_bytes(&self, name: &str, ty: GgmlType, ne: [u64; 4], offset: u64) -> Result<u64> {
        // ggml counts elements and bytes in signed 64-bit numbers.
        let elements = ne.iter().try_fold(1u64, |product, &n| {
            product.checked_mul(n).filter(|&p| p <= i64::MAX as u64)
        });
        if elements.is_none() || ne.iter().any(|&n| n > i64::MAX as u64) {
            return Err(self.cursor.malformed_at(
                offset,
                format!(
                    "tensor {} has an absurd shape {ne:?}: its element count overflows",
                    quoted(name)
                ),
            ));
        }
        if !ne[0].is_multiple_of(ty.block_elements()) {
            return Err(self.cursor.malformed_at(
                offset,
                format!(
                    "tensor {} of type {ty} has rows of {} elements, no multiple of its block of {}",
                    quoted(name),
                    ne[0],
                    ty.block_elements()
                ),
            ));
        }
        ty.row_bytes(ne[0])
            .and_then(|row_bytes| {
                ne[1..].iter().try_fold(row_bytes, |bytes, &n| {
                    bytes.checked_mul(n).filter(|&b| b <= i64::MAX as u64)
                })
            })
            .ok_or_else(|| {
                self.cursor.malformed_at(
                    offset,
                    format!(
                        "tensor {} has an absurd shape {ne:?}: its size overflows",
                        quoted(name)
                    ),
                )
            })
    }

    /// Turns the relative offset into an absolute one and checks that the data
    /// lies within the file.
    pub(super) fn place(
        &self,
        tensor: &mut TensorInfo,
        data_offset: u64,
        alignment_bytes: u32,
        len_bytes: u64,
    ) -> Result<()> {
        let relative = tensor.file_offset;
        // The offset is the last field of an info: name, dims, type, offset.
        let field = tensor.info_offset
            + 8
            + tensor.name.len() as u64
            + 4
            + 8 * u64::from(tensor.n_dims)
            + 4;
        if !relative.is_multiple_of(alignment_bytes.into()) {
            return Err(self.cursor.malformed_at(
                field,
                format!(
                    "tensor {} lies at data offset {relative}, no multiple of the alignment {alignment_bytes}",
                    quoted(&tensor.name)
                ),
            ));
        }
        let start = data_offset.checked_add(relative);
        let end = start.and_then(|s| s.checked_add(tensor.size_bytes));
        match (start, end) {
            (Some(start), Some(end)) if end <= len_bytes => {
                tensor.file_offset = start;
                Ok(())
            }
            (Some(start), Some(end)) => Err(Error::Truncated {
                path: self.path().to_owned(),
                offset: field,
                reason: format!(
                    "tensor {} lies at bytes {start} to {end} but the file ends at byte {len_bytes}",
                    quoted(&tensor.name)
                ),
            }),
            _ => Err(self.cursor.malformed_at(
                field,
                format!(
                    "tensor {} has the absurd data offset {relative}",
                    quoted(&tensor.name)
                ),
            )),
        }
    }

    pub(super) fn check_names(&self, tensors: &[TensorInfo]) -> Result<()> {
        let mut order: Vec<u32> = (0..tensors.len() as u32).collect();
        order.sort_by_key(|&i| (&tensors[i as usize].name, i));
        for pair in order.windows(2) {
            let (first, second) = (&tensors[pair[0] as usize], &tensors[pair[1] as usize]);
            if first.name == second.name {
                return Err(self.cursor.malformed_at(
                    second.info_offset,
                    format!(
                        "duplicate tensor name {}, first used at byte {}",
                        quoted(&second.name),
                        first.info_offset
                    ),
                ));
            }
        }
        Ok(())
    }

    pub(super) fn check_overlaps(&self, tensors: &[TensorInfo]) -> Result<()> {
        let mut order: Vec<u32> = (0..tensors.len() as u32)
            .filter(|&i| tensors[i as usize].size_bytes > 0)
            .collect();
        order.sort_by_key(|&i| tensors[i as usize].file_offset);
        for pair in order.windows(2) {
            let (first, second) = (&tensors[pair[0] as usize], &tensors[pair[1] as usize]);
            if first.file_offset + first.size_bytes > second.file_offset {
                return Err(self.cursor.malformed_at(
                    second.file_offset,
                    format!(
                        "tensor {} overlaps tensor {}, which lies at bytes {} to {}",
                        quoted(&second.name),
                        quoted(&first.name),
                        first.file_offset,
                        first.file_offset + first.size_bytes
                    ),
                ));
            }
        }
        Ok(())
    }
}
