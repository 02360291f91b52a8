"""Rows cut among two and four processes: outputs and gradients of one process with the whole rows."""

from __future__ import annotations

import json

import pytest
import torch

from parallel.context_worker import GROUPS, worker
from parallel.processes import together
from weft.core.errors import InputError
from weft.core.registry import REGISTRY
from weft.core.span import WHOLE
from weft.models.decoder import Decoder
from weft.parallel.context import cuts, problems_of, span_of_piece
from weft.parallel.thread_communication import Chain, HandedPieces, Line

BOUND = 1e-10
"""Of float64: sums over eleven tokens in another order differ by some 1e-15, relative to the largest number."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, float]]:
    """What two and four processes found."""
    folder = tmp_path_factory.mktemp("context")
    for size in (2, 4):
        together(size, worker, folder, folder=folder)
    return {size: json.loads((folder / f"{size}.json").read_text("utf-8")) for size in (2, 4)}


@pytest.mark.parametrize("size", [2, 4])
def test_every_layer_computes_what_one_process_does(found: dict[int, dict[str, float]], size: int) -> None:
    """Packed documents that begin before, at and after a cut, rows that end before it, layers and encoders that read
    later tokens, blocks that are run again for the backward pass, and pieces of which no token is scored, included;
    clocks and counts are those of one process that reads up to a cut."""
    numbers = found[size]
    assert {name: value for name, value in numbers.items() if not value <= BOUND} == {}
    assert {"recomputed", "unscored", "clocks", "encoded", "encoded again"} <= numbers.keys()
    kinds = {name.split(".")[1] for name in numbers if "." in name}
    assert kinds == {part.kind for group in GROUPS if size == 2 or group == "mixer" for part in REGISTRY.parts(group)
                     if part.__module__.startswith("weft.")}, "other tests may have loaded a plugin"


def test_rows_of_fewer_tokens_than_processes_are_refused() -> None:
    assert cuts(11, 4) == [2, 5, 8, 11]
    with pytest.raises(InputError, match=r"training\.mesh\.context: rows of 3 tokens for 4 processes.*at least 4"):
        cuts(3, 4)


def test_models_that_cannot_be_cut_are_refused_by_name() -> None:
    batch = REGISTRY.get(("model",), "decoder").model_validate({
        "vocab_size": 11, "d_model": 8, "norm": "batchnorm", "blocks": [{"kind": "pre", "layers": ["gru"]}]})
    model = batch.build(None)
    assert isinstance(model, Decoder)
    assert "batch normalisation needs the statistics" in "".join(problems_of(model))
    other = REGISTRY.get(("model",), "feedforward").examples()[0].build(None)
    (problem,) = problems_of(other)
    assert problem == ("training.mesh.context: a model of kind 'feedforward' does not hand its state on by layers. "
                       "Use a decoder or an encoder of tokens, or set context to 1.")


def test_encoders_that_cannot_be_cut_are_refused_by_name() -> None:
    vectors = {"kind": "rwkv7", "d_head": 4}
    model = REGISTRY.get(("encoder",), "encoder").model_validate({
        "vocab_size": 11, "d_model": 8, "position": "learned", "context": 32, "padding_id": 1, "head": "masked_token",
        "blocks": [{"kind": "pre", "layers": [vectors]}, {"kind": "pre", "layers": [vectors]}]}).build(None)
    assert problems_of(model) == [
        "training.mesh.context: positions that leave out tokens with the id padding_id depend on the ids of the whole "
        "rows. Leave padding_id out of the encoder, or set context to 1.",
        "training.mesh.context: Rwkv7, which in an encoder runs on the whole rows, gives values to other layers or "
        "takes them, of which each process has a piece. Use another layer, or set context to 1."]


def test_a_span_of_a_piece_cannot_be_changed() -> None:
    span = span_of_piece(WHOLE.resolve(None, torch.zeros(2, 6)), HandedPieces(
        (3, 6), 1, WHOLE.resolve(None, torch.zeros(2, 6)), Line("none", 1, 2), Chain(torch.zeros(()))), 2, None, None)
    assert span.resolve(None, torch.zeros(2, 3)) is span
    with pytest.raises(InputError, match=r"span: .*no longer belongs to the whole rows.*Give facts and positions"):
        span.replace(coordinates=torch.zeros(2, 3)).resolve(None, torch.zeros(2, 3))
