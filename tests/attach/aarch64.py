"""The preload library and the reader of runs for AArch64, under qemu-user.

    python aarch64.py --tensorscope PROGRAM --built DIR --rows PROGRAM --models DIR --scratch DIR

One llama.cpp for two processors: npm's node-llama-cpp has it prebuilt for both, with its
sources as a git bundle, whose headers generate.c is compiled with (`npm install` was done in
this folder). tensorscope is the one of this machine, and so is its part of recording; the
program, llama.cpp, the preload library in it and the reader are those of AArch64.

    --built DIR      target/aarch64/aarch64-unknown-linux-gnu/release
    --rows PROGRAM   crates/reader/examples/run_rows.rs for this machine

Each recording on AArch64 must change nothing of what the program prints, be complete, and
hold the accesses of the recording on this machine, byte range by byte range. Kernels are the
plainest of each processor, so that all machines round alike.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys

import check
from check import HERE, fail, passed

LLAMA = HERE / "node_modules/@node-llama-cpp"
BUNDLE = HERE / "node_modules/node-llama-cpp/llama/gitRelease.bundle"
# As some kernels have them. On a processor without SVE, for whose loads qemu 7.2 takes the
# ends of such pages for unmapped.
LARGER_PAGES = ["-cpu", "cortex-a57", "-p", "65536"]
# Where Debian has AArch64's C library.
SYSTEM_ROOT = "/usr/aarch64-linux-gnu"
# Without cargo's list of folders, which are this machine's: where it has more than 300 letters
# and pages are larger, AArch64's ld.so finds no library to preload.
QEMU = ["qemu-aarch64", "-L", SYSTEM_ROOT, "-U", "LD_LIBRARY_PATH"]
TOKENS = 6
PROMPT = "To be, or not to be"


def output_of(command, **options):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, **options).stdout


def headers(scratch):
    """llama.cpp's headers of the release that npm's libraries were built from."""
    commit = output_of(["git", "bundle", "list-heads", BUNDLE], text=True).split()[0]
    folder = scratch / f"headers-{commit}"
    if not folder.exists():
        clone, unfinished = scratch / "llama.git", scratch / "headers-unfinished"
        for left in (clone, unfinished):
            shutil.rmtree(left, ignore_errors=True)
        subprocess.run(["git", "-c", "init.defaultBranch=main", "clone", "--quiet", "--bare", BUNDLE, clone], check=True)
        archive = output_of(["git", "-C", clone, "archive", commit, "include", "ggml/include"])
        unfinished.mkdir()
        subprocess.run(["tar", "-x", "-C", unfinished], input=archive, check=True)
        shutil.rmtree(clone)
        unfinished.rename(folder)
    return folder


def compiled(compiler, libraries, includes, program):
    """generate.c against the libraries in a folder."""
    linked = [next(libraries.glob(name)) for name in ("libllama.*.so", "libggml.*.so", "libggml-base.so")]
    command = [compiler, "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1"]
    command += [f"-I{includes}/include", f"-I{includes}/ggml/include", HERE / "generate.c", "-o", program]
    # What the libraries need of C++ is looked for when the program starts.
    command += [*linked, f"-Wl,-rpath,{libraries}", "-Wl,--allow-shlib-undefined"]
    subprocess.run(command, check=True)
    return program


class Machines:
    """The same program on this machine, and on AArch64 with and without the preload library."""

    def __init__(self, args):
        includes = headers(args.scratch)
        x64, arm64 = LLAMA / "linux-x64/bins/linux-x64", LLAMA / "linux-arm64/bins/linux-arm64"
        self.generate_here = compiled("cc", x64, includes, args.scratch / "generate-x86-64")
        self.generate_there = compiled("aarch64-linux-gnu-gcc", arm64, includes, args.scratch / "generate-aarch64")
        self.kernels_here = x64 / "libggml-cpu-x64.so"
        self.kernels_there = arm64 / "libggml-cpu-armv8.0_1.so"
        self.library = args.built / "libtensorscope_agent.so"

    def here(self, arguments):
        return [self.generate_here, "-k", self.kernels_here, *arguments]

    def there(self, arguments, qemu=()):
        return [*QEMU, *qemu, self.generate_there, "-k", self.kernels_there, *arguments]

    def preloaded(self, arguments, qemu=()):
        # The launcher's own library is for this machine's programs, such as qemu.
        with_library = ["-E", f"LD_PRELOAD={self.library}", *qemu]
        return ["env", "-u", "LD_PRELOAD", *self.there(arguments, with_library)]


def record(args, run, command):
    shutil.rmtree(run, ignore_errors=True)
    recording = [args.tensorscope, "record", "--no-repack", "--no-tables", "-o", run, "--", *command]
    return subprocess.run(recording, capture_output=True)


def is_complete(case, run, recorded):
    """Whether everything was recorded, and something was."""
    if not (run / "metadata.json").exists():
        fail(case, f"there is no run: {recorded.stderr[-500:]!r}")
        return False
    metadata = json.loads((run / "metadata.json").read_text())
    counts = metadata["statistics"]
    if metadata["status"] != "complete" or counts["lost_evaluations"] or counts["tick_mismatches"]:
        fail(case, f"the trace is {metadata['status']}: {metadata['stopped_reason']} {counts}")
    elif counts["unknown_ops"] or not (counts["evaluations"] and counts["steps"] and counts["accesses"]):
        fail(case, f"the trace lacks something: {counts}")
    else:
        return True
    return False


def tokens(args, run):
    """Each with its place, sequence and phase."""
    return [row for row in output_of([args.rows, run]).splitlines() if row.startswith(b"token\t")]


def compare(args, machines, case, arguments, qemu=()):
    """Records the same generation on both; the run of AArch64, or None."""
    run_there, run_here = args.scratch / f"{case}-aarch64", args.scratch / f"{case}-x86-64"
    plain = subprocess.run(machines.there(arguments, qemu), capture_output=True)
    if plain.returncode != 0 or not plain.stdout:
        return fail(case, f"it fails without us: {plain.returncode} {plain.stderr[-500:]!r}")
    idle = subprocess.run(machines.preloaded(arguments, qemu), capture_output=True)
    if (idle.returncode, idle.stdout, idle.stderr) != (0, plain.stdout, plain.stderr):
        return fail(case, f"it differs when nobody records: {idle}")
    there = record(args, run_there, machines.preloaded(arguments, qemu))
    if (there.returncode, there.stdout) != (0, plain.stdout):
        return fail(case, f"it differs when it is recorded: {there} instead of {plain.stdout!r}")
    here = record(args, run_here, machines.here(arguments))
    if (here.returncode, here.stdout) != (0, plain.stdout):
        return fail(case, f"this machine generates something else: {here} instead of {plain.stdout!r}")
    if not is_complete(case, run_there, there) or not is_complete(case, run_here, here):
        return None
    # Which library computed is told by the address that its call returns to.
    report = (run_there / "log/process-0000.txt").read_text()
    if f"library {machines.kernels_there}\n" not in report:
        return fail(case, f"it is not known who called: {report}")
    if tokens(args, run_there) != tokens(args, run_here):
        return fail(case, f"tokens {tokens(args, run_there)} instead of {tokens(args, run_here)}")
    same = [sys.executable, HERE / "same.py", run_here, run_there, args.tensorscope]
    same = subprocess.run(same, capture_output=True, text=True)
    if same.returncode != 0:
        return fail(case, f"other accesses than on this machine: {same.stdout} {same.stderr[-500:]}")
    passed(case, same.stdout.strip())
    return run_there


def audit_is_refused(args, case, command):
    """Pages that it cannot watch are named, and the program goes on."""
    done = subprocess.run([args.tensorscope, "audit", "--", *command], capture_output=True, text=True)
    if done.returncode == 0 or "pages of 65536 bytes" not in done.stderr:
        return fail(case, f"it is not refused: {done}")
    passed(case, next(line for line in done.stderr.splitlines() if "pages of 65536 bytes" in line))


def feed(args, machines, case, arguments):
    """Weights are read by the preload library, and the program does not notice."""
    plain = subprocess.run(machines.there(arguments), capture_output=True)
    command = [args.tensorscope, "run", "--memory", "1G", "--no-limit", "--always", "--"]
    fed = subprocess.run([*command, *machines.preloaded(arguments)], capture_output=True)
    said = fed.stderr.decode()
    if (fed.returncode, fed.stdout) != (0, plain.stdout):
        fail(case, f"it differs when it is fed: {fed} instead of {plain.stdout!r}")
    elif "not fed" in said or " read in " not in said:
        fail(case, f"nothing was fed: {said}")
    else:
        passed(case, next(line for line in said.splitlines() if " read in " in line))


def read_alike(args, case, run):
    """The reader of AArch64 says of a run what this machine's says."""
    here = output_of([args.rows, run])
    there = output_of([*QEMU, args.built / "examples/run_rows", run])
    rows = here.count(b"\naccess\t")
    if here != there:
        at = next(n for n, (a, b) in enumerate(zip(here.splitlines(), there.splitlines())) if a != b)
        return fail(case, f"line {at}: {there.splitlines()[at]!r} instead of {here.splitlines()[at]!r}")
    if not rows:
        return fail(case, "no access was read: nothing was tested")
    passed(case, f"{len(here.splitlines())} lines, {rows} of them accesses")


def main():
    parser = argparse.ArgumentParser()
    for name in ("--tensorscope", "--built", "--rows", "--models", "--scratch"):
        parser.add_argument(name, required=True, type=lambda path: pathlib.Path(path).resolve())
    args = parser.parse_args()
    args.scratch.mkdir(parents=True, exist_ok=True)
    machines = Machines(args)
    dense, moe = (str(args.models / f"shakespeare-{name}.gguf") for name in ("dense", "moe"))
    common = ["-n", str(TOKENS)]
    runs = {
        "dense": compare(args, machines, "dense", [*common, dense, PROMPT]),
        "experts": compare(args, machines, "experts", [*common, moe, PROMPT]),
        # Few tokens: threads that wait for each other are slow where others use the cores.
        "two-models": compare(args, machines, "two-models", ["-t", "2", "-n", "3", "-m", dense, moe, PROMPT, "Now is"]),
        "larger-pages": compare(args, machines, "larger-pages", [*common, moe, PROMPT], LARGER_PAGES),
    }
    for case, run in runs.items():
        if run:
            read_alike(args, f"reader-{case}", run)
    check.audit(args, "audit", machines.preloaded([*common, moe, PROMPT]))
    audit_is_refused(args, "audit-larger-pages", machines.preloaded([*common, moe, PROMPT], LARGER_PAGES))
    feed(args, machines, "feed", [*common, moe, PROMPT])
    failed = set(check.FAILED)
    print(f"aarch64: {len(set(check.PASSED) - failed)} passed, {len(failed)} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
