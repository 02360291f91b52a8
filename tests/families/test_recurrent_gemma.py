"""What RecurrentGemma's keys cannot say or be read as."""

from __future__ import annotations

import re
from typing import Any

import pytest

from interop.huggingface.tiny_folders import stored
from weft.core.errors import ConfigError
from weft.families.family import families
from weft.families.template import build_config
from weft.interop.huggingface.writing import fit

FAMILY = families()["recurrent_gemma"]


def raw(**values: Any) -> dict[str, Any]:
    return {**stored()["recurrent_gemma"]["config"], **values}


def test_a_configuration_is_written_as_it_is_read() -> None:
    config = FAMILY.read(raw(num_hidden_layers=5, block_types=None))[0]
    written = fit(config, {}, first="recurrent_gemma")
    assert written.family.name == "recurrent_gemma"
    assert written.raw["block_types"] == ["recurrent", "recurrent", "attention", "recurrent", "recurrent"]
    assert FAMILY.read(written.raw)[0] == config


@pytest.mark.parametrize(("values", "message"), [
    ({"block_types": ["mamba"]}, "block_types: mamba, but only recurrent and attention can be read."),
    ({"num_attention_heads": 5}, "num_attention_heads: 5 heads do not divide hidden_size 12."),
    ({"lru_width": "wide"}, "lru_width: 'wide' is not a whole number.")])
def test_what_cannot_be_read_is_said(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        FAMILY.read(raw(**values))


@pytest.mark.parametrize(("values", "message"), [
    ({"embedding_scale": 3.464}, "embeddings are scaled by 3.464; this family scales them by sqrt(hidden_size) in "
                                 "bfloat16, 3.46875, and has no key for it."),
    ({"recurrent": [True, True]}, "block_types: no layer is of the type attention, whose sizes are not known."),
    ({"recurrent": [False, False]}, "block_types: no layer is of the type recurrent, whose sizes are not known.")])
def test_what_cannot_be_written_is_said(values: dict[str, Any], message: str) -> None:
    changed = build_config(FAMILY.template, {**FAMILY.read(raw())[1], **values})
    problems = FAMILY.write(changed, {})[2]
    assert any(problem.startswith(message) for problem in problems), problems
