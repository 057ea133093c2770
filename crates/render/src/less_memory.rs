//! With less memory: what a token would read from disk, budget by budget and way by way, as rows
//! of text for a terminal and a page.

use analysis::opportunities::{BudgetOutlook, Fit, Opportunities, Strategy, StrategyOutlook};

pub const TITLE: &str = "With less memory";

/// Said below or above the table.
pub const NOTE: &str =
    "bytes read from disk per generated token, predicted as `tensorscope plan` does";

pub struct Rows {
    pub heads: Vec<&'static str>,
    pub rows: Vec<Vec<String>>,
}

/// The budgets that somebody asked for, or a quarter, half and three quarters of the weights;
/// `None` where there is none.
pub fn rows(opportunities: &Opportunities) -> Option<Rows> {
    let shown = opportunities.shown();
    if shown.is_empty() {
        return None;
    }
    let has_program = opportunities.beside_weights_bytes.is_some();
    let has_experts = opportunities.expert_bytes > 0;
    let has_times = opportunities.machine.is_some();
    let mut ways = vec![
        (Strategy::PageCache, "page cache"),
        (Strategy::Pin, "pin"),
        (Strategy::PinAndStream, "pin and stream"),
    ];
    if has_experts {
        ways.push((Strategy::ExpertCache, "cache experts"));
    }
    let mut heads = vec!["for weights"];
    if has_program {
        heads.insert(0, "memory");
    }
    heads.extend(ways.iter().map(|way| way.1));
    if has_times {
        heads.extend(["page cache tokens/s", "best tokens/s"]);
    }
    heads.push("best");
    let row = |outlook: &&BudgetOutlook| {
        let mut row = Vec::new();
        if has_program {
            row.push(size(outlook.program_bytes));
        }
        row.push(size(Some(outlook.budget_bytes)));
        for (strategy, _) in &ways {
            let of = outlook.of(*strategy).filter(|_| outlook.fit != Fit::No);
            row.push(size(of.and_then(|of| of.disk_bytes_per_token)));
        }
        if has_times {
            for strategy in [Some(Strategy::PageCache), outlook.best] {
                let of = strategy.and_then(|s| outlook.of(s));
                let of = of.filter(|_| outlook.fit != Fit::No);
                row.push(of.and_then(speed).unwrap_or_else(|| "-".into()));
            }
        }
        row.push(match (outlook.fit, outlook.best) {
            (Fit::No, _) => "too little memory".to_owned(),
            (Fit::All, _) => "all weights fit".to_owned(),
            (Fit::Some, Some(best)) => name(best).to_owned(),
            (Fit::Some, None) => name(Strategy::PageCache).to_owned(),
        });
        row
    };
    Some(Rows {
        rows: shown.iter().map(row).collect(),
        heads,
    })
}

/// With the interval that it may lie in, where it is one.
fn speed(of: &StrategyOutlook) -> Option<String> {
    let usual = of.tokens_per_second?;
    let ends = of.tokens_per_second_low.zip(of.tokens_per_second_high);
    Some(match ends {
        Some((low, high)) if low < high => format!("{usual:.1} ({low:.1} to {high:.1})"),
        _ => format!("{usual:.1}"),
    })
}

fn name(strategy: Strategy) -> &'static str {
    match strategy {
        Strategy::PageCache => "page cache",
        Strategy::Pin => "pin",
        Strategy::Stream => "stream",
        Strategy::PinAndStream => "pin and stream",
        Strategy::ExpertCache => "cache experts",
    }
}

fn size(bytes: Option<u64>) -> String {
    bytes.map_or("-".into(), |bytes| support::text::bytes(bytes, 1))
}
