"""One position per token, for schemes that know no other."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.core.checks import require
from weft.core.clock import Ticks
from weft.core.errors import InputError, UnsupportedError


def one_dimensional(position: Tensor, scheme: str) -> Tensor:
    """``position`` [#B,T], refused where a token has several coordinates.

    Raises:
        UnsupportedError: for n-dimensional coordinates [B,T,n].
    """
    if position.dim() == 2:
        return position
    raise UnsupportedError(f"{scheme} takes one coordinate per token, got {position.shape[-1]}.",
                           where="span.coordinates",
                           remedy="Give coordinates of shape [B,T], or use an n-dimensional position scheme.")


def whole(position: Tensor, scheme: str) -> Tensor:
    """``position`` [#B,T], refused unless it is one whole number for each token.

    Raises:
        UnsupportedError: for n-dimensional coordinates [B,T,n].
        InputError: for coordinates that are not whole numbers.
    """
    position = one_dimensional(position, scheme)
    if position.is_floating_point():
        raise InputError(f"{scheme} needs whole positions, got coordinates of {position.dtype}.",
                         where="span.coordinates", remedy="Give integer coordinates.")
    return position


def counted_position(ticks: Ticks, scheme: str) -> Tensor:
    """The positions as whole numbers [#B,T]; tokens beyond a row's count stand at 0, so that they fit any table.

    Raises:
        InputError: for coordinates that are not whole numbers.
    """
    position = whole(ticks.position, scheme)
    return position if ticks.valid is None else torch.where(ticks.valid, position, 0)


def require_positions(allowed: Tensor, what: str, remedy: str) -> None:
    """Refuse the call unless every entry of ``allowed`` is true.

    Raises:
        InputError: at once on the CPU; on other devices and in compiled code an asynchronous assertion fails instead.
    """
    if torch.compiler.is_compiling():  # an exception cannot be made inside a traced graph, its text can
        torch._assert_async(allowed.all(), f"position: {what} {remedy}")
    else:
        require(allowed, InputError, what, where="position", remedy=remedy)
