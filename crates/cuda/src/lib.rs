//! NVIDIA's cards through their driver, and CUPTI, which times what runs on them.
//!
//! ```text
//! places ──> library::Library ──> driver::Driver ──> Card ──> memory, Stream, Event, Module, Graph
//!       └──> cupti::find               └──> devices::installed: what there is, without a context
//! ```
//!
//! Nothing of CUDA is needed to build this, and nothing is linked: libraries are found and loaded
//! when somebody asks for them ([`places`] says where), and what is missing is said in one line.
//! Kernels come as PTX, which the driver compiles, or as machine code from elsewhere.
//!
//! What it deliberately does not do: compile C++, multiply matrices with the vendor's libraries
//! (the lab does both), subscribe to CUPTI (the preload library does, inside the program that it
//! records), print, or know any file format. It is loaded into other people's programs, and
//! depends on next to nothing.

mod card;
pub mod cupti;
pub mod devices;
pub mod driver;
mod graph;
mod kernel;
pub mod library;
mod memory;
pub mod places;
mod stream;
mod tensor_map;

pub use self::{
    card::Card,
    devices::About,
    graph::Graph,
    kernel::{Argument, Kernel, Launch, Module, Resources},
    memory::{Buffer, Element, Pinned},
    places::tool,
    stream::{Event, Stream},
    tensor_map::{Swizzle, TensorMap},
};

/// What can go wrong between a program and a card.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// No card can be used on this machine as it is.
    #[error("an NVIDIA card is needed, and there is no driver for one (libcuda.so.1): {reason}")]
    NoDriver { reason: String },
    /// In the loader's words.
    #[error("{reason}")]
    NoLibrary { reason: String },
    #[error("the library has no {name}: it is too old")]
    NoFunction { name: String },
    /// The driver refused, or something that was asked of the card earlier failed.
    #[error("the card's driver: {words} (error {code})")]
    Driver { code: i32, words: String },
    /// The same, with what was tried.
    #[error("{what}: {error}")]
    While { what: String, error: Box<CudaError> },
    /// Refused here: it would reach past what there is.
    #[error("{0}")]
    Unfit(String),
}

pub type Result<T, E = CudaError> = std::result::Result<T, E>;

/// Says what was tried.
trait Trying<T> {
    fn trying(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T> Trying<T> for Result<T> {
    fn trying(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| CudaError::While {
            what: what(),
            error: Box::new(error),
        })
    }
}
