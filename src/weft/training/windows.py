"""Masks that the context of their model leaves without an effect: windows that are wider, which would hide nothing, and
global tokens behind its end, which no row would have."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from weft.core.declarations import QueryKeyPairs
from weft.core.errors import ConfigError
from weft.core.layer import Part
from weft.core.model import Model
from weft.training.config import RunConfig


def require_narrow(config: RunConfig, model: Model) -> None:
    """Check that every window of a model that begins with random weights hides something in the longest rows that the
    model is made for, and that these have every token that a mask names by its place. It may be otherwise where a
    state is carried along a text, which makes rows as long as the text, and in a model that another run or folder has
    brought.

    Raises:
        ConfigError: a window is wider than the context, or a token lies outside it; every one is listed.
    """
    if config.training.carry_state or config.start is not None:
        return
    context = max(config.context, config.model.context)
    problems = [f"{_named(paths)}: {window} reaches {width:,} tokens from the query, and the model's context is "
                f"{context:,}: it would hide nothing. Make it narrower, leave it out, or make the context longer."
                for (window, width), paths in _said(model, lambda pairs: pairs.widths()).items() if width > context]
    problems += [f"{_named(paths)}: {rule} names the token {place:,}, which lies outside the model's context of "
                 f"{context:,} tokens. Give indices from 0 to {context - 1:,}, or make the context longer."
                 for (rule, place), paths in _said(model, lambda pairs: pairs.places()).items() if place >= context]
    if problems:
        raise ConfigError(problems)


def _named(paths: list[str]) -> str:
    """The first layer, and how many others."""
    return f"{paths[0]}{f' and {len(paths) - 1} other layers' if paths[1:] else ''}"


def _said(model: Model, read: Callable[[QueryKeyPairs], Mapping[str, int]]) -> Mapping[tuple[str, int], list[str]]:
    """The rules of a model's masks, each rule with its number, and the paths of the layers that have it."""
    found: dict[tuple[str, int], list[str]] = {}
    for path, module in model.named_modules():
        pairs = module.declares().attended if isinstance(module, Part) else None
        for rule in () if pairs is None else read(pairs).items():
            found.setdefault(rule, []).append(path)
    return found
