"""Extending a model to a longer context."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from weft.api.arguments import one_or_more
from weft.api.models import Model, load_language_model
from weft.api.using import evaluation_text
from weft.core.errors import InputError
from weft.extending import Extended
from weft.extending import extend as extend_loaded
from weft.extending.extend import Measuring
from weft.tasks.material import HeldOut
from weft.training import Event


def extend(model: Model, out: str | Path, *, context: int, method: str = "yarn", data: str | Path | None = None,
           part: HeldOut = "validation", measuring: Measuring | None = None, steps: int | None = None,
           overrides: str | Iterable[str] = (), on_event: Callable[[Event], None] | None = None) -> Extended:
    """Rescale a model's rotary positions for a longer context and measure its perplexity against length; see
    `weft.extending.extend`.

    Args:
        model: the checkpoint.
        out: a new folder.
        context: tokens of the new context.
        method: linear, ntk, yarn or longrope.
        data: a text to measure on; by default what the model's run held out.
        part: without ``data``: which of the texts that the run held out.
        measuring: how perplexity is measured.
        steps: of training after the rescaling; None: none.
        overrides: ``key.path=value`` changes to that training.
        on_event: called with what is being done.
    """
    changes = one_or_more(overrides)
    if changes and steps is None:
        raise InputError("changes to a training, and no training was asked for.", where="overrides",
                         remedy="Give a number of steps too.")
    loaded, _ = load_language_model(model, "perplexity")
    tuning = None if steps is None else (f"training.steps={steps}", *changes)
    return extend_loaded(loaded, evaluation_text(loaded, data, part), out, context=context, method=method,
                         measuring=measuring, tuning=tuning, on_event=on_event)
