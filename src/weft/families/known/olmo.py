"""OLMo 2: norms on what layers give instead of what they take, and on all heads' queries and keys together. OLMo 3: the
same with three layers with a window to one without, of which only the latter are scaled."""

from __future__ import annotations

from weft.families.family import Family, Native
from weft.families.keys import KeyRule, Read
from weft.families.known.gemma2 import TURNED
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
from weft.families.rope import Rotary, reordered
from weft.families.rope_by_type import RotaryByType
from weft.families.template import Fact, Facts, Layers
from weft.families.weights import Rule, rename
from weft.families.windows import windows_by_type

NORMED = ATTENTION | {"qk_norm": RMS_NORM, "qk_norm_over": "heads"}


def normed_after(attention: object) -> dict[str, object]:
    """Llama's model with norms inside the branches, after the layers."""
    glu = GLU | {"bias": False}
    return decoder(attention, glu) | {
        "blocks": Layers({"kind": "post", "inside": True, "norm": RMS_NORM, "layers": [attention, glu]})}


KEYS: tuple[KeyRule, ...] = (
    *shapes(context=2048, d_ff=11008, n_kv_heads=None, vocab_size=50304),
    *(rule for rule in VALUES if "rms_norm_eps" not in rule.keys), Read("rms_norm_eps", "eps", float, 1e-5), TIED,
    Read("attention_bias", "attention_bias", bool, False, codec=BIASED))
"""What OLMo 2 and 3 share."""


def weights(facts: Facts) -> list[Rule]:
    """Return the rules of all tensors."""
    theirs, ours = "model.layers.{layer}", "stack.layers.{layer}"
    heads = {"q": facts["n_heads"], "k": facts["n_kv_heads"]}
    return [rename("model.embed_tokens.weight", "embedding.tokens.weight"), rename("model.norm.weight", "norm.weight"),
            rename("lm_head.weight", "readout.weight"), *attention_weights(facts), *glu_weights(),
            rename(f"{theirs}.post_attention_layernorm.weight", f"{ours}.norms.0.weight"),
            rename(f"{theirs}.post_feedforward_layernorm.weight", f"{ours}.norms.1.weight"),
            *(rename(f"{theirs}.self_attn.{name}_norm.weight", f"{ours}.layers.0.{name}_norm.weight",
                     *reordered(facts, count)) for name, count in heads.items())]


OLMO2 = Family(
    name="olmo2", template=normed_after(NORMED), source="OLMo Team 2025 (arXiv:2501.00656), section 3",
    native=Native(model_type="olmo2", architecture="Olmo2ForCausalLM", architectures=("Olmo2Model",),
                  keys=(*KEYS, Rotary()), weights=weights, prefix="model.", tied=LM_HEAD))


WINDOWED = NORMED | {"mask": Fact("masks", each=True), "position": TURNED}

OLMO3 = Family(
    name="olmo3", template=normed_after(WINDOWED), source="Team OLMo 2025 (arXiv:2512.13961), section 3",
    native=Native(model_type="olmo3", architecture="Olmo3ForCausalLM", architectures=("Olmo3Model",),
                  keys=(*KEYS, windows_by_type(4096, 4), RotaryByType(5e5, 5e5)), weights=weights, prefix="model.",
                  tied=LM_HEAD, widens=True))
