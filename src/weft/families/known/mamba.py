"""Mamba: blocks of one selective state-space layer. Falcon-Mamba: the same with root-mean-square norms, without
weights, of every token's step features, B and C."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from weft.families.family import Family, Native
from weft.families.keys import Fixed, Ignored, KeyProblem, KeyRule, Raw, Read, Together, typed
from weft.families.known.llama import RMS_NORM
from weft.families.template import N_LAYERS, Fact, Facts, Layers
from weft.families.weights import Rule, both, rename

MIXER = {"kind": "mamba", "d_state": Fact("d_state"), "expand": Fact("expand"), "d_conv": Fact("d_conv"),
         "rank": Fact("rank"), "bias": Fact("bias"), "conv_bias": Fact("conv_bias"), "dt_min": Fact("dt_min"),
         "dt_max": Fact("dt_max"), "dt_floor": Fact("dt_floor")}


def template(mixer: Mapping[str, Any]) -> dict[str, Any]:
    """A decoder of such mixers alone."""
    return {"kind": "decoder", "vocab_size": Fact("vocab_size"), "context": Fact("context"),
            "d_model": Fact("d_model"), "embedding": {"std": Fact("std")}, "norm": RMS_NORM,
            "readout": {"kind": "linear", "tied": Fact("tied")},
            "blocks": Layers({"kind": "pre", "norm": RMS_NORM, "layers": [mixer]})}


INNER, EXPAND = "intermediate_size", "expand"


def read_inner(raw: Raw, facts: Facts) -> Facts:
    """Inner channels for each feature: ``intermediate_size`` takes precedence over ``expand``, as in `transformers`
    (Falcon-Mamba's files say 8192 and 16 for a width of 4096)."""
    width, expand = facts["d_model"], typed(EXPAND, raw.get(EXPAND), int)
    inner = typed(INNER, raw.get(INNER), int)
    if inner is None:
        return {"expand": 2 if expand is None else expand}
    if inner < 1 or inner % width:
        raise KeyProblem(f"{INNER}: {inner} is no multiple of hidden_size {width}.")
    return {"expand": inner // width}


def write_inner(facts: Facts) -> dict[str, Any]:
    """Both keys."""
    return {EXPAND: facts["expand"], INNER: facts["expand"] * facts["d_model"]}


def rank_key(name: str) -> KeyRule:
    """The rank of a token's steps: a number, or "auto" for a sixteenth of the width."""
    def read(raw: Raw, facts: Facts) -> Facts:
        value = raw.get(name)
        if value is None or value == "auto":
            return {"rank": math.ceil(facts["d_model"] / 16)}
        return {"rank": typed(name, value, int)}

    def write(facts: Facts) -> dict[str, Any]:
        return {name: math.ceil(facts["d_model"] / 16) if facts["rank"] is None else facts["rank"]}

    return Together((name,), read, write)


def no_context(tokens: int) -> KeyRule:
    """Files have no key for the length of training windows, on which nothing of the model depends; it was this one."""
    return Together((), lambda raw, facts: {"context": tokens}, lambda facts: {})


STEPS: tuple[KeyRule, ...] = (
    Read("time_step_min", "dt_min", float, 0.001), Read("time_step_max", "dt_max", float, 0.1),
    Read("time_step_floor", "dt_floor", float, 1e-4))
KEYS: tuple[KeyRule, ...] = (
    Read("vocab_size", "vocab_size", default=50280), Read("hidden_size", "d_model", default=768),
    Read("num_hidden_layers", N_LAYERS, default=32), Read("state_size", "d_state", default=16),
    Together((EXPAND, INNER), read_inner, write_inner), rank_key("time_step_rank"),
    Read("conv_kernel", "d_conv", default=4), Read("use_bias", "bias", bool, False),
    Read("use_conv_bias", "conv_bias", bool, True), *STEPS, Read("layer_norm_epsilon", "eps", float, 1e-5),
    Read("initializer_range", "std", float, 0.1), Read("tie_word_embeddings", "tied", bool, True),
    Fixed("hidden_act", ("silu",), default="silu", why="The convolution and the gate are followed by silu."),
    Ignored(("time_step_scale", "time_step_init_scheme", "rescale_prenorm_residual"), "of initial weights"),
    Ignored(("residual_in_fp32",), "in which precision the same numbers are added"),
    Ignored(("use_mambapy", "use_falcon_mambapy", "use_associative_scan"), "how the scan is computed"),
    Ignored(("d_model", "d_inner", "n_layer", "ssm_cfg", "rms_norm", "fused_add_norm", "pad_vocab_size_multiple"),
            "of the code that trained it, copies of other keys"))
"""The keys of `transformers`, with its defaults; Falcon-Mamba's are the same and one more."""

THEIRS, OURS = "backbone.layers.{layer}", "stack.layers.{layer}"


def mixer_weights(theirs: str, ours: str) -> list[Rule]:
    """A mixer's tensors."""
    names = {"A_log": "a_log", "D": "skip", "x_proj.weight": "select.weight", "dt_proj.weight": "step.weight",
             "dt_proj.bias": "dt_bias"}
    maps = {"in_proj": "input", "conv1d": "convolution", "out_proj": "output"}
    return [*(rename(f"{theirs}.{a}", f"{ours}.{b}") for a, b in names.items()),
            *(rule for a, b in maps.items() for rule in both(f"{theirs}.{a}", f"{ours}.{b}"))]


def weights(facts: Facts, tokens: str = "backbone.embeddings.weight") -> list[Rule]:
    """Return the rules of all tensors."""
    return around(mixer_weights(f"{THEIRS}.mixer", f"{OURS}.layers.0"), tokens)


def around(mixer: list[Rule], tokens: str) -> list[Rule]:
    """The tensors of a model of one mixer a layer: the mixer's, and ``tokens``, norms and readout around it."""
    return [rename(tokens, "embedding.tokens.weight"), rename(f"{THEIRS}.norm.weight", f"{OURS}.norms.0.weight"),
            *mixer, rename("backbone.norm_f.weight", "norm.weight"), rename("lm_head.weight", "readout.weight")]


def first_weights(facts: Facts) -> list[Rule]:
    """As the authors' own code names them."""
    return weights(facts, "backbone.embedding.weight")


HEAD = ("lm_head.weight", "backbone.embeddings.weight")


MAMBA = Family(
    name="mamba", template=template(MIXER), source="Gu & Dao 2023 (arXiv:2312.00752), section 3.4 and appendix E.2",
    native=Native(
        model_type="mamba", architecture="MambaForCausalLM", architectures=("MambaModel",),
        keys=(*KEYS, no_context(2048)), weights=weights, otherwise=(first_weights,), prefix="backbone.", tied=HEAD))


NORMED = MIXER | {"norm": {"kind": "rmsnorm", "eps": Fact("mixer_eps"), "weight": False}}

FALCON_MAMBA = Family(
    name="falcon_mamba", template=template(NORMED), source="Zuo et al. 2024 (arXiv:2410.05355), section 2",
    native=Native(
        model_type="falcon_mamba", architecture="FalconMambaForCausalLM", architectures=("FalconMambaModel",),
        keys=(*KEYS, Read("mixer_rms_eps", "mixer_eps", float, 1e-6), no_context(8192)), weights=weights,
        prefix="backbone.", tied=HEAD))
