//! The value of an expression for one subject, or the names of what is missing for it.

use std::collections::BTreeSet;

use super::{Function, NAME, Node, Operator, SHARE};
use crate::metric::{Subject, Unit, Value};

/// A value without a copy of its text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Val<'a> {
    Number(f64),
    Text(&'a str),
    Flag(bool),
}

/// Names of metrics that are absent, of another type than is needed, or zero below a division.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unknown<'a>(pub BTreeSet<&'a str>);

/// Where names are looked up.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    pub subject: &'a Subject,
    /// Of the rule, once it is known.
    pub share: Option<f64>,
}

type Found<'a> = Result<Val<'a>, Unknown<'a>>;

impl<'a> Scope<'a> {
    /// The value of this name, and how it is shown.
    pub fn get(&self, name: &str) -> Option<(Val<'a>, Unit)> {
        if name == SHARE {
            return self.share.map(|share| (Val::Number(share), Unit::Share));
        }
        if name == NAME {
            return Some((Val::Text(&self.subject.name), Unit::Count));
        }
        let metric = self.subject.metrics.get(name)?;
        let value = match &metric.value {
            // The map is public: what was put there by hand may be anything.
            Value::Number(number) if !number.is_finite() => return None,
            Value::Number(number) => Val::Number(*number),
            Value::Text(text) => Val::Text(text),
            Value::Flag(flag) => Val::Flag(*flag),
        };
        Some((value, metric.unit))
    }
}

impl<'a> Unknown<'a> {
    fn name(name: &'a str) -> Self {
        Self(BTreeSet::from([name]))
    }

    fn of(node: &'a Node) -> Self {
        let mut names = Vec::new();
        node.collect_names(&mut names);
        Self(names.into_iter().collect())
    }

    pub(crate) fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }
}

pub(super) fn eval<'a>(node: &'a Node, scope: &Scope<'a>) -> Found<'a> {
    match node {
        Node::Number(number) => Ok(Val::Number(*number)),
        Node::Text(text) => Ok(Val::Text(text)),
        Node::Flag(flag) => Ok(Val::Flag(*flag)),
        Node::Name(name) => match scope.get(name) {
            Some((value, _)) => Ok(value),
            None => Err(Unknown::name(name)),
        },
        Node::Has(name) => Ok(Val::Flag(scope.get(name).is_some())),
        Node::Not(inner) => Ok(Val::Flag(!flag(inner, scope)?)),
        Node::Minus(inner) => Ok(Val::Number(-number(inner, scope)?)),
        Node::Binary(operator, sides) => binary(*operator, &sides[0], &sides[1], scope),
        Node::Call(function, given) => call(*function, given, scope),
    }
}

fn number<'a>(node: &'a Node, scope: &Scope<'a>) -> Result<f64, Unknown<'a>> {
    match eval(node, scope)? {
        Val::Number(number) => Ok(number),
        Val::Text(_) | Val::Flag(_) => Err(Unknown::of(node)),
    }
}

fn flag<'a>(node: &'a Node, scope: &Scope<'a>) -> Result<bool, Unknown<'a>> {
    match eval(node, scope)? {
        Val::Flag(flag) => Ok(flag),
        Val::Number(_) | Val::Text(_) => Err(Unknown::of(node)),
    }
}

/// Both, or all that is missing for both.
fn both<'a, T>(
    left: Result<T, Unknown<'a>>,
    right: Result<T, Unknown<'a>>,
) -> Result<(T, T), Unknown<'a>> {
    match (left, right) {
        (Ok(left), Ok(right)) => Ok((left, right)),
        (Err(left), Err(right)) => Err(left.and(right)),
        (Err(unknown), Ok(_)) | (Ok(_), Err(unknown)) => Err(unknown),
    }
}

fn binary<'a>(operator: Operator, left: &'a Node, right: &'a Node, scope: &Scope<'a>) -> Found<'a> {
    use Operator as O;
    let numbers = || both(number(left, scope), number(right, scope));
    let compared =
        |holds: fn(f64, f64) -> bool| Ok(Val::Flag(numbers().map(|(l, r)| holds(l, r))?));
    match operator {
        O::Or => decided_by(true, left, right, scope),
        O::And => decided_by(false, left, right, scope),
        O::Less => compared(|l, r| l < r),
        O::AtMost => compared(|l, r| l <= r),
        O::Greater => compared(|l, r| l > r),
        O::AtLeast => compared(|l, r| l >= r),
        O::Equal | O::Differs => {
            let equal = match both(eval(left, scope), eval(right, scope))? {
                (Val::Number(l), Val::Number(r)) => l == r,
                (Val::Text(l), Val::Text(r)) => l == r,
                (Val::Flag(l), Val::Flag(r)) => l == r,
                _ => return Err(Unknown::of(left).and(Unknown::of(right))),
            };
            Ok(Val::Flag(equal == (operator == O::Equal)))
        }
        O::Plus | O::Minus | O::Times | O::Over => {
            let (l, r) = numbers()?;
            let result = match operator {
                O::Plus => l + r,
                O::Minus => l - r,
                O::Times => l * r,
                // Of 0 below, whatever is above: not a finite number.
                _ => l / r,
            };
            let culprit = if operator == O::Over && r == 0.0 {
                Unknown::of(right)
            } else {
                Unknown::of(left).and(Unknown::of(right))
            };
            finite(result, culprit)
        }
    }
}

/// `and` is false when one side is, `or` true when one side is, whatever the other may be.
fn decided_by<'a>(decider: bool, left: &'a Node, right: &'a Node, scope: &Scope<'a>) -> Found<'a> {
    let left = flag(left, scope);
    if left == Ok(decider) {
        return Ok(Val::Flag(decider));
    }
    let right = flag(right, scope);
    if right == Ok(decider) {
        return Ok(Val::Flag(decider));
    }
    both(left, right).map(|_| Val::Flag(!decider))
}

fn finite(number: f64, culprit: Unknown<'_>) -> Found<'_> {
    match number.is_finite() {
        true => Ok(Val::Number(number)),
        false => Err(culprit),
    }
}

fn call<'a>(function: Function, given: &'a [Node], scope: &Scope<'a>) -> Found<'a> {
    match (function, given) {
        (Function::If, [condition, then, otherwise]) => match flag(condition, scope)? {
            true => eval(then, scope),
            false => eval(otherwise, scope),
        },
        (Function::Contains, [text, part]) => match both(eval(text, scope), eval(part, scope))? {
            (Val::Text(text), Val::Text(part)) => {
                let part = part.to_lowercase();
                Ok(Val::Flag(text.to_lowercase().contains(&part)))
            }
            _ => Err(Unknown::of(text).and(Unknown::of(part))),
        },
        _ => {
            let mut numbers = Vec::with_capacity(given.len());
            let mut missing: Option<Unknown> = None;
            for one in given {
                match number(one, scope) {
                    Ok(number) => numbers.push(number),
                    Err(unknown) => {
                        missing = Some(missing.unwrap_or_default().and(unknown));
                    }
                }
            }
            match missing {
                Some(missing) => Err(missing),
                None => Ok(Val::Number(numeric(function, &numbers))),
            }
        }
    }
}

/// The parser has counted what is given; all of it is finite, and so is what comes out.
fn numeric(function: Function, given: &[f64]) -> f64 {
    let first = given.first().copied().unwrap_or(0.0);
    match (function, given) {
        (Function::Min, _) => given.iter().copied().fold(first, f64::min),
        (Function::Max, _) => given.iter().copied().fold(first, f64::max),
        (Function::Abs, _) => first.abs(),
        // `f64::clamp` panics where the bounds are the wrong way round.
        (Function::Clamp, [value, low, high]) => value.max(*low).min(*high),
        (Function::Floor, _) => first.floor(),
        (Function::Ceil, _) => first.ceil(),
        (Function::Round, _) => first.round(),
        (Function::Clamp | Function::If | Function::Contains, _) => first,
    }
}
