//! Which functions and system calls the time went to that is no computing.

use std::collections::BTreeMap;

use kernelio::kernel_log::stacks::Function;
use reader::kernel::{Cpu, Timeline};
use serde::{Deserialize, Serialize};
use trace::format::Phase;

use super::IDLE_NANOS;

/// Longer lists help nobody.
const MAX_LISTED: usize = 8;
/// Calls are added up by their kind, so that all count.
const MAX_CALLS: usize = 64;

/// Time of threads in a function, or in a system call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionTime {
    pub name: String,
    /// Of all threads that were found in it.
    pub nanos: u64,
}

/// By falling time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Functions {
    /// Innermost functions between evaluations.
    pub between: Vec<FunctionTime>,
    /// System calls, in and between evaluations: `futex`, `pread64`.
    pub calls: Vec<FunctionTime>,
    /// Of the samples in evaluations, those in a function without a name.
    pub unnamed_share: f64,
}

/// Of one phase. A pause belongs to the evaluation before it.
pub fn functions(cpu: &Cpu, timeline: &Timeline, phase: Phase) -> Functions {
    let spans = timeline.spans();
    let mut between: BTreeMap<&str, u64> = BTreeMap::new();
    let mut calls: BTreeMap<&str, u64> = BTreeMap::new();
    let (mut seen, mut unnamed) = (0u64, 0u64);
    for sample in &cpu.samples {
        let behind = spans.partition_point(|span| span.begin_nanos <= sample.nanos);
        let Some(span) = behind.checked_sub(1).map(|at| &spans[at]) else {
            continue;
        };
        let next = spans.get(behind).map(|next| next.begin_nanos);
        let is_between = sample.nanos > span.end_nanos;
        let is_idle = next.is_none_or(|next| next.saturating_sub(span.end_nanos) > IDLE_NANOS);
        if span.phase != phase || (is_between && is_idle) {
            continue;
        }
        let stack = cpu.calls(sample.stack);
        if let Some(call) = stack
            .iter()
            .find_map(|function| system_call(&function.name))
        {
            *calls.entry(call).or_default() += sample.sampled_nanos;
        }
        let Some(innermost) = stack.last() else {
            continue;
        };
        match is_between {
            true => *between.entry(&innermost.name).or_default() += sample.sampled_nanos,
            false => {
                seen += 1;
                unnamed += u64::from(is_unnamed(innermost));
            }
        }
    }
    Functions {
        between: listed(between, MAX_LISTED),
        calls: listed(calls, MAX_CALLS),
        unnamed_share: unnamed as f64 / seen.max(1) as f64,
    }
}

fn listed(sums: BTreeMap<&str, u64>, max: usize) -> Vec<FunctionTime> {
    let time = |(name, nanos): (&str, u64)| FunctionTime {
        name: name.to_owned(),
        nanos,
    };
    let mut list: Vec<FunctionTime> = sums.into_iter().map(time).collect();
    list.sort_by_key(|function| std::cmp::Reverse(function.nanos));
    list.truncate(max);
    list
}

/// A function of a file without symbols is called by the file: `[libggml-cpu.so]`.
fn is_unnamed(function: &Function) -> bool {
    function.name.starts_with('[') && function.module != "[kernel]"
}

/// The call that a function of the kernel carries out, by how the kernel names these.
fn system_call(function: &str) -> Option<&str> {
    const BEGINNINGS: [&str; 4] = ["__x64_sys_", "__arm64_sys_", "__ia32_sys_", "__se_sys_"];
    BEGINNINGS
        .iter()
        .find_map(|beginning| function.strip_prefix(beginning))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_call_is_known_by_its_entry() {
        assert_eq!(system_call("__x64_sys_futex"), Some("futex"));
        assert_eq!(system_call("__arm64_sys_pread64"), Some("pread64"));
        assert_eq!(system_call("do_futex"), None);
    }

    #[test]
    fn a_function_of_a_stripped_program_has_no_name() {
        let function = |name: &str, module: &str| Function {
            name: name.to_owned(),
            module: module.to_owned(),
        };
        assert!(is_unnamed(&function("[llama-server]", "llama-server")));
        assert!(!is_unnamed(&function("ggml_barrier", "libggml-cpu.so")));
        assert!(!is_unnamed(&function("[kernel]", "[kernel]")));
    }
}
