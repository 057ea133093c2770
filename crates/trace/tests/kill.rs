//! `kill -9` of a process that records as fast as it can.

use std::{
    fs::OpenOptions,
    os::unix::fs::FileExt,
    path::Path,
    process::{Command, Stdio},
};

use testing::log::{begin, body, define, open, read, small_evaluation, small_graph};
use trace::{
    format::RecordKind,
    read::{ReadError, StreamEnd},
    status::read_status,
};

const KILLS: u64 = 30;
/// Set in the process that is to be killed: the folder it writes to.
const CHILD: &str = "TENSORSCOPE_TEST_KILLED_LOG";

#[test]
fn killed_writer_loses_no_committed_evaluation() {
    if let Some(directory) = std::env::var_os(CHILD) {
        record_until_killed(Path::new(&directory));
    }
    let mut partials = 0;
    let mut total = 0;
    for round in 0..KILLS {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        std::fs::create_dir(&log).unwrap();
        let acknowledged_path = directory.path().join("acknowledged");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&acknowledged_path)
            .unwrap();
        file.write_all_at(&0u64.to_le_bytes(), 0).unwrap();
        let acknowledged = || {
            let mut word = [0; 8];
            file.read_exact_at(&mut word, 0).unwrap();
            u64::from_le_bytes(word)
        };
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "killed_writer_loses_no_committed_evaluation",
                "--nocapture",
            ])
            .env(CHILD, directory.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // From right after its start to a thousand evaluations later; where in
        // a record that hits it is left to the scheduler.
        let target = (round * round * 7919) % 1500;
        while acknowledged() < target {
            assert!(
                child.try_wait().unwrap().is_none(),
                "the writer died by itself"
            );
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();

        let acknowledged = acknowledged();
        let contents = match read(&log) {
            Ok(contents) => contents,
            // Killed before it made the first segment.
            Err(ReadError::NoSegments { .. }) if acknowledged == 0 => continue,
            Err(error) => panic!("round {round}: {error}"),
        };
        let found = contents.evaluations.len() as u64;
        assert!(
            found >= acknowledged,
            "round {round}: {found} of {acknowledged} evaluations"
        );
        assert!(
            found <= acknowledged + 1,
            "round {round}: {found} of {acknowledged} evaluations"
        );
        assert!(
            contents
                .evaluations
                .iter()
                .zip(0..)
                .all(|(evaluation, n)| *evaluation == small_evaluation(n))
        );
        assert_eq!(contents.corrupt, Vec::<String>::new(), "round {round}");
        assert_eq!(contents.end, StreamEnd::Open);
        if let Some(partial) = contents.partial {
            assert_eq!(partial.number, found);
            partials += 1;
        }
        let status = read_status(&log.join("status")).unwrap().unwrap();
        assert!(
            (found.saturating_sub(1)..=found).contains(&status.evals_committed),
            "round {round}"
        );
        total += found;
    }
    println!("{KILLS} kills, {total} evaluations read back, {partials} kills in the middle of one");
}

fn record_until_killed(directory: &Path) -> ! {
    let acknowledged = OpenOptions::new()
        .write(true)
        .open(directory.join("acknowledged"))
        .unwrap();
    let (status, _log, mut appender) = open(&directory.join("log"), 64 << 10);
    let (definitions, template) = small_graph();
    assert!(define(&mut appender, &definitions));
    for number in 0.. {
        let body = body(&template, &small_evaluation(number));
        assert!(begin(&mut appender, RecordKind::Evaluation, body.len()));
        for word in body {
            appender.put(word);
            // A model computes between two ticks: that is when it gets killed.
            (0..200).for_each(|_| std::hint::spin_loop());
        }
        appender.commit();
        status.count_committed();
        acknowledged
            .write_all_at(&(number + 1).to_le_bytes(), 0)
            .unwrap();
    }
    unreachable!("numbers do not end");
}
