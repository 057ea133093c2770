"""More tokens a pass, measured: guessed tokens, and several texts at once, over feeding as it is without.

    python tests/feed/passes.py --tensorscope target/release/tensorscope LARGE.gguf --memory 25% --repeats 3

Tasks are the prompts beside this file: a code edit and a summary, which repeat their prompt, and free prose.
Modes take turns within one run; ratios are those of one repeat, and the median of them is printed. Guessed
tokens must change no token and no bit of the logits, or the exit code is 1. A model that is large and says
what a real one says is made by enlarge.py.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

PROMPTS = pathlib.Path(__file__).parent / "prompts"
TASKS = ["edit", "summary", "prose"]


def run(args: argparse.Namespace, *more: str, texts: int = 1) -> dict:
    command = [args.tensorscope, "run", "-m", args.model, "--memory", args.memory]
    command += ["-c", str(args.ctx_size * texts), "--parallel", str(texts)]
    command += ["-n", str(args.tokens), "--ignore-eos", "--cold", "--json", "-q", *more]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def rate(report: dict) -> float:
    """Tokens a second after the first two passes, in which reading ahead gets into its stride."""
    tokens, seconds = report["pass_tokens"][2:], report["token_seconds"][2:]
    return sum(tokens) / sum(seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--tensorscope", default="target/release/tensorscope")
    parser.add_argument("--memory", default="25%")
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--ctx-size", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--parallel", type=int, default=0, help="measure so many texts at once, too")
    args = parser.parse_args()
    is_same = True
    ratios: dict[str, list[float]] = {}
    for repeat in range(args.repeats):
        for task in args.tasks.split(","):
            prompt = ["-f", str(PROMPTS / f"{task}.txt")]
            modes = ["off", "auto"] if repeat % 2 == 0 else ["auto", "off"]
            reports = {mode: run(args, *prompt, "--draft", mode) for mode in modes}
            plain, drafted = reports["off"], reports["auto"]
            same = all(plain[key] == drafted[key] for key in ("tokens", "logits_hash"))
            is_same &= same
            ratios.setdefault(task, []).append(rate(drafted) / rate(plain))
            counts = drafted["drafted"]
            print(
                f"{repeat + 1} {task}: {rate(plain):.2f} -> {rate(drafted):.2f} tokens/s "
                f"({ratios[task][-1]:.2f}x), {len(plain['pass_tokens'])} -> {counts['passes']} passes, "
                f"{counts['accepted_tokens']} of {counts['drafted_tokens']} guesses right, "
                f"{'same' if same else 'OTHER OUTPUT'}",
                flush=True,
            )
            if args.parallel:
                many = run(args, *prompt, "--draft", "off", texts=args.parallel)
                name = f"{task}, {args.parallel} at once"
                ratios.setdefault(name, []).append(rate(many) / rate(plain))
                print(f"{repeat + 1} {name}: {rate(many):.2f} tokens/s ({ratios[name][-1]:.2f}x)", flush=True)
    for name, found in ratios.items():
        print(f"{name}: {statistics.median(found):.2f}x (of {len(found)}: {min(found):.2f} to {max(found):.2f})")
    return 0 if is_same else 1


if __name__ == "__main__":
    sys.exit(main())
