#!/usr/bin/env python3
"""Assembles every PTX file of the repository with NVIDIA's own assembler.

usage: check_ptx.py --root DIR --cache DIR [--skipped FILE]

`bench ceilings` hands PTX to a card's driver, which compiles it there. A machine without a card
can at least assemble it: ptxas of PyPI's nvidia-cuda-nvcc, which pip downloads once into the
cache, for each generation of cards that the file says it runs on.

A wrong hash is a failure, as is a register that is spilled: the kernels are loops over registers.
When the registry does not answer, that is printed, counted, and written to the file of --skipped.
Exit code 1 when anything failed or nothing was assembled.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from check_models import Failure, Skip, append_member, download, expect_hash

PACKAGE = "nvidia-cuda-nvcc==13.4.92"
PTXAS_SHA256 = "6f6a701573ac9f5c2409708b3b700cb9b2a0f11b13c20468153c13b597b2d6d3"
# Ampere, Hopper, Blackwell for data centres and for desks.
GENERATIONS = [80, 90, 100, 120]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--skipped", type=Path)
    args = parser.parse_args()
    files = sorted(args.root.glob("crates/**/*.ptx"))
    skipped, failed, passed = [], [], 0
    try:
        ptxas = fetch(args.cache)
        for file in files:
            for generation in GENERATIONS:
                try:
                    assemble(ptxas, file, generation)
                    passed += 1
                except Failure as failure:
                    failed.append(f"{file.relative_to(args.root)} for sm_{generation}: {failure}")
                    print(failed[-1], flush=True)
    except Skip as skip:
        skipped.append(f"ptxas: {skip}")
        print(f"skipped: {skipped[-1]}", flush=True)
    print(f"{len(files)} files for {len(GENERATIONS)} generations: {passed} passed, {len(failed)} failed, {len(skipped)} skipped")
    if args.skipped:
        args.skipped.write_text("".join(f"{line}\n" for line in skipped))
    return int(bool(failed) or not (passed or skipped))


def fetch(cache: Path) -> Path:
    """The assembler in the cache, downloaded if it is not there."""
    path = cache / "ptxas"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as name:
            fresh = Path(name) / "ptxas"
            wheel = download(PACKAGE, Path(name) / "wheels", ())
            with fresh.open("wb") as out:
                append_member(wheel, "bin/ptxas", out)
            expect_hash(fresh, PTXAS_SHA256, "the package has changed")
            fresh.chmod(0o755)
            fresh.rename(path)
    expect_hash(path, PTXAS_SHA256, "remove it to have it downloaded again")
    return path


def assemble(ptxas: Path, file: Path, generation: int) -> None:
    target = re.search(r"^\.target sm_(\d+)$", file.read_text(), re.MULTILINE)
    if not target or int(target.group(1)) > generation:
        raise Failure("it has no target that this generation runs")
    done = subprocess.run(
        [ptxas, "--verbose", f"--gpu-name=sm_{generation}", "--output-file=/dev/null", file],
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise Failure(done.stderr.strip() or done.stdout.strip())
    said = done.stdout + done.stderr
    spills = [int(n) for n in re.findall(r"(\d+) bytes spill stores", said)]
    if not spills or any(spills):
        raise Failure(f"registers are spilled, or nothing was compiled: {said.strip()}")


if __name__ == "__main__":
    sys.exit(main())
