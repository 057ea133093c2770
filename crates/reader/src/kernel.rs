//! What the kernel did underneath a run, joined to what the run did.
//!
//! Page faults, block reads and resident pages are recorded by crate `kernelio`
//! as bytes of files at moments of time. Here a byte gets its tensor, layer and
//! expert ([`owners`]), a moment the node that was running ([`timeline`]), and both
//! together are the rows that tables, analyses and pictures are made of
//! ([`join`]). What threads did on the processors is joined in [`cpu`], what other tools have
//! recorded in [`imported`].
//!
//! What it deliberately does not do: sum anything up (crate `analysis`), or write
//! tables (crate `store`).

pub mod cpu;
pub mod imported;
pub mod join;
pub mod owners;
pub mod timeline;

pub use cpu::{Activity, Counted, Cpu, CpuSample, OffCpu};
pub use imported::Imported;
pub use join::{JoinedFault, JoinedIo, JoinedSample, Underneath};
pub use owners::{OwnedTensor, Owner, Owners};
pub use timeline::{Moment, Timeline};

#[derive(Debug, thiserror::Error)]
pub enum UnderneathError {
    #[error(transparent)]
    Kernel(#[from] kernelio::KernelError),
    #[error(transparent)]
    Read(#[from] trace::read::ReadError),
    #[error("events of other tools")]
    Imported(#[from] std::io::Error),
}
