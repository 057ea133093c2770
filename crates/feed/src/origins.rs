//! Where the weights of an evaluation came from, for whoever records it.

use std::time::Duration;

use trace::origin::{Origin, Source};

/// `src[0]` of a `MUL_MAT_ID`.
const EXPERTS_OPERAND: u8 = 0;

#[derive(Default)]
pub struct Origins {
    list: Vec<Origin>,
}

impl Origins {
    pub fn clear(&mut self) {
        self.list.clear();
    }

    /// A step uses a whole weight, or the next piece of one.
    pub fn whole(&mut self, step: u32, operand: u8, source: Source, waited: Duration) {
        let waited_nanos = waited.as_nanos() as u64;
        let last = self.list.last_mut();
        if let Some(last) = last.filter(|last| (last.step, last.operand) == (step, operand))
            && last.expert.is_none()
        {
            last.waited_nanos += waited_nanos;
            return;
        }
        self.list.push(Origin {
            step,
            operand,
            expert: None,
            source,
            waited_nanos,
        });
    }

    /// A step uses `experts`, of which those in `missing` are being read. Answers where that
    /// is noted, for [`Origins::waited`].
    pub fn experts(&mut self, step: u32, experts: &[u32], missing: &[u32]) -> usize {
        let first = self.list.len();
        self.list.extend(experts.iter().map(|expert| Origin {
            step,
            operand: EXPERTS_OPERAND,
            expert: u16::try_from(*expert).ok(),
            source: match missing.contains(expert) {
                true => Source::CacheMiss,
                false => Source::CacheHit,
            },
            waited_nanos: 0,
        }));
        first
    }

    /// The computation waited for experts that a step uses, which are noted from `first` on:
    /// for those that were missing, if any.
    pub fn waited(&mut self, first: usize, waited: Duration) {
        let step = self.list.get(first).map(|origin| origin.step);
        let of_step = |origin: &&mut Origin| Some(origin.step) == step && origin.expert.is_some();
        let mut found = self.list[first..].iter_mut().take_while(of_step);
        let first = found.next();
        let missing = match &first {
            Some(origin) if origin.source == Source::CacheMiss => None,
            _ => found.find(|origin| origin.source == Source::CacheMiss),
        };
        if let Some(origin) = missing.or(first) {
            origin.waited_nanos += waited.as_nanos() as u64;
        }
    }

    pub fn encode(&self, notes: &mut Vec<u64>) {
        self.list.iter().for_each(|origin| origin.encode(notes));
    }
}
