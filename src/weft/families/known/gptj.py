"""GPT-J: parallel blocks of one norm, interleaved rotary pairs on part of each head, a biased readout."""

from __future__ import annotations

from typing import Any

from weft.families.common import ACTIVATIONS, divided_heads
from weft.families.family import Family, Native
from weft.families.keys import Fixed, Ignored, KeyProblem, KeyRule, Raw, Read, Together, typed
from weft.families.known.gpt2 import LAYER_NORM
from weft.families.rope import reordered
from weft.families.template import N_LAYERS, Fact, Facts, Layers
from weft.families.tensor_steps import fuse
from weft.families.weights import Rule, UnusedTensors, both, rename

ATTENTION = {"kind": "attention", "n_heads": Fact("n_heads"), "d_head": Fact("d_head"),
             "scores": {"dropout": Fact("attention_dropout")},
             "position": {"kind": "rope", "layout": Fact("layout"), "rot": Fact("rot")}}
MLP = {"kind": "mlp", "d_ff": Fact("d_ff"), "activation": Fact("activation"), "bias": True}
TEMPLATE = {
    "kind": "decoder", "vocab_size": Fact("vocab_size"), "context": Fact("context"), "d_model": Fact("d_model"),
    "embedding": {"dropout": Fact("embedding_dropout"), "std": Fact("std")},
    "blocks": Layers({"kind": "parallel", "norm": LAYER_NORM, "dropout": Fact("dropout"), "layers": [ATTENTION, MLP]}),
    "norm": LAYER_NORM, "readout": {"kind": "linear", "tied": Fact("tied"), "bias": True}}


def read_turned(raw: Raw, facts: Facts) -> Facts:
    """Read ``rotary_dim``, the number of rotary features of a head."""
    rot = typed("rotary_dim", raw.get("rotary_dim", 64), int)
    if rot is None or rot % 2 or not 0 < rot <= facts["d_head"]:
        raise KeyProblem(f"rotary_dim: {rot}, which must be an even number from 2 to the size of a head, "
                         f"{facts['d_head']}.")
    return {"rot": rot, "layout": "interleaved"}


def write_turned(facts: Facts) -> dict[str, Any]:
    """Write the number of rotary features."""
    return {"rotary_dim": facts["rot"]}


KEYS: tuple[KeyRule, ...] = (
    Read("vocab_size", "vocab_size", default=50400),
    Read("n_positions", "context", default=2048, alias=("max_position_embeddings",), old=("n_ctx",)),
    Read("n_embd", "d_model", default=4096, alias=("hidden_size",)),
    Read("n_layer", N_LAYERS, default=28, alias=("num_hidden_layers",)),
    Read("n_head", "n_heads", default=16, alias=("num_attention_heads",)), divided_heads("n_head", "n_embd"),
    Together(("rotary_dim",), read_turned, write_turned),
    Read("n_inner", "d_ff", derive=lambda facts: 4 * facts["d_model"]),
    Read("activation_function", "activation", str, "gelu_new", codec=ACTIVATIONS),
    Read("resid_pdrop", "dropout", float, 0.0), Read("embd_pdrop", "embedding_dropout", float, 0.0),
    Read("attn_pdrop", "attention_dropout", float, 0.0), Read("layer_norm_epsilon", "eps", float, 1e-5),
    Read("initializer_range", "std", float, 0.02), Read("tie_word_embeddings", "tied", bool, False),
    Fixed("rotary", (True, None), default=True, why="Its only positions are rotary."),
    Ignored(("scale_attn_weights",), "from GPT-2's format; the class scales scores by 1/sqrt(d_head) in any case"))


def weights(facts: Facts) -> list[Rule]:
    """Return the rules of all tensors; the file stores queries, keys and values as separate tensors."""
    theirs, ours, width = "transformer.h.{layer}", "stack.layers.{layer}", facts["d_model"]
    fused = (fuse((width, width, width)), *reordered(facts, 2 * facts["n_heads"], "interleaved"))
    pairs = {"attn.out_proj": "layers.0.output", "mlp.fc_in": "layers.1.up", "mlp.fc_out": "layers.1.down",
             "ln_1": "norms.0"}
    return [rename("transformer.wte.weight", "embedding.tokens.weight"),
            Rule(tuple(f"{theirs}.attn.{name}_proj.weight" for name in "qkv"), (f"{ours}.layers.0.qkv.weight",), fused),
            *(rule for a, b in pairs.items() for rule in both(f"{theirs}.{a}", f"{ours}.{b}")),
            *both("transformer.ln_f", "norm"), *both("lm_head", "readout")]


GPTJ = Family(
    name="gptj", template=TEMPLATE, source="Wang and Komatsuzaki 2021 (mesh-transformer-jax)",
    native=Native(
        model_type="gptj", architecture="GPTJForCausalLM", architectures=("GPTJModel",), keys=KEYS, weights=weights,
        prefix="transformer.", tied=("lm_head.weight", "transformer.wte.weight"),
        junk=(UnusedTensors(r"(transformer\.)?h\.\d+\.attn\.embed_positions", "what the configuration gives"),)))
