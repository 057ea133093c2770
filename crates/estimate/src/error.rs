//! What can be wrong with a question: one enum, messages that say what, where and what to do.

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    #[error("{what} is no JSON: {reason}; give the file as it was published")]
    NotJson { what: &'static str, reason: String },
    #[error(
        "config.json names no architecture: `model_type` is missing; add it, such as \"model_type\": \"llama\""
    )]
    NoArchitecture,
    #[error("architecture `{0}` is not known from a config.json; known are {known}; or give a GGUF file of the model", known = crate::shape::KNOWN_ARCHITECTURES.join(", "))]
    UnknownArchitecture(String),
    #[error(
        "config.json of architecture `{architecture}` lacks `{key}`; add it as the model's authors publish it"
    )]
    MissingKey {
        architecture: String,
        key: &'static str,
    },
    #[error("config.json: `{key}` is {value}: {wanted}")]
    BadKey {
        key: String,
        value: String,
        wanted: &'static str,
    },
    #[error(
        "the model gives no {0}, and without it nothing can be computed; is it a language model?"
    )]
    Lacks(&'static str),
    #[error("{what} is {value}: {wanted}")]
    Absurd {
        what: &'static str,
        value: String,
        wanted: &'static str,
    },
    #[error("{0} is too large for 64 bits; check the numbers that it is the product of")]
    TooLarge(&'static str),
    #[error(
        "number type `{0}` is not known; known are fp8, int8, int4 and ggml's, such as f16, bf16, q8_0, q4_0"
    )]
    UnknownType(String),
    #[error(
        "machine `{name}` is not in the table; nearest names: {nearest}; or describe it in a machines file"
    )]
    UnknownMachine { name: String, nearest: String },
    #[error(
        "the table gives no {what} for `{machine}`; add it, with its source, in a machines file"
    )]
    NotInTable { machine: String, what: &'static str },
    #[error("machines file, `{machine}`: {reason}")]
    BadMachine { machine: String, reason: String },
}

pub type Result<T> = std::result::Result<T, Error>;
