"""Generates tokens greedily with llama-cpp-python and prints their numbers.

    python python.py MODEL TOKENS [PROMPT [LAYERS]]

TOKENS 0: generates nothing, but evaluates the prompt token by token, which every
version of llama.cpp does alike (generated tokens depend on how it rounds). A PROMPT
`tokens:1,464,…` is not tokenized, which versions do not do alike either. LAYERS
are on the card, -1 for all of them.
"""

import itertools
import json
import sys

import llama_cpp

model_path, count = sys.argv[1], int(sys.argv[2])
prompt = sys.argv[3] if len(sys.argv) > 3 else "To be, or not"
layers = int(sys.argv[4]) if len(sys.argv) > 4 else 0
llama = llama_cpp.Llama(model_path, n_ctx=512, n_threads=2, n_threads_batch=2, n_gpu_layers=layers, verbose=False)
if prompt.startswith("tokens:"):
    tokens = [int(number) for number in prompt.removeprefix("tokens:").split(",")]
else:
    tokens = llama.tokenize(prompt.encode())
if count == 0:
    for token in tokens:
        llama.eval([token])
generated = list(itertools.islice(llama.generate(tokens, temp=0.0, reset=True), count)) if count else []
print(json.dumps({"prompt": tokens, "generated": generated}))
