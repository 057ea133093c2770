//! llama.cpp's kernels, each variant that this processor runs: in a process of its own,
//! because one is chosen for the life of a process.

use std::{fs, process::Command};

use engine::{
    context::ContextProps,
    variant::{self, VARIABLE, Variant},
};
use trace::expand::for_each_access;

use crate::{
    children::{in_own_process, is_child},
    fixtures::{Run, alone, greedy, load, prompt, record, shipped},
    oracle::EXECUTED,
};

/// Where a child leaves what it recorded.
const ANSWER: &str = "TENSORSCOPE_TEST_RUN";

fn usable() -> impl Iterator<Item = &'static Variant> {
    variant::all().iter().filter(|v| v.lacks().is_none())
}

/// What `work` answers in a process of each variant, with the variant's name.
fn with_each(test: &str, work: fn() -> String) -> Vec<(&'static str, String)> {
    if is_child() {
        fs::write(std::env::var_os(ANSWER).unwrap(), work()).unwrap();
        return Vec::new();
    }
    let folder = tempfile::tempdir().unwrap();
    usable()
        .map(|variant| {
            let answer = folder.path().join(variant.name);
            let path = answer.to_str().unwrap();
            in_own_process(test, &[(VARIABLE, variant.name), (ANSWER, path)], || {});
            (variant.name, fs::read_to_string(answer).unwrap())
        })
        .collect()
}

/// Every access as text, without those to a layer's experts: variants round differently, and a
/// router may choose another expert.
fn described(run: &Run) -> String {
    let definitions = &run.reader.definitions;
    let mut text = String::new();
    for evaluation in &run.evaluations {
        let template = run.template(evaluation);
        for (number, step) in template.steps.iter().enumerate() {
            text += &definitions.text(step.op);
            if definitions.name(step.name).starts_with("ffn_moe") {
                continue;
            }
            for_each_access(template, evaluation, number, |access| {
                let tensor = &definitions.tensors[access.def.tensor as usize];
                let name = definitions.name(tensor.name);
                text += &format!(" {name} {:?} {:?}", access.def.direction, access.region);
            });
            text.push('\n');
        }
    }
    text
}

#[test]
fn every_variant_records_what_it_executes_and_all_touch_the_same_bytes() {
    let work = || {
        let mut text = String::new();
        for name in ["shakespeare-dense.gguf", "shakespeare-moe.gguf"] {
            let model = load(&shipped(name));
            let props = ContextProps {
                threads: 2,
                ..ContextProps::default()
            };
            EXECUTED.take();
            let what = greedy(vec![prompt(&model, 17)], 5);
            let run = record(&model, props.clone(), &what);
            assert_eq!(run.generated.tokens[0].len(), 5);
            assert!(run.evaluations.len() >= 5 && run.steps() > 100);
            run.assert_executed(&EXECUTED.take(), name);
            // The same tokens for all.
            for tokens in [17, 5, 1] {
                let what = greedy(vec![prompt(&model, tokens)], 0);
                text += &described(&record(&model, props.clone(), &what));
            }
        }
        assert!(text.lines().count() > 300);
        text
    };
    let answers = with_each(
        "variants::every_variant_records_what_it_executes_and_all_touch_the_same_bytes",
        work,
    );
    for pair in answers.windows(2) {
        let [(one, first), (other, second)] = pair else {
            unreachable!()
        };
        for (number, (a, b)) in first.lines().zip(second.lines()).enumerate() {
            assert_eq!(a, b, "{one} and {other}, line {number}");
        }
        assert_eq!(first.len(), second.len(), "{one} and {other}");
    }
}

/// What build/variants.rs compiled is what src/variant.rs asks of the processor.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_variant_is_compiled_for_what_it_needs() {
    let work = || variant::compiled_for().join(" ");
    let answers = with_each("variants::a_variant_is_compiled_for_what_it_needs", work);
    for (name, compiled_for) in answers {
        let expected = match name {
            "sse42" => "SSE3 SSSE3",
            "avx2" => "SSE3 SSSE3 AVX AVX2 F16C FMA BMI2",
            "avx512" => "SSE3 SSSE3 AVX AVX2 F16C FMA BMI2 AVX512 AVX512_VNNI",
            "avx512bf16" => "SSE3 SSSE3 AVX AVX2 F16C FMA BMI2 AVX512 AVX512_VNNI AVX512_BF16",
            other => panic!("{other}"),
        };
        assert_eq!(
            compiled_for,
            format!("{expected} LLAMAFILE OPENMP REPACK"),
            "{name}"
        );
    }
}

#[test]
fn the_best_that_runs_is_chosen() {
    let best = usable().last().unwrap().name;
    let _alone = alone();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "variants::says_which_is_chosen", "--nocapture"])
        .env_remove(VARIABLE)
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains(&format!("chosen: {best}\n")), "{said}");
}

/// For the test above, and a test of its own where a variable says which.
#[test]
fn says_which_is_chosen() {
    let chosen = variant::chosen().unwrap();
    println!("chosen: {}", chosen.name);
    assert!(chosen.lacks().is_none());
}
