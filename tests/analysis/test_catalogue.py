"""The catalogue: complete, filtered, and open to plugins."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from taken_back import taken_back
from weft.analysis.describe import describe
from weft.analysis.known_parts import catalogue, summary_of
from weft.core.errors import InputError
from weft.core.registry import REGISTRY, load_plugin
from weft.masks import known_masks

PLUGIN = '''
from typing import Any

from weft.core.part_config import About, PartConfig
from weft.core.registry import register

@register
class SprocketConfig(PartConfig):
    """Turns. And turns."""

    group = "gadget"
    kind = "sprocket"
    about = About(source="nobody 2020", state_size="one tooth")
    settings: dict[str, Any] = {}
    by_name: dict[str, dict[str, Any]] = {"one": {}}
'''


@pytest.fixture
def sprocket(tmp_path: Path) -> Iterator[None]:
    """A plugin's part, taken back after the test."""
    file = tmp_path / "sprocket_parts.py"
    file.write_text(PLUGIN)
    with taken_back():
        load_plugin(file)
        yield


def test_lists_every_part_and_every_mask() -> None:
    found = {(entry.group, entry.kind) for entry in catalogue()}
    assert found == {(part.group, part.kind) for part in REGISTRY.parts()} | {("mask", m.kind) for m in known_masks()}
    assert all(entry.summary for entry in catalogue())


def test_a_group_a_kind_and_masks() -> None:
    assert {entry.group for entry in catalogue("mixer")} == {"mixer"}
    assert [(entry.group, entry.kind) for entry in catalogue("rope")] == [("position", "rope")]
    assert [entry.usage for entry in catalogue("window")] == ["window(size)"]
    assert [entry.kind for entry in catalogue("mask")] == sorted(mask.kind for mask in known_masks())


def test_position_schemes_say_where_they_act_and_how_often() -> None:
    found = {entry.kind: entry.acts_on for entry in catalogue("position")}
    shared = ", in every layer (one set of weights each, or one for all under `shared`)"
    assert found["none"] == "nowhere"
    assert {found[kind] for kind in ("sinusoidal", "learned", "integer")} == {"embeddings, once"}
    assert {found[kind] for kind in ("rope", "axial_rope")} == {"queries and keys, in every layer"}
    assert found["alibi"] == "scores, in every layer"
    assert {found[kind] for kind in ("t5", "tupe", "deberta", "transformer_xl")} == {f"scores{shared}"}
    assert found["shaw"] == f"scores and values{shared}"
    assert catalogue("attention")[0].acts_on == ""


def test_traits_come_from_the_parts_themselves() -> None:
    assert list(catalogue("ngram")[0].traits) == ["not_differentiable", "tokens_only"]
    assert list(catalogue("batchnorm")[0].traits) == ["batch_statistics"]
    assert "depends on the whole batch" in catalogue("batchnorm")[0].traits["batch_statistics"]
    assert catalogue("lstm")[0].traits == {}
    assert catalogue("lstm")[0].state_size == "2 d_hidden float32 numbers"


def test_a_plugins_part_is_listed(sprocket: None) -> None:
    (entry,) = catalogue("sprocket")
    assert (entry.group, entry.summary, entry.source, entry.state_size) == ("gadget", "Turns.", "nobody 2020",
                                                                            "one tooth")
    assert entry.defined_in == "weft_plugin_sprocket_parts"


def test_a_field_that_holds_anything_is_described(sprocket: None) -> None:
    (page,) = map(describe, catalogue("sprocket"))
    assert [(field.name, field.type, field.default) for field in page.fields] == [
        ("settings", "names of anything", "{}"), ("by_name", "names of names of anything", '{"one": {}}')]


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"no part and no group of parts is called 'atention'\. Did you mean "
                                         r"'attention'\? Groups: .*mask, mixer"):
        catalogue("atention")
    with pytest.raises(InputError, match=r"called 'zzz'\. Groups: "):
        catalogue("zzz")


def test_entries_are_plain_data() -> None:
    assert json.loads(json.dumps(catalogue("rope")[0].to_json()))["kind"] == "rope"


@pytest.mark.parametrize(("text", "summary"), [
    ("One. Two.", "One."),
    ("A line\n    that goes on. More.", "A line that goes on."),
    ("See Chen et al. 1998 for it. More.", "See Chen et al. 1998 for it."),
    ("No stop\n\n    Next paragraph.", "No stop"),
    ("Written ``a & (... | b)``. More.", "Written ``a & (... | b)``."),
    (None, "")])
def test_summaries(text: str | None, summary: str) -> None:
    assert summary_of(type("Described", (), {"__doc__": text})) == summary
