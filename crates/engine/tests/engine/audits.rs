//! Audits against the MMU.

use engine::{
    audit::{Grain, compare, touch},
    context::ContextProps,
};

use crate::fixtures::{greedy, load, prompt, shipped};

#[test]
fn the_trace_claims_exactly_the_pages_that_the_mmu_saw() {
    for name in ["shakespeare-dense.gguf", "shakespeare-moe.gguf"] {
        for (grain, threads) in [(Grain::Evaluation, 2), (Grain::Node, 1)] {
            // A file of its own: the audit watches every mapping of the model's
            // file in this process, and other tests map the shipped ones.
            let files = tempfile::tempdir().unwrap();
            let copy = files.path().join(name);
            std::fs::copy(shipped(name), &copy).unwrap();
            let model = load(&copy);
            let directory = tempfile::tempdir().unwrap();
            let props = ContextProps { threads, ..ContextProps::default() };
            let what = greedy(vec![prompt(&model, 17)], 4);
            let touched = touch(&model, props, &what, grain, directory.path(), &mut |_| {}).unwrap();
            let findings = compare(&model.gguf, directory.path(), &touched).unwrap();
            println!("{name} {grain:?} {:?} {}", findings.total, findings.discrepancies.len());
            for d in findings.discrepancies.iter().take(10) { println!("{d:?}"); }
            assert_eq!(findings.flawed_evaluations, 0);
            assert_eq!(findings.total.recall(), 1.0, "{name} {grain:?}");
            assert!(findings.total.precision() >= 0.999, "{name} {grain:?}");
        }
    }
}
