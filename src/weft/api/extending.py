"""Extension of a model to a longer context."""

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
        out: a new folder, or one in which this extension was begun.
        context: length of the new context, in tokens.
        method: linear, ntk, yarn or longrope.
        data: a text to measure on; by default the text that the model's run held out.
        part: which of the run's held-out texts to use, without ``data``.
        measuring: how perplexity is measured.
        steps: number of training steps after the rescaling; None: none.
        overrides: ``key.path=value`` changes to that training.
        on_event: called with notices of progress and with the events of training.

    Raises:
        InputError: there are overrides and no training steps; and as for `weft.extending.extend`.
    """
    changes = one_or_more(overrides)
    if changes and steps is None:
        raise InputError("there are changes to the training, and no training was requested.", where="overrides",
                         remedy="Give a number of steps too.")
    loaded, _ = load_language_model(model, "perplexity")
    tuning = None if steps is None else (f"training.steps={steps}", *changes)
    return extend_loaded(loaded, evaluation_text(loaded, data, part), out, context=context, method=method,
                         measuring=measuring, tuning=tuning, on_event=on_event)
