"""Every part that has a picture is drawn, and the picture says of the part what the part does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from part_pictures import HEADS, MASKS, SCALINGS, SIZE, STEPS, influence, part_pictures

from pictures.reading import attributes, curves, fields, grids, overlapping, tree
from weft.core.declarations import Trait
from weft.core.layer import Pointwise, traits_of
from weft.core.part_config import Dims
from weft.core.registry import REGISTRY
from weft.drawing.figure import Figure
from weft.masks import known_masks, parse_mask

DRAWN = sorted([*((part.group, part.kind) for part in REGISTRY.parts()),
                *(("mask", mask.kind) for mask in known_masks())])


@pytest.fixture(scope="module")
def pictures() -> dict[tuple[str, str], list[Figure]]:
    return {part: part_pictures(*part) for part in DRAWN}


def test_every_part_is_drawn(pictures: dict[tuple[str, str], list[Figure]]) -> None:
    assert {part for part, figures in pictures.items() if not figures} == set()
    names = [figure.name for figures in pictures.values() for figure in figures]
    assert len(names) == len(set(names)) and len(names) > 60


def test_pictures_are_well_formed_and_their_words_apart(pictures: dict[tuple[str, str], list[Figure]]) -> None:
    for figures in pictures.values():
        for figure in figures:
            tree(figure)
            assert overlapping(figure) == [], figure.name
            assert figure.title and figure.description, figure.name


@pytest.mark.parametrize("kind", [kind for group, kind in DRAWN if group == "mask"])
def test_a_mask_s_picture_is_the_mask(kind: str, pictures: dict[tuple[str, str], list[Figure]]) -> None:
    text = pictures["mask", kind][0].title
    if not parse_mask(text).reads() and kind not in ("prefix", "documents", "padding"):
        found = torch.tensor(grids(pictures["mask", kind][0]))
        dense = parse_mask(text).dense(found.shape[1])[0].expand(found.shape[0], -1, -1)
        assert torch.equal(found > 0, dense)
    assert kind in text and text == MASKS.get(kind, text)


@pytest.mark.parametrize("kind", [kind for group, kind in DRAWN if group in ("mixer", "feedforward")])
def test_a_layer_s_picture_shows_what_it_reads(kind: str, pictures: dict[tuple[str, str], list[Figure]]) -> None:
    group = next(group for group, each in DRAWN if each == kind and group in ("mixer", "feedforward"))
    [found] = fields(pictures[group, kind][0])
    if kind == "cross_attention":
        assert found.shape == (20, 15) and (found > 0).all()
        return
    example: Any = REGISTRY.get((group,), kind).examples()[0]
    built = example.build(Dims(8, 11, 64))
    if example.giver() is None and Trait.BIDIRECTIONAL not in traits_of(built):
        assert (np.triu(found, 1) == 0).all(), "nothing reads what comes later"
    if isinstance(built, Pointwise):
        assert (np.tril(found, -1) == 0).all(), "each token by itself"
    if kind == "channel_mix":
        assert (np.tril(found, -2) == 0).all() and (np.diag(found, -1) > 0).any()
    if kind in ("elman", "gru", "lstm", "s4d"):
        assert (found[np.tril_indices(5)] > 0).all(), "a state carries all earlier tokens"
    assert (np.diag(found) > 0).all()


def test_influence_is_the_gradient() -> None:
    """Of attention with a window of three: by differences, at the first direction of the second layer's input."""
    config: Any = REGISTRY.get(("mixer",), "attention").model_validate({"n_heads": 2, "mask": "causal & window(3)"})
    torch.manual_seed(0)
    layer = config.build(Dims(8, 11, 16)).double()
    found = influence(layer, 8)
    band = torch.ones(8, 8).tril().triu(-2).bool()
    assert torch.equal(found > 0, band)


@pytest.mark.parametrize("kind", [kind for group, kind in DRAWN if group == "norm"])
def test_a_norm_s_picture_has_its_vectors(kind: str, pictures: dict[tuple[str, str], list[Figure]]) -> None:
    before, after = fields(pictures["norm", kind][0])
    if kind == "none":
        np.testing.assert_allclose(before, after)
    if kind == "layernorm":  # up to the 255 steps of a point
        np.testing.assert_allclose(after.mean(1), 0.0, atol=0.004)
        np.testing.assert_allclose(after.std(1) / after.std(1)[0], 1.0, atol=0.03)
    if kind == "batchnorm":
        np.testing.assert_allclose(after.mean(0), 0.0, atol=0.004)
    if kind == "rmsnorm":
        np.testing.assert_allclose(np.square(after).mean(1) / np.square(after).mean(1)[0], 1.0, atol=0.05)


@pytest.mark.parametrize("kind", [kind for group, kind in DRAWN if group == "rope_scaling"])
def test_a_scaling_s_picture_has_its_wavelengths_beside_the_unscaled(
        kind: str, pictures: dict[tuple[str, str], list[Figure]]) -> None:
    drawn = curves(pictures["rope_scaling", kind][0])
    assert set(drawn) == {"unscaled", kind} and len(drawn["unscaled"]) == SIZE
    # Heights of points of the drawing, which fall as wavelengths grow.
    same = np.allclose(drawn["unscaled"], drawn[kind])
    assert same == (kind == "none")
    assert all(own[1] <= plain[1] + 0.11 for own, plain in zip(drawn[kind], drawn["unscaled"], strict=True))


def test_a_list_of_factors_is_one_of_the_part_s() -> None:
    for kind, fields_ in SCALINGS.items():
        assert REGISTRY.get(("rope_scaling",), kind).model_validate({k: v for k, v in fields_.items() if k != "kind"})


@pytest.mark.parametrize("kind", [kind for group, kind in DRAWN if group == "schedule"])
def test_a_schedule_s_picture_is_its_factor(kind: str, pictures: dict[tuple[str, str], list[Figure]]) -> None:
    config: Any = REGISTRY.get(("schedule",), kind).examples()[0]
    heights = np.array([y for _, y in curves(pictures["schedule", kind][0])["factor"]])
    factors = np.array([config.factor(step, STEPS) for step in range(STEPS)])
    slope, start = np.polyfit(factors, heights, 1) if factors.std() else (0.0, heights[0])
    np.testing.assert_allclose(start + slope * factors, heights, atol=0.11)  # coordinates have one decimal
    assert len(heights) == STEPS


@pytest.mark.parametrize("kind", [kind for group, kind in DRAWN if group == "block"])
def test_a_block_s_picture_has_its_layers(kind: str, pictures: dict[tuple[str, str], list[Figure]]) -> None:
    parts = attributes(pictures["block", kind][0], "data-part")
    layers = [part for part in parts if part in ("attention", "mlp")]
    assert layers == ["attention", "mlp"]
    norms = {"pre": 2, "post": 2, "sandwich": 4, "parallel": 1, "plain": 0}
    assert len(parts) - 2 == norms.get(kind, len(parts) - 2)


def test_positions_are_drawn_where_they_act(pictures: dict[tuple[str, str], list[Figure]]) -> None:
    for (group, kind), figures in pictures.items():
        if group != "position":
            continue
        config: Any = REGISTRY.get((group,), kind).examples()[0]
        acts = config.build_for_heads(Dims(HEADS * SIZE, 11, 64), HEADS, SIZE).acts_on
        names = {figure.name.removeprefix(f"{group}-{kind}-") for figure in figures}
        if not acts:  # of no positions: which tokens are read
            assert names == {"reads"}, kind
            continue
        expected = ({"code", "proximity"} if "embeddings" in acts else
                    {"wavelengths", "proximity"} if "queries_keys" in acts else names & {"bias", "spread"})
        assert names == expected and names, kind


def test_a_group_that_nothing_draws_has_no_pictures() -> None:
    assert part_pictures("a plugin's group", "adamw") == []
