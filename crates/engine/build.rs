//! Link-time interposition for the statically linked, unmodified llama.cpp: the
//! linker sends calls of `ggml_graph_compute` to `__wrap_ggml_graph_compute`
//! (src/hooks.rs), those of `mmap` and `posix_madvise` to src/loading.rs. Link arguments do not pass from a library to the programs
//! that use it, so crates/cli/build.rs says the same for the binary, and the
//! tests of this crate get them here.
//!
//! One function of llama.cpp answers in C++; src/breakdown.cpp makes C of it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/breakdown.cpp");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .file("src/breakdown.cpp")
        .compile("tensorscope_breakdown");
    for symbol in ["ggml_graph_compute", "mmap", "posix_madvise"] {
        println!("cargo:rustc-link-arg=-Wl,--wrap={symbol}");
    }
    // The exact per-node hook, used as an oracle by tests/oracle.rs only.
    for symbol in [
        "ggml_cpu_extra_compute_forward",
        "ggml_compute_forward_rms_norm_mul_fused",
    ] {
        println!("cargo:rustc-link-arg-tests=-Wl,--wrap={symbol}");
    }
}
