"""Facts of tokens: whole numbers that a call gives for each of its tokens by name (types, global tokens), for masks.

A part that reads facts declares their names and how many tokens back it reads them (`Declarations.facts`). A state of
a model with such a part keeps them, once for all layers, beside the clock: those of all tokens, or of the most recent
ones where no part reads farther. Facts are looked up by the order of a token, so that whoever has the order of a key,
in whatever buffer the key lies, has its facts. What a call does not give is 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from weft.core.errors import InputError, nearest
from weft.core.state import State, fact_field, pad_to, tensor_field


class Facts(NamedTuple):
    """What is known of the tokens that a call can look at.

    Attributes:
        values: by name, of consecutive tokens [B,L].
        first: the order of the first of them, [B,1]; None: 0.
    """

    values: Mapping[str, Int64[Tensor, "B L"]]
    first: Int64[Tensor, "B 1"] | None

    def at(self, name: str, order: Int64[Tensor, "#B N"]) -> Int64[Tensor, "#B N"]:
        """The fact of the tokens of these orders; of those that are not among them, any."""
        values = self.values.get(name)
        if values is None or values.shape[1] == 0:
            return torch.zeros_like(order)
        index = order if self.first is None else order - self.first
        return values.gather(1, index.clamp(0, values.shape[1] - 1).expand(values.shape[0], -1))


@dataclass(frozen=True)
class FactHistory(State, ABC):
    """Facts of earlier tokens.

    Attributes:
        names: of the facts that the model reads, in order.
    """

    names: tuple[str, ...] = fact_field()

    @abstractmethod
    def follow(self, chunk: Int64[Tensor, "B T n"], seen: Tensor, counts: Tensor | None) -> tuple[Facts, FactHistory]:
        """What a call can look at whose tokens have these facts, and the history after it.

        Args:
            chunk: 0 beyond each row's count.
            seen: tokens before the call, [B].
            counts: tokens of each row that exist, [B]; None: all.
        """

    def _facts(self, values: Tensor, first: Tensor | None) -> Facts:
        return Facts({name: values[..., index] for index, name in enumerate(self.names)}, first)


@dataclass(frozen=True)
class AllFacts(FactHistory):
    """Of all tokens: slot s holds the token of order s."""

    values: Int64[Tensor, "B S n"] = tensor_field(grows=1, keeps_dtype=True)
    capacity: int | None = fact_field(saved=int, room=True)

    def follow(self, chunk: Tensor, seen: Tensor, counts: Tensor | None) -> tuple[Facts, FactHistory]:
        steps, room = chunk.shape[1], self.values.shape[1]
        if steps == 0:
            return self._facts(self.values, None), self
        wide = pad_to(self.values, 1, room + steps if self.capacity is None else self.capacity, 0)
        place = torch.arange(wide.shape[1], device=seen.device)[None] - seen[:, None]
        inside = (place >= 0) & (place < (steps if counts is None else counts[:, None]))
        index = place.clamp(0, steps - 1)[..., None].expand(-1, -1, chunk.shape[2])
        values = torch.where(inside[..., None], chunk.gather(1, index), wide)
        return self._facts(values, None), replace(self, values=values)


@dataclass(frozen=True)
class RecentFacts(FactHistory):
    """Of the last W tokens, the newest at the end."""

    values: Int64[Tensor, "B W n"] = tensor_field(keeps_dtype=True)

    def follow(self, chunk: Tensor, seen: Tensor, counts: Tensor | None) -> tuple[Facts, FactHistory]:
        window = self.values.shape[1]
        together = torch.cat([self.values, chunk], 1)
        found = self._facts(together, seen[:, None] - window)
        if counts is None:
            return found, replace(self, values=together[:, chunk.shape[1]:].contiguous())
        index = counts[:, None] + torch.arange(window, device=seen.device)[None]
        return found, replace(self, values=together.gather(1, index[..., None].expand(-1, -1, chunk.shape[2])))


def start_facts(read: Mapping[str, int | None], batch: int, capacity: int | None,
                device: torch.device | str | None) -> FactHistory | None:
    """The history before the first token; None where no part reads facts.

    Args:
        read: by name how many tokens back the facts are read, the newest included; None: all.
        capacity: tokens that a row may consume; None: any number.
    """
    names = tuple(sorted(read))
    if not names:
        return None
    reaches = [reach for reach in read.values() if reach is not None]
    slots = max(reaches) if len(reaches) == len(names) else None
    values = torch.zeros(batch, (capacity or 0) if slots is None else slots, len(names), dtype=torch.int64,
                         device=device)
    return AllFacts(names, values, capacity) if slots is None else RecentFacts(names, values)


def resolve_facts(history: FactHistory | None, given: Mapping[str, Tensor] | None, order: Tensor, seen: Tensor | None,
                  count: Tensor | None, valid: Tensor | None) -> tuple[Facts | None, FactHistory | None]:
    """What masks can look up in a call, and the history after it.

    Args:
        history: before the call; None without a state, or where no part reads facts.
        given: what the call says of its tokens, [B,T] each.
        order: of its tokens [#B,T].
        seen: tokens before it [B]; read where there is a history.
        count: tokens of each row that exist [B]; None: all.
        valid: [B,T], where they are.
    """
    known = {name: value.long() if valid is None else value.long() * valid for name, value in (given or {}).items()}
    if history is None or seen is None:
        return (Facts(known, None) if known else None), history
    blank = torch.zeros(seen.shape[0], order.shape[1], dtype=torch.int64, device=order.device)
    return history.follow(torch.stack([known.get(name, blank) for name in history.names], -1), seen, count)


def require_shapes(given: Mapping[str, Tensor], shape: tuple[int, int]) -> None:
    """Refuse facts that are not one whole number, or one boolean, for each token.

    Raises:
        InputError: another shape or dtype.
    """
    for name, value in given.items():
        if tuple(value.shape) != shape or value.is_floating_point() or value.is_complex():
            raise InputError(f"{value.dtype} of shape {tuple(value.shape)} for {shape[0]} rows of {shape[1]} tokens.",
                             where=f"span.facts.{name}", remedy=f"Give whole numbers or booleans of shape {shape}.")


def require_read(given: Mapping[str, Tensor], read: Mapping[str, int | None]) -> None:
    """Refuse facts that no part reads.

    Raises:
        InputError: naming the nearest that one reads.
    """
    for name in given:
        if name not in read:
            hint = nearest(name, read) if read else "Its masks read none."
            raise InputError(f"no part of this model reads the fact {name!r}.", where="span.facts", remedy=hint)
