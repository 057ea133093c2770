//! Models and runs that the tests share.

use std::{
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard},
};

use capture::BatchToken;
use engine::{
    EngineError,
    context::{Context, ContextProps},
    generate::{EndOfText, GenerateProps, Generated, Observer, Sampling, generate},
    model::{Model, Repack},
    recording::Recording,
};
use gguf::write::{Existing, Split};
use synth::{Preset, Recipe, Shape, Size};
pub use testing::models::shipped;
use trace::{
    format::Phase,
    read::{Evaluation, Event, StreamEnd, StreamReader},
    template::Template,
};

/// Whoever computes holds this: two tests that compute at once on two cores spend
/// most of their time waiting for each other's threads.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The tiny sibling of a preset.
pub fn tiny(preset: &str) -> Recipe {
    Recipe {
        size: Size::Tiny,
        ..Recipe::new(preset).unwrap()
    }
}

/// The tiny sibling of a preset, resized.
pub fn resized(preset: &str, change: impl FnOnce(&mut Shape)) -> Recipe {
    let mut recipe = tiny(preset);
    let mut shape = recipe.preset.tiny;
    change(&mut shape);
    // A recipe refers to a preset that lives for ever; so does a test's.
    recipe.preset = Box::leak(Box::new(Preset {
        tiny: shape,
        ..*recipe.preset
    }));
    recipe
}

/// Writes a model; the answer is the path to load it from.
pub fn write(recipe: &Recipe, directory: &Path, split: Split) -> PathBuf {
    let model = recipe.model().unwrap();
    let path = directory.join(format!("{}.gguf", recipe.preset.name));
    let layout = model.layout(&path, split).unwrap();
    model
        .write(&layout, Existing::Replace, |_| ControlFlow::Continue(()))
        .unwrap();
    assert_eq!(layout.files().len() > 1, split != Split::Whole);
    layout.files()[0].path.clone()
}

pub fn load(path: &Path) -> Model {
    Model::load(path, Repack::Off).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A prompt of exactly `tokens` tokens, as varied as the vocabulary allows.
pub fn prompt(model: &Model, tokens: usize) -> Vec<i32> {
    let size = model.vocabulary_size() as i32;
    let first = 300.min(size - 1);
    (0..tokens as i32)
        .map(|i| {
            if i == 0 {
                1
            } else {
                first + i * 37 % (size - first)
            }
        })
        .collect()
}

pub fn greedy(prompts: Vec<Vec<i32>>, tokens: usize) -> GenerateProps {
    GenerateProps {
        parallel: prompts.len(),
        prompts,
        tokens,
        sampling: Sampling::Greedy,
        end_of_text: EndOfText::Ignored,
    }
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
        self.recording.decode(
            self.model,
            context,
            self.phase,
            batch,
            wants_logits,
            &mut [],
        )
    }
    fn token(&mut self, _: usize, _: i32) {}
}

/// What a recorded run leaves behind.
pub struct Run {
    pub generated: Generated,
    pub reader: StreamReader,
    pub evaluations: Vec<Evaluation>,
    pub log_bytes: u64,
    pub directory: tempfile::TempDir,
}

impl Run {
    pub fn template(&self, evaluation: &Evaluation) -> &Template {
        &self.reader.definitions.templates[evaluation.template as usize]
    }

    /// Names of the nodes that computed something, of all evaluations. (A node
    /// without elements ticks, but no kernel is called for it: it has no access.)
    pub fn computed_names(&self) -> Vec<String> {
        self.evaluations
            .iter()
            .flat_map(|e| &self.template(e).steps)
            .filter(|step| !step.accesses.is_empty())
            .map(|step| self.reader.definitions.name(step.name))
            .collect()
    }

    /// The executed nodes and their order are those that `executed` names.
    pub fn assert_executed(&self, executed: &[Vec<u8>], label: &str) {
        let recorded = self.computed_names();
        for (at, (recorded, executed)) in recorded.iter().zip(executed).enumerate() {
            assert_eq!(
                recorded.as_bytes(),
                executed.as_slice(),
                "{label}: node {at} in order of execution"
            );
        }
        assert_eq!(recorded.len(), executed.len(), "{label}");
    }

    pub fn steps(&self) -> u64 {
        self.evaluations
            .iter()
            .map(|e| self.template(e).steps.len() as u64)
            .sum()
    }
}

pub fn record(model: &Model, props: ContextProps, what: &GenerateProps) -> Run {
    let directory = tempfile::tempdir().unwrap();
    let recording = Recording::start(model, directory.path(), Box::new(|e| panic!("{e}"))).unwrap();
    let mut context = Context::new(model, props).unwrap();
    record_in(model, &mut context, what, directory, recording)
}

fn record_in(
    model: &Model,
    context: &mut Context<'_>,
    what: &GenerateProps,
    directory: tempfile::TempDir,
    recording: Recording,
) -> Run {
    let mut recorded = Recorded {
        model,
        recording,
        phase: Phase::Prompt,
    };
    let generated = generate(model, context, what, &mut recorded).unwrap();
    let log_bytes = recorded.recording.log_bytes();
    let status = recorded.recording.finish().unwrap();
    assert_eq!((status.evals_lost, status.tick_mismatches), (0, 0));
    read_back(directory, generated, log_bytes, status.evals_committed)
}

/// Reads a closed log of one stream.
pub fn read_back(
    directory: tempfile::TempDir,
    generated: Generated,
    log_bytes: u64,
    committed: u64,
) -> Run {
    let mut reader = StreamReader::open(directory.path(), 0).unwrap();
    let mut evaluations = Vec::new();
    while let Some(event) = reader.next_event().unwrap() {
        match event {
            Event::Evaluation(evaluation) => evaluations.push(evaluation),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(reader.end(), StreamEnd::Closed);
    assert_eq!(evaluations.len() as u64, committed);
    Run {
        generated,
        reader,
        evaluations,
        log_bytes,
        directory,
    }
}
