//! What is recorded is what was executed.

use engine::context::{Context, ContextProps, FlashAttention};
use engine::generate::generate;
use trace::format::Phase;
use trace::template::CaptureKind;

use crate::{
    fixtures::{Plain, greedy, load, prompt, record, shipped},
    oracle::EXECUTED,
};

#[test]
fn every_executed_node_is_a_step_in_the_order_of_execution() {
    for name in ["shakespeare-dense.gguf", "shakespeare-moe.gguf"] {
        let model = load(&shipped(name));
        for flash_attention in [FlashAttention::On, FlashAttention::Off] {
            let props = ContextProps { threads: 2, flash_attention, ..ContextProps::default() };
            EXECUTED.take();
            let run = record(&model, props, &greedy(vec![prompt(&model, 17)], 5));
            let executed = EXECUTED.take();
            let definitions = &run.reader.definitions;
            let recorded: Vec<String> = run
                .evaluations
                .iter()
                .flat_map(|e| &definitions.templates[e.template as usize].steps)
                .map(|step| definitions.name(step.name))
                .collect();
            let executed: Vec<String> =
                executed.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
            assert!(recorded.len() > 100);
            assert_eq!(recorded, executed, "{name} {flash_attention:?}");
        }
    }
}

#[test]
fn output_is_bit_identical_with_recording_on_and_off() {
    for name in ["shakespeare-dense.gguf", "shakespeare-moe.gguf"] {
        let model = load(&shipped(name));
        let what = greedy(vec![prompt(&model, 17)], 24);
        let props = ContextProps { threads: 2, ..ContextProps::default() };
        let mut context = Context::new(&model, props.clone()).unwrap();
        let plain = generate(&model, &mut context, &what, &mut Plain).unwrap();
        let run = record(&model, props, &what);
        assert_eq!(plain.tokens, run.generated.tokens);
        let bits = |logits: &[Vec<f32>]| logits.iter().flatten().map(|l| l.to_bits()).collect::<Vec<_>>();
        assert!(!plain.final_logits[0].is_empty());
        assert_eq!(bits(&plain.final_logits), bits(&run.generated.final_logits));
    }
}

#[test]
fn tokens_positions_and_sequences_are_those_of_the_batch() {
    let model = load(&shipped("shakespeare-moe.gguf"));
    let prompts = vec![prompt(&model, 9), prompt(&model, 5)];
    let props = ContextProps { threads: 2, sequences: 2, ..ContextProps::default() };
    let run = record(&model, props, &greedy(prompts.clone(), 4));
    let first = &run.evaluations[0];
    let template = &run.reader.definitions.templates[first.template as usize];
    let expected: Vec<i64> = prompts.iter().flatten().map(|&t| i64::from(t)).collect();
    assert_eq!(first.phase, Phase::Prompt);
    assert_eq!(first.first_of(template, CaptureKind::Tokens), expected);
    let positions: Vec<i64> = (0..9).chain(0..5).collect();
    assert_eq!(first.first_of(template, CaptureKind::Positions), positions);
    assert_eq!(first.sequences, [[0; 9].as_slice(), &[0; 5].map(|_| 1)].concat());
    let second = &run.evaluations[1];
    assert_eq!(second.phase, Phase::Generate);
    assert_eq!(second.sequences, [0, 1]);
    let text = &run.reader.definitions.tokens[&(run.generated.tokens[0][0] as u32)];
    assert!(!text.is_empty());
}
