"""GPT-NeoX and Pythia: parallel blocks of two norms, rotary positions on part of each head, queries, keys and values
fused by head."""

from __future__ import annotations

from weft.families.common import ACTIVATIONS, divided_heads
from weft.families.family import Family, Native
from weft.families.keys import Ignored, KeyRule, Read, words
from weft.families.known.gpt2 import LAYER_NORM
from weft.families.rope import Rotary, reordered
from weft.families.template import N_LAYERS, Fact, Facts, Layers, TemplateChoice
from weft.families.tensor_steps import ungroup
from weft.families.weights import Rule, both, rename

ATTENTION = {"kind": "attention", "n_heads": Fact("n_heads"), "d_head": Fact("d_head"),
             "bias": Fact("attention_bias"), "scores": {"dropout": Fact("attention_dropout")},
             "position": {"kind": "rope", "layout": Fact("layout"), "base": Fact("rope_base"), "rot": Fact("rot"),
                          "scaling": Fact("rope_scaling")}}
MLP = {"kind": "mlp", "d_ff": Fact("d_ff"), "activation": Fact("activation"), "bias": True}
BLOCK = {"norm": LAYER_NORM, "dropout": Fact("dropout"), "layers": [ATTENTION, MLP]}
TEMPLATE = {
    "kind": "decoder", "vocab_size": Fact("vocab_size"), "context": Fact("context"), "d_model": Fact("d_model"),
    "embedding": {"dropout": Fact("dropout"), "std": Fact("std")},
    "blocks": Layers(TemplateChoice("parallel", {True: {"kind": "parallel", "shared_norm": False} | BLOCK,
                                                 False: {"kind": "pre"} | BLOCK})),
    "norm": LAYER_NORM, "readout": {"kind": "linear", "tied": Fact("tied")}}

KEYS: tuple[KeyRule, ...] = (
    Read("vocab_size", "vocab_size", default=50432), Read("hidden_size", "d_model", default=6144),
    Read("num_hidden_layers", N_LAYERS, default=44), Read("num_attention_heads", "n_heads", default=64),
    Read("intermediate_size", "d_ff", default=24576), Read("max_position_embeddings", "context", default=2048),
    divided_heads("num_attention_heads", "hidden_size"),
    Rotary(share=0.25, base_key="rotary_emb_base", share_key="rotary_pct"),
    Read("hidden_act", "activation", str, "gelu", codec=ACTIVATIONS),
    Read("attention_dropout", "attention_dropout", float, 0.0), Read("hidden_dropout", "dropout", float, 0.0),
    Read("initializer_range", "std", float, 0.02), Read("layer_norm_eps", "eps", float, 1e-5),
    Read("use_parallel_residual", "parallel", bool, True), Read("tie_word_embeddings", "tied", bool, False),
    Read("attention_bias", "attention_bias", bool, True, codec=words({True: "all", False: "none"})),
    Ignored(("rotary_ndims",), "a copy of rotary_pct in features"))


def weights(facts: Facts) -> list[Rule]:
    """Return the rules of all tensors; the file stores the q, k and v of each head next to each other."""
    theirs, ours = "gpt_neox.layers.{layer}", "stack.layers.{layer}"
    heads, size = facts["n_heads"], facts["d_head"]
    fused = (ungroup(heads, (size, size, size)), *reordered(facts, 2 * heads))
    pairs = {"attention.dense": "layers.0.output", "mlp.dense_h_to_4h": "layers.1.up",
             "mlp.dense_4h_to_h": "layers.1.down", "input_layernorm": "norms.0", "post_attention_layernorm": "norms.1"}
    return [rename("gpt_neox.embed_in.weight", "embedding.tokens.weight"),
            *both(f"{theirs}.attention.query_key_value", f"{ours}.layers.0.qkv", *fused),
            *(rule for a, b in pairs.items() for rule in both(f"{theirs}.{a}", f"{ours}.{b}")),
            *both("gpt_neox.final_layer_norm", "norm"), rename("embed_out.weight", "readout.weight")]


GPT_NEOX = Family(
    name="gpt_neox", template=TEMPLATE,
    source="Black et al. 2022 (arXiv:2204.06745), section 2; Biderman et al. 2023 (arXiv:2304.01373)",
    native=Native(
        model_type="gpt_neox", architecture="GPTNeoXForCausalLM", architectures=("GPTNeoXModel",), keys=KEYS,
        weights=weights, prefix="gpt_neox.", tied=("embed_out.weight", "gpt_neox.embed_in.weight")))
