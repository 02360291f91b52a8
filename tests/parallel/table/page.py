"""The page of the equivalence table, made of its record."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parallel.table.columns import COLUMNS

DOCS = Path(__file__).parents[3] / "docs"
RECORD, PAGE = DOCS / "parallel_table.json", DOCS / "parallel_table.md"
INTRODUCTION = """# Ways to train, measured

A run takes the same course however it is computed: in one batch or in accumulated ones, in one process or in several,
interrupted or not. For every mixer this page compares {steps} steps of AdamW of a tiny decoder with it, in float64,
with the same steps of one process, both from the same weights. Each course follows its own weights, so that a
difference of one step acts on all later ones. Parallel columns are two processes on gloo, PyTorch {torch}.
"""
LARGEST = """## Largest difference

The largest relative difference of the loss of a step, and of all its gradients together (L2 norm). Rounding of float64
is some 1e-16; a course amplifies its own rounding, the more where a norm of each head divides by a small number, as at
a document's first token.
"""
SIGNED = """## Mean signed difference

The mean relative difference of the loss, with its sign: an error that always acts to one side, such as a token that is
counted twice, shows here first, and rounding nearly cancels.
"""


def page(record: Mapping[str, Any]) -> str:
    """The page in Markdown."""
    reasons: list[str] = []
    found = record["mixers"]
    largest = _table(found, lambda cell: f"{cell['loss']:.0e}, {cell['gradient']:.0e}", reasons)
    signed = _table(found, lambda cell: f"{cell['signed']:+.0e}" if cell["signed"] else "0", reasons)
    columns = "\n".join(f"* **{column.name}**: {column.what}." for column in COLUMNS)
    notes = "".join(f"{number}. {why}\n" for number, why in enumerate(reasons, 1))
    left = f"\nNot measured yet: {', '.join(record['left'])}.\n" if record["left"] else ""
    return "\n".join((INTRODUCTION.format(**record), columns, left, LARGEST, largest, "", SIGNED, signed, "",
                      "## Why a cell is empty\n", notes,
                      "Written by `make table-parallel`; the numbers are in parallel_table.json.\n"))


def _table(found: Mapping[str, Any], words: Any, reasons: list[str]) -> str:
    lines = ["| mixer | " + " | ".join(column.name for column in COLUMNS) + " |", "|" + " --- |" * (len(COLUMNS) + 1)]
    for mixer, cells in found.items():
        row = []
        for column in COLUMNS:
            cell = cells[column.name]
            if "why" in cell and cell["why"] not in reasons:
                reasons.append(cell["why"])
            row.append(f"note {reasons.index(cell['why']) + 1}" if "why" in cell else words(cell))
        lines.append(f"| {mixer} | " + " | ".join(row) + " |")
    return "\n".join(lines)
