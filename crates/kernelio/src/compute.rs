//! How fast this machine multiplies and adds: fused 32-bit operations of all threads, in
//! registers, with the vector instructions that llama.cpp's engine uses here.

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Operations of one call of a kernel, by lane: so many rounds of a multiplication and an
/// addition in so many registers, enough of them to hide each other's latency.
const ROUNDS: u64 = 4096;
const REGISTERS: usize = 10;

/// FLOP/s of `threads` threads together, measured for `time`.
pub fn measure(threads: NonZeroUsize, time: Duration) -> f64 {
    let (kernel, lanes): (fn() -> f32, u64) = kernel();
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

#[cfg(target_arch = "x86_64")]
fn kernel() -> (fn() -> f32, u64) {
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
        // SAFETY: the processor has both.
        return (|| unsafe { multiply_avx2() }, 8);
    }
    (multiply, 4)
}

#[cfg(not(target_arch = "x86_64"))]
fn kernel() -> (fn() -> f32, u64) {
    (multiply, 4)
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

/// Four lanes, as the compiler has them.
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
}
