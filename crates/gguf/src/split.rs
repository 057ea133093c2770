//! Finds the files of a split set: `NAME-00001-of-000NN.gguf`.
//!
//! Any file of the set names all others. What the names say must agree with the
//! metadata `split.no`, `split.count` and `split.tensors.count`; a file that is
//! missing is an error that names it.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::header::Header;

const SUFFIX: &str = ".gguf";

/// The place of a file in a split set, as its name tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitName {
    prefix: String,
    /// From 1.
    pub number: u32,
    pub count: u32,
}

impl SplitName {
    /// Parses `PREFIX-00002-of-00003.gguf`; `None` for any other name.
    pub fn parse(file_name: &str) -> Option<SplitName> {
        let stem = file_name.strip_suffix(SUFFIX)?;
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (prefix, number) = rest.rsplit_once('-')?;
        let (number, count) = (five_digits(number)?, five_digits(count)?);
        (1..=count).contains(&number).then(|| SplitName {
            prefix: prefix.to_owned(),
            number,
            count,
        })
    }

    /// The file name of another member of the set.
    pub fn sibling(&self, number: u32) -> String {
        format!("{}-{number:05}-of-{:05}{SUFFIX}", self.prefix, self.count)
    }
}

/// All files of the set that `path` belongs to, in order, and which of them
/// `path` is; one file when it is not split.
pub fn files_of_set(path: &Path, header: &Header) -> Result<(Vec<PathBuf>, usize)> {
    let count = header.metadata.u64("split.count").unwrap_or(0);
    if count <= 1 {
        return Ok((vec![path.to_owned()], 0));
    }
    let error = |reason| Error::Split {
        path: path.to_owned(),
        offset: value_offset(header, "split.count"),
        reason,
    };
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .and_then(SplitName::parse)
        .ok_or_else(|| {
            error(format!(
                "this is one of {count} split files, but its name does not end in -00001-of-{count:05}.gguf, so the others cannot be found: rename it"
            ))
        })?;
    if u64::from(name.count) != count {
        return Err(error(format!(
            "split.count is {count}, but the file name says {} files",
            name.count
        )));
    }
    let mut files = Vec::new();
    for number in 1..=name.count {
        let file = path.with_file_name(name.sibling(number));
        if !file.exists() {
            return Err(Error::Split {
                offset: 0,
                reason: format!(
                    "split file {number} of {count} is missing (needed by {})",
                    path.display()
                ),
                path: file,
            });
        }
        files.push(file);
    }
    Ok((files, name.number as usize - 1))
}

/// Checks that file `index` of a set of `count` says so itself.
pub fn check_member(path: &Path, header: &Header, index: usize, count: usize) -> Result<()> {
    let said = |key| header.metadata.u64(key);
    if count <= 1 {
        return Ok(());
    }
    let (key, reason) = if said("split.count") != Some(count as u64) {
        let its = said("split.count").map_or("missing".to_owned(), |n| n.to_string());
        (
            "split.count",
            format!("split.count is {its}, but the set has {count} files"),
        )
    } else if said("split.no") != Some(index as u64) {
        let its = said("split.no").map_or("missing".to_owned(), |n| n.to_string());
        (
            "split.no",
            format!("split.no is {its}, but the file name says {index} (counted from 0)"),
        )
    } else {
        return Ok(());
    };
    Err(Error::Split {
        path: path.to_owned(),
        offset: value_offset(header, key),
        reason,
    })
}

/// Checks the announced number of tensors of the whole set.
pub fn check_tensor_count(path: &Path, header: &Header, tensors: usize) -> Result<()> {
    const KEY: &str = "split.tensors.count";
    match header.metadata.u64(KEY) {
        Some(announced) if announced != tensors as u64 => Err(Error::Split {
            path: path.to_owned(),
            offset: value_offset(header, KEY),
            reason: format!(
                "{KEY} is {announced}, but the files of the set hold {tensors} tensors"
            ),
        }),
        _ => Ok(()),
    }
}

fn value_offset(header: &Header, key: &str) -> u64 {
    header.metadata.entry(key).map_or(0, |e| e.value_offset)
}

fn five_digits(text: &str) -> Option<u32> {
    let valid = text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
    valid.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_pattern_is_a_split_name() {
        let check = |name: &str, expect: Option<(u32, u32)>| {
            let got = SplitName::parse(name).map(|s| (s.number, s.count));
            assert_eq!(got, expect, "{name}");
        };
        check("m-00001-of-00003.gguf", Some((1, 3)));
        check("a-b-00003-of-00003.gguf", Some((3, 3)));
        check("m-00004-of-00003.gguf", None);
        check("m-00000-of-00003.gguf", None);
        check("m-1-of-3.gguf", None);
        check("m-00001-of-00003.bin", None);
        check("m-+0001-of-00003.gguf", None);
        check("m.gguf", None);
        check("-of-.gguf", None);
    }

    #[test]
    fn a_sibling_differs_in_its_number_only() {
        let name = SplitName::parse("x-of-y-00002-of-00012.gguf").unwrap();
        assert_eq!(name.sibling(11), "x-of-y-00011-of-00012.gguf");
    }
}
