//! A rule file: TOML with `[[rule]]` entries, read and checked one rule at a time.
//!
//! What rules say of each other (parents, symptoms, replacements) is checked when the file
//! is put into a [`crate::RuleSet`]: the others may be in another file.

use std::ops::Range;
use std::sync::Arc;

use serde::Deserialize;
use toml::Spanned;

use crate::error::{Error, Place, Source, Spot, one_line};
use crate::expression::{Expression, SHARE, Type, Wrong, is_name};
use crate::template::Template;

/// In bytes. All shipped files together have a tenth of it.
pub const MAX_FILE_BYTES: usize = 1 << 20;

/// Kinds of subjects, and what they are.
pub const KINDS: [(&str, &str); 7] = [
    (
        "phase",
        "a phase of a recorded run: the prompt, the generation",
    ),
    (
        "kernel",
        "a kernel of a card, as Nsight Compute measured it",
    ),
    (
        "trace",
        "all that a card did in a while, as Nsight Systems recorded it",
    ),
    (
        "calls",
        "the system calls of a program (strace, counts of a run)",
    ),
    ("counters", "counters of processors (perf stat)"),
    ("schedule", "threads that waited to run (perf sched)"),
    (
        "lines",
        "accesses to memory and to shared cache lines (perf mem, perf c2c)",
    ),
];

/// The rules of one file.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleFile {
    pub(crate) rules: Vec<Rule>,
}

/// A cause that numbers can show, or a group of causes.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    pub id: String,
    pub title: String,
    /// The kind of subjects that it is asked about, one of [`KINDS`].
    pub about: String,
    /// Id of the rule that must hold for this one to be looked at.
    pub parent: Option<String>,
    /// Always, where there is none.
    pub when: Option<Expression>,
    /// Of the subject's time, what it explains.
    pub share: Option<Expression>,
    pub why: Option<Template>,
    /// None: it only groups others.
    pub action: Option<Template>,
    pub apply: Option<Template>,
    pub gain: Option<Gain>,
    pub refute: Option<Template>,
    pub evidence: Vec<String>,
    /// Ids of mere symptoms of this.
    pub explains: Vec<String>,
    /// Nothing is wrong: this is what the hardware can do.
    pub healthy: bool,
    pub reference: Option<String>,
    pub(crate) replaces: bool,
    /// Of its id, its parent and what it explains.
    pub(crate) spot: Spot,
    pub(crate) parent_spot: Option<Spot>,
    pub(crate) explains_spots: Vec<Spot>,
}

/// What the action is expected to give, in per cent more speed.
#[derive(Clone, Debug, PartialEq)]
pub struct Gain {
    pub low: Expression,
    pub middle: Expression,
    pub high: Expression,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    #[serde(default)]
    rule: Vec<RawRule>,
}

type Field = Option<Spanned<String>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRule {
    id: Spanned<String>,
    title: Spanned<String>,
    about: Spanned<String>,
    kind: Field,
    #[serde(default)]
    replace: bool,
    #[serde(default)]
    healthy: bool,
    parent: Field,
    when: Field,
    share: Field,
    why: Field,
    action: Field,
    apply: Field,
    gain: Field,
    gain_low: Field,
    gain_high: Field,
    refute: Field,
    #[serde(default)]
    evidence: Vec<Spanned<String>>,
    #[serde(default)]
    explains: Vec<Spanned<String>>,
    reference: Field,
}

impl RuleFile {
    /// `origin` is what errors call the file.
    pub fn parse(text: &str, origin: &str) -> Result<Self, Error> {
        let source = Reader(Arc::new(Source {
            text: text.to_owned(),
            origin: Arc::from(origin),
        }));
        if text.len() > MAX_FILE_BYTES {
            let reason = format!("a rule file has at most {MAX_FILE_BYTES} bytes");
            return Err(source.file_error(0, reason));
        }
        let raw: RawFile = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            source.file_error(at, error.message().trim().replace('\n', "; "))
        })?;
        let rules: Result<_, _> = raw.rule.iter().map(|rule| source.rule(rule)).collect();
        Ok(Self { rules: rules? })
    }

    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }
}

impl Rule {
    /// Where its id stands.
    pub fn place(&self) -> Place {
        self.spot.place()
    }
}

struct Reader(Arc<Source>);

impl Reader {
    fn rule(&self, raw: &RawRule) -> Result<Rule, Error> {
        let id = raw.id.get_ref();
        let wrong = |span: Range<usize>, reason: String| self.spot(span.start).wrong(id, reason);
        if !is_name(id) {
            let reason = "its id is not lower-case words joined by dots".to_owned();
            return Err(wrong(raw.id.span(), reason));
        }
        let about = raw.about.get_ref();
        if !KINDS.iter().any(|(kind, _)| kind == about) {
            let known: Vec<&str> = KINDS.iter().map(|(kind, _)| *kind).collect();
            let reason = format!(
                "nothing is of kind `{about}`; there are {}",
                known.join(", ")
            );
            return Err(wrong(raw.about.span(), reason));
        }
        if let Some(kind) = &raw.kind
            && kind.get_ref() != "group"
        {
            let reason = format!(
                "kind `{}` is unknown; there is only `group`",
                kind.get_ref()
            );
            return Err(wrong(kind.span(), reason));
        }
        if let Some(kind) = &raw.kind
            && raw.action.is_some()
        {
            return Err(wrong(kind.span(), "a group has no action".to_owned()));
        }
        self.all_that_it_needs(raw)
            .map_err(|field| wrong(raw.id.span(), format!("it has no `{field}`")))?;
        let is_no_name = |name: &&Spanned<String>| !is_name(name.get_ref());
        if let Some(name) = raw.evidence.iter().find(is_no_name) {
            let reason = format!("`{}` is no name of a metric", name.get_ref());
            return Err(wrong(name.span(), reason));
        }
        let flag = |field, raw| self.expression(id, field, raw, Type::Flag);
        let number = |field, raw| self.expression(id, field, raw, Type::Number);
        let template = |field, raw| self.template(id, field, raw);
        let gain = match (
            number("gain_low", &raw.gain_low)?,
            number("gain", &raw.gain)?,
            number("gain_high", &raw.gain_high)?,
        ) {
            (Some(low), Some(middle), Some(high)) => Some(Gain { low, middle, high }),
            (None, None, None) => None,
            _ => {
                let reason = "`gain`, `gain_low` and `gain_high` belong together".to_owned();
                return Err(wrong(raw.id.span(), reason));
            }
        };
        let rule = Rule {
            id: id.clone(),
            title: raw.title.get_ref().clone(),
            about: about.clone(),
            parent: raw.parent.as_ref().map(|parent| parent.get_ref().clone()),
            when: flag("when", &raw.when)?,
            share: number("share", &raw.share)?,
            why: template("why", &raw.why)?,
            action: template("action", &raw.action)?,
            apply: template("apply", &raw.apply)?,
            gain,
            refute: template("refute", &raw.refute)?,
            evidence: raw
                .evidence
                .iter()
                .map(|name| name.get_ref().clone())
                .collect(),
            explains: raw
                .explains
                .iter()
                .map(|other| other.get_ref().clone())
                .collect(),
            healthy: raw.healthy,
            reference: raw.reference.as_ref().map(|text| text.get_ref().clone()),
            spot: self.spot(raw.id.span().start),
            replaces: raw.replace,
            parent_spot: raw
                .parent
                .as_ref()
                .map(|parent| self.spot(parent.span().start)),
            explains_spots: raw
                .explains
                .iter()
                .map(|other| self.spot(other.span().start))
                .collect(),
        };
        for (field, raw, expression) in [
            ("when", &raw.when, &rule.when),
            ("share", &raw.share, &rule.share),
        ] {
            if let (Some(raw), Some(expression)) = (raw, expression)
                && expression.names().contains(&SHARE)
            {
                let reason = format!("`{SHARE}` is not known yet in `{field}`");
                return Err(wrong(raw.span(), reason));
            }
        }
        Ok(rule)
    }

    /// Otherwise the field that is missing.
    fn all_that_it_needs(&self, raw: &RawRule) -> Result<(), &'static str> {
        let is_group = raw.action.is_none();
        let fields = [
            ("when", raw.when.is_some(), !is_group),
            ("why", raw.why.is_some(), !is_group),
            ("refute", raw.refute.is_some(), !is_group),
            ("share", raw.share.is_some(), !is_group || raw.why.is_some()),
            (
                "action",
                !is_group,
                raw.apply.is_some() || raw.gain.is_some(),
            ),
        ];
        let missing = fields
            .iter()
            .find(|(_, is_there, is_needed)| *is_needed && !is_there);
        missing.map_or(Ok(()), |(field, ..)| Err(field))
    }

    fn expression(
        &self,
        rule: &str,
        field: &'static str,
        raw: &Field,
        wanted: Type,
    ) -> Result<Option<Expression>, Error> {
        let Some(raw) = raw else { return Ok(None) };
        let parsed = Expression::parse(raw.get_ref(), wanted);
        let placed = |wrong| self.inner_error(rule, field, raw, wrong);
        parsed.map(Some).map_err(placed)
    }

    fn template(
        &self,
        rule: &str,
        field: &'static str,
        raw: &Field,
    ) -> Result<Option<Template>, Error> {
        let Some(raw) = raw else { return Ok(None) };
        let parsed = Template::parse(raw.get_ref());
        let placed = |wrong| self.inner_error(rule, field, raw, wrong);
        parsed.map(Some).map_err(placed)
    }

    fn inner_error(
        &self,
        rule: &str,
        field: &'static str,
        raw: &Spanned<String>,
        wrong: Wrong,
    ) -> Error {
        Error::Expression {
            place: self.spot(self.offset_within(raw, wrong.offset)).place(),
            rule: one_line(rule),
            field,
            reason: one_line(&wrong.reason),
        }
    }

    /// Where this byte of the value stands in the file; where escapes are before it, the
    /// beginning of the value.
    fn offset_within(&self, raw: &Spanned<String>, offset: usize) -> usize {
        let span = raw.span();
        let written = self.0.text.get(span.clone()).unwrap_or_default();
        let quotes = ["\"\"\"\n", "'''\n", "\"\"\"", "'''", "\"", "'"];
        let opening = quotes.iter().find(|quote| written.starts_with(**quote));
        let start = opening.map_or(0, |quote| quote.len());
        let before = raw.get_ref().get(..offset).unwrap_or(raw.get_ref());
        match written[start..].starts_with(before) {
            true => span.start + start + before.len(),
            false => span.start,
        }
    }

    fn spot(&self, offset: usize) -> Spot {
        let source = Arc::clone(&self.0);
        Spot { source, offset }
    }

    fn file_error(&self, offset: usize, reason: String) -> Error {
        let place = self.spot(offset).place();
        let reason = one_line(&reason);
        Error::File { place, reason }
    }
}
