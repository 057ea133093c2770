"""Processor time of a token with one replica of a small model on a card, and with several.

    python3 replicas.py --lab TENSORSCOPE_LAB [--json FILE]

Replicas are processes of the lab's experiment `replicas` (`tensorscope-lab lab --replica`), started here so that
the processor time of each can be read from /proc before and after it has made its tokens.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LAYERS, SEED = 8, 7
COUNTS, BATCHES = (1, 2, 4), (1, 32)
# Long enough for clock ticks of 10 ms.
SECONDS = 1.0


class Replica:
    def __init__(self, lab: str, environment: dict):
        words = [lab, "lab", "--replica", f"{LAYERS} {SEED}"]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})

    def ask(self, batch: int, steps: int):
        self.process.stdin.write(f"{batch} {steps}\n")
        self.process.stdin.flush()

    def wait(self):
        line = self.process.stdout.readline().strip()
        if line != "done":
            raise RuntimeError(line or "a replica ended")

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self):
        self.process.kill()
        self.process.wait()


def together(replicas: list[Replica], batch: int, steps: int) -> tuple[float, float]:
    """Seconds until all are done, and processor seconds of all."""
    before, begin = sum(replica.cpu_seconds() for replica in replicas), time.monotonic()
    for replica in replicas:
        replica.ask(batch, steps)
    for replica in replicas:
        replica.wait()
    return time.monotonic() - begin, sum(replica.cpu_seconds() for replica in replicas) - before


def measured(lab: str, company: str, environment: dict) -> list[dict]:
    replicas = [Replica(lab, environment) for _ in range(max(COUNTS))]
    rows = []
    try:
        for batch in BATCHES:
            together(replicas, batch, 0)
            for count in COUNTS:
                some = replicas[:count]
                steps = max(2, int(SECONDS / (together(some, batch, 50)[0] / 50)))
                seconds, cpu_seconds = together(some, batch, steps)
                tokens = count * batch * steps
                row = {"company": company, "replicas": count, "batch": batch, "tokens_per_second": tokens / seconds,
                       "cpu_us_per_token": cpu_seconds / tokens * 1e6, "processors": cpu_seconds / seconds,
                       "step_ms": seconds / steps * 1e3}
                rows.append(row)
                print(f"{company:<9} replicas {count}  batch {batch:<3} {row['tokens_per_second']:10.1f} tokens/s  {row['step_ms']:.3f} ms a step  "
                      f"{row['cpu_us_per_token']:8.2f} us of processor a token  {row['processors']:.2f} processors", flush=True)
    finally:
        for replica in replicas:
            replica.end()
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lab", required=True)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = measured(args.lab, "in turns", {})
    control = shutil.which("nvidia-cuda-mps-control") or "/usr/local/nvidia/bin/nvidia-cuda-mps-control"
    with tempfile.TemporaryDirectory() as folder:
        places = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipes", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/logs"}
        for place in places.values():
            Path(place).mkdir()
        environment = {**os.environ, **places}
        try:
            subprocess.run([control, "-d"], env=environment, check=True, timeout=10, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            rows += measured(args.lab, "under MPS", places)
        except (OSError, subprocess.SubprocessError, RuntimeError) as error:
            print(f"under MPS: {error}")
        finally:
            if Path(control).exists():
                subprocess.run([control], input="quit -t 1\n", text=True, env=environment, timeout=20, check=False)
    if args.json:
        args.json.write_text(json.dumps({"command": "python3 tests/posts/card/replicas.py --lab tensorscope-lab", "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
