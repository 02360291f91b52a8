"""Rotary positions in Hugging Face configurations, old spellings and new, as one rule for every family.

    rope_parameters: {rope_type, rope_theta, partial_rotary_factor, ...}    transformers 5
    rope_theta, partial_rotary_factor, rope_scaling: {type or rope_type, factor, ...}    before
    rotary_emb_base, rotary_pct                                             GPT-NeoX

The facts are ``rope_base``, ``rot`` (rotary features of a head; None: all), ``rope_scaling`` (Weft's part, as
data) and ``layout`` (which features make a pair).

Scalings of rotary positions: their names and parameters in Hugging Face configurations, and Weft's parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from weft.core.errors import nearest
from weft.families.keys import KeyProblem, KeyRule, Raw, typed
from weft.families.template import Facts
from weft.families.tensor_steps import Step, rotary_order
from weft.ops.rotary import Layout

TYPES = ("rope_type", "type")
OWN_KEYS = frozenset({*TYPES, "rope_theta", "partial_rotary_factor"})


@dataclass(frozen=True)
class Rotary(KeyRule):
    """All keys about rotary positions. ``context`` and ``d_head`` must have been read before.

    Attributes:
        base: default of the base.
        share: default of the share of a head's features that are rotary; None: all, in every model of the family.
        base_key: the key outside ``rope_parameters``, old spelling.
        layout: in which the family's weights are stored.
        odd: whether the class accepts an odd number of rotary features, see `_even`.
        original_outside: write the original length beside ``rope_scaling`` too (Phi-3); where a file has it there, it
            takes precedence over the one inside, in all families.
        original: the original length of the class, which also takes precedence over the one inside; None: none.
        renamed: scalings that have another meaning in this family: the meaning by the name (Phi-3's "yarn" is
            LongRoPE).
    """

    base: float = 10000.0
    share: float | None = None
    base_key: str = "rope_theta"
    share_key: str = "partial_rotary_factor"
    layout: Layout = "half_split"
    odd: bool = True
    original_outside: bool = False
    original: int | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.base_key, "rope_theta", "rope_scaling", "rope_parameters", self.share_key,
                                    "partial_rotary_factor", ORIGINAL)))

    def read(self, raw: Raw, facts: Facts) -> Facts:
        given = self._parameters(raw)
        base = self._number(raw, given, self.base_key, "rope_theta", self.base)
        share = self._number(raw, given, self.share_key, "partial_rotary_factor", self.share or 1.0)
        if self.share is None and share != 1.0:
            raise KeyProblem(f"partial_rotary_factor: {share}, but in this family all features of a head are rotary.")
        kind = next((given[name] for name in TYPES if given.get(name) is not None), UNSCALED)
        kind = self.renamed.get(kind, kind)
        if kind not in SCALINGS:
            raise KeyProblem(f"rope_parameters: no scaling is called {kind!r}. {nearest(str(kind), SCALINGS)}")
        scaling = SCALINGS[kind]
        inner = {key: value for key, value in given.items() if key not in OWN_KEYS and value is not None}
        outside = self.original if raw.get(ORIGINAL) is None else raw[ORIGINAL]
        if outside is not None and scaling.original:
            inner[ORIGINAL] = outside
        turned = int(facts["d_head"] * share)
        if turned % 2 and not self.odd:
            raise KeyProblem(f"partial_rotary_factor: {share} gives {turned} rotary of {facts['d_head']} features, and "
                             "their number must be even.")
        base, rot = _even(base, turned, scaled=kind != UNSCALED)
        whole = rot == facts["d_head"]
        return {"rope_base": base, "rot": None if whole else rot, "rope_scaling": scaling.read(inner, facts["context"]),
                "layout": self.layout}

    def write(self, facts: Facts) -> dict[str, Any]:
        scaling, base = facts["rope_scaling"], facts["rope_base"]
        if scaling["kind"] == "ntk":  # another base, and nothing else
            scaling, base = {"kind": "none"}, base * scaling["factor"] ** (facts["rot"] / (facts["rot"] - 2))
        named = next((each for each in SCALINGS.values() if each.kind == scaling["kind"]), None)
        if named is None:
            raise KeyProblem(f"cannot express the scaling {scaling['kind']!r}.")
        parameters = {"rope_type": named.rope_type, "rope_theta": base, **named.write(scaling, facts["context"])}
        if self.share is not None:
            parameters["partial_rotary_factor"] = _share(facts["rot"], facts["d_head"])
        elif facts["rot"] != facts["d_head"]:
            raise KeyProblem(f"{facts['rot']} of {facts['d_head']} features are rotary; in this family all are.")
        return {"rope_parameters": parameters, **self._old(parameters, named.rope_type)}

    def _old(self, parameters: Mapping[str, Any], kind: str) -> dict[str, Any]:
        """The same in the spelling before transformers 5, which vLLM and llama.cpp also read."""
        inner = {key: value for key, value in parameters.items() if key not in OWN_KEYS}
        old: dict[str, Any] = {self.base_key: parameters["rope_theta"],
                               "rope_scaling": None if kind == UNSCALED else {"rope_type": kind, **inner}}
        if self.share is not None:
            old[self.share_key] = parameters["partial_rotary_factor"]
        if self.original_outside and ORIGINAL in inner:
            old[ORIGINAL] = inner[ORIGINAL]
        return old

    def _parameters(self, raw: Raw) -> dict[str, Any]:
        name = "rope_scaling" if raw.get("rope_scaling") else "rope_parameters"
        given = typed(name, raw.get(name) or {}, dict)
        nested = sorted(key for key, value in given.items() if isinstance(value, Mapping))
        if nested:
            raise KeyProblem(f"{name}: differs between layers ({', '.join(nested)}), which this family cannot have.")
        return dict(given)

    def _number(self, raw: Raw, given: Mapping[str, Any], old: str, new: str, default: float) -> float:
        found = [(f"rope_parameters.{new}", given.get(new)), (old, raw.get(old)), (new, raw.get(new))]
        key, value = next(((key, value) for key, value in found if value is not None), (old, default))
        return float(typed(key, value, float))


def _even(base: float, turned: int, *, scaled: bool) -> tuple[float, int]:
    """The base and the even number of rotary features with the frequencies of ``turned`` features in `transformers`.

    There an odd number R rotates R + 1 features with base^(-2i/R): an even number with another base.
    """
    if turned % 2 == 0:
        return base, turned
    if scaled:
        raise KeyProblem(f"partial_rotary_factor: {turned} rotary features, an odd number, cannot be scaled.")
    return base ** ((turned + 1) / turned), turned + 1


def _share(rot: int, d_head: int) -> float:
    """The share of a head that gives ``rot`` features in `transformers`, which rounds down."""
    share = rot / d_head
    return share if int(d_head * share) == rot else math.nextafter(share, 1.0)


def reordered(facts: Facts, heads: int, layout: Layout = "half_split") -> tuple[Step, ...]:
    """The step for the rows of ``heads`` heads where the model's layout of pairs differs from ``layout``, that of the
    family's files; empty where they agree."""
    if facts["layout"] == layout:
        return ()
    return (rotary_order(heads, facts["d_head"], facts["rot"] or facts["d_head"], reverse=layout == "interleaved"),)


UNSCALED = "default"
ORIGINAL = "original_max_position_embeddings"

Values = Mapping[str, Any]


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
        """Weft's part, as data. Raises `KeyProblem`: listing keys that are missing or unknown."""
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
