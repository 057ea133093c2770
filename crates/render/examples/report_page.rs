//! The HTML report of a run, for looking at it while working on it:
//! `cargo run --release -p render --example report_page -- RUN OUT.html [DISK,MEMORY [CEILINGS]]`
//! writes OUT.html, OUT.md, OUT.gif, every plot as SVG and PNG into the folder OUT.plots, and
//! into OUT.json the diagnosis, as the server's example takes it. DISK and MEMORY are speeds in
//! bytes per second, for predictions; CEILINGS is what `bench ceilings -o` wrote, for the
//! roofline.

use std::{error::Error, fs, num::NonZeroUsize, path::Path, time::Instant};

use analysis::{
    actions::Setup,
    caches::{CacheQuestion, Caches},
    facts::{self, Facts, Options},
    findings::findings,
    opportunities::Machine,
    reading::Reading,
    roofline::Roofline,
    sequence::Sequence,
    time_stack::{self, Bytes},
    weights::weights_of,
};
use diagnose::Diagnosis;
use index::RunIndex;
use reader::kernel::Timeline;
use render::{
    animation, page,
    plot::png,
    plots::{self, ReportInput},
};
use rules::RuleSet;
use rundir::Run;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (run, out) = match args.as_slice() {
        [run, out, ..] => (Path::new(run), Path::new(out)),
        _ => return Err("usage: report_page RUN OUT.html [DISK,MEMORY]".into()),
    };
    let run = Run::open(run)?;
    let (facts, sequence) = read(&run)?;
    let question = CacheQuestion {
        budgets_bytes: Vec::new(),
        given_bytes: Vec::new(),
        beside_weights_bytes: None,
        weights: weights_of(&sequence, None),
        machine: match args.get(2) {
            Some(speeds) => machine(speeds)?,
            None => Machine::new(0.0),
        },
        threads: NonZeroUsize::MIN,
    };
    let caches = match sequence.touched_bytes() {
        0 => None,
        _ => Some(Caches::of(&sequence, &question)?),
    };
    let opportunities = caches
        .as_ref()
        .and_then(|caches| caches.opportunities.as_ref());
    let mut findings = findings(&facts, opportunities);
    let roofline = match args.get(3) {
        Some(path) => {
            let ceilings: kernelio::Ceilings = serde_json::from_slice(&fs::read(path)?)?;
            let compute = ceilings.compute.as_ref();
            Some(Roofline::of(&facts.classes, &ceilings.memory, compute))
        }
        None => None,
    };
    findings.extend(roofline.iter().flat_map(analysis::findings::roofline));
    let begin = Instant::now();
    let index = RunIndex::open(&run, &mut |_| {})?;
    let info = index.info();
    eprintln!(
        "index of {} accesses: {:?}",
        info.totals.accesses,
        begin.elapsed()
    );
    let diagnosis = diagnosis_of(&run, &facts)?;
    let about = [("run".to_owned(), run.path().display().to_string())];
    let input = ReportInput {
        title: info.model.name.as_deref().unwrap_or(&info.name),
        about: &about,
        index: &index,
        actions: &[],
        findings: &findings,
        facts: &facts,
        caches: caches.as_ref(),
        underneath: None,
        roofline: roofline.as_ref(),
        cards: &[],
        diagnosis: Some(&diagnosis),
    };
    let begin = Instant::now();
    let plots = plots::all(&input);
    let html = page::html(&input, &plots);
    fs::write(out, &html)?;
    eprintln!(
        "{}: {} bytes, {} plots, {:?}",
        out.display(),
        html.len(),
        plots.len(),
        begin.elapsed()
    );
    let folder = out.with_extension("plots");
    fs::create_dir_all(&folder)?;
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let markdown = page::markdown(&input, &plots, &|plot| format!("{name}/{}.png", plot.id));
    fs::write(out.with_extension("md"), markdown)?;
    let json = serde_json::json!({ "diagnosis": diagnosis });
    fs::write(out.with_extension("json"), json.to_string())?;
    let begin = Instant::now();
    for plot in &plots {
        let svg = plot.svg.standalone();
        fs::write(folder.join(format!("{}.svg", plot.id)), &svg)?;
        fs::write(folder.join(format!("{}.png", plot.id)), png(&svg, 2.0)?)?;
    }
    eprintln!("pictures: {:?}", begin.elapsed());
    let begin = Instant::now();
    let mut bytes = Vec::new();
    let frames = animation::write(&index, &animation::Options::default(), &mut bytes)?;
    fs::write(out.with_extension("gif"), &bytes)?;
    eprintln!(
        "gif: {frames} frames, {} bytes, {:?}",
        bytes.len(),
        begin.elapsed()
    );
    Ok(())
}

/// Without what the kernel did and what memory gives.
fn diagnosis_of(run: &Run, facts: &Facts) -> Result<Diagnosis, Box<dyn Error>> {
    let mut bytes = Bytes::default();
    reader::Log::new(&run.log_directory()).walk(&mut bytes)?;
    let timeline = Timeline::read(&run.log_directory())?;
    let times = time_stack::stacks(&time_stack::Inputs {
        timeline: &timeline,
        bytes: &bytes,
        disk: None,
        reads: None,
        cpu: None,
        memory_ceiling: None,
    });
    let inputs = diagnose::Inputs {
        facts,
        underneath: None,
        times: &times,
        metadata: run.metadata(),
        setup: &Setup::default(),
        ceilings: diagnose::Ceilings::default(),
        threads: &bytes.threads(),
        better_kernels: None,
        fed_nanos_per_token: None,
        more: &[],
    };
    Ok(diagnose::diagnose(&inputs, RuleSet::shipped(), &[]))
}

fn machine(speeds: &str) -> Result<Machine, Box<dyn Error>> {
    let (disk, memory) = speeds
        .split_once(',')
        .ok_or("DISK,MEMORY in bytes per second")?;
    Ok(Machine {
        memory_bytes_per_second: Some(memory.parse()?),
        compute_seconds_per_token: Some(1e-3),
        ..Machine::new(disk.parse()?)
    })
}

fn read(run: &Run) -> Result<(Facts, Sequence), Box<dyn Error>> {
    let mut reading = Reading::new(Options::default());
    let walked = reader::Log::new(&run.log_directory()).walk(&mut reading)?;
    let file = run
        .metadata()
        .and_then(|m| m.model.as_ref())
        .and_then(|m| m.files.first());
    let model = match file.map(|file| gguf::Model::open(Path::new(&file.path))) {
        Some(Ok(model)) => (&model).into(),
        _ => facts::Model::default(),
    };
    Ok(reading.finish(&walked.tensors, &model))
}
