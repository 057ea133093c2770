//! Finding the functions that a call would have reached without us, and what the
//! library behind them looks like.
//!
//! `dlsym(RTLD_NEXT)` sees only the global scope, but Python and the loaders of
//! ggml's own backends open libraries locally, and there may be several copies of
//! ggml. So the search starts at the *caller*: its library and what that depends
//! on, exactly what the dynamic linker would have searched. The result is kept for
//! the caller's library ([`Original`]), and the libraries involved from being unloaded.
//!
//! How a library behaves is told by symbols that came or went in the very commit
//! that changed the behaviour:
//!
//! | behaviour | since | told by |
//! |---|---|---|
//! | `threadpool` in the plan | 2024-08-30 | `ggml_threadpool_new` is there |
//! | empty ops do not tick | 2025-11-10 | `ggml_compute_forward_reshape` went, `…_add` (2025-04) is there |
//! | a flag decides what is computed | 2026-01-19 | `ggml_build_forward_select` is there |
//! | graphs have a `uid` | 2026-04-16 | `ggml_graph_next_uid` is there |
//! | RMS_NORM and MUL are fused | 2026-05-06 | `ggml_compute_forward_rms_norm_mul_fused` is there |

mod original;

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    mem::MaybeUninit,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicPtr, Ordering},
    },
};

use capture::{
    Places,
    hook::{ComputeFn, CplanLayout},
    known::Knowledge,
};
use ggml::{
    ComputeFlag, EmptyOps, Fusion, OpNumbers, TickRules,
    check::{Api, identify},
    foreign::{Mirror, TensorLayout},
};

pub use original::Original;

use crate::{
    inside::{self, Inside},
    lock::Lock,
    without_names,
};

/// What a new llama.cpp lacks of what is asked for here.
const GONE: [&CStr; 1] = [c"ggml_compute_forward_reshape"];

/// Types that every version since 2024 has; sizes of later ones are not asked.
pub const TYPES_SINCE_2024: u32 = 31;

/// Where the dynamic linker would look; for an object with ggml inside, that object.
pub struct Scope {
    handle: *mut c_void,
    inside: Option<&'static Inside>,
    pub path: String,
}

impl Scope {
    /// Of the library that holds the address `code`.
    pub fn around(code: usize) -> Scope {
        if let Some(inside) = inside::around(code) {
            return Scope {
                inside: Some(inside),
                path: inside.path().to_owned(),
                ..Scope::everywhere()
            };
        }
        let Some((name, _)) = object_of(code) else {
            return Scope::everywhere();
        };
        Scope {
            handle: loaded(&name),
            path: name.to_string_lossy().into_owned(),
            ..Scope::everywhere()
        }
    }

    fn everywhere() -> Scope {
        Scope {
            handle: std::ptr::null_mut(),
            inside: None,
            path: String::new(),
        }
    }

    /// Null when no library has it.
    pub fn find(&self, name: &CStr) -> *mut c_void {
        if let Some(inside) = self.inside {
            return inside.find(name) as *mut c_void;
        }
        let is_theirs = |function: *mut c_void| !function.is_null() && !is_ours(function as usize);
        if !self.handle.is_null() {
            // SAFETY: a handle of a loaded library, and a C string.
            let function = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
            if is_theirs(function) {
                return function;
            }
        }
        // SAFETY: as above; a pseudo-handle.
        let function = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        if is_theirs(function) {
            return function;
        }
        find_anywhere(name, is_theirs)
    }

    /// Whether the library has a function. What is linked into a program may lack functions
    /// that nobody calls, or names; how new it is is told otherwise then.
    fn has(&self, name: &CStr) -> bool {
        match self.inside {
            Some(inside) if inside.is_new() => !GONE.contains(&name),
            _ => !self.find(name).is_null(),
        }
    }

    fn without_names(&self) -> Option<&'static Inside> {
        self.inside.filter(|inside| inside.op_names().is_some())
    }
}

/// Name and base address of the loaded object that holds an address.
fn object_of(code: usize) -> Option<(CString, usize)> {
    let mut about = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: fills the struct, or answers 0.
    if unsafe { libc::dladdr(code as *const c_void, about.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: zero is valid for all fields, so it is initialised in any case.
    let about = unsafe { about.assume_init() };
    if about.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's own string, as long as the object is loaded.
    let name = unsafe { CStr::from_ptr(about.dli_fname) }.to_owned();
    Some((name, about.dli_fbase as usize))
}

fn is_ours(function: usize) -> bool {
    static OUR_BASE: OnceLock<usize> = OnceLock::new();
    let ours = *OUR_BASE.get_or_init(|| {
        let here = is_ours as *const () as usize;
        object_of(here).map_or(0, |(_, base)| base)
    });
    object_of(function).is_some_and(|(_, base)| base == ours)
}

/// A handle of a library that is loaded already, which keeps it loaded.
fn loaded(name: &CStr) -> *mut c_void {
    // SAFETY: a C string; nothing new is loaded.
    unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) }
}

/// Asks every loaded library whose name tells that it may be one of llama.cpp's.
fn find_anywhere(name: &CStr, is_theirs: impl Fn(*mut c_void) -> bool) -> *mut c_void {
    unsafe extern "C" fn note(
        about: *mut libc::dl_phdr_info,
        _: usize,
        names: *mut c_void,
    ) -> c_int {
        // SAFETY: the vector that the caller passed, and the loader's own string.
        unsafe {
            let name = (*about).dlpi_name;
            if !name.is_null() && *name != 0 {
                (*names.cast::<Vec<CString>>()).push(CStr::from_ptr(name).to_owned());
            }
        }
        0
    }
    let mut names: Vec<CString> = Vec::new();
    // Only names are collected under the loader's lock: opening there could wait
    // for a thread that waits for that lock.
    // SAFETY: `note` gets the vector and does not keep it.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut names).cast()) };
    for object in names {
        let bytes = object.to_bytes();
        let may_be = |part: &[u8]| bytes.windows(part.len()).any(|w| w == part);
        if !may_be(b"ggml") && !may_be(b"llama") {
            continue;
        }
        let handle = loaded(&object);
        if handle.is_null() {
            continue;
        }
        // SAFETY: a handle and a C string.
        let function = unsafe { libc::dlsym(handle, name.as_ptr()) };
        if is_theirs(function) {
            return function;
        }
        // SAFETY: opened above; nothing of it is used.
        unsafe { libc::dlclose(handle) };
    }
    std::ptr::null_mut()
}

/// Libraries that have computed, by their `ggml_graph_compute`. Never freed.
static LIBRARIES: [AtomicPtr<Library>; 8] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 8];
static DESCRIBING: Lock<()> = Lock::new(());

fn all() -> impl Iterator<Item = &'static Library> {
    LIBRARIES
        .iter()
        // SAFETY: never freed.
        .map_while(|library| unsafe { library.load(Ordering::Acquire).as_ref() })
}

/// A library that has computed, by its `ggml_graph_compute`.
pub fn known(compute: *mut c_void) -> Option<&'static Library> {
    all().find(|library| std::ptr::eq(library.compute as *mut c_void, compute))
}

/// One that has computed; all that are loaded are asked in the same way.
pub fn any() -> Option<&'static Library> {
    all().next()
}

/// The library of a call of `real` that returns to `caller`; `is_new` is called when it
/// computes for the first time.
pub fn of(
    caller: usize,
    real: ComputeFn,
    is_new: impl FnOnce(&Library),
) -> Result<&'static Library, String> {
    let known = || known(real as *mut c_void);
    if let Some(library) = known() {
        return Ok(library);
    }
    DESCRIBING.with(|()| {
        if let Some(library) = known() {
            return Ok(library);
        }
        let library: &'static Library = Box::leak(Box::new(Library::describe(caller, real)?));
        let free = LIBRARIES
            .iter()
            .find(|l| l.load(Ordering::Acquire).is_null())
            .ok_or("more copies of ggml than can be told apart")?;
        free.store(std::ptr::from_ref(library).cast_mut(), Ordering::Release);
        is_new(library);
        Ok(library)
    })
}

/// A copy of ggml's CPU backend, as far as recording has to know it.
pub struct Library {
    pub compute: ComputeFn,
    pub knowledge: Arc<Knowledge>,
    pub rules: TickRules,
    pub cplan_layout: CplanLayout,
    pub has_uid: bool,
    /// As far as it has one.
    pub version: String,
    pub llama_version: Option<String>,
    pub path: String,
    without_names: Option<&'static Inside>,
    tensor_layout: OnceLock<Result<TensorLayout, String>>,
}

impl Library {
    /// The library that computes for the call that returns to `caller`; `Err` says
    /// why its graphs cannot be recorded.
    pub fn describe(caller: usize, compute: ComputeFn) -> Result<Library, String> {
        let scope = Scope::around(caller);
        let api = match scope.without_names() {
            Some(inside) => without_names::api(inside)?,
            None => api(&scope).map_err(|missing| {
                format!(
                    "{}: this ggml has no function {}, so it is none of llama.cpp since 2024",
                    scope.path,
                    missing.to_string_lossy()
                )
            })?,
        };
        let empty_ops_tick =
            scope.has(c"ggml_compute_forward_reshape") || !scope.has(c"ggml_compute_forward_add");
        let fuses = scope.has(c"ggml_compute_forward_rms_norm_mul_fused")
            // ggml reads this variable once, in ggml_cpu_init.
            && std::env::var("GGML_CPU_DISABLE_FUSION").as_deref() != Ok("1");
        let rules = TickRules {
            fusion: if fuses { Fusion::On } else { Fusion::Off },
            empty_ops: if empty_ops_tick {
                EmptyOps::Tick
            } else {
                EmptyOps::PassedOver
            },
            compute_flag: if scope.has(c"ggml_build_forward_select") {
                ComputeFlag::Decides
            } else {
                ComputeFlag::DoesNotExist
            },
        };
        let version = match api.ggml_version {
            Some(_) => api.version(),
            None if scope.has(c"ggml_graph_next_uid") => "of unknown version".into(),
            None => "without a version (older than 2025-07)".into(),
        };
        let llama_version = match scope.inside {
            Some(_) => scope.find(c"llama_version"),
            None => Scope::everywhere().find(c"llama_version"),
        };
        Ok(Library {
            compute,
            knowledge: Arc::new(Knowledge {
                // SAFETY: the library's own function.
                ops: unsafe { OpNumbers::new(api.ggml_op_name) },
                api,
                places: Places::new(),
                fusion: rules.fusion,
            }),
            rules,
            cplan_layout: if scope.has(c"ggml_threadpool_new") {
                CplanLayout::Today
            } else {
                CplanLayout::WithoutThreadpool
            },
            has_uid: scope.has(c"ggml_graph_next_uid"),
            version,
            llama_version: (!llama_version.is_null()).then(|| {
                // SAFETY: `const char * llama_version(void)`, a static string.
                unsafe {
                    let version: unsafe extern "C" fn() -> *const c_char =
                        std::mem::transmute(llama_version);
                    CStr::from_ptr(version()).to_string_lossy().into_owned()
                }
            }),
            without_names: scope.without_names(),
            path: scope.path,
            tensor_layout: OnceLock::new(),
        })
    }

    /// Whether its first graph was laid out as ours.
    pub fn is_laid_out_as_today(&self) -> bool {
        matches!(self.tensor_layout.get(), Some(Ok(TensorLayout::Today)))
    }

    /// The name of a buffer's type (`CUDA0`, `CPU_Mapped`); `None` for no buffer.
    ///
    /// # Safety
    /// Null, or a live buffer of this library.
    pub unsafe fn buffer_name(&self, buffer: *mut c_void) -> Option<&'static [u8]> {
        if buffer.is_null() {
            return None;
        }
        let api = &self.knowledge.api;
        // SAFETY: as promised by the caller; the string lives as long as the buffer type, which
        // libraries never free.
        unsafe {
            let buffer_type = (api.ggml_backend_buffer_get_type)(buffer);
            let name = (api.ggml_backend_buft_name)(buffer_type);
            (!name.is_null()).then(|| CStr::from_ptr(name).to_bytes())
        }
    }

    /// How its tensors are laid out, found out at its first graph.
    ///
    /// # Safety
    /// `graph` is a live graph of this library.
    pub unsafe fn tensor_layout(
        &self,
        graph: *const c_void,
        mirror: &mut Mirror,
    ) -> Result<TensorLayout, String> {
        self.tensor_layout
            .get_or_init(|| {
                if let Some(inside) = self.without_names {
                    without_names::check(inside, graph as usize)
                        .map_err(|reason| format!("{}: {reason}", self.path))?;
                }
                // SAFETY: a graph of the library of these functions (caller).
                let identified = unsafe { identify(&self.knowledge.api, graph, mirror) };
                identified.map_err(|error| {
                    let reason = error.to_string();
                    let older = "ggml without a version (older than 2025-07)";
                    format!("{}: {}", self.path, reason.replace("ggml unknown", older))
                })
            })
            .clone()
    }
}

/// The functions of the library, or the name of one that it lacks.
#[expect(
    clippy::missing_transmute_annotations,
    reason = "the fields of Api give the types"
)]
fn api(scope: &Scope) -> Result<Api, &'static CStr> {
    macro_rules! needed {
        ($name:literal) => {{
            let function = scope.find($name);
            if function.is_null() {
                return Err($name);
            }
            // SAFETY: the C function of this name; the field gives its type.
            unsafe { std::mem::transmute(function) }
        }};
    }
    macro_rules! or {
        ($name:literal, $fallback:expr, $type:ty) => {{
            let function = scope.find($name);
            if function.is_null() {
                let fallback: $type = $fallback;
                fallback
            } else {
                // SAFETY: as above.
                unsafe { std::mem::transmute::<*mut c_void, $type>(function) }
            }
        }};
    }
    let version = scope.find(c"ggml_version");
    Ok(Api {
        // SAFETY: as above; null is `None`.
        ggml_version: unsafe { std::mem::transmute(version) },
        ggml_tensor_overhead: needed!(c"ggml_tensor_overhead"),
        ggml_get_name: needed!(c"ggml_get_name"),
        // What nobody calls may be missing from a program that has ggml inside.
        ggml_get_data: match scope.inside {
            Some(_) => or!(
                c"ggml_get_data",
                without_names::data,
                unsafe extern "C" fn(*const c_void) -> *mut c_void
            ),
            None => needed!(c"ggml_get_data"),
        },
        ggml_nbytes: needed!(c"ggml_nbytes"),
        ggml_element_size: needed!(c"ggml_element_size"),
        ggml_op_name: needed!(c"ggml_op_name"),
        ggml_type_name: needed!(c"ggml_type_name"),
        ggml_blck_size: needed!(c"ggml_blck_size"),
        ggml_type_size: needed!(c"ggml_type_size"),
        ggml_graph_n_nodes: or!(
            c"ggml_graph_n_nodes",
            n_nodes,
            unsafe extern "C" fn(*mut c_void) -> c_int
        ),
        ggml_graph_node: or!(
            c"ggml_graph_node",
            node,
            unsafe extern "C" fn(*mut c_void, c_int) -> *mut c_void
        ),
        ggml_backend_buffer_get_usage: or!(
            c"ggml_backend_buffer_get_usage",
            no_usage,
            unsafe extern "C" fn(*mut c_void) -> u32
        ),
        ggml_backend_buffer_get_type: needed!(c"ggml_backend_buffer_get_type"),
        ggml_backend_buffer_get_base: needed!(c"ggml_backend_buffer_get_base"),
        ggml_backend_buffer_get_size: needed!(c"ggml_backend_buffer_get_size"),
        ggml_backend_buft_name: needed!(c"ggml_backend_buft_name"),
        type_count: TYPES_SINCE_2024,
    })
}

/// `ggml_graph_n_nodes` for libraries before 2024-09, whose graphs were public.
pub unsafe extern "C" fn n_nodes(graph: *mut c_void) -> c_int {
    // SAFETY: the field never moved.
    unsafe { (&raw const (*graph.cast::<ggml::RawGraph>()).n_nodes).read() }
}

/// `ggml_graph_node`, likewise.
pub unsafe extern "C" fn node(graph: *mut c_void, i: c_int) -> *mut c_void {
    // SAFETY: the field never moved, and `i` is below the number of nodes.
    unsafe {
        let nodes = (&raw const (*graph.cast::<ggml::RawGraph>()).nodes).read();
        nodes.add(i as usize).read().cast()
    }
}

/// Before 2024-07 nobody could ask; weights are known by their place then.
unsafe extern "C" fn no_usage(_: *mut c_void) -> u32 {
    0
}
