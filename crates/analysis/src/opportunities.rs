//! What each way of using memory would read from disk for a token, and how fast it
//! would be: the answers of crate `plan` at several budgets, in words.
//!
//! `plan` and `run` ask the same function, so at one memory for weights, on one machine, they
//! say the same. `docs/analysis.md` has the definitions.

pub use plan::Machine;
use plan::{Answer, Question, RoutingSequence, Strategies, Use, Weight, choose::least_bytes};
use serde::{Deserialize, Serialize};

use crate::{curves::Curves, findings::text::bytes as human, sequence::Sequence};

/// A way of using a budget of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// What llama.cpp does today: map the file and let the page cache do it (LRU).
    PageCache,
    /// Keep what fits, leave the rest to the page cache.
    Pin,
    /// Read everything in the order of its use, keep nothing.
    Stream,
    /// Keep what fits, stream the others in order; experts whole.
    PinAndStream,
    /// The same, with experts read one by one and kept in slots.
    ExpertCache,
}

impl Strategy {
    /// For a sentence: "… reads 3 MiB per token".
    pub fn words(self) -> &'static str {
        match self {
            Strategy::PageCache => "the page cache",
            Strategy::Pin => "pinning weights",
            Strategy::Stream => "streaming in order",
            Strategy::PinAndStream => "pinning weights and streaming the rest",
            Strategy::ExpertCache => "pinning the dense weights and caching experts",
        }
    }
}

/// Whether the weights have room in a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fit {
    /// The program alone takes it all.
    No,
    /// Some of them, at a time.
    Some,
    All,
}

/// The outlook at several budgets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Opportunities {
    pub generated_tokens: u64,
    /// Bytes of all weights that the run used.
    pub footprint_bytes: u64,
    /// Of the model's weights, the slices of experts.
    pub expert_bytes: u64,
    /// Weight bytes that computing one token reads from memory.
    pub used_bytes_per_token: u64,
    /// Memory that the program needs besides; `None` where the model's file is gone.
    pub beside_weights_bytes: Option<u64>,
    /// Memory of the whole program below which no way helps; only where a budget is smaller
    /// than what it needs besides weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub least_program_bytes: Option<u64>,
    /// `None` where nobody measured: then there are no times.
    pub machine: Option<Machine>,
    /// Whether somebody asked for these budgets, and not for even steps.
    pub budgets_are_given: bool,
    pub budgets: Vec<BudgetOutlook>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BudgetOutlook {
    /// Memory for the whole program; `None` where its other needs are not known.
    pub program_bytes: Option<u64>,
    /// Memory for weights.
    pub budget_bytes: u64,
    pub fit: Fit,
    /// Belady's optimum over pages: no policy reads less.
    pub least_disk_bytes_per_token: u64,
    /// The page cache first.
    pub strategies: Vec<StrategyOutlook>,
    /// The fastest that helps. Where no machine is given, the one that reads the least, and what
    /// is read ahead before what stops computing.
    pub best: Option<Strategy>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StrategyOutlook {
    pub strategy: Strategy,
    /// `None` where the strategy does not apply or does not fit: the verdict says which.
    pub disk_bytes_per_token: Option<u64>,
    /// Of these, bytes whose address is known only when the router has chosen.
    pub routed_bytes_per_token: u64,
    pub nanos_per_token: Option<u64>,
    pub tokens_per_second: Option<f64>,
    /// Between what that may lie; `None` in files of older versions.
    #[serde(default)]
    pub tokens_per_second_low: Option<f64>,
    #[serde(default)]
    pub tokens_per_second_high: Option<f64>,
    /// Against the page cache.
    pub speedup: Option<f64>,
    pub verdict: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Help {
    Helps,
    /// It could be done, and would be no better.
    WouldNotHelp,
    /// With more memory it could be done.
    DoesNotFit,
    /// It is for other models, whatever the memory.
    DoesNotApply,
    /// What the others are compared with.
    Baseline,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    pub help: Help,
    /// One sentence with the numbers that decide.
    pub reason: String,
}

const PINS: Strategies = Strategies {
    pin: true,
    stream: false,
    experts: false,
};

/// What the outlook is made from.
pub struct Parts<'a> {
    /// Bytes of all weights that the run used.
    pub footprint_bytes: u64,
    /// In the order of their use.
    pub weights: &'a [Weight],
    pub routing: &'a RoutingSequence,
    /// At page granularity, with a point for each budget.
    pub page_curves: &'a Curves,
    /// See [`Opportunities`].
    pub beside_weights_bytes: Option<u64>,
    /// Of the whole program, one for each point of the curves; or none.
    pub given_bytes: &'a [u64],
    /// Its disk's speed is not positive where nobody measured.
    pub machine: Machine,
}

impl Opportunities {
    /// `None` when the run generated no token.
    pub fn of(sequence: &Sequence, parts: &Parts) -> Option<Opportunities> {
        let tokens = sequence.generated_tokens();
        if tokens == 0 {
            return None;
        }
        let (weights, machine) = (parts.weights, parts.machine);
        let touched: f64 = weights.iter().map(Weight::touched_bytes).sum();
        let budgets = parts.page_curves.points.iter().enumerate();
        let budgets = budgets.map(|(at, point)| {
            let given = parts.given_bytes.get(at).copied();
            let steps = || Some(point.budget_bytes + parts.beside_weights_bytes?);
            let least = point.belady.generate.bytes.div_ceil(tokens);
            parts.outlook(given.or_else(steps), point.budget_bytes, least)
        });
        let budgets: Vec<BudgetOutlook> = budgets.collect();
        let lacks = budgets.iter().any(|outlook| outlook.fit == Fit::No);
        Some(Opportunities {
            beside_weights_bytes: parts.beside_weights_bytes,
            least_program_bytes: lacks.then(|| parts.least_program_bytes()).flatten(),
            budgets_are_given: !parts.given_bytes.is_empty(),
            generated_tokens: tokens,
            footprint_bytes: parts.footprint_bytes,
            expert_bytes: parts.expert_bytes(),
            used_bytes_per_token: touched.round() as u64,
            machine: (machine.disk_bytes_per_second > 0.0).then_some(machine),
            budgets,
        })
    }

    /// All budgets that somebody asked for; of even steps those nearest to a quarter, half and
    /// three quarters of the weights.
    pub fn shown(&self) -> Vec<&BudgetOutlook> {
        if self.budgets_are_given {
            return self.budgets.iter().collect();
        }
        let mut shown: Vec<usize> = (1..=3)
            .filter_map(|n| {
                let wanted = self.footprint_bytes / 4 * n;
                let distance = |at: &usize| self.budgets[*at].budget_bytes.abs_diff(wanted);
                (0..self.budgets.len()).min_by_key(distance)
            })
            .collect();
        shown.dedup();
        shown.into_iter().map(|at| &self.budgets[at]).collect()
    }
}

impl BudgetOutlook {
    /// What to tell `tensorscope run` so that it does the best; nothing where it does so anyway.
    pub fn strategy_flag(&self) -> Option<&'static str> {
        let reads = |strategy| self.of(strategy).and_then(|of| of.disk_bytes_per_token);
        let best = self.best?;
        let usual = reads(Strategy::ExpertCache).or_else(|| reads(Strategy::PinAndStream));
        match best {
            _ if reads(best) == usual => None,
            Strategy::Pin => Some("--strategy pin"),
            Strategy::Stream => Some("--strategy stream"),
            Strategy::PinAndStream => Some("--strategy pin,stream"),
            Strategy::PageCache | Strategy::ExpertCache => None,
        }
    }

    pub fn of(&self, strategy: Strategy) -> Option<&StrategyOutlook> {
        self.strategies.iter().find(|s| s.strategy == strategy)
    }
}

impl Parts<'_> {
    fn expert_bytes(&self) -> u64 {
        let is_expert = |weight: &&Weight| matches!(weight.usage, Use::Experts { .. });
        let experts = self.weights.iter().filter(is_expert);
        experts.map(|weight| weight.bytes).sum()
    }

    fn answer(&self, weights_bytes: u64, strategies: Strategies) -> Answer {
        let question = Question {
            weights: self.weights,
            weights_bytes,
            strategies,
            machine: self.machine,
            routing: strategies.experts.then_some(self.routing),
            policy: None,
            tokens: None,
        };
        question.answer()
    }

    /// The least memory, to a mebibyte, with which keeping weights beats the page cache, or with
    /// which it keeps all of them.
    fn least_program_bytes(&self) -> Option<u64> {
        let beside = self.beside_weights_bytes?;
        let least = least_bytes(self.footprint_bytes, |weights_bytes| {
            let answer = self.answer(weights_bytes, PINS);
            answer.why_not.is_none() || answer.predicted.stock.bytes_read_per_token == 0
        });
        Some((beside + least?).next_multiple_of(1 << 20))
    }

    fn outlook(
        &self,
        program_bytes: Option<u64>,
        budget_bytes: u64,
        least_disk_bytes_per_token: u64,
    ) -> BudgetOutlook {
        let only = |pin, stream, experts| Strategies {
            pin,
            stream,
            experts,
        };
        let streamed = self.answer(budget_bytes, only(false, true, false));
        let both = self.answer(budget_bytes, only(true, true, false));
        let strategies = vec![
            stock(&streamed),
            self.fed(Strategy::Pin, &self.answer(budget_bytes, PINS)),
            self.fed(Strategy::Stream, &streamed),
            self.fed(Strategy::PinAndStream, &both),
            self.fed(
                Strategy::ExpertCache,
                &self.answer(budget_bytes, Strategies::ALL),
            ),
        ];
        let helps = |outlook: &&StrategyOutlook| outlook.verdict.help == Help::Helps;
        // By bytes alone a ring is memory lost; what it gives, reads that overlap computing, is
        // in times.
        let streams = !both.choice.streamed.is_empty() && both.why_not.is_none();
        let pins_count = both.predicted.tokens_per_second.is_some() || !streams;
        let best = strategies
            .iter()
            .filter(helps)
            .filter(|outlook| pins_count || outlook.strategy != Strategy::Pin)
            .min_by_key(|outlook| (outlook.nanos_per_token, outlook.disk_bytes_per_token))
            .map(|outlook| outlook.strategy);
        let reads_nothing = streamed.predicted.stock.bytes_read_per_token == 0;
        BudgetOutlook {
            fit: match program_bytes.zip(self.beside_weights_bytes) {
                Some((program, beside)) if program <= beside => Fit::No,
                _ if reads_nothing => Fit::All,
                _ => Fit::Some,
            },
            program_bytes,
            budget_bytes,
            least_disk_bytes_per_token,
            strategies,
            best,
        }
    }

    fn fed(&self, strategy: Strategy, answer: &Answer) -> StrategyOutlook {
        let applies = strategy != Strategy::ExpertCache || self.expert_bytes() > 0;
        let does_something = answer.choice.does_something(self.weights);
        let (help, reason) = match &answer.why_not {
            _ if !applies => (
                Help::DoesNotApply,
                "does not apply: the model has no experts".into(),
            ),
            _ if !does_something && !answer.all_fits => {
                (Help::DoesNotFit, self.lack(strategy, answer))
            }
            Some(reason) => (Help::WouldNotHelp, format!("would not help: {reason}")),
            None => (Help::Helps, self.gain(answer)),
        };
        let verdict = Verdict { help, reason };
        if !applies || !does_something {
            return StrategyOutlook {
                strategy,
                disk_bytes_per_token: None,
                routed_bytes_per_token: 0,
                nanos_per_token: None,
                tokens_per_second: None,
                tokens_per_second_low: None,
                tokens_per_second_high: None,
                speedup: None,
                verdict,
            };
        }
        let predicted = &answer.predicted;
        let stock = predicted.stock.tokens_per_second;
        StrategyOutlook {
            strategy,
            disk_bytes_per_token: Some(predicted.bytes_read_per_token),
            routed_bytes_per_token: answer.routed_bytes_per_token,
            nanos_per_token: predicted.tokens_per_second.map(nanos),
            tokens_per_second: predicted.tokens_per_second,
            tokens_per_second_low: predicted.tokens_per_second_low,
            tokens_per_second_high: predicted.tokens_per_second_high,
            speedup: predicted
                .tokens_per_second
                .zip(stock)
                .map(|(ours, stock)| ours / stock),
            verdict,
        }
    }

    fn lack(&self, strategy: Strategy, answer: &Answer) -> String {
        let what = match strategy {
            Strategy::PageCache | Strategy::Stream => "streamed",
            Strategy::Pin => "kept",
            Strategy::PinAndStream | Strategy::ExpertCache => "kept or streamed",
        };
        format!(
            "does not fit: nothing can be {what} with {} for weights of {}",
            human(answer.wanted.weights_bytes),
            human(answer.predicted.weight_bytes)
        )
    }

    fn gain(&self, answer: &Answer) -> String {
        let predicted = &answer.predicted;
        let ours = human(predicted.bytes_read_per_token);
        let stock = human(predicted.stock.bytes_read_per_token);
        let times = predicted
            .tokens_per_second
            .zip(predicted.stock.tokens_per_second);
        match times {
            None => format!("reads {ours} per token instead of {stock}"),
            Some((speed, stock_speed)) => format!(
                "{} per token instead of {} (reads {ours} instead of {stock}; {} with all in memory)",
                millis(speed.recip()),
                millis(stock_speed.recip()),
                millis(answer.machine.resident_seconds(self.weights)),
            ),
        }
    }
}

/// llama.cpp alone, which is the same whatever we would do.
fn stock(answer: &Answer) -> StrategyOutlook {
    let stock = &answer.predicted.stock;
    StrategyOutlook {
        strategy: Strategy::PageCache,
        disk_bytes_per_token: Some(stock.bytes_read_per_token),
        routed_bytes_per_token: 0,
        nanos_per_token: stock.tokens_per_second.map(nanos),
        tokens_per_second: stock.tokens_per_second,
        tokens_per_second_low: stock.tokens_per_second_low,
        tokens_per_second_high: stock.tokens_per_second_high,
        speedup: stock.tokens_per_second.map(|_| 1.0),
        verdict: Verdict {
            help: Help::Baseline,
            reason: format!("reads {} per token", human(stock.bytes_read_per_token)),
        },
    }
}

fn nanos(tokens_per_second: f64) -> u64 {
    (1e9 / tokens_per_second).round() as u64
}

fn millis(seconds: f64) -> String {
    format!("{:.3} ms", seconds * 1e3)
}
