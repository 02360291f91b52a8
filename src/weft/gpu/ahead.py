"""Choices of tokens that the host reads while the device already runs the next step on them.

A step of a small model takes about as long as what the host does with its tokens. So the tokens are chosen on the
device, by the functions and with the random numbers that choose them elsewhere, their copy to the host is begun, the
next step is started on them, and only then does the host wait for the copy. A row that turns out to have ended has been
run one step too far, which nothing reads; all tokens are those of steps one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar, final

import torch
from torch import Tensor

S = TypeVar("S", bound="DrawsTokens")


class DrawsTokens(Protocol):
    """How the tokens of rows with equal settings are drawn: a `weft.decoding.sampling.Sampling`."""

    @property
    def greedy(self) -> bool:
        """Whether the largest logit decides, so that no random numbers are used."""

    def choose(self, logits: Tensor, seen: None, uniform: Tensor | None) -> Tensor:
        """Return the tokens [rows] from logits [rows,V] and a random number in [0, 1) for each row."""


@final
class Arriving:
    """The numbers of tensors on their way to the host, whose copies begin when this is made."""

    def __init__(self, *tensors: Tensor) -> None:
        on_card = tensors[0].is_cuda
        self._done: torch.cuda.Event | None = None
        self._copies = [torch.empty(each.shape, dtype=each.dtype, pin_memory=on_card) for each in tensors]
        for copy, tensor in zip(self._copies, tensors, strict=True):
            copy.copy_(tensor, non_blocking=True)
        if on_card:
            self._done = torch.cuda.Event()
            self._done.record(torch.cuda.current_stream(tensors[0].device))

    def read(self) -> list[Tensor]:
        """Wait for the copies, and return them."""
        if self._done is not None:
            self._done.synchronize()
        return self._copies


def sent(values: Sequence[int] | Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return numbers on a device, to which they are copied without a wait."""
    tensor = torch.tensor(values, dtype=dtype)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def tokens_ahead(logits: Tensor, drawn: Mapping[S, Mapping[int, Iterator[float]]],
                 start: Callable[[Tensor], Any]) -> tuple[Tensor, list[float]]:
    """Return the next tokens [B], on the host, and the largest logit of every row.

    Args:
        logits: of every row, [B,V].
        drawn: the rows whose token is not simply the most probable one, by what draws them and by place in the batch,
            with their random numbers.
        start: called with the tokens on the device; what it starts runs while the host waits for them.
    """
    best, tokens = logits.max(-1)
    for sampling, rows in drawn.items():
        places = sent(list(rows), torch.int64, logits.device)
        noise = None if sampling.greedy else sent([next(each) for each in rows.values()], torch.float64, logits.device)
        tokens = tokens.index_copy(0, places, sampling.choose(logits.index_select(0, places), None, noise))
    arriving = Arriving(tokens, best)
    start(tokens)
    chosen, highest = arriving.read()
    return chosen, highest.tolist()
