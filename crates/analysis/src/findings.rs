//! What the results say, as sentences.
//!
//! A finding is a sentence with its numbers, the place of these numbers in the
//! JSON results, and a query over the run's tables that shows them. Findings come
//! in the order in which a reader would ask; what a run has nothing to say about
//! (experts of a dense model) is left out.

mod devices;
mod memory;
mod model;
mod opportunities;
mod roofline;
pub(crate) mod text;
mod underneath;

pub use devices::devices;
pub use roofline::roofline;
pub use underneath::underneath;

use serde::{Deserialize, Serialize};

use crate::{facts::Facts, opportunities::Opportunities};

/// One sentence, with what it rests on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// `devices`, `weights`, `tokens`, `hot`, `order`, `kv`, `attention`, `experts`, `time`,
    /// `opportunities`, `underneath`, `roofline`, `doubts`.
    pub topic: String,
    pub text: String,
    /// Path of the numbers in the results (`report --json`).
    pub evidence: String,
    /// `None` where no query over the tables shows it (predictions).
    pub sql: Option<String>,
    pub sql_answer: Answer,
}

/// How a query's answer relates to the finding's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The same numbers.
    Exact,
    /// Close to them: tables do not keep the order of accesses within a node, nor
    /// which graph an evaluation repeats.
    Close,
    None,
}

/// Everything worth saying; `opportunities` where there are any. Of a run with devices,
/// [`mod@devices`] says the rest: sums of times over nodes of which only some were timed, and the
/// order of reads in several memories, would be wrong or mean nothing, and are left out.
pub fn findings(facts: &Facts, opportunities: Option<&Opportunities>) -> Vec<Finding> {
    let mut list = List::default();
    let is_on_processor = facts.devices.is_empty();
    let experts_are_known = facts.devices.experts.are_all();
    model::doubts(facts, &mut list);
    devices::experts_known(facts, &mut list);
    if experts_are_known {
        model::weights(facts, &mut list);
    }
    model::tokens(facts, &mut list);
    if is_on_processor {
        model::time(facts, &mut list);
    }
    if experts_are_known {
        model::hot_and_cold(facts, &mut list);
    }
    if is_on_processor {
        memory::order(facts, &mut list);
        memory::working_set(facts, &mut list);
    }
    memory::kv(facts, &mut list);
    memory::attention(facts, &mut list);
    model::experts(facts, &mut list);
    if let Some(opportunities) = opportunities {
        opportunities::budgets(opportunities, &mut list);
    }
    list.0
}

#[derive(Default)]
struct List(Vec<Finding>);

impl List {
    fn exact(&mut self, topic: &str, evidence: &str, text: String, sql: impl Into<String>) {
        self.add(topic, evidence, text, Some(sql.into()), Answer::Exact);
    }

    fn close(&mut self, topic: &str, evidence: &str, text: String, sql: impl Into<String>) {
        self.add(topic, evidence, text, Some(sql.into()), Answer::Close);
    }

    fn without_query(&mut self, topic: &str, evidence: &str, text: String) {
        self.add(topic, evidence, text, None, Answer::None);
    }

    fn add(
        &mut self,
        topic: &str,
        evidence: &str,
        text: String,
        sql: Option<String>,
        sql_answer: Answer,
    ) {
        self.0.push(Finding {
            topic: topic.to_owned(),
            text,
            evidence: evidence.to_owned(),
            sql,
            sql_answer,
        });
    }
}
