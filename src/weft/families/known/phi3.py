"""Phi-3 and Phi-4: Llama with fused projections, partly rotary heads, LongRoPE and dropout on the residual stream."""

from __future__ import annotations

from weft.families.family import Family, Native
from weft.families.keys import Fixed, KeyRule, Read
from weft.families.known.llama import (
    ATTENTION,
    GLU,
    LM_HEAD,
    RMS_NORM,
    TIED,
    VALUES,
    decoder,
    default_head,
    outer_weights,
    shapes,
)
from weft.families.rope import Rotary, reordered
from weft.families.template import Fact, Facts, Layers
from weft.families.tensor_steps import split
from weft.families.weights import Rule, rename
from weft.families.windows import one_window

FUSED_ATTENTION = ATTENTION | {"bias": "none", "mask": Fact("mask")}
BLOCK = {"kind": "pre", "norm": RMS_NORM, "dropout": Fact("dropout"),
         "layers": [FUSED_ATTENTION, GLU | {"bias": False}]}
TEMPLATE = decoder(FUSED_ATTENTION, GLU) | {
    "embedding": {"std": Fact("std"), "dropout": Fact("embedding_dropout")}, "blocks": Layers(BLOCK)}

KEYS: tuple[KeyRule, ...] = (
    *shapes(context=4096, d_ff=8192, n_kv_heads=None, vocab_size=32064, d_model=3072),
    *(rule for rule in VALUES if "rms_norm_eps" not in rule.keys), Read("rms_norm_eps", "eps", float, 1e-5), TIED,
    Read("resid_pdrop", "dropout", float, 0.0), Read("embd_pdrop", "embedding_dropout", float, 0.0),
    Rotary(share=1.0, original_outside=True, original=4096, renamed={"yarn": "longrope"}), one_window(None),
    *(Fixed(name, (1, None), default=1, why="It is of the code that trained Phi-4-mini.")
      for name in ("full_attn_mod", "interpolate_factor")))


def weights(facts: Facts) -> list[Rule]:
    """Queries, keys and values are one matrix, as in the model; gate and up are one, gate above."""
    theirs, ours = "model.layers.{layer}", "stack.layers.{layer}.layers"
    heads = facts["n_heads"] + facts["n_kv_heads"]
    return [*outer_weights(),
            rename(f"{theirs}.self_attn.qkv_proj.weight", f"{ours}.0.qkv.weight", *reordered(facts, heads)),
            rename(f"{theirs}.self_attn.o_proj.weight", f"{ours}.0.output.weight"),
            Rule((f"{theirs}.mlp.gate_up_proj.weight",), (f"{ours}.1.gate.weight", f"{ours}.1.up.weight"),
                 (split((facts["d_ff"], facts["d_ff"])),)),
            rename(f"{theirs}.mlp.down_proj.weight", f"{ours}.1.down.weight")]


def limits(facts: Facts) -> list[str]:
    """The models that Phi3Config rejects."""
    kind, size = facts["rope_scaling"]["kind"], default_head(facts)
    found = [] if kind in ("none", "ntk", "longrope") else [
        f"rope_parameters: Phi3Config takes the scaling 'longrope' or none, not {kind!r}."]
    if kind == "longrope" and size != facts["d_head"]:
        found.append(f"head_dim: with 'longrope', Phi3Config takes heads of hidden_size / num_attention_heads = {size} "
                     f"features, not of {facts['d_head']}.")
    return found


PHI3 = Family(
    name="phi3", template=TEMPLATE,
    source="Abdin et al. 2024 (arXiv:2404.14219), section 2; Abdin et al. 2024 (arXiv:2412.08905)",
    native=Native(model_type="phi3", architecture="Phi3ForCausalLM", architectures=("Phi3Model",), keys=KEYS,
                  weights=weights, prefix="model.", tied=LM_HEAD, limits=limits))
