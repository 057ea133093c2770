//! The kernels of the ladder: compiled, and launched as each wants it.

use std::{cell::RefCell, collections::HashMap, rc::Rc};

use anyhow::bail;
use cuda::{Card, Kernel, Launch, Module, Swizzle};

use super::problem::{Call, Problem};
use crate::{step::Step, toolkit::Compile};

/// What steps are compiled with, and the modules so far: several steps are in one.
pub struct Kernels {
    card: Card,
    modules: RefCell<HashMap<Key, Rc<Module>>>,
}

/// A file, and what it is compiled with.
type Key = (&'static str, Vec<String>);

/// A step that can be launched.
pub struct Loaded {
    pub step: &'static Step,
    kernel: Kernel,
    card: Card,
}

impl Kernels {
    pub fn new(card: &Card) -> Kernels {
        Kernels {
            card: card.clone(),
            modules: RefCell::default(),
        }
    }

    pub fn load(&self, step: &'static Step) -> anyhow::Result<Loaded> {
        let key = (step.file.path, step.defines());
        let known = self.modules.borrow().get(&key).cloned();
        let module = match known {
            Some(module) => module,
            None => {
                let (path, text) = (step.file.path, step.file.text);
                let module = Rc::new(self.card.kernels(path, text, &step.defines())?);
                self.modules.borrow_mut().insert(key, module.clone());
                module
            }
        };
        let loaded = Loaded {
            step,
            kernel: module.kernel(step.function)?,
            card: self.card.clone(),
        };
        if let Some(bytes) = loaded.shared_bytes() {
            loaded.kernel.allow_shared(bytes)?;
        }
        Ok(loaded)
    }
}

/// The copy engine repeats its pattern every 1024 bytes; the first tile is moved to one.
const ALIGNMENT: u32 = 1024;
/// As in the kernels.
const TILE_M: u32 = 128;
const TILE_N: u32 = 256;
const TILE_K: u32 = 64;

impl Loaded {
    /// Of `NAME=VALUE` that it was compiled with.
    pub fn defined(&self, name: &str, otherwise: u32) -> u32 {
        let value = |define: &&str| {
            let (key, value) = define.split_once('=')?;
            (key == name).then(|| value.parse().ok())?
        };
        self.step
            .defines
            .iter()
            .find_map(value)
            .unwrap_or(otherwise)
    }

    /// Rows of `a` that a cluster takes at once.
    pub fn tokens(&self) -> usize {
        let rows = match (self.step.function, self.defined("SHARE_A", 0)) {
            ("gemm_tokens", _) => self.defined("TOKENS", 8),
            (_, 0) => self.tile_m() * self.defined("CLUSTER", 1),
            _ => self.tile_m(),
        };
        rows as usize
    }

    fn weights(&self) -> u32 {
        self.defined("WEIGHTS", TILE_M)
    }

    fn tile_m(&self) -> u32 {
        self.defined("TILE_M", TILE_M)
    }

    fn tile_n(&self) -> u32 {
        self.defined("TILE_N", TILE_N)
    }

    /// As in the kernel: what leaves at once, and for how many of these a warp has room.
    fn box_columns(&self) -> u32 {
        match self.tile_n().is_multiple_of(64) {
            true => 64,
            false => 88,
        }
    }

    fn rooms(&self) -> u32 {
        match self.box_columns() {
            64 => 2,
            _ => 1,
        }
    }

    /// Beyond what is declared in the kernel.
    fn shared_bytes(&self) -> Option<u32> {
        let stages = |rows| self.defined("STAGES", 4) * rows * TILE_K * 2;
        match self.step.function {
            "gemm_mma" => Some(stages(TILE_M + TILE_N)),
            "gemm_wgmma" => Some(stages(TILE_M + TILE_N) + ALIGNMENT),
            "gemm_persistent" => {
                // Boxes of results: each warp has 16 rows.
                let rooms = self.tile_m() * self.rooms() * self.box_columns() * 2;
                Some(stages(self.tile_m() + self.tile_n()) + rooms + ALIGNMENT)
            }
            "gemm_tokens" => Some(stages(self.weights() + self.defined("TOKENS", 8)) + ALIGNMENT),
            _ => None,
        }
    }

    /// Whether it takes a product of this shape: the copy engine wants rows of `c` to begin at
    /// multiples of 16 bytes.
    pub fn takes(&self, (_, n, _): (usize, usize, usize)) -> bool {
        matches!(self.step.function, "gemm_wmma" | "gemm_mma") || n.is_multiple_of(8)
    }

    /// Ready to be launched for this problem; `parts` is how many blocks share the k of a tile,
    /// where a kernel can do that.
    pub fn call<'a>(&'a self, problem: &'a Problem, parts: u32) -> anyhow::Result<Call<'a>> {
        let (m, n, k) = problem.shape;
        let (rows, columns) = (m as u32, n as u32);
        let shared = self.shared_bytes().unwrap_or(0);
        let (m32, n32, k32) = (rows, columns, k as u32);
        let blocks = self.defined("CLUSTER", 1);
        // A cluster is so many tiles high and wide; each block asks for its part of what is shared.
        let (height, width) = match self.defined("SHARE_A", 0) {
            0 => (blocks, 1),
            _ => (1, blocks),
        };
        let (a_tile_rows, b_tile_rows) = match self.step.function {
            "gemm_persistent" => (self.tile_m() / width, self.tile_n() / height),
            "gemm_tokens" => (self.defined("TOKENS", 8), self.weights()),
            _ => (TILE_M, TILE_N),
        };
        let (a, c) = (&problem.a, &problem.c);
        if let "gemm_wmma" | "gemm_mma" = self.step.function {
            let tile_n = match self.step.function {
                "gemm_wmma" => 128,
                _ => TILE_N,
            };
            let grid = (columns.div_ceil(tile_n), rows.div_ceil(TILE_M), 1);
            let how = Launch::new(grid, 256, shared);
            return Ok(Box::new(move |i| {
                // SAFETY: its parameters, and matrices of these sizes.
                unsafe {
                    self.kernel
                        .launch(how, &[a, &problem.b[i], c, &m32, &n32, &k32])?;
                }
                Ok(())
            }));
        }
        let may_overlap = self.defined("OVERLAP", 0) == 1;
        let swizzle = Swizzle::Bytes128;
        let (m64, n64, k64) = (m as u64, n as u64, k as u64);
        let a_map = self
            .card
            .matrix(a, (m64, k64), (a_tile_rows, TILE_K), swizzle)?;
        let b_maps = problem.b.iter().map(|b| {
            self.card
                .matrix(b, (n64, k64), (b_tile_rows, TILE_K), swizzle)
        });
        let b_maps = b_maps.collect::<cuda::Result<Vec<_>>>()?;
        match self.step.function {
            "gemm_wgmma" => {
                let grid = (columns.div_ceil(TILE_N), rows.div_ceil(TILE_M), 1);
                let how = Launch::new(grid, 256, shared);
                Ok(Box::new(move |i| {
                    // SAFETY: as above.
                    unsafe {
                        self.kernel
                            .launch(how, &[&a_map, &b_maps[i], c, &m32, &n32, &k32])?;
                    }
                    Ok(())
                }))
            }
            "gemm_persistent" => {
                let c_swizzle = match self.box_columns() {
                    64 => swizzle,
                    _ => Swizzle::None,
                };
                let c_box = (16, self.box_columns());
                let c_map = self.card.matrix(c, (m64, n64), c_box, c_swizzle)?;
                let tiles =
                    rows.div_ceil(self.tile_m() * height) * columns.div_ceil(self.tile_n() * width);
                let clusters = tiles.min(self.card.about().multiprocessors / blocks);
                // A group of four warps that asks for tiles, and one for every 64 rows.
                let threads = 128 + self.tile_m() * 2;
                let how = Launch {
                    cluster: blocks,
                    may_begin_early: may_overlap,
                    ..Launch::new((clusters * blocks, 1, 1), threads, shared)
                };
                Ok(Box::new(move |i| {
                    // SAFETY: as above.
                    unsafe {
                        self.kernel
                            .launch(how, &[&a_map, &b_maps[i], &c_map, c, &m32, &n32, &k32])?;
                    }
                    Ok(())
                }))
            }
            "gemm_tokens" => {
                let tiles = (rows.div_ceil(a_tile_rows), columns.div_ceil(b_tile_rows));
                // A warp that asks for tiles, and one for every 16 weights.
                let threads = 32 + self.weights() * 2;
                let how = Launch {
                    cluster: parts,
                    may_begin_early: may_overlap,
                    ..Launch::new((parts, tiles.0, tiles.1), threads, shared)
                };
                Ok(Box::new(move |i| {
                    // SAFETY: as above.
                    unsafe {
                        self.kernel
                            .launch(how, &[&a_map, &b_maps[i], c, &m32, &n32, &k32])?;
                    }
                    Ok(())
                }))
            }
            other => bail!("nobody knows how to launch {other}"),
        }
    }
}
