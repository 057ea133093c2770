//! A run with a hostile model, a server over it, and a client that sends exactly
//! what it is told.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::{
    collections::BTreeMap,
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
};

use index::RunIndex;
use rundir::{
    Ending, Metadata, Run, RunDirectory,
    metadata::{ModelFile as RecordedFile, ModelMetadata, Statistics},
};
use serde_json::{Value, json};
use server::{
    Answers, Comparisons, MachineName, ModelAnswers, ModelFacts, ModelFile, ModelStructure,
    ModelTensor, Options, Server, ServerError, Shutdown, SqlAnswer, SqlColumn, ViewedRun, Viewer,
};
use tempfile::TempDir;
use testing::log;
use trace::{
    append::{Appender, Log},
    format::{Phase, RecordKind},
    read::Evaluation,
    status::StatusPage,
    template::{Definition, Template},
};

/// What a hostile model calls itself, its tensors and its tokens.
pub const HOSTILE: &str = "</script><script>alert('x')</script><img src=x onerror=alert(1)>";
/// Evaluations of the run, of two tokens each: one of the prompt, the others generated.
pub const EVALS: u64 = 5;

const MODEL_BYTES: u64 = 65_536;

/// A run being recorded, or recorded.
pub struct Recording {
    pub folder: TempDir,
    pub path: PathBuf,
    directory: RunDirectory,
    template: Template,
    log: Log,
    appender: Appender,
    status: Arc<StatusPage>,
}

impl Recording {
    pub fn start() -> Recording {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("model.gguf");
        fs::write(&model, vec![1; MODEL_BYTES as usize]).unwrap();
        let metadata = Metadata {
            model: Some(ModelMetadata {
                files: vec![RecordedFile {
                    path: model.to_str().unwrap().to_owned(),
                    size_bytes: MODEL_BYTES,
                }],
                name: Some(HOSTILE.to_owned()),
                architecture: "llama".to_owned(),
                size_bytes: MODEL_BYTES,
                ..ModelMetadata::default()
            }),
            ..Metadata::start(vec!["test".to_owned()], None)
        };
        let path = folder.path().join("run");
        let directory = RunDirectory::create(&path, &metadata, None).unwrap();
        let (mut definitions, template) = log::small_graph();
        for definition in &mut definitions {
            match definition {
                Definition::Text(text) if text == b"token_embd.weight" => {
                    *text = HOSTILE.as_bytes().to_vec();
                }
                Definition::Token { text, .. } => *text = HOSTILE.as_bytes().to_vec(),
                _ => {}
            }
        }
        let (status, log, mut appender) = log::open(&directory.log_directory(), 1 << 20);
        assert!(log::define(&mut appender, &definitions));
        Recording {
            folder,
            path,
            directory,
            template,
            log,
            appender,
            status,
        }
    }

    pub fn evaluate(&mut self, number: u64) {
        let begin_nanos = 1_000_000 + number * 10_000;
        let weights = [0.75f32, 0.25, 0.5, 0.5].map(|w| i64::from(w.to_bits()));
        let at = number as i64 * 2;
        let evaluation = Evaluation {
            number,
            template: 0,
            phase: if number == 0 {
                Phase::Prompt
            } else {
                Phase::Generate
            },
            threads: 2,
            context: 0,
            begin_nanos,
            end_nanos: begin_nanos + 9_000,
            ticks: 4,
            flags: 0,
            step_nanos: (1..=4).map(|step| begin_nanos + step * 2_000).collect(),
            captures: vec![
                vec![7, 9],
                vec![at, at + 1],
                vec![at, at + 1],
                vec![1, 5, 1, 3],
                weights.to_vec(),
            ],
            sequences: vec![0, 0],
            token_phases: Vec::new(),
            origins: None,
            device: None,
        };
        let body = log::body(&self.template, &evaluation);
        assert!(log::append(
            &mut self.appender,
            RecordKind::Evaluation,
            &body
        ));
        self.status.count_committed();
    }

    pub fn finish(self) -> (TempDir, PathBuf) {
        self.log.finish(self.appender).unwrap();
        self.directory
            .finish(Ending::Complete, Statistics::default())
            .unwrap();
        (self.folder, self.path)
    }
}

/// A whole run; the folder goes when the first is dropped.
pub fn recorded() -> (TempDir, PathBuf) {
    let mut recording = Recording::start();
    (0..EVALS).for_each(|number| recording.evaluate(number));
    recording.finish()
}

/// Answers that count how often they are asked.
#[derive(Default)]
pub struct Counting {
    pub results: AtomicUsize,
}

impl Answers for Counting {
    fn results(&self) -> Result<Arc<Value>, String> {
        self.results.fetch_add(1, Ordering::SeqCst);
        Ok(Arc::new(json!({
            "diagnosis": {"causes": [{"title": HOSTILE}]},
            "findings": [{"topic": "weights", "text": HOSTILE}],
            "facts": {
                "heads": {"projections": [1], "heads": [2], "unassigned_bytes": 3},
                "traffic": {"kv_growth": {"every": 1, "seen": 2, "points": [
                    {"eval": 0, "tokens": 2, "context_tokens": 2, "read_bytes": 64, "written_bytes": 8},
                    {"eval": 1, "tokens": 3, "context_tokens": 3, "read_bytes": 128, "written_bytes": 4},
                ]}},
                "working_set": {"distinct_bytes": 4},
                "experts": {"layers": [
                    {"layer": 0, "experts": [{"expert": 5, "prefers": [{"text": HOSTILE}]}]},
                ]},
            },
            "caches": {"unit": {"curves": {"points": [5]}}, "opportunities": {"budgets": [6]}},
        })))
    }

    fn sql(&self, query: &str, _: &AtomicBool) -> Result<SqlAnswer, String> {
        if query.starts_with("SELECT") {
            Ok(SqlAnswer {
                columns: vec![SqlColumn {
                    name: HOSTILE.to_owned(),
                    kind: "Utf8".to_owned(),
                }],
                rows: vec![vec![json!(query)]; 1001],
                is_cut: false,
            })
        } else {
            Err(format!("cannot parse {query:?}"))
        }
    }
}

struct Pairs;

impl Comparisons for Pairs {
    fn compare(&self, a: usize, b: usize) -> Result<Value, String> {
        Ok(json!({"phases": [a, b]}))
    }
}

/// A model of one tensor, whose estimate says what was asked.
struct OneTensor;

impl ModelAnswers for OneTensor {
    fn facts(&self) -> Result<ModelFacts, String> {
        Ok(ModelFacts {
            name: HOSTILE.to_owned(),
            path: "model.gguf".to_owned(),
            architecture: "llama".to_owned(),
            size_bytes: MODEL_BYTES,
            tensor_bytes: 4096,
            parameters: 1024,
            active_parameters: 1024,
            bits_per_parameter: 32.0,
            max_context: Some(2048),
            layers: 1,
            embedding_length: 32,
            vocabulary: None,
            experts: 0,
            experts_used: 0,
            machines: vec![MachineName {
                name: "one".to_owned(),
                kind: "gpu".to_owned(),
                memory_bytes: 1 << 30,
            }],
        })
    }

    fn structure(&self) -> Result<ModelStructure, String> {
        Ok(ModelStructure {
            files: vec![ModelFile {
                name: "model.gguf".to_owned(),
                size_bytes: MODEL_BYTES,
                begin: 0,
            }],
            tensors: vec![ModelTensor {
                name: HOSTILE.to_owned(),
                ty: "f32".to_owned(),
                shape: vec![32, 32],
                layer: Some(0),
                component: "attention".to_owned(),
                role: "q".to_owned(),
                file: 0,
                file_offset: 4096,
                begin: 4096,
                size_bytes: 4096,
                experts: 0,
            }],
        })
    }

    fn estimate(&self, options: &[(&str, &str)]) -> Result<Value, String> {
        match options.iter().any(|(_, value)| *value == "wrong") {
            true => Err("that is wrong".to_owned()),
            false => Ok(json!(options)),
        }
    }
}

/// A server that ends when it is dropped.
pub struct Served {
    pub port: u16,
    pub token: String,
    pub answers: Arc<Counting>,
    shutdown: Shutdown,
    thread: Option<JoinHandle<Result<(), ServerError>>>,
}

impl Served {
    pub fn with(runs: &[&Path]) -> Served {
        let answers = Arc::new(Counting::default());
        let runs = runs.iter().map(|path| {
            let run = Run::open(path).unwrap();
            ViewedRun {
                index: RunIndex::open(&run, &mut |_| {}).unwrap(),
                answers: answers.clone(),
                run,
            }
        });
        let viewer = Viewer::of_runs(runs.collect(), Arc::new(Pairs));
        Served::start(viewer, answers)
    }

    pub fn with_model() -> Served {
        Served::start(Viewer::of_model(Arc::new(OneTensor)), Arc::default())
    }

    fn start(viewer: Viewer, answers: Arc<Counting>) -> Served {
        let server = Server::bind(Options::default()).unwrap();
        let address = server.address();
        let rest = address.strip_prefix("http://127.0.0.1:").unwrap();
        let (port, token) = rest.split_once('/').unwrap();
        let shutdown = Shutdown::new();
        let ends = shutdown.clone();
        Served {
            port: port.parse().unwrap(),
            token: token.strip_suffix('/').unwrap().to_owned(),
            answers,
            shutdown,
            thread: Some(std::thread::spawn(move || server.run(viewer, &ends))),
        }
    }

    /// Of a path below the token.
    pub fn get(&self, path: &str) -> Reply {
        self.ask("GET", &format!("/{}/{path}", self.token), &[], b"")
    }

    pub fn json(&self, path: &str) -> Value {
        let reply = self.get(path);
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        reply.json()
    }

    pub fn post_sql(&self, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        self.ask("POST", &format!("/{}/api/0/sql", self.token), headers, body)
    }

    pub fn ask(&self, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        let host = format!("127.0.0.1:{}", self.port);
        let all = [&[("Host", host.as_str())], headers].concat();
        self.ask_exactly(method, target, &all, body)
    }

    /// Sends what is given and no other header but the length of the body.
    pub fn ask_exactly(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Reply {
        let mut request = format!("{method} {target} HTTP/1.1\r\nConnection: close\r\n");
        for (name, value) in headers {
            request += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() {
            request += &format!("Content-Length: {}\r\n", body.len());
        }
        request += "\r\n";
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        // The server may answer, and close, before it has read a body too long.
        let _ = stream.write_all(body);
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        Reply::parse(&bytes)
    }

    /// How the server ended.
    pub fn stop(mut self) -> Result<(), ServerError> {
        self.shutdown.stop();
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.shutdown.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A response, whole.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    /// Names in lower case.
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Reply {
    fn parse(bytes: &[u8]) -> Reply {
        let end = bytes.windows(4).position(|w| w == b"\r\n\r\n");
        let end = end.unwrap_or_else(|| panic!("no response: {bytes:?}"));
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap();
        let headers = lines.map(|line| {
            let (name, value) = line.split_once(": ").unwrap();
            (name.to_lowercase(), value.to_owned())
        });
        let headers: BTreeMap<String, String> = headers.collect();
        let body = bytes[end + 4..].to_vec();
        if let Some(length) = headers.get("content-length") {
            assert_eq!(length.parse(), Ok(body.len()), "a cut body");
        }
        Reply {
            status: status.parse().unwrap(),
            headers,
            body,
        }
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Value {
        assert_eq!(
            self.headers["content-type"],
            "application/json; charset=utf-8"
        );
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    pub fn error(&self) -> String {
        self.json()["error"].as_str().unwrap().to_owned()
    }

    /// Header and values.
    pub fn raster(&self) -> (Value, Vec<f32>) {
        assert_eq!(self.status, 200, "{}", self.text());
        assert_eq!(self.headers["content-type"], "application/octet-stream");
        let length = u32::from_le_bytes(self.body[..4].try_into().unwrap()) as usize;
        let header = serde_json::from_slice(&self.body[4..4 + length]).unwrap();
        let values = self.body[(4 + length).next_multiple_of(4)..].chunks_exact(4);
        let values = values.map(|v| f32::from_le_bytes(v.try_into().unwrap()));
        (header, values.collect())
    }
}
