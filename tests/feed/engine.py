"""The built-in engine against llama.cpp built for this processor: prompts and generation, models in memory.

    python tests/feed/engine.py LLAMA_BENCH MODEL.gguf… --tensorscope target/release/tensorscope

LLAMA_BENCH is a llama-bench built with -DGGML_NATIVE=ON. Both compute the same number of prompt tokens and then
generate behind them, with as many threads, in turns. `run` repacks weights of models that fit, as llama-bench
does. Printed are medians over the rounds, and the ratio of ours to theirs.
"""

import argparse
import json
import statistics
import subprocess
import sys


def output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()[-500:]}")
    return done.stdout


def ours(args: argparse.Namespace, model: str) -> tuple[int, float, float]:
    """Tokens of the prompt, and tokens a second of the prompt and of generation."""
    command = [args.tensorscope, "run", "-m", model, "-p", args.prompt, "-n", str(args.tokens + 1)]
    command += ["-t", str(args.threads), "--ignore-eos", "--json", "-q"]
    report = json.loads(output(command))
    prompt_seconds = report["first_token_seconds"] - report["load_seconds"]
    count = report["prompt_tokens"]
    return count, count / prompt_seconds, 1 / statistics.mean(report["token_seconds"])


def theirs(args: argparse.Namespace, model: str, prompt_tokens: int) -> tuple[float, float]:
    bench = [args.bench, "-m", model, "-t", str(args.threads), "-r", "1", "-o", "json"]
    prompt = json.loads(output([*bench, "-p", str(prompt_tokens), "-n", "0"]))
    behind = json.loads(output([*bench, "-p", "0", "-n", str(args.tokens), "-d", str(prompt_tokens)]))
    return prompt[0]["avg_ts"], behind[0]["avg_ts"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", metavar="LLAMA_BENCH")
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--tensorscope", default="target/release/tensorscope")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", default="It was the best of times, it was the worst of times. " * 4)
    args = parser.parse_args()
    found: dict[str, list[tuple[float, ...]]] = {model: [] for model in args.models}
    for number in range(args.rounds):
        for model in args.models:
            prompt_tokens, our_prompt, our_rate = ours(args, model)
            their_prompt, their_rate = theirs(args, model, prompt_tokens)
            found[model].append((our_prompt, their_prompt, our_rate, their_rate))
            print(f"{number + 1} {model}: prompt of {prompt_tokens} {our_prompt:.1f} and {their_prompt:.1f} tokens/s, "
                  f"generating {our_rate:.2f} and {their_rate:.2f}", flush=True)
    for model, rounds in found.items():
        our_prompt, their_prompt, our_rate, their_rate = (statistics.median(column) for column in zip(*rounds))
        print(f"{model}: prompt {our_prompt:.1f} of {their_prompt:.1f} tokens/s ({our_prompt / their_prompt:.0%}), "
              f"generating {our_rate:.2f} of {their_rate:.2f} ({our_rate / their_rate:.0%})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
