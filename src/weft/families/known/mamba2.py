"""Mamba-2: blocks of one state-space layer each."""

from __future__ import annotations

import math
from typing import Any

from weft.families.family import Family, Native
from weft.families.keys import Fixed, Ignored, KeyProblem, KeyRule, Raw, Read, Together, typed
from weft.families.known.mamba import HEAD, OURS, THEIRS, around, no_context, template
from weft.families.template import N_LAYERS, Fact, Facts
from weft.families.weights import Rule, both, rename

GATED_NORM = {"gate_order": "gate_first", "per_group": True, "eps": Fact("eps")}
MIXER = {"kind": "mamba2", "n_heads": Fact("ssm_heads"), "d_head": Fact("ssm_head"), "d_state": Fact("d_state"),
         "n_groups": Fact("n_groups"), "d_conv": Fact("d_conv"), "bias": Fact("ssm_bias"),
         "conv_bias": Fact("conv_bias"), "norm": GATED_NORM,
         "step_sizes": {"dt_min": Fact("low"), "dt_max": Fact("high"), "dt_floor": Fact("floor"),
                        "least": Fact("least"), "most": Fact("most")}}
LIMIT = "time_step_limit"


INFINITE = {"__float__": "Infinity"}
"""How files of `transformers` 5 write infinity."""


def read_limit(raw: Raw, facts: Facts) -> Facts:
    """The two bounds of steps; infinity is none."""
    given = typed(LIMIT, raw.get(LIMIT), list)
    bounds = [0.0, math.inf] if given is None else [math.inf if each == INFINITE else each for each in given]
    if len(bounds) != 2 or not all(isinstance(each, int | float) for each in bounds):
        raise KeyProblem(f"{LIMIT}: {given!r}, where only two numbers can be read.")
    return {"least": float(bounds[0]), "most": None if bounds[1] == math.inf else float(bounds[1])}


def write_limit(facts: Facts) -> dict[str, Any]:
    """The two bounds."""
    return {LIMIT: [facts["least"], INFINITE if facts["most"] is None else facts["most"]]}


def read_expand(key: str, default: int) -> KeyRule:
    """Inner features for each of the model's, which must be those of all heads together."""
    def read(raw: Raw, facts: Facts) -> Facts:
        inner, expand = facts["ssm_heads"] * facts["ssm_head"], typed(key, raw.get(key, default), int)
        if inner != expand * facts["d_model"]:
            raise KeyProblem(f"{key}: {expand} times hidden_size {facts['d_model']} is not {facts['ssm_heads']} heads "
                             f"of {facts['ssm_head']} features.")
        return {}

    def write(facts: Facts) -> dict[str, Any]:
        inner = facts["ssm_heads"] * facts["ssm_head"]
        if inner % facts["d_model"]:
            raise KeyProblem(f"{key}: {facts['ssm_heads']} heads of {facts['ssm_head']} features are no whole multiple "
                             f"of hidden_size {facts['d_model']}, which the file has.")
        return {key: inner // facts["d_model"]}

    return Together((key,), read, write)


KEYS: tuple[KeyRule, ...] = (
    Read("vocab_size", "vocab_size", default=32768), Read("hidden_size", "d_model", default=4096),
    Read("num_hidden_layers", N_LAYERS, default=64), Read("num_heads", "ssm_heads", default=128),
    Read("head_dim", "ssm_head", default=64), read_expand("expand", 2), Read("state_size", "d_state", default=128),
    Read("n_groups", "n_groups", default=8), Read("conv_kernel", "d_conv", default=4), no_context(2048),
    Read("use_bias", "ssm_bias", bool, False), Read("use_conv_bias", "conv_bias", bool, True),
    Read("time_step_min", "low", float, 0.001), Read("time_step_max", "high", float, 0.1),
    Read("time_step_floor", "floor", float, 1e-4), Together((LIMIT,), read_limit, write_limit),
    Read("layer_norm_epsilon", "eps", float, 1e-5), Read("initializer_range", "std", float, 0.1),
    Read("tie_word_embeddings", "tied", bool, False),
    Fixed("hidden_act", ("silu", "swish"), default="silu", why="The convolution and the gate are followed by silu."),
    Fixed("rms_norm", (True, None), default=True, why="Its class has a norm after every gate."),
    Ignored(("time_step_rank",), "of Mamba's first version"),
    Ignored(("rescale_prenorm_residual",), "of initial weights"), Ignored(("chunk_size",), "how states are computed"),
    Ignored(("residual_in_fp32",), "in which precision the same numbers are added"))
"""The keys of `transformers`, with its defaults."""


def mixer_weights(theirs: str, ours: str) -> list[Rule]:
    """A mixer's tensors."""
    names = {"A_log": "log_rate", "dt_bias": "dt_bias", "D": "skip", "norm.weight": "norm.weight"}
    maps = {"in_proj": "input", "conv1d": "convolution", "out_proj": "output"}
    return [*(rename(f"{theirs}.{a}", f"{ours}.{b}") for a, b in names.items()),
            *(rule for a, b in maps.items() for rule in both(f"{theirs}.{a}", f"{ours}.{b}"))]


def weights(facts: Facts, tokens: str = "backbone.embeddings.weight") -> list[Rule]:
    """Return the rules of all tensors."""
    return around(mixer_weights(f"{THEIRS}.mixer", f"{OURS}.layers.0"), tokens)


def first_weights(facts: Facts) -> list[Rule]:
    """As the authors' own code names them."""
    return weights(facts, "backbone.embedding.weight")


MAMBA2 = Family(
    name="mamba2", template=template(MIXER), source="Dao & Gu 2024 (arXiv:2405.21060), section 7",
    native=Native(
        model_type="mamba2", architecture="Mamba2ForCausalLM", architectures=("Mamba2Model",), keys=KEYS,
        weights=weights, otherwise=(first_weights,), prefix="backbone.",
        tied=HEAD))
