"""Windows that are wider than the context of their model: they would hide nothing."""

from __future__ import annotations

from collections.abc import Mapping

from weft.core.errors import ConfigError
from weft.core.layer import Part
from weft.core.model import Model
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
    problems = [f"{paths[0]}{f' and {len(paths) - 1} other layers' if paths[1:] else ''}: {window} reaches {width:,} "
                f"tokens from the query, and the model's context is {context:,}: it would hide nothing. Make it "
                "narrower, leave it out, or make the context longer."
                for (window, width), paths in windows_of(model).items() if width > context]
    if problems:
        raise ConfigError(problems)


def windows_of(model: Model) -> Mapping[tuple[str, int], list[str]]:
    """Each window in the masks of a model and how far it reaches, with the paths of the layers that have it."""
    found: dict[tuple[str, int], list[str]] = {}
    for path, module in model.named_modules():
        pairs = module.attended() if isinstance(module, Part) else None
        for window in () if pairs is None else pairs.widths().items():
            found.setdefault(window, []).append(path)
    return found
