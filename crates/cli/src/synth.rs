//! `tensorscope synth`: arguments and messages around crate `synth`.
//!
//! Everything that can be wrong is checked before the first byte is written:
//! the recipe, the target's name, the folder, the free space of its disk.

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, bail};
use gguf::write::{Existing, Layout, Split, WriteError};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use synth::{Model, PRESETS, Recipe, Size, SynthError};

use terminal::signals;

const EXAMPLES: &str = "\
Examples:
  tensorscope synth --list
  tensorscope synth --like llama-3.2-1b -o model.gguf
  tensorscope synth --like llama-2-7b --type q4_K --layers 8 -o eight-layers.gguf
  tensorscope synth --like qwen3-30b-a3b --type q4_0 --experts 32 --split 2G -o moe.gguf
  tensorscope synth --like gpt-oss-20b --tiny -o test.gguf
  tensorscope synth --like mixtral-8x7b --type q4_K --dry-run

The same options and seed give the same bytes.";

/// Write a model with random weights in the shape of a published one
///
/// llama.cpp loads and runs what is written here. The text it generates is
/// noise; sizes, types and access patterns are those of the real model.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The published model whose shape to take (see --list)
    #[arg(long, value_name = "PRESET", required_unless_present = "list")]
    like: Option<String>,

    /// The file to write
    #[arg(short, long, value_name = "FILE", required_unless_present_any = ["list", "dry_run"])]
    output: Option<PathBuf>,

    /// Type of the weights, for instance f16, q8_0, q4_K or mxfp4 [default: as
    /// published for gpt-oss (mxfp4 experts), else q8_0]
    #[arg(long = "type", value_name = "TYPE")]
    type_name: Option<String>,

    /// Shrink every width for tests: same features, a few megabytes
    #[arg(long)]
    tiny: bool,

    /// Number of layers
    #[arg(long, value_name = "N")]
    layers: Option<u64>,

    /// Number of experts in each MoE layer
    #[arg(long, value_name = "N")]
    experts: Option<u64>,

    /// Number of experts each token uses
    #[arg(long, value_name = "N")]
    experts_used: Option<u64>,

    /// Size of the vocabulary
    #[arg(long, value_name = "N")]
    vocab: Option<u64>,

    /// Write a split set: at most N tensors a file, or with M or G at most so
    /// many megabytes or gigabytes (as gguf-split counts them, in thousands)
    #[arg(long, value_name = "N[M|G]", value_parser = parse_split)]
    split: Option<Split>,

    /// Seed of the random weights
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Replace files that exist
    #[arg(long)]
    force: bool,

    /// Print what would be written, and write nothing
    #[arg(long)]
    dry_run: bool,

    /// Print the presets
    #[arg(long)]
    list: bool,

    /// Print results as JSON
    #[arg(long)]
    json: bool,

    /// No progress bar and no notices
    #[arg(short, long)]
    quiet: bool,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.list {
        return list(args.json);
    }
    let job = Job::new(&args)?;
    if !args.quiet {
        job.print_notices();
    }
    let mut result = job.describe();
    if args.dry_run {
        result["written"] = json!(false);
        print_result(
            &args,
            &job,
            &result,
            &format!("{}, nothing written", job.summary()),
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    job.check_disk()?;
    let start = Instant::now();
    match job.write(args.quiet) {
        Ok(()) => {}
        Err(SynthError::Interrupted) => {
            eprintln!("tensorscope: synth: interrupted, nothing was kept");
            // What shells report for a program that Ctrl-C ended.
            return Ok(ExitCode::from(130));
        }
        Err(SynthError::Write(error @ WriteError::Exists { .. })) => {
            bail!("{error}; --force replaces it")
        }
        Err(error) => return Err(error.into()),
    }
    let seconds = start.elapsed().as_secs_f64();
    let bytes_per_second = (job.layout.size_bytes() as f64 / seconds) as u64;
    result["written"] = json!(true);
    result["seconds"] = json!((seconds * 1e3).round() / 1e3);
    result["bytes_per_second"] = json!(bytes_per_second);
    let speed = bytes_text(bytes_per_second);
    print_result(
        &args,
        &job,
        &result,
        &format!("{}, {seconds:.1} s, {speed}/s", job.summary()),
    )?;
    Ok(ExitCode::SUCCESS)
}

/// The arguments, checked.
struct Job {
    preset: &'static str,
    model: Model,
    layout: Layout,
    existing: Existing,
    notices: Vec<String>,
}

impl Job {
    fn new(args: &Args) -> anyhow::Result<Job> {
        let mut recipe = Recipe::new(args.like.as_deref().unwrap_or_default())?;
        recipe.size = if args.tiny {
            Size::Tiny
        } else {
            Size::Published
        };
        recipe.layers = args.layers;
        recipe.experts = args.experts;
        recipe.experts_used = args.experts_used;
        recipe.vocab = args.vocab;
        recipe.seed = args.seed;
        recipe.ggml_type = args
            .type_name
            .as_deref()
            .map(synth::type_by_name)
            .transpose()?;
        let model = recipe.model()?;
        let default_name = PathBuf::from(format!("{}.gguf", recipe.preset.name));
        let path = args.output.as_deref().unwrap_or(&default_name);
        let layout = model.layout(path, args.split.unwrap_or(Split::Whole))?;
        Ok(Job {
            preset: recipe.preset.name,
            notices: notices(&recipe, &model),
            model,
            layout,
            existing: if args.force {
                Existing::Replace
            } else {
                Existing::Refuse
            },
        })
    }

    fn print_notices(&self) {
        for notice in &self.notices {
            eprintln!("tensorscope: synth: {notice}");
        }
    }

    /// The line for people.
    fn summary(&self) -> String {
        let files = match self.layout.files() {
            [_] => "1 file".to_owned(),
            many => format!("{} files", many.len()),
        };
        format!(
            "{} parameters, {} layers, {} tensors, {} in {files}",
            count_text(self.model.parameters()),
            self.model.shape.layers,
            self.model.tensors.len(),
            bytes_text(self.layout.size_bytes()),
        )
    }

    fn describe(&self) -> Value {
        let files: Vec<Value> = self
            .layout
            .files()
            .iter()
            .map(|file| {
                json!({
                    "path": file.path.to_string_lossy(),
                    "size_bytes": file.size_bytes,
                    "tensors": file.tensors.len(),
                })
            })
            .collect();
        json!({
            "preset": self.preset,
            "architecture": self.model.shape.arch.name(),
            "layers": self.model.shape.layers,
            "experts": self.model.shape.experts.map(|experts| experts.count),
            "experts_used": self.model.shape.experts.map(|experts| experts.used),
            "vocab": self.model.shape.vocab,
            "seed": self.model.seed,
            "parameters": self.model.parameters(),
            "tensors": self.model.tensors.len(),
            "size_bytes": self.layout.size_bytes(),
            "files": files,
            "notices": self.notices,
        })
    }

    /// Finds a missing folder or a full disk at second 0.
    fn check_disk(&self) -> anyhow::Result<()> {
        let path = &self.layout.files()[0].path;
        if path.is_dir() {
            bail!("{}: is a folder; name a file in it", path.display());
        }
        if self.existing == Existing::Refuse
            && let Some(path) = self.layout.existing()
        {
            bail!(
                "{}: the file exists already; --force replaces it",
                path.display()
            );
        }
        let folder = match path.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        let free_bytes = free_bytes(folder).with_context(|| {
            format!(
                "{}: cannot write to folder {}",
                path.display(),
                folder.display()
            )
        })?;
        if free_bytes < self.layout.size_bytes() {
            bail!(
                "{}: needs {}, but the disk of {} has {} free; try fewer --layers, a smaller \
                 --type, or another disk",
                path.display(),
                bytes_text(self.layout.size_bytes()),
                folder.display(),
                bytes_text(free_bytes),
            );
        }
        Ok(())
    }

    fn write(&self, quiet: bool) -> Result<(), SynthError> {
        signals::catch();
        let bar = if quiet || !std::io::stderr().is_terminal() {
            ProgressBar::hidden()
        } else {
            ProgressBar::new(self.layout.size_bytes()).with_style(
                ProgressStyle::with_template(
                    "{wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
                )
                .unwrap_or_else(|_| ProgressStyle::default_bar()),
            )
        };
        let result = self.model.write(&self.layout, self.existing, |bytes| {
            bar.inc(bytes);
            if signals::stop_asked() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        bar.finish_and_clear();
        result
    }
}

fn notices(recipe: &Recipe, model: &Model) -> Vec<String> {
    let mut notices = vec![];
    if let (Some(asked), Some(preset), Some(experts)) = (
        recipe.experts,
        recipe.preset.full.experts,
        model.shape.experts,
    ) && recipe.experts_used.is_none()
        && asked < preset.used
    {
        notices.push(format!("each token uses all {} experts", experts.used));
    }
    for fallback in model.fallbacks() {
        let tensors = match fallback.tensors {
            1 => format!("{} is", fallback.example),
            many => format!("{} and {} more tensors are", fallback.example, many - 1),
        };
        notices.push(format!(
            "{tensors} {} instead of {}: rows of {} elements are no whole blocks of {}",
            fallback.used.name(),
            fallback.wanted.name(),
            fallback.row_elements,
            fallback.wanted.block_elements(),
        ));
    }
    notices
}

fn print_result(args: &Args, job: &Job, result: &Value, line: &str) -> std::io::Result<()> {
    terminal::print(&match args.json {
        true => format!("{result:#}"),
        false => format!("{}: {line}", job.layout.files()[0].path.display()),
    })
}

fn list(as_json: bool) -> anyhow::Result<ExitCode> {
    let mut rows = vec![];
    for preset in PRESETS {
        let mut recipe = Recipe::new(preset.name)?;
        let full = recipe.model()?;
        let size_bytes = full.layout(Path::new("x.gguf"), Split::Whole)?.size_bytes();
        recipe.size = Size::Tiny;
        let tiny_bytes = recipe
            .model()?
            .layout(Path::new("x.gguf"), Split::Whole)?
            .size_bytes();
        rows.push((preset, full, size_bytes, tiny_bytes));
    }
    if as_json {
        let rows: Vec<Value> = rows
            .iter()
            .map(|(preset, full, size_bytes, tiny_bytes)| {
                json!({
                    "preset": preset.name,
                    "architecture": full.shape.arch.name(),
                    "layers": full.shape.layers,
                    "parameters": full.parameters(),
                    "size_bytes": size_bytes,
                    "tiny_size_bytes": tiny_bytes,
                    "about": preset.about,
                })
            })
            .collect();
        terminal::print(&format!("{:#}", Value::from(rows)))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = format!(
        "{:18} {:>10} {:>9} {:>9}  about\n",
        "preset", "parameters", "size", "tiny"
    );
    for (preset, full, size_bytes, tiny_bytes) in &rows {
        let _ = writeln!(
            text,
            "{:18} {:>10} {:>9} {:>9}  {}",
            preset.name,
            count_text(full.parameters()),
            bytes_text(*size_bytes),
            bytes_text(*tiny_bytes),
            preset.about,
        );
    }
    let _ = write!(
        text,
        "\nsizes are those of q8_0 weights (gpt-oss: mxfp4 experts); types: {}",
        synth::type_names()
    );
    terminal::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn parse_split(text: &str) -> Result<Split, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((at, last)) if last.is_ascii_alphabetic() => (&text[..at], last),
        _ => (text, ' '),
    };
    let number: u64 = digits
        .parse()
        .ok()
        .filter(|&number| number > 0)
        .ok_or("expected a count of tensors, or a size such as 500M or 2G")?;
    let bytes = |unit: u64| {
        number
            .checked_mul(unit)
            .map(Split::Bytes)
            .ok_or("too large")
    };
    match unit {
        ' ' => Ok(Split::Tensors(number)),
        'M' | 'm' => Ok(bytes(1_000_000)?),
        'G' | 'g' => Ok(bytes(1_000_000_000)?),
        other => Err(format!("unknown unit {other:?}; M and G are known")),
    }
}

/// Decimal units, as disks and `ls --si` count.
fn bytes_text(bytes: u64) -> String {
    scaled(
        bytes,
        &[
            (1_000_000_000_000, "TB"),
            (1_000_000_000, "GB"),
            (1_000_000, "MB"),
            (1000, "kB"),
        ],
        "B",
    )
}

fn count_text(count: u64) -> String {
    scaled(
        count,
        &[(1_000_000_000, "B"), (1_000_000, "M"), (1000, "k")],
        "",
    )
}

fn scaled(number: u64, units: &[(u64, &str)], plain: &str) -> String {
    match units.iter().find(|(size, _)| number >= *size) {
        Some((size, unit)) => format!("{:.2} {unit}", number as f64 / *size as f64),
        None => format!("{number} {plain}").trim_end().to_owned(),
    }
}

/// What the disk that holds `folder` has left for us.
fn free_bytes(folder: &Path) -> std::io::Result<u64> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(folder.as_os_str().as_bytes())?;
    // SAFETY: statvfs is plain numbers, for which zero bytes are a value.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: `path` ends in a zero byte and `stat` is valid for writing;
    // both outlive the call.
    if unsafe { libc::statvfs(path.as_ptr(), &mut stat) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}
