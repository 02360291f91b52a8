"""StarCoder 2: layer norms, a two-layer perceptron and biases in blocks that are otherwise Mistral's."""

from __future__ import annotations

from typing import Any

from weft.families.common import ACTIVATIONS
from weft.families.family import Family, Native
from weft.families.keys import Fixed, Ignored, KeyProblem, KeyRule, Raw, Read, Together, typed
from weft.families.known.gpt2 import LAYER_NORM, MLP
from weft.families.known.llama import ATTENTION, LM_HEAD, attention_weights, shapes
from weft.families.rope import Rotary
from weft.families.template import Fact, Facts, Layers
from weft.families.weights import Rule, both, rename
from weft.families.windows import one_window

WINDOWED = ATTENTION | {"mask": Fact("mask")}
BLOCK = {"kind": "pre", "norm": LAYER_NORM, "dropout": Fact("dropout"),
         "layers": [WINDOWED, MLP | {"bias": Fact("mlp_bias")}]}
TEMPLATE = {
    "kind": "decoder", "vocab_size": Fact("vocab_size"), "context": Fact("context"), "d_model": Fact("d_model"),
    "embedding": {"dropout": Fact("embedding_dropout"), "std": Fact("std")}, "blocks": Layers(BLOCK),
    "norm": LAYER_NORM, "readout": {"kind": "linear", "tied": Fact("tied")}}


def read_biases(raw: Raw, facts: Facts) -> Facts:
    """One switch for attention and the feed-forward."""
    used = typed("use_bias", raw.get("use_bias", True), bool)
    return {"attention_bias": "all" if used else "none", "mlp_bias": used}


def write_biases(facts: Facts) -> dict[str, Any]:
    """The switch, if both agree."""
    if facts["attention_bias"] != ("all" if facts["mlp_bias"] else "none"):
        raise KeyProblem(f"use_bias: attention has biases on {facts['attention_bias']!r} and the feed-forward "
                         f"{'some' if facts['mlp_bias'] else 'none'}; the file has one switch for all.")
    return {"use_bias": facts["mlp_bias"]}


KEYS: tuple[KeyRule, ...] = (
    *shapes(context=4096, d_ff=12288, n_kv_heads=2, vocab_size=49152, d_model=3072, n_layers=30, n_heads=24),
    Read("hidden_act", "activation", str, "gelu_pytorch_tanh", codec=ACTIVATIONS),
    Read("initializer_range", "std", float, 0.018042), Read("norm_epsilon", "eps", float, 1e-5),
    Rotary(), one_window(None), Read("attention_dropout", "attention_dropout", float, 0.0),
    Read("residual_dropout", "dropout", float, 0.0), Read("embedding_dropout", "embedding_dropout", float, 0.0),
    Together(("use_bias",), read_biases, write_biases), Read("tie_word_embeddings", "tied", bool, True),
    Fixed("mlp_type", ("default", None), default="default", why="Its feed-forward is a two-layer perceptron."),
    Fixed("norm_type", ("layer_norm", None), default="layer_norm", why="Its norms are layer norms."),
    Ignored(("layer_norm_epsilon", "scale_attn_weights"), "left over from GPTBigCode's format; no version reads them"),
    Ignored(("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"), "in which precision the same numbers are "
            "computed"))


def weights(facts: Facts) -> list[Rule]:
    """Return the rules of all tensors; queries, keys and values are apart in the file."""
    theirs, ours = "model.layers.{layer}", "stack.layers.{layer}"
    pairs = {"mlp.c_fc": "layers.1.up", "mlp.c_proj": "layers.1.down", "input_layernorm": "norms.0",
             "post_attention_layernorm": "norms.1"}
    return [rename("model.embed_tokens.weight", "embedding.tokens.weight"), *attention_weights(facts),
            *(rule for a, b in pairs.items() for rule in both(f"{theirs}.{a}", f"{ours}.{b}")),
            *both("model.norm", "norm"), rename("lm_head.weight", "readout.weight")]


STARCODER2 = Family(
    name="starcoder2", template=TEMPLATE, source="Lozhkov et al. 2024 (arXiv:2402.19173), section 6",
    native=Native(model_type="starcoder2", architecture="Starcoder2ForCausalLM", architectures=("Starcoder2Model",),
                  keys=KEYS, weights=weights, prefix="model.", tied=LM_HEAD))
