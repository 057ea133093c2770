//! Tests of the engine on real models: records against the exact per-node hook,
//! audits against the MMU, output with and without recording.

mod audits;
mod caches;
mod children;
mod drafting;
mod feeding;
mod fixtures;
mod kernels;
mod memory;
mod oracle;
mod poison;
mod records;
mod routing;
mod sizes;
mod synthetics;
mod variants;
