//! What each way of using memory would read from disk for a token, and how fast it
//! would be: the answers of crate `plan` at several budgets, in words.
//!
//! `plan` and `run` ask the same function, so at one memory for weights, on one machine, they
//! say the same. `docs/analysis.md` has the definitions.

pub use plan::Machine;
use plan::{Answer, Question, RoutingSequence, Strategies, Use, Weight};
use serde::{Deserialize, Serialize};

use crate::{curves::Curves, findings::text::bytes as human, sequence::Sequence};

/// A way of using a budget of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// What llama.cpp does today: map the file and let the page cache do it (LRU).
    PageCache,
    /// Read everything in the order of its use, keep nothing.
    Stream,
    /// Keep what fits, stream the others in order; experts whole.
    PinAndStream,
    /// The same, with experts read one by one and kept in slots.
    ExpertCache,
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
    /// `None` where nobody measured: then there are no times.
    pub machine: Option<Machine>,
    pub budgets: Vec<BudgetOutlook>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BudgetOutlook {
    /// Memory for weights.
    pub budget_bytes: u64,
    /// Belady's optimum over pages: no policy reads less.
    pub least_disk_bytes_per_token: u64,
    /// The page cache first.
    pub strategies: Vec<StrategyOutlook>,
    /// The fastest that helps; by bytes where no machine is given.
    pub best: Option<Strategy>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StrategyOutlook {
    pub strategy: Strategy,
    /// `None` where the strategy does not apply or does not fit.
    pub disk_bytes_per_token: Option<u64>,
    /// Of these, bytes whose address is known only when the router has chosen.
    pub routed_bytes_per_token: u64,
    pub nanos_per_token: Option<u64>,
    pub tokens_per_second: Option<f64>,
    /// Against the page cache.
    pub speedup: Option<f64>,
    pub verdict: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Help {
    Helps,
    WouldNotHelp,
    /// What the others are compared with.
    Baseline,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    pub help: Help,
    /// One sentence with the numbers that decide.
    pub reason: String,
}

/// What the outlook is made from.
pub struct Parts<'a> {
    /// Bytes of all weights that the run used.
    pub footprint_bytes: u64,
    /// In the order of their use.
    pub weights: &'a [Weight],
    pub routing: &'a RoutingSequence,
    /// At page granularity, with a point for each budget.
    pub page_curves: &'a Curves,
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
        let budgets = parts.page_curves.points.iter().map(|point| {
            let least = point.belady.generate.bytes.div_ceil(tokens);
            parts.outlook(point.budget_bytes, least)
        });
        Some(Opportunities {
            generated_tokens: tokens,
            footprint_bytes: parts.footprint_bytes,
            expert_bytes: parts.expert_bytes(),
            used_bytes_per_token: touched.round() as u64,
            machine: (machine.disk_bytes_per_second > 0.0).then_some(machine),
            budgets: budgets.collect(),
        })
    }
}

impl Parts<'_> {
    fn expert_bytes(&self) -> u64 {
        let is_expert = |weight: &&Weight| matches!(weight.usage, Use::Experts { .. });
        let experts = self.weights.iter().filter(is_expert);
        experts.map(|weight| weight.bytes).sum()
    }

    fn outlook(&self, budget_bytes: u64, least_disk_bytes_per_token: u64) -> BudgetOutlook {
        let answer = |stream: bool, pin: bool, experts: bool| {
            let question = Question {
                weights: self.weights,
                weights_bytes: budget_bytes,
                strategies: Strategies {
                    pin,
                    stream,
                    experts,
                },
                machine: self.machine,
                routing: Some(self.routing),
                policy: None,
            };
            question.answer()
        };
        let streamed = answer(true, false, false);
        let strategies = vec![
            stock(&streamed),
            self.fed(Strategy::Stream, &streamed),
            self.fed(Strategy::PinAndStream, &answer(true, true, false)),
            self.fed(Strategy::ExpertCache, &answer(true, true, true)),
        ];
        let best = strategies
            .iter()
            .filter(|outlook| outlook.verdict.help == Help::Helps)
            .min_by_key(|outlook| (outlook.nanos_per_token, outlook.disk_bytes_per_token))
            .map(|outlook| outlook.strategy);
        BudgetOutlook {
            budget_bytes,
            least_disk_bytes_per_token,
            strategies,
            best,
        }
    }

    fn fed(&self, strategy: Strategy, answer: &Answer) -> StrategyOutlook {
        let no = |reason: String| Verdict {
            help: Help::WouldNotHelp,
            reason: format!("would not help: {reason}"),
        };
        let applies = strategy != Strategy::ExpertCache || self.expert_bytes() > 0;
        let does_something = answer.choice.does_something(self.weights);
        let verdict = match &answer.why_not {
            _ if !applies => no("the model has no experts".into()),
            Some(reason) => no(reason.clone()),
            None => Verdict {
                help: Help::Helps,
                reason: self.gain(answer),
            },
        };
        if !applies || !does_something {
            return StrategyOutlook {
                strategy,
                disk_bytes_per_token: None,
                routed_bytes_per_token: 0,
                nanos_per_token: None,
                tokens_per_second: None,
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
            speedup: predicted
                .tokens_per_second
                .zip(stock)
                .map(|(ours, stock)| ours / stock),
            verdict,
        }
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
