"""Longformer: its windows and global tokens as keys, and what its class cannot have."""

from __future__ import annotations

from typing import Any

import pytest

from interop.huggingface.tiny_folders import stored
from weft.core.errors import ConfigError
from weft.families.family import families
from weft.families.template import build_config
from weft.interop.huggingface.writing import fit

LONGFORMER = families()["longformer"]


def raw(**values: Any) -> dict[str, Any]:
    return {**stored()["longformer"]["config"], **values}


def test_a_configuration_is_written_as_it_is_read_and_for_its_own_class() -> None:
    config = LONGFORMER.read(raw())[0]
    written = fit(config, {})
    assert written.family.name == "longformer"
    assert LONGFORMER.read(written.raw)[0] == config


def test_a_window_is_halved_and_one_number_is_that_of_every_layer() -> None:
    assert LONGFORMER.read(raw(attention_window=[4, 8]))[1]["masks"] == ["symmetric_window(2, 2)",
                                                                         "symmetric_window(4, 4)"]
    facts = LONGFORMER.read(raw(attention_window=6))[1]
    assert facts["masks"] == ["symmetric_window(3, 3)"] * 2
    assert LONGFORMER.write(build_config(LONGFORMER.template, facts), {})[0]["attention_window"] == [6, 6]


def test_the_first_token_is_global_where_rows_are_classified() -> None:
    assert LONGFORMER.read(raw())[1]["tokens"] == [0]
    assert LONGFORMER.read(raw(architectures=["LongformerForMaskedLM"]))[1]["tokens"] is None


@pytest.mark.parametrize(("values", "message"), [
    ({"attention_window": [4]}, "attention_window: 1 windows for 2 layers."),
    ({"attention_window": 5}, "attention_window: 5, but it counts equally many tokens on both sides: even, and not 0."),
    ({"attention_window": 0}, "attention_window: 0, but it counts equally many tokens on both sides: even, and not 0."),
    ({"attention_window": "wide"}, "attention_window: 'wide' is not a whole number."),
    ({"attention_mode": "n2"}, "attention_mode: 'n2', but only 'longformer' or None can be read. Other modes are not "
                               "this model."),
])
def test_what_cannot_be_read(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LONGFORMER.read(raw(**values))
    assert caught.value.problems == (message,)


@pytest.mark.parametrize(("changes", "message"), [
    ({"masks": ["symmetric_window(2, 3)"] * 2}, "attention_window: cannot express the mask symmetric_window(2, 3); "
     "only windows of equally many tokens on both sides, at least two, with fewer of which its class fails."),
    ({"tokens": [0, 3]}, "global tokens [0, 3], but with the head 'pooled' those of its class are [0], and the file "
                         "has no key for others."),
])
def test_what_cannot_be_written(changes: dict[str, Any], message: str) -> None:
    facts = {**LONGFORMER.read(raw())[1], **changes}
    assert LONGFORMER.write(build_config(LONGFORMER.template, facts), {})[2] == [message]
