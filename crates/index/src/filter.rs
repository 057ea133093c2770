//! The filter that governs all views.
//!
//! Several values of a key are alternatives, keys restrict each other, an absent
//! key does not restrict. Names are those of the tables.

use trace::format::Phase;

use crate::query::{not_a_number, quoted};

/// Most values that a key may list.
const MAX_VALUES: usize = 4096;

/// What is kept; the default keeps everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    pub phases: Option<Vec<Phase>>,
    /// Token numbers of the run, both included: keeps the evaluations whose batch
    /// holds one of them.
    pub tokens: Option<(u64, u64)>,
    /// Of steps; `None` among them: steps that belong to no layer.
    pub layers: Option<Vec<Option<u32>>>,
    /// Of weights their component, of other tensors their kind.
    pub components: Option<Vec<String>>,
    pub ops: Option<Vec<String>>,
    /// Keeps only accesses to these experts' slices.
    pub experts: Option<Vec<u32>>,
    /// Keeps the evaluations that one of these computed; `CPU` is the processor.
    pub devices: Option<Vec<String>>,
}

impl Filter {
    /// From the parameters of an address; keys that are not the filter's are left
    /// to others.
    pub fn from_pairs<'a>(
        pairs: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Result<Filter, String> {
        let mut filter = Filter::default();
        for (key, value) in pairs {
            if value.is_empty() {
                continue;
            }
            if value.split(',').count() > MAX_VALUES {
                return Err(format!("{key}: more than {MAX_VALUES} values"));
            }
            let texts = || value.split(',').map(|v| v.trim().to_owned()).collect();
            match key {
                "phase" => filter.phases = Some(each(value, phase)?),
                "tokens" => filter.tokens = Some(range(value)?),
                "layer" => filter.layers = Some(each(value, layer)?),
                "component" => filter.components = Some(texts()),
                "op" => filter.ops = Some(texts()),
                "device" => filter.devices = Some(texts()),
                "expert" => filter.experts = Some(each(value, |v| number("expert", v))?),
                _ => {}
            }
        }
        Ok(filter)
    }
}

fn each<T>(value: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
    value.split(',').map(|v| parse(v.trim())).collect()
}

fn number<T: std::str::FromStr>(key: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| not_a_number(key, value))
}

fn phase(value: &str) -> Result<Phase, String> {
    [Phase::Prompt, Phase::Generate, Phase::Unknown]
        .into_iter()
        .find(|phase| phase.name() == value)
        .ok_or_else(|| {
            format!(
                "phase: {} is none of prompt, generate, unknown",
                quoted(value)
            )
        })
}

fn layer(value: &str) -> Result<Option<u32>, String> {
    match value {
        "none" => Ok(None),
        value => number("layer", value).map(Some),
    }
}

/// `A-B`, or one number.
fn range(value: &str) -> Result<(u64, u64), String> {
    let (first, last) = value.split_once('-').unwrap_or((value, value));
    let (first, last) = (
        number("tokens", first.trim())?,
        number("tokens", last.trim())?,
    );
    if first > last {
        return Err(format!(
            "tokens: {first} comes after {last}; write the smaller first"
        ));
    }
    Ok((first, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_reads_all_keys_and_leaves_others_alone() {
        let pairs = [
            ("phase", "generate"),
            ("tokens", "3-20"),
            ("layer", "0,5,none"),
            ("component", "attention,kv_cache"),
            ("op", "MUL_MAT"),
            ("expert", "3, 7"),
            ("device", "CUDA0,CPU"),
            ("view", "map"),
        ];
        let filter = Filter::from_pairs(pairs.into_iter()).unwrap();
        assert_eq!(filter.phases, Some(vec![Phase::Generate]));
        assert_eq!(filter.tokens, Some((3, 20)));
        assert_eq!(filter.layers, Some(vec![Some(0), Some(5), None]));
        assert_eq!(
            filter.components,
            Some(vec!["attention".into(), "kv_cache".into()])
        );
        assert_eq!(filter.ops, Some(vec!["MUL_MAT".into()]));
        assert_eq!(filter.experts, Some(vec![3, 7]));
        assert_eq!(filter.devices, Some(vec!["CUDA0".into(), "CPU".into()]));
    }

    #[test]
    fn a_filter_says_what_is_wrong_with_it() {
        let check = |key, value, message: &str| {
            let error = Filter::from_pairs([(key, value)].into_iter()).unwrap_err();
            assert_eq!(error, message);
        };
        check("layer", "x", "layer: \"x\" is not a number");
        check(
            "tokens",
            "9-3",
            "tokens: 9 comes after 3; write the smaller first",
        );
        check(
            "phase",
            "both",
            "phase: \"both\" is none of prompt, generate, unknown",
        );
    }

    #[test]
    fn an_empty_value_does_not_filter() {
        let filter = Filter::from_pairs([("layer", "")].into_iter()).unwrap();
        assert_eq!(filter, Filter::default());
    }
}
