"""Models in Llama's format whose rotary pairs are interleaved. Command R and Aya: parallel blocks of one layer norm
without bias, a factor on the logits. GLM-4 (0414): norms around every layer, half of each head rotary, gate and up
fused."""

from __future__ import annotations

from weft.families.common import ACTIVATIONS
from weft.families.family import Family, Native
from weft.families.keys import Fixed, Ignored, KeyRule, Read, words
from weft.families.known.llama import (
    ATTENTION,
    BIASED,
    GLU,
    LM_HEAD,
    RMS_NORM,
    TIED,
    VALUES,
    attention_weights,
    decoder,
    glu_weights,
    shapes,
)
from weft.families.rope import Rotary
from weft.families.template import Fact, Facts, Layers
from weft.families.tensor_steps import split
from weft.families.weights import Rule, rename

GATED = GLU | {"bias": False}
THEIRS, OURS = "model.layers.{layer}", "stack.layers.{layer}"
OUTER = (rename("model.embed_tokens.weight", "embedding.tokens.weight"), rename("model.norm.weight", "norm.weight"),
         rename("lm_head.weight", "readout.weight"))

NORM = {"kind": "layernorm", "eps": Fact("eps"), "bias": False}
COHERE_TEMPLATE = decoder(ATTENTION, GATED) | {
    "norm": NORM, "readout": {"kind": "linear", "tied": Fact("tied"), "scale": Fact("logit_scale")},
    "blocks": Layers({"kind": "parallel", "norm": NORM, "layers": [ATTENTION, GATED]})}

COHERE_KEYS: tuple[KeyRule, ...] = (
    *shapes(context=8192, d_ff=22528, n_kv_heads=None, vocab_size=256000, d_model=8192, n_layers=40, n_heads=64),
    Read("hidden_act", "activation", str, "silu", codec=ACTIVATIONS), Read("layer_norm_eps", "eps", float, 1e-5),
    Read("initializer_range", "std", float, 0.02), Read("attention_dropout", "attention_dropout", float, 0.0),
    Read("logit_scale", "logit_scale", float, 0.0625), Read("tie_word_embeddings", "tied", bool, True),
    Rotary(base=5e5, layout="interleaved"), Read("attention_bias", "attention_bias", bool, False, codec=BIASED),
    Fixed("use_qk_norm", (False, None), default=False, why="It gives every head a norm with weights of its own."),
    Ignored(("model_max_length",), "the longest text of the tokenizer, which the class does not read"))


def cohere_weights(facts: Facts) -> list[Rule]:
    """All tensors."""
    return [*OUTER, *glu_weights(), *attention_weights(facts, layout="interleaved"),
            rename(f"{THEIRS}.input_layernorm.weight", f"{OURS}.norms.0.weight")]


COHERE = Family(
    name="cohere", template=COHERE_TEMPLATE, source="Aryabumi et al. 2024 (arXiv:2405.15032), section 2",
    native=Native(model_type="cohere", architecture="CohereForCausalLM", architectures=("CohereModel",),
                  keys=COHERE_KEYS, weights=cohere_weights, prefix="model.", tied=LM_HEAD))

GLM4_TEMPLATE = decoder(ATTENTION, GATED) | {
    "blocks": Layers({"kind": "sandwich", "norm": RMS_NORM, "layers": [ATTENTION, GATED]})}

GLM4_KEYS: tuple[KeyRule, ...] = (
    *shapes(context=131072, d_ff=13696, n_kv_heads=2, vocab_size=151552, d_head=128, n_layers=40),
    *(rule for rule in VALUES if "rms_norm_eps" not in rule.keys), Read("rms_norm_eps", "eps", float, 1.5625e-07), TIED,
    Rotary(share=0.5, layout="interleaved", odd=False),
    Read("attention_bias", "attention_bias", bool, True, codec=words({True: "qkv", False: "none"})))


def glm4_weights(facts: Facts) -> list[Rule]:
    """All tensors; gate and up are one matrix, gate above."""
    norms = ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")
    return [*OUTER, *attention_weights(facts, layout="interleaved"),
            Rule((f"{THEIRS}.mlp.gate_up_proj.weight",),
                 (f"{OURS}.layers.1.gate.weight", f"{OURS}.layers.1.up.weight"),
                 (split((facts["d_ff"], facts["d_ff"])),)),
            rename(f"{THEIRS}.mlp.down_proj.weight", f"{OURS}.layers.1.down.weight"),
            *(rename(f"{THEIRS}.{name}.weight", f"{OURS}.norms.{index}.weight") for index, name in enumerate(norms))]


GLM4 = Family(
    name="glm4", template=GLM4_TEMPLATE, source="GLM Team 2024 (arXiv:2406.12793); the files of GLM-4-0414",
    native=Native(model_type="glm4", architecture="Glm4ForCausalLM", architectures=("Glm4Model",), keys=GLM4_KEYS,
                  weights=glm4_weights, prefix="model.", tied=LM_HEAD))
