//! Sends llama.cpp's calls of `ggml_graph_compute` to the engine's hook (see
//! crates/engine/build.rs), builds the preload library that this program carries
//! (src/attach/library_file.rs), and tells tests/attach where llama.cpp was built.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for symbol in ["ggml_graph_compute", "mmap", "posix_madvise"] {
        println!("cargo:rustc-link-arg-bins=-Wl,--wrap={symbol}");
    }
    // By llama-cpp-sys-2, as its `links` lets it say: `lib/*.a` and `include`.
    let llama = env::var("DEP_LLAMA_ROOT").expect("llama-cpp-sys-2 says where it built");
    println!("cargo:rustc-env=DEP_LLAMA_ROOT={llama}");
    let library = build_agent();
    println!("cargo:rustc-env=AGENT_LIBRARY={}", library.display());
}

/// A `cdylib` of the same workspace cannot be a dependency (cargo's artifact
/// dependencies are unstable), so cargo is run for it, in a target folder of its
/// own: the one that is in use is locked.
fn build_agent() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for layer in [
        "agent", "audit", "feed", "plan", "capture", "ggml", "trace", "gguf",
    ] {
        let folder = workspace.join("crates").join(layer);
        println!("cargo:rerun-if-changed={}", folder.join("src").display());
        println!(
            "cargo:rerun-if-changed={}",
            folder.join("Cargo.toml").display()
        );
    }
    let variable = |name| env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name}"));
    let target = variable("TARGET");
    let folder = PathBuf::from(variable("OUT_DIR")).join("agent");
    let built = Command::new(variable("CARGO"))
        .args(["build", "--release", "--quiet", "--package", "agent"])
        .arg("--manifest-path")
        .arg(workspace.join("Cargo.toml"))
        .arg("--target")
        .arg(&target)
        .arg("--target-dir")
        .arg(&folder)
        // Under `cargo clippy` this names clippy, which is not to build programs.
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .status()
        .expect("cargo runs");
    assert!(
        built.success(),
        "the preload library (crates/agent) does not build"
    );
    folder
        .join(target)
        .join("release")
        .join("libtensorscope_agent.so")
}
