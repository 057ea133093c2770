//! What index arrays decide: which rows, which KV cells, which experts.

use trace::{
    expand::is_merged,
    read::Evaluation,
    region::{IndexOrder, Indexed, Region},
    template::{CaptureDef, CaptureKind, Template},
};

/// No model has more experts in a layer; a larger number is damage.
pub const MAX_EXPERTS: u64 = u16::MAX as u64;
/// Choices of experts in a batch; a larger number is damage.
const MAX_CHOICES: u64 = 1 << 26;

/// Where a layer chooses experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Router {
    /// Its ids, among the arrays of an evaluation.
    capture: usize,
    /// Their weights, likewise.
    weights: Option<usize>,
    pub layer: u32,
    /// To choose from.
    pub experts: u32,
    /// Chosen for each token.
    pub used: u32,
    /// Ids of an evaluation.
    pub elements: u32,
}

impl Router {
    pub fn ids<'e>(&self, evaluation: &'e Evaluation) -> &'e [i64] {
        array(evaluation, Some(self.capture))
    }

    pub fn has_weights(&self) -> bool {
        self.weights.is_some()
    }

    /// Bits of `f32`, one for each id, where the graph has them.
    pub fn weights<'e>(&self, evaluation: &'e Evaluation) -> &'e [i64] {
        array(evaluation, self.weights)
    }
}

/// The index array of an access, and what its values mean.
#[derive(Clone, Debug)]
pub struct Index {
    pub indexed: Indexed<u32>,
    /// Of its iteration space.
    pub elements: u64,
    /// Among [`Prepared::routers`](crate::Prepared::routers), if it names experts.
    pub router: Option<u32>,
    /// Units that follow each other are one access, so that a value does not say which.
    pub is_merged: bool,
    /// Each value (each distinct one, if the order says so) is one access of one unit, and
    /// the value alone says where: [`Index::for_each_value`] is all that is to know.
    pub is_plain: bool,
}

impl Index {
    pub(crate) fn new(template: &Template, indexed: &Indexed<u32>, routers: &[Router]) -> Index {
        let is_merged = is_merged(indexed);
        let number = indexed.capture as usize;
        let array = template.captures[number].count.map(|n| n.max(1));
        let is_plain = match indexed.order {
            IndexOrder::DistinctAscending => indexed.bound <= MAX_EXPERTS,
            IndexOrder::EachInOrder => {
                let mut outer = indexed.count[1..].iter().zip(indexed.outer_strides);
                let is_array = indexed.count == array
                    && outer.all(|(&count, stride)| count == 1 || stride == 0);
                let is_row = indexed.count[1..] == [1, 1] && indexed.count[0] <= array[0];
                !is_merged && (is_array || is_row)
            }
        };
        let count = indexed.count.iter();
        Index {
            elements: count.fold(1, |n, &c| n.saturating_mul(c)),
            router: (routers.iter().position(|r| r.capture == number)).map(|r| r as u32),
            indexed: indexed.clone(),
            is_merged,
            is_plain,
        }
    }

    /// All values that an evaluation has, the invalid too.
    pub fn values<'e>(&self, evaluation: &'e Evaluation) -> &'e [i64] {
        array(evaluation, Some(self.indexed.capture as usize))
    }

    /// The values of the accesses, in their order, if [`Index::is_plain`]. `bits` is
    /// scratch.
    pub fn for_each_value(
        &self,
        evaluation: &Evaluation,
        bits: &mut Vec<u64>,
        mut f: impl FnMut(u64),
    ) {
        let bound = self.indexed.bound;
        let values = self.values(evaluation).iter();
        let valid = |&value: &i64| u64::try_from(value).ok().filter(|&value| value < bound);
        match self.indexed.order {
            IndexOrder::DistinctAscending => {
                // A set of bits: batches name the same experts again and again.
                bits.clear();
                bits.resize(bound.div_ceil(64) as usize, 0);
                for value in values.filter_map(valid) {
                    bits[(value / 64) as usize] |= 1 << (value % 64);
                }
                for (word, &bits) in bits.iter().enumerate() {
                    let mut bits = bits;
                    while bits != 0 {
                        f(word as u64 * 64 + u64::from(bits.trailing_zeros()));
                        bits &= bits - 1;
                    }
                }
            }
            IndexOrder::EachInOrder => {
                let elements = usize::try_from(self.elements).unwrap_or(usize::MAX);
                values.take(elements).filter_map(valid).for_each(f);
            }
        }
    }
}

/// The routers of a template; `Err` if there cannot be so many choices.
pub(crate) fn routers(template: &Template) -> Result<Vec<Router>, String> {
    let mut routers = Vec::new();
    let mut choices = 0u64;
    for (number, capture) in template.captures.iter().enumerate() {
        if capture.kind != CaptureKind::ExpertIds {
            continue;
        }
        let accesses = template.steps.iter().flat_map(|step| &step.accesses);
        let bounds = accesses.filter_map(|access| match &access.region {
            Region::Indexed(i) if i.capture as usize == number => Some(i.bound),
            _ => None,
        });
        let is_pair =
            |c: &CaptureDef| c.kind == CaptureKind::ExpertWeights && c.pair == Some(number as u32);
        let elements = capture.elements();
        choices = choices.saturating_add(elements);
        if choices > MAX_CHOICES {
            return Err("a batch chooses more experts than can be".into());
        }
        routers.push(Router {
            capture: number,
            weights: template.captures.iter().position(is_pair),
            layer: capture.layer.unwrap_or(0),
            experts: bounds.max().unwrap_or(0).min(MAX_EXPERTS) as u32,
            used: capture.count[0].clamp(1, MAX_EXPERTS) as u32,
            elements: elements as u32,
        });
    }
    Ok(routers)
}

fn array(evaluation: &Evaluation, capture: Option<usize>) -> &[i64] {
    capture
        .and_then(|number| evaluation.captures.get(number))
        .map_or(&[], Vec::as_slice)
}
