"""Windows that are wider than the context of their model: they would hide nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from weft.core.errors import ConfigError
from weft.core.layer import Part
from weft.core.model import Model
from weft.masks import Mask
from weft.training.config import RunConfig


def require_narrow(config: RunConfig, model: Model) -> None:
    """Check that every window of a model that begins with random weights hides something in the longest rows that the
    model is made for. It may not where a state is carried along a text, which makes rows as long as the text, nor in
    a model that another run or folder has brought.

    Raises:
        ConfigError: a window is wider than the context; every one is listed.
    """
    if config.training.carry_state or config.start is not None:
        return
    context = max(config.context, config.model.context)
    problems = [f"{paths[0]}{f' and {len(paths) - 1} other layers' if paths[1:] else ''}: {mask!r} reaches "
                f"{window:,} tokens from the query, and the model's context is {context:,}: it would hide nothing. "
                "Make it narrower, leave it out, or make the context longer."
                for mask, paths in windows_of(model).items()
                if (window := mask.window()) is not None and window > context]
    if problems:
        raise ConfigError(problems)


def windows_of(model: Model) -> Mapping[Mask, list[str]]:
    """Each mask of a single rule in a model, with the paths of the layers that have it."""
    found: dict[Mask, list[str]] = {}
    for path, module in model.named_modules():
        mask = module.attended() if isinstance(module, Part) else None
        if isinstance(mask, Mask):
            for rule in single_rules(mask):
                found.setdefault(rule, []).append(path)
    return found


def single_rules(mask: Mask) -> Iterator[Mask]:
    """The rules that a mask combines; itself, where it combines none."""
    if not mask.parts():
        yield mask
    for part in mask.parts():
        yield from single_rules(part)
