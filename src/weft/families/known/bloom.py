"""BLOOM: ALiBi, a norm on the embeddings, queries, keys and values fused by head."""

from __future__ import annotations

from typing import Any

from weft.families.common import divided_heads
from weft.families.family import Family, Native
from weft.families.keys import Fixed, Ignored, KeyProblem, KeyRule, Raw, Read, Together, typed
from weft.families.known.gpt2 import LAYER_NORM
from weft.families.template import N_LAYERS, Fact, Facts, Layers
from weft.families.tensor_steps import ungroup
from weft.families.weights import Rule, both, rename

ATTENTION = {"kind": "attention", "n_heads": Fact("n_heads"), "d_head": Fact("d_head"), "bias": "all",
             "position": {"kind": "alibi"}, "scores": {"dropout": Fact("attention_dropout")}}
MLP = {"kind": "mlp", "d_ff": Fact("d_ff"), "activation": "gelu_tanh", "bias": True}
TEMPLATE = {
    "kind": "decoder", "vocab_size": Fact("vocab_size"), "context": Fact("context"), "d_model": Fact("d_model"),
    "embedding": {"norm": LAYER_NORM, "std": Fact("std")},
    "blocks": Layers({"kind": "pre", "norm": LAYER_NORM, "skip_normed": Fact("skip_normed"),
                      "dropout": Fact("dropout"), "layers": [ATTENTION, MLP]}),
    "norm": LAYER_NORM, "readout": {"kind": "linear", "tied": Fact("tied")}}

WIDTH, OLD_WIDTH = "hidden_size", "n_embed"


def read_width(raw: Raw, facts: Facts) -> Facts:
    """The width, whose old key takes precedence over the new one, and four times that for the feed-forward."""
    width = typed(OLD_WIDTH, raw.get(OLD_WIDTH), int)
    width = typed(WIDTH, raw.get(WIDTH, 64), int) if width is None else width
    if width is None or width < 1:
        raise KeyProblem(f"{WIDTH}: {width} is not a width.")
    return {"d_model": width, "d_ff": 4 * width}


def write_width(facts: Facts) -> dict[str, Any]:
    """The width."""
    if facts["d_ff"] != 4 * facts["d_model"]:
        raise KeyProblem(f"{WIDTH}: the feed-forward has {facts['d_ff']} features, but the class gives it four times "
                         f"the width {facts['d_model']}.")
    return {WIDTH: facts["d_model"]}


def read_exactness(raw: Raw, facts: Facts) -> Facts:
    """``slow_but_exact``: the same numbers in another order, save that `transformers` then leaves biases out where
    ``pretraining_tp`` is more than 1."""
    if raw.get("slow_but_exact") and (raw.get("pretraining_tp") or 1) > 1:
        raise KeyProblem(f"slow_but_exact: with pretraining_tp {raw['pretraining_tp']}, transformers computes without "
                         "the biases of the output maps. Set it to false.")
    return {}


KEYS: tuple[KeyRule, ...] = (
    Read("vocab_size", "vocab_size", default=250880), Together((WIDTH, OLD_WIDTH), read_width, write_width),
    Read("n_layer", N_LAYERS, default=2, alias=("num_hidden_layers",)),
    Read("n_head", "n_heads", default=8, alias=("num_attention_heads",)), divided_heads("n_head", WIDTH),
    Read("seq_length", "context", default=2048), Read("layer_norm_epsilon", "eps", float, 1e-5),
    Read("apply_residual_connection_post_layernorm", "skip_normed", bool, False),
    Read("hidden_dropout", "dropout", float, 0.0), Read("attention_dropout", "attention_dropout", float, 0.0),
    Read("initializer_range", "std", float, 0.02), Read("tie_word_embeddings", "tied", bool, True),
    Fixed("n_inner", (None,), why="The class gives the feed-forward four times the width."),
    Fixed("skip_bias_add_qkv", (False, None), default=False, why="Its queries, keys and values have biases."),
    Together(("slow_but_exact",), read_exactness, lambda facts: {"slow_but_exact": False}),
    Ignored(("attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion", "skip_bias_add"),
            "in which precision and order the same numbers are computed"),
    Ignored(("offset_alibi",), "of the code that trained it; softmax removes what is the same for all keys"),
    Ignored(("unk_token_id",), "an id of the tokenizer"))


def weights(facts: Facts) -> list[Rule]:
    """Return the rules of all tensors; in the file each head has its q, k and v together."""
    theirs, ours, size = "transformer.h.{layer}", "stack.layers.{layer}", facts["d_head"]
    pairs = {"self_attention.dense": "layers.0.output", "mlp.dense_h_to_4h": "layers.1.up",
             "mlp.dense_4h_to_h": "layers.1.down", "input_layernorm": "norms.0", "post_attention_layernorm": "norms.1"}
    return [rename("transformer.word_embeddings.weight", "embedding.tokens.weight"),
            *both("transformer.word_embeddings_layernorm", "embedding.norm"),
            *both(f"{theirs}.self_attention.query_key_value", f"{ours}.layers.0.qkv",
                  ungroup(facts["n_heads"], (size, size, size))),
            *(rule for a, b in pairs.items() for rule in both(f"{theirs}.{a}", f"{ours}.{b}")),
            *both("transformer.ln_f", "norm"), rename("lm_head.weight", "readout.weight")]


BLOOM = Family(
    name="bloom", template=TEMPLATE, source="Le Scao et al. 2022 (arXiv:2211.05100), section 3.2",
    native=Native(
        model_type="bloom", architecture="BloomForCausalLM", architectures=("BloomModel",), keys=KEYS, weights=weights,
        prefix="transformer.", tied=("lm_head.weight", "transformer.word_embeddings.weight")))
