"""`Naming`: how llama.cpp computes one kind of model, as data, and the limits of what it can express."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from weft.families.template import Facts
from weft.families.weights import Rule
from weft.families.windows import window_of
from weft.interop.gguf.rotary_keys import rotary_limits
from weft.ops.rotary import Layout

Value: TypeAlias = bool | int | float | str | list[str] | list[float] | list[int]
"""The value of a key of the file. Whole numbers are unsigned 32-bit (signed in lists), others float32."""

Output: TypeAlias = Literal["optional", "required", "embedding"]
"""The matrix of the readout: omitted where it is the embedding's; always written; always the embedding's."""

TANH_GELU: Mapping[str, str] = {
    "gelu_tanh": "",
    "gelu": "activation: llama.cpp computes GELU by its tanh form where this model has the exact one; activations "
            "differ by up to 5e-4."}
SILU: Mapping[str, str] = {"silu": ""}


@dataclass(frozen=True)
class Naming:
    """One of llama.cpp's architectures, for one of Weft's families.

    Attributes:
        name: its name in llama.cpp.
        norm: the kind of norm, which determines the key of the epsilon.
        weights: the rules between the file's tensors and the model's, given the facts.
        activations: those that its feed-forward computes, each with a note for the user.
        rope: the order of rotary pairs in the file (llama.cpp's NORM is interleaved, its NEOX half-split); None: no
            rotary positions.
        scalings: of rotary positions, by kind.
        filled: whether queries must be as wide as the model.
        output: the matrix of the readout.
        only: facts with the values (in every layer) that it can compute.
        metadata: further keys, without the architecture's prefix.
        activation: the activation of a family that has only one and no fact for it.
    """

    name: str
    norm: Literal["rms", "layer"]
    weights: Callable[[Facts], list[Rule]]
    activations: Mapping[str, str]
    rope: Layout | None = None
    scalings: frozenset[str] = frozenset({"none"})
    filled: bool = True
    output: Output = "optional"
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    metadata: Callable[[Facts], dict[str, Value]] = lambda facts: {}
    activation: str = ""

    def limits(self, facts: Facts) -> list[str]:
        """A line for everything in a model that it cannot express."""
        rotary = rotary_limits(self.name, self.scalings, facts) if "rope_scaling" in facts else ()
        return [*self._values(facts), *self._windows(facts), *self._shapes(facts), *rotary]

    def notes(self, facts: Facts) -> list[str]:
        """Notes for the user about a model that it can express."""
        note = self.activations[facts.get("activation", self.activation)]
        return [note] if note else []

    def copies_embedding(self, facts: Facts) -> bool:
        """Whether the file holds the embedding a second time, as the readout's matrix."""
        return self.output == "required" and bool(facts["tied"])

    def _values(self, facts: Facts) -> Iterator[str]:
        for name, values in self.only.items():
            given = facts[name] if isinstance(facts[name], list) else [facts[name]]
            if any(each not in values for each in given):
                allowed = " or ".join(repr(each) for each in values)
                yield f"{name}: {facts[name]!r}, but llama.cpp's {self.name} has only {allowed}."
        activation = facts.get("activation", self.activation)
        if activation not in self.activations:
            yield f"activation: {activation!r}, but llama.cpp's {self.name} has only {', '.join(self.activations)}."
        if self.output == "embedding" and not facts["tied"]:
            yield f"tied: false, but llama.cpp's {self.name} uses the embedding as the readout."

    def _windows(self, facts: Facts) -> Iterator[str]:
        masks = facts["masks"] if "masks" in facts else [facts["mask"]] if "mask" in facts else []
        short = {window for window in map(window_of, masks) if window is not None and window < facts["context"]}
        for window in sorted(short):
            yield (f"mask: a window of {window} tokens in a context of {facts['context']}, but llama.cpp's {self.name} "
                   "has no windows.")

    def _shapes(self, facts: Facts) -> Iterator[str]:
        width = facts["n_heads"] * facts["d_head"]
        if self.filled and width != facts["d_model"]:
            yield (f"d_head: {facts['n_heads']} heads of {facts['d_head']} features make {width}, but llama.cpp's "
                   f"{self.name} has heads that make d_model {facts['d_model']}.")


def kv_heads(facts: Facts) -> int:
    """Key/value heads; as many as there are heads where the family has no others."""
    return int(facts.get("n_kv_heads") or facts["n_heads"])
