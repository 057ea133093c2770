//! Findings of a run, straight from its log and its model.
//!
//!     cargo run --release -p analysis --example facts_findings RUN/log MODEL.gguf [--sql|--json]

use std::path::Path;

use analysis::{
    facts::{Model, Options},
    findings::findings,
    reading::Reading,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [log, model, rest @ ..] = arguments.as_slice() else {
        return Err("usage: facts_findings RUN/log MODEL.gguf [--sql|--json]".into());
    };
    let mut reading = Reading::new(Options::default());
    let walked = reader::Log::new(Path::new(log)).walk(&mut reading)?;
    let model = Model::from(&gguf::Model::open(Path::new(model))?);
    let (facts, _) = reading.finish(&walked.tensors, &model);
    if rest.iter().any(|argument| argument == "--json") {
        println!("{}", serde_json::to_string_pretty(&facts)?);
        return Ok(());
    }
    for finding in findings(&facts, None) {
        println!("- {}", finding.text);
        if rest.iter().any(|argument| argument == "--sql") {
            println!(
                "  {:?} {}",
                finding.sql_answer,
                finding.sql.unwrap_or_default()
            );
        }
    }
    Ok(())
}
