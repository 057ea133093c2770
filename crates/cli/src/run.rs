//! `tensorscope run`: generate with a model larger than memory, its weights fed.

mod args;
mod drafting;
mod generation;

use std::{process::ExitCode, time::Instant};

use anyhow::{Context as _, bail};
use engine::{
    context::{Context, Windows},
    feeding::Feeding,
    generate::generate_drafted,
    loading::Loading,
    model::{Model, Repack},
};
use feed::{Distribution, Faults, Method, Props, ReadAhead};
use indicatif::HumanBytes;
use kernelio::pressure::{MemoryLimit, drop_cache};
use launch::{
    attach::{self, AttachProps, Purpose, Repacking, Verbosity},
    budget::available_bytes,
    feeding::{self, FeedProps},
    gpu::GpuTimes,
    planning::{self, Question},
    underneath::UnderneathArgs,
};
use plan::{Machine, Policy, Strategies, TokenSpan};
use planfile::Plan;
use terminal::signals;

pub use self::args::Args;
use self::args::Draft;
use self::{drafting::Guesser, generation::Generation};
use crate::{
    engine_args::{DEFAULT_TOKENS, EngineArgs, MemoryCounts, Prompts},
    record::directory::{Outcome, Started, Tables, finish, make_tables},
    truncated,
};

/// How somebody wants to be fed.
pub struct Wish {
    pub strategies: Strategies,
    pub policy: Option<Policy>,
    pub method: Option<Method>,
    pub faults: Option<Faults>,
    /// Feed also a model that fits.
    pub always: bool,
    /// Experts that are drawn instead of what the router says.
    pub routing: Option<Distribution>,
    pub keeps_routing: bool,
    pub read_ahead: ReadAhead,
}

impl Wish {
    /// These strategies, and all else as it is best.
    pub fn new(strategies: Strategies) -> Wish {
        Wish {
            strategies,
            policy: None,
            method: None,
            faults: None,
            always: false,
            routing: None,
            keeps_routing: false,
            read_ahead: ReadAhead::default(),
        }
    }
}

/// How a run is fed.
pub enum Feed {
    /// The model fits, or nothing was asked for.
    Aside {
        budget_bytes: u64,
        was_asked_for: bool,
    },
    Fed(Box<Props>),
}

impl Feed {
    /// Says when nothing is fed though somebody wants it.
    pub fn said(self, model: &gguf::Model, is_quiet: bool) -> Option<Box<Props>> {
        match self {
            Feed::Fed(props) => Some(props),
            Feed::Aside {
                budget_bytes,
                was_asked_for,
            } => {
                if was_asked_for && !is_quiet {
                    eprintln!(
                        "tensorscope: {} fits into {}: llama.cpp runs as it is",
                        HumanBytes(model.len_bytes()),
                        HumanBytes(budget_bytes)
                    );
                }
                None
            }
        }
    }
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    if !args.program.is_empty() {
        return program(args);
    }
    args.engine.check_model("run")?;
    let begin = Instant::now();
    let prompts = match &args.prompts {
        Some(path) => args.engine.prompts_of(path)?,
        None => args.engine.prompts()?,
    };
    let model = gguf::Model::open(args.engine.model())?;
    let draft_file = args
        .draft_model
        .as_deref()
        .map(gguf::Model::open)
        .transpose()?;
    let plan = args.plan.as_deref().map(Plan::read).transpose()?;
    if let Some(plan) = &plan {
        plan.check(&model)?;
    }
    let budget_bytes = budget(&args, &model, plan.as_ref())?;
    if args.cold {
        for file in model.files() {
            drop_cache(&file.path)?;
        }
    }
    let wish = args.wish();
    let mut asked = Asked::new(&args.engine, &prompts);
    if args.draft == Draft::Ngram || draft_file.is_some() {
        asked.windows = Windows::Whole;
    }
    if let Some(file) = &draft_file {
        asked.keep_beside(file);
    }
    if draft_file.is_some() && args.memory.is_some() && asked.beside_bytes >= budget_bytes {
        bail!(
            "--draft-model: it takes about {} with its cache and buffers, and the memory for all is {}; \
             give more --memory, or a smaller model",
            HumanBytes(asked.beside_bytes),
            HumanBytes(budget_bytes)
        );
    }
    let feed = decide(&asked, &wish, &model, plan, budget_bytes).said(&model, args.quiet);
    // Before the model is loaded: a bad path must not wait for that.
    let mut started = args
        .record
        .as_deref()
        .map(|path| Started::create(path, &model))
        .transpose()?;
    truncated::guard(&model, args.record.clone().map(|path| (path, args.quiet)));
    signals::catch();
    let limit = enter(&args, budget_bytes)?;
    let loading = match feed {
        Some(_) if args.strategy != Strategies::NONE => Loading::Lazy,
        _ => Loading::AsFound,
    };
    let counts = match feed {
        Some(_) => MemoryCounts::Yes,
        None => MemoryCounts::No,
    };
    // Guesses that nobody asked for are not worth a larger cache.
    let pays = feed.is_some() && asked.whole_windows_bytes(&model) == 0;
    let guesser = drafting::guesser(&args, &prompts, pays)?;
    let repack = repack(&args, feed.is_some(), guesser);
    let mut prepared = args.engine.prepare(prompts, repack, loading, counts)?;
    if guesser.is_some() {
        prepared.context.windows = Windows::Whole;
    }
    let small = args
        .draft_model
        .as_deref()
        .map(Model::load_into_memory)
        .transpose()?;
    if let Some(advice) = args.madvise {
        prepared
            .model
            .advise(advice.number())
            .context("the kernel does not take the advice")?;
    }
    let mut context = Context::new(&prepared.model, prepared.context.clone())?;
    let mut drafting = drafting::drafting(&args, guesser, &prepared, small.as_ref())?;
    let load = begin.elapsed();
    let predicted = feed.as_ref().and_then(|p| p.predicted_tokens_per_second);
    let feeding = feed.map(|props| Feeding::new(*props));
    let mut generation = Generation::new(&prepared, feeding, &args, begin);
    generation.predicted = predicted;
    if let Some(started) = &mut started {
        generation.record(started.directory(), &prepared)?;
    }
    let directory = started.map(Started::keep);
    let result = generate_drafted(
        &prepared.model,
        &mut context,
        &prepared.generate,
        drafting.as_mut(),
        &mut generation,
    );
    generation.drafted = drafting.as_ref().map(|drafting| drafting.counts);
    let usage = limit.as_ref().and_then(|limit| limit.usage().ok());
    let report = generation.report(&args, &prepared, load, usage, budget_bytes);
    generation.finish();
    let (closed, fed) = (generation.close_log(), generation.described());
    let routed = args
        .routing_file
        .as_deref()
        .map(|path| generation.write_routing(path));
    // The memory of weights goes before the model that points into it.
    drop(generation);
    drop(limit);
    let signal = signals::asked().filter(|_| result.as_ref().is_ok_and(|g| g.interrupted));
    let code = match directory.zip(closed) {
        Some((directory, closed)) => {
            let outcome = Outcome {
                prompt_tokens: report.prompt_tokens,
                generated_tokens: report.generated_tokens,
                interrupted: signal,
                bound: None,
                evaluating: None,
                engine_error: result.err(),
                fed,
                closed,
            };
            finish(args.quiet, Tables::Made, directory, outcome)?
        }
        None => {
            result?;
            signal.map_or(ExitCode::SUCCESS, |s| ExitCode::from(signals::exit_code(s)))
        }
    };
    routed.transpose()?;
    if args.json {
        terminal::print(&serde_json::to_string_pretty(&report)?)?;
    }
    if !args.quiet {
        report.print();
    }
    Ok(code)
}

/// A model that is in memory as a whole may as well be there in the order that is fastest. Not
/// where what is computed is to be compared, bit for bit, or found in the file.
fn repack(args: &Args, is_fed: bool, guesser: Option<Guesser>) -> Repack {
    let is_compared = args.strategy == Strategies::NONE || args.madvise.is_some();
    match is_fed || is_compared || args.record.is_some() || guesser.is_some() {
        true => Repack::Off,
        false => Repack::On,
    }
}

/// The llama.cpp inside a program is fed, and recorded if that is asked for.
fn program(args: Args) -> anyhow::Result<ExitCode> {
    let record = args.record;
    let feed = FeedProps {
        program: args.program.clone(),
        memory: args.memory,
        plan: args.plan,
        strategies: args.strategy,
        policy: args.policy,
        method: args.read_with,
        faults: args.inject,
        always: args.always,
        cold: args.cold,
        no_limit: args.no_limit,
        quiet: args.quiet,
    };
    let Some(output) = record else {
        return Ok(ExitCode::from(feeding::run(&feed)?));
    };
    let attached = attach::run(&AttachProps {
        program: args.program,
        output: Some(output),
        duration: None,
        max_log_bytes: None,
        max_tokens: None,
        repacking: Repacking::Prevented,
        purpose: Purpose::Record,
        underneath: UnderneathArgs::default(),
        feed: Some(feed),
        gpu_times: GpuTimes::default(),
        verbosity: match args.quiet {
            true => Verbosity::Quiet,
            false => Verbosity::Normal,
        },
    })?;
    if let Some(run) = attached.run {
        make_tables(&run, Tables::Made);
    }
    Ok(ExitCode::from(attached.exit_code))
}

/// What was asked for, what the plan was made for, or what is free.
fn budget(args: &Args, model: &gguf::Model, plan: Option<&Plan>) -> anyhow::Result<u64> {
    if let Some(memory) = args.memory {
        return memory.of(model.len_bytes());
    }
    if let Some(plan) = plan {
        return Ok(plan.memory.budget_bytes);
    }
    available_bytes().context("cannot find out how much memory is free; give --memory")
}

/// What is to be computed, as far as that decides on memory.
pub struct Asked<'a> {
    engine: &'a EngineArgs,
    /// At most.
    prompt_tokens: usize,
    sequences: usize,
    /// Of another model that is in memory meanwhile.
    beside_bytes: u64,
    windows: Windows,
}

impl Asked<'_> {
    pub fn new<'a>(engine: &'a EngineArgs, prompts: &Prompts) -> Asked<'a> {
        Asked {
            engine,
            prompt_tokens: prompts.max_tokens(),
            sequences: prompts.parallel,
            beside_bytes: 0,
            windows: Windows::Narrow,
        }
    }

    /// Another model is kept in memory, with a cache and buffers of its own.
    fn keep_beside(&mut self, other: &gguf::Model) {
        self.beside_bytes = other.len_bytes() + self.other_bytes(other);
    }

    fn generated_tokens(&self) -> u32 {
        self.engine.tokens.unwrap_or(DEFAULT_TOKENS)
    }

    /// Tokens that the context has to hold, about.
    fn needed_context(&self) -> u64 {
        let tokens = self.generated_tokens() as usize;
        (self.prompt_tokens + tokens * self.sequences).next_multiple_of(256) as u64
    }

    fn context(&self) -> u64 {
        self.engine.context.map_or(self.needed_context(), u64::from)
    }

    fn micro_batch(&self) -> u64 {
        let batch = self
            .engine
            .micro_batch(self.prompt_tokens, MemoryCounts::Yes);
        u64::from(batch).min(self.context())
    }

    fn other_bytes(&self, model: &gguf::Model) -> u64 {
        let (context, batch) = (self.context(), self.micro_batch());
        let windows = match self.windows {
            Windows::Narrow if self.sequences <= 1 => 0,
            // A window for each sequence, which is no more than the whole.
            Windows::Narrow | Windows::Whole => self.whole_windows_bytes(model),
        };
        let other = planning::other_bytes(model, self.engine.key_type, context, batch);
        other + windows + self.beside_bytes
    }

    fn whole_windows_bytes(&self, model: &gguf::Model) -> u64 {
        planning::whole_windows_bytes(model, self.engine.key_type, self.context())
    }

    fn question<'m>(
        &self,
        wish: &Wish,
        model: &'m gguf::Model,
        plan: Option<&Plan>,
        budget_bytes: u64,
    ) -> Question<'m> {
        let threads = self.engine.threads.map_or_else(
            || std::thread::available_parallelism().map_or(1, |n| n.get()),
            usize::from,
        );
        let weights = plan::weights_of(model);
        let machine = match plan {
            // Who made it has measured.
            Some(plan) => Machine::new(plan.assumed.disk_bytes_per_second),
            None => planning::machine_here(&model.files()[0].path, threads, &weights)
                .unwrap_or_else(planning::usual_machine),
        };
        Question {
            model,
            weights,
            budget_bytes,
            other_bytes: self.other_bytes(model),
            strategies: wish.strategies,
            machine: planning::guessing_compute(machine, model, threads),
            routing: None,
            policy: wish.policy,
            tokens: Some(TokenSpan::of_run(self.generated_tokens())),
        }
    }

    fn advice(&self, question: &Question<'_>) -> String {
        let context = (self.context(), self.needed_context());
        let savings = planning::savings(question.model, context, self.micro_batch());
        planning::advice(&savings, question.least_budget(), question.budget_bytes)
    }
}

/// Whether and how a model is fed within a budget.
pub fn decide(
    asked: &Asked<'_>,
    wish: &Wish,
    model: &gguf::Model,
    plan: Option<Plan>,
    budget_bytes: u64,
) -> Feed {
    let strategies = match &plan {
        Some(plan) if wish.strategies == Strategies::ALL => plan.strategies,
        _ => wish.strategies,
    };
    let other = asked.other_bytes(model);
    let fits = model.len_bytes() + other + feed::MARGIN_BYTES <= budget_bytes && !wish.always;
    let feeds = strategies != Strategies::NONE && !fits;
    if !feeds && wish.routing.is_none() {
        return Feed::Aside {
            budget_bytes,
            was_asked_for: wish.strategies != Strategies::NONE,
        };
    }
    let is_given = plan.is_some();
    let question = asked.question(wish, model, plan.as_ref(), budget_bytes);
    let advice = asked.advice(&question);
    let plan = plan.unwrap_or_else(|| question.answer().plan);
    let policy = plan.experts.as_ref().map(|experts| experts.policy);
    Feed::Fed(Box::new(Props {
        budget_bytes,
        strategies: match feeds {
            true => strategies,
            false => Strategies::NONE,
        },
        policy: wish.policy.or(policy).unwrap_or_default(),
        block_bytes: u32::try_from(plan.ring.read_bytes).unwrap_or(planning::BLOCK_BYTES),
        depth: plan.ring.depth,
        machine: Machine {
            compute_seconds_per_token: plan.assumed.compute_seconds_per_token,
            ..Machine::new(plan.assumed.disk_bytes_per_second)
        },
        predicted_tokens_per_second: plan.predicted.speed().filter(|_| feeds),
        plan: is_given.then(|| plan.named_choice()),
        method: wish.method.unwrap_or(Method::IoUringDirect),
        faults: wish.faults.clone(),
        routing: wish.routing,
        routing_seed: 1,
        keeps_routing: wish.keeps_routing,
        read_ahead: wish.read_ahead,
        advice: Some(advice),
    }))
}

/// Into a memory cgroup of the budget's size, where we may make one.
fn enter(args: &Args, budget_bytes: u64) -> anyhow::Result<Option<MemoryLimit>> {
    if args.memory.is_none() || args.no_limit {
        return Ok(None);
    }
    let entered = MemoryLimit::new(budget_bytes).and_then(|mut limit| {
        limit.enter()?;
        Ok(limit)
    });
    match entered {
        Ok(limit) => Ok(Some(limit)),
        Err(error) if args.quiet => {
            let _ = error;
            Ok(None)
        }
        Err(error) => {
            eprintln!("tensorscope: the budget is planned for, not enforced: {error}");
            Ok(None)
        }
    }
}
