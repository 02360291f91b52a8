"""`Output`: the result of a call of a layer or model."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

from torch import Tensor

from weft.core.state import State

S = TypeVar("S", bound=State)


class Loss(NamedTuple):
    """An auxiliary loss (router balance, z-loss), already weighted and averaged over the chunk's real tokens."""

    name: str
    value: Tensor


class Given(NamedTuple):
    """The value, a tensor or a record of tensors, that a layer gives to later ones (`weft.core.channels`)."""

    name: str
    value: Any


class Output(NamedTuple, Generic[S]):
    """The result of a call.

    Attributes:
        y: the chunk's output, [B,T,...]; zero beyond each row's count.
        state: the state after the chunk; None when the call was made without one.
        losses: auxiliary losses, to be added to the training loss.
        given: values that later layers may take.
    """

    y: Tensor
    state: S | None
    losses: tuple[Loss, ...] = ()
    given: tuple[Given, ...] = ()
