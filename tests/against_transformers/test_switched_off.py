"""Keys that are true where config.json lacks them, each written as false: the model that `transformers` then builds is
read, or the folder is refused by that key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from against_transformers.tiny import TOLERANCE, Case, all_cases, alone, build, encoder_cases, rows
from weft import api
from weft.core.errors import WeftError
from weft.families.common import GENERATION, OTHER_HEADS, RUNNING
from weft.families.family import families

LENGTH = 23
ALWAYS = ("is_causal",)
"""Keys that classes read and no configuration lists."""


def _first_cases() -> Mapping[str, Case]:
    """A case for each configuration class."""
    found: dict[str, Case] = {}
    for case in (*all_cases(), *encoder_cases()):
        found.setdefault(case.config, case)
    return found


CASES = _first_cases()


def switches(case: Case) -> list[str]:
    """The keys of the configuration that are true, besides those that choose how a model is run."""
    config = build(case).config.to_dict()
    return sorted({key for key, value in config.items() if value is True} - {*RUNNING, *GENERATION, *OTHER_HEADS,
                                                                             "is_encoder_decoder"} | {*ALWAYS})


@pytest.mark.parametrize("name", CASES)
def test_what_is_switched_off_is_read_or_refused(name: str, tmp_path: Path) -> None:
    plain = CASES[name]
    row = rows(67, (LENGTH,))[0]
    for key in switches(plain):
        case, folder = replace(plain, values={**plain.values, key: False}), tmp_path / key
        try:
            build(case).save_pretrained(folder)
        except (ValueError, TypeError, AttributeError, RuntimeError):
            continue  # the class refuses it too
        given: Any = row
        if getattr(transformers, case.config)().is_encoder_decoder:
            given = {"source": row, "target": row}
        try:
            found = api.score(folder, [given], logits=True).logits
        except WeftError as error:
            assert key in str(error), (key, str(error))
            continue
        assert found is not None
        torch.testing.assert_close(found[0], alone(folder, given).float(), atol=TOLERANCE, rtol=0,
                                   msg=lambda text, key=key: f"{key}: {text}")


def test_every_key_that_a_class_lists_is_known() -> None:
    """So that a new version of `transformers` with a new key is noticed here, and not by a reader of its folders."""
    lacking = {}
    for family in families().values():
        if family.native is None or family.native.model_type not in transformers.CONFIG_MAPPING:
            continue
        named = {key for rule in family.native.rules for key in rule.keys}
        listed = transformers.CONFIG_MAPPING[family.native.model_type]().to_dict()
        lacking[family.name] = sorted(key for key, value in listed.items() if value and key not in named)
    assert {name: keys for name, keys in lacking.items() if keys} == {}
