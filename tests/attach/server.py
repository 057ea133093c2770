"""Four clients stream completions from llama-cpp-python's server for a while.

    python server.py MODEL SECONDS OUT.json -- COMMAND…

COMMAND starts the server (with or without tensorscope in front); the model and
the port are appended. OUT.json gets every request with its response. The server
is ended by SIGTERM, and its exit code is ours.
"""

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time

CLIENTS = 4
PROMPTS = ["To be, or not", "Now is the winter", "O Romeo, Romeo", "Friends, Romans", "What light"]

model, seconds, out_path = sys.argv[1], float(sys.argv[2]), sys.argv[3]
command = sys.argv[sys.argv.index("--") + 1 :]
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
server = subprocess.Popen(
    command
    + ["-m", "llama_cpp.server", "--model", model, "--port", str(port), "--n_ctx", "512"]
    # Without it a new request cuts off the one that is being answered.
    + ["--interrupt_requests", "false", "--n_threads", "2", "--n_threads_batch", "2"],
    stdout=subprocess.DEVNULL,
)


def complete(prompt, count):
    """The text of one streamed completion."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    body = {"prompt": prompt, "max_tokens": count, "temperature": 0, "stream": True, "seed": 1}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    pieces = []
    for line in connection.getresponse():
        line = line.strip()
        if line.startswith(b"data: {"):
            pieces.append(json.loads(line[6:])["choices"][0]["text"])
    return "".join(pieces)


def is_up():
    try:
        return complete("x", 1) is not None
    except OSError:
        return False


while not is_up():
    if server.poll() is not None:
        sys.exit(f"the server ended with {server.returncode}")
    time.sleep(0.2)

responses = []
end = time.monotonic() + seconds


def client(number):
    turn = 0
    while time.monotonic() < end:
        prompt = PROMPTS[(number + turn) % len(PROMPTS)] + f" {number}"
        count = 8 + (number * 7 + turn * 3) % 24
        responses.append({"prompt": prompt, "count": count, "response": complete(prompt, count)})
        turn += 1


threads = [threading.Thread(target=client, args=(i,)) for i in range(CLIENTS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
server.send_signal(signal.SIGTERM)
code = server.wait()
with open(out_path, "w") as out:
    json.dump(responses, out)
print(f"{len(responses)} responses")
sys.exit(code if code >= 0 else 128 - code)
