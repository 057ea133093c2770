//! How fast this machine multiplies and adds: fused 32-bit operations in registers, by
//! instruction set and threads.
//!
//! What llama.cpp's own kernels reach with weights of a type is measured by those who have
//! llama.cpp, and kept here beside it: [`ComputeCeiling::kernels`].

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::memory::at_threads;

/// Operations of one call of a kernel, by lane: so many rounds of a multiplication and an
/// addition in so many registers, enough of them to hide each other's latency.
const ROUNDS: u64 = 4096;
const REGISTERS: usize = 10;

/// What arithmetic allows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ComputeCeiling {
    /// Fused products of 32-bit numbers in registers: for each instruction set that the
    /// processor has, narrowest first, with one thread and with all.
    pub registers: Vec<RegisterCeiling>,
    /// Matrix products of llama.cpp; empty where they were not measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kernels: Vec<KernelCeiling>,
    /// Nodes with next to nothing to do: threads meet after each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeCeiling>,
    /// Which of its kernels these are: the name of their instruction set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernels_of: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RegisterCeiling {
    pub instructions: Instructions,
    pub threads: usize,
    pub flops_per_second: u64,
}

/// A matrix of weights times so many tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelCeiling {
    /// Of the weights, as ggml calls it.
    pub weight_type: String,
    pub tokens: usize,
    pub threads: usize,
    pub flops_per_second: u64,
    /// With weights in the order that llama.cpp's repacking gives them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_repacked: bool,
}

/// A node that computes next to nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeCeiling {
    pub threads: usize,
    pub nanos: f64,
}

/// Vector instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Instructions {
    /// What every processor of its kind has: SSE2, NEON.
    Portable,
    /// AVX2 and FMA.
    Avx2,
    Avx512,
}

impl Instructions {
    const ALL: [Instructions; 3] = [
        Instructions::Portable,
        Instructions::Avx2,
        Instructions::Avx512,
    ];

    /// As people call them.
    pub fn name(self) -> &'static str {
        match self {
            Instructions::Portable if cfg!(target_arch = "x86_64") => "SSE2",
            Instructions::Portable if cfg!(target_arch = "aarch64") => "NEON",
            Instructions::Portable => "portable code",
            Instructions::Avx2 => "AVX2",
            Instructions::Avx512 => "AVX-512",
        }
    }

    /// `None` where the processor does not have them.
    fn kernel(self) -> Option<Kernel> {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            match self {
                Instructions::Avx2 if has!("avx2") && has!("fma") => {
                    // SAFETY: the processor has both.
                    return Some((|| unsafe { multiply_avx2() }, 8));
                }
                Instructions::Avx512 if has!("avx512f") => {
                    // SAFETY: the processor has it.
                    return Some((|| unsafe { multiply_avx512() }, 16));
                }
                _ => {}
            }
        }
        (self == Instructions::Portable).then_some(PORTABLE)
    }
}

/// A piece of work and the numbers in one of its registers.
type Kernel = (fn() -> f32, u64);

/// What every processor of this kind has.
const PORTABLE: Kernel = (multiply, 4);

impl ComputeCeiling {
    /// Of so many threads with the best instructions; `None` where nothing was measured.
    pub fn flops_with_threads(&self, threads: usize) -> Option<f64> {
        let sets = Instructions::ALL.iter().map(|&set| {
            let of_set = self.registers.iter().filter(|r| r.instructions == set);
            let figures = of_set.map(|r| (r.threads, r.flops_per_second as f64));
            at_threads(figures, threads).unwrap_or(0.0)
        });
        let best = sets.fold(0.0, f64::max);
        (best > 0.0).then_some(best)
    }

    /// What llama.cpp's products with weights of a type reach with so many tokens at once: between
    /// two numbers of tokens that were measured, in proportion to their logarithms.
    pub fn product_with_tokens(
        &self,
        weight_type: &str,
        tokens: usize,
        threads: usize,
    ) -> Option<f64> {
        self.with_tokens(weight_type, false, tokens, threads)
    }

    /// The same with repacked weights.
    pub fn repacked_with_tokens(
        &self,
        weight_type: &str,
        tokens: usize,
        threads: usize,
    ) -> Option<f64> {
        self.with_tokens(weight_type, true, tokens, threads)
    }

    /// Nanoseconds of a node that computes next to nothing.
    pub fn node_with_threads(&self, threads: usize) -> Option<f64> {
        at_threads(self.nodes.iter().map(|n| (n.threads, n.nanos)), threads)
    }

    fn with_tokens(
        &self,
        weight_type: &str,
        is_repacked: bool,
        tokens: usize,
        threads: usize,
    ) -> Option<f64> {
        let of_type = || {
            let kernels = self.kernels.iter();
            kernels.filter(|k| k.weight_type == weight_type && k.is_repacked == is_repacked)
        };
        let at = |tokens: usize| {
            let of_tokens = of_type().filter(|k| k.tokens == tokens);
            let figures = of_tokens.map(|k| (k.threads, k.flops_per_second as f64));
            at_threads(figures, threads).filter(|&flops| flops > 0.0)
        };
        let counts = || of_type().map(|k| k.tokens);
        let below = counts().filter(|&count| count <= tokens).max();
        let above = counts().filter(|&count| count >= tokens).min();
        match (below, above) {
            (Some(below), Some(above)) if below < above => {
                let (less, more) = (at(below)?, at(above)?);
                let log = |count: usize| (count.max(1) as f64).ln();
                let part = (log(tokens) - log(below)) / (log(above) - log(below));
                Some(less * (more / less).powf(part))
            }
            (below, above) => at(below.or(above)?),
        }
    }

    /// What llama.cpp's products with weights of a type reach at best, with so many threads.
    pub fn kernel_with_threads(&self, weight_type: &str, threads: usize) -> Option<f64> {
        let of_type = || {
            let kernels = self.kernels.iter();
            kernels.filter(|k| k.weight_type == weight_type && !k.is_repacked)
        };
        let most_tokens = of_type().map(|k| k.tokens).max()?;
        let of_tokens = of_type().filter(|k| k.tokens == most_tokens);
        let figures = of_tokens.map(|k| (k.threads, k.flops_per_second as f64));
        at_threads(figures, threads).filter(|&flops| flops > 0.0)
    }
}

/// Every instruction set that the processor has, with one thread and with `threads`, each for
/// `time`.
pub fn ceiling(threads: NonZeroUsize, time: Duration) -> ComputeCeiling {
    let mut counts = vec![NonZeroUsize::MIN, threads];
    counts.dedup();
    let mut registers = Vec::new();
    for instructions in Instructions::ALL {
        let Some(kernel) = instructions.kernel() else {
            continue;
        };
        registers.extend(counts.iter().map(|&threads| RegisterCeiling {
            instructions,
            threads: threads.get(),
            flops_per_second: measure_kernel(kernel, threads, time) as u64,
        }));
    }
    ComputeCeiling {
        registers,
        ..ComputeCeiling::default()
    }
}

/// FLOP/s of `threads` threads together, measured for `time`, with the vector instructions that
/// llama.cpp's engine uses here.
pub fn measure(threads: NonZeroUsize, time: Duration) -> f64 {
    let avx2 = Instructions::Avx2.kernel();
    measure_kernel(avx2.unwrap_or(PORTABLE), threads, time)
}

fn measure_kernel((kernel, lanes): Kernel, threads: NonZeroUsize, time: Duration) -> f64 {
    let calls = AtomicU64::new(0);
    let is_over = AtomicBool::new(false);
    let begin = Instant::now();
    thread::scope(|scope| {
        for _ in 0..threads.get() {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    black_box(kernel());
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        thread::sleep(time);
        is_over.store(true, Ordering::Relaxed);
    });
    let seconds = begin.elapsed().as_secs_f64();
    let flops = ROUNDS * REGISTERS as u64 * lanes * 2;
    calls.load(Ordering::Relaxed) as f64 * flops as f64 / seconds
}

/// # Safety
/// The processor has AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn multiply_avx2() -> f32 {
    use std::arch::x86_64::{_mm256_cvtss_f32, _mm256_fmadd_ps, _mm256_set1_ps};
    let (factor, summand) = (
        _mm256_set1_ps(black_box(0.999)),
        _mm256_set1_ps(black_box(0.001)),
    );
    let mut registers = [factor; REGISTERS];
    for _ in 0..ROUNDS {
        for register in &mut registers {
            *register = _mm256_fmadd_ps(*register, factor, summand);
        }
    }
    registers.iter().map(|&r| _mm256_cvtss_f32(r)).sum()
}

/// # Safety
/// The processor has AVX-512F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn multiply_avx512() -> f32 {
    use std::arch::x86_64::{_mm512_cvtss_f32, _mm512_fmadd_ps, _mm512_set1_ps};
    let (factor, summand) = (
        _mm512_set1_ps(black_box(0.999)),
        _mm512_set1_ps(black_box(0.001)),
    );
    let mut registers = [factor; REGISTERS];
    for _ in 0..ROUNDS {
        for register in &mut registers {
            *register = _mm512_fmadd_ps(*register, factor, summand);
        }
    }
    registers.iter().map(|&r| _mm512_cvtss_f32(r)).sum()
}

/// Products and sums one after the other: SSE2 has none that are fused.
#[cfg(target_arch = "x86_64")]
fn multiply() -> f32 {
    // SAFETY: every x86-64 processor has SSE2.
    unsafe { multiply_sse2() }
}

/// # Safety
/// The processor has SSE2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse2")]
unsafe fn multiply_sse2() -> f32 {
    use std::arch::x86_64::{_mm_add_ps, _mm_cvtss_f32, _mm_mul_ps, _mm_set1_ps};
    let (factor, summand) = (_mm_set1_ps(black_box(0.999)), _mm_set1_ps(black_box(0.001)));
    let mut registers = [factor; REGISTERS];
    for _ in 0..ROUNDS {
        for register in &mut registers {
            *register = _mm_add_ps(_mm_mul_ps(*register, factor), summand);
        }
    }
    registers.iter().map(|&r| _mm_cvtss_f32(r)).sum()
}

/// Four lanes, as the compiler has them.
#[cfg(not(target_arch = "x86_64"))]
fn multiply() -> f32 {
    let (factor, summand) = (black_box(0.999f32), black_box(0.001f32));
    let mut registers = [[factor; 4]; REGISTERS];
    for _ in 0..ROUNDS {
        for register in &mut registers {
            for lane in register {
                *lane = *lane * factor + summand;
            }
        }
    }
    registers.iter().flatten().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_computes() {
        let flops = measure(NonZeroUsize::MIN, Duration::from_millis(20));
        // Slower than any machine since 1990, and faster than any core.
        assert!((1e7..1e13).contains(&flops), "{flops}");
    }

    #[test]
    fn every_instruction_set_is_measured_with_one_thread_and_with_all() {
        let threads = NonZeroUsize::new(2).unwrap();
        let found = ceiling(threads, Duration::from_millis(10));
        let portable: Vec<usize> = (found.registers.iter())
            .filter(|r| r.instructions == Instructions::Portable)
            .map(|r| r.threads)
            .collect();
        assert_eq!(portable, [1, 2]);
        assert!(
            found
                .registers
                .iter()
                .all(|r| r.flops_per_second > 10_000_000)
        );
        let alone = ceiling(NonZeroUsize::MIN, Duration::from_millis(1));
        assert!(alone.registers.iter().all(|r| r.threads == 1));
    }

    #[test]
    fn the_best_instructions_and_the_most_tokens_are_the_ceiling() {
        let register = |instructions, threads, flops_per_second| RegisterCeiling {
            instructions,
            threads,
            flops_per_second,
        };
        let kernel = |tokens, threads, flops_per_second| KernelCeiling {
            weight_type: "q4_0".to_owned(),
            tokens,
            threads,
            flops_per_second,
            is_repacked: false,
        };
        let ceiling = ComputeCeiling {
            registers: vec![
                register(Instructions::Portable, 1, 10),
                register(Instructions::Portable, 4, 40),
                register(Instructions::Avx2, 1, 20),
                register(Instructions::Avx2, 4, 80),
            ],
            kernels: vec![kernel(1, 1, 5), kernel(256, 1, 15), kernel(256, 2, 30)],
            ..ComputeCeiling::default()
        };
        assert_eq!(ceiling.flops_with_threads(1), Some(20.0));
        assert_eq!(ceiling.flops_with_threads(2), Some(40.0));
        assert_eq!(ceiling.flops_with_threads(9), Some(80.0));
        assert_eq!(ceiling.kernel_with_threads("q4_0", 1), Some(15.0));
        assert_eq!(ceiling.kernel_with_threads("q4_0", 2), Some(30.0));
        assert_eq!(ceiling.kernel_with_threads("q8_0", 2), None);
        let with = |tokens, threads| ceiling.product_with_tokens("q4_0", tokens, threads);
        assert_eq!([with(1, 1), with(256, 2)], [Some(5.0), Some(30.0)]);
        // 16 is in the middle of 1 and 256, by their logarithms; beyond both the nearest holds.
        let between = with(16, 1).unwrap();
        assert!((between - 75f64.sqrt()).abs() < 1e-9, "{between}");
        assert_eq!(with(512, 1), Some(15.0));
        assert_eq!(ceiling.product_with_tokens("q8_0", 1, 1), None);
        assert_eq!(ComputeCeiling::default().flops_with_threads(2), None);
    }
}
