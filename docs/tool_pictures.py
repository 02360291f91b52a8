"""Pictures of what is no layer: heads, rewrites, optimizers, tokenizers, and what tasks and benchmarks ask."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from weft.core.errors import WeftError
from weft.core.model import Model
from weft.core.part_config import Dims, PartConfig
from weft.core.registry import REGISTRY
from weft.drawing.chart import Curve, chart
from weft.drawing.figure import Figure
from weft.drawing.marks import LETTER, label
from weft.drawing.markup import Markup, field, join, tag, width_of
from weft.laws.discovery import host_of
from weft.linear.rewrite import rewritten
from weft.pictures.architecture import architecture_of
from weft.pictures.diagram import figure as diagram

UPDATES, STEEP = 60, 20.0
"""Updates of the optimizer that is drawn, and how much steeper the loss is along one axis than along the other."""
SIDE = 24
"""Rows and columns of the matrix that a rewrite changes in its picture."""
TEXT = "the state of a layer grows with the text"
"""What tokenizers cut in their pictures; they learn from the documentation of all parts."""
CELL, ROW, WIDEST = 22.0, 26.0, 560.0
"""Height of a cell of tokens, distance of their rows, and the width of the figure at most."""


def in_host(part: type[PartConfig], name: str) -> list[Figure]:
    """The architecture of a small model with a head or a readout."""
    host: Any = host_of(part.examples()[0])
    with torch.device("meta"):
        built: Model = host.build(Dims(8, 11, 32))
    return [diagram(architecture_of(built, f"an example with {part.kind}"), name)]


def optimizer(part: type[PartConfig], name: str) -> list[Figure]:
    """The loss of a small linear map whose inputs are much larger along one axis, step by step."""
    torch.manual_seed(0)
    config: Any = part()
    model = nn.Sequential(nn.Linear(8, 8, bias=False))
    goal, x = torch.randn(8, 8), torch.randn(64, 8)
    x[:, 0] *= STEEP ** 0.5
    made = config.with_(lr=0.05).create(model)
    losses = []
    for _ in range(UPDATES):
        loss = (model(x) - x @ goal).square().mean()
        losses.append(float(loss.detach()))
        made.zero_grad()
        loss.backward()
        made.step()
    return [chart(f"{name}-loss", f"The loss under {part.kind}", f"The loss of a linear map with 64 weights in "
                  f"{UPDATES} updates with the rate 0.05, whose inputs are larger along one axis.",
                  [Curve("loss", list(enumerate(losses)))], "update", "mean squared error", scale="logarithmic")]


def rewrite(part: type[PartConfig], name: str) -> list[Figure]:
    """A matrix, and by how much a rewrite changes it."""
    torch.manual_seed(0)
    config: Any = part.examples()[0]
    model = nn.Sequential(nn.Linear(SIDE * 2, SIDE * 2, bias=False))
    before = matrix(model)
    changed = rewritten(model, [config.with_(maps=["0"], kinds=None)])
    with torch.no_grad():
        for parameter in changed.parameters():
            if parameter.requires_grad and not bool(parameter.any()):
                parameter.normal_(std=0.1)  # a term that starts at zero is drawn as after some training
    after = matrix(changed)
    wide = 170.0
    shown = ((0.0, "W", before), (wide + 30, "what is added", after - before))
    marks = [join(label(left, 12, words, kind="name"), label(left, 24, f"at most {float(value.abs().max()):.3f}"),
                  field(left + 1, 32, wide, wide, (value[:SIDE, :SIDE] / (value.abs().max() or 1)).tolist()))
             for left, words, value in shown]
    return [Figure(f"{name}-weights", f"A matrix under {part.kind}", "The weights of a linear map, and what the "
                   "rewrite adds to them; blue above zero.", 2 * wide + 36, wide + 44, join(*marks))]


def matrix(model: nn.Module, size: int = SIDE * 2) -> Tensor:
    """The matrix [out,in] by which a linear model multiplies, whatever form it has."""
    with torch.no_grad():
        found: Tensor = model(torch.eye(size)[None])[0].T
    return found.clone()


def tokenizer(part: type[PartConfig], name: str) -> list[Figure]:
    """A sentence cut into tokens, with their ids; of a tokenizer that only reads a file, BPE's."""
    config: Any = part.examples()[0]
    learned = [inspect.getdoc(each) or "" for each in REGISTRY.parts()]
    try:
        made = config.fit(learned)
    except (WeftError, ImportError):
        config = REGISTRY.get((part.group,), "bpe").examples()[0]
        made = config.fit(learned)
    ids = [int(each) for each in made.encode(TEXT)]
    pairs = [(made.decode([each]) or "�", str(each)) for each in ids]
    return [strip(name, f"A text cut by {config.kind}", "Tokens above, their ids below.", pairs, "tokens", "ids")]


def asked(part: type[PartConfig], name: str) -> list[Figure]:
    """The tokens that a task or a benchmark has the model read, and those that it is to predict."""
    if not part.about.pictured:
        return []
    return [strip(name, f"What {part.kind} asks", "Above what the model reads, beneath it what is to be predicted "
                  "there; empty places do not count.", part.about.pictured, "reads", "predicts")]


def strip(name: str, title: str, description: str, pairs: Sequence[tuple[str, str]], above: str, below: str) -> Figure:
    """Two rows of cells, one above the other, in as many lines as they need.

    Args:
        description: what is to be seen.
        pairs: the words of an upper and a lower cell each; an empty one has a hollow cell.
        above: what the upper cells are.
        below: what the lower cells are.
    """
    left = 12 + LETTER * max(len(above), len(below))
    x, line, found, widest, step = left, 0, [], left, 2 * ROW + 16
    for upper, lower in pairs:
        wide = max(20.0, LETTER * 1.1 * max(width_of(upper), width_of(lower)) + 8)
        if x + wide > WIDEST and x > left:
            x, line = left, line + 1
        top = 8 + line * step
        found += [_token(x, top, wide, upper, "box"), _token(x, top + ROW, wide, lower, "box" if lower else "thin")]
        x += wide + 4
        widest = max(widest, x)
    sides = [join(label(4, 23 + each * step, above), label(4, 23 + ROW + each * step, below))
             for each in range(line + 1)]
    return Figure(f"{name}-strip", title, description, widest + 4, (line + 1) * step + 4, join(*sides, *found))


def _token(x: float, y: float, wide: float, words: str, kind: str) -> Markup:
    box = tag("rect", {"class": kind, "x": round(x, 1), "y": round(y, 1), "width": round(wide, 1), "height": CELL,
                       "rx": 3})
    shown = words.replace(" ", "␣").replace("\n", "⏎")
    return join(box, label(x + wide / 2, y + 15, shown, anchor="middle", kind="name") if words else "")
