//! Each step once, for the profiler.

use cuda::Buffer;
use half::bf16;

use super::{
    Bench, Entrant, choice,
    matrix::Matrix,
    product::Size,
    steps::{Rung, step_of},
    weights::Format,
};
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
            for (entrant, words) in plain.chain(self.first(request, &x, size)?) {
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
    /// For the last steps, the first kernel that is worth a try: times under a profiler, which
    /// lets none begin early, would choose another one.
    fn first(
        &self,
        request: &Request,
        x: &Buffer<bf16>,
        size: Size,
    ) -> anyhow::Result<Vec<(Entrant<'_>, String)>> {
        let mut found = Vec::new();
        for format in Format::ALL {
            let step = step_of(format, Rung::Best).filter(|step| request.wants(step.name));
            let ways = choice::ways(format, size, self.card.about().multiprocessors);
            let (Some(step), Some(&way)) = (step, ways.first()) else {
                continue;
            };
            let entrant = Entrant {
                step: Some(step),
                name: step.name.to_owned(),
                contender: self.contender(way, x, size)?,
            };
            found.push((entrant, way.name()));
        }
        Ok(found)
    }
}
