//! Fixtures that the tests of several crates share. Only ever a dev-dependency.

pub mod models;
