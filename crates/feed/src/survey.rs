//! Before anything is set up: is the model of a graph one to be fed?
//!
//! A program may compute with several models, and with graphs that are none. The one
//! that is fed is the first whose weights are mapped and that is not small beside
//! another one that is mapped too. A device may hold a part of it: what is on no side that
//! is seen here would stay unknown, so the graph has to show the rest, too. Which tensors are
//! weights, and not caches or inputs, is known by their names in the model's file.

use std::collections::HashSet;
use std::io;
use std::path::Path;

use ggml::{Graph, Op, OpNumbers, TickRules};

use crate::files::{Mapping, is_gguf, mappings};
use crate::weights::{Usage, mapping_of, step_nodes, usage_of};

/// Other files that are mapped count from this size on.
const MIN_BYTES: u64 = 64 << 20;
/// With a device that has the rest, less than this is not worth being fed.
const MIN_COMPUTED_BYTES: u64 = 1 << 20;
/// What is computed is so many times what is copied, where a graph shows the model: scales of a
/// norm over heads are copied for every token, because CUDA counts their rows as a batch.
const MIN_COMPUTED_PER_COPIED: u64 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// But for these bytes, which a device has.
    Feed { on_device_bytes: u64 },
    /// Not this one, perhaps another.
    Pass,
    /// A model, but none that is mapped.
    NotMapped,
    /// A device has all that is computed with.
    OnDevice,
}

/// What is mapped, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Found {
    /// Of the graph's weights.
    weights: u64,
    /// Of these, what is not only looked up.
    computed: u64,
    /// Of the files that these lie in.
    files: u64,
    elsewhere: Elsewhere,
    /// Of the largest other model file.
    other: u64,
    has_products: bool,
}

/// Weights of the same files that are not mapped, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Elsewhere {
    /// On a device.
    on_device: u64,
    /// Of a mapped weight the graph has a copy only, made for this once: a device computes
    /// a long prompt with it. A graph of one token shows the weight.
    copied: u64,
}

/// Looks at a graph that is about to be computed: all of it, where a device computes a part.
pub fn survey(graph: Graph<'_>, ops: &OpNumbers, rules: TickRules) -> io::Result<Verdict> {
    let maps = mappings()?;
    let (nodes, steps) = crate::schedule::walk(graph, ops, rules);
    let mut found = Found::default();
    let mut seen = HashSet::new();
    let mut computed = HashSet::new();
    let mut files: HashSet<u64> = HashSet::new();
    let mut paths: Vec<&Path> = Vec::new();
    let mut other_names: Vec<&[u8]> = Vec::new();
    for node in step_nodes(&nodes, &steps) {
        let op = ops.op_of(node);
        found.has_products |= matches!(op, Op::MUL_MAT | Op::MUL_MAT_ID);
        for (slot, src) in node.srcs() {
            let root = src.root();
            let mapping = mapping_of(&maps, root);
            let is_looked_up = usage_of(op, slot, node, src) == Usage::Rows;
            if mapping.is_some() && !is_looked_up && computed.insert(root.as_ptr()) {
                found.computed += root.nbytes();
            }
            if !seen.insert(root.as_ptr()) {
                continue;
            }
            match mapping {
                Some(mapping) => {
                    found.weights += root.nbytes();
                    if files.insert(mapping.inode) {
                        paths.push(&mapping.path);
                    }
                }
                None => other_names.push(root.name()),
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
    // Only where a device takes part there are copies.
    let has_copies = other_names.iter().any(|name| name.contains(&b'#'));
    if has_copies && found.is_largest() {
        found.elsewhere = Elsewhere::find(&paths, &other_names);
    }
    Ok(found.verdict())
}

impl Found {
    fn is_largest(self) -> bool {
        self.weights * 2 >= self.other
    }

    fn verdict(self) -> Verdict {
        if self.weights == 0 {
            return match self.has_products && self.other == 0 {
                true => Verdict::NotMapped,
                false => Verdict::Pass,
            };
        }
        let Elsewhere { on_device, copied } = self.elsewhere;
        // A graph of a part of the model would make the rest stay unknown. Of the file, what
        // is behind the last weight that is not on a device is unmapped.
        let shows_the_rest = copied * MIN_COMPUTED_PER_COPIED <= self.computed;
        let is_whole = (self.weights + on_device) * 2 >= self.files && shows_the_rest;
        match is_whole && self.is_largest() {
            true if on_device > 0 && self.computed < MIN_COMPUTED_BYTES => Verdict::OnDevice,
            true => Verdict::Feed {
                on_device_bytes: on_device,
            },
            false => Verdict::Pass,
        }
    }
}

impl Elsewhere {
    /// `names` are those of tensors that are not mapped, of a graph with weights in the files.
    fn find(paths: &[&Path], names: &[&[u8]]) -> Elsewhere {
        let mut elsewhere = Elsewhere::default();
        let mut known = HashSet::new();
        for path in paths {
            // What cannot be read is as if it had no weights elsewhere.
            let Ok(model) = gguf::Model::open(path) else {
                continue;
            };
            let bytes_of = |name: &str| model.tensor(name).map_or(0, |tensor| tensor.size_bytes);
            for name in names.iter().filter_map(|name| str::from_utf8(name).ok()) {
                if known.contains(name) {
                    continue;
                }
                let on_device = bytes_of(name);
                let copied = copied_name(name).map_or(0, bytes_of);
                if on_device + copied > 0 {
                    known.insert(name);
                }
                elsewhere.on_device += on_device;
                elsewhere.copied += copied;
            }
        }
        elsewhere
    }
}

/// Of a copy that the scheduler makes, the name of what it copies: `CUDA0#blk.1.ffn_up.weight#0`.
fn copied_name(name: &str) -> Option<&str> {
    let (_, rest) = name.split_once('#')?;
    rest.rsplit_once('#').map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_model_that_is_not_small_beside_another_is_fed() {
        let feed = Verdict::Feed { on_device_bytes: 0 };
        let check = |weights, files, other, has_products, expect| {
            let found = Found {
                weights,
                computed: weights,
                files,
                elsewhere: Elsewhere::default(),
                other,
                has_products,
            };
            assert_eq!(found.verdict(), expect, "{found:?}");
        };
        // Alone, whatever its size.
        check(9, 10, 0, true, feed);
        // A small one beside a large one, and the large one.
        check(30, 32, 1000, true, Verdict::Pass);
        check(990, 1000, 32, true, feed);
        // Equals: the first.
        check(400, 410, 410, true, feed);
        // A part of a model.
        check(100, 1000, 0, true, Verdict::Pass);
        // Loaded without mapping; beside a mapped one it may be a part of that program.
        check(0, 0, 0, true, Verdict::NotMapped);
        check(0, 0, 1000, true, Verdict::Pass);
        // Shifting positions has no weights.
        check(0, 0, 0, false, Verdict::Pass);
    }

    #[test]
    fn what_a_device_leaves_to_the_processor_is_fed() {
        let found = |computed, on_device, copied| Found {
            weights: computed + 100,
            computed,
            files: 1000 << 20,
            elsewhere: Elsewhere { on_device, copied },
            other: 0,
            has_products: true,
        };
        let check = |found: Found, expect| assert_eq!(found.verdict(), expect, "{found:?}");
        let few = 90 << 20;
        let on_device_bytes = 900 << 20;
        let feed = Verdict::Feed { on_device_bytes };
        check(found(few, on_device_bytes, 0), feed);
        // Nobody has seen the rest.
        check(found(few, 0, 0), Verdict::Pass);
        // A long prompt hides what the processor computes otherwise.
        check(found(few, on_device_bytes, few / 2), Verdict::Pass);
        // What a norm over heads has is copied for every token.
        check(found(few, on_device_bytes, 4096), feed);
        // Rows are looked up, and all else is on the device.
        check(found(0, on_device_bytes, 0), Verdict::OnDevice);
        check(found(100, on_device_bytes, 0), Verdict::OnDevice);
    }

    #[test]
    fn copies_of_the_scheduler_are_known_by_their_names() {
        let check = |name, expect| assert_eq!(copied_name(name), expect, "{name}");
        check("CUDA0#blk.1.ffn_up.weight#0", Some("blk.1.ffn_up.weight"));
        check("Vulkan0#a#b#12", Some("a#b"));
        for name in ["blk.1.ffn_up.weight", "a#b", "", "#"] {
            check(name, None);
        }
    }

    #[test]
    fn weights_elsewhere_are_those_that_the_file_has() {
        let path = Path::new(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../models/shakespeare-moe.gguf"
        ));
        let model = gguf::Model::open(path).unwrap();
        let bytes_of = |name: &str| model.tensor(name).unwrap().size_bytes;
        let names: [&[u8]; 4] = [
            b"blk.0.attn_q.weight",
            b"Vulkan0#blk.1.ffn_up_exps.weight#0",
            b"cache_k_l0",
            b"blk.0.attn_q.weight",
        ];
        let found = Elsewhere::find(&[path, path], &names);
        let expect = Elsewhere {
            on_device: bytes_of("blk.0.attn_q.weight"),
            copied: bytes_of("blk.1.ffn_up_exps.weight"),
        };
        assert_eq!(found, expect);
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
