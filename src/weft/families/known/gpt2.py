"""GPT-2: learned positions, biases everywhere, weights stored [in, out]."""

from __future__ import annotations

from typing import Any

from weft.families.common import ACTIVATIONS, divided_heads
from weft.families.family import Family, Native
from weft.families.keys import Ignored, KeyProblem, KeyRule, Raw, Read, Together, typed
from weft.families.template import N_LAYERS, Fact, Facts, Layers
from weft.families.tensor_steps import TRANSPOSE
from weft.families.weights import Rule, UnusedTensors, both, rename

LAYER_NORM = {"kind": "layernorm", "eps": Fact("eps")}
ATTENTION = {"kind": "attention", "n_heads": Fact("n_heads"), "d_head": Fact("d_head"), "bias": "all",
             "scores": {"scale": Fact("scales", each=True), "dropout": Fact("attention_dropout")}}
MLP = {"kind": "mlp", "d_ff": Fact("d_ff"), "activation": Fact("activation"), "bias": True}
TEMPLATE = {
    "kind": "decoder", "vocab_size": Fact("vocab_size"), "context": Fact("context"), "d_model": Fact("d_model"),
    "embedding": {"dropout": Fact("embedding_dropout"), "std": Fact("std")},
    "position": {"kind": "learned", "max_length": Fact("context")},
    "blocks": Layers({"kind": "pre", "norm": LAYER_NORM, "dropout": Fact("dropout"), "layers": [ATTENTION, MLP]}),
    "norm": LAYER_NORM, "readout": {"kind": "linear", "tied": Fact("tied")}}

SCALED, BY_LAYER = "scale_attn_weights", "scale_attn_by_inverse_layer_idx"


def read_scales(raw: Raw, facts: Facts) -> Facts:
    """1/sqrt(E) or 1, divided by the layer's number if the file requests it; None is Weft's default, 1/sqrt(E)."""
    scaled, by_layer = typed(SCALED, raw.get(SCALED, True), bool), typed(BY_LAYER, raw.get(BY_LAYER, False), bool)
    return {"scales": _scales(facts, scaled, by_layer)}


def _scales(facts: Facts, scaled: bool, by_layer: bool) -> list[float | None]:
    own = facts["d_head"] ** -0.5
    divisors = [index + 1 if by_layer else 1 for index in range(facts[N_LAYERS])]
    scales = [(own if scaled else 1.0) / each for each in divisors]
    return [None if each == own else each for each in scales]


def write_scales(facts: Facts) -> dict[str, Any]:
    """The two switches that determine the scales."""
    for scaled in (True, False):
        for by_layer in (False, True):
            if facts["scales"] == _scales(facts, scaled, by_layer):
                return {SCALED: scaled, BY_LAYER: by_layer}
    raise KeyProblem(f"scores are scaled by {facts['scales']}; the format has 1/sqrt(d_head) and 1, each divided by "
                     "the layer's number or not.")


def sizes(vocab_size: int, context: int) -> tuple[KeyRule, ...]:
    """The keys of sizes that GPT's relatives share, with the defaults of `transformers`."""
    return (Read("vocab_size", "vocab_size", default=vocab_size),
            Read("n_positions", "context", default=context, alias=("max_position_embeddings",)),
            Read("n_embd", "d_model", default=768, alias=("hidden_size",)),
            Read("n_layer", N_LAYERS, default=12, alias=("num_hidden_layers",)),
            Read("n_head", "n_heads", default=12, alias=("num_attention_heads",)), divided_heads("n_head", "n_embd"))


RATES: tuple[KeyRule, ...] = (
    Read("resid_pdrop", "dropout", float, 0.1), Read("embd_pdrop", "embedding_dropout", float, 0.1),
    Read("attn_pdrop", "attention_dropout", float, 0.1), Read("layer_norm_epsilon", "eps", float, 1e-5),
    Read("initializer_range", "std", float, 0.02))
"""Further keys that they share."""
KEYS: tuple[KeyRule, ...] = (
    *sizes(50257, 1024),
    Read("n_inner", "d_ff", derive=lambda facts: 4 * facts["d_model"]),
    Read("activation_function", "activation", str, "gelu_new", codec=ACTIVATIONS), *RATES,
    Together((SCALED, BY_LAYER), read_scales, write_scales), Read("tie_word_embeddings", "tied", bool, True),
    Ignored(("reorder_and_upcast_attn",), "in which precision and order the same numbers are computed"),
    Ignored(("n_ctx",), "an old copy of n_positions"))


def layer_weights() -> list[Rule]:
    """Return the rules of the layers' tensors, whose matrices are transposed."""
    theirs, ours = "transformer.h.{layer}", "stack.layers.{layer}"
    pairs = {"attn.c_attn": "layers.0.qkv", "attn.c_proj": "layers.0.output", "mlp.c_fc": "layers.1.up",
             "mlp.c_proj": "layers.1.down"}
    matrices = [rename(f"{theirs}.{a}.weight", f"{ours}.{b}.weight", TRANSPOSE) for a, b in pairs.items()]
    biases = [rename(f"{theirs}.{a}.bias", f"{ours}.{b}.bias") for a, b in pairs.items()]
    return [*matrices, *biases, *both(f"{theirs}.ln_1", f"{ours}.norms.0"), *both(f"{theirs}.ln_2", f"{ours}.norms.1")]


def weights(facts: Facts) -> list[Rule]:
    """Return the rules of all tensors."""
    return [rename("transformer.wte.weight", "embedding.tokens.weight"),
            rename("transformer.wpe.weight", "embedding.position.table"), *layer_weights(),
            *both("transformer.ln_f", "norm"), rename("lm_head.weight", "readout.weight")]


GPT2 = Family(
    name="gpt2", template=TEMPLATE, source="Radford et al. 2019, section 2.3",
    native=Native(
        model_type="gpt2", architecture="GPT2LMHeadModel", architectures=("GPT2Model", "GPT2DoubleHeadsModel"),
        keys=KEYS, weights=weights, prefix="transformer.", tied=("lm_head.weight", "transformer.wte.weight"),
        junk=(UnusedTensors(r"multiple_choice_head\..*", "another head"),)))
