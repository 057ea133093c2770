//! The view of ggml's structs that we need, and which bytes each op touches.
//!
//! Where to look:
//! - [`tensor`], [`graph`]: mirrors of `ggml_tensor` and `ggml_cgraph`, read
//!   through raw pointers. ggml itself is never linked here, so that the preload
//!   library can use this crate inside any program;
//! - [`check`]: proves at start-up that the mirrors match the loaded library;
//! - [`ops`]: for every op, the bytes of each source that the CPU backend reads
//!   and the bytes it writes ([`ops::table`] is the list);
//! - [`region`]: views as byte regions of their root tensor;
//! - [`steps`]: which nodes of a graph execute, and which are fused;
//! - [`device`]: the same for GPUs, whose backends fuse as they like;
//! - [`foreign`]: graphs of libraries that lay their structs out otherwise.
//!
//! What is deliberately not here: time, logs, names of layers or experts, and
//! anything that allocates while a graph is being computed.

pub mod check;
pub mod device;
pub mod foreign;
pub mod graph;
pub mod ops;
pub mod region;
pub mod steps;
pub mod tensor;

pub use device::{DeviceStep, device_accesses, device_steps};
pub use graph::{Graph, RawGraph};
pub use ops::{Direction, Known, NodeAccess, Op, OpNumbers, Slot, accesses};
pub use region::view_region;
pub use steps::{
    ComputeFlag, EmptyOps, Fusion, StepNodes, TickRules, executed_steps, executed_steps_under,
    step_accesses,
};
pub use tensor::{RawTensor, Tensor};
