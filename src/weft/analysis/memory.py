"""Memory in bytes: weights, gradients and optimizer state in training, and states in decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from weft.analysis.calls import state_after, states_for
from weft.analysis.shapes import ValuesRead
from weft.core.declarations import Trait
from weft.core.layer import kept_dtypes, traits_of
from weft.core.model import LanguageModel, Model
from weft.core.state import State
from weft.core.strict_json import Record
from weft.ops.processor import main_memory

GIGABYTE = 10**9
WEIGHT_DTYPES = (torch.float64, torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class TrainingMemory(Record):
    """The memory that training needs all the time, in bytes.

    Attributes:
        weights: the weights; bfloat16 training has a copy in float32 too.
        gradients: one number for each weight.
        optimizer: two float32 (or float64) numbers for each weight, as in AdamW.
    """

    weights: int
    gradients: int
    optimizer: int


@dataclass(frozen=True)
class StateSize(Record):
    """The size of a state of ``batch`` rows after ``context`` tokens each, in bytes."""

    context: int
    batch: int
    bytes: int


@dataclass(frozen=True)
class States(Record):
    """The size of a state at several contexts.

    Attributes:
        growth: "bounded", or "growing" with the context.
        per_token: bytes that one more token of a row adds at the longest context.
        sizes: the sizes by context.
    """

    growth: str
    per_token: float
    sizes: tuple[StateSize, ...]


def weight_bytes(model: Model) -> dict[str, int]:
    """Bytes of the parameters in each dtype, except those that keep their own dtype."""
    kept = kept_dtypes(model)
    return {str(dtype).removeprefix("torch."): sum([p.numel() * kept.after(p, dtype).itemsize
                                                    for p in model.parameters()]) for dtype in WEIGHT_DTYPES}


def buffer_bytes(model: Model) -> int:
    """Bytes of the buffers, such as tables of frequencies or counts."""
    return sum(buffer.numel() * buffer.element_size() for buffer in model.buffers())


def training_bytes(model: Model, dtype: torch.dtype) -> TrainingMemory:
    """The memory that training in ``dtype`` needs."""
    trained, kept = [p for p in model.parameters() if p.requires_grad], kept_dtypes(model)
    wide = sum([p.numel() for p in trained]) * torch.promote_types(dtype, torch.float32).itemsize
    own = sum([p.numel() * kept.after(p, dtype).itemsize for p in trained])
    return TrainingMemory(own + (wide if dtype.itemsize < torch.float32.itemsize else 0), own, 2 * wide)


def state_sizes(model: Model, mode: FakeTensorMode, batch: int, contexts: Sequence[int]) -> States | None:
    """The sizes of states after prompts of the given lengths; None for a model without a state.

    A state with reserved buffers has the size of one that has grown to as many tokens, so prompts need not be run. This
    is verified at the first context; if it does not hold for a model, all prompts are run.
    """
    if not isinstance(model, LanguageModel) or Trait.BIDIRECTIONAL in traits_of(model) or not contexts:
        return None
    model.eval()
    with torch.no_grad(), mode, ValuesRead():
        reserved = [_state_bytes(state) for state in states_for(model, batch, contexts)]
        first = _state_bytes(state_after(model, batch, contexts[0]))
        if first != reserved[0]:
            reserved = [first, *(_state_bytes(state_after(model, batch, context)) for context in contexts[1:])]
    return growth(tuple(StateSize(*each) for each in zip(contexts, [batch] * len(contexts), reserved, strict=True)))


def room_problems(model: Model) -> list[str]:
    """The problem, with both numbers of bytes, of a model whose weights and gradients alone are more than this
    machine's main memory, so that it can be neither trained nor checked; empty for others, and where the memory is not
    known. The model may be on the meta device."""
    there, count = main_memory(), sum(p.numel() for p in model.parameters())
    needed = sum(p.numel() * p.element_size() * (2 if p.requires_grad else 1) for p in model.parameters())
    if not there or needed <= there:
        return []
    name, largest = max(model.named_parameters(), key=lambda each: each[1].numel())
    return [f"model: {count:,} parameters take {needed / GIGABYTE:,.0f} GB with their gradients, and this machine has "
            f"{there / GIGABYTE:,.0f} GB of memory. The largest, {name}, has "
            f"{' x '.join(f'{size:,}' for size in largest.shape)}. Make the field that gives it this size smaller, or "
            "the number of blocks; `weft plan` says what each takes."]


def growth(sizes: tuple[StateSize, ...]) -> States:
    """The sizes with their growth from the last but one to the last."""
    if len(sizes) < 2:
        return States("unknown, because only one context was measured", 0.0, sizes)
    last, before = sizes[-1], sizes[-2]
    slope = (last.bytes - before.bytes) / (last.context - before.context) / last.batch
    return States("growing" if slope else "bounded", slope, sizes)


def _state_bytes(state: State) -> int:
    """Bytes of a state of fake tensors, which have no addresses, by which `State.nbytes` counts shared ones once."""
    unique = {id(tensor): tensor for tensor, _ in state.tensors().values()}
    return sum([tensor.numel() * tensor.element_size() for tensor in unique.values()])
