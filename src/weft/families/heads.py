"""Head sizes of formats that have no key for them: the width divided by the number of heads."""

from __future__ import annotations

from typing import Any

from weft.families.keys import KeyProblem, KeyRule, Raw, Together
from weft.families.template import Facts


def divided_heads(heads_key: str, width_key: str) -> KeyRule:
    """``d_head`` is ``d_model`` / ``n_heads``, which must have been read before; the keys are named in messages."""
    def read(raw: Raw, facts: Facts) -> Facts:
        if facts["d_model"] % facts["n_heads"]:
            raise KeyProblem(f"{heads_key}: {facts['n_heads']} heads do not divide {width_key} {facts['d_model']}.")
        return {"d_head": facts["d_model"] // facts["n_heads"]}

    def write(facts: Facts) -> dict[str, Any]:
        if facts["d_head"] * facts["n_heads"] != facts["d_model"]:
            raise KeyProblem(f"heads have {facts['d_head']} features; the file has no key for other sizes than "
                             f"{width_key} / {heads_key}.")
        return {}

    return Together((), read, write)
