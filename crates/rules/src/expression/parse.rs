//! From text to a tree: operator precedence by binding powers (Pratt), types on the way.

use super::{Function, MAX_DEPTH, MAX_LENGTH, Node, Operator, Type, Wrong, is_name};

pub(super) fn parse(text: &str, wanted: Type) -> Result<Node, Wrong> {
    if text.len() > MAX_LENGTH {
        return Err(wrong(
            MAX_LENGTH,
            format!("an expression has at most {MAX_LENGTH} bytes"),
        ));
    }
    let mut parser = Parser {
        text,
        at: 0,
        token: Token::End,
        start: 0,
    };
    parser.advance()?;
    let whole = parser.expression(0, 0)?;
    if parser.token != Token::End {
        let reason = format!("{} is not expected here", parser.token.noun());
        return Err(wrong(parser.start, reason));
    }
    whole.must_be(wanted)?;
    Ok(whole.node)
}

struct Parser<'a> {
    text: &'a str,
    /// Behind the token.
    at: usize,
    token: Token<'a>,
    /// Of the token.
    start: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Token<'a> {
    Number(f64),
    Text(&'a str),
    Word(&'a str),
    Symbol(&'static str),
    End,
}

/// A part of the tree, with what the parts around it need to know.
struct Part {
    node: Node,
    ty: Type,
    depth: usize,
    start: usize,
}

const SYMBOLS: [&str; 13] = [
    "<=", ">=", "==", "!=", "<", ">", "+", "-", "*", "/", "(", ")", ",",
];

fn wrong(offset: usize, reason: impl Into<String>) -> Wrong {
    let reason = reason.into();
    Wrong { offset, reason }
}

impl<'a> Parser<'a> {
    /// All operators that bind at least as tightly as `power`.
    fn expression(&mut self, power: u8, depth: usize) -> Result<Part, Wrong> {
        if depth > MAX_DEPTH {
            let reason = format!("nested more than {MAX_DEPTH} deep");
            return Err(wrong(self.start, reason));
        }
        let mut left = self.operand(depth)?;
        while let Some((operator, own)) = self.token.operator() {
            if own < power {
                break;
            }
            let place = self.start;
            self.advance()?;
            let right = self.expression(own + 1, depth + 1)?;
            if operator.is_comparison()
                && let Some((next, _)) = self.token.operator()
                && next.is_comparison()
            {
                let reason = "comparisons do not chain: write `a < b and b < c`";
                return Err(wrong(self.start, reason));
            }
            left = joined(operator, place, left, right)?;
        }
        Ok(left)
    }

    fn operand(&mut self, depth: usize) -> Result<Part, Wrong> {
        let start = self.start;
        let part = |node, ty, depth| Part {
            node,
            ty,
            depth,
            start,
        };
        match self.token {
            Token::Number(number) => {
                self.advance()?;
                Ok(part(Node::Number(number), Type::Number, 1))
            }
            Token::Text(text) => {
                self.advance()?;
                Ok(part(Node::Text(text.to_owned()), Type::Text, 1))
            }
            Token::Symbol("(") => {
                self.advance()?;
                let inner = self.expression(0, depth + 1)?;
                self.expect(")")?;
                Ok(Part { start, ..inner })
            }
            Token::Symbol("-") => {
                self.advance()?;
                let inner = self.expression(Operator::Times.power() + 1, depth + 1)?;
                inner.must_be(Type::Number)?;
                let depth = inner.depth + 1;
                bounded(part(Node::Minus(Box::new(inner.node)), Type::Number, depth))
            }
            Token::Word("not") => {
                self.advance()?;
                let inner = self.expression(Operator::And.power() + 1, depth + 1)?;
                inner.must_be(Type::Flag)?;
                let depth = inner.depth + 1;
                bounded(part(Node::Not(Box::new(inner.node)), Type::Flag, depth))
            }
            Token::Word(flag @ ("true" | "false")) => {
                self.advance()?;
                Ok(part(Node::Flag(flag == "true"), Type::Flag, 1))
            }
            Token::Word(word) if !matches!(word, "and" | "or") => {
                self.advance()?;
                if self.token == Token::Symbol("(") {
                    self.call(word, start, depth)
                } else if is_name(word) {
                    Ok(part(Node::Name(word.to_owned()), Type::Any, 1))
                } else {
                    let reason = format!("`{word}` is no name: lower-case words joined by dots");
                    Err(wrong(start, reason))
                }
            }
            other => {
                let reason = format!("a value is missing before {}", other.noun());
                Err(wrong(start, reason))
            }
        }
    }

    fn call(&mut self, word: &str, start: usize, depth: usize) -> Result<Part, Wrong> {
        self.expect("(")?;
        if word == "has" {
            let Token::Word(name) = self.token else {
                return Err(wrong(self.start, "`has` takes the name of a metric"));
            };
            if !is_name(name) {
                return Err(wrong(self.start, "`has` takes the name of a metric"));
            }
            self.advance()?;
            self.expect(")")?;
            return Ok(Part {
                node: Node::Has(name.to_owned()),
                ty: Type::Flag,
                depth: 1,
                start,
            });
        }
        let Some(function) = Function::named(word) else {
            let known = "min, max, abs, clamp, if, floor, ceil, round, contains, has";
            let reason = format!("no function is named `{word}`; there are {known}");
            return Err(wrong(start, reason));
        };
        let mut given = Vec::new();
        while self.token != Token::Symbol(")") {
            if !given.is_empty() {
                self.expect(",")?;
            }
            given.push(self.expression(0, depth + 1)?);
        }
        self.advance()?;
        let ty = function.check(word, start, &given)?;
        let depth = 1 + given.iter().map(|one| one.depth).max().unwrap_or(0);
        let nodes = given.into_iter().map(|one| one.node).collect();
        bounded(Part {
            node: Node::Call(function, nodes),
            ty,
            depth,
            start,
        })
    }

    fn expect(&mut self, symbol: &'static str) -> Result<(), Wrong> {
        if self.token != Token::Symbol(symbol) {
            let reason = format!("`{symbol}` is missing before {}", self.token.noun());
            return Err(wrong(self.start, reason));
        }
        self.advance()
    }

    fn advance(&mut self) -> Result<(), Wrong> {
        let rest = &self.text[self.at..];
        let rest = rest.trim_start();
        self.start = self.text.len() - rest.len();
        let (token, len) = match rest.chars().next() {
            None => (Token::End, 0),
            Some('\'') => {
                let Some(len) = rest[1..].find('\'') else {
                    return Err(wrong(self.start, "the text has no closing quote"));
                };
                (Token::Text(&rest[1..=len]), len + 2)
            }
            Some(c) if c.is_ascii_digit() => {
                let len = number_len(rest);
                let digits = &rest[..len];
                match digits.parse::<f64>() {
                    Ok(number) if number.is_finite() => (Token::Number(number), len),
                    _ => return Err(wrong(self.start, format!("`{digits}` is no number"))),
                }
            }
            Some(c) if c.is_alphabetic() || c == '_' => {
                let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
                let len = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
                (Token::Word(&rest[..len]), len)
            }
            Some(c) => {
                let found = SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol));
                let Some(symbol) = found else {
                    let reason = match c {
                        '=' => "`=` compares as `==`".to_owned(),
                        c => format!("`{}` has no meaning here", c.escape_default()),
                    };
                    return Err(wrong(self.start, reason));
                };
                (Token::Symbol(symbol), symbol.len())
            }
        };
        self.token = token;
        self.at = self.start + len;
        Ok(())
    }
}

/// Digits, a point with digits, an exponent.
fn number_len(text: &str) -> usize {
    let bytes = text.as_bytes();
    let digits_from = |from: usize| {
        let digits = bytes[from..].iter().take_while(|b| b.is_ascii_digit());
        from + digits.count()
    };
    let mut len = digits_from(0);
    if bytes.get(len) == Some(&b'.') {
        len = digits_from(len + 1);
    }
    if matches!(bytes.get(len), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(len + 1), Some(b'+' | b'-')));
        let end = digits_from((len + 1 + sign).min(bytes.len()));
        if end > len + 1 + sign {
            len = end;
        }
    }
    len
}

fn joined(operator: Operator, place: usize, left: Part, right: Part) -> Result<Part, Wrong> {
    let ty = match operator {
        Operator::Or | Operator::And => {
            left.must_be(Type::Flag)?;
            right.must_be(Type::Flag)?;
            Type::Flag
        }
        Operator::Equal | Operator::Differs => {
            if !left.ty.may_be(right.ty) {
                let (left, right) = (left.ty.noun(), right.ty.noun());
                return Err(wrong(place, format!("{left} is never {right}")));
            }
            Type::Flag
        }
        _ => {
            left.must_be(Type::Number)?;
            right.must_be(Type::Number)?;
            match operator.is_comparison() {
                true => Type::Flag,
                false => Type::Number,
            }
        }
    };
    bounded(Part {
        ty,
        depth: 1 + left.depth.max(right.depth),
        start: left.start,
        node: Node::Binary(operator, Box::new([left.node, right.node])),
    })
}

/// Chains of operators grow to the left, where the parser itself does not recurse.
fn bounded(part: Part) -> Result<Part, Wrong> {
    if part.depth > MAX_DEPTH {
        let reason = format!("more than {MAX_DEPTH} operators in each other");
        return Err(wrong(part.start, reason));
    }
    Ok(part)
}

impl Part {
    fn must_be(&self, wanted: Type) -> Result<(), Wrong> {
        if self.ty.may_be(wanted) {
            return Ok(());
        }
        let (found, wanted) = (self.ty.noun(), wanted.noun());
        let reason = format!("{found}, where {wanted} is needed");
        Err(wrong(self.start, reason))
    }
}

impl Token<'_> {
    fn operator(self) -> Option<(Operator, u8)> {
        let operator = match self {
            Self::Word("or") => Operator::Or,
            Self::Word("and") => Operator::And,
            Self::Symbol("<") => Operator::Less,
            Self::Symbol("<=") => Operator::AtMost,
            Self::Symbol(">") => Operator::Greater,
            Self::Symbol(">=") => Operator::AtLeast,
            Self::Symbol("==") => Operator::Equal,
            Self::Symbol("!=") => Operator::Differs,
            Self::Symbol("+") => Operator::Plus,
            Self::Symbol("-") => Operator::Minus,
            Self::Symbol("*") => Operator::Times,
            Self::Symbol("/") => Operator::Over,
            _ => return None,
        };
        Some((operator, operator.power()))
    }

    fn noun(self) -> String {
        match self {
            Self::Number(number) => format!("`{number}`"),
            Self::Text(text) => format!("'{}'", text.escape_debug()),
            Self::Word(word) => format!("`{word}`"),
            Self::Symbol(symbol) => format!("`{symbol}`"),
            Self::End => "the end".to_owned(),
        }
    }
}

impl Operator {
    /// How tightly it binds.
    fn power(self) -> u8 {
        match self {
            Self::Or => 1,
            Self::And => 3,
            Self::Less
            | Self::AtMost
            | Self::Greater
            | Self::AtLeast
            | Self::Equal
            | Self::Differs => 5,
            Self::Plus | Self::Minus => 7,
            Self::Times | Self::Over => 9,
        }
    }

    fn is_comparison(self) -> bool {
        self.power() == Self::Equal.power()
    }
}

impl Function {
    fn named(word: &str) -> Option<Self> {
        Some(match word {
            "min" => Self::Min,
            "max" => Self::Max,
            "abs" => Self::Abs,
            "clamp" => Self::Clamp,
            "if" => Self::If,
            "floor" => Self::Floor,
            "ceil" => Self::Ceil,
            "round" => Self::Round,
            "contains" => Self::Contains,
            _ => return None,
        })
    }

    /// Whether it can take what is given, and what it makes of it.
    fn check(self, word: &str, start: usize, given: &[Part]) -> Result<Type, Wrong> {
        let (fewest, most, needs) = match self {
            Self::Min | Self::Max => (2, usize::MAX, "two values or more"),
            Self::Clamp => (3, 3, "a value, a lowest and a highest"),
            Self::If => (3, 3, "a condition and two values"),
            Self::Contains => (2, 2, "a text and a part"),
            Self::Abs | Self::Floor | Self::Ceil | Self::Round => (1, 1, "one value"),
        };
        if given.len() < fewest || given.len() > most {
            return Err(wrong(start, format!("`{word}` takes {needs}")));
        }
        let all = |ty| given.iter().try_for_each(|one| one.must_be(ty));
        match self {
            Self::If => {
                given[0].must_be(Type::Flag)?;
                given[2].must_be(given[1].ty)?;
                let known = given[1..].iter().map(|one| one.ty);
                Ok(known
                    .into_iter()
                    .find(|ty| *ty != Type::Any)
                    .unwrap_or(Type::Any))
            }
            Self::Contains => all(Type::Text).map(|()| Type::Flag),
            _ => all(Type::Number).map(|()| Type::Number),
        }
    }
}
