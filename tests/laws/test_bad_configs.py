"""Law 11: for every registered part, a bad configuration's error names the field and says what to do."""

from __future__ import annotations

from typing import Any

import pytest

from weft.core.config import parse_part
from weft.core.errors import ConfigError
from weft.core.part_config import PartConfig
from weft.core.registry import REGISTRY

PARTS = [pytest.param(part, id=f"{part.group}.{part.kind}") for part in REGISTRY.parts()]


class Nonsense:
    """A value that no field of any part can take."""


def refused(part: type[PartConfig], fields: dict[str, Any]) -> tuple[str, ...]:
    """The problems that parsing the first example with some fields changed reports."""
    with pytest.raises(ConfigError) as caught:
        parse_part((part.group,), {**part.examples()[0].dump(), **fields})
    return caught.value.problems


@pytest.mark.parametrize("part", PARTS)
def test_an_unknown_key_is_named_with_the_nearest_or_all_known_ones(part: type[PartConfig]) -> None:
    problems = refused(part, {"bogus_key": 1})
    assert len(problems) == 1
    assert problems[0].startswith("bogus_key: unknown key 'bogus_key'. ")
    known = sorted(part.model_fields)
    assert problems[0].endswith(f"Known names: {', '.join(known)}." if known else "There are none.")


@pytest.mark.parametrize("part", PARTS)
def test_every_field_that_holds_nonsense_is_named_all_at_once(part: type[PartConfig]) -> None:
    fields = sorted(part.model_fields)
    if not fields:
        assert refused(part, {"x": Nonsense()})[0].startswith("x: unknown key")
        return
    problems = refused(part, {name: Nonsense() for name in fields})
    named = {problem.split(":")[0].split(".")[0] for problem in problems}
    assert named == set(fields), problems


@pytest.mark.parametrize("part", PARTS)
def test_a_misspelt_kind_names_the_nearest(part: type[PartConfig]) -> None:
    with pytest.raises(ConfigError, match=rf"kind: no {part.group} of kind '{part.kind}q'. Did you mean '"):
        parse_part((part.group,), f"{part.kind}q")
