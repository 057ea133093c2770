//! Findings of a run, straight from its log and its model.
//!
//!     cargo run --release -p analysis --example facts_findings RUN/log MODEL.gguf [--sql|--json]

use std::path::Path;

use analysis::{
    facts::{Accumulator, Model, Options},
    findings::findings,
};
use trace::read::{Event, StreamReader, streams};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [log, model, rest @ ..] = arguments.as_slice() else {
        return Err("usage: facts_findings RUN/log MODEL.gguf [--sql|--json]".into());
    };
    let log = Path::new(log);
    let mut accumulator = Accumulator::new(Options::default());
    for stream in streams(log)? {
        let mut reader = StreamReader::open(log, stream)?;
        while let Some(event) = reader.next_event()? {
            if let Event::Evaluation(evaluation) = event {
                accumulator.push(&reader.definitions, &evaluation)?;
            }
        }
        accumulator.end_stream();
    }
    let facts = accumulator.finish(&Model::from(&gguf::Model::open(Path::new(model))?));
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
