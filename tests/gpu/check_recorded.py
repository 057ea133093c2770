"""Reads what was recorded on an H200, as often as tensorscope changes: no card is needed for that.

    python check_recorded.py --tensorscope PROGRAM [--bless]

Folders of h200/ are runs of the two small models (card.py --part attribution --case tiny --keep): all kernels
timed, on a real card and with CUPTI's real records. Each is held against itself as card.py does, and what is read of
it against h200/figures.json, which --bless writes anew; read that diff.
"""

import argparse
import json
import pathlib
import shutil
import sys
import tempfile
import types

import bed
import card
import truth
from card import FAILED, PASSED, fail, passed

RECORDED = bed.HERE / "h200"
FIGURES = RECORDED / "figures.json"
# What is read of each run; numbers of the card itself are among them.
QUESTIONS = {
    "evaluations": """SELECT device, count(*) AS evaluations, sum(steps) AS steps, count(device_begin_nanos) AS timed,
        sum(device_end_nanos - device_begin_nanos) AS device_nanos FROM evals GROUP BY device ORDER BY device""",
    "kernels": """SELECT kind, count(*) AS kernels, count(step) AS with_step, count(begin_nanos) AS timed, count(DISTINCT name) AS names,
        sum(exclusive_nanos) AS exclusive_nanos FROM kernels GROUP BY kind ORDER BY kind""",
    "operations": """SELECT op, count(*) AS kernels, sum(exclusive_nanos) AS exclusive_nanos
        FROM nodes JOIN kernels USING (eval, step) WHERE nodes.device <> 'CPU' GROUP BY op ORDER BY op""",
    "copies": "SELECT way, count(*) AS copies, sum(bytes) AS bytes FROM copies GROUP BY way ORDER BY way",
    "devices": "SELECT * FROM devices ORDER BY device",
    "accesses": """SELECT nodes.device, accesses.direction, count(*) AS accesses, sum(accesses.bytes) AS bytes
        FROM accesses JOIN nodes USING (eval, step) GROUP BY 1, 2 ORDER BY 1, 2""",
    "routing": "SELECT count(*) AS rows, count(DISTINCT eval) AS evaluations, count(DISTINCT expert) AS experts FROM routing",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tensorscope", required=True, type=pathlib.Path)
    parser.add_argument("--bless", action="store_true")
    args = parser.parse_args()
    program = str(args.tensorscope.resolve())
    known = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        for folder in sorted(path for path in RECORDED.iterdir() if path.is_dir()):
            name = f"{folder.name}, recorded on an H200"
            # Tables are made in a copy.
            run = shutil.copytree(folder, pathlib.Path(scratch) / folder.name)
            faults, figures = card.judge(types.SimpleNamespace(tensorscope=program), run, "all")
            faults += truth.cells_in_use(program, run)
            found[folder.name] = {key: truth.query(program, run, sql) for key, sql in QUESTIONS.items()}
            for key, rows in found[folder.name].items():
                expected = known.get(folder.name, {}).get(key)
                if rows != expected and not args.bless:
                    faults.append(f"{key}: {rows} instead of {expected}")
            what = f"{figures['attributed']:,} of {figures['kernels']:,} kernels attributed, {figures['timed']} of {figures['evaluations']} evaluations timed"
            (fail if faults else passed)(name, "; ".join([what, *faults[:3]]))
    if args.bless:
        FIGURES.write_text(json.dumps(found, indent=1) + "\n")
    print(f"gpu recorded: {len(PASSED)} passed, {len(FAILED)} failed")
    return 1 if FAILED or not PASSED else 0


if __name__ == "__main__":
    sys.exit(main())
