//! Rules of several files as one tree, with every reference resolved.

use std::collections::BTreeMap;

use crate::error::{Error, Spot};
use crate::file::{Rule, RuleFile};

/// Rules that fit together: parents and symptoms exist, are about the same kind of subject,
/// and nothing is its own ancestor or its own symptom.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuleSet {
    rules: Vec<Rule>,
    pub(crate) links: Links,
}

/// By index of the rule.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Links {
    pub parents: Vec<Option<usize>>,
    pub explained: Vec<Vec<usize>>,
    /// Parents before their children.
    pub parents_first: Vec<usize>,
}

impl RuleSet {
    /// The rules of one file, which refer to no others.
    pub fn parse(text: &str, origin: &str) -> Result<Self, Error> {
        let mut set = Self::default();
        set.extend(RuleFile::parse(text, origin)?)?;
        Ok(set)
    }

    /// Adds the rules of a file. One with `replace = true` takes the place of the one with
    /// the same id. After an error the set is as it was.
    pub fn extend(&mut self, file: RuleFile) -> Result<(), Error> {
        let mut rules = self.rules.clone();
        let mut known: BTreeMap<String, usize> = BTreeMap::new();
        for (index, rule) in rules.iter().enumerate() {
            known.insert(rule.id.clone(), index);
        }
        let before = rules.len();
        let mut replaced = vec![false; before];
        for rule in file.rules {
            match (known.get(&rule.id).copied(), rule.replaces) {
                (None, false) => {
                    known.insert(rule.id.clone(), rules.len());
                    rules.push(rule);
                }
                (Some(index), true) if index < before && !replaced[index] => {
                    replaced[index] = true;
                    rules[index] = rule;
                }
                (None, true) => {
                    let reason = "there is no rule of this id to replace";
                    return Err(rule.spot.wrong(&rule.id, reason));
                }
                (Some(index), _) => {
                    let reason = format!(
                        "its id is taken, see {}; `replace = true` replaces a rule of an earlier file",
                        rules[index].place()
                    );
                    return Err(rule.spot.wrong(&rule.id, reason));
                }
            }
        }
        let links = links(&rules, &known)?;
        *self = Self { rules, links };
        Ok(())
    }

    /// In the order of the files.
    pub fn rules(&self) -> impl ExactSizeIterator<Item = &Rule> {
        self.rules.iter()
    }

    pub fn get(&self, id: &str) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.id == id)
    }

    pub(crate) fn as_slice(&self) -> &[Rule] {
        &self.rules
    }
}

fn links(rules: &[Rule], known: &BTreeMap<String, usize>) -> Result<Links, Error> {
    let find = |rule: &Rule, id: &str, what: &str, spot: &Spot| {
        let Some(&index) = known.get(id) else {
            return Err(spot.wrong(&rule.id, format!("its {what} `{id}` does not exist")));
        };
        let (own, other) = (&rule.about, &rules[index].about);
        if own != other {
            let reason = format!("it is about a {own}, its {what} `{id}` about a {other}");
            return Err(spot.wrong(&rule.id, reason));
        }
        Ok(index)
    };
    let mut parents = Vec::with_capacity(rules.len());
    let mut explained = Vec::with_capacity(rules.len());
    for rule in rules {
        parents.push(match (&rule.parent, &rule.parent_spot) {
            (Some(id), Some(spot)) => Some(find(rule, id, "parent", spot)?),
            _ => None,
        });
        let symptoms = rule.explains.iter().zip(&rule.explains_spots);
        let symptoms = symptoms.map(|(id, spot)| find(rule, id, "symptom", spot));
        explained.push(symptoms.collect::<Result<Vec<_>, _>>()?);
    }
    let children: Vec<Vec<usize>> = {
        let mut children = vec![Vec::new(); rules.len()];
        for (index, parent) in parents.iter().enumerate() {
            if let Some(parent) = parent {
                children[*parent].push(index);
            }
        }
        children
    };
    let parents_first = sorted(&children).map_err(|index| {
        let rule = &rules[index];
        let spot = rule.parent_spot.as_ref().unwrap_or(&rule.spot);
        spot.wrong(&rule.id, "it is its own ancestor")
    })?;
    sorted(&explained).map_err(|index| {
        let rule = &rules[index];
        let spot = rule.explains_spots.first().unwrap_or(&rule.spot);
        spot.wrong(&rule.id, "it is its own symptom")
    })?;
    Ok(Links {
        parents,
        explained,
        parents_first,
    })
}

/// Every index before those that it points to (Kahn); otherwise one that is on a cycle.
fn sorted(next: &[Vec<usize>]) -> Result<Vec<usize>, usize> {
    let mut waiting_for = vec![0usize; next.len()];
    for &to in next.iter().flatten() {
        waiting_for[to] += 1;
    }
    let mut order: Vec<usize> = (0..next.len()).filter(|&at| waiting_for[at] == 0).collect();
    let mut done = 0;
    while let Some(&index) = order.get(done) {
        done += 1;
        for &to in &next[index] {
            waiting_for[to] -= 1;
            if waiting_for[to] == 0 {
                order.push(to);
            }
        }
    }
    match on_cycle(next, &waiting_for) {
        Some(index) => Err(index),
        None => Ok(order),
    }
}

/// What still waits is on a cycle or behind one: walking backwards ends on the cycle.
fn on_cycle(next: &[Vec<usize>], waiting_for: &[usize]) -> Option<usize> {
    let mut at = waiting_for.iter().position(|&count| count > 0)?;
    let mut before = vec![None; next.len()];
    for from in (0..next.len()).filter(|&from| waiting_for[from] > 0) {
        for &to in &next[from] {
            before[to] = Some(from);
        }
    }
    for _ in 0..next.len() {
        at = before[at]?;
    }
    Some(at)
}
