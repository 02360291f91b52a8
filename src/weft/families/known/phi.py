"""Phi-1, 1.5 and 2: parallel blocks of one norm, rotary positions on part of each head, biases on all linear maps
including the readout."""

from __future__ import annotations

from weft.families.common import ACTIVATIONS
from weft.families.family import Family, Native
from weft.families.keys import Ignored, KeyRule, Read
from weft.families.known.gpt2 import LAYER_NORM
from weft.families.known.llama import LM_HEAD, ROPE, TIED, default_head
from weft.families.rope import Rotary, reordered
from weft.families.template import N_LAYERS, Fact, Facts, Layers, TemplateChoice
from weft.families.tensor_steps import fuse
from weft.families.weights import Rule, both, rename

ATTENTION = {"kind": "attention", "n_heads": Fact("n_heads"), "n_kv_heads": Fact("n_kv_heads"),
             "d_head": Fact("d_head"), "bias": "all", "position": ROPE,
             "qk_norm": TemplateChoice("qk_norm", {False: None, True: LAYER_NORM}),
             "scores": {"dropout": Fact("attention_dropout")}}
MLP = {"kind": "mlp", "d_ff": Fact("d_ff"), "activation": Fact("activation"), "bias": True}
TEMPLATE = {
    "kind": "decoder", "vocab_size": Fact("vocab_size"), "context": Fact("context"), "d_model": Fact("d_model"),
    "embedding": {"dropout": Fact("embedding_dropout"), "std": Fact("std")},
    "blocks": Layers({"kind": "parallel", "norm": LAYER_NORM, "dropout": Fact("dropout"), "layers": [ATTENTION, MLP]}),
    "norm": LAYER_NORM, "readout": {"kind": "linear", "tied": Fact("tied"), "bias": True}}

KEYS: tuple[KeyRule, ...] = (
    Read("vocab_size", "vocab_size", default=51200), Read("hidden_size", "d_model", default=2048),
    Read("intermediate_size", "d_ff", default=8192), Read("num_hidden_layers", N_LAYERS, default=24),
    Read("num_attention_heads", "n_heads", default=32),
    Read("num_key_value_heads", "n_kv_heads", derive=lambda facts: facts["n_heads"]),
    Read("head_dim", "d_head", derive=default_head), Read("max_position_embeddings", "context", default=2048),
    Rotary(share=0.5, odd=False), Ignored(("rotary_dim",), "a copy of partial_rotary_factor in features"),
    Read("qk_layernorm", "qk_norm", bool, False),
    Read("hidden_act", "activation", str, "gelu_new", codec=ACTIVATIONS), Read("resid_pdrop", "dropout", float, 0.0),
    Read("embd_pdrop", "embedding_dropout", float, 0.0), Read("attention_dropout", "attention_dropout", float, 0.0),
    Read("layer_norm_eps", "eps", float, 1e-5), Read("initializer_range", "std", float, 0.02), TIED)


def weights(facts: Facts) -> list[Rule]:
    """Return the rules of all tensors; the file stores queries, keys and values as separate tensors."""
    theirs, ours = "model.layers.{layer}", "stack.layers.{layer}"
    q, kv, size = facts["n_heads"], facts["n_kv_heads"], facts["d_head"]
    steps = (fuse((q * size, kv * size, kv * size)), *reordered(facts, q + kv))
    fused = [Rule(tuple(f"{theirs}.self_attn.{name}_proj.{part}" for name in "qkv"), (f"{ours}.layers.0.qkv.{part}",),
                  steps) for part in ("weight", "bias")]
    norms = [rule for name in "qk" for rule in both(f"{theirs}.self_attn.{name}_layernorm",
                                                    f"{ours}.layers.0.{name}_norm", *reordered(facts, 1))]
    pairs = {"self_attn.dense": "layers.0.output", "mlp.fc1": "layers.1.up", "mlp.fc2": "layers.1.down",
             "input_layernorm": "norms.0"}
    return [rename("model.embed_tokens.weight", "embedding.tokens.weight"), *fused, *norms,
            *(rule for a, b in pairs.items() for rule in both(f"{theirs}.{a}", f"{ours}.{b}")),
            *both("model.final_layernorm", "norm"), *both("lm_head", "readout")]


def foreign_limits(facts: Facts) -> list[str]:
    """Return what the foreign class cannot express: its norms of queries and keys always have d_model / n_heads
    features, even if head_dim differs."""
    if not facts["qk_norm"] or facts["d_head"] == facts["d_model"] // facts["n_heads"]:
        return []
    return [f"head_dim: {facts['d_head']}, but the class gives norms of queries and keys "
            f"{facts['d_model'] // facts['n_heads']} features, hidden_size / num_attention_heads."]


PHI = Family(
    name="phi", template=TEMPLATE, source="Gunasekar et al. 2023 (arXiv:2306.11644); Li et al. 2023 (arXiv:2309.05463)",
    native=Native(model_type="phi", architecture="PhiForCausalLM", architectures=("PhiModel",), keys=KEYS,
                  weights=weights, prefix="model.", tied=LM_HEAD, limits=foreign_limits))
