//! Views as byte regions of their root tensor.
//!
//! A kernel touches a view in one of a few shapes; each function here turns one
//! of them into a [`Strided`] relative to the start of the root's data.

use trace::region::Strided;

use crate::tensor::{MAX_DIMS, Tensor};

/// Every element of the view.
pub fn view_region(tensor: Tensor<'_>) -> Strided {
    box_region(tensor, tensor.extents())
}

/// The elements below `limits` in each dimension (a mask with padded rows).
pub fn box_region(tensor: Tensor<'_>, limits: [u64; MAX_DIMS]) -> Strided {
    sub_box_region(tensor, 0, limits)
}

/// Like [`box_region`], starting `first` elements into each row. For types that
/// are not blocked.
pub fn sub_box_region(tensor: Tensor<'_>, first: u64, limits: [u64; MAX_DIMS]) -> Strided {
    let (ne, nb, block) = (tensor.extents(), tensor.nb(), tensor.block());
    let n: [u64; MAX_DIMS] = std::array::from_fn(|i| match i {
        0 => ne[0].saturating_sub(first).min(limits[0]),
        _ => ne[i].min(limits[i]),
    });
    if n.contains(&0) {
        return Strided::EMPTY;
    }
    let offset = tensor.offset_in_root() + first / block.elements * nb[0];
    let outer = (1..MAX_DIMS).map(|i| (n[i], nb[i]));
    if nb[0] == block.bytes {
        Strided::new(offset, block.row_bytes(n[0]), outer)
    } else {
        let along_row = (n[0].div_ceil(block.elements), nb[0]);
        Strided::new(offset, block.bytes, outer.chain([along_row]))
    }
}

/// All rows, found by stepping `nb[1]` from the first one whatever the higher
/// strides say: what kernels do that take rows for a flat list.
pub fn flat_rows_region(tensor: Tensor<'_>) -> Strided {
    if tensor.is_empty() {
        return Strided::EMPTY;
    }
    let row_bytes = tensor.block().row_bytes(tensor.extent(0));
    Strided::new(
        tensor.offset_in_root(),
        row_bytes,
        [(tensor.rows(), tensor.nb()[1])],
    )
}

/// The first `bytes` bytes, but never past the end of the root: an access
/// belongs to one tensor.
pub fn prefix_region(tensor: Tensor<'_>, bytes: u64) -> Strided {
    let offset = tensor.offset_in_root();
    let room = tensor.root().nbytes().saturating_sub(offset);
    match bytes.min(room) {
        0 => Strided::EMPTY,
        bytes => Strided::range(offset, bytes),
    }
}
