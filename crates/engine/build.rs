//! What the linker has to know about the unmodified llama.cpp.
//!
//! Calls of `ggml_graph_compute` go to `__wrap_ggml_graph_compute` (src/hooks.rs), those of
//! `ggml_backend_cpu_reg` to src/variant.rs, of `mmap` and `posix_madvise` to src/loading.rs.
//! Link arguments do not pass from a library to
//! the programs that use it, so crates/cli/build.rs and crates/bench/build.rs say the same for
//! theirs, and the tests of this crate get them here.
//!
//! On x86-64 the processor's part of ggml is linked several times, compiled for other
//! instructions each time (build/variants.rs), and src/variant.rs chooses one.
//!
//! One function of llama.cpp answers in C++; src/breakdown.cpp makes C of it.

#[path = "build/variants.rs"]
mod variants;

/// Functions of ggml's that tests watch node by node (tests/engine/oracle.rs).
const WATCHED: [&str; 2] = [
    "ggml_cpu_extra_compute_forward",
    "ggml_compute_forward_rms_norm_mul_fused",
];

/// Kernels for several tokens: src/one_by_one.rs decides whether they are used.
const BATCHED: [&str; 4] = [
    "llamafile_sgemm",
    "ggml_compute_forward_mul_mat_tiled",
    "ggml_compute_forward_mul_mat_id_tiled",
    "ggml_compute_forward_flash_attn_ext",
];

fn main() {
    for path in ["build.rs", "build", "src/breakdown.cpp"] {
        println!("cargo:rerun-if-changed={path}");
    }
    cc::Build::new()
        .cpp(true)
        // The standard library comes with llama.cpp, statically.
        .cpp_link_stdlib(None)
        .std("c++17")
        .file("src/breakdown.cpp")
        .compile("tensorscope_breakdown");
    for symbol in [
        "ggml_backend_cpu_reg",
        "ggml_graph_compute",
        "mmap",
        "posix_madvise",
    ] {
        println!("cargo:rustc-link-arg=-Wl,--wrap={symbol}");
    }
    let is = |variable: &str, value: &str| std::env::var(variable).as_deref() == Ok(value);
    if is("CARGO_CFG_TARGET_ARCH", "x86_64") {
        variants::build(&[&WATCHED[..], &BATCHED].concat());
    } else {
        for symbol in WATCHED {
            println!("cargo:rustc-link-arg-tests=-Wl,--wrap={symbol}");
        }
    }
}
