//! The viewer as a program: address, page, an end when asked. What it answers is tested
//! in crate `server`, what it shows in tests/browser.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

const MODEL: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../models/shakespeare-moe.gguf"
);

fn tensorscope(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorscope"));
    command.current_dir(folder).args(args).stdin(Stdio::null());
    command
}

/// Status line and body.
fn get(address: &str, path: &str) -> (String, String) {
    let rest = address.strip_prefix("http://").unwrap();
    let (host, token) = rest.split_once('/').unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    let request =
        format!("GET /{token}{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

/// Sends a query of some page, and leaves the answer to be read or not.
fn post_sql(address: &str, query: &str) -> TcpStream {
    post_sql_of(address, "", query)
}

fn post_sql_of(address: &str, page: &str, query: &str) -> TcpStream {
    let rest = address.strip_prefix("http://").unwrap();
    let (host, token) = rest.split_once('/').unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    let length = query.len();
    let request = format!(
        "POST /{token}api/0/sql?page={page} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nx-tensorscope: 1\r\nContent-Length: {length}\r\n\r\n{query}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

fn interrupt(child: &Child) {
    let pid = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-INT", &pid])
            .status()
            .unwrap()
            .success()
    );
}

/// `view` of a run of eight tokens, or of something else.
struct Viewer {
    process: Child,
    address: String,
    /// Kept open: the viewer writes to it.
    _stdout: BufReader<ChildStdout>,
    _folder: tempfile::TempDir,
}

impl Viewer {
    fn start() -> Viewer {
        let folder = tempfile::tempdir().unwrap();
        let record = [
            "record", "-m", MODEL, "-p", "ROMEO:", "-n", "8", "-t", "1", "-q", "-o", "run",
        ];
        let recorded = tensorscope(folder.path(), &record).output().unwrap();
        assert!(recorded.status.success());
        Viewer::of(folder, "run")
    }

    fn of(folder: tempfile::TempDir, shown: &str) -> Viewer {
        let mut view = tensorscope(folder.path(), &["view", shown, "--no-open"]);
        let mut process = view.stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(process.stdout.take().unwrap());
        let mut address = String::new();
        stdout.read_line(&mut address).unwrap();
        Viewer {
            process,
            address: address.trim_end().to_owned(),
            _stdout: stdout,
            _folder: folder,
        }
    }

    /// Ctrl-C, which is its orderly end.
    fn end(mut self) {
        interrupt(&self.process);
        assert_eq!(self.process.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn a_run_is_served_until_ctrl_c() {
    let viewer = Viewer::start();
    let address = viewer.address.as_str();
    assert!(address.starts_with("http://127.0.0.1:"), "{address}");
    let (status, page) = get(address, "");
    assert_eq!(status, "HTTP/1.1 200 OK");
    assert!(page.contains("app.js"));
    let (_, info) = get(address, "api/0/info");
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["totals"]["evals"], 8);
    let (status, findings) = get(address, "api/0/findings");
    assert_eq!(status, "HTTP/1.1 200 OK", "{findings}");
    viewer.end();
}

/// A query that would take hours ends when the page that asked has gone.
#[test]
fn a_query_that_nobody_waits_for_is_ended() {
    let viewer = Viewer::start();
    let address = viewer.address.as_str();
    let endless = "SELECT sum(a.bytes * b.bytes + c.bytes) FROM accesses a, accesses b, accesses c";
    for _ in 0..2 {
        drop(post_sql(address, endless));
    }
    let mut answer = String::new();
    let mut stream = post_sql(address, "SELECT 41 + 1 AS answer");
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert!(answer.contains("[[42]]"), "{answer}");
    viewer.end();
}

/// A page that asks again wants the newer answer, and pages do not wait for each other.
#[test]
fn a_page_has_one_query_and_waits_for_nobody_elses() {
    let viewer = Viewer::start();
    let address = viewer.address.as_str();
    let endless = "SELECT sum(a.bytes * b.bytes + c.bytes) FROM accesses a, accesses b, accesses c";
    let answer_of = |mut stream: TcpStream| {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let mut slow = [
        post_sql_of(address, "a", endless),
        post_sql_of(address, "b", endless),
    ];
    // A third page is answered while they go on.
    let answer = answer_of(post_sql_of(address, "c", "SELECT 41 + 1 AS answer"));
    assert!(answer.contains("[[42]]"), "{answer}");
    for stream in &mut slow {
        stream.set_nonblocking(true).unwrap();
        let error = stream.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
        stream.set_nonblocking(false).unwrap();
    }
    // One of them asks something else.
    let answer = answer_of(post_sql_of(address, "a", "SELECT 5 + 1 AS answer"));
    assert!(answer.contains("[[6]]"), "{answer}");
    let [first, _other] = slow;
    let answer = answer_of(first);
    assert!(answer.starts_with("HTTP/1.1 409 "), "{answer}");
    assert!(answer.contains("replaced by a newer query"), "{answer}");
    viewer.end();
}

#[test]
fn a_live_recording_grows_on_the_page_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let record = [
        "record", "-m", MODEL, "-p", "ROMEO:", "-n", "200", "-t", "1", "--live", "-o", "run",
    ];
    let mut record = tensorscope(folder, &record);
    let mut record = record
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(record.stderr.take().unwrap()).lines();
    let mut line_with = |wanted: &str| loop {
        let line = stderr.next().expect(wanted).unwrap();
        if line.contains(wanted) {
            return line;
        }
    };
    let line = line_with("live at ");
    let (_, address) = line.split_once("live at ").unwrap();
    let end = line_with("stays until Ctrl-C");
    assert!(end.contains(address), "{end}");
    // The page asks about once a second; here the end is all that matters.
    let begin = Instant::now();
    loop {
        let (_, info) = get(address, "api/0/info");
        let info: serde_json::Value = serde_json::from_str(&info).unwrap();
        if info["live"] == false {
            assert_eq!(info["totals"]["evals"], 200);
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{info}");
        std::thread::yield_now();
    }
    interrupt(&record);
    assert_eq!(record.wait().unwrap().code(), Some(0));
}

fn json(address: &str, path: &str) -> serde_json::Value {
    let (status, body) = get(address, path);
    assert_eq!(status, "HTTP/1.1 200 OK", "{path}: {body}");
    serde_json::from_str(&body).unwrap()
}

#[test]
fn a_model_is_served_without_a_run() {
    let viewer = Viewer::of(tempfile::tempdir().unwrap(), MODEL);
    let address = viewer.address.as_str();
    let (status, page) = get(address, "");
    assert_eq!(status, "HTTP/1.1 200 OK");
    assert!(page.contains("app.js"));
    let facts = json(address, "api/model");
    assert_eq!(facts["path"], MODEL);
    let machines = facts["machines"].as_array().unwrap();
    assert!(machines.iter().any(|machine| machine["kind"] == "gpu"));
    let structure = json(address, "api/model/structure");
    let tensors = structure["tensors"].as_array().unwrap();
    let sizes = tensors.iter().map(|tensor| &tensor["size_bytes"]);
    let bytes: u64 = sizes.map(|size| size.as_u64().unwrap()).sum();
    assert_eq!(facts["tensor_bytes"], bytes);
    // What the page is told is what the command prints.
    let asked = "api/model/estimate?ctx-size=1024&parallel=2&machine=H200&attention=";
    let flags = [
        "estimate",
        MODEL,
        "-c",
        "1024",
        "--parallel",
        "2",
        "--machine",
        "H200",
        "--attention",
        "--json",
    ];
    let printed = tensorscope(Path::new("."), &flags).output().unwrap();
    let printed: serde_json::Value = serde_json::from_slice(&printed.stdout).unwrap();
    assert_eq!(json(address, asked), printed);
    let (status, error) = get(address, "api/model/estimate?ctx-size=many");
    assert_eq!(status, "HTTP/1.1 400 Bad Request");
    assert!(
        error.contains("many") && error.contains("--ctx-size"),
        "{error}"
    );
    // llama.cpp ends the process in which it is asked this, and the viewer goes on.
    let (status, error) = get(
        address,
        "api/model/estimate?ctx-size=4&parallel=8&machine=H200",
    );
    assert!(status == "HTTP/1.1 400 Bad Request" || status == "HTTP/1.1 200 OK");
    assert!(!error.contains('\n'), "{error}");
    // It would take gigabytes to answer.
    let (status, error) = get(address, "api/model/estimate?ctx-size=99999999");
    assert_eq!(status, "HTTP/1.1 400 Bad Request");
    assert!(error.contains("at most 16777216 tokens"), "{error}");
    viewer.end();
}

#[test]
fn what_cannot_be_shown_is_said_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("bad.gguf"), b"GGUF\x03\0\0\0").unwrap();
    std::fs::write(folder.path().join("nameless"), b"GGUF").unwrap();
    for (shown, says) in [
        (&["nowhere"][..], "nowhere"),
        (&["nowhere.gguf"], "nowhere.gguf"),
        (&["bad.gguf"], "bad.gguf"),
        (&["nameless"], "nameless"),
        (&["run", MODEL], MODEL),
        (&[MODEL, MODEL], MODEL),
    ] {
        let mut view = tensorscope(folder.path(), &["view", "--no-open"]);
        let output = view.args(shown).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        let begin = format!("tensorscope: {says}");
        assert!(
            said.starts_with(&begin) && said.lines().count() == 1,
            "{shown:?}: {said}"
        );
    }
}
