"""Feeds what a device leaves to the processor, and compares with the same server alone.

    python feed.py --tensorscope PROGRAM --models DIR --cache DIR [--case NAME]

llama-server with Vulkan on llvmpipe (vulkan.py). For each way of sharing a model between device and processor: greedy
text and the probabilities of each token are those of the server alone (without repacking); and by the closing lines,
weights were really read again and again. Some have a prompt that is long enough for the scheduler to copy the
processor's weights to the device.

SmolLM2 is made larger without changing what it says (tests/feed/enlarge.py), because what is streamed takes a ring,
and the server and its device take more memory than SmolLM2 has.

A prebuilt server that dies of a signal by itself cannot be tested here: that is counted and shown as NOT TESTED,
and is no failure. A missing registry or driver is one: `cargo xtask test` installs both.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "python"), str(HERE.parent / "attach")]

import check_models  # noqa: E402
import vulkan  # noqa: E402
from check import FAILED, PASSED, UNTESTED, death, fail, passed, untested  # noqa: E402

TOKENS = 10
SHORT = "To be, or not to be"
# More than the 32 tokens from which on products are worth a copy of their weights.
LONG = "The king of the north and the queen of the south met " * 3
# Few tokens a graph, so that buffers are small beside the weights.
COMMON = ["-c", 512, "--ubatch-size", 64, "--no-repack"]
# Eight times as many neurons; and four layers of 32 experts, which are nearly all of it.
WIDE = ["--layers", 30, "--ffn", 12288]
MIXTURE = ["--like", "qwen3-30b-a3b", "--layers", 4, "--experts", 32, "--experts-used", 4, "--vocab", 2000]


@dataclass(frozen=True)
class Case:
    name: str
    model: str
    # Which of the weights the device gets.
    flags: tuple
    budget: str
    # What our lines say.
    expect: str
    prompts: tuple[str, ...]
    # Bytes read over bytes kept, at least.
    times_read: float = 0


CASES = [
    Case("layers", "wide", ("-ngl", 10), "450M", "streamed through", (SHORT,), 3),
    Case("feed-forward tensors", "wide", ("-ngl", 99, "-ot", "ffn=CPU"), "400M", "streamed through", (SHORT,), 3),
    Case("experts", "mixture", ("-ngl", 99, "--cpu-moe"), "330M", "experts in", (SHORT,)),
    Case("experts that a prompt copies", "moe", ("-ngl", 99, "--cpu-moe"), "200M", "kept", (LONG, SHORT)),
    Case("weights that a prompt copies", "smollm2", ("-ngl", 10), "190M", "kept", (LONG, SHORT)),
    Case("nothing is left", "dense", ("-ngl", 99), "200M", "not fed: a device has its weights", (SHORT,)),
]

UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def size(text: str) -> float:
    number, unit = text.split()
    return float(number) * UNITS[unit]


Answers = tuple[list[dict], vulkan.Server]


def answers(prompts: tuple[str, ...], command: list, env: dict[str, str], log: Path) -> Answers:
    with vulkan.Server(command, env, log) as server:
        said = [server.complete(prompt, TOKENS) for prompt in prompts]
    return said, server


def make(models: Path, program: str, cache: Path, scratch: Path) -> dict[str, Path]:
    """The models by their names in the cases."""
    made = {
        "smollm2": check_models.fetch(check_models.MODELS[0], cache),
        "dense": models / "shakespeare-dense.gguf",
        "moe": models / "shakespeare-moe.gguf",
        "wide": scratch / "wide.gguf",
        "mixture": scratch / "mixture.gguf",
    }
    enlarge = [sys.executable, HERE.parent / "feed" / "enlarge.py", made["smollm2"], made["wide"], *WIDE]
    synth = [program, "synth", "-q", "-o", made["mixture"], "--type", "q4_0", *MIXTURE]
    for command in (enlarge, synth):
        subprocess.run([str(word) for word in command], check=True, capture_output=True)
    return made


def check(case: Case, args: argparse.Namespace, folder: Path, models: dict[str, Path], scratch: Path) -> None:
    env = vulkan.environment(folder)
    server = [folder / "llama-server", "-m", models[case.model], *case.flags, *COMMON]
    try:
        alone, _ = answers(case.prompts, server, env, scratch / "alone")
    except vulkan.Died as died:
        signal = death(died.code)
        return untested(case.name, f"it died with {signal} by itself") if signal else fail(case.name, str(died))
    begin = time.monotonic()
    run = [args.tensorscope, "run", "--always", "--memory", case.budget, "--"]
    try:
        fed, ended = answers(case.prompts, [*run, *server], env, scratch / "fed")
    except vulkan.Died as died:
        return fail(case.name, str(died))
    seconds = time.monotonic() - begin
    ours = ended.ours()
    if fed != alone:
        return fail(case.name, f"{fed} instead of {alone}; {ours}")
    if ended.process.returncode != 0:
        return fail(case.name, f"exit code {ended.process.returncode}: {ours}")
    if not any(case.expect in line for line in ours):
        return fail(case.name, f"no line has {case.expect!r}: {ours}")
    closing = re.search(r"([\d.]+ \w+) read in .* ([\d.]+ \w+) kept", "\n".join(ours))
    if case.times_read:
        if not closing:
            return fail(case.name, f"no closing line: {ours}")
        read, kept = size(closing[1]), size(closing[2])
        if read < case.times_read * kept:
            return fail(case.name, f"weights were not streamed: {ours}")
    said = closing[0] if closing else ours[0]
    passed(case.name, f"the text and probabilities of the server alone; {said} ({seconds:.0f} s)")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tensorscope", required=True)
    parser.add_argument("--models", required=True, type=Path)
    parser.add_argument("--cache", required=True, type=Path)
    parser.add_argument("--case", help="this one alone")
    args = parser.parse_args()
    args.tensorscope = str(Path(args.tensorscope).resolve())
    cache = args.cache.resolve()
    folder = vulkan.fetch(cache)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        scratch = Path(scratch)
        models = make(args.models, args.tensorscope, cache, scratch)
        for case in CASES:
            if args.case in (None, case.name):
                check(case, args, folder, models, scratch)
    print(f"gpu feed: {len(PASSED)} passed, {len(FAILED)} failed, {len(UNTESTED)} not tested")
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
