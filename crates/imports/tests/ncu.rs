//! Tables of Nsight Compute: as its versions write them, and damaged.

use imports::{Error, Format, Import};
use proptest::prelude::*;
use rules::{Subject, Value};

const FRONT: &str = "\"ID\",\"Process ID\",\"Process Name\",\"Host Name\",\"Kernel Name\",\"Context\",\"Stream\",\"Block Size\",\"Grid Size\",\"Device\",\"CC\"";

fn parse(text: &str) -> Result<Import, Error> {
    imports::parse("n.csv", text.as_bytes(), Format::NcuCsv)
}

fn number(subject: &Subject, name: &str) -> Option<f64> {
    match subject.metrics.get(name)?.value {
        Value::Number(number) => Some(number),
        _ => None,
    }
}

fn near(subject: &Subject, name: &str, expect: f64) {
    let found = number(subject, name).unwrap_or_else(|| panic!("{name} is absent"));
    assert!(
        (found - expect).abs() <= expect.abs() * 1e-9,
        "{name}: {found}, not {expect}"
    );
}

/// A raw page: metrics with unit and values, one column each.
fn raw(metrics: &[(&str, &str, &[&str])], kernels: &[&str]) -> String {
    let mut text = format!(
        "==PROF== Connected to process 77 (/tmp/cases)\n==PROF== Profiling \"a\" - 0: 0%....100% - 8 passes\ndone\n\n{FRONT}"
    );
    for (name, _, _) in metrics {
        text.push_str(&format!(",\"{name}\""));
    }
    text.push('\n');
    text.push_str(&["\"\""; 11].join(","));
    for (_, unit, _) in metrics {
        text.push_str(&format!(",\"{unit}\""));
    }
    text.push('\n');
    for (at, kernel) in kernels.iter().enumerate() {
        text.push_str(&format!("\"{at}\",\"77\",\"cases\",\"127.0.0.1\",\"{kernel}\",\"1\",\"7\",\"(256, 1, 1)\",\"(1024, 2, 1)\",\"0\",\"9.0\""));
        for (_, _, values) in metrics {
            text.push_str(&format!(",\"{}\"", values[at]));
        }
        text.push('\n');
    }
    text
}

const METRICS: &[(&str, &str, &[&str])] = &[
    ("dram__bytes_read.sum", "Mbyte", &["268.4", "1.5"]),
    ("gpu__time_duration.sum", "usecond", &["1,000.5", "999.5"]),
    ("dram__bytes_write.sum", "Kbyte", &["1,600", "0"]),
    (
        "sm__throughput.avg.pct_of_peak_sustained_elapsed",
        "%",
        &["12.5", "90"],
    ),
    (
        "smsp__average_warp_latency_per_inst_issued.ratio",
        "cycle",
        &["20", "4"],
    ),
    (
        "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",
        "inst",
        &["15", "n/a"],
    ),
    (
        "smsp__average_warps_issue_stalled_math_pipe_throttle_per_issue_active.ratio",
        "inst",
        &["1", "2"],
    ),
    (
        "smsp__average_warps_issue_stalled_selected_per_issue_active.ratio",
        "inst",
        &["1", "1"],
    ),
    (
        "smsp__thread_inst_executed_per_inst_executed.ratio",
        "",
        &["32", "8"],
    ),
    (
        "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
        "",
        &["1000", "0"],
    ),
    (
        "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
        "sector",
        &["32,000", "0"],
    ),
    (
        "launch__shared_mem_per_block_dynamic",
        "Kbyte/block",
        &["204.8", "0"],
    ),
    (
        "launch__shared_mem_per_block_static",
        "byte/block",
        &["16", "0"],
    ),
];

#[test]
fn a_raw_page_is_one_subject_for_each_kernel() {
    let import = parse(&raw(METRICS, &["copy(float *, int)", "fma(float *)"])).unwrap();
    let [copy, fma] = &import.subjects[..] else {
        panic!("{} subjects", import.subjects.len());
    };
    assert_eq!(
        (copy.kind.as_str(), copy.name.as_str()),
        ("kernel", "copy(float *, int)")
    );
    near(copy, "duration_nanos", 1_000_500.0);
    near(copy, "total_share", 1000.5 / 2000.0);
    near(copy, "dram.bytes", 270e6);
    near(copy, "dram.bytes_per_second", 270e6 / 1.0005e-3);
    near(copy, "sm.share", 0.125);
    near(copy, "stall.long_scoreboard", 0.75);
    near(copy, "stall.math_throttle", 0.05);
    near(copy, "branch.divergence", 0.0);
    near(fma, "branch.divergence", 0.75);
    near(copy, "sectors_per_request.load", 32.0);
    near(copy, "shared_bytes", 204_816.0);
    near(copy, "grid_blocks", 2048.0);
    near(copy, "block_threads", 256.0);
    // What is not in the file, or not a number in it, is absent.
    for absent in ["stall.long_scoreboard", "sectors_per_request.load"] {
        assert_eq!(number(fma, absent), None, "{absent}");
    }
    for absent in ["occupancy.achieved", "stall.selected", "l2.hit"] {
        assert_eq!(number(copy, absent), None, "{absent}");
    }
    let source = copy.metrics.get("duration_nanos").unwrap().source.clone();
    assert_eq!(source.as_deref(), Some("n.csv:7 gpu__time_duration.sum"));
    assert!(import.notes[0].starts_with("1 value"), "{:?}", import.notes);
}

#[test]
fn launches_of_one_kernel_are_one_subject() {
    let import = parse(&raw(METRICS, &["copy", "copy"])).unwrap();
    let [copy] = &import.subjects[..] else {
        panic!("{} subjects", import.subjects.len());
    };
    near(copy, "launches", 2.0);
    near(copy, "total_share", 1.0);
    near(copy, "duration_nanos", 1e6);
    // By the time that each took.
    near(copy, "sm.share", (0.125 * 1000.5 + 0.9 * 999.5) / 2000.0);
}

#[test]
fn a_few_reasons_without_their_total_are_no_shares() {
    let some: Vec<_> = METRICS
        .iter()
        .filter(|(name, ..)| !name.contains("latency_per"))
        .copied()
        .collect();
    let import = parse(&raw(&some, &["a", "b"])).unwrap();
    assert_eq!(number(&import.subjects[0], "stall.long_scoreboard"), None);
}

/// A details page: section, label, unit, value; a label that is empty is a rule's text.
fn details(rows: &[(&str, &str, &str, &str)]) -> String {
    let mut text = format!(
        "{FRONT},\"Section Name\",\"Metric Name\",\"Metric Unit\",\"Metric Value\",\"Rule Name\",\"Rule Type\",\"Rule Description\",\"Estimated Speedup Type\",\"Estimated Speedup\"\n"
    );
    for (section, label, unit, value) in rows {
        let (value, rule) = if label.is_empty() {
            ("", *value)
        } else {
            (*value, "")
        };
        text.push_str(&format!("\"0\",\"77\",\"cases\",\"127.0.0.1\",\"k\",\"1\",\"7\",\"(256, 1, 1)\",\"(1024, 1, 1)\",\"0\",\"9.0\",\"{section}\",\"{label}\",\"{unit}\",\"{value}\",\"\",\"\",\"{rule}\",\"\",\"\"\n"));
    }
    text
}

#[test]
fn a_details_page_says_the_same_in_labels_and_sentences() {
    let import = parse(&details(&[
        ("GPU Speed Of Light Throughput", "Duration", "us", "82.5"),
        ("GPU Speed Of Light Throughput", "Memory Throughput", "%", "91.2"),
        ("GPU Speed Of Light Throughput", "DRAM Throughput", "%", "91.2"),
        ("Memory Workload Analysis", "Memory Throughput", "Tbyte/s", "4.1"),
        ("Memory Workload Analysis", "L2 Hit Rate", "%", "50.1"),
        ("Scheduler Statistics", "No Eligible", "%", "88"),
        ("Warp State Statistics", "Warp Cycles Per Issued Instruction", "cycle", "40"),
        ("Warp State Statistics", "", "", "On average, each warp of this workload spends 30.0 cycles being stalled waiting for a scoreboard dependency on a L1TEX (local, global, surface, texture) operation. This stall type represents about 75.0% of the total average of 40.0 cycles between issuing two instructions."),
        ("Memory Workload Analysis Tables", "", "", "The memory access pattern for shared loads might not be optimal and causes on average a 32.0 - way bank conflict across all 211200 shared load requests. This results in 6547200 bank conflicts, which represent 96.88% of the overall 6758400 wavefronts for shared loads."),
        ("Source Counters", "", "", "This kernel has uncoalesced global accesses resulting in a total of 58720256 excessive sectors (78% of the total 75497472 sectors). Check the L2 Theoretical Sectors Global Excessive table."),
        ("Launch Statistics", "Registers Per Thread", "register/thread", "24"),
        ("Launch Statistics", "Waves Per SM", "", "1.94"),
        ("Occupancy", "Theoretical Occupancy", "%", "100"),
        ("Occupancy", "Block Limit Registers", "block", "8"),
    ]))
    .unwrap();
    let kernel = &import.subjects[0];
    near(kernel, "duration_nanos", 82_500.0);
    near(kernel, "dram.share", 0.912);
    near(kernel, "dram.bytes_per_second", 4.1e12);
    near(kernel, "l2.hit", 0.501);
    near(kernel, "issue.share", 0.12);
    near(kernel, "stall.long_scoreboard", 0.75);
    near(kernel, "bank_conflicts.share", 0.9688);
    near(kernel, "sectors.excess_share", 0.78);
    near(kernel, "registers", 24.0);
    near(kernel, "waves", 1.94);
    near(kernel, "occupancy.theoretical", 1.0);
    near(kernel, "occupancy.limit_registers", 8.0);
    near(kernel, "grid_blocks", 1024.0);
}

#[test]
fn base_units_and_scaled_ones_say_the_same() {
    let scaled = details(&[
        ("", "Duration", "ms", "1.25"),
        ("", "gpu__time_duration.sum", "msecond", "1.25"),
        ("", "dram__bytes.sum", "Gbyte", "1.5"),
    ]);
    let base = details(&[
        ("", "Duration", "ns", "1,250,000"),
        ("", "gpu__time_duration.sum", "nsecond", "1250000"),
        ("", "dram__bytes.sum", "byte", "1,500,000,000"),
    ]);
    let (scaled, base) = (parse(&scaled).unwrap(), parse(&base).unwrap());
    for name in ["duration_nanos", "dram.bytes", "dram.bytes_per_second"] {
        near(
            &scaled.subjects[0],
            name,
            number(&base.subjects[0], name).unwrap(),
        );
    }
}

#[test]
fn damaged_tables_are_refused_with_their_line() {
    let whole = raw(METRICS, &["copy", "fma"]);
    let cut = &whole[..whole.len() - 20];
    let header = format!("{FRONT}\n");
    for (text, expect) in [
        (
            cut,
            "n.csv:8: cut: 20 fields where the header has 24; print the report again",
        ),
        (
            header.as_str(),
            "n.csv:1: a header and no kernel; the program launched none, or the file is cut",
        ),
        (
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n",
            "n.csv:1: ncu failed: ERR_NVGPUCTRPERM - The user does not have permission",
        ),
        (
            "nothing",
            "n.csv: no table of ncu; print it with `ncu -i REPORT --page raw --csv`",
        ),
        (
            "\"ID\",\"Name\"\n\"0\",\"a\"\n",
            "n.csv:1: the header has no column \"Kernel Name\"",
        ),
        (
            "\"ID\",\"Kernel Name\"\n\"\",\"\"\n\"x\",\"a\"\n",
            "n.csv:3: `x` is no ID of a launch",
        ),
        (
            "\"ID\",\"Kernel Name\"\n\"\",\"\"\n\"0\",\"\"\n",
            "n.csv:3: a launch without the name of its kernel",
        ),
    ] {
        assert_eq!(parse(text).unwrap_err().to_string(), expect);
    }
}

#[test]
fn the_table_is_found_by_what_is_in_it() {
    let text = raw(METRICS, &["copy", "fma"]);
    assert_eq!(
        imports::detect_bytes("x", text.as_bytes()).unwrap(),
        Format::NcuCsv
    );
}

proptest! {
    #[test]
    fn columns_may_stand_in_any_order(order in Just((0..METRICS.len()).collect::<Vec<_>>()).prop_shuffle()) {
        let shuffled: Vec<_> = order.iter().map(|at| METRICS[*at]).collect();
        let (one, two) = (parse(&raw(METRICS, &["a", "b"])).unwrap(), parse(&raw(&shuffled, &["a", "b"])).unwrap());
        prop_assert_eq!(one.subjects, two.subjects);
    }

    #[test]
    fn no_damage_makes_it_panic(place in 0usize..10_000, bytes in proptest::collection::vec(any::<u8>(), 0..4), cut in 0usize..10_000) {
        let mut text = raw(METRICS, &["a", "b"]).into_bytes();
        let place = place % text.len();
        let end = (place + bytes.len()).min(text.len());
        text.splice(place..end, bytes);
        text.truncate(text.len() - cut % text.len() / 4);
        if let Ok(import) = imports::parse("n", &text, Format::NcuCsv) {
            for metric in import.subjects.iter().flat_map(|subject| subject.metrics.0.values()) {
                if let Value::Number(number) = metric.value {
                    prop_assert!(number.is_finite());
                }
            }
        }
    }
}
