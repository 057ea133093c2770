"""Do two runs hold the same accesses, in the same order?

    python same.py RUN RUN TENSORSCOPE [--weights [--but-experts]]

Compares op, tensor, direction, operand, byte range and expert. Names that ggml
makes up (`node_17`) are compared without their number, which counts nodes that
are never executed. With --weights only reads of weights are compared, which are
the same in every version of llama.cpp: what is between them is not. Which experts
a router chooses depends on how a version rounds; --but-experts leaves them out.
"""

import csv
import itertools
import re
import subprocess
import sys

a, b, tensorscope = sys.argv[1:4]
weights = "--weights" in sys.argv
COLUMNS = "eval, op, tensor_name, direction, operand, tensor_offset, bytes, runs, run_bytes, expert, file_offset"


def accesses(run):
    # Across versions the steps in between and their order within a layer differ.
    where, order = ("WHERE kind = 'weight'", "eval, file_offset, bytes") if weights else ("", "eval, step, operand, tensor_offset")
    if "--but-experts" in sys.argv:
        where += " AND expert IS NULL"
    columns = COLUMNS.replace("eval, op,", "eval,") if weights else COLUMNS
    query = f"SELECT {columns} FROM accesses {where} ORDER BY {order}"
    command = [tensorscope, "sql", run, query, "--format", "csv"]
    out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    rows = csv.reader(out.splitlines())
    return [[re.sub(r"\b(node|leaf)_\d+", r"\1", cell) for cell in row] for row in rows]


rows_a, rows_b = accesses(a), accesses(b)
for number, (x, y) in enumerate(itertools.zip_longest(rows_a, rows_b)):
    if x != y:
        print(f"row {number}:\n  {x}\n  {y}")
        sys.exit(1)
print(f"{len(rows_a) - 1} accesses, the same")
