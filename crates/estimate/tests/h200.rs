//! Predictions for an H200 held against what llama.cpp did there (`data/h200-bf16.csv`).
//!
//! Predictions are sums of kernels (`src/rates/h200.json`); two constants of the host, for each
//! token of a pass and for each byte of logits, were set by the passes of llama-3.2-1b, which
//! therefore proves nothing and is left out.

use std::collections::BTreeMap;

use estimate::{
    Efficiency, Machines, NumberType, Shape,
    roofline::{self, Pass, Types},
};
use gguf::write::Split;

const MEASURED: &str = include_str!("data/h200-bf16.csv");
const USED_TO_FIT: &str = "llama-3.2-1b";

fn shape(preset: &str) -> Shape {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let mut recipe = synth::Recipe::new(preset).unwrap();
    recipe.ggml_type = Some(synth::type_by_name("bf16").unwrap());
    let layout = recipe.model().unwrap().layout(&path, Split::Whole).unwrap();
    layout.write_headers().unwrap();
    Shape::from_model(&gguf::Model::open(&path).unwrap()).unwrap()
}

#[test]
fn bf16_on_an_h200_is_predicted_within_15_percent_but_for_a_few() {
    let machines = Machines::built_in().unwrap();
    let machine = machines.find("H200").unwrap();
    let types = Types::stored(NumberType::F16);
    let mut shapes: BTreeMap<&str, Shape> = BTreeMap::new();
    let mut errors = Vec::new();
    for line in MEASURED
        .lines()
        .skip_while(|line| line.starts_with('#'))
        .skip(1)
    {
        let [preset, sequences, context, new_tokens, seconds] =
            line.split(',').collect::<Vec<_>>()[..]
        else {
            panic!("{line}");
        };
        if preset == USED_TO_FIT {
            continue;
        }
        let number = |text: &str| text.parse::<u64>().unwrap();
        let shape = shapes.entry(preset).or_insert_with(|| shape(preset));
        let time = match number(new_tokens) {
            // The middle of 72 tokens behind that context.
            1 => {
                let pass = Pass::decode(number(sequences), number(context) + 45);
                roofline::time(shape, pass, types, machine, Efficiency::default())
            }
            tokens => {
                let prompt = (tokens, 512);
                roofline::prompt_time(shape, prompt, types, machine, Efficiency::default())
            }
        };
        let predicted = time.unwrap().seconds.likely;
        let measured: f64 = seconds.parse().unwrap();
        errors.push((measured / predicted - 1.0).abs());
    }
    errors.sort_by(f64::total_cmp);
    let within = errors.iter().filter(|error| **error <= 0.15).count();
    println!(
        "{within} of {} within 15 %; median {:.1} %, largest {:.1} %",
        errors.len(),
        errors[errors.len() / 2] * 100.0,
        errors[errors.len() - 1] * 100.0
    );
    assert_eq!(errors.len(), 55);
    assert!(
        within >= 46 && errors[27] < 0.07 && errors[54] < 0.27,
        "{errors:?}"
    );
}
