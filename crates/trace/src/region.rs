//! Byte regions of a tensor that one access touches.
//!
//! A region is relative to the start of the *root* tensor's data (views are
//! resolved before a region is made). Most regions are known when the graph is
//! built ([`Region::Fixed`]); a few depend on numbers that the graph computes or
//! is fed (token ids, KV cells, expert ids): those name a *capture*, the array
//! of indices that the log stores per evaluation ([`Region::Indexed`]).

/// Past this many runs, repetitions that overlap each other are no longer sorted
/// out: see [`Strided::bytes`].
const MAX_SORTED_RUNS: u64 = 1 << 20;

/// `run_bytes` contiguous bytes, repeated along up to four strided dimensions.
///
/// Canonical form, kept by [`Strided::new`]: dimensions of one repetition or of
/// stride 0 are dropped, the rest are sorted by ascending stride, and a dimension
/// that continues the run or the dimension before it, touching or overlapping, is
/// merged into it. A view and its permutations compare equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Strided {
    /// First byte, relative to the root tensor.
    pub offset: u64,
    /// Contiguous bytes per repetition; 0 means nothing is touched.
    pub run_bytes: u64,
    /// `(repetitions, stride in bytes)`, ascending stride.
    pub dims: Vec<(u64, u64)>,
}

impl Strided {
    /// Nothing at all.
    pub const EMPTY: Strided = Strided {
        offset: 0,
        run_bytes: 0,
        dims: Vec::new(),
    };

    /// A plain byte range.
    pub fn range(offset: u64, bytes: u64) -> Strided {
        Strided {
            offset,
            run_bytes: bytes,
            dims: Vec::new(),
        }
    }

    /// Brings `dims` (in any order) into canonical form.
    pub fn new(offset: u64, run_bytes: u64, dims: impl IntoIterator<Item = (u64, u64)>) -> Strided {
        let mut kept: Vec<(u64, u64)> = Vec::new();
        for (count, stride) in dims {
            if count == 0 {
                return Strided::EMPTY;
            }
            if count > 1 && stride > 0 {
                kept.push((count, stride));
            }
        }
        if run_bytes == 0 {
            return Strided::EMPTY;
        }
        kept.sort_by_key(|&(_, stride)| stride);
        let mut run_bytes = run_bytes;
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (count, stride) in kept {
            match merged.last_mut() {
                // Overlapping or touching repetitions (sliding windows, rows
                // without padding) are one longer run.
                None if stride <= run_bytes => {
                    run_bytes = run_bytes.saturating_add(stride.saturating_mul(count - 1));
                }
                // The same for a dimension: windows that start on its grid and
                // leave no gap in it make it longer.
                Some((repetitions, step))
                    if stride % *step == 0 && stride / *step <= *repetitions =>
                {
                    let more = (stride / *step).saturating_mul(count - 1);
                    *repetitions = repetitions.saturating_add(more);
                }
                _ => merged.push((count, stride)),
            }
        }
        Strided {
            offset,
            run_bytes,
            dims: merged,
        }
    }

    /// Distinct bytes touched.
    ///
    /// Exact, but for one case that no view of llama.cpp shows: dimensions whose
    /// repetitions reach into each other off their grid, more than a million runs
    /// of them. Then it is the number of bytes counted with repetition.
    pub fn bytes(&self) -> u64 {
        match self.sorted_runs() {
            Some(runs) => runs.iter().map(|&(_, bytes)| bytes).sum(),
            None => self.dims.iter().fold(self.run_bytes, |bytes, &(count, _)| {
                bytes.saturating_mul(count)
            }),
        }
    }

    /// One past the last byte; `None` when that is more than a `u64` holds.
    pub fn end(&self) -> Option<u64> {
        if self.run_bytes == 0 || self.dims.iter().any(|&(count, _)| count == 0) {
            return Some(self.offset);
        }
        let span = self
            .dims
            .iter()
            .try_fold(self.run_bytes, |span, &(count, stride)| {
                span.checked_add(stride.checked_mul(count - 1)?)
            });
        self.offset.checked_add(span?)
    }

    /// Calls `f(offset, bytes)` for each contiguous run, each byte once and in
    /// ascending order (with the exception that [`Strided::bytes`] has).
    pub fn for_each_run(&self, mut f: impl FnMut(u64, u64)) {
        if self.run_bytes == 0 {
            return;
        }
        match self.sorted_runs() {
            Some(runs) => runs
                .into_iter()
                .for_each(|(offset, bytes)| f(offset, bytes)),
            None => self.walk(&mut f),
        }
    }

    /// The runs as the dimensions name them.
    fn walk(&self, f: &mut impl FnMut(u64, u64)) {
        fn inner(dims: &[(u64, u64)], offset: u64, run: u64, f: &mut impl FnMut(u64, u64)) {
            match dims.split_last() {
                None => f(offset, run),
                Some((&(count, stride), rest)) => {
                    for i in 0..count {
                        inner(rest, offset + i * stride, run, f);
                    }
                }
            }
        }
        inner(&self.dims, self.offset, self.run_bytes, f);
    }

    /// For dimensions that reach into each other: the runs in order, overlaps
    /// merged. `None` where walking the dimensions gives just that, or too many.
    fn sorted_runs(&self) -> Option<Vec<(u64, u64)>> {
        let mut span = self.run_bytes;
        let nested = self.dims.iter().all(|&(count, stride)| {
            let disjoint = stride >= span;
            span = span.saturating_add(stride.saturating_mul(count.saturating_sub(1)));
            disjoint
        });
        let runs = self
            .dims
            .iter()
            .fold(1u64, |runs, &(count, _)| runs.saturating_mul(count));
        if nested || runs > MAX_SORTED_RUNS {
            return None;
        }
        let mut runs = Vec::with_capacity(runs as usize);
        self.walk(&mut |offset, bytes| runs.push((offset, bytes)));
        runs.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::with_capacity(runs.len());
        for (offset, bytes) in runs {
            match merged.last_mut() {
                Some((first, length)) if offset <= *first + *length => {
                    *length = (*length).max(offset + bytes - *first);
                }
                _ => merged.push((offset, bytes)),
            }
        }
        Some(merged)
    }
}

/// How often, and in which order, an indexed region is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IndexOrder {
    /// Once per element of the index array, in its order (rows of an embedding).
    EachInOrder,
    /// Once per distinct value, ascending (experts of a batch).
    DistinctAscending,
}

/// Bytes named by an index array.
///
/// Element `(i0, i1, i2)` of the iteration space `count` has the value `v` found
/// at `(i0 % n0, i1 % n1, i2 % n2)` of the captured array, whose dimensions are
/// `n0, n1, n2`; it touches `unit` moved by
/// `v * stride + i1 * outer_strides[0] + i2 * outer_strides[1]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Indexed<C> {
    /// The index array. In a template it is the number of a capture; while a
    /// graph is being read it is the index tensor itself.
    pub capture: C,
    /// What index 0 touches.
    pub unit: Strided,
    /// Bytes from index v to index v + 1.
    pub stride: u64,
    /// Indices lie in `0..bound`; anything else is an error in the graph.
    pub bound: u64,
    /// Iteration space.
    pub count: [u64; 3],
    /// Bytes from one `i1` (`i2`) to the next.
    pub outer_strides: [u64; 2],
    pub order: IndexOrder,
}

impl<C> Indexed<C> {
    /// One past the last byte that any index can name; `None` when that is more
    /// than a `u64` holds.
    pub fn end(&self) -> Option<u64> {
        let last = |n: u64| n.saturating_sub(1);
        let mut end = self.unit.end()?;
        end = end.checked_add(last(self.bound).checked_mul(self.stride)?)?;
        for (count, stride) in self.count[1..].iter().zip(self.outer_strides) {
            end = end.checked_add(last(*count).checked_mul(stride)?)?;
        }
        Some(end)
    }
}

/// The bytes of the root tensor that one access touches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Region<C> {
    Fixed(Strided),
    Indexed(Indexed<C>),
}
