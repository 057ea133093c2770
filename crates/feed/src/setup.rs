//! Shares the memory out, when the first graph has shown the weights and the model's
//! own buffers are made.

use plan::predict::size;
use plan::{Choice, Machine, NamedChoice, Policy, Strategies, Use, Wanted, Weight, choose_for};

use crate::ahead::{Ahead, MAX_SLICES_IN_FLIGHT};
use crate::depth::Depth;
use crate::error::FeedError;
use crate::experts::{Experts, Layout};
use crate::faults::Faults;
use crate::files::{Cache, Method};
use crate::memory::{Refused, Region, TouchAhead, private_bytes};
use crate::pieces::{Splitting, Together};
use crate::pump::{Pump, RingPlace};
use crate::reader::Reader;
use crate::routing::Distribution;
use crate::stats::Stats;
use crate::weights::{Fate, Usage, Weights};

/// Kept free of the budget: page tables, the pages of the program and of rows that are
/// looked up, queues of the kernel.
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
    Nothing,
    /// Experts that a router is likely to choose.
    #[default]
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

/// The memory, and who fills it. Those who write to it are dropped first.
pub struct Memory {
    pub(crate) pump: Pump,
    pub(crate) experts: Option<Experts>,
    pub(crate) ring: Option<Region>,
    pub(crate) whole_ring: Option<RingPlace>,
    /// What is streamed takes at most this much of the ring at a time.
    pub(crate) max_piece_bytes: u64,
    _touch_ahead: Option<TouchAhead>,
    _pins: Option<Region>,
    _slots: Option<Region>,
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

/// Who got what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Shares {
    pub budget_bytes: u64,
    /// Private memory of the process when the first graph came: not for weights.
    pub other_bytes: u64,
    /// All weights but looked-up rows.
    pub weight_bytes: u64,
    pub pinned_bytes: u64,
    pub ring_bytes: u64,
    /// Bytes that go through the ring for each token.
    pub streamed_bytes: u64,
    pub expert_bytes: u64,
    pub expert_slots: u32,
    pub expert_pools: u32,
    /// Left to the page cache, without looked-up rows.
    pub mapped_bytes: u64,
}

impl Shares {
    /// Whether nothing but what is too small to matter is kept, streamed or cached.
    pub fn is_nothing_fed(&self) -> bool {
        let fed = [self.streamed_bytes, self.expert_bytes];
        // Small weights are kept wherever they fit; they are a hundredth of a model.
        fed == [0, 0] && self.pinned_bytes <= self.weight_bytes / 50
    }

    /// What is fed, or why nothing is and what to change.
    pub fn sentence(&self, advice: Option<&str>) -> String {
        let budget = size(self.budget_bytes);
        if !self.is_nothing_fed() {
            let mut parts = vec![format!("{} kept", size(self.pinned_bytes))];
            if self.streamed_bytes > 0 {
                let (streamed, ring) = (size(self.streamed_bytes), size(self.ring_bytes));
                parts.push(format!("{streamed} streamed through a ring of {ring}"));
            }
            if self.expert_bytes > 0 {
                let (slots, bytes) = (self.expert_slots, size(self.expert_bytes));
                parts.push(format!("experts in {slots} slots a layer ({bytes})"));
            }
            if self.mapped_bytes > 0 {
                parts.push(format!(
                    "{} left to the page cache",
                    size(self.mapped_bytes)
                ));
            }
            let mut line = format!("fed within {budget}: {}", parts.join(", "));
            if let Some(advice) = advice.filter(|_| self.mapped_bytes > self.weight_bytes / 2) {
                line.push_str(&format!("; to feed more: {advice}"));
            }
            return line;
        }
        let taken = self.other_bytes + MARGIN_BYTES;
        let mut line = format!(
            "not fed: of {budget} the program itself asks for {} and {} are kept free, so {} left \
             for {} of weights, which come through the page cache",
            size(self.other_bytes),
            size(MARGIN_BYTES),
            match self.budget_bytes.saturating_sub(taken) {
                0 => "nothing is".to_owned(),
                left => format!("only {} are", size(left)),
            },
            size(self.weight_bytes)
        );
        if let Some(advice) = advice {
            line.push_str(&format!("; to change that: {advice}"));
        }
        line
    }
}

pub(crate) fn set_up(
    props: &Props,
    weights: &mut Weights,
    groups: &[Vec<u32>],
    stats: &Stats,
    notes: &mut Vec<String>,
) -> Result<Memory, FeedError> {
    let other_bytes = private_bytes();
    let weights_bytes = props
        .budget_bytes
        .saturating_sub(other_bytes)
        .saturating_sub(MARGIN_BYTES);
    let choice = choice(props, weights, groups, weights_bytes, notes);
    let alignment = weights.files.alignment_bytes;
    let mut refused = Refused::default();
    let mut region = |bytes: u64| -> Result<Option<Region>, FeedError> {
        if bytes == 0 {
            return Ok(None);
        }
        let (region, not_granted) =
            Region::new(bytes).map_err(|cause| FeedError::Memory { bytes, cause })?;
        refused.huge_pages |= not_granted.huge_pages;
        refused.lock |= not_granted.lock;
        Ok(Some(region))
    };

    let spaces: Vec<u64> = choice
        .pinned
        .iter()
        .map(|&w| {
            let planned = weights.planned(w as u32, crate::pump::Place::Ring);
            planned.bytes.next_multiple_of(alignment.max(64))
        })
        .collect();
    let pins = region(spaces.iter().sum())?;
    if let Some(pins) = &pins {
        let mut at = 0;
        for (&weight, &bytes) in choice.pinned.iter().zip(&spaces) {
            weights.list[weight].fate = Fate::Pinned {
                address: pins.place(at, bytes),
                is_loaded: false,
            };
            at += bytes;
        }
    }
    for &weight in &choice.streamed {
        weights.list[weight].fate = Fate::Streamed;
    }
    let ring = region(choice.ring_bytes)?;
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
            let whole = |&w: &usize| weights.planned(w as u32, crate::pump::Place::Ring).bytes;
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
    if refused.huge_pages {
        notes.push("the kernel has no huge pages: reading costs more of the processor".into());
    }
    if refused.lock {
        notes.push(
            "memory could not be locked (ulimit -l): under pressure it may be swapped out".into(),
        );
    }
    let sum = |list: &[usize]| list.iter().map(|&w| weights.list[w].bytes).sum::<u64>();
    let is_read = |w: &&usize| weights.list[**w].usage != Usage::Rows;
    let mapped: Vec<usize> = choice.mapped.iter().filter(is_read).copied().collect();
    let all: Vec<usize> = (0..weights.list.len()).collect();
    let shares = Shares {
        budget_bytes: props.budget_bytes,
        other_bytes,
        weight_bytes: sum(&all.iter().filter(is_read).copied().collect::<Vec<_>>()),
        pinned_bytes: sum(&choice.pinned),
        ring_bytes: ring.as_ref().map_or(0, Region::len),
        streamed_bytes: sum(&choice.streamed),
        expert_bytes: slots.as_ref().map_or(0, Region::len),
        expert_slots: choice.experts.map_or(0, |e| e.slots),
        expert_pools: choice.experts.map_or(0, |e| e.pools),
        mapped_bytes: sum(&mapped),
    };
    notes.push(shares.sentence(props.advice.as_deref()));
    Ok(Memory {
        pump,
        experts,
        ring,
        whole_ring,
        max_piece_bytes,
        _touch_ahead: touch_ahead,
        _pins: pins,
        _slots: slots,
        shares,
    })
}

/// As the plan says, if there is one and it fits; or the best.
fn choice(
    props: &Props,
    weights: &Weights,
    groups: &[Vec<u32>],
    weights_bytes: u64,
    notes: &mut Vec<String>,
) -> Choice {
    let alignment_bytes = weights.files.alignment_bytes;
    let facts: Vec<Weight> = (0u32..)
        .zip(&weights.list)
        .map(|(number, weight)| {
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
        })
        .collect();
    if let Some(plan) = &props.plan {
        let mut planned = plan.choice(&facts);
        // In the file's facts they may be what the graph does not make of them.
        let is_sliced = |w: &usize| matches!(facts[*w].usage, Use::Experts { .. });
        let (sliced, other) = planned.sliced.iter().copied().partition(is_sliced);
        planned.sliced = sliced;
        planned.mapped.extend::<Vec<usize>>(other);
        let pinned = planned.pinned.iter().map(|&w| weights.list[w].bytes);
        let experts = planned.experts.map_or(0, |e| e.bytes);
        let wanted = pinned.sum::<u64>() + planned.ring_bytes + experts;
        if wanted <= weights_bytes {
            return planned;
        }
        notes.push(format!(
            "the plan wants {wanted} bytes for weights and {weights_bytes} are left of the budget: \
             shared out anew"
        ));
    }
    let wanted = Wanted {
        weights_bytes,
        strategies: props.strategies,
        read_bytes: u64::from(props.block_bytes),
        depth: props.depth,
        alignment_bytes,
    };
    choose_for(&facts, &wanted, &props.machine)
}

/// Rows are looked up here and there: reading ahead of them is for nothing.
fn advise_random(address: usize, bytes: u64) {
    // SAFETY: takes and answers a number.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    // AArch64 has kernels with pages of 64 KiB.
    let page_bytes = usize::try_from(page_bytes).unwrap_or(64 << 10);
    let start = address.next_multiple_of(page_bytes);
    let end = (address + bytes as usize) / page_bytes * page_bytes;
    if start < end {
        // SAFETY: advice about whole pages of a file's mapping.
        unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_RANDOM) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn it_is_said_whether_and_why_not_and_what_to_change() {
        let nothing = Shares {
            budget_bytes: 260 * MIB,
            other_bytes: 700 * MIB,
            weight_bytes: 241 * MIB,
            pinned_bytes: MIB / 2,
            mapped_bytes: 240 * MIB,
            ..Shares::default()
        };
        assert_eq!(
            nothing.sentence(Some("--ubatch-size 32 frees about 480.0 MiB")),
            "not fed: of 260.0 MiB the program itself asks for 700.0 MiB and 40.0 MiB are kept \
             free, so nothing is left for 241.0 MiB of weights, which come through the page \
             cache; to change that: --ubatch-size 32 frees about 480.0 MiB"
        );
        let little = Shares {
            other_bytes: 100 * MIB,
            pinned_bytes: 90 * MIB,
            mapped_bytes: 151 * MIB,
            ..nothing
        };
        assert_eq!(
            little.sentence(Some("--memory 400M")),
            "fed within 260.0 MiB: 90.0 MiB kept, 151.0 MiB left to the page cache; to feed more: \
             --memory 400M"
        );
        let well = Shares {
            streamed_bytes: 151 * MIB,
            ring_bytes: 48 * MIB,
            mapped_bytes: 0,
            ..little
        };
        assert_eq!(
            well.sentence(Some("--memory 400M")),
            "fed within 260.0 MiB: 90.0 MiB kept, 151.0 MiB streamed through a ring of 48.0 MiB"
        );
    }
}
