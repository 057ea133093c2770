//! What a fed run was like: for people, and as JSON, which `bench feed` reads.

use feed::{Shares, Snapshot};
use indicatif::HumanBytes;
use serde::{Deserialize, Serialize};
use terminal::text::count;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    pub model: String,
    pub strategies: String,
    pub budget_bytes: u64,
    pub prompt_tokens: u64,
    pub generated_tokens: u64,
    /// From the start of loading.
    pub load_seconds: f64,
    pub first_token_seconds: Option<f64>,
    /// Of each pass after the first token: a token each, or several that were guessed or
    /// belong to several texts.
    pub token_seconds: Vec<f64>,
    /// What the disk gave for each of them.
    pub token_disk_bytes: Vec<u64>,
    /// How many tokens came out of each of them.
    #[serde(default)]
    pub pass_tokens: Vec<u32>,
    /// By the median pass, or by all where they differ in tokens.
    pub tokens_per_second: Option<f64>,
    pub bytes_read_per_token: Option<f64>,
    /// Of the memory cgroup.
    pub peak_bytes: Option<u64>,
    pub limit_bytes: Option<u64>,
    pub oom_kills: Option<u64>,
    pub tokens: Vec<i32>,
    /// Of the bits of all logits of all tokens.
    pub logits_hash: String,
    pub shares: Option<Shares>,
    /// While tokens were generated.
    pub fed: Option<Fed>,
    pub predicted_tokens_per_second: Option<f64>,
    /// Between what it may lie.
    #[serde(default)]
    pub predicted_low: Option<f64>,
    #[serde(default)]
    pub predicted_high: Option<f64>,
    /// Where tokens were guessed.
    #[serde(default)]
    pub drafted: Option<Drafted>,
    /// What was generated, by prompt.
    #[serde(default)]
    pub texts: Vec<String>,
}

/// What became of guessed tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drafted {
    /// Passes that generated tokens, and of these those that checked a guess.
    pub passes: u64,
    pub drafted_passes: u64,
    pub drafted_tokens: u64,
    pub accepted_tokens: u64,
}

impl Drafted {
    fn sentence(&self) -> String {
        if self.drafted_tokens == 0 {
            return "no token was guessed: nothing was worth checking".to_owned();
        }
        format!(
            "{} of {} were right; {} checked one or more",
            self.accepted_tokens,
            count(self.drafted_tokens, "guessed token"),
            match self.drafted_passes {
                1 => format!("1 of {} passes", self.passes),
                passes => format!("{passes} of {} passes", self.passes),
            }
        )
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Fed {
    pub bytes_read: u64,
    pub reads: u64,
    pub repeated_reads: u64,
    pub waited_seconds: f64,
    pub waited_for_experts_seconds: f64,
    pub expert_hits: u64,
    pub expert_misses: u64,
    pub too_many_experts: u64,
    pub experts_read_ahead: u64,
    pub experts_used_ahead: u64,
    pub experts_foreseen: u64,
    pub bytes_read_before: u64,
    /// Memory of the budget that was in use before each evaluation, pages of files that the
    /// kernel may take back left out: the median, and the most.
    #[serde(default)]
    pub used_bytes: u64,
    #[serde(default)]
    pub max_used_bytes: u64,
    /// How often weights were kept in addition, because memory was free, and their bytes.
    #[serde(default)]
    pub times_grown: u64,
    #[serde(default)]
    pub grown_bytes: u64,
    /// How often weights gave memory back, because others needed it, and how much.
    #[serde(default)]
    pub times_given: u64,
    #[serde(default)]
    pub given_bytes: u64,
}

impl Fed {
    pub fn between(before: Snapshot, after: Snapshot) -> Fed {
        let seconds = |nanos: u64| nanos as f64 / 1e9;
        Fed {
            bytes_read: after.bytes_read - before.bytes_read,
            reads: after.reads - before.reads,
            repeated_reads: after.repeated_reads,
            waited_seconds: seconds(after.waited_nanos - before.waited_nanos),
            waited_for_experts_seconds: seconds(
                after.waited_for_experts_nanos - before.waited_for_experts_nanos,
            ),
            expert_hits: after.expert_hits - before.expert_hits,
            expert_misses: after.expert_misses - before.expert_misses,
            too_many_experts: after.too_many_experts,
            experts_read_ahead: after.experts_read_ahead - before.experts_read_ahead,
            experts_used_ahead: after.experts_used_ahead - before.experts_used_ahead,
            experts_foreseen: after.experts_foreseen - before.experts_foreseen,
            bytes_read_before: before.bytes_read,
            used_bytes: after.used_bytes,
            max_used_bytes: after.max_used_bytes,
            times_grown: after.times_grown,
            grown_bytes: after.grown_bytes,
            times_given: after.times_given,
            given_bytes: after.given_bytes,
        }
    }

    pub fn hit_rate(&self) -> Option<f64> {
        let uses = self.expert_hits + self.expert_misses;
        (uses > 0).then(|| self.expert_hits as f64 / uses as f64)
    }
}

impl Report {
    /// The closing lines, on stderr.
    pub fn print(&self) {
        let rate = match self.tokens_per_second {
            Some(rate) => format!("{rate:.2} tokens/s"),
            None => "no token".into(),
        };
        let disk = self.bytes_read_per_token.map_or(String::new(), |bytes| {
            format!(", {} read per token", HumanBytes(bytes as u64))
        });
        let first = self
            .first_token_seconds
            .map_or(String::new(), |s| format!(", first token after {s:.2} s"));
        eprintln!(
            "tensorscope: {} prompt and {}, {rate}{disk}{first}",
            self.prompt_tokens,
            count(self.generated_tokens, "generated token")
        );
        if let Some(drafted) = &self.drafted {
            eprintln!("tensorscope: {}", drafted.sentence());
        }
        if let (Some(shares), Some(fed)) = (&self.shares, &self.fed) {
            let mut parts = vec![match shares.is_nothing_fed() {
                true => "not fed".to_owned(),
                false => format!("{} kept", HumanBytes(shares.pinned_bytes)),
            }];
            if shares.streamed_bytes > 0 {
                parts.push(format!(
                    "{} streamed through {}",
                    HumanBytes(shares.streamed_bytes),
                    HumanBytes(shares.ring_bytes)
                ));
            }
            if let Some(hit_rate) = fed.hit_rate() {
                parts.push(format!(
                    "{:.1} % of expert uses found in {} slots a layer ({})",
                    hit_rate * 100.0,
                    shares.expert_slots,
                    HumanBytes(shares.expert_bytes)
                ));
            }
            if fed.experts_read_ahead > 0 {
                parts.push(format!(
                    "{} read before the router chose, {:.0} % rightly",
                    count(fed.experts_read_ahead, "expert"),
                    fed.experts_used_ahead as f64 / fed.experts_read_ahead as f64 * 100.0
                ));
            }
            let spent: f64 = self.token_seconds.iter().sum();
            let waited = fed.waited_seconds + fed.waited_for_experts_seconds;
            parts.push(format!(
                "waited {:.0} % of the time",
                waited / spent.max(1e-9) * 100.0
            ));
            if fed.repeated_reads > 0 {
                parts.push(format!("{} repeated", count(fed.repeated_reads, "read")));
            }
            parts.extend(changes(
                (fed.times_grown, fed.grown_bytes),
                (fed.times_given, fed.given_bytes),
            ));
            if fed.too_many_experts > 0 {
                parts.push(format!(
                    "{} of more experts than slots went through the page cache",
                    count(fed.too_many_experts, "choice")
                ));
            }
            eprintln!("tensorscope: {}", parts.join(", "));
        }
        let is_fed = self.shares.is_none_or(|shares| !shares.is_nothing_fed());
        let predicted = self.predicted_tokens_per_second.filter(|_| is_fed);
        if let (Some(predicted), Some(measured)) = (predicted, self.tokens_per_second) {
            let interval = self
                .predicted_low
                .zip(self.predicted_high)
                .map_or(String::new(), |(low, high)| {
                    format!(" ({low:.2} to {high:.2})")
                });
            let is_alone = self.pass_tokens.iter().all(|&tokens| tokens <= 1);
            let comparison = match is_alone {
                true => {
                    let error = (measured / predicted - 1.0) * 100.0;
                    format!("measured {measured:.2} ({error:+.0} %)")
                }
                false => format!("for one token a pass; measured {measured:.2} with several"),
            };
            eprintln!("tensorscope: predicted {predicted:.2} tokens/s{interval}, {comparison}");
        }
        if let (Some(peak), Some(limit)) = (self.peak_bytes, self.limit_bytes) {
            let mostly = self.fed.map_or(0, |fed| fed.used_bytes);
            eprintln!("tensorscope: {}", memory_sentence(peak, mostly, limit));
        }
    }
}

/// Tokens a second of passes that gave so many tokens and took so long: by the median, or by all
/// where they did not all give the same.
pub fn tokens_per_second(tokens: &[u32], seconds: &[f64]) -> Option<f64> {
    let (&first, all) = (
        tokens.first()?,
        tokens.iter().map(|&n| f64::from(n)).sum::<f64>(),
    );
    let rate = match tokens.iter().all(|&n| n == first) {
        true => f64::from(first) / median(seconds)?,
        false => all / seconds.iter().sum::<f64>(),
    };
    rate.is_finite().then_some(rate)
}

/// Bytes of all passes for each of their tokens.
pub fn per_token(bytes: &[u64], tokens: &[u32]) -> Option<f64> {
    let tokens: u32 = tokens.iter().sum();
    (tokens > 0).then(|| bytes.iter().sum::<u64>() as f64 / f64::from(tokens))
}

/// How much memory there was at most, and mostly if that is known, of what was allowed.
fn memory_sentence(peak_bytes: u64, used_bytes: u64, limit_bytes: u64) -> String {
    let (peak, limit) = (HumanBytes(peak_bytes), HumanBytes(limit_bytes));
    match used_bytes {
        0 => format!("at most {peak} of memory, of {limit} allowed"),
        used => {
            let share = used as f64 / limit_bytes.max(1) as f64 * 100.0;
            let used = HumanBytes(used);
            format!("at most {peak} of memory, mostly {used} ({share:.0} %), of {limit} allowed")
        }
    }
}

/// How often what is kept has changed with what the program used: turns and bytes.
pub(crate) fn changes(grown: (u64, u64), given: (u64, u64)) -> impl Iterator<Item = String> {
    let part = |(turns, bytes): (u64, u64), how: &str| {
        let part = format!("{} {how} in {}", HumanBytes(bytes), count(turns, "turn"));
        (turns > 0).then_some(part)
    };
    let grown = part(grown, "more were kept");
    grown.into_iter().chain(part(given, "were given back"))
}

fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_of_one_token_are_judged_by_the_middle_and_others_by_all() {
        assert_eq!(tokens_per_second(&[1, 1, 1], &[9.0, 2.0, 1.0]), Some(0.5));
        assert_eq!(tokens_per_second(&[4, 4], &[2.0, 2.0]), Some(2.0));
        assert_eq!(tokens_per_second(&[1, 5], &[1.0, 2.0]), Some(2.0));
        assert_eq!(tokens_per_second(&[], &[]), None);
        assert_eq!(per_token(&[30, 10], &[1, 3]), Some(10.0));
        assert_eq!(per_token(&[30], &[0]), None);
    }

    #[test]
    fn it_is_said_how_often_guesses_were_right() {
        let drafted = Drafted {
            passes: 58,
            drafted_passes: 40,
            drafted_tokens: 200,
            accepted_tokens: 142,
        };
        let said = "142 of 200 guessed tokens were right; 40 of 58 passes checked one or more";
        assert_eq!(drafted.sentence(), said);
    }
}
