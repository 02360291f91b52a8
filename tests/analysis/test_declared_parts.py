"""Parts of kinds that Weft does not know are counted, planned and checked by what they declare."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from blocks.sharing import Plain
from weft.analysis.cost_plan import Plan, plan
from weft.core.clock import Clock
from weft.core.declarations import Adjustable, Declared
from weft.core.layer import Layer, LayerState, Pointwise, advance, source_width, with_boundaries
from weft.core.part_config import Dims
from weft.core.span import Given, Memory, Output, Span
from weft.core.state import tensor_field
from weft.feedforward.base import FeedForwardConfig
from weft.laws import LAWS, Report, examine, subject_of
from weft.masks import parse_mask
from weft.mixers.base import MixerConfig
from weft.models.decoder import DecoderConfig
from weft.ops.dropout import dropout

D, T, V, E = 8, 24, 11, 4


class Talking(Plain, Adjustable):
    """A mixer with scores that Weft knows nothing of: attention of one head, its values dropped at random."""

    def __init__(self, d_model: int, size: int, mask: str = "causal") -> None:
        super().__init__(d_model, size)
        self.mask, self.dropout_rate = parse_mask(mask), 0.3

    def declares(self) -> Declared:
        return replace(super().declares(), role="attention scores",
                       child_roles={"qkv": "attention projections", "output": "attention projections"},
                       attended=self.mask)

    def mixed(self, v: Tensor, span: Span) -> tuple[Tensor, tuple[Given, ...]]:
        return dropout(v, self.dropout_rate) if self.training else v, ()


class Deaf(Talking):
    """Declares a dropout that it does not apply."""

    def mixed(self, v: Tensor, span: Span) -> tuple[Tensor, tuple[Given, ...]]:
        return v, ()


class Silent(Plain):
    """The same work as `Talking`, and not a word about it."""


@dataclass(frozen=True)
class Source(LayerState):
    """The mean of the source."""

    mean: Tensor = tensor_field()  # [B,6]


class Reader(Layer):
    """Adds a map of the mean of a source of six features."""

    state_type = Source

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.map = nn.Linear(6, d_model)

    def declares(self) -> Declared:
        return Declared(source_width=6)

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype, memory: Memory | None) -> LayerState:
        return Source(clock, _mean(memory).to(dtype))

    def run(self, x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        mean = state.mean.to(x.dtype) if isinstance(state, Source) else _mean(span.memory)
        return Output(x + self.map(mean)[:, None], advance(state, span))


def _mean(memory: Memory | None) -> Tensor:
    assert memory is not None
    valid = memory.valid()
    if valid is None:
        return memory.h.mean(1)
    return (memory.h * valid[..., None]).sum(1) / valid.sum(1, keepdim=True)


class Quarter(Pointwise):
    """Uses a quarter of its weights for any one token."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(d_model, d_model, bias=False) for _ in range(4))

    def declares(self) -> Declared:
        return Declared(idle_parameters=3 * sum(p.numel() for p in self.parameters()) // 4)

    def each(self, x: Tensor) -> Tensor:
        y: Tensor = self.maps[0](x)
        return y


class NewConfig(MixerConfig):
    """Builds one of the mixers."""

    kind: ClassVar[str] = "new"
    what: str = "Talking"
    mask: str = "causal"

    def build(self, dims: Dims) -> Layer:
        if self.what == "Reader":
            return Reader(dims.d_model)
        if self.what == "Silent":
            return Silent(dims.d_model, E)
        return (Deaf if self.what == "Deaf" else Talking)(dims.d_model, E, self.mask)


class QuarterConfig(FeedForwardConfig):
    """Builds the feed-forward."""

    kind: ClassVar[str] = "quarter"

    def build(self, dims: Dims) -> Quarter:
        return Quarter(dims.d_model)


def planned(*layers: Any) -> Plan:
    blocks = [{"kind": "pre", "layers": list(layers)}]
    return plan(DecoderConfig.model_validate({"vocab_size": V, "context": T, "d_model": D, "blocks": blocks}),
                contexts=(4, 8))


@pytest.mark.parametrize("mask", ["causal", "causal & window(5)"])
def test_a_mixer_with_scores_is_counted_by_its_mask(mask: str) -> None:
    flops = planned(NewConfig(mask=mask)).flops
    assert flops is not None
    parts = {part.part: part for part in flops.parts}
    assert parts["attention scores"].full == 2 * T * 2 * E
    assert parts["attention projections"].full == 2 * D * 3 * E + 2 * E * D
    allowed = int(parse_mask(mask).dense(T).sum())
    assert parts["attention scores"].visible == pytest.approx(2 * 2 * E * allowed / T, rel=1e-12)


def test_its_numbers_and_its_memory_are_listed() -> None:
    found = planned(NewConfig(), QuarterConfig())
    numbers = {part.part: part.numbers for part in found.parameters.parts}
    assert numbers == {"embeddings": V * D, "attention projections": 3 * E * (D + 1) + D * (E + 1),
                       "feed-forward": 4 * D * D, "norms": 2 * 2 * D}
    assert found.parameters.total - found.parameters.active == 3 * D * D
    assert found.states is not None and found.states.growth == "growing"
    assert found.states.per_token == 2 * E * 4
    assert found.step is not None and found.step.activations_by_part["attention scores"] >= T * T * 4


def test_a_part_that_says_nothing_is_listed_under_its_kind_with_all_its_work() -> None:
    flops = planned(NewConfig(what="Silent")).flops
    assert flops is not None
    parts = {part.part: part for part in flops.parts}
    assert set(parts) == {"new", "logits"}
    assert parts["new"].full == parts["new"].visible == 2 * T * 2 * E + 2 * D * 3 * E + 2 * E * D


def laws_on(what: str, *laws: str) -> Report:
    torch.manual_seed(0)
    subject = subject_of(NewConfig(what=what), "new")
    assert subject is not None
    return examine(subject, laws=laws or tuple(law for law in LAWS if law != "compile"))


def test_laws_hold_and_see_its_dropout() -> None:
    report = laws_on("Talking")
    assert report.holds, "\n".join(map(str, report.broken()))
    assert any("the part drops in training" in finding.case for finding in report.findings)


def test_a_dropout_that_is_declared_and_not_applied_breaks_a_law() -> None:
    broken = laws_on("Deaf", "training").broken()
    assert ["the part does not drop in training" in finding.case for finding in broken] == [True]


def test_a_part_that_reads_a_source_is_given_one() -> None:
    config = DecoderConfig.model_validate({"vocab_size": V, "context": T, "d_model": D, "blocks": [
        {"kind": "pre", "layers": [NewConfig(what="Reader")]}]})
    model = config.build()
    assert source_width(model) == 6 and source_width(nn.Linear(1, 1)) is None
    subject = subject_of(config, "reader")
    assert subject is not None
    memory = subject.memory(3, torch.Generator().manual_seed(0))
    assert memory is not None and memory.h.shape == (3, 5, 6)
    report = examine(subject, laws=("split", "ragged", "packed", "selection", "memory"))
    assert report.holds, "\n".join(map(str, report.broken()))
    assert planned(NewConfig(what="Reader")).flops is not None


def test_boundaries_are_found_wherever_they_stand() -> None:
    model = DecoderConfig.model_validate({"vocab_size": V, "d_model": D, "blocks": [
        {"kind": "pre", "layers": [NewConfig()]}]}).build()
    assert with_boundaries(model) == [model.stack] and with_boundaries(nn.Sequential(Talking(D, E))) == []
