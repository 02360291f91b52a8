"""docs/families_table.md is what `make table` writes of its record, and the record has every case."""

from __future__ import annotations

import json

from against_transformers.table import PAGE, RECORD, page
from against_transformers.tiny import all_cases, encoder_cases, image_cases
from interop.huggingface.tiny_folders import stored_dropped

FOUND = json.loads(RECORD.read_text(encoding="utf-8"))


def test_the_page_is_made_of_the_record() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(FOUND), "run make table"


def test_the_record_has_every_case() -> None:
    recorded = [case["case"] for cases in FOUND["families"].values() for case in cases]
    cases = (*all_cases(), *encoder_cases(), *image_cases())
    dropped = [f"transfo-xl-{name}" for name in stored_dropped()]
    assert sorted(recorded) == sorted([*(case.name for case in cases), *dropped]), "run make table"
