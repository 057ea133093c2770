//! Kept weights whose memory can be had back at any moment, by any thread.
//!
//! 1. A weight that is to be kept gets a place ([`Elastic::keep`]), is read into it, and is
//!    *kept* from then on ([`Elastic::loaded`]).
//! 2. When others need the room ([`Elastic::make_room`] before a graph, [`Watch`] in between and
//!    meanwhile), its pages go back to the kernel, and in their place the same addresses show the
//!    file. Who computes with it just then reads on, through the page cache: nobody has to be
//!    asked, and no tensor has to be pointed elsewhere first.
//! 3. Before the next evaluation the feeder learns of it ([`Elastic::take_given`]) and streams
//!    the weight again. Its address stays reserved, because views in other graphs may point there.
//! 4. When the memory is free again, it is read into fresh pages, which replace the file's at
//!    the old address at once.
//!
//! What is still being read is never given back: the disk writes to it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::balance::{Asked, Claims, turn_of};
use crate::files::Files;
use crate::memory::{Refused, Region, page_bytes, resident_bytes};
use crate::pump::{Planned, be_first};
use crate::stats::Stats;
use crate::usage::{Glance, Level, Meter};

/// How often the watch takes a glance. Memory is touched for the first time at a few GB/s, so
/// that in this time less than the margin comes.
const GLANCE_EVERY: Duration = Duration::from_millis(3);
/// What the kernel says of the group is believed for so long if a glance shows nothing new.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Changes below this are nothing new.
const NOISE_BYTES: u64 = 512 << 10;
/// Smaller weights are kept with others in one place, and not given back.
pub const MIN_BYTES: u64 = 64 << 10;
/// Larger weights are given back only when smaller ones are not enough.
const LARGE_BYTES: u64 = 32 << 20;

pub struct Elastic {
    meter: Arc<dyn Meter>,
    files: Arc<Files>,
    pub limit_bytes: u64,
    stats: Arc<Stats>,
    state: Mutex<State>,
}

/// What is kept in one place: a weight, or of one that comes in pieces the piece that
/// starts at this byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub weight: u32,
    pub part: Option<u64>,
}

impl Key {
    pub fn of(weight: u32) -> Key {
        Key { weight, part: None }
    }

    /// Pieces before whole weights, which save more.
    fn turn(self) -> (bool, u32, Reverse<Option<u64>>) {
        (
            self.part.is_none(),
            turn_of(self.weight),
            Reverse(self.part),
        )
    }
}

#[derive(Default)]
struct State {
    pins: BTreeMap<Key, Pin>,
    /// Places of weights that are never given back: addresses, and bytes that were there.
    fixed: Vec<(Range<usize>, u64)>,
    asked: Asked,
    seen: Option<Seen>,
}

/// What was looked up, which is not free.
#[derive(Clone, Copy)]
struct Seen {
    at: Instant,
    level: Level,
    /// Of it, pages of places of weights.
    resident_bytes: u64,
}

struct Pin {
    /// Where the read starts in the region.
    inside: usize,
    bytes: u64,
    file: u32,
    /// Of the region's first byte.
    file_offset: u64,
    /// Where it is while it is being read.
    loading: Option<Region>,
    /// Where it is for good; what is there is said by `is_kept`.
    home: Option<Region>,
    is_kept: bool,
    /// Given back, and the feeder does not know yet.
    is_news: bool,
}

impl Elastic {
    pub fn new(
        meter: Arc<dyn Meter>,
        files: Arc<Files>,
        budget_bytes: u64,
        stats: Arc<Stats>,
    ) -> Elastic {
        let limit = meter.limit_bytes().unwrap_or(budget_bytes);
        Elastic {
            meter,
            files,
            limit_bytes: limit.min(budget_bytes),
            stats,
            state: Mutex::default(),
        }
    }

    /// What is used now, before there is any place for weights.
    pub fn level(&self) -> Level {
        self.meter.level(0, 0)
    }

    /// A region that stays.
    pub fn add_fixed(&self, region: &Region) {
        self.state().fixed.push((addresses(region), 0));
    }

    /// It does not stay, after all.
    pub fn remove_fixed(&self, region: &Region) {
        let addresses = addresses(region);
        self.state().fixed.retain(|fixed| fixed.0 != addresses);
    }

    /// No pieces are kept any more; none is being read.
    pub fn remove_parts(&self) {
        self.state().pins.retain(|key, _| key.part.is_none());
    }

    /// A place for what is to be kept: the address to read it to.
    pub fn keep(&self, key: Key, planned: &Planned) -> io::Result<(usize, Refused)> {
        let page_bytes = page_bytes() as u64;
        let inside = planned.offset % page_bytes;
        let (region, refused) = Region::new(inside + planned.bytes)?;
        let address = region.place(inside, planned.bytes);
        let mut state = self.state();
        let pin = state.pins.entry(key).or_insert(Pin {
            inside: inside as usize,
            bytes: region.len(),
            file: planned.file,
            file_offset: planned.offset - inside,
            loading: None,
            home: None,
            is_kept: false,
            is_news: false,
        });
        pin.loading = Some(region);
        Ok((address, refused))
    }

    /// It was read: the address where it is from now on. `None` if it has no place here.
    pub fn loaded(&self, key: Key) -> io::Result<Option<usize>> {
        let mut state = self.state();
        let Some(pin) = state.pins.get_mut(&key) else {
            return Ok(None);
        };
        if let Some(region) = pin.loading.take() {
            match &pin.home {
                Some(home) => home.replace_with(region)?,
                None => pin.home = Some(region),
            }
            (pin.is_kept, pin.is_news) = (true, false);
        }
        let inside = pin.inside as u64;
        Ok(pin.home.as_ref().map(|home| home.place(inside, 0)))
    }

    /// Bytes that it takes when it is kept.
    pub fn bytes_of(planned: &Planned) -> u64 {
        let page_bytes = page_bytes() as u64;
        let inside = planned.offset % page_bytes;
        (inside + planned.bytes).next_multiple_of(page_bytes)
    }

    /// What was given back since the last call.
    pub fn take_given(&self) -> Vec<Key> {
        let mut state = self.state();
        let mut given = Vec::new();
        state.pins.retain(|&key, pin| {
            if !std::mem::take(&mut pin.is_news) {
                return true;
            }
            given.push(key);
            // To a piece only tensors of ours point, and anew for each evaluation.
            key.part.is_none()
        });
        given
    }

    /// Before an evaluation that touches so many bytes for the first time. What is
    /// lacking for that although all was given back that can be.
    pub fn make_room(&self, coming_bytes: u64) -> u64 {
        let mut state = self.state();
        let claims = self.claims(&mut state);
        let used = state.seen.map_or(0, |seen| seen.level.used_bytes);
        self.stats.used(used);
        let lack = Claims {
            coming_bytes: claims.coming_bytes.max(coming_bytes),
            ..claims
        };
        let given = self.give(&mut state, lack.lack_bytes());
        state.asked.evaluated(claims.others_bytes);
        let after = Claims {
            coming_bytes,
            own_bytes: claims.own_bytes - given,
            ..claims
        };
        match after.exceeds() {
            true => after.lack_bytes(),
            false => 0,
        }
    }

    /// What may be kept in addition, when it was calm for a while, before an evaluation that
    /// touches so many bytes for the first time.
    pub fn room_bytes(&self, coming_bytes: u64) -> u64 {
        let mut state = self.state();
        if !state.asked.is_calm() {
            return 0;
        }
        let mut claims = self.claims(&mut state);
        claims.coming_bytes = claims.coming_bytes.max(coming_bytes);
        claims.room_bytes()
    }

    /// Whether so much could be taken for something else if all were given back that can be.
    pub fn could_hold(&self, bytes: u64, coming_bytes: u64) -> bool {
        let mut state = self.state();
        let claims = self.claims(&mut state);
        let kept = state.pins.values().filter(|pin| pin.is_kept);
        let kept_bytes: u64 = kept.map(|pin| pin.bytes).sum();
        let without = Claims {
            coming_bytes: claims.coming_bytes.max(coming_bytes),
            own_bytes: claims.own_bytes - kept_bytes + bytes,
            ..claims
        };
        without.lack_bytes() == 0
    }

    /// Whether nothing was asked for or given back for a while.
    pub fn is_calm(&self) -> bool {
        self.state().asked.is_calm()
    }

    /// A glance at any time.
    fn watch(&self) {
        let mut state = self.state();
        let lack = self.claims(&mut state).lack_bytes();
        self.give(&mut state, lack);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn claims(&self, state: &mut State) -> Claims {
        let own_bytes = state.own_bytes();
        let glance = self.meter.glance(own_bytes);
        let known = state
            .seen
            .filter(|seen| seen.at.elapsed() < LOOK_EVERY && seen.level.glance.is_about(glance));
        let seen = known.unwrap_or_else(|| self.look(state, own_bytes));
        state.seen = Some(seen);
        let others_bytes = seen.level.used_bytes.saturating_sub(seen.resident_bytes);
        // By the program: our own places are asked for, too.
        let asked_bytes = glance.asked_bytes.saturating_sub(own_bytes);
        Claims {
            limit_bytes: self.limit_bytes,
            others_bytes,
            coming_bytes: state.asked.coming_bytes(asked_bytes, others_bytes),
            own_bytes,
        }
    }

    /// The kernel is asked twice, for what is used and for what of that is ours. While weights
    /// are being read these belong together only if nothing came in between.
    fn look(&self, state: &mut State, own_bytes: u64) -> Seen {
        const MAX_LOOKS: u32 = 4;
        let mut looks = 0;
        let mut before_bytes = state.resident_bytes();
        loop {
            looks += 1;
            let level = self.meter.level(before_bytes, own_bytes);
            let resident_bytes = state.resident_bytes();
            if resident_bytes.abs_diff(before_bytes) < NOISE_BYTES || looks == MAX_LOOKS {
                return Seen {
                    at: Instant::now(),
                    level,
                    // What came since counts as others': too much is given back rather than
                    // too little.
                    resident_bytes: before_bytes,
                };
            }
            before_bytes = resident_bytes;
        }
    }

    /// Gives so many bytes back, or a little more, or all that there are.
    fn give(&self, state: &mut State, lack_bytes: u64) -> u64 {
        if lack_bytes == 0 {
            return 0;
        }
        let kept = state.pins.iter_mut().filter(|(_, pin)| pin.is_kept);
        let mut kept: Vec<(_, &mut Pin)> = kept.map(|(key, pin)| (key.turn(), pin)).collect();
        kept.sort_unstable_by_key(|(turn, pin)| (pin.bytes > LARGE_BYTES.max(lack_bytes), *turn));
        let mut given = 0;
        for (_, pin) in kept {
            if given >= lack_bytes {
                break;
            }
            let home = pin.home.as_ref().expect("kept somewhere");
            let file = self.files.fd(pin.file);
            if home.give_back(file, pin.file_offset).is_ok() {
                (pin.is_kept, pin.is_news) = (false, true);
                given += pin.bytes;
            }
        }
        if given > 0 {
            state.asked.has_given();
            self.stats.given(given);
            state.seen = None;
        }
        given
    }
}

impl Glance {
    fn is_about(self, other: Glance) -> bool {
        self.private_bytes.abs_diff(other.private_bytes) < NOISE_BYTES
            && self.asked_bytes.abs_diff(other.asked_bytes) < NOISE_BYTES
    }
}

impl State {
    /// All that they take, or will: reads fill a ring faster than a watch looks.
    fn own_bytes(&self) -> u64 {
        let fixed = self.fixed.iter().map(|fixed| fixed.0.len() as u64);
        let pins = self.pins.values();
        let pins = pins.filter(|pin| pin.is_kept || pin.loading.is_some());
        fixed.sum::<u64>() + pins.map(|pin| pin.bytes).sum::<u64>()
    }

    /// Of these, what is there.
    fn resident_bytes(&mut self) -> u64 {
        let mut bytes = 0;
        for (addresses, resident) in &mut self.fixed {
            if *resident < addresses.len() as u64 {
                *resident = resident_bytes(addresses.clone()).unwrap_or(0);
            }
            bytes += *resident;
        }
        let of_pin = |pin: &Pin| match (&pin.loading, pin.is_kept) {
            (Some(loading), _) => loading.resident_bytes(),
            (None, true) => pin.bytes,
            (None, false) => 0,
        };
        bytes + self.pins.values().map(of_pin).sum::<u64>()
    }
}

fn addresses(region: &Region) -> Range<usize> {
    let start = region.place(0, region.len());
    start..start + region.len() as usize
}

/// A thread that looks all the time whether others need room; ends with this.
pub struct Watch {
    is_over: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Without it room is made before graphs only.
    pub fn start(elastic: Arc<Elastic>) -> Watch {
        let is_over = Arc::new((Mutex::new(false), Condvar::new()));
        let seen = is_over.clone();
        let watch = move || {
            be_first();
            let (lock, changed) = &*seen;
            let mut is_over = lock.lock().unwrap_or_else(PoisonError::into_inner);
            while !*is_over {
                let waited = changed.wait_timeout(is_over, GLANCE_EVERY);
                is_over = waited.unwrap_or_else(PoisonError::into_inner).0;
                elastic.watch();
            }
        };
        let builder = std::thread::Builder::new()
            .name("tensorscope-room".into())
            .stack_size(128 << 10);
        Watch {
            is_over,
            thread: builder.spawn(watch).ok(),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let (lock, changed) = &*self.is_over;
        *lock.lock().unwrap_or_else(PoisonError::into_inner) = true;
        changed.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
