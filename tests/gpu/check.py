"""Records programs on the fake CUDA, and holds each record against the fake's log.

    python check.py --tensorscope PROGRAM [--case NAME] [--long EVALUATIONS]

For each program, with kernel times off, within a budget, and always: the same output as
without us; every kernel of the log is in the record with its step, its name, its grid, and
where times were measured with its times; every copy; nothing lost, nothing flagged (truth.py).

Then what goes wrong: no CUPTI, another profiler, a lost record, a wrong one, a kill in the
middle, a program that forks. And many evaluations, in which memory must not grow.

    --case NAME      this one alone
    --long N         so many evaluations of the tiny model (20,000; 0 leaves it out)
    --work FOLDER    keeps runs and logs there
"""

import argparse
import json
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import bed
import build_fake
import truth

sys.path.insert(0, str(bed.HERE.parent / "attach"))
from check import FAILED, PASSED, fail, passed  # noqa: E402

MODES = ("off", "0.01", "all")
TOKENS = 24
# Flags of an evaluation: crates/trace/src/format.rs.
FLAG_MEASURED_LATER, KERNELS_DIFFER = 8, 16
# Tokens after which the long run begins again.
LONG_TURN = 250
MOST_GROWN_BYTES = 2 << 20
GRAPHS_OFF = {"GGML_CUDA_DISABLE_GRAPHS": 1}
# Options of generate.py and variables, by name.
CASES = {
    "dense": ("dense", [], {}),
    "dense, no graphs": ("dense", [], GRAPHS_OFF),
    "experts": ("moe", [], {}),
    "experts, no graphs": ("moe", [], GRAPHS_OFF),
    "experts, nothing fused": ("moe", [], {"GGML_CUDA_DISABLE_FUSION": 1}),
    "experts, streams side by side": ("moe", [], {"GGML_CUDA_GRAPH_OPT": 1}),
    "some layers, dense": ("dense", ["-l", 3], {}),
    "some layers": ("moe", ["-l", 3], {}),
    "some layers, no graphs": ("moe", ["-l", 3], GRAPHS_OFF),
    "experts on the CPU side": ("moe", ["--cpu-moe"], {}),
    "tensors on the CPU side": ("moe", ["--override", r"blk\.[0-2]\.ffn"], {}),
    "no flash attention": ("dense", ["-f", "off"], {}),
    "flash attention": ("moe", ["-f", "on"], {}),
    "few tokens at once": ("moe", ["-u", 4, "-p", 20], {}),
    "eight sequences": ("moe", ["-s", 8], {}),
    "eight sequences, no graphs": ("dense", ["-s", 8], GRAPHS_OFF),
    "three contexts": ("moe", ["-c", 3, "-s", 2], {}),
    "contexts one after the other": ("moe", ["-f", "off", "--turns", 6, "--anew"], {}),
    "contexts one after the other, some layers": ("moe", ["-l", 3, "-c", 2, "--turns", 4, "--anew", "-n", 8], {}),
    "two cards": ("moe", [], {"FAKE_CUDA_DEVICES": 2}),
    "a context that grows": ("dense", ["-n", 300], {}),
}
# One context at a time: which cells of K are in use is known. (The models are too narrow for flash attention on a card; with
# it, V is not transposed: check_recorded.py.)
CELLS_ARE_KNOWN = ("no flash attention", "contexts one after the other")
# Options of cuda.mjs: layers, sequences.
NODE_CASES = {
    "node, dense": ("dense", ["max", 1], {}),
    "node, experts": ("moe", ["max", 1], {}),
    "node, some layers": ("moe", [3, 1], {}),
    "node, no graphs": ("moe", ["max", 1], GRAPHS_OFF),
    "node, four sequences": ("moe", ["max", 4], {"FAKE_CUDA_TOKEN": 300}),
}


class Bed:
    """Where programs run: the fake, the recorder, a folder for logs and runs."""

    def __init__(self, tensorscope, folder):
        self.tensorscope, self.folder = tensorscope, folder
        self.fake = build_fake.build()
        self.runs = 0

    def start(self, command, mode, variables, **options):
        """Starts a program; `mode` is None for one that is not recorded. The process, its run and its log."""
        self.runs += 1
        run, log = self.folder / f"run-{self.runs}", self.folder / f"log-{self.runs}"
        variables = dict(variables)
        fake = variables.pop("fake", self.fake)
        env = bed.environment(fake, None if variables.pop("no_log", False) else log, **variables)
        if mode is not None:
            if (fake / "libcupti.so.13").exists():
                env["TENSORSCOPE_CUPTI"] = str(fake / "libcupti.so.13")
            times = {"0.01": "1%"}.get(mode, mode)
            command = [self.tensorscope, "record", "--gpu-times", times, "-o", run, "--", *command]
        process = subprocess.Popen(list(map(str, command)), env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
        return process, run, log

    def finish(self, command, mode, **variables):
        process, run, log = self.start(command, mode, variables)
        said, complained = process.communicate(timeout=1200)
        if process.returncode != 0:
            raise RuntimeError(f"exit code {process.returncode}: {complained[-500:]}")
        return json.loads(said.splitlines()[-1]), run, bed.read_log(log) if log.exists() else [], complained


def by_c(model, options):
    return [sys.executable, bed.HERE / "generate.py", bed.MODELS / f"shakespeare-{model}.gguf", "-n", TOKENS, *options]


def by_node(model, options):
    return bed.node_command(model, TOKENS, *options)


def check_case(at, name, command, variables):
    said, _, plain, _ = at.finish(command, None, **variables)
    kernels = [line["name"] for line in bed.select(plain, "kernel")]
    totals, clock = {}, 0
    for mode in MODES:
        again, run, log, complained = at.finish(command, mode, **variables)
        faults, figures = truth.compare(truth.Record(at.tensorscope, run), log, mode)
        if name in CELLS_ARE_KNOWN:
            faults += truth.cells_in_use(at.tensorscope, run, "cache_k%")
        if again != said:
            faults.append(f"it says {again} instead of {said}")
        # Which sequences share a batch is chance in node.
        if "TOKEN" not in str(variables) and [line["name"] for line in bed.select(log, "kernel")] != kernels:
            faults.append("other kernels were launched than without us")
        theirs = [line for line in complained.splitlines() if not line.startswith("tensorscope:")]
        if theirs:
            faults.append(f"it complains: {theirs[:3]}")
        if faults:
            return fail(name, f"times {mode}: " + "; ".join(faults[:4]))
        totals = {key: totals.get(key, 0) + value for key, value in figures.items()}
        clock = max(clock, figures["clock off by ns"])
    if not totals["attributed"]:
        return fail(name, "there is no kernel")
    return passed(name, f"{totals['attributed']:,} of {totals['launched']:,} kernels attributed ({totals['replayed']:,} replayed), "
                  f"{totals['timed']} evaluations timed, {totals['copies']:,} copies, clock off by {clock / 1e3:.0f} µs")


def check_without_cupti(at):
    """Attribution and the times of evaluations stay; why kernels have none is said once."""
    without = build_fake.build(at.folder / "fake", with_cupti=False)
    for name, variables, reason in (
        ("no CUPTI", {"fake": without}, "no CUPTI was found"),
        ("CUPTI does not start", {"FAKE_CUDA_NO_CUPTI": 1}, "cuptiGetVersion answers 15"),
        ("another profiler", {"FAKE_CUPTI_OTHER_SUBSCRIBER": 1}, "another profiler is attached"),
    ):
        _, run, log, complained = at.finish(by_c("moe", []), "all", **variables)
        faults, figures = truth.compare(truth.Record(at.tensorscope, run), log, "none")
        if complained.count(reason) != 1:
            faults.append(f"{reason!r} is not said once: {complained}")
        if faults:
            fail(name, "; ".join(faults[:4]))
        else:
            passed(name, f"{figures['attributed']:,} kernels attributed, {figures['evaluations']} evaluations have their time")


def check_old_driver(at):
    """Kernels in graphs of the card's own have no names then, and all else."""
    name = "a driver that does not tell names"
    old = build_fake.build(at.folder / "fake-old", options=["-DWITHOUT_NAMES"])
    _, run, log, complained = at.finish(by_c("moe", []), "all", fake=old)
    record = truth.Record(at.tensorscope, run)
    names = {(line["begin"], line["end"]): line["name"] for line in bed.select(log, "kernel")}
    nameless = 0
    for number, rows in record.kernels.items():
        for row in (row for row in rows if row["kind"] == "kernel" and not row["name"]):
            nameless += 1
            row["name"] = names.get((row["begin_nanos"], row["end_nanos"]), f"none of evaluation {number}")
    faults, figures = truth.compare(record, log, "all")
    if complained.count("kernels have no names") != 1:
        faults.append(f"it is not said once that names are missing: {complained}")
    if not nameless:
        faults.append("all kernels have names")
    if faults:
        fail(name, "; ".join(faults[:4]))
    else:
        passed(name, f"{nameless:,} of {figures['attributed']:,} kernels have no name, and all have their step and time")


def check_bad_records(at):
    """A measurement that cannot be right flags its evaluations, and its times are not kept."""
    for name, variables in (("a lost record", {"FAKE_CUPTI_DROP": 900}), ("a wrong name", {"FAKE_CUPTI_WRONG_NAME": 900})):
        said, _, _, _ = at.finish(by_c("moe", []), None)
        again, run, log, _ = at.finish(by_c("moe", []), "all", **variables)
        record = truth.Record(at.tensorscope, run)
        flagged = [e for e in record.on_device if e["flags"] & KERNELS_DIFFER]
        for evaluation in flagged:
            evaluation["flags"] &= ~KERNELS_DIFFER
        # The run says so, and lacks nothing else.
        reason = record.metadata["stopped_reason"] or ""
        says_so = reason.startswith(f"{len(flagged)} evaluation") and "flagged, CUPTI saw other kernels: " in reason
        record.metadata["status"] = "complete" if says_so else reason
        timed = [e for e in flagged if any(row["begin_nanos"] is not None for row in record.kernels.get(e["eval"], []))]
        faults, _ = truth.compare(record, log, "0.01")
        if again != said:
            faults.append(f"it says {again} instead of {said}")
        if not flagged:
            faults.append("no evaluation is flagged")
        if timed:
            faults.append(f"{len(timed)} flagged evaluations have kernel times")
        if faults:
            fail(name, "; ".join(faults[:4]))
        else:
            passed(name, f"{len(flagged)} of {len(record.on_device)} evaluations are flagged and have no kernel times")


def children(process):
    path = pathlib.Path(f"/proc/{process}/task/{process}/children")
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def check_kill(at):
    """What was recorded until then can be read."""
    name = "a kill in the middle"
    process, run, log = at.start(by_c("moe", ["-n", 100_000]), "0.01", {})
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (not log.exists() or log.stat().st_size < 8 << 20):
        time.sleep(0.02)
    for child in children(process.pid):
        subprocess.run(["kill", "-9", str(child)], check=False)
    _, complained = process.communicate(timeout=60)
    record = truth.Record(at.tensorscope, run)
    text = log.read_text()
    log.write_text(text[: text.rindex("\n") + 1])
    lines = bed.read_log(log)
    known_until = max(line["asked"] for line in lines if "asked" in line)
    record.on_device = [e for e in record.on_device if e["end_nanos"] < known_until]
    faults, figures = [], {}
    # Whatever was launched until the last evaluation that is there belongs to one.
    until = record.on_device[-1]["end_nanos"]
    recorded, later = [], []
    for line in lines:
        (recorded if line.get("asked", 0) <= until else later).append(line)
    later = bed.select(later, "kernel")
    seen = truth.Truth(recorded, record.on_device, record.on_device[0]["begin_nanos"])
    truth.kernels_are_those_of_the_log(record, seen, "0.01", faults, figures)
    most = max(len(of_eval) for of_eval in seen.by_eval.values())
    if len(later) > 2 * most:
        faults.append(f"{len(later)} kernels were launched after the last evaluation that is there, and one has {most}")
    if process.returncode not in (-signal.SIGKILL, 128 + signal.SIGKILL):
        faults.append(f"exit code {process.returncode}: {complained[-300:]}")
    if len(record.on_device) < 100:
        faults.append(f"only {len(record.on_device)} evaluations are there")
    if faults:
        fail(name, "; ".join(faults[:4]))
    else:
        passed(name, f"{len(record.on_device)} evaluations can be read, {figures['attributed']:,} kernels; {complained.strip()[-200:]}")


def check_long(at, evaluations):
    """Memory stays, and no time is impossible."""
    name = f"{evaluations:,} evaluations"
    turns = max(evaluations // LONG_TURN, 20)
    memory = at.folder / "memory"
    command = by_c("dense", ["-n", LONG_TURN, "--turns", turns, "--memory", memory])
    _, run, _, _ = at.finish(command, "0.01", no_log=True)
    resident = [int(line) for line in memory.read_text().split()]
    # The first tenth is enough to have seen everything once. Segments of the log come and go.
    tenth = len(resident) // 10
    grown = statistics.median(resident[-tenth:]) - statistics.median(resident[tenth:2 * tenth])
    span = json.loads((run / "metadata.json").read_text())
    begin, end = span["started_monotonic_nanos"], span["finished_monotonic_nanos"]
    invalid = f"""SELECT count(*) AS n,
        count(CASE WHEN device_begin_nanos IS NULL OR device_end_nanos IS NULL THEN 1 END) AS missing,
        count(CASE WHEN device_end_nanos <= device_begin_nanos OR device_begin_nanos < {begin} OR device_end_nanos > {end} THEN 1 END) AS invalid,
        count(CASE WHEN flags & {~FLAG_MEASURED_LATER & 0xFFFF} <> 0 THEN 1 END) AS flagged FROM evals WHERE device <> 'CPU'"""
    of_evals = truth.query(at.tensorscope, run, invalid)[0]
    of_kernels = truth.query(at.tensorscope, run, f"""SELECT count(begin_nanos) AS n,
        count(CASE WHEN end_nanos <= begin_nanos OR begin_nanos < {begin} OR end_nanos > {end} THEN 1 END) AS invalid FROM kernels""")[0]
    faults = [f"{count} evaluations are {what}" for what, count in of_evals.items() if what != "n" and count]
    if of_evals["n"] != turns * LONG_TURN:
        faults.append(f"{of_evals['n']} evaluations are there, of {turns * LONG_TURN}")
    if of_kernels["invalid"] or not of_kernels["n"]:
        faults.append(f"{of_kernels['invalid']} of {of_kernels['n']} kernels' times are invalid")
    if span["status"] != "complete":
        faults.append(f"the run is {span['status']}: {span['stopped_reason']}")
    if grown > MOST_GROWN_BYTES:
        faults.append(f"memory grew by {grown / 1e6:.1f} MB")
    if faults:
        fail(name, "; ".join(faults))
    else:
        passed(name, f"memory grew by {grown / 1e6:.2f} MB of {resident[-1] / 1e6:.0f}, {of_kernels['n']:,} kernels timed, 0 invalid times")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tensorscope", required=True)
    parser.add_argument("--case")
    parser.add_argument("--long", type=int, default=20_000)
    parser.add_argument("--work", type=pathlib.Path)
    args = parser.parse_args()
    if not bed.is_installed():
        raise SystemExit(f"check: npm's CUDA build is missing\n  try: npm install --no-save, in {bed.HERE}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.work or pathlib.Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        at = Bed(str(pathlib.Path(args.tensorscope).resolve()), folder)
        checks = {
            **{name: (check_case, name, by_c(model, options), variables) for name, (model, options, variables) in CASES.items()},
            **{name: (check_case, name, by_node(model, options), variables) for name, (model, options, variables) in NODE_CASES.items()},
            "a program that forks": (check_case, "a program that forks", by_c("moe", ["--fork"]), {}),
            "without cupti": (check_without_cupti,),
            "a driver that does not tell names": (check_old_driver,),
            "bad records": (check_bad_records,),
            "a kill in the middle": (check_kill,),
            "long": (check_long, args.long),
        }
        for name, (check, *arguments) in checks.items():
            if args.case in (None, name) and (name != "long" or args.long):
                try:
                    check(at, *arguments)
                except (RuntimeError, OSError, KeyError, ValueError, subprocess.SubprocessError) as error:
                    fail(name, f"{type(error).__name__}: {error}")
    print(f"gpu: {len(PASSED)} passed, {len(FAILED)} failed")
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
