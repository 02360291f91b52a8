"""Peers of `gpu_training.py`: the training loop that users of plain PyTorch write, and models of `transformers`.

The loop: weights in float32, autocast to bfloat16, PyTorch's own attention, fused AdamW, clipped gradients,
`torch.compile`; TF32 for what is left in float32. The models are those that Weft trains beside them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Shape(NamedTuple):
    """Of a model and a batch; ``llama``: rotary positions, RMSNorm and a gate, in place of learned positions, layer
    norm and GELU."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    d_ff: int
    vocabulary: int
    rows: int
    tokens: int
    llama: bool = False


class Attention(nn.Module):
    """Causal attention, with rotary positions where ``angles`` are given."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = shape.heads, shape.kv_heads, shape.width // shape.heads
        bias = not shape.llama
        self.qkv = nn.Linear(shape.width, (shape.heads + 2 * shape.kv_heads) * self.size, bias=bias)
        self.output = nn.Linear(shape.width, shape.width, bias=bias)

    def forward(self, x: Tensor, angles: Tensor | None) -> Tensor:
        rows, tokens, width = x.shape
        both = self.qkv(x).view(rows, tokens, -1, self.size).transpose(1, 2)
        q, k, v = both.split([self.heads, self.kv_heads, self.kv_heads], 1)
        if angles is not None:
            q, k = rotated(q, angles), rotated(k, angles)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        found: Tensor = self.output(y.transpose(1, 2).reshape(rows, tokens, width))
        return found


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary positions of halves."""
    first, second = x.float().chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a norm and beside a residual connection."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        norm = nn.RMSNorm if shape.llama else nn.LayerNorm
        self.norm_1, self.norm_2 = norm(shape.width), norm(shape.width)
        self.attention, self.llama = Attention(shape), shape.llama
        self.up = nn.Linear(shape.width, (2 if shape.llama else 1) * shape.d_ff, bias=not shape.llama)
        self.down = nn.Linear(shape.d_ff, shape.width, bias=not shape.llama)

    def forward(self, x: Tensor, angles: Tensor | None) -> Tensor:
        x = x + self.attention(self.norm_1(x), angles)
        h = self.up(self.norm_2(x))
        if self.llama:
            gate, up = h.chunk(2, -1)
            h = F.silu(gate) * up
        else:
            h = F.gelu(h, approximate="tanh")
        found: Tensor = x + self.down(h)
        return found


class PlainModel(nn.Module):
    """A decoder that returns the mean loss of the next tokens; its readout is tied to the embeddings in GPT-2's
    shape."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = None if shape.llama else nn.Embedding(shape.tokens, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = (nn.RMSNorm if shape.llama else nn.LayerNorm)(shape.width)
        self.readout = nn.Linear(shape.width, shape.vocabulary, bias=False)
        if not shape.llama:
            self.readout.weight = self.embedding.weight
        for each in self.modules():
            if isinstance(each, nn.Linear | nn.Embedding):
                nn.init.normal_(each.weight, std=0.02)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x, angles = self.embedding(tokens), None
        places = torch.arange(tokens.shape[1], device=tokens.device)
        if self.positions is not None:
            x = x + self.positions(places)
        else:
            size = self.shape.width // self.shape.heads
            rates = 10000.0 ** (-torch.arange(0, size, 2, device=tokens.device) / size)
            angles = places[:, None] * rates
        for block in self.blocks:
            x = block(x, angles)
        return F.cross_entropy(self.readout(self.norm(x)).flatten(0, 1), targets.flatten())


class OfTransformers(nn.Module):
    """A model of `transformers`, with the loss of `PlainModel`."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        import transformers

        if shape.llama:
            config = transformers.LlamaConfig(
                vocab_size=shape.vocabulary, hidden_size=shape.width, intermediate_size=shape.d_ff,
                num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
                max_position_embeddings=shape.tokens, use_cache=False, attn_implementation="sdpa")
        else:
            config = transformers.GPT2Config(
                vocab_size=shape.vocabulary, n_embd=shape.width, n_inner=shape.d_ff, n_layer=shape.layers,
                n_head=shape.heads, n_positions=shape.tokens, use_cache=False, attn_implementation="sdpa",
                attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0)
        self.model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        logits = self.model(input_ids=tokens).logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def steps_of(model: nn.Module, shape: Shape, device: torch.device, compiled: bool) -> Callable[[], object]:
    """One step of training after another, each on rows of random tokens."""
    model.to(device).train()
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
                                  lr=3e-4, betas=(0.9, 0.95), fused=True)
    call: Any = torch.compile(model, dynamic=False) if compiled else model
    torch.manual_seed(0)
    text = torch.randint(shape.vocabulary, (16, shape.rows, shape.tokens + 1))
    text = text.pin_memory() if device.type == "cuda" else text
    done = [0]

    def step() -> object:
        before = torch.get_float32_matmul_precision()  # Weft's steps, which take turns with these, have their own
        torch.set_float32_matmul_precision("high")
        try:
            return taken()
        finally:
            torch.set_float32_matmul_precision(before)

    def taken() -> object:
        batch = text[done[0] % len(text)].to(device, non_blocking=True)
        done[0] += 1
        with torch.autocast(device.type, torch.bfloat16):
            loss = call(batch[:, :-1], batch[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step
