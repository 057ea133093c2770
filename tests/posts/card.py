"""What the posts show of tools that need a card: debugger, core dump, sanitizer, profiler; and their card parts again.

    python3 tests/posts/card.py --bin FOLDER [--out FOLDER] [--seconds 240] [--only NAME,…] [--list]

FOLDER of --bin has `tensorscope` and `tensorscope-lab`. Needs CUDA's toolkit (nvcc, cuda-gdb, compute-sanitizer,
ncu), no cargo. Pieces run one after the other, the most valuable first; one that fails or takes too long does not
stop the others, and none begins after --seconds. Each command's output is a text file; summary.json has commands,
exit codes and seconds. All of it is in one file, posts.tar.gz, which is there after the first piece.
"""

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CARD = "tests/posts/card"
KERNELS = "crates/lab/kernels"
# Each source of tests/posts/card, and how it is compiled.
SOURCES = {"decode": "-g -G", "product": "-g -G", "planted": "-g -lineinfo", "waits": "-O2"}
# What is kept of one output; a flood is not evidence.
MOST_BYTES = 2_000_000
# Of a GPU core dump: all memories but registers are left out, as for a model of many gigabytes.
SKIPPED = "skip_global_memory,skip_shared_memory,skip_local_memory,skip_constbank_memory"

DECODE_METRICS = ",".join([
    "gpu__time_duration.sum",
    "dram__bytes_read.sum",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "l1tex__t_sector_hit_rate.pct",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld_lookup_hit.sum",
    "lts__t_sector_hit_rate.pct",
    "lts__t_sectors.sum",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
])
SECTIONS = "--section SpeedOfLight --section MemoryWorkloadAnalysis --section WarpStateStats --section SchedulerStats --section Occupancy --section LaunchStats"


def line_of(file: str, after: str, words: str) -> int:
    """The number of the first line with these words after another one."""
    lines = (ROOT / file).read_text().split("\n")
    begin = next(i for i, line in enumerate(lines) if after in line)
    return next(i for i in range(begin, len(lines)) if words in lines[i]) + 1


class Session:
    def __init__(self, bin_folder: Path, out: Path, seconds: float):
        self.out = out
        self.end = time.monotonic() + seconds
        self.work = Path(tempfile.mkdtemp(prefix="posts-card-"))
        self.texts = self.work / "posts"
        self.texts.mkdir()
        self.rows = []
        self.compiled: dict[str, threading.Event] = {name: threading.Event() for name in SOURCES}
        self.lab = bin_folder / "tensorscope-lab"
        self.tensorscope = bin_folder / "tensorscope"
        tools = [bin_folder, *os.environ["PATH"].split(":"), "/usr/local/cuda/bin", "/usr/local/nvidia/bin"]
        tools += sorted(Path("/opt/nvidia/nsight-compute").glob("*"), reverse=True)
        self.environment = {
            "VIRTUAL_ENV": sys.prefix, **os.environ, "PATH": ":".join(map(str, tools)), "NO_COLOR": "1", "W": str(self.work),
            "LAB": str(self.lab), "TENSORSCOPE": str(self.tensorscope), "PYTHONUNBUFFERED": "1",
        }

    def run(self, name: str, command: str, seconds: float = 30, **environment: str) -> str:
        """A command for sh in the root of the repository, its output as NAME.txt."""
        left = self.end - time.monotonic()
        if left < 3:
            self.note(name, command, "left out: no time left", 0.0)
            return ""
        begin = time.monotonic()
        path = self.work / f"{name}.raw"
        with path.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", f"ulimit -c 0; {command}"], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, env={**self.environment, **environment}, start_new_session=True)
            try:
                code: int | str = process.wait(min(seconds, left))
            except subprocess.TimeoutExpired:
                code = "stopped: too slow"
            # What it left behind, too: an MPS daemon, a debugged program.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        text = clean(path.read_bytes()[:MOST_BYTES].decode("utf-8", "replace"), str(self.work))
        path.unlink()
        (self.texts / f"{name}.txt").write_text(text)
        self.note(name, command, code, time.monotonic() - begin)
        return text

    def note(self, name: str, command: str, code: int | str, seconds: float):
        shown = command.replace(str(self.work) + "/", "")
        self.rows.append({"name": name, "command": shown, "code": code, "seconds": round(seconds, 1)})
        print(f"  {seconds:6.1f} s  {code!s:<4}  {name}", flush=True)
        self.save()

    def save(self):
        """All that there is so far, as one file."""
        about = {"date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), "rows": self.rows}
        (self.texts / "summary.json").write_text(json.dumps(about, indent=1) + "\n")
        self.out.mkdir(parents=True, exist_ok=True)
        whole = self.work / "posts.tar.gz"
        with tarfile.open(whole, "w:gz") as tar:
            tar.add(self.texts, "posts")
        (self.out / "posts.tar.gz").write_bytes(whole.read_bytes())

    def compile(self, name: str):
        """Beside the pieces that need no compiler."""
        log = self.texts / f"nvcc-{name}.txt"
        command = f"nvcc {SOURCES[name]} -arch=sm_90a -I {KERNELS} -o {self.work / name} {CARD}/{name}.cu"
        try:
            done = subprocess.run(command.split(), cwd=ROOT, capture_output=True, text=True, timeout=90, check=False, env=self.environment)
            log.write_text(f"$ {command}\nended with {done.returncode}\n{done.stdout}{done.stderr}")
        except (OSError, subprocess.TimeoutExpired) as error:
            log.write_text(f"$ {command}\n{error}\n")
        self.compiled[name].set()

    def program(self, name: str) -> str:
        self.compiled[name].wait(90)
        return str(self.work / name)


def clean(text: str, work: str) -> str:
    """As texts are kept here: no colours, no tabs, no spaces at the ends of lines, no folders of one machine."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    text = text.replace(work + "/", "").replace(str(ROOT) + "/", "")
    lines = [line.rsplit("\r", 1)[-1].expandtabs().rstrip() for line in text.replace("\r\n", "\n").split("\n")]
    return "\n".join(lines).rstrip("\n") + "\n"


def debugger(*commands: str, program: str = "") -> str:
    words = ["cuda-gdb", "-nx", "-q", "-batch", "-ex", "set pagination off", "-ex", "set trace-commands on"]
    for command in commands:
        words += ["-ex", command]
    return shlex.join(words) + (f" --args {program}" if program else "")


def about(session: Session):
    session.run("about", "nvidia-smi; nvcc --version; cuda-gdb --version | head -3; ncu --version; compute-sanitizer --version; "
                "uname -a; lscpu | head -24; free -g | head -2", 15)
    session.run("interrupts", "cat /proc/interrupts")


def stopped_in_attention(session: Session):
    """A lab kernel built with -g -G, stopped with its first keys loaded: those of its own positions."""
    line = line_of(f"{KERNELS}/attention_decode.cu", "void decode_tensor(", "float scores[TILES][4]")
    session.run("gdb-decode", debugger(
        "set breakpoint pending on", f"break attention_decode.cu:{line}", "run", "info cuda kernels", "info cuda threads",
        "cuda block (0,1,0) thread (37,0,0)", "print warp", "print lane", "print row", "print base", "print end",
        "print/x key_bits[0][0][0]", "print/x *(keys + (base + row) * 128)@4",
        "print/x *(@global unsigned short*)(keys + (base + row) * 128)@4",
        "info registers $R0 $R1 $R2 $R3 $R4 $R5 $R6 $R7", "x/8i $pc", "bt", "info cuda sms", program=session.program("decode")), 60)


def core_dump(session: Session):
    """An index that overflows 32 bits: the card's exception, the dump, and what it says."""
    far = f"{session.program('planted')} far"
    session.run("far", far, 30)
    core = session.work / "core"
    session.run("far-core", f"CUDA_ENABLE_COREDUMP_ON_EXCEPTION=1 CUDA_COREDUMP_FILE={core} CUDA_COREDUMP_GENERATION_FLAGS={SKIPPED} {far}; "
                f"echo ended with $?; ls -l {session.work} | grep core", 60)
    session.run("gdb-core", debugger(
        f"target cudacore {core}", "info cuda kernels", "info cuda devices", "print $errorpc", "x/6i $errorpc - 64",
        "info registers $R0 $R1 $R2 $R3 $R4 $R5 $R6 $R7 $R8 $R9", "info registers $UR4 $UR5", "bt", "info cuda lanes", "info cuda blocks"), 30)


def planted(session: Session):
    program = session.program("planted")
    session.run("quiet", f"{program} quiet")
    session.run("memcheck-quiet", f"compute-sanitizer --print-limit 3 {program} quiet; echo ended with $?", 30)
    session.run("race", f"{program} race")
    session.run("racecheck-race", f"compute-sanitizer --tool racecheck --racecheck-report analysis --print-limit 3 {program} race; echo ended with $?", 40)
    session.run("memcheck-far", f"compute-sanitizer --print-limit 2 {program} far; echo ended with $?", 40)


def hit_rates(session: Session):
    """What the posts lack: how often the lab's kernels of attention find a sector in L1."""
    for name in ("attention-decode", "attention-prefill"):
        session.run(f"ncu-{name}", f"ncu --csv --print-units base --clock-control none --profile-from-start off --metrics {DECODE_METRICS} "
                    f"$LAB lab {name} --sizes 4096 --rounds 1", 60, TENSORSCOPE_LAB_SHOWN=str(session.work / f"shown-{name}"))


def sections(session: Session, name: str, kernels: str):
    """One profile, read three times: for people, for a table, and by `diagnose`."""
    report = session.work / f"{name}.ncu-rep"
    session.run(f"ncu-sections-{name}", f"ncu -f -o {report} --clock-control none --profile-from-start off {SECTIONS} -k 'regex:{kernels}' "
                f"$LAB lab {name} --sizes 4096 --rounds 1", 75, TENSORSCOPE_LAB_SHOWN=str(session.work / f"shown-sections-{name}"))
    session.run(f"ncu-details-{name}", f"ncu --import {report} --page details", 20)
    session.run(f"ncu-raw-{name}", f"ncu --import {report} --page raw --csv --print-units base | tee $W/{name}.csv", 20)
    session.run(f"diagnose-{name}", f"$TENSORSCOPE diagnose --ncu $W/{name}.csv", 20)


def lab_debugged(session: Session):
    """The lab itself, as it is: a stop at a kernel by its name, and its optimised machine code."""
    session.run("gdb-lab", debugger(
        "set breakpoint pending on", "break decode_tensor", "run", "info cuda kernels", "x/12i $pc",
        "info registers $R0 $R1 $R2 $R3", "info cuda devices", "kill",
        program=f"{session.lab} lab attention-decode --check --steps tensor"), 60)


def waits(session: Session):
    """Interrupts and processor time of waiting for a card."""
    program = session.program("waits")
    ways = [f"{program} {how} {kernel} {times}" for kernel, times in ((10, 5000), (250, 2000), (5000, 150)) for how in ("spin", "yield", "blocking")]
    session.run("waits", "; ".join(ways), 40)
    session.run("interrupts-after", "cat /proc/interrupts")


def replicas(session: Session):
    """Processor time of a token with one and with several replicas, as processes, with MPS and without."""
    command = f"{sys.executable} {CARD}/replicas.py --lab $LAB --json $W/posts/replicas-cpu.json"
    session.run("replicas-cpu", command, 60)


def clean_kernels(session: Session):
    for tool in ("memcheck", "racecheck"):
        session.run(f"{tool}-attention-decode", f"compute-sanitizer --tool {tool} $LAB lab attention-decode --check --seed 7; echo ended with $?", 45)


def stopped_in_product(session: Session):
    """A tile in shared memory, just loaded."""
    line = line_of(f"{KERNELS}/gemm_f32.cu", "void shared(", "sum += a_tile[y][i]")
    session.run("gdb-product", debugger(
        "set breakpoint pending on", f"break gemm_f32.cu:{line}", "run", "cuda block (1,2,0) thread (70,0,0)", "info cuda kernels",
        "print y", "print x", "print row", "print column", "print a_tile[y]", "print b_tile[y][x]", "print sum",
        "print &a_tile", "info registers $R0 $R1 $R2 $R3 $R4 $R5 $R6 $R7", "x/6i $pc", "delete", "continue", program=session.program("product")), 60)


def reproduced(session: Session, page: str, seconds: float):
    session.run(f"again-{page}", f"{sys.executable} tests/posts/reproduce.py --tensorscope $TENSORSCOPE --needs card {page}", seconds)


PIECES = {
    "about": (about, 3),
    "hit-rates": (hit_rates, 30),
    "stopped-in-attention": (stopped_in_attention, 12),
    "core-dump": (core_dump, 10),
    "planted": (planted, 12),
    "waits": (waits, 8),
    "lab-debugged": (lab_debugged, 12),
    "sections-decode": (lambda session: sections(session, "attention-decode", "decode_"), 25),
    "stopped-in-product": (stopped_in_product, 8),
    "replicas": (replicas, 30),
    "again-bottlenecks": (lambda session: reproduced(session, "llm-memory-bottlenecks", 60), 33),
    "clean-kernels": (clean_kernels, 20),
    "again-product": (lambda session: reproduced(session, "llm-matrix-multiplication", 75), 35),
    "again-bandwidth": (lambda session: reproduced(session, "llm-gpu-memory-bandwidth", 90), 35),
    "sections-product": (lambda session: sections(session, "gemm-f32", "^(naive|coalesced|shared|tile_1d|tile_2d|vector)$"), 25),
    "again-cache": (lambda session: reproduced(session, "llm-cache-hierarchy", 60), 20),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", type=Path)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "posts-card")))
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--only", default="", metavar="NAME,…")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    names = args.only.split(",") if args.only else list(PIECES)
    if args.list or not args.bin or set(names) - set(PIECES):
        print("\n".join(f"{name:<24} about {seconds} s" for name, (_, seconds) in PIECES.items()))
        return 0 if args.list else 2
    session = Session(args.bin.resolve(), args.out.resolve(), args.seconds)
    begin = time.monotonic()

    def compile_all():
        threads = [threading.Thread(target=session.compile, args=[name], daemon=True) for name in SOURCES]
        for thread in threads:
            thread.start()

    compile_all()
    for name in names:
        print(f"{time.monotonic() - begin:6.1f} s  {name}", flush=True)
        if time.monotonic() > session.end - 3:
            session.note(name, "", "left out: no time left", 0.0)
            continue
        try:
            PIECES[name][0](session)
        except Exception as error:  # the next piece is as valuable
            session.note(name, "", f"{type(error).__name__}: {error}", 0.0)
    session.save()
    failed = [f"{row['name']} ({row['code']})" for row in session.rows if row["code"] != 0]
    print(f"{len(session.rows)} commands in {time.monotonic() - begin:.0f} s; not 0: {', '.join(failed) or 'none'}")
    shutil.rmtree(session.work, ignore_errors=True)
    print(f"{session.out / 'posts.tar.gz'}: {(session.out / 'posts.tar.gz').stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
