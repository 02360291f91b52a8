"""Granite 3: Llama with factors on embeddings, scores, every layer's output and the logits."""

from __future__ import annotations

from typing import Any

from weft.families.family import Family, Native
from weft.families.keys import Codec, KeyProblem, KeyRule, Raw, Read, Together, typed
from weft.families.known.llama import ATTENTION, BIASED, GLU, LM_HEAD, RMS_NORM, TIED, VALUES, decoder, shapes, weights
from weft.families.rope import Rotary
from weft.families.template import Fact, Facts, Layers

SCALED = ATTENTION | {"scores": {"scale": Fact("scale"), "dropout": Fact("attention_dropout")}}
TEMPLATE = decoder(SCALED, GLU) | {
    "embedding": {"scale": Fact("embedding_scale"), "std": Fact("std")},
    "readout": {"kind": "linear", "tied": Fact("tied"), "scale": Fact("logit_scale")},
    "blocks": Layers({"kind": "pre", "norm": RMS_NORM, "branch_scale": Fact("branch_scale"), "layers": [SCALED, GLU]})}
SCORES, LOGITS = "attention_multiplier", "logits_scaling"


def read_scale(raw: Raw, facts: Facts) -> Facts:
    """A factor of the scores, in place of 1/sqrt(d_head); None is that."""
    factor = typed(SCORES, raw.get(SCORES, 1.0), float)
    return {"scale": None if factor == facts["d_head"] ** -0.5 else factor}


def write_scale(facts: Facts) -> dict[str, Any]:
    """The factor."""
    return {SCORES: facts["d_head"] ** -0.5 if facts["scale"] is None else facts["scale"]}


def read_divisor(value: float) -> float:
    """The factor of logits that are divided by ``value``."""
    if value <= 0:
        raise KeyProblem(f"{LOGITS}: {value}, but logits are divided by it.")
    return 1.0 / value


def write_divisor(scale: float) -> float:
    """The inverse, in few digits where they say the same."""
    short = float(f"{1.0 / scale:.12g}")
    return short if 1.0 / short == scale else 1.0 / scale


def embedding_factor(value: float | str | None) -> float:
    """The number that Weft's scale is."""
    if isinstance(value, str):
        raise KeyProblem(f"embedding_multiplier: the file has numbers, not {value!r}.")
    return 1.0 if value is None else value


KEYS: tuple[KeyRule, ...] = (
    *shapes(context=2048, d_ff=11008, n_kv_heads=None), *VALUES, TIED, Rotary(),
    Read("attention_bias", "attention_bias", bool, False, codec=BIASED), Read("mlp_bias", "mlp_bias", bool, False),
    Read("embedding_multiplier", "embedding_scale", float, 1.0,
         codec=Codec(lambda value: None if value == 1.0 else value, embedding_factor)),
    Read("residual_multiplier", "branch_scale", float, 1.0), Together((SCORES,), read_scale, write_scale),
    Read(LOGITS, "logit_scale", float, 1.0, codec=Codec(read_divisor, write_divisor)))


GRANITE = Family(
    name="granite", template=TEMPLATE, source="Granite Team 2024 (Granite 3.0 language models), section 3",
    native=Native(model_type="granite", architecture="GraniteForCausalLM", architectures=("GraniteModel",), keys=KEYS,
                  weights=weights, prefix="model.", tied=LM_HEAD, widens=True))
