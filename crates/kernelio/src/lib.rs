//! What the hardware allows, and what the kernel does underneath a running model.
//!
//! ```text
//! ceilings::measure ──> disk::measure    sequential O_DIRECT reads of the model
//!                  └──> memory::measure  a STREAM-like read, with one thread and with all
//! disk::measure_while_computing          the disk while all threads are busy, for predictions
//! compute::measure                       fused products in registers, for estimates
//! card::CardCeiling                      what others have measured of a graphics card
//!
//! session::Session ──> faults::FaultRecorder   every page fault      ──> log/faults
//!                 ├──> block::BlockRecorder     every block request   ──> log/io
//!                 ├──> sampler::Sampler         pages in memory       ──> log/residency
//!                 ├──> cpu::CpuRecorder         threads on processors ──> log/cpu, log/stacks, log/machine
//!                 └──> counters::Counters       what is always allowed
//! launch::spawn_held                            holds a program back until it is watched
//! pressure::MemoryLimit                         runs it in less memory than it wants
//! kernel_log                                    what these files are made of
//! ```
//!
//! Predictions divide bytes by the ceilings, so each comes with what it was
//! measured with and with every [`Caveat`](disk::Caveat) that could make it too
//! high: a number without its conditions is worse than none.
//!
//! Recording happens from outside of the program: the kernel writes into ring
//! buffers (of perf events and of tracefs), and a thread of ours empties them. All times are those of
//! [`trace::clock`], so that a fault can be laid beside the access that caused it.
//! Who owns a byte of a file is for others to say: here a fault ends at a file and
//! an offset.
//!
//! What it deliberately does not do: write to any file but these logs, or
//! print. The settings of the machine stay as they are, but for what is asked for:
//! a memory cgroup ([`pressure`]), an instance of tracefs ([`block`]) and tracefs itself
//! where it is not mounted, which are undone whatever happens ([`leftover`]). What the
//! ceilings mean is in docs/ceilings.md.

pub mod blkparse;
pub mod block;
mod buffer;
pub mod card;
pub mod ceilings;
pub mod compute;
pub mod counters;
pub mod cpu;
pub mod devices;
pub mod discovery;
pub mod disk;
pub mod error;
pub mod extents;
pub mod faults;
pub mod files;
pub mod kernel_log;
pub mod launch;
pub mod leftover;
pub mod memory;
mod perf;
pub mod pressure;
mod quick_map;
pub mod rate;
pub mod residency;
pub mod sampler;
pub mod session;
mod target;

pub use ceilings::{Ceilings, Progress, Stage, measure};
pub use error::{CeilingError, KernelError, Missing};
