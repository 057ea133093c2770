//! A random trace of equal items and what each policy hits on it, as JSON, for
//! `tests/python/check_cache.py` to compare with an independent simulator.
//!
//! `cargo run --release -p analysis --example cache_dump [ACCESSES [ITEMS [SEED]]]`

use analysis::{cache_trace::CacheTrace, curves::LruCurve, reuse::ReuseTables};
use plan::{
    Policy,
    belady::{self, Admission, NextUses},
    routing,
};

fn main() {
    let mut arguments = std::env::args().skip(1).map(|a| a.parse::<u64>());
    let mut next = |default| arguments.next().and_then(Result::ok).unwrap_or(default);
    let (accesses, items, mut state) = (next(20_000), next(200).max(2), next(1));
    let mut random = |below: u64| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) % below
    };
    // Skewed, with a hot set that moves, and now and then a scan.
    let trace = (0..accesses).map(|at| match at % 1000 {
        0..200 => at % items,
        _ => (random(items) * random(items) / items + at / 5000) % items,
    });
    let trace: Vec<u32> = trace.map(|item| item as u32).collect();
    let trace = CacheTrace::whole_items(vec![1; items as usize], trace);
    let lru = LruCurve::of(&ReuseTables::of(&trace).run);
    let next_uses = NextUses::of(&trace);
    let sizes = [1, 2, 3, 5, 10, 25, 50, 100, 150, items - 1, items];
    let sizes: Vec<u64> = sizes.into_iter().filter(|&size| size <= items).collect();
    let hits = |f: &dyn Fn(u64) -> u64| sizes.iter().map(|&size| f(size)).collect::<Vec<u64>>();
    let belady = |size, admission| {
        let misses = belady::misses(&trace, &next_uses, size, admission);
        accesses - misses.run.accesses
    };
    println!(
        "{}",
        serde_json::json!({
            "trace": trace.accesses,
            "sizes": sizes,
            "hits": {
                "lru": hits(&|size| accesses - lru.misses(size).accesses),
                "lfu": hits(&|size| routing::hits(&trace, size, Policy::Lfu).run),
                "belady": hits(&|size| belady(size, Admission::Always)),
                "belady_with_bypass": hits(&|size| belady(size, Admission::Bypass)),
            },
        })
    );
}
