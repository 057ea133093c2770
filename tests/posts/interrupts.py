"""Interrupts that hit a program while it runs, by their kinds, and what it costs to wait for threads beside others.

    python3 interrupts.py --tensorscope TENSORSCOPE [--rounds 7] [--tokens 448]

Needs root and perf. One thread, two threads, and two threads that sleep when they wait (OMP_WAIT_POLICY), in turns:
of a whole run the median of each count and of the time, as JSON. Counts are of the program's own threads, not of the
machine.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

EVENTS = {
    "timer": "irq_vectors:local_timer_entry",
    "reschedule": "irq_vectors:reschedule_entry",
    "function_call": "irq_vectors:call_function_single_entry",
    "device": "irq:irq_handler_entry",
    "soft": "irq:softirq_entry",
    "switches": "context-switches",
    "cpu_ms": "task-clock",
}
WAYS = {"one": ("1", {}), "two": ("2", {}), "two_sleeping": ("2", {"OMP_WAIT_POLICY": "passive"})}


def counted(tensorscope: str, threads: str, environment: dict, tokens: int) -> dict:
    words = ["perf", "stat", "-x", ";", "-e", ",".join(EVENTS.values()), tensorscope, "run", "-q", "-t", threads,
             "-m", "models/shakespeare-moe.gguf", "-p", "ROMEO:", "-n", str(tokens), "--ignore-eos"]
    begin = time.monotonic()
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **environment}, check=True)
    row = {"seconds": time.monotonic() - begin}
    names = {event: name for name, event in EVENTS.items()}
    for line in done.stderr.splitlines():
        fields = line.split(";")
        if len(fields) > 2 and fields[2] in names:
            row[names[fields[2]]] = float(fields[0])
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tensorscope", required=True)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=448)
    args = parser.parse_args()
    rows: dict[str, list[dict]] = {name: [] for name in WAYS}
    load = [Path("/proc/loadavg").read_text().split()[0]]
    for _ in range(args.rounds):
        for name, (threads, environment) in WAYS.items():
            rows[name].append(counted(args.tensorscope, threads, environment, args.tokens))
    load.append(Path("/proc/loadavg").read_text().split()[0])
    ways = {}
    for name, found in rows.items():
        of = {key: [row[key] for row in found] for key in found[0]}
        ways[name] = {key: {"median": statistics.median(values), "least": min(values), "most": max(values)} for key, values in of.items()}
        ways[name]["us_per_token"] = statistics.median(of["seconds"]) / args.tokens * 1e6
    print(json.dumps({"tokens": args.tokens, "rounds": args.rounds, "load": [float(value) for value in load], "ways": ways}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
