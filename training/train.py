"""Trains the two models that ship in models/: a dense llama and a mixture of experts.

    python3 training/train.py --data shakespeare.txt --out OUT

Needs PyTorch and numpy, no network; a GPU for a run worth keeping. Writes to OUT:

    tokenizer.json          pieces, scores and types (tokenizer.py)
    dense.npz, moe.npz      weights under GGUF names: f16 matrices, f32 norms and router
    train.log.json          configuration, losses, routing and sample texts

`export.py` turns these into GGUF files. The text is small (0.4 M tokens), so over-fitting is
what limits the result: hence dropout, other spellings of the same text (BPE-dropout), an
average of the weights (EMA), and keeping the weights with the best validation loss.
"""

import argparse
import copy
import dataclasses
import json
import math
import os
import random
import time

import numpy as np
import torch
import torch.nn.functional as F

from model import Config, Llama
from tokenizer import BOS_ID, Tokenizer

# 7.7 MB and 5.6 MB as q8_0: a file may have 8 MB, and its npz must stay under 15 MB.
SHAPES = {
    "dense": dict(n_embd=256, n_layer=6, n_head=8, n_head_kv=4, n_ff=768),
    "moe": dict(n_embd=192, n_layer=6, n_head=6, n_head_kv=3, n_ff=224, n_expert=8, n_expert_used=2),
}
# Small enough to train in seconds on a CPU; it shows that the program runs, nothing else.
SMOKE_SHAPES = {
    "dense": dict(n_embd=64, n_layer=2, n_head=2, n_head_kv=1, n_ff=96),
    "moe": dict(n_embd=64, n_layer=2, n_head=2, n_head_kv=1, n_ff=32, n_expert=8, n_expert_used=2),
}
PROMPT = "ROMEO:\n"
SAMPLE_TOKENS = 300
BALANCE_LOSS_WEIGHT = 0.01
MAX_NPZ_BYTES = 15_000_000


def main():
    args = parse_args()
    os.makedirs(args.out, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    say(f"torch {torch.__version__} on {torch.cuda.get_device_name() if device == 'cuda' else 'cpu'}")

    corpus = Corpus(args, device)
    corpus.tokenizer.save(os.path.join(args.out, "tokenizer.json"))
    log = {"arguments": vars(args), "torch": torch.__version__, "corpus": corpus.summary, "models": {}}
    shapes = SMOKE_SHAPES if args.smoke else SHAPES
    for name in args.models:
        config = Config(vocab_size=len(corpus.tokenizer), n_ctx=args.context, **shapes[name])
        log["models"][name] = train(name, config, corpus, args, device)
        # Written after each model, so that a run cut short keeps the first.
        with open(os.path.join(args.out, "train.log.json"), "w", encoding="utf-8") as file:
            json.dump(log, file, indent=1)
    say("done")


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="text file, UTF-8")
    parser.add_argument("--out", required=True, help="directory to write to")
    parser.add_argument("--models", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=32, help="windows per step")
    parser.add_argument("--context", type=int, default=512, help="tokens per window")
    parser.add_argument("--vocab", type=int, default=1024)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--dropout", type=float, default=0.25)
    parser.add_argument("--bpe-dropout", type=float, default=0.1, help="share of merges skipped in varied spellings")
    parser.add_argument("--varied-copies", type=int, default=8, help="varied spellings of the training text; 0 for none")
    parser.add_argument("--ema", type=float, default=0.995, help="decay of the averaged weights")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--smoke", action="store_true", help="tiny models, to see the program run")
    return parser.parse_args()


class Corpus:
    """The text as tokens on the device: a training stream, and the last tenth for validation."""

    def __init__(self, args, device):
        started = time.monotonic()
        with open(args.data, encoding="utf-8", newline="") as file:
            text = file.read()
        # The cut is moved to the end of a speech.
        cut = text.index("\n\n", len(text) * 9 // 10) + 2
        train_text, validation_text = text[:cut], text[cut:]
        self.tokenizer = Tokenizer.train(train_text, text, args.vocab)
        canonical = self.tokenizer.encode(train_text)
        validation = self.tokenizer.encode(validation_text)
        assert self.tokenizer.decode(canonical + validation) == text, "the tokenizer lost text"

        # One stream: line ends that a window starting at the first speech may replace by BOS,
        # the text as llama.cpp will encode it, then its varied spellings.
        rng = random.Random(args.seed)
        newline = self.tokenizer.id_of["\n"]
        stream = [newline, newline] + canonical
        self.canonical_end = len(stream)
        for _ in range(args.varied_copies):
            stream += self.tokenizer.encode_varied(train_text, args.bpe_dropout, 16, rng)
        # A speech starts after an empty line; the index is that of the token before it.
        last_start = len(stream) - (args.context + 1)
        starts = [i for i in range(1, last_start) if stream[i] == newline and stream[i - 1] == newline]
        self.canonical_starts = torch.tensor([i for i in starts if i < self.canonical_end], device=device)
        self.varied_starts = torch.tensor([i for i in starts if i >= self.canonical_end], device=device)
        self.last_start = last_start
        self.stream = torch.tensor(stream, device=device)
        self.validation = torch.tensor(validation, device=device)
        self.validation_chars = len(validation_text)
        self.context = args.context
        self.summary = {
            "chars": len(text),
            "train_tokens": len(canonical),
            "train_tokens_with_varied": len(stream),
            "validation_tokens": len(validation),
            "validation_chars": len(validation_text),
            "chars_per_token": len(text) / (len(canonical) + len(validation)),
            "seconds": round(time.monotonic() - started, 1),
        }
        say(f"corpus: {self.summary}")

    def batch(self, windows):
        """Random windows as (inputs, targets): half of them start with BOS at a speech."""
        device = self.stream.device
        varied = torch.rand(windows, device=device) < (0.5 if len(self.varied_starts) else 0.0)
        low = torch.where(varied, self.canonical_end, 0)
        high = torch.where(varied, self.last_start, min(self.canonical_end, self.last_start))
        anywhere = low + (torch.rand(windows, device=device) * (high - low)).long()
        speech = pick(self.canonical_starts, windows)
        if len(self.varied_starts):
            speech = torch.where(varied, pick(self.varied_starts, windows), speech)
        with_bos = torch.rand(windows, device=device) < 0.5
        start = torch.where(with_bos, speech, anywhere)
        tokens = self.stream[start[:, None] + torch.arange(self.context + 1, device=device)]
        # BOS takes the place of the empty line before the speech.
        tokens[:, 0] = torch.where(with_bos, BOS_ID, tokens[:, 0])
        return tokens[:, :-1], tokens[:, 1:]

    def validation_batches(self, windows):
        """Every validation token but the first is a target exactly once; -1 marks padding."""
        count = math.ceil((len(self.validation) - 1) / self.context)
        padding = count * self.context + 1 - len(self.validation)
        padded = F.pad(self.validation, (0, padding), value=-1)
        inputs = padded[:-1].view(count, self.context).clamp(min=0)
        targets = padded[1:].view(count, self.context)
        return zip(inputs.split(windows), targets.split(windows))


def pick(values, count):
    return values[torch.randint(len(values), (count,), device=values.device)]


def train(name, config, corpus, args, device):
    torch.manual_seed(args.seed)
    started = time.monotonic()
    model = Llama(config, args.dropout).to(device)
    average = copy.deepcopy(model).eval()
    parameter_count = sum(parameter.numel() for parameter in model.parameters())
    say(f"{name}: {parameter_count / 1e6:.2f} M parameters, {config}")

    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": args.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
        lr=args.lr, betas=(0.9, 0.98), fused=device == "cuda",
    )
    best = {"validation_loss": math.inf}
    history = []
    for step in range(1, args.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args)
        model.train()
        inputs, targets = corpus.batch(args.batch)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            logits = model(inputs)
        loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        balance = model.balance_loss()
        (loss + BALANCE_LOSS_WEIGHT * balance).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        # The average starts as a short one: its first weights are noise.
        decay = min(args.ema, step / (step + 10))
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - decay)

        if step % 100 == 0 or step == args.steps:
            validation_loss, _ = evaluate(average, corpus, args, device)
            row = {"step": step, "train_loss": loss.item(), "validation_loss": validation_loss,
                   "balance_loss": balance.item() if config.n_expert else 0.0,
                   "seconds": round(time.monotonic() - started, 1)}
            history.append(row)
            say(f"{name}: step {step}/{args.steps} train {row['train_loss']:.4f} validation {validation_loss:.4f} "
                f"balance {row['balance_loss']:.3f} lr {learning_rate(step, args):.2e} {row['seconds']:.0f} s")
            if validation_loss < best["validation_loss"]:
                weights = {key: value.clone() for key, value in average.state_dict().items()}
                best = {"validation_loss": validation_loss, "step": step, "weights": weights}

    average.load_state_dict(best.pop("weights"))
    path = os.path.join(args.out, f"{name}.npz")
    save(average, path)
    result = {
        "config": dataclasses.asdict(config), "parameters": parameter_count, "seed": args.seed,
        "best_step": best["step"], "npz_bytes": os.path.getsize(path), "history": history,
        **describe(average, corpus, args, device),
        "seconds": round(time.monotonic() - started, 1),
    }
    say(f"{name}: best step {best['step']}, train {result['train_loss']:.4f}, "
        f"validation {result['validation_loss']:.4f} nats/token = {result['validation_loss_per_char']:.4f} nats/char, "
        f"{result['seconds']:.0f} s, {path} {result['npz_bytes'] / 1e6:.2f} MB")
    say(f"--- {name}, greedy ---\n{result['greedy']['text']}\n--- {name}, sampled ---\n{result['sampled']['text']}\n---")
    return result


def learning_rate(step, args):
    """A short linear warm-up, then a cosine to a hundredth."""
    warmup = min(100, args.steps // 10 + 1)
    if step <= warmup:
        return args.lr * step / warmup
    progress = (step - warmup) / max(1, args.steps - warmup)
    return args.lr * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))


@torch.no_grad()
def evaluate(model, corpus, args, device):
    """Mean loss in nats per validation token, and how often each layer chose each expert."""
    total, count, usage = 0.0, 0, None
    for inputs, targets in corpus.validation_batches(args.batch):
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            logits = model(inputs)
        total += F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="sum").item()
        count += (targets >= 0).sum().item()
        if model.config.n_expert:
            chosen = torch.stack([b.ffn.chosen[targets >= 0].flatten().bincount(minlength=model.config.n_expert)
                                  for b in model.blocks])
            usage = chosen if usage is None else usage + chosen
    return total / count, usage


def save(model, path):
    """Rounds the model to what is stored, and stores it."""
    arrays = {"config": np.array(json.dumps(dataclasses.asdict(model.config)))}
    with torch.no_grad():
        for name, parameter in model.gguf_tensors():
            # Norms and router are f32 in the GGUF file too; they are a thousandth of the bytes.
            keep_f32 = parameter.dim() == 1 or "ffn_gate_inp" in name
            stored = parameter.float() if keep_f32 else parameter.half()
            parameter.copy_(stored)
            arrays[name] = stored.cpu().numpy()
    np.savez_compressed(path, **arrays)
    if os.path.getsize(path) >= MAX_NPZ_BYTES:
        raise SystemExit(f"train.py: {path}: {MAX_NPZ_BYTES} bytes or more: make the model smaller")


@torch.no_grad()
def describe(model, corpus, args, device):
    """Losses, routing and samples of the weights as stored."""
    validation_loss, usage = evaluate(model, corpus, args, device)
    torch.manual_seed(args.seed)
    train_losses = []
    for _ in range(20):
        inputs, targets = corpus.batch(args.batch)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            logits = model(inputs)
        train_losses.append(F.cross_entropy(logits.float().flatten(0, 1), targets.flatten()).item())

    tokenizer = corpus.tokenizer
    prompt = [BOS_ID] + tokenizer.encode(PROMPT)
    # In f32, so that an exported model can be compared with it number by number.
    first_logits = model(torch.tensor([prompt], device=device))[0, -1]
    top = first_logits.topk(5)
    greedy = generate(model, prompt, SAMPLE_TOKENS, 0.0, device)
    sampled = generate(model, prompt, SAMPLE_TOKENS, 0.8, device)
    from_bos = generate(model, [BOS_ID], SAMPLE_TOKENS, 0.8, device)
    result = {
        "train_loss": sum(train_losses) / len(train_losses),
        "validation_loss": validation_loss,
        "validation_loss_per_char": validation_loss * (len(corpus.validation) - 1) / corpus.validation_chars,
        "reference": {"prompt": PROMPT, "tokens": prompt,
                      "top_tokens": top.indices.tolist(), "top_logits": top.values.tolist()},
        "greedy": {"tokens": greedy, "text": tokenizer.decode(greedy)},
        "sampled": {"temperature": 0.8, "tokens": sampled, "text": tokenizer.decode(sampled)},
        "sampled_from_bos": {"temperature": 0.8, "tokens": from_bos, "text": tokenizer.decode(from_bos)},
    }
    if usage is not None:
        share = usage / usage.sum(1, keepdim=True)
        result["expert_share_by_layer"] = [[round(value, 4) for value in row] for row in share.tolist()]
        say(f"expert use by layer, least and most: {[(min(row), max(row)) for row in result['expert_share_by_layer']]}")
    return result


@torch.no_grad()
def generate(model, prompt, count, temperature, device):
    tokens = torch.tensor([prompt], device=device)
    for _ in range(count):
        logits = model(tokens[:, -model.config.n_ctx :])[0, -1]
        if temperature:
            token = torch.multinomial((logits / temperature).softmax(-1), 1)
        else:
            token = logits.argmax().view(1)
        tokens = torch.cat([tokens, token.view(1, 1)], dim=1)
    return tokens[0].tolist()


def say(message):
    print(message, flush=True)


if __name__ == "__main__":
    main()
