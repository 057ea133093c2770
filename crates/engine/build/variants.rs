//! The processor's part of ggml, once for each set of instructions.
//!
//! llama-cpp-sys-2 compiles it once, for AVX2. The same sources are compiled again here, with
//! the same definitions and other instructions. Each of the results, and that of
//! llama-cpp-sys-2, becomes one object file whose symbols are local, except those of
//! [`KEPT`], which get the variant's name before theirs. Local they must be: templates of the
//! standard library are in there as well, compiled for AVX-512, and of functions with the same
//! name the linker takes any one for the whole program.
//!
//! What these objects call outside themselves is all undefined in them: ggml's base, the C++
//! library, and for calls that pass through us `__wrap_…`.

use std::{
    env,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Beside those that are wrapped. Their calls from inside stay inside.
const KEPT: [&str; 2] = ["ggml_backend_cpu_reg", "ggml_barrier"];
const COMPUTE: &str = "ggml_graph_compute";

struct Variant {
    name: &'static str,
    kind: Kind,
}

enum Kind {
    /// As llama-cpp-sys-2 compiled it.
    AsItCame,
    Compiled {
        flags: &'static [&'static str],
    },
    /// Another variant, of which these sources alone look for further instructions.
    Extended {
        other: &'static str,
        flags: &'static [&'static str],
        sources: &'static [&'static str],
    },
}

const AVX512: &[&str] = &[
    "-msse4.2",
    "-mf16c",
    "-mfma",
    "-mbmi2",
    "-mavx",
    "-mavx2",
    "-mavx512f",
    "-mavx512cd",
    "-mavx512vl",
    "-mavx512dq",
    "-mavx512bw",
    "-mavx512vnni",
];

/// Their instructions are also in src/variant.rs, and a test compares.
const VARIANTS: [Variant; 4] = [
    Variant {
        name: "sse42",
        kind: Kind::Compiled {
            flags: &["-msse4.2"],
        },
    },
    Variant {
        name: "avx2",
        kind: Kind::AsItCame,
    },
    Variant {
        name: "avx512",
        kind: Kind::Compiled { flags: AVX512 },
    },
    Variant {
        name: "avx512bf16",
        kind: Kind::Extended {
            other: "avx512",
            flags: &["-mavx512bf16"],
            // Those in which __AVX512BF16__ occurs.
            sources: &["llamafile/sgemm.cpp", "ggml-cpu.c", "vec.cpp"],
        },
    },
];

/// As ggml/src/ggml-cpu/CMakeLists.txt lists them for x86.
const SOURCES: [&str; 17] = [
    // The long ones first, so that nobody waits for one of them in the end.
    "llamafile/sgemm.cpp",
    "ops.cpp",
    "arch/x86/repack.cpp",
    "binary-ops.cpp",
    "repack.cpp",
    "unary-ops.cpp",
    "ggml-cpu.c",
    "ggml-cpu.cpp",
    "arch/x86/quants.c",
    "quants.c",
    "vec.cpp",
    "tiled/tiled.cpp",
    "tiled/tiled-kernel.cpp",
    "traits.cpp",
    "hbm.cpp",
    "amx/amx.cpp",
    "amx/mmq.cpp",
];

/// As llama-cpp-sys-2 has cmake define them; instructions are told by flags alone.
const DEFINITIONS: [&str; 7] = [
    "-DNDEBUG",
    "-DGGML_SCHED_MAX_COPIES=4",
    "-DGGML_USE_CPU_REPACK",
    "-DGGML_USE_LLAMAFILE",
    "-DGGML_USE_OPENMP",
    "-D_GNU_SOURCE",
    "-D_XOPEN_SOURCE=600",
];

const FLAGS: [&str; 7] = [
    "-O3",
    "-fPIC",
    "-m64",
    "-march=x86-64",
    "-ffunction-sections",
    "-fdata-sections",
    "-fopenmp",
];

/// Calls of the functions `watched` pass through `__wrap_…` as well.
pub fn build(watched: &[&str]) {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo says where to write"));
    let llama = env::var_os("DEP_LLAMA_ROOT").expect("llama-cpp-sys-2 says where it built");
    let llama = PathBuf::from(llama);
    let tools = Tools::new();

    compile(&tools, &sources(&llama), &out);
    let archive = out.join("libtensorscope_variants.a");
    let _ = fs::remove_file(&archive);
    let mut members = Vec::new();
    for variant in &VARIANTS {
        let inputs = match variant.kind {
            Kind::AsItCame => vec![llama.join("lib/libggml-cpu.a")],
            Kind::Compiled { .. } => SOURCES.map(|s| object(&out, variant.name, s)).into(),
            Kind::Extended { other, sources, .. } => SOURCES
                .map(|source| match sources.contains(&source) {
                    true => object(&out, variant.name, source),
                    false => object(&out, other, source),
                })
                .into(),
        };
        members.push(tools.isolate(variant, &inputs, watched, &out));
    }
    run(Command::new(&tools.ar)
        .arg("crs")
        .arg(&archive)
        .args(&members));
    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:rustc-link-lib=static=tensorscope_variants");
}

/// Where llama-cpp-sys-2's copy of llama.cpp lies, as cmake noted it.
fn sources(llama: &Path) -> PathBuf {
    let path = llama.join("build/CMakeCache.txt");
    let cache = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let home = cache
        .lines()
        .find_map(|line| line.strip_prefix("CMAKE_HOME_DIRECTORY:INTERNAL="))
        .unwrap_or_else(|| panic!("{}: no CMAKE_HOME_DIRECTORY", path.display()));
    Path::new(home).join("ggml")
}

fn object(out: &Path, variant: &str, source: &str) -> PathBuf {
    let name = source.replace('/', "-");
    out.join(variant).join(format!("{name}.o"))
}

/// Compiles every source for every variant, as many at once as cargo allows.
fn compile(tools: &Tools, ggml: &Path, out: &Path) {
    let mut commands = Vec::new();
    for source in SOURCES {
        for variant in &VARIANTS {
            let (base, more): (&[_], &[_]) = match variant.kind {
                Kind::Compiled { flags } => (flags, &[]),
                Kind::Extended { flags, sources, .. } if sources.contains(&source) => {
                    (AVX512, flags)
                }
                _ => continue,
            };
            let (mut command, std) = match source.ends_with(".c") {
                true => (tools.c.to_command(), "-std=gnu11"),
                false => (tools.cpp.to_command(), "-std=gnu++17"),
            };
            command.arg(std).args(FLAGS).args(DEFINITIONS);
            command.args(base).args(more);
            for folder in ["", "include", "src", "src/ggml-cpu"] {
                command.arg("-I").arg(ggml.join(folder));
            }
            let object = object(out, variant.name, source);
            let _ = fs::create_dir_all(out.join(variant.name));
            command.arg("-w").arg("-c").arg("-o").arg(object);
            command.arg(ggml.join("src/ggml-cpu").join(source));
            commands.push(Mutex::new(command));
        }
    }
    let jobs = env::var("NUM_JOBS").ok().and_then(|n| n.parse().ok());
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..jobs.unwrap_or(1) {
            scope.spawn(|| {
                while let Some(command) = commands.get(next.fetch_add(1, Ordering::Relaxed)) {
                    run(&mut command.lock().expect("nobody else takes it"));
                }
            });
        }
    });
}

struct Tools {
    c: cc::Tool,
    cpp: cc::Tool,
    ld: PathBuf,
    objcopy: PathBuf,
    nm: PathBuf,
    ar: PathBuf,
}

impl Tools {
    fn new() -> Tools {
        let compiler = |is_cpp| {
            let mut build = cc::Build::new();
            build.cpp(is_cpp).no_default_flags(true).warnings(false);
            build.get_compiler()
        };
        let (c, cpp) = (compiler(false), compiler(true));
        // The compiler knows which linker and tools are those of its target.
        let beside = |name: &str| {
            let mut command = c.to_command();
            let output = run(command.arg(format!("-print-prog-name={name}")));
            PathBuf::from(output.trim())
        };
        Tools {
            ld: beside("ld"),
            objcopy: beside("objcopy"),
            nm: beside("nm"),
            ar: beside("ar"),
            c,
            cpp,
        }
    }

    /// One object file, all of whose symbols are local but a few that are the variant's own.
    fn isolate(
        &self,
        variant: &Variant,
        inputs: &[PathBuf],
        watched: &[&str],
        out: &Path,
    ) -> PathBuf {
        let [joined, renamed, isolated] = ["joined", "renamed", "isolated"]
            .map(|step| out.join(format!("tensorscope-{}-{step}.o", variant.name)));
        let wrapped = || watched.iter().chain([&COMPUTE]);
        // Groups of sections are what the linker keeps one of; here they are all kept.
        run(Command::new(&self.ld)
            .args(["-r", "--force-group-allocation", "--whole-archive"])
            .args(wrapped().map(|symbol| format!("--wrap={symbol}")))
            .arg("-o")
            .args([&joined])
            .args(inputs));
        // Statics of templates are "unique", which objcopy makes local only once they are weak.
        let defined = run(Command::new(&self.nm).arg("--defined-only").arg(&joined));
        let unique = defined
            .lines()
            .filter_map(|line| line.split_once(" u "))
            .map(|(_, symbol)| symbol);
        let kept = || wrapped().chain(&KEPT);
        let name = |symbol: &str| format!("tensorscope_{}_{symbol}", variant.name);
        run(Command::new(&self.objcopy)
            .args(unique.map(|symbol| format!("--weaken-symbol={symbol}")))
            .args(kept().map(|symbol| format!("--redefine-sym={symbol}={}", name(symbol))))
            .args([&joined, &renamed]));
        run(Command::new(&self.objcopy)
            .args(kept().map(|symbol| format!("--keep-global-symbol={}", name(symbol))))
            .args([&renamed, &isolated]));
        self.check(&isolated, kept().map(|symbol| name(symbol)).collect());
        for step in [joined, renamed] {
            let _ = fs::remove_file(step);
        }
        isolated
    }

    /// Nothing else is visible, and nothing runs before `main`, on whatever processor.
    fn check(&self, object: &Path, mut expected: Vec<String>) {
        let shown = object.display();
        let symbols = run(Command::new(&self.nm)
            .args(["--defined-only", "--extern-only", "--format=just-symbols"])
            .arg(object));
        let mut symbols: Vec<&str> = symbols.lines().filter(|l| !l.is_empty()).collect();
        symbols.sort_unstable();
        expected.sort_unstable();
        assert_eq!(symbols, expected, "{shown}: visible symbols");
        let bytes = fs::read(object).unwrap_or_else(|e| panic!("{shown}: {e}"));
        for section in [&b"\0.init_array"[..], b"\0.rela.init_array", b"\0.ctors"] {
            let is_there = bytes.windows(section.len()).any(|w| w == section);
            assert!(!is_there, "{shown}: it has constructors");
        }
    }
}

/// What it printed; the build ends if it failed.
fn run(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{}: {e}", OsStr::to_string_lossy(command.get_program())));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
