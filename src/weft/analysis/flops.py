"""Floating-point operations of a model's forward pass, by part.

The shares of a forward pass's operations: attention's scores and projections, feed-forward, embeddings and head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from weft.analysis.calls import heads_of, run_whole, scores_of
from weft.analysis.shapes import OperationCounter, tallied
from weft.core.declarations import QueryKeyPairs
from weft.core.layer import Part, label_modules
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


WHY_NOT = ("these shares do not follow from the model's shapes. A layer's projections have 4 d^2 weights and its "
           "feed-forward 8 d^2, so that their operations are as 1 to 2 for every length, vocabulary and mask.")
"""Of a Transformer with d_ff of 4 d_model and as many key/value heads as heads."""


@dataclass(frozen=True)
class Shares(Record):
    """Where the operations of a forward pass go, per token.

    Attributes:
        full: operations with scores between every query and every key.
        visible: operations with scores only where the masks allow them.
        rows: the same by part, with shares, the largest first.
        assumptions: under which they were counted, a sentence each.
        quoted: shares by part that are often quoted for this model; empty: none are known.
        why_not: why those are not the counted ones; empty without any.
    """

    context: int
    full: float
    visible: float
    rows: tuple[PartFlops, ...]
    assumptions: tuple[str, ...]
    quoted: dict[str, float]
    why_not: str


def shares_of(flops: Flops, vocab_size: int, quoted: Mapping[str, float]) -> Shares:
    """The shares of a forward pass.

    Args:
        flops: the operations by part.
        vocab_size: number of token ids; 0 for a model that reads none.
        quoted: shares by part that are quoted elsewhere.
    """
    rows = tuple(sorted(flops.parts, key=lambda part: -part.full))
    return Shares(flops.context, flops.full, flops.visible, rows, _assumptions(flops, vocab_size), dict(quoted),
                  WHY_NOT if quoted else "")


def _assumptions(flops: Flops, vocab_size: int) -> tuple[str, ...]:
    tokens = f"a vocabulary of {vocab_size:,}" if vocab_size else "no vocabulary"
    missing = f" Not counted for want of a formula: {', '.join(flops.uncounted)}." if flops.uncounted else ""
    return (f"one forward pass over a row of T = {flops.context:,} tokens (--context), {tokens}; a backward pass takes "
            "about twice as much, and hardly changes the shares.",
            "the first columns have scores between every query and every key, T for each token; those of visible pairs "
            "only the pairs that the masks allow, (T+1)/2 of T for a causal one.",
            "a multiplication and an addition are two operations. Element-wise work (activations, norms, softmax, "
            "rotations) is not counted, and looking up an embedding takes none: the embeddings' matrix counts as the "
            f"logits, where it is multiplied.{missing}")
