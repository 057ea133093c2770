"""Makes llama.cpp slow on purpose, one cause at a time, and asks `tensorscope diagnose` why.

    python causes.py --tensorscope PROGRAM --models DIR [--scratch DIR] [--only NAME,…] [--repeat N] [--json FILE]

Each case is a workload with one thing wrong: too many threads, a neighbour, a quota, too
little memory, a setting. The first cause that is named has to be the right one. Its
counter-example is the same workload without it, and has to be without a cause, as have the
other healthy runs. Kernels of a card (kernels/kernels.cu) were measured on an H200 with Nsight
Compute (kernels/measure.sh); small programs that make too many system calls are run under strace.

It needs root (cgroups, block requests), strace, two processors that nobody else uses, 4 GB of disk and
about ten minutes: what it prints is a table, and the last line counts. It is no part of CI,
where machines are shared.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

WORDS = "the king and the queen went into the wood and said that no man may pass this night "


class Bench:
    def __init__(self, args):
        self.program = str(pathlib.Path(args.tensorscope).resolve())
        self.models = pathlib.Path(args.models).resolve()
        self.scratch = pathlib.Path(args.scratch or tempfile.mkdtemp(prefix="tensorscope-causes-"))
        self.scratch.mkdir(parents=True, exist_ok=True)
        self.processors = os.cpu_count()
        self.number = 0
        # More processors have sooner done: prompts are longer for them.
        self.longer = min(6, max(1, self.processors // 2))

    def model(self, name, *options):
        path = self.scratch / f"{name}.gguf"
        if not path.exists():
            subprocess.run([self.program, "synth", "--quiet", "-o", path, *options], check=True, stdout=subprocess.DEVNULL)
        return path

    def dense(self):
        return self.model("dense", "--like", "llama-3.2-1b", "--type", "q8_0", "--layers", "4", "--vocab", "8000")

    def dense_q4(self):
        return self.model("dense-q4_0", "--like", "llama-3.2-1b", "--type", "q4_0", "--layers", "4", "--vocab", "8000")

    def wide_head(self):
        return self.model("head", "--like", "llama-3.2-1b", "--type", "f16", "--layers", "1")

    def mixture(self):
        return self.model("mixture", "--like", "qwen3-30b-a3b", "--type", "q4_0", "--layers", "4", "--vocab", "8000")

    def long_context(self):
        return self.model("context", "--like", "llama-2-7b", "--type", "q4_0", "--layers", "1", "--vocab", "8000")

    def trained(self, name):
        return self.models / f"{name}.gguf"

    def warm(self, model):
        """Reads a model into the page cache."""
        with open(model, "rb") as file:
            while file.read(1 << 24):
                pass

    def record(self, model, *options, prompt=WORDS, tokens=96, cold=False, below=("--cpu", "--faults", "--io"), **popen):
        self.number += 1
        run = self.scratch / f"run-{self.number}"
        shutil.rmtree(run, ignore_errors=True)
        if not cold:
            self.warm(model)
        command = [self.program, "record", "--quiet", "-o", run, "-m", model, "-p", prompt, "-n", str(tokens)]
        command += ["--ignore-eos", *below, *options]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **popen)
        if done.returncode != 0:
            raise RuntimeError(f"record: exit code {done.returncode}: {done.stderr.strip()[-300:]}")
        return run

    def diagnose(self, *what):
        done = subprocess.run([self.program, "diagnose", "--json", *map(str, what)], capture_output=True, text=True)
        if done.returncode not in (0, 1) or not done.stdout:
            raise RuntimeError(f"diagnose: exit code {done.returncode}: {done.stderr.strip()[-300:]}")
        return json.loads(done.stdout)


# ---------------------------------------------------------------- what is done to a run


def spin():
    while True:
        pass


def read_memory():
    block = bytearray(os.urandom(1 << 20)) * 512
    other = bytearray(len(block))
    while True:
        other[:] = block


def read_disk(path):
    # Around the page cache, so that it is the disk that is shared and not memory.
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    import mmap

    buffer = mmap.mmap(-1, 4 << 20)
    while True:
        os.lseek(descriptor, 0, os.SEEK_SET)
        while os.readv(descriptor, [buffer]) > 0:
            pass


@contextlib.contextmanager
def beside(work, count, *args):
    """Other processes, until the run has ended."""
    others = [multiprocessing.Process(target=work, args=args, daemon=True) for _ in range(count)]
    for other in others:
        other.start()
    time.sleep(1.0)
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.join()


@contextlib.contextmanager
def quota(processors):
    """A control group whose processes get so many processors; version 1 or 2."""
    one = pathlib.Path("/sys/fs/cgroup/cpu")
    root = one if one.is_dir() else pathlib.Path("/sys/fs/cgroup")
    group = root / f"tensorscope-causes-{os.getpid()}"
    if root != one:
        with contextlib.suppress(OSError):
            (root / "cgroup.subtree_control").write_text("+cpu")
    group.mkdir()
    try:
        if root == one:
            (group / "cpu.cfs_period_us").write_text("100000")
            (group / "cpu.cfs_quota_us").write_text(str(int(100000 * processors)))
        else:
            (group / "cpu.max").write_text(f"{int(100000 * processors)} 100000")
        yield lambda: (group / "cgroup.procs").write_text(str(os.getpid()))
    finally:
        for _ in range(100):
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.05)


# ---------------------------------------------------------------- cases
# A function each, which returns a run or the arguments of `diagnose`; (name, expected first cause, function).
# `None` is expected of healthy ones.


def too_many_threads(b):
    return b.record(b.dense(), "-t", str(b.processors * 4), tokens=48)


def twice_the_threads(b):
    return b.record(b.dense_q4(), "-t", str(b.processors * 2), tokens=64)


def one_processor(b):
    return b.record(b.dense(), "-t", str(b.processors), tokens=48, preexec_fn=lambda: os.sched_setaffinity(0, {0}))


def neighbour(b):
    with beside(spin, b.processors):
        return b.record(b.dense(), tokens=48)


def one_neighbour(b):
    with beside(spin, 1):
        return b.record(b.dense(), tokens=48)


def small_quota(b):
    with quota(b.processors * 0.4) as enter:
        return b.record(b.dense(), "-t", str(b.processors), tokens=48, preexec_fn=enter)


def few_threads(b):
    return b.record(b.dense(), "-t", "1", tokens=64)


def memory_neighbour(b):
    with beside(read_memory, b.processors - 1):
        return b.record(b.dense(), "-t", "1", tokens=64)


def little_memory(b):
    return b.record(b.dense(), "--memory", "200M", "--cold", tokens=10, cold=True)


def mixture_read_ahead(b):
    return b.record(b.mixture(), "--memory", "700M", "--cold", tokens=10, cold=True)


def shared_disk(b):
    with beside(read_disk, 2, str(b.mixture())):
        return b.record(b.dense(), "--memory", "200M", "--cold", tokens=6, cold=True)


def no_flash_attention(b):
    return b.record(b.long_context(), "--repack", "--flash-attn", "off", prompt=WORDS * 28 * min(3, b.longer), tokens=64)


def large_cache(b):
    types = ("--repack", "--cache-type-k", "f32", "--cache-type-v", "f32", "--flash-attn", "on")
    return b.record(b.long_context(), *types, prompt=WORDS * 40 * min(3, b.longer), tokens=160)


def small_batches(b):
    return b.record(b.dense(), "--ubatch-size", "4", prompt=WORDS * 3 * b.longer, tokens=1)


def single_tokens(b):
    return b.record(b.dense(), "--ubatch-size", "1", prompt=WORDS * b.longer, tokens=1)


def not_repacked(b):
    return b.record(b.dense_q4(), prompt=WORDS * 6 * b.longer, tokens=1)


def older_kernels(b):
    return b.record(b.dense(), prompt=WORDS * 6 * b.longer, tokens=1, env={**os.environ, "TENSORSCOPE_CPU": "avx2"})


def slow_sampling(b):
    return b.record(b.model("vocabulary", "--like", "llama-3.2-1b", "--type", "q4_0", "--layers", "1"), "--repack", "--temp", "0.8", "--top-k", "0", "--top-p", "0.99")


def large_head(b):
    return b.record(b.wide_head(), tokens=64)


def tiny_operations(b):
    return b.record(b.trained("shakespeare-dense"), "-t", str(b.processors), tokens=420)


CAUSES = [
    ("too-many-threads", "run.threads_more_than_processors", too_many_threads),
    ("twice-the-threads", "run.threads_more_than_processors", twice_the_threads),
    ("one-processor", "run.fewer_processors", one_processor),
    ("neighbour", "run.other_programs", neighbour),
    ("one-neighbour", "run.other_programs", one_neighbour),
    ("small-quota", "run.quota", small_quota),
    ("few-threads", "run.few_threads", few_threads),
    ("memory-neighbour", "run.memory_contended", memory_neighbour),
    ("little-memory", "run.memory_too_small", little_memory),
    ("mixture-read-ahead", "run.read_ahead", mixture_read_ahead),
    ("shared-disk", "run.disk_shared", shared_disk),
    ("no-flash-attention", "run.flash_attention_off", no_flash_attention),
    ("large-cache", "run.kv_large", large_cache),
    ("small-batches", "run.small_batches", small_batches),
    ("single-tokens", "run.small_batches", single_tokens),
    ("not-repacked", "run.repack_off", not_repacked),
    ("older-kernels", "run.older_kernels", older_kernels),
    ("slow-sampling", "run.host", slow_sampling),
    ("large-head", "run.large_head", large_head),
    ("tiny-operations", "run.tiny_operations", tiny_operations),
]

HEALTHY = [
    ("dense", lambda b: b.record(b.dense(), "--repack")),
    ("dense-long", lambda b: b.record(b.dense(), "--repack", tokens=200)),
    ("dense-q4_0-repacked", lambda b: b.record(b.dense_q4(), "--repack")),
    ("prompt", lambda b: b.record(b.dense(), "--repack", prompt=WORDS * 8, tokens=4)),
    ("four-sequences", lambda b: b.record(b.dense(), "--repack", "--parallel", "4", tokens=48)),
    ("mixture-in-memory", lambda b: b.record(b.mixture(), "--repack", tokens=48)),
    ("enough-memory", lambda b: b.record(b.dense(), "--repack", "--memory", "1500M")),
    ("fed", lambda b: b.record(b.dense(), "--memory", "250M", "--feed", tokens=24)),
    ("flash-attention", lambda b: b.record(b.long_context(), "--repack", "--flash-attn", "on", prompt=WORDS * 8, tokens=48)),
    ("sampled", lambda b: b.record(b.dense(), "--repack", "--temp", "0.8")),
    ("cache-q8_0", lambda b: b.record(b.dense(), "--repack", "--cache-type-k", "q8_0", "--cache-type-v", "q8_0", "--flash-attn", "on")),
    ("f16", lambda b: b.record(b.model("f16", "--like", "llama-3.2-1b", "--type", "f16", "--layers", "4", "--vocab", "8000"), tokens=64)),
    ("gemma", lambda b: b.record(b.model("gemma", "--like", "gemma-3-1b", "--type", "q8_0", "--layers", "8", "--vocab", "8000"), "--repack")),
    ("qwen", lambda b: b.record(b.model("qwen", "--like", "qwen3-0.6b", "--type", "q8_0", "--layers", "14", "--vocab", "8000"), "--repack")),
    ("phi", lambda b: b.record(b.model("phi", "--like", "phi-3-mini", "--type", "q8_0", "--layers", "3", "--vocab", "8000"), "--repack")),
]


# Kernels of kernels/kernels.cu, and what is wrong with each.
KERNELS = [
    ("copy_coalesced", None),
    ("load_strided", "kernel.uncoalesced_loads"),
    ("store_strided", "kernel.uncoalesced_stores"),
    ("bank_conflicts", "kernel.bank_conflicts"),
    ("register_spill", "kernel.spills"),
    ("low_occupancy", "kernel.occupancy.shared"),
    ("tiny_grid", "kernel.small_grid"),
    ("pointer_chase", "kernel.stall.long_scoreboard"),
    ("fma_bound", None),
    ("mio_throttle", "kernel.l1_bound"),
    ("barrier_heavy", "kernel.stall.barrier"),
    ("divergent", "kernel.divergence"),
    ("atomics_one_address", "kernel.atomics"),
    ("lg_throttle", "kernel.stall.lg_throttle"),
    ("gemm_naive", "kernel.tensor_unused"),
    ("attention_decode", "kernel.attention_decode"),
]

# Programs that make too many system calls, and one that does not.
TRACED = [
    ("small-reads", "calls.small_reads", "import os\nf = os.open('/bin/sh', 0)\nfor i in range(20000):\n    os.pread(f, 64, i)"),
    ("opens", "calls.opens", "import os\nfor _ in range(15000):\n    os.close(os.open('/etc/hostname', 0))"),
    ("maps", "calls.memory", "import mmap\nfor _ in range(15000):\n    mmap.mmap(-1, 1 << 16).close()"),
    ("yields", "calls.yield", "import os\nfor _ in range(40000):\n    os.sched_yield()"),
    ("busy-poll", "calls.busy_poll", "import socket\ns = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\ns.setblocking(False)\ns.bind('')\nfor _ in range(20000):\n    try:\n        s.recv(1)\n    except OSError:\n        pass"),
    ("few-calls", None, "x = sum(i * i for i in range(6000000))"),
]


def kernel_cases():
    folder = pathlib.Path(__file__).resolve().parent / "kernels"
    for name, expected in KERNELS:
        yield f"kernel-{name}", expected, lambda b, name=name: ("--ncu", folder / "h200.csv", name)


def traced_cases():
    for name, expected, program in TRACED:

        def traced(b, name=name, program=program):
            output = b.scratch / f"{name}.strace"
            command = ["strace", "-f", "-ttt", "-T", "-o", output, sys.executable, "-I", "-S", "-c", program]
            subprocess.run(command, check=True)
            return "--strace", output

        yield f"calls-{name}", expected, traced


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tensorscope", required=True)
    parser.add_argument("--models", required=True)
    parser.add_argument("--scratch")
    parser.add_argument("--only", default="")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--json")
    parser.add_argument("--verify", action="store_true", help="and try the actions out")
    args = parser.parse_args()
    bench = Bench(args)
    cases = CAUSES + [(name, None, function) for name, function in HEALTHY]
    cases += [*kernel_cases(), *traced_cases()]
    wanted = [name for name in args.only.split(",") if name]
    rows, right = [], 0
    for name, expected, function in cases:
        if wanted and not any(word == name or (word.endswith("*") and name.startswith(word[:-1])) for word in wanted):
            continue
        for _ in range(args.repeat):
            try:
                run = function(bench)
                what = run if isinstance(run, tuple) else (run,)
                found = bench.diagnose(*what[:2])
            except RuntimeError as error:
                rows.append({"case": name, "expected": expected, "error": str(error)})
                print(f"FAILED {name:22} {error}", flush=True)
                continue
            # Of a file with many kernels, the one that is meant.
            meant = what[2] if len(what) > 2 else ""
            causes = [cause["id"] for cause in found["causes"] if cause["phase"].startswith(meant)]
            first = causes[0] if causes else None
            unexplained = {
                phase["name"]: round(sum(p["share"] for p in phase["stack"] if p["name"] == "unexplained"), 4)
                for phase in found["phases"]
                if phase["nanos"] > 5e8
            }
            speeds = {phase["name"]: round(phase["tokens_per_second"], 1) for phase in found["phases"]}
            row = {"case": name, "expected": expected, "causes": causes, "unexplained": unexplained, "tokens_per_second": speeds}
            if args.verify and not isinstance(run, tuple) and expected:
                said = subprocess.run([bench.program, "diagnose", "--json", "--verify", "--no-measure", str(run)], capture_output=True, text=True)
                row["verified"] = json.loads(said.stdout).get("verified", []) if said.stdout else said.stderr
                for one in row["verified"]:
                    print("      ", one["applied"], one["phase"], "predicted", round(one["predicted_percent"]), "measured", one["measured_percent"] and round(one["measured_percent"]), "tokens/s", one["predicted_tokens_per_second"] and round(one["predicted_tokens_per_second"], 1), one["tokens_per_second_with"] and round(one["tokens_per_second_with"], 1), one["why_not"] or "")
            rows.append(row)
            is_right = first == expected
            right += is_right
            print(f"{'ok    ' if is_right else 'WRONG '} {name:22} expected {expected}, found {causes}; {speeds}, unexplained {unexplained}", flush=True)
            if not isinstance(run, tuple) and not os.environ.get("KEEP"):
                shutil.rmtree(run, ignore_errors=True)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(rows, indent=1) + "\n")
    if not args.scratch:
        shutil.rmtree(bench.scratch, ignore_errors=True)
    print(f"causes: {right} passed, {len(rows) - right} failed")
    return 0 if right == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
