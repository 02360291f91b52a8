"""What plans, runs and the list of parts say of rewritten models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import weft
from linear.small import LAYERS, described, model
from training.tiny_runs import tiny_run
from weft.core.errors import ConfigError
from weft.core.model import parameter_count, trained_count
from weft.training import Event, Started, train

LORA = {"kind": "lora", "rank": 2, "maps": ["qkv"]}


def planned(rewrites: list[Any]) -> Any:
    return weft.plan(model(rewrites, LAYERS[:2]).config)


def test_a_plan_counts_what_trains_and_the_bytes_of_what_does_not() -> None:
    plain, adapted, quick = planned([]), planned([LORA]), planned(["int8", LORA])
    added = 2 * 8 + 2 * 24
    assert (plain.parameters.trained, adapted.parameters.trained) == (plain.parameters.total, added)
    assert adapted.parameters.total == plain.parameters.total + added
    whole = 8 * 24 + 8 * 8 + 3 * 8 * 12
    assert quick.parameters.total == plain.parameters.total - whole + added
    assert quick.buffers - plain.buffers == whole + 4 * (24 + 8 + 12 + 12 + 8)  # and a float32 scale a row
    assert {part.part for part in quick.parameters.parts} <= {part.part for part in plain.parameters.parts}


def test_a_run_tells_how_many_numbers_train(tmp_path: Path) -> None:
    events: list[Event] = []
    config = tiny_run(tmp_path, described([LORA], LAYERS[:2]) | {"vocab_size": 300}, steps=2)
    found = train(config, tmp_path / "run", on_event=events.append).model
    started = next(event for event in events if isinstance(event, Started))
    assert started.parameters == trained_count(found) == 64 < parameter_count(found)


def test_nothing_is_written_where_a_rewrite_reaches_nothing(tmp_path: Path) -> None:
    config = tiny_run(tmp_path, described([{**LORA, "maps": ["qvk"]}], LAYERS[:2]) | {"vocab_size": 300}, steps=2)
    with pytest.raises(ConfigError, match=r"rewrites.0.maps.0: 'qvk' matches no linear map .* 'qkv'"):
        weft.train(config, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_rewrites_are_listed_among_the_parts() -> None:
    assert {entry.kind for entry in weft.catalogue("rewrite")} == {"int4", "int8", "lora"}
