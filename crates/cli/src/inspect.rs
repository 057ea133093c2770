//! `tensorscope inspect`: flags → validated props → `gguf` → text, JSON or CSV.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use gguf::{GgmlType, HeadRows, Model, Question, Summary};

mod json;
mod text;

const EXAMPLES: &str = "\
Examples:
  tensorscope inspect model.gguf
      what the model is, what a token reads, what its KV cache needs
  tensorscope inspect model.gguf --ctx 32768 --kv-type q8_0 --batch 16
      the same at 32768 tokens of context, a q8_0 cache and 16 sequences
  tensorscope inspect model.gguf --csv > structure.csv
      one row for each tensor, or for each expert of a merged tensor
  tensorscope inspect model.gguf --lookup 0x1f400000
      which tensor, layer, expert and head owns that byte
  tensorscope inspect model-00001-of-00003.gguf --lookup 4K@model-00002-of-00003.gguf
      the same for a byte of another file of a split set";

/// Show what every byte of a GGUF model is, reading only its header
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The model; any file of a split set stands for the whole set
    model: PathBuf,

    /// Print everything as JSON
    #[arg(long, conflicts_with = "csv")]
    json: bool,

    /// Print the structure map as CSV: one row per tensor or expert slice
    #[arg(long)]
    csv: bool,

    /// List every tensor below the summary (JSON and CSV always do)
    #[arg(long)]
    tensors: bool,

    /// Add the byte range of every attention head
    #[arg(long)]
    heads: bool,

    /// Say who owns this byte: decimal, 0x hexadecimal, or with suffix K, M, G;
    /// @FILE picks a file of a split set (default: the one given)
    #[arg(long, value_name = "OFFSET[@FILE]", conflicts_with = "csv")]
    lookup: Option<String>,

    /// Tokens in the KV cache [default: 4096, or the model's limit]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..))]
    ctx: Option<u64>,

    /// Type of the KV cache: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    kv_type: String,

    /// Sequences decoded at once, for the second line of arithmetic intensity
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..))]
    batch: u64,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let props = args.props()?;
    let model = Model::open(&props.model)?;
    let mut out = BufWriter::new(io::stdout().lock());
    let written = match &props.action {
        Action::Lookup(place) => lookup(&model, &props, place, &mut out),
        Action::Csv => model
            .write_structure_csv(props.heads, &mut out)
            .map_err(Into::into),
        Action::Show(format) => {
            let summary = Summary::new(&model, &props.question);
            show(&model, &summary, &props, *format, &mut out)
        }
    };
    match written.and_then(|()| out.flush().map_err(Into::into)) {
        // The reader has seen enough (`| head`): that is no failure.
        Err(error) if is_broken_pipe(&error) => Ok(ExitCode::SUCCESS),
        Err(error) => Err(error),
        Ok(()) => Ok(ExitCode::SUCCESS),
    }
}

/// What the flags mean.
struct InspectProps {
    model: PathBuf,
    action: Action,
    question: Question,
    heads: HeadRows,
    tensors: TensorList,
    lookup_format: Format,
}

enum Action {
    Show(Format),
    Csv,
    Lookup(Place),
}

#[derive(Clone, Copy)]
enum Format {
    Text,
    Json,
}

/// Whether the text lists every tensor.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TensorList {
    Without,
    With,
}

/// A byte of the model.
#[derive(Debug, PartialEq)]
struct Place {
    offset: u64,
    file: Option<String>,
}

impl Args {
    fn props(self) -> anyhow::Result<InspectProps> {
        let kv_type = GgmlType::from_name(&self.kv_type)
            .filter(|ty| ty.is_kv_cache_type())
            .with_context(|| {
                format!(
                    "--kv-type {}: llama.cpp's KV cache has no such type, see `tensorscope inspect --help`",
                    self.kv_type
                )
            })?;
        let format = if self.json {
            Format::Json
        } else {
            Format::Text
        };
        let action = match (&self.lookup, self.csv) {
            (Some(text), _) => Action::Lookup(parse_place(text)?),
            (None, true) => Action::Csv,
            (None, false) => Action::Show(format),
        };
        Ok(InspectProps {
            model: self.model,
            action,
            question: Question {
                context_tokens: self.ctx,
                kv_type,
                batch: self.batch,
            },
            heads: if self.heads {
                HeadRows::With
            } else {
                HeadRows::Without
            },
            tensors: if self.tensors {
                TensorList::With
            } else {
                TensorList::Without
            },
            lookup_format: format,
        })
    }
}

fn show(
    model: &Model,
    summary: &Summary,
    props: &InspectProps,
    format: Format,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    match format {
        Format::Json => json::write_model(model, summary, props.heads, out)?,
        Format::Text => {
            text::write_summary(model, summary, out)?;
            if props.tensors == TensorList::With || props.heads == HeadRows::With {
                text::write_tensors(model, props.heads, out)?;
            }
        }
    }
    Ok(())
}

fn lookup(
    model: &Model,
    props: &InspectProps,
    place: &Place,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let file = match &place.file {
        Some(name) => model.file_index(name).with_context(|| {
            format!(
                "--lookup: {name} is not a file of {}",
                props.model.display()
            )
        })?,
        None => opened_file(model, &props.model),
    };
    let about = &model.files()[file];
    let Some(owner) = model.lookup(file, place.offset) else {
        bail!(
            "{}: byte {}: beyond the end of the file, which has {} bytes",
            about.path.display(),
            place.offset,
            about.len_bytes
        );
    };
    match props.lookup_format {
        Format::Json => json::write_owner(model, file, place.offset, &owner, out)?,
        Format::Text => text::write_owner(model, file, place.offset, &owner, out)?,
    }
    Ok(())
}

/// The file of the set that the user named.
fn opened_file(model: &Model, path: &Path) -> usize {
    let name = path.file_name();
    model
        .files()
        .iter()
        .position(|file| file.path.file_name() == name)
        .unwrap_or(0)
}

fn parse_place(text: &str) -> anyhow::Result<Place> {
    let (number, file) = match text.split_once('@') {
        Some((number, file)) => (number, Some(file.to_owned())),
        None => (text, None),
    };
    let offset = parse_offset(number).with_context(|| {
        format!("--lookup {text}: not an offset; write 4096, 0x1000, 4K, 1M or 2G, and @FILE for another file")
    })?;
    Ok(Place { offset, file })
}

fn parse_offset(text: &str) -> Option<u64> {
    if let Some(hex) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        let is_hex = !hex.is_empty() && hex.bytes().all(|b| b.is_ascii_hexdigit());
        return is_hex.then(|| u64::from_str_radix(hex, 16).ok()).flatten();
    }
    let (digits, unit) = match text.char_indices().next_back()? {
        (end, 'k' | 'K') => (&text[..end], 1 << 10),
        (end, 'm' | 'M') => (&text[..end], 1 << 20),
        (end, 'g' | 'G') => (&text[..end], 1 << 30),
        (end, 't' | 'T') => (&text[..end], 1 << 40),
        _ => (text, 1u64),
    };
    let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    is_number
        .then(|| digits.parse::<u64>().ok()?.checked_mul(unit))
        .flatten()
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let io = cause.downcast_ref::<io::Error>();
        let json = cause.downcast_ref::<serde_json::Error>();
        io.map(io::Error::kind)
            .or(json.and_then(serde_json::Error::io_error_kind))
            == Some(io::ErrorKind::BrokenPipe)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_decimal_hexadecimal_or_with_a_unit() {
        let check =
            |text: &str, expect: Option<u64>| assert_eq!(parse_offset(text), expect, "{text}");
        check("0", Some(0));
        check("4096", Some(4096));
        check("0x1F", Some(31));
        check("4K", Some(4096));
        check("3m", Some(3 << 20));
        check("12G", Some(12 << 30));
        check("", None);
        check("K", None);
        check("0x", None);
        check("0x+1", None);
        check("+1", None);
        check("-1", None);
        check("1.5G", None);
        check("99999999999G", None);
    }

    #[test]
    fn a_place_may_name_a_file() {
        let place = parse_place("4K@dir/a@b.gguf").unwrap();
        assert_eq!(
            (place.offset, place.file.as_deref()),
            (4096, Some("dir/a@b.gguf"))
        );
    }
}
