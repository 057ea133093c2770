//! Which instructions this processor executes.
//!
//! A processor, or the hypervisor around it, may lack some, or announce what it then traps on
//! (AMX in many virtual machines). So what a variant of llama.cpp's kernels needs
//! ([`crate::variant`]) is tried in a child process, once, before llama.cpp computes: what is
//! missing is a sentence, or another variant, not a SIGILL in the middle of a token.

/// Instructions that ggml's kernels may be compiled for.
struct InstructionSet {
    name: &'static str,
    /// By the processor, and by the kernel where there are registers to keep.
    is_announced: fn() -> bool,
    /// Executes one of them.
    attempt: fn(),
}

#[cfg(target_arch = "x86_64")]
mod sets {
    use std::{arch::asm, is_x86_feature_detected as has};

    use super::InstructionSet;

    /// Registers are cleared or hold what they held; nothing in memory is touched.
    macro_rules! set {
        ($name:literal, $is_announced:expr, $($instruction:literal),+) => {
            InstructionSet {
                name: $name,
                is_announced: || $is_announced,
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
            "SSE4.2",
            has!("sse4.2") && has!("popcnt"),
            "pcmpgtq xmm0, xmm0",
            "popcnt rax, rax"
        ),
        set!("AVX", has!("avx"), "vxorps ymm0, ymm0, ymm0", "vzeroupper"),
        set!("AVX2", has!("avx2"), "vpxor ymm0, ymm0, ymm0", "vzeroupper"),
        set!("FMA", has!("fma"), "vfmadd231ps xmm0, xmm0, xmm0"),
        set!("F16C", has!("f16c"), "vcvtph2ps xmm0, xmm0"),
        set!("BMI2", has!("bmi2"), "mulx rax, rax, rax"),
        set!(
            "AVX-512",
            has!("avx512f")
                && has!("avx512cd")
                && has!("avx512vl")
                && has!("avx512dq")
                && has!("avx512bw"),
            "vpxorq zmm0, zmm0, zmm0",
            "vpconflictd zmm0, zmm0",
            "vpconflictd xmm0, xmm0",
            "vpmullq zmm0, zmm0, zmm0",
            "vpaddb zmm0, zmm0, zmm0",
            "vzeroupper"
        ),
        set!(
            "AVX-512 VNNI",
            has!("avx512vnni"),
            "vpdpbusd zmm0, zmm0, zmm0",
            "vzeroupper"
        ),
        set!(
            "AVX-512 BF16",
            has!("avx512bf16"),
            "vdpbf16ps zmm0, zmm0, zmm0",
            "vzeroupper"
        ),
        InstructionSet {
            name: "AMX",
            is_announced: || {
                let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
                cpuinfo.contains(" amx_int8")
            },
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

/// The first of these sets that the processor does not announce, or announces and traps on.
/// Where no child process can be made, what it announces is believed.
pub(crate) fn first_missing(names: &[&str]) -> Option<&'static str> {
    let is_named = |name: &str| names.contains(&name);
    let mut sets = sets::SETS.iter().filter(|set| is_named(set.name));
    sets.find(|set| !(set.is_announced)())
        .map(|set| set.name)
        .or_else(|| first_that_traps(is_named))
}

/// Instructions that are announced for this processor and that trap all the same: a
/// llama.cpp that was compiled for the machine it runs on dies of them.
pub fn announces_in_vain() -> Option<&'static str> {
    let announced: Vec<&str> = sets::SETS
        .iter()
        .filter(|set| (set.is_announced)())
        .map(|set| set.name)
        .collect();
    first_that_traps(|name| announced.contains(&name))
}

/// Tries the sets in a child process; the one that it died of. Where no child can be
/// made, nothing is known.
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
    fn what_is_not_announced_is_missing_and_what_is_executed_is_not() {
        assert_eq!(first_missing(&["SSE4.2"]), None);
        assert_eq!(first_missing(&[]), None);
        for set in sets::SETS {
            let traps = first_that_traps(|name| name == set.name).is_some();
            let missing = (traps || !(set.is_announced)()).then_some(set.name);
            assert_eq!(first_missing(&["SSE4.2", set.name]), missing);
        }
    }
}
