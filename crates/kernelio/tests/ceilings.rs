//! All measurements together: what the program prints and what others read.

use std::num::NonZeroUsize;
use std::time::Duration;

use kernelio::ceilings::measure_with;
use kernelio::disk::{DiskOptions, Stop};
use kernelio::memory::MemoryOptions;
use kernelio::{Ceilings, Stage};

#[test]
fn ceilings_have_all_figures_and_survive_json() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model");
    std::fs::write(&path, vec![3u8; 2_000_000]).unwrap();
    let disk = DiskOptions {
        stop: Stop::After(Duration::from_millis(150)),
        ..DiskOptions::default()
    };
    let memory = MemoryOptions {
        time: Duration::from_millis(100),
        budget_bytes: 32 << 20,
    };
    let threads = NonZeroUsize::new(3).unwrap();
    let mut told = Vec::new();
    let found = measure_with(&path, threads, disk, memory, &mut |p| told.push(p)).unwrap();

    assert!(found.disk.bytes_per_second > 0);
    assert!(found.memory.bytes_per_second > 100_000_000);
    let between: Vec<usize> = found.memory.between.iter().map(|b| b.threads).collect();
    assert_eq!(between, [2]);
    let compute = found.compute.as_ref().unwrap();
    assert!(compute.flops_with_threads(3).is_some_and(|f| f > 1e7));
    assert!(found.cpu_threads >= 1);
    assert!(found.when.ends_with('Z'));

    assert!(told.is_sorted_by_key(|p| p.done_permille));
    assert!(told.iter().all(|p| p.done_permille < 1000));
    let mut stages: Vec<Stage> = told.iter().map(|p| p.stage).collect();
    stages.dedup();
    let expect = [
        Stage::DiskSweep,
        Stage::Disk,
        Stage::MemoryOneThread,
        Stage::MemoryAllThreads,
        Stage::Compute,
    ];
    assert_eq!(stages, expect);

    let json = serde_json::to_string(&found).unwrap();
    assert_eq!(serde_json::from_str::<Ceilings>(&json).unwrap(), found);
}

#[test]
fn a_missing_model_is_an_error_at_second_0() {
    let threads = NonZeroUsize::MIN;
    let missing = std::path::Path::new("/nowhere/model.gguf");
    let error = kernelio::measure(missing, threads, &mut |_| panic!("nothing to tell"));
    assert!(
        error
            .unwrap_err()
            .to_string()
            .starts_with("/nowhere/model.gguf: ")
    );
}

/// As version 0.2 wrote them: without arithmetic, and memory with one thread and all only.
#[test]
fn files_of_older_versions_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model");
    std::fs::write(&path, vec![3u8; 2_000_000]).unwrap();
    let disk = DiskOptions {
        stop: Stop::After(Duration::from_millis(50)),
        ..DiskOptions::default()
    };
    let memory = MemoryOptions {
        time: Duration::from_millis(50),
        budget_bytes: 32 << 20,
    };
    let threads = NonZeroUsize::new(3).unwrap();
    let found = measure_with(&path, threads, disk, memory, &mut |_| {}).unwrap();
    let mut json = serde_json::to_value(&found).unwrap();
    json.as_object_mut().unwrap().remove("compute");
    json["memory"].as_object_mut().unwrap().remove("between");
    let old: Ceilings = serde_json::from_value(json).unwrap();
    assert_eq!(old.compute, None);
    assert!(old.memory.between.is_empty());
    assert_eq!(
        old.memory.with_threads(1),
        found.memory.one_thread.bytes_per_second as f64
    );
}
