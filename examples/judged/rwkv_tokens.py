"""An RWKV (version 4) in NumPy that reads one token at a time, from a dictionary of weights in the names of its files.

Nothing here knows of a judge but the last two methods: ``weft judge --call rwkv_tokens.py:RWKV``. Its state is that of
its own loop: for each layer the inputs of the last token, and a numerator, a denominator and a largest exponent.
"""

import numpy as np

VOCAB, WIDTH, LAYERS = 80, 32, 2


def random_weights(seed=0):
    """Weights in the names of published files, at random."""
    draw, weights = np.random.default_rng(seed), {"emb.weight": None, "head.weight": None}
    weights["emb.weight"], weights["head.weight"] = draw.normal(size=(2, VOCAB, WIDTH))
    for name in ("blocks.0.ln0", "ln_out", *(f"blocks.{i}.ln{j}" for i in range(LAYERS) for j in (1, 2))):
        weights[f"{name}.weight"], weights[f"{name}.bias"] = np.ones(WIDTH), np.zeros(WIDTH)
    for i in range(LAYERS):
        for mixed in ("att.time_mix_k", "att.time_mix_v", "att.time_mix_r", "ffn.time_mix_k", "ffn.time_mix_r"):
            weights[f"blocks.{i}.{mixed}"] = draw.uniform(size=WIDTH)
        weights[f"blocks.{i}.att.time_decay"] = draw.normal(size=WIDTH) - 1
        weights[f"blocks.{i}.att.time_first"] = draw.normal(size=WIDTH)
        for part in ("att.key", "att.value", "att.receptance", "att.output", "ffn.receptance"):
            weights[f"blocks.{i}.{part}.weight"] = draw.normal(size=(WIDTH, WIDTH)) / WIDTH**0.5
        weights[f"blocks.{i}.ffn.key.weight"] = draw.normal(size=(4 * WIDTH, WIDTH)) / WIDTH**0.5
        weights[f"blocks.{i}.ffn.value.weight"] = draw.normal(size=(WIDTH, 4 * WIDTH)) / (4 * WIDTH) ** 0.5
    return weights


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class RWKV:
    vocab_size = VOCAB

    def __init__(self):
        self.w = random_weights()

    def norm(self, x, name):
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt(centred.var(-1, keepdims=True) + 1e-5)
        return scaled * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    def time_mixing(self, x, i, state):
        w = {name.removeprefix(f"blocks.{i}.att."): each for name, each in self.w.items() if f"blocks.{i}.att." in name}
        last, num, den, most = state
        k, v, r = (x * w[f"time_mix_{n}"] + last * (1 - w[f"time_mix_{n}"]) for n in "kvr")
        k, v, r = k @ w["key.weight"].T, v @ w["value.weight"].T, r @ w["receptance.weight"].T
        top = np.maximum(most, w["time_first"] + k)
        old, new = np.exp(most - top), np.exp(w["time_first"] + k - top)
        wkv = (old * num + new * v) / (old * den + new)
        decayed = most - np.exp(w["time_decay"])
        top = np.maximum(decayed, k)
        old, new = np.exp(decayed - top), np.exp(k - top)
        return (sigmoid(r) * wkv) @ w["output.weight"].T, (x, old * num + new * v, old * den + new, top)

    def channel_mixing(self, x, i, last):
        w = {name.removeprefix(f"blocks.{i}.ffn."): each for name, each in self.w.items() if f"blocks.{i}.ffn." in name}
        k, r = (x * w[f"time_mix_{n}"] + last * (1 - w[f"time_mix_{n}"]) for n in "kr")
        hidden = np.maximum(k @ w["key.weight"].T, 0) ** 2
        return sigmoid(r @ w["receptance.weight"].T) * (hidden @ w["value.weight"].T), x

    def forward(self, tokens, state):
        """Logits of the token after each of ``tokens`` [B], and the state after them."""
        x, after = self.norm(self.w["emb.weight"][tokens], "blocks.0.ln0"), []
        for i, (attention, last) in enumerate(state):
            y, attention = self.time_mixing(self.norm(x, f"blocks.{i}.ln1"), i, attention)
            x = x + y
            y, last = self.channel_mixing(self.norm(x, f"blocks.{i}.ln2"), i, last)
            x, after = x + y, [*after, (attention, last)]
        return self.norm(x, "ln_out") @ self.w["head.weight"].T, after

    def start(self, batch):
        zero = np.zeros((batch, WIDTH))
        return [((zero, zero, zero, zero - 1e30), zero) for _ in range(LAYERS)]

    step = forward

    def __call__(self, ids):
        state, rows = self.start(len(ids)), []
        for tokens in ids.T:
            logits, state = self.forward(tokens, state)
            rows.append(logits)
        return np.stack(rows, 1)
