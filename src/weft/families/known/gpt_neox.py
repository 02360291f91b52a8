"""GPT-NeoX and Pythia: parallel blocks of two norms, rotary positions on part of each head, queries, keys and values
fused by head."""

from __future__ import annotations

from weft.families.common import ACTIVATIONS, divided_heads
from weft.families.family import Family, Native, Size
from weft.families.keys import Ignored, KeyRule, Read, words
from weft.families.known.gpt2 import LAYER_NORM
from weft.families.rope import Rotary, reordered
from weft.families.steps import Ungroup
from weft.families.template import N_LAYERS, Choice, Facts, Hole, Layers
from weft.families.weights import Rule, both, rename

ATTENTION = {"kind": "attention", "n_heads": Hole("n_heads"), "d_head": Hole("d_head"),
             "bias": Hole("attention_bias"), "scores": {"dropout": Hole("attention_dropout")},
             "position": {"kind": "rope", "layout": Hole("layout"), "base": Hole("rope_base"), "rot": Hole("rot"),
                          "scaling": Hole("rope_scaling")}}
MLP = {"kind": "mlp", "d_ff": Hole("d_ff"), "activation": Hole("activation"), "bias": True}
BLOCK = {"norm": LAYER_NORM, "dropout": Hole("dropout"), "layers": [ATTENTION, MLP]}
TEMPLATE = {
    "kind": "decoder", "vocab_size": Hole("vocab_size"), "context": Hole("context"), "d_model": Hole("d_model"),
    "embedding": {"dropout": Hole("dropout"), "std": Hole("std")},
    "blocks": Layers(Choice("parallel", {True: {"kind": "parallel", "shared_norm": False} | BLOCK,
                                         False: {"kind": "pre"} | BLOCK})),
    "norm": LAYER_NORM, "readout": {"kind": "linear", "tied": Hole("tied")}}

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
    fused = (Ungroup(heads, (size, size, size)), *reordered(facts, 2 * heads))
    pairs = {"attention.dense": "layers.0.output", "mlp.dense_h_to_4h": "layers.1.up",
             "mlp.dense_4h_to_h": "layers.1.down", "input_layernorm": "norms.0", "post_attention_layernorm": "norms.1"}
    return [rename("gpt_neox.embed_in.weight", "embedding.tokens.weight"),
            *both(f"{theirs}.attention.query_key_value", f"{ours}.layers.0.qkv", *fused),
            *(rule for a, b in pairs.items() for rule in both(f"{theirs}.{a}", f"{ours}.{b}")),
            *both("gpt_neox.final_layer_norm", "norm"), rename("embed_out.weight", "readout.weight")]


def _size(name: str, parameters: int, d_model: int, n_layers: int, n_heads: int, vocab_size: int = 50304) -> Size:
    return Size(name, {"hidden_size": d_model, "num_hidden_layers": n_layers, "num_attention_heads": n_heads,
                       "intermediate_size": 4 * d_model, "vocab_size": vocab_size}, parameters,
                "Biderman et al. 2023, table 1" if name.startswith("pythia") else "the tensors of the published files")


GPT_NEOX = Family(
    name="gpt_neox", template=TEMPLATE,
    source="Black et al. 2022 (arXiv:2204.06745), section 2; Biderman et al. 2023 (arXiv:2304.01373)",
    native=Native(
        model_type="gpt_neox", architecture="GPTNeoXForCausalLM", architectures=("GPTNeoXModel",), keys=KEYS,
        weights=weights, prefix="gpt_neox.", tied=("embed_out.weight", "gpt_neox.embed_in.weight")),
    sizes=(_size("pythia-70m", 70_426_624, 512, 6, 8), _size("pythia-160m", 162_322_944, 768, 12, 12),
           _size("pythia-410m", 405_334_016, 1024, 24, 16), _size("pythia-1b", 1_011_781_632, 2048, 16, 8),
           _size("pythia-1.4b", 1_414_647_808, 2048, 24, 16), _size("pythia-2.8b", 2_775_208_960, 2560, 32, 32),
           _size("pythia-6.9b", 6_857_302_016, 4096, 32, 32, 50432),
           _size("pythia-12b", 11_846_072_320, 5120, 36, 40, 50688),
           _size("gpt-neox-20b", 20_554_567_680, 6144, 44, 64, 50432)))
