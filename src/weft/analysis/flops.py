"""Floating-point operations of a model's forward pass, by part."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from weft.analysis.calls import answer, heads_of, run_whole
from weft.analysis.parts import SCORES, label_modules
from weft.analysis.result import Result
from weft.analysis.shapes import Tally, tallied
from weft.core.clock import Keys, Ticks
from weft.core.model import Model
from weft.core.span import WHOLE
from weft.masks import Mask
from weft.mixers.attention import Attention

ROWS = 512
"""Queries of a mask that are looked at together."""


@dataclass(frozen=True)
class PartFlops(Result):
    """Operations of one part, for one token of a forward pass.

    Attributes:
        full: with scores between every query and every key, as kernels that cannot skip compute them.
        visible: with scores only where the mask allows (for a causal one (T+1)/2 keys of T).
        share_full: of the model's ``full``.
        share_visible: of the model's ``visible``.
    """

    part: str
    full: float
    visible: float
    share_full: float
    share_visible: float


@dataclass(frozen=True)
class Flops(Result):
    """Operations of a forward pass over rows of ``context`` tokens, per token. A multiplication and an addition are
    two; element-wise work (activations, norms, softmax, rotations) is not counted.

    Attributes:
        uncounted: operators that Weft knows no formula for, so that their work is missing.
        fourier: by part, operations of Fourier transforms, in ``full`` too.
    """

    context: int
    full: float
    visible: float
    parts: tuple[PartFlops, ...]
    fourier: dict[str, float]
    uncounted: tuple[str, ...]


def forward_flops(model: Model, mode: FakeTensorMode, context: int) -> Flops:
    """Run rows of ``context`` tokens on shapes and count.

    Args:
        model: holding shapes of ``mode``.
        mode: of its tensors.
        context: tokens of a row.
    """
    model.eval()
    with torch.no_grad(), tallied(model, mode) as tally:
        h = run_whole(model, 1, context).y
        for tally.outside, head in heads_of(model).items():
            answer(head, h)
    return _by_part(model, tally, context)


def _by_part(model: Model, tally: Tally, context: int) -> Flops:
    labels = label_modules(model)
    fractions: dict[Mask, float] = {}
    full: dict[str, int] = {}
    visible: dict[str, float] = {}
    fourier: dict[str, int] = {}
    for path, count in tally.flops.items():
        part = labels[path] or path or "other"
        full[part] = full.get(part, 0) + count
        visible[part] = visible.get(part, 0) + count * _fraction(model, path, part, context, fractions)
        if path in tally.fourier:
            fourier[part] = fourier.get(part, 0) + tally.fourier[path]
    sums = sum(full.values()), sum(visible.values())
    parts = tuple(PartFlops(part, full[part] / context, visible[part] / context, full[part] / sums[0],
                            visible[part] / sums[1]) for part in full)
    return Flops(context, sums[0] / context, sums[1] / context, parts,
                 {part: count / context for part, count in fourier.items()}, tuple(sorted(tally.uncounted)))


def _fraction(model: Model, path: str, part: str, context: int, known: dict[Mask, float]) -> float:
    """How much of a module's work lies on pairs that its mask allows."""
    module = model.get_submodule(path)
    if not (part.endswith(SCORES) and isinstance(module, Attention)):
        return 1.0
    if module.mask not in known:
        known[module.mask] = visible_fraction(module.mask, context)
    return known[module.mask]


def visible_fraction(mask: Mask, steps: int) -> float:
    """The share of all pairs of a query and a key, in a document of ``steps`` tokens, that the mask allows."""
    ticks = WHOLE.resolve(None, torch.empty(1, steps)).ticks
    keys, seen, heads = Keys.of(ticks), 0, mask.heads()
    for first in range(0, steps, ROWS):
        seen += int(mask.allowed(_slice(ticks, first), keys).sum())
    return seen / (steps * steps * heads)


def _slice(ticks: Ticks, first: int) -> Ticks:
    rows = slice(first, first + ROWS)
    return dataclasses.replace(ticks, order=ticks.order[:, rows], begin=ticks.begin[:, rows],
                               prefix_end=ticks.prefix_end[:, rows], length=ticks.length[:, rows])
