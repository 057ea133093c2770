//! What each memory would give: one sentence a budget.

use super::{
    List,
    text::{bytes, percent, share},
};
use crate::opportunities::{BudgetOutlook, Fit, Opportunities, Strategy};

/// At each budget that was asked for; else where the best way beats what llama.cpp does today,
/// about a quarter, half and three quarters of the weights.
pub(super) fn budgets(opportunities: &Opportunities, list: &mut List) {
    for outlook in opportunities.shown() {
        let said = match outlook.fit {
            Fit::No => Some(does_not_fit(opportunities, outlook)),
            Fit::All => Some(format!(
                "{}, all of them fit: nothing is read from disk again",
                memory(opportunities, outlook)
            )),
            Fit::Some => best(opportunities, outlook),
        };
        let is_asked_for = opportunities.budgets_are_given;
        let said = said.or_else(|| is_asked_for.then(|| why_not(opportunities, outlook))?);
        if let Some(text) = said {
            list.without_query("opportunities", "caches.opportunities.budgets", text);
        }
    }
}

fn does_not_fit(opportunities: &Opportunities, outlook: &BudgetOutlook) -> String {
    let beside = opportunities.beside_weights_bytes.unwrap_or(0);
    let least = match opportunities.least_program_bytes {
        Some(least) => format!("; {} is the least that helps", bytes(least)),
        None => String::new(),
    };
    format!(
        "{} of memory are too little: the program needs {} beside the weights{least}",
        bytes(outlook.program_bytes.unwrap_or(0)),
        bytes(beside)
    )
}

/// `with 300.0 MiB of memory, 85.9 MiB of it for weights (93.2 % of those used)`.
fn memory(opportunities: &Opportunities, outlook: &BudgetOutlook) -> String {
    let weights = bytes(outlook.budget_bytes);
    let of_used = share(outlook.budget_bytes, opportunities.footprint_bytes);
    let of_used = match of_used > 1.0 {
        true => "more than are used".to_owned(),
        false => format!("{} of those used", percent(of_used)),
    };
    match outlook.program_bytes {
        Some(program) => format!(
            "with {} of memory, {weights} of it for weights ({of_used})",
            bytes(program)
        ),
        None => format!("with {weights} of memory for weights ({of_used})"),
    }
}

fn best(opportunities: &Opportunities, outlook: &BudgetOutlook) -> Option<String> {
    let best = outlook.of(outlook.best?)?;
    let stock = outlook.of(Strategy::PageCache)?.disk_bytes_per_token?;
    let speed = match (best.tokens_per_second, best.speedup) {
        (Some(speed), Some(speedup)) => {
            format!(", at most {speed:.1} tokens/s ({speedup:.1} times as fast)")
        }
        _ => String::new(),
    };
    Some(format!(
        "{}, {} reads {} per token where the page cache reads {}{speed}",
        memory(opportunities, outlook),
        best.strategy.words(),
        bytes(best.disk_bytes_per_token?),
        bytes(stock)
    ))
}

fn why_not(opportunities: &Opportunities, outlook: &BudgetOutlook) -> Option<String> {
    let way = match opportunities.expert_bytes {
        0 => Strategy::PinAndStream,
        _ => Strategy::ExpertCache,
    };
    let memory = memory(opportunities, outlook);
    let way = outlook.of(way)?;
    let (words, reason) = (way.strategy.words(), &way.verdict.reason);
    Some(format!("{memory}, {words} {reason}"))
}
