//! Each step once, for the profiler.

use half::bf16;

use super::{Bench, matrix::Matrix, product::Size};
use crate::{experiments::Request, profiler};

impl Bench {
    /// Every step to the profiler, at the first batch that it is for.
    pub fn show(
        &self,
        request: &Request,
        (n, k): (usize, usize),
        batches: &[usize],
    ) -> anyhow::Result<()> {
        let matrix = Matrix::new(self, n, k, batches, request)?;
        let mut shown: Vec<String> = Vec::new();
        for &batch in batches {
            let size = Size { batch, n, k };
            let x = self.inputs.random::<bf16>(batch * k, request.seed ^ 1)?;
            let y = self.inputs.poisoned::<bf16>(batch * n)?;
            let plain = self.entrants(request, &x, size)?;
            let plain = plain.into_iter().map(|entrant| (entrant, String::new()));
            let best = self.best(request, &matrix, size, (&x, &y))?;
            for (entrant, words) in plain.chain(best) {
                let Some(step) = entrant.step.filter(|_| !shown.contains(&entrant.name)) else {
                    continue;
                };
                let case = format!("{n} × {k}, batch {batch}, {words}");
                profiler::show(&self.card, step, case.trim_end_matches(", "), || {
                    self.start(&entrant.contender, &matrix, size, (&x, &y), 0, None)
                })?;
                shown.push(entrant.name);
            }
        }
        Ok(())
    }
}
