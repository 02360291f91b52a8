"""Traits: the closed list of ways in which a part may lawfully do less than the law.

A trait replaces one law by a weaker one that also runs (defined in `weft.laws`); there is no skip list. A test pins
which parts have which trait.
"""

from __future__ import annotations

from enum import Enum


class Trait(Enum):
    """Each value is the reason that the catalogue prints."""

    BIDIRECTIONAL = "sees later tokens, so it has no state; padding and packing invariance are checked instead"
    BATCH_STATISTICS = "in training its output depends on the whole batch; the laws hold in evaluation"
    DECLARED_LENGTH = "its rotation depends on the document's length, so a state must be started with that length"
    NOT_DIFFERENTIABLE = "fitted by counting, not by gradients; the laws' gradient half does not apply"
    TOKENS_ONLY = "reads token ids from a bounded context, so its state is the ids themselves"
    DISCRETE_CHOICE = ("decides something discrete for each token, so a near tie may fall otherwise in another dtype; "
                       "what follows it in its row is then not compared")
    HOST_CHOICE = ("reads values on the host to choose what it runs, so `torch.compile` takes it in several graphs, "
                   "which are held to the same outputs")
    PREFIX_FIRST = "attends both ways inside a prefix, which therefore lies within one call"
