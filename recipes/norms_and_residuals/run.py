"""Three choices inside a Transformer block, switched one at a time: which norm, whether there are residual connections,
and whether scores are divided by the root of d_k.

    python recipes/norms_and_residuals/run.py
    python recipes/norms_and_residuals/run.py --text book.txt --tokens 256 --d-model 256 --scale 10 --out larger

The text is the project's licence, as bytes, or another: 9/10 for training, the rest held out. Batch normalisation takes
its statistics over all tokens of a batch, later ones included, so that in training it is not causal: the catalogue
gives it the trait `batch_statistics`, and the laws hold for it in evaluation alone. ``result.json`` holds every number
with the hash of the settings; the README and the pictures are made of it (page.py). About three minutes of one core. A
run of another size goes into the folder of `--out`; with `--record` it takes the place of the recorded one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import runpy
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.progress import track
from torch import Tensor

from weft.core.model import LanguageModel, built_model, language_model, parse_model
from weft.core.span import Span

FOLDER = Path(__file__).parent
LICENCE = FOLDER.parents[1] / "LICENSE"
RATE = 3e-3
NORMS, BATCHES, LENGTHS = ("batchnorm", "layernorm"), (1, 4, 16), ("equal", "unequal")
NORM_STEPS = 250
DEPTH_STEPS, DEPTH_ROWS = 150, 8
KEY_SIZES, KEY_STEPS, KEYS, DRAWS = (4, 16, 64, 256), 150, 64, 64
TRAINED_SIZES = (4, 16, 64)


class Size(NamedTuple):
    """Of a run; the defaults are the recorded one's.

    Attributes:
        text: what is read; None: the project's licence.
        tokens: bytes of a row.
        width: features of a token, a multiple of 4.
        depths: blocks of the models with and without residual connections.
        scale: factor of all numbers of steps.
    """

    scale: float = 1.0
    seeds: int = 3
    tokens: int = 32
    width: int = 48
    depths: tuple[int, ...] = (2, 8, 24)
    text: str | None = None

    def steps(self, count: int) -> int:
        """So many, times the factor."""
        return max(1, round(self.scale * count))


RECORDED = Size()


def configuration(size: Size = RECORDED, *, norm: str = "layernorm", depth: int = 2, residual: bool = True,
                  d_head: int | None = None, scale: float | None = None) -> dict[str, Any]:
    """A decoder of pre-norm blocks."""
    attention = {"kind": "attention", "n_heads": 2, "d_head": d_head, "position": "rope", "scores": {"scale": scale}}
    layers = [attention, {"kind": "mlp", "d_ff": 2 * size.width}]
    block = {"kind": "pre", "norm": norm, "residual": residual, "layers": layers}
    return {"kind": "decoder", "vocab_size": 256, "context": size.tokens, "d_model": size.width, "norm": norm,
            "embedding": {"std": 0.02}, "blocks": [{"repeat": depth, "of": [block]}],
            "readout": {"kind": "linear", "tied": False}}


def settings_sha256(size: Size = RECORDED) -> str:
    """Of the models, the training, and the text."""
    settings = [configuration(size), size.tokens, size.width, RATE, tuple(range(size.seeds)), NORMS, BATCHES, LENGTHS,
                size.steps(NORM_STEPS), size.depths, size.steps(DEPTH_STEPS), DEPTH_ROWS, KEY_SIZES,
                size.steps(KEY_STEPS), KEYS, DRAWS, TRAINED_SIZES]
    text = hashlib.sha256(bytes_of(size)).hexdigest()
    return hashlib.sha256(json.dumps([settings, text], sort_keys=True).encode()).hexdigest()


def bytes_of(size: Size) -> bytes:
    """The text."""
    return (LICENCE if size.text is None else Path(size.text)).read_bytes()


def parts(size: Size = RECORDED) -> tuple[Tensor, Tensor]:
    """The bytes for training and those held out."""
    text = torch.frombuffer(bytearray(bytes_of(size)), dtype=torch.uint8).long()
    cut = len(text) * 9 // 10
    return text[:cut], text[cut:]


def single_bytes(size: Size = RECORDED) -> float:
    """The loss, in nats, on the held-out bytes of the frequencies of single bytes in the rest, each counted once
    more."""
    text, rest = parts(size)
    counts = torch.bincount(text, minlength=256) + 1.0
    return float(-(counts / counts.sum()).log()[rest].mean())


def built(seed: int, size: Size = RECORDED, **options: Any) -> LanguageModel:
    """A model with this seed's weights."""
    torch.manual_seed(seed)
    return language_model(built_model(parse_model(configuration(size, **options))), "this study")


def losses(model: LanguageModel, tokens: Tensor, count: Tensor | None = None) -> Tensor:
    """The mean negative log-probability, in nats, of the token after each real one of rows [B,T+1]."""
    span = Span(count=count)
    found = -model.readout.log_prob(model.hidden(tokens[:, :-1], None, span).y, tokens[:, 1:])
    if count is None:
        return found.mean()
    real = torch.arange(found.shape[1]) < count[:, None]
    return torch.where(real, found, 0.0).sum() / real.sum()


def batch(text: Tensor, tokens: int, rows: int, lengths: str) -> tuple[Tensor, Tensor | None]:
    """Rows of T tokens that begin anywhere, and their lengths: all T, or each drawn from 1 to T."""
    starts = torch.randint(len(text) - tokens, (rows, 1))
    count = torch.randint(1, tokens + 1, (rows,)) if lengths == "unequal" else None
    return text[starts + torch.arange(tokens + 1)], count


def train(model: LanguageModel, steps: int, rows: int, lengths: str = "equal", size: Size = RECORDED) -> list[float]:
    """The training loss of each step."""
    text, _ = parts(size)
    optimizer, found = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0), []
    for _ in range(steps):
        loss = losses(model.train(), *batch(text, size.tokens, rows, lengths))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        found.append(float(loss.detach()))
    return found


@torch.no_grad()
def held_out(model: LanguageModel, size: Size = RECORDED) -> float:
    """The loss on windows of the held-out bytes, in evaluation."""
    return float(losses(model.eval(), parts(size)[1].unfold(0, size.tokens + 1, size.tokens)))


@torch.no_grad()
def leak(model: LanguageModel, size: Size = RECORDED) -> float:
    """How far the vectors of a row's first half move, in training mode, when its second half and the other rows are
    exchanged: the largest difference relative to the largest entry. 0 for a causal map."""
    tokens, half = size.tokens, size.tokens // 2
    first, second = (parts(size)[1][start:start + 4 * tokens].view(4, tokens) for start in (0, 4 * tokens))
    changed = torch.cat([torch.cat([first[:1, :half], second[:1, half:]], 1), second[1:]])
    a, b = (model.train().hidden(each).y[0, :half] for each in (first, changed))
    return float((a - b).abs().max() / a.abs().max())


def norm_runs(size: Size = RECORDED) -> list[dict[str, Any]]:
    """Both norms over batch sizes and lengths."""
    found = []
    for norm, rows, lengths, seed in track(list(product(NORMS, BATCHES, LENGTHS, range(size.seeds))), "Norms"):
        model = built(seed, size, norm=norm)
        curve = train(model, size.steps(NORM_STEPS), rows, lengths, size)
        loss = held_out(model, size)
        found.append({"norm": norm, "rows": rows, "lengths": lengths, "seed": seed, "held_out": loss,
                      "training": sum(curve[-20:]) / len(curve[-20:]), "leak": leak(model, size)})
    return found


def gradient_norms(model: LanguageModel, size: Size = RECORDED) -> list[float]:
    """The norm of the loss's gradient with respect to the parameters of each block, first block first."""
    torch.manual_seed(0)
    model.zero_grad()
    losses(model.train(), *batch(parts(size)[0], size.tokens, DEPTH_ROWS, "equal")).backward()
    blocks = model.get_submodule("stack.layers")
    return [math.sqrt(sum(float(each.grad.square().sum()) for each in block.parameters() if each.grad is not None))
            for block in blocks.children()]


def depth_runs(size: Size = RECORDED) -> list[dict[str, Any]]:
    """With and without residual connections over depths: gradients before training, losses after."""
    found = []
    for residual, depth, seed in track(list(product((True, False), size.depths, range(size.seeds))), "Depths"):
        model = built(seed, size, depth=depth, residual=residual)
        gradients = gradient_norms(model, size)
        train(model, size.steps(DEPTH_STEPS), DEPTH_ROWS, size=size)
        found.append({"residual": residual, "depth": depth, "seed": seed, "gradients": gradients,
                      "held_out": held_out(model, size)})
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


def key_runs(size: Size = RECORDED) -> list[dict[str, Any]]:
    """Scaled and unscaled scores over sizes of keys: of random vectors, and the loss of a model that is trained so."""
    found = []
    for scaled, d_key, seed in track(list(product((True, False), KEY_SIZES, range(size.seeds))), "Keys"):
        run = {"scaled": scaled, "d_key": d_key, "seed": seed, **drawn_weights(seed, d_key, scaled)}
        if d_key in TRAINED_SIZES:
            model = built(seed, size, d_head=d_key, scale=None if scaled else 1.0)
            train(model, size.steps(KEY_STEPS), DEPTH_ROWS, size=size)
            run["held_out"] = held_out(model, size)
        found.append(run)
    return found


def write(folder: Path, size: Size) -> None:
    """Train, measure, and write the result, the page and its pictures."""
    found = {"size": size._asdict(), "settings_sha256": settings_sha256(size), "torch": torch.__version__,
             "single_bytes": single_bytes(size), "norms": norm_runs(size), "depths": depth_runs(size),
             "keys": key_runs(size)}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    made = runpy.run_path(str(FOLDER / "page.py"))
    (folder / "README.md").write_text(made["page"](found), encoding="utf-8")
    for figure in made["pictures"](found):
        (folder / f"{figure.name}.svg").write_text(figure.alone(), encoding="utf-8")


def main() -> None:
    """Run it at the size that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", help="a file, read as bytes")
    parser.add_argument("--scale", type=float, default=RECORDED.scale, help="of all numbers of steps")
    parser.add_argument("--seeds", type=int, default=RECORDED.seeds)
    parser.add_argument("--tokens", type=int, default=RECORDED.tokens, help="bytes of a row")
    parser.add_argument("--d-model", type=int, default=RECORDED.width, help="features of a token, a multiple of 4")
    parser.add_argument("--depths", type=int, nargs="+", default=RECORDED.depths, help="blocks")
    parser.add_argument("--out", type=Path, help="write to this folder")
    parser.add_argument("--record", action="store_true", help="replace the recorded result")
    given = parser.parse_args()
    size = Size(given.scale, given.seeds, given.tokens, given.d_model, tuple(sorted(set(given.depths))), given.text)
    if given.out is None and size != RECORDED and not given.record:
        parser.error("another size than the recorded one: give --out FOLDER, or --record to replace the record")
    if min(size.seeds, size.width, *size.depths) < 1 or size.tokens < 2 or size.scale <= 0 or size.width % 4:
        parser.error("--tokens is at least 2, other sizes at least 1, and --d-model a multiple of 4")
    if len(parts(size)[1]) <= 8 * size.tokens:
        parser.error(f"the held-out tenth of the text has no eight rows of {size.tokens} bytes and one more")
    write(FOLDER if given.out is None else given.out, size)


if __name__ == "__main__":
    main()
