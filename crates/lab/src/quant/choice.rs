//! Which kernels there are for a batch and a shape; the fastest is found by trying.

use super::{
    product::{Size, Variant},
    strips::{self, Plan},
    weights::Format,
};

pub const MMA_TOKENS: [u32; 4] = [8, 16, 32, 64];
pub const WGMMA_TOKENS: [u32; 4] = [32, 64, 128, 256];

/// The smallest tile that has room for the batch, or the largest tile.
pub fn tile_for(batch: usize, tiles: &[u32]) -> u32 {
    let enough = tiles.iter().find(|&&tokens| tokens as usize >= batch);
    *enough.or(tiles.last()).unwrap_or(&8)
}

pub fn mma(format: Format, batch: usize) -> Variant {
    Variant::mma(format, tile_for(batch, &MMA_TOKENS))
}

pub fn wgmma(format: Format, batch: usize) -> Variant {
    Variant::wgmma(format, tile_for(batch, &WGMMA_TOKENS))
}

/// One kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Tensor(Variant),
    Strips(Plan),
}

impl Way {
    /// As in notes.
    pub fn name(self) -> String {
        match self {
            Way::Tensor(variant) => variant.name(),
            Way::Strips(plan) => plan.variant.name(),
        }
    }
}

/// Kernels that are worth a try.
pub fn ways(format: Format, size: Size, multiprocessors: u32) -> Vec<Way> {
    let mut ways = Vec::new();
    let mma = mma(format, size.batch);
    let wgmma = wgmma(format, size.batch.min(128));
    match size.batch {
        ..=16 => {
            if format == Format::Int4 {
                let plans = Plan::all(size, multiprocessors);
                ways.extend(plans.into_iter().map(Way::Strips));
            }
            ways.extend([1, 2].map(|units| Way::Tensor(Variant { units, ..mma })));
            if size.batch > 8 {
                let narrow = Variant::wgmma(format, 16);
                ways.extend([mma.shared(), narrow, narrow.shared()].map(Way::Tensor));
            }
        }
        17..=64 => {
            let both = [mma, wgmma];
            ways.extend(both.map(Way::Tensor));
            ways.extend(both.map(|variant| Way::Tensor(variant.shared())));
        }
        // Two tiles of 128 tokens may be faster than one of 256: less is left for other blocks.
        _ => {
            let mut tiles = vec![wgmma, wgmma_tall(format)];
            if size.batch > 128 {
                tiles.push(self::wgmma(format, size.batch));
            }
            let shared = tiles.iter().map(|variant| variant.shared());
            ways.extend(tiles.iter().copied().chain(shared).map(Way::Tensor));
        }
    }
    ways
}

/// Inputs that two blocks share, where they are many enough to be halved.
pub fn multicast(format: Format, batch: usize) -> Variant {
    wgmma(format, batch.min(128)).shared()
}

fn wgmma_tall(format: Format) -> Variant {
    Variant {
        is_tall: true,
        ..Variant::wgmma(format, 128)
    }
}

/// Everything that may be asked for: what to compile.
pub struct All {
    pub tensor: Vec<Variant>,
    pub strips: Vec<strips::Variant>,
}

pub fn all(shapes: &[(usize, usize)], batches: &[usize], multiprocessors: u32) -> All {
    let mut all = All {
        tensor: Vec::new(),
        strips: Vec::new(),
    };
    let mut add = |way: Way| match way {
        Way::Tensor(variant) if !all.tensor.contains(&variant) => all.tensor.push(variant),
        Way::Strips(plan) if !all.strips.contains(&plan.variant) => all.strips.push(plan.variant),
        _ => {}
    };
    for format in Format::ALL {
        for &batch in batches {
            if batch <= 64 {
                add(Way::Tensor(mma(format, batch)));
            }
            if batch > 16 {
                add(Way::Tensor(wgmma(format, batch)));
                add(Way::Tensor(multicast(format, batch)));
            }
            for &(n, k) in shapes {
                let size = Size { batch, n, k };
                ways(format, size, multiprocessors)
                    .into_iter()
                    .for_each(&mut add);
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_tile_with_room_is_taken() {
        assert_eq!(tile_for(1, &MMA_TOKENS), 8);
        assert_eq!(tile_for(9, &MMA_TOKENS), 16);
        assert_eq!(tile_for(300, &WGMMA_TOKENS), 256);
    }

    #[test]
    fn every_batch_has_ways_and_all_of_them_are_compiled() {
        let (shapes, batches) = (
            [(11008, 4096), (28672, 8192)],
            [1, 16, 17, 64, 65, 256, 300],
        );
        let all = all(&shapes, &batches, 132);
        for format in Format::ALL {
            for (n, k) in shapes {
                for batch in batches {
                    let ways = ways(format, Size { batch, n, k }, 132);
                    assert!(!ways.is_empty());
                    for way in ways {
                        assert!(match way {
                            Way::Tensor(variant) => all.tensor.contains(&variant),
                            Way::Strips(plan) => all.strips.contains(&plan.variant),
                        });
                    }
                }
            }
        }
    }
}
