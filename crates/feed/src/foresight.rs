//! Which experts a layer's router is likely to choose, before its input is there: the router
//! of the next layer is asked about the input of the present one.
//!
//! Layers change the stream that runs through them by little, so the two inputs are alike but
//! for the weights of their norms, which are exchanged. The router and its norm are found in
//! the graph, by what leads to the ids, never by name. A guess decides what is read early and
//! nothing else.

use ggml::{Op, OpNumbers, RawTensor, Tensor};
use gguf::types::GgmlType;

use crate::weights::{Fate, Weights};

/// Nodes between the ids and the router's product are few.
const MAX_STEPS_BACK: usize = 16;

/// What makes a layer's choice.
#[derive(Clone, Copy, Debug)]
pub struct Router {
    /// What the matrix is multiplied with. The layer's experts read it too, so that it is
    /// there and unchanged when the choice is known.
    input: *const RawTensor,
    matrix: u32,
    /// Added to the product.
    bias: Option<u32>,
    /// Of the norm that made the input.
    norm: Option<u32>,
}

impl Router {
    /// The router that leads to `ids`, by which `first_user` takes its experts.
    pub fn find(
        ids: Tensor<'_>,
        first_user: Tensor<'_>,
        ops: &OpNumbers,
        weights: &Weights,
    ) -> Option<Router> {
        let mut at = ids;
        let mut bias = None;
        for _ in 0..MAX_STEPS_BACK {
            match ops.op_of(at) {
                Op::MUL_MAT => {
                    let (matrix, input) = (weights.find(at.src(0)?)?, at.src(1)?);
                    let experts_read_it = first_user.src(1)?.root() == input.root();
                    return experts_read_it.then(|| Router {
                        input: input.as_ptr(),
                        matrix,
                        bias,
                        norm: norm_of(input.root(), ops, weights),
                    });
                }
                // Only what is added to the product itself; what is added to probabilities
                // is of another scale.
                Op::ADD => bias = at.src(1).and_then(|added| weights.find(added)),
                Op::VIEW | Op::RESHAPE => {}
                _ => bias = None,
            }
            at = at.src(0)?;
        }
        None
    }

    /// What the `next` layer's router has to be asked, with the input that this one has. `None`
    /// where something is not in memory for good, or is not of 32-bit numbers.
    ///
    /// # Safety
    /// The input is complete, and nobody writes to it meanwhile.
    pub unsafe fn question(&self, next: &Router, weights: &Weights) -> Option<Question> {
        // SAFETY: a tensor of the graph that is being computed (caller).
        let input = unsafe { Tensor::from_ptr(self.input) }?;
        // SAFETY: complete (caller).
        let mut stream = unsafe { numbers_of(input) }?.to_vec();
        if input.extent(1) != 1 {
            return None;
        }
        if let (Some(from), Some(to)) = (self.norm, next.norm) {
            let (from, to) = (kept(weights, from)?, kept(weights, to)?);
            if from.len() != stream.len() || to.len() != stream.len() {
                return None;
            }
            for (value, (from, to)) in stream.iter_mut().zip(from.iter().zip(to)) {
                // A weight of zero has wiped the value out.
                *value *= if *from == 0.0 { 0.0 } else { to / from };
            }
        }
        let matrix = Numbers::of(kept(weights, next.matrix)?);
        let bias = match next.bias {
            Some(bias) => Some(Numbers::of(kept(weights, bias)?)),
            None => None,
        };
        Some(Question {
            stream,
            matrix,
            bias,
        })
    }
}

/// A router, and what it is asked about.
pub struct Question {
    stream: Vec<f32>,
    matrix: Numbers,
    bias: Option<Numbers>,
}

/// Numbers of a weight, where they are kept.
#[derive(Clone, Copy)]
struct Numbers {
    address: usize,
    count: usize,
}

impl Numbers {
    fn of(numbers: &[f32]) -> Numbers {
        Numbers {
            address: numbers.as_ptr() as usize,
            count: numbers.len(),
        }
    }

    /// # Safety
    /// They are still there.
    unsafe fn get<'a>(self) -> &'a [f32] {
        // SAFETY: made of a slice, whose memory was not given back (caller).
        unsafe { std::slice::from_raw_parts(self.address as *const f32, self.count) }
    }
}

impl Question {
    /// Experts, the likeliest first.
    ///
    /// # Safety
    /// The model's weights are still where they were when the question was put.
    pub unsafe fn answer(&self) -> Vec<u32> {
        // SAFETY: still there (caller).
        let (matrix, bias) = unsafe { (self.matrix.get(), self.bias.map(|b| b.get())) };
        let rows = matrix.chunks_exact(self.stream.len().max(1));
        let mut scores: Vec<f32> = rows.map(|row| dot(row, &self.stream)).collect();
        if let Some(bias) = bias {
            scores.iter_mut().zip(bias).for_each(|(s, b)| *s += b);
        }
        let mut ranking: Vec<u32> = (0..scores.len() as u32).collect();
        ranking.sort_by(|&a, &b| scores[b as usize].total_cmp(&scores[a as usize]));
        ranking
    }
}

fn norm_of(input: Tensor<'_>, ops: &OpNumbers, weights: &Weights) -> Option<u32> {
    match ops.op_of(input) {
        Op::MUL => weights.find(input.src(1)?),
        _ => None,
    }
}

/// The numbers of a weight that was read and stays.
fn kept(weights: &Weights, number: u32) -> Option<&[f32]> {
    let weight = &weights.list[number as usize];
    if !matches!(
        weight.fate,
        Fate::Pinned {
            is_loaded: true,
            ..
        }
    ) {
        return None;
    }
    // SAFETY: a tensor of the model that is fed.
    let tensor = unsafe { Tensor::from_ptr(weight.tensor) }?;
    // SAFETY: it was read, and its place is given back only by those who have the weights.
    unsafe { numbers_of(tensor) }
}

/// # Safety
/// The tensor's data are there, and nobody writes to them as long as they are looked at.
unsafe fn numbers_of<'a>(tensor: Tensor<'_>) -> Option<&'a [f32]> {
    let is_plain = tensor.ty() == GgmlType::F32.as_u32() && tensor.is_contiguous();
    let address = tensor.data();
    if !is_plain || address == 0 || !address.is_multiple_of(align_of::<f32>()) {
        return None;
    }
    let count = tensor.elements() as usize;
    // SAFETY: 32-bit numbers, one after the other, which are there (caller).
    Some(unsafe { std::slice::from_raw_parts(address as *const f32, count) })
}

/// In lanes, so that the compiler may use wide registers.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 16;
    let mut sums = [0f32; LANES];
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest = a_chunks.remainder().iter().zip(b_chunks.remainder());
    let rest: f32 = rest.map(|(a, b)| a * b).sum();
    for (a, b) in a_chunks.zip(b_chunks) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likeliest_experts_come_first() {
        // Three experts that look at one value each.
        let mut matrix = [0.0; 60];
        (matrix[3], matrix[20 + 17], matrix[40 + 8]) = (1.0, 1.0, -1.0);
        let mut stream = vec![0.5; 20];
        (stream[3], stream[17], stream[8]) = (2.0, 5.0, 1.0);
        let mut question = Question {
            stream,
            matrix: Numbers::of(&matrix),
            bias: None,
        };
        // SAFETY: `matrix` and `bias` outlive the questions.
        assert_eq!(unsafe { question.answer() }, [1, 0, 2]);
        let bias = [0.0, 0.0, 9.0];
        question.bias = Some(Numbers::of(&bias));
        // SAFETY: as above.
        assert_eq!(unsafe { question.answer() }, [2, 1, 0]);
    }
}
