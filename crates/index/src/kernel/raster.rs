//! Faults, reads and resident pages on grids: over time and offset, and over the
//! file map.

use crate::{
    RunIndex,
    answers::{MapHeader, MarksHeader, Raster, SampledAt},
    filter::Filter,
    kernel::{Kernel, KernelQueryError, Mark, MarkSelector, NOWHERE},
    map::Stretches,
    offsets::Window,
    query::{KernelMapQuery, KernelMetric, MarkKind, MarksQuery},
};

use kernelio::kernel_log::faults::FaultKind;

impl RunIndex {
    /// Major faults counted, or bytes of reads, by cell of a window of the offset
    /// plot. A read lasts from its issue to its completion.
    pub fn marks(
        &self,
        query: &MarksQuery,
        filter: &Filter,
    ) -> Result<Raster<MarksHeader>, KernelQueryError> {
        let kernel = self.kernel()?;
        let selector = MarkSelector::new(self, &kernel, filter);
        let window = self.offsets_window(&query.window);
        let mut grid = Grid::new(window);
        match query.of {
            MarkKind::Faults => {
                let faults = kernel.faults()?;
                let from = faults.partition_point(|f| f.mark.nanos < grid.window.t0);
                let to = faults.partition_point(|f| f.mark.nanos < grid.window.t1);
                let kept = faults[from..to].iter().filter(|f| {
                    f.kind == FaultKind::Major && f.mark.has_place() && selector.keeps(&f.mark)
                });
                kept.for_each(|f| grid.count(&f.mark));
            }
            MarkKind::Reads => {
                let reads = kernel.reads()?;
                // Ends are in no order: those that began long ago are looked at too.
                let (t0, t1) = (grid.window.t0, grid.window.t1);
                let to = reads.partition_point(|r| r.mark.nanos < t1);
                let kept = reads[..to]
                    .iter()
                    .filter(|r| r.end_nanos >= t0 && r.mark.has_place() && selector.keeps(&r.mark));
                kept.for_each(|r| grid.add(&r.mark, r.end_nanos, r.bytes));
            }
        }
        Ok(grid.into_raster(query.of, self.origin))
    }

    /// As [`RunIndex::map`], of the kernel's logs.
    pub fn kernel_map(
        &self,
        query: &KernelMapQuery,
        filter: &Filter,
    ) -> Result<Raster<MapHeader>, KernelQueryError> {
        let kernel = self.kernel()?;
        let cells = query.cells.max(1) as usize;
        let total_bytes = self.catalog.total_bytes;
        let cell_bytes = total_bytes.div_ceil(cells as u64).max(1);
        let moment = query
            .at
            .map_or(u64::MAX, |at| self.origin.saturating_add(at));
        let mut sums = Stretches::new(0.0, cell_bytes as f64, cells);
        let mut values = vec![0f32; cells];
        let mut sampled = None;
        match query.metric {
            KernelMetric::Faults | KernelMetric::Disk => {
                let selector = MarkSelector::new(self, &kernel, filter);
                if query.metric == KernelMetric::Faults {
                    let kept = kernel.faults()?.iter().filter(|f| {
                        f.kind == FaultKind::Major && f.mark.nanos <= moment && f.mark.has_place()
                    });
                    kept.filter(|f| selector.keeps(&f.mark)).for_each(|f| {
                        values[((f.mark.offset / cell_bytes) as usize).min(cells - 1)] += 1.0
                    });
                } else {
                    let kept = kernel
                        .reads()?
                        .iter()
                        .filter(|r| r.end_nanos <= moment && r.mark.has_place());
                    kept.filter(|r| selector.keeps(&r.mark)).for_each(|r| {
                        sums.add(r.mark.offset as f64, r.bytes as f64, r.bytes as f64)
                    });
                }
                sums.take(|at, amount| values[at] += amount as f32);
            }
            KernelMetric::Residency => {
                let mut known = Stretches::new(0.0, cell_bytes as f64, cells);
                sampled = self.add_resident(&kernel, moment, &mut sums, &mut known)?;
                sums.take(|at, amount| values[at] = amount as f32);
                known.take(|at, bytes| values[at] = share(values[at], bytes));
            }
        }
        Ok(Raster {
            header: MapHeader {
                cell_bytes,
                total_bytes,
                max: values.iter().copied().fold(0.0, f32::max),
                metric: query.metric.name(),
                available: self.map_metrics(),
                sampled,
            },
            values,
        })
    }

    /// Bytes in memory by the last sample up to a moment, and bytes that it knows.
    fn add_resident(
        &self,
        kernel: &Kernel,
        moment: u64,
        resident: &mut Stretches,
        known: &mut Stretches,
    ) -> Result<Option<SampledAt>, KernelQueryError> {
        let samples = kernel.samples()?;
        let mut sampled = None;
        for (number, file) in self.catalog.files.iter().enumerate() {
            let Some(pages) = samples.of_file(number as u32, moment) else {
                continue;
            };
            let size = file.size_bytes as f64;
            known.add(file.begin as f64, size, size);
            let mut resident_bytes = 0;
            pages.each_run(file.size_bytes, |begin, end| {
                let bytes = end - begin;
                resident_bytes += bytes;
                let begin = file.begin + begin;
                resident.add(begin as f64, bytes as f64, bytes as f64);
            });
            let so_far = sampled.get_or_insert(SampledAt {
                nanos: 0,
                token: pages.token,
                resident_bytes: 0,
            });
            so_far.nanos = so_far.nanos.max(pages.nanos.saturating_sub(self.origin));
            so_far.resident_bytes += resident_bytes;
        }
        Ok(sampled)
    }
}

/// NaN where nothing is known.
fn share(resident: f32, known: f64) -> f32 {
    match known > 0.0 {
        true => ((f64::from(resident) / known) as f32).min(1.0),
        false => f32::NAN,
    }
}

impl Mark {
    /// Whether it lies in a file of the model.
    pub fn has_place(&self) -> bool {
        self.offset != NOWHERE
    }
}

/// Cells of a window, filled column by column.
struct Grid {
    window: Window,
    /// What lies in one cell, and what is spread over several.
    counts: Vec<f32>,
    columns: Vec<Option<Stretches>>,
    events: u64,
    amount: u64,
}

impl Grid {
    fn new(window: Window) -> Grid {
        Grid {
            counts: vec![0.0; window.w * window.h],
            columns: (0..window.w).map(|_| None).collect(),
            window,
            events: 0,
            amount: 0,
        }
    }

    /// Counts a mark of a moment within the window.
    fn count(&mut self, mark: &Mark) {
        let Window { t0, t1, o0, o1, .. } = self.window;
        if !(o0..o1).contains(&mark.offset) {
            return;
        }
        let place = |at: u64, whole: u64, cells: usize| {
            let cell = at as f64 / whole.max(1) as f64 * cells as f64;
            (cell as usize).min(cells - 1)
        };
        let column = place(mark.nanos - t0, t1 - t0, self.window.w);
        let row = place(mark.offset - o0, o1 - o0, self.window.h);
        self.counts[row * self.window.w + column] += 1.0;
        self.events += 1;
        self.amount += 1;
    }

    /// Spreads bytes over their place and over time.
    fn add(&mut self, mark: &Mark, end_nanos: u64, bytes: u64) {
        let window = &self.window;
        if !window.meets(mark.offset as f64, bytes) {
            return;
        }
        self.events += 1;
        self.amount += bytes;
        let columns = &mut self.columns;
        window.columns(mark.nanos, end_nanos, |column, share| {
            let rows = columns[column].get_or_insert_with(|| window.rows());
            rows.add(mark.offset as f64, bytes as f64, bytes as f64 * share);
        });
    }

    fn into_raster(self, of: MarkKind, origin: u64) -> Raster<MarksHeader> {
        let window = self.window;
        let mut values = self.counts;
        for (column, rows) in self.columns.into_iter().enumerate() {
            if let Some(mut rows) = rows {
                rows.take(|row, amount| values[row * window.w + column] += amount as f32);
            }
        }
        Raster {
            header: MarksHeader {
                of: of.name(),
                t0: window.t0 - origin,
                t1: window.t1 - origin,
                o0: window.o0,
                o1: window.o1,
                w: window.w as u32,
                h: window.h as u32,
                max: values.iter().copied().fold(0.0, f32::max),
                events: self.events,
                amount: self.amount,
            },
            values,
        }
    }
}
