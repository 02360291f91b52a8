"""The models: each with the drawing of its architecture and what it is in words, read from its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch

from weft.comparison.report.training import remark
from weft.comparison.report.view import View
from weft.comparison.results import StudyModel
from weft.core.base_model import built_empty
from weft.core.errors import UserError
from weft.core.model import parse_model
from weft.disk.documents import Unreadable
from weft.disk.yaml_documents import parse_yaml
from weft.drawing.figure import Figure
from weft.drawing.markup import Child, Markup, tag
from weft.drawing.numbers import integer, octets, si
from weft.drawing.tables import facts
from weft.pictures.architecture import architecture_of
from weft.pictures.diagram import figure


@final
@dataclass(frozen=True)
class Portrait:
    """A model as its configuration describes it.

    Attributes:
        words: such as ``4 layers, width 112, 4 heads / 2 kv, RoPE, SwiGLU 290``.
        drawing: of its architecture; None where the configuration cannot be read.
    """

    words: str
    drawing: Figure | None = None
    missing: str = ""


def portrait(entry: StudyModel, name: str) -> Portrait:
    """The drawing of the model that its first run's configuration describes.

    A result can be shown where its parts are not known (they are a plugin's) or are no longer the same; its report then
    says so in place of the drawing.

    Args:
        name: of the drawing's elements, unique in the page.
    """
    try:
        config = parse_model(_model(entry.config))
        with torch.random.fork_rng([]):  # a model that is small before it is fitted may draw its weights
            drawing = figure(architecture_of(built_empty(config), entry.name), name)
        return Portrait(config.in_words(), drawing)
    except (UserError, Unreadable) as error:
        return Portrait(entry.kind, missing=str(error))


def _model(text: str) -> Mapping[str, object]:
    """The model of a run's configuration as plain data."""
    plain = parse_yaml(text)
    model = plain.get("model") if isinstance(plain, Mapping) else None
    if not isinstance(model, Mapping):
        raise Unreadable("the configuration names no model")
    return model


def models(view: View) -> Markup:
    """A card for each model, in the order of the table."""
    return tag("div", {"class": "cards models"}, [_card(view, entry) for entry in view.ranked])


def _card(view: View, entry: StudyModel) -> Markup:
    style = view.styles[entry.name]
    found = portrait(entry, f"model-{style.index}")
    drawing: Child = found.drawing.inline() if found.drawing is not None else tag(
        "p", {"class": "none small"}, f"Not drawn: {found.missing}")
    return tag("article", {"class": f"card {style.colour}", "data-model": str(style.index)},
               tag("h3", None, view.key(entry)), tag("p", {"class": "words"}, found.words), drawing, _sizes(entry))


def _sizes(entry: StudyModel) -> Markup:
    counts: list[tuple[str, Child]] = [("Numbers, counted", integer(entry.parameters))]
    if entry.trainable:
        counts = [("Parameters", integer(entry.parameters)),
                  ("of which embeddings", integer(entry.embedding_parameters)),
                  ("FLOPs per token", si(entry.flops_per_token)), ("Learning rate", remark(entry))]
    if entry.state is not None:
        counts.append(("State", f"{octets(entry.state.state_bytes)} after {integer(entry.state.context)} tokens"))
    return facts([*counts, ("Window", f"{integer(entry.context)} tokens"),
                  *([("Solved for the budget", ", ".join(entry.solved))] if entry.solved else [])])
