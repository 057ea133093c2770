//! A `config.json`, read key by key: each number is demanded by name, bounded, and missed with
//! a message.

use serde_json::Value;

use crate::error::{Error, Result};

/// No width, count or length of a published model is larger; products of three stay in 128 bits.
const MAX_NUMBER: u64 = 1 << 32;

pub(super) struct Config {
    pub architecture: String,
    outer: Value,
    /// Multimodal configs keep the language model's numbers in here.
    inner: Option<Value>,
}

impl Config {
    pub fn parse(text: &str) -> Result<Config> {
        let outer: Value = serde_json::from_str(text).map_err(|error| Error::NotJson {
            what: "config.json",
            reason: error.to_string(),
        })?;
        let inner = outer.get("text_config").filter(|v| v.is_object()).cloned();
        let named = |value: &Value| Some(value.get("model_type")?.as_str()?.to_owned());
        let architecture = inner
            .as_ref()
            .and_then(named)
            .or_else(|| named(&outer))
            .ok_or(Error::NoArchitecture)?;
        Ok(Config {
            architecture,
            outer,
            inner,
        })
    }

    pub fn name(&self) -> Option<String> {
        let name = self.outer.get("_name_or_path")?.as_str()?;
        (!name.is_empty()).then(|| name.to_owned())
    }

    fn value(&self, key: &str) -> Option<&Value> {
        let inner = self.inner.as_ref().and_then(|inner| inner.get(key));
        inner
            .or_else(|| self.outer.get(key))
            .filter(|value| !value.is_null())
    }

    /// A whole number; `None` where the key is missing or null.
    pub fn maybe(&self, key: &str) -> Result<Option<u64>> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let number = value
            .as_u64()
            .or_else(|| {
                value
                    .as_f64()
                    .filter(|n| n.fract() == 0.0 && (0.0..1e10).contains(n))
                    .map(|n| n as u64)
            })
            .filter(|&number| number <= MAX_NUMBER);
        match number {
            Some(number) => Ok(Some(number)),
            None => Err(Error::BadKey {
                key: key.to_owned(),
                value: shortened(value),
                wanted: "it must be a whole number from 0 to 2^32",
            }),
        }
    }

    /// A whole number under the first of these names that is there, or an error that names the
    /// first.
    pub fn number(&self, keys: &[&'static str]) -> Result<u64> {
        for key in keys {
            if let Some(number) = self.maybe(key)? {
                return Ok(number);
            }
        }
        Err(Error::MissingKey {
            architecture: self.architecture.clone(),
            key: keys.first().copied().unwrap_or("?"),
        })
    }

    /// As [`Config::number`], and from one on.
    pub fn count(&self, keys: &[&'static str]) -> Result<u64> {
        match self.number(keys)? {
            0 => Err(Error::BadKey {
                key: keys.first().copied().unwrap_or("?").to_owned(),
                value: "0".to_owned(),
                wanted: "it must be at least 1",
            }),
            number => Ok(number),
        }
    }

    pub fn flag(&self, key: &str, default: bool) -> bool {
        self.value(key).and_then(Value::as_bool).unwrap_or(default)
    }

    pub fn text(&self, key: &str) -> Option<&str> {
        self.value(key)?.as_str()
    }

    pub fn has(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    /// Strings of a list, such as `layer_types`.
    pub fn texts(&self, key: &str) -> Option<Vec<&str>> {
        let list = self.value(key)?.as_array()?;
        Some(list.iter().map(|v| v.as_str().unwrap_or("")).collect())
    }

    /// Whole numbers of a list.
    pub fn numbers(&self, key: &str) -> Vec<u64> {
        let list = self.value(key).and_then(Value::as_array);
        list.map_or(Vec::new(), |list| {
            list.iter().filter_map(Value::as_u64).collect()
        })
    }
}

fn shortened(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
