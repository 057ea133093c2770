//! What the kernel did, against numbers that were added up by hand, and against
//! naive references.

mod underneath_support;

use analysis::{
    findings,
    traffic::TrafficResults,
    underneath::{
        Rows, UnderneathResults,
        faults::{FaultCounts, waits},
        intervals::Union,
        requests::SizeBin,
        reread::reread,
        verdict::{Bound, Counters, Speeds},
        work::Work,
    },
};
use kernelio::kernel_log::faults::FaultKind;
use proptest::prelude::*;
use trace::format::Phase;
use underneath_support::*;

#[test]
fn bytes_read_are_counted_by_phase_tensor_and_layer() {
    let results = results();
    let reread = results.reread.as_ref().unwrap();
    assert_eq!(reread.read_bytes, 36864);
    assert_eq!(reread.factor, 0.9);
    assert_eq!(reread.distinct_bytes, 28672);
    assert_eq!(reread.read_again_bytes, 8192);
    assert_eq!(reread.without_tensor_bytes, 4096);
    let phases: Vec<_> = reread
        .by_phase
        .iter()
        .map(|row| {
            (
                row.phase.as_str(),
                row.tokens,
                row.read_bytes,
                row.bytes_per_token,
            )
        })
        .collect();
    assert_eq!(
        phases,
        [
            ("prompt", 2, 8192, Some(4096.0)),
            ("generate", 2, 16384, Some(8192.0)),
            ("none", 0, 12288, None),
        ]
    );
    assert_eq!(reread.by_phase[1].factor_per_token, Some(0.2));
    let sums = |list: &[analysis::underneath::OwnerSum]| -> Vec<_> {
        list.iter()
            .map(|sum| {
                (
                    sum.name.clone(),
                    sum.read_bytes,
                    sum.whole_reads,
                    sum.read_again_bytes,
                )
            })
            .collect()
    };
    let row = |name: &str, read, whole, again| (name.to_owned(), read, whole, again);
    assert_eq!(
        sums(&results.by_tensor),
        [
            row("token_embd.weight", 8192, 1, 0),
            row("blk.0.attn_q.weight", 16384, 2, 8192),
            row("blk.0.ffn_down.weight", 4096, 1, 0),
            row("blk.1.ffn_down.weight", 4096, 0, 0),
        ]
    );
    assert_eq!(
        sums(&results.by_layer),
        [
            row("layer 0", 20480, 1, 8192),
            row("layer 1", 4096, 0, 0),
            row("no layer", 8192, 1, 0),
        ]
    );
    assert_eq!(
        sums(&results.by_component),
        [
            row("attention", 16384, 2, 8192),
            row("embedding", 8192, 1, 0),
            row("ffn", 8192, 0, 0),
        ]
    );
    assert_eq!(results.by_layer[0].reread_factor, 20480.0 / 12288.0);
    assert_eq!(results.most_read()[0].name, "blk.0.attn_q.weight");
}

#[test]
fn requests_are_seen_as_the_disk_sees_them() {
    let disk = results().disk.unwrap();
    assert_eq!((disk.requests, disk.bytes), (5, 36864));
    assert_eq!(disk.read_ahead_bytes, 8192);
    // B behind A, and C behind B; D is a page further on.
    assert_eq!((disk.sequential_bytes, disk.near_bytes), (12288, 16384));
    assert_eq!(disk.sequential_share, 12288.0 / 36864.0);
    assert_eq!(disk.median_bytes, 8192);
    let bin = |from_bytes, requests, bytes| SizeBin {
        from_bytes,
        requests,
        bytes,
    };
    assert_eq!(disk.sizes, [bin(4096, 2, 8192), bin(8192, 3, 28672)]);
    assert_eq!(disk.busy_nanos, 1100);
    assert_eq!(disk.mean_depth, 1300.0 / 1100.0);
    assert_eq!(disk.bytes_per_second, 32768 * 1_000_000_000 / 1100);
    assert_eq!((disk.median_nanos, disk.p99_nanos), (200, 600));
    assert_eq!(disk.unfinished, 1);
    assert_eq!((disk.other_requests, disk.other_bytes), (1, 4096));
    assert_eq!((disk.write_requests, disk.write_bytes), (1, 512));
}

#[test]
fn faults_have_owners_or_a_reason_why_not() {
    let results = results();
    let faults = results.faults.as_ref().unwrap();
    let counts = |major, minor| FaultCounts { major, minor };
    assert_eq!(faults.all, counts(6, 5));
    assert_eq!(faults.model, counts(6, 4));
    assert_eq!(faults.with_tensor, counts(5, 1));
    assert_eq!(faults.with_tensor_share, 0.6);
    let others: Vec<_> = faults
        .without_tensor
        .iter()
        .map(|other| (other.what.as_str(), other.file, other.major, other.minor))
        .collect();
    assert_eq!(
        others,
        [
            ("end", 0, 0, 1),
            ("header", 0, 1, 0),
            ("padding", 0, 0, 1),
            ("unknown_file", 3, 0, 1),
        ]
    );
    let phases: Vec<_> = faults
        .by_phase
        .iter()
        .map(|row| (row.phase.as_str(), row.major, row.minor))
        .collect();
    assert_eq!(
        phases,
        [("prompt", 2, 0), ("generate", 3, 4), ("none", 1, 0)]
    );
    let tensors: Vec<_> = results
        .by_tensor
        .iter()
        .map(|sum| (sum.major_faults, sum.minor_faults))
        .collect();
    assert_eq!(tensors, [(1, 0), (3, 1), (1, 0), (0, 0)]);
}

#[test]
fn a_fault_takes_from_its_first_read_to_its_report() {
    let waits = results().faults.unwrap().waits.unwrap();
    // Major: the header 110; B 420, and 430 in the thread that did not read it; C 300;
    // B again 570, from the thread's own fault before. Minor: two that read ahead.
    assert_eq!((waits.major, waits.minor, waits.unseen), (5, 2, 1));
    assert_eq!(waits.thread_nanos, 110 + 420 + 430 + 300 + 570 + 50 + 500);
    assert_eq!(waits.nanos, 110 + 430 + 620 + 500);
    assert_eq!((waits.threads, waits.mean_nanos), (2, 2380 / 7));
}

#[test]
fn without_minor_faults_only_the_read_of_the_page_counts() {
    let (tensors, io, mut faults) = (tensors(), io(), faults());
    faults.retain(|joined| joined.fault.kind == FaultKind::Major);
    // A read of the same thread long before: of another fault, for all we know.
    faults.retain(|joined| joined.fault.nanos != 3600);
    let waits = waits(&faults, &io, &model(&tensors));
    let found: Vec<_> = waits.iter().map(|w| (w.begin_nanos, w.end_nanos)).collect();
    assert_eq!(
        found,
        [(100, 210), (1100, 1520), (1100, 1530), (3100, 3720)]
    );
}

#[test]
fn a_minor_fault_that_is_over_with_the_read_of_its_page_has_waited() {
    let (tensors, io) = (tensors(), io());
    let of = |nanos| {
        let mut faults = faults();
        faults.retain(|joined| joined.fault.nanos == 3150);
        (faults[0].fault.nanos, faults[0].fault.tid) = (nanos, 9);
        let waits = waits(&faults, &io, &model(&tensors));
        waits.first().map(|wait| (wait.begin_nanos, wait.end_nanos))
    };
    assert_eq!(of(3700), Some((3100, 3700)));
    assert_eq!(of(3700 + 99_999), Some((3100, 103_699)));
    assert_eq!(of(3700 + 100_000), None, "it came later");
    assert_eq!(of(3699), None, "the read was not complete");
}

#[test]
fn nodes_have_the_time_in_which_reads_were_outstanding() {
    let stall = results().stall.unwrap();
    assert_eq!((stall.total.executions, stall.total.nanos), (9, 3000));
    assert_eq!(stall.total.io_nanos, 1000);
    assert_eq!(stall.total.io_share, 1000.0 / 3000.0);
    assert_eq!((stall.total.requests, stall.total.read_bytes), (4, 24576));
    let nodes: Vec<_> = stall
        .by_node
        .iter()
        .map(|node| {
            let sum = &node.sum;
            let name = (node.phase.as_str(), node.op.as_str(), node.layer);
            (
                name,
                sum.nanos,
                sum.io_nanos,
                sum.major_faults,
                sum.wait_nanos,
            )
        })
        .collect();
    assert_eq!(
        nodes,
        [
            (("generate", "MUL_MAT", Some(0)), 800, 400, 2, 800),
            (("prompt", "MUL_MAT", Some(0)), 400, 300, 2, 850),
            (("generate", "MUL_MAT", Some(1)), 800, 100, 1, 570),
            (("generate", "GET_ROWS", None), 400, 100, 0, 50),
            (("prompt", "GET_ROWS", None), 200, 100, 0, 0),
            (("prompt", "MUL_MAT", Some(1)), 400, 0, 0, 0),
        ]
    );
    let layers: Vec<_> = stall
        .by_layer
        .iter()
        .map(|layer| (layer.layer, layer.sum.io_nanos))
        .collect();
    assert_eq!(layers, [(Some(0), 700), (Some(1), 100), (None, 200)]);
}

#[test]
fn what_is_resident_and_read_tells_what_was_dropped() {
    let results = results();
    let residency = results.residency.as_ref().unwrap();
    assert_eq!(residency.samples, 3);
    assert_eq!(
        (residency.least_bytes, residency.most_bytes),
        (12288, 16384)
    );
    assert_eq!(residency.lost_bytes, 12288);
    assert_eq!(residency.evicted_bytes, Some(8192 + 16384));
    assert_eq!(residency.read_after_resident_bytes, Some(12288));
    let tensors: Vec<_> = results
        .by_tensor
        .iter()
        .map(|sum| (sum.mean_resident_share, sum.lost_bytes, sum.evicted_bytes))
        .collect();
    assert_eq!(
        tensors,
        [
            (Some(0.5), Some(8192), Some(8192)),
            (Some(2.0 / 3.0), Some(4096), Some(16384)),
            (Some(1.0 / 3.0), Some(0), Some(0)),
            (Some(0.0), Some(0), Some(0)),
        ]
    );
    let last = residency.timeline.points.last().unwrap();
    assert_eq!((last.token, last.resident_bytes), (3, 12288));
    let names: Vec<_> = residency
        .components
        .iter()
        .map(|c| c.component.as_str())
        .collect();
    assert_eq!(names, ["attention", "embedding", "ffn"]);
    assert_eq!(last.by_component, [4096, 0, 4096]);
}

#[test]
fn each_phase_has_its_verdict() {
    let results = results();
    let prompt = &results.verdicts[0];
    assert_eq!((prompt.phase.as_str(), prompt.nanos), ("prompt", 1000));
    assert_eq!(prompt.io_share, Some(0.4));
    assert_eq!(prompt.stall_share, Some(0.43));
    assert_eq!(prompt.fault_share, Some(850.0 / 2000.0));
    assert_eq!(prompt.touched_bytes_per_second, 700_000_000);
    assert_eq!(
        (prompt.verdict, prompt.or),
        (Some(Bound::MemoryBandwidth), None)
    );
    let generate = &results.verdicts[1];
    assert_eq!(
        (generate.io_nanos, generate.io_share),
        (Some(600), Some(0.3))
    );
    assert_eq!(generate.disk_bytes, Some(16384));
    assert_eq!(generate.mean_depth, Some(800.0 / 600.0));
    assert_eq!(generate.wait_nanos, Some(50 + 300 + 570 + 500));
    assert_eq!(generate.stall_nanos, Some(620 + 500));
    // With a microsecond for each of the two minor faults that did not read.
    assert_eq!(generate.fault_share, Some(3420.0 / 4000.0));
    assert_eq!(generate.verdict, Some(Bound::PageFaults));
    assert!(results.missing.is_empty(), "{:?}", results.missing);
}

/// One evaluation of a microsecond, reads of `(issued, completed, bytes)`, and major
/// faults by when they were over.
fn verdict_of(
    reads: Option<&[(u64, u64, u64)]>,
    fault_ends: Option<&[u64]>,
    speeds: Option<Speeds>,
    counters: Option<&Counters>,
) -> (Option<Bound>, Option<Bound>) {
    let work = work_of(
        &[("MUL_MAT", Some(0))],
        &[(Phase::Generate, 1, 10_000, &[11_000])],
    );
    let io: Option<Vec<_>> = reads.map(|reads| {
        (0..)
            .zip(reads)
            .map(|(request, &(issued, completed, bytes))| {
                Part {
                    request,
                    kind: "R",
                    sector: 0,
                    issued: 10_000 + issued,
                    completed: Some(10_000 + completed),
                    offset: Some(4096),
                    bytes,
                    owner: owner(0),
                    at: at(0, 0),
                }
                .joined()
            })
            .collect()
    });
    let one = faults().remove(1);
    let faults: Option<Vec<_>> = fault_ends.map(|ends| {
        ends.iter()
            .map(|end| {
                let mut fault = one;
                fault.fault.nanos = 10_000 + end;
                fault.fault.place = io.as_ref().and_then(|io| io[0].io.place);
                fault.at = at(0, 0);
                fault
            })
            .collect()
    });
    let mut traffic = traffic();
    for row in &mut traffic.rows {
        row.phase = "generate".to_owned();
    }
    let tensors = tensors();
    let results = Rows {
        model: &model(&tensors),
        work: &work,
        faults: faults.as_deref(),
        io: io.as_deref(),
        samples: None,
        counters,
        cpu: None,
        traffic: &traffic,
        speeds,
    }
    .results();
    let verdict = &results.verdicts[0];
    assert!(!verdict.why.is_empty());
    (verdict.verdict, verdict.or)
}

#[test]
fn the_rule_of_verdicts() {
    let speeds = |disk, memory| Some(Speeds { disk, memory });
    let gigabyte = 1_000_000_000;
    let check = |reads: &[(u64, u64, u64)], speeds, expect| {
        assert_eq!(
            verdict_of(Some(reads), None, speeds, None),
            expect,
            "{reads:?} {speeds:?}"
        );
    };
    let (disk, faults) = (Some(Bound::Disk), Some(Bound::PageFaults));
    let (memory, compute) = (Some(Bound::MemoryBandwidth), Some(Bound::Compute));
    // Half of the time, at six tenths of a byte a nanosecond, and a little less.
    check(&[(0, 500, 300)], speeds(gigabyte, gigabyte), (disk, None));
    check(&[(0, 500, 299)], speeds(gigabyte, gigabyte), (faults, None));
    // Without a ceiling, by how many are outstanding.
    check(&[(0, 500, 300)], None, (faults, None));
    check(&[(0, 500, 300), (0, 400, 1)], None, (disk, None));
    // Less than half of the time: memory, if it does its best.
    check(
        &[(0, 499, 4096)],
        speeds(gigabyte, 700_000_000),
        (memory, None),
    );
    check(
        &[(0, 499, 4096)],
        speeds(gigabyte, 2_000_000_000),
        (compute, None),
    );
    check(&[(0, 499, 4096)], None, (compute, memory));
    check(&[], None, (compute, memory));
    // Whether a fault is reported meanwhile makes no difference.
    let reads: &[(u64, u64, u64)] = &[(0, 600, 300), (100, 700, 300)];
    let check = |fault_ends: &[u64], expect| {
        let found = verdict_of(Some(reads), Some(fault_ends), None, None);
        assert_eq!(found.0, expect, "{fault_ends:?}");
    };
    check(&[], disk);
    check(&[400], disk);
    check(&[750], disk);
}

#[test]
fn totals_alone_allow_a_verdict_only_where_they_suffice() {
    let totals = |major_faults, read_bytes| Counters {
        major_faults: Some(major_faults),
        read_bytes: Some(read_bytes),
        ..Counters::default()
    };
    let check = |counters: Option<Counters>, expect| {
        assert_eq!(
            verdict_of(None, None, None, counters.as_ref()).0,
            expect,
            "{counters:?}"
        );
    };
    check(None, None);
    check(Some(totals(0, 0)), Some(Bound::Compute));
    // A fault takes longer than the whole evaluation took.
    check(Some(totals(1, 4096)), Some(Bound::PageFaults));
    check(Some(totals(0, 1 << 30)), None);
}

#[test]
fn what_was_not_recorded_is_absent_and_named() {
    let tensors = tensors();
    let results = Rows {
        model: &model(&tensors),
        work: &work(),
        faults: None,
        io: None,
        samples: Some(&samples()),
        counters: None,
        cpu: None,
        traffic: &TrafficResults::default(),
        speeds: None,
    }
    .results();
    assert!(results.reread.is_none() && results.disk.is_none() && results.faults.is_none());
    assert!(results.stall.is_none() && results.picture.is_none());
    assert_eq!(results.missing.len(), 3);
    assert_eq!(results.residency.unwrap().evicted_bytes, None);
    assert_eq!(results.by_tensor[0].evicted_bytes, None);
    assert_eq!(results.by_tensor[0].lost_bytes, Some(8192));
    assert!(
        results
            .verdicts
            .iter()
            .all(|verdict| verdict.verdict.is_none())
    );
}

#[test]
fn findings_have_evidence_that_the_results_contain() {
    let results = results();
    let json = serde_json::to_value(&results).unwrap();
    let list = findings::underneath(&results);
    assert!(list.len() >= 8, "{list:#?}");
    for finding in &list {
        let path = finding.evidence.strip_prefix("underneath.").unwrap();
        assert!(!json[path].is_null(), "{path}");
        assert_eq!(finding.topic, "underneath");
    }
    let back: UnderneathResults = serde_json::from_value(json).unwrap();
    assert_eq!(back, results);
}

#[test]
fn every_read_and_fault_of_the_model_is_in_the_picture() {
    let picture = results().picture.unwrap();
    assert_eq!(picture.read_bytes.iter().sum::<u64>(), 36864);
    assert_eq!(picture.major_faults.iter().sum::<u64>(), 6);
    // One minor fault is in an unknown file.
    assert_eq!(picture.minor_faults.iter().sum::<u64>(), 3);
    assert_eq!((picture.begin_nanos, picture.end_nanos), (100, 6000));
    // The header and A are at the left and top edge, D's half at the right.
    assert_eq!(picture.read_bytes[0], 4096);
}

proptest! {
    #[test]
    fn a_union_covers_what_one_of_its_intervals_covers(
        intervals in prop::collection::vec((0u64..60, 0u64..60), 0..12),
        others in prop::collection::vec((0u64..60, 0u64..60), 0..6),
        begin in 0u64..60,
        end in 0u64..60,
    ) {
        let is_in = |list: &[(u64, u64)], moment: u64| {
            list.iter().any(|(begin, end)| (*begin..*end).contains(&moment))
        };
        let count = |test: &dyn Fn(u64) -> bool| (0..60).filter(|m| test(*m)).count() as u64;
        let union = Union::of(intervals.clone());
        let other = Union::of(others.clone());
        prop_assert_eq!(union.nanos(), count(&|m| is_in(&intervals, m)));
        let inside = |m| is_in(&intervals, m) && (begin..end).contains(&m);
        prop_assert_eq!(union.within(begin, end), count(&inside));
        let both = |m| is_in(&intervals, m) && is_in(&others, m);
        prop_assert_eq!(union.common(&other), count(&both));
        prop_assert_eq!(other.common(&union), count(&both));
    }

    #[test]
    fn reads_of_a_tensor_are_counted_byte_by_byte(
        reads in prop::collection::vec((0u64..16, 1u64..16), 0..12),
    ) {
        // Parts of A never leave it.
        let parts: Vec<_> = (0..)
            .zip(&reads)
            .map(|(request, &(begin, bytes))| Part {
                request,
                kind: "R",
                sector: 0,
                issued: request,
                completed: None,
                offset: Some(4096 + begin * 512),
                bytes: bytes.min(16 - begin) * 512,
                owner: owner(0),
                at: None,
            }.joined())
            .collect();
        let mut times = [0u64; 16];
        for &(begin, bytes) in &reads {
            for unit in begin..(begin + bytes).min(16) {
                times[unit as usize] += 1;
            }
        }
        let tensors = tensors();
        let (sum, of_tensor) = reread(&parts, &Work::default(), &model(&tensors));
        prop_assert_eq!(of_tensor[0].read_bytes, times.iter().sum::<u64>() * 512);
        let distinct = times.iter().filter(|times| **times > 0).count() as u64 * 512;
        prop_assert_eq!(of_tensor[0].distinct_bytes, distinct);
        prop_assert_eq!(of_tensor[0].whole_reads, *times.iter().min().unwrap());
        prop_assert_eq!(sum.distinct_bytes, distinct);
    }
}
