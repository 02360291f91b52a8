"""What a plan says of rotations that depend on the document's length."""

from __future__ import annotations

from typing import Any

import pytest

from weft.analysis.cost_plan import all_notes
from weft.core.config import parse_part
from weft.core.model import LanguageModel

SHORT, LONG = [1.0, 1.5], [1.0, 4.0]


def longrope(original_length: int) -> dict[str, Any]:
    return {"kind": "longrope", "short_factor": SHORT, "long_factor": LONG, "original_length": original_length,
            "factor": 2.0}


def notes(*scalings: dict[str, Any]) -> str:
    blocks = [{"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2,
                                          "position": {"kind": "rope", "scaling": scaling}}]} for scaling in scalings]
    config = parse_part(("model",), {"kind": "decoder", "vocab_size": 5, "d_model": 8, "context": 16, "blocks": blocks})
    model = config.build(None)
    assert isinstance(model, LanguageModel)
    return "\n".join(all_notes(model, None))


@pytest.mark.parametrize(("scalings", "said"), [
    ([longrope(6), longrope(6)], "length of the document. At 7 tokens the rotation changes, so generation runs the "
                                 "whole text again."),
    ([longrope(6), longrope(9)], "At 2 of the lengths from 7 to 10 tokens the rotation changes"),
    ([{"kind": "dynamic", "factor": 2.0, "original_length": 12}],
     "At every length from 13 to 16 tokens the rotation changes, so generation"),
    ([longrope(16)], "depends on the length of the document; it is the same for all lengths up to 16 tokens."),
])
def test_where_generation_starts_over(scalings: list[dict[str, Any]], said: str) -> None:
    assert said in notes(*scalings)


def test_other_rotations_are_not_mentioned() -> None:
    assert "length of the document" not in notes({"kind": "yarn", "factor": 2.0, "original_length": 8})
