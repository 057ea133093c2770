//! Kernels: loaded, looked at and launched.

use std::{
    cell::RefCell,
    ffi::{CString, c_int, c_uint, c_void},
    rc::Rc,
};

use crate::{Card, CudaError, Result, Stream, TensorMap, Trying as _, driver};

/// Kernels, loaded.
pub struct Module {
    pub(crate) card: Card,
    pub(crate) handle: driver::Handle,
}

impl Module {
    pub fn kernel(self: &Rc<Self>, name: &str) -> Result<Kernel> {
        let c_name = CString::new(name)
            .map_err(|_| CudaError::Unfit(format!("{name:?} is no name of a kernel")))?;
        let driver = self.card.driver();
        let mut handle = std::ptr::null_mut();
        // SAFETY: a live module and a C string.
        unsafe {
            driver.check((driver.cuModuleGetFunction)(
                &mut handle,
                self.handle,
                c_name.as_ptr(),
            ))
        }
        .trying(|| format!("there is no kernel {name}"))?;
        Ok(Kernel {
            module: self.clone(),
            handle,
            name: name.to_owned(),
        })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: its kernels hold it, so none is left.
        unsafe { (self.card.driver().cuModuleUnload)(self.handle) };
    }
}

thread_local! {
    /// Names of kernels, in the order of their launches, while somebody wants to know them.
    pub(crate) static LAUNCHED: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// One function that runs on the card.
pub struct Kernel {
    module: Rc<Module>,
    handle: driver::Handle,
    pub name: String,
}

/// What the compiler gave a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    pub registers: u32,
    /// Of each thread, in memory: spilled registers and arrays.
    pub local_bytes: u32,
    pub static_shared_bytes: u32,
}

/// How a kernel is launched.
#[derive(Clone, Copy, Debug, Default)]
pub struct Launch<'a> {
    pub grid: (u32, u32, u32),
    pub block: (u32, u32, u32),
    pub shared_bytes: u32,
    pub stream: Option<&'a Stream>,
    /// Blocks along x that are neighbours and reach each other's shared memory; the grid has a
    /// multiple of them. 0 is as 1: none.
    pub cluster: u32,
    /// It may begin while the kernel ahead of it in the stream ends: as soon as all blocks of
    /// that one have said `griddepcontrol.launch_dependents`. Before it reads what that one
    /// wrote it has to say `griddepcontrol.wait`.
    pub may_begin_early: bool,
}

impl Launch<'_> {
    pub fn new(grid: (u32, u32, u32), block: u32, shared_bytes: u32) -> Launch<'static> {
        Launch {
            grid,
            block: (block, 1, 1),
            shared_bytes,
            ..Launch::default()
        }
    }
}

/// `CUlaunchConfig`.
#[repr(C)]
struct Configuration {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    stream: driver::Handle,
    attributes: *const Attribute,
    attribute_count: c_uint,
}

/// `CUlaunchAttribute`: a number, and a value of 64 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
struct Attribute {
    id: c_uint,
    padding: c_uint,
    value: [c_uint; 16],
}

/// `CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION`.
const CLUSTER_DIMENSION: c_uint = 4;
/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`.
const MAY_BEGIN_EARLY: c_uint = 6;

impl Attribute {
    fn new(id: c_uint, first: &[c_uint]) -> Attribute {
        let mut value = [0; 16];
        value[..first.len()].copy_from_slice(first);
        Attribute {
            id,
            padding: 0,
            value,
        }
    }
}

impl Kernel {
    pub fn resources(&self) -> Result<Resources> {
        let driver = self.module.card.driver();
        let attribute = |which: c_int| -> Result<u32> {
            let mut value = 0;
            // SAFETY: a live kernel.
            unsafe { driver.check((driver.cuFuncGetAttribute)(&mut value, which, self.handle))? };
            Ok(value as u32)
        };
        Ok(Resources {
            registers: attribute(4)?,
            local_bytes: attribute(3)?,
            static_shared_bytes: attribute(1)?,
        })
    }

    /// Allows more than 48 KiB of shared memory; needed once.
    pub fn allow_shared(&self, bytes: u32) -> Result<()> {
        let driver = self.module.card.driver();
        // SAFETY: a live kernel; 8 is the most shared memory that it may ask for.
        unsafe { driver.check((driver.cuFuncSetAttribute)(self.handle, 8, bytes as c_int)) }
            .trying(|| format!("{}: {bytes} bytes of shared memory", self.name))
    }

    /// How many blocks run on one multiprocessor at the same time.
    pub fn blocks_at_once(&self, block: u32, shared_bytes: u32) -> Result<u32> {
        let driver = self.module.card.driver();
        let mut blocks = 0;
        let occupancy = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor;
        // SAFETY: a live kernel.
        unsafe {
            driver.check(occupancy(
                &mut blocks,
                self.handle,
                block as c_int,
                shared_bytes as usize,
            ))?
        };
        Ok(blocks as u32)
    }

    /// Starts it; `arguments` are its parameters, in order.
    ///
    /// # Safety
    /// The arguments are of the types and number that the kernel has, buffers are as large as
    /// it assumes, and it waits for the kernel ahead of it where it may begin early.
    pub unsafe fn launch(&self, how: Launch<'_>, arguments: &[&dyn Argument]) -> Result<()> {
        let (x, y, z) = how.grid;
        if x == 0 || y == 0 || z == 0 {
            return Err(CudaError::Unfit(format!("{}: an empty grid", self.name)));
        }
        let mut attributes = Vec::new();
        if how.cluster > 1 {
            attributes.push(Attribute::new(CLUSTER_DIMENSION, &[how.cluster, 1, 1]));
        }
        if how.may_begin_early {
            attributes.push(Attribute::new(MAY_BEGIN_EARLY, &[1]));
        }
        let configuration = Configuration {
            grid: [x, y, z],
            block: [how.block.0, how.block.1.max(1), how.block.2.max(1)],
            shared_bytes: how.shared_bytes,
            stream: Stream::handle_of(how.stream),
            attributes: attributes.as_ptr(),
            attribute_count: attributes.len() as c_uint,
        };
        LAUNCHED.with_borrow_mut(|launched| {
            if let Some(names) = launched {
                names.push(self.name.clone());
            }
        });
        let mut pointers: Vec<*mut c_void> = arguments
            .iter()
            .map(|argument| argument.pointer().cast_mut())
            .collect();
        let driver = self.module.card.driver();
        // SAFETY: as promised by the caller; the driver copies configuration and arguments.
        let result = unsafe {
            (driver.cuLaunchKernelEx)(
                (&raw const configuration).cast(),
                self.handle,
                pointers.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        driver.check(result).trying(|| self.name.clone())
    }
}

/// A parameter of a kernel.
pub trait Argument {
    /// Where its bytes are.
    fn pointer(&self) -> *const c_void;
}

macro_rules! plain_arguments {
    ($($ty:ty),*) => {$(
        impl Argument for $ty {
            fn pointer(&self) -> *const c_void {
                std::ptr::from_ref(self).cast()
            }
        }
    )*};
}

plain_arguments!(i32, u32, i64, u64, f32, f64, TensorMap);
