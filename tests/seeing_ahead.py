"""A language model that sees later tokens, which no configuration gives: a part of somebody else's may still do it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from weft.core.declarations import Declared, Trait
from weft.core.model import LanguageModel
from weft.masks import Bidirectional
from weft.mixers.attention import Attention


def seeing_ahead(model: LanguageModel) -> LanguageModel:
    """``model`` with every mask taken off its attentions."""
    attentions = [part for part in model.modules() if isinstance(part, Attention)]
    assert attentions, "a model without attention has no mask to take off"
    for part in attentions:
        part.mask = Bidirectional()
        seeing = replace(part.declares(), traits=frozenset({Trait.BIDIRECTIONAL}), attended=part.mask)
        part.declares = partial(_declared, seeing)  # type: ignore[method-assign]
    return model


def _declared(declared: Declared) -> Declared:
    return declared
