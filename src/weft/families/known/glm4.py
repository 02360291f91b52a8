"""GLM-4 (0414): norms around every layer, half of each head rotary in interleaved pairs, gate and up fused."""

from __future__ import annotations

from weft.families.family import Family, Native
from weft.families.keys import KeyRule, Read, words
from weft.families.known.llama import ATTENTION, GLU, LM_HEAD, RMS_NORM, TIED, VALUES, decoder, shapes
from weft.families.rope import Rotary, reordered
from weft.families.steps import Fuse, Split
from weft.families.template import Facts, Layers
from weft.families.weights import Rule, rename

GATED = GLU | {"bias": False}
TEMPLATE = decoder(ATTENTION, GATED) | {
    "blocks": Layers({"kind": "sandwich", "norm": RMS_NORM, "layers": [ATTENTION, GATED]})}

KEYS: tuple[KeyRule, ...] = (
    *shapes(context=131072, d_ff=13696, n_kv_heads=2, vocab_size=151552, d_head=128, n_layers=40),
    *(rule for rule in VALUES if "rms_norm_eps" not in rule.keys), Read("rms_norm_eps", "eps", float, 1.5625e-07), TIED,
    Rotary(share=0.5, layout="interleaved", odd=False),
    Read("attention_bias", "attention_bias", bool, True, codec=words({True: "qkv", False: "none"})))


def weights(facts: Facts) -> list[Rule]:
    """All tensors; queries, keys and values are apart, gate and up one matrix, gate above."""
    theirs, ours = "model.layers.{layer}", "stack.layers.{layer}"
    q, kv, size = facts["n_heads"], facts["n_kv_heads"], facts["d_head"]
    steps = (Fuse((q * size, kv * size, kv * size)), *reordered(facts, q + kv, "interleaved"))
    norms = ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")
    return [rename("model.embed_tokens.weight", "embedding.tokens.weight"), rename("model.norm.weight", "norm.weight"),
            rename("lm_head.weight", "readout.weight"),
            *(Rule(tuple(f"{theirs}.self_attn.{name}_proj.{part}" for name in "qkv"), (f"{ours}.layers.0.qkv.{part}",),
                   steps) for part in ("weight", "bias")),
            rename(f"{theirs}.self_attn.o_proj.weight", f"{ours}.layers.0.output.weight"),
            Rule((f"{theirs}.mlp.gate_up_proj.weight",),
                 (f"{ours}.layers.1.gate.weight", f"{ours}.layers.1.up.weight"),
                 (Split((facts["d_ff"], facts["d_ff"])),)),
            rename(f"{theirs}.mlp.down_proj.weight", f"{ours}.layers.1.down.weight"),
            *(rename(f"{theirs}.{name}.weight", f"{ours}.norms.{index}.weight") for index, name in enumerate(norms))]


GLM4 = Family(
    name="glm4", template=TEMPLATE, source="GLM Team 2024 (arXiv:2406.12793); the files of GLM-4-0414",
    native=Native(model_type="glm4", architecture="Glm4ForCausalLM", architectures=("Glm4Model",), keys=KEYS,
                  weights=weights, prefix="model.", tied=LM_HEAD))
