"""RWKV-4: blocks of time mixing and channel mixing, embeddings that a norm follows. RWKV-5, 6 and 7: the same with
matrix-valued states, for which `transformers` has no classes.

The original files (``.pth``) are read by `weft.interop.rwkv`.
"""

from __future__ import annotations

from typing import Any

from weft.families.family import Family, Native
from weft.families.keys import KEPT, Ignored, KeyRule, Raw, Read, Together, typed
from weft.families.template import N_LAYERS, Fact, Facts, Layers
from weft.families.tensor_steps import reshape
from weft.families.weights import Rule, both, rename

TEMPLATE = {
    "kind": "decoder", "vocab_size": Fact("vocab_size"), "context": Fact("context"), "d_model": Fact("d_model"),
    "embedding": {"std": 0.02, "norm": {"kind": "layernorm", "eps": Fact("eps")}},
    "blocks": Layers({"kind": "pre", "norm": {"kind": "layernorm", "eps": Fact("eps")}, "layers": [
        {"kind": "rwkv4", "d_attention": Fact("d_attention")}, {"kind": "channel_mix", "d_ff": Fact("d_ff")}]}),
    "norm": {"kind": "layernorm", "eps": 1e-5}, "readout": {"kind": "linear", "tied": Fact("tied")}}
"""The class gives its last norm the default epsilon of PyTorch, whatever the configuration says."""

RESCALE = "rescale_every"


def _halved(raw: Raw, facts: Facts) -> Facts:
    """In evaluation the class halves the stream after every so many layers, and divides the weights that write to it
    likewise, so that float16 does not overflow. What reads the stream are norms, so only their epsilon tells the
    difference. A folder that was saved after such an evaluation holds the divided weights, which nothing in it says."""
    every = typed(RESCALE, raw.get(RESCALE, 6), int)
    return {KEPT: {**facts.get(KEPT, {}), RESCALE: every}}


KEYS: tuple[KeyRule, ...] = (
    Read("vocab_size", "vocab_size", default=50277), Read("hidden_size", "d_model", default=4096),
    Read("num_hidden_layers", N_LAYERS, default=32),
    Read("context_length", "context", default=1024, old=("max_position_embeddings",)),
    Read("attention_hidden_size", "d_attention", derive=lambda facts: facts["d_model"]),
    Read("intermediate_size", "d_ff", derive=lambda facts: 4 * facts["d_model"]),
    Read("layer_norm_epsilon", "eps", float, 1e-5), Read("tie_word_embeddings", "tied", bool, False),
    Together((RESCALE,), _halved, lambda facts: {RESCALE: facts.get(KEPT, {}).get(RESCALE, 0)}),
    Ignored(("initializer_range",), "how weights start, which a file of weights does not need"))


def weights(facts: Facts) -> list[Rule]:
    """Return the rules of all tensors."""
    theirs, ours = "rwkv.blocks.{layer}", "stack.layers.{layer}"
    width = facts["d_model"]
    mix = reshape((1, 1, width), (width,))
    maps = [f"{ours}.layers.{index}" for index in (0, 1)]
    time = [rename(f"{theirs}.attention.{name}.weight", f"{maps[0]}.{name}.weight")
            for name in ("key", "value", "receptance", "output")]
    mixes = [rename(f"{theirs}.attention.time_mix_{name}", f"{maps[0]}.mix_{name}", mix)
             for name in ("key", "value", "receptance")]
    channel = [rename(f"{theirs}.feed_forward.{name}.weight", f"{maps[1]}.{name}.weight")
               for name in ("key", "value", "receptance")]
    return [rename("rwkv.embeddings.weight", "embedding.tokens.weight"),
            *both("rwkv.blocks.0.pre_ln", "embedding.norm"), *both(f"{theirs}.ln1", f"{ours}.norms.0"),
            *both(f"{theirs}.ln2", f"{ours}.norms.1"), rename(f"{theirs}.attention.time_decay", f"{maps[0]}.decay"),
            rename(f"{theirs}.attention.time_first", f"{maps[0]}.bonus"), *mixes, *time, *channel,
            *(rename(f"{theirs}.feed_forward.time_mix_{name}", f"{maps[1]}.mix_{name}", mix)
              for name in ("key", "receptance")),
            *both("rwkv.ln_out", "norm"), rename("head.weight", "readout.weight")]


RWKV = Family(
    name="rwkv", template=TEMPLATE, source="Peng et al. 2023 (arXiv:2305.13048), section 3",
    native=Native(model_type="rwkv", architecture="RwkvForCausalLM", architectures=("RwkvModel",), keys=KEYS,
                  weights=weights, prefix="rwkv.", tied=("head.weight", "rwkv.embeddings.weight")))


LAYER_NORM = {"kind": "layernorm", "eps": 1e-5}
HEADS = {"n_heads": Fact("n_heads"), "d_head": Fact("d_head"), "norm_eps": 64e-5}


def _model(mixer: dict[str, Any], *, receptance: bool = True) -> dict[str, Any]:
    channel = {"kind": "channel_mix", "d_ff": Fact("d_ff"), "receptance": receptance}
    return {"kind": "decoder", "vocab_size": Fact("vocab_size"), "context": Fact("context"), "d_model": Fact("d_model"),
            "embedding": {"std": 0.02, "norm": LAYER_NORM},
            "blocks": Layers({"kind": "pre", "norm": LAYER_NORM, "layers": [mixer, channel]}), "norm": LAYER_NORM,
            "readout": {"kind": "linear", "tied": False}}


RWKV5 = Family(
    name="rwkv5", template=_model({"kind": "rwkv5"} | HEADS), native=None,
    source="Peng et al. 2024 (arXiv:2404.05892), section 4.1")
RWKV6 = Family(
    name="rwkv6", template=_model({"kind": "rwkv6", "shift_rank": Fact("shift_rank"), "decay_rank": Fact("decay_rank")}
                                  | HEADS), native=None,
    source="Peng et al. 2024 (arXiv:2404.05892), section 4.2")
_RANKS = ("decay_rank", "rate_rank", "value_rank", "gate_rank")


RWKV7 = Family(
    name="rwkv7", template=_model({"kind": "rwkv7", "value_residual": Fact("value_residual", each=True)} | HEADS
                                  | {name: Fact(name) for name in _RANKS}, receptance=False), native=None,
    source="Peng et al. 2025 (arXiv:2503.14456), section 4")
