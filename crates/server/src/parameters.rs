//! Query strings, read strictly: every key is known and given once, every number
//! is a whole number within its limits. Whatever is not is a sentence for the
//! page, never a guess.

use std::collections::BTreeMap;

use index::Filter;

use crate::reply::Refusal;

/// Cells of a raster along one side.
pub const MAX_CELLS_A_SIDE: u64 = 8192;
/// Cells of a raster in all: 16 MB of values.
pub const MAX_CELLS: u64 = 4 << 20;
/// Cells of the file map, which has one side only: as many as crate `index`
/// gives. The map shows fine cells by asking for many, so it needs more than
/// a screen holds.
pub const MAX_MAP_CELLS: u64 = 1 << 20;
/// Whole numbers that a JavaScript number holds exactly.
const MAX_EXACT: u64 = 1 << 53;

/// Keys of the filter bar: allowed everywhere, as the page sends them with every
/// request about a run.
pub const FILTER_KEYS: [&str; 7] = [
    "phase",
    "tokens",
    "layer",
    "component",
    "op",
    "expert",
    "device",
];

/// Keys whose values are whole numbers.
const NUMBERS: [&str; 17] = [
    "a", "at", "b", "cells", "columns", "eval", "from", "h", "max", "o0", "o1", "offset", "since",
    "t0", "t1", "to", "w",
];

/// Pairs of which the first must not be greater.
const RANGES: [[&str; 2]; 3] = [["t0", "t1"], ["o0", "o1"], ["from", "to"]];

/// The parameters of one request, each checked by itself.
#[derive(Debug)]
pub(crate) struct Parameters(BTreeMap<String, String>);

impl Parameters {
    /// `keys` are allowed besides those of the filter.
    pub fn read(query: &str, keys: &[&str]) -> Result<Parameters, Refusal> {
        Parameters::read_only(query, &[keys, &FILTER_KEYS].concat())
    }

    /// Only these keys are allowed: for what no filter changes.
    pub fn read_only(query: &str, known: &[&str]) -> Result<Parameters, Refusal> {
        let mut given = BTreeMap::new();
        for (key, value) in form_urlencoded::parse(query.as_bytes()) {
            if !known.contains(&&*key) {
                return Err(bad(format!(
                    "{} is not a parameter here; use {}",
                    quoted(&key),
                    known.join(", ")
                )));
            }
            if NUMBERS.contains(&&*key) {
                number(&key, &value)?;
            }
            if given.insert(key.to_string(), value.to_string()).is_some() {
                return Err(bad(format!(
                    "{key} is given twice; separate several values by commas"
                )));
            }
        }
        let parameters = Parameters(given);
        for [first, last] in RANGES {
            if let (Some(start), Some(end)) = (parameters.number(first)?, parameters.number(last)?)
                && start > end
            {
                return Err(bad(format!(
                    "{first}={start} is greater than {last}={end}; give the smaller one first"
                )));
            }
        }
        Ok(parameters)
    }

    /// As crate `index` reads them.
    pub fn pairs(&self) -> Vec<(&str, &str)> {
        let pairs = self.0.iter();
        pairs.map(|(k, v)| (k.as_str(), v.as_str())).collect()
    }

    pub fn filter(&self) -> Result<Filter, Refusal> {
        Filter::from_pairs(self.pairs().into_iter()).map_err(bad)
    }

    pub fn text(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// A whole number, or `None` where the key is absent.
    pub fn number(&self, key: &str) -> Result<Option<u64>, Refusal> {
        self.text(key).map(|text| number(key, text)).transpose()
    }

    pub fn required(&self, key: &str) -> Result<u64, Refusal> {
        self.number(key)?
            .ok_or_else(|| bad(format!("{key} is missing; give a whole number")))
    }

    /// Cells of a raster along these sides, which must all be given: 1 to
    /// [`MAX_CELLS_A_SIDE`] each ([`MAX_MAP_CELLS`] of the file map), and not
    /// too many in all.
    pub fn check_cells(&self, sides: &[&str]) -> Result<(), Refusal> {
        let mut area = 1u64;
        for side in sides {
            let cells = self.required(side)?;
            let most = match *side {
                "cells" => MAX_MAP_CELLS,
                _ => MAX_CELLS_A_SIDE,
            };
            if cells == 0 || cells > most {
                return Err(bad(format!(
                    "{side}={cells} is out of range; give 1 to {most}"
                )));
            }
            area = area.saturating_mul(cells);
        }
        if area > MAX_CELLS {
            return Err(bad(format!(
                "{area} cells are too many; ask for at most {MAX_CELLS} in all"
            )));
        }
        Ok(())
    }
}

/// A sentence about what was asked.
pub(crate) fn bad(sentence: String) -> Refusal {
    Refusal::BadInput(sentence)
}

/// Digits only: no sign, no space, no fraction.
pub(crate) fn number(key: &str, text: &str) -> Result<u64, Refusal> {
    let is_digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match text.parse::<u64>() {
        Ok(value) if is_digits && value <= MAX_EXACT => Ok(value),
        _ => Err(bad(format!(
            "{key}: {} is not a whole number from 0 to 2^53; give digits only",
            quoted(text)
        ))),
    }
}

/// Short and without control characters: it comes from an address.
pub(crate) fn quoted(text: &str) -> String {
    format!("{:?}", text.chars().take(40).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentence<T: std::fmt::Debug>(result: Result<T, Refusal>) -> String {
        match result {
            Err(Refusal::BadInput(sentence)) => sentence,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn numbers_are_digits_within_what_javascript_holds() {
        for (text, expect) in [("0", 0), ("17", 17), ("9007199254740992", 1 << 53)] {
            assert_eq!(number("t0", text).unwrap(), expect);
        }
        for text in [
            "",
            " 1",
            "+1",
            "-1",
            "1.0",
            "1e3",
            "0x1",
            "٣",
            "9007199254740993",
            "1_0",
            "99999999999999999999999",
        ] {
            assert!(sentence(number("t0", text)).contains("t0: "), "{text}");
        }
    }

    #[test]
    fn unknown_repeated_and_missing_keys_are_refused_by_name() {
        assert!(sentence(Parameters::read("w=1&x=2", &["w"])).contains("\"x\""));
        assert!(sentence(Parameters::read("w=1&w=2", &["w"])).contains("w is given twice"));
        let read = Parameters::read("w=5&op=MUL%5FMAT&layer=none", &["w"]).unwrap();
        assert_eq!(read.text("op"), Some("MUL_MAT"));
        assert_eq!(read.filter().unwrap().layers, Some(vec![None]));
        assert_eq!(read.required("w").unwrap(), 5);
        assert!(sentence(read.required("h")).contains("h is missing"));
    }

    #[test]
    fn rasters_have_limits_by_side_and_by_area() {
        let check = |query: &str| {
            let read = Parameters::read(query, &["w", "h"]).unwrap();
            read.check_cells(&["w", "h"])
        };
        assert!(check("w=8192&h=512").is_ok());
        assert!(sentence(check("w=8192&h=513")).contains("too many"));
        assert!(sentence(check("w=8193&h=1")).contains("w=8193"));
        assert!(sentence(check("w=1&h=0")).contains("h=0"));
        assert!(sentence(check("w=1")).contains("h is missing"));
    }

    #[test]
    fn the_file_map_may_have_as_many_cells_as_the_index_gives() {
        let most = MAX_MAP_CELLS.to_string();
        assert!(index::MapQuery::from_pairs(&[("cells", &most)]).is_ok());
        let more = (MAX_MAP_CELLS + 1).to_string();
        assert!(index::MapQuery::from_pairs(&[("cells", &more)]).is_err());
        let check = |query: &str| {
            let read = Parameters::read(query, &["cells"]).unwrap();
            read.check_cells(&["cells"])
        };
        assert!(check("cells=1048576").is_ok());
        assert!(sentence(check("cells=1048577")).contains("give 1 to 1048576"));
        assert!(sentence(check("cells=0")).contains("cells=0"));
    }

    #[test]
    fn windows_that_end_before_they_start_are_refused() {
        for query in ["t0=2&t1=1", "o0=2&o1=1", "from=2&to=1"] {
            let keys = ["t0", "t1", "o0", "o1", "from", "to"];
            assert!(sentence(Parameters::read(query, &keys)).contains("smaller one first"));
        }
    }
}
