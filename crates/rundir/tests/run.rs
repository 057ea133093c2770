//! A run directory from its creation to its reading, whole and damaged.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use gguf::Model;
use rundir::metadata::{ModelMetadata, RunStatus, Sampling, Settings, Statistics};
use rundir::{Condition, Ending, Metadata, Run, RunDirectory, RunError};
use tempfile::TempDir;
use trace::status::{State, StatusPage};

const MODEL: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../models/shakespeare-moe.gguf"
);

fn model() -> Model {
    Model::open(Path::new(MODEL)).unwrap()
}

fn metadata() -> Metadata {
    Metadata {
        prompts: vec!["To be,\n\"or\" not \u{0}".to_owned()],
        settings: Some(Settings {
            threads: 2,
            kv_type_k: "f16".to_owned(),
            ..Settings::default()
        }),
        sampling: Sampling::Greedy,
        ..Metadata::start(
            vec!["tensorscope".to_owned(), "record".to_owned()],
            Some(&model()),
        )
    }
}

/// A folder with room for a run that does not exist yet.
fn place() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run");
    (folder, path)
}

fn create(path: &Path) -> RunDirectory {
    RunDirectory::create(path, &metadata(), Some(&model())).unwrap()
}

/// A run that ended well.
fn create_complete(path: &Path) {
    let run = create(path);
    status_page(&run).set_state(State::Complete);
    run.finish(Ending::Complete, Statistics::default()).unwrap();
}

fn status_page(run: &RunDirectory) -> StatusPage {
    StatusPage::create(&run.log_directory().join("status")).unwrap()
}

fn message<T: std::fmt::Debug>(result: Result<T, RunError>) -> String {
    let text = result.unwrap_err().to_string();
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

fn names_in(path: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(path)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn what_was_written_is_read_back() {
    let (_folder, path) = place();
    let run = create(&path);
    let page = status_page(&run);
    page.count_committed();
    page.set_state(State::Complete);
    fs::write(run.log_directory().join("0000-000000.tslog"), [0; 100]).unwrap();
    let statistics = Statistics {
        accesses: u64::MAX,
        unknown_ops: [("WIN_PART".to_owned(), 3)].into(),
        tokens_per_second_generate: Some(12.5),
        ..Statistics::default()
    };
    run.finish(Ending::Complete, statistics).unwrap();

    assert_eq!(
        names_in(&path),
        ["log", "metadata.json", "structure.csv", "tensor_names.txt"]
    );
    let run = Run::open(&path).unwrap();
    assert_eq!(run.condition(), &Condition::Complete);
    assert_eq!(run.warning(), None);
    let read = run.metadata().unwrap();
    let written = metadata();
    assert_eq!(read.status, RunStatus::Complete);
    assert_eq!(read.prompts, written.prompts);
    assert_eq!(read.settings, written.settings);
    assert_eq!(read.sampling, Sampling::Greedy);
    assert_eq!(read.model, written.model);
    assert_eq!(read.limits, written.limits);
    assert!(read.finished_monotonic_nanos.unwrap() >= read.started_monotonic_nanos);
    let statistics = read.statistics.as_ref().unwrap();
    assert_eq!(statistics.accesses, u64::MAX);
    assert_eq!(statistics.unknown_ops["WIN_PART"], 3);
    assert_eq!(statistics.log_bytes, 4096 + 100);
    assert_eq!(run.log_bytes(), 4096 + 100);
}

#[test]
fn model_is_described_as_its_file_does() {
    let model = model();
    let about = ModelMetadata::of(&model);
    assert!(Path::new(&about.files[0].path).is_absolute());
    assert_eq!(about.size_bytes, fs::metadata(MODEL).unwrap().len());
    assert_eq!(about.tensors, model.tensors().len() as u64);
    let hyper = &about.hyperparameters;
    assert_eq!(hyper.n_layer, model.hyper().layer_count);
    assert!(hyper.n_expert >= 8 && hyper.n_expert_used == 2, "{hyper:?}");
    let parameters: u64 = about.quantisation.iter().map(|sum| sum.parameters).sum();
    assert_eq!(parameters, about.parameters);
}

#[test]
fn names_and_structure_are_those_of_the_model() {
    let (_folder, path) = place();
    create(&path);
    let run = Run::open(&path).unwrap();
    let model = model();
    let expect: Vec<&str> = model.tensors().iter().map(|t| &*t.name).collect();
    assert_eq!(run.tensor_names().unwrap(), expect);
    let mut structure = Vec::new();
    model
        .write_structure_csv(gguf::HeadRows::With, &mut structure)
        .unwrap();
    assert_eq!(fs::read(run.structure_path()).unwrap(), structure);
}

#[test]
fn an_empty_folder_is_used_and_anything_else_is_refused() {
    let (folder, path) = place();
    fs::create_dir(&path).unwrap();
    create_complete(&path);
    let before = fs::read(path.join("metadata.json")).unwrap();
    let refuse = |path: &Path, expect: &str| {
        let text = message(RunDirectory::create(path, &metadata(), None));
        assert!(text.starts_with(path.to_str().unwrap()), "{text}");
        assert!(text.contains(expect) && text.contains("`-o`"), "{text}");
    };
    refuse(&path, "a run, started 2");
    assert_eq!(fs::read(path.join("metadata.json")).unwrap(), before);
    refuse(folder.path(), "a folder that is not empty");
    let file = folder.path().join("file");
    fs::write(&file, "x").unwrap();
    refuse(&file, "a file");
    refuse(Path::new(MODEL), "a model");
    refuse(Path::new("/dev/null"), "a device");
    let link = folder.path().join("link");
    std::os::unix::fs::symlink("nowhere", &link).unwrap();
    refuse(&link, "a symbolic link that leads nowhere");
    refuse(&folder.path().join("missing/run"), "missing does not exist");
    assert_eq!(fs::read(&file).unwrap(), b"x");
}

#[test]
fn a_path_that_cannot_be_made_fails_at_once_with_its_name() {
    let (folder, _) = place();
    let file = folder.path().join("file");
    fs::write(&file, "x").unwrap();
    let below_file = message(RunDirectory::create(&file.join("run"), &metadata(), None));
    assert!(
        below_file.contains("file/run: cannot create the run directory: not a directory"),
        "{below_file}"
    );
    // Not even root can make folders here.
    let in_proc = message(RunDirectory::create(
        Path::new("/proc/run"),
        &metadata(),
        None,
    ));
    assert!(in_proc.starts_with("/proc/run: "), "{in_proc}");
}

#[test]
fn every_wrong_path_says_what_it_is() {
    let (folder, path) = place();
    create_complete(&path);
    let check = |path: &Path, expect: &str| {
        let text = message(Run::open(path));
        assert!(text.starts_with(&path.display().to_string()), "{text}");
        assert!(text.contains(expect), "{text}");
    };
    let at = |name: &str| folder.path().join(name);
    check(&at("nothing"), "no such run directory");
    check(Path::new(MODEL), "it is a model; record one with");
    fs::write(at("file"), "text").unwrap();
    check(&at("file"), "it is a file, and a run is a folder");
    fs::create_dir(at("empty")).unwrap();
    check(&at("empty"), "the folder is empty");
    fs::create_dir_all(at("foreign/log")).unwrap();
    fs::write(at("foreign/metadata.json"), r#"{"name":"npm"}"#).unwrap();
    fs::write(at("foreign/log/access.log"), "GET /").unwrap();
    check(
        &at("foreign"),
        "neither metadata.json of tensorscope nor log/status",
    );
    let whole = format!("give the whole: {}", path.display());
    check(&path.join("metadata.json"), &whole);
    check(&path.join("log"), &whole);
    check(&path.join("log/status"), &whole);
    check(
        folder.path(),
        "neither metadata.json of tensorscope nor log/status",
    );
}

#[test]
fn newer_versions_are_refused_by_number() {
    let (_folder, path) = place();
    create_complete(&path);
    let status = path.join("log/status");
    let mut bytes = fs::read(&status).unwrap();
    bytes[8..12].copy_from_slice(&77u32.to_le_bytes());
    fs::write(&status, bytes).unwrap();
    let text = message(Run::open(&path));
    assert!(
        text.contains("newer tensorscope: version 77 of the log"),
        "{text}"
    );
    fs::write(
        path.join("metadata.json"),
        r#"{"format":"tensorscope-run","version":2}"#,
    )
    .unwrap();
    let text = message(Run::open(&path));
    assert!(
        text.contains("version 2 of metadata.json, this program reads up to 1"),
        "{text}"
    );
}

#[test]
fn a_failed_rewrite_leaves_the_old_metadata() {
    let (_folder, path) = place();
    let run = create(&path);
    let before = fs::read(path.join("metadata.json")).unwrap();
    fs::create_dir_all(path.join(".metadata.json.tmp/in the way")).unwrap();
    let text = message(run.finish(Ending::Complete, Statistics::default()));
    assert!(
        text.contains("run/metadata.json: cannot write: is a directory"),
        "{text}"
    );
    assert_eq!(fs::read(path.join("metadata.json")).unwrap(), before);
    let run = Run::open(&path).unwrap();
    assert_eq!(run.metadata().unwrap().status, RunStatus::Recording);
}

#[test]
fn a_lost_directory_is_an_error_at_the_end() {
    let (_folder, path) = place();
    let run = create(&path);
    fs::remove_dir_all(&path).unwrap();
    let text = message(run.finish(Ending::Complete, Statistics::default()));
    assert!(
        text.contains("metadata.json: cannot write: no such file or directory"),
        "{text}"
    );
}

#[test]
fn a_recording_is_told_from_a_killed_one() {
    let (_folder, path) = place();
    let run = create(&path);
    let pid = std::process::id();
    // Before the log exists, the metadata tells.
    let opened = Run::open(&path).unwrap();
    assert_eq!(opened.condition(), &Condition::Recording { pid });
    assert_eq!(opened.problems(), [""; 0]);
    // While it is mapped, the status page does.
    let page = status_page(&run);
    page.count_committed();
    let opened = Run::open(&path).unwrap();
    assert_eq!(opened.condition(), &Condition::Recording { pid });
    assert_eq!(
        opened.warning().unwrap(),
        format!("process {pid} is still recording (1 evaluation complete)")
    );
    // A killed process leaves the file and loses the mapping. That its number
    // is alive, as ours is, must not deceive.
    drop(page);
    let opened = Run::open(&path).unwrap();
    assert_eq!(opened.condition(), &Condition::Killed { pid: Some(pid) });
    assert_eq!(
        opened.warning().unwrap(),
        format!(
            "the recording process {pid} was killed before it could close the trace \
             (1 evaluation complete)"
        )
    );
}

#[test]
fn a_process_of_another_boot_is_not_the_recorder() {
    let (_folder, path) = place();
    let mut metadata = metadata();
    metadata.machine.boot_id = Some("another".to_owned());
    RunDirectory::create(&path, &metadata, None).unwrap();
    let run = Run::open(&path).unwrap();
    assert_eq!(
        run.condition(),
        &Condition::Killed {
            pid: Some(std::process::id())
        }
    );
}

#[test]
fn a_run_without_readable_metadata_still_opens() {
    let check = |damage: &dyn Fn(&Path), expect: &str| {
        let (_folder, path) = place();
        create_complete(&path);
        damage(&path.join("metadata.json"));
        let run = Run::open(&path).unwrap();
        assert_eq!(run.metadata(), None);
        assert_eq!(run.condition(), &Condition::Complete);
        let warning = run.warning().unwrap();
        assert!(warning.starts_with(expect), "{warning}");
    };
    check(
        &|file| fs::remove_file(file).unwrap(),
        "metadata.json is missing",
    );
    check(
        &|file| fs::write(file, "").unwrap(),
        "metadata.json is garbled: EOF",
    );
    check(
        &|file| fs::write(file, "[]").unwrap(),
        "metadata.json is garbled: its format",
    );
    check(
        &|file| {
            fs::write(
                file,
                r#"{"format":"tensorscope-run","version":1,"process":3}"#,
            )
            .unwrap()
        },
        "metadata.json is garbled: invalid type",
    );
    check(
        &|file| {
            let bytes = fs::read(file).unwrap();
            fs::write(file, &bytes[..bytes.len() / 2]).unwrap();
        },
        "metadata.json is garbled: ",
    );
}

#[test]
fn a_kill_at_any_moment_of_the_creation_leaves_a_run() {
    let (_folder, path) = place();
    fs::create_dir_all(path.join("log")).unwrap();
    let check = |path: &Path| {
        let run = Run::open(path).unwrap();
        assert_eq!(run.condition(), &Condition::Killed { pid: None });
        assert!(
            run.warning().unwrap().contains("was killed"),
            "{:?}",
            run.warning()
        );
    };
    check(&path);
    fs::write(path.join(".metadata.json.tmp"), "{\"format").unwrap();
    check(&path);
    // With the status page and nothing else.
    let (_folder, path) = place();
    fs::create_dir_all(path.join("log")).unwrap();
    drop(StatusPage::create(&path.join("log/status")).unwrap());
    let run = Run::open(&path).unwrap();
    assert_eq!(
        run.condition(),
        &Condition::Killed {
            pid: Some(std::process::id())
        }
    );
}

#[test]
fn a_failed_creation_leaves_nothing_behind() {
    // The longest path that the system takes is 4,095 bytes: `log` still fits
    // below this folder, the metadata does not. Root cannot help it either.
    let (_folder, mut path) = place();
    while path.as_os_str().len() < 4_080 - 201 {
        path.push("x".repeat(100));
    }
    path.push("x".repeat(4_080 - 1 - path.as_os_str().len() - 101));
    path.push("x".repeat(100));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let refuse = |path: &Path| {
        let text = message(RunDirectory::create(path, &metadata(), Some(&model())));
        assert!(
            text.ends_with("/metadata.json: cannot write: file name too long"),
            "{text}"
        );
    };
    refuse(&path);
    assert!(!path.exists());
    // A folder that was there is left there, and empty.
    fs::create_dir(&path).unwrap();
    refuse(&path);
    assert_eq!(names_in(&path), [""; 0]);
}

/// The recorder of the test below, in a process of its own: says when it
/// records, and then waits to be killed.
#[test]
fn recorder_that_waits_to_be_killed() {
    let Some(path) = std::env::var_os("TENSORSCOPE_TEST_RUN") else {
        return;
    };
    let run = create(Path::new(&path));
    let page = status_page(&run);
    page.count_committed();
    println!("recording");
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

#[test]
fn a_killed_process_is_noticed_even_before_it_is_reaped() {
    let (_folder, path) = place();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "recorder_that_waits_to_be_killed", "--nocapture"])
        .env("TENSORSCOPE_TEST_RUN", &path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    let output = BufReader::new(child.stdout.take().unwrap());
    let mut lines = output.lines().map(Result::unwrap);
    assert!(lines.any(|line| line.ends_with("recording")));
    let run = Run::open(&path).unwrap();
    assert_eq!(run.condition(), &Condition::Recording { pid });
    child.kill().unwrap();
    // The pipe ends when the process does; nobody has waited for it yet.
    assert_eq!(lines.next(), None);
    let killed = Condition::Killed { pid: Some(pid) };
    while Run::open(&path).unwrap().condition() != &killed {
        std::thread::yield_now();
    }
    child.wait().unwrap();
    let run = Run::open(&path).unwrap();
    assert_eq!(run.condition(), &killed);
    assert_eq!(run.status().unwrap().evals_committed, 1);
    assert_eq!(run.metadata().unwrap().status, RunStatus::Recording);
}

#[test]
fn every_loss_is_said_in_one_line() {
    let check = |prepare: &dyn Fn(&StatusPage), ending: Ending, expect: Option<&str>| {
        let (_folder, path) = place();
        let run = create(&path);
        prepare(&status_page(&run));
        run.finish(ending, Statistics::default()).unwrap();
        assert_eq!(Run::open(&path).unwrap().warning().as_deref(), expect);
    };
    let lose = |page: &StatusPage| {
        (0..3).for_each(|_| page.count_lost(10, 411));
        page.count_lost(1, 1);
    };
    check(
        &|page| {
            lose(page);
            page.set_state(State::Failed(28));
            page.set_state(State::Complete);
        },
        Ending::Complete,
        Some("the trace lacks 4 evaluations (1,234 accesses): no space left on device"),
    );
    check(
        &|page| {
            page.count_committed();
            page.set_state(State::Failed(2));
        },
        Ending::StoppedEarly("no such file or directory".to_owned()),
        Some("recording ended early: no such file or directory (1 evaluation complete)"),
    );
    // The log could not grow any more, and did not have to.
    check(
        &|page| {
            page.count_committed();
            page.set_state(State::Failed(28));
        },
        Ending::Complete,
        None,
    );
    check(
        &|page| {
            page.count_lost(1, 1);
            page.set_state(State::Complete);
        },
        Ending::Complete,
        Some("the trace lacks 1 evaluation (1 access): the log could not be extended in time"),
    );
    check(
        &|page| {
            page.count_tick_mismatch();
            page.set_state(State::Complete);
        },
        Ending::StoppedEarly("interrupted by Ctrl-C".to_owned()),
        Some(
            "the recording was stopped early: interrupted by Ctrl-C; \
             times of nodes are uncertain in 1 evaluation",
        ),
    );
    check(
        &|page| page.set_state(State::Complete),
        Ending::Complete,
        None,
    );
}

#[test]
fn without_a_status_the_metadata_speaks() {
    let (_folder, path) = place();
    let run = create(&path);
    let statistics = Statistics {
        lost_evaluations: 2,
        lost_accesses: 9,
        ..Statistics::default()
    };
    run.finish(Ending::Complete, statistics).unwrap();
    let run = Run::open(&path).unwrap();
    assert_eq!(run.condition(), &Condition::Complete);
    assert_eq!(run.lost().accesses, 9);
    let warning = run.warning().unwrap();
    assert!(
        warning.starts_with("the trace lacks 2 evaluations (9 accesses)"),
        "{warning}"
    );
    assert!(
        warning.ends_with("log/status is missing, so losses are not known"),
        "{warning}"
    );
}

#[test]
fn metadata_that_was_never_completed_is_said() {
    let (_folder, path) = place();
    let mut metadata = metadata();
    // As if the recorder had been an earlier process with our number.
    metadata.process.started_ticks -= 1;
    let run = RunDirectory::create(&path, &metadata, None).unwrap();
    status_page(&run).set_state(State::Complete);
    assert_eq!(
        Run::open(&path).unwrap().warning().as_deref(),
        Some("metadata.json was not completed and lacks the statistics")
    );
}
