//! llama.cpp's kernels for this processor: on x86-64 they are linked once for each set of
//! instructions (build/variants.rs), and one of these variants computes.
//!
//! It is chosen once, before llama.cpp asks for its processor: the best of those whose
//! instructions the processor executes ([`crate::processor`]), or the one that the variable
//! [`VARIABLE`] names. llama.cpp reaches it through its registration alone
//! ([`__wrap_ggml_backend_cpu_reg`]), and [`crate::hooks`] through [`compute`].

use std::{
    ffi::{CStr, c_int, c_void},
    sync::OnceLock,
};

use capture::{RawCplan, hook::ComputeFn};
use llama_cpp_sys_2 as sys;

#[cfg(target_arch = "x86_64")]
use crate::one_by_one::Batched;
use crate::{EngineError, processor, start};

/// Names a variant that is to be used instead of the best.
pub const VARIABLE: &str = "TENSORSCOPE_CPU";

/// The processor's part of ggml, compiled for certain instructions.
pub struct Variant {
    pub name: &'static str,
    /// Instructions that it may execute, by the names that [`processor`] has for them.
    pub needs: &'static [&'static str],
    functions: Functions,
}

struct Functions {
    register: unsafe extern "C" fn() -> sys::ggml_backend_reg_t,
    compute: ComputeFn,
    #[cfg(target_arch = "x86_64")]
    watched: [unsafe extern "C" fn(); 2],
    #[cfg(target_arch = "x86_64")]
    batched: Batched,
}

#[cfg(target_arch = "x86_64")]
mod linked {
    use std::{
        arch::global_asm,
        ffi::{c_char, c_void},
        sync::atomic::{AtomicPtr, Ordering},
    };

    use super::{Batched, Functions, RawCplan, Variant, c_int, sys};
    use crate::one_by_one::ComputeParams;

    /// The functions of a variant have its name before theirs (build/variants.rs).
    macro_rules! variant {
        ($name:literal, $needs:expr) => {{
            unsafe extern "C" {
                #[link_name = concat!("tensorscope_", $name, "_ggml_backend_cpu_reg")]
                fn register() -> sys::ggml_backend_reg_t;
                #[link_name = concat!("tensorscope_", $name, "_ggml_graph_compute")]
                fn compute(graph: *mut c_void, cplan: *mut RawCplan) -> c_int;
                // Only passed on, whatever they take.
                #[link_name = concat!("tensorscope_", $name, "_ggml_cpu_extra_compute_forward")]
                fn extra();
                #[link_name = concat!("tensorscope_", $name, "_ggml_compute_forward_rms_norm_mul_fused")]
                fn fused();
                #[link_name = concat!("tensorscope_", $name, "_llamafile_sgemm")]
                fn sgemm(
                    params: *const ComputeParams,
                    m: i64,
                    n: i64,
                    k: i64,
                    a: *const c_void,
                    a_stride: i64,
                    b: *const c_void,
                    b_stride: i64,
                    c: *mut c_void,
                    c_stride: i64,
                    a_type: c_int,
                    b_type: c_int,
                    c_type: c_int,
                ) -> bool;
                #[link_name = concat!("tensorscope_", $name, "_ggml_compute_forward_mul_mat_tiled")]
                fn tiled(params: *const ComputeParams, node: *mut sys::ggml_tensor) -> bool;
                #[link_name = concat!("tensorscope_", $name, "_ggml_compute_forward_mul_mat_id_tiled")]
                fn tiled_experts(
                    params: *const ComputeParams,
                    node: *mut sys::ggml_tensor,
                    expert: i64,
                    rows: i64,
                    expert_rows: *const i32,
                    scratch: *mut c_char,
                ) -> bool;
                #[link_name = concat!("tensorscope_", $name, "_ggml_compute_forward_flash_attn_ext")]
                fn attention(params: *const ComputeParams, node: *mut sys::ggml_tensor);
                #[link_name = concat!("tensorscope_", $name, "_ggml_barrier")]
                fn barrier(threadpool: *mut c_void);
            }
            Variant {
                name: $name,
                needs: $needs,
                functions: Functions {
                    register,
                    compute,
                    watched: [extra, fused],
                    batched: Batched {
                        sgemm,
                        tiled,
                        tiled_experts,
                        attention,
                        barrier,
                    },
                },
            }
        }};
    }

    /// What the variants need, each all of the one before it and more.
    const SETS: [&str; 9] = [
        "SSE4.2",
        "AVX",
        "AVX2",
        "FMA",
        "F16C",
        "BMI2",
        "AVX-512",
        "AVX-512 VNNI",
        "AVX-512 BF16",
    ];

    pub(super) static VARIANTS: [Variant; 4] = [
        variant!("sse42", SETS.split_at(1).0),
        variant!("avx2", SETS.split_at(6).0),
        variant!("avx512", SETS.split_at(8).0),
        variant!("avx512bf16", &SETS),
    ];

    static EXTRA: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    static FUSED: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

    // All variants call two functions through these names, so that tests can define the first
    // of each pair and see every node (tests/engine/oracle.rs). Here they only jump to the
    // chosen variant's own.
    global_asm!(
        ".pushsection .text",
        ".weak __wrap_ggml_cpu_extra_compute_forward",
        ".globl __real_ggml_cpu_extra_compute_forward",
        "__wrap_ggml_cpu_extra_compute_forward:",
        "__real_ggml_cpu_extra_compute_forward:",
        "jmp qword ptr [rip + {extra}]",
        ".weak __wrap_ggml_compute_forward_rms_norm_mul_fused",
        ".globl __real_ggml_compute_forward_rms_norm_mul_fused",
        "__wrap_ggml_compute_forward_rms_norm_mul_fused:",
        "__real_ggml_compute_forward_rms_norm_mul_fused:",
        "jmp qword ptr [rip + {fused}]",
        ".popsection",
        extra = sym EXTRA,
        fused = sym FUSED,
    );

    pub(super) fn choose(variant: &Variant) {
        let [extra, fused] = variant.functions.watched;
        EXTRA.store(extra as *mut c_void, Ordering::Release);
        FUSED.store(fused as *mut c_void, Ordering::Release);
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod linked {
    use super::{Functions, RawCplan, Variant, c_int, c_void, sys};

    unsafe extern "C" {
        fn __real_ggml_backend_cpu_reg() -> sys::ggml_backend_reg_t;
        fn __real_ggml_graph_compute(graph: *mut c_void, cplan: *mut RawCplan) -> c_int;
    }

    /// As llama-cpp-sys-2 compiled it.
    pub(super) static VARIANTS: [Variant; 1] = [Variant {
        name: std::env::consts::ARCH,
        needs: &[],
        functions: Functions {
            register: __real_ggml_backend_cpu_reg,
            compute: __real_ggml_graph_compute,
        },
    }];

    pub(super) fn choose(_: &Variant) {}
}

impl Variant {
    /// Instructions that it needs and that the processor does not execute.
    pub fn lacks(&self) -> Option<&'static str> {
        processor::first_missing(self.needs)
    }
}

/// All that are linked in, the most modest first.
pub fn all() -> &'static [Variant] {
    &linked::VARIANTS
}

/// The one that computes, here and in this process; an error where none can, or not the one
/// that was asked for.
pub fn chosen() -> Result<&'static Variant, EngineError> {
    static CHOSEN: OnceLock<Result<&'static Variant, Refusal>> = OnceLock::new();
    let chosen = CHOSEN.get_or_init(|| {
        let asked = std::env::var_os(VARIABLE).filter(|name| !name.is_empty());
        let chosen = choose(asked.map(|name| name.to_string_lossy().into_owned()))?;
        linked::choose(chosen);
        Ok(chosen)
    });
    chosen.as_ref().copied().map_err(Refusal::error)
}

/// Why no variant is used.
enum Refusal {
    None {
        instructions: &'static str,
    },
    Unknown {
        asked: String,
    },
    Unusable {
        asked: String,
        instructions: &'static str,
    },
}

impl Refusal {
    fn error(&self) -> EngineError {
        let names = |list: &mut dyn Iterator<Item = &Variant>| {
            let names: Vec<&str> = list.map(|variant| variant.name).collect();
            names.join(", ")
        };
        match self {
            &Refusal::None { instructions } => EngineError::Processor { instructions },
            Refusal::Unknown { asked } => EngineError::UnknownVariant {
                asked: asked.clone(),
                all: names(&mut all().iter()),
            },
            Refusal::Unusable {
                asked,
                instructions,
            } => EngineError::UnusableVariant {
                asked: asked.clone(),
                instructions,
                usable: names(&mut all().iter().filter(|v| v.lacks().is_none())),
            },
        }
    }
}

fn choose(asked: Option<String>) -> Result<&'static Variant, Refusal> {
    let Some(asked) = asked else {
        let mut best_first = all().iter().rev();
        return best_first.find(|v| v.lacks().is_none()).ok_or_else(|| {
            let instructions = all().first().and_then(Variant::lacks);
            Refusal::None {
                instructions: instructions.unwrap_or("its"),
            }
        });
    };
    let Some(variant) = all().iter().find(|variant| variant.name == asked) else {
        return Err(Refusal::Unknown { asked });
    };
    match variant.lacks() {
        None => Ok(variant),
        Some(instructions) => Err(Refusal::Unusable {
            asked,
            instructions,
        }),
    }
}

/// The chosen one; where none is, nothing is computed, and the most modest answers questions.
fn functions() -> &'static Functions {
    let variant = chosen().unwrap_or(&all()[0]);
    &variant.functions
}

/// `ggml_graph_compute` of the chosen variant.
pub(crate) fn compute() -> ComputeFn {
    functions().compute
}

/// Kernels for several tokens of the chosen variant.
#[cfg(target_arch = "x86_64")]
pub(crate) fn batched() -> Batched {
    functions().batched
}

/// What llama.cpp calls for the processor's devices, buffers and kernels.
#[unsafe(no_mangle)]
extern "C" fn __wrap_ggml_backend_cpu_reg() -> sys::ggml_backend_reg_t {
    // SAFETY: takes nothing, and may be called at any time.
    unsafe { (functions().register)() }
}

/// ggml's processor, computing with so many threads; to be freed by the caller.
pub(crate) fn backend(threads: usize) -> Result<*mut sys::ggml_backend, EngineError> {
    chosen()?;
    start();
    // SAFETY: no parameters are given; then a live backend, and a function that its registration
    // has under this name.
    unsafe {
        let backend =
            sys::ggml_backend_init_by_type(sys::GGML_BACKEND_DEVICE_TYPE_CPU, std::ptr::null());
        if backend.is_null() {
            return Err(EngineError::Context {
                reason: "ggml has no processor".to_owned(),
            });
        }
        let set: sys::ggml_backend_set_n_threads_t =
            std::mem::transmute(function(c"ggml_backend_set_n_threads"));
        if let Some(set) = set {
            set(backend, threads as c_int);
        }
        Ok(backend)
    }
}

/// What the chosen variant says that it was compiled for, in ggml's words.
pub fn compiled_for() -> Vec<String> {
    // SAFETY: a function that the registration has under this name; it answers with a list of
    // static texts that ends with none.
    unsafe {
        let get: sys::ggml_backend_get_features_t =
            std::mem::transmute(function(c"ggml_backend_get_features"));
        let Some(get) = get else { return Vec::new() };
        let list = get(__wrap_ggml_backend_cpu_reg());
        (0..)
            .map(|number| &*list.add(number))
            .take_while(|feature| !feature.name.is_null())
            .map(|feature| CStr::from_ptr(feature.name).to_string_lossy().into_owned())
            .collect()
    }
}

/// A function of the chosen variant; null where it has none of this name.
pub(crate) fn function(name: &CStr) -> *mut c_void {
    // SAFETY: a registration and a valid string.
    unsafe { sys::ggml_backend_reg_get_proc_address(__wrap_ggml_backend_cpu_reg(), name.as_ptr()) }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_used_is_said_in_one_line() {
        let refusal = Refusal::Unusable {
            asked: "avx512".to_owned(),
            instructions: "AVX-512",
        };
        let said = refusal.error().to_string();
        let expected = "TENSORSCOPE_CPU=avx512: this processor does not run AVX-512 instructions; \
                        kernels that it runs: sse42";
        assert!(said.starts_with(expected), "{said}");
    }

    #[test]
    fn a_variant_needs_what_the_one_before_it_needs_and_more() {
        for pair in all().windows(2) {
            assert!(pair[1].needs.starts_with(pair[0].needs));
            assert!(pair[1].needs.len() > pair[0].needs.len());
        }
    }

    #[test]
    fn names_are_found_and_others_refused() {
        let found = choose(Some("sse42".to_owned())).map(|variant| variant.name);
        assert!(matches!(found, Ok("sse42")));
        let other = choose(Some("AVX2".to_owned()));
        assert!(matches!(other, Err(Refusal::Unknown { asked }) if asked == "AVX2"));
    }
}
