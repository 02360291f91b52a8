"""Twins are small whatever the sizes, keep what can go wrong, and reach as far as they say."""

from __future__ import annotations

from typing import Any

import pytest

from weft import api
from weft.api.configs import own_presets
from weft.core.config import parse_part
from weft.core.layer import borders_of
from weft.core.model import ModelConfig, parameter_count
from weft.laws.check import longest_border
from weft.laws.sizes import LEAST_TURNED
from weft.laws.twin import MOST_PARAMETERS, narrowed, shrink, widened
from weft.mixers.attention import Attention
from weft.positions.rope import Rope

SMALL_ENOUGH = 30_000
"""Parameters with which every law takes about a second."""


def decoder(d_model: int, n_heads: int, mixer: dict[str, Any] | None = None, **fields: Any) -> ModelConfig:
    attention = {"kind": "attention", "n_heads": n_heads, "position": "rope", **(mixer or {})}
    block = {"kind": "pre", "layers": [attention, {"kind": "mlp", "d_ff": 4 * d_model}]}
    found = parse_part(("model",), {"kind": "decoder", "vocab_size": 5000, "d_model": d_model, "context": 256,
                                    "blocks": [{"repeat": 12, "of": [block]}], **fields})
    assert isinstance(found, ModelConfig)
    return found


def attention(config: ModelConfig) -> Attention:
    return next(part for part in config.build().modules() if isinstance(part, Attention))


SIZES = [(128, 4), (256, 8), (512, 8), (1024, 16), (2048, 32), (4544, 71), (768, 12), (192, 3), (48, 6), (1600, 25)]


@pytest.mark.parametrize(("d_model", "n_heads"), SIZES)
@pytest.mark.parametrize("kv_heads", [None, 1])
def test_twins_of_all_sizes_are_small_and_turn_two_pairs_of_several_heads(d_model: int, n_heads: int,
                                                                        kv_heads: int | None) -> None:
    twin = shrink(decoder(d_model, n_heads, {"n_kv_heads": kv_heads})).config
    model = twin.build()
    assert parameter_count(model) < SMALL_ENOUGH
    part = attention(twin)
    assert 2 <= part.sizes.heads <= 4 and part.sizes.d_head >= LEAST_TURNED
    assert part.sizes.kv_heads == (part.sizes.heads if kv_heads is None else 1)
    assert (part.sizes.heads & (part.sizes.heads - 1) == 0) == (n_heads & (n_heads - 1) == 0), "slopes differ in kind"


def test_grouped_queries_stay_grouped() -> None:
    sizes = attention(shrink(decoder(4096, 32, {"n_kv_heads": 8})).config).sizes
    assert (sizes.heads, sizes.kv_heads) == (4, 2)


@pytest.mark.parametrize(("rot", "turned"), [(None, 8), (64, 8), (16, 4), (32, 4), (48, 6), (15, 4)])
def test_partial_rotation_stays_partial(rot: int | None, turned: int) -> None:
    twin = shrink(decoder(256, 4, {"position": {"kind": "rope", "rot": rot}})).config
    assert twin.dump()["blocks"][0]["of"][0]["layers"][0]["position"]["rot"] == (None if rot is None else turned)
    scheme = attention(twin).position
    assert isinstance(scheme, Rope) and twin.build() is not None


def test_a_factor_for_each_pair_stays_one_for_each_pair() -> None:
    factors = [1 + index / 10 for index in range(48)]
    scaling = {"kind": "longrope", "short_factor": factors, "long_factor": factors, "original_length": 4096,
               "extended_length": 131072}
    twin = shrink(decoder(384, 4, {"position": {"kind": "rope", "scaling": scaling}})).config
    found = twin.dump()["blocks"][0]["of"][0]["layers"][0]["position"]["scaling"]
    assert found["short_factor"] == [1.0, 2.2, 3.4, pytest.approx(4.6)] and found["original_length"] == 6


@pytest.mark.parametrize(("mask", "small"), [
    ("causal & window(4096)", "causal & window(4)"), ("causal & window(3)", "causal & window(3)"),
    ("dilated(512, 8)", "dilated(4, 2)"), ("per_head(window(128), strided(64))", "per_head(window(4), strided(4))"),
    ("window(4) | fixed(128, 8, 1)", "window(4) | fixed(4, 2, 1)"),
    ("causal & (window(1000) | global(0, 3))", "causal & (window(4) | global(0, 3))")])
def test_masks_of_a_twin_end_within_its_rows(mask: str, small: str) -> None:
    twin = shrink(decoder(64, 4, {"mask": mask})).config
    assert repr(attention(twin).mask) == small


@pytest.mark.parametrize(("kernel", "dilation"), [(6, 1), (6, 8), (2, 512), (1, 1), (64, 1)])
def test_buffers_of_convolutions_wrap_within_a_twins_rows(kernel: int, dilation: int) -> None:
    blocks = [{"kind": "pre", "layers": [{"kind": "gated_convolution", "d_conv": kernel, "dilation": dilation}]}]
    twin = shrink(decoder(64, 4, blocks=blocks)).config
    mixer = twin.dump()["blocks"][0]["layers"][0]
    assert (mixer["d_conv"] - 1) * mixer["dilation"] < 7
    assert (mixer["dilation"] > 1) == (dilation > 1) and (mixer["d_conv"] > 1) == (kernel > 1)


def test_a_narrow_twin_reaches_as_far_as_the_configuration() -> None:
    config = decoder(1024, 16, {"mask": "causal & window(1000)"}, position={"kind": "learned", "max_length": 2000})
    assert longest_border(config) == 1000
    narrow = narrowed(config, 1500).config.build()
    assert borders_of(narrow) == {1000} and parameter_count(narrow) < 2 * SMALL_ENOUGH
    assert borders_of(narrowed(config, 300).config.build()) <= set(range(100, 201))
    assert longest_border(decoder(64, 4, context=5000)) == 5000


def test_a_wide_twin_is_as_wide_as_the_configuration_where_that_is_affordable() -> None:
    twin = widened(decoder(512, 8))
    assert twin is not None and twin.config.dump()["d_model"] == 512
    assert twin.changes.startswith("d_model 512 as configured, repeated blocks once")
    large = widened(decoder(8192, 64))
    assert large is not None
    assert large.config.dump()["d_model"] == 2048 and parameter_count(large.config.build()) <= MOST_PARAMETERS


def test_blocks_written_out_are_kept_twice_and_kinds_all() -> None:
    block = {"kind": "pre", "layers": ["gru"]}
    config = decoder(64, 4, blocks=[block] * 5 + [{"kind": "pre", "layers": ["lstm"]}] + [block] * 3)
    kinds = [item["layers"][0]["kind"] for item in shrink(config).config.dump()["blocks"]]
    assert kinds == ["gru", "gru", "lstm", "gru", "gru"]


@pytest.mark.parametrize("preset", own_presets())
def test_presets_have_small_twins(preset: str) -> None:
    config = api.read_model(preset)
    twin = shrink(config)
    assert parameter_count(twin.config.build()) < SMALL_ENOUGH
    assert twin.config.kind == config.kind and "vocabulary of 64" in twin.changes
