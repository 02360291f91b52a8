"""Command R and Aya: parallel blocks of one layer norm without bias, interleaved pairs, a factor on the logits."""

from __future__ import annotations

from weft.families.common import ACTIVATIONS
from weft.families.family import Family, Native
from weft.families.keys import Fixed, Ignored, KeyRule, Read
from weft.families.known.llama import ATTENTION, BIASED, GLU, LM_HEAD, decoder, glu_weights, shapes
from weft.families.rope import Rotary, reordered
from weft.families.steps import Fuse
from weft.families.template import Fact, Facts, Layers
from weft.families.weights import Rule, both, rename

NORM = {"kind": "layernorm", "eps": Fact("eps"), "bias": False}
GATED = GLU | {"bias": False}
TEMPLATE = decoder(ATTENTION, GATED) | {
    "norm": NORM, "readout": {"kind": "linear", "tied": Fact("tied"), "scale": Fact("logit_scale")},
    "blocks": Layers({"kind": "parallel", "norm": NORM, "layers": [ATTENTION, GATED]})}

KEYS: tuple[KeyRule, ...] = (
    *shapes(context=8192, d_ff=22528, n_kv_heads=None, vocab_size=256000, d_model=8192, n_layers=40, n_heads=64),
    Read("hidden_act", "activation", str, "silu", codec=ACTIVATIONS), Read("layer_norm_eps", "eps", float, 1e-5),
    Read("initializer_range", "std", float, 0.02), Read("attention_dropout", "attention_dropout", float, 0.0),
    Read("logit_scale", "logit_scale", float, 0.0625), Read("tie_word_embeddings", "tied", bool, True),
    Rotary(base=5e5, layout="interleaved"), Read("attention_bias", "attention_bias", bool, False, codec=BIASED),
    Fixed("use_qk_norm", (False, None), default=False, why="It gives every head a norm with weights of its own."),
    Ignored(("model_max_length",), "the longest text of the tokenizer, which the class does not read"))


def weights(facts: Facts) -> list[Rule]:
    """All tensors; queries, keys and values are apart in the file."""
    theirs, ours = "model.layers.{layer}", "stack.layers.{layer}"
    q, kv, size = facts["n_heads"], facts["n_kv_heads"], facts["d_head"]
    steps = (Fuse((q * size, kv * size, kv * size)), *reordered(facts, q + kv, "interleaved"))
    return [rename("model.embed_tokens.weight", "embedding.tokens.weight"), rename("model.norm.weight", "norm.weight"),
            rename("lm_head.weight", "readout.weight"), *glu_weights(),
            *(Rule(tuple(f"{theirs}.self_attn.{name}_proj.{part}" for name in "qkv"), (f"{ours}.layers.0.qkv.{part}",),
                   steps) for part in ("weight", "bias")),
            *both(f"{theirs}.self_attn.o_proj", f"{ours}.layers.0.output"),
            rename(f"{theirs}.input_layernorm.weight", f"{ours}.norms.0.weight")]


COHERE = Family(
    name="cohere", template=TEMPLATE, source="Aryabumi et al. 2024 (arXiv:2405.15032), section 2",
    native=Native(model_type="cohere", architecture="CohereForCausalLM", architectures=("CohereModel",), keys=KEYS,
                  weights=weights, prefix="model.", tied=LM_HEAD))
