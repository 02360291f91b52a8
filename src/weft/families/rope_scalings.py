"""Scalings of rotary positions: their names and parameters in Hugging Face configurations, and Weft's parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, final

from weft.core.errors import nearest
from weft.families.keys import KeyProblem

UNSCALED = "default"
ORIGINAL = "original_max_position_embeddings"

Values = Mapping[str, Any]


@final
@dataclass(frozen=True)
class Scaling:
    """One scaling.

    Attributes:
        rope_type: its name in Hugging Face configurations.
        kind: its kind in Weft.
        names: Weft's fields by the keys of Hugging Face.
        required: keys that must be present.
        optional: further keys, which ``derived`` reads or which have no effect.
        original: whether it has an original length, which defaults to the context.
        derived: computes further fields from the keys and the context.
        written: computes further keys from the fields and the context.
    """

    rope_type: str
    kind: str
    names: Mapping[str, str]
    required: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    original: bool = False
    derived: Callable[[Values, int], dict[str, Any]] = lambda given, context: {}
    written: Callable[[Values, int], dict[str, Any]] = lambda fields, context: {}

    def read(self, given: Values, context: int) -> dict[str, Any]:
        """Weft's part, as data.

        Raises:
            KeyProblem: listing keys that are missing or unknown.
        """
        given = {ORIGINAL: context, **given} if self.original else given
        known = {*self.names, *self.optional, *IGNORED}
        problems = [f"{key} is missing" for key in sorted(self.required - set(given))]
        problems += [f"{key!r} is unknown. {nearest(key, known)}".rstrip() for key in given if key not in known]
        if problems:
            raise KeyProblem(f"rope_parameters: for {self.rope_type!r} {'; '.join(problems)}.")
        fields = {ours: given[theirs] for theirs, ours in self.names.items() if theirs in given}
        return {"kind": self.kind, **fields, **self.derived(given, context)}

    def write(self, fields: Values, context: int) -> dict[str, Any]:
        """The parameters of Hugging Face, without the type."""
        found = {theirs: fields[ours] for theirs, ours in self.names.items() if fields.get(ours) is not None}
        return {**found, **self.written(fields, context)}


IGNORED = frozenset({"finetuned", "max_position_embeddings"})
"""Keys of ``rope_parameters`` that no version of `transformers` reads."""


def _require_context(fields: Values, context: int) -> dict[str, Any]:
    if fields["original_length"] != context:
        raise KeyProblem(f"rope_parameters: 'dynamic' scaling begins at {fields['original_length']} tokens; the file "
                         f"has only the context, {context}.")
    return {}


def _yarn(given: Values, context: int) -> dict[str, Any]:
    """A missing factor follows from the lengths. The attention factor is used where it is given, else the pair of
    mscales, if it is complete."""
    fields = {"factor": given.get("factor") or context / given[ORIGINAL], "beta_fast": given.get("beta_fast") or 32.0,
              "beta_slow": given.get("beta_slow") or 1.0}
    if given.get("attention_factor") is not None:
        return {**fields, "attention_factor": given["attention_factor"]}
    pair = {name: given.get(name) for name in ("mscale", "mscale_all_dim")}
    return {**fields, **pair} if all(pair.values()) else fields


def _extension(fields: Values, context: int) -> dict[str, Any]:
    extended = fields.get("extended_length")
    return {} if extended in (None, context) else {"factor": extended / fields["original_length"]}


FACTOR = {"factor": "factor"}
LENGTH = {ORIGINAL: "original_length"}
BLEND = {"low_freq_factor": "low_freq_factor", "high_freq_factor": "high_freq_factor"}
LISTS = {"short_factor": "short_factor", "long_factor": "long_factor"}
YARN = {name: name for name in ("factor", "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim")}

LONGROPE = Scaling("longrope", "longrope", {**LISTS, **LENGTH, **FACTOR, "attention_factor": "attention_factor"},
                   required=frozenset(LISTS), original=True, written=_extension,
                   derived=lambda given, context: {} if given.get("factor") else {"extended_length": context})
_KINDS = (
    Scaling(UNSCALED, "none", {}, optional=frozenset({"factor", ORIGINAL})),
    Scaling("linear", "linear", FACTOR, required=frozenset(FACTOR), optional=frozenset({ORIGINAL})),
    Scaling("proportional", "linear", FACTOR, optional=frozenset({ORIGINAL}),  # of a head that is turned whole
            derived=lambda given, context: {"factor": given.get("factor") or 1.0}),
    Scaling("dynamic", "dynamic", FACTOR, required=frozenset(FACTOR), optional=frozenset({ORIGINAL}),
            derived=lambda given, context: {"original_length": context}, written=_require_context),
    Scaling("llama3", "llama3", {**FACTOR, **BLEND, **LENGTH}, required=frozenset({**FACTOR, **BLEND}), original=True),
    Scaling("yarn", "yarn", {**LENGTH, "truncate": "truncate"}, optional=frozenset(YARN), original=True, derived=_yarn,
            written=lambda fields, context: {key: fields[key] for key in YARN if fields.get(key) is not None}),
    LONGROPE,
)

SCALINGS: Mapping[str, Scaling] = MappingProxyType({each.rope_type: each for each in _KINDS} | {"su": LONGROPE})
"""Scalings by their Hugging Face names; ``su`` is LongRoPE in Phi-3's first files."""
