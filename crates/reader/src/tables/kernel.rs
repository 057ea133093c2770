//! The tables of what the kernel did underneath: `faults`, `io` and `residency`; and of what
//! threads did on the processors: `samples`, `off_cpu`, `counted` and `machine`.
//!
//! Always there, and empty where nothing of the kind was recorded. Where a row names
//! a tensor, `tensor` joins `tensors`; a weight that no node has used is not in that
//! table, and only its name is known.

use super::{Table, growing, int32, int32_or_null, int64, int64_or_null, text, text_or_null};

pub const FAULTS: Table = Table {
    name: "faults",
    row: "One page fault (`record --faults`), with what lies in the page and the node that was running then.",
    sorted_by: "nanos",
    columns: &[
        growing("nanos", "when, on the monotonic clock"),
        text(
            "kind",
            "`major`: the page had to be read, or its reading waited for; `minor`: it was in memory",
        ),
        growing("address", "that was touched, in the traced process"),
        int32("pid", "process"),
        int32("tid", "thread"),
        int32("cpu", "that it ran on"),
        int32_or_null("file", "which file of the model; null elsewhere in memory"),
        int64_or_null("file_offset", "byte of that file that was touched"),
        int32_or_null(
            "tensor",
            "joins `tensors.tensor`; null if no node has used it",
        ),
        text_or_null("tensor_name", "whose bytes these are"),
        int32_or_null("layer", "of the tensor"),
        text_or_null("component", "of the tensor, as in `tensors`"),
        int32_or_null("expert", "whose slice it is"),
        int32_or_null(
            "eval",
            "the evaluation going on then; null between evaluations",
        ),
        int32_or_null(
            "step",
            "the node running then: joins `nodes` on `eval, step`",
        ),
        text_or_null("op", "of that node"),
        text_or_null("node_name", "of that node"),
        text_or_null("phase", "of the evaluation"),
        int64_or_null(
            "token",
            "of an evaluation of one token; joins `tokens.token`",
        ),
    ],
};

pub const IO: Table = Table {
    name: "io",
    row: "The part of a block request (`record --io`) that lies in one tensor, or one expert of it. Parts of a request have the same `request`.",
    sorted_by: "issued_nanos",
    columns: &[
        growing("request", "its number in this run, in the order of issue"),
        growing("issued_nanos", "when, on the monotonic clock"),
        int64_or_null("completed_nanos", "null if that was not seen"),
        int64_or_null("latency_nanos", "`completed_nanos - issued_nanos`"),
        text("device", "of the disk, `MAJOR:MINOR`"),
        growing("sector", "first of the request, of 512 bytes"),
        int64("request_bytes", "of the whole request"),
        text("kind", "`read`, `write`, `discard` or `other`"),
        text("rwbs", "as blktrace writes it: `RA`, `WS`, …"),
        int32(
            "read_ahead",
            "1 if nobody has asked for these bytes yet, else 0",
        ),
        int32("pid", "process that issued it"),
        int32("tid", "thread that issued it"),
        int32_or_null(
            "file",
            "which file of the model; null elsewhere on the disk",
        ),
        int64_or_null("file_offset", "first byte of this part in that file"),
        int64("bytes", "of this part"),
        int32_or_null(
            "tensor",
            "joins `tensors.tensor`; null if no node has used it",
        ),
        text_or_null("tensor_name", "whose bytes these are"),
        int64_or_null("tensor_bytes", "of the whole tensor"),
        int32_or_null("layer", "of the tensor"),
        text_or_null("component", "of the tensor, as in `tensors`"),
        int32_or_null("expert", "whose slice it is"),
        int32_or_null(
            "eval",
            "the evaluation going on at the issue; null between evaluations",
        ),
        int32_or_null(
            "step",
            "the node running then: joins `nodes` on `eval, step`",
        ),
        text_or_null("op", "of that node"),
        text_or_null("phase", "of the evaluation"),
    ],
};

pub const RESIDENCY: Table = Table {
    name: "residency",
    row: "How much of a tensor was in memory at a sample (`record --residency`).",
    sorted_by: "nanos, file",
    columns: &[
        growing("nanos", "when, on the monotonic clock"),
        int64("token", "number of the token at which the sample was taken"),
        int32("file", "which file of the model"),
        int32_or_null(
            "tensor",
            "joins `tensors.tensor`; null if no node has used it",
        ),
        text("tensor_name", "its name"),
        int32_or_null("layer", "of the tensor"),
        text("component", "of the tensor, as in `tensors`"),
        int64("size_bytes", "all of it"),
        int64("resident_bytes", "in the kernel's page cache"),
    ],
};

pub const SAMPLES: Table = Table {
    name: "samples",
    row: "A thread that was found running (`record --cpu`), some 99 times a second of its time, with the node that was running then.",
    sorted_by: "nanos",
    columns: &[
        growing("nanos", "when, on the monotonic clock"),
        int32("pid", "process"),
        int32("tid", "thread"),
        int32("cpu", "that it ran on"),
        int64(
            "sampled_nanos",
            "time of the thread that the sample stands for",
        ),
        text(
            "activity",
            "`computing`, `waiting` (in a loop, for other threads) or `kernel` (faults, system calls)",
        ),
        text_or_null("function", "innermost; null where no stack was seen"),
        text_or_null("module", "file that the function is in"),
        text_or_null(
            "stack",
            "all functions from the outside in, with `;` between",
        ),
        int32_or_null(
            "eval",
            "the evaluation going on then; null between evaluations",
        ),
        int32_or_null(
            "step",
            "the node running then: joins `nodes` on `eval, step`",
        ),
        text_or_null("op", "of that node"),
        text_or_null("node_name", "of that node"),
        int32_or_null("layer", "of that node"),
        text_or_null("phase", "of the evaluation"),
    ],
};

pub const OFF_CPU: Table = Table {
    name: "off_cpu",
    row: "A time in which a thread did not run (`record --cpu`).",
    sorted_by: "begin_nanos",
    columns: &[
        growing(
            "begin_nanos",
            "when it ceased to run, on the monotonic clock",
        ),
        int64_or_null("end_nanos", "when it ran again; null if it did not"),
        int64_or_null("nanos", "`end_nanos - begin_nanos`"),
        int32("pid", "process"),
        int32("tid", "thread"),
        int32("cpu", "that it had run on"),
        int32_or_null("next_cpu", "that it ran on then"),
        text(
            "reason",
            "`waiting`: it gave its processor up; `preempted`: that was taken away",
        ),
        int32_or_null(
            "eval",
            "the evaluation going on then; null between evaluations",
        ),
        int32_or_null(
            "step",
            "the node running then: joins `nodes` on `eval, step`",
        ),
        text_or_null("op", "of that node"),
        text_or_null("node_name", "of that node"),
        int32_or_null("layer", "of that node"),
        text_or_null("phase", "of the evaluation"),
    ],
};

pub const COUNTED: Table = Table {
    name: "counted",
    row: "Events that a processor counted (`record --cpu`, where it does and we may): each row stands for so many of them.",
    sorted_by: "nanos",
    columns: &[
        growing("nanos", "when, on the monotonic clock"),
        int32("pid", "process"),
        int32("tid", "thread"),
        int32("cpu", "that it ran on"),
        text(
            "counter",
            "`cycles`, `instructions`, `cache_misses` (last level), `translation_misses` (reads of data) or `stalled_cycles`",
        ),
        int64("events", "that the row stands for"),
        int32_or_null(
            "eval",
            "the evaluation going on then; null between evaluations",
        ),
        int32_or_null(
            "step",
            "the node running then: joins `nodes` on `eval, step`",
        ),
        text_or_null("op", "of that node"),
        text_or_null("node_name", "of that node"),
        int32_or_null("layer", "of that node"),
        text_or_null("phase", "of the evaluation"),
    ],
};

pub const MACHINE: Table = Table {
    name: "machine",
    row: "How busy the machine was (`record --cpu`), some four times a second. Times are sums since some beginning: subtract.",
    sorted_by: "nanos",
    columns: &[
        growing("nanos", "when, on the monotonic clock"),
        int64_or_null("busy_nanos", "of all processors, that somebody used"),
        int64_or_null(
            "stolen_nanos",
            "of all processors, that the hypervisor gave to others",
        ),
        int64_or_null(
            "own_nanos",
            "that the program used, and programs that it has waited for",
        ),
        int64_or_null(
            "queued_nanos",
            "that its threads were ready to run and did not",
        ),
        int64_or_null("throttled_nanos", "that a quota kept it from running"),
        int64_or_null("swapped_in_bytes", "read back from swap, by everybody"),
        int64_or_null("hertz", "mean frequency of the processors"),
        int64_or_null("processors", "that the program may use"),
        int64_or_null("threads", "of the program"),
    ],
};

pub const IMPORTED: Table = Table {
    name: "imported",
    row: "Something that another tool has recorded (`ingest --import`), with the node that was running when it began.",
    sorted_by: "begin_nanos",
    columns: &[
        growing("begin_nanos", "when, on the monotonic clock"),
        int64("duration_nanos", "0 of a sample"),
        int32("pid", "process"),
        int32("tid", "thread"),
        text(
            "tool",
            "`strace`, `perf_data`, `perf_script`, `nsys_sqlite`, …",
        ),
        text(
            "category",
            "of a system call: `futex`, `file_read`, …; else the tool's own",
        ),
        text("name", "of the call, function or kernel"),
        int32_or_null(
            "eval",
            "the evaluation going on then; null between evaluations",
        ),
        int32_or_null(
            "step",
            "the node running then: joins `nodes` on `eval, step`",
        ),
        text_or_null("op", "of that node"),
        text_or_null("node_name", "of that node"),
        int32_or_null("layer", "of that node"),
        text_or_null("phase", "of the evaluation"),
    ],
};
