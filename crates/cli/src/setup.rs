//! How a run was made, as far as its metadata and its model say: what advice starts from.

use analysis::actions::{OutputHead, Setup};
use rundir::{Run, limits::Limit};

/// What is not known is absent; a run without metadata has nothing but its log.
pub fn setup_of(
    run: &Run,
    model: Option<&gguf::Model>,
    ceilings: Option<&kernelio::Ceilings>,
) -> Setup {
    let metadata = run.metadata();
    let described = metadata.and_then(|m| m.model.as_ref());
    let path = described.and_then(|m| m.files.first()).map(|f| &*f.path);
    let settings = metadata.and_then(|m| m.settings.as_ref());
    let hyper = described.map(|m| &m.hyperparameters);
    let processors = metadata.and_then(|m| m.machine.cpus_allowed);
    Setup {
        model: path.map_or_else(|| "MODEL".to_owned(), quoted),
        model_bytes: described.map_or(0, |m| m.size_bytes),
        is_program: metadata.is_some() && settings.is_none(),
        threads: settings.map(|s| s.threads),
        processors: processors.and_then(|n| u32::try_from(n).ok()),
        batch_tokens: settings.map(|s| s.batch_tokens.min(s.ubatch_tokens)),
        kv_types: settings.map(|s| [s.kv_type_k.clone(), s.kv_type_v.clone()]),
        head_elements: hyper.map(|h| [h.n_embd_head_k, h.n_embd_head_v]),
        output_head: model.and_then(output_head),
        memory_bytes: memory_bytes(run),
        memory_ceiling: ceilings.map(|c| c.memory.bytes_per_second),
    }
}

fn output_head(model: &gguf::Model) -> Option<OutputHead> {
    let of = |name, is_tied| Some((model.tensor(name)?, is_tied));
    let (tensor, is_tied) = of("output.weight", false).or_else(|| of("token_embd.weight", true))?;
    Some(OutputHead {
        ggml_type: tensor.ty,
        row_elements: tensor.ne[0],
        size_bytes: tensor.size_bytes,
        is_tied,
    })
}

/// The least of the limit that we set, that of its memory cgroup, and what was free.
fn memory_bytes(run: &Run) -> Option<u64> {
    let metadata = run.metadata()?;
    let ours = metadata
        .underneath
        .as_ref()
        .and_then(|u| u.memory_limit_bytes);
    let group = match metadata
        .limits
        .cgroup
        .as_ref()
        .map(|group| group.limit_bytes)
    {
        Some(Limit::Bytes(bytes)) => Some(bytes),
        _ => None,
    };
    let free = metadata.machine.memory_available_bytes;
    [ours, group, free].into_iter().flatten().min()
}

/// For a shell; a name with characters that nobody sees is not one to type.
fn quoted(path: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+=:,@%".contains(c);
    let is_odd = |c: char| c.is_control() || !(c.is_ascii() || c.is_alphanumeric());
    if path.chars().all(is_plain) && !path.is_empty() {
        path.to_owned()
    } else if path.chars().any(is_odd) {
        "MODEL".to_owned()
    } else {
        format!("'{}'", path.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_can_be_pasted_into_a_shell() {
        let check = |path: &str, expect: &str| assert_eq!(quoted(path), expect);
        check("/models/a-1.gguf", "/models/a-1.gguf");
        check("my model.gguf", "'my model.gguf'");
        check("it's; rm -r.gguf", "'it'\\''s; rm -r.gguf'");
        check("a\u{1b}[2Jb", "MODEL");
        check("a\u{202e}b", "MODEL");
        check("", "''");
    }
}
