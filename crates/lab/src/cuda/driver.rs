//! The functions of `libcuda.so.1` that are used, by their names there.
#![allow(non_snake_case)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use anyhow::{Context as _, bail};

use super::libraries::{Library, functions};

/// A context, module, kernel, stream or event.
pub type Handle = *mut c_void;
/// An address on the card.
pub type Address = u64;

functions! {
    /// The driver, loaded.
    pub struct Driver {
        cuInit(c_uint);
        cuDriverGetVersion(*mut c_int);
        cuDeviceGet(*mut c_int, c_int);
        cuDeviceGetName(*mut c_char, c_int, c_int);
        cuDeviceGetAttribute(*mut c_int, c_int, c_int);
        cuDeviceTotalMem_v2(*mut usize, c_int);
        cuDevicePrimaryCtxRetain(*mut Handle, c_int);
        cuCtxSetCurrent(Handle);
        cuCtxSynchronize();
        cuGetErrorString(c_int, *mut *const c_char);
        cuMemAlloc_v2(*mut Address, usize);
        cuMemFree_v2(Address);
        cuMemGetInfo_v2(*mut usize, *mut usize);
        cuMemcpyHtoD_v2(Address, *const c_void, usize);
        cuMemcpyDtoH_v2(*mut c_void, Address, usize);
        cuMemcpyDtoDAsync_v2(Address, Address, usize, Handle);
        cuMemsetD8_v2(Address, u8, usize);
        cuModuleLoadData(*mut Handle, *const c_void);
        cuModuleUnload(Handle);
        cuModuleGetFunction(*mut Handle, Handle, *const c_char);
        cuFuncGetAttribute(*mut c_int, c_int, Handle);
        cuFuncSetAttribute(Handle, c_int, c_int);
        cuOccupancyMaxActiveBlocksPerMultiprocessor(*mut c_int, Handle, c_int, usize);
        cuLaunchKernelEx(*const c_void, Handle, *mut *mut c_void, *mut *mut c_void);
        cuStreamBeginCapture_v2(Handle, c_int);
        cuStreamEndCapture(Handle, *mut Handle);
        cuGraphInstantiateWithFlags(*mut Handle, Handle, u64);
        cuGraphLaunch(Handle, Handle);
        cuGraphDestroy(Handle);
        cuGraphExecDestroy(Handle);
        cuStreamCreate(*mut Handle, c_uint);
        cuStreamSynchronize(Handle);
        cuStreamDestroy_v2(Handle);
        cuEventCreate(*mut Handle, c_uint);
        cuEventRecord(Handle, Handle);
        cuEventSynchronize(Handle);
        cuEventElapsedTime(*mut f32, Handle, Handle);
        cuEventDestroy_v2(Handle);
        cuProfilerStart();
        cuProfilerStop();
        cuTensorMapEncodeTiled(*mut c_void, c_int, u32, Address, *const u64, *const u64, *const u32, *const u32, c_int, c_int, c_int, c_int);
    }
}

impl Driver {
    pub fn load() -> anyhow::Result<Driver> {
        let library = Library::open(&["libcuda.so.1"])
            .context("an NVIDIA card is needed, and there is no driver for one (libcuda.so.1)")?;
        Driver::of(library)
    }

    /// An error with the driver's own words.
    pub fn check(&self, result: c_int) -> anyhow::Result<()> {
        if result == 0 {
            return Ok(());
        }
        let mut text = std::ptr::null();
        // SAFETY: writes a static string to the place given, or nothing.
        let words = unsafe {
            (self.cuGetErrorString)(result, &mut text);
            match text.is_null() {
                true => "unknown error".into(),
                false => CStr::from_ptr(text).to_string_lossy(),
            }
        };
        bail!("the card's driver: {words} (error {result})")
    }
}
