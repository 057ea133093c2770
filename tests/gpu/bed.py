"""Runs programs on the fake CUDA and reads what it says was launched.

The bed is three things: the fake (`build_fake.build`), a program with a real CUDA backend
(`node cuda.mjs`, after `npm install` in this folder), and the fake's log, which is the truth that
a recording is compared with.
"""

import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
MODELS = HERE.parents[1] / "models"
# Of the models in models/.
VOCABULARY = 1024


def environment(fake, log=None, **variables):
    """For a program that is to find the fake; `log` is where the fake writes what it did."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("FAKE_", "GGML_", "CUDA_"))}
    before = [env["LD_LIBRARY_PATH"]] if env.get("LD_LIBRARY_PATH") else []
    env["LD_LIBRARY_PATH"] = ":".join([str(fake), *before])
    env["FAKE_CUDA_VOCABULARY"] = str(VOCABULARY)
    if log is not None:
        env["FAKE_CUDA_LOG"] = str(log)
    env.update({name: str(value) for name, value in variables.items()})
    return env


def is_installed():
    return (HERE / "node_modules/@node-llama-cpp/linux-x64-cuda").is_dir() and (HERE / "node_modules/node-llama-cpp").is_dir()


def node_command(model, tokens, layers="max", sequences=1):
    return ["node", str(HERE / "cuda.mjs"), str(MODELS / f"shakespeare-{model}.gguf"), str(tokens), str(layers), str(sequences)]


def generate(fake, log, model, tokens, layers="max", sequences=1, **variables):
    """What the program printed, and the log."""
    return run_and_read(node_command(model, tokens, layers, sequences), fake, log, variables)


def generate_by_c(fake, log, model, *options, **variables):
    """The same by llama.cpp's C interface: options of generate.py. Several contexts and sequences."""
    command = [sys.executable, str(HERE / "generate.py"), str(MODELS / f"shakespeare-{model}.gguf"), *map(str, options)]
    return run_and_read(command, fake, log, variables)


def run_and_read(command, fake, log, variables):
    done = subprocess.run(command, env=environment(fake, log, **variables), capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1]), read_log(log)


def read_log(path):
    """The log's lines as dictionaries; `what` is kernel, copy, fill, launch, capture, …."""
    lines = []
    for text in pathlib.Path(path).read_text().splitlines():
        # A kernel's name is last and may hold anything.
        head, _, name = text.partition(" name=")
        what, *pairs = head.split()
        line = {"what": what, **dict(pair.split("=", 1) for pair in pairs)}
        for key, value in line.items():
            if value.isdigit():
                line[key] = int(value)
        if name:
            line["name"] = name
        lines.append(line)
    return lines


def select(lines, what):
    return [line for line in lines if line["what"] == what]
