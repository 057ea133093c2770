//! A weight that is too large for the ring comes in pieces: its product is computed as
//! several, each of some rows, which leave what the one would.
//!
//! ggml computes each element of a product by itself, so the numbers are the same.

use std::sync::Arc;

use capture::hook::Split;
use ggml::{RawTensor, StepNodes, Tensor};
use plan::choose::rows_per_piece;

use crate::pump::Place;
use crate::ranks::Rank;
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

/// What is computed in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Splitting {
    /// A streamed weight that takes more than this of the ring.
    pub max_bytes: u64,
    pub experts: Together,
}

/// How the product of a token with its experts is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Together {
    AllExperts,
    /// Each expert by itself, where slices go into slots and a token has at most so many.
    EachExpert {
        max_experts: u32,
    },
}

impl Schedule {
    /// Splits the products whose weights are too large, or come expert by expert.
    pub fn split(
        &mut self,
        nodes: &[Tensor<'_>],
        steps: &[StepNodes],
        weights: &Weights,
        splitting: Splitting,
    ) {
        let max_bytes = splitting.max_bytes;
        let mut split = Split::default();
        let mut needs: Vec<Need> = Vec::with_capacity(self.needs.len());
        let mut more = 0;
        // By position in the list of nodes: the pieces in its place.
        let mut in_place_of: Vec<(usize, Vec<*mut RawTensor>)> = Vec::new();
        for (number, need) in self.needs.iter().enumerate() {
            let of_step = |other: Option<&Need>| other.is_some_and(|o| o.step == need.step);
            let is_alone = !of_step(number.checked_sub(1).and_then(|n| self.needs.get(n)))
                && !of_step(self.needs.get(number + 1));
            if let (true, StepNodes::One(node)) = (is_alone, steps[need.step as usize])
                && let Some(ranks) = ranks_of(need, nodes[node], weights, splitting.experts)
            {
                needs.push(Need {
                    step: need.step + more,
                    ..*need
                });
                let of = nodes[node].as_ptr().cast_mut();
                let first = self.ranks.len();
                // SAFETY: a product of the graph that is about to be computed.
                let new = (0..ranks).map(|number| unsafe { Rank::new(of, number) });
                self.ranks.extend(new);
                split.pieces.push((need.step, ranks as u32));
                more += ranks as u32 - 1;
                let pieces = self.ranks[first..].iter_mut();
                let pieces: Vec<_> = pieces.map(|rank| &raw mut *rank.node).collect();
                self.routings
                    .iter_mut()
                    .for_each(|routing| routing.in_ranks(of, &pieces));
                in_place_of.push((node, pieces));
                continue;
            }
            let rows = rows_of(need.weight, weights, max_bytes).filter(|_| is_alone);
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
            let pieces = self.pieces[pieces].iter_mut();
            in_place_of.push((node, pieces.map(|piece| &raw mut *piece.node).collect()));
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
                node.step = begins(node.step) + node.rank.unwrap_or(0);
            }
        }
        let mut replaced = in_place_of.into_iter().peekable();
        for (number, node) in nodes.iter().enumerate() {
            match replaced.next_if(|(at, _)| *at == number) {
                None => split.nodes.push(node.as_ptr().cast_mut()),
                Some((_, pieces)) => split.nodes.extend(pieces),
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
        for rank in &mut self.ranks {
            // SAFETY: as above.
            unsafe { rank.renew() };
        }
    }

    /// The step of the program's graph that a step of this schedule belongs to.
    pub fn step_of_graph(&self, step: u32) -> u32 {
        let split = self.split.as_ref();
        split.map_or(step, |split| split.step_of_graph(step))
    }
}

/// Where the pieces of a weight that has to be split start, and their bytes.
pub fn parts_of(weight: u32, weights: &Weights, max_bytes: u64) -> Vec<(u64, u64)> {
    let Some((all, rows)) = rows_of(weight, weights, max_bytes) else {
        return Vec::new();
    };
    let row_bytes = weights.list[weight as usize].bytes / all;
    let first_rows = (0..all).step_by(rows as usize);
    first_rows
        .map(|first| (first * row_bytes, rows.min(all - first) * row_bytes))
        .collect()
}

/// Rows of a weight that has to be split, and of each piece.
fn rows_of(number: u32, weights: &Weights, max_bytes: u64) -> Option<(u64, u64)> {
    let weight = &weights.list[number as usize];
    let max_bytes = max_bytes.min(weight.max_piece_bytes);
    let is_too_large = weights.planned(number, Place::Ring).bytes > max_bytes;
    if weight.fate != Fate::Streamed || !is_too_large {
        return None;
    }
    let row_bytes = weight.row_bytes?;
    let rows = rows_per_piece(row_bytes, max_bytes, weights.files.alignment_bytes)?;
    Some((weight.bytes / row_bytes, rows))
}

/// How many experts a token's product has, if each is to be computed by itself.
fn ranks_of(need: &Need, node: Tensor<'_>, weights: &Weights, experts: Together) -> Option<usize> {
    let is_sliced = matches!(weights.list[need.weight as usize].fate, Fate::Sliced { .. });
    let Together::EachExpert { max_experts } = experts else {
        return None;
    };
    let ids = node.src(2)?;
    let is_one_token = ids.extent(1) == 1 && node.extent(1) == ids.extent(0);
    let is_several = (2..=u64::from(max_experts)).contains(&ids.extent(0));
    (is_sliced && is_one_token && is_several).then_some(ids.extent(0) as usize)
}
