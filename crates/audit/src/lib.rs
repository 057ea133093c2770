//! The record held against the MMU, for the built-in engine and for programs
//! that are only watched.
//!
//! 1. Before each evaluation all pages of the models' mappings lose their
//!    permissions ([`pages`]). The first touch of a page faults; the handler
//!    marks the page and lets it through.
//! 2. A program that is watched writes down which pages those were
//!    ([`touched`]), because another process compares.
//! 3. Afterwards the log is read back like any other ([`mod@compare`]), and the pages
//!    that it claims are held against the pages that were really touched.
//!
//! The handler is a signal handler: it sets a bit and changes the protection of
//! one page, nothing else.

pub mod compare;
mod files;
pub mod pages;
pub mod touched;

pub use compare::{Findings, Tally, compare};
pub use files::{Files, FilesError};
pub use touched::Touched;
