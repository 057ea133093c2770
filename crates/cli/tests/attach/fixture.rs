//! The program that is recorded, running it, and reading back what is left.
//!
//! The program and its libllama.so are built once, by whichever test process comes
//! first, into a folder that is named after what they are built from. Each process
//! builds into a folder of its own and renames it, so that nobody sees half of it.

use std::{
    ffi::OsStr,
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Output, Stdio},
    sync::OnceLock,
};

use reader::summary::{Summary, summarise};
use rundir::{Condition, Run};
use testing::models::shipped;
use trace::{
    read::{Definitions, Evaluation, Event, StreamEnd, StreamReader, streams},
    template::{CaptureKind, Template},
};

const SOURCE: &str = include_str!("../../../../tests/attach/generate.c");
const TEMPORARY: &str = env!("CARGO_TARGET_TMPDIR");

pub fn dense() -> PathBuf {
    shipped("shakespeare-dense.gguf")
}

pub fn moe() -> PathBuf {
    shipped("shakespeare-moe.gguf")
}

/// How llama.cpp came into a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linked {
    /// A libllama.so beside it.
    Shared,
    /// Inside, with its names.
    Inside,
    /// Inside, and stripped.
    Stripped,
    /// Inside and stripped, at the addresses of the file.
    StrippedAtFixedAddress,
    /// Inside of a library without exported names, which a program opens.
    Library,
    /// The same, stripped.
    StrippedLibrary,
    /// Inside, as the C library is.
    Static,
    /// As `Shared`, with batches of the newer kind.
    SharedExtended,
    /// As `Inside`, with batches of the newer kind.
    InsideExtended,
}

/// tests/attach/generate.c with llama.cpp as it is asked for.
pub fn generate_linked(linked: Linked) -> PathBuf {
    let name = match linked {
        Linked::Shared => "generate",
        Linked::Inside => "generate-inside",
        Linked::Stripped => "generate-stripped",
        Linked::StrippedAtFixedAddress => "generate-fixed",
        Linked::Library => "generate-library",
        Linked::StrippedLibrary => "generate-stripped-library",
        Linked::Static => "generate-static",
        Linked::SharedExtended => "generate-shared-extended",
        Linked::InsideExtended => "generate-inside-extended",
    };
    generate_program().with_file_name(name)
}

/// tests/attach/generate.c, linked to a libllama.so beside it.
pub fn generate_program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let llama = Path::new(env!("DEP_LLAMA_ROOT"));
        let archives = ["llama", "ggml", "ggml-cpu", "ggml-base"]
            .map(|name| llama.join("lib").join(format!("lib{name}.a")));
        let mut hash = DefaultHasher::new();
        (SOURCE, OPENER, LAUNCHER, EXPORTS).hash(&mut hash);
        for archive in &archives {
            let about = fs::metadata(archive).unwrap();
            (archive, about.len(), about.modified().unwrap()).hash(&mut hash);
        }
        let folder = Path::new(TEMPORARY).join(format!("generate-{:016x}", hash.finish()));
        if !folder.exists() {
            let unfinished = tempfile::tempdir_in(TEMPORARY).unwrap();
            build(unfinished.path(), llama, &archives);
            // It fails when somebody was faster; what is there then is as good.
            let renamed = fs::rename(unfinished.path(), &folder);
            assert!(folder.exists(), "{renamed:?}");
        }
        folder.join("generate")
    })
}

fn build(folder: &Path, llama: &Path, archives: &[PathBuf]) {
    let run = |command: &mut Command| {
        let output = command.current_dir(folder).output().unwrap();
        assert!(output.status.success(), "{command:?}: {}", stderr(&output));
    };
    run(Command::new("c++")
        .args(["-shared", "-o", "libllama.so", "-Wl,--whole-archive"])
        .args(archives)
        .args(["-Wl,--no-whole-archive", "-lgomp", "-lpthread", "-lm"]));
    fs::write(folder.join("generate.c"), SOURCE).unwrap();
    run(Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-I"])
        .arg(llama.join("include"))
        .args(["generate.c", "-o", "generate", "-L.", "-lllama"])
        .arg("-Wl,-rpath,$ORIGIN"));
    build_inside(folder, llama, archives);
}

/// A program that knows nothing of llama.cpp and opens a library that has it inside.
const OPENER: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char ** argv) {
    void * library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) { fprintf(stderr, "%s\n", dlerror()); return 71; }
    return ((int (*)(int, char **)) dlsym(library, "generate_main"))(argc, argv);
}
"#;
/// A program without a loader that starts another one, as Ollama's server does.
const LAUNCHER: &str = r#"
#include <sys/wait.h>
#include <unistd.h>
int main(int argc, char ** argv) {
    int status = 0;
    pid_t child = fork();
    if (child == 0) { execv(argv[1], argv + 1); _exit(71); }
    waitpid(child, &status, 0);
    return argc < 2 || WEXITSTATUS(status);
}
"#;
/// What that library shows.
const EXPORTS: &str = "{ global: generate_main; local: *; };";

/// The programs that have llama.cpp inside.
fn build_inside(folder: &Path, llama: &Path, archives: &[PathBuf]) {
    let run = |words: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", words]).current_dir(folder);
        command.env("INCLUDE", llama.join("include"));
        command.env("ARCHIVES", std::env::join_paths(archives).unwrap());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{words}: {}", stderr(&output));
    };
    fs::write(folder.join("opener.c"), OPENER).unwrap();
    fs::write(folder.join("exports"), EXPORTS).unwrap();
    fs::write(folder.join("launcher.c"), LAUNCHER).unwrap();
    run("cc -static launcher.c -o launcher");
    // Each archive before what it needs, as they are listed.
    let link = "c++ generate.o $(echo $ARCHIVES | tr : ' ')";
    run("cc -O1 -fPIC -I$INCLUDE -c generate.c -o generate.o");
    run("cc -O1 -fPIC -I$INCLUDE -Dmain=generate_main -c generate.c -o library.o");
    run(&format!(
        "{link} -fopenmp -lpthread -ldl -o generate-inside"
    ));
    run("strip generate-inside -o generate-stripped");
    run("cc -O1 -DEXTENDED_BATCH -I$INCLUDE -c generate.c -o extended.o");
    run("cc extended.o -o generate-shared-extended -L. -lllama -Wl,-rpath,'$ORIGIN'");
    let extended = link.replace("generate.o", "extended.o");
    run(&format!("{extended} -fopenmp -o generate-inside-extended"));
    run(&format!("{link} -fopenmp -no-pie -s -o generate-fixed"));
    run(&format!("{link} -fopenmp -static -o generate-static"));
    let library = link.replace(
        "generate.o",
        "library.o -shared -Wl,--version-script=exports",
    );
    run(&format!("{library} -fopenmp -o generate.so"));
    run("strip generate.so -o generate-stripped.so");
    for (program, library) in [
        ("generate-library", "generate.so"),
        ("generate-stripped-library", "generate-stripped.so"),
    ] {
        let path = format!("-DLIBRARY='\"{library}\"'");
        run(&format!(
            "cc {path} opener.c -ldl -o {program} -Wl,-rpath,'$ORIGIN'"
        ));
    }
}

/// `tensorscope` in `folder`. With backtraces on, so that a panic cannot hide.
pub fn tensorscope(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorscope"));
    command
        .current_dir(folder)
        .env("RUST_BACKTRACE", "1")
        .env("XDG_CACHE_HOME", Path::new(TEMPORARY).join("cache"))
        // Threads that wait leave the cores to other tests.
        .env("OMP_WAIT_POLICY", "passive")
        .stdin(Stdio::null());
    // The kernels of `libllama.so`, which the engine is compared with.
    if cfg!(target_arch = "x86_64") {
        command.env("TENSORSCOPE_CPU", "avx2");
    }
    command
}

/// `generate ARGS MODEL PROMPTS` alone.
pub fn alone(folder: &Path, args: &[&str], model: &Path, prompts: &[&str]) -> Output {
    Command::new(generate_program())
        .current_dir(folder)
        .args(args)
        .arg(model)
        .args(prompts)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// `record FLAGS -- PROGRAM`, to which its arguments can be added.
pub fn record_program(folder: &Path, flags: &[&str], program: impl AsRef<OsStr>) -> Command {
    let mut command = tensorscope(folder);
    command.args(["record", "--no-tables"]).args(flags);
    command.arg("--").arg(program);
    command
}

/// `record FLAGS -- generate ARGS MODEL PROMPTS`.
pub fn record_generate(
    folder: &Path,
    flags: &[&str],
    args: &[&str],
    model: &Path,
    prompts: &[&str],
) -> Command {
    let mut command = record_program(folder, flags, generate_program());
    command.args(args).arg(model).args(prompts);
    command
}

/// Starts a program whose lines the test reads.
pub fn start(command: &mut Command) -> (Child, BufReader<ChildStdout>) {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap());
    (child, lines)
}

/// The next line: it was printed for sure.
pub fn next_line(lines: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert!(line.ends_with('\n'), "it ended early, with {line:?}");
    line.trim_end().to_owned()
}

/// Waits for `count` lines, and answers how many that were.
pub fn read_lines(lines: &mut BufReader<ChildStdout>, count: usize) -> usize {
    for _ in 0..count {
        next_line(lines);
    }
    count
}

pub fn rest(mut lines: BufReader<ChildStdout>) -> String {
    let mut text = String::new();
    lines.read_to_string(&mut text).unwrap();
    text
}

pub fn signal(pid: i32, signal: i32) {
    // SAFETY: takes numbers only; the process was not waited for.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// What is ours on standard error, and what is the program's. A line that begins
/// with blanks continues ours.
pub fn talk(output: &Output) -> (Vec<String>, Vec<String>) {
    let text = stderr(output);
    assert!(!text.contains("panicked"), "{text}");
    let is_ours = |line: &String| line.starts_with("tensorscope:") || line.starts_with("  ");
    text.lines().map(str::to_owned).partition(is_ours)
}

/// A tiny model of random weights, the only one in `folder`, which is made when it is
/// not there; its first file when it is split.
pub fn synth(folder: &Path, args: &str) -> PathBuf {
    fs::create_dir_all(folder).unwrap();
    let mut command = tensorscope(folder);
    command
        .arg("synth")
        .args(args.split(' '))
        .args(["--tiny", "-q", "-o", "synth.gguf"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension() == Some(OsStr::new("gguf")))
        .collect();
    files.sort();
    files.swap_remove(0)
}

/// A run that was read back completely.
pub struct Trace {
    pub run: Run,
    pub streams: Vec<Stream>,
    pub summary: Summary,
}

pub struct Stream {
    pub number: u32,
    pub definitions: Definitions,
    pub evaluations: Vec<Evaluation>,
    /// Bytes of records up to the end of each evaluation.
    pub bytes: Vec<u64>,
    pub partial: usize,
    pub is_closed: bool,
}

impl Trace {
    /// Fails on anything damaged.
    pub fn open(path: &Path) -> Trace {
        let run = Run::open(path).unwrap_or_else(|e| panic!("{e}"));
        let log = run.log_directory();
        let summary = summarise(&log, &mut |_| {}).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(summary.corrupt, Vec::<String>::new());
        let numbers = streams(&log).unwrap();
        let streams = numbers.into_iter().map(|n| Stream::open(&log, n)).collect();
        Trace {
            run,
            streams,
            summary,
        }
    }

    /// Of a run of which nothing is missing.
    pub fn complete(path: &Path) -> Trace {
        let trace = Trace::open(path);
        assert_eq!(
            (trace.run.condition(), trace.run.warning()),
            (&Condition::Complete, None)
        );
        let sum = &trace.summary;
        assert_eq!((sum.partial, sum.flagged, sum.closed), (0, 0, true));
        assert_eq!(sum.unknown_ops(), Default::default());
        trace
    }

    /// The only stream of a program with one context.
    pub fn stream(&self) -> &Stream {
        assert_eq!(self.streams.len(), 1);
        &self.streams[0]
    }

    /// Tokens that were evaluated.
    pub fn tokens(&self) -> u64 {
        let of_stream = |stream: &Stream| {
            let tokens = stream.evaluations.iter().map(|e| stream.tokens(e).len());
            tokens.sum::<usize>() as u64
        };
        self.streams.iter().map(of_stream).sum()
    }
}

impl Stream {
    fn open(log: &Path, number: u32) -> Stream {
        let mut reader = StreamReader::open(log, number).unwrap();
        let (mut evaluations, mut bytes, mut partial) = (Vec::new(), Vec::new(), 0);
        while let Some(event) = reader.next_event().unwrap() {
            match event {
                Event::Evaluation(evaluation) => {
                    evaluations.push(evaluation);
                    bytes.push(reader.record_bytes());
                }
                Event::Partial(_) => partial += 1,
                Event::Copy(_) => {}
                Event::Corrupt { reason, .. } => panic!("{reason}"),
            }
        }
        Stream {
            number,
            is_closed: reader.end() == StreamEnd::Closed,
            definitions: reader.definitions,
            evaluations,
            bytes,
            partial,
        }
    }

    pub fn template(&self, evaluation: &Evaluation) -> &Template {
        &self.definitions.templates[evaluation.template as usize]
    }

    pub fn tokens<'a>(&'a self, evaluation: &'a Evaluation) -> &'a [i64] {
        evaluation.first_of(self.template(evaluation), CaptureKind::Tokens)
    }
}

/// Tokens by the lines that `generate` prints for one prompt.
pub fn printed(text: &str) -> Vec<i64> {
    text.lines()
        .map(|line| line.split_once(' ').unwrap().1.parse().unwrap())
        .collect()
}
