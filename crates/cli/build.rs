//! Sends llama.cpp's calls of `ggml_graph_compute` to the engine's hook; see
//! crates/engine/build.rs.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-link-arg-bins=-Wl,--wrap=ggml_graph_compute");
}
