//! The runs, or the model, that are looked at, as the caller gives them and as the server
//! holds them.

use std::{
    ops::ControlFlow,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    thread::available_parallelism,
};

use index::{Info, RunIndex};
use rundir::Run;
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::{
    answers::{Answers, Comparisons, ModelAnswers, RunName},
    map::MappedFile,
    pages::Pages,
    reply::{Refusal, Reply},
};

/// One at a time takes all cores already, and those who want the same results
/// wait for it here.
const ANALYSES_AT_A_TIME: usize = 1;
/// Two slow ones must not keep a quick one waiting.
const QUERIES_AT_A_TIME: usize = 4;

/// What `view` shows.
pub struct Viewer {
    /// Their numbers in the API are their places here.
    pub runs: Vec<ViewedRun>,
    pub comparisons: Arc<dyn Comparisons>,
    /// Without a run of it.
    pub model: Option<Arc<dyn ModelAnswers>>,
}

/// One run, opened.
pub struct ViewedRun {
    pub run: Run,
    pub index: RunIndex,
    pub answers: Arc<dyn Answers>,
}

/// The runs as all requests share them.
pub(crate) struct Host {
    pub runs: Vec<Arc<HostedRun>>,
    pub comparisons: Arc<dyn Comparisons>,
    pub model: Option<Arc<dyn ModelAnswers>>,
    /// By pace, so that no analysis of ten seconds makes panning wait.
    quick: Arc<Semaphore>,
    analyses: Arc<Semaphore>,
    queries: Arc<Semaphore>,
    pub pages: Pages,
}

pub(crate) struct HostedRun {
    index: RwLock<RunIndex>,
    pub answers: Arc<dyn Answers>,
    pub files: Vec<MappedFile>,
    growth: Mutex<Growth>,
    /// With the version at which they were computed.
    results: Mutex<Option<(u64, Arc<Value>)>>,
}

/// How a live run stands. Apart from the index, so that asking for it never waits
/// for a refresh.
struct Growth {
    name: String,
    model: Option<String>,
    /// Counts every change that the page should see.
    version: u64,
    live: bool,
    /// Why the log cannot be followed any further.
    problem: Option<String>,
}

/// How long work may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Milliseconds, from the index.
    Quick,
    /// Seconds the first time.
    Analysis,
    /// As long as the query takes.
    Query,
}

impl Viewer {
    pub fn of_runs(runs: Vec<ViewedRun>, comparisons: Arc<dyn Comparisons>) -> Viewer {
        Viewer {
            runs,
            comparisons,
            model: None,
        }
    }

    pub fn of_model(model: Arc<dyn ModelAnswers>) -> Viewer {
        struct NoRuns;
        impl Comparisons for NoRuns {
            fn compare(&self, _: usize, _: usize) -> Result<Value, String> {
                Err("a model is shown, and no run".to_owned())
            }
        }
        Viewer {
            runs: Vec::new(),
            comparisons: Arc::new(NoRuns),
            model: Some(model),
        }
    }

    pub(crate) fn into_host(self) -> Host {
        let cores = available_parallelism().map_or(2, |n| n.get());
        let runs = self.runs.into_iter().map(|run| Arc::new(run.into_hosted()));
        Host {
            runs: runs.collect(),
            comparisons: self.comparisons,
            model: self.model,
            quick: Arc::new(Semaphore::new(cores.max(2))),
            analyses: Arc::new(Semaphore::new(ANALYSES_AT_A_TIME)),
            queries: Arc::new(Semaphore::new(QUERIES_AT_A_TIME)),
            pages: Pages::default(),
        }
    }
}

impl ViewedRun {
    fn into_hosted(self) -> HostedRun {
        let info = self.index.info();
        let recorded = self.run.metadata().and_then(|m| m.model.as_ref());
        let recorded = recorded.map_or(&[][..], |model| &model.files);
        // The index puts the files one behind the other in the same order.
        let files = info.model.files.iter().zip(recorded);
        let files = files.map(|(file, recorded)| MappedFile {
            path: PathBuf::from(&recorded.path),
            begin: file.begin,
            size_bytes: file.size_bytes,
        });
        HostedRun {
            files: files.collect(),
            index: RwLock::new(self.index),
            answers: self.answers,
            growth: Mutex::new(Growth {
                name: info.name,
                model: info.model.name,
                version: info.version,
                live: info.live,
                problem: None,
            }),
            results: Mutex::new(None),
        }
    }
}

impl Host {
    /// Does `work` on a thread that may block. Whoever stops waiting before its
    /// turn came, as a page does that pans on, costs nothing.
    pub async fn work(
        &self,
        pace: Pace,
        work: impl FnOnce() -> Result<Reply, Refusal> + Send + 'static,
    ) -> Result<Reply, Refusal> {
        let turns = match pace {
            Pace::Quick => &self.quick,
            Pace::Analysis => &self.analyses,
            Pace::Query => &self.queries,
        };
        let failed = || Refusal::Failed("the viewer is about to end".to_owned());
        let turn = turns.clone().acquire_owned().await;
        let turn = turn.map_err(|_| failed())?;
        // The turn ends with the work, also when nobody waits for it any more.
        let worked = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work()
        });
        match worked.await {
            Ok(reply) => reply,
            Err(error) if error.is_panic() => Err(Refusal::Failed(
                "the viewer failed at this question; its terminal says where, please report it"
                    .to_owned(),
            )),
            Err(_) => Err(failed()),
        }
    }

    pub fn run(&self, number: u64) -> Result<Arc<HostedRun>, Refusal> {
        let run = usize::try_from(number).ok().and_then(|n| self.runs.get(n));
        run.cloned().ok_or_else(|| {
            Refusal::Missing(format!(
                "there is no run {number}; there are {}, counted from 0",
                self.runs.len()
            ))
        })
    }
}

impl HostedRun {
    /// Asks the index; many may at once.
    pub fn read<T>(&self, ask: impl FnOnce(&RunIndex) -> Result<T, Refusal>) -> Result<T, Refusal> {
        // Only a refresh that panicked poisons the lock, and then nobody knows
        // what the index holds.
        let index = self.index.read().map_err(|_| {
            Refusal::Failed("the index broke while it grew; start the viewer again".to_owned())
        })?;
        ask(&index)
    }

    /// What no filter changes.
    pub fn info(&self) -> Result<Info, Refusal> {
        // The version first: if the run grows meanwhile, the page asks again.
        let (version, live, problem) = {
            let growth = self.growth();
            (growth.version, growth.live, growth.problem.clone())
        };
        let mut info = self.read(|index| Ok(index.info()))?;
        (info.version, info.live) = (version, live);
        info.missing.extend(problem);
        Ok(info)
    }

    /// And whether it may still grow.
    pub fn version(&self) -> (u64, bool) {
        let growth = self.growth();
        (growth.version, growth.live)
    }

    /// For the list of runs.
    pub fn brief(&self, number: usize) -> RunName {
        let growth = self.growth();
        RunName {
            run: number,
            name: growth.name.clone(),
            model: growth.model.clone(),
            live: growth.live,
        }
    }

    /// Takes in what was recorded since, and says whether to go on.
    pub fn refresh(&self) -> ControlFlow<()> {
        let refreshed = match self.index.write() {
            Ok(mut index) => index.refresh().map_err(|error| error.to_string()),
            Err(_) => Err("the index broke while it grew; start the viewer again".to_owned()),
        };
        let mut growth = self.growth();
        match refreshed {
            Ok(changed) => {
                growth.version += u64::from(changed.new_evals > 0 || changed.live != growth.live);
                growth.live = changed.live;
            }
            Err(problem) => {
                growth.version += 1;
                growth.live = false;
                growth.problem = Some(format!("what was recorded later is not shown: {problem}"));
            }
        }
        if growth.live {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    }

    fn growth(&self) -> MutexGuard<'_, Growth> {
        // Nothing that is done under the lock can panic.
        self.growth.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The analysis, computed by the first who asks while the others wait.
    pub fn results(&self) -> Result<Arc<Value>, Refusal> {
        let (version, _) = self.version();
        // Nothing inside the lock leaves it half done.
        let mut kept = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, results)) = &*kept
            && *at >= version
        {
            return Ok(results.clone());
        }
        let results = self.answers.results().map_err(Refusal::Failed)?;
        *kept = Some((version, results.clone()));
        Ok(results)
    }
}
