//! The language of rules: comparisons and arithmetic on metrics, some of which are unknown.
//!
//! An expression is parsed once ([`Expression::parse`]), with its types checked as far as they are known
//! then, and evaluated against many subjects ([`Expression::eval`]). What was not measured is unknown, and
//! so is what is computed from it, what is divided by zero and what is no finite number.
//! `false and unknown` is false, `true or unknown` is true. No expression panics, recurses
//! deeper than [`MAX_DEPTH`] or yields a number that is not finite.

mod eval;
mod parse;

pub use eval::{Scope, Unknown, Val};

/// In bytes; the longest shipped one has a quarter of this.
pub const MAX_LENGTH: usize = 2000;

/// Of parentheses and operators in each other: evaluation is recursive.
pub const MAX_DEPTH: usize = 64;

/// The name that stands for the share of time that the rule explains.
pub const SHARE: &str = "share";

/// The name that stands for the name of the subject.
pub const NAME: &str = "name";

/// A parsed expression.
#[derive(Clone, Debug, PartialEq)]
pub struct Expression {
    root: Node,
    text: String,
}

/// What is wrong with an expression, and at which of its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    pub offset: usize,
    pub reason: String,
}

/// What is known of an expression's value before it is evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    Number,
    Text,
    Flag,
    /// A metric: what it is shows when it is there.
    Any,
}

#[derive(Clone, Debug, PartialEq)]
enum Node {
    Number(f64),
    Text(String),
    Flag(bool),
    Name(String),
    Not(Box<Node>),
    Minus(Box<Node>),
    Binary(Operator, Box<[Node; 2]>),
    Call(Function, Vec<Node>),
    Has(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Or,
    And,
    Less,
    AtMost,
    Greater,
    AtLeast,
    Equal,
    Differs,
    Plus,
    Minus,
    Times,
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Function {
    Min,
    Max,
    Abs,
    Clamp,
    If,
    Floor,
    Ceil,
    Round,
    Contains,
}

impl Expression {
    /// Parses what must have this type; [`Type::Any`] takes all.
    pub fn parse(text: &str, wanted: Type) -> Result<Self, Wrong> {
        let root = parse::parse(text, wanted)?;
        let text = text.to_owned();
        Ok(Self { root, text })
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The value; otherwise the names of what is missing.
    pub fn eval<'a>(&'a self, scope: &Scope<'a>) -> Result<Val<'a>, Unknown<'a>> {
        eval::eval(&self.root, scope)
    }

    /// The name, where the whole expression is one.
    pub fn as_name(&self) -> Option<&str> {
        match &self.root {
            Node::Name(name) => Some(name),
            _ => None,
        }
    }

    /// Every name in it, in order, some repeatedly.
    pub fn names(&self) -> Vec<&str> {
        let mut names = Vec::new();
        self.root.collect_names(&mut names);
        names
    }
}

impl Node {
    fn collect_names<'a>(&'a self, names: &mut Vec<&'a str>) {
        match self {
            Self::Number(_) | Self::Text(_) | Self::Flag(_) => {}
            Self::Name(name) | Self::Has(name) => names.push(name),
            Self::Not(inner) | Self::Minus(inner) => inner.collect_names(names),
            Self::Binary(_, sides) => sides.iter().for_each(|side| side.collect_names(names)),
            Self::Call(_, given) => given.iter().for_each(|one| one.collect_names(names)),
        }
    }
}

impl Type {
    /// As messages call it.
    pub fn noun(self) -> &'static str {
        match self {
            Self::Number => "a number",
            Self::Text => "a text",
            Self::Flag => "a condition",
            Self::Any => "a value",
        }
    }

    fn may_be(self, wanted: Self) -> bool {
        self == wanted || self == Self::Any || wanted == Self::Any
    }
}

/// Whether it is lower-case words joined by dots: what metrics and rules are called.
pub fn is_name(text: &str) -> bool {
    let is_word = |word: &str| {
        !word.is_empty()
            && word
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    text.starts_with(|c: char| c.is_ascii_lowercase()) && text.split('.').all(is_word)
}
