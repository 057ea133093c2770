//! Generating with every page of the weights watched (crate `audit`).
//!
//! With [`Grain::Node`] pages are taken away before each node instead of each
//! evaluation; the engine then uses one thread, because only then does a tick
//! separate two nodes.

use std::{fs, ops::ControlFlow, path::Path};

use audit::{Touched, pages::Watch};
use capture::{
    BatchToken,
    hook::{self, Call, Ended, Part, Stop},
};
use trace::format::Phase;

use crate::{
    EngineError,
    context::{Context, ContextProps},
    generate::{GenerateProps, Observer, generate},
    model::Model,
    recording::Recording,
};

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grain {
    Evaluation,
    Node,
}

/// Generates with every page of the weights watched; the log goes to
/// `log_directory`. The result holds the pages touched, by evaluation (and step).
pub fn touch(
    model: &Model,
    props: ContextProps,
    generate_props: &GenerateProps,
    grain: Grain,
    log_directory: &Path,
    progress: &mut dyn FnMut(usize),
) -> Result<Vec<Option<Touched>>, EngineError> {
    let recording = Recording::start(model, log_directory, Box::new(|_| {}))
        .map_err(|error| EngineError::Log(format!("{}: {error}", log_directory.display())))?;
    let mut context = Context::new(model, props)?;
    let watch = watch(model).map_err(EngineError::Log)?;
    let mut auditor = Auditor {
        model,
        recording,
        guard: PageGuard {
            watch,
            grain,
            evaluations: Vec::new(),
        },
        phase: Phase::Prompt,
        progress,
        tokens: 0,
    };
    generate(model, &mut context, generate_props, &mut auditor)?;
    let Auditor {
        recording, guard, ..
    } = auditor;
    recording
        .finish()
        .map_err(|error| EngineError::Log(format!("{}: {error}", log_directory.display())))?;
    Ok(guard.evaluations.into_iter().map(Some).collect())
}

/// Finds the mappings of a loaded model.
pub fn watch(model: &Model) -> Result<Watch, String> {
    let canonical = |path: &Path| {
        fs::canonicalize(path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let paths = model
        .gguf
        .files()
        .iter()
        .map(|file| Ok((canonical(&file.path)?, file.len_bytes)))
        .collect::<Result<Vec<_>, String>>()?;
    Watch::of_files(paths.iter().map(|(path, bytes)| (path.as_path(), *bytes)))
}

struct Auditor<'a> {
    model: &'a Model,
    recording: Recording,
    guard: PageGuard,
    phase: Phase,
    progress: &'a mut dyn FnMut(usize),
    tokens: usize,
}

impl Observer for Auditor<'_> {
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
            &mut [&mut self.guard],
        )
    }

    fn token(&mut self, _: usize, _: i32) {
        self.tokens += 1;
        (self.progress)(self.tokens);
    }
}

struct PageGuard {
    watch: Watch,
    grain: Grain,
    evaluations: Vec<Touched>,
}

impl hook::Observer for PageGuard {
    unsafe fn begin(&mut self, _: &Call<'_>) -> Result<Part, Stop> {
        self.evaluations.push(Touched {
            pages: self.watch.empty_set(),
            by_step: Vec::new(),
        });
        self.watch.take_away();
        Ok(Part::Takes { note_words: 0 })
    }

    unsafe fn tick(&mut self, _: u32) -> Result<(), Stop> {
        if self.grain == Grain::Node {
            let touched = self.watch.take_away_again();
            if let Some(last) = self.evaluations.last_mut() {
                touched.iter().for_each(|&page| last.pages.insert(page));
                last.by_step.push(touched);
            }
        }
        Ok(())
    }

    fn end(&mut self, _: Ended, _: &mut Vec<u64>) -> Result<(), Stop> {
        let touched = self.watch.give_back();
        if let Some(last) = self.evaluations.last_mut() {
            touched.iter().for_each(|page| last.pages.insert(page));
        }
        Ok(())
    }
}
