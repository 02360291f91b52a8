"""Three choices inside a Transformer block, switched one at a time: which norm, whether there are residual connections,
and whether scores are divided by the root of d_k.

    python recipes/norms_and_residuals/run.py

The text is the project's licence, as bytes: 9/10 for training, the rest held out. Batch normalisation takes its
statistics over all tokens of a batch, later ones included, so that in training it is not causal: the catalogue gives it
the trait `batch_statistics`, and the laws hold for it in evaluation alone. ``result.json`` holds every number with the
hash of the settings; the README and the pictures are made of it (page.py). About three minutes of one core.
"""

from __future__ import annotations

import hashlib
import json
import math
import runpy
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.core.model import LanguageModel, built_model, language_model, parse_model
from weft.core.span import Span

FOLDER = Path(__file__).parent
LICENCE = FOLDER.parents[1] / "LICENSE"
TOKENS, WIDTH, RATE, SEEDS = 32, 48, 3e-3, (0, 1, 2)
NORMS, BATCHES, LENGTHS = ("batchnorm", "layernorm"), (1, 4, 16), ("equal", "unequal")
NORM_STEPS = 250
DEPTHS, DEPTH_STEPS, DEPTH_ROWS = (2, 8, 24), 150, 8
KEY_SIZES, KEY_STEPS, KEYS, DRAWS = (4, 16, 64, 256), 150, 64, 64
TRAINED_SIZES = (4, 16, 64)


def configuration(*, norm: str = "layernorm", depth: int = 2, residual: bool = True, d_head: int | None = None,
                  scale: float | None = None) -> dict[str, Any]:
    """A decoder of pre-norm blocks."""
    attention = {"kind": "attention", "n_heads": 2, "d_head": d_head, "position": "rope", "scores": {"scale": scale}}
    block = {"kind": "pre", "norm": norm, "residual": residual, "layers": [attention, {"kind": "mlp", "d_ff": 96}]}
    return {"kind": "decoder", "vocab_size": 256, "context": TOKENS, "d_model": WIDTH, "norm": norm,
            "blocks": [{"repeat": depth, "of": [block]}], "readout": {"kind": "linear", "tied": False}}


def settings_sha256() -> str:
    """Of the models, the training, and the text."""
    settings = [configuration(), TOKENS, WIDTH, RATE, SEEDS, NORMS, BATCHES, LENGTHS, NORM_STEPS, DEPTHS, DEPTH_STEPS,
                DEPTH_ROWS, KEY_SIZES, KEY_STEPS, KEYS, DRAWS, TRAINED_SIZES]
    text = hashlib.sha256(LICENCE.read_bytes()).hexdigest()
    return hashlib.sha256(json.dumps([settings, text], sort_keys=True).encode()).hexdigest()


def parts() -> tuple[Tensor, Tensor]:
    """The bytes for training and those held out."""
    text = torch.tensor(list(LICENCE.read_bytes()))
    cut = len(text) * 9 // 10
    return text[:cut], text[cut:]


def single_bytes() -> float:
    """The loss, in nats, on the held-out bytes of the frequencies of single bytes in the rest, each counted once
    more."""
    text, rest = parts()
    counts = torch.bincount(text, minlength=256) + 1.0
    return float(-(counts / counts.sum()).log()[rest].mean())


def built(seed: int, **options: Any) -> LanguageModel:
    """A model with this seed's weights."""
    torch.manual_seed(seed)
    return language_model(built_model(parse_model(configuration(**options))), "this study")


def losses(model: LanguageModel, tokens: Tensor, count: Tensor | None = None) -> Tensor:
    """The mean negative log-probability, in nats, of the token after each real one of rows [B,T+1]."""
    span = Span(count=count)
    found = -model.readout.log_prob(model.hidden(tokens[:, :-1], None, span).y, tokens[:, 1:])
    if count is None:
        return found.mean()
    real = torch.arange(found.shape[1]) < count[:, None]
    return torch.where(real, found, 0.0).sum() / real.sum()


def batch(text: Tensor, rows: int, lengths: str) -> tuple[Tensor, Tensor | None]:
    """Rows that begin anywhere, and their lengths: all T, or each drawn from 1 to T."""
    starts = torch.randint(len(text) - TOKENS, (rows, 1))
    count = torch.randint(1, TOKENS + 1, (rows,)) if lengths == "unequal" else None
    return text[starts + torch.arange(TOKENS + 1)], count


def train(model: LanguageModel, steps: int, rows: int, lengths: str = "equal") -> list[float]:
    """The training loss of each step."""
    text, _ = parts()
    optimizer, found = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0), []
    for _ in range(steps):
        loss = losses(model.train(), *batch(text, rows, lengths))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        found.append(float(loss.detach()))
    return found


@torch.no_grad()
def held_out(model: LanguageModel) -> float:
    """The loss on windows of the held-out bytes, in evaluation."""
    return float(losses(model.eval(), parts()[1].unfold(0, TOKENS + 1, TOKENS)))


@torch.no_grad()
def leak(model: LanguageModel) -> float:
    """How far the vectors of a row's first half move, in training mode, when its second half and the other rows are
    exchanged: the largest difference relative to the largest entry. 0 for a causal map."""
    first, second = (parts()[1][start:start + 4 * TOKENS].view(4, TOKENS) for start in (0, 4 * TOKENS))
    changed = torch.cat([torch.cat([first[:1, :TOKENS // 2], second[:1, TOKENS // 2:]], 1), second[1:]])
    a, b = (model.train().hidden(each).y[0, :TOKENS // 2] for each in (first, changed))
    return float((a - b).abs().max() / a.abs().max())


def norm_runs(steps: int = NORM_STEPS, seeds: tuple[int, ...] = SEEDS) -> list[dict[str, Any]]:
    """Both norms over batch sizes and lengths."""
    found = []
    for norm, rows, lengths, seed in product(NORMS, BATCHES, LENGTHS, seeds):
        model = built(seed, norm=norm)
        curve = train(model, steps, rows, lengths)
        loss = held_out(model)
        found.append({"norm": norm, "rows": rows, "lengths": lengths, "seed": seed, "held_out": loss,
                      "training": sum(curve[-20:]) / len(curve[-20:]), "leak": leak(model)})
    return found


def gradient_norms(model: LanguageModel) -> list[float]:
    """The norm of the loss's gradient with respect to the parameters of each block, first block first."""
    torch.manual_seed(0)
    model.zero_grad()
    losses(model.train(), *batch(parts()[0], DEPTH_ROWS, "equal")).backward()
    blocks = model.get_submodule("stack.layers")
    return [math.sqrt(sum(float(each.grad.square().sum()) for each in block.parameters() if each.grad is not None))
            for block in blocks.children()]


def depth_runs(steps: int = DEPTH_STEPS, seeds: tuple[int, ...] = SEEDS) -> list[dict[str, Any]]:
    """With and without residual connections over depths: gradients before training, losses after."""
    found = []
    for residual, depth, seed in product((True, False), DEPTHS, seeds):
        model = built(seed, depth=depth, residual=residual)
        gradients = gradient_norms(model)
        train(model, steps, DEPTH_ROWS)
        found.append({"residual": residual, "depth": depth, "seed": seed, "gradients": gradients,
                      "held_out": held_out(model)})
    return found


def drawn_weights(seed: int, d_key: int, scaled: bool) -> dict[str, float]:
    """The softmax of scores of queries and keys with independent normal features of variance 1: the entropy of its
    weights over the logarithm of their number, and the mean of 1 - sum of squares, by which gradients shrink."""
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(DRAWS, count, d_key, generator=generator) for count in (1, KEYS))
    scores = (q @ k.transpose(1, 2))[:, 0] / (d_key ** 0.5 if scaled else 1.0)
    weights = scores.softmax(-1)
    entropy = -(weights * scores.log_softmax(-1)).sum(-1)
    return {"entropy": float(entropy.mean()) / math.log(KEYS),
            "slope": float((1 - weights.square().sum(-1)).mean())}


def key_runs(steps: int = KEY_STEPS, seeds: tuple[int, ...] = SEEDS) -> list[dict[str, Any]]:
    """Scaled and unscaled scores over sizes of keys: of random vectors, and the loss of a model that is trained so."""
    found = []
    for scaled, d_key, seed in product((True, False), KEY_SIZES, seeds):
        run = {"scaled": scaled, "d_key": d_key, "seed": seed, **drawn_weights(seed, d_key, scaled)}
        if d_key in TRAINED_SIZES:
            model = built(seed, d_head=d_key, scale=None if scaled else 1.0)
            train(model, steps, DEPTH_ROWS)
            run["held_out"] = held_out(model)
        found.append(run)
    return found


def main(folder: Path = FOLDER) -> None:
    """Train, measure, and write the result, the page and its pictures."""
    found = {"settings_sha256": settings_sha256(), "torch": torch.__version__, "single_bytes": single_bytes(),
             "norms": norm_runs(), "depths": depth_runs(), "keys": key_runs()}
    (folder / "result.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    made = runpy.run_path(str(FOLDER / "page.py"))
    (folder / "README.md").write_text(made["page"](found), encoding="utf-8")
    for figure in made["pictures"](found):
        (folder / f"{figure.name}.svg").write_text(figure.alone(), encoding="utf-8")


if __name__ == "__main__":
    main()
