//! Everything about caches at once: the way in for `report`.

use std::num::NonZeroUsize;

use plan::Weight;
use serde::{Deserialize, Serialize};

use crate::{
    cache_trace::{self, CacheTrace},
    curves::{Curves, even_budgets},
    error::AnalysisError,
    experts_cache::{ExpertCaches, routing_of},
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
    /// The same as memory of the whole program, where somebody asked for that.
    pub given_bytes: Vec<u64>,
    /// Memory that the program needs besides weights, where that is known.
    pub beside_weights_bytes: Option<u64>,
    /// As [`crate::weights::weights_of`] finds them.
    pub weights: Vec<Weight>,
    /// Its disk's speed is not positive where nobody measured.
    pub machine: Machine,
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
        let units = cache_trace::units(sequence);
        let pages = cache_trace::pages(sequence)?;
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
            Granular {
                reuse: reuse.run.histogram(),
                reuse_generate: reuse.generate.histogram(),
                curves,
            }
        };
        let (unit, page) = (granular(&units), granular(&pages));
        drop(pages);
        let routing = routing_of(sequence);
        let parts = Parts {
            footprint_bytes: units.footprint_bytes(),
            weights: &question.weights,
            routing: &routing,
            page_curves: &page.curves,
            beside_weights_bytes: question.beside_weights_bytes,
            given_bytes: &question.given_bytes,
            machine: question.machine,
        };
        let opportunities = Opportunities::of(sequence, &parts);
        Ok(Caches {
            unit,
            page,
            expert_caches: ExpertCaches::of(&routing, None),
            opportunities,
        })
    }
}
