//! How long a search over 10^5 layouts takes: `cargo run --release -p estimate --example
//! search_bar`. The bar is 2 seconds.

use std::time::Instant;

use estimate::Machines;
use estimate::search::{Cluster, search};
use estimate::training::{Job, Numbers, Trained};

fn main() -> Result<(), estimate::Error> {
    let machines = Machines::built_in()?;
    let model = Trained::gpt(96, 12288, 96, 51_200, 2048)?;
    let job = Job {
        sequence_tokens: 2048,
        global_batch: 27_720 * 4,
        numbers: Numbers::MIXED_ADAM,
    };
    let cluster = Cluster {
        gpus: (1..=24).map(|n| n * 48).collect(),
        ..Cluster::new(machines.find("A100 SXM 80GB")?, 1024, 25e9)
    };
    let start = Instant::now();
    let found = search(&model, &job, &cluster, 1)?;
    let seconds = start.elapsed().as_secs_f64();
    let per_second = found.examined as f64 / seconds;
    println!(
        "{} layouts in {seconds:.3} s: 10^5 in {:.3} s",
        found.examined,
        1e5 / per_second
    );
    Ok(())
}
