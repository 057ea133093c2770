//! Kernels in C++, compiled where they run, by NVRTC.

use std::{
    ffi::{CString, c_char, c_int, c_void},
    sync::OnceLock,
};

use anyhow::{Context as _, anyhow, bail};
use cuda::{functions, library::Library};

functions! {
    /// NVRTC, loaded.
    pub struct Compiler {
        nvrtcCreateProgram(*mut *mut c_void, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char);
        nvrtcDestroyProgram(*mut *mut c_void);
        nvrtcCompileProgram(*mut c_void, c_int, *const *const c_char);
        nvrtcGetCUBINSize(*mut c_void, *mut usize);
        nvrtcGetCUBIN(*mut c_void, *mut c_char);
        nvrtcGetProgramLogSize(*mut c_void, *mut usize);
        nvrtcGetProgramLog(*mut c_void, *mut c_char);
    }
}

/// What the compiler made of one source.
#[derive(Clone, Debug)]
pub struct Compiled {
    pub name: String,
    /// A cubin: machine code for one kind of card.
    pub image: Vec<u8>,
}

/// Every source begins with this.
pub const COMMON: &str = include_str!("../../kernels/common.cuh");

/// Compiles `source` for cards of this capability. Needs no card.
pub fn compile(
    capability: (i32, i32),
    name: &str,
    source: &str,
    defines: &[String],
) -> anyhow::Result<Compiled> {
    let compiler = compiler()?;
    let (major, minor) = capability;
    // The `a` allows instructions that only this generation has (wgmma).
    let suffix = if major == 9 { "a" } else { "" };
    let mut options = vec![
        format!("--gpu-architecture=sm_{major}{minor}{suffix}"),
        "--std=c++17".to_owned(),
        "--generate-line-info".to_owned(),
    ];
    options.extend(defines.iter().map(|define| format!("-D{define}")));
    let options: Vec<CString> = options
        .into_iter()
        .map(CString::new)
        .collect::<Result<_, _>>()?;
    let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
    // Lines of the source keep their numbers.
    let text = CString::new(format!("{COMMON}\n#line 1 \"{name}\"\n{source}"))?;
    let c_name = CString::new(name)?;
    let mut program = std::ptr::null_mut();
    // SAFETY: C strings, and places to write to.
    unsafe {
        let none = std::ptr::null();
        let made = (compiler.nvrtcCreateProgram)(
            &mut program,
            text.as_ptr(),
            c_name.as_ptr(),
            0,
            none,
            none,
        );
        if made != 0 {
            bail!("{name}: the compiler does not start (error {made})");
        }
        let result =
            (compiler.nvrtcCompileProgram)(program, options.len() as c_int, options.as_ptr());
        if result != 0 {
            let mut bytes = 0;
            (compiler.nvrtcGetProgramLogSize)(program, &mut bytes);
            let mut log = vec![0u8; bytes];
            (compiler.nvrtcGetProgramLog)(program, log.as_mut_ptr().cast());
            (compiler.nvrtcDestroyProgram)(&mut program);
            let log = String::from_utf8_lossy(&log);
            bail!(
                "{name} does not compile:\n{}",
                log.trim_end_matches('\0').trim_end()
            );
        }
        let mut bytes = 0;
        (compiler.nvrtcGetCUBINSize)(program, &mut bytes);
        let mut image = vec![0u8; bytes];
        let result = (compiler.nvrtcGetCUBIN)(program, image.as_mut_ptr().cast());
        (compiler.nvrtcDestroyProgram)(&mut program);
        if result != 0 || image.is_empty() {
            bail!("{name}: the compiler gave no machine code (error {result})");
        }
        Ok(Compiled {
            name: name.to_owned(),
            image,
        })
    }
}

fn compiler() -> anyhow::Result<&'static Compiler> {
    static COMPILER: OnceLock<Result<Compiler, String>> = OnceLock::new();
    let found = COMPILER.get_or_init(|| {
        Library::open(&["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"])
            .and_then(Compiler::of)
            .map_err(|error| error.to_string())
    });
    found
        .as_ref()
        .map_err(|reason| anyhow!("{reason}"))
        .context("NVIDIA's compiler for kernels is needed, NVRTC; `pip install nvidia-cuda-nvrtc` brings it (then set VIRTUAL_ENV or TENSORSCOPE_CUDA)")
}
