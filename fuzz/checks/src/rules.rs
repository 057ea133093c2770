//! Rule files that people write.

use rules::{Metrics, RuleFile, RuleSet, Subject, Unit, Verdicts, evaluate};

use crate::log::one_line;

/// A rule file is refused in one line, or fits with ours and gives causes with finite numbers.
pub fn rules(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let file = match RuleFile::parse(&text, "my.toml") {
        Ok(file) => file,
        Err(error) => return one_line(&error.to_string()),
    };
    let mut alone = RuleSet::default();
    if let Err(error) = alone.extend(file.clone()) {
        one_line(&error.to_string());
    }
    let mut set = RuleSet::shipped().clone();
    if let Err(error) = set.extend(file) {
        one_line(&error.to_string());
    }
    let subjects = subjects();
    for rules in [&alone, &set] {
        finite(&evaluate(rules, &subjects));
    }
}

/// Of every kind one of which nothing is known, and one with all the names that rules use.
fn subjects() -> Vec<Subject> {
    let mut subjects = Vec::new();
    for (kind, _) in rules::file::KINDS {
        let mut known = Metrics::default();
        for (index, (name, _)) in rules::names::names(kind).iter().enumerate() {
            let value = [0.0, 1.0, 0.3, 1e300, -1.0][index % 5];
            known.number(name, Unit::Share, value, None);
        }
        known.number("a", Unit::Nanos, 0.5, None);
        known.text("b", "text", None);
        known.flag("c", true, None);
        for metrics in [Metrics::default(), known] {
            subjects.push(Subject {
                kind: kind.to_owned(),
                name: "it".to_owned(),
                metrics,
            });
        }
    }
    subjects
}

fn finite(verdicts: &Verdicts) {
    for cause in &verdicts.causes {
        assert!((0.0..=1.0).contains(&cause.share), "{}", cause.id);
        let (low, high) = (cause.gain_percent_low, cause.gain_percent_high);
        if let (Some(low), Some(gain), Some(high)) = (low, cause.gain_percent, high) {
            assert!(low.is_finite() && high.is_finite());
            assert!(low <= gain && gain <= high, "{}", cause.id);
        }
    }
}
