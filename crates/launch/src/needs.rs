//! What a program's model needs besides its weights, by the program's own arguments.

use std::{cmp::Reverse, ffi::OsString, os::unix::ffi::OsStrExt, path::PathBuf};

use gguf::{GgmlType, Model};
use indicatif::HumanBytes;
use kernelio::pressure::Usage;
use plan::Strategies;

use crate::planning::{self, Other};

/// Tokens of context, and of a batch, where the program does not say.
pub const CONTEXT_TOKENS: u64 = 4096;
pub const BATCH_TOKENS: u64 = 512;
/// Short, but enough for a question and its answer.
const SHORT_CONTEXT: u64 = 512;

/// The model files among the arguments, also as `--model=FILE`, the largest first: that one is fed, the
/// others draft for it.
pub fn models_of(program: &[OsString]) -> anyhow::Result<Vec<Model>> {
    let path_of = |word: &OsString| {
        let bytes = word.as_bytes();
        let value = bytes.iter().position(|&b| b == b'=').map_or(0, |at| at + 1);
        let is_model = |path: &PathBuf| {
            path.extension()
                .is_some_and(|extension| extension == "gguf")
                && path.is_file()
        };
        let of = |bytes: &[u8]| PathBuf::from(std::ffi::OsStr::from_bytes(bytes));
        [of(bytes), of(&bytes[value..])].into_iter().find(is_model)
    };
    let mut paths: Vec<PathBuf> = program[1..].iter().filter_map(path_of).collect();
    paths.sort();
    paths.dedup();
    let models = paths.iter().map(|path| Model::open(path));
    let mut models = models.collect::<Result<Vec<Model>, _>>()?;
    models.sort_by_key(|model| Reverse(model.len_bytes()));
    Ok(models)
}

/// Tokens of context and of a batch that a program asks llama.cpp for.
fn asked(program: &[OsString]) -> (u64, u64) {
    let context = number_after(program, &["-c", "--ctx-size"], CONTEXT_TOKENS);
    let batch = number_after(program, &["-ub", "--ubatch-size"], BATCH_TOKENS);
    (context, batch.min(context))
}

/// What would leave more memory for weights, by the program's own flags where it has them.
pub fn advice(
    program: &[OsString],
    model: Option<&Model>,
    strategies: Strategies,
    budget_bytes: u64,
) -> String {
    let (context, batch) = asked(program);
    match model {
        Some(model) => {
            let other = Other::new(model, GgmlType::F16, context, batch).bytes();
            let least = planning::least_budget(&plan::weights_of(model), strategies, other);
            let savings = planning::savings(model, (context, SHORT_CONTEXT), batch);
            planning::advice(&savings, least, budget_bytes)
        }
        None => "a smaller context and batch (llama.cpp: --ctx-size, --ubatch-size), or more \
                 --memory"
            .to_owned(),
    }
}

/// Of a program that the kernel killed for lack of memory: the limit, what it had taken, and
/// what to give it. `None` when it was not.
pub fn lack_of_memory(program: &[OsString], usage: Option<&Usage>) -> Option<String> {
    let usage = usage.filter(|usage| usage.oom_kills > 0)?;
    let limit = HumanBytes(usage.limit_bytes);
    let peak = usage.peak_bytes.unwrap_or(usage.limit_bytes);
    let mut text = format!(
        "the kernel killed it for lack of memory: it had taken {} of the {limit} allowed",
        HumanBytes(peak)
    );
    let (context, batch) = asked(program);
    match models_of(program).unwrap_or_default().first() {
        Some(model) => {
            let other = Other::new(model, GgmlType::F16, context, batch);
            // What was taken when it was killed was too little.
            let needed = planning::beside_weights_bytes(other.bytes());
            let needed = needed.max(usage.limit_bytes / 2 * 3);
            text.push_str(&format!(
                ". Besides weights its model needs about {} (a KV cache of {context} tokens {}, \
                 buffers for {batch} tokens {}, the program {}): give it {}",
                HumanBytes(other.bytes()),
                HumanBytes(other.cache_bytes),
                HumanBytes(other.buffer_bytes),
                HumanBytes(planning::PROGRAM_BYTES),
                planning::advice(&[], Some(needed), usage.limit_bytes)
            ));
            let savings = planning::savings(model, (context, SHORT_CONTEXT), batch);
            if !savings.is_empty() {
                text.push_str(&format!("; or take less: {}", savings.join(", ")));
            }
        }
        None => text.push_str("; give it more --memory, or a smaller --ctx-size and --ubatch-size"),
    }
    Some(text)
}

/// The number behind the last of an option's names, also as `NAME=NUMBER`.
fn number_after(program: &[OsString], names: &[&str], otherwise: u64) -> u64 {
    let words: Vec<&str> = program.iter().filter_map(|word| word.to_str()).collect();
    let value = |at: usize| {
        let (name, value) = words[at].split_once('=').unwrap_or((words[at], ""));
        let value = match value {
            "" => words.get(at + 1).copied()?,
            value => value,
        };
        names.contains(&name).then(|| value.parse().ok())?
    };
    let found = (1..words.len()).rev().find_map(value);
    found.filter(|&number| number > 0).unwrap_or(otherwise)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn words(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn a_programs_own_numbers_are_found() {
        let of = |line: &str| {
            let line: Vec<&str> = line.split(' ').collect();
            number_after(&words(&line), &["-c", "--ctx-size"], 7)
        };
        assert_eq!(of("server -c 256 -m x"), 256);
        assert_eq!(of("server --ctx-size=1024"), 1024);
        assert_eq!(of("server -c 256 -c 512"), 512);
        // Left to llama.cpp, or no number.
        assert_eq!(of("server -c 0"), 7);
        assert_eq!(of("server -c"), 7);
        assert_eq!(of("server -m -c.gguf"), 7);
        assert_eq!(of("-c 3"), 7);
    }

    #[test]
    fn the_largest_model_among_the_arguments_is_the_first() {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
        let dense = models.join("shakespeare-dense.gguf").display().to_string();
        let moe = models.join("shakespeare-moe.gguf").display().to_string();
        let found = |list: &[&str]| {
            let models = models_of(&words(list)).unwrap();
            let first = models.first();
            first.map(|model| model.files()[0].path.display().to_string())
        };
        assert_eq!(
            found(&["llama-cli", "-m", &dense, "-n", "4"]),
            Some(dense.clone())
        );
        let joined = format!("--model={moe}");
        assert_eq!(found(&["llama-cli", &joined]), Some(moe.clone()));
        let size = |path: &str| std::fs::metadata(path).unwrap().len();
        let (small, large) = match size(&dense) < size(&moe) {
            true => (dense.as_str(), moe.as_str()),
            false => (moe.as_str(), dense.as_str()),
        };
        for line in [["-m", large, "-md", small], ["-md", small, "-m", large]] {
            let program = [&["llama-server"][..], &line].concat();
            assert_eq!(found(&program).as_deref(), Some(large));
            assert_eq!(models_of(&words(&program)).unwrap().len(), 2);
        }
        assert_eq!(found(&["python3", "chat.py"]), None);
        assert_eq!(found(&["llama-cli", "-m", "/nowhere/x.gguf"]), None);
    }

    #[test]
    fn who_was_killed_for_memory_hears_what_to_give() {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
        let dense = models.join("shakespeare-dense.gguf").display().to_string();
        let usage = |oom_kills| Usage {
            limit_bytes: 200 << 20,
            now_bytes: 0,
            peak_bytes: Some(199 << 20),
            times_at_limit: 9,
            oom_kills,
        };
        let program = words(&["llama-server", "-m", &dense, "-c", "1024"]);
        assert_eq!(lack_of_memory(&program, Some(&usage(0))), None);
        assert_eq!(lack_of_memory(&program, None), None);
        let text = lack_of_memory(&program, Some(&usage(1))).unwrap();
        for part in [
            "it had taken 199.00 MiB of the 200.00 MiB allowed",
            "a KV cache of 1024 tokens",
            "give it --memory 300M",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let text = lack_of_memory(&words(&["server"]), Some(&usage(1))).unwrap();
        assert!(
            text.ends_with("or a smaller --ctx-size and --ubatch-size"),
            "{text}"
        );
    }
}
