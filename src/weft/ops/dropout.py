"""Dropout whose mask costs a processor little.

    y = x m / (1 - p),   m independent, 0 with probability p and else 1

(Srivastava et al. 2014, section 4, scaled in training as in section 10.) On a CPU PyTorch draws a mask entry by entry,
in one thread, which costs more than a small layer's products. Here each entry gets 16 random bits: a 64-bit number of
the same generator serves four entries, p is rounded to a multiple of 2^-16, and what is kept is scaled by the rounded
probability, so that the mean of y is x.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from weft.core.compiling import unseen_by_compiler
from weft.core.declarations import Adjustable, HasInferenceForm
from weft.core.layer import Part
from weft.ops.forms import OPERATIONS, REFERENCE, Form, Make, Operation

R = TypeVar("R")
LOTS = 1 << 16
"""Values of 16 random bits."""
SPREAD = 0x9E3779B9
"""Apart from each other are the seeds of processes: 2^32 over the golden ratio (Knuth, volume 3, section 6.4)."""
RARE = 1 / 1024
"""Nearer to 0 or 1 the rounding of p would be off by one part in a hundred."""


class DropoutCall(NamedTuple):
    """Entries of ``x`` are zero with probability ``p``."""

    x: Float[Tensor, "*shape"]
    p: float


def dropout(x: Float[Tensor, "*shape"], p: float) -> Float[Tensor, "*shape"]:
    """``x`` with entries set to zero at random, the others scaled up. On a CPU the backward pass keeps one byte
    per entry.

    Args:
        p: the probability of zero, 0 to 1.
    """
    return x if p == 0 else DROPOUT(DropoutCall(x, p))


def _drawn(call: DropoutCall) -> Tensor:
    kept = torch.rand(call.x.shape, device=call.x.device) >= call.p
    return torch.where(kept, call.x, 0.0) * (1 / (1 - call.p) if call.p < 1 else 0.0)


def _library(call: DropoutCall) -> Tensor:
    return F.dropout(call.x, call.p)


def _lots(call: DropoutCall) -> Tensor:
    dropped = round(call.p * LOTS)
    y: Tensor = _Dropout.apply(call.x, _kept(call.x, dropped), LOTS / (LOTS - dropped))  # type: ignore[no-untyped-call]
    return y


def _common(call: DropoutCall) -> str | None:
    return None if RARE <= call.p <= 1 - RARE else f"16 bits are too few for p = {call.p:g}"


def _examples(make: Make) -> Iterator[DropoutCall]:
    for p in (0.1, 0.5, 0.97):
        yield DropoutCall(make(300, 331), p)
    yield DropoutCall(make(331, 300).t(), 1 - RARE / 2)


def _shares(call: DropoutCall, y: Tensor) -> Tensor:
    """The share of the entries dropped, the mean scale of the others, and the farthest that the gradient's mask is
    off."""
    kept = y != 0
    gradient, = torch.autograd.grad(y.sum(), call.x, retain_graph=True)
    scale = torch.where(kept, y / call.x, 0.0).sum() / kept.sum().clamp(min=1)
    return torch.stack([kept.double().mean(), scale * (1 - call.p), (gradient * call.x - y).abs().max()])


DROPOUT = OPERATIONS.add(Operation(
    "dropout", "entries set to zero at random",
    Form(REFERENCE, _drawn, "one uniform random number per entry"),
    Form("lots", _lots, "16 random bits per entry", devices=frozenset({"cpu"}),
         compiled=False, transformed=False, serves=_common),
    Form("library", _library, "PyTorch's own, fused by torch.compile", known_as=("torch",)),
    # Shares of 99,300 entries scatter by 0.0016, their differences by 0.0023.
    subject="x", examples=_examples, summary=(_shares, 0.01)))


def _kept(x: Tensor, dropped: int) -> Bool[Tensor, "*shape"]:
    """True for entries that stay: those whose 16 bits are not among the ``dropped`` lowest of `LOTS` values."""
    count = x.numel()
    numbers = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-2**63, None)
    return (numbers.view(torch.int16)[:count] >= dropped - LOTS // 2).view(x.shape)


class _Dropout(torch.autograd.Function):
    """x times the mask, times the scale; so is its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kept: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(kept)
        ctx.scale = scale
        # Three plain passes: a product of floats and booleans is ten times as slow, a selection four times.
        return kept.to(x.dtype).mul_(x).mul_(scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        kept, = ctx.saved_tensors
        return _Dropout.apply(gradients[0], kept, ctx.scale), None, None  # type: ignore[no-untyped-call]


class OwnDraws:
    """Random numbers of one of several processes that otherwise draw the same ones, for what it computes of a layer
    that they share. All of them call it alike, so that their generators agree afterwards too; a pass that is computed
    again from the same state of the generator draws the same numbers again.

    Args:
        place: of this process among them.
    """

    def __init__(self, place: int) -> None:
        self.place = place

    @unseen_by_compiler
    def __call__(self, work: Callable[..., R], device: torch.device, *arguments: Any) -> R:
        """``work(*arguments)``, which draws on a device."""
        common = int(torch.randint(1 << 32, ()))
        with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
            own = (common + self.place * SPREAD) % (1 << 32)  # of a seed the CPU's generator takes 32 bits
            torch.default_generator.manual_seed(own)
            if device.type != "cpu":
                torch.get_device_module(device).manual_seed(own)
            return work(*arguments)


class Dropout(Part, Adjustable, HasInferenceForm):
    """`dropout` with probability ``p`` in training; as the input is otherwise.

    Attributes:
        own: for an input of which every process has its own part; None: processes that share the layer have the same
            input, and drop the same of it.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.dropout_rate = p
        self.own: OwnDraws | None = None

    def forward(self, x: Tensor) -> Tensor:
        """x of any shape."""
        if not self.training or not self.dropout_rate:
            return x
        return dropout(x, self.dropout_rate) if self.own is None else self.own(dropout, x.device, x, self.dropout_rate)

    def inference(self) -> nn.Module:
        return nn.Identity()
