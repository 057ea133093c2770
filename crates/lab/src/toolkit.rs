//! What NVIDIA's toolkit has beside the driver: the compiler of kernels (NVRTC) and the vendor's
//! matrix products (cuBLAS). Both are found when an experiment asks for them, as crate `cuda` finds
//! the driver; nothing of them is needed to build this program.

mod compiler;
pub mod vendor;

use cuda::{Card, Module};

pub use self::compiler::{COMMON, Compiled, compile};

/// Kernels in C++, on a card.
pub trait Compile {
    /// Loads what [`compile`] gave.
    fn load(&self, compiled: &Compiled) -> anyhow::Result<Module>;

    /// Compiles kernels of this crate and loads them; `defines` are `NAME=VALUE`.
    fn kernels(&self, name: &str, source: &str, defines: &[String]) -> anyhow::Result<Module>;
}

impl Compile for Card {
    fn load(&self, compiled: &Compiled) -> anyhow::Result<Module> {
        // SAFETY: as the compiler gave it.
        Ok(unsafe { self.load_image(&compiled.name, &compiled.image) }?)
    }

    fn kernels(&self, name: &str, source: &str, defines: &[String]) -> anyhow::Result<Module> {
        self.load(&compile(self.about().capability, name, source, defines)?)
    }
}
