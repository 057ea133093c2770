"""What recording promises, held against a real card in one go, and a table of what was reached.

    python card.py --tensorscope PROGRAM --libraries DIR [--server PROGRAM] [--part NAME…] [--json FILE]

DIR has llama.cpp's shared libraries with CUDA, of the version that generate.py knows; the server is that
build's llama-server. Nothing is fetched: models are made by `tensorscope synth`. Parts:

    machine      what doctor says, and the ceilings of the card
    attribution  every kernel has its node, by CUPTI's own count and names; tokens are those without us
    programs     llama-server with four clients, llama-cpp-python (with LLAMA_CPP_LIB_PATH), npm's CUDA build
    feed         what the card leaves to the processor is fed, and says what it says alone
    cost         in turns: plain, without times of kernels, with them at the default budget
    long         very many evaluations of the tiny model: memory stays, no time is impossible

    --part NAME      these alone, in this order (all)
    --case TEXT      of attribution those with this in their names
    --node-modules DIR   a folder with npm's node-llama-cpp and its CUDA build (that of this folder)
    --evaluations N  of the long part (1,000,000)
    --rounds N       of each model of the cost (5)
    --keep DIR       runs of the two small models are copied there
    --json FILE      every figure
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import bed
import truth
import vulkan

sys.path.insert(0, str(bed.HERE.parent / "attach"))
from check import FAILED, PASSED, fail, passed  # noqa: E402

# Flag of an evaluation: crates/trace/src/format.rs.
KERNELS_DIFFER = 16
MODES = ("off", "1%", "all")
# Cases that take no time are run so many at once.
AT_ONCE = 5
TOKENS = 48
GRAPHS_OFF = {"GGML_CUDA_DISABLE_GRAPHS": "1"}
# Options of `synth`. A few layers have every kind of kernel.
FEW = ["--layers", 4]
MODELS = {
    "dense q8_0": ["--like", "llama-3.2-1b", "--type", "q8_0", *FEW],
    "dense q4_K": ["--like", "llama-3.2-1b", "--type", "q4_K", *FEW],
    "dense bf16": ["--like", "llama-3.2-1b", "--type", "bf16", *FEW],
    "experts q4_K": ["--like", "qwen3-30b-a3b", "--type", "q4_K", "--layers", 3, "--experts", 64, "--vocab", 32000],
    "fed": ["--like", "qwen3-30b-a3b", "--type", "q4_0", "--layers", 4, "--experts", 32, "--experts-used", 4, "--vocab", 2000],
    "1B q8_0": ["--like", "llama-3.2-1b", "--type", "q8_0"],
    "7B q8_0": ["--like", "llama-2-7b", "--type", "q8_0"],
    "mixture q4_K": ["--like", "qwen3-30b-a3b", "--type", "q4_K", "--layers", 16, "--vocab", 32000],
}
# Tokens and rounds less than asked for, of what takes long.
COST = {"1B q8_0": (2000, 0), "mixture q4_K": (2000, 0), "7B q8_0": (1000, 2)}
# A server without our own kernels for repacked weights says the same fed and alone.
SERVER = ["-c", 2048, "--no-repack"]
PROMPTS = ["To be, or not to be", "Once upon a time there was", "The three primary colours are", "Water boils at"]


class Card:
    """The program, llama.cpp's build, a folder for models and runs, and what was found."""

    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.tensorscope = str(args.tensorscope.resolve())
        self.libraries = args.libraries.resolve()
        self.env = {**os.environ, "LD_LIBRARY_PATH": f"{self.libraries}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
        self.figures, self.runs, self.lock = {}, 0, threading.Lock()

    def model(self, name):
        """Made once."""
        small = bed.MODELS / f"shakespeare-{name}.gguf"
        if small.exists():
            return small
        path = self.folder / f"{name.replace(' ', '-')}.gguf"
        with self.lock:
            if not path.exists():
                command = [self.tensorscope, "synth", "-q", "-o", path, *MODELS[name]]
                subprocess.run([str(word) for word in command], check=True)
        return path

    def generate(self, model, options, libraries=None):
        libraries = libraries or self.libraries
        return [sys.executable, bed.HERE / "generate.py", self.model(model), "--libraries", libraries, "-t", 8, *options]

    def recorded(self, command, times, name="run"):
        """The command, recorded, and its run."""
        with self.lock:
            self.runs += 1
            run = self.folder / f"{name}-{self.runs}"
        return [self.tensorscope, "record", "--gpu-times", times, "-o", run, "--", *command], run

    def finish(self, command, variables=None, seconds=400):
        """The last line of what it prints, as JSON, and what else it said."""
        env = {**self.env, **(variables or {})}
        done = subprocess.run([str(word) for word in command], env=env, capture_output=True, text=True, timeout=seconds)
        if done.returncode != 0:
            raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-600:]}")
        return json.loads(done.stdout.splitlines()[-1]), done.stderr

    def show(self, command):
        """What a command prints, for people."""
        done = subprocess.run([str(word) for word in command], env=self.env, capture_output=True, text=True, timeout=120)
        print(f"$ {' '.join(map(str, command))}\n{done.stdout}{done.stderr}", flush=True)
        return done.stdout


def machine(card):
    card.show(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"])
    card.show([card.tensorscope, "doctor"])
    card.figures["ceilings"] = card.show([card.tensorscope, "bench", "ceilings", "-m", card.model("1B q8_0")])


# Models, options of generate.py, variables.
def attribution_cases():
    cases = {}
    for model in ("dense q8_0", "dense q4_K", "dense bf16", "experts q4_K"):
        for sequences in (1, 8, 32):
            cases[f"{model}, batch {sequences}"] = (model, ["-s", sequences], {})
        for sequences in (1, 8):
            cases[f"{model}, batch {sequences}, no graphs"] = (model, ["-s", sequences], GRAPHS_OFF)
    cases |= {
        "tiny dense": ("dense", [], {}),
        "tiny experts": ("moe", [], {}),
        "some layers": ("dense q8_0", ["-l", 2], {}),
        "some layers, no graphs": ("dense q4_K", ["-l", 2], GRAPHS_OFF),
        "experts on the CPU side": ("experts q4_K", ["--cpu-moe"], {}),
        "tensors on the CPU side": ("dense q8_0", ["--override", r"blk\.[0-2]\.ffn"], {}),
        "no flash attention": ("dense q8_0", ["-f", "off"], {}),
        "streams side by side": ("experts q4_K", [], {"GGML_CUDA_GRAPH_OPT": "1"}),
        "nothing fused": ("experts q4_K", [], {"GGML_CUDA_DISABLE_FUSION": "1"}),
        "three contexts": ("experts q4_K", ["-c", 3, "-s", 2], {}),
        "a context that grows": ("dense q8_0", ["-n", 600], {}),
        "few tokens at once": ("experts q4_K", ["-u", 16, "-p", 50], {}),
        "a long prompt": ("dense bf16", ["-p", 1500, "-n", 8], {}),
    }
    return cases


def judge(card, run, mode):
    """Faults of a record by itself and by CUPTI, and figures."""
    record, faults, figures = truth.Record(card.tensorscope, run), [], {}
    for fact in (truth.is_whole, truth.kernels_are_of_their_operation, truth.node_times):
        fact(record, None, mode, faults, figures)
    rows = [row for rows in record.kernels.values() for row in rows if row["kind"] == "kernel"]
    steps = {e["eval"]: e["steps"] for e in record.on_device}
    with_step = [row for row in rows if row["step"] is not None and 0 <= row["step"] < steps.get(row["eval"], 0)]
    if len(with_step) != len(rows):
        faults.append(f"{len(rows) - len(with_step)} of {len(rows)} kernels have no step")
    without = [e["eval"] for e in record.on_device if e["eval"] not in record.kernels]
    if mode == "all" and without:
        faults.append(f"{len(without)} of {len(record.on_device)} evaluations have no kernels, the first is {without[0]}")
    no_time = [e["eval"] for e in record.on_device if e["device_begin_nanos"] is None]
    if no_time:
        faults.append(f"{len(no_time)} of {len(record.on_device)} evaluations have no time on the device, the first is {no_time[0]}")
    shares, outside = [], 0
    for evaluation in record.on_device:
        timed = [row for row in record.kernels.get(evaluation["eval"], []) if row["begin_nanos"] is not None]
        begin, end = evaluation["device_begin_nanos"], evaluation["device_end_nanos"]
        if not timed or begin is None:
            continue
        shares.append(sum(row["exclusive_nanos"] or 0 for row in timed) / (end - begin))
        late = max(row["end_nanos"] for row in timed) - end
        early = begin - min(row["begin_nanos"] for row in timed)
        outside = max(outside, late, early)
    if outside > truth.HEARD_NANOS:
        faults.append(f"kernels ran up to {outside / 1e3:.0f} µs outside their evaluation's time")
    figures |= {
        "evaluations": len(record.on_device), "kernels": len(rows), "attributed": len(with_step), "without kernels": len(without),
        "timed": len(shares), "exclusive share": statistics.median(shares) if shares else None, "outside µs": outside / 1e3,
        "copies": len(record.copies),
    }
    return faults, figures


def attribute(card, name, model, options, variables, libraries=None):
    command = card.generate(model, ["-n", TOKENS, *options], libraries)
    said, _ = card.finish(command, variables)
    # Streams that race may say different things whether they are recorded or not.
    varies = card.finish(command, variables)[0] != said
    lines, all_faults = {}, []
    for mode in MODES:
        again, complained = None, ""
        recorded, run = card.recorded(command, mode)
        again, complained = card.finish(recorded, variables)
        faults, lines[mode] = judge(card, run, mode)
        if again != said and not varies:
            faults.append("it says something else than without us")
        others = [line for line in complained.splitlines() if not line.startswith("tensorscope:")]
        if others:
            faults.append(f"it complains: {others[:2]}")
        all_faults += [f"times {mode}: {fault}" for fault in faults[:3]]
        if card.args.keep and mode == "all" and name in ("tiny dense", "tiny experts"):
            shutil.copytree(run, card.args.keep / name.replace(" ", "-"), dirs_exist_ok=True)
        shutil.rmtree(run)
    found = lines["all"]
    card.figures.setdefault("attribution", {})[name] = lines | {"faults": all_faults}
    share = found["exclusive share"]
    what = (
        f"{found['attributed']:,} of {found['kernels']:,} kernels attributed, {found['timed']} of {found['evaluations']} evaluations timed, "
        f"exclusive {'–' if share is None else f'{share:.1%}'}, {found['copies']:,} copies"
    )
    what += "; it says something else each time, also without us" if varies else ""
    (fail if all_faults else passed)(name, "; ".join([what, *all_faults[:4]]))


def attribution(card):
    cases = {name: case for name, case in attribution_cases().items() if card.args.case in name}
    for model, *_ in cases.values():
        card.model(model)
    guarded(card, attribute, [(name, *case) for name, case in cases.items()])


def guarded(card, check, cases):
    """Several at once; what goes wrong in one is said and is its own."""

    def one(case):
        try:
            check(card, *case)
        except Exception as error:  # noqa: BLE001: the rest of a lease must not be lost
            fail(case[0], f"{type(error).__name__}: {str(error)[-500:]}")

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(one, cases))


class Serving(vulkan.Server):
    """llama-server of the build, with clients."""

    # Random weights say bytes that are no text, which the server refuses to send.
    request = {"grammar": "root ::= [ -~]*"}

    def stream(self, count):
        """Four clients at once."""
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            return list(pool.map(lambda prompt: self.complete(prompt, count)["text"], PROMPTS))


def serve(card, before, model, flags, count, log):
    """What it says to one client after another, then to four at once, and its own lines."""
    command = [*before, card.args.server, "-m", card.model(model), *SERVER, *flags]
    with Serving(command, card.env, card.folder / log) as server:
        alone = [server.complete(prompt, count) for prompt in PROMPTS[:2]]
        together = server.stream(count)
    return alone, together, server


def program_server(card, name, flags):
    alone, together, _ = serve(card, [], "experts q4_K", flags, 32, f"{name}.log")
    before, run = card.recorded([], "1%", "server")
    recorded, together_recorded, server = serve(card, before, "experts q4_K", flags, 32, f"{name}-recorded.log")
    faults, found = judge(card, run, "1%")
    if recorded != alone:
        faults.append("it says something else than without us")
    same = sum(a == b for a, b in zip(together, together_recorded, strict=True))
    card.figures.setdefault("programs", {})[name] = found | {"faults": faults, "lines": server.ours()}
    what = (f"{found['attributed']:,} of {found['kernels']:,} kernels attributed, {found['evaluations']} evaluations, {found['timed']} timed; "
            f"same text and probabilities alone, {same} of 4 texts the same where four share batches")
    (fail if faults else passed)(name, "; ".join([what, *faults[:3]]))


def program_python(card, name):
    path = os.environ.get("LLAMA_CPP_PYTHON")
    if not path:
        return print(f"NOT TESTED {name}: LLAMA_CPP_PYTHON names no folder with the package")
    variables = {"PYTHONPATH": path, "LLAMA_CPP_LIB_PATH": str(card.libraries)}
    command = [sys.executable, bed.HERE.parent / "attach" / "python.py", card.model("experts q4_K"), 40, "tokens:1,464,77,8", "-1"]
    said, _ = card.finish(command, variables)
    recorded, run = card.recorded(command, "all", "python")
    again, _ = card.finish(recorded, variables)
    return report_program(card, name, run, said == again)


def program_npm(card, name):
    libraries = card.args.node_modules / "@node-llama-cpp/linux-x64-cuda/bins/linux-x64-cuda"
    if not (libraries / "libggml-cuda.so").exists():
        return print(f"NOT TESTED {name}: {libraries} is missing")
    for model in ("dense q8_0", "experts q4_K"):
        attribute(card, f"{name}, {model}", model, [], {}, libraries)
    if shutil.which("node") and (card.args.node_modules / "node-llama-cpp").exists():
        command = ["node", bed.HERE / "cuda.mjs", card.model("moe"), TOKENS, "max", 1]
        said, _ = card.finish(command)
        recorded, run = card.recorded(command, "all", "node")
        again, _ = card.finish(recorded)
        report_program(card, f"{name}, under node", run, said == again)
    return None


def report_program(card, name, run, is_same):
    faults, found = judge(card, run, "all")
    if not is_same:
        faults.append("it says something else than without us")
    card.figures.setdefault("programs", {})[name] = found | {"faults": faults}
    what = f"{found['attributed']:,} of {found['kernels']:,} kernels attributed, {found['timed']} of {found['evaluations']} evaluations timed"
    (fail if faults else passed)(name, "; ".join([what, *faults[:3]]))


def programs(card):
    card.model("experts q4_K")
    cases = [("llama-cpp-python", program_python), ("npm's CUDA build", program_npm)]
    if card.args.server:
        cases += [("llama-server", program_server, ["-ngl", 99, "-np", 4]), ("llama-server, some layers", program_server, ["-ngl", 2, "-np", 4])]
        cases += [("llama-server, experts on the CPU side", program_server, ["-ngl", 99, "--cpu-moe", "-np", 4])]
    guarded(card, lambda card, name, check, *rest: check(card, name, *rest), cases)


def feed_case(card, name, flags, budget):
    """The server fed beside the card says what it says alone."""
    alone, _, _ = serve(card, [], "fed", ["-np", 1, "--ubatch-size", 64, *flags], 10, f"{name}.log")
    before = [card.tensorscope, "run", "--always", "--memory", budget, "--"]
    fed, _, server = serve(card, before, "fed", ["-np", 1, "--ubatch-size", 64, *flags], 10, f"{name}-fed.log")
    ours = server.ours()
    card.figures.setdefault("feed", {})[name] = ours
    closing = re.search(r"([\d.]+ \w+) read in .* ([\d.]+ \w+) kept", "\n".join(ours))
    faults = [] if fed == alone else ["it says something else than alone"]
    faults += [] if closing else [f"nothing was read: {ours}"]
    (fail if faults else passed)(name, "; ".join([closing[0] if closing else "", *faults]))


def feed(card):
    card.model("fed")
    cases = [
        ("fed, experts on the CPU side", ["-ngl", 99, "--cpu-moe"], "1G"),
        ("fed, some layers", ["-ngl", 2], "1G"),
        ("fed, tensors on the CPU side", ["-ngl", 99, "-ot", "blk.[01].ffn=CPU"], "1G"),
    ]
    guarded(card, feed_case, cases if card.args.server else [])


def cost(card):
    """Of each round the modes in another order; a mode's cost is its time over plain's of the same round."""
    for model, (tokens, fewer) in COST.items():
        card.model(model)
        times = {"plain": [], "off": [], "1%": []}
        for turn in range(max(card.args.rounds - fewer, 2)):
            modes = random.Random(turn).sample(list(times), len(times))
            said = {}
            for mode in modes:
                file = card.folder / "times"
                command = card.generate(model, ["-n", tokens, "--times", file])
                run = None
                if mode != "plain":
                    command, run = card.recorded(command, mode, "cost")
                said[mode], _ = card.finish(command)
                # The first evaluations compile, capture and warm up.
                times[mode].append([int(line) for line in file.read_text().split()][4:])
                if run:
                    shutil.rmtree(run)
            if len({json.dumps(text) for text in said.values()}) != 1:
                fail(f"cost, {model}", "modes say different things")
        whole = {mode: [sum(one) for one in found] for mode, found in times.items()}
        medians = {mode: [statistics.median(one) for one in found] for mode, found in times.items()}
        figures = {"tokens": tokens, "ms per token": {mode: statistics.median(of) / 1e6 for mode, of in medians.items()}}
        for mode, base in (("off", "plain"), ("1%", "off"), ("1%", "plain")):
            for kind, values in (("all tokens", whole), ("median token", medians)):
                ratios = sorted(100 * (one / other - 1) for one, other in zip(values[mode], values[base], strict=True))
                figures[f"{mode} over {base}, {kind}"] = {"median": statistics.median(ratios), "least": ratios[0], "most": ratios[-1]}
        control = sorted(100 * (of / statistics.median(medians["plain"]) - 1) for of in medians["plain"])
        figures["plain over its median"] = {"least": control[0], "most": control[-1]}
        card.figures.setdefault("cost", {})[model] = figures
        print(f"cost, {model}: {figures['ms per token']['plain']:.3f} ms a token", flush=True)
        for what, of in figures.items():
            if isinstance(of, dict) and "least" in of:
                middle = f"{of['median']:+.2f} % " if "median" in of else ""
                print(f"    {what}: {middle}[{of['least']:+.2f}, {of['most']:+.2f}]", flush=True)


def long(card):
    turns = card.args.evaluations // 250
    memory = card.folder / "memory"
    memory.unlink(missing_ok=True)
    command, run = card.recorded(card.generate("dense", ["-n", 250, "--turns", turns, "--memory", memory]), "1%", "long")
    begin = time.monotonic()
    card.finish(command, seconds=1500)
    resident = [int(line) for line in memory.read_text().split()]
    grown = resident[-1] - resident[len(resident) // 10]
    meta = json.loads((run / "metadata.json").read_text())
    span = meta["started_monotonic_nanos"], meta["finished_monotonic_nanos"]
    of = truth.query(card.tensorscope, run, f"""SELECT count(*) AS n,
        count(CASE WHEN device_begin_nanos IS NULL OR device_end_nanos <= device_begin_nanos
              OR device_begin_nanos < {span[0]} OR device_end_nanos > {span[1]} THEN 1 END) AS invalid,
        count(CASE WHEN flags & {KERNELS_DIFFER} <> 0 THEN 1 END) AS flagged FROM evals WHERE device <> 'CPU'""")[0]
    kernels = truth.query(card.tensorscope, run, f"""SELECT count(begin_nanos) AS n,
        count(CASE WHEN end_nanos <= begin_nanos OR begin_nanos < {span[0]} OR end_nanos > {span[1]} THEN 1 END) AS invalid FROM kernels
        WHERE begin_nanos IS NOT NULL""")[0]
    log_bytes = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    card.figures["long"] = {"evaluations": of, "kernels": kernels, "grown bytes": grown, "run bytes": log_bytes, "status": meta["status"]}
    faults = [f"{of['invalid']} evaluations have invalid times"] if of["invalid"] else []
    faults += [f"{kernels['invalid']} kernels have invalid times"] if kernels["invalid"] else []
    faults += [f"{of['flagged']} evaluations are flagged"] if of["flagged"] else []
    faults += [f"memory grew by {grown / 1e6:.1f} MB"] if grown > 4 << 20 else []
    what = (f"memory grew by {grown / 1e6:.2f} MB of {resident[-1] / 1e6:.0f}, {kernels['n']:,} kernels timed, "
            f"{of['invalid'] + kernels['invalid']} invalid times, {log_bytes / 1e6:.0f} MB of run, {time.monotonic() - begin:.0f} s")
    (fail if faults else passed)(f"{of['n']:,} evaluations", "; ".join([what, *faults]))
    shutil.rmtree(run)


def bars(card):
    """The table of bars, of what was run."""
    print("\n| bar | reached |\n|---|---|")
    found = card.figures.get("attribution", {}).values()
    if found:
        kernels = sum(case["all"]["kernels"] for case in found)
        attributed = sum(case["all"]["attributed"] for case in found)
        clean = sum(not case["faults"] for case in found)
        print(f"| kernels attributed | {attributed:,} of {kernels:,} in {len(found)} cases, {clean} of them without any fault |")
        shares = [case["all"]["exclusive share"] for case in found if case["all"]["exclusive share"]]
        print(f"| exclusive times over the evaluation's | median of the cases {statistics.median(shares):.1%}, {min(shares):.1%} to {max(shares):.1%} |")
    for model, of in card.figures.get("cost", {}).items():
        for what in ("off over plain, all tokens", "1% over off, all tokens"):
            print(f"| cost, {model}: {what} | {of[what]['median']:+.2f} % [{of[what]['least']:+.2f}, {of[what]['most']:+.2f}] |")
    if "long" in card.figures:
        of = card.figures["long"]
        print(f"| {of['evaluations']['n']:,} evaluations | memory grew by {of['grown bytes'] / 1e6:.2f} MB, "
              f"{of['evaluations']['invalid'] + of['kernels']['invalid']} invalid times |")


PARTS = {part.__name__: part for part in (machine, attribution, programs, feed, cost, long)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tensorscope", required=True, type=pathlib.Path)
    parser.add_argument("--libraries", required=True, type=pathlib.Path)
    parser.add_argument("--server", type=pathlib.Path)
    parser.add_argument("--node-modules", type=pathlib.Path, default=bed.HERE / "node_modules")
    parser.add_argument("--part", action="append", choices=PARTS)
    parser.add_argument("--case", default="")
    parser.add_argument("--evaluations", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", type=pathlib.Path)
    parser.add_argument("--keep", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.work or pathlib.Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        card = Card(args, folder.resolve())
        for name in args.part or PARTS:
            begin = time.monotonic()
            try:
                PARTS[name](card)
            except Exception as error:  # noqa: BLE001: as above
                fail(name, f"{type(error).__name__}: {str(error)[-500:]}")
            print(f"-- {name}: {time.monotonic() - begin:.0f} s", flush=True)
            if args.json:
                args.json.write_text(json.dumps(card.figures, indent=1, default=str) + "\n")
        bars(card)
    print(f"card: {len(PASSED)} passed, {len(FAILED)} failed")
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
