//! Byte-exact, not only page-exact: weights that the trace does not claim can be
//! replaced by garbage, and the model computes the same bits.
//!
//! Pages cannot tell one embedding row or one expert's bias from its neighbour;
//! this can. Garbage is 0xff: not-a-number in every floating-point type and in
//! the scales of every quantised one.

use std::{
    ops::Range,
    path::{Path, PathBuf},
};

use engine::{
    context::{Context, ContextProps, FlashAttention},
    generate::generate,
    model::Model,
};
use gguf::write::Split;
use trace::expand::for_each_access;

use crate::fixtures::{Plain, Run, alone, greedy, load, prompt, record, shipped, tiny, write};

const GARBAGE: u8 = 0xff;

#[test]
fn bytes_that_are_not_claimed_do_not_matter() {
    check("shakespeare-dense", &shipped("shakespeare-dense.gguf"));
    check("shakespeare-moe", &shipped("shakespeare-moe.gguf"));
    // Not the dense models with tied embeddings: they read every byte.
    for preset in [
        "llama-3-8b",
        "phi-3-mini",
        "mixtral-8x7b",
        "qwen3-30b-a3b",
        "qwen1.5-moe-a2.7b",
        "gpt-oss-20b",
        "deepseek-v2-lite",
    ] {
        let directory = tempfile::tempdir().unwrap();
        check(
            preset,
            &write(&tiny(preset), directory.path(), Split::Whole),
        );
    }
}

fn check(label: &str, path: &Path) {
    let _alone = alone();
    let model = load(path);
    for flash_attention in [FlashAttention::On, FlashAttention::Off] {
        let props = ContextProps {
            threads: 2,
            flash_attention,
            ..ContextProps::default()
        };
        let what = greedy(vec![prompt(&model, 2)], 2);
        let run = record(&model, props.clone(), &what);
        let claimed = claimed_ranges(&run);
        let first = model
            .gguf
            .tensors()
            .iter()
            .map(|t| t.file_offset)
            .min()
            .unwrap();
        let unclaimed = complement(&claimed, first..model.gguf.len_bytes());
        let bits_of = |path: &Path| {
            let model = load(path);
            let mut context = Context::new(&model, props.clone()).unwrap();
            let generated = generate(&model, &mut context, &what, &mut Plain).unwrap();
            let logits = &generated.final_logits[0];
            (
                generated.tokens,
                logits.iter().map(|l| l.to_bits()).collect::<Vec<_>>(),
            )
        };
        let directory = tempfile::tempdir().unwrap();
        let poisoned = bits_of(&poison(&model, &unclaimed, directory.path()));
        let logits = &run.generated.final_logits[0];
        let recorded = (
            run.generated.tokens.clone(),
            logits.iter().map(|l| l.to_bits()).collect::<Vec<_>>(),
        );
        let bytes = |ranges: &[Range<u64>]| ranges.iter().map(|r| r.end - r.start).sum::<u64>();
        println!(
            "{label}, flash {flash_attention:?}: {} bytes claimed, {} bytes of garbage in {} places",
            bytes(&claimed),
            bytes(&unclaimed),
            unclaimed.len()
        );
        assert!(bytes(&unclaimed) > 0, "{label}");
        assert_eq!(poisoned, recorded, "{label} {flash_attention:?}");
        // A claimed byte does matter: the test can fail.
        let last = claimed.last().unwrap();
        let claimed_byte = last.end - 1..last.end;
        let spoiled = bits_of(&poison(&model, &[claimed_byte], directory.path()));
        assert_ne!(spoiled.1, recorded.1, "{label} {flash_attention:?}");
    }
}

/// Parts of the (one) file that some evaluation read, ascending and disjoint.
fn claimed_ranges(run: &Run) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for evaluation in &run.evaluations {
        let template = run.template(evaluation);
        for step in 0..template.steps.len() {
            for_each_access(template, evaluation, step, |access| {
                let tensor = &run.reader.definitions.tensors[access.def.tensor as usize];
                if let Some(place) = tensor.place {
                    access.region.for_each_run(|offset, bytes| {
                        let start = place.file_offset + offset;
                        ranges.push(start..start + bytes);
                    });
                }
            });
        }
    }
    ranges.sort_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

fn complement(ranges: &[Range<u64>], within: Range<u64>) -> Vec<Range<u64>> {
    let starts = std::iter::once(within.start).chain(ranges.iter().map(|r| r.end));
    let ends = ranges.iter().map(|r| r.start).chain([within.end]);
    starts
        .zip(ends)
        .filter(|(start, end)| start < end)
        .map(|(start, end)| start..end)
        .collect()
}

fn poison(model: &Model, ranges: &[Range<u64>], directory: &Path) -> PathBuf {
    let mut bytes = std::fs::read(model.path()).unwrap();
    for range in ranges {
        bytes[range.start as usize..range.end as usize].fill(GARBAGE);
    }
    let path = directory.join("poisoned.gguf");
    std::fs::write(&path, bytes).unwrap();
    path
}
