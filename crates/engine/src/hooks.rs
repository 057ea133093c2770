//! Where llama.cpp's graph computations pass through us.
//!
//! The linker's `--wrap` (build.rs) sends every call of `ggml_graph_compute` to
//! [`__wrap_ggml_graph_compute`], from whichever variant of the kernels ([`variant`]);
//! llama.cpp's code is not changed. A thread says with
//! [`with`] who takes part in what it computes; on other threads, and otherwise, the call
//! goes straight through.

use std::{
    cell::Cell,
    ffi::{c_int, c_void},
    sync::Arc,
};

use capture::{
    Places, RawCplan,
    hook::{How, Observer, compute},
    known::Knowledge,
};
use ggml::{Fusion, Graph, OpNumbers, check::Api};
use llama_cpp_sys_2 as sys;

use crate::variant;

type Observers = [&'static mut dyn Observer];

thread_local! {
    static OBSERVERS: Cell<Option<*mut Observers>> = const { Cell::new(None) };
}

/// Runs `f` with `observers` taking part in every graph that this thread computes.
pub fn with<R>(observers: &mut [&mut dyn Observer], f: impl FnOnce() -> R) -> R {
    /// Takes them away again even if `f` panics.
    struct Reset(Option<*mut Observers>);
    impl Drop for Reset {
        fn drop(&mut self) {
            OBSERVERS.set(self.0);
        }
    }
    // SAFETY: only lifetimes are dropped from the type; the pointer is used during `f`
    // only, while the references live.
    let pointer = unsafe {
        std::mem::transmute::<*mut [&mut dyn Observer], *mut Observers>(std::ptr::from_mut(
            observers,
        ))
    };
    let _reset = Reset(OBSERVERS.replace(Some(pointer)));
    f()
}

/// What llama.cpp calls instead of `ggml_graph_compute`.
///
/// # Safety
/// As `ggml_graph_compute`: a live graph and a cplan made for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __wrap_ggml_graph_compute(
    graph: *mut c_void,
    cplan: *mut RawCplan,
) -> c_int {
    // Only the chosen variant is ever registered, so that the call is one of its own.
    let real = variant::compute();
    // SAFETY: a live graph; it does not change while it is computed.
    let (Some(observers), Some(view)) = (OBSERVERS.get(), unsafe { Graph::from_ptr(graph) }) else {
        // SAFETY: the call that llama.cpp made.
        return unsafe { real(graph, cplan) };
    };
    // SAFETY: set by `with` on this thread, which has not returned; llama.cpp does not call
    // itself back from inside a computation.
    let observers = unsafe { &mut *observers };
    // SAFETY: the call that llama.cpp made; the layouts are those of the linked version
    // (checked by the recorder on its first graph).
    unsafe { compute(observers, view, graph, cplan, How::TODAY, real) }.status
}

/// The functions of the linked ggml, and what is known of the model.
pub fn knowledge(places: Places) -> Arc<Knowledge> {
    Arc::new(Knowledge {
        api: api(),
        ops: ops(),
        places,
        fusion: fusion(),
    })
}

/// The numbers of the linked ggml's ops.
pub fn ops() -> OpNumbers {
    // SAFETY: the linked library's own function.
    unsafe { OpNumbers::new(api().ggml_op_name) }
}

/// Whether the linked ggml fuses nodes.
pub fn fusion() -> Fusion {
    // ggml reads this variable once, in ggml_cpu_init.
    match std::env::var("GGML_CPU_DISABLE_FUSION").as_deref() {
        Ok("1") => Fusion::Off,
        _ => Fusion::On,
    }
}

/// The linked ggml's functions under the types that crate `ggml` expects.
#[expect(
    clippy::missing_transmute_annotations,
    reason = "the fields of Api give the types"
)]
pub fn api() -> Api {
    /// bindgen types the same pointers by their structs.
    macro_rules! untyped {
        ($function:path) => {
            // SAFETY: the same C function; only the pointees' names differ.
            unsafe { std::mem::transmute($function as *const ()) }
        };
    }
    Api {
        ggml_version: Some(sys::ggml_version),
        ggml_tensor_overhead: sys::ggml_tensor_overhead,
        ggml_get_name: untyped!(sys::ggml_get_name),
        ggml_get_data: untyped!(sys::ggml_get_data),
        ggml_nbytes: untyped!(sys::ggml_nbytes),
        ggml_element_size: untyped!(sys::ggml_element_size),
        ggml_op_name: sys::ggml_op_name,
        ggml_type_name: sys::ggml_type_name,
        ggml_blck_size: sys::ggml_blck_size,
        ggml_type_size: sys::ggml_type_size,
        ggml_graph_n_nodes: untyped!(sys::ggml_graph_n_nodes),
        ggml_graph_node: untyped!(sys::ggml_graph_node),
        ggml_backend_buffer_get_usage: untyped!(sys::ggml_backend_buffer_get_usage),
        ggml_backend_buffer_get_type: untyped!(sys::ggml_backend_buffer_get_type),
        ggml_backend_buffer_get_base: untyped!(sys::ggml_backend_buffer_get_base),
        ggml_backend_buffer_get_size: untyped!(sys::ggml_backend_buffer_get_size),
        ggml_backend_buft_name: untyped!(sys::ggml_backend_buft_name),
        type_count: sys::GGML_TYPE_COUNT,
    }
}
