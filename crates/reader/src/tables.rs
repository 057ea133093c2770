//! What the tables hold: one constant per table, a line of meaning per column.
//!
//! Everything else follows from these constants: the columns of CSV and JSON lines, the
//! Arrow schema of Parquet, how the ingest encodes a column, and `docs/trace-schema.md`.
//!
//! Integers are signed, 32 or 64 bits, because pandas and Spark know no others
//! that survive a null. Texts are dictionaries.

mod device;
mod kernel;

pub use device::{COPIES, DEVICES, KERNELS};
pub use kernel::{COUNTED, FAULTS, IMPORTED, IO, MACHINE, OFF_CPU, RESIDENCY, SAMPLES};

/// Version of the tables, in the metadata of every file. A change of meaning
/// needs a new one; a new column does not.
pub const VERSION: &str = "1";
/// Keys of a file's metadata that say what it is.
pub const KEY_TABLE: &str = "tensorscope.table";
pub const KEY_VERSION: &str = "tensorscope.version";
/// Bytes of the log that the file was made from: tells stale tables.
pub const KEY_LOG_BYTES: &str = "tensorscope.log_bytes";

/// A table and its columns.
#[derive(Debug)]
pub struct Table {
    pub name: &'static str,
    /// What a row is.
    pub row: &'static str,
    /// Columns that the rows are sorted by.
    pub sorted_by: &'static str,
    pub columns: &'static [Column],
}

#[derive(Debug)]
pub struct Column {
    pub name: &'static str,
    pub ty: ColumnType,
    pub nulls: Nulls,
    pub coding: Coding,
    pub doc: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnType {
    Int32,
    Int64,
    Float32,
    Text,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nulls {
    Never,
    Allowed,
}

/// How the values lie in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// Few different values: numbered per row group.
    Dictionary,
    /// Integers that grow or vary a little.
    Delta,
    /// As they are.
    Plain,
}

impl Table {
    /// Position of a column; the name must exist.
    pub fn position(&self, column: &str) -> usize {
        let at = self.columns.iter().position(|c| c.name == column);
        at.unwrap_or_else(|| panic!("{} has no column {column}", self.name))
    }

    pub fn column_names(&self) -> impl Iterator<Item = &'static str> {
        self.columns.iter().map(|column| column.name)
    }
}

impl ColumnType {
    pub fn name(self) -> &'static str {
        match self {
            ColumnType::Int32 => "int32",
            ColumnType::Int64 => "int64",
            ColumnType::Float32 => "float32",
            ColumnType::Text => "text",
        }
    }
}

/// All tables, in the order of the documentation.
pub const TABLES: [&Table; 19] = [
    &RUN, &TENSORS, &EVALS, &TOKENS, &NODES, &ACCESSES, &ROUTING, &TRAFFIC, &DEVICES, &KERNELS,
    &COPIES, &FAULTS, &IO, &RESIDENCY, &SAMPLES, &OFF_CPU, &COUNTED, &MACHINE, &IMPORTED,
];

pub fn table(name: &str) -> Option<&'static Table> {
    TABLES.into_iter().find(|table| table.name == name)
}

const fn int32(name: &'static str, doc: &'static str) -> Column {
    column(
        name,
        ColumnType::Int32,
        Nulls::Never,
        Coding::Dictionary,
        doc,
    )
}

const fn int32_or_null(name: &'static str, doc: &'static str) -> Column {
    column(
        name,
        ColumnType::Int32,
        Nulls::Allowed,
        Coding::Dictionary,
        doc,
    )
}

const fn int64(name: &'static str, doc: &'static str) -> Column {
    column(
        name,
        ColumnType::Int64,
        Nulls::Never,
        Coding::Dictionary,
        doc,
    )
}

const fn int64_or_null(name: &'static str, doc: &'static str) -> Column {
    column(
        name,
        ColumnType::Int64,
        Nulls::Allowed,
        Coding::Dictionary,
        doc,
    )
}

const fn growing(name: &'static str, doc: &'static str) -> Column {
    column(name, ColumnType::Int64, Nulls::Never, Coding::Delta, doc)
}

const fn growing_or_null(name: &'static str, doc: &'static str) -> Column {
    column(name, ColumnType::Int64, Nulls::Allowed, Coding::Delta, doc)
}

const fn text(name: &'static str, doc: &'static str) -> Column {
    column(
        name,
        ColumnType::Text,
        Nulls::Never,
        Coding::Dictionary,
        doc,
    )
}

const fn text_or_null(name: &'static str, doc: &'static str) -> Column {
    column(
        name,
        ColumnType::Text,
        Nulls::Allowed,
        Coding::Dictionary,
        doc,
    )
}

const fn float_or_null(name: &'static str, doc: &'static str) -> Column {
    column(
        name,
        ColumnType::Float32,
        Nulls::Allowed,
        Coding::Plain,
        doc,
    )
}

const fn column(
    name: &'static str,
    ty: ColumnType,
    nulls: Nulls,
    coding: Coding,
    doc: &'static str,
) -> Column {
    Column {
        name,
        ty,
        nulls,
        coding,
        doc,
    }
}

pub const RUN: Table = Table {
    name: "run",
    row: "The run: always one row.",
    sorted_by: "",
    columns: &[
        text_or_null("started_utc", "when recording began, RFC 3339"),
        text_or_null(
            "status",
            "`complete`, `recording` or `stopped early`, as `metadata.json` says",
        ),
        text_or_null("model", "name of the model"),
        text_or_null("architecture", "as the model's file says"),
        text_or_null("model_path", "its (first) file"),
        int64_or_null("model_bytes", "of all its files"),
        int64_or_null("parameters", "elements of all its tensors"),
        int32_or_null("layers", "of the model"),
        int32_or_null("experts", "per layer; 0 for a dense model"),
        int32_or_null("experts_used", "per token and layer"),
        int32_or_null("threads", "that compute single tokens"),
        text_or_null("machine", "host name"),
        text_or_null("tensorscope_version", "of the program that recorded"),
        int64("evals", "rows of table `evals`"),
        int64("accesses", "rows of table `accesses`"),
        int64(
            "partial_evals",
            "cut off by the end of the process; not in any table",
        ),
        int64(
            "corrupt_records",
            "damaged records of the log; not in any table",
        ),
        int64("lost_evals", "that ran and were not recorded"),
    ],
};

pub const TENSORS: Table = Table {
    name: "tensors",
    row: "A root tensor: a weight, a KV cache, an input or an activation.",
    sorted_by: "tensor",
    columns: &[
        int32("tensor", "its number in this run"),
        text("name", "as ggml names it"),
        text("kind", "`weight`, `kv_cache`, `input` or `activation`"),
        text_or_null(
            "component",
            "of a weight: `attention`, `ffn`, `expert`, `router`, `norm`, `embedding`, `output`, …",
        ),
        text_or_null(
            "role",
            "of a weight: `q`, `k`, `v`, `o`, `gate`, `up`, `down`, …",
        ),
        int32_or_null("layer", "of a weight"),
        text("type", "ggml's name of its type"),
        text("shape", "elements along each dimension, innermost first"),
        int64("size_bytes", "all of it"),
        int32_or_null("file", "of a weight: which file of the model"),
        int64_or_null("file_offset", "of a weight: its first byte in that file"),
        text(
            "buffer_type",
            "ggml's name of its buffer type: `CPU_Mapped`, `CPU_REPACK`, …",
        ),
        int64("address", "of its first byte in the traced process"),
        text_or_null(
            "device",
            "in whose memory it lies: `CPU`, `CUDA0`, …; null where its buffer type does not say",
        ),
    ],
};

pub const EVALS: Table = Table {
    name: "evals",
    row: "One evaluation of a graph: a batch of the prompt, or a generated token.",
    sorted_by: "eval",
    columns: &[
        int32("eval", "its number in this run; lost ones leave gaps"),
        int32(
            "stream",
            "which stream of the log: one per thread that computes graphs",
        ),
        text(
            "phase",
            "`prompt` (any part of a prompt is in the batch), `generate` or `unknown`",
        ),
        growing(
            "begin_nanos",
            "on the monotonic clock; on a device, of the call that asked for it",
        ),
        growing(
            "end_nanos",
            "on the monotonic clock; on a device, when that call returned, which need not wait",
        ),
        int32("tokens", "in the batch"),
        int32("steps", "of its graph: nodes that are executed"),
        int32("threads", "that computed it"),
        int64("context", "tells contexts of one process apart"),
        int32(
            "template",
            "number of its graph: equal numbers, equal graphs",
        ),
        int32(
            "flags",
            "1 ticks were not as predicted, 2 an index was out of bounds, 4 aborted, 8 a device was to say later how long it took, 16 the kernels that a device ran were not those that were launched",
        ),
        int64("accesses", "rows of table `accesses`"),
        int64("read_bytes", "sum over those that read"),
        int64("written_bytes", "sum over those that write"),
        int64("weight_bytes", "read from weights"),
        int64("kv_bytes", "read from and written to the KV cache"),
        int64_or_null(
            "waited_nanos",
            "what the computation waited for weights, in a fed run",
        ),
        text("device", "that computed it; `CPU` for the processor"),
        growing_or_null(
            "device_begin_nanos",
            "when the device began it; null on the processor, and where that was not measured",
        ),
        growing_or_null("device_end_nanos", "when the device ended it"),
    ],
};

pub const TOKENS: Table = Table {
    name: "tokens",
    row: "One token of a batch.",
    sorted_by: "token",
    columns: &[
        growing("token", "its number in this run"),
        int32("eval", "the evaluation that computed it"),
        text(
            "phase",
            "`prompt`, `generate`, `draft` (guessed, and checked beside the token before it) or `unknown`",
        ),
        int32("token_id", "in the vocabulary"),
        text_or_null(
            "text",
            "what the id stands for, where known; bytes that are no UTF-8 are replaced",
        ),
        int64_or_null("position", "in its sequence"),
        int32_or_null("sequence", "where known"),
    ],
};

pub const NODES: Table = Table {
    name: "nodes",
    row: "One executed node of a graph.",
    sorted_by: "eval, step",
    columns: &[
        int32("eval", "the evaluation"),
        int32("step", "counts the executed nodes of the graph"),
        int32("node", "index of its (first) node in the graph"),
        int32("fused_nodes", "nodes that ggml executed as this one"),
        text("op", "ggml's name; `A+B` when fused"),
        text("name", "of its (last) node"),
        int32_or_null("layer", "where the node belongs to one"),
        text("device", "that executed it; `CPU` for the processor"),
        growing_or_null(
            "begin_nanos",
            "when the step before it ended; on a device when its first kernel began, null where that was not measured",
        ),
        growing_or_null(
            "end_nanos",
            "when thread 0 was done with it; on a device when its last kernel ended",
        ),
        growing_or_null(
            "duration_nanos",
            "`end_nanos - begin_nanos`; on a device `exclusive_nanos` of its kernels together, because they overlap",
        ),
    ],
};

/// A tensor may be two things; an access has one purpose.
const OF_AN_ACCESS: &str = "of a weight, what it was read as: as in `tensors`, but `output` where a token embedding is multiplied (a model without an `output.weight`: tied)";

pub const ACCESSES: Table = Table {
    name: "accesses",
    row: "One read or write of bytes of a tensor by a node. Times are in `nodes` (join on `eval, step`), addresses in `tensors`.",
    sorted_by: "eval, step",
    columns: &[
        int32("eval", "the evaluation"),
        int32("step", "the executed node"),
        text("op", "of the node"),
        int32_or_null("layer", "of the node"),
        int32("tensor", "joins `tensors.tensor`"),
        text("tensor_name", "its name"),
        text("kind", "`weight`, `kv_cache`, `input` or `activation`"),
        text_or_null("component", OF_AN_ACCESS),
        text_or_null("role", "of a weight, as in `tensors`"),
        text(
            "phase",
            "of the evaluation: `prompt`, `generate` or `unknown`",
        ),
        text("direction", "`read` or `write`"),
        text("operand", "`src0`, `src1`, … or `dst`"),
        int32_or_null("expert", "whose slice it is"),
        int64_or_null(
            "token",
            "that caused it (a row of the embedding, a KV cell); joins `tokens.token`",
        ),
        int32_or_null("file", "of a weight: which file of the model"),
        int64_or_null("file_offset", "of a weight: first byte in that file"),
        int64("tensor_offset", "first byte in the tensor"),
        int64("bytes", "distinct bytes touched"),
        int64("runs", "contiguous byte ranges"),
        int64("run_bytes", "bytes of one of them"),
        text(
            "strides",
            "how they repeat: `count x bytes`, innermost first; empty for one range",
        ),
        text_or_null(
            "source",
            "of a weight that was read in a fed run, where it was: `pinned`, `loaded` (pinned from then on), `streamed`, `cache_hit` or `cache_miss` (experts), `page_cache`",
        ),
        int64_or_null(
            "waited_nanos",
            "what the computation waited for it, in a fed run",
        ),
        int64_or_null(
            "used_bytes",
            "of a view of a KV cache that a device reads, those of cells that have been written; null elsewhere, and where a write may have been missed",
        ),
    ],
};

pub const ROUTING: Table = Table {
    name: "routing",
    row: "One token sent to one expert.",
    sorted_by: "eval, layer",
    columns: &[
        int32("eval", "the evaluation"),
        int64("token", "joins `tokens.token`"),
        int32("layer", "of the router"),
        int32("rank", "0 for the first choice"),
        int32("expert", "that was chosen"),
        float_or_null("weight", "of the router, where the graph has one"),
    ],
};

pub const TRAFFIC: Table = Table {
    name: "traffic",
    row: "`accesses`, added up over the run: small, whatever the run's length. The views are made from it.",
    sorted_by: "tensor",
    columns: &[
        text("phase", "`prompt`, `generate` or `unknown`"),
        int32("tensor", "joins `tensors.tensor`"),
        text("tensor_name", "its name"),
        text("kind", "`weight`, `kv_cache`, `input` or `activation`"),
        text_or_null("component", OF_AN_ACCESS),
        text_or_null("role", "of a weight, as in `tensors`"),
        text("op", "of the nodes"),
        int32_or_null("layer", "of the nodes"),
        text("direction", "`read` or `write`"),
        int32_or_null("expert", "whose slice it is"),
        int64("accesses", "how many"),
        int64("bytes", "their sum"),
    ],
};
