"""What the configuration of RWKV-4 says, and what its file leaves out."""

from __future__ import annotations

import re
from typing import Any

import pytest

from weft.core.errors import ConfigError
from weft.core.model import ModelConfig, parse_model
from weft.families.family import families
from weft.families.keys import KEPT
from weft.families.template import fill
from weft.interop.huggingface.writing import fit

RWKV = families()["rwkv"]
RAW: dict[str, Any] = {"vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 2, "model_type": "rwkv"}


def model(**facts: Any) -> ModelConfig:
    given = {"vocab_size": 11, "context": 16, "d_model": 8, "n_layers": 2, "d_attention": 6, "d_ff": 5, "eps": 1e-3,
             "tied": False, **facts}
    return parse_model(fill(RWKV.template, given))


def test_what_is_left_out_is_as_the_class_has_it() -> None:
    config, facts = RWKV.read(RAW)
    assert (facts["d_attention"], facts["d_ff"], facts["eps"], config.context) == (8, 32, 1e-5, 1024)
    assert facts[KEPT]["rescale_every"] == 6


def test_both_names_of_the_context_are_read() -> None:
    assert RWKV.read({**RAW, "max_position_embeddings": 64})[0].context == 64
    assert RWKV.read({**RAW, "context_length": 32, "max_position_embeddings": 64})[0].context == 32


def test_the_last_norm_keeps_the_librarys_epsilon() -> None:
    """The class passes the configuration's to all norms but that one."""
    plain = RWKV.read({**RAW, "layer_norm_epsilon": 0.25})[0].dump()
    assert plain["norm"]["eps"] == 1e-5
    assert plain["embedding"]["norm"]["eps"] == plain["blocks"][0]["of"][0]["norm"]["eps"] == 0.25


def test_a_configuration_is_written_as_it_is_read() -> None:
    written = fit(model(), {}, first="rwkv")
    assert written.family.name == "rwkv" and RWKV.read(written.raw)[0] == model()
    assert written.raw["rescale_every"] == 0, "a model of ours is halved nowhere"
    assert fit(model(), {"rescale_every": 3}, first="rwkv").raw["rescale_every"] == 3


@pytest.mark.parametrize(("values", "message"), [
    ({"rescale_every": "6"}, "rescale_every: '6' is not a whole number."),
    ({"attention_hidden_size": 2.5}, "attention_hidden_size: 2.5 is not a whole number."),
    ({"num_attention_heads": 2}, "num_attention_heads: unknown key.")])
def test_what_cannot_be_read_is_said(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        RWKV.read({**RAW, **values})


def test_a_width_that_is_left_out_is_written_as_a_number() -> None:
    """``d_attention`` and ``d_ff`` of None are the numbers that follow from d_model."""
    written = fit(model(d_attention=None, d_ff=None), {}, first="rwkv").raw
    assert (written["attention_hidden_size"], written["intermediate_size"]) == (8, 32)
