//! `tensorscope run` with guessed tokens, and with several prompts: the texts are those without.

use super::*;

const VERSE: &str = "ROMEO: But soft, what light through yonder window breaks? It is the east, and \
                     Juliet is the sun. ROMEO: But soft, what light";

fn generate(model: &str, more: &[&str]) -> Value {
    let mut args = vec!["run", "-m", model, "-n", "48", "-t", "2", "--json", "-q"];
    args.extend(["--ignore-eos", "--strategy", "none"]);
    args.extend(more);
    let output = tensorscope(&args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{more:?}: {stderr}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn refused(args: &[&str]) -> String {
    let output = tensorscope(args);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn guesses_change_no_bit() {
    let (large, small) = (
        shipped("shakespeare-moe.gguf"),
        shipped("shakespeare-dense.gguf"),
    );
    let expected = generate(&large, &["-p", VERSE, "--draft", "off"]);
    assert_eq!(expected["drafted"], Value::Null);
    for guesser in [["--draft", "ngram"], ["--draft-model", &small]] {
        let got = generate(&large, &[&["-p", VERSE][..], &guesser].concat());
        assert_eq!(got["tokens"], expected["tokens"], "{guesser:?}");
        assert_eq!(got["logits_hash"], expected["logits_hash"], "{guesser:?}");
        // The first token comes of the prompt; each other one of a pass, or of a right guess.
        let count = |name: &str| number(&got, &format!("/drafted/{name}"));
        assert_eq!(count("passes") + count("accepted_tokens"), 47, "{got}");
    }
}

#[test]
fn prompts_of_a_file_take_turns() {
    let model = shipped("shakespeare-dense.gguf");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompts.txt");
    // As editors of Windows write it.
    std::fs::write(&file, "\u{feff}ROMEO:\r\n\r\nJULIET:\r\nTo be, or\r\n").unwrap();
    let path = file.display().to_string();
    let got = generate(&model, &["--prompts", &path, "--parallel", "1"]);
    let alone = ["ROMEO:", "JULIET:", "To be, or"].map(|prompt| {
        let said = generate(&model, &["-p", prompt]);
        said["texts"][0].clone()
    });
    assert_eq!(got["texts"].as_array().unwrap(), &alone);
}

#[test]
fn a_small_model_that_does_not_fit_is_refused() {
    let models = Models::new();
    let small = models.path("dense.gguf");
    let large = shipped("shakespeare-dense.gguf");
    let said = refused(&[
        "run",
        "-m",
        &large,
        "-p",
        "Hi",
        "--memory",
        "64M",
        "--draft-model",
        &small,
    ]);
    assert!(said.contains("--draft-model: it takes about"), "{said}");
}

#[test]
fn a_small_model_of_other_words_is_refused() {
    let models = Models::new();
    let small = models.path("dense.gguf");
    let large = shipped("shakespeare-dense.gguf");
    let args = ["run", "-m", &large, "-p", "Hi", "--draft-model", &small];
    let said = refused(&args);
    assert!(said.contains("vocabulary"), "{said}");
}
