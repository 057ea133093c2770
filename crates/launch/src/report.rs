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
    /// Of each token after the first.
    pub token_seconds: Vec<f64>,
    /// What the disk gave for each of them.
    pub token_disk_bytes: Vec<u64>,
    /// By the median token.
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
    pub bytes_read_before: u64,
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
            bytes_read_before: before.bytes_read,
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
            let spent: f64 = self.token_seconds.iter().sum();
            let waited = fed.waited_seconds + fed.waited_for_experts_seconds;
            parts.push(format!(
                "waited {:.0} % of the time",
                waited / spent.max(1e-9) * 100.0
            ));
            if fed.repeated_reads > 0 {
                parts.push(format!("{} repeated", count(fed.repeated_reads, "read")));
            }
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
            eprintln!(
                "tensorscope: predicted {predicted:.2} tokens/s, measured {measured:.2} ({:+.0} %)",
                (measured / predicted - 1.0) * 100.0
            );
        }
        if let (Some(peak), Some(limit)) = (self.peak_bytes, self.limit_bytes) {
            eprintln!(
                "tensorscope: at most {} of memory, of {} allowed",
                HumanBytes(peak),
                HumanBytes(limit)
            );
        }
    }
}

pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

pub fn mean(values: &[u64]) -> Option<f64> {
    let count = values.len() as f64;
    (!values.is_empty()).then(|| values.iter().sum::<u64>() as f64 / count)
}
