"""Floating-point operations of a model's forward pass, by part."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from weft.analysis.calls import heads_of, run_whole, scores_of
from weft.analysis.shapes import OperationCounter, tallied
from weft.core.declarations import QueryKeyPairs
from weft.core.labels import label_modules
from weft.core.layer import Part
from weft.core.model import Model
from weft.core.strict_json import Record


@dataclass(frozen=True)
class PartFlops(Record):
    """Operations of one part, for one token of a forward pass.

    Attributes:
        full: operations with scores between every query and every key, as kernels that skip none compute them.
        visible: operations with scores only where the mask allows them, for a causal mask (T+1)/2 of T keys.
        share_full: share of the model's ``full``.
        share_visible: share of the model's ``visible``.
    """

    part: str
    full: float
    visible: float
    share_full: float
    share_visible: float


@dataclass(frozen=True)
class Flops(Record):
    """Operations of a forward pass over rows of ``context`` tokens, per token. A multiplication and an addition are
    two; element-wise work (activations, norms, softmax, rotations) is not counted.

    Attributes:
        fourier: operations of Fourier transforms by part; ``full`` includes them.
        uncounted: operators without a formula, whose work is not included.
    """

    context: int
    full: float
    visible: float
    parts: tuple[PartFlops, ...]
    fourier: dict[str, float]
    uncounted: tuple[str, ...]


def forward_flops(model: Model, mode: FakeTensorMode, context: int, source: int | None = None) -> Flops:
    """Count the operations of a forward pass on fake tensors.

    Args:
        model: a model of fake tensors, as `shape_of` returns it.
        mode: the mode of these tensors.
        context: tokens of a row.
        source: tokens of a row's source, for a model that reads one; None: as many as ``context``.
    """
    return _by_part(model, counted(model, mode, context, source), context)


def counted(model: Model, mode: FakeTensorMode, context: int, source: int | None) -> OperationCounter:
    """The operations of a forward pass by the paths of modules; the arguments are those of `forward_flops`."""
    model.eval()
    with torch.no_grad(), tallied(model, mode) as tally:
        h = run_whole(model, 1, context, source).y
        for tally.outside, head in heads_of(model).items():
            scores_of(head, h)
    return tally


def _by_part(model: Model, tally: OperationCounter, context: int) -> Flops:
    labels = label_modules(model)
    fractions: dict[tuple[QueryKeyPairs, int], float] = {}
    full: dict[str, int] = {}
    visible: dict[str, float] = {}
    fourier: dict[str, int] = {}
    for path, count in tally.flops.items():
        part = labels[path] or path or "other"
        full[part] = full.get(part, 0) + count
        visible[part] = visible.get(part, 0) + count * _fraction(
            model.get_submodule(path), tally.lengths.get(path, context), fractions)
        if path in tally.fourier:
            fourier[part] = fourier.get(part, 0) + tally.fourier[path]
    sums = sum(full.values()), sum(visible.values())
    parts = tuple(PartFlops(part, full[part] / context, visible[part] / context, full[part] / sums[0],
                            visible[part] / sums[1]) for part in full)
    return Flops(context, sums[0] / context, sums[1] / context, parts,
                 {part: count / context for part, count in fourier.items()}, tuple(tally.uncounted()))


def _fraction(module: nn.Module, length: int, cache: dict[tuple[QueryKeyPairs, int], float]) -> float:
    """The fraction of a module's own work, on a row of ``length`` tokens, on pairs of a query and a key that its mask
    allows."""
    pairs = module.declares().attended if isinstance(module, Part) else None
    if pairs is None:
        return 1.0
    if (pairs, length) not in cache:
        cache[pairs, length] = pairs.share(length)
    return cache[pairs, length]
