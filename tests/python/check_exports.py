#!/usr/bin/env python3
"""Checks every export of a run by the rules of the tools that read it.

usage: check_exports.py TENSORSCOPE RUN

Runs `tensorscope export RUN --to …` for each format and compares with `tensorscope
report RUN --json`: the same evaluations, nodes, accesses, bytes and nanoseconds
must come out of all of them. Besides:

- Perfetto: the Chrome trace event format (required keys by phase, slices of a
  track nest, counters hold numbers);
- flame graph: well-formed, bars within the bar above, nothing loaded from outside;
- every format written twice gives the same bytes.

Needs nothing but Python. Prints a line per failure, then `N passed, M failed`.
Exit code 1 when anything failed.
"""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from pathlib import Path

TABLES = ("tensors", "evals", "tokens", "nodes", "accesses", "routing", "devices", "kernels", "copies")
FAILURES_SHOWN = 20

passed = 0
failures: list[str] = []


def check(what: str, holds: bool, detail: object = "") -> None:
    global passed
    if holds:
        passed += 1
    else:
        failures.append(f"{what}: {detail}" if detail != "" else what)


def equal(what: str, found: object, expected: object) -> None:
    check(what, found == expected, f"found {found!r}, expected {expected!r}")


class Exporter:
    """Runs `tensorscope export`, each time into a new file."""

    def __init__(self, program: str, run: str, folder: Path):
        self.program, self.run, self.folder, self.files = program, run, folder, 0

    def path(self, *flags: str) -> Path:
        self.files += 1
        path = self.folder / f"{self.files:03}"
        subprocess.run([self.program, "export", self.run, *flags, "-o", str(path)], check=True)
        return path

    def text(self, *flags: str) -> str:
        """The output; also checks that it does not depend on chance."""
        first = self.path(*flags).read_bytes()
        check(f"{' '.join(flags)}: the same bytes again", self.path(*flags).read_bytes() == first)
        return first.decode("utf-8")


class Expected:
    """What `report` says."""

    def __init__(self, program: str, run: str):
        out = subprocess.run([program, "report", run, "--json"], check=True, stdout=subprocess.PIPE)
        report = json.loads(out.stdout)
        self.evaluations, self.steps = report["evaluations"], report["steps"]
        self.accesses, self.routes = report["accesses"], report["routes"]
        self.bytes = sum(kind["bytes"] for kind in report["by_kind"])
        self.nanos = sum(op["nanos"] for op in report["by_op"])
        self.bytes_by_kind = {(k["kind"], k["direction"]): k["bytes"] for k in report["by_kind"]}
        self.nanos_by_op = {op["op"]: op["nanos"] for op in report["by_op"]}
        self.bytes_by_tensor = {t["tensor"]: t["bytes"] for t in report["by_tensor"]}
        self.tokens = sum(phase["tokens"] for phase in report["by_phase"])

    def sum(self, measure: str) -> int:
        return self.bytes if measure == "bytes" else self.nanos


# ---- Perfetto --------------------------------------------------------------

REQUIRED = {
    "M": {"name": str, "pid": int, "tid": int, "args": dict},
    "X": {"name": str, "cat": str, "pid": int, "tid": int, "ts": float, "dur": float, "args": dict},
    "C": {"name": str, "pid": int, "ts": float, "args": dict},
}


def check_perfetto(export: Exporter, expected: Expected) -> None:
    document = json.loads(export.text("--to", "perfetto"))
    events = document["traceEvents"]
    equal("perfetto: unit", document["displayTimeUnit"], "ns")
    malformed = [e for e in events if not is_well_formed(e)]
    check("perfetto: required keys and types", not malformed, malformed[:2])
    slices = [e for e in events if e["ph"] == "X"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    on = defaultdict(list)
    for event in slices:
        on[names.get((event["pid"], event["tid"]))].append(event)
    equal("perfetto: tracks", sorted(map(str, on)), ["evaluations", "nodes"])
    nodes = [e for e in on["nodes"] if e["cat"] != "layer"]
    equal("perfetto: evaluations", len(on["evaluations"]), expected.evaluations)
    equal("perfetto: nodes", len(nodes), expected.steps)
    tracks = defaultdict(list)
    for event in slices:
        tracks[event["pid"], event["tid"]].append(event)
    overlaps = [error for track in tracks.values() for error in nesting_errors(track)]
    check("perfetto: slices nest", not overlaps, overlaps[:2])
    nanos = Counter()
    for node in nodes:
        nanos[node["args"]["op"]] += nanoseconds(node["dur"])
    equal("perfetto: time by op", {o: n for o, n in nanos.items() if n},
          {o: n for o, n in expected.nanos_by_op.items() if n})
    by_kind, by_tensor = Counter(), Counter()
    for tensor in (t for node in nodes for t in node["args"]["tensors"]):
        direction = {"read": "read", "write": "written"}[tensor["direction"]]
        by_kind[tensor["kind"], direction] += tensor["bytes"]
        by_tensor[tensor["name"]] += tensor["bytes"]
    equal("perfetto: bytes by kind", by_kind, expected.bytes_by_kind)
    equal("perfetto: bytes by tensor", by_tensor, expected.bytes_by_tensor)
    counters = Counter()
    for event in (e for e in events if e["ph"] == "C"):
        counters[event["name"]] += event["args"]["bytes"]
    for name, kind in (("weight bytes read", ("weight", "read")),
                       ("KV bytes read", ("kv_cache", "read")),
                       ("KV bytes written", ("kv_cache", "written"))):
        equal(f"perfetto: counter of {name}", counters[name], expected.bytes_by_kind.get(kind, 0))
    experts = [e for n in nodes for t in n["args"]["tensors"] for e in t.get("experts", [])]
    check("perfetto: experts", bool(experts) == (expected.routes > 0), f"{len(experts)} experts")


def is_well_formed(event: dict) -> bool:
    required = REQUIRED.get(event.get("ph"))
    return required is not None and all(
        isinstance(event.get(key), ty) and not (ty is float and event[key] < 0)
        for key, ty in required.items()
    )


def nanoseconds(micros: float) -> int:
    return round(micros * 1000)


def nesting_errors(track: list[dict]) -> list[tuple]:
    """Slices that begin inside another and end behind it; as viewers see them."""
    errors, open_ends = [], []
    spans = [(nanoseconds(e["ts"]), nanoseconds(e["dur"]), i, e["name"]) for i, e in enumerate(track)]
    for begin, duration, _, name in sorted(spans, key=lambda s: (s[0], -s[1], s[2])):
        while open_ends and open_ends[-1] <= begin:
            open_ends.pop()
        if open_ends and begin + duration > open_ends[-1]:
            errors.append((name, begin, begin + duration, open_ends[-1]))
        open_ends.append(begin + duration)
    return errors


# ---- folded stacks and flame graph -----------------------------------------

FOLDED = re.compile(r"(prompt|generate|unknown);(layer \d+|no layer);[a-z_]+;[^;]+;[^;]+ [1-9]\d*")


def check_folded(export: Exporter, expected: Expected, measure: str) -> dict[str, int]:
    lines = export.text("--to", "folded", "--by", measure).splitlines()
    odd = [line for line in lines if not FOLDED.fullmatch(line)]
    check(f"folded by {measure}: form of lines", not odd, odd[:2])
    sums = {stack: int(count) for stack, count in (line.rsplit(" ", 1) for line in lines)}
    equal(f"folded by {measure}: each stack once", len(sums), len(lines))
    equal(f"folded by {measure}: sum", sum(sums.values()), expected.sum(measure))
    if measure == "bytes":
        found = Counter()
        for stack, count in sums.items():
            found[stack.split(";")[4]] += count
        equal("folded by bytes: tensors", found, {t: b for t, b in expected.bytes_by_tensor.items() if b})
    return sums


def check_flamegraph(export: Exporter, expected: Expected, measure: str, folded: dict[str, int]) -> None:
    what = f"flame graph by {measure}"
    text = export.text("--to", "flamegraph", "--by", measure)
    root = ElementTree.fromstring(text)
    svg = "{http://www.w3.org/2000/svg}"
    equal(f"{what}: root element", root.tag, svg + "svg")
    check(f"{what}: has a title", bool(root.findtext(svg + "title")))
    check(f"{what}: loads nothing", not re.search(r"(?:href|src)=|@import|url\(|fetch\(", text))
    bars = defaultdict(list)
    rects = [rect for rect in root.iter(svg + "rect") if rect.findtext(svg + "title")]
    tops = sorted({float(rect.get("y")) for rect in rects})
    for rect in rects:
        title = rect.findtext(svg + "title")
        count = int(re.search(r"\((\d+) (?:bytes|nanoseconds)\), [\d.]+ %$", title).group(1))
        x, width = float(rect.get("x")), float(rect.get("width"))
        bars[tops.index(float(rect.get("y")))].append((x, x + width, count, title))
    equal(f"{what}: depths", sorted(bars), list(range(6)))
    equal(f"{what}: root", [bar[2] for bar in bars[0]], [expected.sum(measure)])
    slack = 0.02  # coordinates have two decimals
    gap = 1.0  # between neighbours, where there is room
    for depth in range(1, 6):
        outside = [
            bar for bar in bars[depth]
            if not any(up[0] - slack <= bar[0] and bar[1] <= up[1] + gap + slack for up in bars[depth - 1])
        ]
        check(f"{what}: bars of depth {depth} lie below a bar", not outside, outside[:2])
        ordered = sorted(bars[depth])
        overlap = [pair for pair in zip(ordered, ordered[1:]) if pair[0][1] > pair[1][0] + slack]
        check(f"{what}: bars of depth {depth} lie apart", not overlap, overlap[:2])
    # Leaves that are wide enough to be drawn, one by one.
    total = sum(folded.values())
    drawn = Counter(count for count in folded.values() if count / total * 1176 > 0.41)
    missing = drawn - Counter(bar[2] for bar in bars[5])
    check(f"{what}: every stack is drawn", not missing, missing)


# ---- rows ------------------------------------------------------------------


def check_rows(export: Exporter, expected: Expected) -> None:
    counts = {"evals": expected.evaluations, "nodes": expected.steps, "accesses": expected.accesses,
              "routing": expected.routes, "tokens": expected.tokens}
    for table in TABLES:
        lines = export.text("--to", "csv", "--table", table)
        rows = list(csv.DictReader(lines.splitlines(keepends=True)))
        objects = [json.loads(line) for line in export.text("--to", "json", "--table", table).splitlines()]
        equal(f"{table}: rows", len(rows), counts.get(table, len(rows)))
        as_csv = [{k: "" if v is None else str(v) for k, v in o.items()} for o in objects]
        differ = [pair for pair in zip(rows, as_csv, strict=True) if not same_row(*pair)]
        check(f"{table}: CSV and JSON agree", not differ, differ[:1])
        if table == "accesses":
            equal("accesses: bytes", sum(int(row["bytes"]) for row in rows), expected.bytes)
            check_places(rows, export.run)
        if table == "nodes":
            equal("nodes: time", sum(int(row["duration_nanos"] or 0) for row in rows), expected.nanos)


def check_places(rows: list[dict[str, str]], run: str) -> None:
    """Weights are where the structure map has them, experts are their slices."""
    ranges = defaultdict(list)
    with (Path(run) / "structure.csv").open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            if not line.get("head_of"):
                ranges[line["tensor_name"]].append((int(line["file_offset"]), int(line["size_bytes"])))
    placed = [row for row in rows if row["file_offset"]]
    check("accesses: weights have offsets", bool(placed))

    def is_inside(row: dict[str, str]) -> bool:
        parts = ranges[row["tensor_name"]]
        start, end = min(p[0] for p in parts), max(p[0] + p[1] for p in parts)
        return start <= int(row["file_offset"]) and int(row["file_offset"]) + int(row["bytes"]) <= end

    outside = [row for row in placed if not is_inside(row)]
    check("accesses: offsets lie in their tensors", not outside, outside[:1])
    slices = [
        row for row in placed if row["expert"]
        and (int(row["file_offset"]), int(row["bytes"])) != ranges[row["tensor_name"]][int(row["expert"])]
    ]
    check("accesses: an expert is its slice", not slices, slices[:1])


def same_row(a: dict[str, str], b: dict[str, str]) -> bool:
    def same(key: str) -> bool:
        return a[key] == b[key] or (key == "weight" and float(a[key]) == float(b[key]))

    return a.keys() == b.keys() and all(same(key) for key in a)


def attempt(checks, *arguments):
    """One format that cannot even be read must not hide the others."""
    try:
        return checks(*arguments)
    except Exception as error:  # noqa: BLE001
        check(f"{checks.__name__}: reads to the end", False, repr(error))
        return {}


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    program, run = sys.argv[1:]
    expected = Expected(program, run)
    with tempfile.TemporaryDirectory() as folder:
        export = Exporter(program, run, Path(folder))
        attempt(check_perfetto, export, expected)
        for measure in ("bytes", "time"):
            folded = attempt(check_folded, export, expected, measure)
            attempt(check_flamegraph, export, expected, measure, folded)
        attempt(check_rows, export, expected)
    for failure in failures[:FAILURES_SHOWN]:
        print(failure[:500])
    print(f"{passed} passed, {len(failures)} failed")
    return 1 if failures or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
