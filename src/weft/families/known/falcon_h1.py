"""Falcon-H1: attention and Mamba-2 side by side in every layer, with factors from tuning at another width."""

from __future__ import annotations

import math
from typing import Any

from weft.families.family import Family, Native
from weft.families.keys import Codec, Fixed, Ignored, KeyProblem, KeyRule, Raw, Read, Together, typed
from weft.families.known.bamba import HEAD, layer_weights, outer_weights, state_space
from weft.families.known.granite import embedding_factor
from weft.families.known.llama import ATTENTION, BIASED, LM_HEAD, RMS_NORM, VALUES, decoder, shapes
from weft.families.known.mamba2 import GATED_NORM, MIXER, mixer_weights
from weft.families.rope import Rotary
from weft.families.template import Fact, Facts, Layers, TemplateChoice
from weft.families.weights import Rule

PARTS = ("z", "x", "b", "c", "dt")
"""What the input projection of the state space gives, in the order of `ssm_multipliers`."""
NONE, GATE_FIRST, NORM_FIRST = "none", "gate_first", "norm_first"
SPACE = MIXER | {
    "norm": TemplateChoice("ssm_norm", {
        NONE: None, GATE_FIRST: GATED_NORM, NORM_FIRST: GATED_NORM | {"gate_order": NORM_FIRST}}),
    "multipliers": {"input": Fact("ssm_in"), **{name: Fact(f"factor_{name}") for name in PARTS}}}
SCALED = ATTENTION | {"scores": {"scale": Fact("scale"), "dropout": Fact("attention_dropout")}}
BOTH = {"kind": "sum", "layers": [SPACE, SCALED], "factors": [Fact("ssm_out"), Fact("attention_out")]}
FEED = {"kind": "scaled_glu", "d_ff": Fact("d_ff"), "activation": Fact("activation"), "bias": Fact("mlp_bias"),
        "gate_factor": Fact("gate_factor"), "factor": Fact("mlp_out")}
TEMPLATE = decoder(BOTH, FEED) | {
    "embedding": {"scale": Fact("embedding_scale"), "std": Fact("std")},
    "readout": {"kind": "linear", "tied": Fact("tied"), "scale": Fact("logit_scale")},
    "blocks": Layers({"kind": "pre", "norm": RMS_NORM, "layers": [BOTH, FEED]})}

INNER, RMS, BEFORE = "mamba_d_ssm", "mamba_rms_norm", "mamba_norm_before_gate"
ENTERING, KEY, LEAVING = "attention_in_multiplier", "key_multiplier", "attention_out_multiplier"


def read_inner(raw: Raw, facts: Facts) -> Facts:
    """Features of all heads of the state space: a number, or null for ``mamba_expand`` times the width; and those of
    one head, or "auto" for what divides them among the heads."""
    inner = typed(INNER, raw.get(INNER, 1024), int)
    inner = (raw.get("mamba_expand") or 2) * facts["d_model"] if inner is None else inner
    heads, given = facts["ssm_heads"], raw.get(HEAD)
    size = inner // heads if given in (None, "auto") else typed(HEAD, given, int)
    if size * heads != inner:
        raise KeyProblem(f"{INNER}: {inner}, which is not {heads} heads of {size} features.")
    return {"ssm_head": size}


def write_inner(facts: Facts) -> dict[str, Any]:
    """Both numbers."""
    return {INNER: facts["ssm_heads"] * facts["ssm_head"], HEAD: facts["ssm_head"]}


def read_norm(raw: Raw, facts: Facts) -> Facts:
    """Whether there is a norm, and whether the gate comes after it."""
    if not typed(RMS, raw.get(RMS, False), bool):
        return {"ssm_norm": NONE}
    return {"ssm_norm": NORM_FIRST if typed(BEFORE, raw.get(BEFORE, True), bool) else GATE_FIRST}


def write_norm(facts: Facts) -> dict[str, Any]:
    """Both switches."""
    return {RMS: facts["ssm_norm"] != NONE, BEFORE: facts["ssm_norm"] == NORM_FIRST}


def read_attention(raw: Raw, facts: Facts) -> Facts:
    """A factor m on what attention reads is one of m^2 on scores and of m on results, where its maps have no bias."""
    entering, key, leaving = (typed(name, raw.get(name, 1.0), float) or 0.0 for name in (ENTERING, KEY, LEAVING))
    if entering != 1.0 and facts["attention_bias"] != BIASED.read(False):
        raise KeyProblem(f"{ENTERING}: {entering}, which Weft has only for attention without biases.")
    factor = key * entering * entering
    return {"scale": None if factor == 1.0 else factor * facts["d_head"] ** -0.5, "attention_out": leaving * entering}


def write_attention(facts: Facts) -> dict[str, Any]:
    """The factors, the first as 1."""
    unit = facts["d_head"] ** -0.5
    scale = unit if facts["scale"] is None else facts["scale"]
    key = scale / unit
    near = (float(f"{key:.12g}"), key, math.nextafter(key, math.inf), math.nextafter(key, -math.inf))
    return {ENTERING: 1.0, KEY: next((each for each in near if each * unit == scale), key),
            LEAVING: facts["attention_out"]}


def several(key: str, names: tuple[str, ...]) -> KeyRule:
    """A list with a number for each of some facts; null is 1 for all."""
    def read(raw: Raw, facts: Facts) -> Facts:
        given = typed(key, raw.get(key), list)
        values = [1.0] * len(names) if given is None else given
        if len(values) != len(names) or not all(isinstance(each, int | float) for each in values):
            raise KeyProblem(f"{key}: {values}, where only {len(names)} numbers can be read.")
        return {name: float(value) for name, value in zip(names, values, strict=True)}

    return Together((key,), read, lambda facts: {key: [facts[name] for name in names]})


def biases(names: tuple[str, ...], fact: str) -> KeyRule:
    """Two switches that must agree."""
    def read(raw: Raw, facts: Facts) -> Facts:
        found = {name: bool(typed(name, raw.get(name, False), bool)) for name in names}
        if len(set(found.values())) > 1:
            raise KeyProblem(f"{names[0]}: {found[names[0]]} and {names[1]}: {found[names[1]]}, but the projections "
                             "into the state space and out of it have biases together.")
        return {fact: found[names[0]]}

    return Together(names, read, lambda facts: dict.fromkeys(names, facts[fact]))


KEYS: tuple[KeyRule, ...] = (
    *shapes(context=8192, d_ff=14336, n_kv_heads=8, vocab_size=128000),
    *(rule for rule in VALUES if "rms_norm_eps" not in rule.keys), Read("rms_norm_eps", "eps", float, 1e-5),
    Read("tie_word_embeddings", "tied", bool, False), Rotary(),
    Read("attention_bias", "attention_bias", bool, False, codec=BIASED), Read("mlp_bias", "mlp_bias", bool, False),
    *(rule for rule in state_space() if not {HEAD, "mamba_proj_bias"}.intersection(rule.keys)),
    Together((INNER, HEAD), read_inner, write_inner),
    biases(("mamba_proj_bias", "projectors_bias"), "ssm_bias"), Together((RMS, BEFORE), read_norm, write_norm),
    Together((ENTERING, KEY, LEAVING), read_attention, write_attention),
    several("mlp_multipliers", ("gate_factor", "mlp_out")),
    several("ssm_multipliers", tuple(f"factor_{name}" for name in PARTS)),
    Read("ssm_in_multiplier", "ssm_in", float, 1.0), Read("ssm_out_multiplier", "ssm_out", float, 1.0),
    Read("embedding_multiplier", "embedding_scale", float, 1.0,
         codec=Codec(lambda value: None if value == 1.0 else value, embedding_factor)),
    Read("lm_head_multiplier", "logit_scale", float, 1.0),
    Fixed("mamba_use_mlp", (True, None), default=True, why="Every layer of its class has a feed-forward."),
    Fixed("attn_layer_indices", (None,), why="Every layer of its class has attention."),
    Ignored(("mamba_expand",), f"{INNER} says it"))


def weights(facts: Facts) -> list[Rule]:
    """Return the rules of all tensors."""
    theirs, ours = "model.layers.{layer}", "stack.layers.{layer}.layers.0.layers"
    return [*outer_weights(), *mixer_weights(f"{theirs}.mamba", f"{ours}.0"),
            *layer_weights(f"{theirs}.self_attn", f"{ours}.1", facts)]


FALCON_H1 = Family(
    name="falcon_h1", template=TEMPLATE, source="Zuo et al. 2025 (Falcon-H1, arXiv:2507.22448), sections 2 and 3",
    native=Native(model_type="falcon_h1", architecture="FalconH1ForCausalLM", architectures=("FalconH1Model",),
                  keys=KEYS, weights=weights, prefix="model.", tied=LM_HEAD))
