//! A file of prompts: one a line, or JSON lines.

use std::path::Path;

use anyhow::bail;
use serde::Deserialize;

use crate::engine_args::read_prompt;

/// A line of a `.jsonl` file.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Text(String),
    Object { prompt: String },
}

/// Reads `path`, or standard input for `-`. Lines of white space are passed over.
pub fn read(path: &Path) -> anyhow::Result<Vec<String>> {
    let text = read_prompt(path)?;
    let is_json = path
        .extension()
        .is_some_and(|extension| extension == "jsonl");
    let mut prompts = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim().is_empty() {
            continue;
        }
        let prompt = match is_json {
            false => line.to_owned(),
            true => match serde_json::from_str(line) {
                Ok(Line::Text(prompt) | Line::Object { prompt }) => prompt,
                Err(_) => bail!(
                    "{}: line {number}: neither a JSON string nor an object with a text `prompt`",
                    path.display()
                ),
            },
        };
        if prompt.is_empty() {
            bail!("{}: line {number}: the prompt is empty", path.display());
        }
        prompts.push(prompt);
    }
    if prompts.is_empty() {
        bail!(
            "{}: there is no prompt in it; one a line is wanted",
            path.display()
        );
    }
    Ok(prompts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, text: &str, expect: Result<&[&str], &str>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        match (read(&path), expect) {
            (Ok(found), Ok(expect)) => assert_eq!(found, expect),
            (Err(error), Err(expect)) => {
                let error = error.to_string();
                assert!(error.contains(expect), "{error}");
            }
            (found, _) => panic!("{text:?}: {found:?}"),
        }
    }

    #[test]
    fn a_prompt_is_a_line() {
        check("p.txt", "one\n\ntwo \n", Ok(&["one", "two "]));
        check("p.txt", " \n", Err("there is no prompt in it"));
    }

    #[test]
    fn or_a_line_of_json() {
        check(
            "p.jsonl",
            "\"a\\nb\"\n{\"prompt\": \"c\", \"id\": 7}\n",
            Ok(&["a\nb", "c"]),
        );
        check("p.jsonl", "\"a\"\n[1]\n", Err("line 2: neither"));
        check(
            "p.jsonl",
            "{\"prompt\": \"\"}",
            Err("line 1: the prompt is empty"),
        );
    }
}
