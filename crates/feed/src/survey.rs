//! Before anything is set up: is the model of a graph one to be fed?
//!
//! A program may compute with several models, and with graphs that are none. The one
//! that is fed is the first whose weights are mapped and that is not small beside
//! another one that is mapped too.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use ggml::{Graph, Op, OpNumbers, TickRules};

use crate::files::{Mapping, mappings};
use crate::weights::{mapping_of, step_nodes};

/// Other files that are mapped count from this size on.
const MIN_BYTES: u64 = 64 << 20;
const MAGIC: &[u8; 4] = b"GGUF";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Feed,
    /// Not this one, perhaps another.
    Pass,
    /// A model, but none that is mapped.
    NotMapped,
}

/// What is mapped, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Found {
    /// Of the graph's weights.
    weights: u64,
    /// Of the files that these lie in.
    files: u64,
    /// Of the largest other model file.
    other: u64,
    has_products: bool,
}

/// Looks at a graph that is about to be computed.
pub fn survey(graph: Graph<'_>, ops: &OpNumbers, rules: TickRules) -> io::Result<Verdict> {
    let maps = mappings()?;
    let (nodes, steps) = crate::schedule::walk(graph, ops, rules);
    let mut found = Found::default();
    let mut seen = HashSet::new();
    let mut files: HashSet<u64> = HashSet::new();
    for node in step_nodes(&nodes, &steps) {
        found.has_products |= matches!(ops.op_of(node), Op::MUL_MAT | Op::MUL_MAT_ID);
        for (_, src) in node.srcs() {
            let root = src.root();
            if seen.insert(root.as_ptr())
                && let Some(mapping) = mapping_of(&maps, root)
            {
                found.weights += root.nbytes();
                files.insert(mapping.inode);
            }
        }
    }
    let bytes = |mapping: &Mapping| (mapping.end - mapping.start) as u64;
    let (own, other): (Vec<&Mapping>, Vec<&Mapping>) = maps
        .iter()
        .partition(|mapping| files.contains(&mapping.inode));
    found.files = own.into_iter().map(bytes).sum();
    let is_model = |mapping: &&&Mapping| bytes(mapping) >= MIN_BYTES && is_gguf(&mapping.path);
    found.other = other
        .iter()
        .filter(is_model)
        .map(|m| bytes(m))
        .max()
        .unwrap_or(0);
    Ok(found.verdict())
}

impl Found {
    fn verdict(self) -> Verdict {
        if self.weights == 0 {
            return match self.has_products && self.other == 0 {
                true => Verdict::NotMapped,
                false => Verdict::Pass,
            };
        }
        // A graph of a part of the model would make the rest stay unknown.
        let is_whole = self.weights * 2 >= self.files;
        let is_largest = self.weights * 2 >= self.other;
        match is_whole && is_largest {
            true => Verdict::Feed,
            false => Verdict::Pass,
        }
    }
}

fn is_gguf(path: &Path) -> bool {
    let mut magic = [0; 4];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && magic == *MAGIC
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_model_that_is_not_small_beside_another_is_fed() {
        let check = |weights, files, other, has_products, expect| {
            let found = Found {
                weights,
                files,
                other,
                has_products,
            };
            assert_eq!(found.verdict(), expect, "{found:?}");
        };
        // Alone, whatever its size.
        check(9, 10, 0, true, Verdict::Feed);
        // A small one beside a large one, and the large one.
        check(30, 32, 1000, true, Verdict::Pass);
        check(990, 1000, 32, true, Verdict::Feed);
        // Equals: the first.
        check(400, 410, 410, true, Verdict::Feed);
        // A part of a model.
        check(100, 1000, 0, true, Verdict::Pass);
        // Loaded without mapping; beside a mapped one it may be a part of that program.
        check(0, 0, 0, true, Verdict::NotMapped);
        check(0, 0, 1000, true, Verdict::Pass);
        // Shifting positions has no weights.
        check(0, 0, 0, false, Verdict::Pass);
    }

    #[test]
    fn model_files_are_known_by_their_beginning() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("blob");
        assert!(!is_gguf(&path));
        std::fs::write(&path, "GGU").unwrap();
        assert!(!is_gguf(&path));
        std::fs::write(&path, "GGUF and more").unwrap();
        assert!(is_gguf(&path));
    }
}
