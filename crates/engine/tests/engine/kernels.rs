//! llama.cpp's kernels, timed.

use std::time::Duration;

use engine::kernels::{Experts, Heads, Kernels, Matrix, Timing};
use gguf::GgmlType;

use crate::fixtures::alone;

fn is_sound(timing: &Timing) -> bool {
    let Timing {
        best,
        median,
        worst,
    } = *timing;
    best > 0.0 && best <= median && median <= worst && worst < 1.0
}

fn matrix(ty: GgmlType) -> Matrix {
    Matrix {
        ty,
        columns: 512,
        rows: 256,
    }
}

#[test]
fn kernels_take_time_and_more_tokens_take_more() {
    let _alone = alone();
    let kernels = Kernels::new(2, Duration::from_millis(1), 64 << 20).unwrap();
    for ty in [
        GgmlType::Q4_0,
        GgmlType::Q4_K,
        GgmlType::F16,
        GgmlType::BF16,
    ] {
        // Beside other programs a round may take a thousand times as long.
        let mut tries = (0..20).map(|_| kernels.product(matrix(ty), &[1, 256]).unwrap());
        let takes_more = tries.any(|timings| {
            assert!(
                timings.iter().all(|(_, timing)| is_sound(timing)),
                "{timings:?}"
            );
            timings[1].1.best > 4.0 * timings[0].1.best
        });
        assert!(takes_more, "{ty:?}");
    }
    let experts = Experts {
        matrix: matrix(GgmlType::Q8_0),
        count: 16,
        used: 2,
    };
    let timings = kernels.experts(experts, &[1, 16]).unwrap();
    assert!(
        timings.iter().all(|(_, timing)| is_sound(timing)),
        "{timings:?}"
    );
    let heads = Heads {
        cache: GgmlType::F16,
        heads: 4,
        kv_heads: 2,
        key_length: 64,
        value_length: 64,
    };
    let timings = kernels.attention(heads, &[1, 64], 512).unwrap();
    assert!(
        timings.iter().all(|(_, timing)| is_sound(timing)),
        "{timings:?}"
    );
    assert!(kernels.element(32).is_some_and(|timing| is_sound(&timing)));
    // Rows that are not whole blocks have no product.
    let odd = Matrix {
        columns: 100,
        ..matrix(GgmlType::Q4_0)
    };
    assert_eq!(kernels.product(odd, &[1]), None);
}

#[test]
fn repacked_weights_are_timed_too() {
    let _alone = alone();
    let kernels = Kernels::new(2, Duration::from_millis(1), 64 << 20).unwrap();
    // Only where this processor has such kernels.
    if let Some(times) = kernels.repacked_product(matrix(GgmlType::Q4_0), &[64]) {
        assert!(is_sound(&times[0].1), "{times:?}");
    }
    assert_eq!(kernels.repacked_product(matrix(GgmlType::F32), &[64]), None);
}
