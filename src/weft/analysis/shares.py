"""The shares of a forward pass's operations: attention's scores and projections, feed-forward, embeddings and head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft.analysis.flops import Flops, PartFlops
from weft.core.strict_json import Record

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
