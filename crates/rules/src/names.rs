//! What metrics are called and mean, for each kind of subject.
//!
//! Who measures uses these names, and shipped rules use no others (a test checks that). Those
//! of a `phase` are in a file of their own: there are many.

mod phase;

/// A name and what it means.
pub type Name = (&'static str, &'static str);

/// Of any subject.
pub const ANY: &[Name] = &[(
    "total_share",
    "of the time of all subjects of this kind: causes are ranked by it",
)];

/// By kind of subject.
pub fn names(kind: &str) -> &'static [Name] {
    match kind {
        "phase" => phase::PHASE,
        "kernel" => KERNEL,
        "trace" => TRACE,
        "calls" => CALLS,
        "counters" => COUNTERS,
        "schedule" => SCHEDULE,
        "lines" => LINES,
        _ => &[],
    }
}

const KERNEL: &[Name] = &[
    ("duration_nanos", "how long a launch of it runs"),
    ("launches", "how many of it, of which the others are means"),
    (
        "memory.share",
        "throughput of the busiest part of memory and caches, of its peak",
    ),
    ("dram.share", "throughput of the card's memory, of its peak"),
    ("dram.bytes", "moved to and from the card's memory"),
    ("dram.bytes_per_second", "the same, a second"),
    ("l2.share", "throughput of the L2 cache, of its peak"),
    ("l2.hit", "share of L2's requests that it had"),
    (
        "l1.share",
        "throughput of L1 and shared memory, of its peak",
    ),
    ("l1.hit", "share of L1's requests that it had"),
    (
        "sm.share",
        "throughput of the multiprocessors, of their peak",
    ),
    ("tensor.share", "how busy the tensor pipe is"),
    ("fma.share", "how busy the FMA pipe is"),
    ("issue.share", "issue slots that are used"),
    ("ipc", "instructions a cycle, of a multiprocessor"),
    ("warps_active", "resident warps of a scheduler"),
    (
        "warps_eligible",
        "warps a scheduler can choose from in a cycle",
    ),
    ("occupancy.achieved", "resident warps, of the most possible"),
    (
        "occupancy.theoretical",
        "the same, as registers, shared memory and blocks allow",
    ),
    (
        "occupancy.limit_registers",
        "blocks a multiprocessor holds, by registers",
    ),
    ("occupancy.limit_shared", "the same, by shared memory"),
    (
        "occupancy.limit_blocks",
        "the same, by the number of blocks",
    ),
    ("occupancy.limit_warps", "the same, by the number of warps"),
    ("registers", "a thread"),
    ("shared_bytes", "of shared memory, a block"),
    ("grid_blocks", "blocks of the launch"),
    ("block_threads", "threads of a block"),
    (
        "waves",
        "the launch, in times of all blocks that the card holds at once",
    ),
    ("sms", "multiprocessors of the card"),
    (
        "stall.long_scoreboard",
        "of a warp's cycles between two instructions: waiting for global, local or texture memory",
    ),
    (
        "stall.short_scoreboard",
        "… for shared memory or special functions",
    ),
    (
        "stall.mio_throttle",
        "… for the queue of shared memory and special functions",
    ),
    ("stall.lg_throttle", "… for the queue of loads and stores"),
    ("stall.tex_throttle", "… for the queue of texture loads"),
    ("stall.math_throttle", "… for an arithmetic pipe"),
    ("stall.barrier", "… at a barrier of the block"),
    ("stall.wait", "… for the fixed latency of an instruction"),
    ("stall.branch", "… for the target of a branch"),
    ("stall.not_selected", "… ready, and another warp was chosen"),
    ("stall.drain", "… for its last stores"),
    ("stall.membar", "… at a memory fence"),
    ("stall.imc", "… for an immediate constant"),
    ("stall.no_instruction", "… for its next instruction"),
    ("stall.gmma", "… for a product of a warp group"),
    ("stall.sleeping", "… asleep by its own wish"),
    ("stall.misc", "… for something else"),
    ("stall.dispatch", "… for the dispatcher"),
    (
        "sectors_per_request.load",
        "sectors of 32 bytes that a load of a warp touches",
    ),
    ("sectors_per_request.store", "… a store of a warp"),
    (
        "sectors.excess_share",
        "of all sectors, those that a better order of the accesses would not need",
    ),
    (
        "bank_conflicts.share",
        "of what shared memory does, repetition by conflicts",
    ),
    (
        "local.spill_bytes",
        "moved to and from local memory, for registers that are kept there",
    ),
    ("local.spill_requests", "how often"),
    ("branch.divergence", "lanes of a warp that are masked off"),
    ("atomics.share", "of L2's requests, atomic ones"),
];

const TRACE: &[Name] = &[
    (
        "gpu.busy",
        "of the time between the first and the last kernel, with a kernel running",
    ),
    ("gpu.gaps", "of the same time, with none running"),
    ("gpu.mean_gap_nanos", "how long none ran, in the mean"),
    ("gpu.kernels", "how many ran"),
    ("gpu.mean_kernel_nanos", "how long each, in the mean"),
    ("copies.share", "of the same time, copying"),
    ("copies.host_to_device_bytes", "copied to the card"),
    (
        "copies.pageable_share",
        "of the bytes copied, from or to memory that is not pinned",
    ),
    ("api.launch_share", "of the time, the host in launches"),
    (
        "api.sync_share",
        "of the time, the host in synchronizing calls",
    ),
    ("graphs.used", "whether graphs were launched"),
];

const CALLS: &[Name] = &[
    ("calls.total", "how many"),
    ("calls.per_second", "how many a second"),
    ("calls.wall_nanos", "from the first to the last"),
    ("calls.time_share", "of the threads' time, in calls"),
    ("calls.mean_read_bytes", "that a read returned"),
    ("calls.errors_share", "of the calls, failed"),
    ("calls.eagain_share", "of the calls, failed with EAGAIN"),
    (
        "calls.file_read.count",
        "calls that read files; also .time_share, of the threads' time, as for all that follow",
    ),
    ("calls.file_read.time_share", ""),
    ("calls.file_write.count", "that write or sync files"),
    ("calls.file_write.time_share", ""),
    (
        "calls.file_open.count",
        "that open, close or describe files",
    ),
    ("calls.file_open.time_share", ""),
    (
        "calls.memory.count",
        "that map, protect or give back memory",
    ),
    ("calls.memory.time_share", ""),
    ("calls.futex.count", "that wait for or wake threads"),
    ("calls.futex.time_share", ""),
    ("calls.poll.count", "that wait for one of several things"),
    ("calls.poll.time_share", ""),
    ("calls.scheduling.count", "of threads, processes and sleep"),
    ("calls.scheduling.time_share", ""),
    ("calls.network.count", "that send or receive"),
    ("calls.network.time_share", ""),
    (
        "calls.signal.count",
        "that set up, send or return from signals",
    ),
    ("calls.signal.time_share", ""),
    ("calls.other.count", "all others"),
    ("calls.other.time_share", ""),
];

const COUNTERS: &[Name] = &[
    ("ipc", "instructions a cycle"),
    (
        "llc.miss_share",
        "of the accesses to the last cache, misses",
    ),
    ("l1d.miss_share", "of the loads, misses of L1"),
    ("dtlb.miss_share", "of the loads, misses of the data TLB"),
    ("branch.miss_share", "of the branches, guessed wrong"),
    (
        "stalled_backend",
        "of the cycles, stalled behind the decoder",
    ),
    ("stalled_frontend", "of the cycles, without instructions"),
    ("cpus_utilized", "processors that were used, in the mean"),
    ("context_switches_per_second", "of all threads"),
    (
        "migrations_per_second",
        "moves of threads to another processor",
    ),
    ("page_faults_per_second", "minor and major ones"),
    ("major_faults_per_second", "those that read from disk"),
    ("frequency_hertz", "cycles a second of processor time"),
    ("frequency_max_hertz", "the highest that the processor has"),
    ("samples.total", "stacks that were sampled"),
    ("samples.kernel_share", "of these, in the kernel"),
    ("samples.lost", "that could not be kept"),
    ("topdown.retiring", "of the slots, useful work"),
    ("topdown.bad_speculation", "of the slots, thrown away"),
    (
        "topdown.frontend_bound",
        "of the slots, without instructions",
    ),
    (
        "topdown.backend_bound",
        "of the slots, waiting for data or units",
    ),
    ("topdown.memory_bound", "… for data"),
    ("topdown.core_bound", "… for units"),
];

const SCHEDULE: &[Name] = &[
    (
        "wait.max_nanos",
        "the longest time that a thread was ready and did not run",
    ),
    ("wait.mean_nanos", "the mean one"),
    (
        "wait.share",
        "of the time that threads ran or were ready: ready and not running",
    ),
    ("run.share", "of the same time: running"),
    (
        "sleep.share",
        "of the threads' whole time, neither running nor ready",
    ),
    ("switches_per_second", "of all threads"),
    ("threads", "of the program"),
    (
        "tasks_competing",
        "threads, of all programs, that used the processors to speak of",
    ),
    ("processors", "of the machine"),
];

const LINES: &[Name] = &[
    (
        "hitm.total",
        "sampled loads that found their line changed in another cache",
    ),
    ("hitm.share", "of all sampled loads"),
    ("hitm.top_line_share", "of these, on the line that has most"),
    ("hitm.threads_on_line", "threads that use that line"),
    ("hitm.processors_on_line", "processors that use that line"),
    (
        "hitm.distinct_offsets",
        "places of that line that are used: one is sharing, two are false sharing",
    ),
    ("mem.l1_share", "of the sampled loads, from L1"),
    ("mem.llc_share", "… from the last cache"),
    ("mem.dram_share", "… from memory"),
    ("mem.remote_share", "… from another node"),
    ("mem.tlb_miss_share", "… that missed the TLB"),
    ("mem.mean_latency_cycles", "how long they took, in the mean"),
];
