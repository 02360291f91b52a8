"""Rotary positions in a GGUF file: keys for bases and scalings, tensors for factors on single pairs' wavelengths.

llama.cpp computes ``linear`` and ``yarn`` (with 32 and 1 turns as its bounds, which no key can change) from keys in
every rotary architecture. Architectures that read a tensor of factors, one for each pair, can hold any frequencies that
do not depend on the length: ``rope_freqs`` has theta_i / theta'_i. LongRoPE has two such tensors, of which llama.cpp
takes one when it opens a context, by that context's size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast

import torch
from jaxtyping import Float32
from torch import Tensor

from weft.core.config import parse_part
from weft.core.part_config import Dims
from weft.families.template import Facts
from weft.positions.frequencies import FixedFrequencies, RopeScalingConfig, base_frequencies

FREQS, SHORT, LONG = "rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"
STANDARD_RAMP = {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": True}
SMALLEST_CONTEXT = 256
"""llama.cpp rounds every context up to a multiple of this many tokens."""

COMPUTED = frozenset({"none", "ntk", "linear", "yarn"})
"""Scalings of every rotary architecture."""

TABULATED = COMPUTED | {"llama3", "longrope"}
"""Scalings of those that read tensors of factors."""


def rotary_limits(name: str, scalings: frozenset[str], facts: Facts) -> Iterator[str]:
    """A line for everything in a model's rotary positions that an architecture cannot express."""
    scaling, rot = facts["rope_scaling"], facts["rot"]
    kind = scaling["kind"]
    if kind not in scalings:
        yield f"rope_scaling: {kind!r}, but llama.cpp's {name} has only {', '.join(sorted(scalings))}."
    elif kind == "yarn" and not _standard(scaling) and scalings != TABULATED:
        odd = ", ".join(f"{key} {scaling[key]}" for key, value in STANDARD_RAMP.items() if scaling[key] != value)
        yield f"rope_scaling: 'yarn' with {odd}, but llama.cpp's {name} has 32 and 1 turns, truncated."
    elif kind == "longrope" and scaling["original_length"] < SMALLEST_CONTEXT:
        yield (f"rope_scaling: 'longrope' with original_length {scaling['original_length']}, but llama.cpp has no "
               f"context of less than {SMALLEST_CONTEXT} tokens, so it would never use the short factors.")
    if rot % 2:
        yield f"rot: {rot} features are rotary, but llama.cpp rotates an even number."


def rotary_metadata(facts: Facts) -> dict[str, Any]:
    """The keys, without the architecture's prefix."""
    scaling, base, rot = facts["rope_scaling"], facts["rope_base"], facts["rot"]
    kind = scaling["kind"]
    if kind == "ntk":  # another base, and nothing else
        base = base * scaling["factor"] ** (rot / (rot - 2))
    found: dict[str, Any] = {"rope.dimension_count": rot, "rope.freq_base": float(base)}
    if kind == "linear":
        found |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(scaling["factor"])}
    elif kind == "yarn":
        found |= _yarn(scaling)
    elif kind == "longrope":
        found |= {"rope.scaling.type": "longrope", "rope.scaling.attn_factor": amplitude(facts),
                  "rope.scaling.original_context_length": scaling["original_length"]}
    return found


def rotary_tensors(facts: Facts) -> dict[str, Float32[Tensor, "pairs"]]:
    """The tensors of factors that the scaling needs."""
    scaling = facts["rope_scaling"]
    if scaling["kind"] == "longrope":
        return {LONG: torch.tensor(scaling["long_factor"]), SHORT: torch.tensor(scaling["short_factor"])}
    if scaling["kind"] == "llama3" or (scaling["kind"] == "yarn" and not _standard(scaling)):
        scaled = _frequencies(facts)
        assert isinstance(scaled, FixedFrequencies), "only fixed frequencies have factors"
        plain = torch.tensor(base_frequencies(facts["rot"], facts["rope_base"]), dtype=torch.float64)
        return {FREQS: (plain / scaled.theta.at(torch.float64)).float()}
    return {}


def amplitude(facts: Facts) -> float:
    """The factor of the scaling on cos and sin."""
    return float(_frequencies(facts).amplitude)


def _yarn(scaling: dict[str, Any]) -> dict[str, Any]:
    """llama.cpp multiplies cos and sin by 0.1 ln(s) + 1 itself where it computes the ramp, and by the key's factor."""
    part = cast(Any, _part(scaling))
    if not _standard(scaling):
        return {"rope.scaling.attn_factor": part.amplitude()}
    usual = 0.1 * math.log(scaling["factor"]) + 1 if scaling["factor"] > 1 else 1.0
    return {"rope.scaling.type": "yarn", "rope.scaling.factor": float(scaling["factor"]),
            "rope.scaling.attn_factor": part.amplitude() / usual,
            "rope.scaling.original_context_length": scaling["original_length"]}


def _standard(scaling: dict[str, Any]) -> bool:
    return all(scaling[key] == value for key, value in STANDARD_RAMP.items())


def _part(scaling: dict[str, Any]) -> RopeScalingConfig:
    part = parse_part(("rope_scaling",), scaling)
    assert isinstance(part, RopeScalingConfig), "the group rope_scaling holds scalings"
    return part


def _frequencies(facts: Facts) -> Any:
    dims = Dims(d_model=facts["d_model"])
    return _part(facts["rope_scaling"]).frequencies(dims, facts["rot"], facts["rope_base"])
