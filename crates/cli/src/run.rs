//! `tensorscope run`: generate with a model larger than memory, its weights fed.

mod args;
mod generation;

use std::{process::ExitCode, time::Instant};

use anyhow::Context as _;
use engine::{
    context::Context, feeding::Feeding, generate::generate, loading::Loading, model::Repack,
};
use feed::{Method, Props};
use indicatif::HumanBytes;
use kernelio::pressure::{MemoryLimit, drop_cache};
use launch::{
    budget::available_bytes,
    feeding::{self, FeedProps},
    planning::{self, Question, USUAL_DISK},
};
use plan::{Machine, Plan, Strategies};
use terminal::signals;

pub use self::args::Args;
use self::generation::Generation;
use crate::engine_args::DEFAULT_TOKENS;

/// How a run is fed.
pub enum Feed {
    /// The model fits, or nothing was asked for.
    Aside,
    Fed(Box<Props>),
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    if !args.program.is_empty() {
        return Ok(ExitCode::from(feeding::run(&of_program(args))?));
    }
    let begin = Instant::now();
    let texts = args.engine.texts()?;
    let model = gguf::Model::open(args.engine.model())?;
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
    let feed = decide(&args, &model, plan, budget_bytes);
    if let (Feed::Aside, true) = (&feed, args.strategy != Strategies::NONE && !args.quiet) {
        eprintln!(
            "tensorscope: {} fits into {}: llama.cpp runs as it is",
            HumanBytes(model.len_bytes()),
            HumanBytes(budget_bytes)
        );
    }
    signals::catch();
    let limit = enter(&args, budget_bytes)?;
    let loading = match feed {
        Feed::Fed(_) if args.strategy != Strategies::NONE => Loading::Lazy,
        _ => Loading::AsFound,
    };
    let prepared = args.engine.prepare(texts, Repack::Off, loading)?;
    if let Some(advice) = args.madvise {
        prepared
            .model
            .advise(advice.number())
            .context("the kernel does not take the advice")?;
    }
    let mut context = Context::new(&prepared.model, prepared.context.clone())?;
    let load = begin.elapsed();
    let (feeding, predicted) = match feed {
        Feed::Aside => (None, None),
        Feed::Fed(props) => {
            let predicted = props.predicted_tokens_per_second;
            (Some(Feeding::new(*props)), predicted)
        }
    };
    let mut generation = Generation::new(&prepared, feeding, &args, begin);
    generation.predicted = predicted;
    let result = generate(
        &prepared.model,
        &mut context,
        &prepared.generate,
        &mut generation,
    );
    let usage = limit.as_ref().and_then(|limit| limit.usage().ok());
    let report = generation.report(&args, &prepared, load, usage, budget_bytes);
    generation.finish();
    if let Some(path) = &args.routing_file {
        generation.write_routing(path)?;
    }
    // The memory of weights goes before the model that points into it.
    drop(generation);
    let generated = result?;
    if args.json {
        terminal::print(&serde_json::to_string_pretty(&report)?)?;
    }
    if !args.quiet {
        report.print();
    }
    Ok(match signals::asked() {
        Some(signal) if generated.interrupted => ExitCode::from(signals::exit_code(signal)),
        _ => ExitCode::SUCCESS,
    })
}

fn of_program(args: Args) -> FeedProps {
    FeedProps {
        program: args.program,
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
    }
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

/// Tokens that the context will hold, about.
fn context_tokens(args: &Args) -> u64 {
    args.engine.context.map(u64::from).unwrap_or_else(|| {
        let prompt: usize = args.engine.prompt.iter().map(String::len).sum();
        let tokens = args.engine.tokens.unwrap_or(DEFAULT_TOKENS);
        (prompt as u64 + u64::from(tokens)).next_multiple_of(256)
    })
}

/// The plan that was given, or one made now.
fn planned(args: &Args, model: &gguf::Model, budget_bytes: u64) -> Plan {
    let batch = u64::from(args.engine.micro_batch.min(args.engine.batch));
    let threads = args.engine.threads.map_or_else(
        || std::thread::available_parallelism().map_or(1, |n| n.get()),
        usize::from,
    );
    let disk = planning::disk_rate(&model.files()[0].path).unwrap_or(USUAL_DISK);
    let question = Question {
        model,
        weights: plan::weights_of(model),
        budget_bytes,
        other_bytes: planning::other_bytes(
            model,
            args.engine.key_type,
            context_tokens(args),
            batch.min(context_tokens(args)),
        ),
        strategies: args.strategy,
        machine: Machine {
            compute_seconds_per_token: Some(planning::guessed_compute_seconds(model, threads)),
            ..Machine::new(disk)
        },
        routing: None,
        policy: args.policy,
    };
    question.answer().plan
}

fn decide(args: &Args, model: &gguf::Model, plan: Option<Plan>, budget_bytes: u64) -> Feed {
    let strategies = match &plan {
        Some(plan) if args.strategy == Strategies::ALL => plan.strategies,
        _ => args.strategy,
    };
    let batch = u64::from(args.engine.micro_batch.min(args.engine.batch));
    let context = context_tokens(args);
    let other = planning::other_bytes(model, args.engine.key_type, context, batch.min(context));
    let fits = model.len_bytes() + other + feed::MARGIN_BYTES <= budget_bytes && !args.always;
    let feeds = strategies != Strategies::NONE && !fits;
    if !feeds && args.routing.is_none() {
        return Feed::Aside;
    }
    let is_given = plan.is_some();
    let plan = match plan {
        Some(plan) => plan,
        None => planned(args, model, budget_bytes),
    };
    let policy = plan.experts.as_ref().map(|experts| experts.policy);
    Feed::Fed(Box::new(Props {
        budget_bytes,
        strategies: match feeds {
            true => strategies,
            false => Strategies::NONE,
        },
        policy: args.policy.or(policy).unwrap_or_default(),
        block_bytes: u32::try_from(plan.ring.read_bytes).unwrap_or(planning::BLOCK_BYTES),
        depth: plan.ring.depth,
        machine: Machine {
            compute_seconds_per_token: plan.assumed.compute_seconds_per_token,
            ..Machine::new(plan.assumed.disk_bytes_per_second)
        },
        predicted_tokens_per_second: plan.predicted.tokens_per_second.filter(|_| feeds),
        plan: is_given.then_some(plan),
        method: args.read_with.unwrap_or(Method::IoUringDirect),
        faults: args.inject.clone(),
        routing: args.routing,
        routing_seed: 1,
        keeps_routing: args.routing_file.is_some(),
    }))
}

/// Into a memory group of the budget's size, where we may make one.
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
