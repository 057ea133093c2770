"""The llama architecture in PyTorch, computed as llama.cpp computes it.

Parameters carry the shapes of their GGUF tensors (numpy order), and `gguf_tensors` gives them
under their GGUF names, so that the export is a rename-free copy. Three things must agree with
llama.cpp's `models/llama.cpp` and `build_moe_ffn`, or the exported model is noise:

1. RoPE turns the pairs (2i, 2i+1), the type that llama.cpp calls NORM; no rows are permuted.
2. The router takes a softmax over all experts, keeps the top k, and divides their weights by
   their sum.
3. An expert is silu(gate x) * (up x), then down; the router's weight multiplies its output.

Every expert is computed for every token and the ones not chosen get weight zero. At this size
that is faster on a GPU than gathering tokens, and the result is the same.
"""

import dataclasses

import torch
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass
class Config:
    vocab_size: int
    n_embd: int
    n_layer: int
    n_head: int
    n_head_kv: int
    n_ff: int
    n_ctx: int = 512
    n_expert: int = 0
    n_expert_used: int = 0
    rope_freq_base: float = 10000.0
    rms_eps: float = 1e-5

    @property
    def head_dim(self):
        return self.n_embd // self.n_head


class RmsNorm(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(config.n_embd))
        self.eps = config.rms_eps

    def forward(self, x):
        # The residual stream stays f32 under autocast, as it is in llama.cpp.
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps)


class Attention(nn.Module):
    def __init__(self, config, dropout):
        super().__init__()
        kv_dim = config.n_head_kv * config.head_dim
        self.q = nn.Linear(config.n_embd, config.n_embd, bias=False)
        self.k = nn.Linear(config.n_embd, kv_dim, bias=False)
        self.v = nn.Linear(config.n_embd, kv_dim, bias=False)
        self.output = nn.Linear(config.n_embd, config.n_embd, bias=False)
        self.config, self.dropout = config, dropout

    def forward(self, x, rope):
        batch, length, _ = x.shape
        config = self.config
        q = self.q(x).view(batch, length, config.n_head, config.head_dim).transpose(1, 2)
        k = self.k(x).view(batch, length, config.n_head_kv, config.head_dim).transpose(1, 2)
        v = self.v(x).view(batch, length, config.n_head_kv, config.head_dim).transpose(1, 2)
        q, k = rotate(q, rope).to(v.dtype), rotate(k, rope).to(v.dtype)
        # Query heads 0..group-1 share the first kv head, and so on: the order of llama.cpp.
        group = config.n_head // config.n_head_kv
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        return self.output(mixed.transpose(1, 2).reshape(batch, length, config.n_embd))


class DenseFfn(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate = nn.Linear(config.n_embd, config.n_ff, bias=False)
        self.up = nn.Linear(config.n_embd, config.n_ff, bias=False)
        self.down = nn.Linear(config.n_ff, config.n_embd, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class MoeFfn(nn.Module):
    """Top-k experts. After a forward, `balance_loss` and `chosen` describe its routing."""

    def __init__(self, config):
        super().__init__()
        self.router = nn.Parameter(torch.empty(config.n_expert, config.n_embd))
        self.gate = nn.Parameter(torch.empty(config.n_expert, config.n_ff, config.n_embd))
        self.up = nn.Parameter(torch.empty(config.n_expert, config.n_ff, config.n_embd))
        self.down = nn.Parameter(torch.empty(config.n_expert, config.n_embd, config.n_ff))
        self.config = config
        self.balance_loss, self.chosen = None, None

    def forward(self, x):
        batch, length, n_embd = x.shape
        flat = x.reshape(-1, n_embd)
        # The router decides in f32, here and in the exported file: bf16 would flip close calls.
        with torch.autocast(flat.device.type, enabled=False):
            probabilities = (flat.float() @ self.router.float().t()).softmax(-1)
        kept, chosen = probabilities.topk(self.config.n_expert_used, dim=-1)
        kept = kept / kept.sum(-1, keepdim=True)
        weights = torch.zeros_like(probabilities).scatter(1, chosen, kept)

        # Switch Transformer's balance loss: 1 when use is even, n_expert when one expert has all.
        share = torch.zeros_like(probabilities).scatter(1, chosen, 1.0).mean(0) / self.config.n_expert_used
        self.balance_loss = self.config.n_expert * (share * probabilities.mean(0)).sum()
        self.chosen = chosen.view(batch, length, -1)

        hidden = F.silu(torch.einsum("td,efd->tef", flat, self.gate)) * torch.einsum("td,efd->tef", flat, self.up)
        hidden = hidden * weights.unsqueeze(-1).to(hidden.dtype)
        return torch.einsum("tef,edf->td", hidden, self.down).view(batch, length, n_embd)


class Block(nn.Module):
    def __init__(self, config, dropout):
        super().__init__()
        self.attn_norm, self.attn = RmsNorm(config), Attention(config, dropout)
        self.ffn_norm = RmsNorm(config)
        self.ffn = MoeFfn(config) if config.n_expert else DenseFfn(config)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, rope):
        x = x + self.dropout(self.attn(self.attn_norm(x), rope))
        return x + self.dropout(self.ffn(self.ffn_norm(x)))


class Llama(nn.Module):
    def __init__(self, config, dropout):
        super().__init__()
        self.config = config
        self.token_embd = nn.Embedding(config.vocab_size, config.n_embd)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(config, dropout) for _ in range(config.n_layer))
        self.output_norm = RmsNorm(config)
        self.output = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.register_buffer("rope", rope_table(config), persistent=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                # What writes to the residual stream starts smaller, as in GPT-2.
                writes_residual = name.endswith(("attn.output.weight", "ffn.down.weight", "ffn.down"))
                nn.init.normal_(parameter, std=0.02 / (2 * config.n_layer) ** 0.5 if writes_residual else 0.02)

    def forward(self, tokens):
        x = self.dropout(self.token_embd(tokens))
        rope = self.rope[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, rope)
        return self.output(self.output_norm(x))

    def balance_loss(self):
        """The mean over the layers; zero for a dense model."""
        losses = [block.ffn.balance_loss for block in self.blocks if isinstance(block.ffn, MoeFfn)]
        return torch.stack(losses).mean() if losses else 0.0

    def gguf_tensors(self):
        """(GGUF name, parameter) pairs, in the order in which the file is evaluated."""
        yield "token_embd.weight", self.token_embd.weight
        for index, block in enumerate(self.blocks):
            prefix = f"blk.{index}."
            yield prefix + "attn_norm.weight", block.attn_norm.weight
            for part in ("q", "k", "v", "output"):
                yield prefix + f"attn_{part}.weight", getattr(block.attn, part).weight
            yield prefix + "ffn_norm.weight", block.ffn_norm.weight
            if isinstance(block.ffn, MoeFfn):
                yield prefix + "ffn_gate_inp.weight", block.ffn.router
                for part in ("gate", "up", "down"):
                    yield prefix + f"ffn_{part}_exps.weight", getattr(block.ffn, part)
            else:
                for part in ("gate", "up", "down"):
                    yield prefix + f"ffn_{part}.weight", getattr(block.ffn, part).weight
        yield "output_norm.weight", self.output_norm.weight
        yield "output.weight", self.output.weight


def rope_table(config):
    """cos and sin by position and pair: [n_ctx, head_dim / 2, 2]."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    angles = torch.outer(torch.arange(config.n_ctx, dtype=torch.float64), config.rope_freq_base**-exponents)
    return torch.stack([angles.cos(), angles.sin()], dim=-1).float()


def rotate(x, rope):
    """Turns the pairs (2i, 2i+1) of the last dimension of [batch, head, position, head_dim]."""
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = rope.unbind(-1)
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)
