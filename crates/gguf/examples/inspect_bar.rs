//! The bar that `inspect` must clear: under 50 ms and 32 MB on a 12 GB file
//! with 500 tensors, and under 100 ms and 64 MB on bad files, whatever their
//! headers claim.
//!
//! `cargo build --release -p tensorscope && cargo run --release -p gguf --example inspect_bar`
//!
//! Files are sparse and removed afterwards. Each command runs several times and
//! the slowest run counts. Exit code 1 when a bar is missed.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use gguf::GgmlType;
use testing::gguf_bytes::{Builder, string};

const RUNS: usize = 9;

fn main() -> std::io::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, prepare, name, path] = &arguments[..]
        && prepare == "prepare"
    {
        return prepare_file(name, Path::new(path));
    }
    let binary = binary();
    let directory = tempfile::tempdir()?;
    let mut missed = 0;
    println!(
        "{:44} {:>9} {:>9} {:>5}",
        "file", "worst ms", "peak MB", "exit"
    );
    for case in CASES {
        let path = directory.path().join("model.gguf");
        // Written by another process: the kernel counts the memory of the
        // process that starts a program as that program's, so ours stays small.
        let prepared = Command::new(std::env::current_exe()?)
            .args(["prepare", case.name])
            .arg(&path)
            .status()?;
        assert!(prepared.success(), "{} was not written", case.name);
        let bar = case.bar;
        for arguments in bar.arguments {
            let cost = worst_of_runs(&binary, &path, arguments)?;
            let fits = cost.millis <= bar.max_millis && cost.peak_mb <= bar.max_mb;
            let kept = fits && cost.exit == bar.exit;
            missed += usize::from(!kept);
            println!(
                "{:44} {:9.1} {:9.1} {:5}{}",
                format!("{} {}", case.name, arguments.join(" ")),
                cost.millis,
                cost.peak_mb,
                cost.exit,
                if kept { "" } else { "  missed" }
            );
        }
        std::fs::remove_file(&path)?;
    }
    Ok(ExitCode::from(u8::from(missed > 0)))
}

struct Case {
    name: &'static str,
    build: fn() -> Builder,
    bar: &'static Bar,
}

/// What is run on a file, and what it may cost.
struct Bar {
    arguments: &'static [&'static [&'static str]],
    exit: i32,
    max_millis: f64,
    max_mb: f64,
}

const GOOD: &Bar = &Bar {
    arguments: &[&["--json"], &["--csv"], &[], &["--lookup", "11G"]],
    exit: 0,
    max_millis: 50.0,
    max_mb: 32.0,
};

/// Headers that claim too much, in files of 12 GB that could almost hold it.
const BAD: &Bar = &Bar {
    arguments: &[&["--json"]],
    exit: 2,
    max_millis: 100.0,
    max_mb: 64.0,
};

#[rustfmt::skip]
const CASES: &[Case] = &[
    Case { name: "12 GB dense, 500 tensors", build: dense_12_gb, bar: GOOD },
    Case { name: "12 GB moe, 500 tensors", build: moe_12_gb, bar: GOOD },
    Case { name: "1.5 G empty strings", build: empty_strings, bar: BAD },
    Case { name: "3 arrays of 2 M empty strings", build: empty_arrays, bar: BAD },
    Case { name: "4 M short strings", build: short_strings, bar: BAD },
    Case { name: "strings of 300 KB", build: long_strings, bar: BAD },
    Case { name: "16384 long keys and values", build: many_keys, bar: BAD },
    Case { name: "65536 tensors, the last bad", build: many_tensors, bar: BAD },
    Case { name: "array of 2^60", build: huge_array, bar: BAD },
    Case { name: "2^63 tensors", build: huge_count, bar: BAD },
];

fn prepare_file(name: &str, path: &Path) -> std::io::Result<ExitCode> {
    let Some(case) = CASES.iter().find(|case| case.name == name) else {
        return Ok(ExitCode::from(2));
    };
    let builder = (case.build)();
    let mut file = File::create(path)?;
    file.write_all(&builder.header())?;
    file.set_len(builder.len_bytes().max(12 << 30))?;
    if case.name == "strings of 300 KB" {
        // Lengths in a hole: each string skips to the next length.
        let start = builder.header().len() as u64;
        for index in 0..30_000u64 {
            file.write_all_at(&300_000u64.to_le_bytes(), start + index * 300_008)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Zeros after the header read as endless empty strings.
fn empty_strings() -> Builder {
    Builder::default().array("tokens", 8, 1_500_000_000, &[])
}

fn empty_arrays() -> Builder {
    let strings = vec![0; 8 << 21];
    let array = |builder: Builder, key| builder.array(key, 8, 1 << 21, &strings);
    ["a", "b", "c"].into_iter().fold(Builder::default(), array)
}

fn short_strings() -> Builder {
    let strings: Vec<u8> = string(b"x").repeat(2 << 20);
    let array = |builder: Builder, key| builder.array(key, 8, 1 << 21, &strings);
    ["a", "b"].into_iter().fold(Builder::default(), array)
}

fn long_strings() -> Builder {
    Builder::default().array("tokens", 8, 1 << 21, &[])
}

fn many_keys() -> Builder {
    let mut builder = Builder {
        entry_count: Some(16_384),
        ..Builder::default()
    };
    for index in 0..16_383 {
        builder = builder.str(&format!("{index:0512}"), &"v".repeat(255));
    }
    builder
}

fn many_tensors() -> Builder {
    let mut builder = Builder {
        tensor_count: Some(65_536),
        ..Builder::default()
    };
    for index in 0..65_535u64 {
        builder.tensors.push(testing::gguf_bytes::TensorSpec {
            name: format!("blk.{index}.ffn_gate_exps.{index:030}").into_bytes(),
            dims: vec![32, 1, 1, 1],
            ty: 0,
            offset: index * 128,
            size: 128,
        });
    }
    builder
}

fn huge_array() -> Builder {
    Builder::default().array("a", 0, 1 << 60, &[])
}

fn huge_count() -> Builder {
    Builder {
        tensor_count: Some(1 << 63),
        ..Builder::default()
    }
}

/// A vocabulary as large as today's: 150 000 tokens, types, scores and merges.
fn with_vocabulary(builder: Builder) -> Builder {
    let tokens: Vec<String> = (0..151_936).map(|i| format!("Ġtok{i}")).collect();
    let merges: Vec<String> = (0..151_387).map(|i| format!("Ġto k{i}")).collect();
    builder
        .str("tokenizer.ggml.model", "gpt2")
        .strs("tokenizer.ggml.tokens", &tokens)
        .u32s("tokenizer.ggml.token_type", &vec![1; tokens.len()])
        .strs("tokenizer.ggml.merges", &merges)
}

fn dense_12_gb() -> Builder {
    const LAYERS: u32 = 55;
    let mut b = with_vocabulary(
        Builder::default()
            .str("general.architecture", "llama")
            .u32("llama.block_count", LAYERS)
            .u32("llama.embedding_length", 5120)
            .u32("llama.feed_forward_length", 15_360)
            .u32("llama.attention.head_count", 40)
            .u32("llama.attention.head_count_kv", 8),
    )
    .tensor("token_embd.weight", GgmlType::Q4_K, &[5120, 151_936]);
    for layer in 0..LAYERS {
        let name = |base: &str| format!("blk.{layer}.{base}.weight");
        b = b
            .tensor(&name("attn_norm"), GgmlType::F32, &[5120])
            .tensor(&name("attn_q"), GgmlType::Q4_K, &[5120, 5120])
            .tensor(&name("attn_k"), GgmlType::Q4_K, &[5120, 1024])
            .tensor(&name("attn_v"), GgmlType::Q6_K, &[5120, 1024])
            .tensor(&name("attn_output"), GgmlType::Q4_K, &[5120, 5120])
            .tensor(&name("ffn_norm"), GgmlType::F32, &[5120])
            .tensor(&name("ffn_gate"), GgmlType::Q4_K, &[5120, 15_360])
            .tensor(&name("ffn_up"), GgmlType::Q4_K, &[5120, 15_360])
            .tensor(&name("ffn_down"), GgmlType::Q6_K, &[15_360, 5120]);
    }
    pad_to_500(b, GgmlType::Q6_K, 5120)
}

fn moe_12_gb() -> Builder {
    const LAYERS: u32 = 41;
    let mut b = with_vocabulary(
        Builder::default()
            .str("general.architecture", "qwen3moe")
            .u32("qwen3moe.block_count", LAYERS)
            .u32("qwen3moe.embedding_length", 2048)
            .u32("qwen3moe.expert_feed_forward_length", 512)
            .u32("qwen3moe.attention.head_count", 32)
            .u32("qwen3moe.attention.head_count_kv", 4)
            .u32("qwen3moe.attention.key_length", 128)
            .u32("qwen3moe.attention.value_length", 128)
            .u32("qwen3moe.expert_count", 128)
            .u32("qwen3moe.expert_used_count", 8),
    )
    .tensor("token_embd.weight", GgmlType::Q4_K, &[2048, 151_936]);
    for layer in 0..LAYERS {
        let name = |base: &str| format!("blk.{layer}.{base}.weight");
        b = b
            .tensor(&name("attn_norm"), GgmlType::F32, &[2048])
            .tensor(&name("attn_q"), GgmlType::Q4_K, &[2048, 4096])
            .tensor(&name("attn_k"), GgmlType::Q4_K, &[2048, 512])
            .tensor(&name("attn_v"), GgmlType::Q6_K, &[2048, 512])
            .tensor(&name("attn_output"), GgmlType::Q4_K, &[4096, 2048])
            .tensor(&name("attn_q_norm"), GgmlType::F32, &[128])
            .tensor(&name("attn_k_norm"), GgmlType::F32, &[128])
            .tensor(&name("ffn_norm"), GgmlType::F32, &[2048])
            .tensor(&name("ffn_gate_inp"), GgmlType::F32, &[2048, 128])
            .tensor(&name("ffn_gate_exps"), GgmlType::Q4_K, &[2048, 512, 128])
            .tensor(&name("ffn_up_exps"), GgmlType::Q4_K, &[2048, 512, 128])
            .tensor(&name("ffn_down_exps"), GgmlType::Q6_K, &[512, 2048, 128]);
    }
    pad_to_500(b, GgmlType::Q6_K, 2048)
}

/// Output matrix and norm, then small tensors up to 500, the last of which
/// fills the file to 12 GB.
fn pad_to_500(b: Builder, ty: GgmlType, embedding: u64) -> Builder {
    let mut b = b
        .tensor("output_norm.weight", GgmlType::F32, &[embedding])
        .tensor("output.weight", ty, &[embedding, 151_936]);
    while b.tensors.len() < 499 {
        let name = format!("extra.{}.weight", b.tensors.len());
        b = b.tensor(&name, GgmlType::F32, &[64]);
    }
    let missing = (12u64 << 30).saturating_sub(b.len_bytes()).max(1 << 20);
    b.tensor("filler.weight", GgmlType::I8, &[missing])
}

struct Cost {
    millis: f64,
    peak_mb: f64,
    exit: i32,
}

fn worst_of_runs(binary: &Path, path: &Path, arguments: &[&str]) -> std::io::Result<Cost> {
    let mut worst = Cost {
        millis: 0.0,
        peak_mb: 0.0,
        exit: 0,
    };
    for _ in 0..RUNS {
        let cost = run_once(binary, path, arguments)?;
        worst.millis = worst.millis.max(cost.millis);
        worst.peak_mb = worst.peak_mb.max(cost.peak_mb);
        worst.exit = cost.exit;
    }
    Ok(worst)
}

/// Runs the program and asks the kernel what it used at most.
fn run_once(binary: &Path, path: &Path, arguments: &[&str]) -> std::io::Result<Cost> {
    let mut command = Command::new(binary);
    command
        .arg("inspect")
        .arg(path)
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let start = Instant::now();
    let child = command.spawn()?;
    let mut status = 0;
    // SAFETY: all-zero bytes are a valid `rusage`, which wait4 overwrites.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointers are to live locals, and the pid is that of a child
    // that nobody else waits for.
    let waited = unsafe { libc::wait4(child.id() as i32, &mut status, 0, &mut usage) };
    let millis = start.elapsed().as_secs_f64() * 1e3;
    if waited < 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(Cost {
        millis,
        peak_mb: usage.ru_maxrss as f64 * 1024.0 / 1e6,
        exit: libc::WEXITSTATUS(status),
    })
}

/// The program beside this example: target/release/tensorscope.
fn binary() -> PathBuf {
    let example = std::env::current_exe().unwrap_or_default();
    let release = example.ancestors().nth(2).unwrap_or(Path::new("."));
    let binary = release.join("tensorscope");
    assert!(
        binary.exists(),
        "{} is missing: run `cargo build --release -p tensorscope` first",
        binary.display()
    );
    binary
}
