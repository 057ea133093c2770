#!/usr/bin/env python3
"""Writes a tiny model of every shape and type that `tensorscope synth` knows.

usage: make_fixtures.py TENSORSCOPE OUT_DIR

OUT_DIR is emptied first, so that no fixture outlives the code that wrote it.
Presets and types are asked from the program: what it learns to write is tested
without a change here.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

# Few enough that every tiny model becomes several files.
TENSORS_PER_FILE = "10"


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    program, out_dir = sys.argv[1], Path(sys.argv[2])
    presets = [entry["preset"] for entry in json.loads(run(program, "synth", "--list", "--json"))]
    types = list_types(run(program, "synth", "--list"))
    if not presets or not types:
        raise SystemExit("make_fixtures: `synth --list` lists nothing")
    if out_dir.exists():
        shutil.rmtree(out_dir)
    out_dir.mkdir(parents=True)
    for preset in presets:
        for type_name in types:
            out = out_dir / f"{preset}.{type_name}.gguf"
            run(program, "synth", "--like", preset, "--tiny", "--type", type_name, "-o", str(out))
    # One type is enough for splitting: it is about files, not about blocks.
    for preset in presets:
        out = out_dir / f"{preset}.split.gguf"
        run(program, "synth", "--like", preset, "--tiny", "--split", TENSORS_PER_FILE, "-o", str(out))
    print(f"{len(presets)} presets x {len(types)} types and {len(presets)} split sets in {out_dir}")
    return 0


def list_types(listing: str) -> list[str]:
    """The last line of the listing for people ends in `types: f32, f16, …`."""
    _, found, types = listing.strip().splitlines()[-1].partition("types: ")
    return types.split(", ") if found else []


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        line = " ".join(command)
        raise SystemExit(f"make_fixtures: `{line}` ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
