//! Where the weights of an evaluation were when its steps needed them.
//!
//! Only runs whose weights were fed (crate `feed`) have these: a weight access of such an
//! evaluation that no origin names was left to the page cache.

/// Where a weight, or an expert's slice of it, was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Source {
    /// Kept in memory.
    Pinned = 1,
    /// To be kept from now on: read from disk for this evaluation.
    Loaded = 2,
    /// Read ahead from disk, for this evaluation alone.
    Streamed = 3,
    /// An expert that was found in the cache.
    CacheHit = 4,
    /// An expert that was read when the router had chosen it.
    CacheMiss = 5,
    /// Left to the page cache.
    PageCache = 6,
}

impl Source {
    pub const ALL: [Source; 6] = [
        Source::Pinned,
        Source::Loaded,
        Source::Streamed,
        Source::CacheHit,
        Source::CacheMiss,
        Source::PageCache,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Source::Pinned => "pinned",
            Source::Loaded => "loaded",
            Source::Streamed => "streamed",
            Source::CacheHit => "cache_hit",
            Source::CacheMiss => "cache_miss",
            Source::PageCache => "page_cache",
        }
    }

    fn from_number(number: u64) -> Option<Source> {
        (Source::ALL.into_iter()).find(|&source| source as u64 == number)
    }
}

/// What a step got from where, and how long the computation waited for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    pub step: u32,
    /// Source of the node (`src[operand]`).
    pub operand: u8,
    /// `None`: the whole weight.
    pub expert: Option<u16>,
    pub source: Source,
    pub waited_nanos: u64,
}

/// Words of an origin at most.
pub const MAX_WORDS: usize = 2;
const NO_EXPERT: u16 = u16::MAX;
const STEP_BITS: u32 = 24;
const OPERAND_AT: u32 = STEP_BITS;
const EXPERT_AT: u32 = 32;
const SOURCE_AT: u32 = 48;
/// The time that was waited follows in a word of its own.
const HAS_WAITED: u64 = 1 << 52;

impl Origin {
    /// Appends its words; never zero, which fills what is left of a section.
    pub fn encode(&self, words: &mut Vec<u64>) {
        let word = u64::from(self.step) & ((1 << STEP_BITS) - 1)
            | u64::from(self.operand) << OPERAND_AT
            | u64::from(self.expert.unwrap_or(NO_EXPERT)) << EXPERT_AT
            | (self.source as u64) << SOURCE_AT;
        if self.waited_nanos == 0 {
            words.push(word);
        } else {
            words.extend([word | HAS_WAITED, self.waited_nanos]);
        }
    }

    fn decode(word: u64) -> Option<Origin> {
        let expert = (word >> EXPERT_AT) as u16;
        Some(Origin {
            step: (word & ((1 << STEP_BITS) - 1)) as u32,
            operand: (word >> OPERAND_AT) as u8,
            expert: (expert != NO_EXPERT).then_some(expert),
            source: Source::from_number(word >> SOURCE_AT & 0xf)?,
            waited_nanos: 0,
        })
    }
}

/// The origins of a section, by step.
pub(crate) fn decode(section: &[u64]) -> Result<Vec<Origin>, String> {
    let mut origins = Vec::new();
    let mut words = section.iter().copied().take_while(|&word| word != 0);
    while let Some(word) = words.next() {
        let mut origin = Origin::decode(word).ok_or("a weight comes from an unknown source")?;
        if word & HAS_WAITED != 0 {
            origin.waited_nanos = words.next().ok_or("the origins of weights are cut off")?;
        }
        origins.push(origin);
    }
    origins.sort_unstable();
    Ok(origins)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_read_as_they_were_written() {
        let origins = [
            Origin {
                step: 0,
                operand: 0,
                expert: None,
                source: Source::Pinned,
                waited_nanos: 0,
            },
            Origin {
                step: (1 << STEP_BITS) - 1,
                operand: u8::MAX,
                expert: Some(NO_EXPERT - 1),
                source: Source::CacheMiss,
                waited_nanos: u64::MAX,
            },
        ];
        let mut words = Vec::new();
        origins.iter().for_each(|origin| origin.encode(&mut words));
        assert_eq!(words.len(), 3);
        words.extend([0; 4]);
        assert_eq!(decode(&words).unwrap(), origins);
        assert!(decode(&words[..2]).is_err(), "its wait is missing");
        assert!(decode(&[0xf << SOURCE_AT]).is_err());
    }
}
