"""The architecture of llama.cpp that can hold a model, or the reasons why none can."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import torch

from weft.core.errors import InputError, UnsupportedError, nearest
from weft.core.model import ModelConfig
from weft.families.family import families
from weft.families.template import Facts
from weft.interop.gguf.architecture import Naming
from weft.interop.gguf.architectures import ARCHITECTURES

FILE_TYPES: Mapping[torch.dtype, int] = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 32}
"""By the dtype of the matrices, as llama.cpp numbers kinds of files."""


@final
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
    """Raise unless llama.cpp computes with weights of this dtype.

    Raises:
        UnsupportedError: they are float64.
    """
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
