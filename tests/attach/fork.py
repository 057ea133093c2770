"""Forks after computing: parent and child both go on computing.

    python fork.py MODEL
"""

import itertools
import json
import os
import sys

import llama_cpp


def generate(llama, prompt, count):
    tokens = llama.tokenize(prompt)
    return tokens, list(itertools.islice(llama.generate(tokens, temp=0.0, reset=True), count))


# One thread: a pool of OpenMP's does not survive a fork.
llama = llama_cpp.Llama(sys.argv[1], n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False)
before = generate(llama, b"To be", 4)
read, write = os.pipe()
child = os.fork()
if child == 0:
    os.write(write, json.dumps(generate(llama, b"Now is", 5)).encode())
    # The second way to end: by `exit`, with all handlers.
    sys.exit(3)
after = generate(llama, b"O Romeo", 6)
_, status = os.waitpid(child, 0)
print(json.dumps([before, json.loads(os.read(read, 65536)), after, os.WEXITSTATUS(status)]))
os._exit(5)
