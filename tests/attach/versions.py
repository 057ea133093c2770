"""Records releases of llama-cpp-python, built from source, old and new.

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
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
TARGET = HERE.parents[1] / "target" / "attach"
TEXT = "To be, or not to be: that is the question: whether 'tis nobler in the mind"


def python_with(version, extras=""):
    """An interpreter that has this release; built once."""
    folder = TARGET / f"llama-cpp-python-{version}{extras.strip('[]')}"
    python = folder / "bin" / "python"
    done = folder / "done"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        # For any processor of this kind, and without what nobody uses here.
        flags = "-DGGML_NATIVE=OFF -DLLAMA_NATIVE=OFF -DLLAVA_BUILD=OFF"
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run(
            [*pip, "-c", HERE / "constraints.txt", "--no-binary", "llama-cpp-python"]
            + [f"llama-cpp-python{extras}=={version}"],
            check=True,
            env={**os.environ, "CMAKE_ARGS": flags, "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count())},
        )
        done.touch()
    return str(python)


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
