"""Probes: intermediate values of a model, by name, recorded while a ``with`` block runs.

    with probe(model, "*.stream", "*.weights") as values:
        model(tokens)
    values["stack.layers.3.stream"]               # a list of [B,T,D], one for each call
    values["stack.layers.3.layers.0.weights"]     # a list of [B,H,T,S]

A name is the path of a module and one of its points. Every module that is called has the point ``output``; a part
declares more in `Adjustable.points` (a block its residual ``stream``, attention its ``weights``, a mixture of experts
its ``choices`` and ``gates``) and passes their values on where it computes them. ``stack.layers.*.layers.?.output``
matches what mixers and feed-forwards add to the stream. Without a probe, a declared point costs the reading of one
attribute.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from weft.core.declarations import Adjustable, Points, Taker
from weft.core.errors import InputError, nearest
from weft.core.span import Output

OUTPUT = "output"
"""The point that every module has: the result of its call, for a layer the ``y`` of its output."""

SHOWN = 8
"""Names that an error lists."""


class Point(NamedTuple):
    """A module and the name of one of its points."""

    module: nn.Module
    name: str


def points_of(model: nn.Module) -> dict[str, Point]:
    """Every point of a model, by name. A module at several paths has a name for each."""
    points: dict[str, Point] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        names = [OUTPUT] if type(module).forward is not nn.Module.forward else []
        for name in [*names, *(module.points if isinstance(module, Adjustable) else ())]:
            points[f"{path}.{name}" if path else name] = Point(module, name)
    return points


@contextmanager
def probe(model: nn.Module, *patterns: str) -> Iterator[dict[str, list[Tensor]]]:
    """Record the values of matching points while the block runs: in calls of the model with states or without, in
    training and in decoding. Nothing is left on the model afterwards.

    The tensors are those of the computation itself, neither detached nor copied: gradients can be taken with respect
    to them, and a caller that keeps many should detach them. Recomputation in a backward pass records nothing. Compiled
    functions run uncompiled inside the block. A form of the model that was made before it (a compiled step, a layout
    for decoding) is another model and needs a probe of its own.

    Args:
        model: a model, or any part of one.
        patterns: shell patterns of names ``path.point``: ``*`` matches any text, dots included, ``?`` one character,
            ``[0-3]`` one of a range.

    Yields:
        The tensors of each point by its name, one for each call, in order; an empty list before the first call. A
        module at several paths is listed at the first that matches.

    Raises:
        InputError: there is no pattern, or one matches no point.
    """
    matches = _matches(model, patterns)
    values: dict[str, list[Tensor]] = {name: [] for name in matches}
    with ExitStack() as stack:
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        for name, point in matches.items():
            stack.enter_context(_recorded(point, values[name]))
        yield values


def _matches(model: nn.Module, patterns: tuple[str, ...]) -> dict[str, Point]:
    """The points that some pattern matches, each once, by name."""
    known = points_of(model)
    problems = [each for each in patterns if not any(fnmatchcase(name, each) for name in known)]
    if problems or not patterns:
        what = f"nothing matches {', '.join(map(repr, problems))}." if problems else "no pattern."
        raise InputError(what, where="probe", remedy=_remedy(problems, known))
    names: dict[Point, str] = {}
    for name, point in known.items():
        if any(fnmatchcase(name, each) for each in patterns):
            names.setdefault(point, name)
    return {name: point for point, name in names.items()}


def _remedy(problems: list[str], known: dict[str, Point]) -> str:
    """The nearest name, and the points that there are."""
    hint = nearest(problems[0].replace("*", "0"), known) if problems else ""
    kinds = sorted({point.name for point in known.values()})
    some = [name for name in known if name.count(".") <= 3][:SHOWN]
    return " ".join([*([hint] if hint.startswith("Did") else []),
                     f"Points here are {', '.join(kinds)}, at paths such as {', '.join(some)}."])


@contextmanager
def _recorded(point: Point, values: list[Tensor]) -> Iterator[None]:
    """Append each value of a point to ``values``."""
    def take(value: Tensor) -> None:
        if torch._C._current_graph_task_id() == -1:  # elsewhere a backward pass computes it again
            values.append(value)

    with ExitStack() as stack:
        if point.name == OUTPUT:
            stack.callback(point.module.register_forward_hook(_output_hook(take)).remove)
        else:
            assert isinstance(point.module, Adjustable), "other modules declare no points"
            # Rewriters and tapes leave a module alone if it has hooks; they do not check its points.
            stack.callback(point.module.register_forward_hook(_empty_hook).remove)
            stack.enter_context(_inside(point.module, point.name, take))
        yield


@contextmanager
def _inside(part: Adjustable, point: str, taker: Taker) -> Iterator[None]:
    """Make a part pass the values of one of its points to ``taker``."""
    points = Points() if part.asked is None else part.asked
    points.add(point, taker)
    part.asked = points
    try:
        yield
    finally:
        points.remove(point, taker)
        if not points:
            del part.asked


def _output_hook(take: Taker) -> Any:
    """A forward hook that passes a module's output to ``take``."""
    def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
        value = output.y if isinstance(output, Output) else output
        if isinstance(value, Tensor):
            take(value)

    return hook


def _empty_hook(_module: nn.Module, _inputs: Any, _output: Any) -> None:
    """A hook that does nothing."""
