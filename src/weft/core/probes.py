"""Probes: what a model computes inside, by name, while somebody asks for it.

    with probe(model, "*.stream", "*.weights") as seen:
        model(tokens)
    seen["stack.layers.3.stream"]               # [B,T,D], a tensor for each call
    seen["stack.layers.3.layers.0.weights"]     # [B,H,T,S]

A name is the path of a module and a point of it. Every module that is called has the point ``output``; a part declares
more in `Part.points` (a block its residual ``stream``, attention its ``weights``, a mixture of experts its ``choices``
and ``gates``) and hands them out where it makes them. ``stack.layers.*.layers.?.output`` is what mixers and
feed-forwards add to the stream. A model that is not probed pays for each declared point the reading of one attribute.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from weft.core.errors import InputError, nearest
from weft.core.layer import Part
from weft.core.output import Output
from weft.core.points import Points, Taker

OUTPUT = "output"
"""The point that every module has: what a call of it gives, of a layer its ``y``."""

SHOWN = 8
"""Names that an error lists."""


class Point(NamedTuple):
    """A place to look: a module and what of it."""

    module: nn.Module
    name: str


def points_of(model: nn.Module) -> dict[str, Point]:
    """Every point of a model, by name. A module that stands at several paths has a name for each."""
    found: dict[str, Point] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        names = [OUTPUT] if type(module).forward is not nn.Module.forward else []
        for name in [*names, *(module.points if isinstance(module, Part) else ())]:
            found[f"{path}.{name}" if path else name] = Point(module, name)
    return found


@contextmanager
def probe(model: nn.Module, *patterns: str) -> Iterator[dict[str, list[Tensor]]]:
    """What the points that match compute while the block runs: in calls of the model, with states or without, in
    training and while decoding. Afterwards nothing is left on the model.

    The tensors are those of the computation itself, neither detached nor copied: gradients can be taken with respect
    to them, and who keeps many of them detaches them. What is computed again for the backward pass is not seen twice.
    Compiled functions run uncompiled inside the block; a form of the model that was made before it (a compiled step, a
    layout for decoding) is another model, and has to be probed itself.

    Args:
        model: a model, or any part of one.
        patterns: of names ``path.point``, as a shell has them: ``*`` stands for any text, dots included, ``?`` for one
            character, ``[0-3]`` for one of some.

    Yields:
        By name the tensors of a point, one for each call, in order; an empty list until there is a call. A module that
        stands at several paths is listed at the first that matches.

    Raises:
        InputError: a pattern that matches no point, or none is given.
    """
    chosen = _chosen(model, patterns)
    seen: dict[str, list[Tensor]] = {name: [] for name in chosen}
    with ExitStack() as stack:
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        for name, point in chosen.items():
            stack.enter_context(_asked(point, seen[name]))
        yield seen


def _chosen(model: nn.Module, patterns: tuple[str, ...]) -> dict[str, Point]:
    """The points that some pattern matches, each once."""
    known = points_of(model)
    problems = [each for each in patterns if not any(fnmatchcase(name, each) for name in known)]
    if problems or not patterns:
        what = f"nothing matches {', '.join(map(repr, problems))}." if problems else "no pattern."
        raise InputError(what, where="probe", remedy=_remedy(problems, known))
    found: dict[Point, str] = {}
    for name, point in known.items():
        if any(fnmatchcase(name, each) for each in patterns):
            found.setdefault(point, name)
    return {name: point for point, name in found.items()}


def _remedy(problems: list[str], known: dict[str, Point]) -> str:
    """The nearest name, and what else can be asked for."""
    hint = nearest(problems[0].replace("*", "0"), known) if problems else ""
    kinds = sorted({point.name for point in known.values()})
    some = [name for name in known if name.count(".") <= 3][:SHOWN]
    return " ".join([*([hint] if hint.startswith("Did") else []),
                     f"Points here are {', '.join(kinds)}, at paths such as {', '.join(some)}."])


@contextmanager
def _asked(point: Point, values: list[Tensor]) -> Iterator[None]:
    """Append each value of a point to ``values``."""
    def take(value: Tensor) -> None:
        if torch._C._current_graph_task_id() == -1:  # elsewhere a backward pass computes it again
            values.append(value)

    with ExitStack() as stack:
        if point.name == OUTPUT:
            stack.callback(point.module.register_forward_hook(_giving(take)).remove)
        else:
            assert isinstance(point.module, Part), "other modules declare no points"
            # Rewriters and tapes leave a module with hooks as it is, and would not see what else is asked of it.
            stack.callback(point.module.register_forward_hook(_nothing).remove)
            stack.enter_context(_inside(point.module, point.name, take))
        yield


@contextmanager
def _inside(part: Part, point: str, taker: Taker) -> Iterator[None]:
    """Have a part hand out one of its own points."""
    points = Points() if part.asked is None else part.asked
    points.add(point, taker)
    part.asked = points
    try:
        yield
    finally:
        points.remove(point, taker)
        if not points:
            del part.asked


def _giving(take: Taker) -> Any:
    def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
        value = output.y if isinstance(output, Output) else output
        if isinstance(value, Tensor):
            take(value)

    return hook


def _nothing(_module: nn.Module, _inputs: Any, _output: Any) -> None:
    """A hook that does nothing."""
