//! Pages of the weights that a computation touches, as the MMU sees it: in the
//! built-in engine, and in programs that are only watched.
//!
//! 1. Before each evaluation all pages of the models' mappings lose their
//!    permissions ([`pages`]). The first touch of a page faults; the handler
//!    marks the page and lets it through.
//! 2. A program that is watched writes down which pages those were
//!    ([`touched`]), because another process compares.
//! 3. Afterwards the log is read back like any other, and the pages that it claims are
//!    held against the pages that were really touched (`reader::audit`).
//!
//! The handler is a signal handler: it sets a bit and changes the protection of
//! one page, nothing else.

pub mod pages;
pub mod touched;

pub use touched::Touched;
