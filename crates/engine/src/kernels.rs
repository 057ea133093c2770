//! How fast llama.cpp's own kernels are on this machine: products with weights of a type,
//! attention over a cache, small operations. Graphs of one kind of node are computed as a
//! model's are, by the same backend with as many threads.
//!
//! Weights are larger together than the last cache, as a model's are: what one node read is
//! gone when it is read again. And they lie in a file that is mapped, so that they are the kind
//! of memory that a model's are; own memory was not seen to differ beyond the noise.

mod choices;

use std::{
    io::{self, Write as _},
    time::{Duration, Instant},
};

use gguf::GgmlType;
use llama_cpp_sys_2 as sys;
use memmap2::{Mmap, MmapMut};

use crate::{EngineError, variant};

/// Weights that take turns when few tokens are multiplied: memory decides then. Of a last cache
/// of 32 MiB a sixteenth of them at most is still there when its turn comes again.
const WEIGHT_BYTES: u64 = 512 << 20;
const MIN_WEIGHT_BYTES: u64 = 64 << 20;
/// They are written so many at a time.
const PIECE_BYTES: usize = 1 << 20;
/// The same for cached keys and values, which are a program's own memory.
const CACHE_BYTES: u64 = 256 << 20;
/// From so many tokens on computing decides, and a few matrices are enough.
const MANY_TOKENS: usize = 16;
/// As many of them as have so many multiplications: threads start and end with each graph.
const MIN_PRODUCTS: u64 = 1 << 30;
/// Rows that are measured at most: more of them take as long each.
const MAX_ROWS: u64 = 1 << 13;
const MAX_EXPERTS: u64 = 64;
/// Has no divisor in common with any usual number of experts.
const SCATTER: u64 = 37;
const MIN_ROUNDS: usize = 3;
/// After a round that takes longer, two are enough.
const LONG: f64 = 0.25;
/// Any value that is a usual number in every type: 0x3c3c is 1.06 in f16, 0.011 in bf16.
const FILL: u8 = 0x3c;

/// Seconds for each unit of work: of the fastest round, the middle one and the slowest.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timing {
    pub best: f64,
    pub median: f64,
    pub worst: f64,
}

/// By number of tokens.
pub type Timings = Vec<(usize, Timing)>;

/// A matrix of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    pub ty: GgmlType,
    pub columns: u64,
    pub rows: u64,
}

/// Matrices of a mixture's layer, of which each token uses a few.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    pub matrix: Matrix,
    pub count: u64,
    pub used: u64,
}

/// Heads, and how long their keys and values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    pub cache: GgmlType,
    pub heads: u64,
    pub kv_heads: u64,
    pub key_length: u64,
    pub value_length: u64,
}

/// The processor, as llama.cpp computes on it.
pub struct Kernels {
    backend: *mut sys::ggml_backend,
    time: Duration,
    weights: Weights,
    /// Of a node that has almost nothing to do: threads meet after each. Not part of what
    /// others take for each unit of work.
    node: Timing,
    /// Of a graph: threads are started and end.
    graph_seconds: f64,
}

impl Drop for Kernels {
    fn drop(&mut self) {
        // SAFETY: made by `new`, used by nobody else.
        unsafe { sys::ggml_backend_free(self.backend) };
    }
}

impl Kernels {
    /// Each measurement takes about `time`, and at least three rounds. Weights take at most
    /// `budget_bytes`, or the least with which anything can be measured.
    pub fn new(threads: usize, time: Duration, budget_bytes: u64) -> Result<Kernels, EngineError> {
        let backend = variant::backend(threads)?;
        let mut kernels = Kernels {
            backend,
            time,
            weights: Weights::new(budget_bytes),
            node: Timing::default(),
            graph_seconds: 0.0,
        };
        if let Some(one) = kernels.measure_nodes(1) {
            kernels.graph_seconds = one.median;
        }
        kernels.node = kernels.measure_nodes(512).unwrap_or_default();
        Ok(kernels)
    }

    /// For each weight of a matrix that tokens are multiplied with, by their number. Empty where
    /// the type has no product.
    pub fn product(&self, matrix: Matrix, tokens: &[usize]) -> Option<Timings> {
        // Two of them at least, so that none is in a cache.
        let rows = matrix.rows.min(MAX_ROWS);
        let all_bytes = self.weights.bytes().len() as u64;
        let rows = rows.min(all_bytes / 2 / matrix.bytes(1)?).max(1);
        let bytes = matrix.bytes(rows)?;
        let count = (all_bytes / bytes).clamp(1, 4096) as usize;
        let shape = [matrix.columns as i64, rows as i64, 1];
        let all = Graph::new(count, 0)?;
        let (weights, _buffer) = all.mapped(&self.weights, matrix.ty, shape, count)?;
        self.time_products(&weights, Matrix { rows, ..matrix }, tokens)
    }

    /// Weights of one shape times so many tokens.
    fn time_products(&self, weights: &[Tensor], of: Matrix, tokens: &[usize]) -> Option<Timings> {
        let time = |&tokens: &usize| {
            let used = &weights[..nodes(weights.len(), of.columns * of.rows, tokens)];
            let work = (of.columns * of.rows) as f64 * used.len() as f64;
            let timing = self.measure(1, used.len(), work, |graph| {
                let input = [of.columns as i64, tokens as i64, 1];
                let input = graph.tensor(GgmlType::F32, input);
                for &weights in used {
                    // SAFETY: live tensors whose shapes fit.
                    graph.add(|context| unsafe { sys::ggml_mul_mat(context, weights, input) });
                }
            });
            Some((tokens, timing?))
        };
        tokens.iter().map(time).collect()
    }

    /// For each weight of the experts that are used, by the tokens of each of them.
    pub fn experts(&self, experts: Experts, tokens_per_expert: &[usize]) -> Option<Timings> {
        let Experts { matrix, .. } = experts;
        let count = experts.count.clamp(1, MAX_EXPERTS);
        let chosen = experts.used.clamp(1, count);
        let all_bytes = self.weights.bytes().len() as u64;
        let rows = all_bytes / count / matrix.bytes(1)?;
        let matrix = Matrix {
            rows: matrix.rows.min(rows).max(1),
            ..matrix
        };
        let stack = matrix.bytes(matrix.rows)? * count;
        let stacks = (all_bytes / stack).clamp(1, 64) as usize;
        let shape = [matrix.columns, matrix.rows, count].map(|n| n as i64);
        let all = Graph::new(stacks, 0)?;
        let (weights, _buffer) = all.mapped(&self.weights, matrix.ty, shape, stacks)?;
        let stacks = weights.len();
        let time = |&each: &usize| {
            // One token uses a few of the experts; where each has several tokens, all are used.
            let (tokens, used) = match each {
                0 | 1 => (1, chosen),
                more => ((more as u64 * count).div_ceil(chosen), count),
            };
            // Once through all of them.
            let all = stacks * (count / used) as usize;
            let nodes = nodes(all, matrix.columns * matrix.rows * used, each);
            let work = (matrix.columns * matrix.rows * used) as f64 * nodes as f64;
            let timing = self.measure(1 + nodes, nodes, work, |graph| {
                let input = [matrix.columns as i64, 1, tokens as i64];
                let input = graph.tensor(GgmlType::F32, input);
                for node in 0..nodes {
                    let ids = graph.integers(chosen, tokens, |at, token| {
                        let round = (node / stacks) as u64;
                        // Not one beside the other: a router does not choose so.
                        (((at + (token + round) * chosen) * SCATTER) % count) as i32
                    });
                    let weights = weights[node % stacks];
                    // SAFETY: live tensors whose shapes fit.
                    graph.add(|context| unsafe {
                        sys::ggml_mul_mat_id(context, weights, input, ids)
                    });
                }
            });
            Some((each, timing?))
        };
        tokens_per_expert.iter().map(time).collect()
    }

    /// For each pair of a number of a query and one of a cached key or value, of one token: by
    /// tokens, over so many that are cached.
    pub fn attention(&self, heads: Heads, tokens: &[usize], cached: usize) -> Option<Timings> {
        let row = |length: u64| Matrix {
            ty: heads.cache,
            columns: length,
            rows: heads.kv_heads * cached as u64,
        };
        let (keys, values) = (row(heads.key_length), row(heads.value_length));
        let bytes = keys.bytes(keys.rows)? + values.bytes(values.rows)?;
        let count = CACHE_BYTES.div_ceil(bytes).clamp(2, 256) as usize;
        let mut all = Graph::new(4 * count, 0)?;
        let caches: Vec<[Tensor; 2]> = (0..count)
            .map(|_| {
                [keys, values].map(|matrix| {
                    // As llama.cpp keeps them: all heads of a token side by side.
                    let shape = [matrix.columns, heads.kv_heads, cached as u64];
                    let cache = all.tensor(heads.cache, shape.map(|n| n as i64));
                    // SAFETY: a tensor of that context.
                    all.view(|context| unsafe { sys::ggml_permute(context, cache, 0, 2, 1, 3) })
                })
            })
            .collect();
        let _buffer = all.allocate(self.backend)?;
        let time = |&tokens: &usize| {
            let numbers = heads.heads * (heads.key_length + heads.value_length);
            let used = &caches[..nodes(count, numbers * cached as u64, tokens)];
            let work = (numbers * tokens as u64) as f64 * cached as f64 * used.len() as f64;
            let timing = self.measure(2, used.len(), work, |graph| {
                let shape = [heads.key_length, tokens as u64, heads.heads];
                let queries = graph.tensor(GgmlType::F32, shape.map(|n| n as i64));
                let mask = graph.zeroes(GgmlType::F16, [cached as i64, tokens as i64, 1]);
                let scale = 1.0 / (heads.key_length as f32).sqrt();
                for &[keys, values] in used {
                    // SAFETY: live tensors whose shapes fit.
                    graph.add(|context| unsafe {
                        sys::ggml_flash_attn_ext(
                            context, queries, keys, values, mask, scale, 0.0, 0.0,
                        )
                    });
                }
            });
            Some((tokens, timing?))
        };
        tokens.iter().map(time).collect()
    }

    /// For each node, however small.
    pub fn node(&self) -> Timing {
        self.node
    }

    /// For each graph: threads are started and end.
    pub fn graph_seconds(&self) -> f64 {
        self.graph_seconds
    }

    fn measure_nodes(&self, nodes: usize) -> Option<Timing> {
        self.measure(1, nodes, nodes as f64, |graph| {
            let mut tensor = graph.tensor(GgmlType::F32, [64, 1, 1]);
            for _ in 0..nodes {
                // SAFETY: a tensor of that context.
                tensor = graph.add(|context| unsafe { sys::ggml_rms_norm(context, tensor, 1e-5) });
            }
        })
    }

    /// For each number that a small operation writes (norms, sums, gates, rotations), of
    /// `tokens` tokens.
    pub fn element(&self, tokens: usize) -> Option<Timing> {
        const NODES: usize = 30;
        const HEAD_LENGTH: i64 = 128;
        const HEADS: i64 = 16;
        let shape = [HEAD_LENGTH, HEADS, tokens as i64];
        let work = (HEAD_LENGTH * HEADS * tokens as i64) as f64 * NODES as f64;
        self.measure(3, NODES, work, |graph| {
            let other = graph.tensor(GgmlType::F32, shape);
            let places = graph.integers(tokens as u64, 1, |token, _| token as i32);
            let mut tensor = graph.tensor(GgmlType::F32, shape);
            for node in 0..NODES {
                // SAFETY: tensors of that context, whose shapes fit.
                tensor = graph.add(|context| unsafe {
                    match node % 5 {
                        0 => sys::ggml_rms_norm(context, tensor, 1e-5),
                        1 => sys::ggml_mul(context, tensor, other),
                        2 => sys::ggml_rope(context, tensor, places, HEAD_LENGTH as i32, 0),
                        3 => sys::ggml_silu(context, tensor),
                        _ => sys::ggml_add(context, tensor, other),
                    }
                });
            }
        })
    }

    /// Builds a graph and times it; `tensors` and `nodes` say how large it may be.
    fn measure(
        &self,
        tensors: usize,
        nodes: usize,
        work: f64,
        build: impl FnOnce(&mut Graph),
    ) -> Option<Timing> {
        // Views are nodes, too.
        let size = 8 * (tensors + nodes) + 8;
        let mut graph = Graph::new(size, size)?;
        build(&mut graph);
        let buffer = graph.allocate(self.backend)?;
        let seconds = || {
            let start = Instant::now();
            // SAFETY: a live backend, and a graph whose tensors are allocated.
            let status = unsafe { sys::ggml_backend_graph_compute(self.backend, graph.raw) };
            let seconds = start.elapsed().as_secs_f64();
            // Most of a round is work, however small its nodes are.
            let around = self.graph_seconds + nodes as f64 * self.node.median;
            let without_nodes = (seconds - around).max(seconds / 4.0);
            (status == sys::GGML_STATUS_SUCCESS).then_some(without_nodes / work)
        };
        // The first round brings pages and caches in.
        let first = seconds()?;
        let rounds_wanted = match first * work > LONG {
            true => MIN_ROUNDS - 1,
            false => MIN_ROUNDS,
        };
        let mut rounds = Vec::new();
        let start = Instant::now();
        while rounds.len() < rounds_wanted || start.elapsed() < self.time {
            rounds.push(seconds()?);
        }
        drop(buffer);
        rounds.sort_by(f64::total_cmp);
        Some(Timing {
            best: *rounds.first()?,
            // Of two the faster: a delay makes longer, nothing makes shorter.
            median: rounds[(rounds.len() - 1) / 2],
            worst: *rounds.last()?,
        })
    }
}

/// How many of `all` are computed in one graph.
fn nodes(all: usize, products: u64, tokens: usize) -> usize {
    match tokens < MANY_TOKENS {
        true => all,
        false => {
            let each = products.saturating_mul(tokens as u64).max(1);
            (MIN_PRODUCTS.div_ceil(each) as usize).clamp(1, all)
        }
    }
}

impl Matrix {
    /// Bytes of so many rows, or `None` where they are not whole blocks.
    fn bytes(self, rows: u64) -> Option<u64> {
        let whole = self.columns.is_multiple_of(self.ty.block_elements());
        let row = self.columns / self.ty.block_elements() * self.ty.block_bytes();
        let bytes = row.checked_mul(rows)?;
        (whole && bytes > 0).then_some(bytes)
    }
}

/// Where tensors begin in memory.
const ALIGNMENT: usize = 64;

/// Bytes of a file that exists no more, mapped; of a program's own memory where no file can
/// be made.
struct Weights(Option<Mmap>);

impl Weights {
    fn new(budget_bytes: u64) -> Weights {
        let bytes = budget_bytes.clamp(MIN_WEIGHT_BYTES, WEIGHT_BYTES);
        let bytes = (bytes as usize).next_multiple_of(PIECE_BYTES);
        let mapped = Weights::of_file(bytes).or_else(|_| Weights::own(bytes));
        Weights(mapped.ok())
    }

    fn of_file(bytes: usize) -> io::Result<Mmap> {
        let mut file = tempfile::tempfile()?;
        let piece = vec![FILL; PIECE_BYTES];
        for _ in 0..bytes / piece.len() {
            file.write_all(&piece)?;
        }
        // SAFETY: nobody else has the file, which has no name: it stays as it is.
        unsafe { Mmap::map(&file) }
    }

    fn own(bytes: usize) -> io::Result<Mmap> {
        let mut own = MmapMut::map_anon(bytes)?;
        own.fill(FILL);
        own.make_read_only()
    }

    fn bytes(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }
}

type Tensor = *mut sys::ggml_tensor;

/// What a tensor has in it before the graph is computed.
enum Content {
    Bytes(u8),
    Integers(Vec<i32>),
}

/// A graph that is being made.
struct Graph {
    context: *mut sys::ggml_context,
    raw: *mut sys::ggml_cgraph,
    contents: Vec<(Tensor, Content)>,
}

/// Memory of a graph's tensors.
struct Buffer(*mut sys::ggml_backend_buffer);

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: made by `allocate`, used by nobody else.
        unsafe { sys::ggml_backend_buffer_free(self.0) };
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made by `new`; the graph is in it.
        unsafe { sys::ggml_free(self.context) };
    }
}

impl Graph {
    fn new(tensors: usize, nodes: usize) -> Option<Graph> {
        // SAFETY: they take sizes; then a context, which is checked.
        unsafe {
            let bytes = sys::ggml_tensor_overhead() * (tensors + 1)
                + sys::ggml_graph_overhead_custom(nodes, false);
            let context = sys::ggml_init(sys::ggml_init_params {
                mem_size: bytes,
                mem_buffer: std::ptr::null_mut(),
                no_alloc: true,
            });
            if context.is_null() {
                return None;
            }
            let raw = sys::ggml_new_graph_custom(context, nodes, false);
            Some(Graph {
                context,
                raw,
                contents: Vec::new(),
            })
        }
    }

    fn new_tensor(&mut self, ty: GgmlType, [a, b, c]: [i64; 3], content: Content) -> Tensor {
        let ty = ty.as_u32() as sys::ggml_type;
        // SAFETY: a live context that was made large enough.
        let tensor = unsafe { sys::ggml_new_tensor_3d(self.context, ty, a, b, c) };
        self.contents.push((tensor, content));
        tensor
    }

    fn tensor(&mut self, ty: GgmlType, ne: [i64; 3]) -> Tensor {
        self.new_tensor(ty, ne, Content::Bytes(FILL))
    }

    fn zeroes(&mut self, ty: GgmlType, ne: [i64; 3]) -> Tensor {
        self.new_tensor(ty, ne, Content::Bytes(0))
    }

    fn integers(&mut self, columns: u64, rows: u64, value: impl Fn(u64, u64) -> i32) -> Tensor {
        let all = (0..rows).flat_map(|row| (0..columns).map(move |column| (column, row)));
        let values = all.map(|(column, row)| value(column, row)).collect();
        self.new_tensor(
            GgmlType::I32,
            [columns as i64, rows as i64, 1],
            Content::Integers(values),
        )
    }

    fn view(&self, make: impl FnOnce(*mut sys::ggml_context) -> Tensor) -> Tensor {
        make(self.context)
    }

    /// A node, computed after those before it.
    fn add(&mut self, make: impl FnOnce(*mut sys::ggml_context) -> Tensor) -> Tensor {
        let node = make(self.context);
        // SAFETY: a live graph, and a tensor of its context.
        unsafe { sys::ggml_build_forward_expand(self.raw, node) };
        node
    }

    /// Weights of one shape, side by side.
    fn mapped(
        &self,
        weights: &Weights,
        ty: GgmlType,
        [a, b, c]: [i64; 3],
        count: usize,
    ) -> Option<(Vec<Tensor>, Buffer)> {
        let ty = ty.as_u32() as sys::ggml_type;
        // SAFETY: a mapping that is longer than all tensors together, which stay within it.
        unsafe {
            // Read, and never written to.
            let base = weights.bytes().as_ptr().cast_mut();
            let buffer = sys::ggml_backend_cpu_buffer_from_ptr(base.cast(), weights.bytes().len());
            if buffer.is_null() {
                return None;
            }
            let buffer = Buffer(buffer);
            let mut tensors = Vec::with_capacity(count);
            for number in 0..count {
                let tensor = sys::ggml_new_tensor_3d(self.context, ty, a, b, c);
                let bytes = sys::ggml_nbytes(tensor);
                let begin = (number * bytes).next_multiple_of(ALIGNMENT);
                if begin + bytes > weights.bytes().len() {
                    break;
                }
                let address = base.add(begin).cast();
                let status = sys::ggml_backend_tensor_alloc(buffer.0, tensor, address);
                if status != sys::GGML_STATUS_SUCCESS {
                    return None;
                }
                tensors.push(tensor);
            }
            (!tensors.is_empty()).then_some((tensors, buffer))
        }
    }

    fn allocate(&self, backend: *mut sys::ggml_backend) -> Option<Buffer> {
        // SAFETY: a live context whose tensors have no memory, and a live backend.
        let buffer = unsafe { sys::ggml_backend_alloc_ctx_tensors(self.context, backend) };
        if buffer.is_null() {
            return None;
        }
        for (tensor, content) in &self.contents {
            // SAFETY: tensors that were just allocated, filled to their end and no further.
            unsafe {
                let bytes = sys::ggml_nbytes(*tensor);
                match content {
                    Content::Bytes(value) => {
                        sys::ggml_backend_tensor_memset(*tensor, *value, 0, bytes);
                    }
                    Content::Integers(values) => sys::ggml_backend_tensor_set(
                        *tensor,
                        values.as_ptr().cast(),
                        0,
                        bytes.min(size_of_val(values.as_slice())),
                    ),
                }
            }
        }
        Some(Buffer(buffer))
    }
}
