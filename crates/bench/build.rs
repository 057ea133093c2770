//! The tests of this crate link the engine, and with it what the linker wraps: see
//! crates/engine/build.rs.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for symbol in [
        "ggml_backend_cpu_reg",
        "ggml_graph_compute",
        "mmap",
        "posix_madvise",
    ] {
        println!("cargo:rustc-link-arg=-Wl,--wrap={symbol}");
    }
}
