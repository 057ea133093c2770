//! Whether this processor runs the instructions that llama.cpp was compiled with.
//!
//! They are a fixed set (AVX2 and what came with it), never those of the machine that
//! built us. A processor, or the hypervisor around it, may lack them, or announce what it
//! then traps on (AMX in many virtual machines). So each set that is compiled in is tried
//! in a child process, once, before llama.cpp computes: a missing one is a sentence, not
//! a SIGILL in the middle of a token.

use std::sync::OnceLock;

use crate::EngineError;

/// Instructions that ggml's kernels may have been compiled with.
struct InstructionSet {
    name: &'static str,
    is_compiled_in: unsafe extern "C" fn() -> i32,
    /// Executes one of them.
    attempt: fn(),
}

#[cfg(target_arch = "x86_64")]
mod sets {
    use std::arch::asm;

    use super::InstructionSet;

    unsafe extern "C" {
        fn ggml_cpu_has_avx() -> i32;
        fn ggml_cpu_has_avx2() -> i32;
        fn ggml_cpu_has_fma() -> i32;
        fn ggml_cpu_has_f16c() -> i32;
        fn ggml_cpu_has_bmi2() -> i32;
        fn ggml_cpu_has_avx_vnni() -> i32;
        fn ggml_cpu_has_avx512() -> i32;
        fn ggml_cpu_has_avx512_vbmi() -> i32;
        fn ggml_cpu_has_avx512_vnni() -> i32;
        fn ggml_cpu_has_avx512_bf16() -> i32;
        fn ggml_cpu_has_amx_int8() -> i32;
    }

    /// Registers are cleared or hold what they held; nothing in memory is touched.
    macro_rules! set {
        ($name:literal, $is_compiled_in:ident, $($instruction:literal),+) => {
            InstructionSet {
                name: $name,
                is_compiled_in: $is_compiled_in,
                attempt: || {
                    // SAFETY: changes a vector register and rax only, which are
                    // declared; where it traps, this is a child process made to die of it.
                    unsafe {
                        asm!($($instruction),+, out("rax") _, out("xmm0") _,
                             options(nomem, nostack))
                    }
                },
            }
        };
    }

    pub(super) const SETS: &[InstructionSet] = &[
        set!(
            "AVX",
            ggml_cpu_has_avx,
            "vxorps ymm0, ymm0, ymm0",
            "vzeroupper"
        ),
        set!(
            "AVX2",
            ggml_cpu_has_avx2,
            "vpxor ymm0, ymm0, ymm0",
            "vzeroupper"
        ),
        set!("FMA", ggml_cpu_has_fma, "vfmadd231ps xmm0, xmm0, xmm0"),
        set!("F16C", ggml_cpu_has_f16c, "vcvtph2ps xmm0, xmm0"),
        set!("BMI2", ggml_cpu_has_bmi2, "mulx rax, rax, rax"),
        set!(
            "AVX-VNNI",
            ggml_cpu_has_avx_vnni,
            "{{vex}} vpdpbusd xmm0, xmm0, xmm0"
        ),
        set!(
            "AVX-512",
            ggml_cpu_has_avx512,
            "vpxorq zmm0, zmm0, zmm0",
            "vzeroupper"
        ),
        set!(
            "AVX-512 VBMI",
            ggml_cpu_has_avx512_vbmi,
            "vpermb zmm0, zmm0, zmm0",
            "vzeroupper"
        ),
        set!(
            "AVX-512 VNNI",
            ggml_cpu_has_avx512_vnni,
            "vpdpbusd zmm0, zmm0, zmm0",
            "vzeroupper"
        ),
        set!(
            "AVX-512 BF16",
            ggml_cpu_has_avx512_bf16,
            "vdpbf16ps zmm0, zmm0, zmm0",
            "vzeroupper"
        ),
        InstructionSet {
            name: "AMX",
            is_compiled_in: ggml_cpu_has_amx_int8,
            attempt: || {
                // As ggml does: the kernel gives a process the tiles only when asked.
                const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
                const XFEATURE_XTILEDATA: i64 = 18;
                // SAFETY: asks for a permission, in a child process that ends at once.
                unsafe {
                    libc::syscall(
                        libc::SYS_arch_prctl,
                        ARCH_REQ_XCOMP_PERM,
                        XFEATURE_XTILEDATA,
                    )
                };
                // Palette 1, one tile of one row of four bytes.
                let mut config = [0_u8; 64];
                (config[0], config[16], config[48]) = (1, 4, 1);
                // SAFETY: reads the 64 bytes of `config`; the tiles are released again.
                unsafe {
                    asm!("ldtilecfg [{0}]", "tilezero tmm0", "tilerelease", in(reg) &config,
                         options(nostack))
                };
            },
        },
    ];
}

#[cfg(not(target_arch = "x86_64"))]
mod sets {
    pub(super) const SETS: &[super::InstructionSet] = &[];
}

/// The instruction sets that llama.cpp was compiled with.
pub fn compiled_in() -> impl Iterator<Item = &'static str> {
    // SAFETY: answers of ggml's, constants of how it was compiled.
    let needed = |set: &&InstructionSet| unsafe { (set.is_compiled_in)() } != 0;
    sets::SETS.iter().filter(needed).map(|set| set.name)
}

/// An error if the processor traps on an instruction that llama.cpp was compiled with.
pub fn check() -> Result<(), EngineError> {
    static TRAPPED: OnceLock<Option<&'static str>> = OnceLock::new();
    match *TRAPPED.get_or_init(|| first_that_traps(|name| compiled_in().any(|set| set == name))) {
        None => Ok(()),
        Some(instructions) => Err(EngineError::Processor { instructions }),
    }
}

/// Instructions that the kernel lists for this processor and that trap all the same: a
/// llama.cpp that was compiled for the machine it runs on dies of them.
pub fn announces_in_vain() -> Option<&'static str> {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let is_listed = |name: &str| match name {
        "AMX" => cpuinfo.contains(" amx_int8"),
        "AVX-512" => cpuinfo.contains(" avx512f"),
        _ => false,
    };
    first_that_traps(is_listed)
}

/// Tries the sets in a child process; the one that it died of. Where no child can be
/// made, nothing is known, and nothing is refused.
fn first_that_traps(is_tried: impl Fn(&str) -> bool) -> Option<&'static str> {
    let mut pipe = [0; 2];
    // SAFETY: an array of two descriptors.
    if unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return None;
    }
    let [from_child, to_parent] = pipe;
    // SAFETY: the child calls nothing but write, sigaction and _exit, which are safe between
    // fork and exec; the parent closes what it opened and waits for the child it made.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            // Neither a handler of ours nor a core file: dying is the answer.
            libc::signal(libc::SIGILL, libc::SIG_DFL);
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            libc::prctl(libc::PR_SET_DUMPABLE, 0);
            for (number, set) in sets::SETS.iter().enumerate() {
                if is_tried(set.name) {
                    libc::write(to_parent, (&raw const number).cast(), 1);
                    (set.attempt)();
                }
            }
            libc::_exit(0);
        }
        libc::close(to_parent);
        let mut begun = [0_u8; 64];
        let mut length = 0;
        if child > 0 {
            let mut status = 0;
            while libc::waitpid(child, &raw mut status, 0) < 0
                && std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted
            {
            }
            if libc::WIFSIGNALED(status) {
                length = libc::read(from_child, begun.as_mut_ptr().cast(), begun.len());
            }
        }
        libc::close(from_child);
        let last = usize::try_from(length).ok()?.checked_sub(1)?;
        sets::SETS.get(usize::from(begun[last])).map(|set| set.name)
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn llama_is_compiled_for_avx2_and_nothing_that_came_later() {
        let sets: Vec<_> = compiled_in().collect();
        assert_eq!(sets, ["AVX", "AVX2", "FMA", "F16C", "BMI2"]);
    }

    /// Also on a machine that announces AMX and traps on it, where nothing is asserted of AMX.
    #[test]
    fn what_the_kernel_does_not_list_traps() {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        for (name, flag) in [
            ("AVX-512", " avx512f"),
            ("AVX-512 VNNI", " avx512_vnni"),
            ("AVX-512 BF16", " avx512_bf16"),
            ("AMX", " amx_tile"),
        ] {
            let trapped = first_that_traps(|set| set == name);
            if !cpuinfo.contains(flag) {
                assert_eq!(trapped, Some(name));
            }
        }
    }

    #[test]
    fn the_tests_run_on_a_processor_that_runs_llama() {
        check().unwrap();
    }
}
