//! The plan as a file that people read and edit, and the model it is for.
//!
//! Apart from crate `plan`, because that is linked into other people's programs, which need
//! no JSON: they get [`Plan::named_choice`].
//!
//! A plan is JSON with names of tensors in it, so that an edit is moving a line. What an
//! edit can break is checked before anything is carried out ([`Plan::check`]); a field
//! that is not known is refused, because it is a known one with a typing error.
//!
//! Tensors that are in no list are left in the file, like those in `mapped`.

mod check;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

use plan::{
    Choice, ExpertMemory, ExpertsOutlook, Machine, NamedChoice, Policy, Predicted, Strategies,
    Wanted, Weight, fingerprint, predict,
};
use serde::{Deserialize, Serialize};

/// What the first line of a plan says.
pub const FORMAT: &str = "tensorscope-plan";
pub const VERSION: u32 = 1;

/// A choice for one model and one budget.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    pub format: String,
    pub version: u32,
    pub made_by: String,
    pub made_for: MadeFor,
    pub memory: Memory,
    pub strategies: Strategies,
    pub ring: Ring,
    pub experts: Option<Experts>,
    pub assumed: Assumed,
    pub predicted: Predicted,
    pub notes: Vec<String>,
    /// Read once and kept.
    pub pin: Vec<String>,
    /// Read for each token, in this order.
    pub stream: Vec<String>,
    /// Read expert by expert.
    pub sliced: Vec<String>,
    /// Left to the page cache.
    pub mapped: Vec<String>,
}

/// The model that a plan's names belong to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MadeFor {
    /// Path of the first file, for people: the model may have moved since.
    pub model: String,
    pub files: Vec<File>,
    pub fingerprint: String,
    /// All tensors together.
    pub weight_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    pub name: String,
    pub bytes: u64,
}

/// `weights_bytes` and `other_bytes` share the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    pub budget_bytes: u64,
    /// KV cache, buffers, the program: not weights.
    pub other_bytes: u64,
    /// Pinned weights, ring and slots for experts.
    pub weights_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ring {
    pub bytes: u64,
    pub read_bytes: u64,
    pub depth: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experts {
    pub pools: u32,
    pub slots: u32,
    pub bytes: u64,
    pub policy: Policy,
}

/// What the prediction takes for granted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Assumed {
    /// While all threads compute.
    pub disk_bytes_per_second: f64,
    /// The slowest and the fastest that it may be; the same where it is not known to vary, and
    /// None in plans of older versions.
    #[serde(default)]
    pub disk_bytes_per_second_low: Option<f64>,
    #[serde(default)]
    pub disk_bytes_per_second_high: Option<f64>,
    /// From asking for the experts of a router to their first bytes.
    #[serde(default)]
    pub read_latency_seconds: Option<f64>,
    /// With all weights in memory.
    pub compute_seconds_per_token: Option<f64>,
    /// Share of the experts that are asked for and found in a slot.
    pub expert_hit_rate: Option<f64>,
}

/// Keeps what a text of the file begins and ends with; messages of serde end with the line
/// and column.
fn shortened(message: &str) -> String {
    const KEPT: usize = 200;
    let length = message.chars().count();
    if length <= 2 * KEPT {
        return message.to_owned();
    }
    let begin: String = message.chars().take(KEPT).collect();
    let end: String = message.chars().skip(length - KEPT).collect();
    format!("{begin} … {end}")
}

/// What is wrong with a plan. Each message is one line.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// Check the path and its permissions.
    #[error("{}: cannot read: {cause}", path.display())]
    Read {
        path: PathBuf,
        // Not named `source`: the message already tells it.
        cause: io::Error,
    },
    #[error("{}: not a plan: {reason}", path.display())]
    Syntax { path: PathBuf, reason: String },
    #[error("version {found} of the plan is not known, only {VERSION}: make the plan anew")]
    UnknownVersion { found: u64 },
    #[error(
        "the plan was made for {:?}, which is another model: {differs}",
        shortened(model)
    )]
    OtherModel { model: String, differs: String },
    #[error(
        "{list}: the model has no tensor {:?}{}",
        shortened(name),
        check::suggestion(nearest)
    )]
    UnknownTensor {
        list: &'static str,
        name: String,
        nearest: Option<String>,
    },
    #[error(
        "tensor {:?} is in {first} and again in {second}: keep one of the two",
        shortened(name)
    )]
    ListedTwice {
        name: String,
        first: &'static str,
        second: &'static str,
    },
    #[error(
        "ring.bytes is {ring_bytes}, but to stream {name:?} the ring needs room for three pieces \
         of it: at least {needed_bytes} bytes"
    )]
    RingTooSmall {
        ring_bytes: u64,
        name: String,
        needed_bytes: u64,
    },
    #[error(
        "pin ({pinned_bytes} bytes), ring ({ring_bytes}) and experts ({experts_bytes}) are more \
         than memory.weights_bytes: {weights_bytes}"
    )]
    OverMemory {
        pinned_bytes: u64,
        ring_bytes: u64,
        experts_bytes: u64,
        weights_bytes: u64,
    },
    /// A number or a tensor that cannot be where it is.
    #[error("{field}: {reason}")]
    Wrong { field: &'static str, reason: String },
}

impl Plan {
    /// The plan for a choice. Budget and other memory, policy and notes are the caller's
    /// to fill in: it starts with memory for nothing but weights, and [`Policy::Lru`].
    pub fn new(
        model: &gguf::Model,
        weights: &[Weight],
        wanted: &Wanted,
        choice: &Choice,
        (machine, outlook): (&Machine, Option<ExpertsOutlook>),
    ) -> Plan {
        let predicted = predict(weights, choice, machine, outlook);
        let names = |list: &[usize]| list.iter().map(|&i| weights[i].name.clone()).collect();
        Plan {
            format: FORMAT.to_owned(),
            version: VERSION,
            made_by: concat!("tensorscope ", env!("CARGO_PKG_VERSION")).to_owned(),
            made_for: MadeFor::of(model),
            memory: Memory {
                budget_bytes: wanted.weights_bytes,
                other_bytes: 0,
                weights_bytes: wanted.weights_bytes,
            },
            strategies: wanted.strategies,
            ring: Ring {
                bytes: choice.ring_bytes,
                read_bytes: wanted.read_bytes,
                depth: wanted.depth,
            },
            experts: choice.experts.map(|memory| Experts {
                pools: memory.pools,
                slots: memory.slots,
                bytes: memory.bytes,
                policy: Policy::default(),
            }),
            assumed: Assumed {
                disk_bytes_per_second: machine.disk_bytes_per_second.round(),
                disk_bytes_per_second_low: Some(machine.slowest().disk_bytes_per_second.round()),
                disk_bytes_per_second_high: Some(machine.fastest().disk_bytes_per_second.round()),
                read_latency_seconds: (!choice.sliced.is_empty())
                    .then_some(machine.read_latency_seconds),
                compute_seconds_per_token: machine.compute_seconds_per_token,
                expert_hit_rate: outlook.map(|outlook| outlook.hit_rate),
            },
            predicted: predicted.rounded(),
            notes: vec![],
            pin: names(&choice.pinned),
            stream: names(&choice.streamed),
            sliced: names(&choice.sliced),
            mapped: names(&choice.mapped),
        }
    }

    pub fn read(path: &Path) -> Result<Plan, PlanError> {
        let text = std::fs::read_to_string(path).map_err(|cause| PlanError::Read {
            path: path.to_owned(),
            cause,
        })?;
        Plan::from_json(path, &text)
    }

    /// `path` serves messages only.
    pub fn from_json(path: &Path, text: &str) -> Result<Plan, PlanError> {
        let syntax = |error: serde_json::Error| PlanError::Syntax {
            path: path.to_owned(),
            // It may quote the file, and stays one line that can be read.
            reason: shortened(&error.to_string().replace(char::is_control, " ")),
        };
        // The version first: another one may have fields that this one has not.
        let head: Head = serde_json::from_str(text).map_err(syntax)?;
        head.check(path)?;
        serde_json::from_str(text).map_err(syntax)
    }

    /// The text of the file, with a line for each tensor.
    pub fn to_json(&self) -> String {
        // Numbers that JSON cannot hold are written as null; nothing else can fail.
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    /// Whether the plan is for this model, and can be carried out.
    pub fn check(&self, model: &gguf::Model) -> Result<(), PlanError> {
        check::check(self, model)
    }

    /// What is to be done, by names: for who carries it out.
    pub fn named_choice(&self) -> NamedChoice {
        NamedChoice {
            pinned: self.pin.clone(),
            streamed: self.stream.clone(),
            sliced: self.sliced.clone(),
            ring_bytes: self.ring.bytes,
            experts: self.experts.map(|experts| ExpertMemory {
                pools: experts.pools,
                slots: experts.slots,
                bytes: experts.bytes,
            }),
        }
    }
}

impl MadeFor {
    pub fn of(model: &gguf::Model) -> MadeFor {
        let files = model.files().iter().map(|file| File {
            name: file
                .path
                .file_name()
                .map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
            bytes: file.len_bytes,
        });
        MadeFor {
            model: model
                .files()
                .first()
                .map_or_else(String::new, |file| file.path.display().to_string()),
            files: files.collect(),
            fingerprint: fingerprint(model),
            weight_bytes: model.tensors().iter().map(|t| t.size_bytes).sum(),
        }
    }
}

/// What every version of the format has.
#[derive(Deserialize)]
struct Head {
    format: Option<String>,
    version: Option<u64>,
}

impl Head {
    fn check(&self, path: &Path) -> Result<(), PlanError> {
        if self.format.as_deref() != Some(FORMAT) {
            return Err(PlanError::Syntax {
                path: path.to_owned(),
                reason: format!("no \"format\": {FORMAT:?} in it"),
            });
        }
        match self.version {
            Some(version) if version == u64::from(VERSION) => Ok(()),
            found => Err(PlanError::UnknownVersion {
                found: found.unwrap_or(0),
            }),
        }
    }
}
