"""Is every token of every response in the trace?

    python complete.py MODEL RUN RESPONSES.json TENSORSCOPE

Replays the trace of a server: an evaluation writes its tokens at their positions,
and forgets what stood behind them. Whenever one begins at or before a position
that is known, the sequence before it is complete. Every response must be one of
those sequences, each of which answers for one response only.
"""

import csv
import json
import subprocess
import sys
from collections import Counter

import llama_cpp

model, run, responses_path, tensorscope = sys.argv[1:5]
query = (
    "SELECT e.context, t.eval, t.token_id, t.position FROM tokens t JOIN evals e ON e.eval = t.eval "
    "ORDER BY e.begin_nanos, t.token"
)
rows = subprocess.run(
    [tensorscope, "sql", run, query, "--format", "csv"], stdout=subprocess.PIPE, text=True, check=True
).stdout
llama = llama_cpp.Llama(model, vocab_only=True, verbose=False)


def text_of(tokens):
    return llama.detokenize(tokens[1:]).decode(errors="ignore")


sequences = Counter()
known = {}
for row in csv.DictReader(rows.splitlines()):
    sequence = known.setdefault(row["context"], [])
    position = int(row["position"])
    if position < len(sequence):
        sequences[text_of(sequence)] += 1
        del sequence[position:]
    if position != len(sequence):
        sys.exit(f"evaluation {row['eval']}: position {position} follows {len(sequence)}")
    sequence.append(int(row["token_id"]))
for sequence in known.values():
    sequences[text_of(sequence)] += 1

missing = 0
responses = json.load(open(responses_path))
for response in responses:
    whole = response["prompt"] + response["response"]
    # The last token was chosen and never evaluated.
    found = [s for s in sequences if sequences[s] and s and whole.startswith(s) and len(s) > len(response["prompt"])]
    if not found:
        missing += 1
        print(f"missing: {whole!r}")
        continue
    sequences[max(found, key=len)] -= 1
print(f"{len(responses)} responses, {missing} missing from the trace")
sys.exit(missing > 0)
