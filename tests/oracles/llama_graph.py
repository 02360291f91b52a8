"""What llama.cpp computes from a GGUF file, slowly, in NumPy: its graphs for the families that Weft writes, from the
file's own keys and tensors alone. Checked against llama.cpp itself by `make test-gguf`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

ROPE_NORM = {"llama"}
ALIBI = {"bloom", "mpt"}
PARALLEL = {"falcon", "phi2"}
GELU = {"gpt2", "gptneox", "bloom", "mpt", "falcon", "phi2", "gemma"}


class LlamaGraph:
    """One file's model: ``logits`` [T,V] of a row of tokens."""

    def __init__(self, keys: Mapping[str, Any], tensors: Mapping[str, NDArray[np.float32]]) -> None:
        self.arch: str = keys["general.architecture"]
        self.keys, self.tensors = keys, {name: np.asarray(each, np.float64) for name, each in tensors.items()}
        self.heads, self.kv_heads = self.key("attention.head_count"), self.key("attention.head_count_kv")
        self.size = self.key("attention.key_length", self.key("embedding_length") // self.heads)

    def key(self, name: str, default: Any = None) -> Any:
        """A key of the architecture."""
        return self.keys.get(f"{self.arch}.{name}", default)

    def get(self, name: str) -> Array | None:
        """A tensor, or None."""
        return self.tensors.get(name)

    def shifted(self, name: str, x: Array) -> Array:
        """The last step of a map or a norm: its bias, if it has one."""
        bias = self.get(f"{name}.bias")
        return x if bias is None else x + bias

    def linear(self, name: str, x: Array) -> Array:
        return self.shifted(name, x @ self.tensors[f"{name}.weight"].T)

    def norm(self, name: str, x: Array) -> Array:
        rms = self.key("attention.layer_norm_rms_epsilon")
        middle = 0.0 if rms is not None else x.mean(-1, keepdims=True)
        x = x - middle
        eps = self.key("attention.layer_norm_epsilon") if rms is None else rms
        return self.shifted(name, x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * self.tensors[f"{name}.weight"])

    def activation(self, x: Array) -> Array:
        share: Array = 1 / (1 + np.exp(-x))
        if self.arch in GELU:
            share = 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))
        return x * share

    def rope(self, x: Array) -> Array:
        """x [T,H,E]."""
        n_rot = self.key("rope.dimension_count")
        if n_rot is None:
            return x
        pair = np.arange(n_rot // 2)
        theta = self.key("rope.freq_base") ** (-2.0 * pair / n_rot)
        factors = self.get("rope_freqs.weight")
        theta = theta / (1.0 if factors is None else factors)
        theta, amplitude = self.scaled(theta, n_rot)
        angle = np.arange(len(x))[:, None, None] * theta
        cos, sin = np.cos(angle) * amplitude, np.sin(angle) * amplitude
        first, second = (2 * pair, 2 * pair + 1) if self.arch in ROPE_NORM else (pair, pair + n_rot // 2)
        y = x.copy()
        y[..., first] = x[..., first] * cos - x[..., second] * sin
        y[..., second] = x[..., first] * sin + x[..., second] * cos
        return y

    def scaled(self, theta: Array, n_rot: int) -> tuple[Array, float]:
        """Frequencies and amplitude; LongRoPE for contexts within the original length."""
        kind, amplitude = self.key("rope.scaling.type", "none"), self.key("rope.scaling.attn_factor", 1.0)
        factor = self.key("rope.scaling.factor", 1.0)
        if kind == "longrope":
            return theta / self.tensors["rope_factors_short.weight"], amplitude
        if kind != "yarn":
            return theta / factor, amplitude
        length, base = self.key("rope.scaling.original_context_length"), self.key("rope.freq_base")
        low, high = (n_rot * np.log(length / (turns * 2 * np.pi)) / (2 * np.log(base)) for turns in (32.0, 1.0))
        low, high = max(np.floor(low), 0), min(np.ceil(high), n_rot - 1)
        kept = 1 - np.clip((np.arange(n_rot // 2) - low) / max(0.001, high - low), 0, 1)
        return theta / factor * (1 - kept) + theta * kept, amplitude * (1 + 0.1 * np.log(factor))

    def slopes(self) -> Array:
        """Of ALiBi, one a head: 2^(-8/n) to the powers 1, 2, ... for the largest power of two n, then between them."""
        n = 2 ** int(np.log2(self.heads))
        first, between = 2 ** (-8 / n), 2 ** (-4 / n)
        return np.array([first ** (h + 1) if h < n else between ** (2 * (h - n) + 1) for h in range(self.heads)])

    def attention(self, block: str, x: Array) -> Array:
        q_width, kv_width = self.heads * self.size, self.kv_heads * self.size
        if self.get(f"{block}.attn_qkv.weight") is not None:
            q, k, v = np.split(self.linear(f"{block}.attn_qkv", x), [q_width, q_width + kv_width], axis=-1)
        else:
            q, k, v = (self.linear(f"{block}.attn_{name}", x) for name in "qkv")
        clamp = self.key("attention.clamp_kqv", np.inf)
        q, k, v = (np.clip(each, -clamp, clamp).reshape(len(x), -1, self.size) for each in (q, k, v))
        if self.get(f"{block}.attn_q_norm.weight") is not None:
            q, k = self.norm(f"{block}.attn_q_norm", q), self.norm(f"{block}.attn_k_norm", k)
        q, k = self.rope(q), self.rope(k)
        k, v = (np.repeat(each, self.heads // self.kv_heads, axis=1) for each in (k, v))
        scores = np.einsum("thd,shd->hts", q, k) / np.sqrt(self.size)
        past = np.arange(len(x))[:, None] - np.arange(len(x))
        if self.arch in ALIBI:
            scores = scores - self.slopes()[:, None, None] * past
        scores = np.where(past < 0, -np.inf, scores)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hts,shd->thd", weights / weights.sum(-1, keepdims=True), v)
        return self.linear(f"{block}.attn_output", mixed.reshape(len(x), -1))

    def feedforward(self, block: str, x: Array) -> Array:
        if self.get(f"{block}.ffn_gate_inp.weight") is not None:
            return self.experts(block, x)
        up = self.linear(f"{block}.ffn_up", x)
        if self.arch == "phi3":
            gate, up = np.split(up, 2, axis=-1)
            hidden = self.activation(gate) * up
        elif self.get(f"{block}.ffn_gate.weight") is not None:
            hidden = self.activation(self.linear(f"{block}.ffn_gate", x)) * up
        else:
            hidden = self.activation(up)
        return self.linear(f"{block}.ffn_down", hidden)

    def experts(self, block: str, x: Array) -> Array:
        scores = self.linear(f"{block}.ffn_gate_inp", x)
        y = np.zeros_like(x)
        gate, up, down = (self.tensors[f"{block}.ffn_{name}_exps.weight"] for name in ("gate", "up", "down"))
        for t, row in enumerate(scores):
            chosen = np.argsort(-row)[:self.key("expert_used_count")]
            share = np.exp(row[chosen] - row[chosen].max())
            for n, weight in zip(chosen, share / share.sum(), strict=True):
                y[t] += weight * (down[n] @ (self.activation(gate[n] @ x[t]) * (up[n] @ x[t])))
        return y

    def block(self, block: str, x: Array) -> Array:
        normed = self.norm(f"{block}.attn_norm", x)
        second = f"{block}.attn_norm_2"
        attended = self.attention(block, self.norm(second, x) if self.get(f"{second}.weight") is not None else normed)
        if self.arch in PARALLEL:
            return x + attended + self.feedforward(block, normed)
        if self.key("use_parallel_residual", False):
            return x + attended + self.feedforward(block, self.norm(f"{block}.ffn_norm", x))
        x = x + attended
        return x + self.feedforward(block, self.norm(f"{block}.ffn_norm", x))

    def logits(self, tokens: list[int]) -> Array:
        """[T,V]."""
        x = self.tensors["token_embd.weight"][tokens]
        if self.arch == "gemma":
            x = x * np.sqrt(self.key("embedding_length"))
        positions = self.get("position_embd.weight")
        if positions is not None:
            x = x + positions[:len(tokens)]
        if self.arch == "bloom":
            x = self.norm("token_embd_norm", x)
        for layer in range(self.key("block_count")):
            x = self.block(f"blk.{layer}", x)
        x = self.norm("output_norm", x)
        if self.get("output.weight") is None:
            y: Array = x @ self.tensors["token_embd.weight"].T
            return y
        return self.linear("output", x)
