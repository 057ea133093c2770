//! Recording this engine: the recorder, its log, and what a run has to know of
//! both.

use std::{
    collections::{HashSet, VecDeque},
    io,
    path::Path,
    sync::Arc,
};

use capture::{Batch, BatchToken, Recorder, hook::Observer, recorder::Counts};
use trace::{
    append::{Log, OnFailure},
    format::Phase,
    status::{State, Status, StatusPage},
};

use crate::{EngineError, context::Context, hooks, model::Model};

pub struct Recording {
    recorder: Recorder,
    log: Log,
    status: Arc<StatusPage>,
    named_tokens: HashSet<i32>,
}

impl Recording {
    /// Starts a log in `log_directory`, which must exist and be empty.
    pub fn start(
        model: &Model,
        log_directory: &Path,
        on_failure: OnFailure,
    ) -> io::Result<Recording> {
        let status = Arc::new(StatusPage::create(&log_directory.join("status"))?);
        let (log, appender) = Log::create(log_directory, 0, status.clone(), on_failure)?;
        let recorder = Recorder::new(appender, status.clone(), hooks::knowledge(model.places()));
        Ok(Recording {
            recorder,
            log,
            status,
            named_tokens: HashSet::new(),
        })
    }

    /// Computes a batch, recorded; `others` take part too, closer to the computation.
    pub fn decode(
        &mut self,
        model: &Model,
        context: &mut Context<'_>,
        phase: Phase,
        batch: &[BatchToken],
        wants_logits: &dyn Fn(usize) -> bool,
        others: &mut [&mut dyn Observer],
    ) -> Result<(), EngineError> {
        for token in batch {
            if self.named_tokens.insert(token.token)
                && let Ok(id) = u32::try_from(token.token)
            {
                self.recorder.name_token(id, &model.token_text(token.token));
            }
        }
        self.recorder.announce(Batch {
            context: context.number(),
            phase,
            tokens: VecDeque::from(batch.to_vec()),
        });
        let mut observers: Vec<&mut dyn Observer> = vec![&mut self.recorder];
        for other in others {
            observers.push(&mut **other);
        }
        hooks::with(&mut observers, || context.decode(batch, wants_logits))?;
        match self.recorder.refusal() {
            None => Ok(()),
            Some(reason) => Err(EngineError::Log(reason.to_owned())),
        }
    }

    pub fn recorder(&mut self) -> &mut Recorder {
        &mut self.recorder
    }

    pub fn counts(&self) -> Counts {
        self.recorder.counts()
    }

    pub fn log_bytes(&self) -> u64 {
        self.log.bytes_committed()
    }

    pub fn status(&self) -> Status {
        self.status.get()
    }

    /// Closes the log.
    pub fn finish(self) -> io::Result<Status> {
        let result = self.log.finish(self.recorder.into_appender());
        match &result {
            Ok(()) => self.status.set_state(State::Complete),
            Err(error) => self
                .status
                .set_state(State::Failed(error.raw_os_error().unwrap_or(0))),
        }
        result.map(|()| self.status.get())
    }
}
