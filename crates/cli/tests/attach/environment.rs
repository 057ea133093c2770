//! What a program inherits, what else may be preloaded, and folders that cannot be
//! written or have odd names.

use std::{
    fs,
    io::Write,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Stdio},
};

use crate::fixture::*;

#[test]
fn another_preloaded_library_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = record_program(folder.path(), &["-o", "RUN"], "sh");
    // Neither the shell nor cat uses the mathematical library by itself.
    command.env("LD_PRELOAD", "libm.so.6");
    let script = r#"cat /proc/self/maps >maps; exec "$0" "$1" To"#;
    command.args(["-c", script]);
    command.arg(generate_program()).arg(dense());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let maps = fs::read_to_string(folder.path().join("maps")).unwrap();
    assert!(maps.contains("/libm.so"), "{maps}");
    assert!(maps.contains("/libtensorscope_agent-"), "{maps}");
    let trace = Trace::complete(&folder.path().join("RUN"));
    assert_eq!(trace.stream().evaluations.len(), 8);
}

/// Records with `HOME` at a place and no other cache, and looks where the library is.
fn check_home(home: &Path, is_used: bool) {
    let folder = tempfile::tempdir().unwrap();
    let temporary = folder.path().join("tmp");
    fs::create_dir(&temporary).unwrap();
    let output = record_generate(folder.path(), &["-o", "RUN"], &[], &dense(), &["To"])
        .env("HOME", home)
        .env_remove("XDG_CACHE_HOME")
        .env("TMPDIR", &temporary)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(talk(&output).0.len(), 1, "{}", stderr(&output));
    Trace::complete(&folder.path().join("RUN"));
    assert_eq!(home.join(".cache/tensorscope").exists(), is_used);
    assert_eq!(
        fs::read_dir(&temporary).unwrap().count(),
        usize::from(!is_used)
    );
}

#[test]
fn the_library_is_kept_in_the_cache_of_the_user() {
    let home = tempfile::tempdir().unwrap();
    check_home(home.path(), true);
    let files = fs::read_dir(home.path().join(".cache/tensorscope")).unwrap();
    assert_eq!(files.count(), 1, "nothing but the library");
    // And found there the next time.
    check_home(home.path(), true);
}

#[test]
fn a_home_that_cannot_hold_the_library_is_done_without() {
    // Not even root can make a folder there.
    check_home(Path::new("/proc/nobody"), false);
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("a home with spaces");
    fs::create_dir(&home).unwrap();
    check_home(&home, false);
}

#[test]
fn folders_and_models_may_have_any_name() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("a model: größer.gguf");
    fs::copy(dense(), &model).unwrap();
    let run = "a run: the first";
    let output = record_generate(folder.path(), &["-o", run], &[], &model, &["To"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let trace = Trace::complete(&folder.path().join(run));
    assert_eq!(trace.stream().evaluations.len(), 8);
    let metadata = trace.run.metadata().unwrap();
    let files = &metadata.model.as_ref().unwrap().files;
    assert!(files[0].path.ends_with("a model: größer.gguf"), "{files:?}");
}

/// The log folder is found again from wherever the program goes.
#[test]
fn a_program_that_changes_its_folder_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(dense(), folder.path().join("m.gguf")).unwrap();
    let mut command = record_program(folder.path(), &["-o", "RUN"], "sh");
    command.args(["-c", r#"mkdir sub; cd sub; exec "$0" ../m.gguf To"#]);
    command.arg(generate_program());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let trace = Trace::complete(&folder.path().join("RUN"));
    let metadata = trace.run.metadata().unwrap();
    let files = &metadata.model.as_ref().unwrap().files;
    assert_eq!(
        Path::new(&files[0].path),
        fs::canonicalize(folder.path()).unwrap().join("m.gguf")
    );
}

#[test]
fn standard_input_is_the_program_s() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = record_program(folder.path(), &[], "cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"a line\nand half a one").unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert_eq!(stdout(&output), "a line\nand half a one");
}

/// What the program sees of its signals when it was started by somebody who ignores
/// `ignored` and blocks `blocked`, alone and with us.
fn check_signals(ignored: Option<i32>, blocked: Option<i32>) {
    let folder = tempfile::tempdir().unwrap();
    let seen = |mut command: Command| {
        command.args(["Sig[BIC]", "/proc/self/status"]);
        // SAFETY: only calls that are allowed between fork and exec.
        unsafe {
            command.pre_exec(move || {
                // The test program itself may ignore SIGPIPE.
                libc::signal(libc::SIGPIPE, libc::SIG_DFL);
                if let Some(signal) = ignored {
                    libc::signal(signal, libc::SIG_IGN);
                }
                let mut set = std::mem::zeroed::<libc::sigset_t>();
                libc::sigemptyset(&mut set);
                if let Some(signal) = blocked {
                    libc::sigaddset(&mut set, signal);
                }
                libc::pthread_sigmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
                Ok(())
            })
        };
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stdout(&output)
    };
    let without = seen(Command::new("grep"));
    let with = seen(record_program(folder.path(), &[], "grep"));
    assert_eq!(with, without, "ignored {ignored:?}, blocked {blocked:?}");
}

#[test]
fn signals_are_inherited() {
    check_signals(None, None);
    check_signals(Some(libc::SIGINT), None);
    check_signals(Some(libc::SIGHUP), Some(libc::SIGUSR1));
    check_signals(Some(libc::SIGUSR2), Some(libc::SIGTERM));
}

#[test]
fn an_ignored_broken_pipe_is_inherited() {
    check_signals(Some(libc::SIGPIPE), None);
}

#[test]
fn no_descriptor_of_ours_is_inherited() {
    let folder = tempfile::tempdir().unwrap();
    let script = "ls /proc/$$/fd";
    let with = record_program(folder.path(), &[], "sh")
        .args(["-c", script])
        .output()
        .unwrap();
    let without = Command::new("sh").args(["-c", script]).output().unwrap();
    assert_eq!(stdout(&with), stdout(&without));
}
