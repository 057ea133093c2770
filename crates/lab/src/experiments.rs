//! The list of experiments.

use crate::{
    attention_decode, attention_prefill, cache, calls, false_sharing, gemm_bf16, gemm_cpu,
    gemm_f32, outcome::Outcome, quant, quant_llama, replicas, step::Step, tlb,
};

/// What a user may ask of an experiment.
#[derive(Clone, Debug)]
pub struct Request {
    /// Sizes of its own where empty.
    pub sizes: Vec<usize>,
    /// Rounds that are measured.
    pub rounds: usize,
    /// Small sizes and few rounds: whether it works, not how fast.
    pub is_quick: bool,
    /// On a card: results at the smallest sizes only, nothing is timed. Quick, too.
    pub is_check: bool,
    /// Names of the steps to run; all where empty.
    pub steps: Vec<String>,
    /// For `calls`: programs that generate text.
    pub programs: Vec<String>,
    pub seed: u32,
}

impl Request {
    pub fn wants(&self, step: &str) -> bool {
        self.steps.is_empty() || self.steps.iter().any(|name| name == step)
    }

    pub fn sizes_or(&self, full: &[usize], quick: &[usize]) -> Vec<usize> {
        match (self.sizes.is_empty(), self.is_quick) {
            (false, _) => self.sizes.clone(),
            (true, true) => quick.to_vec(),
            (true, false) => full.to_vec(),
        }
    }
}

/// What an experiment needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    Processor,
    Card,
    /// `tensorscope`, which lies beside this program.
    Program,
}

/// A question, and how it is answered.
pub struct Experiment {
    pub name: &'static str,
    pub about: &'static str,
    pub needs: Needs,
    pub steps: &'static [Step],
    /// Words that make it short enough for a profiler, which repeats every kernel.
    pub profiled: &'static [&'static str],
    pub run: fn(&Request) -> anyhow::Result<Outcome>,
}

/// Names for several experiments.
pub const GROUPS: &[(&str, &[&str])] = &[
    (
        "gemm",
        &["gemm-cpu", "gemm-f32", "gemm-bf16", "linear-bf16"],
    ),
    ("attention", &["attention-decode", "attention-prefill"]),
];

pub const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "gemm-cpu",
        about: "a matrix product in float32 on the processor, from three loops to OpenBLAS's speed",
        needs: Needs::Processor,
        steps: gemm_cpu::STEPS,
        profiled: &[],
        run: gemm_cpu::run,
    },
    Experiment {
        name: "gemm-f32",
        about: "a matrix product in float32 on a card, from one thread an element to cuBLAS's speed",
        needs: Needs::Card,
        steps: gemm_f32::STEPS,
        profiled: &["--sizes", "4096", "--rounds", "1"],
        run: gemm_f32::run,
    },
    Experiment {
        name: "gemm-bf16",
        about: "a matrix product in bf16 on a card, from WMMA to clusters that share tiles",
        needs: Needs::Card,
        steps: gemm_bf16::STEPS,
        profiled: &["--sizes", "4096", "--rounds", "1"],
        run: gemm_bf16::run,
    },
    Experiment {
        name: "linear-bf16",
        about: "the same with few rows, as a language model multiplies its tokens by weights",
        needs: Needs::Card,
        steps: gemm_bf16::linear::STEPS,
        profiled: &["--rounds", "1"],
        run: gemm_bf16::linear::run,
    },
    Experiment {
        name: "attention-decode",
        about: "attention of one new token: reading a cache at the memory's speed",
        needs: Needs::Card,
        steps: attention_decode::STEPS,
        profiled: &["--sizes", "4096", "--rounds", "1"],
        run: attention_decode::run,
    },
    Experiment {
        name: "attention-prefill",
        about: "attention of a prompt: scores in memory, or never written",
        needs: Needs::Card,
        steps: attention_prefill::STEPS,
        profiled: &["--sizes", "4096", "--rounds", "1"],
        run: attention_prefill::run,
    },
    Experiment {
        name: "quant",
        about: "weights of four bits against bf16, by batch",
        needs: Needs::Card,
        steps: quant::STEPS,
        profiled: &["--sizes", "1,64", "--rounds", "1"],
        run: quant::run,
    },
    Experiment {
        name: "replicas",
        about: "replicas of a small model on one card against a larger batch",
        needs: Needs::Card,
        steps: replicas::STEPS,
        profiled: &["--quick"],
        run: replicas::run,
    },
    Experiment {
        name: "cache",
        about: "which order of loops and which layout of keys a cache likes",
        needs: Needs::Processor,
        steps: cache::STEPS,
        profiled: &[],
        run: cache::run,
    },
    Experiment {
        name: "tlb",
        about: "what an access costs with pages of 4 KiB and of 2 MiB",
        needs: Needs::Processor,
        steps: tlb::STEPS,
        profiled: &[],
        run: tlb::run,
    },
    Experiment {
        name: "false-sharing",
        about: "what it costs when threads' counters lie in one cache line",
        needs: Needs::Processor,
        steps: false_sharing::STEPS,
        profiled: &[],
        run: false_sharing::run,
    },
    Experiment {
        name: "quant-llama",
        about: "what quantised weights give llama.cpp's own kernels, from recorded runs",
        needs: Needs::Program,
        steps: &[],
        profiled: &[],
        run: quant_llama::run,
    },
    Experiment {
        name: "calls",
        about: "system calls, context switches and page faults of a token",
        needs: Needs::Program,
        steps: &[],
        profiled: &[],
        run: calls::run,
    },
];

/// The experiment of this name.
pub fn find(name: &str) -> Option<&'static Experiment> {
    EXPERIMENTS
        .iter()
        .find(|experiment| experiment.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toolkit::compile;

    /// Needs NVRTC, but no card: `VIRTUAL_ENV` with PyPI's nvidia-cuda-nvrtc.
    #[test]
    fn every_kernel_compiles_for_hopper() {
        for step in EXPERIMENTS.iter().flat_map(|experiment| experiment.steps) {
            assert!(
                !step.address().ends_with(":1"),
                "{}: where is {}?",
                step.name,
                step.function
            );
            if step.is_for_cards() {
                let compiled = compile((9, 0), step.file.path, step.file.text, &step.defines());
                match compiled {
                    Ok(compiled) => assert!(!compiled.image.is_empty()),
                    Err(error) if error.to_string().contains("nvidia-cuda-nvrtc") => {
                        println!("skipped: {error}");
                        return;
                    }
                    Err(error) => panic!("{}: {error:#}", step.name),
                }
            }
        }
    }
}
