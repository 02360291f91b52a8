"""The pages of families: the configuration is the family's, and what differs is what differs."""

from __future__ import annotations

from typing import Any

import pytest
from family_page import family_page
from in_use import brief

from weft.core.base_model import parse_model
from weft.families.canonical import canonical
from weft.families.family import families

WITH_SIZES = [name for name, family in families().items() if family.sizes]


@pytest.mark.parametrize("name", WITH_SIZES)
def test_a_family_s_configuration_is_read_back_as_the_same_model(name: str) -> None:
    family = families()[name]
    config = family.config(min(family.sizes, key=lambda size: size.parameters or 0))
    assert canonical(parse_model(brief(config))) == canonical(config)


def test_a_page_has_its_pieces() -> None:
    page = family_page("gpt2")
    assert page.size.name == "distilgpt2" and page.figure.title
    assert {("model", "decoder"), ("mixer", "attention"), ("position", "learned")} <= set(page.parts)
    (short, few), (long, many) = page.state[0], page.state[-1]
    # Keys and values of 6 layers, 768 features each, in two bytes.
    assert (many - few) / (long - short) == 6 * 2 * 768 * 2
    assert page.config["blocks"][0]["repeat"] == 6


def test_an_encoder_is_drawn_with_its_head_where_smaller_models_have_none() -> None:
    page, sizes = family_page("bert"), families()["bert"].sizes
    assert page.size.name == "bert-base-chinese" and ("head", "masked_token") in page.parts
    assert min(sizes, key=lambda size: size.parameters or 0).name == "all-minilm-l6-v2"


def test_the_nearest_families_differ_in_the_fewest_keys() -> None:
    found: dict[str, Any] = dict(family_page("qwen2").differs)
    assert "qwen2" not in found and len(found) == 2
    for other, differences in found.items():
        assert 0 < len(differences) < 12, other
        for key, own, theirs in differences:
            assert own != theirs, key
    biases = {own for differences in found.values() for key, own, _ in differences if key.endswith("layers.0.bias")}
    assert biases <= {"qkv"}, "its queries, keys and values have biases"
