//! The functions of `libcuda.so.1` that are used, by their names there.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::{
    CudaError, Result, functions,
    library::{Answer, Library},
};

/// A context, module, kernel, stream or event.
pub type Handle = *mut c_void;
/// An address on the card.
pub type Address = u64;

functions! {
    /// What tells of the driver and of its cards; every driver has it.
    pub struct Basics {
        cuInit(c_uint);
        cuDriverGetVersion(*mut c_int);
        cuDeviceGetCount(*mut c_int);
        cuDeviceGet(*mut c_int, c_int);
        cuDeviceGetName(*mut c_char, c_int, c_int);
        cuDeviceGetAttribute(*mut c_int, c_int, c_int);
        cuDeviceTotalMem_v2(*mut usize, c_int);
        cuGetErrorString(c_int, *mut *const c_char);
    }
}

functions! {
    /// What does work on a card.
    pub struct Functions {
        cuDevicePrimaryCtxRetain(*mut Handle, c_int);
        cuCtxSetCurrent(Handle);
        cuCtxSynchronize();
        cuMemAlloc_v2(*mut Address, usize);
        cuMemFree_v2(Address);
        cuMemGetInfo_v2(*mut usize, *mut usize);
        cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
        cuMemFreeHost(*mut c_void);
        cuMemcpyHtoD_v2(Address, *const c_void, usize);
        cuMemcpyDtoH_v2(*mut c_void, Address, usize);
        cuMemcpyHtoDAsync_v2(Address, *const c_void, usize, Handle);
        cuMemcpyDtoHAsync_v2(*mut c_void, Address, usize, Handle);
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
    }
}

/// The driver, loaded.
pub struct Driver {
    pub library: Library,
    pub basics: Basics,
    functions: Functions,
}

impl std::ops::Deref for Driver {
    type Target = Functions;

    fn deref(&self) -> &Functions {
        &self.functions
    }
}

impl Driver {
    pub fn load() -> Result<Driver> {
        let (library, basics) = Basics::load()?;
        Ok(Driver {
            library,
            basics,
            functions: Functions::of(library)?,
        })
    }

    /// An error with the driver's own words.
    pub fn check(&self, result: Answer) -> Result<()> {
        self.basics.check(result)
    }
}

impl Basics {
    /// Loads the driver, whatever its age; nothing is asked of it yet.
    pub fn load() -> Result<(Library, Basics)> {
        let library = Library::open(&["libcuda.so.1"]).map_err(|error| CudaError::NoDriver {
            reason: error.to_string(),
        })?;
        Ok((library, Basics::of(library)?))
    }

    /// An error with the driver's own words.
    pub fn check(&self, result: Answer) -> Result<()> {
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
        Err(CudaError::Driver {
            code: result,
            words: words.into_owned(),
        })
    }
}
