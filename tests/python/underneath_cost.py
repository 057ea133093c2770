"""What `record --faults --io` costs under memory pressure, paired.

    python underneath_cost.py TENSORSCOPE MODEL MEMORY [PAIRS] [TOKENS]

Records the same generation with and without, in turn, each in its own memory cgroup
with a cold cache, and prints the median of the paired slow-downs with its 95 %
interval, beside a control: without against without.
"""

import json
import math
import pathlib
import subprocess
import sys
import tempfile

tensorscope, model, memory = sys.argv[1:4]
pairs = int(sys.argv[4]) if len(sys.argv) > 4 else 15
tokens = sys.argv[5] if len(sys.argv) > 5 else "8"


def seconds(folder, number, flags):
    """Time of the generating evaluations, and what was recorded underneath."""
    run = pathlib.Path(folder) / str(number)
    command = [tensorscope, "record", "-q", "-m", model, "-p", "hello", "-n", tokens, "--ignore-eos"]
    command += ["--memory", memory, "--cold", "--no-tables", "-o", run, *flags]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    metadata = json.loads((run / "metadata.json").read_text())
    return 1 / metadata["statistics"]["tokens_per_second_generate"], metadata["underneath"]


def interval(values):
    values = sorted(values)
    half = 0.98 * math.sqrt(len(values))
    low = max(0, math.floor(len(values) / 2 - half))
    high = min(len(values) - 1, math.ceil(len(values) / 2 + half))
    return values[len(values) // 2], values[low], values[high]


with tempfile.TemporaryDirectory() as folder:
    rounds, events = [], 0
    for number in range(pairs):
        kinds = [("plain", []), ("again", []), ("watched", ["--faults", "--io"])]
        times = {}
        # The order rotates, so that noise falls on all alike.
        for turn in range(3):
            name, flags = kinds[(turn + number) % 3]
            times[name], below = seconds(folder, f"{number}-{name}", flags)
            if flags:
                events += below["recorded_faults"] + below["requests"]
        rounds.append(times)
    base = interval([r["plain"] for r in rounds])[0]
    print(f"{pairs} rounds of {tokens} tokens, {base * 1000:.0f} ms a token, {events / pairs:.0f} events a run")
    for name in ["again", "watched"]:
        median, low, high = interval([r[name] / r["plain"] - 1 for r in rounds])
        print(f"{name:8} {median:+.2%}  (95 %: {low:+.2%} … {high:+.2%})")
