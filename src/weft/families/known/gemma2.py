"""Gemma 2: Gemma's parts with norms around every layer, soft caps on scores and logits, and windows on every second
layer. Gemma 3, the models of text: the same blocks with norms of queries and keys, five layers with a window to one
without, and other rotary bases in each kind."""

from __future__ import annotations

from functools import partial
from typing import Any

from weft.families.common import ACTIVATIONS
from weft.families.family import Family, Native
from weft.families.keys import Codec, Fixed, Ignored, KeyProblem, KeyRule, Raw, Read, Together, typed
from weft.families.known.gemma import TANH, UNIT_OFFSET, embedding_scale, require_scale
from weft.families.known.llama import (
    ATTENTION,
    BIASED,
    GLU,
    LM_HEAD,
    ROPE,
    VALUES,
    attention_weights,
    decoder,
    glu_weights,
    outer_weights,
    shapes,
    undivided_width,
)
from weft.families.rope import Rotary
from weft.families.rope_by_type import RotaryByType
from weft.families.template import Fact, Facts, Layers
from weft.families.weights import Rule, rename
from weft.families.windows import windows_by_type

SCORES = {"scale": Fact("scale"), "dropout": Fact("attention_dropout")}
WINDOWED = ATTENTION | {"mask": Fact("masks", each=True), "scores": SCORES}
SCALAR = "query_pre_attn_scalar"


def sandwiched(attention: object) -> dict[str, object]:
    """Gemma's model with a norm before and after every layer."""
    glu = GLU | {"bias": False}
    return decoder(attention, glu) | {
        "embedding": {"scale": Fact("embedding_scale"), "round_scale": True, "std": Fact("std")}, "norm": UNIT_OFFSET,
        "readout": {"kind": "linear", "tied": Fact("tied"), "softcap": Fact("softcap")},
        "blocks": Layers({"kind": "sandwich", "norm": UNIT_OFFSET, "layers": [attention, glu]})}


def read_scale(raw: Raw, facts: Facts) -> Facts:
    """Scores are divided by the root of the key's number; None is Weft's default, the root of d_head."""
    scalar = typed(SCALAR, raw.get(SCALAR, 256), float)
    if scalar is None or scalar <= 0:
        raise KeyProblem(f"{SCALAR}: {scalar}, but scores are divided by its root.")
    return {"scale": None if scalar == facts["d_head"] else scalar ** -0.5}


def write_scale(facts: Facts) -> dict[str, Any]:
    """The number, which the class wants to be whole."""
    scale = facts["scale"]
    scalar = facts["d_head"] if scale is None else round(scale ** -2)
    if scale is not None and (scalar < 1 or abs(scalar ** -0.5 - scale) > 1e-12 * scale):
        raise KeyProblem(f"{SCALAR}: scores are multiplied by {scale}, which is not one over the root of a whole "
                         "number.")
    return {SCALAR: scalar}


ACTIVATION = Codec(ACTIVATIONS.read, lambda value: TANH if value == "gelu_tanh" else ACTIVATIONS.write(value))
KEYS: tuple[KeyRule, ...] = (
    *(rule for rule in VALUES if "hidden_act" not in rule.keys),
    Read("hidden_activation", "activation", str, TANH, codec=ACTIVATION),
    Ignored(("hidden_act",), "not used: the class of transformers reads hidden_activation", notify=True,
            usual=(None, TANH)),
    Ignored(("cache_implementation", "sliding_window_size"), "how transformers runs the model, not what it computes"),
    Together((), embedding_scale, require_scale), Together((SCALAR,), read_scale, write_scale),
    Read("tie_word_embeddings", "tied", bool, True),
    Read("attention_bias", "attention_bias", bool, False, codec=BIASED),
    Fixed("use_bidirectional_attention", (None, False), why="A language model's tokens attend to no later ones."))
"""What Gemma 2 and 3 share besides sizes, windows and rotation."""


def weights(facts: Facts, *, normed: bool = False) -> list[Rule]:
    """Return the rules of Llama's tensors, and of the norms before and after the feed-forward."""
    theirs, ours = "model.layers.{layer}", "stack.layers.{layer}.norms"
    return [*outer_weights(), *attention_weights(facts, normed=normed), *glu_weights(),
            rename(f"{theirs}.pre_feedforward_layernorm.weight", f"{ours}.2.weight"),
            rename(f"{theirs}.post_feedforward_layernorm.weight", f"{ours}.3.weight")]


GEMMA2 = Family(
    name="gemma2", template=sandwiched(WINDOWED | {"scores": SCORES | {"softcap": Fact("score_softcap")}}),
    source="Gemma Team 2024 (arXiv:2408.00118), section 2",
    native=Native(
        model_type="gemma2", architecture="Gemma2ForCausalLM", architectures=("Gemma2Model",),
        keys=(*shapes(context=8192, d_ff=9216, n_kv_heads=4, vocab_size=256000, d_model=2304, d_head=256, n_layers=26,
                      n_heads=8), *KEYS, Rotary(), windows_by_type(4096, 2),
              Read("final_logit_softcapping", "softcap", float, 30.0, null=True),
              Read("attn_logit_softcapping", "score_softcap", float, 50.0, null=True)),
        weights=weights, prefix="model.", tied=LM_HEAD, limits=lambda facts: undivided_width(facts, "Gemma2Config")))


TURNED = ROPE | {"base": Fact("rope_bases", each=True), "scaling": Fact("rope_scalings", each=True)}

GEMMA3 = Family(
    name="gemma3_text", template=sandwiched(WINDOWED | {"position": TURNED, "qk_norm": UNIT_OFFSET}),
    source="Gemma Team 2025 (arXiv:2503.19786), section 2",
    native=Native(
        model_type="gemma3_text", architecture="Gemma3ForCausalLM", architectures=("Gemma3TextModel",),
        keys=(*shapes(context=131072, d_ff=9216, n_kv_heads=4, vocab_size=262208, d_model=2304, d_head=256,
                      n_layers=26, n_heads=8), *KEYS,
              Read("final_logit_softcapping", "softcap", float, None, null=True),
              Fixed("attn_logit_softcapping", (None,), why="Its class has the key and caps no scores."),
              windows_by_type(4096, 6, "sliding_window_pattern"), RotaryByType(1e6, 1e4, "rope_local_base_freq"),
              Ignored(("_sliding_window_pattern",), "a copy of sliding_window_pattern; layer_types has replaced both")),
        weights=partial(weights, normed=True), prefix="model.", tied=LM_HEAD,
        limits=lambda facts: undivided_width(facts, "Gemma3TextConfig")))
