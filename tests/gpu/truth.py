"""Holds a record against the fake's log, which is what really happened.

    record = Record(tensorscope, run)             # its tables
    faults, figures = compare(record, log, "all") # nothing in `faults`: they agree

A kernel belongs to the evaluation in whose call it was asked for: the log has the time of both.
"""

import bisect
import csv
import json
import pathlib
import statistics
import subprocess

# An event's time is a 32-bit float that counts from an event up to five seconds before.
EVENT_NANOS = 1_000
# That event's own time is the host's when it has heard of it; on a busy machine that is late.
HEARD_NANOS = 400_000
# From an event to the first kernel of the launch behind it: fake/work.c, and the call itself.
LAUNCH_NANOS = 5_000
# Of an evaluation's time on the device.
SHARE_UNACCOUNTED = 0.03
WAYS = {"host_to_device": "htod", "device_to_host": "dtoh", "device_to_device": "dtod"}
# What only looks at the evaluation's own flags: 8 announces a measurement.
FLAGS_OF_FAULTS = ~8
# Kernels whose names tell the operation that they are of.
OPERATIONS = {
    "rms_norm": "RMS_NORM", "rope_": "ROPE", "flash_attn": "FLASH_ATTN_EXT", "mul_mat": "MUL_MAT", "nvjet": "MUL_MAT",
    "soft_max": "SOFT_MAX", "k_get_rows": "GET_ROWS", "k_set_rows": "SET_ROWS", "topk_moe": "SOFT_MAX",
}


def query(program, run, sql):
    command = [str(program), "sql", str(run), sql, "--format", "csv"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"tensorscope sql: {done.stderr[-500:]}")
    return [{key: number(value) for key, value in row.items()} for row in csv.DictReader(done.stdout.splitlines())]


def number(text):
    if text == "":
        return None
    return int(text) if text.lstrip("-").isdigit() else text


class Record:
    """The tables of a run."""

    def __init__(self, program, run):
        self.metadata = json.loads((pathlib.Path(run) / "metadata.json").read_text())
        self.evals = query(program, run, "SELECT * FROM evals ORDER BY begin_nanos, eval")
        self.on_device = [e for e in self.evals if e["device"] != "CPU"]
        self.kernels = {}
        for row in query(program, run, "SELECT * FROM kernels ORDER BY eval, kernel"):
            self.kernels.setdefault(row["eval"], []).append(row)
        self.copies = query(program, run, "SELECT * FROM copies ORDER BY begin_nanos, copy")
        self.nodes = query(program, run, "SELECT eval, step, op, device, duration_nanos FROM nodes ORDER BY eval, step")


class Truth:
    """What the log says was asked for in each evaluation's call, and outside of all."""

    def __init__(self, log, evals, since_nanos):
        self.by_eval = {e["eval"]: [] for e in evals}
        self.outside = []
        begins = [e["begin_nanos"] for e in evals]
        for line in log:
            if line["what"] not in ("kernel", "copy", "fill"):
                continue
            at = bisect.bisect_right(begins, line["asked"]) - 1
            if at >= 0 and line["asked"] <= evals[at]["end_nanos"]:
                self.by_eval[evals[at]["eval"]].append(line)
            elif line["asked"] >= since_nanos:
                self.outside.append(line)

    def on_card(self, number):
        """What the card did by itself in an evaluation."""
        return [line for line in self.by_eval[number] if line["what"] != "copy" or line["direction"] == "dtod"]


def compare(record, log, mode):
    """Faults as sentences, and figures by name. `mode` is `off`, `0.01`, `all`, or `none` without CUPTI."""
    truth = Truth(log, record.on_device, min((e["begin_nanos"] for e in record.evals), default=0))
    faults, figures = [], {}
    for fact in (is_whole, kernels_are_those_of_the_log, kernels_are_of_their_operation, device_times, kernel_times, node_times, copies):
        fact(record, truth, mode, faults, figures)
    return faults, figures


def is_whole(record, truth, mode, faults, figures):
    statistics_of_run = record.metadata["statistics"]
    if record.metadata["status"] != "complete" or statistics_of_run["lost_evaluations"]:
        faults.append(f"the run is {record.metadata['status']}: {record.metadata['stopped_reason']}")
    flagged = [e["eval"] for e in record.evals if e["flags"] & FLAGS_OF_FAULTS]
    if flagged:
        faults.append(f"{len(flagged)} evaluations are flagged, the first is {flagged[0]}")
    if not record.on_device:
        faults.append("nothing was computed on a device")
    figures["evaluations"] = len(record.on_device)


def described(line):
    if line["what"] == "kernel":
        return "kernel", line["name"], line["grid"].replace(",", "x"), line["block"].replace(",", "x")
    return ("set" if line["what"] == "fill" else "copy",)


def as_described(row):
    return (row["kind"], row["name"], row["grid"], row["block"]) if row["kind"] == "kernel" else (row["kind"],)


def kernels_are_those_of_the_log(record, truth, mode, faults, figures):
    """In number, order, names, grids; each with its step."""
    launched = attributed = replayed = 0
    for evaluation in record.on_device:
        number, rows = evaluation["eval"], record.kernels.get(evaluation["eval"], [])
        lines = truth.on_card(number)
        is_replayed = any("graph" in line for line in lines)
        kernels = sum(line["what"] == "kernel" for line in lines)
        replayed += kernels if is_replayed else 0
        if not rows:
            # Launched one by one, they are seen by a measurement alone.
            if is_replayed or (mode == "all" and kernels):
                faults.append(f"evaluation {number} has no kernels, of {kernels} that were launched")
            continue
        launched += kernels
        if all(row["kind"] == "kernel" for row in rows) and not is_replayed:
            lines = [line for line in lines if line["what"] == "kernel"]
        found, expected = [as_described(row) for row in rows], [described(line) for line in lines]
        if found != expected:
            at = next((i for i, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]), min(len(found), len(expected)))
            faults.append(f"evaluation {number}: {len(found)} kernels instead of {len(expected)}; the first other one is {at}: "
                          f"{found[at:at + 1]} instead of {expected[at:at + 1]}")
        of_steps = [row for row in rows if row["step"] is not None and 0 <= row["step"] < evaluation["steps"]]
        attributed += sum(row["kind"] == "kernel" for row in of_steps)
        if len(of_steps) != len(rows):
            faults.append(f"evaluation {number}: {len(rows) - len(of_steps)} kernels have no step")
    stray = [line for line in truth.outside if line["what"] == "kernel"]
    if stray:
        faults.append(f"{len(stray)} kernels were launched outside of evaluations, the first is {stray[0]['name']}")
    figures.update(launched=launched, attributed=attributed, replayed=replayed)


def kernels_are_of_their_operation(record, truth, mode, faults, figures):
    """By the names that kernels have: the step is not just any."""
    operation = {(node["eval"], node["step"]): node["op"] for node in record.nodes}
    checked = 0
    for rows in record.kernels.values():
        for row in rows:
            expected = next((op for part, op in OPERATIONS.items() if part in row["name"]), None)
            of = operation.get((row["eval"], row["step"]))
            checked += expected is not None
            if expected and (of is None or expected not in of):
                faults.append(f"evaluation {row['eval']}: {row['name']} is said to be of {of}")
                return
    figures["known by name"] = checked


def device_times(record, truth, mode, faults, figures):
    """Each evaluation's time on the device holds its kernels, and those of no other."""
    worst, late = 0, []
    for evaluation in record.on_device:
        begin, end = evaluation["device_begin_nanos"], evaluation["device_end_nanos"]
        lines = truth.on_card(evaluation["eval"])
        if not lines:
            continue
        if begin is None or end is None:
            faults.append(f"evaluation {evaluation['eval']} has no time on the device")
            continue
        first, last = min(line["begin"] for line in lines), max(line["end"] for line in lines)
        # Both ends are off by the same.
        late.append(max(begin - first, 0))
        worst = max(worst, last - first - (end - begin))
        started, finished = record.metadata["started_monotonic_nanos"], record.metadata["finished_monotonic_nanos"]
        if not started < begin <= end < finished:
            faults.append(f"evaluation {evaluation['eval']}: {begin} to {end} is not a time of the run")
        if last > end + HEARD_NANOS or first < begin - HEARD_NANOS:
            faults.append(f"evaluation {evaluation['eval']}: its kernels ran from {first} to {last}, not within {begin} to {end}")
    if worst > EVENT_NANOS:
        faults.append(f"an evaluation's kernels took {worst} ns more than its time on the device")
    spans = sorted((e["device"], e["device_begin_nanos"], e["device_end_nanos"]) for e in record.on_device if e["device_begin_nanos"])
    for one, next_one in zip(spans, spans[1:], strict=False):
        if one[0] == next_one[0] and next_one[1] < one[2] - EVENT_NANOS:
            faults.append(f"two evaluations overlap on {one[0]}: {one} and {next_one}")
            break
    figures["clock off by ns"] = max(late, default=0)


def covered_nanos(lines):
    """Time in which at least one of them ran."""
    covered = until = 0
    for line in sorted(lines, key=lambda line: line["begin"]):
        covered += max(0, line["end"] - max(line["begin"], until))
        until = max(until, line["end"])
    return covered


def kernel_times(record, truth, mode, faults, figures):
    """The times of kernels are the log's; together they are the evaluation's, less its gaps."""
    unaccounted, timed_evals = [], 0
    for evaluation in record.on_device:
        rows = [row for row in record.kernels.get(evaluation["eval"], []) if row["kind"] == "kernel"]
        timed = [row for row in rows if row["begin_nanos"] is not None]
        lines = [line for line in truth.on_card(evaluation["eval"]) if line["what"] == "kernel"]
        if not timed:
            if mode == "all" and lines:
                faults.append(f"evaluation {evaluation['eval']} has no kernel times")
            continue
        timed_evals += 1
        if mode in ("off", "none"):
            faults.append(f"evaluation {evaluation['eval']} has kernel times that nobody asked for")
        if [(row["begin_nanos"], row["end_nanos"]) for row in rows] != [(line["begin"], line["end"]) for line in lines]:
            faults.append(f"evaluation {evaluation['eval']}: the times of its kernels are not those of the log")
            continue
        exclusive = sum(row["exclusive_nanos"] for row in timed)
        if exclusive != covered_nanos(lines):
            faults.append(f"evaluation {evaluation['eval']}: exclusive times are {exclusive} ns, and kernels ran for {covered_nanos(lines)}")
        if evaluation["device_begin_nanos"] is None:
            continue
        took = evaluation["device_end_nanos"] - evaluation["device_begin_nanos"]
        if exclusive > took + EVENT_NANOS:
            faults.append(f"evaluation {evaluation['eval']}: exclusive times are {exclusive} ns of {took}")
        span = max(line["end"] for line in lines) - min(line["begin"] for line in lines)
        if any("graph" in line for line in lines):
            # The log knows of gaps between kernels; the rest should be nothing.
            unaccounted.append((took - span - LAUNCH_NANOS) / took)
    if mode == "0.01" and not timed_evals and len(record.on_device) > 24:
        faults.append("no evaluation has kernel times at 1 %")
    # A machine that did something else between an event and its launch is seen in single ones.
    if unaccounted and statistics.median(unaccounted) > SHARE_UNACCOUNTED:
        faults.append(f"{statistics.median(unaccounted):.1%} of an evaluation's time are of no kernel and no gap")
    figures["timed"] = timed_evals


def node_times(record, truth, mode, faults, figures):
    """A node's time is null where its evaluation has no kernel times, and where it launched nothing."""
    # A copy within the card may be a kernel of the driver's own, and is timed then.
    launched = {(n, row["step"]) for n, rows in record.kernels.items() for row in rows if row["begin_nanos"] is not None}
    wrong = [
        node for node in record.nodes
        if node["device"] != "CPU" and (node["duration_nanos"] is not None) != ((node["eval"], node["step"]) in launched)
    ]
    if wrong:
        faults.append(f"{len(wrong)} nodes have a time and should not, or the other way round; the first is {wrong[0]}")


def copies(record, truth, mode, faults, figures):
    """Everything that went between host and device outside of calls has its row."""
    asked = [line for line in truth.outside if line["what"] == "copy" and line["direction"] in ("htod", "dtoh")]
    begins = [row["begin_nanos"] for row in record.copies]
    unmatched, found = [], set()
    for line in asked:
        at = bisect.bisect_right(begins, line["asked"]) - 1
        row = record.copies[at] if at >= 0 else None
        if row is None or line["asked"] > row["end_nanos"] or WAYS[row["way"]] != line["direction"] or row["bytes"] != line["bytes"]:
            unmatched.append(line)
        elif not row["tensor_name"]:
            faults.append(f"copy {row['copy']} has no tensor's name")
        else:
            found.add(row["copy"])
    if unmatched:
        faults.append(f"{len(unmatched)} of {len(asked)} copies have no row, the first is {unmatched[0]}")
    if len(found) != len(record.copies):
        extra = next(row for row in record.copies if row["copy"] not in found)
        faults.append(f"{len(record.copies) - len(found)} rows are of no copy, the first is {extra}")
    # Logits are copied when a scheduler has computed, and are of its context all the same.
    contexts = {e["context"] for e in record.evals}
    strangers = [row for row in record.copies if row["context"] not in contexts]
    if strangers:
        faults.append(f"{len(strangers)} copies are of a context that computed nothing, the first is {strangers[0]}")
    figures["copies"] = len(asked)


def cells_in_use(program, run, tensors="cache_%"):
    """Faults of a run with one context at a time: of each view of the cache the cells in use are known. Of a V that lies transposed they are not."""
    of = query(program, run, f"""SELECT count(*) AS views, count(used_bytes) AS known FROM accesses JOIN nodes USING (eval, step)
        WHERE nodes.device <> 'CPU' AND accesses.kind = 'kv_cache' AND accesses.direction = 'read'
        AND accesses.tensor_name LIKE '{tensors}'""")[0]
    if not of["views"] or of["known"] != of["views"]:
        return [f"the cells in use are known of {of['known']} of {of['views']} views of the cache"]
    return []
