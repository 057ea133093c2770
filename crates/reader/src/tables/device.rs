//! The tables of what devices (GPUs) did: `devices`, `kernels` and `copies`.
//!
//! Always there, and empty where only the processor computed. `device` in all tables is a
//! name, `CPU` for the processor.

use super::{Table, growing, growing_or_null, int32, int32_or_null, int64, int64_or_null, text};

pub const DEVICES: Table = Table {
    name: "devices",
    row: "One device that computed, or that bytes were copied to or from; the processor is not among them.",
    sorted_by: "",
    columns: &[
        text(
            "device",
            "ggml's name: `CUDA0`, `Vulkan0`; joins `device` of other tables",
        ),
        text("description", "what it is, in ggml's words"),
        int64_or_null("memory_bytes", "all of its memory, where it said so"),
    ],
};

pub const KERNELS: Table = Table {
    name: "kernels",
    row: "One kernel that a device was told to run, in each evaluation whose kernels are known. Times are null in evaluations whose kernels were not timed. Kernels overlap: add up `exclusive_nanos`, never `end_nanos - begin_nanos`.",
    sorted_by: "eval, kernel",
    columns: &[
        int32("eval", "the evaluation"),
        int32_or_null(
            "step",
            "the node that launched it: joins `nodes` on `eval, step`; null where that is not known",
        ),
        int32(
            "kernel",
            "counts the kernels of the evaluation in the order of their launches",
        ),
        text("device", "that ran it"),
        text(
            "kind",
            "`kernel`, `copy` or `set` (of memory, within the device)",
        ),
        text("name", "as the device's compiler spells it"),
        text("grid", "blocks along each dimension: `96x1x1`"),
        text("block", "threads of a block along each dimension"),
        growing_or_null(
            "begin_nanos",
            "when the device began it, on the monotonic clock",
        ),
        growing_or_null("end_nanos", "when the device ended it"),
        growing_or_null(
            "exclusive_nanos",
            "its time less what kernels that began before it cover: these add up",
        ),
    ],
};

pub const COPIES: Table = Table {
    name: "copies",
    row: "One copy of bytes of a tensor between host and device.",
    sorted_by: "copy",
    columns: &[
        growing("copy", "its number in this run"),
        int32("eval", "the evaluation that follows it"),
        int64("context", "tells contexts of one process apart"),
        text("device", "that it went to or came from"),
        text(
            "way",
            "`host_to_device`, `device_to_host` or `device_to_device`",
        ),
        int32("tensor", "joins `tensors.tensor`"),
        text("tensor_name", "its name"),
        text("kind", "`weight`, `kv_cache`, `input` or `activation`"),
        int64("tensor_offset", "first byte in the tensor"),
        int64("bytes", "that were copied"),
        int32(
            "is_async",
            "1 if the call did not wait for the copy, else 0",
        ),
        growing(
            "begin_nanos",
            "when the call that asked for it was made, on the monotonic clock",
        ),
        growing("end_nanos", "when that call returned"),
    ],
};
