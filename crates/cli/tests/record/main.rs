//! `tensorscope record`, `audit` and `bench overhead` as a user, and as an attacker,
//! runs them: the real program in a temporary directory.

mod cpu;
mod disk;
mod fixture;
mod input;
mod kernels;
mod kill;
mod measure;
mod options;
mod sanity;
mod terminal;
mod truncated;
mod underneath;
