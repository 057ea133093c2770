#!/usr/bin/env python3
"""Compares what tensorscope says about GGUF files with what PyPI's gguf says.

usage: check_gguf.py TENSORSCOPE FILE_OR_FOLDER...

For every fixture and every tensor in it: name, file, offset, size and type must
agree in `inspect --csv`, and shape besides in `inspect --json`. Slices of a tensor
(experts) must lie end to end and add up to it in both. A set of split files is one fixture, given to tensorscope by its first file.

Prints a line per difference, then `N passed, M failed`, where each tensor counts
once for each of the two formats. Exit code 1 when anything failed or nothing was
compared.
"""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from gguf import GGUFReader

SPLIT = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
DIFFERENCES_SHOWN = 10


@dataclass(frozen=True)
class Tensor:
    file: str
    offset: int
    size: int
    type: str
    # None where the format does not say.
    shape: tuple[int, ...] | None


class Difference(Exception):
    """The two readers disagree, or ours is not consistent with itself."""


def main() -> int:
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    program = sys.argv[1]
    passed = failed = 0
    for fixture in find_fixtures(sys.argv[2:]):
        differences = []
        try:
            theirs = read_theirs(fixture)
            for form, read in (("csv", read_csv), ("json", read_json)):
                try:
                    agreed, found = compare(theirs, read(program, fixture[0]))
                except Difference as difference:
                    # Unreadable as a whole: every tensor of it counts.
                    agreed, found = 0, [str(difference)] * len(theirs)
                passed += agreed
                differences += [f"--{form}: {line}" for line in found]
        except (ValueError, OSError) as error:
            differences.append(f"PyPI gguf cannot read it: {error}")
        failed += len(differences)
        for line in list(dict.fromkeys(differences))[:DIFFERENCES_SHOWN]:
            print(f"{fixture[0]}: {line}")
        if len(differences) > DIFFERENCES_SHOWN:
            print(f"{fixture[0]}: {len(differences)} differences in all")
    print(f"{passed} passed, {failed} failed")
    return 0 if passed and not failed else 1


def find_fixtures(arguments: list[str]) -> list[list[Path]]:
    """Lists of files: one file, or all files of a split set in their order."""
    paths: list[Path] = []
    for argument in map(Path, arguments):
        found = sorted(argument.glob("*.gguf")) if argument.is_dir() else [argument]
        if not found:
            raise SystemExit(f"check_gguf: {argument}: no .gguf file in it")
        paths += found
    sets: dict[Path, list[Path]] = {}
    for path in paths:
        stem = path.with_name(SPLIT.sub("", path.name))
        sets.setdefault(stem, []).append(path)
    return [sorted(files) for files in sets.values()]


def read_theirs(files: list[Path]) -> dict[str, Tensor]:
    tensors = {}
    for file in files:
        for tensor in GGUFReader(file).tensors:
            tensors[tensor.name] = Tensor(
                file=file.name,
                offset=int(tensor.data_offset),
                size=int(tensor.n_bytes),
                type=tensor.tensor_type.name.lower(),
                shape=tuple(int(n) for n in tensor.shape),
            )
    return tensors


def read_csv(program: str, file: Path) -> dict[str, Tensor]:
    slices: dict[str, list[Tensor]] = {}
    for row in csv.DictReader(io.StringIO(inspect(program, file, "--csv"))):
        piece = Tensor(
            file=Path(row["file"]).name,
            offset=int(row["file_offset"]),
            size=int(row["size_bytes"]),
            type=row["type"].lower(),
            shape=None,
        )
        slices.setdefault(row["tensor_name"], []).append(piece)
    return {name: join(name, pieces) for name, pieces in slices.items()}


def join(name: str, pieces: list[Tensor]) -> Tensor:
    pieces.sort(key=lambda piece: piece.offset)
    whole = pieces[0]
    for piece in pieces[1:]:
        if (piece.file, piece.type) != (whole.file, whole.type):
            raise Difference(f"{name}: slices differ in file or type")
        if piece.offset != whole.offset + whole.size:
            raise Difference(
                f"{name}: a slice begins at {piece.offset}, "
                f"but the one before it ends at {whole.offset + whole.size}"
            )
        whole = replace(whole, size=whole.size + piece.size)
    return whole


def read_json(program: str, file: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for entry in json.loads(inspect(program, file, "--json"))["tensors"]:
        name = entry["tensor_name"]
        if name in tensors:
            raise Difference(f"{name}: listed twice")
        tensor = Tensor(
            file=Path(entry["file"]).name,
            offset=entry["file_offset"],
            size=entry["size_bytes"],
            type=entry["type"].lower(),
            shape=tuple(entry["shape"]),
        )
        slices = [
            replace(tensor, offset=expert["file_offset"], size=expert["size_bytes"])
            for expert in entry.get("experts", [])
        ]
        if slices and join(name, slices) != tensor:
            raise Difference(f"{name}: its experts do not add up to it")
        tensors[name] = tensor
    return tensors


def inspect(program: str, file: Path, form: str) -> str:
    done = subprocess.run([program, "inspect", str(file), form], capture_output=True, text=True)
    if done.returncode != 0:
        raise Difference(f"exit code {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def compare(theirs: dict[str, Tensor], ours: dict[str, Tensor]) -> tuple[int, list[str]]:
    """How many tensors agree, and a line for each that does not."""
    agreed = 0
    differences = []
    for name in theirs | ours:
        their, our = theirs.get(name), ours.get(name)
        if our is None or their is None:
            differences.append(f"{name}: only {'we' if our else 'they'} have it")
            continue
        if our.shape is None:
            their = replace(their, shape=None)
        if our == their:
            agreed += 1
        else:
            differences.append(f"{name}: we say {our}, they say {their}")
    return agreed, differences


if __name__ == "__main__":
    sys.exit(main())
