"""Traits: the closed list of ways in which a part may lawfully do less than the law.

A trait replaces one law by a weaker one that also runs (defined in `weft.laws`); there is no skip list. A test pins
which parts have which trait.
"""

from __future__ import annotations

from enum import Enum


class Trait(Enum):
    """Each value is the reason that the catalogue prints."""

    BIDIRECTIONAL = "attends to later tokens, so it has no state; padding and packing invariance are checked instead"
    BATCH_STATISTICS = "in training its output depends on the whole batch; the laws hold in evaluation"
    DECLARED_LENGTH = "its rotation depends on the document's length, so a state must be started with that length"
    NOT_DIFFERENTIABLE = "fitted by counting, not by gradients; the laws' gradient half does not apply"
    TOKENS_ONLY = "reads token ids from a bounded context, so its state is the ids themselves"
    DISCRETE_CHOICE = ("makes a discrete choice for each token, so a near tie may be resolved differently in another "
                       "dtype; later tokens of its row are then not compared")
    HOST_CHOICE = ("reads values on the host to choose its operations, so `torch.compile` traces it as several "
                   "graphs, whose outputs must be the same")
    PREFIX_FIRST = "attends in both directions inside a prefix, which must therefore lie within one call"
