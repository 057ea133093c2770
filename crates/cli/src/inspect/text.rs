//! `inspect` for people: the summary first, then tables from coarse to fine.

use std::io::{self, Write};

use comfy_table::{CellAlignment, Table, presets};
use gguf::structure::shape_text;
use gguf::summary::LayerSum;
use gguf::{HeadRows, Model, Owner, Summary};

pub fn write_summary(model: &Model, summary: &Summary, out: &mut impl Write) -> io::Result<()> {
    write_facts(model, summary, out)?;
    if !summary.misfits.is_empty() {
        writeln!(out, "\ndimensions that do not match block sizes")?;
        for misfit in &summary.misfits {
            writeln!(out, "  {misfit}")?;
        }
    }
    write_components(summary, out)?;
    write_types(summary, out)?;
    write_layers(&summary.layers, out)
}

/// One line for each tensor or expert slice and, on request, each head.
pub fn write_tensors(model: &Model, heads: HeadRows, out: &mut impl Write) -> io::Result<()> {
    // Written row by row: a table that measures its columns would have to hold
    // them all, and there may be hundreds of thousands.
    let width = model.tensors().iter().map(|t| t.name.len()).max();
    let width = width.unwrap_or(0).clamp(12, 48);
    writeln!(
        out,
        "\n{:width$}  {:>4}  {:>14}  {:>14}  {:8}  {:20}  {:>5}  {:13}  {:10}  {:>6}  heads",
        "tensor",
        "file",
        "offset",
        "bytes",
        "type",
        "shape",
        "layer",
        "component",
        "role",
        "expert"
    )?;
    for row in model.rows(heads) {
        let tensor = row.tensor;
        let meaning = &tensor.meaning;
        let head = row.head.map_or(String::new(), |h| {
            let runs = if h.run_count > 1 {
                format!(
                    " {} runs of {}, every {}",
                    h.run_count, h.run_bytes, h.stride_bytes
                )
            } else {
                String::new()
            };
            let note = match h.boundary {
                gguf::heads::Boundary::Exact => "",
                gguf::heads::Boundary::SharesBlocks => " (shares blocks with neighbours)",
            };
            format!("{} {}{runs}{note}", h.of, h.head)
        });
        let line = format!(
            "{:width$}  {:>4}  {:>14}  {:>14}  {:8}  {:20}  {:>5}  {:13}  {:10}  {:>6}  {head}",
            printable(&tensor.name),
            tensor.file,
            row.file_offset,
            row.size_bytes,
            tensor.ty.name(),
            shape_text(tensor.shape()),
            optional(meaning.layer.map(u64::from)),
            meaning.component.name(),
            printable(&meaning.role),
            optional(row.expert),
        );
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

pub fn write_owner(
    model: &Model,
    file: usize,
    offset: u64,
    owner: &Owner<'_>,
    out: &mut impl Write,
) -> io::Result<()> {
    let path = model.files()[file].path.display();
    write!(out, "{path}: byte {offset}: ")?;
    match owner {
        Owner::Preamble => writeln!(out, "header (magic number, version, counts)"),
        Owner::Metadata { key } => writeln!(out, "header, metadata key {}", printable(key)),
        Owner::TensorInfo { tensor } => {
            writeln!(
                out,
                "header, description of tensor {}",
                printable(&tensor.name)
            )
        }
        Owner::Padding { after, before } => {
            let name = |t: &Option<&gguf::Tensor>, end: &str| {
                t.map_or(end.to_owned(), |t| printable(&t.name))
            };
            writeln!(
                out,
                "padding between {} and {}",
                name(after, "the header"),
                name(before, "the end of the file")
            )
        }
        Owner::Tensor(byte) => {
            let tensor = byte.tensor;
            let meaning = &tensor.meaning;
            writeln!(out, "tensor {}", printable(&tensor.name))?;
            let mut fact = |label: &str, text: String| writeln!(out, "  {label:10} {text}");
            fact(
                "what",
                format!(
                    "{} {} {}",
                    meaning.component.name(),
                    printable(&meaning.role),
                    meaning.kind.name()
                ),
            )?;
            if let Some(layer) = meaning.layer {
                fact("layer", layer.to_string())?;
            }
            if let Some(expert) = byte.expert {
                fact("expert", expert.to_string())?;
            }
            if let Some(heads) = byte.heads {
                fact(
                    "head",
                    match heads.last - heads.first {
                        0 => format!("{} {}", heads.of, heads.first),
                        _ => format!(
                            "{} {} to {} (one {} block of {} elements spans them)",
                            heads.of, heads.first, heads.last, tensor.ty, byte.block_elements
                        ),
                    },
                )?;
            }
            fact(
                "type",
                format!("{} {}", tensor.ty, shape_text(tensor.shape())),
            )?;
            let elements = match byte.block_elements {
                1 => format!("element {}", byte.element),
                n => format!("elements {} to {}", byte.element, byte.element + n - 1),
            };
            fact(
                "place",
                format!(
                    "byte {} of {}, row {}, {elements}",
                    byte.offset_in_tensor, tensor.size_bytes, byte.row
                ),
            )
        }
    }
}

fn write_facts(model: &Model, s: &Summary, out: &mut impl Write) -> io::Result<()> {
    let mut fact = |label: &str, text: String| writeln!(out, "{label:12} {text}");
    let files = model.files();
    let name = s
        .name
        .as_deref()
        .map_or(String::new(), |n| format!("{}, ", printable(n)));
    fact(
        "model",
        format!("{name}architecture {}", printable(&s.architecture)),
    )?;
    fact(
        "file",
        format!(
            "{}, GGUF v{}, {} tensors in {}",
            bytes(s.file_bytes),
            files[0].version,
            s.tensor_count,
            if files.len() == 1 {
                "1 file".to_owned()
            } else {
                format!("{} files", files.len())
            }
        ),
    )?;
    let active = if s.expert_count > 0 {
        format!(", {} active a token", count(s.active_parameters))
    } else {
        String::new()
    };
    fact(
        "parameters",
        format!(
            "{}{active}, {:.2} bits each",
            count(s.parameters),
            s.bits_per_parameter
        ),
    )?;
    let limit = s
        .context_length
        .map_or("unknown".to_owned(), |n| n.to_string());
    fact(
        "shape",
        format!(
            "{} layers, embedding {}, vocabulary {}, context up to {limit}",
            s.layer_count,
            s.embedding_length,
            optional(s.vocabulary)
        ),
    )?;
    let window = s.sliding_window.filter(|_| s.kv_cache.window_layers > 0);
    let window = window.map_or(String::new(), |w| {
        format!(
            ", window of {w} in {} of {} layers",
            s.kv_cache.window_layers, s.kv_cache.layers
        )
    });
    fact(
        "attention",
        format!(
            "{} heads on {} key-value heads, key {} value {}{window}",
            s.head_count, s.head_count_kv, s.key_length, s.value_length
        ),
    )?;
    if s.expert_count > 0 {
        fact(
            "experts",
            format!("{} of {} a token", s.expert_used_count, s.expert_count),
        )?;
    }
    fact(
        "embeddings",
        if s.tied_embeddings {
            "tied: the token matrix is also the output".to_owned()
        } else {
            "not tied".to_owned()
        },
    )?;
    let share = s.bytes_read_per_token as f64 * 100.0 / (s.tensor_bytes as f64).max(1.0);
    fact(
        "a token",
        format!(
            "reads {} of weights ({share:.1} %)",
            bytes(s.bytes_read_per_token)
        ),
    )?;
    let kv = &s.kv_cache;
    fact(
        "kv cache",
        format!(
            "{} a token ({}), {} at {} tokens; llama.cpp allocates {}",
            bytes(kv.bytes_per_token),
            kv.ty,
            bytes(kv.bytes_at_context),
            kv.context_tokens,
            bytes(kv.llama_cpp_bytes_at_context)
        ),
    )?;
    for decode in &s.decode {
        fact(
            "decode",
            format!(
                "batch {}: {:.2} FLOP/byte ({:.2} GFLOP, {} of weights, {} of KV)",
                decode.batch,
                decode.flop_per_byte,
                decode.flops / 1e9,
                bytes(decode.weight_bytes as u64),
                bytes(decode.kv_bytes as u64)
            ),
        )?;
    }
    Ok(())
}

fn write_components(s: &Summary, out: &mut impl Write) -> io::Result<()> {
    let mut table = table(&[
        "component",
        "tensors",
        "parameters",
        "bytes",
        "share",
        "read a token",
    ]);
    for sum in &s.components {
        let share = sum.size_bytes as f64 * 100.0 / (s.tensor_bytes as f64).max(1.0);
        table.add_row([
            sum.component.to_owned(),
            sum.tensors.to_string(),
            count(sum.parameters),
            bytes(sum.size_bytes),
            format!("{share:.1} %"),
            bytes(sum.bytes_read_per_token),
        ]);
    }
    print(table, out)
}

fn write_types(s: &Summary, out: &mut impl Write) -> io::Result<()> {
    let mut table = table(&["type", "tensors", "parameters", "bytes"]);
    for sum in &s.types {
        table.add_row([
            sum.ty.to_owned(),
            sum.tensors.to_string(),
            count(sum.parameters),
            bytes(sum.size_bytes),
        ]);
    }
    print(table, out)
}

/// Neighbouring layers that are the same in every column share a line.
fn write_layers(layers: &[LayerSum], out: &mut impl Write) -> io::Result<()> {
    if layers.is_empty() {
        return Ok(());
    }
    let mut table = table(&[
        "layers",
        "tensors",
        "bytes",
        "attention",
        "ffn",
        "experts",
        "other",
        "read a token",
        "kv a token",
        "window",
    ]);
    let same = |a: &LayerSum, b: &LayerSum| {
        let columns = |l: &LayerSum| {
            (
                [
                    l.tensors,
                    l.size_bytes,
                    l.attention_bytes,
                    l.ffn_bytes,
                    l.expert_bytes,
                ],
                [l.other_bytes, l.bytes_read_per_token, l.kv_bytes_per_token],
                l.window_tokens,
            )
        };
        columns(a) == columns(b) && b.layer == a.layer + 1
    };
    for group in layers.chunk_by(same) {
        let (first, last) = (&group[0], &group[group.len() - 1]);
        let each = |number: u64| {
            if number == 0 {
                "-".to_owned()
            } else {
                bytes(number)
            }
        };
        table.add_row([
            if group.len() == 1 {
                first.layer.to_string()
            } else {
                format!("{}-{}", first.layer, last.layer)
            },
            first.tensors.to_string(),
            each(first.size_bytes),
            each(first.attention_bytes),
            each(first.ffn_bytes),
            each(first.expert_bytes),
            each(first.other_bytes),
            each(first.bytes_read_per_token),
            each(first.kv_bytes_per_token),
            optional(first.window_tokens),
        ]);
    }
    print(table, out)
}

/// A table without borders: first column left, numbers right.
fn table(columns: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(columns);
    for (index, column) in table.column_iter_mut().enumerate() {
        if index == 0 {
            column.set_padding((0, 1));
        } else {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn print(table: Table, out: &mut impl Write) -> io::Result<()> {
    writeln!(out)?;
    for line in table.lines() {
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

fn bytes(number: u64) -> String {
    support::text::bytes(number, 2)
}

/// Parameters: `7.24 B`, `361.82 M`, `512`.
fn count(number: u64) -> String {
    match number {
        0..1_000 => number.to_string(),
        1_000..1_000_000 => format!("{:.2} K", number as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} M", number as f64 / 1e6),
        _ => format!("{:.2} B", number as f64 / 1e9),
    }
}

fn optional(number: Option<u64>) -> String {
    number.map_or("-".to_owned(), |n| n.to_string())
}

/// A name from the file, without what would disturb a terminal.
fn printable(name: &str) -> String {
    if name.chars().any(char::is_control) {
        name.escape_debug().to_string()
    } else {
        name.to_owned()
    }
}
