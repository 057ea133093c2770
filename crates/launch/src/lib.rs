//! Starts a program that nobody rebuilt, with the preload library (crate `agent`) in it.
//!
//! - [`attach`]: recorded; [`feeding`]: its weights fed;
//! - [`program`]: which file a name means, and whether preloading can work;
//!   [`companion`], [`library_file`]: the library, where the dynamic linker finds it;
//! - [`child`]: the program runs, with signals and exit code of its own;
//! - [`underneath`]: page faults, block requests and memory limits of what runs;
//! - [`budget`], [`planning`]: how much memory there is, and the plan that follows;
//!   [`glance`]: what the machine gives, for its prediction;
//!   [`gpu`]: what is measured of cards;
//!   [`needs`]: what a program's model takes of it besides weights.

pub mod attach;
pub mod budget;
pub mod child;
pub mod companion;
pub mod feeding;
pub mod glance;
pub mod gpu;
pub mod library_file;
pub mod needs;
pub mod planning;
pub mod processors;
pub mod program;
pub mod report;
pub mod underneath;
