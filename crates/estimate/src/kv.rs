//! The cache of keys and values: bytes for each token, for a context, and for many sequences
//! kept in one piece or in blocks.
//!
//! - Grouped queries cache `kv_heads` keys and values; latent attention caches its latent and
//!   the rotated key, once for all heads; a window caches no more than its width; recurrent
//!   layers keep a state of f32 that does not grow.
//! - *Contiguous*: each sequence has the longest context reserved for it. *Paged*: it has
//!   whole blocks, the last partly empty, and blocks that lie wholly in a prefix that several
//!   sequences share are there once. Windowed layers share none: what their windows hold
//!   differs between sequences.
//!
//! What an engine allocates on top (padding, batches) is left to who knows that engine.

use serde::Serialize;

use crate::checked;
use crate::error::{Error, Result};
use crate::number::NumberType;
use crate::shape::{Layer, Shape};

const F32_BYTES: u64 = 4;

/// The cache of one sequence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KvSize {
    #[serde(rename = "type")]
    pub ty: &'static str,
    pub context_tokens: u64,
    /// What one more token adds while no window is full.
    pub bytes_per_token: u64,
    /// What one more token adds when all windows are.
    pub bytes_per_token_beyond_windows: u64,
    /// Keys and values at this context, windows no wider than they are.
    pub cache_bytes: u64,
    /// State of recurrent layers, whatever the context.
    pub recurrent_bytes: u64,
    /// Both.
    pub bytes: u64,
    pub layers: u64,
    pub window_layers: u64,
    pub recurrent_layers: u64,
}

/// Bytes that one token adds to the cache while no window is full.
pub fn bytes_per_token(shape: &Shape, ty: NumberType) -> Result<u64> {
    let layers = caches(shape, ty)?;
    checked::sum(
        "the cache of a token",
        layers.iter().map(|layer| layer.bytes_per_token),
    )
}

/// The cache of one sequence of `context_tokens`.
pub fn at_context(shape: &Shape, ty: NumberType, context_tokens: u64) -> Result<KvSize> {
    let context_tokens = checked::count_or_zero("the context", context_tokens)?;
    let what = "the cache";
    let layers = caches(shape, ty)?;
    let cached = || layers.iter().filter(|layer| layer.bytes_per_token > 0);
    let bytes = layers
        .iter()
        .map(|layer| checked::product(what, &[layer.bytes_per_token, layer.tokens(context_tokens)]))
        .collect::<Result<Vec<u64>>>()?;
    let cache_bytes = checked::sum(what, bytes)?;
    let recurrent_bytes = recurrent_bytes(shape)?;
    let full = cached().filter(|layer| layer.window_tokens.is_none());
    Ok(KvSize {
        ty: ty.name,
        context_tokens,
        bytes_per_token: checked::sum(what, cached().map(|layer| layer.bytes_per_token))?,
        bytes_per_token_beyond_windows: checked::sum(
            what,
            full.map(|layer| layer.bytes_per_token),
        )?,
        cache_bytes,
        recurrent_bytes,
        bytes: checked::sum(what, [cache_bytes, recurrent_bytes])?,
        layers: cached().count() as u64,
        window_layers: cached()
            .filter(|layer| layer.window_tokens.is_some())
            .count() as u64,
        recurrent_layers: shape
            .layers
            .iter()
            .filter(|l| l.recurrent.is_some())
            .count() as u64,
    })
}

/// State of all recurrent layers for one sequence.
pub fn recurrent_bytes(shape: &Shape) -> Result<u64> {
    let what = "the recurrent state";
    let states = shape.layers.iter().filter_map(|layer| layer.recurrent);
    let values = states.flat_map(|state| [state.convolution_values, state.state_values]);
    checked::product(what, &[checked::sum(what, values)?, F32_BYTES])
}

/// The cache of one layer for one token.
struct LayerCache {
    bytes_per_token: u64,
    window_tokens: Option<u64>,
}

impl LayerCache {
    fn of(layer: &Layer, ty: NumberType) -> Result<LayerCache> {
        let Some(attention) = layer.attention else {
            return Ok(LayerCache {
                bytes_per_token: 0,
                window_tokens: None,
            });
        };
        let (keys, values) = attention.cached_values()?;
        let bytes = [ty.bytes(keys)?, ty.bytes(values)?];
        Ok(LayerCache {
            bytes_per_token: checked::sum("the cache of a token", bytes)?,
            window_tokens: attention.window_tokens,
        })
    }

    fn tokens(&self, context_tokens: u64) -> u64 {
        context_tokens.min(self.window_tokens.unwrap_or(u64::MAX))
    }
}

fn caches(shape: &Shape, ty: NumberType) -> Result<Vec<LayerCache>> {
    let layers = shape.layers.iter();
    layers.map(|layer| LayerCache::of(layer, ty)).collect()
}

/// One sequence of many that are in memory together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Sequence {
    pub tokens: u64,
    /// Its first tokens are the same as those of the others of this group.
    pub prefix: Option<Prefix>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Prefix {
    pub group: u32,
    pub tokens: u64,
}

impl Sequence {
    pub fn new(tokens: u64) -> Sequence {
        Sequence {
            tokens,
            prefix: None,
        }
    }

    /// A sequence whose first tokens others have too.
    pub fn sharing(tokens: u64, group: u32, prefix_tokens: u64) -> Sequence {
        let prefix = Prefix {
            group,
            tokens: prefix_tokens,
        };
        Sequence {
            tokens,
            prefix: Some(prefix),
        }
    }
}

/// How sequences are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Placing {
    /// So many tokens reserved for each sequence.
    Contiguous { max_context_tokens: u64 },
    /// Blocks of so many tokens.
    Paged { block_tokens: u64 },
}

/// Memory of many sequences, and how much of it holds nothing.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Occupancy {
    pub placing: Placing,
    pub sequences: u64,
    /// Bytes of tokens that are there, each shared one once if the placing shares.
    pub used_bytes: u64,
    pub reserved_bytes: u64,
    pub waste_bytes: u64,
    /// Of what is reserved.
    pub waste_percent: f64,
    /// Bytes that sharing prefixes saves.
    pub shared_bytes: u64,
    /// Waste of as many sequences whose lengths are not known: all lengths up to the reserved
    /// context equally likely, or all fillings of the last block. Without windows and prefixes.
    pub expected_waste_bytes: f64,
}

/// Memory and waste of `sequences`, kept as `placing` says.
pub fn occupancy(
    shape: &Shape,
    ty: NumberType,
    sequences: &[Sequence],
    placing: Placing,
) -> Result<Occupancy> {
    check(sequences, placing)?;
    let layers = caches(shape, ty)?;
    let mut totals = Totals::default();
    for window in distinct_windows(&layers) {
        let alike = layers.iter().filter(|layer| layer.window_tokens == window);
        let bytes = checked::sum("the cache of a token", alike.map(|l| l.bytes_per_token))?;
        let tokens = match placing {
            Placing::Contiguous { max_context_tokens } => {
                contiguous_tokens(sequences, window, max_context_tokens)
            }
            Placing::Paged { block_tokens } => paged_tokens(sequences, window, block_tokens)?,
        };
        totals.add(bytes, &tokens);
    }
    let states = u128::from(recurrent_bytes(shape)?) * sequences.len() as u128;
    let narrow = |bytes: u128| {
        u64::try_from(bytes).map_err(|_| Error::TooLarge("the cache of all sequences"))
    };
    let (used, reserved) = (totals.used + states, totals.reserved + states);
    let waste = reserved.saturating_sub(used);
    let unknown_tokens = match placing {
        Placing::Contiguous { max_context_tokens } => (max_context_tokens as f64 - 1.0) / 2.0,
        Placing::Paged { block_tokens } => (block_tokens as f64 - 1.0) / 2.0,
    };
    let per_token = bytes_per_token(shape, ty)? as f64;
    Ok(Occupancy {
        placing,
        sequences: sequences.len() as u64,
        used_bytes: narrow(used)?,
        reserved_bytes: narrow(reserved)?,
        waste_bytes: narrow(waste)?,
        waste_percent: if reserved == 0 {
            0.0
        } else {
            100.0 * waste as f64 / reserved as f64
        },
        shared_bytes: narrow(totals.shared)?,
        expected_waste_bytes: unknown_tokens * sequences.len() as f64 * per_token,
    })
}

fn check(sequences: &[Sequence], placing: Placing) -> Result<()> {
    let max = match placing {
        Placing::Contiguous { max_context_tokens } => {
            checked::count("the reserved context", max_context_tokens)?
        }
        Placing::Paged { block_tokens } => {
            checked::count("the tokens of a block", block_tokens)?;
            checked::MAX_COUNT
        }
    };
    for sequence in sequences {
        if sequence.tokens > max {
            return Err(Error::Absurd {
                what: "the length of a sequence",
                value: sequence.tokens.to_string(),
                wanted: "it must not be more than the reserved context; reserve more",
            });
        }
        if sequence
            .prefix
            .is_some_and(|prefix| prefix.tokens > sequence.tokens)
        {
            return Err(Error::Absurd {
                what: "the shared prefix of a sequence",
                value: sequence
                    .prefix
                    .map_or(0, |prefix| prefix.tokens)
                    .to_string(),
                wanted: "it must not be longer than the sequence",
            });
        }
    }
    Ok(())
}

#[derive(Default)]
struct Totals {
    used: u128,
    reserved: u128,
    shared: u128,
}

struct Tokens {
    used: u128,
    reserved: u128,
    shared: u128,
}

impl Totals {
    fn add(&mut self, bytes_per_token: u64, tokens: &Tokens) {
        let bytes = |tokens: u128| tokens.saturating_mul(u128::from(bytes_per_token));
        self.used = self.used.saturating_add(bytes(tokens.used));
        self.reserved = self.reserved.saturating_add(bytes(tokens.reserved));
        self.shared = self.shared.saturating_add(bytes(tokens.shared));
    }
}

fn distinct_windows(layers: &[LayerCache]) -> Vec<Option<u64>> {
    let mut windows: Vec<_> = layers.iter().map(|layer| layer.window_tokens).collect();
    windows.sort_unstable();
    windows.dedup();
    windows
}

fn contiguous_tokens(sequences: &[Sequence], window: Option<u64>, max: u64) -> Tokens {
    let at_most = window.unwrap_or(u64::MAX);
    let used = sequences
        .iter()
        .map(|s| u128::from(s.tokens.min(at_most)))
        .sum();
    Tokens {
        used,
        reserved: u128::from(max.min(at_most)) * sequences.len() as u128,
        shared: 0,
    }
}

fn paged_tokens(sequences: &[Sequence], window: Option<u64>, block: u64) -> Result<Tokens> {
    let at_most = window.unwrap_or(u64::MAX);
    let mut tokens = Tokens {
        used: 0,
        reserved: 0,
        shared: 0,
    };
    for sequence in sequences {
        let held = sequence.tokens.min(at_most);
        tokens.used += u128::from(held);
        tokens.reserved += u128::from(held.div_ceil(block)) * u128::from(block);
    }
    if window.is_some() {
        return Ok(tokens);
    }
    for (count, prefix_tokens) in prefixes(sequences) {
        // The block in which the prefix ends is copied by each, as it writes on in it.
        let whole = u128::from(prefix_tokens / block) * u128::from(block);
        let saved = whole * (count - 1);
        tokens.used -= saved;
        tokens.reserved -= saved;
        tokens.shared += saved;
    }
    Ok(tokens)
}

/// Members and shared tokens of each group: as many as all its members share.
fn prefixes(sequences: &[Sequence]) -> Vec<(u128, u64)> {
    let mut groups: Vec<Prefix> = sequences.iter().filter_map(|s| s.prefix).collect();
    groups.sort_unstable_by_key(|prefix| prefix.group);
    groups
        .chunk_by(|a, b| a.group == b.group)
        .map(|group| {
            let shared = group.iter().map(|prefix| prefix.tokens).min().unwrap_or(0);
            (group.len() as u128, shared)
        })
        .collect()
}
