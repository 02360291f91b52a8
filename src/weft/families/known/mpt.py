"""MPT: ALiBi by its own rule of slopes, no biases, queries, keys and values in one matrix, perhaps clipped.

The class of `transformers` computes with fixed choices where the format has keys for others, and Weft gives the numbers
of that class. Keys whose other values would come with other tensors are ignored, since a file with such tensors is
refused; of the rest, such as ``alibi_bias_max``, in which published files differ, there is a note.
"""

from __future__ import annotations

from typing import Any

from weft.families.common import GENERATION, ORIGIN, OTHER_HEADS, RUNNING, divided_heads
from weft.families.configurations import nested
from weft.families.family import Family, Native
from weft.families.keys import Codec, Fixed, Ignored, KeyProblem, KeyRule, Raw, Read, Together
from weft.families.template import N_LAYERS, Fact, Facts, Layers
from weft.families.weights import Rule, rename

NORM = {"kind": "layernorm", "eps": Fact("eps"), "bias": False}
ATTENTION = {"kind": "attention", "n_heads": Fact("n_heads"), "d_head": Fact("d_head"), "clip_qkv": Fact("clip"),
             "position": {"kind": "alibi", "slopes": "mpt"},
             "scores": {"scale": Fact("scale"), "dropout": Fact("attention_dropout")}}
MLP = {"kind": "mlp", "d_ff": Fact("d_ff"), "activation": "gelu", "bias": False}
TEMPLATE = {
    "kind": "decoder", "vocab_size": Fact("vocab_size"), "context": Fact("context"), "d_model": Fact("d_model"),
    "embedding": {"dropout": Fact("embedding_dropout"), "std": Fact("std")},
    "blocks": Layers({"kind": "pre", "norm": NORM, "dropout": Fact("dropout"), "layers": [ATTENTION, MLP]}),
    "norm": NORM, "readout": {"kind": "linear", "tied": Fact("tied")}}


def read_feedforward(raw: Raw, facts: Facts) -> Facts:
    """Four times the width; the class ignores ``expansion_ratio``."""
    return {"d_ff": 4 * facts["d_model"]}


def write_feedforward(facts: Facts) -> dict[str, Any]:
    """The ratio, which must be 4."""
    if facts["d_ff"] != 4 * facts["d_model"]:
        raise KeyProblem(f"expansion_ratio: the feed-forward has {facts['d_ff']} features, but the class gives it four "
                         f"times d_model {facts['d_model']}.")
    return {"expansion_ratio": 4}


WHOLE_DROPOUT = Read("attn_pdrop", "attention_dropout", float, 0.0, codec=Codec(write=int))
"""The class accepts only whole numbers, so a probability, which only training needs, is written as 0."""

UNUSED = "not used: the class of transformers"
BY_TENSORS = "the class has no others; files with such tensors are refused"
ATTENTION_KEYS: tuple[KeyRule, ...] = (
    Read("clip_qkv", "clip", float, None, codec=Codec(lambda clip: clip or None)),
    Read("softmax_scale", "scale", float, None), WHOLE_DROPOUT,
    Ignored(("alibi",), f"{UNUSED} has ALiBi in any case, and so does Weft.", notify=True, usual=(True, None)),
    Ignored(("prefix_lm",), f"{UNUSED} is causal, and so is Weft.", notify=True, usual=(False, None)),
    Ignored(("attn_uses_sequence_id",), f"{UNUSED} does not separate packed rows; Weft's commands do.", notify=True,
            usual=(False, None)),
    Ignored(("alibi_bias_max",), f"{UNUSED} computes slopes with 8, and so does Weft.", notify=True, usual=(8,)),
    Ignored(("attn_type", "qk_ln"), BY_TENSORS), Ignored(("attn_impl",), "how attention is run"),
    Ignored((*RUNNING, *GENERATION, *OTHER_HEADS, *ORIGIN, "dtype", "torch_dtype", "bos_token_id", "eos_token_id",
             "pad_token_id", "is_encoder_decoder", "is_decoder", "add_cross_attention", "tie_word_embeddings",
             "tie_encoder_decoder", "cross_attention_hidden_size", "pruned_heads"),
            "what every configuration class writes, and this one does not use"))

KEYS: tuple[KeyRule, ...] = (
    Read("vocab_size", "vocab_size", default=50368), Read("d_model", "d_model", default=2048, alias=("hidden_size",)),
    Read("n_layers", N_LAYERS, default=24, alias=("num_hidden_layers",)),
    Read("n_heads", "n_heads", default=16, alias=("num_attention_heads",)), divided_heads("n_heads", "d_model"),
    Read("max_seq_len", "context", default=2048), Together(("expansion_ratio",), read_feedforward, write_feedforward),
    nested("attn_config", ATTENTION_KEYS), Read("resid_pdrop", "dropout", float, 0.0),
    Read("emb_pdrop", "embedding_dropout", float, 0.0), Read("layer_norm_epsilon", "eps", float, 1e-5),
    Read("initializer_range", "std", float, 0.02), Read("tie_word_embeddings", "tied", bool, True),
    Fixed("norm_type", ("low_precision_layernorm", "layernorm", "low_precision_layer_norm", None),
          default="low_precision_layernorm", why="The class of transformers has layer norms."),
    Ignored(("logit_scale",), f"{UNUSED} does not scale logits, and nor does Weft.", notify=True, usual=(None,)),
    Ignored(("learned_pos_emb", "no_bias"), BY_TENSORS),
    Ignored(("embedding_fraction", "init_device", "init_config", "verbose", "tokenizer_name"), "matters to training "
            "only"))


def weights(facts: Facts) -> list[Rule]:
    """Return the rules of all tensors, unchanged."""
    theirs, ours = "transformer.blocks.{layer}", "stack.layers.{layer}"
    pairs = {"attn.Wqkv": "layers.0.qkv", "attn.out_proj": "layers.0.output", "ffn.up_proj": "layers.1.up",
             "ffn.down_proj": "layers.1.down", "norm_1": "norms.0", "norm_2": "norms.1"}
    return [rename("transformer.wte.weight", "embedding.tokens.weight"),
            *(rename(f"{theirs}.{a}.weight", f"{ours}.{b}.weight") for a, b in pairs.items()),
            rename("transformer.norm_f.weight", "norm.weight"), rename("lm_head.weight", "readout.weight")]


MPT = Family(
    name="mpt", template=TEMPLATE, source="MosaicML 2023 (MPT-7B), llm-foundry; Press et al. 2022 (ALiBi)",
    native=Native(model_type="mpt", architecture="MptForCausalLM", architectures=("MptModel", "MPTForCausalLM"),
                  keys=KEYS, weights=weights, prefix="transformer.", tied=("lm_head.weight", "transformer.wte.weight")))
