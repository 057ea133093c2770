#!/usr/bin/env python3
"""Compares crate analysis's cache policies with PyPI's libcachesim.

usage: check_cache.py DUMP.json...

A dump is what `cargo run --release -p analysis --example cache_dump` prints: a trace
of equal items, cache sizes, and the hits of each policy at each size. libcachesim,
an independent simulator, runs the same trace; LRU, LFU and Belady's rule without
bypass must hit as often. Belady's rule with bypass, which libcachesim does not have,
must hit at least as often as without. LFU with ageing is left out: libcachesim 0.3.5
crashes on it in small caches.

Prints a line per difference, then `N passed, M failed`. Exit code 1 when anything
failed or nothing was compared.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import libcachesim

POLICIES = {
    "lru": libcachesim.LRU,
    "lfu": libcachesim.LFU,
    "belady": libcachesim.Belady,
}

# What libcachesim calls the next use of an object that has none.
NEVER = (1 << 63) - 1


def next_uses(trace: list[int]) -> list[int]:
    upcoming: dict[int, int] = {}
    answer = [NEVER] * len(trace)
    for at in range(len(trace) - 1, -1, -1):
        answer[at] = upcoming.get(trace[at], NEVER)
        upcoming[trace[at]] = at
    return answer


def hits(policy, trace: list[int], following: list[int], size: int) -> int:
    cache = policy(cache_size=size, hashpower=12)
    count = 0
    for at, (item, upcoming) in enumerate(zip(trace, following)):
        request = libcachesim.Request()
        request.obj_id = item
        request.obj_size = 1
        request.clock_time = at
        request.next_access_vtime = upcoming
        count += bool(cache.get(request))
    return count


def main(dumps: list[str]) -> int:
    passed = failed = 0
    for dump in dumps:
        data = json.loads(Path(dump).read_text())
        trace = data["trace"]
        following = next_uses(trace)
        for name, policy in POLICIES.items():
            for size, ours in zip(data["sizes"], data["hits"][name], strict=True):
                theirs = hits(policy, trace, following, size)
                if ours == theirs:
                    passed += 1
                else:
                    failed += 1
                    print(f"{dump}: {name}, {size} slots: {ours} hits, libcachesim has {theirs}")
        pairs = zip(data["hits"]["belady_with_bypass"], data["hits"]["belady"], strict=True)
        for size, (free, forced) in zip(data["sizes"], pairs, strict=True):
            if free >= forced:
                passed += 1
            else:
                failed += 1
                print(f"{dump}: belady, {size} slots: {free} hits with bypass, {forced} without")
    print(f"{passed} passed, {failed} failed")
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
