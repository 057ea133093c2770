//! Everything about caches at once: the way in for `report`.

use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};

use crate::{
    cache_trace::CacheTrace,
    curves::{Curves, even_budgets},
    error::AnalysisError,
    experts_cache::{ExpertCaches, RoutingSequence},
    opportunities::{Machine, Opportunities, Parts},
    reuse::ReuseHistogram,
    sequence::Sequence,
};

/// Points of a curve unless told otherwise.
const DEFAULT_POINTS: u64 = 16;

/// What to compute.
#[derive(Clone, Debug)]
pub struct CacheQuestion {
    /// Memory for weights; empty means 16 equal steps up to all that was used.
    pub budgets_bytes: Vec<u64>,
    /// Measured ceilings, for speeds.
    pub machine: Option<Machine>,
    pub threads: NonZeroUsize,
}

/// All results; the field names are the keys of `report --json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Caches {
    pub unit: Granular,
    pub page: Granular,
    /// `None` for a model without experts.
    pub expert_caches: Option<ExpertCaches>,
    /// `None` when the run generated no token.
    pub opportunities: Option<Opportunities>,
}

/// Reuse and curves at one granularity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Granular {
    pub reuse: ReuseHistogram,
    pub reuse_generate: ReuseHistogram,
    pub curves: Curves,
}

impl Caches {
    pub fn of(sequence: &Sequence, question: &CacheQuestion) -> Result<Caches, AnalysisError> {
        let units = CacheTrace::units(sequence);
        let pages = CacheTrace::pages(sequence)?;
        let budgets = match question.budgets_bytes.as_slice() {
            // In whole pages: at the last point everything fits at both
            // granularities.
            [] => even_budgets(
                units.footprint_bytes().max(pages.footprint_bytes()),
                DEFAULT_POINTS,
            ),
            given => given.to_vec(),
        };
        let granular = |trace: &CacheTrace| {
            let (curves, reuse) = Curves::and_reuse(trace, &budgets, question.threads);
            let granular = Granular {
                reuse: reuse.run.histogram(),
                reuse_generate: reuse.generate.histogram(),
                curves,
            };
            (granular, reuse)
        };
        let (unit, _) = granular(&units);
        let (page, page_reuse) = granular(&pages);
        drop(pages);
        let parts = Parts {
            units: &units,
            page_reuse: &page_reuse,
            page_curves: &page.curves,
        };
        let opportunities = match Opportunities::from_parts(sequence, &parts, question.machine) {
            Err(AnalysisError::NoGeneratedToken) => None,
            outlook => Some(outlook?),
        };
        Ok(Caches {
            unit,
            page,
            expert_caches: ExpertCaches::of(&RoutingSequence::of(sequence), None),
            opportunities,
        })
    }
}
