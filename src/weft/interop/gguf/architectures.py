"""Which of llama.cpp's architectures holds each family, as data: each from its graph in llama.cpp's sources.

The architecture of llama.cpp that can hold a model, or the reasons why none can.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from weft.core.errors import InputError, UnsupportedError, nearest
from weft.core.model import ModelConfig
from weft.families.family import families
from weft.families.template import Facts
from weft.families.weights import Rule, both, rename
from weft.interop.gguf import rules
from weft.interop.gguf.naming import SILU, TANH_GELU, Naming, Value
from weft.interop.gguf.rotary_keys import COMPUTED, TABULATED

MLP = rules.feedforward("up", "down")
GLU = rules.feedforward("gate", "up", "down")
NO_BIAS = {"attention_bias": ("none",)}
ALIBI_BIAS = 8.0
"""Slopes run from 2^(-8/n) to 2^-8, in the paper and in every published model of these families."""


def _gpt2(facts: Facts) -> list[Rule]:
    return [*rules.outer(), rename("position_embd.weight", "embedding.position.table"), *rules.norms(rules.PRE_NORMS),
            *rules.fused_attention(facts, None), *MLP]


def _gpt_neox(facts: Facts) -> list[Rule]:
    return [*rules.outer(), *rules.norms(rules.PRE_NORMS), *rules.fused_attention(facts, "half_split"), *MLP]


def _bloom(facts: Facts) -> list[Rule]:
    return [*rules.outer(), *both("token_embd_norm", "embedding.norm"), *rules.norms(rules.PRE_NORMS),
            *rules.fused_attention(facts, None), *MLP]


def _mpt(facts: Facts) -> list[Rule]:
    return [*rules.outer(), *rules.norms(rules.PRE_NORMS), *rules.fused_attention(facts, None), *MLP]


def _falcon(facts: Facts) -> list[Rule]:
    """With two norms, the feed-forward's is llama.cpp's first and attention's its second."""
    two = {"attn_norm_2": "norms.0", "attn_norm": "norms.1"}
    return [*rules.outer(), *rules.norms(two if facts["wiring"] == "two norms" else rules.ONE_NORM),
            *rules.fused_attention(facts, "half_split"), *MLP]


def _phi(facts: Facts) -> list[Rule]:
    return [*rules.outer(), *rules.norms(rules.ONE_NORM), *rules.separate_attention(facts, "half_split"), *MLP]


def _phi3(facts: Facts) -> list[Rule]:
    return [*rules.outer(), *rules.norms(rules.PRE_NORMS), *rules.fused_attention(facts, "half_split"),
            *rules.gate_above_up(facts)]


def _llama(facts: Facts) -> list[Rule]:
    return [*rules.outer(), *rules.norms(rules.PRE_NORMS), *rules.separate_attention(facts, "interleaved"), *GLU]


def _mixtral(facts: Facts) -> list[Rule]:
    return [*rules.outer(), *rules.norms(rules.PRE_NORMS), *rules.separate_attention(facts, "interleaved"),
            *rules.stacked_experts(facts)]


def _qwen2(facts: Facts) -> list[Rule]:
    return [*rules.outer(), *rules.norms(rules.PRE_NORMS), *rules.separate_attention(facts, "half_split"), *GLU]


def _qwen3(facts: Facts) -> list[Rule]:
    return [*_qwen2(facts), *rules.head_norms(facts, "half_split")]


def _gemma(facts: Facts) -> list[Rule]:
    """llama.cpp multiplies by w where the model multiplies by 1 + w."""
    return [*rules.outer(rules.OFFSET), *rules.norms(rules.PRE_NORMS, rules.OFFSET),
            *rules.separate_attention(facts, "half_split"), *GLU]


def _free_heads(facts: Facts) -> dict[str, Value]:
    return {"attention.key_length": facts["d_head"], "attention.value_length": facts["d_head"]}


def _experts(facts: Facts) -> dict[str, Value]:
    return {**_free_heads(facts), "expert_count": facts["n_experts"], "expert_used_count": facts["top_k"]}


def _clamped(facts: Facts) -> dict[str, Value]:
    clip = {} if facts["clip"] is None else {"attention.clamp_kqv": float(facts["clip"])}
    return {"attention.max_alibi_bias": ALIBI_BIAS, **clip}


def _parallel(facts: Facts) -> dict[str, Value]:
    return {"use_parallel_residual": bool(facts["parallel"])}


LLAMA: dict[str, Any] = {"norm": "rms", "activations": SILU, "rope": "interleaved", "scalings": TABULATED,
                         "filled": False}
"""The settings shared by all families that llama.cpp computes with its graph of Llama."""

ARCHITECTURES: Mapping[str, Naming] = MappingProxyType({
    "gpt2": Naming("gpt2", "layer", _gpt2, TANH_GELU, only={"scales": (None,)}),
    "gpt_neox": Naming("gptneox", "layer", _gpt_neox, TANH_GELU, rope="half_split", scalings=COMPUTED,
                       output="required", only={"attention_bias": ("all",)}, metadata=_parallel),
    "bloom": Naming("bloom", "layer", _bloom, TANH_GELU, only={"skip_normed": (False,)}, activation="gelu_tanh"),
    "mpt": Naming("mpt", "layer", _mpt, TANH_GELU, only={"scale": (None,)}, metadata=_clamped,
                  activation="gelu"),
    "falcon": Naming("falcon", "layer", _falcon, TANH_GELU, rope="half_split", scalings=COMPUTED,
                     only={"alibi": (False,), "wiring": ("one norm", "two norms"), "bias": (False,), **NO_BIAS}),
    "phi": Naming("phi2", "layer", _phi, TANH_GELU, rope="half_split", scalings=COMPUTED, output="required",
                  only={"qk_norm": (False,)}),
    "phi3": Naming("phi3", "rms", _phi3, SILU, rope="half_split", scalings=COMPUTED | {"longrope"}),
    "llama": Naming("llama", weights=_llama, metadata=_free_heads, **LLAMA),
    "mistral": Naming("llama", weights=_llama, metadata=_free_heads, **LLAMA),
    "mixtral": Naming("llama", weights=_mixtral, metadata=_experts, **LLAMA),
    "gemma": Naming("gemma", "rms", _gemma, TANH_GELU, rope="half_split", scalings=COMPUTED, filled=False,
                    output="embedding", only=NO_BIAS, metadata=_free_heads),
    "qwen2": Naming("qwen2", "rms", _qwen2, SILU, rope="half_split", scalings=COMPUTED),
    "qwen3": Naming("qwen3", "rms", _qwen3, SILU, rope="half_split", scalings=COMPUTED, filled=False,
                    only=NO_BIAS, metadata=_free_heads),
})
"""By family. llama.cpp computes no others: it has no GPT-1, GPT-Neo, OPT, and of GPT-J the name only."""


FILE_TYPES: Mapping[torch.dtype, int] = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 32}
"""By the dtype of the matrices, as llama.cpp numbers kinds of files."""


@dataclass(frozen=True)
class GgufFit:
    """A family that can express a model, llama.cpp's architecture for it, and the facts."""

    family: str
    architecture: Naming
    facts: Facts


def fit_gguf(config: ModelConfig, kept: Mapping[str, Any], *, family: str | None = None,
             first: str | None = None) -> GgufFit:
    """The family, and the architecture, that can hold a model.

    Args:
        kept: see `Family.write`.
        family: the only family to try; None: all.
        first: the family to try first, such as the one that the model came from.

    Raises:
        InputError: llama.cpp has no architecture for the family of that name.
        UnsupportedError: none can; the message lists what does not fit.
    """
    if family is not None and family not in ARCHITECTURES:
        raise InputError(f"llama.cpp has no architecture for a family {family!r}.", where="family",
                         remedy=nearest(family, ARCHITECTURES))
    candidates = [family] if family else sorted(ARCHITECTURES, key=lambda name: (name != first, name))
    found: dict[str, list[str]] = {}
    for name in candidates:
        facts, found[name] = _problems(name, config, kept)
        if not found[name]:
            return GgufFit(name, ARCHITECTURES[name], facts)
    raise _nothing_fits(found, first)


def require_file_type(dtype: torch.dtype) -> None:
    """Raise unless llama.cpp computes with weights of this dtype. Raises `UnsupportedError`: they are float64."""
    if dtype not in FILE_TYPES:
        raise UnsupportedError(f"llama.cpp has no matrices in {str(dtype).removeprefix('torch.')}.", where="dtype",
                               remedy="Convert with --cast float32 (dtype='float32').")


def _problems(name: str, config: ModelConfig, kept: Mapping[str, Any]) -> tuple[Facts, list[str]]:
    """The facts, and a line for all that does not fit into the family or its architecture."""
    _, facts, problems = families()[name].write(config, kept)
    return facts, problems or ARCHITECTURES[name].limits(facts)


def _nothing_fits(found: Mapping[str, list[str]], first: str | None) -> UnsupportedError:
    name = first if first in found else min(found, key=lambda each: len(found[each]))
    assert name is not None, "there is a family"
    lines = "".join(f"\n  - {problem}" for problem in found[name])
    places = f"{len(found[name])} place{'s' if len(found[name]) > 1 else ''}"
    absent = f"it has no architecture for the family {first!r}, and " if first and first not in found else ""
    return UnsupportedError(f"llama.cpp cannot compute this model; {absent}as a {name} model it does not fit in "
                            f"{places}:{lines}\n", where="model",
                            remedy="Change the model there, or keep it in another format.")
