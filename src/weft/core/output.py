"""What a layer returns."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from torch import Tensor

from weft.core.state import State

S = TypeVar("S", bound=State)


class Loss(NamedTuple):
    """An auxiliary loss (router balance, z-loss), already weighted and averaged over the chunk's real tokens."""

    name: str
    value: Tensor


class Output(NamedTuple, Generic[S]):
    """The result of a call.

    Attributes:
        y: the chunk's output, [B,T,...]; zero beyond each row's count.
        state: the state after the chunk; None when the call was made without one.
        losses: auxiliary losses, to be added to the training loss.
    """

    y: Tensor
    state: S | None
    losses: tuple[Loss, ...] = ()
