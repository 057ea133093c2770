//! Tensors of ours in the place of those that a `MUL_MAT_ID` has, for one evaluation.

use ggml::RawTensor;

/// A `MUL_MAT_ID` whose ids, and perhaps weight, are ours for an evaluation.
pub(super) struct Shadow {
    pub node: *mut RawTensor,
    pub originals: (*mut RawTensor, *mut RawTensor),
    pub weight: Box<RawTensor>,
    pub ids: Box<RawTensor>,
    pub numbers: Vec<i32>,
    /// Which of the schedule's routings.
    pub routing: usize,
    /// Which of a token's experts it is for, if not for all.
    pub rank: Option<u32>,
    /// Where its experts' origins are noted.
    pub origin: usize,
    /// Layer and role, when slices go through slots.
    pub slices: Option<(u32, u32)>,
}

// SAFETY: used by the thread that computes, under the lock of whoever shares the
// feeder; the pointers are of the graph being computed.
unsafe impl Send for Shadow {}

/// Ids as rows of tokens.
pub(super) struct Ids {
    pub rows: Vec<Vec<i32>>,
}

/// # Safety
/// A tensor of 32-bit ids whose data are complete.
pub(super) unsafe fn read_ids(tensor: *const RawTensor) -> Ids {
    // SAFETY: a live tensor (caller).
    let (ne, nb, data) = unsafe { ((*tensor).ne, (*tensor).nb, (*tensor).data as usize) };
    let row = |token: usize| {
        let id = |rank: usize| {
            let address = data + token * nb[1] + rank * nb[0];
            // SAFETY: inside of the tensor's data.
            unsafe { (address as *const i32).read() }
        };
        (0..ne[0].max(0) as usize).map(id).collect()
    };
    Ids {
        rows: (0..ne[1].max(0) as usize).map(row).collect(),
    }
}

impl Shadow {
    /// # Safety
    /// A `MUL_MAT_ID` of a live graph.
    pub unsafe fn of(node: *mut RawTensor, routing: usize, rank: Option<u32>) -> Shadow {
        // SAFETY: its sources live as long (caller); copies of their structs.
        unsafe {
            let originals = ((*node).src[0], (*node).src[2]);
            let weight = Box::new((*originals.0).clone());
            let mut ids = Box::new((*originals.1).clone());
            let row_bytes = 4 * ids.ne[0].max(0) as usize;
            ids.nb = [4, row_bytes, row_bytes, row_bytes];
            ids.nb[2] = row_bytes * ids.ne[1].max(0) as usize;
            ids.nb[3] = ids.nb[2];
            Shadow {
                node,
                originals,
                weight,
                ids,
                numbers: Vec::new(),
                routing,
                rank,
                origin: 0,
                slices: None,
            }
        }
    }

    pub fn put(&mut self) {
        // SAFETY: the node is of the graph that is about to be computed, and our
        // tensors live until `take_back`.
        unsafe {
            if self.slices.is_some() {
                (*self.node).src[0] = &raw mut *self.weight;
            }
            (*self.node).src[2] = &raw mut *self.ids;
        }
    }

    pub fn put_weight_back(&mut self) {
        // SAFETY: as in `put`; the node's step has not begun on any thread.
        unsafe { (*self.node).src[0] = self.originals.0 };
    }

    pub fn take_back(&mut self) {
        // SAFETY: the graph was computed and is still there.
        unsafe {
            (*self.node).src[0] = self.originals.0;
            (*self.node).src[2] = self.originals.1;
        }
    }
}
