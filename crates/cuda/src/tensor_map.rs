//! Descriptions of matrices for Hopper's copy engine (TMA).

use std::ffi::{c_int, c_void};

use crate::{Buffer, Card, CudaError, Element, Result, driver::Address, functions};

functions! {
    /// Looked up where it is used: drivers before CUDA 12 do not have it.
    pub struct Maps {
        cuTensorMapEncodeTiled(*mut c_void, c_int, u32, Address, *const u64, *const u64, *const u32, *const u32, c_int, c_int, c_int, c_int);
    }
}

/// How rows of a tile are permuted in shared memory so that no two threads meet in a bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swizzle {
    None = 0,
    Bytes32 = 1,
    Bytes64 = 2,
    Bytes128 = 3,
}

/// A `CUtensorMap`; a kernel takes it as `const __grid_constant__ CUtensorMap`
/// (here: `TensorMap` of common.cuh).
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct TensorMap([u64; 16]);

/// `CU_TENSOR_MAP_DATA_TYPE_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bytes = 0,
    F32 = 7,
    Bf16 = 9,
}

impl Card {
    /// A row-major matrix of `rows` × `columns`, copied in tiles of `tile_rows` × `tile_columns`.
    /// What lies outside reads as zero and is not written.
    pub fn matrix<T: Element>(
        &self,
        buffer: &Buffer<T>,
        (rows, columns): (u64, u64),
        (tile_rows, tile_columns): (u32, u32),
        swizzle: Swizzle,
    ) -> Result<TensorMap> {
        let kind = match std::any::type_name::<T>() {
            "f32" => Kind::F32,
            "half::bfloat::bf16" => Kind::Bf16,
            _ => Kind::Bytes,
        };
        if kind == Kind::Bytes && size_of::<T>() != 1 {
            return Err(CudaError::Unfit("no tiles of this type".to_owned()));
        }
        let maps = Maps::of(self.driver().library)?;
        let mut map = TensorMap([0; 16]);
        let extents = [columns, rows];
        let strides = [columns * size_of::<T>() as u64];
        let tile = [tile_columns, tile_rows];
        let steps = [1u32, 1];
        // SAFETY: arrays of two numbers each (strides: one), and 128 aligned bytes to write to.
        unsafe {
            self.driver().check((maps.cuTensorMapEncodeTiled)(
                (&raw mut map).cast(),
                kind as i32,
                2,
                buffer.address(),
                extents.as_ptr(),
                strides.as_ptr(),
                tile.as_ptr(),
                steps.as_ptr(),
                0,
                swizzle as i32,
                // L2 fetches 256 bytes at a time.
                3,
                0,
            ))?;
        }
        Ok(map)
    }
}
