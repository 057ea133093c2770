//! What the advisor of `tensorscope estimate` says of the same model on the same card.
//!
//! Twice: from the card's data sheet, as before anything runs; and from the measured times of
//! one replica, as the advisor takes them, which leaves only the replicas to be predicted.

use anyhow::Context as _;
use cuda::Card;
use estimate::{
    Efficiency, Machine, Machines, NumberType, Shape,
    batch::{self, Question, Replication},
    roofline::Types,
};

use super::LAYER;

pub const NAME: &str = "advisor";
pub const BY_ONE: &str = "advisor, from one replica's times";

/// Asked once for each batch and number of replicas.
pub struct Advisor {
    machine: Machine,
    shape: Shape,
    types: Types,
    /// Batches and seconds of a step of one replica.
    measured: Vec<(u64, f64)>,
}

impl Advisor {
    pub fn new(card: &Card, layers: usize, measured: Vec<(u64, f64)>) -> anyhow::Result<Advisor> {
        Advisor::of(&card.about().name, layers, measured)
    }

    fn of(card: &str, layers: usize, measured: Vec<(u64, f64)>) -> anyhow::Result<Advisor> {
        let name = card.trim_start_matches("NVIDIA ");
        let table = Machines::built_in()?;
        let machine = table.find(name).with_context(|| {
            format!("the advisor does not know this card, {card}, so there is no prediction")
        })?;
        // What llama.cpp's kernels reach says nothing of cuBLAS's.
        let machine = Machine {
            rates: None,
            ..machine.clone()
        };
        let bf16 = NumberType::BF16;
        Ok(Advisor {
            machine,
            shape: shape(layers)?,
            types: Types::of(bf16, bf16),
            measured,
        })
    }

    /// Seconds of a step of all replicas, from the data sheet.
    pub fn predict(&self, batch: usize, replicas: usize) -> anyhow::Result<f64> {
        self.ask(batch, replicas, None)
    }

    /// The same from what one replica took.
    pub fn by_one(&self, batch: usize, replicas: usize) -> anyhow::Result<f64> {
        self.ask(batch, replicas, Some(self.measured.clone()))
    }

    fn ask(
        &self,
        batch: usize,
        replicas: usize,
        measured: Option<Vec<(u64, f64)>>,
    ) -> anyhow::Result<f64> {
        let mut question = Question::new(&self.shape, self.types, &self.machine, 1);
        question.max_batch = batch as u64;
        question.measured = measured;
        let advice = batch::advise(&question)?;
        let point = advice.points.last().context("the advisor has no answer")?;
        // Launches are recorded: a replica leaves nothing idle that the advisor knows of.
        let replication = Replication {
            max_replicas: replicas as u64,
            ..question.replicas
        };
        Ok(replication.seconds(point.seconds.likely, replicas as u64))
    }

    pub fn words(&self) -> String {
        let Efficiency {
            memory: (_, memory, _),
            compute: (_, compute, _),
            ..
        } = Efficiency::default();
        format!(
            "{NAME}: what crate estimate says of this model on {} (its data sheet, of which it takes {:.0} % of the bandwidth and {:.0} % of the FLOP/s as likely), replicas taking turns, so that any number of them makes as many tokens; the ratio is its time over the measured one. {BY_ONE}: the same with the measured steps of one replica instead.",
            self.machine.name,
            100.0 * memory,
            100.0 * compute
        )
    }
}

/// The chain of products as a model: [`LAYER`] is what these numbers make.
fn shape(layers: usize) -> anyhow::Result<Shape> {
    let (hidden, ffn, head) = (LAYER[0].1, LAYER[3].1, 128);
    let heads = LAYER[1].1 / head;
    let kv_heads = (LAYER[0].0 / head - heads) / 2;
    let text = format!(
        r#"{{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": {hidden},
            "intermediate_size": {ffn}, "num_hidden_layers": {layers}, "num_attention_heads": {heads},
            "num_key_value_heads": {kv_heads}, "head_dim": {head}, "vocab_size": 1,
            "tie_word_embeddings": true}}"#
    );
    Ok(Shape::from_config_json(&text)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replicas::{LAYERS, weights_of};

    #[test]
    fn the_advisor_is_asked_about_the_model_that_is_measured() {
        let parameters = shape(LAYERS).unwrap().parameters as f64;
        let ours = weights_of(LAYERS) as f64;
        assert!(
            (parameters / ours - 1.0).abs() < 1e-3,
            "{parameters} {ours}"
        );
    }

    #[test]
    fn bytes_hold_up_small_batches_and_arithmetic_large_ones() {
        let advisor = Advisor::of("NVIDIA H200", LAYERS, vec![(1, 4e-4), (512, 9e-4)]).unwrap();
        let step = |batch, replicas| advisor.predict(batch, replicas).unwrap();
        // 0.97 GB at four fifths of 4.8 TB/s.
        assert!((2.4e-4..2.7e-4).contains(&step(1, 1)), "{}", step(1, 1));
        assert!(step(64, 1) < 1.05 * step(1, 1));
        assert_eq!(step(1, 4), 4.0 * step(1, 1));
        assert!(step(512, 1) > 1.5 * step(1, 1));
        assert_eq!(advisor.by_one(1, 2).unwrap(), 8e-4);
        assert_eq!(advisor.by_one(512, 1).unwrap(), 9e-4);
    }

    #[test]
    fn a_card_that_the_advisor_does_not_know_is_named() {
        let error = Advisor::of("NVIDIA Nonsense", 1, Vec::new()).err().unwrap();
        assert!(error.to_string().contains("NVIDIA Nonsense"), "{error}");
    }
}
