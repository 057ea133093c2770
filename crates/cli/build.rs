//! Sends calls that llama.cpp makes to the engine's functions (see crates/engine/build.rs),
//! and those of functions that old systems lack to src/older_glibc.rs; tells tests/attach
//! where llama.cpp was built.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for symbol in [
        "arc4random",
        "ggml_backend_cpu_reg",
        "ggml_graph_compute",
        "hypotf",
        "mmap",
        "posix_madvise",
    ] {
        println!("cargo:rustc-link-arg-bins=-Wl,--wrap={symbol}");
    }
    // By llama-cpp-sys-2, as its `links` lets it say: `lib/*.a` and `include`.
    let llama = std::env::var("DEP_LLAMA_ROOT").expect("llama-cpp-sys-2 says where it built");
    println!("cargo:rustc-env=DEP_LLAMA_ROOT={llama}");
}
