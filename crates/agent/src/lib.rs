//! `libtensorscope_agent.so`: records llama.cpp inside a program that nobody
//! rebuilt and that does not know.
//!
//! `tensorscope record -- PROGRAM` preloads it. Its exported functions have the
//! names of ggml's, so the dynamic linker sends the calls of ggml's own libraries
//! here, also of those that are loaded late and locally; each passes the call on
//! to the function that its caller would have reached without us.
//!
//! 1. The constructor reads the environment. Without [`settings::RUN`] everything
//!    passes straight through for ever.
//! 2. `gguf_init_from_file` tells which files are loaded and where each tensor
//!    lies in them ([`models`]).
//! 3. `ggml_backend_sched_graph_compute_async` tells which context computes.
//! 4. `ggml_graph_compute` is recorded: [`library`] knows how this library lays
//!    out its structs and which nodes tick, [`streams`] lends a recorder, and
//!    `capture` does the rest, as in the built-in engine.
//!    What another backend computes (a GPU's) is recorded by [`devices`], with [`cuda`].
//! 5. `exit` closes the streams. A process that is killed leaves them open, and
//!    the launcher closes them.
//!
//! A program or an extension that has ggml linked into it makes no such calls. It is noticed
//! when it opens a model, and the entries of its functions are changed instead ([`inside`]).
//!
//! With [`settings::FEED`] instead, nothing is recorded: the model's weights are fed
//! (`feeding`, `passes`, `unmapping`).
//!
//! **Each process has its own streams in the run's log folder.** A process that
//! computes nothing (a shell, npm) writes nothing. A forked child forgets its
//! parent's streams and opens its own when it computes.
//!
//! Anything unexpected switches recording off for good with one line
//! ([`process::switch_off`]); panics are caught before they reach the program.

mod batches;
mod cuda;
mod devices;
mod feeding;
mod files;
mod hooks;
mod image;
mod inside;
mod library;
mod lock;
mod measure;
mod models;
mod noted_batches;
mod passes;
mod patch;
mod process;
mod settings;
mod streams;
mod unmapping;
mod watch;
mod without_names;

const VERSION: &str = concat!("tensorscope-agent ", env!("CARGO_PKG_VERSION"), "\n");

/// By which the launcher knows that a file is the library of its own version
/// (crates/launch/src/library_file.rs). Exported, or the linker would drop it.
#[unsafe(no_mangle)]
pub static TENSORSCOPE_AGENT: [u8; VERSION.len()] = *VERSION
    .as_bytes()
    .first_chunk()
    .expect("the length is the text's own");
