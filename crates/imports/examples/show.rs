//! What is read of a file: `cargo run --release -p imports --example show FILE…`

use std::path::Path;

fn main() {
    for argument in std::env::args().skip(1) {
        match imports::read(Path::new(&argument), None) {
            Ok(import) => {
                println!(
                    "{argument}: {:?}, {} events, clock {:?}",
                    import.format,
                    import.events.len(),
                    import.clock
                );
                for note in &import.notes {
                    println!("  note: {note}");
                }
                for subject in &import.subjects {
                    println!("  {} {}", subject.kind, subject.name);
                    for (name, metric) in &subject.metrics.0 {
                        let source = metric.source.as_deref().unwrap_or("");
                        println!(
                            "    {name:30} {:?} {:?}  {source}",
                            metric.value, metric.unit
                        );
                    }
                }
            }
            Err(error) => println!("{error}"),
        }
    }
}
