"""Heads: from a model's hidden vectors to what a task needs.

A `Readout` gives probabilities of tokens, a `Classifier` scores of classes, or values, for each token or each row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from jaxtyping import Bool, Float, Int64
from torch import Tensor

from weft.core.part import Part
from weft.core.span import Span


class Head(Part, ABC):
    """From a model's hidden vectors to what a task asks for."""

    role = "logits"


class Readout(Head, ABC):
    """From hidden vectors to probabilities of tokens: of the next one, or of the one that stands in their place."""

    @abstractmethod
    def logits(self, h: Tensor) -> Float[Tensor, "B T V"]:
        """Unnormalised log-probabilities of every token."""

    @abstractmethod
    def log_prob(self, h: Tensor, targets: Int64[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        """Log-probability, in nats, of each target; equal to gathering from the log-softmax of `logits`, without
        holding [B,T,V]."""

    def cross_entropy(self, h: Float[Tensor, "B T D"], targets: Int64[Tensor, "B T"], scored: Bool[Tensor, "B T"], *,
                      smoothing: float = 0.0, z_loss: float = 0.0) -> tuple[Tensor, Tensor] | None:
        """The sums over ``scored`` tokens of the negative log-likelihood, without a gradient, and of what is minimised
        with these terms, for a readout that has a form of its own for them; None: its `log_prob` and `logits` are all
        that there is."""
        return None

    def inner(self, h: Tensor) -> tuple[Readout, Tensor]:
        """The readout that this one ends in, and what it reads of ``h``: itself and ``h``, unless something stands
        before it. A loss that has a form of its own for a readout looks there."""
        return self, h


class Classifier(Head, ABC):
    """From hidden vectors to scores of classes, or to values, of each token or of each row.

    Attributes:
        n_outputs: C, scores or values.
        labels: names of the classes, in the order of their ids; none where they have no names.
        pooled: whether a row has one answer; otherwise each of its tokens has.
        values: whether it gives values, not unnormalised log-probabilities of classes.
    """

    n_outputs: int
    labels: tuple[str, ...] = ()
    pooled: ClassVar[bool] = False
    values: bool = False

    @abstractmethod
    def scores(self, h: Float[Tensor, "B T D"], span: Span) -> Tensor:
        """[B,C] where it is ``pooled``, else [B,T,C].

        Args:
            h: hidden vectors, zero beyond each row's count.
            span: whose ``count`` says how many tokens of each row exist.
        """
