"""T5 (1.0 and 1.1): biases of distance that all layers share, unscaled scores, RMS norms, no biases of maps."""

from __future__ import annotations

from typing import Any

from weft.families.common import ACTIVATIONS
from weft.families.family import Family, Native
from weft.families.keys import Ignored, KeyProblem, KeyRule, Raw, Read, Together, typed
from weft.families.template import N_LAYERS, Fact, Facts, Layers, TemplateChoice
from weft.families.tensor_steps import fuse
from weft.families.weights import Rule, UnusedTensors, rename

N_ENCODER_LAYERS = "n_encoder_layers"
NORM = {"kind": "rmsnorm", "eps": Fact("eps")}
DROPOUT = {"dropout": Fact("dropout")}
BIAS = {"kind": "t5", "buckets": Fact("buckets"), "max_distance": Fact("longest"), "scaled": False}
ATTENTION = {"kind": "attention", "n_heads": Fact("n_heads"), "d_head": Fact("d_head"), "position": {"shared": "bias"},
             "scores": DROPOUT}
CROSS = {"kind": "cross_attention", "n_heads": Fact("n_heads"), "d_head": Fact("d_head"),
         "scores": {**DROPOUT, "scale": 1.0}}
FEED = {"d_ff": Fact("d_ff"), "activation": Fact("activation"), "bias": False}
FEED_FORWARD = TemplateChoice("gated", {False: {"kind": "mlp", **FEED}, True: {"kind": "glu", **FEED}})
BLOCK = {"kind": "pre", "norm": NORM, **DROPOUT}
SIDE = {"vocab_size": Fact("vocab_size"), "context": Fact("context"), "d_model": Fact("d_model"),
        "embedding": {**DROPOUT, "std": 0.02}, "norm": NORM}
TEMPLATE = {
    "kind": "encoder_decoder", **SIDE, "tied_source": True, "shared": {"bias": BIAS},
    "blocks": Layers({**BLOCK, "layers": [ATTENTION, CROSS, FEED_FORWARD]}),
    "readout": {"kind": "linear", "tied": Fact("tied"), "scale": Fact("logit_scale")},
    "encoder": {"kind": "encoder", **SIDE, "shared": {"bias": {**BIAS, "bidirectional": True}}, "blocks": Layers(
        {**BLOCK, "layers": [{**ATTENTION, "mask": "bidirectional"}, FEED_FORWARD]}, N_ENCODER_LAYERS)}}

TIED, SCALED, PROJECTION = "tie_word_embeddings", "scale_decoder_outputs", "feed_forward_proj"
GATED, GATED_GELU = "gated-", "gated-gelu"


def read_head(raw: Raw, facts: Facts) -> Facts:
    """1.0 predicts with its embeddings, from vectors scaled by d_model^-1/2; 1.1 with a matrix of its own, unscaled."""
    first = typed(TIED, raw.get(TIED, True), bool) is not False and typed(SCALED, raw.get(SCALED, True), bool)
    return {"tied": bool(first), "logit_scale": facts["d_model"] ** -0.5 if first else 1.0}


def write_head(facts: Facts) -> dict[str, Any]:
    """One switch for both."""
    if facts["logit_scale"] != (facts["d_model"] ** -0.5 if facts["tied"] else 1.0):
        raise KeyProblem(f"{TIED}: logits are scaled by {facts['logit_scale']:g}; the class scales them by "
                         "d_model^-1/2 where the embeddings are tied, and not at all where they are not.")
    return {TIED: facts["tied"], SCALED: facts["tied"]}


def read_feed_forward(raw: Raw, facts: Facts) -> Facts:
    """The activation, whether it gates, and GELU by its tanh form where it does."""
    name = typed(PROJECTION, raw.get(PROJECTION, "relu"), str)
    gated = name.startswith(GATED)
    activation = "gelu_new" if name == GATED_GELU else name.removeprefix(GATED)
    return {"gated": gated, "activation": ACTIVATIONS.read(activation)}


def write_feed_forward(facts: Facts) -> dict[str, Any]:
    """The inverse."""
    if facts["gated"] and facts["activation"] == "gelu":
        raise KeyProblem(f"{PROJECTION}: a gate with the exact GELU, while {GATED_GELU} is the tanh form.")
    name = ACTIVATIONS.write(facts["activation"])
    gated = GATED_GELU if facts["activation"] == "gelu_tanh" else f"{GATED}{name}"
    return {PROJECTION: gated if facts["gated"] else name}


KEYS: tuple[KeyRule, ...] = (
    Read("vocab_size", "vocab_size", default=32128), Read("d_model", "d_model", default=512, alias=("hidden_size",)),
    Read("d_kv", "d_head", default=64, alias=("head_dim",)), Read("d_ff", "d_ff", default=2048),
    Read("num_layers", N_ENCODER_LAYERS, default=6, alias=("num_hidden_layers",)),
    Read("num_decoder_layers", N_LAYERS, derive=lambda facts: facts[N_ENCODER_LAYERS]),
    Read("num_heads", "n_heads", default=8, alias=("num_attention_heads",)),
    Read("n_positions", "context", default=512),
    Read("relative_attention_num_buckets", "buckets", default=32),
    Read("relative_attention_max_distance", "longest", default=128),
    Read("dropout_rate", "dropout", float, 0.1), Read("layer_norm_epsilon", "eps", float, 1e-6),
    Together((PROJECTION,), read_feed_forward, write_feed_forward), Together((TIED, SCALED), read_head, write_head),
    Ignored(("dense_act_fn", "is_gated_act"), f"derived from {PROJECTION}"),
    Ignored(("initializer_factor",), "the size of initial weights"))


def weights(facts: Facts) -> list[Rule]:
    """Return the rules of all tensors; queries, keys and values are separate in the file."""
    return [rename("shared.weight", "embedding.tokens.weight"), rename("lm_head.weight", "readout.weight"),
            *_side("encoder", "encoder.", facts, 1), *_side("decoder", "", facts, 2)]


def _side(theirs: str, prefix: str, facts: Facts, feed: int) -> list[Rule]:
    """The rules of one side, whose feed-forward is layer number ``feed``."""
    block, ours = f"{theirs}.block.{{layer}}.layer", f"{prefix}stack.layers.{{layer}}"
    width = int(facts["n_heads"] * facts["d_head"])
    attention, cross, last = f"{block}.0.SelfAttention", f"{block}.1.EncDecAttention", f"{block}.{feed}"
    pairs = {f"{attention}.o": "layers.0.output", f"{block}.0.layer_norm": "norms.0",
             f"{last}.DenseReluDense.wo": f"layers.{feed}.down", f"{last}.layer_norm": f"norms.{feed}"}
    ups = ({"wi_0": "gate", "wi_1": "up"} if facts["gated"] else {"wi": "up"})
    pairs |= {f"{last}.DenseReluDense.{a}": f"layers.{feed}.{b}" for a, b in ups.items()}
    rules = [Rule(tuple(f"{attention}.{name}.weight" for name in "qkv"), (f"{ours}.layers.0.qkv.weight",),
                  (fuse((width, width, width)),))]
    if feed == 2:
        pairs |= {f"{cross}.q": "layers.1.q", f"{cross}.o": "layers.1.output", f"{block}.1.layer_norm": "norms.1"}
        rules += [Rule(tuple(f"{cross}.{name}.weight" for name in "kv"), (f"{ours}.layers.1.kv.weight",),
                       (fuse((width, width)),))]
    table = f"{theirs}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    return [*rules, rename(table, f"{prefix}shared.bias.table"),
            rename(f"{theirs}.final_layer_norm.weight", f"{prefix}norm.weight"),
            *(rename(f"{a}.weight", f"{ours}.{b}.weight") for a, b in pairs.items())]


T5 = Family(
    name="t5", template=TEMPLATE, source="Raffel et al. 2020, section 2.1; Shazeer 2020 (1.1: gated GELU)",
    native=Native(
        model_type="t5", architecture="T5ForConditionalGeneration",
        architectures=("T5WithLMHeadModel", "T5Model"), keys=KEYS, weights=weights, takes_source=True,
        tied=("lm_head.weight", "shared.weight"),
        copies=(("encoder.embed_tokens.weight", "shared.weight"), ("decoder.embed_tokens.weight", "shared.weight")),
        junk=(UnusedTensors(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
                            "a table that early files hold and no version reads"),)))
