"""Attention that is blind beyond a thousand keys, on one road alone, is found by the laws on far rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from blocks.sharing import Known, Plain, attend, remember
from weft.core.declarations import HasInferenceForm
from weft.core.layer import Layer, LayerState
from weft.core.span import Output, Span
from weft.laws import examine_long, layer_subject
from weft.laws.check import LONGEST
from weft.laws.long_laws import LONG_LAWS

SIGHT, STEPS = 1000, 1200


class Blind(Plain):
    """Attention that sees a thousand keys and no more where `blind` says so."""

    def run(self, x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        q, k, v = self.qkv(x).chunk(3, -1)
        known, after = remember(k, v, state, span)
        found = attend(q, known, span.ticks)
        if self.blind(x, state, span):
            late = span.ticks.order[..., None] - known.order[:, None]
            found = torch.where(late.amax(-1, keepdim=True) >= SIGHT, self.near(q, known, span), found)
        return Output(self.output(found), after)

    def near(self, q: Tensor, known: Known, span: Span) -> Tensor:
        """Attention over the last thousand keys."""
        ticks = span.ticks
        begin = torch.maximum(ticks.begin.expand_as(ticks.order), ticks.order - SIGHT + 1)
        order = known.order[:, None]
        seen = (order <= ticks.order[..., None]) & (order >= begin[..., None]) & (order < known.count[..., None])
        scores = q @ known.keys.transpose(1, 2) / known.keys.shape[-1] ** 0.5
        return scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(-1) @ known.values

    def blind(self, x: Tensor, state: LayerState | None, span: Span) -> bool:
        """Whether this call is."""
        return False


class BlindInPieces(Blind):
    """With a state."""

    def blind(self, x: Tensor, state: LayerState | None, span: Span) -> bool:
        return state is not None


class BlindInRaggedRows(Blind):
    """With counts."""

    def blind(self, x: Tensor, state: LayerState | None, span: Span) -> bool:
        return span.count is not None


class BlindInPackedRows(Blind):
    """With marks of documents."""

    def blind(self, x: Tensor, state: LayerState | None, span: Span) -> bool:
        return span.begins is not None


class BlindInFloat32(Blind):
    """In float32."""

    def blind(self, x: Tensor, state: LayerState | None, span: Span) -> bool:
        return x.dtype == torch.float32 and state is None


class BlindInFloat32Pieces(Blind):
    """In float32, several tokens at once from a state."""

    def blind(self, x: Tensor, state: LayerState | None, span: Span) -> bool:
        return x.dtype == torch.float32 and state is not None and x.shape[1] > 1


class BlindForm(Blind, HasInferenceForm):
    """In the form for inference."""

    def __init__(self, d_model: int, size: int) -> None:
        super().__init__(d_model, size)
        self.formed = False

    def inference(self) -> nn.Module:
        form = BlindForm(self.qkv.in_features, self.size)
        form.qkv, form.output, form.formed = self.qkv, self.output, True
        return form

    def blind(self, x: Tensor, state: LayerState | None, span: Span) -> bool:
        return self.formed


FOUND = {BlindInPieces: "split", BlindInRaggedRows: "ragged", BlindInPackedRows: "packed",
         BlindInFloat32: "precision", BlindInFloat32Pieces: "continuation", BlindForm: "inference"}


def examined(kind: type[Layer]) -> set[str]:
    torch.manual_seed(0)
    layer = kind(8, 4).double()  # type: ignore[call-arg]
    subject = replace(layer_subject(kind.__name__, layer, 8), thorough=False)
    return {finding.law for finding in examine_long(subject, STEPS).broken()}


@pytest.mark.parametrize("kind", FOUND)
def test_each_road_is_looked_down_far_enough(kind: type[Layer]) -> None:
    assert FOUND[kind] in examined(kind)


def test_what_sees_everything_holds() -> None:
    assert examined(Blind) == set()
    assert SIGHT < STEPS < LONGEST and set(FOUND.values()) < set(LONG_LAWS)
