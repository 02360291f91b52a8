"""Rotary positions whose base and scaling differ between layers with a sliding window and layers without.

    rope_parameters: {full_attention: {...}, sliding_attention: {...}}    transformers 5
    rope_theta, rope_scaling, rope_local_base_freq                        before (Gemma 3)

The facts are ``rope_bases`` and ``rope_scalings``, one a layer, and ``rot`` and ``layout`` as in `weft.families.rope`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft.families.keys import KeyProblem, KeyRule, Raw, typed
from weft.families.rope import TYPES, Rotary
from weft.families.template import Facts
from weft.families.windows import CAUSAL, FULL, SLIDING


@dataclass(frozen=True)
class RotaryByType(KeyRule):
    """All keys about such positions. ``context``, ``d_head`` and ``masks`` must have been read before.

    Attributes:
        base: default of the base in layers without a window.
        local_base: likewise in layers with one.
        local_key: the old spelling's key of the latter; None: it has none, and its ``rope_theta`` must be the default,
            because versions of `transformers` disagree on whether it counts in layers with a window.
    """

    base: float
    local_base: float
    local_key: str | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        local = () if self.local_key is None else (self.local_key,)
        return ("rope_theta", "rope_scaling", "rope_parameters", *local)

    def read(self, raw: Raw, facts: Facts) -> Facts:
        given = self._parameters(raw)
        old = typed("rope_scaling", raw.get("rope_scaling"), dict) or {}
        base = {key: value for key, value in given.get(FULL, {}).items() if not (old and key in TYPES)}
        local = {} if self.local_key is None else {"rope_theta": raw.get(self.local_key)}
        wide = Rotary(self.base).read({"rope_parameters": {**base, **old}, "rope_theta": raw.get("rope_theta")}, facts)
        narrow = Rotary(self.local_base).read({"rope_parameters": given.get(SLIDING, {}), **local}, facts)
        each = [wide if mask == CAUSAL else narrow for mask in facts["masks"]]
        return {"rope_bases": [found["rope_base"] for found in each], "rot": wide["rot"], "layout": wide["layout"],
                "rope_scalings": [found["rope_scaling"] for found in each]}

    def write(self, facts: Facts) -> dict[str, Any]:
        wide = Rotary(self.base).write(self._of_type(facts, FULL))
        narrow = Rotary(self.local_base).write(self._of_type(facts, SLIDING))["rope_parameters"]
        local = {} if self.local_key is None else {self.local_key: narrow["rope_theta"]}
        return {**wide, "rope_parameters": {FULL: wide["rope_parameters"], SLIDING: narrow}, **local}

    def _parameters(self, raw: Raw) -> dict[str, dict[str, Any]]:
        given = typed("rope_parameters", raw.get("rope_parameters") or {}, dict)
        wrong = sorted(key for key, value in given.items()
                       if key not in (FULL, SLIDING) or not isinstance(value, Mapping))
        if wrong:
            raise KeyProblem(f"rope_parameters: {', '.join(wrong)}, where only mappings for {FULL} and {SLIDING} can "
                             "be read.")
        outside = raw.get("rope_theta")
        if self.local_key is None and SLIDING not in given and outside not in (None, self.local_base):
            raise KeyProblem(f"rope_theta: {outside}; versions of transformers disagree on whether layers with a "
                             "window have this base. Write both bases in rope_parameters.")
        return {kind: dict(value) for kind, value in given.items()}

    def _of_type(self, facts: Facts, kind: str) -> Facts:
        """The facts of `Rotary` for the layers of one type; the defaults if there are none."""
        layers = zip(facts["masks"], facts["rope_bases"], facts["rope_scalings"], strict=True)
        found = [(base, scaling) for mask, base, scaling in layers if (mask == CAUSAL) == (kind == FULL)]
        if any(each != found[0] for each in found):
            raise KeyProblem(f"rope_parameters: layers of the type {kind} differ in their bases or scalings; the file "
                             "has one of each.")
        default = (self.base if kind == FULL else self.local_base, {"kind": "none"})
        base, scaling = found[0] if found else default
        return {**facts, "rope_base": base, "rope_scaling": scaling}
