"""Explicit coordinates, integers or fractions, have the same effect in pieces as in one call."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from weft.core.errors import UserError
from weft.core.span import Memory, Span
from weft.laws.in_pieces import few_pieces, in_pieces
from weft.laws.report import COUNT, Finding, difference
from weft.laws.subject import Subject

LAW = "coordinates"
FRACTIONS = "fractions"
"""The case that is run with gradients on as well."""


def coordinates(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """Pieces against one call, with gradients off, when buffers may be written in place, and for one case on. A part
    that refuses the coordinates in one call must refuse them in pieces too."""
    if not subject.stateful:
        return
    x = subject.inputs(2, subject.steps, generator)
    memory = subject.memory(2, generator)
    for case, first, later in _cases(subject.steps, generator):
        places = [each.to(x.device) for each in (first, later)]
        whole = _whole(subject, x, memory, torch.cat(places, 1))
        for gradients in (False, True) if case == FRACTIONS else (False,):
            with torch.set_grad_enabled(gradients):
                actual = _pieces(subject, x, memory, places)
            name = f"{case}, {'with' if gradients else 'without'} gradients"
            if isinstance(whole, Tensor) and isinstance(actual, Tensor):
                yield Finding(LAW, name, difference(actual, whole), subject.bound)
            else:
                yield Finding(LAW, f"{name}: one call {_outcome(whole)}, pieces {_outcome(actual)}",
                              float(type(actual) is not type(whole)), COUNT)


def _cases(steps: int, generator: torch.Generator) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Coordinates of the first and the second half of a row: in random order, and smaller than the row's length."""
    order = torch.rand(2, steps, generator=generator).argsort(1)
    places = torch.rand(2, steps, generator=generator, dtype=torch.float64) * (steps - 1)
    half = steps // 2
    yield "whole numbers", order[:, :half], order[:, half:]
    yield FRACTIONS, places[:, :half], places[:, half:]
    yield "whole numbers, then fractions", order[:, :half], places[:, half:].float()
    pairs = torch.stack([order.double(), places], dim=-1)
    yield "two a token", pairs[:, :half], pairs[:, half:]


def _whole(subject: Subject, x: Tensor, memory: Memory | None, places: Tensor) -> Tensor | UserError:
    try:
        with torch.no_grad():
            return subject.whole(x, memory, Span(coordinates=places)).y
    except UserError as error:
        return error


def _pieces(subject: Subject, x: Tensor, memory: Memory | None, places: list[Tensor]) -> Tensor | UserError:
    """Each half of the row in several pieces; with reserved buffers if gradients are off."""
    capacity = None if torch.is_grad_enabled() else subject.steps
    state, outs, at = subject.start(x.shape[0], memory, capacity, subject.steps), [], 0
    try:
        for half in places:
            def span(first: int, end: int, own: Tensor = half) -> Span:
                return Span(coordinates=own[:, first:end])

            y, state = in_pieces(subject, x[:, at:at + half.shape[1]], state, few_pieces(half.shape[1]), span)
            outs.append(y)
            at += half.shape[1]
    except UserError as error:
        return error
    return torch.cat(outs, 1)


def _outcome(actual: Tensor | UserError) -> str:
    return "computed" if isinstance(actual, Tensor) else f"refused ({actual.what})"
