//! A graphics card through NVIDIA's driver: memory, kernels that are compiled here, and time.
//!
//! Nothing of CUDA is needed to build this program. The driver, the compiler (NVRTC) and the
//! vendor's matrix library are found when an experiment asks for them, and what is missing is
//! said in one line.

mod compiler;
mod driver;
mod graph;
pub mod libraries;
mod memory;
mod tensor_map;
pub mod vendor;

use std::{
    cell::RefCell,
    ffi::{CStr, CString, c_int, c_uint, c_void},
    rc::Rc,
};

use anyhow::{Context as _, anyhow, ensure};

use self::driver::Driver;
pub use self::{
    compiler::{COMMON, Compiled, compile},
    graph::Graph,
    libraries::tool,
    memory::{Buffer, Element},
    tensor_map::{Swizzle, TensorMap},
};

/// One card, ready for work on its default stream.
#[derive(Clone)]
pub struct Card(Rc<Inner>);

struct Inner {
    driver: Driver,
    context: driver::Handle,
    pub about: About,
}

/// What a card says of itself.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct About {
    pub name: String,
    /// Of its instructions: (9, 0) for Hopper.
    pub capability: (i32, i32),
    pub multiprocessors: u32,
    pub memory_bytes: u64,
    pub l2_bytes: u64,
    /// Shared memory that one block may ask for.
    pub shared_bytes: u32,
    /// As CUDA counts versions: 13000 for 13.0.
    pub driver_version: i32,
}

impl Card {
    /// The first card; an error says in a line what is missing.
    pub fn open() -> anyhow::Result<Card> {
        let driver = Driver::load()?;
        // SAFETY: calls of the driver with places to write to, in the order that it asks for.
        unsafe {
            driver
                .check((driver.cuInit)(0))
                .context("the driver does not start")?;
            let mut device: c_int = 0;
            driver
                .check((driver.cuDeviceGet)(&mut device, 0))
                .context("there is no NVIDIA card that this program may use")?;
            let mut context = std::ptr::null_mut();
            driver.check((driver.cuDevicePrimaryCtxRetain)(&mut context, device))?;
            driver.check((driver.cuCtxSetCurrent)(context))?;
            let attribute = |which: c_int| -> anyhow::Result<c_int> {
                let mut value = 0;
                driver.check((driver.cuDeviceGetAttribute)(&mut value, which, device))?;
                Ok(value)
            };
            let mut name = [0; 256];
            driver.check((driver.cuDeviceGetName)(name.as_mut_ptr(), 256, device))?;
            let mut memory_bytes = 0;
            driver.check((driver.cuDeviceTotalMem_v2)(&mut memory_bytes, device))?;
            let mut driver_version = 0;
            driver.check((driver.cuDriverGetVersion)(&mut driver_version))?;
            let about = About {
                name: CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned(),
                capability: (attribute(75)?, attribute(76)?),
                multiprocessors: attribute(16)? as u32,
                memory_bytes: memory_bytes as u64,
                l2_bytes: attribute(38)? as u64,
                shared_bytes: attribute(97)? as u32,
                driver_version,
            };
            Ok(Card(Rc::new(Inner {
                driver,
                context,
                about,
            })))
        }
    }

    pub fn about(&self) -> &About {
        &self.0.about
    }

    /// Whether it has the instructions that Hopper brought (TMA, wgmma, clusters).
    pub fn is_hopper(&self) -> bool {
        self.about().capability.0 == 9
    }

    fn driver(&self) -> &Driver {
        &self.0.driver
    }

    /// Waits for everything that was asked of the card; errors of kernels show here.
    pub fn wait(&self) -> anyhow::Result<()> {
        // SAFETY: the context is current on this thread.
        unsafe { self.driver().check((self.driver().cuCtxSynchronize)()) }
    }

    /// Loads what [`compile`] gave.
    pub fn load(&self, compiled: &Compiled) -> anyhow::Result<Module> {
        let mut handle = std::ptr::null_mut();
        let image = compiled.image.as_ptr().cast();
        // SAFETY: a complete image, as the compiler gave it.
        unsafe {
            self.driver()
                .check((self.driver().cuModuleLoadData)(&mut handle, image))
        }
        .with_context(|| format!("the driver does not take {}", compiled.name))?;
        Ok(Module {
            card: self.clone(),
            handle,
        })
    }

    /// Compiles kernels of this crate and loads them; `defines` are `NAME=VALUE`.
    pub fn kernels(&self, name: &str, source: &str, defines: &[String]) -> anyhow::Result<Module> {
        self.load(&compile(self.about().capability, name, source, defines)?)
    }

    pub fn new_event(&self) -> anyhow::Result<Event> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: writes the new event to the place given.
        unsafe {
            self.driver()
                .check((self.driver().cuEventCreate)(&mut handle, 0))?
        };
        Ok(Event {
            card: self.clone(),
            handle,
        })
    }

    pub fn new_stream(&self) -> anyhow::Result<Stream> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: as above; 1: it does not wait for the default stream.
        unsafe {
            self.driver()
                .check((self.driver().cuStreamCreate)(&mut handle, 1))?
        };
        Ok(Stream {
            card: self.clone(),
            handle,
        })
    }

    /// Does `work` while a profiler that waits for it is on; the kernels that were launched.
    pub fn profiled(
        &self,
        work: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<Vec<String>> {
        self.wait()?;
        // SAFETY: both take nothing.
        unsafe { self.driver().check((self.driver().cuProfilerStart)())? };
        LAUNCHED.set(Some(Vec::new()));
        let worked = work().and_then(|()| self.wait());
        let launched = LAUNCHED.take().unwrap_or_default();
        // SAFETY: as above.
        unsafe { self.driver().check((self.driver().cuProfilerStop)())? };
        worked.map(|()| launched)
    }

    /// Milliseconds that the card spends on `work`, by its own clock, on the default stream.
    pub fn time_ms(&self, work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<f64> {
        let (begin, end) = (self.new_event()?, self.new_event()?);
        begin.record(None)?;
        work()?;
        end.record(None)?;
        end.milliseconds_since(&begin)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Module, buffers and events hold the card, so nothing of ours is left in it.
        let _ = self.context;
    }
}

/// Work in order, beside the default stream.
pub struct Stream {
    card: Card,
    handle: driver::Handle,
}

impl Stream {
    pub fn wait(&self) -> anyhow::Result<()> {
        let driver = self.card.driver();
        // SAFETY: a live stream.
        unsafe { driver.check((driver.cuStreamSynchronize)(self.handle)) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: a live stream, used by nobody any more.
        unsafe { (self.card.driver().cuStreamDestroy_v2)(self.handle) };
    }
}

/// A moment on the card's clock.
pub struct Event {
    card: Card,
    handle: driver::Handle,
}

impl Event {
    pub fn record(&self, stream: Option<&Stream>) -> anyhow::Result<()> {
        let stream = stream.map_or(std::ptr::null_mut(), |stream| stream.handle);
        let driver = self.card.driver();
        // SAFETY: a live event and stream (null is the default one).
        unsafe { driver.check((driver.cuEventRecord)(self.handle, stream)) }
    }

    /// Waits for this event.
    pub fn milliseconds_since(&self, before: &Event) -> anyhow::Result<f64> {
        let driver = self.card.driver();
        let mut milliseconds = 0.0f32;
        // SAFETY: live events, both recorded.
        unsafe {
            driver.check((driver.cuEventSynchronize)(self.handle))?;
            driver.check((driver.cuEventElapsedTime)(
                &mut milliseconds,
                before.handle,
                self.handle,
            ))?;
        }
        Ok(f64::from(milliseconds))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: a live event, used by nobody any more.
        unsafe { (self.card.driver().cuEventDestroy_v2)(self.handle) };
    }
}

/// Kernels, loaded.
pub struct Module {
    card: Card,
    handle: driver::Handle,
}

impl Module {
    pub fn kernel(self: &Rc<Self>, name: &str) -> anyhow::Result<Kernel> {
        let c_name = CString::new(name)?;
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
        .with_context(|| format!("there is no kernel {name}"))?;
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
    static LAUNCHED: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// One function that runs on the card.
pub struct Kernel {
    module: Rc<Module>,
    handle: driver::Handle,
    pub name: String,
}

/// What the compiler gave a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
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

// A stream has no `Debug` of its own; it is only a handle.
impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stream")
    }
}

impl Kernel {
    pub fn resources(&self) -> anyhow::Result<Resources> {
        let driver = self.module.card.driver();
        let attribute = |which: c_int| -> anyhow::Result<u32> {
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
    pub fn allow_shared(&self, bytes: u32) -> anyhow::Result<()> {
        let driver = self.module.card.driver();
        // SAFETY: a live kernel; 8 is the most shared memory that it may ask for.
        unsafe { driver.check((driver.cuFuncSetAttribute)(self.handle, 8, bytes as c_int)) }
            .with_context(|| format!("{}: {bytes} bytes of shared memory", self.name))
    }

    /// How many blocks run on one multiprocessor at the same time.
    pub fn blocks_at_once(&self, block: u32, shared_bytes: u32) -> anyhow::Result<u32> {
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
    pub unsafe fn launch(
        &self,
        how: Launch<'_>,
        arguments: &[&dyn Argument],
    ) -> anyhow::Result<()> {
        let (x, y, z) = how.grid;
        ensure!(x > 0 && y > 0 && z > 0, "{}: an empty grid", self.name);
        let mut attributes = Vec::new();
        if how.cluster > 1 {
            attributes.push(Attribute::new(CLUSTER_DIMENSION, &[how.cluster, 1, 1]));
        }
        if how.may_begin_early {
            attributes.push(Attribute::new(MAY_BEGIN_EARLY, &[1]));
        }
        let stream = how.stream.map(|stream| stream.handle);
        let configuration = Configuration {
            grid: [x, y, z],
            block: [how.block.0, how.block.1.max(1), how.block.2.max(1)],
            shared_bytes: how.shared_bytes,
            stream: stream.unwrap_or(std::ptr::null_mut()),
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
        driver
            .check(result)
            .map_err(|error| anyhow!("{}: {error}", self.name))
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
