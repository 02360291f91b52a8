"""RecurrentGemma: Gemma's blocks, in which two of three layers have a gated linear recurrence in place of attention
and the third a window."""

from __future__ import annotations

import math
from typing import Any

import torch

from weft.families.common import divided_heads
from weft.families.family import Family, Native
from weft.families.keys import Codec, Ignored, Kept, KeyProblem, KeyRule, Raw, Read, Together, typed, words
from weft.families.known.gemma import UNIT_OFFSET
from weft.families.known.gemma2 import ACTIVATION
from weft.families.known.llama import ATTENTION, GLU, LM_HEAD, attention_weights, decoder, glu_weights, key_value_heads
from weft.families.rope import Rotary
from weft.families.template import N_LAYERS, Fact, Facts, Layers, TemplateChoice
from weft.families.tensor_steps import fuse
from weft.families.weights import Rule, both, rename
from weft.families.windows import mask_of, window_of

RECURRENCE = {"kind": "rg_lru", "d_recurrence": Fact("width"), "n_heads": Fact("n_heads"), "d_conv": Fact("kernel"),
              "activation": Fact("activation")}
WINDOWED = ATTENTION | {"mask": Fact("mask")}
MIXER = TemplateChoice("recurrent", {True: RECURRENCE, False: WINDOWED}, each=True)
FEED_FORWARD = GLU | {"bias": True}
TEMPLATE = decoder(WINDOWED, FEED_FORWARD) | {
    "embedding": {"scale": Fact("embedding_scale"), "std": Fact("std")}, "norm": UNIT_OFFSET,
    "readout": {"kind": "linear", "tied": Fact("tied"), "softcap": Fact("softcap")},
    "blocks": Layers({"kind": "pre", "norm": UNIT_OFFSET, "layers": [MIXER, FEED_FORWARD]})}

TYPES, WINDOW, SCALE = "block_types", "attention_window_size", "w_init_variance_scale"
RECURRENT, WINDOWS = "recurrent", "attention"
WIDE = Codec(lambda value: value // 2, lambda value: 2 * value)
"""The file counts the gate's features and the other half together."""


def scale_of(facts: Facts) -> float:
    """sqrt(d_model) in bfloat16, in which the class keeps it whatever the dtype of the model."""
    return float(torch.tensor(math.sqrt(facts["d_model"]), dtype=torch.bfloat16))


def write_scale(facts: Facts) -> dict[str, Any]:
    """Nothing, where it is that."""
    if facts["embedding_scale"] != scale_of(facts):
        raise KeyProblem(f"embeddings are scaled by {facts['embedding_scale']}; this family scales them by "
                         f"sqrt(hidden_size) in bfloat16, {scale_of(facts)}, and has no key for it.")
    return {}


def read_types(raw: Raw, facts: Facts) -> Facts:
    """Which layers are recurrent: the list is repeated until there is a type for each."""
    types = typed(TYPES, raw.get(TYPES), list) or [RECURRENT, RECURRENT, WINDOWS]
    wrong = sorted({str(each) for each in types} - {RECURRENT, WINDOWS})
    if wrong:
        raise KeyProblem(f"{TYPES}: {', '.join(wrong)}, but only {RECURRENT} and {WINDOWS} can be read.")
    return {"recurrent": [types[index % len(types)] == RECURRENT for index in range(facts[N_LAYERS])]}


def write_types(facts: Facts) -> dict[str, Any]:
    """The type of each layer; with one type alone the sizes of the other are not known."""
    if not mixed(facts):
        missing = RECURRENT if not any(facts["recurrent"]) else WINDOWS
        raise KeyProblem(f"{TYPES}: no layer is of the type {missing}, whose sizes are not known.")
    return {TYPES: [RECURRENT if each else WINDOWS for each in facts["recurrent"]]}


def mixed(facts: Facts) -> bool:
    """Whether there are layers of both types."""
    return len(set(facts["recurrent"])) == 2


def where_mixed(rule: KeyRule) -> KeyRule:
    """A rule about one type of layer, which writes nothing where a type has none; `write_types` refuses that."""
    return Together(rule.keys, rule.read, lambda facts: rule.write(facts) if mixed(facts) else {})


def read_width(raw: Raw, facts: Facts) -> Facts:
    """Features of the recurrence; without the key as many as the model's."""
    return {"width": typed("lru_width", raw.get("lru_width"), int) or facts["d_model"]}


KEYS: tuple[KeyRule, ...] = (
    Read("vocab_size", "vocab_size", default=256000), Read("hidden_size", "d_model", default=2560),
    Read("num_hidden_layers", N_LAYERS, default=26), Read("intermediate_size", "d_ff", default=7680, codec=WIDE),
    Read("num_attention_heads", "n_heads", default=10),
    Read("max_position_embeddings", "context", default=8192),
    Together((TYPES,), read_types, write_types), *map(where_mixed, (
        divided_heads("num_attention_heads", "hidden_size"), key_value_heads(None),
        Read("attention_bias", "attention_bias", bool, False, codec=words({True: "all", False: "output"})),
        Read("attention_dropout", "attention_dropout", float, 0.0),
        Together((WINDOW, "sliding_window"),
                 lambda raw, facts: {"mask": mask_of(typed(WINDOW, raw.get(WINDOW), int) or 2048)},
                 lambda facts: {WINDOW: window_of(facts["mask"])}),
        Rotary(share=0.5), Together(("lru_width",), read_width, lambda facts: {"lru_width": facts["width"]}),
        Read("conv1d_width", "kernel", default=4))),
    Read("hidden_activation", "activation", str, "gelu_pytorch_tanh", codec=ACTIVATION),
    Read("rms_norm_eps", "eps", float, 1e-6), Read("initializer_range", "std", float, 0.02),
    Read("logits_soft_cap", "softcap", float, 30.0), Read("tie_word_embeddings", "tied", bool, True),
    Together((), lambda raw, facts: {"embedding_scale": scale_of(facts)}, write_scale),
    Kept(SCALE), Ignored(("final_w_init_variance_scale", "head_dim", "embeddings_scale_by_sqrt_dim", "layer_types",
                          "layers_block_type"), "the class computes them from other keys"))


def weights(facts: Facts) -> list[Rule]:
    """Gemma's under other names, and the recurrence's: the branch that enters it before the gate's."""
    layer, ours = "model.layers.{layer}", "stack.layers.{layer}"
    block, own = f"{layer}.temporal_block", f"{ours}.layers.0"
    names = {"conv_1d": "convolution", "linear_out": "mix"}
    gates = {"recurrent_gate": "recurrence_gate", "input_gate": "input_gate"}
    width = facts["width"]
    return [
        rename("model.embed_tokens.weight", "embedding.tokens.weight"), rename("lm_head.weight", "readout.weight"),
        rename("model.final_norm.weight", "norm.weight"),
        rename(f"{layer}.temporal_pre_norm.weight", f"{ours}.norms.0.weight"),
        rename(f"{layer}.channel_pre_norm.weight", f"{ours}.norms.1.weight"),
        *(_moved(rule, ".self_attn.", ".temporal_block.") for rule in attention_weights(facts)),
        *(_moved(rule, ".mlp.", ".mlp_block.") for rule in glu_weights()),
        *(Rule(tuple(f"{block}.linear_{name}.{part}" for name in "xy"), (f"{own}.branches.{part}",),
               (fuse((width, width)),)) for part in ("weight", "bias")),
        *(rule for a, b in names.items() for rule in both(f"{block}.{a}", f"{own}.{b}")),
        *(rename(f"{block}.rg_lru.{a}_{part}", f"{own}.{b}.{part}") for a, b in gates.items()
          for part in ("weight", "bias")),
        rename(f"{block}.rg_lru.recurrent_param", f"{own}.rate")]


def _moved(rule: Rule, old: str, new: str) -> Rule:
    return Rule(tuple(name.replace(old, new) for name in rule.theirs), rule.ours, rule.steps)


RECURRENT_GEMMA = Family(
    name="recurrent_gemma", template=TEMPLATE,
    source="Botev et al. 2024 (RecurrentGemma, arXiv:2404.07839); De et al. 2024 (Griffin, arXiv:2402.19427)",
    native=Native(
        model_type="recurrent_gemma", architecture="RecurrentGemmaForCausalLM",
        architectures=("RecurrentGemmaModel",), keys=KEYS, weights=weights, prefix="model.", tied=LM_HEAD))
