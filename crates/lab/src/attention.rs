//! What both experiments on attention share: the shape of the heads (Llama 3 8B's) and the
//! result in float64.

use std::num::NonZero;

use half::{bf16, f16};

use crate::inputs;

pub const QUERY_HEADS: usize = 32;
pub const KV_HEADS: usize = 8;
/// Query heads that share a KV head.
pub const GROUP: usize = QUERY_HEADS / KV_HEADS;
/// Numbers in a head.
pub const HEAD: usize = 128;
/// More than this a result may not be off.
pub const MOST_ERROR: f64 = 5e-3;

/// What scores are multiplied by. Models use 1/√128; random numbers in [-1, 1) would give
/// nearly equal weights then, which hides errors of the softmax, so it is four times that.
pub fn scale() -> f64 {
    4.0 / (HEAD as f64).sqrt()
}

/// The same for kernels, which take powers of two.
pub fn scale_for_exp2() -> f32 {
    (scale() * std::f64::consts::LOG2_E) as f32
}

/// A row of numbers.
pub type Row = [f64; HEAD];

/// Result of one query over `context` keys and values, each written to the row given.
pub fn attend(
    query: &Row,
    context: usize,
    key: impl Fn(usize, &mut Row),
    value: impl Fn(usize, &mut Row),
) -> Row {
    let mut row = [0.0; HEAD];
    let scores: Vec<f64> = (0..context)
        .map(|at| {
            key(at, &mut row);
            scale() * query.iter().zip(&row).map(|(a, b)| a * b).sum::<f64>()
        })
        .collect();
    let greatest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let (mut sum, mut result) = (0.0, [0.0; HEAD]);
    for (at, score) in scores.into_iter().enumerate() {
        let weight = (score - greatest).exp();
        value(at, &mut row);
        sum += weight;
        for (result, value) in result.iter_mut().zip(&row) {
            *result += weight * value;
        }
    }
    result.map(|x| x / sum)
}

/// As `cache_value` of kernels/attention_inputs.cu, rounded as there.
fn cache_value(seed: u32, index: u64) -> bf16 {
    let seed = seed.wrapping_add(((index >> 32) as u32).wrapping_mul(0x632b_e5ab));
    inputs::value_bf16(seed, index as u32)
}

/// 128 numbers from `index` on.
pub fn cache_row(seed: u32, index: u64, row: &mut Row) {
    for (number, index) in row.iter_mut().zip(index..) {
        *number = f64::from(cache_value(seed, index));
    }
}

/// The same after `quantise` there.
pub fn quantised_row(seed: u32, index: u64, row: &mut Row) {
    cache_row(seed, index, row);
    for block in row.chunks_mut(32) {
        let greatest = block.iter().fold(0.0f64, |a, b| a.max(b.abs())) as f32;
        let scale = greatest / 127.0;
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        for number in block {
            let quantised = (*number as f32 * inverse).round_ties_even();
            *number = f64::from(quantised) * f64::from(f16::from_f32(scale));
        }
    }
}

/// `work` on each item, on all cores.
pub fn on_all_cores<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let share = items.len().div_ceil(cores).max(1);
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> = items
            .chunks(share)
            .map(|items| scope.spawn(move || items.iter().map(work).collect::<Vec<R>>()))
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| {
                thread
                    .join()
                    .expect("a thread that computes does not panic")
            })
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_scores_give_the_mean_and_a_great_one_gives_its_value() {
        let value = |at: usize, row: &mut Row| *row = [at as f64; HEAD];
        let mean = attend(&[0.0; HEAD], 5, |_, row| *row = [1.0; HEAD], value);
        assert!(mean.iter().all(|x| (x - 2.0).abs() < 1e-12));
        let third = |at: usize, row: &mut Row| *row = [if at == 3 { 9.0 } else { -9.0 }; HEAD];
        let one = attend(&[1.0; HEAD], 5, third, value);
        assert!(one.iter().all(|x| (x - 3.0).abs() < 1e-12));
    }

    #[test]
    fn items_keep_their_order() {
        let items: Vec<usize> = (0..37).collect();
        assert_eq!(on_all_cores(&items, |item| item * 2)[36], 72);
        assert!(on_all_cores(&[] as &[usize], |item| *item).is_empty());
    }

    #[test]
    fn eight_bits_are_near_and_places_beyond_32_bits_differ() {
        let (mut exact, mut near) = ([0.0; HEAD], [0.0; HEAD]);
        cache_row(5, 1 << 33, &mut exact);
        quantised_row(5, 1 << 33, &mut near);
        assert!(exact.iter().zip(&near).all(|(a, b)| (a - b).abs() < 0.005));
        cache_row(5, 0, &mut near);
        assert_ne!(exact, near);
    }
}
