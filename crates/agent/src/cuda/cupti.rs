//! CUPTI, NVIDIA's library for profilers, attached and taken off again.
//!
//! It is opened at run time, from the path that the launcher found. Records are read at fixed
//! places, which are the same in all versions since 11.1 (Kernel6 to Kernel13 records).

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    path::Path,
};

use ::cuda::library::Library;

use trace::clock::now_nanos;

use super::bursts;
use crate::{lock::Lock, process};

const SUCCESS: c_int = 0;
/// `CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED`.
const ANOTHER_SUBSCRIBER: c_int = 39;
/// `CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL`.
const CONCURRENT_KERNEL: c_int = 10;
/// `CUPTI_ACTIVITY_KIND_KERNEL`.
const KERNEL: c_int = 3;
/// `CUPTI_CB_DOMAIN_DRIVER_API`.
const DRIVER_API: u32 = 1;
/// `CUPTI_API_ENTER`.
const ENTER: c_int = 0;
/// `CUPTI_ACTIVITY_FLAG_FLUSH_FORCED`.
const FORCED: u32 = 1;
/// Numbers of the driver's functions that launch: `cuLaunchKernel`, `…_ptsz`,
/// `cuLaunchCooperativeKernel`, `cuGraphLaunch`, `cuLaunchKernelEx`, `…_ptsz`.
const LAUNCHES: [u32; 6] = [307, 442, 477, 514, 652, 653];
const BUFFER_BYTES: usize = 8 << 20;

/// A kernel that ran.
#[derive(Clone, Debug)]
pub struct Kernel {
    pub begin_nanos: u64,
    pub end_nanos: u64,
    pub correlation: u32,
    /// Its low half is the place in the graph of the card's own.
    pub graph_node: u64,
    pub name: Vec<u8>,
    pub grid: [u32; 3],
    pub block: [u32; 3],
}

type Subscriber = *mut c_void;
type Callback = unsafe extern "C" fn(*mut c_void, u32, u32, *const CallbackData);
type Request = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
type Complete = unsafe extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);

::cuda::functions! {
    /// What is used of it.
    pub struct Functions {
    cuptiSubscribe(*mut Subscriber, Callback, *mut c_void);
    cuptiUnsubscribe(Subscriber);
    cuptiEnableCallback(u32, Subscriber, u32, u32);
    cuptiActivityEnable(c_int);
    cuptiActivityDisable(c_int);
    cuptiActivityRegisterCallbacks(Request, Complete);
    cuptiActivityRegisterTimestampCallback(unsafe extern "C" fn() -> u64);
    cuptiActivityGetNextRecord(*mut u8, usize, *mut *mut u8);
    cuptiActivityFlushAll(u32);
    cuptiActivityGetNumDroppedRecords(*mut c_void, u32, *mut usize);
    cuptiFinalize();
}
}

/// `CUpti_CallbackData`, as far as it is read.
#[repr(C)]
pub struct CallbackData {
    site: c_int,
    function: *const c_char,
    parameters: *const c_void,
    result: *mut c_void,
    symbol: *const c_char,
    context: *mut c_void,
    context_uid: u32,
    correlation_data: *mut u64,
    correlation: u32,
}

/// What buffers brought.
struct Gathered {
    functions: Option<Functions>,
    kernels: Vec<Kernel>,
    dropped: usize,
}

static GATHERED: Lock<Gathered> = Lock::new(Gathered {
    functions: None,
    kernels: Vec::new(),
    dropped: 0,
});

/// CUPTI, attached to this process.
pub struct Cupti {
    functions: Functions,
    subscriber: Subscriber,
}

// SAFETY: any thread may use the handle, one at a time.
unsafe impl Send for Cupti {}

impl Cupti {
    /// The card is idle. `Err` says why it cannot be attached.
    pub fn attach(path: &Path) -> Result<Cupti, String> {
        let shown = path.display();
        // Two of them in one process disturb each other.
        let library = match ::cuda::cupti::loaded() {
            Some((library, _)) => library,
            None => Library::local(path).map_err(|error| error.to_string())?,
        };
        let functions = Functions::of(library).map_err(|error| format!("{shown}: {error}"))?;
        GATHERED.with(|gathered| {
            gathered.functions = Some(functions);
            gathered.kernels.clear();
            gathered.dropped = 0;
        });
        let mut subscriber = std::ptr::null_mut();
        // SAFETY: functions that live as long as the process.
        let result = unsafe {
            (functions.cuptiSubscribe)(&mut subscriber, on_callback, std::ptr::null_mut())
        };
        match result {
            SUCCESS => {}
            ANOTHER_SUBSCRIBER => return Err("another profiler is attached to the card".into()),
            other => return Err(format!("{shown}: cuptiSubscribe fails with {other}")),
        }
        let cupti = Cupti {
            functions,
            subscriber,
        };
        match cupti.enable() {
            SUCCESS => Ok(cupti),
            failed => {
                cupti.take_off();
                Err(format!("{shown}: measuring kernels fails with {failed}"))
            }
        }
    }

    fn enable(&self) -> c_int {
        let f = &self.functions;
        // SAFETY: a subscriber of ours, and functions that live as long as the process.
        unsafe {
            for launch in LAUNCHES {
                // Older versions lack the newest.
                (f.cuptiEnableCallback)(1, self.subscriber, DRIVER_API, launch);
            }
            let steps = [
                (f.cuptiActivityRegisterTimestampCallback)(on_time),
                (f.cuptiActivityRegisterCallbacks)(on_request, on_complete),
                (f.cuptiActivityEnable)(CONCURRENT_KERNEL),
            ];
            steps
                .into_iter()
                .find(|&result| result != SUCCESS)
                .unwrap_or(SUCCESS)
        }
    }

    /// The card is idle. What ran meanwhile, and whether that is all of it.
    pub fn detach(self) -> (Vec<Kernel>, bool) {
        // SAFETY: attached.
        let flushed = unsafe { (self.functions.cuptiActivityFlushAll)(FORCED) };
        self.take_off();
        GATHERED.with(|gathered| {
            let kernels = std::mem::take(&mut gathered.kernels);
            (kernels, flushed == SUCCESS && gathered.dropped == 0)
        })
    }

    fn take_off(&self) {
        // SAFETY: attached, and nothing of it is used afterwards.
        unsafe {
            (self.functions.cuptiActivityDisable)(CONCURRENT_KERNEL);
            (self.functions.cuptiUnsubscribe)(self.subscriber);
            (self.functions.cuptiFinalize)();
        }
    }
}

/// For the launcher, which says it to people: kernels have no times.
pub fn note(reason: &str) {
    if let Some(process) = process::current() {
        process.note("no_gpu_times", reason);
    }
}

unsafe extern "C" fn on_time() -> u64 {
    now_nanos()
}

unsafe extern "C" fn on_callback(_: *mut c_void, domain: u32, _: u32, data: *const CallbackData) {
    if domain != DRIVER_API || data.is_null() {
        return;
    }
    // SAFETY: CUPTI's own struct, for the time of the call.
    let (site, correlation) = unsafe { ((*data).site, (*data).correlation) };
    if site == ENTER {
        bursts::launches(correlation);
    }
}

unsafe extern "C" fn on_request(buffer: *mut *mut u8, size: *mut usize, records: *mut usize) {
    let mut memory = std::ptr::null_mut();
    // SAFETY: fills the pointer, or fails and leaves it null.
    let failed = unsafe { libc::posix_memalign(&mut memory, 64, BUFFER_BYTES) } != 0;
    // SAFETY: CUPTI's own variables.
    unsafe {
        *buffer = if failed {
            std::ptr::null_mut()
        } else {
            memory.cast()
        };
        *size = if failed { 0 } else { BUFFER_BYTES };
        *records = 0;
    }
}

unsafe extern "C" fn on_complete(
    context: *mut c_void,
    stream: u32,
    buffer: *mut u8,
    _: usize,
    valid: usize,
) {
    GATHERED.with(|gathered| {
        let Some(functions) = gathered.functions else {
            return;
        };
        let mut record = std::ptr::null_mut();
        // SAFETY: a buffer of ours that CUPTI has filled so far, and records inside it.
        unsafe {
            while valid > 0
                && (functions.cuptiActivityGetNextRecord)(buffer, valid, &mut record) == SUCCESS
            {
                gathered.kernels.extend(kernel(record));
            }
            let mut dropped = 0;
            if (functions.cuptiActivityGetNumDroppedRecords)(context, stream, &mut dropped)
                == SUCCESS
            {
                gathered.dropped += dropped;
            }
        }
    });
    // SAFETY: allocated in `on_request`; CUPTI is done with it.
    unsafe { libc::free(buffer.cast()) };
}

/// # Safety
/// A live activity record.
unsafe fn kernel(record: *const u8) -> Option<Kernel> {
    // SAFETY: fields of a kernel's record, at places that have not changed since CUDA 11.1.
    unsafe {
        let word = |at: usize| record.add(at).cast::<u32>().read_unaligned();
        let long = |at: usize| record.add(at).cast::<u64>().read_unaligned();
        if !matches!(word(0) as c_int, KERNEL | CONCURRENT_KERNEL) {
            return None;
        }
        let name = long(104) as *const c_char;
        Some(Kernel {
            begin_nanos: long(16),
            end_nanos: long(24),
            correlation: word(92),
            graph_node: long(144),
            grid: [word(52), word(56), word(60)],
            block: [word(64), word(68), word(72)],
            name: match name.is_null() {
                true => Vec::new(),
                false => CStr::from_ptr(name).to_bytes().to_vec(),
            },
        })
    }
}
