"""RWKV's original files: their versions, what the shapes of their tensors say, and the rules of these.

They hold tensors alone (``emb.weight``, ``blocks.0.att.time_decay``, ...): names tell the version, shapes the sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from weft.families.family import Family
from weft.families.known.rwkv import RWKV, RWKV5, RWKV6, RWKV7
from weft.families.template import N_LAYERS, Facts
from weft.families.tensor_steps import TRANSPOSE, Step, fuse, one_by_one, reshape
from weft.families.weights import Rule, Shape, UnusedTensors, both, rename

ATT, FFN = "blocks.{layer}.att", "blocks.{layer}.ffn"
MIXER, CHANNEL = "stack.layers.{layer}.layers.0", "stack.layers.{layer}.layers.1"
FIRST = "blocks.0.att."


COMPLEMENT = one_by_one(lambda tensor: 1 - tensor, lambda tensor: 1 - tensor)
"""One less each number: the file has the share of the earlier token, the model that of the token itself."""


@dataclass(frozen=True)
class Version:
    """A version of RWKV and its original format.

    Attributes:
        mark: a tensor of the first block by which it is recognised, before all later ones of `VERSIONS`.
        context: tokens of a training window of its first released models, which files do not say.
        facts: from the shapes of a file's tensors, besides those of `common_facts`.
        weights: the rules of its tensors, given the facts.
        junk: tensors that files hold in vain.
    """

    mark: str
    family: Family
    context: int
    facts: Callable[[Mapping[str, Shape]], Facts]
    weights: Callable[[Facts], list[Rule]]
    junk: tuple[UnusedTensors, ...] = ()


def common_facts(shapes: Mapping[str, Shape]) -> Facts:
    """The sizes that are read alike in all versions."""
    vocabulary, width = shapes["emb.weight"]
    layers = {int(name.split(".")[1]) for name in shapes if name.startswith("blocks.") and name.split(".")[1].isdigit()}
    return {"vocab_size": vocabulary, "d_model": width, N_LAYERS: max(layers) + 1,
            "d_ff": shapes["blocks.0.ffn.key.weight"][0]}


def _heads(shape: Shape) -> Facts:
    return {"n_heads": shape[0], "d_head": shape[1]}


def _six_facts(shapes: Mapping[str, Shape]) -> Facts:
    return {**_heads(shapes[f"{FIRST}time_faaaa"]), "shift_rank": shapes[f"{FIRST}time_maa_w2"][1],
            "decay_rank": shapes[f"{FIRST}time_decay_w1"][1]}


def _seven_facts(shapes: Mapping[str, Shape]) -> Facts:
    layers = common_facts(shapes)[N_LAYERS]
    mixed = [f"blocks.{layer}.att.v2" for layer in range(1, layers)]
    return {**_heads(shapes[f"{FIRST}r_k"]), "value_residual": [layer > 0 for layer in range(layers)],
            "decay_rank": shapes[f"{FIRST}w2"][0], "rate_rank": shapes[f"{FIRST}a2"][0],
            "gate_rank": shapes[f"{FIRST}g2"][0], "value_rank": shapes[mixed[0]][0] if mixed else None}


def _frame() -> list[Rule]:
    """Embeddings, norms and the readout, named alike in all versions."""
    norms = {"blocks.0.ln0": "embedding.norm", "blocks.{layer}.ln1": "stack.layers.{layer}.norms.0",
             "blocks.{layer}.ln2": "stack.layers.{layer}.norms.1", "ln_out": "norm"}
    return [rename("emb.weight", "embedding.tokens.weight"), rename("head.weight", "readout.weight"),
            *(rule for theirs, ours in norms.items() for rule in both(theirs, ours))]


def _maps(place: str, ours: str, names: str) -> list[Rule]:
    """Linear maps without biases of the same names."""
    return [rename(f"{place}.{name}.weight", f"{ours}.{name}.weight") for name in names.split()]


def _mixes(place: str, ours: str, names: Mapping[str, str], *steps: Step) -> list[Rule]:
    return [rename(f"{place}.{theirs}", f"{ours}.mix_{name}", *steps) for theirs, name in names.items()]


def _vector(width: int) -> Step:
    return reshape((1, 1, width), (width,))


SHORT: Mapping[str, str] = {"time_mix_k": "key", "time_mix_v": "value", "time_mix_r": "receptance",
                            "time_mix_g": "gate"}
CHANNELS = {name: SHORT[name] for name in ("time_mix_k", "time_mix_r")}


def _four(facts: Facts) -> list[Rule]:
    mix = _vector(facts["d_model"])
    three = {name: SHORT[name] for name in ("time_mix_k", "time_mix_v", "time_mix_r")}
    return [*_frame(), *_maps(ATT, MIXER, "key value receptance output"), *_mixes(ATT, MIXER, three, mix),
            rename(f"{ATT}.time_decay", f"{MIXER}.decay"), rename(f"{ATT}.time_first", f"{MIXER}.bonus"),
            *_maps(FFN, CHANNEL, "key value receptance"), *_mixes(FFN, CHANNEL, CHANNELS, mix)]


def _normed(facts: Facts) -> list[Rule]:
    """The norm of heads."""
    heads = (facts["n_heads"], facts["d_head"])
    return both(f"{ATT}.ln_x", f"{MIXER}.norm", reshape((heads[0] * heads[1],), heads))


def _five(facts: Facts) -> list[Rule]:
    mix = _vector(facts["d_model"])
    return [*_frame(), *_maps(ATT, MIXER, "key value receptance gate output"), *_mixes(ATT, MIXER, SHORT, mix),
            rename(f"{ATT}.time_decay", f"{MIXER}.decay"), rename(f"{ATT}.time_faaaa", f"{MIXER}.bonus"),
            *_normed(facts), *_maps(FFN, CHANNEL, "key value receptance"), *_mixes(FFN, CHANNEL, CHANNELS, mix)]


def _six(facts: Facts) -> list[Rule]:
    width, heads = facts["d_model"], (facts["n_heads"], facts["d_head"])
    channels = {"time_maa_k": "key", "time_maa_r": "receptance"}
    return [*_frame(), *_maps(ATT, MIXER, "key value receptance gate output"),
            rename(f"{ATT}.time_maa_x", f"{MIXER}.shift_first", _vector(width)),
            Rule(tuple(f"{ATT}.time_maa_{name}" for name in "wkvrg"), (f"{MIXER}.shift",),
                 (reshape((1, 1, width), (1, width)), fuse((1,) * 5))),
            rename(f"{ATT}.time_maa_w1", f"{MIXER}.shift_narrow.weight", TRANSPOSE),
            rename(f"{ATT}.time_maa_w2", f"{MIXER}.shift_wide"),
            rename(f"{ATT}.time_decay", f"{MIXER}.decay", reshape((1, 1, heads[0] * heads[1]), heads)),
            rename(f"{ATT}.time_decay_w1", f"{MIXER}.decay_narrow.weight", TRANSPOSE),
            rename(f"{ATT}.time_decay_w2", f"{MIXER}.decay_wide.weight", TRANSPOSE),
            rename(f"{ATT}.time_faaaa", f"{MIXER}.bonus"), *_normed(facts),
            *_maps(FFN, CHANNEL, "key value receptance"),
            *_mixes(FFN, CHANNEL, channels, _vector(width), COMPLEMENT)]


def _seven(facts: Facts) -> list[Rule]:
    width, size = facts["d_model"], facts["n_heads"] * facts["d_head"]
    inner = _vector(size)
    ranks = [rule for theirs, ours in (("w", "decay"), ("a", "rate"), ("v", "share")) for rule in (
        rename(f"{ATT}.{theirs}0", f"{MIXER}.{ours}.bias", inner),
        rename(f"{ATT}.{theirs}1", f"{MIXER}.{ours}.narrow.weight", TRANSPOSE),
        rename(f"{ATT}.{theirs}2", f"{MIXER}.{ours}.wide.weight", TRANSPOSE))]
    return [*_frame(), *_maps(ATT, MIXER, "key value receptance output"), *ranks,
            Rule(tuple(f"{ATT}.x_{name}" for name in "rwkvag"), (f"{MIXER}.shift",),
                 (reshape((1, 1, width), (1, width)), fuse((1,) * 6))),
            rename(f"{ATT}.g1", f"{MIXER}.gate_narrow.weight", TRANSPOSE),
            rename(f"{ATT}.g2", f"{MIXER}.gate_wide.weight", TRANSPOSE),
            rename(f"{ATT}.k_k", f"{MIXER}.key_scale", inner), rename(f"{ATT}.k_a", f"{MIXER}.key_rate", inner),
            rename(f"{ATT}.r_k", f"{MIXER}.bonus"), *_normed(facts), *_maps(FFN, CHANNEL, "key value"),
            rename(f"{FFN}.x_k", f"{CHANNEL}.mix_key", _vector(width), COMPLEMENT)]


UNUSED = UnusedTensors(r"blocks\.0\.att\.v[012]", "the first layer gives its values and takes none")
VERSIONS = (Version("r_k", RWKV7, 4096, _seven_facts, _seven, (UNUSED,)),
            Version("time_maa_x", RWKV6, 4096, _six_facts, _six),
            Version("time_mix_g", RWKV5, 4096, lambda shapes: _heads(shapes[f"{FIRST}time_faaaa"]), _five),
            Version("time_first", RWKV, 1024, lambda shapes: {
                "d_attention": shapes[f"{FIRST}time_decay"][0], "eps": 1e-5, "tied": False}, _four))


def version_of(names: Any) -> Version | None:
    """The version of a file with tensors of these names; None for a file of none of them."""
    return next((version for version in VERSIONS if f"{FIRST}{version.mark}" in names), None)
