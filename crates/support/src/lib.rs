//! Small helpers that several crates need, once.
//!
//! - [`cgroup`]: the control group that a process is in;
//! - [`direct`]: reads past the page cache: alignment, io_uring, pread;
//! - [`elf`]: what a program's or a library's file says of itself;
//! - [`proc`]: what `/proc` says of a process: mappings, sizes;
//! - [`hash`], [`random`]: numbers that are the same on every machine and in every version;
//! - [`text`]: numbers as people read them.
//!
//! What belongs here: functions that know nothing of models, runs or llama.cpp, that at least
//! two crates use, and that need no more than the kernel: this is linked into other people's
//! programs. What does not: anything with a policy (how often a read is repeated, what is
//! said on a terminal), and anything that only one crate needs.

pub mod cgroup;
pub mod direct;
pub mod elf;
pub mod hash;
pub mod proc;
pub mod random;
pub mod text;
