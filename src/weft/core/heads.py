"""Heads: from a model's hidden vectors to what a task needs.

A `Readout` gives probabilities of tokens, a `Classifier` scores of classes, or values, for each token or each row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from jaxtyping import Bool, Float, Int64
from torch import Tensor

from weft.core.declarations import Declared
from weft.core.part import Part
from weft.core.span import Span


class Head(Part, ABC):
    """A map from a model's hidden vectors to what a task needs."""

    def declares(self) -> Declared:
        return Declared(role="logits")


class Readout(Head, ABC):
    """A map from hidden vectors to probabilities of tokens: of the next one, or of the one at the same place."""

    @abstractmethod
    def logits(self, h: Tensor) -> Float[Tensor, "B T V"]:
        """Unnormalised log-probabilities of every token."""

    @abstractmethod
    def log_prob(self, h: Tensor, targets: Int64[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        """Log-probability, in nats, of each target: what gathering from the log-softmax of `logits` would give, without
        [B,T,V] in memory."""

    def cross_entropy(self, h: Float[Tensor, "B T D"], targets: Int64[Tensor, "B T"], scored: Bool[Tensor, "B T"], *,
                      smoothing: float = 0.0,
                      z_loss: float = 0.0) -> tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor | None] | None:
        """The sums over ``scored`` tokens of the negative log-likelihood, without a gradient, and of the loss that is
        minimised, with label smoothing and z-loss; and, if it is known, the first of each row. None for a readout
        without a fused form: callers then use its `log_prob` and `logits`."""
        return None

    def inner(self, h: Tensor) -> tuple[Readout, Tensor]:
        """The last readout inside this one, with its input: itself and ``h``, unless other maps precede it. Losses with
        a fused form use it."""
        return self, h


class Classifier(Head, ABC):
    """A map from hidden vectors to scores of classes, or to values, for each token or each row.

    Attributes:
        n_outputs: C, scores or values.
        labels: names of the classes, in the order of their ids; empty if they have no names.
        pooled: whether there is one result for a row and not one for each of its tokens.
        values: whether results are values and not unnormalised log-probabilities of classes.
    """

    n_outputs: int
    labels: tuple[str, ...] = ()
    pooled: ClassVar[bool] = False
    values: bool = False

    @abstractmethod
    def scores(self, h: Float[Tensor, "B T D"], span: Span) -> Tensor:
        """The scores [B,C] if ``pooled``, else [B,T,C].

        Args:
            h: hidden vectors, zero beyond each row's count.
            span: with the ``count`` of tokens in each row.
        """


def outputs(head: Head | None, h: Float[Tensor, "B T D"], span: Span) -> Tensor:
    """The outputs of a head for a model's vectors: logits [B,T,V] of tokens, scores [B,C] of rows or [B,T,C] of tokens;
    the vectors themselves without a head.

    Args:
        head: the model's; None: it has none.
        h: hidden vectors, zero beyond each row's count.
        span: with the ``count`` of tokens in each row.
    """
    if isinstance(head, Readout):
        return head.logits(h)
    return head.scores(h, span) if isinstance(head, Classifier) else h
