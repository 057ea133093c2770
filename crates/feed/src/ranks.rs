//! The product of a token with the experts that were chosen for it, as several: one for each
//! expert, so that the first ones compute while the last are being read.
//!
//! ggml computes each expert's part of the result by itself, so the numbers are the same.

use ggml::RawTensor;

/// The product with one of the chosen experts, with tensors of ours.
pub struct Rank {
    /// The node of the graph that it is a part of.
    of: *mut RawTensor,
    number: usize,
    pub node: Box<RawTensor>,
    input: Box<RawTensor>,
    ids: Box<RawTensor>,
}

impl Rank {
    /// # Safety
    /// A live `MUL_MAT_ID` of one token with more experts than that.
    pub unsafe fn new(of: *mut RawTensor, number: usize) -> Rank {
        // SAFETY: a node and its sources (caller).
        let (node, input, ids) = unsafe {
            (
                (*of).clone(),
                (*(*of).src[1]).clone(),
                (*(*of).src[2]).clone(),
            )
        };
        let mut rank = Rank {
            of,
            number,
            node: Box::new(node),
            input: Box::new(input),
            ids: Box::new(ids),
        };
        // SAFETY: as above.
        unsafe { rank.renew() };
        rank
    }

    /// Follows the node, whose tensors may lie elsewhere in the next evaluation.
    ///
    /// # Safety
    /// The node is live.
    pub unsafe fn renew(&mut self) {
        // SAFETY: a node and its sources (caller).
        unsafe {
            *self.node = (*self.of).clone();
            *self.input = (*(*self.of).src[1]).clone();
            *self.ids = (*(*self.of).src[2]).clone();
        }
        // One input for all experts, or one for each.
        let input_number = self.number % self.input.ne[1].max(1) as usize;
        keep_one(&mut self.input, 1, input_number);
        keep_one(&mut self.ids, 0, self.number);
        keep_one(&mut self.node, 1, self.number);
        self.node.src[1] = &raw mut *self.input;
        self.node.src[2] = &raw mut *self.ids;
    }
}

/// Of a tensor, what has this number in a dimension.
fn keep_one(tensor: &mut RawTensor, dimension: usize, number: usize) {
    let skipped_bytes = number * tensor.nb[dimension];
    tensor.data = tensor.data.wrapping_byte_add(skipped_bytes);
    tensor.ne[dimension] = 1;
}
