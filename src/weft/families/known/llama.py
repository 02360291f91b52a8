"""Llama 1, 2 and 3, Mistral, which has a sliding window besides, and other models in their format."""

from __future__ import annotations

from weft.families.common import ACTIVATIONS
from weft.families.family import Family, Native
from weft.families.keys import Fixed, Ignored, KeyRule, Raw, Read, Together, typed, words
from weft.families.rope import Rotary, reordered
from weft.families.template import Fact, Facts, Layers
from weft.families.tensor_steps import fuse
from weft.families.weights import Rule, both, rename
from weft.families.windows import one_window
from weft.ops.rotary import Layout

RMS_NORM = {"kind": "rmsnorm", "eps": Fact("eps")}
ROPE = {"kind": "rope", "layout": Fact("layout"), "base": Fact("rope_base"), "rot": Fact("rot"),
        "scaling": Fact("rope_scaling")}
ATTENTION = {"kind": "attention", "n_heads": Fact("n_heads"), "n_kv_heads": Fact("n_kv_heads"),
             "d_head": Fact("d_head"), "bias": Fact("attention_bias"), "position": ROPE,
             "scores": {"dropout": Fact("attention_dropout")}}
GLU = {"kind": "glu", "d_ff": Fact("d_ff"), "activation": Fact("activation"), "bias": Fact("mlp_bias")}


def decoder(attention: object, feedforward: object) -> dict[str, object]:
    """A pre-norm decoder with RMS norms, which Llama's relatives share."""
    return {"kind": "decoder", "vocab_size": Fact("vocab_size"), "context": Fact("context"),
            "d_model": Fact("d_model"), "embedding": {"std": Fact("std")}, "norm": RMS_NORM,
            "readout": {"kind": "linear", "tied": Fact("tied")},
            "blocks": Layers({"kind": "pre", "norm": RMS_NORM, "layers": [attention, feedforward]})}


def default_head(facts: Facts) -> int:
    """d_model / n_heads."""
    return int(facts["d_model"] // facts["n_heads"])


def key_value_heads(default: int | None) -> KeyRule:
    """``num_key_value_heads``; null, and a default of None, are as many as there are heads."""
    name = "num_key_value_heads"

    def read(raw: Raw, facts: Facts) -> Facts:
        value = typed(name, raw.get(name, default), int)
        return {"n_kv_heads": facts["n_heads"] if value is None else value}

    return Together((name,), read, lambda facts: {name: facts["n_kv_heads"]})


def shapes(*, context: int, d_ff: int, n_kv_heads: int | None, vocab_size: int = 32000, d_model: int = 4096,
           d_head: int | None = None, n_layers: int = 32, n_heads: int = 32) -> tuple[KeyRule, ...]:
    """The keys of sizes, with the defaults that `transformers` has; None: as many as there are heads, or what divides
    d_model among them."""
    head = (Read("head_dim", "d_head", derive=default_head) if d_head is None
            else Read("head_dim", "d_head", default=d_head))
    return (Read("vocab_size", "vocab_size", default=vocab_size), Read("hidden_size", "d_model", default=d_model),
            Read("intermediate_size", "d_ff", default=d_ff), Read("num_hidden_layers", "n_layers", default=n_layers),
            Read("num_attention_heads", "n_heads", default=n_heads), key_value_heads(n_kv_heads), head,
            Read("max_position_embeddings", "context", default=context))


VALUES: tuple[KeyRule, ...] = (
    Read("hidden_act", "activation", str, "silu", codec=ACTIVATIONS, old=("hidden_activation",)),
    Read("rms_norm_eps", "eps", float, 1e-6), Read("initializer_range", "std", float, 0.02),
    Read("attention_dropout", "attention_dropout", float, 0.0))
"""Keys that Llama's relatives share besides sizes."""

TIED = Read("tie_word_embeddings", "tied", bool, False)
BIASED = words({True: "all", False: "none"})


def attention_weights(facts: Facts, *, normed: bool = False, layout: Layout = "half_split") -> list[Rule]:
    """Queries, keys and values, separate in the file and one matrix in the model."""
    theirs, ours = "model.layers.{layer}.self_attn", "stack.layers.{layer}.layers.0"
    q, kv, size = facts["n_heads"], facts["n_kv_heads"], facts["d_head"]
    steps = (fuse((q * size, kv * size, kv * size)), *reordered(facts, q + kv, layout))
    fused = [Rule(tuple(f"{theirs}.{name}_proj.{part}" for name in "qkv"), (f"{ours}.qkv.{part}",), steps)
             for part in ("weight", "bias")]
    norms = [rename(f"{theirs}.{name}_norm.weight", f"{ours}.{name}_norm.weight", *reordered(facts, 1))
             for name in "qk"]
    return [*fused, *both(f"{theirs}.o_proj", f"{ours}.output"), *(norms if normed else [])]


def glu_weights() -> list[Rule]:
    """Gate, up and down, unchanged."""
    theirs, ours = "model.layers.{layer}.mlp", "stack.layers.{layer}.layers.1"
    return [rule for name in ("gate", "up", "down") for rule in both(f"{theirs}.{name}_proj", f"{ours}.{name}")]


def outer_weights() -> list[Rule]:
    """Embeddings, norms and readout."""
    layer, block = "model.layers.{layer}", "stack.layers.{layer}"
    return [rename("model.embed_tokens.weight", "embedding.tokens.weight"),
            rename(f"{layer}.input_layernorm.weight", f"{block}.norms.0.weight"),
            rename(f"{layer}.post_attention_layernorm.weight", f"{block}.norms.1.weight"),
            rename("model.norm.weight", "norm.weight"), rename("lm_head.weight", "readout.weight")]


def weights(facts: Facts) -> list[Rule]:
    """Return the rules of all of Llama's tensors."""
    return [*outer_weights(), *attention_weights(facts), *glu_weights()]


LM_HEAD = ("lm_head.weight", "model.embed_tokens.weight")


def undivided_width(facts: Facts, name: str = "LlamaConfig") -> list[str]:
    """The models that the configuration class ``name`` rejects."""
    if facts["d_model"] % facts["n_heads"] == 0:
        return []
    return [f"hidden_size: {name} refuses {facts['d_model']}, which {facts['n_heads']} heads do not divide."]


LLAMA = Family(
    name="llama", template=decoder(ATTENTION, GLU),
    source="Touvron et al. 2023 (arXiv:2302.13971); Touvron et al. 2023 (arXiv:2307.09288); Grattafiori et al. 2024 "
           "(arXiv:2407.21783)",
    native=Native(
        model_type="llama", architecture="LlamaForCausalLM", architectures=("LlamaModel", "LLaMAForCausalLM"),
        keys=(*shapes(context=2048, d_ff=11008, n_kv_heads=None), *VALUES, TIED, Rotary(),
              Read("attention_bias", "attention_bias", bool, False, codec=BIASED),
              Read("mlp_bias", "mlp_bias", bool, False),
              Fixed("rope_interleaved", (False, None), why="Its weights are stored for half-split pairs."),
              Ignored(("max_sequence_length",), "an early spelling of the context, which no version reads")),
        weights=weights, prefix="model.", tied=LM_HEAD, limits=undivided_width))


MISTRAL = Family(
    name="mistral",
    template=decoder(ATTENTION | {"bias": "none", "mask": Fact("mask")}, GLU | {"bias": False}),
    source="Jiang et al. 2023 (arXiv:2310.06825)",
    native=Native(
        model_type="mistral", architecture="MistralForCausalLM", architectures=("MistralModel",),
        keys=(*shapes(context=131072, d_ff=14336, n_kv_heads=8), *VALUES, TIED, Rotary(), one_window(4096),
              Ignored(("layer_types",), "not used: in the class of transformers all layers are alike, and so in Weft",
                      notify=True)),
        weights=weights, prefix="model.", tied=LM_HEAD))
