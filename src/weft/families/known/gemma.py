"""Gemma: Llama's blocks with 1 + w for the norms' weights, scaled embeddings, GeGLU and heads of any size."""

from __future__ import annotations

import math
from typing import Any

from weft.families.common import ACTIVATIONS
from weft.families.family import Family, Native
from weft.families.keys import Codec, Fixed, KeyProblem, KeyRule, Raw, Read, Together, typed
from weft.families.known.llama import ATTENTION, BIASED, GLU, LM_HEAD, VALUES, decoder, shapes, weights
from weft.families.rope import Rotary
from weft.families.template import Fact, Facts, Layers

UNIT_OFFSET = {"kind": "rmsnorm", "eps": Fact("eps"), "unit_offset": True}
BASE = decoder(ATTENTION, GLU | {"bias": False})
TEMPLATE = BASE | {
    "embedding": {"scale": Fact("embedding_scale"), "round_scale": True, "std": Fact("std")}, "norm": UNIT_OFFSET,
    "blocks": Layers({"kind": "pre", "norm": UNIT_OFFSET, "layers": [ATTENTION, GLU | {"bias": False}]})}

OWN, OLD, TANH = "hidden_act", "hidden_activation", "gelu_pytorch_tanh"
WORDS = Codec(lambda value: "gelu_tanh" if value == "gelu" else ACTIVATIONS.read(value),
              lambda value: {"gelu_tanh": TANH, "gelu": "gelu_python"}.get(value) or ACTIVATIONS.write(value))
"""In this class "gelu" is the tanh form; the exact one has another name."""


def read_activation(raw: Raw, facts: Facts) -> Facts:
    """``hidden_act``, and ``hidden_activation``, which took precedence in some versions of `transformers`."""
    found = WORDS.read(typed(OWN, raw.get(OWN), str) or TANH)
    other = typed(OLD, raw.get(OLD), str)
    if other is not None and WORDS.read(other) != found:
        raise KeyProblem(f"{OLD}: {other!r}, but {OWN} is {raw.get(OWN, TANH)!r}; versions of transformers disagree "
                         "on which counts.")
    return {"activation": found}


def write_activation(facts: Facts) -> dict[str, Any]:
    """Both keys, for all versions."""
    return dict.fromkeys((OWN, OLD), WORDS.write(facts["activation"]))


def embedding_scale(raw: Raw, facts: Facts) -> Facts:
    """sqrt(d_model): the format has no key for it."""
    return {"embedding_scale": math.sqrt(facts["d_model"])}


def require_scale(facts: Facts) -> dict[str, Any]:
    """Nothing to write, if it is sqrt(d_model)."""
    if facts["embedding_scale"] not in ("sqrt_width", math.sqrt(facts["d_model"])):
        raise KeyProblem(f"embeddings are scaled by {facts['embedding_scale']}; this family scales them by "
                         "sqrt(hidden_size) and has no key for it.")
    return {}


KEYS: tuple[KeyRule, ...] = (
    *shapes(context=8192, d_ff=24576, n_kv_heads=16, vocab_size=256000, d_model=3072, d_head=256, n_layers=28,
            n_heads=16),
    *(rule for rule in VALUES if OWN not in rule.keys), Together((OWN, OLD), read_activation, write_activation),
    Together((), embedding_scale, require_scale), Rotary(), Read("tie_word_embeddings", "tied", bool, True),
    Read("attention_bias", "attention_bias", bool, False, codec=BIASED),
    Fixed("use_bidirectional_attention", (None, False), why="A language model's tokens attend to no later ones."))

GEMMA = Family(
    name="gemma", template=TEMPLATE, source="Gemma Team 2024 (arXiv:2403.08295), section 2",
    native=Native(model_type="gemma", architecture="GemmaForCausalLM", architectures=("GemmaModel",), keys=KEYS,
                  weights=weights, prefix="model.", tied=LM_HEAD))
