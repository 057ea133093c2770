//! Models and runs that the tests share.

use std::{
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use capture::BatchToken;
use engine::{
    EngineError,
    context::{Context, ContextProps},
    generate::{EndOfText, GenerateProps, Generated, Observer, Sampling, generate},
    model::{Model, Repack},
    recording::Recording,
};
use trace::{
    format::Phase,
    read::{Evaluation, Event, StreamEnd, StreamReader},
};

pub fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models").join(name)
}

pub fn load(path: &Path) -> Model {
    Model::load(path, Repack::Off).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A prompt of exactly `tokens` tokens, as varied as the vocabulary allows.
pub fn prompt(model: &Model, tokens: usize) -> Vec<i32> {
    let size = model.vocabulary_size() as i32;
    let first = 300.min(size - 1);
    (0..tokens as i32).map(|i| if i == 0 { 1 } else { first + i * 37 % (size - first) }).collect()
}

pub fn greedy(prompts: Vec<Vec<i32>>, tokens: usize) -> GenerateProps {
    GenerateProps { prompts, tokens, sampling: Sampling::Greedy, end_of_text: EndOfText::Ignored }
}

pub struct Plain;

impl Observer for Plain {
    fn before(&mut self, _: Phase, _: &[BatchToken]) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
    fn token(&mut self, _: usize, _: i32) {}
}

pub struct Recorded<'a> {
    pub model: &'a Model,
    pub recording: Recording,
    pub phase: Phase,
}

impl Observer for Recorded<'_> {
    fn before(&mut self, phase: Phase, _: &[BatchToken]) -> ControlFlow<()> {
        self.phase = phase;
        ControlFlow::Continue(())
    }
    fn decode(
        &mut self,
        context: &mut Context<'_>,
        batch: &[BatchToken],
        wants_logits: &dyn Fn(usize) -> bool,
    ) -> Result<(), EngineError> {
        self.recording.decode(self.model, context, self.phase, batch, wants_logits, None)
    }
    fn token(&mut self, _: usize, _: i32) {}
}

/// What a recorded run leaves behind.
pub struct Run {
    pub generated: Generated,
    pub reader: StreamReader,
    pub evaluations: Vec<Evaluation>,
    pub log_bytes: u64,
    pub _directory: tempfile::TempDir,
}

pub fn record(model: &Model, props: ContextProps, what: &GenerateProps) -> Run {
    let directory = tempfile::tempdir().unwrap();
    let recording = Recording::start(model, directory.path(), Box::new(|e| panic!("{e}"))).unwrap();
    let mut context = Context::new(model, props).unwrap();
    let mut recorded = Recorded { model, recording, phase: Phase::Prompt };
    let generated = generate(model, &mut context, what, &mut recorded).unwrap();
    let log_bytes = recorded.recording.log_bytes();
    let status = recorded.recording.finish().unwrap();
    assert_eq!((status.evals_lost, status.tick_mismatches), (0, 0));
    let mut reader = StreamReader::open(directory.path(), 0).unwrap();
    let mut evaluations = Vec::new();
    while let Some(event) = reader.next_event().unwrap() {
        match event {
            Event::Evaluation(evaluation) => evaluations.push(evaluation),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(reader.end(), StreamEnd::Closed);
    assert_eq!(evaluations.len() as u64, status.evals_committed);
    Run { generated, reader, evaluations, log_bytes, _directory: directory }
}
