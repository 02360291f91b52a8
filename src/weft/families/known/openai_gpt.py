"""GPT (the first): GPT-2's format with norms after the layers and none after the last block."""

from __future__ import annotations

from typing import Any

from weft.families.common import divided_heads
from weft.families.family import Family, Native
from weft.families.keys import Fixed, Ignored, KeyProblem, KeyRule, Raw, Read, Together, words
from weft.families.known.gpt2 import LAYER_NORM, MLP
from weft.families.template import N_LAYERS, Fact, Facts, Layers
from weft.families.tensor_steps import Transpose
from weft.families.weights import Rule, UnusedTensors, both, rename

ATTENTION = {"kind": "attention", "n_heads": Fact("n_heads"), "d_head": Fact("d_head"), "bias": "all",
             "scores": {"dropout": Fact("attention_dropout")}}
TEMPLATE = {
    "kind": "decoder", "vocab_size": Fact("vocab_size"), "context": Fact("context"), "d_model": Fact("d_model"),
    "embedding": {"dropout": Fact("embedding_dropout"), "std": Fact("std")},
    "position": {"kind": "learned", "max_length": Fact("context")},
    "blocks": Layers({"kind": "post", "norm": LAYER_NORM, "dropout": Fact("dropout"), "layers": [ATTENTION, MLP]}),
    "readout": {"kind": "linear", "tied": Fact("tied")}}

ACTIVATIONS = words({"gelu": "gelu_tanh", "relu": "relu", "silu": "silu"}, also={"swish": "silu"})
"""The names of activations in this class, whose "gelu" is the tanh form."""


def read_feedforward(raw: Raw, facts: Facts) -> Facts:
    """Four times the width: the format has no key for it."""
    return {"d_ff": 4 * facts["d_model"]}


def require_feedforward(facts: Facts) -> dict[str, Any]:
    """Nothing to write, if it is four times the width."""
    if facts["d_ff"] != 4 * facts["d_model"]:
        raise KeyProblem(f"the feed-forward has {facts['d_ff']} features, but the class gives it four times n_embd "
                         f"{facts['d_model']}.")
    return {}


KEYS: tuple[KeyRule, ...] = (
    Read("vocab_size", "vocab_size", default=40478),
    Read("n_positions", "context", default=512, alias=("max_position_embeddings",)),
    Read("n_embd", "d_model", default=768, alias=("hidden_size",)),
    Read("n_layer", N_LAYERS, default=12, alias=("num_hidden_layers",)),
    Read("n_head", "n_heads", default=12, alias=("num_attention_heads",)), divided_heads("n_head", "n_embd"),
    Together((), read_feedforward, require_feedforward), Read("afn", "activation", str, "gelu", codec=ACTIVATIONS),
    Read("resid_pdrop", "dropout", float, 0.1), Read("embd_pdrop", "embedding_dropout", float, 0.1),
    Read("attn_pdrop", "attention_dropout", float, 0.1), Read("layer_norm_epsilon", "eps", float, 1e-5),
    Read("initializer_range", "std", float, 0.02), Read("tie_word_embeddings", "tied", bool, True),
    Fixed("n_special", (0, None), default=0, why="Special tokens have ids of the vocabulary."),
    Ignored(("n_ctx",), "an old copy of n_positions"))


def weights(facts: Facts) -> list[Rule]:
    """Return the rules of all tensors; the matrices of layers are transposed, embeddings are not."""
    theirs, ours = "transformer.h.{layer}", "stack.layers.{layer}"
    pairs = {"attn.c_attn": "layers.0.qkv", "attn.c_proj": "layers.0.output", "mlp.c_fc": "layers.1.up",
             "mlp.c_proj": "layers.1.down"}
    matrices = [rename(f"{theirs}.{a}.weight", f"{ours}.{b}.weight", Transpose()) for a, b in pairs.items()]
    biases = [rename(f"{theirs}.{a}.bias", f"{ours}.{b}.bias") for a, b in pairs.items()]
    return [rename("transformer.tokens_embed.weight", "embedding.tokens.weight"),
            rename("transformer.positions_embed.weight", "embedding.position.table"), *matrices, *biases,
            *both(f"{theirs}.ln_1", f"{ours}.norms.0"), *both(f"{theirs}.ln_2", f"{ours}.norms.1"),
            rename("lm_head.weight", "readout.weight")]


OPENAI_GPT = Family(
    name="openai-gpt", template=TEMPLATE, source="Radford et al. 2018, section 4.1",
    native=Native(
        model_type="openai-gpt", architecture="OpenAIGPTLMHeadModel",
        architectures=("OpenAIGPTModel", "OpenAIGPTDoubleHeadsModel"), keys=KEYS, weights=weights,
        prefix="transformer.", tied=("lm_head.weight", "transformer.tokens_embed.weight"),
        junk=(UnusedTensors(r"multiple_choice_head\..*", "another head"),)))
