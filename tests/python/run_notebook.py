#!/usr/bin/env python3
"""Executes docs/analysis.ipynb on a run and holds its numbers against ours.

usage: run_notebook.py RUN TENSORSCOPE [FIGURES]

RUN is a run directory with tables (`tensorscope ingest RUN`), TENSORSCOPE the program.
Every cell must run without an error and without a warning; then a cell is appended that
prints what the notebook computed, and compared with `tensorscope report RUN --json`:
accesses, bytes by component, by weight and by expert's slice, time by op, KV growth,
sequential bytes, hot and cold, choices of experts and the hottest one. FIGURES is a
folder that the figures are written to, to be looked at.

The notebook in the repository must have no outputs and stay below 60 KB.

Prints a line per failure, then `N passed, M failed`. Exit code 1 when anything failed.
"""

from __future__ import annotations

import base64
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs/analysis.ipynb"
MOST_BYTES = 60_000
CELL_SECONDS = 300

# Runs as the last cell, among the notebook's own names.
PROBE = """
import json
print(json.dumps({
    "accesses": len(accesses),
    "components": {name: [int(row["accesses"]), int(row["bytes"])] for name, row in by_component.iterrows()},
    "units": [[u.name, None if pd.isna(u.expert) else int(u.expert), u.size_bytes, u.accesses, u.bytes] for u in
              units.itertuples(index=False)],
    "op_millis": {name: float(ms) for name, ms in ops["ms"].items()},
    "kv": [[int(r), int(w)] for r, w in zip(kv["read"], kv["write"])],
    "sequential": [int(is_sequential.sum()), sequential_bytes],
    "hot": [len(hot), int(hot["size_bytes"].sum()), int(hot["bytes"].sum())],
    "cold": [len(cold), int(cold["size_bytes"].sum()), int(cold["bytes"].sum())],
    "choices": [[int(l), int(e), int(n)] for (l, e), n in choices.stack().items() if n] if has_experts else [],
    "hottest_expert": [hottest_layer, hottest_expert] if has_experts else None,
    "entropy": [float(value) for value in entropy] if has_experts else [],
    "pairs": [[int(l), b, a, int(met[l][a, b])] for l in met for a in range(expert_count) for b in range(a) if met[l][a, b]]
             if has_experts else [],
    "findings": findings,
}))
"""

passed = 0
failures: list[str] = []


def check(what: str, holds: bool, detail: object = "") -> None:
    global passed
    if holds:
        passed += 1
    else:
        failures.append(f"{what}: {detail}")


def equal(what: str, found: object, expected: object) -> None:
    check(what, found == expected, f"the notebook has {found!r}, the report {expected!r}")


def near(what: str, found: float, expected: float) -> None:
    holds = math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-12)
    check(what, holds, f"the notebook has {found!r}, the report {expected!r}")


def check_as_committed(notebook) -> None:
    size = NOTEBOOK.stat().st_size
    check("size of the notebook", size < MOST_BYTES, f"{size} bytes, at most {MOST_BYTES}")
    stale = [i for i, cell in enumerate(notebook.cells) if cell.get("outputs") or cell.get("execution_count")]
    advice = "try: jupyter nbconvert --clear-output --inplace docs/analysis.ipynb"
    check("committed without outputs", not stale, f"cells {stale} have some; {advice}")
    # A reader should be told before every cell what it shows.
    kinds = [cell.cell_type for cell in notebook.cells]
    bare = [i for i, kind in enumerate(kinds) if kind == "code" and (i == 0 or kinds[i - 1] != "markdown")]
    check("text before every cell", not bare, f"cells {bare} have none")


def execute(notebook, run: Path) -> dict | None:
    notebook.cells.append(nbformat.v4.new_code_cell(PROBE))
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"TENSORSCOPE_RUN": str(run), "IPYTHONDIR": folder, "JUPYTER_RUNTIME_DIR": folder}
        # A backend that the user set for other programs would keep the figures from us.
        os.environ.pop("MPLBACKEND", None)
        client = NotebookClient(
            notebook,
            timeout=CELL_SECONDS,
            kernel_name="python3",
            resources={"metadata": {"path": folder}},
        )
        try:
            client.execute()
        except CellExecutionError as error:
            check("execution", False, error)
            return None
    for at, cell in enumerate(notebook.cells):
        talk = "".join(o.text for o in cell.get("outputs", []) if o.output_type == "stream" and o.name == "stderr")
        check(f"cell {at} warns of nothing", not talk, talk.strip())
    return json.loads("".join(o.text for o in notebook.cells[-1].outputs if o.output_type == "stream" and o.name == "stdout"))


def figures(notebook) -> list[bytes]:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [base64.b64decode(o.data["image/png"]) for o in outputs if "image/png" in o.get("data", {})]


def compare(found: dict, report: dict) -> None:
    facts = report["facts"]
    equal("accesses", found["accesses"], report["accesses"])

    ours = {row["component"]: [row["accesses"], row["bytes"]] for row in report["by_component"]}
    # A component that was never read has a row in the notebook only.
    theirs = {name: sums for name, sums in found["components"].items() if sums != [0, 0] or name in ours}
    equal("components", sorted(theirs), sorted(ours))
    for name in ours:
        equal(f"accesses and bytes of {name}", theirs.get(name), ours[name])

    def unit(name, expert, *numbers):
        return (name, -1 if expert is None else expert, *numbers)

    ours = sorted(unit(u["name"], u["expert"], u["size_bytes"], u["accesses"], u["bytes"]) for u in facts["hot"]["units"] if u["accesses"])
    theirs = sorted(unit(*u) for u in found["units"] if u[3])
    check("bytes of weights and slices", theirs == ours, f"they differ in {sorted(set(theirs) ^ set(ours))[:4]}")

    ranking = next(r for r in facts["hot"]["rankings"] if r["measure"] == "bytes_per_byte")
    if len(found["units"]) == len(facts["hot"]["units"]):
        # Weights that no graph names are not in the tables; then the ends differ.
        for end in ("hot", "cold"):
            equal(f"{end} weights", found[end], [ranking[end][key] for key in ("units", "size_bytes", "bytes")])

    for op in report["by_op"]:
        near(f"ms in {op['op']}", found["op_millis"].get(op["op"], -1.0), op["nanos"] / 1e6)
    total = facts["sequential"]["total"]
    equal("sequential reads and bytes", found["sequential"], [total["sequential_accesses"], total["sequential_bytes"]])
    growth = facts["traffic"]["kv_growth"]
    if growth["every"] == 1:
        equal("KV growth", found["kv"], [[point["read_bytes"], point["written_bytes"]] for point in growth["points"]])

    ours = sorted([row["layer"], row["expert"], row["choices"]] for row in report["experts"])
    equal("choices of experts", sorted(found["choices"]), ours)
    if ours:
        most = max(count for *_, count in ours)
        hottest = [[layer, expert] for layer, expert, count in ours if count == most]
        check("hottest expert", found["hottest_expert"] in hottest, f"the notebook has {found['hottest_expert']}, the report {hottest}")
        for value, layer in zip(found["entropy"], facts["experts"]["layers"], strict=True):
            near(f"entropy of layer {layer['layer']}", value, layer["normalised_entropy"])
        pairs = {(layer, a, b): count for layer, a, b, count in found["pairs"]}
        for layer in facts["experts"]["layers"]:
            for pair in layer["pairs"]:
                a, b = pair["experts"]
                equal(f"pair {a}, {b} of layer {layer['layer']}", pairs.get((layer["layer"], a, b)), pair["tokens"])
    else:
        equal("hottest expert", found["hottest_expert"], None)

    check("findings", len(found["findings"]) >= 8, f"only {len(found['findings'])}")
    for sentence in found["findings"]:
        holds = not any(word in sentence.split() for word in ("nan", "inf", "None", "<NA>"))
        check("a finding without a number", holds, sentence)


def main(run: str, program: str, folder: str | None = None) -> int:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    check_as_committed(notebook)
    found = execute(notebook, Path(run).resolve())
    if found is not None:
        report = subprocess.run([program, "report", run, "--json"], check=True, capture_output=True, text=True)
        report = json.loads(report.stdout)
        compare(found, report)
        pictures = figures(notebook)
        expected = 12 if report["experts"] else 9
        check("figures", len(pictures) == expected, f"{len(pictures)}, expected {expected}")
        if folder is not None:
            Path(folder).mkdir(parents=True, exist_ok=True)
            for at, picture in enumerate(pictures, 1):
                (Path(folder) / f"{at:02}.png").write_bytes(picture)
    for failure in failures:
        print(failure)
    print(f"{passed} passed, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
