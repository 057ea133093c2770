"""Records releases of llama-cpp-python, built from source, old and new.

They are compiled for a fixed set of instructions (AVX2 and what came with it), never for
the processor at hand: what this one announces it may trap on, and a result must not depend
on where it was made.

    python versions.py --tensorscope PROGRAM --models DIR [--node] [--server SECONDS] VERSION…

For each release: a virtual environment in target/attach, built by pip (a minute or
two each; kept for the next time), then check.py. The weights' accesses (but for
chosen experts) must be the same in all of them, for the same tokens. --node and --server (with the first
release) are passed to check.py.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
# Names changed from LLAMA_ to GGML_ in 2024; a release ignores those it does not know.
INSTRUCTION_SETS = {
    **{name: "OFF" for name in ("NATIVE", "AVX512", "AVX512_VBMI", "AVX512_VNNI", "AVX512_BF16", "AVX_VNNI")},
    **{name: "OFF" for name in ("AMX_TILE", "AMX_INT8", "AMX_BF16")},
    **{name: "ON" for name in ("AVX", "AVX2", "FMA", "F16C")},
}
# LLAVA: nobody uses it here.
CMAKE_ARGS = " ".join(
    [f"-D{prefix}_{name}={value}" for name, value in INSTRUCTION_SETS.items() for prefix in ("GGML", "LLAMA")]
    + ["-DLLAVA_BUILD=OFF"]
)
# In a disassembly: registers of AVX-512, and the instruction that every use of AMX begins with.
WIDER_THAN_AVX2 = re.compile(r"%zmm|%k[1-7]\b|\btilezero\b|\bldtilecfg\b")
TARGET = HERE.parents[1] / "target" / "attach"
TEXT = "To be, or not to be: that is the question: whether 'tis nobler in the mind"


def python_with(version, extras=""):
    """An interpreter that has this release; built once for each set of flags."""
    folder = TARGET / f"llama-cpp-python-{version}{extras.strip('[]')}"
    python = folder / "bin" / "python"
    done = folder / "done"
    if not done.exists() or done.read_text() != CMAKE_ARGS:
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        # Without pip's cache: a wheel in it was built with whatever flags its builder had.
        pip += ["--no-cache-dir", "-c", HERE / "constraints.txt", "--no-binary", "llama-cpp-python"]
        environment = {key: value for key, value in os.environ.items() if key not in ("CFLAGS", "CXXFLAGS")}
        environment |= {"CMAKE_ARGS": CMAKE_ARGS, "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count())}
        subprocess.run([*pip, f"llama-cpp-python{extras}=={version}"], check=True, env=environment)
        for library in sorted(folder.glob("lib/python*/site-packages/llama_cpp/**/*.so")):
            check_instructions(library)
        done.write_text(CMAKE_ARGS)
    return str(python)


def check_instructions(library):
    """Ends the program if the library needs more than AVX2."""
    dump = subprocess.Popen(["objdump", "-d", "--no-show-raw-insn", library], stdout=subprocess.PIPE, text=True)
    wider = next((line for line in dump.stdout if WIDER_THAN_AVX2.search(line)), None)
    dump.kill() if wider else None
    dump.communicate()
    if wider:
        sys.exit(f"{library} was compiled for this processor, not for AVX2: {wider.strip()}")
    if dump.returncode != 0:
        sys.exit(f"{library}: objdump ended with {dump.returncode}")


def is_old(version):
    """Before experts were merged into one tensor, 2024-04."""
    return tuple(int(part) for part in version.split(".")) < (0, 2, 59)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tensorscope", required=True, type=pathlib.Path)
    parser.add_argument("--models", required=True, type=pathlib.Path)
    parser.add_argument("--node", action="store_true")
    parser.add_argument("--server", type=float, default=0)
    parser.add_argument("versions", nargs="+")
    args = parser.parse_args()
    tensorscope = str(args.tensorscope.resolve())
    failed = False
    with tempfile.TemporaryDirectory() as name:
        runs, tokens = {}, {}
        for version in args.versions:
            is_first = version == args.versions[0]
            python = python_with(version, "[server]" if args.server and is_first else "")
            print(f"llama-cpp-python {version}", flush=True)
            check = [sys.executable, HERE / "check.py", "--tensorscope", tensorscope, "--models", args.models]
            flags = ["--dense-only"] if is_old(version) else []
            flags += ["--node"] if args.node and is_first else []
            flags += ["--server", str(args.server)] if args.server and is_first else []
            failed |= subprocess.run([*check, "--python", python, *flags]).returncode != 0
            for model in ["dense"] if is_old(version) else ["dense", "moe"]:
                run = pathlib.Path(name) / f"{model}-{version}"
                path = args.models / f"shakespeare-{model}.gguf"
                # Versions tokenize otherwise; all are fed the tokens of the first.
                if model not in tokens:
                    said = subprocess.run([python, HERE / "python.py", path, "0", TEXT], check=True, stdout=subprocess.PIPE)
                    tokens[model] = "tokens:" + ",".join(str(t) for t in json.loads(said.stdout)["prompt"])
                program = [python, HERE / "python.py", path, "0", tokens[model]]
                record = [tensorscope, "record", "-q", "--no-repack", "-o", run, "--", *program]
                subprocess.run(record, check=True, stdout=subprocess.DEVNULL)
                first = runs.setdefault(model, run)
                if first != run:
                    same = [sys.executable, HERE / "same.py", first, run, tensorscope, "--weights"]
                    # Old kernels round otherwise, so that routers choose otherwise; that the
                    # experts are those that were read, check.py has audited.
                    same += ["--but-experts"] if model == "moe" else []
                    failed |= subprocess.run(same).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
