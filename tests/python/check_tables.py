"""The tables of a run, read by other tools: do they give the answers we give?

usage: check_tables.py TENSORSCOPE RUN [SCHEMA_PAGE]

Takes every view and every query of docs/trace-schema.md, asks DuckDB, and Spark where there
is a Java, directly on RUN/tables/*.parquet, and compares with `tensorscope sql`. pandas, which has
no SQL, computes the common ones by itself. Also: several runs as hive partitions. A run without
faults, requests or samples of the kernel has empty answers, and those must agree too.
Prints `N passed, M failed`; exits 1 if any failed.
"""

import csv
import io
import math
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import duckdb
import pandas

TABLES = [
    *["run", "tensors", "evals", "tokens", "nodes", "accesses", "routing", "traffic"],
    # Of what devices did; empty if only the processor computed.
    *["devices", "kernels", "copies"],
    # Of what the kernel did underneath; empty unless that was recorded.
    *["faults", "io", "residency"],
]
passed = failed = 0


def check(title, ours, theirs):
    """Rows in any order; numbers may differ in the last digits of a float."""
    global passed, failed
    difference = compare(rows(ours), rows(theirs))
    if difference is None:
        passed += 1
    else:
        failed += 1
        print(f"{title}: {difference}")


def rows(table):
    return sorted(([value(cell) for cell in row] for row in table), key=lambda row: [sort_key(c) for c in row])


def value(cell):
    if cell is None or cell is pandas.NA or (isinstance(cell, float) and math.isnan(cell)) or cell == "":
        return None
    try:
        return float(cell)
    except (TypeError, ValueError):
        return str(cell)


def sort_key(cell):
    # Floats are rounded for sorting, so that a last digit does not change the order.
    if isinstance(cell, float):
        return (1, float(f"{cell:.9g}"), "")
    return (0, 0.0, "") if cell is None else (2, 0.0, cell)


def compare(ours, theirs):
    if len(ours) != len(theirs):
        return f"{len(ours)} rows of ours, {len(theirs)} of theirs"
    for a, b in zip(ours, theirs):
        same = len(a) == len(b) and all(
            math.isclose(x, y, rel_tol=1e-9) if isinstance(x, float) and isinstance(y, float) else x == y
            for x, y in zip(a, b)
        )
        if not same:
            return f"ours {a}, theirs {b}"
    return None


def documented(page):
    """Views and queries of the page: (heading, SQL)."""
    views, queries = page.split("\n## Queries\n")
    views = views.split("\n## Views\n")[1]
    block = re.compile(r"^### (.+?)\n.*?^```sql\n(.*?)\n```", re.S | re.M)
    return block.findall(views), block.findall(queries)


def ask(program, runs, sql):
    command = [program, "sql", *map(str, runs), sql, "--format", "csv"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        sys.exit(f"{' '.join(command)}: {answer.stderr}")
    return list(csv.reader(io.StringIO(answer.stdout)))[1:]


def with_pandas(program, run):
    frame = {t: pandas.read_parquet(run / "tables" / f"{t}.parquet") for t in TABLES}

    def same(view, frame, columns):
        check(f"pandas: {view}", ask(program, [run], f"SELECT {', '.join(columns)} FROM {view}"), frame[columns].values.tolist())

    def sums(frame, keys):
        grouped = frame.groupby(keys, observed=True, dropna=False)
        return grouped.agg(accesses=("bytes", "size"), bytes=("bytes", "sum")).reset_index()

    accesses, evals, nodes, routing = (frame[t] for t in ["accesses", "evals", "nodes", "routing"])
    weights = accesses[accesses.kind == "weight"]
    both = ["accesses", "bytes"]
    same("bytes_by_component", sums(weights, ["phase", "component"]), ["phase", "component", *both])
    same("bytes_by_kind", sums(accesses, ["phase", "kind", "direction"]), ["phase", "kind", "direction", *both])
    same("bytes_by_layer", sums(accesses, ["phase", "layer", "kind"]), ["phase", "layer", "kind", *both])
    same("bytes_by_op", sums(accesses, ["phase", "op", "direction"]), ["phase", "op", "direction", *both])
    same("hot_tensors", sums(weights, ["tensor_name", "component", "role"]), ["tensor_name", "component", "role", *both])
    times = {"nodes": ("op", "size"), "timed_nodes": ("duration_nanos", "count"), "nanos": ("duration_nanos", total)}
    by_op = nodes.groupby(["op", "device"], observed=True).agg(**times)
    same("time_by_op", by_op.reset_index(), ["op", "device", *times])
    use = routing.groupby(["layer", "expert"]).agg(tokens=("eval", "size")).reset_index()
    same("expert_use", use, ["layer", "expert", "tokens"])
    on_device = evals.device_end_nanos - evals.device_begin_nanos
    evals = evals.assign(nanos=(evals.end_nanos - evals.begin_nanos).where(evals.device == "CPU", on_device))
    speed = evals.groupby("phase", observed=True).agg(
        tokens=("tokens", "sum"), nanos=("nanos", total), evals=("eval", "size"), timed=("nanos", "count")
    )
    speed["tokens_per_second"] = (speed.tokens * 1e9 / speed.nanos).where(speed.evals == speed.timed)
    same("tokens_per_second", speed.reset_index(), ["phase", "tokens", "tokens_per_second"])
    devices(frame, evals, same)
    underneath(frame, same)


def total(column):
    """As SQL adds up: nothing but nulls is null."""
    return column.sum(min_count=1)


def devices(frame, evals, same):
    """What devices did: `same` compares a view with what pandas makes of `frame`."""
    kernels, copies = frame["kernels"], frame["copies"]
    times = {"launches": ("eval", "size"), "timed": ("exclusive_nanos", "count"), "nanos": ("exclusive_nanos", total)}
    by_name = kernels.groupby(["device", "name"], observed=True).agg(**times).reset_index()
    same("time_by_kernel", by_name, ["device", "name", *times])
    untimed = (evals.device != "CPU") & evals.device_end_nanos.isna()
    sums = {"evals": ("eval", "size"), "untimed_evals": ("untimed", "sum"), "nanos": ("nanos", total)}
    sums |= {name: (name, "sum") for name in ["read_bytes", "written_bytes", "weight_bytes", "kv_bytes"]}
    by_device = evals.assign(untimed=untimed).groupby(["phase", "device"], observed=True).agg(**sums)
    same("bytes_by_device", by_device.reset_index(), ["phase", "device", *sums])
    keys = ["device", "way", "tensor_name", "kind"]
    copied = copies.groupby(keys, observed=True).agg(copies=("copy", "size"), bytes=("bytes", "sum"))
    same("copied_bytes", copied.reset_index(), [*keys, "copies", "bytes"])
    # What each kernel had for itself, the slow way: from when those that began before it had ended.
    timed = kernels[kernels.begin_nanos.notna()]
    for eval_, of_eval in timed.groupby("eval"):
        latest = 0
        for row in of_eval.sort_values(["begin_nanos", "kernel"]).itertuples():
            expected = max(0, row.end_nanos - max(row.begin_nanos, latest))
            latest = max(latest, row.end_nanos)
            check(f"kernels: {eval_} {row.kernel}", [[row.exclusive_nanos]], [[expected]])


def underneath(frame, same):
    """What the kernel did: `same` compares a view with what pandas makes of `frame`."""

    def grouped(frame, keys):
        return frame.groupby(keys, observed=True, dropna=False)

    faults, io = frame["faults"], frame["io"]
    reads = io[(io.kind == "read") & io.file.notna()]
    both = {"requests": ("request", "nunique"), "bytes": ("bytes", "sum")}
    touched = ["file", "tensor_name", "component", "layer"]
    by_kind = faults.assign(major=faults.kind == "major", minor=faults.kind == "minor")
    counts = {"major_faults": ("major", "sum"), "minor_faults": ("minor", "sum"), "faults": ("nanos", "size")}
    same("faults_by_tensor", grouped(by_kind, touched).agg(**counts).reset_index(), [*touched, *counts])
    by_tensor = grouped(reads, [*touched, "tensor_bytes"]).agg(**both).reset_index()
    by_tensor["times_read"] = by_tensor.bytes / by_tensor.tensor_bytes
    same("reads_by_tensor", by_tensor, [*touched, "tensor_bytes", *both, "times_read"])
    same("reads_by_layer", grouped(reads, "layer").agg(**both).reset_index(), ["layer", *both])
    same("reads_by_node", grouped(reads, ["phase", "op"]).agg(**both).reset_index(), ["phase", "op", *both])
    requests = reads[["request", "sector", "request_bytes"]].drop_duplicates()
    requests = requests.assign(from_bytes=[1 << (int(n).bit_length() - 1) for n in requests.request_bytes])
    sizes = requests.groupby("from_bytes").agg(requests=("request", "size"), bytes=("request_bytes", "sum"))
    same("read_sizes", sizes.reset_index(), ["from_bytes", "requests", "bytes"])
    model = frame["run"][["model_bytes"]].assign(bytes=reads.bytes.sum()) if len(reads) else frame["run"][:0].assign(bytes=[])
    same("reread", model.assign(times_read=model.bytes / model.model_bytes), ["model_bytes", "bytes", "times_read"])


def with_duckdb(run, views):
    connection = duckdb.connect()
    for table in TABLES:
        connection.sql(f"CREATE VIEW {table} AS SELECT * FROM '{run}/tables/{table}.parquet'")
    for name, sql in views:
        connection.sql(f"CREATE VIEW {name} AS {sql}")
    return lambda sql: connection.sql(sql).fetchall()


def with_spark(run, views):
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    for table in TABLES:
        spark.read.parquet(f"{run}/tables/{table}.parquet").createOrReplaceTempView(table)
    for name, sql in views:
        spark.sql(sql).createOrReplaceTempView(name)
    return lambda sql: [list(row) for row in spark.sql(sql).collect()]


def several_runs(program, run):
    """The same run twice, as partitions `run=a` and `run=b`."""
    with tempfile.TemporaryDirectory() as folder:
        runs = [pathlib.Path(folder) / f"run={name}" for name in "ab"]
        for copy in runs:
            shutil.copytree(run, copy)
        ours = ask(program, runs, "SELECT run, eval, SUM(bytes) FROM accesses GROUP BY run, eval")
        files = f"read_parquet('{folder}/run=*/tables/accesses.parquet', hive_partitioning = true)"
        theirs = duckdb.sql(f"SELECT run, eval, SUM(bytes) FROM {files} GROUP BY run, eval").fetchall()
        check("duckdb: several runs", ours, theirs)


def main():
    program, run = sys.argv[1], pathlib.Path(sys.argv[2])
    page = sys.argv[3] if len(sys.argv) > 3 else pathlib.Path(__file__).parents[2] / "docs/trace-schema.md"
    views, queries = documented(pathlib.Path(page).read_text())
    asked = [(name, f"SELECT * FROM {name}") for name, _ in views] + queries
    ours = {title: ask(program, [run], sql) for title, sql in asked}
    engines = [("duckdb", with_duckdb)]
    if shutil.which("java"):
        engines.append(("spark", with_spark))
    else:
        print("spark: left out, there is no java")
    for name, engine in engines:
        answer = engine(run, views)
        for title, sql in asked:
            check(f"{name}: {title}", ours[title], answer(sql))
    with_pandas(program, run)
    several_runs(program, run)
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
