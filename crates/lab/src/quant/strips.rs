//! Products of few tokens: blocks that have whole rows, and warps that divide k.

use std::rc::Rc;

use anyhow::ensure;
use cuda::{Buffer, Card, Kernel, Launch, Stream};
use half::bf16;

use super::{product::Size, steps::STRIPS_FILE};
use crate::toolkit::{Compile, Compiled, compile};

const WARPS: u32 = 8;
const PIECE_BYTES: u32 = 1056;
/// Shared memory of a warp, where two blocks share a multiprocessor.
const WARP_BYTES: u32 = 14 * 1024;
/// Of inputs, for 8 tokens: 64 columns.
const PART_BYTES: u32 = 1024;
/// Sums of more strips do not fit into registers, or only where there is one tile.
const MOST_STRIPS: u32 = 8;
const MOST_STRIPS_OF_CLUSTER: u32 = 12;

/// One way to compile kernels/quant_strips.cu.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Of 8 tokens: 1 or 2.
    pub tiles: u32,
    /// Of 16 rows, in a block: this many or one less.
    pub strips: u32,
    /// Blocks that divide k.
    pub cluster: u32,
    /// Parts of inputs that are on their way in shared memory; 0: one, in registers. With two
    /// tiles only.
    pub depth: u32,
}

/// How a matrix is divided among blocks; weights are packed for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    pub variant: Variant,
    /// Not counting those that divide k.
    pub blocks: u32,
}

impl Plan {
    /// For this size, with as many blocks as multiprocessors, or twice as many where rows are
    /// many; none where that does not go.
    pub fn of(size: Size, cluster: u32, multiprocessors: u32) -> Option<Plan> {
        let tiles = (size.batch as u32).div_ceil(8);
        let strips = (size.n as u32).div_ceil(16);
        let at_once = multiprocessors / cluster;
        let most = match (tiles, cluster) {
            (1, 2..) => MOST_STRIPS_OF_CLUSTER,
            _ => MOST_STRIPS,
        };
        let rounds = strips.div_ceil(at_once).div_ceil(most);
        let blocks = (at_once * rounds).min(strips);
        let is_possible = tiles <= 2 && rounds <= 2 && (rounds == 1 || cluster == 1);
        is_possible.then_some(Plan {
            variant: Variant {
                tiles,
                strips: strips.div_ceil(blocks),
                cluster,
                depth: 0,
            },
            blocks,
        })
    }

    /// All for this size.
    pub fn all(size: Size, multiprocessors: u32) -> Vec<Plan> {
        let plans = (1..=3).flat_map(|cluster| Plan::of(size, cluster, multiprocessors));
        let with_depths = |plan: Plan| {
            let depths: &[u32] = match plan.variant.tiles {
                1 => &[0],
                _ => &[0, 2, 3],
            };
            depths.iter().map(move |&depth| Plan {
                variant: Variant {
                    depth,
                    ..plan.variant
                },
                ..plan
            })
        };
        plans
            .flat_map(with_depths)
            .filter(|plan| plan.variant.is_possible())
            .collect()
    }

    /// For any variant that has enough tiles: used to check it.
    pub fn with(variant: Variant, n: usize, multiprocessors: u32) -> Plan {
        let strips = (n as u32).div_ceil(16);
        let blocks = (multiprocessors / variant.cluster).min(strips);
        Plan {
            variant,
            blocks: blocks.max(strips.div_ceil(variant.strips)),
        }
    }
}

impl Variant {
    pub fn name(self) -> String {
        format!(
            "int4 strips tokens={} strips={} cluster={} depth={}",
            8 * self.tiles,
            self.strips,
            self.cluster,
            self.depth
        )
    }

    /// Pieces that are copied together: all of a unit, where two units have room.
    fn together(self) -> u32 {
        match (self.depth, self.strips) {
            (0, 0..=6) => self.strips,
            (0, 7..=8) => 4,
            (0, _) => 6,
            // There is less room. Two halves of a unit must have some, for all its strips.
            (_, 0..=3) => self.strips,
            (_, 4) => 2,
            (_, 5..=6) => 3,
            _ => 4,
        }
    }

    fn slots(self) -> u32 {
        let pieces = (WARP_BYTES - self.queue_bytes()) / PIECE_BYTES;
        (pieces / self.together()).min(8)
    }

    /// Of the inputs of a warp.
    fn queue_bytes(self) -> u32 {
        self.depth * self.tiles * PART_BYTES
    }

    fn shared_bytes(self) -> u32 {
        WARPS * (self.slots() * self.together() * PIECE_BYTES + self.queue_bytes())
    }

    /// Whether a ring has room for all strips of a unit, twice or half by half.
    fn is_possible(self) -> bool {
        let slots_of_unit = self.strips.div_ceil(self.together());
        self.depth == 0 || self.slots() >= slots_of_unit.max(2)
    }

    pub fn defines(self) -> Vec<String> {
        // More sums at once than these do not fit into registers.
        let at_once = match (self.tiles, self.together()) {
            (1, _) if self.strips > MOST_STRIPS => 3,
            (1, together) => together,
            (_, 3) if self.depth > 0 => 3,
            (_, together) if together % 2 == 0 => 2,
            _ => 1,
        };
        vec![
            format!("TILES={}", self.tiles),
            format!("STRIPS={}", self.strips),
            format!("TOGETHER={}", self.together()),
            format!("SLOTS={}", self.slots()),
            format!("CLUSTER={}", self.cluster),
            format!("AT_ONCE={at_once}"),
            format!("DEPTH={}", self.depth),
        ]
    }

    pub fn compile(self, capability: (i32, i32)) -> anyhow::Result<Compiled> {
        let defines = self.defines();
        compile(capability, STRIPS_FILE.path, STRIPS_FILE.text, &defines)
    }
}

/// A variant, loaded.
pub struct Strips {
    pub variant: Variant,
    kernel: Kernel,
}

impl Strips {
    pub fn load(card: &Card, variant: Variant, compiled: &Compiled) -> anyhow::Result<Strips> {
        let kernel = Rc::new(card.load(compiled)?).kernel("quant_strips")?;
        kernel.allow_shared(variant.shared_bytes())?;
        Ok(Strips { variant, kernel })
    }

    /// Starts it, before the kernel ahead of it has ended if it may.
    pub fn start(
        &self,
        (size, blocks): (Size, u32),
        weights: &Buffer<u32>,
        x: &Buffer<bf16>,
        y: &Buffer<bf16>,
        stream: Option<&Stream>,
    ) -> anyhow::Result<()> {
        let Size { batch, n, k } = size;
        let strips = n.div_ceil(16);
        ensure!(
            n.is_multiple_of(2) && batch <= 8 * self.variant.tiles as usize,
            "{} does not take {batch} tokens and {n} rows",
            self.variant.name()
        );
        ensure!(
            strips.div_ceil(blocks as usize) <= self.variant.strips as usize
                && weights.elements() >= strips * (k / 128) * 264,
            "weights are packed for other blocks"
        );
        let grid = (blocks * self.variant.cluster, 1, 1);
        let how = Launch {
            cluster: self.variant.cluster,
            may_begin_early: true,
            stream,
            ..Launch::new(grid, WARPS * 32, self.variant.shared_bytes())
        };
        let numbers = [n as u32, k as u32, batch as u32, 0];
        let [n, k, batch, zero] = &numbers;
        // SAFETY: the kernel's parameters; weights are packed for so many blocks, and the kernel
        // waits for the one before it.
        unsafe {
            self.kernel
                .launch(how, &[weights, x, y, n, k, batch, zero])?
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(n: usize, batch: usize, cluster: u32) -> Option<(u32, u32)> {
        let size = Size { batch, n, k: 4096 };
        let plan = Plan::of(size, cluster, 132)?;
        Some((plan.blocks, plan.variant.strips))
    }

    #[test]
    fn every_multiprocessor_has_a_block_and_no_block_too_much() {
        assert_eq!(plan(11008, 1, 1), Some((132, 6)));
        assert_eq!(plan(4096, 8, 1), Some((132, 2)));
        assert_eq!(plan(4096, 8, 2), Some((66, 4)));
        assert_eq!(plan(4096, 8, 3), Some((44, 6)));
        assert_eq!(plan(11008, 8, 2), Some((66, 11)));
        assert_eq!(plan(11008, 16, 2), None);
        assert_eq!(plan(28672, 8, 1), Some((264, 7)));
        assert_eq!(plan(28672, 8, 2), None);
        assert_eq!(plan(11008, 17, 1), None);
        assert_eq!(plan(100, 1, 1), Some((7, 1)));
    }

    #[test]
    fn rings_of_two_blocks_fit_into_the_shared_memory_of_a_multiprocessor() {
        let all = (1..=MOST_STRIPS_OF_CLUSTER).flat_map(|strips| {
            let with = move |(tiles, depth)| Variant {
                tiles,
                strips,
                cluster: 1,
                depth,
            };
            [(1, 0), (2, 2), (2, 3)].map(with)
        });
        for variant in all.filter(|variant| variant.is_possible()) {
            assert!(
                variant.shared_bytes() + 2048 <= 228 * 1024 / 2,
                "{variant:?}"
            );
            assert!(variant.slots() >= 2);
        }
    }
}
