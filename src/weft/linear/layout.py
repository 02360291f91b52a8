"""Linear maps laid out for steps of few tokens. Which layout is fastest depends on the processor, the shape and the
number of rows, by factors of up to two, so each is measured against the map as it is, and then a step of the whole
model against one without layouts: matrices of one shape may stay in a cache that those of all shapes exceed, and a
layout of more bytes then loses what it gained by itself."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar, final

import torch
from torch import Tensor, nn

from weft.core.model import LanguageModel
from weft.linear.inference import checked_inference_form, inference_form
from weft.linear.linear import Linear, Rewritten, allowed
from weft.ops.linear import linear

Layout = Literal["plain", "columns", "packed"]
L = TypeVar("L", bound=LanguageModel)

WORTH = 1.15
"""How many times faster than plain a layout must be, by the median of its turns, to be chosen."""
TURNS = 7
"""Measurements of each layout, interleaved; a layout is chosen only if it is faster than plain in all but one."""
SAMPLE_BYTES = 1 << 28
"""Bytes of matrices of one shape that are multiplied one after another: more than a cache holds, so that they are read
from memory as in a step of a whole model. All matrices of a shape where the model has fewer."""


@final
class LaidLinear(Rewritten):
    """A linear map with a layout for ``rows`` tokens.

    ``columns``: the matrix is stored column by column. ``packed``: besides the matrix there is a float32 copy in the
    layout that MKL multiplies fastest with ``rows`` tokens; for other numbers of tokens the matrix is used. Products of
    narrower floats are then summed in float32 and rounded once.
    """

    def __init__(self, linear: nn.Linear, layout: Layout, rows: int) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach()
        self.layout, self.rows = layout, rows
        self.weight = nn.Parameter(weight.t().contiguous().t() if layout == "columns" else weight, requires_grad=False)
        self.bias = linear.bias
        self._packed: Tensor | None = None
        if layout == "packed":
            self._wide = weight.float()
            self._packed = torch.ops.mkl._mkl_reorder_linear_weight(self._wide, rows)

    def forward(self, x: Tensor) -> Tensor:
        """x [...,in] to [...,out]."""
        if self._packed is None or x.numel() != self.rows * self.in_features:
            return linear(x, self.weight, self.bias)
        bias = None if self.bias is None else self.bias.float()
        y: Tensor = torch.ops.mkl._mkl_linear(x.float(), self._packed, self._wide, bias, self.rows)
        return y.to(x.dtype)

    def merged(self) -> Linear:
        return Linear.of(self.weight, self.bias)

    def dense(self) -> tuple[Tensor, Tensor | None]:
        return self.weight, self.bias


@final
@dataclass(frozen=True)
class Measured:
    """The layouts that were measured for matrices of one shape.

    Attributes:
        shape: outputs and inputs.
        count: matrices of the shape in the model.
        seconds: of one product in each layout that this machine supports, the median of its turns.
        chosen: the fastest, or ``plain`` where none is clearly faster.
    """

    shape: tuple[int, int]
    count: int
    seconds: dict[Layout, float]
    chosen: Layout


@final
@dataclass(frozen=True)
class DecodingForm(Generic[L]):
    """A model laid out for decoding.

    Attributes:
        model: computes what the original does, with the same state, and shares the weights that keep their layout.
        rows: rows of the batch that it was laid out for; other batches work too.
        measured: the layouts measured for each shape.
        kept: whether the layouts that were chosen for shapes are used: not, if they made a whole step slower.
    """

    model: L
    rows: int
    measured: tuple[Measured, ...]
    kept: bool


def laid_out(model: L, rows: int, step: Callable[[L, int], Callable[[], float]]) -> DecodingForm[L]:
    """The model with each matrix in the layout that is fastest, if a whole step is then no slower.

    Args:
        model: any language model.
        rows: rows that will be continued together.
        step: returns for a model in evaluation mode what takes a step of so many rows and returns its seconds.

    Raises:
        LawError: the form does not compute what the model does.
    """
    groups: dict[tuple[int, int], list[nn.Linear]] = {}
    for part in inference_form(model).modules():
        if isinstance(part, nn.Linear) and "lay_out" in allowed(part) and part.weight.device.type == "cpu":
            groups.setdefault((part.out_features, part.in_features), []).append(part)
    measured = {shape: _measure(shape, maps, rows) for shape, maps in groups.items()}

    def lay(linear: nn.Linear) -> nn.Module:
        shape = measured.get((linear.out_features, linear.in_features))
        return linear if shape is None or shape.chosen == "plain" else LaidLinear(linear, shape.chosen, rows)

    plain = checked_inference_form(model, where="layout")
    if all(each.chosen == "plain" for each in measured.values()):
        return DecodingForm(plain, rows, tuple(measured.values()), kept=True)
    laid = checked_inference_form(model, lay, where="layout")
    kept = faster(step(laid, rows), step(plain, rows))
    return DecodingForm(laid if kept else plain, rows, tuple(measured.values()), kept)


def faster(laid: Callable[[], float], plain: Callable[[], float]) -> bool:
    """Whether a step laid out takes no longer than a plain one, by the medians of turns that alternate; each function
    takes a step and returns its seconds. The first turn, in which caches are filled, does not count."""
    turns = [(laid(), plain()) for _ in range(TURNS + 1)][1:]
    return statistics.median(own for own, _ in turns) <= statistics.median(other for _, other in turns)


def _layouts(dtype: torch.dtype) -> tuple[Layout, ...]:
    packs = torch.backends.mkl.is_available() and dtype in (torch.float32, torch.bfloat16, torch.float16)
    return ("columns", "packed") if packs else ("columns",)


@torch.inference_mode()
def _measure(shape: tuple[int, int], maps: Sequence[nn.Linear], rows: int) -> Measured:
    weight = maps[0].weight
    sample = maps[: max(1, SAMPLE_BYTES // (weight.numel() * weight.element_size()))]
    x = torch.ones(rows, 1, shape[1], dtype=weight.dtype)
    tried: dict[Layout, Callable[[], float]] = {"plain": _timer(sample, x)}
    for layout in _layouts(weight.dtype):
        tried[layout] = _timer([LaidLinear(each, layout, rows) for each in sample], x)
    turns: dict[Layout, list[float]] = {layout: [] for layout in tried}
    for _ in range(TURNS):
        for layout, timed in tried.items():
            turns[layout].append(timed())
    return Measured(shape, len(maps), {layout: statistics.median(each) for layout, each in turns.items()},
                    chosen(turns))


def chosen(turns: dict[Layout, list[float]]) -> Layout:
    """The layout with the least seconds, or ``plain`` where none is clearly faster: `WORTH` times by the median, and
    faster in every turn but one.

    Args:
        turns: seconds of each layout, those of one turn at the same place.
    """
    def pays(layout: Layout) -> bool:
        lost = sum(own >= plain for own, plain in zip(turns[layout], turns["plain"], strict=True))
        return lost <= 1 and WORTH * statistics.median(turns[layout]) <= statistics.median(turns["plain"])

    able: list[Layout] = [layout for layout in turns if layout != "plain" and pays(layout)]
    return min(able, key=lambda layout: statistics.median(turns[layout]), default="plain")


def _timer(maps: Sequence[nn.Module], x: Tensor) -> Callable[[], float]:
    def timed() -> float:
        begun = time.perf_counter()
        for each in maps:
            each(x)
        return (time.perf_counter() - begun) / len(maps)

    return timed
