"""Linear maps laid out for steps of few tokens. Which layout is fastest depends on the processor, the shape and the
number of rows, by factors of up to two, so it is measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from weft.core.inference import inference_form
from weft.core.model import LanguageModel
from weft.core.rewrites import untouched

Layout = Literal["rows", "columns", "packed"]
L = TypeVar("L", bound=LanguageModel)

WORTH = 1.1
"""How much faster than rows a layout must be to be chosen; less may be chance."""
SAMPLE_BYTES = 1 << 25
"""Matrices of one shape that are tried in turn, so that they come from memory as they do in a step."""
TURNS = 3


@final
class LaidLinear(nn.Linear):
    """A linear map with a layout for ``rows`` tokens.

    ``columns``: the matrix has its columns side by side. ``packed``: beside the matrix stands a float32 copy in the
    form that MKL multiplies fastest with ``rows`` tokens; other numbers of tokens use the matrix. Products of narrower
    floats are then summed in float32 and rounded once.
    """

    def __init__(self, linear: nn.Linear, layout: Layout, rows: int) -> None:
        super().__init__(linear.in_features, linear.out_features, linear.bias is not None, device="meta")
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
            return F.linear(x, self.weight, self.bias)
        bias = None if self.bias is None else self.bias.float()
        y: Tensor = torch.ops.mkl._mkl_linear(x.float(), self._packed, self._wide, bias, self.rows)
        return y.to(x.dtype)


@final
@dataclass(frozen=True)
class Measured:
    """What was tried for matrices of one shape.

    Attributes:
        shape: outputs and inputs.
        count: such matrices in the model.
        seconds: of one product in each layout that this machine has.
        chosen: the fastest, or ``rows`` where none is faster by a tenth.
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
        model: equal in law to the original, with the same state; it shares what is not laid out anew.
        rows: rows of a batch that it was laid out for; others work too.
        measured: what was tried for each shape.
    """

    model: L
    rows: int
    measured: tuple[Measured, ...]


def for_decoding(model: L, *, rows: int = 1) -> DecodingForm[L]:
    """The model in the form that this machine decodes fastest, after a second of measuring.

    On other devices than a CPU matrices stay as they are, and so do adapted maps (`weft.core.rewrites`). Those that do
    not are held twice while the original is held too; ``packed`` ones need two float32 copies beside the original
    matrix.

    Args:
        model: any language model.
        rows: rows that will be continued together.
    """
    groups: dict[tuple[int, int], list[nn.Linear]] = {}
    for part in inference_form(model).modules():
        if isinstance(part, nn.Linear) and untouched(part, nn.Linear) and part.weight.device.type == "cpu":
            groups.setdefault((part.out_features, part.in_features), []).append(part)
    measured = {shape: _measure(shape, maps, rows) for shape, maps in groups.items()}

    def lay(linear: nn.Linear) -> nn.Linear:
        found = measured.get((linear.out_features, linear.in_features))
        return linear if found is None or found.chosen == "rows" else LaidLinear(linear, found.chosen, rows)

    return DecodingForm(inference_form(model, lay), rows, tuple(measured.values()))


def _layouts(dtype: torch.dtype) -> tuple[Layout, ...]:
    packs = torch.backends.mkl.is_available() and dtype in (torch.float32, torch.bfloat16, torch.float16)
    return ("rows", "columns", "packed") if packs else ("rows", "columns")


@torch.inference_mode()
def _measure(shape: tuple[int, int], maps: Sequence[nn.Linear], rows: int) -> Measured:
    weight = maps[0].weight
    sample = maps[: max(1, SAMPLE_BYTES // (weight.numel() * weight.element_size()))]
    x = torch.ones(rows, 1, shape[1], dtype=weight.dtype)
    tried: dict[Layout, Callable[[], float]] = {
        layout: _timer([LaidLinear(linear, layout, rows) for linear in sample], x) for layout in _layouts(weight.dtype)}
    seconds: dict[Layout, float] = dict.fromkeys(tried, float("inf"))
    for _ in range(TURNS):
        for layout, timed in tried.items():
            seconds[layout] = min(seconds[layout], timed())
    return Measured(shape, len(maps), seconds, fastest(seconds))


def fastest(seconds: dict[Layout, float]) -> Layout:
    """The layout with the least seconds, or ``rows`` where none is faster by a tenth."""
    best = min(seconds, key=lambda layout: seconds[layout])
    return best if seconds["rows"] >= WORTH * seconds[best] else "rows"


def _timer(maps: Sequence[nn.Linear], x: Tensor) -> Callable[[], float]:
    def timed() -> float:
        begun = time.perf_counter()
        for linear in maps:
            linear(x)
        return (time.perf_counter() - begun) / len(maps)

    return timed
