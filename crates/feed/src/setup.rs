//! Shares the memory out, when the first graph has shown the weights and the model's
//! own buffers are made.

use std::cell::Cell;
use std::sync::Arc;

use plan::choose::SMALL_BYTES;
use plan::{Choice, Machine, NamedChoice, Policy, Strategies, Use, Wanted, Weight, choose_for};

use crate::ahead::{Ahead, MAX_SLICES_IN_FLIGHT};
use crate::balance::margin_bytes;
use crate::depth::Depth;
use crate::elastic::{self, Elastic, Key, Watch};
use crate::error::FeedError;
use crate::experts::{Experts, Layout};
use crate::faults::Faults;
use crate::files::{Cache, Method};
use crate::memory::{Refused, Region, TouchAhead, page_bytes};
use crate::pieces::{Splitting, Together};
use crate::pump::{Place, Pump, RingPlace};
use crate::reader::Reader;
use crate::routing::Distribution;
use crate::shares::Shares;
use crate::stats::Stats;
use crate::usage::{Level, Meter};
use crate::weights::{Fate, Usage, WeightInMemory, Weights};

/// Kept free of the budget, at most: page tables, the pages of the program and of rows that
/// are looked up, queues of the kernel.
pub const MARGIN_BYTES: u64 = 40 << 20;
/// A batch's experts are read whole through a ring of this many of the largest.
const WHOLE_RING_TENSORS: u64 = 3;
/// Bytes of one read of a slice. They are asked for by the thread that computes, and fewer
/// cost it less.
const EXPERT_BLOCK_BYTES: u32 = 4 << 20;
/// Reads of slices in flight at most: the kernel queues what the disk does not take.
const EXPERT_DEPTH: u32 = 256;

/// How to feed.
#[derive(Clone)]
pub struct Props {
    /// Memory for the whole process.
    pub budget_bytes: u64,
    pub strategies: Strategies,
    /// What a plan says; chosen here without one.
    pub plan: Option<NamedChoice>,
    pub policy: Policy,
    pub block_bytes: u32,
    pub depth: u32,
    /// What the machine can do, as far as that is known.
    pub machine: Machine,
    /// For the comparison at the end.
    pub predicted_tokens_per_second: Option<plan::Speed>,
    /// Not a better one than this.
    pub method: Method,
    pub faults: Option<Faults>,
    /// Experts that are drawn instead of what the router says.
    pub routing: Option<Distribution>,
    pub routing_seed: u64,
    pub keeps_routing: bool,
    pub read_ahead: ReadAhead,
    /// What would leave more memory for weights; said when too little is left.
    pub advice: Option<String>,
}

/// What is read before it is known to be needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadAhead {
    #[default]
    Nothing,
    /// Experts that a router is likely to choose.
    Experts,
}

impl std::str::FromStr for ReadAhead {
    type Err = String;

    fn from_str(text: &str) -> Result<ReadAhead, String> {
        match text {
            "nothing" => Ok(ReadAhead::Nothing),
            "experts" => Ok(ReadAhead::Experts),
            _ => Err(format!("`{text}` cannot be read ahead: experts, nothing")),
        }
    }
}

impl Props {
    pub(crate) fn cache(&self) -> Cache {
        match self.method {
            Method::IoUringDirect | Method::PreadDirect => Cache::PassedBy,
            Method::PreadBuffered => Cache::Used,
        }
    }
}

/// What is known when the first graph comes.
pub(crate) struct Situation<'a> {
    pub meter: Arc<dyn Meter>,
    /// What the graph will touch for the first time.
    pub coming_bytes: u64,
    /// The weights of each routed layer.
    pub groups: &'a [Vec<u32>],
}

/// The memory, and who fills it. Those who write to it are dropped first.
pub struct Memory {
    _watch: Watch,
    pub(crate) pump: Pump,
    pub(crate) experts: Option<Experts>,
    pub(crate) ring: Option<Region>,
    pub(crate) whole_ring: Option<RingPlace>,
    /// What is streamed takes at most this much of the ring at a time.
    pub(crate) max_piece_bytes: u64,
    _touch_ahead: Option<TouchAhead>,
    /// Weights that are too small to be worth giving back.
    _small: Option<Region>,
    _slots: Option<Region>,
    pub(crate) elastic: Arc<Elastic>,
    /// Whether nobody has said what is to be kept.
    pub(crate) may_grow: bool,
    /// Whether a ring may be made, if there is none.
    pub(crate) may_stream: bool,
    /// How often the ring had to go, because others needed its memory.
    pub(crate) rings_left: u32,
    pub shares: Shares,
}

impl Memory {
    /// What has to be computed in pieces.
    pub(crate) fn splitting(&self) -> Splitting {
        Splitting {
            max_bytes: self.max_piece_bytes,
            experts: match &self.experts {
                // More than there are slots are read whole, which takes one product.
                Some(experts) => Together::EachExpert {
                    max_experts: experts.min_slots(),
                },
                None => Together::AllExperts,
            },
        }
    }
}

pub(crate) fn set_up(
    props: &Props,
    weights: &mut Weights,
    situation: Situation<'_>,
    stats: &Arc<Stats>,
    notes: &mut Vec<String>,
) -> Result<Memory, FeedError> {
    let Situation {
        meter,
        coming_bytes,
        groups,
    } = situation;
    let files = weights.files.clone();
    let elastic = Elastic::new(meter, files, props.budget_bytes, stats.clone());
    let level = elastic.level();
    let other_bytes = level.used_bytes + coming_bytes;
    let weights_bytes = elastic
        .limit_bytes
        .saturating_sub(other_bytes)
        .saturating_sub(margin_bytes(elastic.limit_bytes));
    let facts = facts(weights, groups);
    let planned = planned(props, &facts, weights_bytes, notes);
    let may_grow = props.strategies.pin && planned.is_none();
    let choice = planned.unwrap_or_else(|| {
        let alignment_bytes = weights.files.alignment_bytes;
        let choose = |bytes| choose(props, &facts, bytes, alignment_bytes);
        let choice = choose(weights_bytes);
        match shortfall_bytes(&choice, &facts, level, coming_bytes) {
            0 => choice,
            bytes => choose(weights_bytes.saturating_sub(bytes)),
        }
    });
    let alignment = weights.files.alignment_bytes;
    let refused = Cell::new(Refused::default());
    let note_refused = |not_granted: Refused| {
        refused.set(Refused {
            huge_pages: refused.get().huge_pages || not_granted.huge_pages,
            lock: refused.get().lock || not_granted.lock,
        });
    };
    let region = |bytes: u64| -> Result<Option<Region>, FeedError> {
        if bytes == 0 {
            return Ok(None);
        }
        let (region, not_granted) =
            Region::new(bytes).map_err(|cause| FeedError::Memory { bytes, cause })?;
        note_refused(not_granted);
        elastic.add_fixed(&region);
        Ok(Some(region))
    };

    let (small, large): (Vec<usize>, Vec<usize>) = choice
        .pinned
        .iter()
        .partition(|&&w| weights.list[w].bytes < elastic::MIN_BYTES);
    let spaces = small.iter().map(|&w| {
        let planned = weights.planned(w as u32, Place::Ring);
        planned.bytes.next_multiple_of(alignment.max(64))
    });
    let spaces: Vec<u64> = spaces.collect();
    let small_region = region(spaces.iter().sum())?;
    if let Some(region) = &small_region {
        let mut at = 0;
        for (&weight, &bytes) in small.iter().zip(&spaces) {
            weights.list[weight].fate = Fate::Pinned {
                address: region.place(at, bytes),
                is_loaded: false,
            };
            at += bytes;
        }
    }
    for &weight in &choice.streamed {
        weights.list[weight].fate = Fate::Streamed;
    }
    let ring = region(choice.ring_bytes)?;
    for weight in large {
        let planned = weights.planned(weight as u32, Place::Ring);
        let kept = elastic.keep(Key::of(planned.weight), &planned);
        let bytes = planned.bytes;
        let (address, not_granted) = kept.map_err(|cause| FeedError::Memory { bytes, cause })?;
        note_refused(not_granted);
        weights.list[weight].fate = Fate::Pinned {
            address,
            is_loaded: false,
        };
    }
    let max_piece_bytes = choice.ring_bytes / plan::choose::RING_WEIGHTS;

    let method = match weights.files.is_direct {
        true => props.method,
        false => Method::PreadBuffered,
    };
    if let Some(why) = weights.direct_refused.take() {
        notes.push(format!("reads go through the page cache: {why}"));
    }
    let reader = |number: u64, depth: u32| {
        let faults = props.faults.as_ref().map(|faults| faults.other(number));
        Reader::new(
            weights.files.clone(),
            method,
            depth,
            stats.work.clone(),
            faults,
        )
        .map_err(FeedError::Start)
    };
    let (stream_reader, no_uring) = reader(0, props.depth * 4)?;
    if let Some(why) = no_uring {
        notes.push(format!(
            "reads are made by threads, without io_uring: {why}"
        ));
    }
    let depth = Depth::new(
        props.depth,
        props.block_bytes,
        props.machine.disk_bytes_per_second,
    );
    // SAFETY: regions outlive the pump (order of fields), and each place is used once.
    let pump = unsafe { Pump::start(stream_reader, props.block_bytes, depth)? };

    let mut slots = None;
    let mut experts = None;
    let mut whole_ring = None;
    let mut touch_ahead = None;
    if let Some(memory) = choice.experts.filter(|_| !choice.sliced.is_empty()) {
        let (expert_reader, _) = reader(1, EXPERT_DEPTH)?;
        let (ahead_reader, _) = reader(2, MAX_SLICES_IN_FLIGHT as u32)?;
        let sliced: Vec<Vec<u32>> = groups
            .iter()
            .filter(|group| group.iter().all(|w| choice.sliced.contains(&(*w as usize))))
            .cloned()
            .collect();
        // Room to move slices in, which the plan leaves out.
        let rounding = u64::from(memory.pools) * u64::from(memory.slots + 2) * 4 * alignment;
        slots = region(memory.bytes + rounding)?;
        if let Some(slots) = &slots {
            let layout = Layout {
                pools: memory.pools,
                slots: memory.slots,
                policy: props.policy,
                address: slots.place(0, slots.len()),
                bytes: slots.len(),
            };
            touch_ahead = Some(slots.touch_ahead());
            experts = Experts::new(weights, &sliced, layout, expert_reader, EXPERT_BLOCK_BYTES);
            if let (Some(experts), ReadAhead::Experts) = (&mut experts, props.read_ahead) {
                experts.guess_with(Ahead::start(ahead_reader)?);
            }
            let whole = |&w: &usize| weights.planned(w as u32, Place::Ring).bytes;
            let sliced = choice.sliced.iter().map(whole);
            let streamed = choice
                .streamed
                .iter()
                .map(|w| whole(w).min(max_piece_bytes));
            let largest = sliced.chain(streamed).max().unwrap_or(0);
            whole_ring = (experts.is_some() && largest * WHOLE_RING_TENSORS <= slots.len())
                .then_some(RingPlace {
                    address: layout.address,
                    bytes: largest * WHOLE_RING_TENSORS,
                });
        }
        if experts.is_none() {
            notes.push("the experts' slices do not fit into slots: left to the page cache".into());
        }
    }
    for weight in &weights.list {
        if weight.usage == Usage::Rows && weight.fate == Fate::Mapped {
            advise_random(weight.original, weight.bytes);
        }
    }
    if refused.get().huge_pages {
        notes.push("the kernel has no huge pages: reading costs more of the processor".into());
    }
    if refused.get().lock {
        notes.push(
            "memory could not be locked (ulimit -l): under pressure it may be swapped out".into(),
        );
    }
    let mut shares = Shares {
        budget_bytes: props.budget_bytes,
        other_bytes,
        ring_bytes: ring.as_ref().map_or(0, Region::len),
        expert_bytes: slots.as_ref().map_or(0, Region::len),
        expert_slots: choice.experts.map_or(0, |e| e.slots),
        expert_pools: choice.experts.map_or(0, |e| e.pools),
        ..Shares::default()
    };
    shares.follow(weights, 0);
    notes.push(shares.sentence(props.advice.as_deref()));
    let elastic = Arc::new(elastic);
    Ok(Memory {
        _watch: Watch::start(elastic.clone()),
        pump,
        experts,
        ring,
        whole_ring,
        max_piece_bytes,
        _touch_ahead: touch_ahead,
        _small: small_region,
        _slots: slots,
        elastic,
        may_grow,
        may_stream: props.strategies.stream && may_grow,
        rings_left: 0,
        shares,
    })
}

/// The weights as crate `plan` sees them.
fn facts(weights: &Weights, groups: &[Vec<u32>]) -> Vec<Weight> {
    let numbered = (0u32..).zip(&weights.list);
    let fact = |(number, weight): (u32, &WeightInMemory)| {
        let layer = groups.iter().position(|group| group.contains(&number));
        Weight {
            name: weight.name.clone(),
            bytes: weight.bytes,
            row_bytes: weight.row_bytes,
            layer: layer.map(|layer| layer as u32),
            usage: match weight.usage {
                Usage::Rows => Use::Rows,
                // Experts that no layer routes to alone are read whole.
                Usage::Experts { .. } if layer.is_none() => Use::Whole,
                Usage::Whole => Use::Whole,
                Usage::Experts {
                    count,
                    used,
                    slice_bytes,
                } => Use::Experts {
                    count,
                    used,
                    slice_bytes,
                },
            },
        }
    };
    numbered.map(fact).collect()
}

/// What the plan says, if there is one and it fits.
fn planned(
    props: &Props,
    facts: &[Weight],
    weights_bytes: u64,
    notes: &mut Vec<String>,
) -> Option<Choice> {
    let mut planned = props.plan.as_ref()?.choice(facts);
    // In the file's facts they may be what the graph does not make of them.
    let is_sliced = |w: &usize| matches!(facts[*w].usage, Use::Experts { .. });
    let (sliced, other) = planned.sliced.iter().copied().partition(is_sliced);
    planned.sliced = sliced;
    planned.mapped.extend::<Vec<usize>>(other);
    let pinned = planned.pinned.iter().map(|&w| facts[w].bytes);
    let experts = planned.experts.map_or(0, |e| e.bytes);
    let wanted = pinned.sum::<u64>() + planned.ring_bytes + experts;
    if wanted <= weights_bytes {
        return Some(planned);
    }
    notes.push(format!(
        "the plan wants {wanted} bytes for weights and {weights_bytes} are left of the budget: \
         shared out anew"
    ));
    None
}

/// The best use of so much memory.
fn choose(props: &Props, facts: &[Weight], weights_bytes: u64, alignment_bytes: u64) -> Choice {
    let wanted = Wanted {
        weights_bytes,
        strategies: props.strategies,
        read_bytes: u64::from(props.block_bytes),
        depth: props.depth,
        alignment_bytes,
    };
    choose_for(facts, &wanted, &props.machine)
}

/// Slots of experts are not given back. So beside them there has to be room for all that the
/// program has asked for, but for what the kept weights can give: what is lacking for that.
fn shortfall_bytes(choice: &Choice, facts: &[Weight], level: Level, coming_bytes: u64) -> u64 {
    if choice.experts.is_none() {
        return 0;
    }
    let glance = level.glance;
    let untouched = glance.asked_bytes.saturating_sub(glance.private_bytes);
    let kept = choice.pinned.iter().map(|&w| facts[w].bytes);
    let elastic: u64 = kept.filter(|bytes| *bytes >= SMALL_BYTES).sum();
    untouched.saturating_sub(coming_bytes + elastic)
}

/// Rows are looked up here and there: reading ahead of them is for nothing.
fn advise_random(address: usize, bytes: u64) {
    let page_bytes = page_bytes();
    let start = address.next_multiple_of(page_bytes);
    let end = (address + bytes as usize) / page_bytes * page_bytes;
    if start < end {
        // SAFETY: advice about whole pages of a file's mapping.
        unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_RANDOM) };
    }
}
