//! A weight that is too large for the ring comes in pieces: its product is computed as
//! several, each of some rows, which leave what the one would.
//!
//! ggml computes each element of a product by itself, so the numbers are the same.

use std::sync::Arc;

use capture::hook::Split;
use ggml::{RawTensor, StepNodes, Tensor};
use plan::choose::rows_per_piece;

use crate::pump::Place;
use crate::schedule::{Need, Pointer, Schedule};
use crate::weights::{Fate, Weights};

/// One of the products, with tensors of ours.
pub struct Piece {
    /// The node of the graph that it is a part of.
    of: *mut RawTensor,
    first_row: u64,
    rows: u64,
    node: Box<RawTensor>,
    weight: Box<RawTensor>,
}

impl Piece {
    /// # Safety
    /// A live product of a matrix with more rows than that.
    unsafe fn new(of: *mut RawTensor, first_row: u64, rows: u64) -> Piece {
        // SAFETY: a node and its source (caller).
        let (node, weight) = unsafe { ((*of).clone(), (*(*of).src[0]).clone()) };
        let mut piece = Piece {
            of,
            first_row,
            rows,
            node: Box::new(node),
            weight: Box::new(weight),
        };
        // SAFETY: as above.
        unsafe { piece.renew() };
        piece
    }

    /// Follows the node, whose result may lie elsewhere in the next evaluation. Where the
    /// weight's rows lie is said when they are there.
    ///
    /// # Safety
    /// The node is live.
    unsafe fn renew(&mut self) {
        // SAFETY: a node and its source (caller).
        let (node, weight) = unsafe { ((*self.of).clone(), (*(*self.of).src[0]).clone()) };
        *self.node = node;
        *self.weight = weight;
        self.weight.ne[1] = self.rows as i64;
        self.weight.nb[2] = self.weight.nb[1] * self.rows as usize;
        self.weight.nb[3] = self.weight.nb[2];
        self.node.ne[0] = self.rows as i64;
        let skipped_bytes = self.first_row as usize * self.node.nb[0];
        self.node.data = self.node.data.wrapping_byte_add(skipped_bytes);
        self.node.src[0] = &raw mut *self.weight;
    }
}

impl Schedule {
    /// Splits the products whose streamed weight takes more than `max_bytes` of the ring.
    pub fn split(
        &mut self,
        nodes: &[Tensor<'_>],
        steps: &[StepNodes],
        weights: &Weights,
        max_bytes: u64,
    ) {
        let mut split = Split::default();
        let mut needs: Vec<Need> = Vec::with_capacity(self.needs.len());
        let mut more = 0;
        // By position in the list of nodes: the pieces in its place.
        let mut in_place_of: Vec<(usize, std::ops::Range<usize>)> = Vec::new();
        for (number, need) in self.needs.iter().enumerate() {
            let of_step = |other: Option<&Need>| other.is_some_and(|o| o.step == need.step);
            let is_alone = !of_step(number.checked_sub(1).and_then(|n| self.needs.get(n)))
                && !of_step(self.needs.get(number + 1));
            let rows = rows_of(need, weights, max_bytes).filter(|_| is_alone);
            let (Some((all, rows)), StepNodes::One(node)) = (rows, steps[need.step as usize])
            else {
                needs.push(Need {
                    step: need.step + more,
                    ..*need
                });
                continue;
            };
            let row_bytes = weights.list[need.weight as usize].bytes / all;
            let first_piece = self.pieces.len();
            for first_row in (0..all).step_by(rows as usize) {
                let rows = rows.min(all - first_row);
                let of = nodes[node].as_ptr().cast_mut();
                // SAFETY: a product of the graph that is about to be computed.
                let mut piece = unsafe { Piece::new(of, first_row, rows) };
                let at = self.pointers.len() as u32;
                self.pointers.push(Pointer {
                    tensor: &raw mut *piece.weight,
                    offset: 0,
                    is_root: false,
                });
                needs.push(Need {
                    step: need.step + more + (self.pieces.len() - first_piece) as u32,
                    pointers: (at, at + 1),
                    part: Some((first_row * row_bytes, rows * row_bytes)),
                    ..*need
                });
                self.pieces.push(piece);
            }
            let pieces = first_piece..self.pieces.len();
            split.pieces.push((need.step, pieces.len() as u32));
            more += pieces.len() as u32 - 1;
            in_place_of.push((node, pieces));
        }
        if in_place_of.is_empty() {
            return;
        }
        self.needs = needs;
        self.steps += more;
        let begins = |step: u32| {
            let before = split.pieces.iter().take_while(|(split, _)| *split < step);
            step + before.map(|(_, pieces)| pieces - 1).sum::<u32>()
        };
        for routing in &mut self.routings {
            routing.known_at = begins(routing.known_at);
            for node in &mut routing.nodes {
                node.step = begins(node.step);
            }
        }
        let mut replaced = in_place_of.into_iter().peekable();
        for (number, node) in nodes.iter().enumerate() {
            match replaced.next_if(|(at, _)| *at == number) {
                None => split.nodes.push(node.as_ptr().cast_mut()),
                Some((_, pieces)) => {
                    let pieces = self.pieces[pieces].iter_mut();
                    split.nodes.extend(pieces.map(|piece| &raw mut *piece.node));
                }
            }
        }
        self.split = Some(Arc::new(split));
    }

    /// Before another evaluation of the same graph.
    pub fn renew_pieces(&mut self) {
        for piece in &mut self.pieces {
            // SAFETY: a node of the graph that is about to be computed.
            unsafe { piece.renew() };
        }
    }

    /// The step of the program's graph that a step of this schedule belongs to.
    pub fn step_of_graph(&self, step: u32) -> u32 {
        let split = self.split.as_ref();
        split.map_or(step, |split| split.step_of_graph(step))
    }
}

/// Rows of a weight that has to be split, and of each piece.
fn rows_of(need: &Need, weights: &Weights, max_bytes: u64) -> Option<(u64, u64)> {
    let weight = &weights.list[need.weight as usize];
    let is_too_large = weights.planned(need.weight, Place::Ring).bytes > max_bytes;
    if weight.fate != Fate::Streamed || !is_too_large {
        return None;
    }
    let row_bytes = weight.row_bytes?;
    let rows = rows_per_piece(row_bytes, max_bytes, weights.files.alignment_bytes)?;
    Some((weight.bytes / row_bytes, rows))
}
