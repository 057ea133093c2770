//! `tensorscope record -- PROGRAM` as a user, and as an attacker, runs it: the real
//! program, around a C program (tests/attach/generate.c) that calls the llama.cpp
//! which the built-in engine is made of, as a shared library.
//!
//! Programs of other people, several contexts and threads are in tests/attach.

mod bounds;
mod children;
mod disk;
mod doctor;
mod ending;
mod environment;
mod feeding;
mod fixture;
mod gpus;
mod inside;
mod models;
mod refusals;
mod repack;
mod same;
mod underneath;
