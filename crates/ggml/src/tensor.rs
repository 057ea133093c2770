//! `ggml_tensor` as the linked library lays it out, and a pointer to one.
//!
//! [`RawTensor`] is the layout of ggml 0.26.0 (llama-cpp-sys-2 0.1.160).
//! [`crate::check::self_check`] compares it with what the library answers before
//! anything here is believed. A library with another layout would need another
//! mirror: every read of a tensor goes through the accessors of [`Tensor`], so
//! that they are the only place to change.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::NonNull;

use gguf::types::GgmlType;

/// Dimensions of every tensor (`GGML_MAX_DIMS`).
pub const MAX_DIMS: usize = 4;
/// Most sources of a node (`GGML_MAX_SRC`).
pub const MAX_SRC: usize = 10;
/// Bytes of a name with its NUL (`GGML_MAX_NAME`).
pub const MAX_NAME_BYTES: usize = 64;
/// The same in builds that have longer names. Their structs are longer, and the same up to
/// the name.
pub const MAX_LONG_NAME_BYTES: usize = 512;
/// 32-bit words of op parameters (`GGML_MAX_OP_PARAMS / 4`).
pub const OP_PARAM_WORDS: usize = 16;

/// The tensor is a result that the program reads: it cannot be fused away.
pub const FLAG_OUTPUT: i32 = 2;
/// The node is executed; nodes of branches not chosen lack it.
pub const FLAG_COMPUTE: i32 = 16;

/// Views are made relative to their root (`ggml_view_impl`), so one hop is the
/// rule. The bound only keeps a damaged struct from hanging the program.
const MAX_VIEW_HOPS: usize = 16;

/// `struct ggml_tensor`, 336 bytes on 64-bit targets.
#[repr(C)]
#[derive(Clone, Debug)]
pub struct RawTensor {
    pub ty: u32,
    pub buffer: *mut c_void,
    /// Elements along each dimension.
    pub ne: [i64; MAX_DIMS],
    /// Bytes from one element (block, for dimension 0) to the next.
    pub nb: [usize; MAX_DIMS],
    pub op: u32,
    pub op_params: [i32; OP_PARAM_WORDS],
    pub flags: i32,
    pub src: [*mut RawTensor; MAX_SRC],
    pub view_src: *mut RawTensor,
    pub view_offs: usize,
    pub data: *mut c_void,
    pub name: [u8; MAX_NAME_BYTES],
    pub extra: *mut c_void,
    pub padding: [u8; 8],
}

#[cfg(target_pointer_width = "64")]
const _: () = {
    // The offsets that the uprobe notes and the C header agree on.
    assert!(std::mem::size_of::<RawTensor>() == 336);
    assert!(std::mem::offset_of!(RawTensor, ne) == 16);
    assert!(std::mem::offset_of!(RawTensor, nb) == 48);
    assert!(std::mem::offset_of!(RawTensor, op) == 80);
    assert!(std::mem::offset_of!(RawTensor, flags) == 148);
    assert!(std::mem::offset_of!(RawTensor, src) == 152);
    assert!(std::mem::offset_of!(RawTensor, view_src) == 232);
    assert!(std::mem::offset_of!(RawTensor, data) == 248);
    assert!(std::mem::offset_of!(RawTensor, name) == 256);
    assert!(std::mem::offset_of!(RawTensor, extra) == 320);
};

impl RawTensor {
    /// All zero: type F32, no data, op NONE.
    pub const ZERO: RawTensor = RawTensor {
        ty: 0,
        buffer: std::ptr::null_mut(),
        ne: [0; MAX_DIMS],
        nb: [0; MAX_DIMS],
        op: 0,
        op_params: [0; OP_PARAM_WORDS],
        flags: 0,
        src: [std::ptr::null_mut(); MAX_SRC],
        view_src: std::ptr::null_mut(),
        view_offs: 0,
        data: std::ptr::null_mut(),
        name: [0; MAX_NAME_BYTES],
        extra: std::ptr::null_mut(),
        padding: [0; 8],
    };
}

/// A tensor of a live graph. Two are equal when they are the same struct.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tensor<'g> {
    raw: NonNull<RawTensor>,
    graph: PhantomData<&'g RawTensor>,
}

/// Reads one field without forming a reference to the whole struct: ggml may
/// write to other fields of it while we look.
macro_rules! field {
    ($tensor:expr, $field:ident) => {
        // SAFETY: `Tensor::from_ptr` promised a live, initialised struct of this
        // layout whose fields do not change while `'g` lasts.
        unsafe { (&raw const (*$tensor.raw.as_ptr()).$field).read() }
    };
}

impl<'g> Tensor<'g> {
    /// `None` for a null pointer.
    ///
    /// # Safety
    /// `pointer` is null or points to a `ggml_tensor` of the layout of
    /// [`RawTensor`]. It, its sources and its view sources (transitively) stay
    /// allocated for `'g`, and no thread changes the fields read here during
    /// `'g`. The *data* they point to need not be readable.
    pub unsafe fn from_ptr(pointer: *const RawTensor) -> Option<Tensor<'g>> {
        NonNull::new(pointer.cast_mut()).map(|raw| Tensor {
            raw,
            graph: PhantomData,
        })
    }

    pub fn as_ptr(self) -> *const RawTensor {
        self.raw.as_ptr()
    }

    /// The number of the type in `enum ggml_type`.
    pub fn ty(self) -> u32 {
        field!(self, ty)
    }

    /// Elements along each dimension. (On a `&Tensor` write `(*t).ne()`:
    /// otherwise the compiler takes it for the `ne` of `PartialEq`.)
    pub fn ne(self) -> [i64; MAX_DIMS] {
        field!(self, ne)
    }

    /// Elements along dimension `i`, 0 when ggml holds nonsense there.
    pub fn extent(self, i: usize) -> u64 {
        u64::try_from(self.ne()[i]).unwrap_or(0)
    }

    /// All four extents.
    pub fn extents(self) -> [u64; MAX_DIMS] {
        self.ne().map(|n| u64::try_from(n).unwrap_or(0))
    }

    /// Strides in bytes.
    pub fn nb(self) -> [u64; MAX_DIMS] {
        field!(self, nb).map(|stride_bytes| stride_bytes as u64)
    }

    /// The number of the op in the library's `enum ggml_op`, which shifts
    /// between versions: [`crate::OpNumbers`] turns it into a name.
    pub fn op(self) -> u32 {
        field!(self, op)
    }

    pub fn op_params(self) -> [i32; OP_PARAM_WORDS] {
        field!(self, op_params)
    }

    pub fn flags(self) -> i32 {
        field!(self, flags)
    }

    pub fn src(self, i: usize) -> Option<Tensor<'g>> {
        let pointer = *field!(self, src).get(i)?;
        // SAFETY: sources live as long as their node (contract of `from_ptr`).
        unsafe { Tensor::from_ptr(pointer) }
    }

    /// The sources that are there, with their slot.
    pub fn srcs(self) -> impl Iterator<Item = (u8, Tensor<'g>)> {
        (0..MAX_SRC).filter_map(move |i| Some((i as u8, self.src(i)?)))
    }

    pub fn view_src(self) -> Option<Tensor<'g>> {
        let pointer = field!(self, view_src);
        // SAFETY: view sources live as long as their views (contract of `from_ptr`).
        unsafe { Tensor::from_ptr(pointer) }
    }

    /// Where the view starts in `view_src`, as ggml declared it.
    pub fn view_offs(self) -> u64 {
        field!(self, view_offs) as u64
    }

    /// The tensor that owns the memory: the end of the chain of view sources.
    pub fn root(self) -> Tensor<'g> {
        let mut root = self;
        for _ in 0..MAX_VIEW_HOPS {
            match root.view_src() {
                Some(next) => root = next,
                None => break,
            }
        }
        root
    }

    /// Bytes from the start of the root's data to the start of ours.
    ///
    /// By address where both have memory, because that is what the kernels use;
    /// otherwise (a graph not yet allocated) what the views declare.
    pub fn offset_in_root(self) -> u64 {
        let (data, root_data) = (self.data(), self.root().data());
        match data.checked_sub(root_data) {
            Some(offset) if root_data != 0 => offset as u64,
            _ => self.declared_offset_in_root(),
        }
    }

    /// Whether addresses and declared view offsets tell the same story. They
    /// differ when somebody repointed a root's data but not its views.
    pub fn view_is_consistent(self) -> bool {
        self.data() == 0
            || self.root().data() == 0
            || (self.data() as u64).checked_sub(self.root().data() as u64)
                == Some(self.declared_offset_in_root())
    }

    /// The same by what the views declare, wherever the data are.
    pub fn declared_offset_in_root(self) -> u64 {
        let (mut offset, mut view) = (0u64, self);
        for _ in 0..MAX_VIEW_HOPS {
            match view.view_src() {
                Some(next) => {
                    offset = offset.wrapping_add(view.view_offs());
                    view = next;
                }
                None => break,
            }
        }
        offset
    }

    /// Address of the first byte; 0 before allocation.
    pub fn data(self) -> usize {
        field!(self, data) as usize
    }

    /// The backend buffer of this struct; views may have none, their root does.
    pub fn buffer(self) -> *mut c_void {
        field!(self, buffer)
    }

    /// The name without its NUL, as the program gave it.
    pub fn name(self) -> &'g [u8] {
        // SAFETY: only the address is taken.
        let start = unsafe { (&raw const (*self.raw.as_ptr()).name).cast::<u8>() };
        // SAFETY: the name lies inside the live struct and ends with a NUL, which ggml puts
        // there; nothing behind it is read. Names do not change during `'g` (contract of
        // `from_ptr`).
        unsafe {
            let length = (0..MAX_LONG_NAME_BYTES).find(|&i| start.add(i).read() == 0);
            std::slice::from_raw_parts(start, length.unwrap_or(MAX_NAME_BYTES))
        }
    }

    /// Any dimension of no elements. Such a node is never computed.
    pub fn is_empty(self) -> bool {
        self.ne().contains(&0)
    }

    pub fn rows(self) -> u64 {
        self.extents()[1..]
            .iter()
            .fold(1, |rows, &n| rows.wrapping_mul(n))
    }

    pub fn elements(self) -> u64 {
        self.extents()
            .iter()
            .fold(1, |elements, &n| elements.wrapping_mul(n))
    }

    /// Elements and bytes of one block of the type.
    pub fn block(self) -> Block {
        Block::of(self.ty(), self.extents(), self.nb())
    }

    /// Exactly `ggml_nbytes`: from the first byte to the last, gaps included.
    pub fn nbytes(self) -> u64 {
        if self.ne().iter().any(|&n| n <= 0) {
            return 0;
        }
        let (ne, nb, block) = (self.extents(), self.nb(), self.block());
        // Wrapping, as C does: a damaged struct must not panic inside somebody
        // else's program.
        let span = |i: usize| (ne[i] - 1).wrapping_mul(nb[i]);
        let first_row = match block.elements {
            1 => block.bytes.wrapping_add(span(0)),
            elements => ne[0].wrapping_mul(nb[0]) / elements,
        };
        (1..MAX_DIMS).fold(first_row, |bytes, i| bytes.wrapping_add(span(i)))
    }

    /// Exactly `ggml_is_contiguous`: no gaps and dimensions in their order.
    pub fn is_contiguous(self) -> bool {
        let (ne, nb, block) = (self.extents(), self.nb(), self.block());
        let mut expected = block.bytes;
        if ne[0] != block.elements && nb[0] != expected {
            return false;
        }
        expected = expected.wrapping_mul(ne[0] / block.elements);
        for i in 1..MAX_DIMS {
            if ne[i] != 1 {
                if nb[i] != expected {
                    return false;
                }
                expected = expected.wrapping_mul(ne[i]);
            }
        }
        true
    }
}

impl std::fmt::Debug for Tensor<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = String::from_utf8_lossy(self.name());
        write!(f, "Tensor({:p} {name:?} {:?})", self.raw, { *self }.ne())
    }
}

/// Geometry of one block of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub elements: u64,
    pub bytes: u64,
}

impl Block {
    /// From gguf's table; for a type newer than the table from the strides,
    /// which a tensor without row padding gives away.
    fn of(ty: u32, ne: [u64; MAX_DIMS], nb: [u64; MAX_DIMS]) -> Block {
        if let Some(known) = GgmlType::from_u32(ty) {
            return Block {
                elements: known.block_elements(),
                bytes: known.block_bytes(),
            };
        }
        let unblocked_row = ne[0].wrapping_mul(nb[0]);
        let elements = match nb[1] {
            0 => 1,
            row if unblocked_row.is_multiple_of(row) => (unblocked_row / row).max(1),
            _ => 1,
        };
        Block {
            elements,
            bytes: nb[0],
        }
    }

    /// Bytes of `elements` elements in a row, a partial block counted whole.
    pub fn row_bytes(self, elements: u64) -> u64 {
        elements.div_ceil(self.elements).wrapping_mul(self.bytes)
    }
}
