"""Rows cut among two and four processes: outputs and gradients of one process with the whole rows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from parallel.context_worker import GROUPS, cases, worker
from parallel.processes import together
from weft.core.errors import InputError
from weft.core.layer import traits_of
from weft.core.registry import REGISTRY
from weft.core.traits import Trait
from weft.laws.discovery import subject_of
from weft.models.decoder import Decoder
from weft.parallel.context import cuts, problems_of

BOUND = 1e-10
"""Of float64: sums over eleven tokens in another order differ by some 1e-15, relative to the largest number."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    """What two and four processes found."""
    folder = tmp_path_factory.mktemp("context")
    for size in (2, 4):
        together(size, worker, folder, folder=folder)
    return {size: json.loads((folder / f"{size}.json").read_text("utf-8")) for size in (2, 4)}


@pytest.mark.parametrize("size", [2, 4])
def test_every_layer_computes_what_one_process_does(found: dict[int, dict[str, Any]], size: int) -> None:
    """Packed documents that begin before, at and after a cut, rows that end before it, blocks that are run again for
    the backward pass, and pieces of which no token is scored, included; clocks and counts are those of one process that
    reads up to a cut."""
    numbers = {name: value for name, value in found[size].items() if not isinstance(value, str)}
    assert {name: value for name, value in numbers.items() if not value <= BOUND} == {}
    assert {"recomputed", "unscored", "clocks"} <= numbers.keys()
    kinds = {name.split(".")[1] for name in numbers if "." in name}
    assert kinds == {part.kind for group in GROUPS if size == 2 or group == "mixer" for part in REGISTRY.parts(group)
                     if part.__module__.startswith("weft.")}, "other tests may have loaded a plugin"


@pytest.mark.parametrize("size", [2, 4])
def test_only_layers_that_read_later_tokens_are_refused(found: dict[int, dict[str, Any]], size: int) -> None:
    refused = {name.split(" ")[0]: why for name, why in found[size].items() if isinstance(why, str)}
    both_ways = {name for name, config in cases(size) if (subject := subject_of(config, name)) is not None
                 and Trait.BIDIRECTIONAL in traits_of(subject.module)}
    assert refused.keys() == both_ways
    assert all("so attention has no state" in why for why in refused.values())


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
                       "Use a decoder, or set context to 1.")
