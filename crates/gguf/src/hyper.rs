//! The numbers that define a model, from its metadata.
//!
//! Defaults follow llama.cpp's loader, because the question is always what
//! llama.cpp will do: a missing `head_count_kv` means `head_count`, a missing
//! `key_length` means `embedding_length / head_count`. Numbers may be given once
//! or once a layer ([`PerLayer`]). They are claims: nothing here loops over or
//! allocates by them.

use crate::metadata::{Metadata, Value};

/// What the metadata says about a model's shape.
#[derive(Debug, Clone, PartialEq)]
pub struct Hyperparameters {
    pub architecture: Box<str>,
    pub name: Option<Box<str>>,
    pub layer_count: u64,
    pub context_length: Option<u64>,
    pub embedding_length: u64,
    /// Tokens in the vocabulary, as metadata or tokenizer say it.
    pub vocabulary: Option<u64>,
    pub tokenizer_model: Option<Box<str>>,
    pub expert_count: u64,
    pub sliding_window: Option<u64>,
    /// Layers at the end that predict further tokens (multi-token prediction).
    pub nextn_layers: u64,
    /// Layers at the end that use the KV cache of earlier ones.
    pub shared_kv_layers: u64,
    /// False for encoders, which produce embeddings and no tokens.
    pub is_causal: bool,
    /// Width of the compressed KV of multi-head latent attention.
    pub kv_lora_rank: Option<u64>,
    head_count: PerLayer,
    head_count_kv: PerLayer,
    feed_forward_length: PerLayer,
    expert_feed_forward_length: PerLayer,
    expert_used_count: PerLayer,
    window_pattern: WindowPattern,
    key_length: HeadLength,
    value_length: HeadLength,
    is_mla: bool,
}

/// A number that is the same for all layers, or one for each.
#[derive(Debug, Clone, PartialEq)]
pub enum PerLayer {
    Missing,
    Same(u64),
    Each(Box<[u64]>),
}

impl PerLayer {
    pub fn at(&self, layer: u32) -> Option<u64> {
        match self {
            PerLayer::Missing => None,
            PerLayer::Same(value) => Some(*value),
            PerLayer::Each(values) => values.get(layer as usize).copied(),
        }
    }

    /// The largest of all layers.
    pub fn max(&self) -> Option<u64> {
        match self {
            PerLayer::Missing => None,
            PerLayer::Same(value) => Some(*value),
            PerLayer::Each(values) => values.iter().max().copied(),
        }
    }

    fn read(metadata: &Metadata, key: &str) -> PerLayer {
        match metadata.get(key) {
            Some(Value::Array(array)) => match &array.elements {
                Some(elements) => {
                    PerLayer::Each(elements.iter().map(|v| v.as_u64().unwrap_or(0)).collect())
                }
                None => PerLayer::Missing,
            },
            Some(value) => value.as_u64().map_or(PerLayer::Missing, PerLayer::Same),
            None => PerLayer::Missing,
        }
    }
}

/// Elements of one head, which may differ in sliding-window layers.
#[derive(Debug, Clone, Copy, PartialEq)]
struct HeadLength {
    full: u64,
    window: u64,
}

/// Which layers attend to a sliding window only.
#[derive(Debug, Clone, PartialEq)]
enum WindowPattern {
    None,
    /// `period - 1` windowed layers, then a full one.
    FullLast(u64),
    /// A full layer, then `period - 1` windowed ones.
    FullFirst(u64),
    Each(Box<[bool]>),
}

/// Periods that llama.cpp assumes where the metadata gives a window only. An
/// architecture that is not listed gets full attention, as in llama.cpp.
const DEFAULT_PATTERNS: &[(&str, WindowPattern)] = &[
    ("afmoe", WindowPattern::FullLast(4)),
    ("cohere2", WindowPattern::FullLast(4)),
    ("cohere2moe", WindowPattern::FullFirst(4)),
    ("exaone4", WindowPattern::FullLast(4)),
    ("exaone-moe", WindowPattern::FullLast(4)),
    ("gemma2", WindowPattern::FullLast(2)),
    ("gemma3", WindowPattern::FullLast(6)),
    ("gemma3n", WindowPattern::FullLast(5)),
    ("gemma-embedding", WindowPattern::FullLast(6)),
    ("gpt-oss", WindowPattern::FullLast(2)),
    ("laguna", WindowPattern::FullFirst(4)),
    ("llama4", WindowPattern::FullLast(4)),
    ("mellum", WindowPattern::FullLast(4)),
    ("modern-bert", WindowPattern::FullFirst(3)),
    ("olmo2", WindowPattern::FullLast(4)),
    ("plamo3", WindowPattern::FullLast(8)),
    ("smallthinker", WindowPattern::FullFirst(4)),
];

impl Hyperparameters {
    pub fn new(metadata: &Metadata) -> Hyperparameters {
        let architecture = metadata.str("general.architecture").unwrap_or("unknown");
        let key = |name: &str| format!("{architecture}.{name}");
        let number = |name: &str| metadata.u64(&key(name));
        let per_layer = |name: &str| PerLayer::read(metadata, &key(name));
        let embedding_length = number("embedding_length").unwrap_or(0);
        let head_count = per_layer("attention.head_count");
        let head_count_kv = match per_layer("attention.head_count_kv") {
            PerLayer::Missing => head_count.clone(),
            given => given,
        };
        let default_length = match head_count.at(0) {
            Some(heads) if heads > 0 => embedding_length / heads,
            _ => 0,
        };
        let length = |name: &str| {
            let full = number(name).unwrap_or(default_length);
            let window = number(&format!("{name}_swa")).unwrap_or(full);
            HeadLength { full, window }
        };
        let tokens = metadata
            .get("tokenizer.ggml.tokens")
            .and_then(Value::as_array)
            .map(|array| array.count);
        Hyperparameters {
            architecture: architecture.into(),
            name: metadata.str("general.name").map(Into::into),
            layer_count: number("block_count").unwrap_or(0),
            context_length: number("context_length"),
            embedding_length,
            vocabulary: number("vocab_size").or(tokens),
            tokenizer_model: metadata.str("tokenizer.ggml.model").map(Into::into),
            expert_count: number("expert_count").unwrap_or(0),
            sliding_window: number("attention.sliding_window").filter(|&n| n > 0),
            nextn_layers: number("nextn_predict_layers").unwrap_or(0),
            shared_kv_layers: number("attention.shared_kv_layers").unwrap_or(0),
            is_causal: number("attention.causal") != Some(0),
            kv_lora_rank: number("attention.kv_lora_rank"),
            feed_forward_length: per_layer("feed_forward_length"),
            expert_feed_forward_length: per_layer("expert_feed_forward_length"),
            expert_used_count: per_layer("expert_used_count"),
            window_pattern: window_pattern(metadata, architecture),
            key_length: length("attention.key_length"),
            value_length: length("attention.value_length"),
            is_mla: number("attention.key_length_mla").is_some_and(|n| n > 0)
                && number("attention.value_length_mla").is_some_and(|n| n > 0),
            head_count,
            head_count_kv,
        }
    }

    /// Query heads of a layer.
    pub fn head_count(&self, layer: u32) -> u64 {
        self.head_count.at(layer).unwrap_or(0)
    }

    /// Key and value heads of a layer; 0 where it has no attention.
    pub fn head_count_kv(&self, layer: u32) -> u64 {
        self.head_count_kv.at(layer).unwrap_or(0)
    }

    /// Elements of one key head.
    pub fn key_length(&self, layer: u32) -> u64 {
        if self.window(layer).is_some() {
            self.key_length.window
        } else {
            self.key_length.full
        }
    }

    /// Elements of one value head.
    pub fn value_length(&self, layer: u32) -> u64 {
        if self.window(layer).is_some() {
            self.value_length.window
        } else {
            self.value_length.full
        }
    }

    /// Multi-head latent attention with a compressed cache that has no V.
    pub fn is_mla(&self) -> bool {
        self.is_mla
    }

    pub fn feed_forward_length(&self, layer: u32) -> Option<u64> {
        self.feed_forward_length.at(layer)
    }

    pub fn expert_feed_forward_length(&self, layer: u32) -> Option<u64> {
        self.expert_feed_forward_length.at(layer)
    }

    /// Experts that one token uses in a layer.
    pub fn expert_used_count(&self, layer: u32) -> u64 {
        self.expert_used_count.at(layer).unwrap_or(0)
    }

    /// Most experts that one token uses in any layer.
    pub fn expert_used_count_max(&self) -> u64 {
        self.expert_used_count.max().unwrap_or(0)
    }

    pub fn head_count_max(&self) -> u64 {
        self.head_count.max().unwrap_or(0)
    }

    pub fn head_count_kv_max(&self) -> u64 {
        self.head_count_kv.max().unwrap_or(0)
    }

    pub fn feed_forward_length_max(&self) -> Option<u64> {
        self.feed_forward_length.max()
    }

    pub fn expert_feed_forward_length_max(&self) -> Option<u64> {
        self.expert_feed_forward_length.max()
    }

    /// Tokens that a layer attends to, or `None` when to all.
    pub fn window(&self, layer: u32) -> Option<u64> {
        let layer_number = u64::from(layer);
        let windowed = match &self.window_pattern {
            WindowPattern::None => false,
            WindowPattern::FullLast(period) => *period == 0 || layer_number % period < period - 1,
            WindowPattern::FullFirst(period) => {
                *period == 0 || !layer_number.is_multiple_of(*period)
            }
            WindowPattern::Each(layers) => layers.get(layer as usize) == Some(&true),
        };
        self.sliding_window.filter(|_| windowed)
    }

    /// Whether a layer is one of those that predict further tokens.
    pub fn is_nextn_layer(&self, layer: u32) -> bool {
        self.nextn_layers > 0
            && u64::from(layer) >= self.layer_count.saturating_sub(self.nextn_layers)
    }
}

fn window_pattern(metadata: &Metadata, architecture: &str) -> WindowPattern {
    let default = DEFAULT_PATTERNS
        .iter()
        .find(|(name, _)| *name == architecture)
        .map(|(_, pattern)| pattern.clone());
    match metadata.get(&format!("{architecture}.attention.sliding_window_pattern")) {
        Some(Value::Array(array)) => match &array.elements {
            Some(layers) => {
                WindowPattern::Each(layers.iter().map(|v| v.as_u64() == Some(1)).collect())
            }
            None => WindowPattern::None,
        },
        Some(value) => match (value.as_u64(), default) {
            (Some(period), Some(WindowPattern::FullFirst(_))) => WindowPattern::FullFirst(period),
            (Some(period), _) => WindowPattern::FullLast(period),
            (None, default) => default.unwrap_or(WindowPattern::None),
        },
        None => default.unwrap_or(WindowPattern::None),
    }
}
