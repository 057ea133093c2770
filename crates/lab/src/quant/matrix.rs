//! One matrix on the card, in every layout that a kernel takes.

use std::collections::BTreeMap;

use cuda::Buffer;
use half::bf16;

use super::{
    Bench,
    product::Size,
    strips::Plan,
    weights::{Format, Host, Layout, Weights},
};
use crate::{experiments::Request, inputs};

/// More than this has no place in L2, several times over.
const ROTATED_BYTES: usize = 420 << 20;

/// Copies of one matrix, enough that L2 never has the one that comes next.
pub struct Matrix {
    /// By format.
    pub packed: Vec<Vec<Layout>>,
    pub plain: Vec<Vec<Layout>>,
    /// Of INT4, by the number of blocks that they are packed for.
    pub strips: BTreeMap<u32, Vec<Buffer<u32>>>,
    pub hosts: Vec<Host>,
    pub vendor: Vec<Buffer<bf16>>,
}

impl Matrix {
    pub fn new(
        bench: &Bench,
        n: usize,
        k: usize,
        batches: &[usize],
        request: &Request,
    ) -> anyhow::Result<Matrix> {
        let (card, maker) = (&bench.card, &bench.maker);
        let (mut packed, mut plain, mut hosts) = (Vec::new(), Vec::new(), Vec::new());
        let (mut vendor, mut strips) = (Vec::new(), BTreeMap::new());
        let plans = batches.iter().flat_map(|&batch| {
            let size = Size { batch, n, k };
            Plan::all(size, card.about().multiprocessors)
        });
        let plans: Vec<Plan> = plans.collect();
        for format in Format::ALL {
            let weights = maker.make(format, n, k, request.seed)?;
            let host = Host::read(format, k, &weights)?;
            let places = inputs::places(n, k, 100_000, request.seed);
            host.check_packing(&weights.packed, &places)?;
            hosts.push(host);
            if format == Format::Int4 {
                let count = ROTATED_BYTES / (n * k * 2) + 1;
                for _ in 0..count {
                    vendor.push(maker.bf16(format, &weights, n, k)?);
                }
                let count = ROTATED_BYTES / weights.packed.bytes() + 1;
                for blocks in plans.iter().map(|plan| plan.blocks) {
                    if strips.contains_key(&blocks) {
                        continue;
                    }
                    let copies = (0..count).map(|_| maker.strips(&weights.plain, n, k, blocks));
                    let copies = copies.collect::<anyhow::Result<Vec<_>>>()?;
                    hosts[0].check_strips(&copies[0], n, blocks as usize, &places)?;
                    strips.insert(blocks, copies);
                }
            }
            let Weights {
                plain: of_plain,
                packed: of_packed,
            } = weights;
            let count = ROTATED_BYTES / of_packed.bytes() + 1;
            packed.push(of_packed.copies(card, count)?);
            plain.push(of_plain.copies(card, count)?);
        }
        Ok(Matrix {
            packed,
            plain,
            strips,
            hosts,
            vendor,
        })
    }

    /// One copy of each, for checks.
    pub fn small(bench: &Bench, n: usize, k: usize, request: &Request) -> anyhow::Result<Matrix> {
        let mut matrix = Matrix {
            packed: Vec::new(),
            plain: Vec::new(),
            strips: BTreeMap::new(),
            hosts: Vec::new(),
            vendor: Vec::new(),
        };
        for format in Format::ALL {
            let weights = bench.maker.make(format, n, k, request.seed)?;
            let host = Host::read(format, k, &weights)?;
            let every: Vec<(usize, usize)> = (0..n)
                .flat_map(|row| (0..k).map(move |column| (row, column)))
                .collect();
            host.check_packing(&weights.packed, &every)?;
            matrix.hosts.push(host);
            if format == Format::Int4 {
                matrix
                    .vendor
                    .push(bench.maker.bf16(format, &weights, n, k)?);
                for strips in &bench.strips {
                    let plan = Plan::with(strips.variant, n, bench.card.about().multiprocessors);
                    let packed = bench.maker.strips(&weights.plain, n, k, plan.blocks)?;
                    matrix.hosts[0].check_strips(&packed, n, plan.blocks as usize, &every)?;
                    matrix.strips.insert(plan.blocks, vec![packed]);
                }
            }
            matrix.packed.push(vec![weights.packed]);
            matrix.plain.push(vec![weights.plain]);
        }
        Ok(matrix)
    }
}
