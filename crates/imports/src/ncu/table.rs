//! Which metrics of Nsight Compute are which of ours, in one place.
//!
//! Names have changed between versions (2022 to 2025) and cards, and the details page has labels
//! instead of names. Of each metric of ours the first way to get it that a file allows is taken.

use rules::Unit;

use super::{Launch, Reading};
use crate::figures::{Kind, number};

/// How a number of ours comes from theirs. All names of one way must be there.
#[derive(Clone, Copy, Debug)]
pub enum Way {
    Is(&'static str),
    /// The greatest of those that are there: a card has one of several pipes.
    Max(&'static [&'static str]),
    Sum(&'static [&'static str]),
    /// A factor for a sum: sectors have 32 bytes.
    Times(f64, &'static [&'static str]),
    Ratio(&'static [&'static str], &'static [&'static str]),
    /// What is missing to 1.
    Rest(&'static str),
    /// What is missing of the threads of a warp.
    RestOfWarp(&'static str),
}

pub struct Entry {
    pub metric: &'static str,
    pub unit: Unit,
    pub ways: &'static [Way],
}

use Way::{Is, Max, Ratio, Rest, RestOfWarp, Sum, Times};

const fn entry(metric: &'static str, unit: Unit, ways: &'static [Way]) -> Entry {
    Entry { metric, unit, ways }
}

/// Labels of the details page are here with `%` in front where their unit is per cent: two have
/// the same words.
pub const TABLE: &[Entry] = &[
    entry(
        "duration_nanos",
        Unit::Nanos,
        &[
            Is("gpu__time_duration.sum"),
            Is("gpu__time_duration.avg"),
            Is("gpu__time_active.avg"),
            Is("Duration"),
        ],
    ),
    // How much of what the part of the card can do was done.
    entry(
        "dram.share",
        Unit::Share,
        &[
            Is("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"),
            Is("dram__throughput.avg.pct_of_peak_sustained_elapsed"),
            Is("dram__bytes.sum.pct_of_peak_sustained_elapsed"),
            Is("%DRAM Throughput"),
            Is("%SOL DRAM"),
        ],
    ),
    entry(
        "memory.share",
        Unit::Share,
        &[
            Is("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"),
            Is("gpu__compute_memory_access_throughput.avg.pct_of_peak_sustained_elapsed"),
            Is("%Memory Throughput"),
            Is("%Memory [%]"),
        ],
    ),
    entry(
        "l2.share",
        Unit::Share,
        &[
            Is("lts__throughput.avg.pct_of_peak_sustained_elapsed"),
            Is("lts__t_sectors.avg.pct_of_peak_sustained_elapsed"),
            Is("%L2 Cache Throughput"),
            Is("%SOL L2 Cache"),
        ],
    ),
    entry(
        "l1.share",
        Unit::Share,
        &[
            Is("l1tex__throughput.avg.pct_of_peak_sustained_active"),
            Is("l1tex__throughput.avg.pct_of_peak_sustained_elapsed"),
            Is("%L1/TEX Cache Throughput"),
            Is("%SOL L1/TEX Cache"),
        ],
    ),
    entry(
        "sm.share",
        Unit::Share,
        &[
            Is("sm__throughput.avg.pct_of_peak_sustained_elapsed"),
            Is("%Compute (SM) Throughput"),
            Is("%SM [%]"),
            Is("%SOL SM"),
        ],
    ),
    entry(
        "tensor.share",
        Unit::Share,
        &[Max(&[
            "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
            "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active",
            "sm__pipe_tensor_op_imma_cycles_active.avg.pct_of_peak_sustained_active",
            "sm__pipe_tensor_op_dmma_cycles_active.avg.pct_of_peak_sustained_active",
            "sm__pipe_tensor_op_gmma_cycles_active.avg.pct_of_peak_sustained_active",
            "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
            "sm__inst_executed_pipe_tensor.sum.pct_of_peak_sustained_active",
            "sm__inst_executed_pipe_tensor_op_hmma.avg.pct_of_peak_sustained_active",
            "sm__inst_executed_pipe_tensor_op_imma.avg.pct_of_peak_sustained_active",
            "sm__inst_executed_pipe_tensor_op_dmma.avg.pct_of_peak_sustained_active",
            "sm__inst_executed_pipe_tensor_op_gmma.avg.pct_of_peak_sustained_active",
        ])],
    ),
    entry(
        "fma.share",
        Unit::Share,
        &[
            Is("sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active"),
            Is("sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active"),
            Is("sm__inst_executed_pipe_fma.sum.pct_of_peak_sustained_active"),
            Max(&[
                "sm__pipe_fmaheavy_cycles_active.avg.pct_of_peak_sustained_active",
                "sm__inst_executed_pipe_fmaheavy.avg.pct_of_peak_sustained_active",
            ]),
        ],
    ),
    entry(
        "occupancy.achieved",
        Unit::Share,
        &[
            Is("sm__warps_active.avg.pct_of_peak_sustained_active"),
            Is("%Achieved Occupancy"),
        ],
    ),
    entry(
        "occupancy.theoretical",
        Unit::Share,
        &[
            Is("sm__maximum_warps_per_active_cycle_pct"),
            Is("%Theoretical Occupancy"),
        ],
    ),
    // Blocks on one multiprocessor, if nothing else were scarce.
    entry(
        "occupancy.limit_registers",
        Unit::Count,
        &[
            Is("launch__occupancy_limit_registers"),
            Is("Block Limit Registers"),
        ],
    ),
    entry(
        "occupancy.limit_shared",
        Unit::Count,
        &[
            Is("launch__occupancy_limit_shared_mem"),
            Is("Block Limit Shared Mem"),
        ],
    ),
    entry(
        "occupancy.limit_blocks",
        Unit::Count,
        &[Is("launch__occupancy_limit_blocks"), Is("Block Limit SM")],
    ),
    entry(
        "occupancy.limit_warps",
        Unit::Count,
        &[Is("launch__occupancy_limit_warps"), Is("Block Limit Warps")],
    ),
    entry(
        "registers",
        Unit::Count,
        &[
            Is("launch__registers_per_thread"),
            Is("Registers Per Thread"),
        ],
    ),
    entry(
        "shared_bytes",
        Unit::Bytes,
        &[
            Is("launch__shared_mem_per_block"),
            Sum(&[
                "launch__shared_mem_per_block_dynamic",
                "launch__shared_mem_per_block_static",
            ]),
            Sum(&[
                "Dynamic Shared Memory Per Block",
                "Static Shared Memory Per Block",
            ]),
        ],
    ),
    entry(
        "grid_blocks",
        Unit::Count,
        &[Is("launch__grid_size"), Is("Grid Size")],
    ),
    entry(
        "block_threads",
        Unit::Count,
        &[Is("launch__block_size"), Is("Block Size")],
    ),
    entry(
        "waves",
        Unit::Count,
        &[Is("launch__waves_per_multiprocessor"), Is("Waves Per SM")],
    ),
    entry(
        "sms",
        Unit::Count,
        &[
            Is("launch__sm_count"),
            Is("device__attribute_multiprocessor_count"),
            Is("# SMs"),
            Is("#SMs"),
        ],
    ),
    entry(
        "warps_eligible",
        Unit::Count,
        &[
            Is("smsp__warps_eligible.avg.per_cycle_active"),
            Is("Eligible Warps Per Scheduler"),
        ],
    ),
    entry(
        "warps_active",
        Unit::Count,
        &[
            Is("smsp__warps_active.avg.per_cycle_active"),
            Is("Active Warps Per Scheduler"),
        ],
    ),
    // Of the cycles, those in which a scheduler issued an instruction.
    entry(
        "issue.share",
        Unit::Share,
        &[
            Is("smsp__issue_active.avg.pct_of_peak_sustained_active"),
            Is("smsp__issue_active.avg.per_cycle_active"),
            Rest("smsp__issue_inst0.avg.pct_of_peak_sustained_active"),
            Is("%One or More Eligible"),
            Rest("%No Eligible"),
            Is("%Issue Slots Busy"),
        ],
    ),
    entry(
        "ipc",
        Unit::Count,
        &[
            Is("sm__inst_executed.avg.per_cycle_active"),
            Is("Executed Ipc Active"),
        ],
    ),
    entry(
        "sectors_per_request.load",
        Unit::Count,
        &[
            Is("l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio"),
            Ratio(
                &["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"],
                &["l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"],
            ),
        ],
    ),
    entry(
        "sectors_per_request.store",
        Unit::Count,
        &[
            Is("l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio"),
            Ratio(
                &["l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"],
                &["l1tex__t_requests_pipe_lsu_mem_global_op_st.sum"],
            ),
        ],
    ),
    // Sectors that a better order of the accesses would not need, of all.
    entry(
        "sectors.excess_share",
        Unit::Share,
        &[
            Ratio(
                &["derived__memory_l2_theoretical_sectors_global_excessive"],
                &["memory_l2_theoretical_sectors_global"],
            ),
            Is("rule:excess sectors"),
        ],
    ),
    entry(
        "bank_conflicts.share",
        Unit::Share,
        &[
            Ratio(
                &[
                    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
                    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
                ],
                &[
                    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
                    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
                ],
            ),
            Ratio(
                &["l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"],
                &["l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"],
            ),
            Ratio(
                &["derived__memory_l1_wavefronts_shared_excessive"],
                &["memory_l1_wavefronts_shared"],
            ),
            Is("rule:bank conflicts"),
        ],
    ),
    entry(
        "l1.hit",
        Unit::Share,
        &[Is("l1tex__t_sector_hit_rate.pct"), Is("%L1/TEX Hit Rate")],
    ),
    entry(
        "l2.hit",
        Unit::Share,
        &[Is("lts__t_sector_hit_rate.pct"), Is("%L2 Hit Rate")],
    ),
    // All of local memory: arrays that are indexed live there too, but spills are most of it.
    entry(
        "local.spill_bytes",
        Unit::Bytes,
        &[
            Sum(&[
                "l1tex__t_bytes_pipe_lsu_mem_local_op_ld.sum",
                "l1tex__t_bytes_pipe_lsu_mem_local_op_st.sum",
            ]),
            Times(
                32.0,
                &[
                    "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum",
                    "l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum",
                ],
            ),
            Times(
                128.0,
                &[
                    "smsp__inst_executed_op_local_ld.sum",
                    "smsp__inst_executed_op_local_st.sum",
                ],
            ),
        ],
    ),
    entry(
        "local.spill_requests",
        Unit::Count,
        &[
            Is("derived__smsp__inst_executed_op_local_spilling"),
            Is("sass__inst_executed_register_spilling"),
            Is("Local Memory Spilling Requests"),
        ],
    ),
    entry(
        "dram.bytes",
        Unit::Bytes,
        &[
            Is("dram__bytes.sum"),
            Sum(&["dram__bytes_read.sum", "dram__bytes_write.sum"]),
        ],
    ),
    entry(
        "dram.bytes_per_second",
        Unit::BytesPerSecond,
        &[
            Is("dram__bytes.sum.per_second"),
            Sum(&[
                "dram__bytes_read.sum.per_second",
                "dram__bytes_write.sum.per_second",
            ]),
            Is("Memory Throughput"),
        ],
    ),
    entry(
        "branch.divergence",
        Unit::Share,
        &[
            RestOfWarp("smsp__thread_inst_executed_per_inst_executed.ratio"),
            RestOfWarp("smsp__thread_inst_executed_per_inst_executed"),
            RestOfWarp("Avg. Active Threads Per Warp"),
        ],
    ),
    // Of the requests to global memory.
    entry(
        "atomics.share",
        Unit::Share,
        &[
            Ratio(
                &[
                    "l1tex__t_requests_pipe_lsu_mem_global_op_atom.sum",
                    "l1tex__t_requests_pipe_lsu_mem_global_op_red.sum",
                ],
                &[
                    "l1tex__t_requests_pipe_lsu_mem_global_op_atom.sum",
                    "l1tex__t_requests_pipe_lsu_mem_global_op_red.sum",
                    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
                    "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
                ],
            ),
            Ratio(
                &[
                    "smsp__inst_executed_op_global_atom.sum",
                    "smsp__inst_executed_op_global_red.sum",
                ],
                &[
                    "smsp__inst_executed_op_global_atom.sum",
                    "smsp__inst_executed_op_global_red.sum",
                    "smsp__inst_executed_op_global_ld.sum",
                    "smsp__inst_executed_op_global_st.sum",
                ],
            ),
        ],
    ),
];

/// Whether a column is used by anything.
pub fn is_wanted(name: &str) -> bool {
    if super::stalls::is_wanted(name) {
        return true;
    }
    TABLE
        .iter()
        .flat_map(|entry| entry.ways)
        .any(|way| match way {
            Is(one) | Rest(one) | RestOfWarp(one) => *one == name,
            Max(names) | Sum(names) | Times(_, names) => names.contains(&name),
            Ratio(top, below) => top.contains(&name) || below.contains(&name),
        })
}

/// A label of the details page as [`TABLE`] has it.
pub fn detail_name(label: &str, kind: Kind) -> String {
    if kind == Kind::Percent && !label.contains("__") {
        format!("%{label}")
    } else {
        label.to_owned()
    }
}

impl Way {
    /// The value, the line and the name that it comes from.
    pub fn of(self, launch: &Launch) -> Option<(Reading, String)> {
        let get = |name: &str| launch.readings.get(name).copied();
        let one = |name: &'static str| get(name).map(|reading| (reading, name.to_owned()));
        let sum = |names: &[&str]| {
            let mut sum: Option<Reading> = None;
            for name in names {
                let reading = get(name)?;
                let so_far = sum.map_or(0.0, |sum| sum.value);
                sum = Some(Reading {
                    value: so_far + reading.value,
                    line: reading.line,
                });
            }
            sum
        };
        let changed = |name, change: fn(f64) -> f64| {
            one(name).map(|(reading, name)| {
                let value = change(reading.value);
                (Reading { value, ..reading }, format!("1 - {name}"))
            })
        };
        match self {
            Is(name) => one(name),
            Max(names) => names
                .iter()
                .filter_map(|name| one(name))
                .max_by(|(a, _), (b, _)| a.value.total_cmp(&b.value)),
            Sum(names) => sum(names).map(|sum| (sum, names.join(" + "))),
            Times(factor, names) => sum(names).map(|sum| {
                let value = sum.value * factor;
                (
                    Reading { value, ..sum },
                    format!("{factor} * ({})", names.join(" + ")),
                )
            }),
            Ratio(top, below) => {
                let (top_sum, below_sum) = (sum(top)?, sum(below)?);
                let value = top_sum.value / below_sum.value;
                let name = format!("({}) / ({})", top.join(" + "), below.join(" + "));
                // Nothing of nothing is no share.
                (below_sum.value > 0.0).then_some((Reading { value, ..top_sum }, name))
            }
            Rest(name) => changed(name, |value| 1.0 - value),
            RestOfWarp(name) => changed(name, |value| 1.0 - value / 32.0),
        }
    }
}

/// Numbers that the details page has only inside sentences.
pub fn of_rule(text: &str) -> Vec<(&'static str, f64)> {
    let mut found = Vec::new();
    // "… excessive sectors (87% of the total 9437184 sectors)"
    if text.contains("uncoalesced global accesses")
        && let Some(share) = before(text, "% of the total").and_then(last_number)
    {
        found.push(("rule:excess sectors", share / 100.0));
    }
    // "… bank conflicts, which represent 96.88% of the overall 6758400 wavefronts"
    if text.contains("bank conflict")
        && let Some(share) = before(text, "% of the overall").and_then(last_number)
    {
        found.push(("rule:bank conflicts", share / 100.0));
    }
    found.retain(|(_, share)| (0.0..=1.0).contains(share));
    found
}

pub fn before<'a>(text: &'a str, mark: &str) -> Option<&'a str> {
    text.split_once(mark).map(|(before, _)| before)
}

/// The number that a text ends with.
pub fn last_number(text: &str) -> Option<f64> {
    let start = text
        .char_indices()
        .rev()
        .take_while(|(_, c)| c.is_ascii_digit() || matches!(c, '.' | ','))
        .last()?
        .0;
    number(&text[start..])
}
