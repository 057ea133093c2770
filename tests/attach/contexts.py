"""Two models, three contexts, a thread each, at the same time.

    python contexts.py MODEL MODEL [one-by-one]

`one-by-one`: for llama.cpp of early 2024, which does not always give the same
result when contexts compute at the same time.
"""

import itertools
import json
import sys
import threading

import llama_cpp

prompts = [b"To be, or not", b"Now is the", b"O Romeo"]
models = [sys.argv[1], sys.argv[2], sys.argv[1]]
results = [None] * 3
# Loaded one after another: `verbose=False` redirects the descriptors of the whole
# process for a moment.
llamas = [
    llama_cpp.Llama(model, n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False)
    for model in models
]


def work(i):
    llama = llamas[i]
    tokens = llama.tokenize(prompts[i])
    results[i] = [tokens, list(itertools.islice(llama.generate(tokens, temp=0.0, reset=True), 24))]


threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
for thread in threads:
    thread.start()
    if "one-by-one" in sys.argv:
        thread.join()
for thread in threads:
    thread.join()
print(json.dumps(results))
