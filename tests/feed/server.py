"""A real llama-server in too little memory, with clients that stream: llama.cpp alone and fed.

    python tests/feed/server.py SERVER MODEL.gguf --tensorscope target/release/tensorscope --memory 50%

SERVER is a llama-server with shared libraries. Modes take turns, each server is a process of its own in a
memory cgroup of its own and begins with a cold cache:

    memory   llama.cpp alone with all the memory: what the responses are compared with (not timed against)
    stock    llama.cpp alone in --memory
    fed      `tensorscope run --memory … -- SERVER …`

Each of --clients posts --requests prompts one after the other to /completion, greedy, and reads the stream.
With --long one more client posts a prompt of about so many words while the others are answered. With --draft
the server speculates with a second model of its own. Repacked kernels round otherwise, so repacking is off
everywhere. Where the server puts tokens of several clients into one batch, what a token's logits are may depend
on who else is in it; `memory` is run twice, which shows whether that changes a response.

Speed is that of generated tokens, over all clients, from the first token of any of them to the last one. Exit code
1 when a response is not that of `memory`.
"""

import argparse
import http.client
import json
import pathlib
import re
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time

PROMPTS = [
    "The capital of France is",
    "Here is a short list of fruits: apple,",
    "Once upon a time there was a small robot who",
    "To make a cup of tea, first",
    "The three primary colours are",
    "In the year 1969 the first people",
    "A good way to learn a language is",
    "Water boils at",
]
START_SECONDS = 600


class Server:
    """One that is up, until the end of the block."""

    def __init__(self, args: argparse.Namespace, mode: str):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        program = [args.server, "-m", args.model, "--host", "127.0.0.1", "--port", str(self.port)]
        program += ["-np", str(args.slots), "-c", str(args.ctx_size), "-t", str(args.threads), "--no-repack"]
        if args.draft:
            program += ["-md", args.draft, "--spec-type", "draft-simple", "--spec-draft-n-max", str(args.draft_max)]
        program += args.server_args.split()
        run = [args.tensorscope, "run", "--cold"]
        command = {
            "memory": program,
            "stock": [*run, "--strategy", "none", "--memory", args.memory, "--", *program],
            "fed": [*run, "--memory", args.memory, "--", *program],
        }[mode]
        self.log = args.logs / f"{mode}-{int(time.time())}.log"
        self.command = command

    def __enter__(self) -> "Server":
        with self.log.open("w") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=subprocess.STDOUT)
        end = time.monotonic() + START_SECONDS
        while not self.is_up():
            if self.process.poll() is not None:
                sys.exit(f"{' '.join(self.command)}: ended with {self.process.returncode}; see {self.log}")
            if time.monotonic() > end:
                self.process.kill()
                sys.exit(f"the server is not up after {START_SECONDS} s; see {self.log}")
            time.sleep(0.2)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def is_up(self) -> bool:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False

    def complete(self, prompt: str, count: int) -> tuple[str, list[float]]:
        """The text of one streamed completion, and when each piece of it came."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_SECONDS)
        body = {"prompt": prompt, "n_predict": count, "temperature": 0, "stream": True, "ignore_eos": True}
        body |= {"cache_prompt": False, "return_tokens": True}
        connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
        text, times = "", []
        for line in connection.getresponse():
            if line.startswith(b"data: {"):
                piece = json.loads(line[6:])
                text += piece.get("content", "")
                times += [time.monotonic()] * len(piece.get("tokens", []))
        connection.close()
        return text, times

    def said(self, pattern: str) -> list[str]:
        return re.findall(pattern, self.log.read_text(errors="replace"))


def measure(args: argparse.Namespace, mode: str) -> dict:
    """Texts by client and request, tokens a second, and what the log says of memory."""
    texts: dict[str, str] = {}
    times: list[float] = []
    failures: list[str] = []

    def ask(name: str, prompt: str, tokens: int) -> None:
        try:
            texts[name], came = server.complete(prompt, tokens)
            times.extend(came)
        except (OSError, http.client.HTTPException, ValueError) as error:
            failures.append(f"{name}: {error!r}")

    def client(number: int) -> None:
        for turn in range(args.requests):
            prompt = PROMPTS[(number + turn * args.clients) % len(PROMPTS)]
            ask(f"client {number}, request {turn}", prompt, args.tokens)

    def long_client() -> None:
        words = " ".join(f"{PROMPTS[i % len(PROMPTS)]} {i}." for i in range(args.long // 7 + 1))
        ask("long prompt", words, args.tokens // 2)

    with Server(args, mode) as server:
        server.complete("Hello", 2)
        threads = [threading.Thread(target=client, args=(i,)) for i in range(args.clients)]
        if args.long:
            threads.append(threading.Thread(target=long_client))
        begin = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if failures:
        print(f"{mode}: {len(failures)} requests failed: {failures[0]}; see {server.log}", file=sys.stderr)
    peak = server.said(r"tensorscope: (at most .*)")
    accepted = server.said(r"draft acceptance[^\n]*?= *([0-9.]+)")
    return {
        "texts": texts,
        "rate": (len(times) - 1) / (max(times) - min(times)) if len(times) > 1 else 0.0,
        "tokens": len(times),
        "first": min(times) - begin if times else float("nan"),
        "peak": peak[-1] if peak else "–",
        "accepted": statistics.mean(map(float, accepted)) if accepted else None,
        "failed": len(failures),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server")
    parser.add_argument("model")
    parser.add_argument("--tensorscope", default="target/release/tensorscope")
    parser.add_argument("--memory", default="50%", help="for the whole server [50%%]")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--slots", type=int, default=0, help="of the server [as many as clients, and one for --long]")
    parser.add_argument("--requests", type=int, default=1, help="of each client, one after the other")
    parser.add_argument("--tokens", type=int, default=24, help="of each response")
    parser.add_argument("--ctx-size", type=int, default=2048, help="of all slots together")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--long", type=int, default=0, metavar="WORDS", help="one more client with a long prompt")
    parser.add_argument("--draft", metavar="MODEL", help="a second model, which speculates")
    parser.add_argument("--draft-max", type=int, default=8)
    parser.add_argument("--server-args", default="", help="more arguments of the server, as one word")
    parser.add_argument("--modes", default="stock,fed")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--logs", type=pathlib.Path, default=pathlib.Path("/tmp"), help="folder for the servers' logs")
    args = parser.parse_args()
    args.slots = args.slots or args.clients + (1 if args.long else 0)
    modes = args.modes.split(",")
    reference = measure(args, "memory")
    again = measure(args, "memory")
    differing = [name for name, text in reference["texts"].items() if again["texts"].get(name) != text]
    print(f"memory: {reference['rate']:.2f} and {again['rate']:.2f} tokens/s, {len(reference['texts'])} responses, "
          f"{len(differing)} differ between the two", flush=True)
    rates: dict[str, list[float]] = {mode: [] for mode in modes}
    is_same = True
    for repeat in range(args.repeats):
        for mode in modes if repeat % 2 == 0 else modes[::-1]:
            found = measure(args, mode)
            rates[mode].append(found["rate"])
            wrong = [
                name
                for name, text in reference["texts"].items()
                if found["texts"].get(name) not in (text, again["texts"].get(name))
            ]
            is_same &= not wrong and not found["failed"]
            drafts = "" if found["accepted"] is None else f", {found['accepted']:.2f} of drafts accepted"
            print(
                f"{repeat + 1} {mode}: {found['rate']:.2f} tokens/s ({found['tokens']} tokens, first after "
                f"{found['first']:.1f} s), {'same responses' if not wrong else f'{len(wrong)} OTHER RESPONSES'}, "
                f"{found['peak']}{drafts}",
                flush=True,
            )
    for mode, found in rates.items():
        median = statistics.median(found)
        ratio = f", {median / statistics.median(rates['stock']):.2f}x stock" if rates.get("stock") else ""
        print(f"{mode}: {median:.2f} tokens/s (of {len(found)}: {min(found):.2f} to {max(found):.2f}){ratio}")
    return 0 if is_same else 1


if __name__ == "__main__":
    sys.exit(main())
