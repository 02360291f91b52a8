"""GPT (the first): GPT-2's format with norms after the layers and none after the last block."""

from __future__ import annotations

from typing import Any

from weft.families.family import Family, Native
from weft.families.keys import Fixed, Ignored, KeyProblem, KeyRule, Raw, Read, Together, words
from weft.families.known.gpt2 import LAYER_NORM, MLP, RATES, layer_weights, sizes
from weft.families.template import Fact, Facts, Layers
from weft.families.weights import Rule, UnusedTensors, rename

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
    *sizes(40478, 512),
    Together((), read_feedforward, require_feedforward), Read("afn", "activation", str, "gelu", codec=ACTIVATIONS),
    *RATES, Read("tie_word_embeddings", "tied", bool, True),
    Fixed("n_special", (0, None), default=0, why="Special tokens have ids of the vocabulary."),
    Ignored(("n_ctx",), "an old copy of n_positions"))


def weights(facts: Facts) -> list[Rule]:
    """Return the rules of all tensors."""
    return [rename("transformer.tokens_embed.weight", "embedding.tokens.weight"),
            rename("transformer.positions_embed.weight", "embedding.position.table"), *layer_weights(),
            rename("lm_head.weight", "readout.weight")]


OPENAI_GPT = Family(
    name="openai-gpt", template=TEMPLATE, source="Radford et al. 2018, section 4.1",
    native=Native(
        model_type="openai-gpt", architecture="OpenAIGPTLMHeadModel",
        architectures=("OpenAIGPTModel", "OpenAIGPTDoubleHeadsModel"), keys=KEYS, weights=weights,
        prefix="transformer.", tied=("lm_head.weight", "transformer.tokens_embed.weight"),
        junk=(UnusedTensors(r"multiple_choice_head\..*", "another head"),)))
