//! Canonical regions against a naive set of bytes.

use std::collections::BTreeSet;

use proptest::prelude::*;
use trace::region::Strided;

fn naive(offset: u64, run_bytes: u64, dims: &[(u64, u64)]) -> BTreeSet<u64> {
    let mut starts = vec![offset];
    for &(count, stride) in dims {
        starts = starts
            .iter()
            .flat_map(|s| (0..count).map(move |i| s + i * stride))
            .collect();
    }
    starts
        .into_iter()
        .flat_map(|start| start..start + run_bytes)
        .collect()
}

fn runs(strided: &Strided) -> Vec<(u64, u64)> {
    let mut runs = Vec::new();
    strided.for_each_run(|offset, bytes| runs.push((offset, bytes)));
    runs
}

fn dims() -> impl Strategy<Value = Vec<(u64, u64)>> {
    proptest::collection::vec((0u64..6, 0u64..40), 0..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn canonical_form_names_the_same_bytes_once_and_in_order(
        offset in 0u64..100, run_bytes in 0u64..20, dims in dims(),
    ) {
        let expected = naive(offset, run_bytes, &dims);
        let region = Strided::new(offset, run_bytes, dims.iter().copied());
        prop_assert_eq!(region.bytes(), expected.len() as u64);
        prop_assert_eq!(region.end().unwrap(), expected.last().map_or(0, |last| last + 1));
        let runs = runs(&region);
        let listed: Vec<u64> = runs.iter().flat_map(|&(offset, bytes)| offset..offset + bytes).collect();
        prop_assert_eq!(listed, expected.into_iter().collect::<Vec<_>>());
        prop_assert!(region.dims.windows(2).all(|w| w[0].1 < w[1].1), "ascending: {region:?}");
    }

    #[test]
    fn the_order_of_dimensions_does_not_matter(
        run_bytes in 1u64..20, dims in dims().prop_shuffle(), other in any::<prop::sample::Index>(),
    ) {
        let mut rotated = dims.clone();
        if !dims.is_empty() {
            rotated.rotate_left(other.index(dims.len()));
        }
        prop_assert_eq!(Strided::new(0, run_bytes, dims), Strided::new(0, run_bytes, rotated));
    }
}

#[test]
fn windows_and_rows_without_padding_merge() {
    let check = |run, dims: &[(u64, u64)], expect: (u64, &[(u64, u64)])| {
        let region = Strided::new(5, run, dims.iter().copied());
        assert_eq!(
            (region.run_bytes, region.dims.as_slice()),
            expect,
            "{run} {dims:?}"
        );
    };
    check(4, &[(8, 4), (3, 32)], (96, &[]));
    check(4, &[(3, 64), (8, 4)], (32, &[(3, 64)]));
    // Two padded matrices after each other are one taller matrix.
    check(32, &[(8, 40), (3, 320)], (32, &[(24, 40)]));
    // A window of three rows that slides by one row, and one that skips a row.
    check(32, &[(3, 40), (6, 40)], (32, &[(8, 40)]));
    check(32, &[(3, 40), (6, 80)], (32, &[(13, 40)]));
    check(32, &[(2, 40), (6, 120)], (32, &[(2, 40), (6, 120)]));
    // Broadcast, a single row, nothing.
    check(32, &[(7, 0), (1, 999)], (32, &[]));
    check(32, &[(0, 40)], (0, &[]));
    check(0, &[(4, 40)], (0, &[]));
}

#[test]
fn impossible_extents_saturate_instead_of_failing() {
    let region = Strided::new(u64::MAX, u64::MAX, [(u64::MAX, 3), (u64::MAX, u64::MAX)]);
    assert_eq!(region.end(), None);
    let sparse = Strided {
        offset: 0,
        run_bytes: 1,
        dims: vec![(u64::MAX, 2), (u64::MAX, 3)],
    };
    assert_eq!((sparse.end(), sparse.bytes()), (None, u64::MAX));
}
