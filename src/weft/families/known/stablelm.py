"""StableLM: Llama's format with layer norms, partly rotary heads, and parallel blocks on demand."""

from __future__ import annotations

from weft.families.common import ACTIVATIONS, divided_heads
from weft.families.family import Family, Native
from weft.families.keys import Fixed, Ignored, KeyRule, Read, words
from weft.families.known.gpt2 import LAYER_NORM
from weft.families.known.llama import ATTENTION, GLU, LM_HEAD, TIED, attention_weights, decoder, glu_weights, shapes
from weft.families.rope import Rotary
from weft.families.template import Facts, Layers, TemplateChoice
from weft.families.weights import Rule, both, rename

BLOCK = {"norm": LAYER_NORM, "layers": [ATTENTION, GLU | {"bias": False}]}
TEMPLATE = decoder(ATTENTION, GLU) | {"norm": LAYER_NORM, "blocks": Layers(
    TemplateChoice("parallel", {True: {"kind": "parallel"} | BLOCK, False: {"kind": "pre"} | BLOCK}))}

KEYS: tuple[KeyRule, ...] = (
    *(rule for rule in shapes(context=4096, d_ff=6912, n_kv_heads=32, vocab_size=50304, d_model=2560)
      if "head_dim" not in rule.keys), divided_heads("num_attention_heads", "hidden_size"),
    Read("hidden_act", "activation", str, "silu", codec=ACTIVATIONS), Read("layer_norm_eps", "eps", float, 1e-5),
    Read("initializer_range", "std", float, 0.02), Read("attention_dropout", "attention_dropout", float, 0.0), TIED,
    Rotary(share=0.25, odd=False), Read("use_parallel_residual", "parallel", bool, False),
    Read("use_qkv_bias", "attention_bias", bool, False, codec=words({True: "qkv", False: "none"})),
    Fixed("qk_layernorm", (False, None), default=False, why="It gives every head a norm with weights of its own."),
    Fixed("rotary_scaling_factor", (1.0, None), default=1.0, why="Its angles are not scaled."),
    Ignored(("num_heads", "rope_pct"), "early copies of num_attention_heads and partial_rotary_factor"),
    Ignored(("hidden_dropout",), "dropout after the feed-forward alone, which Weft does not have; outputs are the "
            "same.", notify=True))


def weights(facts: Facts) -> list[Rule]:
    """Return the rules of all tensors; a parallel block has one norm."""
    theirs, ours = "model.layers.{layer}", "stack.layers.{layer}.norms"
    return [rename("model.embed_tokens.weight", "embedding.tokens.weight"), *attention_weights(facts), *glu_weights(),
            *both(f"{theirs}.input_layernorm", f"{ours}.0"), *both(f"{theirs}.post_attention_layernorm", f"{ours}.1"),
            *both("model.norm", "norm"), rename("lm_head.weight", "readout.weight")]


STABLELM = Family(
    name="stablelm", template=TEMPLATE,
    source="Tow et al. 2023 (StableLM 3B 4E1T); Bellagente et al. 2024 (arXiv:2402.17834), section 3",
    native=Native(model_type="stablelm", architecture="StableLmForCausalLM", architectures=("StableLmModel",),
                  keys=KEYS, weights=weights, prefix="model.", tied=LM_HEAD))
